"""The reply of a fetch: where it goes, and how rows become its bytes. A hot module."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.fetch.rows import FetchRow
from ottla.net.connection import Part, Slot
from ottla.wire.fetch import SYNC_WANTED, ReplyShape, frame_start
from ottla.wire.leader_hints import LeaderHint, reply_tags

#: a region up to this size is read into the reply; a larger one is sent from its file
_INLINE_BYTES_MAX = 64 << 10
#: bytes of records that one reply may hold in memory; further small regions are sent from their files too
_INLINE_TOTAL_BYTES_MAX = 1 << 20


class FetchReply:
    """The reply of one fetch."""

    __slots__ = ("_correlation_id", "shape", "slot")

    def __init__(self, slot: Slot, shape: ReplyShape, correlation_id: int) -> None:
        self.slot = slot
        self.shape = shape
        self._correlation_id = correlation_id

    def fill(self, start: bytes, reads: list[FetchRow], hints: LeaderHints) -> int:
        """Fill the slot with ``start`` and these rows. Return the bytes of records in the reply."""
        shape = self.shape
        parts: list[Part] = []
        out: list[bytes] = [start]
        leaders: list[LeaderHint] = []
        size = records_bytes = inlined = 0
        topics = list(_by_topic(reads)) if len(reads) > 1 else [(reads[0].wanted.topic, reads)] if reads else []
        out.append(shape.count(len(topics)))
        for topic, its_reads in topics:
            out.append(shape.topic(topic))
            out.append(shape.count(len(its_reads)))
            for read in its_reads:
                region = read.region
                length = region.size_bytes if region is not None else 0
                out.append(
                    shape.partition_start(
                        read.wanted.number, read.error_code, read.high_watermark, read.last_stable_offset,
                        read.log_start_offset, length, read.aborted, read.preferred_replica,
                    )
                )  # fmt: skip
                if region is not None:
                    records_bytes += length
                    if length <= _INLINE_BYTES_MAX and inlined < _INLINE_TOTAL_BYTES_MAX:
                        inlined += length
                        out.append(region.read())
                    else:
                        parts.append(b"".join(out))
                        parts.append(region)
                        size += len(parts[-2]) + length  # type: ignore[arg-type]
                        out = []
                if not read.has_tags:
                    out.append(shape.partition_tail)
                    continue
                out.append(SYNC_WANTED if read.wants_sync else shape.partition_end(read.diverging, read.leader))
                if read.leader is not None:
                    leaders.append(read.leader)
            out.append(shape.partition_tail)
        out.append(reply_tags(hints.addresses(leaders, self.slot.connection)) if leaders else shape.partition_tail)
        last = b"".join(out)
        head = frame_start(self._correlation_id, size + len(last))
        if parts:
            parts.append(last)
            first = parts.pop(0)
            assert isinstance(first, bytes)
            self.slot.fill(head + first, parts)
        else:
            self.slot.fill(head + last)
        return records_bytes


def _by_topic(reads: list[FetchRow]) -> Iterator[tuple[bytes, list[FetchRow]]]:
    """Group adjacent rows of the same topic into one entry."""
    group: list[FetchRow] = []
    for read in reads:
        if group and group[0].wanted.topic != read.wanted.topic:
            yield group[0].wanted.topic, group
            group = []
        group.append(read)
    if group:
        yield group[0].wanted.topic, group
