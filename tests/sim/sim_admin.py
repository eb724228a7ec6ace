"""A simulated administrator: creates, changes and deletes topics of its own, and checks what it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim_client import NOT_LEADER, Client, Lost, batch

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.testing.raw import produce_request
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from sim_world import World

_TOPIC_RESOURCE = 2
_SET = 0
_RETENTION = "retention.ms"
#: all brokers of a healed cluster know a change after this time
_LEARNED_WITHIN_S = 20.0


class Administrator(Client):
    """Works on one topic at a time; no other client changes it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._numbers = 0

    async def run(self) -> None:
        while not self.is_over:
            self._numbers += 1
            topic = f"{self.name}-{self._numbers}"
            await self.create_topic(topic)
            partitions, retentions = await self._use(topic)
            if self.is_over:
                await self._look_at_end(topic, partitions, retentions)
            await self.delete_topic(topic)

    async def _look_at_end(self, topic: str, partitions: int, retentions: set[str]) -> None:
        while True:
            try:
                await self._look(topic, partitions, retentions)
                return
            except Lost:
                await self.pause(0.1)

    async def _use(self, topic: str) -> tuple[int, set[str]]:
        """Change the topic for some time. Return the least number of partitions and the retentions it may have."""
        #: the least number of partitions, and the retentions that DescribeConfigs may return
        partitions, retentions = 1, {"604800000"}
        while not self.is_over and self.rng.random() > 0.1:
            try:
                action = self.rng.choice(("partitions", "config", "records", "look"))
                if action == "partitions":
                    partitions = await self._add_partition(topic, partitions)
                elif action == "config":
                    await self._set_retention(topic, retentions)
                elif action == "records":
                    await self._delete_records(topic)
                else:
                    await self._look(topic, partitions, retentions)
            except Lost:
                pass
            await self.pause(0.2)
        return partitions, retentions

    async def _add_partition(self, name: str, partitions: int) -> int:
        topic = CreatePartitionsTopic(name=name, count=partitions + 1, assignments=None)
        (row,) = (await self.ask(CreatePartitionsRequest(topics=[topic], timeout=3000), 3)).results
        # After a lost reply, the partition that this request asks for may exist already.
        return partitions + 1 if row.error_code in (0, ErrorCode.INVALID_PARTITIONS) else partitions

    async def _set_retention(self, name: str, retentions: set[str]) -> None:
        value = str(self.rng.randint(1_000_000, 9_000_000))
        retentions.add(value)
        config = AlterableConfig(name=_RETENTION, config_operation=_SET, value=value)
        resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configs=[config])
        (row,) = (await self.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)).responses
        if not row.error_code:
            retentions.intersection_update({value})

    async def _delete_records(self, name: str) -> None:
        content = batch(["deleted"], self.world.now_ms())
        place = Place(name, 0)
        produce = produce_request((name, 0, content), acks=-1, timeout_ms=2000)
        row: Any = (await self.ask_leader(place, produce, 11)).responses[0]
        if row.partition_responses[0].error_code:
            self.forget_leader(place)
            return
        offset = row.partition_responses[0].base_offset
        rows = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=rows)], timeout=2000)
        (deleted,) = (await self.ask_leader(place, request, 2)).topics[0].partitions
        if deleted.error_code in NOT_LEADER:
            self.forget_leader(place)
        if not deleted.error_code and deleted.low_watermark < offset:
            self.world.violation("records-not-deleted", f"{name}: {deleted.low_watermark} instead of {offset}")

    async def _look(self, name: str, partitions: int, retentions: set[str]) -> None:
        """Compare what a broker says with what this client was told.

        With several brokers, the broker that is asked may learn of a change later than the one that made it. It must
        know it within a time, unless faults keep it from the metadata store.
        """
        until = self.world.loop.time() + (_LEARNED_WITHIN_S if self.world.is_cluster else 0)
        while True:
            found = await self._find_difference(name, partitions, retentions)
            if found is None:
                return
            if self.world.loop.time() >= until:
                break
            await self.pause(0.5)
        if self.world.healed_for_s >= _LEARNED_WITHIN_S or not self.world.is_cluster:
            self.world.violation(*found)

    async def _find_difference(self, name: str, partitions: int, retentions: set[str]) -> tuple[str, str] | None:
        """Return the kind and the text of a violation; None if the broker answers what this client expects."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        (found,) = (await self.ask(request, 9)).topics
        if found.error_code or len(found.partitions) < partitions:
            return "topic-lost", f"{name}: error {found.error_code}, {len(found.partitions)} of {partitions} partitions"
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=[_RETENTION]
        )
        (described,) = (await self.ask(DescribeConfigsRequest(resources=[resource]), 4)).results
        values = [row.value for row in described.configs]
        if not described.error_code and values[0] not in retentions:
            return "config-lost", f"{name}: {values[0]}, not one of {sorted(retentions)}"
        return None
