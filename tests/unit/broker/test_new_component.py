"""A new feature is one package with a component and one line in the list of `broker/assembly.py`.

The package of this test counts requests. It is reached by a real frame, and the broker advertises its API, reports the
settings and changes of access and of the metadata to it, shows its metrics, and stops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from memory_broker import MemoryBroker

from ottla.broker import broker as broker_module
from ottla.broker.assembly import Parts, build
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import AccessChanges, ViewChanges
from ottla.broker.request import RequestContext
from ottla.env.metrics import Page
from ottla.security.acls import Pattern
from ottla.security.quotas import Entity
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

#: an API of Kafka that no component of Ottla serves
_KEY = GetTelemetrySubscriptionsRequest.API_KEY
_BROKER = 4


class RequestCounter(Component):
    """Counts requests, and notes what the broker reports to it."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self.requests = 0
        self.message_bytes_max: list[int] = []
        self.access: list[Pattern | Entity] = []
        self.topics: list[str] = []
        self.calls: list[str] = []

    def apis(self) -> Mapping[int, ServedApi]:
        return {_KEY: ServedApi(0, 0, self.count)}

    def count(
        self, request: GetTelemetrySubscriptionsRequest, context: RequestContext
    ) -> GetTelemetrySubscriptionsResponse:
        self.requests += 1
        return GetTelemetrySubscriptionsResponse(
            error_code=0, client_instance_id=request.client_instance_id, subscription_id=self.requests,
            accepted_compression_types=[], push_interval=0, telemetry_max_bytes=0, delta_temporality=False,
            requested_metrics=[],
        )  # fmt: skip

    def on_settings(self) -> None:
        self.message_bytes_max.append(self._metadata.settings.message_max_bytes)

    def on_access(self, changed: AccessChanges) -> None:
        self.access += changed

    def on_view(self, changes: ViewChanges) -> None:
        self.topics += [new.name for old, new in changes.topics if new is not None]

    async def start(self) -> None:
        self.calls.append("start")

    def metrics(self, page: Page) -> Iterator[None]:
        page.counter("trial_requests", "Requests that were counted.", self.requests)
        yield

    async def complete_requests(self) -> None:
        self.calls.append("complete requests")

    async def stop(self) -> None:
        self.calls.append("stop")


def test_component_in_the_list_gets_all_that_a_broker_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters: list[RequestCounter] = []

    def build_with_counter(*parts: Any, **options: Any) -> Parts:
        built = build(*parts, **options)
        counters.append(RequestCounter(built.metadata))
        built.components.append(counters[0])  # the line
        return built

    monkeypatch.setattr(broker_module, "build", build_with_counter)

    async def main() -> None:
        async with MemoryBroker(tmp_path) as broker:
            (counter,), client = counters, broker.root
            advertised = await client.decoded(ApiVersionsRequest(), 2)
            assert (_KEY, 0, 0) in [(each.api_key, each.min_version, each.max_version) for each in advertised.api_keys]
            request = GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16))
            assert [(await client.decoded(request, 0)).subscription_id for _ in range(3)] == [1, 2, 3]
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await client.decoded(CreateTopicsRequest(topics=[topic], timeout=1000), 7)
            assert counter.topics == ["t"]
            config = AlterableConfig(name="message.max.bytes", value="5000")
            resource = AlterConfigsResource(resource_type=_BROKER, resource_name="", configs=[config])
            await client.decoded(AlterConfigsRequest(resources=[resource]), 2)
            assert counter.message_bytes_max == [1_048_588, 5000]
            of_user = AlterClientQuotasRequestEntityData(entity_type="user", entity_name="u")
            entry = AlterClientQuotasRequestEntryData(
                entity=[of_user], ops=[OpData(key="producer_byte_rate", value=1e6)]
            )
            assert counter.access == []
            await client.decoded(AlterClientQuotasRequest(entries=[entry]), 1)
            assert len(counter.access) == 1 and isinstance(counter.access[0], Entity)
            page = b"".join(await broker.broker.metrics.fill())
            assert b"trial_requests_total 3\n" in page
            assert b'ottla_requests_total{api="GetTelemetrySubscriptions"} 3\n' in page
            assert counter.calls == ["start"]
        assert counter.calls == ["start", "complete requests", "stop"]

    uvloop.run(main())


def test_two_components_cannot_serve_one_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_with_two(*parts: Any, **options: Any) -> Parts:
        built = build(*parts, **options)
        built.components += [RequestCounter(built.metadata), RequestCounter(built.metadata)]
        return built

    monkeypatch.setattr(broker_module, "build", build_with_two)

    async def main() -> None:
        broker = MemoryBroker(tmp_path)
        with pytest.raises(AssertionError, match=f"two components serve API {_KEY}"):
            await broker.__aenter__()
        await broker.broker.abandon()

    uvloop.run(main())
