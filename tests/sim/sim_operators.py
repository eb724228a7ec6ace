"""Simulated operators: one moves replicas and leaders, one changes min.insync.replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_client import Client, Lost

from ottla.testing.history import Place
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    pass

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_SET, _DELETE = 0, 1
_PREFERRED = 0
#: topics with coordinators
COORDINATED = ("__consumer_offsets", "__transaction_state")


class Mover(Client):
    """Reassigns the replicas of partitions, cancels that, and elects preferred leaders."""

    async def run(self) -> None:
        while not self.is_over:
            place = self.rng.choice(self._places())
            action = self.rng.choice(("reassign", "reassign", "cancel", "elect"))
            try:
                if action == "elect":
                    await self._elect(place)
                else:
                    await self._reassign(place, self._draw_replicas() if action == "reassign" else None)
            except Lost:
                pass
            await self.pause(0.7)
        for place in self._places():
            await self._end_with_all_replicas(place)

    def _places(self) -> list[Place]:
        """Return the partitions to move. The topics with coordinators exist when the first client has needed them."""
        assert self.world.replication is not None
        created = self.world.replication.store.view.topics
        return [*self.world.places, *(Place(topic, 0) for topic in COORDINATED if topic in created)]

    def _draw_replicas(self) -> list[int]:
        """Return other replicas: as many as before, or one less, if all brokers have one."""
        factor = self.world.replication_factor
        least = factor - 1 if factor == len(self.world.hosts) else factor
        brokers = list(self.world.hosts)
        return self.rng.sample(brokers, self.rng.randint(max(least, self.world.min_in_sync), factor))

    async def _reassign(self, place: Place, replicas: list[int] | None) -> None:
        self.world.trace(f"{self.name}: {place} to {replicas}")
        row = ReassignablePartition(partition_index=place.partition, replicas=replicas)
        topic = ReassignableTopic(name=place.topic, partitions=[row])
        await self.ask(AlterPartitionReassignmentsRequest(timeout=2000, topics=[topic]), 0)

    async def _elect(self, place: Place) -> None:
        rows = [TopicPartitions(topic=place.topic, partitions=[place.partition])]
        await self.ask(ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=rows, timeout=2000), 2)

    async def _end_with_all_replicas(self, place: Place) -> None:
        assert self.world.replication is not None
        factor = self.world.replication_factor
        while True:
            state = self.world.replication.store.view.topics[place.topic].partitions[place.partition]
            if len(state.replicas) == factor and not state.adding and not state.removing:
                return
            try:
                if not state.adding and not state.removing:
                    await self._reassign(place, self.rng.sample(list(self.world.hosts), factor))
            except Lost:
                pass
            await self.pause(0.3)


class MinInSyncOperator(Client):
    """Sets min.insync.replicas of the topic and the default of the cluster, or removes these settings."""

    async def run(self) -> None:
        while not self.is_over:
            await self.pause(1.5)
            is_topic = self.rng.random() < 0.6
            value = self.rng.choice(("1", "2", "2", "3", None))
            try:
                if is_topic:
                    await self.set_min_in_sync(TOPIC_RESOURCE, self.world.places[0].topic, value)
                else:
                    await self.set_min_in_sync(BROKER_RESOURCE, "", value)
            except Lost:
                pass
        # More than two would hold back all writes as long as one broker starts.
        for resource, name in ((TOPIC_RESOURCE, self.world.places[0].topic), (BROKER_RESOURCE, "")):
            await self._until_set(resource, name, "2")

    async def _until_set(self, resource: int, name: str, value: str) -> None:
        while True:
            try:
                if not await self.set_min_in_sync(resource, name, value):
                    return
            except Lost:
                pass
            await self.pause(0.1)

    async def set_min_in_sync(self, resource: int, name: str, value: str | None, *, broker: int | None = None) -> int:
        """Set or remove min.insync.replicas of a topic or of all brokers; return the error code. Raise Lost."""
        self.world.trace(f"{self.name}: min.insync.replicas of {name or 'all brokers'} {value}")
        config = AlterableConfig(
            name="min.insync.replicas", config_operation=_DELETE if value is None else _SET, value=value
        )
        row = AlterConfigsResource(resource_type=resource, resource_name=name, configs=[config])
        reply = await self.ask(IncrementalAlterConfigsRequest(resources=[row]), 1, broker=broker)
        return int(reply.responses[0].error_code)
