"""The real handlers of admin requests on a metadata store, without a broker around them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.request_fixtures import request_context

from ottla.broker.apis.configs import BROKER, GROUP, TOPIC, alter_configs, incremental_alter_configs
from ottla.broker.apis.topics import create_partitions, create_topics, delete_topics
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.services import ResolvedSettings, Services
from ottla.cluster.schema import ops_create_skeleton
from ottla.cluster.store import Changed, MetadataStore
from ottla.cluster.view import ClusterView
from ottla.model.settings import AlterOp, BrokerSettings
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
        settings = BrokerSettings.parse({"log.dirs": "unused", "broker.id": str(broker_id)})
        self.store = store
        self.view = ClusterView()
        self.producer_ids = ProducerIds(store, broker_id)
        rng = Random(f"{broker_id} {seed}")
        self.services: Any = SimpleNamespace(
            broker_id=broker_id, store=store, view=self.view, settings=settings, started_settings=settings,
            clock=SimpleNamespace(wall_ms=lambda: NOW_MS), new_id=lambda: rng.randbytes(16),
            metadata_turn=asyncio.Lock(), resolved=ResolvedSettings(), elections=0, unclean_elections=0,
            is_cut_off=False,
            just_lost=frozenset,
        )  # fmt: skip
        self.services.topic_settings = lambda topic: Services.topic_settings(self.services, topic)
        self.services.wanted_min_isr = partial(Services.wanted_min_isr, self.services)
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
        answer = await create_topics(self.services, CreateTopicsRequest(topics=[wanted]), self.context)
        return answer.topics[0].error_code, answer.topics[0].topic_id

    async def create_partitions(self, name: str, count: int) -> int:
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
        answer = await create_partitions(self.services, CreatePartitionsRequest(topics=[wanted]), self.context)
        return answer.results[0].error_code

    async def delete_topic(self, name: str) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        return (await delete_topics(self.services, request, self.context)).responses[0].error_code

    async def delete_topic_by_id(self, topic_id: bytes) -> int:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)])
        return (await delete_topics(self.services, request, self.context)).responses[0].error_code

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
        return (await incremental_alter_configs(self.services, request, self.context)).responses[0].error_code

    async def replace_configs(self, kind: int, name: str, configs: Mapping[str, str]) -> int:
        """AlterConfigs: replace all values by these."""
        rows = [LegacyConfig(name=key, value=value) for key, value in configs.items()]
        resource = LegacyResource(resource_type=kind, resource_name=name, configs=rows)
        answer = await alter_configs(self.services, AlterConfigsRequest(resources=[resource]), self.context)
        return answer.responses[0].error_code
