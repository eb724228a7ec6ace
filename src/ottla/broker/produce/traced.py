"""Produce with traces: handle the request as always, then begin the spans of the batches that were appended.

Called instead of the handler of Produce only by brokers with ``traces.endpoint``, so the others have no cost. The
parent of the spans is the `traceparent` header of a record, if the producer traces it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import error as StructError

from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.record_traces import RecordTraces
from ottla.env.tracing import TRACEPARENT, Context, find_traceparent
from ottla.model.batch import CODEC_MASK, CODEC_MAX, HEADER_BYTES, read_header
from ottla.model.compression import decompress
from ottla.model.errors import KafkaError
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.wire import WireError
from ottla.wire.frame import read_client_id
from ottla.wire.produce import TOPIC_IDS_FROM, PartitionData, parse_produce

Handle = Callable[[Connection, FrameBuffer, memoryview, int, int, int, int], object]

#: batches of one request that may be traced
_BATCHES_MAX = 64
#: larger batches that are compressed are not searched for a `traceparent`
_COMPRESSED_BYTES_MAX = 64 << 10
_OPENED_BYTES_MAX = 1 << 20
#: bytes of the batches of one request that are decompressed: this runs on the event loop
_REQUEST_COMPRESSED_BYTES_MAX = 128 << 10


def traced_produce(handle: Handle, traces: RecordTraces) -> Handle:
    """Return a handler of Produce that traces what this one appends."""
    return partial(_handle, handle, traces)


def _handle(
    handle: Handle,
    traces: RecordTraces,
    connection: Connection,
    buffer: FrameBuffer,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> None:
    chosen, acks, timeout_s = _choose(traces, buffer, start, end, version)
    began = traces.monotonic()
    client_id = read_client_id(buffer, start + 8, end) if chosen else None
    handle(connection, buffer, view, start, end, version, correlation_id)
    for target, base_offset, size_bytes, parent in chosen:
        # A batch that has to be opened first, or that begins a transaction, is appended later: it is not traced.
        if target.log.log_end_offset > base_offset:
            attributes = traces.attributes(target, base_offset, client_id)
            attributes["messaging.message.body.size"] = size_bytes
            traces.appended(
                target, base_offset, parent=parent, began=began, acks=acks, timeout_s=timeout_s, attributes=attributes
            )


def _choose(
    traces: RecordTraces, buffer: FrameBuffer, start: int, end: int, version: int
) -> tuple[list[tuple[Partition, int, int, Context | None]], int, float]:
    """Return the partitions of the batches to trace, with end offsets, sizes and parents; acks; and the timeout."""
    try:
        parsed = parse_produce(buffer, start, end, version)
    except (WireError, StructError, IndexError):
        return [], 0, 0.0  # the handler refuses it
    replicas, chosen, count, compressed_bytes = traces.replicas, [], 0, 0
    known = replicas.topics_by_id if version >= TOPIC_IDS_FROM else replicas.topics
    for topic, batches in parsed.topics:
        for data in batches:
            count += 1
            if count > _BATCHES_MAX:
                break
            parent = None
            if data.end - data.start > HEADER_BYTES:
                codec = read_header(buffer, data.start).attributes & CODEC_MASK
                compressed_bytes += data.end - data.start if codec else 0
                if compressed_bytes <= _REQUEST_COMPRESSED_BYTES_MAX or not codec:
                    parent = _parent(buffer, data, codec)
            target = known.get(topic, {}).get(data.partition)
            if target is not None and data.start >= 0 and traces.spans.wants(parent):
                chosen.append((target, target.log.log_end_offset, data.end - data.start, parent))
    return chosen, parsed.acks, parsed.timeout_ms / 1000


def _parent(buffer: FrameBuffer, data: PartitionData, codec: int) -> Context | None:
    """Return what the first record with a `traceparent` names; None without one, and for large compressed batches."""
    start, end = data.start + HEADER_BYTES, data.end
    if not codec:
        return find_traceparent(buffer, start, end)
    if end - start > _COMPRESSED_BYTES_MAX or codec > CODEC_MAX:
        return None
    try:
        records = decompress(codec, bytes(buffer[start:end]), _OPENED_BYTES_MAX)
    except KafkaError:
        return None
    return find_traceparent(records, 0, len(records)) if TRACEPARENT in records else None
