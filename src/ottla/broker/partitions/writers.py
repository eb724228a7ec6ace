"""The writers of a partition: requests and coordinators that wait until their batches are safe. Pure.

a batch is appended ──► ``written``: acks=1 waits for the end of the turn
                   └──► waits for an offset: a sync, the in-sync replicas, or both
"""

from __future__ import annotations

from enum import IntEnum
from operator import itemgetter
from typing import Protocol

from ottla.model.errors import ErrorCode


class Until(IntEnum):
    """What a write waits for."""

    #: this broker has written it to the file: acks=1
    WRITTEN = 0
    #: this broker has synced it: acks=1 when ``flush.messages`` is reached
    SYNCED = 1
    #: every in-sync replica has it: acks=all without ``flush.acks.all``, as in Kafka
    COMMITTED = 2
    #: every in-sync replica has it, and ``min.insync.replicas`` of them have synced it: acks=all
    DURABLE = 3
    #: no in-sync replica has records below this offset, not even after a power failure: DeleteRecords
    DELETED = 4


class Writer(Protocol):
    """A produce request, or a coordinator, that waits for its batch."""

    deadline: float

    def on_write_complete(self, error_code: int) -> None: ...


class Writers:
    """The writers of one partition."""

    __slots__ = ("_waiting", "written")

    def __init__(self) -> None:
        #: writers whose batches are written to the file at the end of the turn
        self.written: list[Writer] = []
        #: other writers by what they wait for, each with the offset after its batch
        self._waiting: dict[Until, list[tuple[int, Writer]]] = {}

    @property
    def wants_sync(self) -> bool:
        """Return whether a writer waits for a sync on this broker."""
        return bool(self._waiting.get(_DURABLE) or self._waiting.get(_SYNCED))

    @property
    def waits_for_syncs(self) -> bool:
        """Return whether a writer waits until followers have synced its batch."""
        return bool(self._waiting.get(_DURABLE))

    @property
    def has_waiting(self) -> bool:
        """Return whether a writer waits for more than the end of the turn."""
        return any(self._waiting.values())

    def awaited(self) -> list[Until]:
        """Return what writers wait for."""
        return [until for until, writers in self._waiting.items() if writers]

    def wait(self, until: Until, end_offset: int, writer: Writer) -> None:
        """Answer the writer when all records below ``end_offset`` are as safe as ``until`` says, or when that fails."""
        self._waiting.setdefault(until, []).append((end_offset, writer))

    def wait_for_replicas(self, end_offset: int) -> None:
        """Let the writers that wait for this broker only, also those of this turn, wait for the in-sync replicas."""
        written, self.written = self.written, []
        for writer in written:
            self.wait(_COMMITTED, end_offset, writer)
        for offset, writer in self._waiting.pop(_SYNCED, ()):
            self.wait(_DURABLE, offset, writer)
        self._waiting.get(_DURABLE, []).sort(key=itemgetter(0))

    def complete(self, until: Until, offset: int, error_code: int) -> None:
        """Answer the writers that wait for ``until`` and whose batches end at ``offset`` or before."""
        writers = self._waiting.get(until, [])
        done = 0
        while done < len(writers) and writers[done][0] <= offset:
            done += 1
        ready = writers[:done]
        del writers[:done]
        for _, writer in ready:
            writer.on_write_complete(error_code)

    def expire(self, now: float) -> None:
        """Answer the writers whose time is over. Their batches stay in the log."""
        for until, writers in list(self._waiting.items()):
            late = [writer for _, writer in writers if writer.deadline < now]
            if late:
                self._waiting[until] = [entry for entry in writers if entry[1].deadline >= now]
                for writer in late:
                    writer.on_write_complete(ErrorCode.REQUEST_TIMED_OUT)

    def fail(self, error_code: ErrorCode, from_offset: int = -1) -> None:
        """Answer the writers whose batches were lost: those of this turn, and those that end after ``from_offset``."""
        failed, self.written = self.written, []
        for until, writers in self._waiting.items():
            failed += [writer for end_offset, writer in writers if end_offset > from_offset]
            self._waiting[until] = [entry for entry in writers if entry[0] <= from_offset]
        for writer in failed:
            writer.on_write_complete(error_code)


_SYNCED, _COMMITTED, _DURABLE = Until.SYNCED, Until.COMMITTED, Until.DURABLE
