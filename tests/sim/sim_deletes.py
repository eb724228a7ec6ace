"""A simulated client that deletes records (DeleteRecords), and what must hold after it was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_client import NOT_LEADER, Client, Lost

from ottla.model.errors import ErrorCode
from ottla.testing.history import Place
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

if TYPE_CHECKING:
    from sim_world import World

#: a broker of a healed cluster deletes records within this time
_DELETED_WITHIN_S = 20.0


class Deletions:
    """What clients have asked brokers to delete, and the log starts that were the answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: by partition: the highest offset that acks=all acknowledged
        self.acknowledged: dict[Place, int] = {}
        #: by partition: the highest log start that was the answer to DeleteRecords
        self.log_starts: dict[Place, int] = {}
        #: by partition: the highest offset below which a client has asked to delete the records
        self._asked: dict[Place, int] = {}

    def ask(self, place: Place, offset: int) -> None:
        """A client asks to delete the records before an offset, which is not above the high watermark."""
        self._world.history.delete(place, offset)
        self._asked[place] = max(offset, self._asked.get(place, 0))

    def is_follower_start(self, place: Place, start: int, leader_start: int) -> bool:
        """Return whether the log of a follower that is in sync may start at this offset.

        A leader that moves its log start and is replaced before all replicas have followed answers with an error, or
        not at all. The replicas that have followed it keep their later log start, as in Kafka. The new leader does not
        take it over, because it cannot tell such a follower from one that has lost the first segments of its log.
        """
        return start == leader_start or leader_start < start <= self._asked.get(place, 0)

    def log_start(self, place: Place) -> int:
        """Return the offset below which no record is returned any more."""
        return self.log_starts.get(place, 0)

    def answered(self, place: Place, offset: int, low_watermark: int) -> None:
        """The leader answered that the log starts at the low watermark; it was asked to delete up to an offset."""
        self._world.trace(f"deleted {place} to {low_watermark}")
        if low_watermark < offset:
            self._world.violation("records-not-deleted", f"{place}: {low_watermark} instead of {offset}")
        self._world.history.deleted(place, low_watermark)
        self.log_starts[place] = max(low_watermark, self.log_start(place))

    def told(self, place: Place, log_start: int, at_least: int) -> None:
        """A reader was told where the log starts; ``at_least`` had been answered before it asked."""
        if log_start < at_least:
            line = f"{place}: {log_start}, but records before {at_least} had been deleted"
            self._world.violation("told-log-start-moved-back", line)


class RecordDeleter(Client):
    """Deletes records from the start of a partition now and then, and one more time when the faults are over."""

    async def run(self) -> None:
        if self.world.topic_config.get("cleanup.policy") == "compact":
            return  # brokers refuse DeleteRecords for a topic that is only compacted, as Kafka does
        while not self.is_over:
            await self.pause(2.0)
            await self._delete(self.rng.choice(self.world.places))
        for place in self.world.places:
            until = self.world.loop.time() + _DELETED_WITHIN_S
            while not await self._delete(place):
                if self.world.loop.time() > until:
                    line = f"{place}: DeleteRecords was not answered within {_DELETED_WITHIN_S:.0f} s"
                    self.world.violation("delete-not-answered", line)
                    break
                await self.pause(0.2)

    async def _delete(self, place: Place) -> bool:
        """Delete some of the records that acks=all has acknowledged. Return whether that was answered."""
        last = self.world.deletions.acknowledged.get(place)
        if last is None:
            return True
        offset = self.rng.randint(self.world.deletions.log_start(place), last + 1)
        self.world.deletions.ask(place, offset)
        rows = [DeleteRecordsPartition(partition_index=place.partition, offset=offset)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=place.topic, partitions=rows)], timeout=2000)
        try:
            (row,) = (await self.ask_leader(place, request, 2)).topics[0].partitions
        except Lost:
            return False
        if row.error_code == ErrorCode.POLICY_VIOLATION:
            return True  # the topic is compacted
        if row.error_code in NOT_LEADER:
            self.forget_leader(place)
        if row.error_code:
            self.world.trace(f"{self.name} cannot delete {place} to {offset}: error {row.error_code}")
            return False
        self.world.deletions.answered(place, offset, row.low_watermark)
        return True
