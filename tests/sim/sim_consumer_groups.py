"""Simulated members of a group with the consumer protocol (KIP-848): the coordinator assigns the partitions.

A member owns what the coordinator has assigned, and stops to commit a partition before it reports that it has revoked
it. So the committed offsets of a partition only go up, as in a classic group, and no two members own it at the same
time, unless the coordinator may assume that one of them has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sim_client import GROUP, Lost
from sim_groups import GroupClient, Rejoin

from ottla.model.errors import ErrorCode
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from sim_world import World

_SESSION_S = 3.0
_REBALANCE_MS = 8000
_LEAVE = -1
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)

#: broker settings for groups with this protocol
CONSUMER_SETTINGS = {
    "group.consumer.session.timeout.ms": str(int(_SESSION_S * 1000)),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


class ConsumerMember(GroupClient):
    """One member."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, "consumers")
        self._lives = 0
        self._member_id = ""
        self._epoch = 0
        #: the committed offset of each partition that this member owns
        self._owned: dict[int, int] = {}
        #: whether the coordinator knows which partitions this member owns
        self._is_reported = False
        #: when the last heartbeat that was answered was sent
        self._sent_at = 0.0
        self._topic_id = b""

    async def run(self) -> None:
        await self.find_coordinator(self._group, GROUP)
        self._begin()
        while not self.is_over:
            try:
                await self._work()
            except Rejoin:
                self._begin()
            except Lost:
                self._is_reported = False
                await self.pause(0.2)
        self._owned.clear()
        for place in self.world.places:
            await self._check_offset(place.partition)

    def _begin(self) -> None:
        """Begin as a new member, which owns nothing."""
        self._lives += 1
        self._member_id, self._epoch = f"{self.name}.{self._lives}", 0
        self._owned, self._is_reported = {}, False

    async def _work(self) -> None:
        while not self.is_over:
            await self._beat()
            for _ in range(self.rng.randint(0, 3)):
                if self._owned:
                    await self._commit(self.rng.choice(list(self._owned)))
            chance = self.rng.random()
            if chance < 0.02:
                await self._leave()
            elif chance < 0.04:
                # As after a long pause of a process: the session is over, and the member does not know it.
                await asyncio.sleep(_SESSION_S * self.rng.uniform(0.5, 2))
            await self.pause(0.15)

    async def _beat(self) -> None:
        sent_at = self.world.loop.time()
        rows = [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=self._topic_id, partitions=list(self._owned))]
        is_full = self._epoch == 0 or not self._is_reported
        reply = await self.ask_group(
            ConsumerGroupHeartbeatRequest(
                group_id=self._group, member_id=self._member_id, member_epoch=self._epoch,
                rebalance_timeout=_REBALANCE_MS if is_full else -1,
                subscribed_topic_names=[self.world.places[0].topic] if is_full else None,
                topic_partitions=(rows if self._owned else []) if is_full else None,
            ), 1,
        )  # fmt: skip
        self._check(reply.error_code)
        self._epoch, self._sent_at, self._is_reported = reply.member_epoch, sent_at, True
        if reply.assignment is not None:
            await self._reconcile(reply.assignment)

    async def _reconcile(self, assignment: Any) -> None:
        partitions = [number for row in assignment.topic_partitions for number in row.partitions]
        for row in assignment.topic_partitions:
            self._topic_id = row.topic_id
        if set(partitions) != set(self._owned):
            self._is_reported = False
        self._owned = {number: offset for number, offset in self._owned.items() if number in partitions}
        for number in sorted(set(partitions) - set(self._owned)):
            self._check_owners(number)
            self._owned[number] = -1
            try:
                self._owned[number] = await self.fetch_offset(number)
            except (Lost, Rejoin):
                # It owns the partition, but does not know where to begin.
                del self._owned[number]
                raise

    def _check_owners(self, partition: int) -> None:
        """Report another member that owns the partition and that the coordinator has heard of within its session."""
        now = self.world.loop.time()
        for other in self.world.consumer_members:
            is_alive = now < other._sent_at + _SESSION_S and not other._is_replaced(other._sent_at)
            if other is not self and partition in other._owned and is_alive and not self._is_replaced(self._sent_at):
                line = f"{self._group} partition {partition}: {other._member_id} and {self._member_id}"
                self.world.violation("two-owners", line)

    async def _commit(self, partition: int) -> None:
        offset = self._owned[partition] + 1
        row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=self.world.places[0].topic, partitions=[row])
        self.world.groups.sends(self._group, partition, offset)
        self._owned[partition] = offset
        reply = await self.ask_group(
            OffsetCommitRequest(
                group_id=self._group, generation_id_or_member_epoch=self._epoch, member_id=self._member_id,
                topics=[topic],
            ), 9,
        )  # fmt: skip
        code = reply.topics[0].partitions[0].error_code
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            await self._beat()
            return
        self._check(code)
        self.world.groups.commit_acknowledged(self._group, partition, offset)

    async def _leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id=self._member_id, member_epoch=_LEAVE, topic_partitions=None
        )
        self._owned.clear()
        await self.ask_group(request, 1)
        raise Rejoin

    async def _check_offset(self, partition: int) -> None:
        while True:
            try:
                await self.fetch_offset(partition)
                return
            except (Lost, Rejoin):
                await self.pause(0.1)

    def _check(self, code: int) -> None:
        """Raise Rejoin if the member was fenced, Lost after another error."""
        self.note_code(code)
        if code in _FENCED:
            raise Rejoin
        if code:
            raise Lost(f"error {code}")
