"""Simulated readers of committed records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sim_client import GROUP, NOT_COORDINATOR, NOT_LEADER, Client, Lost, committed_records

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.testing.raw import fetch_from, fetch_request
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from sim_world import World

_FETCH_V = 11
_LATEST = -1
READ_COMMITTED = 1
#: a transaction that is open at the end is aborted within this time
_HANGS_AFTER_S = 20.0
_VALIDATE_AFTER = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


class _Asked(NamedTuple):
    """What was known when a broker was asked for records."""

    broker: int
    at: float
    power_failures: int
    #: by partition: the log start that was the answer to DeleteRecords
    log_starts: dict[Place, int]

    def of_leader(self, world: World, place: Place) -> _Asked:
        """Return this for a broker that leads. One that was replaced may not know what others have deleted."""
        replication = world.replication
        if replication is not None and replication.store.may_act_on_old_role(self.broker, place, self.at):
            return self._replace(log_starts={})
        return self

    def of_follower(self) -> _Asked:
        """Return this for a follower, which may not know for some time what others have lost or deleted."""
        return self._replace(power_failures=-1, log_starts={})


class Reader(Client):
    """Reads all partitions with long polls.

    It names the leader epoch that it knows in each Fetch, as consumers do (KIP-320). When the broker rejects the epoch,
    because the broker was restarted, it learns the new one and asks whether the log was truncated.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._positions: dict[Place, int] = {}
        #: the leader epoch of the last record that was read
        self._epochs: dict[Place, int] = {}
        #: the leader epoch of each partition as this reader knows it; empty if it has to be learned
        self._leader_epochs: dict[Place, int] = {}
        #: the rack of this reader, and the follower that the leader has told it to read from (KIP-392)
        self.rack = ""
        self._closest: dict[Place, int] = {}

    async def run(self) -> None:
        for place in self.world.places:
            self._positions[place] = 0
            self.world.history.assigned(self.name, place, 0)
        while not self.is_over:
            try:
                await self.read_once(max_wait_ms=300)
            except Lost:
                await self.pause(0.1)
            await self.pause(0.02)

    async def read_once(self, *, max_wait_ms: int) -> bool:
        """Fetch from each leader, or from the replica in the reader's rack, once and note the records.

        Return whether every partition was read to its last stable offset.
        """
        if len(self._leader_epochs) < len(self._positions):
            await self._validate()
        is_complete = True
        by_broker = await self._by_leader([place for place in self._positions if place not in self._closest])
        for place, broker in self._closest.items():
            by_broker.setdefault(broker, []).append(place)
        for broker, places in by_broker.items():
            if not self._leader_epochs:
                return False  # a fetch without the leader epoch would not notice that the log was truncated
            try:
                is_complete &= await self._read_from(broker, places, max_wait_ms)
            except Lost:
                self._closest.clear()
                raise
        return is_complete

    async def _by_leader(self, places: list[Place]) -> dict[int, list[Place]]:
        """Return the partitions by the broker that leads them. Raise Lost if a leader is not known."""
        found: dict[int, list[Place]] = {}
        for place in places:
            found.setdefault((await self.leader_of(place))[0], []).append(place)
        return found

    async def _read_from(self, broker: int, places: list[Place], max_wait_ms: int) -> bool:
        topics: dict[Any, list[Any]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(
                fetch_from(
                    place.partition, self._positions[place],
                    partition_max_bytes=self.rng.choice((200, 2000, 1 << 20)),
                    current_leader_epoch=self._leader_epochs[place],
                )
            )  # fmt: skip
        request = fetch_request(topics, max_wait=max_wait_ms, isolation_level=READ_COMMITTED, rack_id=self.rack)
        replication = self.world.replication
        epochs = dict(self._leader_epochs)
        told = {place: replication.told_before(place) for place in places} if replication is not None else {}
        asked = _Asked(
            broker, self.world.loop.time(), self.world.history.power_failures,
            {place: self.world.deletions.log_start(place) for place in places},
        )  # fmt: skip
        reply = await self.ask(request, _FETCH_V, broker=broker)
        is_complete = True
        for topic in reply.responses:
            for row in topic.partitions:
                place = Place(topic.topic, row.partition_index)
                is_leader = place not in self._closest
                if row.error_code and not is_leader:
                    del self._closest[place]
                    self.world.trace(f"{self.name} returns to the leader of {place} after error {row.error_code}")
                    if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        is_complete = False
                        continue
                if row.preferred_read_replica >= 0:
                    self._closest[place] = row.preferred_read_replica
                    is_complete = False
                if row.error_code in _VALIDATE_AFTER:
                    self._leader_epochs.clear()
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset > self._positions[place]:
                    self._go_on_from(place, row.log_start_offset)
                if row.error_code in NOT_LEADER:
                    self.forget_leader(place)
                if row.error_code:
                    is_complete = False
                    continue
                if replication is not None and row.high_watermark >= 0 and is_leader:
                    replication.told(place, epochs[place], row.high_watermark, told[place], asked.power_failures)
                self._take(place, row, asked.of_leader(self.world, place) if is_leader else asked.of_follower())
                # A leader that has not committed in its own epoch names no offsets.
                is_complete &= 0 <= row.last_stable_offset <= self._positions[place]
        return is_complete

    def _take(self, place: Place, row: Any, asked: _Asked) -> None:
        """Note the records of a reply, with what was known when the broker was asked."""
        log_start = asked.log_starts.get(place, 0)
        self.world.deletions.told(place, row.log_start_offset, log_start)
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        before = self._positions[place]
        records, position, epoch = committed_records(bytes(row.records or b""), aborted, before)
        if records:
            self.world.history.note(
                "read", reader=self.name, place=place, records=records, txn=None, power_failures=asked.power_failures,
                log_start=log_start,
            )  # fmt: skip
        if position > before:
            self._positions[place] = position
            self._epochs[place] = epoch

    async def _validate(self) -> None:
        """Learn the leader epochs, and go back if the log was truncated since the last record."""
        known = {place: (await self.leader_of(place))[1] for place in self._positions}
        for broker, places in (await self._by_leader(list(self._epochs))).items():
            topics: dict[str, list[OffsetForLeaderPartition]] = {}
            for place in places:
                row = OffsetForLeaderPartition(
                    partition=place.partition, leader_epoch=self._epochs[place], current_leader_epoch=known[place]
                )
                topics.setdefault(place.topic, []).append(row)
            rows = [OffsetForLeaderTopic(topic=name, partitions=rows) for name, rows in topics.items()]
            reply = await self.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=rows), 4, broker=broker)
            for topic in reply.topics:
                for row in topic.partitions:
                    place = Place(topic.topic, row.partition)
                    if row.error_code in NOT_LEADER:
                        self.forget_leader(place)
                    if row.error_code:
                        raise Lost(f"error {row.error_code}")
                    self._truncated(place, row.end_offset)
        self._leader_epochs = known

    def _truncated(self, place: Place, end_offset: int) -> None:
        if end_offset < self._positions[place]:
            self._go_on_from(place, end_offset)

    def _go_on_from(self, place: Place, offset: int) -> None:
        """Read from another offset on: the log was truncated, or the records up to there were deleted."""
        self.world.trace(f"{self.name} goes on in {place} from {offset}, not from {self._positions[place]}")
        self._positions[place] = offset
        self.world.history.assigned(self.name, place, offset)


class RackReader(Reader):
    """Reads from the replica in its rack, which is that of one broker, and asks the leader again now and then."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.rack = f"rack-{self.rng.choice(list(world.hosts))}"
        #: records that were read from followers
        self.from_followers = 0

    def _take(self, place: Place, row: Any, asked: _Asked) -> None:
        before = self._positions[place]
        super()._take(place, row, asked)
        if place in self._closest:
            self.from_followers += self._positions[place] - before
            if self.rng.random() < 0.05:
                del self._closest[place]


class FinalReader(Reader):
    """Reads everything when all else is over, and notes the ends of the logs and the offsets of groups."""

    async def read_all(self, groups: list[str]) -> None:
        for place in self.world.places:
            self._positions[place] = 0
            self.world.history.assigned(self.name, place, 0)
        ends = await self._stable_ends()
        while any(self._positions[place] < ends[place] for place in self.world.places):
            try:
                await self.read_once(max_wait_ms=0)
            except Lost:
                await self.pause(0.1)
        for group in groups:
            self.world.history.committed(group, self.world.places[0], await self._offset_of(group))
        self.world.history.final(self.name)

    async def _stable_ends(self) -> dict[Place, int]:
        """Wait until no transaction is open; note the ends of the partitions. Return the ends of what can be read.

        Stop to wait for a transaction that is open for longer than the timeout of all transactions.
        """
        until = self.world.loop.time() + _HANGS_AFTER_S
        while True:
            try:
                stable, ends = await self._ends(READ_COMMITTED), await self._ends(0)
            except Lost:
                await self.pause(0.1)
                continue
            if stable == ends or self.world.loop.time() >= until:
                break
            await self.pause(0.2)
        for place in self.world.places:
            self.world.history.log_end(place, stable[place], ends[place])
        return stable

    async def _ends(self, isolation_level: int) -> dict[Place, int]:
        ends: dict[Place, int] = {}
        for broker, places in (await self._by_leader(self.world.places)).items():
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for place in places:
                row = ListOffsetsPartition(partition_index=place.partition, timestamp=_LATEST)
                topics.setdefault(place.topic, []).append(row)
            request = ListOffsetsRequest(
                replica_id=-1, isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
            )  # fmt: skip
            reply = await self.ask(request, 7, broker=broker)
            for topic in reply.topics:
                for found in topic.partitions:
                    place = Place(topic.name, found.partition_index)
                    if found.error_code in NOT_LEADER:
                        self.forget_leader(place)
                    if found.error_code:
                        raise Lost(f"the offsets of {place} are not available")
                    ends[place] = found.offset
        return ends

    async def _offset_of(self, group: str) -> int:
        place = self.world.places[0]
        topics = [OffsetFetchRequestTopics(name=place.topic, partition_indexes=[place.partition])]
        asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
        while True:
            try:
                request = OffsetFetchRequest(groups=[asked], require_stable=True)
                reply = await self.ask_coordinator(GROUP, group, request, 8)
                (found,) = reply.groups
                if found.error_code in NOT_COORDINATOR:
                    self.forget_coordinator(GROUP, group)
                row = found.topics[0].partitions[0] if found.topics else None
                if not found.error_code and row is not None and not row.error_code:
                    return int(row.committed_offset)
            except Lost:
                pass
            await self.pause(0.1)
