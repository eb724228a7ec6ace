"""Simulated readers of committed records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim_client import Client, Lost, committed_records

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.testing.raw import fetch_from, fetch_request
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
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
_VALIDATE_AFTER = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


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
        """Fetch once and note the records. Return whether every partition was read to its last stable offset."""
        if not self._leader_epochs:
            await self._validate()
        topics: dict[Any, list[Any]] = {}
        for place, position in self._positions.items():
            topics.setdefault(place.topic, []).append(
                fetch_from(
                    place.partition, position, partition_max_bytes=self.rng.choice((200, 2000, 1 << 20)),
                    current_leader_epoch=self._leader_epochs[place],
                )
            )  # fmt: skip
        request = fetch_request(topics, max_wait=max_wait_ms, isolation_level=READ_COMMITTED)
        reply = await self.ask(request, _FETCH_V)
        is_complete = True
        for topic in reply.responses:
            for row in topic.partitions:
                place = Place(topic.topic, row.partition_index)
                if row.error_code in _VALIDATE_AFTER:
                    self._leader_epochs.clear()
                if row.error_code:
                    is_complete = False
                    continue
                self._take(place, row)
                is_complete &= self._positions[place] >= row.last_stable_offset
        return is_complete

    def _take(self, place: Place, row: Any) -> None:
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        before = self._positions[place]
        records, position, epoch = committed_records(bytes(row.records or b""), aborted, before)
        if records:
            self.world.history.read(self.name, place, records)
        if position > before:
            self._positions[place] = position
            self._epochs[place] = epoch

    async def _validate(self) -> None:
        """Learn the leader epochs, and go back if the log was truncated since the last record."""
        metadata = await self.ask(MetadataRequest(topics=[MetadataRequestTopic(name=self.world.places[0].topic)]), 9)
        known = {row.partition_index: row.leader_epoch for row in metadata.topics[0].partitions}
        if metadata.topics[0].error_code or len(known) < len(self.world.places):
            raise Lost("the topic is not known")
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for place, epoch in self._epochs.items():
            row = OffsetForLeaderPartition(
                partition=place.partition, leader_epoch=epoch, current_leader_epoch=known[place.partition]
            )
            topics.setdefault(place.topic, []).append(row)
        rows = [OffsetForLeaderTopic(topic=name, partitions=rows) for name, rows in topics.items()]
        if rows:
            reply = await self.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=rows), 4)
            for topic in reply.topics:
                for row in topic.partitions:
                    if row.error_code:
                        raise Lost(f"error {row.error_code}")
                    self._truncated(Place(topic.topic, row.partition), row.end_offset)
        self._leader_epochs = {place: known[place.partition] for place in self._positions}

    def _truncated(self, place: Place, end_offset: int) -> None:
        if end_offset < self._positions[place]:
            self.world.trace(f"{self.name} goes back in {place} from {self._positions[place]} to {end_offset}")
            self._positions[place] = end_offset
            self.world.history.assigned(self.name, place, end_offset)


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
        """Wait until no transaction is open; note and return the ends of the partitions."""
        while True:
            try:
                stable, ends = await self._ends(READ_COMMITTED), await self._ends(0)
            except Lost:
                await self.pause(0.1)
                continue
            if stable == ends:
                break
            await self.pause(0.2)
        for place in self.world.places:
            self.world.history.log_end(place, stable[place], ends[place])
        return ends

    async def _ends(self, isolation_level: int) -> dict[Place, int]:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for place in self.world.places:
            row = ListOffsetsPartition(partition_index=place.partition, timestamp=_LATEST)
            topics.setdefault(place.topic, []).append(row)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )  # fmt: skip
        reply = await self.ask(request, 7)
        rows = [(Place(topic.name, row.partition_index), row) for topic in reply.topics for row in topic.partitions]
        if any(row.error_code for _, row in rows):
            raise Lost("the offsets of a partition are not available")
        return {place: row.offset for place, row in rows}

    async def _offset_of(self, group: str) -> int:
        place = self.world.places[0]
        topics = [OffsetFetchRequestTopics(name=place.topic, partition_indexes=[place.partition])]
        asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
        while True:
            try:
                reply = await self.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 8)
                (found,) = reply.groups
                row = found.topics[0].partitions[0] if found.topics else None
                if not found.error_code and row is not None and not row.error_code:
                    return int(row.committed_offset)
            except Lost:
                pass
            await self.pause(0.1)
