"""Fetch v17 as a follower sends it, and the reply as a follower reads it. Records are views into the reply.

The replica state is a tagged field of the request (tag 1): replica id and broker epoch. Each partition may carry the
offset up to which the follower has synced its log (tag 10000, an int64). A partition with a maximum of 0 bytes only
reports offsets: the leader keeps the fetch offset that it knows, and sends no records for this row.

In the reply a partition has an empty tagged field (tag 10000) if a writer waits until followers have synced its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from ottla.wire.fetch import (
    FOLLOWER_ROW,
    ONE_TOPIC_END,
    REPLICA_STATE,
    SYNC_WANTED_TAG,
    SYNCED_TAG_START,
    find_tag,
)
from ottla.wire.frame import read_uvarint, skip_tags
from ottla.wire.primitives import WireError, write_uvarint

VERSION = 17
_FETCH = 1
_DIVERGING_TAG = 0

_HEADER = Struct(">hhih")
_START = Struct(">iiibii")
_INT32 = Struct(">i")
_NO_TAGS = b"\0"
#: no forgotten topics, no rack, and one tagged field of 13 bytes: the replica state
_NOTHING_FORGOTTEN = ONE_TOPIC_END[1:]
_STATE_START = _NOTHING_FORGOTTEN[1:]

_REPLY_START = Struct(">ihi")
# index, error code, high watermark, last stable offset, log start offset
_REPLY_ROW = Struct(">ihqqq")
_ABORTED_BYTES = 17
_DIVERGING = Struct(">iq")


class FollowerRow(NamedTuple):
    """One partition of a follower's request."""

    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    #: 0: report the offsets only
    size_bytes_max: int
    synced_end_offset: int


class FetchedRow(NamedTuple):
    """One partition of the leader's reply."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    #: epoch and end offset where the follower's log leaves the leader's
    diverging: tuple[int, int] | None
    records: memoryview
    #: a writer waits until followers have synced these records
    wants_sync: bool


class FetchedRows(NamedTuple):
    """The leader's reply."""

    error_code: int
    session_id: int
    rows: list[FetchedRow]


def follower_fetch(
    correlation_id: int,
    client_id: bytes,
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    size_bytes_max: int,
    session_id: int,
    session_epoch: int,
    topics: Mapping[bytes, Sequence[FollowerRow]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """Return header and body of a request, without the size; topics are given by their ids."""
    out = [
        _HEADER.pack(_FETCH, VERSION, correlation_id, len(client_id)), client_id, _NO_TAGS,
        _START.pack(max_wait_ms, min_bytes, size_bytes_max, 0, session_id, session_epoch),
        write_uvarint(len(topics) + 1),
    ]  # fmt: skip
    for topic_id, rows in topics.items():
        out.append(topic_id)
        out.append(write_uvarint(len(rows) + 1))
        for row in rows:
            number, epoch, offset, last_epoch, log_start, size, synced = row
            out.append(FOLLOWER_ROW.pack(number, epoch, offset, last_epoch, log_start, size, SYNCED_TAG_START, synced))
        out.append(_NO_TAGS)
    if not forgotten:
        out.append(_NOTHING_FORGOTTEN)
    else:
        out.append(write_uvarint(len(forgotten) + 1))
        for topic_id, numbers in forgotten.items():
            out.append(topic_id)
            out.append(write_uvarint(len(numbers) + 1))
            out.extend(map(_INT32.pack, numbers))
            out.append(_NO_TAGS)
        out.append(_STATE_START)
    out.append(REPLICA_STATE.pack(replica_id, replica_epoch))
    out.append(_NO_TAGS)
    return b"".join(out)


def parse_reply(reply: memoryview) -> FetchedRows:
    """Parse a reply without its size. Raise WireError if it is malformed. Records are not copied."""
    try:
        end = len(reply)
        position = skip_tags(reply, 4, end)
        _, error_code, session_id = _REPLY_START.unpack_from(reply, position)
        position += _REPLY_START.size
        rows: list[FetchedRow] = []
        topics, position = read_uvarint(reply, position)
        for _ in range(topics - 1):
            topic_id = bytes(reply[position : position + 16])
            count, position = read_uvarint(reply, position + 16)
            for _ in range(count - 1):
                row, position = _read_row(reply, position, end, topic_id)
                rows.append(row)
            position = skip_tags(reply, position, end)
        if skip_tags(reply, position, end) != end:
            raise WireError("the reply is longer than its fields")
    except (IndexError, ValueError) as error:
        raise WireError(f"a Fetch reply is malformed: {error}") from None
    except StructError as error:
        raise WireError(f"a Fetch reply ends early: {error}") from None
    return FetchedRows(error_code, session_id, rows)


def _read_row(reply: memoryview, position: int, end: int, topic_id: bytes) -> tuple[FetchedRow, int]:
    number, error_code, high_watermark, _, log_start = _REPLY_ROW.unpack_from(reply, position)
    aborted, position = read_uvarint(reply, position + _REPLY_ROW.size)
    position += max(aborted - 1, 0) * _ABORTED_BYTES + 4  # 4: the preferred read replica
    size, position = read_uvarint(reply, position)
    following = position + max(size - 1, 0)
    if following >= end:
        raise WireError("records do not end within the reply")
    records = reply[position:following]
    diverging: tuple[int, int] | None = None
    wants_sync = False
    position = following + 1
    if reply[following]:
        position = skip_tags(reply, following, end)
        found = find_tag(reply, following, end, _DIVERGING_TAG)
        if found is not None:
            epoch, end_offset = _DIVERGING.unpack_from(reply, found[0])
            diverging = epoch, end_offset
        wants_sync = find_tag(reply, following, end, SYNC_WANTED_TAG) is not None
    row = FetchedRow(topic_id, number, error_code, high_watermark, log_start, diverging, records, wants_sync)
    return row, position
