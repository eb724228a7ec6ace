"""The committed batches of a partition, and which replicas are known to have them.

Batches are taken over from the log of the current leader, up to its high watermark. Each replica is compared with them
once: a truncation replaces the objects of the segments that lose batches, so it shows which comparison is out of date.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim_invariants import batches_of

from ottla.broker.partitions.partition import Partition
from ottla.log.log import Log
from ottla.log.segment import Segment


class _Compared(NamedTuple):
    """What was compared of a replica."""

    log: Log
    #: the segment with the last batch that was compared
    segment: Segment
    end_offset: int


class CommittedContent:
    """The committed batches of one partition."""

    def __init__(self) -> None:
        #: by base offset
        self._batches: dict[int, bytes] = {}
        self._start_offset = 0
        self.end_offset = 0
        #: power failures before the last batch was seen in the leader's log
        self.power_failures = 0
        #: by broker
        self._compared: dict[int, _Compared] = {}

    def extend(self, leader: Partition, power_failures: int) -> None:
        """Take over what the current leader has committed since the last call."""
        if self.end_offset >= leader.high_watermark:
            return
        self.power_failures = power_failures
        if not self._batches or leader.log.log_start_offset > self.end_offset:
            # Batches that were committed and deleted since the last call are not known.
            self._start_offset = leader.log.log_start_offset
        for header, content in batches_of(leader.log, self.end_offset):
            if header.next_offset > leader.high_watermark:
                break
            self._batches[header.base_offset] = content
            self.end_offset = header.next_offset

    def remove_from(self, end_offset: int) -> None:
        """A power failure has lost the batches from this offset on."""
        self._batches = {offset: content for offset, content in self._batches.items() if offset < end_offset}
        self.end_offset = min(self.end_offset, end_offset)
        self._start_offset = min(self._start_offset, end_offset)

    def difference(self, broker: int, log: Log) -> int | None:
        """Return the offset of the first batch of a replica that is not the committed one; None if there is none."""
        compared = self._compared.get(broker)
        start_offset = 0
        if compared is not None and compared.log is log and any(each is compared.segment for each in log.segments):
            start_offset = compared.end_offset
        end_offset = min(log.written_end_offset, self.end_offset)
        if start_offset >= end_offset:
            return None
        for header, content in batches_of(log, max(start_offset, self._start_offset)):
            if header.base_offset >= end_offset:
                break
            if log.log_start_offset <= start_offset < header.base_offset and start_offset in self._batches:
                return start_offset  # the replica lacks this batch
            if content != self._batches.get(header.base_offset):
                return int(header.base_offset)
            start_offset = header.next_offset
        segment: Any = next((each for each in reversed(log.segments) if each.base_offset < start_offset), None)
        if segment is not None:
            self._compared[broker] = _Compared(log, segment, start_offset)
        return None
