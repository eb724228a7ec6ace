"""The state of one partition on this broker. Pure: no I/O, no clock, no loop.

    high_watermark      every in-sync replica has all records below it; read_uncommitted readers read up to it; it never
                        decreases within a leader epoch
    last_stable_offset  no transaction is open below it, and every marker below it is below the high watermark;
                        read_committed readers read up to it
    leader_epoch        increases with every change of leader, and after an unclean stop; clients send the one they know

With one replica the high watermark is the end of the records that are written to the file. The topic setting
``flush.acks.all`` decides whether an acknowledgement also waits for the sync. Readers do not wait for it: they read
what would be left after a clean restart or a kill of the process.
"""

from __future__ import annotations

from typing import Protocol

from ottla.log.log import Log
from ottla.model.errors import ErrorCode, FencedLeaderEpoch, NotEnoughReplicas, UnknownLeaderEpoch
from ottla.model.types import TopicPartition


class Reader(Protocol):
    """A long poll that waits for this partition."""

    def on_high_watermark(self, size_bytes: int) -> None:
        """This many more bytes can be read."""

    def on_stable(self) -> None:
        """The last stable offset moved, so more can be read; read again to find out how much."""

    def on_changed(self) -> None:
        """The high watermark or the start of the log moved, but there is nothing more to read."""

    def on_partition_deleted(self) -> None:
        """The partition was deleted or is offline: complete the fetch now."""


class Writer(Protocol):
    """A produce request that waits for its batch to be written or synced."""

    deadline: float

    def on_write_complete(self, error_code: int) -> None: ...


class Partition:
    """One partition that this broker leads."""

    __slots__ = (
        "appended_bytes", "has_room", "high_watermark", "isr", "leader_epoch", "leader_id", "log", "name", "offline",
        "readers", "replicas", "reported_stable_offset", "stable_readers", "sync_in_flight", "topic_id", "topic_name",
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
        #: True after its log directory failed; nothing is read or written until a restart
        self.offline = False
        #: False while its log directory is nearly full: fetches are served, produces are refused
        self.has_room = True
        #: parked read_uncommitted fetches; a dict, so that one can be removed in constant time when it expires
        self.readers: dict[Reader, None] = {}
        #: parked read_committed fetches, and the last stable offset that was last reported to them
        self.stable_readers: dict[Reader, None] = {}
        self.reported_stable_offset = -1
        #: produces whose batches are written to the file at the end of the turn
        self.written: list[Writer] = []
        #: produces that wait for a sync, with the offset up to which it must reach, in order of offset
        self.writers: list[tuple[int, Writer]] = []
        self.sync_in_flight = False

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed readers read. Raise OSError if the producer state cannot be loaded."""
        first_unstable = self.log.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return first_unstable

    def park(self, reader: Reader, *, read_committed: bool) -> None:
        """Call the reader for every event of this partition until ``unpark``."""
        if not read_committed:
            self.readers[reader] = None
            return
        if not self.stable_readers:
            self.reported_stable_offset = self.last_stable_offset
        self.stable_readers[reader] = None

    def unpark(self, reader: Reader) -> None:
        self.readers.pop(reader, None)
        self.stable_readers.pop(reader, None)

    def advance_high_watermark(self, end_offset: int) -> None:
        """Move the high watermark to ``end_offset`` and wake the parked fetches."""
        previous, self.high_watermark = self.high_watermark, end_offset
        log = self.log
        size_bytes, self.appended_bytes = log.appended_bytes - self.appended_bytes, log.appended_bytes
        if log.ended:
            log.note_high_watermark(end_offset)
        for reader in list(self.readers):
            reader.on_high_watermark(size_bytes)
        if self.stable_readers:
            self._wake_stable_readers(previous, size_bytes)

    def _wake_stable_readers(self, previous_high_watermark: int, size_bytes: int) -> None:
        reported = self.reported_stable_offset
        try:
            self.reported_stable_offset = self.last_stable_offset
        except OSError:
            # The readers read again, and get the error of the disk.
            is_size_known = False
        else:
            if self.reported_stable_offset <= reported:
                for reader in list(self.stable_readers):
                    reader.on_changed()
                return
            # Without open transactions the last stable offset moves with the high watermark, by as many bytes.
            is_size_known = reported == previous_high_watermark and self.reported_stable_offset == self.high_watermark
        for reader in list(self.stable_readers):
            if is_size_known:
                reader.on_high_watermark(size_bytes)
            else:
                reader.on_stable()

    def note_log_start(self) -> None:
        """Report to the readers that the start of the log moved."""
        for reader in [*self.readers, *self.stable_readers]:
            reader.on_changed()

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch if a client sent another leader epoch than ours; -1 is none."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {self.leader_epoch}")

    def check_enough_replicas(self) -> None:
        """Raise NotEnoughReplicas if fewer replicas than ``min.insync.replicas`` are in sync; for acks=all."""
        if len(self.isr) < min(self.log.settings.min_insync_replicas, len(self.replicas)):
            raise NotEnoughReplicas(f"only {len(self.isr)} replicas are in sync")

    def fail_writers(self, error_code: ErrorCode, from_offset: int = -1) -> None:
        """Answer the produces whose batches were lost: those of this turn, and those that end after ``from_offset``."""
        written, self.written = self.written, []
        for writer in written:
            writer.on_write_complete(error_code)
        failed = [writer for end_offset, writer in self.writers if end_offset > from_offset]
        self.writers = [entry for entry in self.writers if entry[0] <= from_offset]
        for writer in failed:
            writer.on_write_complete(error_code)

    def leave(self, error_code: ErrorCode) -> None:
        """Answer all produces and complete all parked fetches: the partition is deleted or goes offline."""
        self.fail_writers(error_code)
        self.release_readers()

    def release_readers(self) -> None:
        """Complete all parked fetches."""
        readers, self.readers, self.stable_readers = {**self.readers, **self.stable_readers}, {}, {}
        for reader in readers:
            reader.on_partition_deleted()
