"""The cleaner: reads sealed segments and produces the compacted segments, in a process of its own for large logs.

    1. Map each key between the first dirty offset and the end of the range to its newest offset.
    2. Read every segment from the log start; remove each record for whose key the map has a larger offset.

The rules are Kafka's (Cleaner, MemoryRecords.filterTo):

- A batch keeps its offsets, its producer id and its sequence numbers.
- A batch without remaining records is removed, with two exceptions: it holds the last sequence number of a producer
  that has not expired, or it is the last of an output. Every output ends at the base offset of the next segment, so
  that a gap between segments always means lost records.
- A tombstone (a record without a value) is kept until the delete horizon of its batch. The first pass sets the horizon.
- A record without a key is removed.
- Batches after the last offset in the map are not changed. The memory for keys is limited; the next pass continues
  there.
- Records of aborted transactions are removed and do not replace older records of their keys. Records of committed
  transactions are treated like all others.
- A marker is kept while a batch of its transaction exists, even an empty one. The first pass without such a batch sets
  the marker's delete horizon, and removes the row of an aborted transaction from the transaction index. So a reader
  that gets such a row always finds the marker.

The cleaner writes no file. It yields frames, each from one read, and a thread of the broker writes their contents to
files. For a small log that thread runs the generator. For a large log another process runs it, so that the cleaner does
not hold the interpreter lock that the event loop needs. That process ends when its output pipe is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import IO, Any, NamedTuple

from ottla.env.disk import NO_DESCRIPTORS, Disk, RealDisk
from ottla.log.file_region import SegmentFile
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.producers import last_offsets
from ottla.log.segment import Segment
from ottla.log.transactions import EndedTransaction, index_to_bytes
from ottla.model.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.errors import CorruptMessage, KafkaError
from ottla.model.records import RecordSpan, empty_batch, placeholder, record_spans, retain_spans

#: measured memory per key: digest, offset and their dict entry
KEY_BYTES = 160
#: a key up to this length is its own digest; it cannot equal a real digest, which is longer
_OWN_DIGEST_BYTES_MAX = 15
_DIGEST_BYTES = 16
_NICENESS = 5

Batch = tuple[BatchHeader, bytes]


class Kind(IntEnum):
    """The kind of a frame."""

    #: work was done without a result
    PROGRESS = 0
    #: an output begins; it replaces the sources from number ``first`` on
    OUTPUT = 1
    #: complete batches for the output's file
    DATA = 2
    INDEX = 3
    TIME_INDEX = 4
    TXN_INDEX = 5
    #: the output is complete: the number of its ``sources``, and whether it is ``changed`` or a mere copy
    CLOSED = 6
    #: the pass is complete: with its outputs the log is compacted below ``end_offset``
    END = 7
    #: the log cannot be compacted; the payload is the reason
    FAILED = 8


class Frame(NamedTuple):
    """One message of the cleaner."""

    kind: Kind
    payload: bytes

    def values(self) -> dict[str, Any]:
        """Return the named values of an OUTPUT, CLOSED or END frame."""
        values: dict[str, Any] = json.loads(self.payload)
        return values


Frames = Generator[Frame, None, None]


class CleanerFailed(Exception):
    """The cleaner's process could not be started, or ended before the pass was complete."""


class Uncleanable(Exception):
    """The log cannot be compacted: a batch is damaged, or the disk fails to read a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A sealed segment."""

    path: str
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanJob:
    """The input of a pass."""

    sources: tuple[Source, ...]
    first_dirty_offset: int
    #: base offset of the segment after the last source
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    #: consecutive sources are merged into one output up to this size
    output_bytes_max: int
    index_interval_bytes: int
    #: maximum number of keys in the map
    keys_max: int
    read_bytes: int
    #: maximum size of a decompressed batch
    inflate_bytes_max: int
    #: snapshot rows of the producers that have not expired; the pass decodes them, because there may be many
    producers: bytes
    #: every aborted transaction with a batch or a marker in the sources
    aborted: tuple[EndedTransaction, ...] = ()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self) | {"producers": b64encode(self.producers).decode()}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> CleanJob:
        values = json.loads(data)
        values["sources"] = tuple(Source(**source) for source in values["sources"])
        values["producers"] = b64decode(values["producers"])
        values["aborted"] = tuple(EndedTransaction._make(row) for row in values["aborted"])
        return cls(**values)


def clean(disk: Disk, job: CleanJob) -> Frames:
    """Yield the frames of a pass that runs in this process. Raise Uncleanable if a source cannot be read.

    Raise OSError if no file descriptor is left, or if retention has deleted a source.
    """
    try:
        yield from _Pass(disk, job).run()
    except KafkaError as error:
        raise Uncleanable(str(error)) from None
    except OSError as error:
        if error.errno in NO_DESCRIPTORS or isinstance(error, FileNotFoundError):
            raise
        raise Uncleanable(str(error)) from None


class _Pass:
    """One pass over the sources."""

    def __init__(self, disk: Disk, job: CleanJob) -> None:
        self._disk = disk
        self._job = job
        #: digest of each key -> its newest offset
        self._offsets: dict[bytes, int] = {}
        #: the map covers the offsets from the first dirty offset to this one, inclusive
        self._latest = job.end_offset - 1

        #: producer id -> last offset (-1 if the log has only markers of the producer) and epoch
        self._producers = last_offsets(job.producers)

        # Transactions
        #: aborted transactions by producer id, ordered by offset: those of one producer never overlap
        self._aborted: dict[int, list[EndedTransaction]] = {}
        for row in sorted(job.aborted, key=_last_offset):
            self._aborted.setdefault(row.producer_id, []).append(row)
        #: producers with a batch of a transaction whose marker was not read yet
        self._seen: set[int] = set()
        #: rows of the output's transaction index
        self._rows: list[EndedTransaction] = []

        # Output
        #: has only the size and the indexes; the reader of the frames writes the file
        self._output: Segment | None = None
        self._output_sources = 0
        self._changed = False
        #: the last batch that was read, if it was removed
        self._dropped: BatchHeader | None = None

    def run(self) -> Frames:
        """Yield the frames of the pass."""
        yield from self._map_keys()
        for number, source in enumerate(self._job.sources):
            if source.base_offset > self._latest:
                break
            if self._output is None or not self._fits_into_output(number):
                yield from self._close_output()
                self._output = Segment(self._disk, "", source.base_offset)
                self._output_sources, self._changed, self._rows = 0, False, []
                yield _frame(Kind.OUTPUT, first=number)
            self._output_sources += 1
            for batches in self._read(source):
                yield self._clean(self._output, batches)
        yield from self._close_output()
        yield _frame(Kind.END, end_offset=self._latest + 1)

    # -- the map of keys ------------------------------------------------------------------------------------------

    def _map_keys(self) -> Frames:
        start = self._job.first_dirty_offset
        ends = [source.base_offset for source in self._job.sources[1:]] + [self._job.end_offset]
        for source, end in zip(self._job.sources, ends, strict=True):
            if end <= start:
                continue
            for batches in self._read(source):
                for header, batch in batches:
                    if header.last_offset < start or header.attributes & CONTROL or not header.record_count:
                        continue
                    if self._aborted_by(header) is not None:
                        continue
                    full_at = self._map_batch(batch, start)
                    if full_at is not None:
                        self._latest = full_at - 1
                        return
                yield Frame(Kind.PROGRESS, b"")

    def _map_batch(self, batch: bytes, start: int) -> int | None:
        """Add the batch's keys to the map. Return the offset of the first record that did not fit, or None."""
        offsets, keys_max = self._offsets, self._job.keys_max
        for span in record_spans(batch, max_bytes=self._job.inflate_bytes_max)[1]:
            key = span.key
            if key is None or span.offset < start:
                continue
            digest = key if len(key) <= _OWN_DIGEST_BYTES_MAX else _digest(key)
            if len(offsets) >= keys_max and digest not in offsets:
                return span.offset
            offsets[digest] = span.offset
        return None

    # -- filtering ------------------------------------------------------------------------------------------------

    def _clean(self, output: Segment, batches: list[Batch]) -> Frame:
        """Return a frame with the remaining batches."""
        parts = []
        for header, batch in batches:
            if header.attributes & CONTROL:
                cleaned = self._clean_marker(header, batch)
            else:
                cleaned = self._clean_batch(header, batch)
            if cleaned is not batch:
                self._changed = True
            if cleaned is None and self._is_last_of_producer(header):
                cleaned = empty_batch(header)
            self._dropped = header if cleaned is None else None
            if cleaned is not None:
                self._note(output, cleaned)
                parts.append(cleaned)
        return Frame(Kind.DATA, b"".join(parts)) if parts else Frame(Kind.PROGRESS, b"")

    def _clean_batch(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return the batch unchanged, or a batch with the remaining records, or None if no record remains."""
        if header.attributes & TRANSACTIONAL:
            self._seen.add(header.producer_id)
        if header.base_offset > self._latest:
            return batch
        if not header.record_count or self._aborted_by(header) is not None:
            return None
        data, spans = record_spans(batch, max_bytes=self._job.inflate_bytes_max)
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        expired = has_horizon and header.base_timestamp <= self._job.now_ms
        kept, has_tombstones = self._kept(spans, expired=expired)
        if not kept:
            return None
        horizon = None
        if has_tombstones and not has_horizon:
            horizon = self._job.now_ms + self._job.delete_retention_ms
        elif len(kept) == len(spans):
            return batch
        return retain_spans(header, data, kept, horizon)

    def _clean_marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return the marker unchanged, or with a new delete horizon, or None if its delete horizon has passed."""
        was_seen = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        row = self._aborted_by(header)
        if was_seen and row is not None:
            self._rows.append(row)
        if was_seen or header.producer_id < 0 or header.base_offset > self._latest:
            return batch
        if not header.record_count:
            return None
        if header.attributes & DELETE_HORIZON:
            return None if header.base_timestamp <= self._job.now_ms else batch
        data, spans = record_spans(batch, max_bytes=self._job.inflate_bytes_max)
        return retain_spans(header, data, spans, self._job.now_ms + self._job.delete_retention_ms)

    def _aborted_by(self, header: BatchHeader) -> EndedTransaction | None:
        """Return the aborted transaction to which the batch or marker belongs; None if there is none."""
        if not header.attributes & TRANSACTIONAL or header.producer_id not in self._aborted:
            return None
        rows = self._aborted[header.producer_id]
        found = bisect_left(rows, header.last_offset, key=_last_offset)
        return rows[found] if found < len(rows) and rows[found].first_offset <= header.base_offset else None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether the batch must be kept without records: it holds its producer's last sequence or epoch."""
        last_offset, epoch = self._producers.get(header.producer_id, (-1, -1))
        if last_offset >= 0:
            return header.last_offset == last_offset
        return bool(header.attributes & CONTROL) and header.producer_epoch == epoch and header.producer_id >= 0

    def _kept(self, spans: list[RecordSpan], *, expired: bool) -> tuple[list[RecordSpan], bool]:
        """Return the records to keep, and whether the map's range has a tombstone among them."""
        kept, has_tombstones, latest, offsets = [], False, self._latest, self._offsets
        for span in spans:
            offset, key = span.offset, span.key
            if offset <= latest:
                if key is None:
                    continue
                if offset < offsets.get(key if len(key) <= _OWN_DIGEST_BYTES_MAX else _digest(key), -1):
                    continue
                if not span.has_value:
                    if expired:
                        continue
                    has_tombstones = True
            kept.append(span)
        return kept, has_tombstones

    # -- outputs --------------------------------------------------------------------------------------------------

    def _fits_into_output(self, number: int) -> bool:
        """Return whether the source can be added to the current output. An empty output accepts any size."""
        assert self._output is not None
        sources = self._job.sources
        end = sources[number + 1].base_offset if number + 1 < len(sources) else self._job.end_offset
        if end - 1 - self._output.base_offset > RELATIVE_OFFSET_MAX:
            return False
        size = self._output.size_bytes
        return not size or size + sources[number].size_bytes <= self._job.output_bytes_max

    def _note(self, output: Segment, batch: bytes) -> None:
        header = read_header(batch)
        output.note_append(header.last_offset, header.size_bytes, header.max_timestamp, self._job.index_interval_bytes)

    def _close_output(self) -> Frames:
        output = self._output
        if output is None:
            return
        if self._dropped is not None:
            last = placeholder(self._dropped)
            self._note(output, last)
            self._dropped = None
            yield Frame(Kind.DATA, last)
        yield Frame(Kind.INDEX, output.offset_index.to_bytes())
        yield Frame(Kind.TIME_INDEX, output.time_index.to_bytes())
        yield Frame(Kind.TXN_INDEX, index_to_bytes(self._rows))
        yield _frame(
            Kind.CLOSED, sources=self._output_sources, changed=self._changed or self._output_sources > 1,
            size_bytes=output.size_bytes,
            times=(output.first_timestamp, output.max_timestamp, output.max_timestamp_offset),
        )  # fmt: skip

    # -- reading --------------------------------------------------------------------------------------------------

    def _read(self, source: Source) -> Iterator[list[Batch]]:
        """Yield the batches of a segment, those of one read at a time. Raise CorruptMessage if a batch is damaged.

        Each checksum is compared here, because a changed batch gets a new checksum, which would hide the damage.
        """
        file, position = SegmentFile(self._disk, self._disk.open(source.path)), 0
        wanted = self._job.read_bytes
        while position < source.size_bytes:
            chunk = self._disk.pread(file.fd, min(wanted, source.size_bytes - position), position)
            batches, at = [], 0
            while at + HEADER_BYTES <= len(chunk):
                header = read_header(chunk, at)
                if header.length < LENGTH_MIN or header.magic != MAGIC:
                    raise CorruptMessage(f"the batch at position {position + at} of {source.path} has a damaged header")
                if at + header.size_bytes > len(chunk):
                    break
                batch = chunk[at : at + header.size_bytes]
                if checksum(batch) != header.crc:
                    raise CorruptMessage(f"the batch at position {position + at} of {source.path} is damaged: checksum")
                batches.append((header, batch))
                at += header.size_bytes
            if batches:
                yield batches
                position, wanted = position + at, self._job.read_bytes
            elif len(chunk) < HEADER_BYTES or position + header.size_bytes > source.size_bytes:
                raise CorruptMessage(f"the batch at position {position} of {source.path} is incomplete")
            else:
                wanted = header.size_bytes


def _last_offset(row: EndedTransaction) -> int:
    return row.last_offset


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _frame(kind: Kind, **values: object) -> Frame:
    return Frame(kind, json.dumps(values).encode())


# -- a process of its own ----------------------------------------------------------------------------------------------

_FRAME_HEAD = Struct(">BI")


def clean_in_process(job: CleanJob) -> Frames:
    """Yield the frames of a pass that runs in another process. Raise Uncleanable if a source cannot be read.

    Raise CleanerFailed if the process cannot be started or ends before the pass is complete.
    """
    command = [sys.executable, "-P", "-c", "from ottla.log.cleaner import main; main()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        # A new session, so that Ctrl-C in the terminal reaches only the broker, which then ends this process.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise CleanerFailed(f"the cleaner's process could not be started: {error}") from None
    assert process.stdin is not None and process.stdout is not None
    try:
        try:
            process.stdin.write(job.to_json())
            process.stdin.close()
        except BrokenPipeError:
            raise CleanerFailed("the cleaner's process did not start; its error is above") from None
        yield from _frames_from(process.stdout)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _frames_from(stream: IO[bytes]) -> Frames:
    while len(head := stream.read(_FRAME_HEAD.size)) == _FRAME_HEAD.size:
        number, size = _FRAME_HEAD.unpack(head)
        payload = stream.read(size)
        if len(payload) < size:
            break
        frame = Frame(Kind(number), payload)
        if frame.kind == Kind.FAILED:
            raise Uncleanable(payload.decode())
        yield frame
        if frame.kind == Kind.END:
            return
    raise CleanerFailed("the cleaner's process ended before the pass was complete")


def main() -> None:
    """Read a job from standard input and write its frames to standard output: the cleaner's process."""
    os.nice(_NICENESS)
    job = CleanJob.from_json(sys.stdin.buffer.read())
    out = sys.stdout.buffer
    try:
        try:
            for frame in clean(RealDisk(), job):
                _write_frame(out, frame)
        except Uncleanable as error:
            _write_frame(out, Frame(Kind.FAILED, str(error).encode()))
    except BrokenPipeError:
        # The broker has ended or abandoned the pass. Prevent the interpreter from flushing to the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except OSError as error:
        sys.exit(f"the cleaner could not read a segment: {error}")


def _write_frame(out: IO[bytes], frame: Frame) -> None:
    out.write(_FRAME_HEAD.pack(frame.kind, len(frame.payload)))
    out.write(frame.payload)
    out.flush()
