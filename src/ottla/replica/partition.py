"""The state of one partition on this broker. Pure: no I/O, no clock, no loop.

    high_watermark   every in-sync replica has everything below; readers see up to here; never goes back within an epoch
    last stable      no transaction is open below, and none ended by a marker that could still be lost; readers of
                     committed records see up to here
    leader_epoch     goes up with every change of leader, and after a stop that was not clean; clients check theirs

With one replica the high watermark is the end of what is in the file. Whether an acknowledgement also waits for the
disk is the topic's choice (``flush.acks.all``), and readers do not wait for it: they see what a clean restart, or the
death of the process, would leave.
"""

from __future__ import annotations

from typing import Protocol

from ottla.log.log import Log
from ottla.model.errors import ErrorCode, FencedLeaderEpoch, NotEnoughReplicas, UnknownLeaderEpoch
from ottla.model.types import TopicPartition


class Reader(Protocol):
    """A long poll that waits for this partition."""

    def on_committed(self, size_bytes: int) -> None:
        """What it may read grew by this many bytes."""

    def on_stable(self) -> None:
        """What it may read grew by nobody knows how many bytes: look again."""

    def on_changed(self) -> None:
        """The high watermark or the start of the log moved, but there is nothing more to read."""

    def on_gone(self) -> None:
        """The partition is no longer here, or its epoch changed: answer now."""


class Writer(Protocol):
    """A produce that waits for its batch to be committed."""

    deadline: float

    def on_committed(self, error_code: int) -> None: ...


class Partition:
    """One partition that this broker leads."""

    __slots__ = (
        "appended_bytes", "has_room", "high_watermark", "isr", "leader_epoch", "leader_id", "log", "name", "offline",
        "readers", "replicas", "stable_readers", "sync_in_flight", "told_stable_offset", "topic_id", "topic_name",
        "writers", "written",
    )  # fmt: skip

    def __init__(
        self, name: TopicPartition, topic_id: bytes, log: Log, *, leader_id: int, leader_epoch: int,
        replicas: tuple[int, ...], isr: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.name = name
        self.topic_name = name.topic.encode()
        self.topic_id = topic_id
        self.log = log
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.high_watermark = log.written_end_offset
        #: ``log.appended_bytes`` when the high watermark was last moved
        self.appended_bytes = log.appended_bytes
        #: its log directory failed; nothing is read or written until a restart
        self.offline = False
        #: False while its log directory is nearly full: reads go on, produces are refused
        self.has_room = True
        #: a dict, because a reader leaves by itself far more often than it is woken
        self.readers: dict[Reader, None] = {}
        #: those that read committed records only; as long as there are some, ``told_stable_offset`` is what they know
        self.stable_readers: dict[Reader, None] = {}
        self.told_stable_offset = -1
        #: produces that wait for the end of the turn, when their batches are in the file
        self.written: list[Writer] = []
        #: (offset that must be on disk, who waits), in order of offset
        self.writers: list[tuple[int, Writer]] = []
        self.sync_in_flight = False

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed transactions see up to here. Raises OSError when producers cannot be loaded."""
        first_unstable = self.log.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return first_unstable

    def park(self, reader: Reader, *, read_committed: bool) -> None:
        """Tell the reader when there is more to read."""
        if not read_committed:
            self.readers[reader] = None
            return
        if not self.stable_readers:
            self.told_stable_offset = self.last_stable_offset
        self.stable_readers[reader] = None

    def unpark(self, reader: Reader) -> None:
        self.readers.pop(reader, None)
        self.stable_readers.pop(reader, None)

    def advance_high_watermark(self, end_offset: int) -> None:
        """Everything below ``end_offset`` is committed: wake who waits for it."""
        previous, self.high_watermark = self.high_watermark, end_offset
        log = self.log
        size_bytes, self.appended_bytes = log.appended_bytes - self.appended_bytes, log.appended_bytes
        if log.ended:
            log.note_high_watermark(end_offset)
        for reader in list(self.readers):
            reader.on_committed(size_bytes)
        if self.stable_readers:
            self._wake_stable_readers(previous, size_bytes)

    def _wake_stable_readers(self, previous_high_watermark: int, size_bytes: int) -> None:
        told = self.told_stable_offset
        try:
            self.told_stable_offset = self.last_stable_offset
        except OSError:
            # Whoever looks finds the disk as it is.
            together = False
        else:
            if self.told_stable_offset <= told:
                for reader in list(self.stable_readers):
                    reader.on_changed()
                return
            # Without transactions both offsets move together, and the bytes are known.
            together = told == previous_high_watermark and self.told_stable_offset == self.high_watermark
        for reader in list(self.stable_readers):
            if together:
                reader.on_committed(size_bytes)
            else:
                reader.on_stable()

    def note_log_start(self) -> None:
        """Tell the readers that the start of the log moved."""
        for reader in [*self.readers, *self.stable_readers]:
            reader.on_changed()

    def check_leader_epoch(self, epoch: int) -> None:
        """A client that knows another epoch than ours must refresh what it knows, or wait until we do."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {self.leader_epoch}")

    def check_enough_replicas(self) -> None:
        """acks=all is refused, with nothing appended, while too few replicas are in sync."""
        if len(self.isr) < min(self.log.settings.min_insync_replicas, len(self.replicas)):
            raise NotEnoughReplicas(f"only {len(self.isr)} replicas are in sync")

    def fail_writers(self, error_code: ErrorCode, from_offset: int = -1) -> None:
        """Answer the produces whose batches are not in the log: this turn's, and those behind ``from_offset``."""
        written, self.written = self.written, []
        for writer in written:
            writer.on_committed(error_code)
        failed = [writer for end_offset, writer in self.writers if end_offset > from_offset]
        self.writers = [entry for entry in self.writers if entry[0] <= from_offset]
        for writer in failed:
            writer.on_committed(error_code)

    def leave(self, error_code: ErrorCode) -> None:
        """Answer everybody who waits here: the partition goes away."""
        self.fail_writers(error_code)
        self.release_readers()

    def release_readers(self) -> None:
        """Answer the long polls with what there is."""
        readers, self.readers, self.stable_readers = {**self.readers, **self.stable_readers}, {}, {}
        for reader in readers:
            reader.on_gone()
