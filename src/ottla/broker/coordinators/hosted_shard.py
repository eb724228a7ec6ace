"""A shard on the log of its partition: what a shard is, and its replay from the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ottla.broker.coordinators.outcome import NEVER, Moment, Outcome, Producer
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.timers import Expiring
from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from ottla.model.errors import ErrorCode
from ottla.model.records import iterate_records
from ottla.wire import WireError

log = logging.getLogger(__name__)

#: bytes of a log that are replayed before the load yields to the event loop
_LOAD_STEP_BYTES = 128 << 10

#: returns a record of the log, or None for one that is ignored; raises WireError if the bytes are damaged
Decode = Callable[[bytes, bytes | None], Any]


class Expirable(Protocol):
    """A group or a transactional id with deadlines."""

    @property
    def wake_at(self) -> float:
        """Return the monotonic time at which ``expire`` has to run, not later than the earliest deadline.

        Return NEVER without a deadline.
        """

    def expire(self, now: Moment) -> Outcome[Any]:
        """Apply every deadline that has passed. Return the records and replies."""

    def retire(self, error_code: ErrorCode) -> Outcome[Any]:
        """Return a reply with this error code for every parked request."""


class Shard(Protocol):
    """The state of one partition. Pure: no I/O. Only ``replay`` and ``end_transaction`` change the durable state."""

    @property
    def expirables(self) -> Mapping[str, Expirable]:
        """Return the groups or transactional ids that may have deadlines, by name."""

    def replay(self, record: Any, producer: Producer | None) -> None:
        """Apply one record of the log. ``producer`` is set if the record belongs to a transaction."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker: commit or discard the pending records of this producer."""

    def resume(self, now: Moment) -> None:
        """Rebuild the soft state after the whole log was replayed."""

    def after_load(self, now: Moment) -> Outcome[Any]:
        """Return the records and deliveries that are due after the load."""

    def follow_up_of(self, name: str, now: Moment, *, changed: bool) -> Outcome[Any] | None:
        """Return the follow-up of an operation on a name, or None. ``changed``: the operation had records."""

    def changes_soft_state(self, records: list[Any]) -> bool:
        """Return whether the operation that returned these records may also have changed soft state."""

    def discard_soft_state(self, name: str, now: Moment) -> None:
        """Reset the soft state of a name to match its durable state."""

    def retire(self, error_code: ErrorCode) -> Outcome[Any]:
        """Return a reply with this error code for every parked request of the shard."""

    def durable(self) -> dict[str, object]:
        """Return the durable state; two replays of one log return equal states."""


S = TypeVar("S", bound=Shard)


class ShardTimer:
    """Entry in the timer wheel for one group or one transactional id."""

    __slots__ = ("_wake", "at", "timer_bucket")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        #: the monotonic time for which the timer is set
        self.at = NEVER
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        self._wake()


class HostedShard(Generic[S]):
    """One partition with its shard, the end offset of the replay and the timers.

    It is valid while this broker leads without interruption: what another leader writes is not in the shard.
    """

    __slots__ = ("accepted", "end_offset", "leader_epoch", "loaded", "partition", "shard", "timers")

    def __init__(self, partition: Partition, shard: S, accepted: int = 0) -> None:
        self.partition = partition
        #: how many connections the broker had accepted when it became coordinator; 0 if there was no coordinator before
        self.accepted = accepted
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.loaded = False
        #: the shard has replayed every record below this offset
        self.end_offset = partition.log.log_start_offset
        #: group or transactional id -> its timer
        self.timers: dict[str, ShardTimer] = {}

    @property
    def leads(self) -> bool:
        """Return whether this broker still leads the partition in the epoch in which the shard was loaded."""
        return self.partition.role is Role.LEADER and self.partition.leader_epoch == self.leader_epoch

    async def replay(self, decode: Decode, begin_turn: Callable[[], None]) -> None:
        """Replay the log to its end, including batches that are written to the file at the end of this turn.

        A follower that becomes leader may have appended such batches, and other brokers append markers meanwhile.
        """
        while True:
            if not self._replay_step(decode):
                if not (self.partition.log.pending and self.leads):
                    return
                begin_turn()
            await asyncio.sleep(0)

    def _replay_step(self, decode: Decode) -> bool:
        """Replay ``_LOAD_STEP_BYTES`` of the log. Return False if the shard is at the end of what is in the file."""
        partition_log = self.partition.log
        region = partition_log.read(
            self.end_offset, _LOAD_STEP_BYTES, partition_log.written_end_offset, at_least_one=True
        )
        if region is None:
            return False
        data = region.read()
        position = 0
        while position < len(data):
            header = read_header(data, position)
            self._replay_batch(header, data[position : position + header.size_bytes], decode)
            position += header.size_bytes
            self.end_offset = header.next_offset
        return True

    def _replay_batch(self, header: BatchHeader, batch: bytes, decode: Decode) -> None:
        if header.attributes & CONTROL:
            marker = read_marker(batch)
            if marker is not None:
                self.shard.end_transaction(header.producer_id, commit=marker.commit)
            return
        producer = None
        if header.attributes & TRANSACTIONAL:
            producer = Producer(header.producer_id, header.producer_epoch)
        for record in iterate_records(batch):
            try:
                decoded = decode(record.key or b"", record.value)
            except WireError as error:
                name, offset = self.partition.name, record.offset
                log.error("record cannot be read partition=%s offset=%d error=%s", name, offset, error)
                continue
            if decoded is not None:
                self.shard.replay(decoded, producer)
