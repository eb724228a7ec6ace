"""Simulated members of a classic group: they join, share the partitions, and commit offsets that only go up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sim_client import GROUP, NOT_COORDINATOR, Client, Lost
from sim_host import SETTINGS

from ottla.broker.groups.runtime import OFFSETS_TOPIC
from ottla.model.errors import ErrorCode
from ottla.model.hashing import java_hash
from ottla.testing.history import Place
from ottla.wire import Message
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

if TYPE_CHECKING:
    from sim_world import World

_SESSION_MS = 2500
_OFFSETS_PARTITIONS = int(SETTINGS["offsets.topic.num.partitions"])
#: the type and name of an opaque protocol: the broker does not read the assignments
_PROTOCOL = "simulated"


class Rejoin(Exception):
    """The member has to join again."""


class GroupOracle:
    """What the members of a group were told, and what they may be told after that."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: by group and partition: the highest offset that was acknowledged, and the highest that was sent
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[str, int], int] = {}
        #: by group, generation and partition: the member that owns it
        self._owners: dict[tuple[str, int, int], str] = {}
        self.commits = 0

    def assigned(self, group: str, generation: int, member: str, partitions: list[int]) -> None:
        for partition in partitions:
            owner = self._owners.setdefault((group, generation, partition), member)
            if owner != member:
                line = f"{group} generation {generation}: {owner} and {member} own partition {partition}"
                self._world.violation("two-owners", line)

    def acknowledged_before(self, group: str, partition: int) -> int:
        return self._acknowledged.get((group, partition), -1)

    def sends(self, group: str, partition: int, offset: int) -> None:
        self._sent[group, partition] = max(offset, self._sent.get((group, partition), -1))

    def commit_acknowledged(self, group: str, partition: int, offset: int) -> None:
        self.commits += 1
        self._acknowledged[group, partition] = max(offset, self._acknowledged.get((group, partition), -1))

    def fetched(self, group: str, partition: int, offset: int, at_least: int, *, is_replaced: bool) -> None:
        """An OffsetFetch returned this; ``at_least`` was acknowledged before it was sent.

        A coordinator that was replaced and does not know it may return an older offset, for the time of its lease. A
        member that commits from there is fenced by the new coordinator.
        """
        if offset < at_least and not is_replaced:
            line = f"{group} partition {partition}: {offset}, but {at_least} was acknowledged"
            self._world.violation("committed-offset-lost", line)
        elif offset > self._sent.get((group, partition), -1):
            self._world.violation("committed-offset-never-sent", f"{group} partition {partition}: {offset}")


class GroupClient(Client):
    """Reads the committed offsets of a group and compares them with those that were acknowledged."""

    def __init__(self, world: World, name: str, group: str) -> None:
        super().__init__(world, name)
        self._group = group

    async def ask_group(self, request: Message, version: int) -> Any:
        """Send a request to the coordinator of the group. Raise Lost without a reply."""
        return await self.ask_coordinator(GROUP, self._group, request, version)

    def note_code(self, code: int) -> None:
        """Rediscover the coordinator after an error that says that it moved."""
        if code in NOT_COORDINATOR:
            self.forget_coordinator(GROUP, self._group)

    async def fetch_offset(self, partition: int) -> int:
        """Return the committed offset. Raise Rejoin after an error, Lost without a reply."""
        topics = [OffsetFetchRequestTopics(name=self.world.places[0].topic, partition_indexes=[partition])]
        asked = OffsetFetchRequestGroup(group_id=self._group, topics=topics)
        at_least = self.world.groups.acknowledged_before(self._group, partition)
        asked_at = self.world.loop.time()
        reply = await self.ask_group(OffsetFetchRequest(groups=[asked], require_stable=True), 8)
        (found,) = reply.groups
        self.note_code(found.error_code)
        row: Any = found.topics[0].partitions[0] if found.topics else None
        if found.error_code or row is None or row.error_code:
            raise Rejoin
        is_replaced = self._is_replaced(asked_at)
        self.world.groups.fetched(self._group, partition, row.committed_offset, at_least, is_replaced=is_replaced)
        return int(row.committed_offset)

    def _is_replaced(self, asked_at: float) -> bool:
        """Return whether the coordinator was replaced and may not have known it when it was asked."""
        replication = self.world.replication
        if replication is None:
            return False
        place = Place(OFFSETS_TOPIC, (java_hash(self._group) & 0x7FFFFFFF) % _OFFSETS_PARTITIONS)
        return replication.store.may_act_on_old_role(self.known_coordinator(GROUP, self._group), place, asked_at)


class OffsetMonitor(GroupClient):
    """Asks for the committed offsets all the time, as tools do that show the lag of a group."""

    async def run(self) -> None:
        while not self.is_over:
            try:
                await self.fetch_offset(self.rng.choice(self.world.places).partition)
                await self.pause(0.1)
            except (Lost, Rejoin):
                await self.pause(0.01)


class GroupMember(GroupClient):
    """One member of a group."""

    def __init__(self, world: World, name: str, group: str) -> None:
        super().__init__(world, name, group)
        self._member_id = ""
        self._generation = -1

    async def run(self) -> None:
        await self.find_coordinator(self._group, GROUP)
        while not self.is_over:
            try:
                await self._work(await self._join())
            except Rejoin:
                await self.pause(0.05)
            except Lost:
                await self.pause(0.2)
        await self._check_offsets_at_end()

    async def _join(self) -> list[int]:
        """Join the group and return the partitions of this member."""
        request = JoinGroupRequest(
            group_id=self._group, session_timeout=_SESSION_MS, rebalance_timeout=_SESSION_MS,
            member_id=self._member_id, protocol_type=_PROTOCOL,
            protocols=[JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"")],
        )  # fmt: skip
        joined = await self.ask_group(request, 7)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            raise Rejoin
        self._check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        rows = []
        if joined.leader == joined.member_id:
            ids = sorted(member.member_id for member in joined.members)
            for number, member_id in enumerate(ids):
                partitions = [str(place.partition) for place in self.world.places[number :: len(ids)]]
                rows.append(SyncGroupRequestAssignment(member_id=member_id, assignment=",".join(partitions).encode()))
        synced = await self.ask_group(
            SyncGroupRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id,
                protocol_type=_PROTOCOL, protocol_name=_PROTOCOL, assignments=rows,
            ), 5,
        )  # fmt: skip
        self._check(synced.error_code)
        partitions = [int(number) for number in bytes(synced.assignment).decode().split(",") if number]
        self.world.groups.assigned(self._group, self._generation, self._member_id, partitions)
        return partitions

    async def _work(self, partitions: list[int]) -> None:
        offsets = {partition: await self.fetch_offset(partition) for partition in partitions}
        while not self.is_over:
            if self.rng.random() < 0.03:
                await self._leave()
                raise Rejoin
            if self.rng.random() < 0.03:
                # As after a long pause of a process: the session is over, and the member does not know it.
                await asyncio.sleep(_SESSION_MS / 1000 * self.rng.uniform(0.5, 2))
            if partitions and self.rng.random() < 0.6:
                await self._commit(self.rng.choice(partitions), offsets)
            else:
                beat = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id)
                self._check((await self.ask_group(beat, 4)).error_code)
            await self.pause(0.15)

    async def _commit(self, partition: int, offsets: dict[int, int]) -> None:
        offset = offsets[partition] + 1
        row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=self.world.places[0].topic, partitions=[row])
        self.world.groups.sends(self._group, partition, offset)
        offsets[partition] = offset
        reply = await self.ask_group(
            OffsetCommitRequest(
                group_id=self._group, generation_id_or_member_epoch=self._generation, member_id=self._member_id,
                topics=[topic],
            ), 8,
        )  # fmt: skip
        self._check(reply.topics[0].partitions[0].error_code)
        self.world.groups.commit_acknowledged(self._group, partition, offset)
        if self.rng.random() < 0.3:
            await self.fetch_offset(partition)

    async def _check_offsets_at_end(self) -> None:
        for place in self.world.places:
            while True:
                try:
                    await self.fetch_offset(place.partition)
                    break
                except (Lost, Rejoin):
                    await self.pause(0.1)

    async def _leave(self) -> None:
        member = MemberIdentity(member_id=self._member_id)
        await self.ask_group(LeaveGroupRequest(group_id=self._group, members=[member]), 4)
        self._member_id = ""

    def _check(self, code: int) -> None:
        """Raise Rejoin after any error."""
        self.note_code(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = ""
        if code:
            raise Rejoin
