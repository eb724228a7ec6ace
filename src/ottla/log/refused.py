"""Sequence numbers of new producers whose first batch was refused.

A producer sends several batches before it learns that the first one was refused, because the disk is full, too few
replicas are in sync, or this broker did not lead the partition yet. If its id is not known yet, the sequence number of
a later batch cannot be compared with anything. Kafka then appends the later batch, and refuses the first one when it is
sent again. With this memory the later one is refused, and the producer sends all of them again in order.
"""

from __future__ import annotations

from ottla.log.producers import Producers
from ottla.model.batch import HEADER_BYTES, LENGTH_END, LENGTH_MIN, read_header
from ottla.model.errors import OutOfOrderSequence
from ottla.model.types import FrameBuffer

#: producers that are remembered at most; the oldest is forgotten first
_PRODUCERS_MAX = 1000


class RefusedSequences:
    """The first refused sequence number of each producer that is not known yet."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: dict[int, int] = {}

    def note(self, batches: bytes | FrameBuffer | memoryview, start: int, end: int, producers: Producers) -> None:
        """Remember the batches in ``batches[start:end]`` of producers that are not in ``producers``."""
        first = self.first
        while end - start >= HEADER_BYTES:
            header = read_header(batches, start)
            start += LENGTH_END + max(header.length, LENGTH_MIN)
            producer_id, sequence = header.producer_id, header.base_sequence
            if producer_id < 0 or sequence < 0 or producers.get(producer_id) is not None:
                continue
            if producer_id not in first and len(first) >= _PRODUCERS_MAX:
                first.pop(next(iter(first)))
            first[producer_id] = min(sequence, first.get(producer_id, sequence))

    def forget(self, producer_id: int) -> None:
        """The producer has become known: the leader has appended a batch of it, and this follower copies it."""
        self.first.pop(producer_id, None)

    def check(self, producer_id: int, sequence: int, *, is_known: bool) -> None:
        """Raise OutOfOrderSequence if an earlier batch of an unknown producer was refused and must come first."""
        expected = self.first.get(producer_id)
        if expected is None:
            return
        if not is_known and sequence > expected:
            raise OutOfOrderSequence(f"producer {producer_id} sent sequence {sequence}, expected {expected}")
        del self.first[producer_id]
