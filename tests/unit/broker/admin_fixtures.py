"""The real handlers of admin requests on a metadata store, without a broker around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata
from tests.unit.broker.request_fixtures import request_context

from ottla.broker.cluster.config_apis import BROKER, GROUP, TOPIC, ConfigApis
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.metadata.nodes import ops_create_skeleton
from ottla.broker.metadata.store import Changed, MetadataStore
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.model.settings import AlterOp
from ottla.wire.messages.alter_configs import AlterableConfig as LegacyConfig
from ottla.wire.messages.alter_configs import AlterConfigsRequest
from ottla.wire.messages.alter_configs import AlterConfigsResource as LegacyResource
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

NOW_MS = 1_000_000

__all__ = ["BROKER", "GROUP", "NOW_MS", "TOPIC", "Admin", "create_skeleton"]


async def create_skeleton(store: MetadataStore) -> None:
    await store.multi(ops_create_skeleton(await store.load("/")))


class Admin:
    """A broker's view of a store, and its handlers. Each method returns the error code of the reply."""

    def __init__(self, store: MetadataStore, *, broker_id: int = 0, seed: int = 0) -> None:
        rng = Random(f"{broker_id} {seed}")
        self.store = store
        self.metadata = make_metadata(broker_id=broker_id, store=store, new_id=lambda: rng.randbytes(16))
        self.view = self.metadata.view
        self.producer_ids = ProducerIds(store, broker_id)
        clock: Any = SimpleNamespace(wall_ms=lambda: NOW_MS)
        self.topics = TopicApis(
            metadata=self.metadata, replicas=UNUSED, clock=clock, log_moves=UNUSED, tasks=UNUSED
        )  # fmt: skip
        self.configs = ConfigApis(metadata=self.metadata)
        self.context: Any = request_context(6)

    async def open(self) -> Admin:
        await self.store.watch("/", self._changed)
        return self

    def _changed(self, changes: list[Changed]) -> None:
        self.view.apply(changes)

    async def create_topic(self, name: str, partitions: int = 1) -> int:
        code, _ = await self.create_topic_with_id(name, partitions, {})
        return code

    async def create_topic_with_id(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> tuple[int, bytes]:  # fmt: skip
        """Return the error code and the topic id of the reply."""
        rows = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
        answer = await self.topics.create_topics(CreateTopicsRequest(topics=[wanted]), self.context)
        return answer.topics[0].error_code, answer.topics[0].topic_id

    async def create_partitions(self, name: str, count: int) -> int:
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
        answer = await self.topics.create_partitions(CreatePartitionsRequest(topics=[wanted]), self.context)
        return answer.results[0].error_code

    async def delete_topic(self, name: str) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        return (await self.topics.delete_topics(request, self.context)).responses[0].error_code

    async def delete_topic_by_id(self, topic_id: bytes) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)])
        return (await self.topics.delete_topics(request, self.context)).responses[0].error_code

    async def set_configs(self, kind: int, name: str, configs: Mapping[str, str | None]) -> int:
        """IncrementalAlterConfigs: set these values; None deletes one."""
        changes = [
            AlterableConfig(name=key, config_operation=AlterOp.DELETE if value is None else AlterOp.SET, value=value)
            for key, value in configs.items()
        ]
        return await self._alter(kind, name, changes)

    async def _alter(self, kind: int, name: str, changes: Sequence[AlterableConfig]) -> int:
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        return (await self.configs.incremental_alter_configs(request, self.context)).responses[0].error_code

    async def replace_configs(self, kind: int, name: str, configs: Mapping[str, str]) -> int:
        """AlterConfigs: replace all values by these."""
        rows = [LegacyConfig(name=key, value=value) for key, value in configs.items()]
        resource = LegacyResource(resource_type=kind, resource_name=name, configs=rows)
        answer = await self.configs.alter_configs(AlterConfigsRequest(resources=[resource]), self.context)
        return answer.responses[0].error_code
