"""The per-record part of compaction: sealed segments in, what is left of them out. Runs in a process of its own.

    1 the newest offset of every key between the first dirty offset and the end of the range
    2 every segment from the log's start: records that a newer one of their key stands for are left out

The rules are Kafka's (Cleaner, MemoryRecords.filterTo). A batch keeps its offsets, its producer and its sequences. One
that has no record left goes, unless it holds the last sequence of a producer that is still known, or ends an output:
every output ends where the segment behind it begins, so that a hole between segments always means loss. A deletion (a
record without a value) stays until the delete horizon of its batch, which the first compaction sets. Records without a
key go. Batches behind the last offset of the map stay as they are: memory for keys is bounded, and the next pass goes
on there.

Records of aborted transactions go at once and stand for nothing; those of committed ones are records like any other. A
marker stays while a batch of its transaction is there, even an empty one, and from the first pass that finds none on
until its delete horizon. The row of an aborted transaction in the index of its output goes with the first such pass:
while readers are told of a transaction they find its marker.

Nothing is written here. The work is a stream of frames, each made from one read, for the one who writes files: a thread
of the broker. With a small log that thread runs the generator itself; with a large one a process does, which cannot
hold up the event loop by holding the interpreter's lock, and which ends by itself when nobody reads its frames.
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
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.producers import last_offsets
from ottla.log.segment import Segment, SegmentFile
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

#: what one key costs in memory, measured: digest, offset and their place in a dict
KEY_BYTES = 160
#: a key up to this length is its own digest: digests are longer, so the two cannot meet
_OWN_DIGEST_BYTES_MAX = 15
_DIGEST_BYTES = 16
_NICENESS = 5

Batch = tuple[BatchHeader, bytes]


class Kind(IntEnum):
    """What a frame says."""

    #: some work was done that has no result yet
    PROGRESS = 0
    #: an output begins, in the place of the source with the number ``first``
    OUTPUT = 1
    #: whole batches for the output's file
    DATA = 2
    INDEX = 3
    TIME_INDEX = 4
    TXN_INDEX = 5
    #: the output is whole: ``sources`` went into it, and whether it is anything but a copy
    CLOSED = 6
    #: the pass is over: everything below ``end_offset`` is compacted once the outputs are in place
    END = 7
    #: it cannot be done; the payload says why
    FAILED = 8


class Frame(NamedTuple):
    kind: Kind
    payload: bytes

    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.payload)
        return values


Frames = Generator[Frame, None, None]


class CleanerFailed(Exception):
    """The process ended before its work did, or could not be started."""


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
    """All that a pass has to know."""

    sources: tuple[Source, ...]
    first_dirty_offset: int
    #: where the segment behind the last source begins
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    #: neighbours share an output up to this size
    output_bytes_max: int
    index_interval_bytes: int
    #: keys that a pass may remember
    keys_max: int
    read_bytes: int
    #: what a batch may grow to when it is opened
    inflate_bytes_max: int
    #: rows of the producers that are still known, as in the snapshot: there may be many, and the pass decodes them
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
    """Run a pass in this process. Raise Uncleanable if a source cannot be read.

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
        self._offsets: dict[bytes, int] = {}
        #: the map knows everything from the first dirty offset up to here
        self._latest = job.end_offset - 1

        #: of each producer that is still known the last offset, -1 if only markers tell of it, and the epoch
        self._producers = last_offsets(job.producers)

        # Transactions
        #: aborted ones by producer, in order: two of the same producer never overlap
        self._aborted: dict[int, list[EndedTransaction]] = {}
        for row in sorted(job.aborted, key=_last_offset):
            self._aborted.setdefault(row.producer_id, []).append(row)
        #: producers of whose transaction a batch was found, until its marker is
        self._seen: set[int] = set()
        #: rows for the index of the output
        self._rows: list[EndedTransaction] = []

        # Output
        #: counts and indexes only; the file is somebody else's
        self._output: Segment | None = None
        self._output_sources = 0
        self._changed = False
        #: the batch that was read last, when nothing of it is in the output
        self._dropped: BatchHeader | None = None

    def run(self) -> Frames:
        yield from self._map_keys()
        for number, source in enumerate(self._job.sources):
            if source.base_offset > self._latest:
                break
            if self._output is None or not self._fits(number):
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
        """Note the batch's keys; the offset of the first record for which there was no room."""
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

    # -- what is left ---------------------------------------------------------------------------------------------

    def _clean(self, output: Segment, batches: list[Batch]) -> Frame:
        parts = []
        for header, batch in batches:
            if header.attributes & CONTROL:
                left = self._left_of_marker(header, batch)
            else:
                left = self._left_of(header, batch)
            if left is not batch:
                self._changed = True
            if left is None and self._tells_of_producer(header):
                left = empty_batch(header)
            self._dropped = header if left is None else None
            if left is not None:
                self._note(output, left)
                parts.append(left)
        return Frame(Kind.DATA, b"".join(parts)) if parts else Frame(Kind.PROGRESS, b"")

    def _left_of(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The batch as it was, with fewer records, or None when none is left."""
        if header.attributes & TRANSACTIONAL:
            self._seen.add(header.producer_id)
        if header.base_offset > self._latest:
            return batch
        if not header.record_count or self._aborted_by(header) is not None:
            return None
        data, spans = record_spans(batch, max_bytes=self._job.inflate_bytes_max)
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        expired = has_horizon and header.base_timestamp <= self._job.now_ms
        kept, has_deletions = self._kept(spans, expired=expired)
        if not kept:
            return None
        horizon = None
        if has_deletions and not has_horizon:
            horizon = self._job.now_ms + self._job.delete_retention_ms
        elif len(kept) == len(spans):
            return batch
        return retain_spans(header, data, kept, horizon)

    def _left_of_marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """The marker as it was, with the time at which it may go, or None when that has come."""
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
        """The aborted transaction that a batch or a marker belongs to."""
        if not header.attributes & TRANSACTIONAL or header.producer_id not in self._aborted:
            return None
        rows = self._aborted[header.producer_id]
        found = bisect_left(rows, header.last_offset, key=_last_offset)
        return rows[found] if found < len(rows) and rows[found].first_offset <= header.base_offset else None

    def _tells_of_producer(self, header: BatchHeader) -> bool:
        """Whether a batch without records stays: its sequence, or its epoch, is the last that is known."""
        last_offset, epoch = self._producers.get(header.producer_id, (-1, -1))
        if last_offset >= 0:
            return header.last_offset == last_offset
        return bool(header.attributes & CONTROL) and header.producer_epoch == epoch and header.producer_id >= 0

    def _kept(self, spans: list[RecordSpan], *, expired: bool) -> tuple[list[RecordSpan], bool]:
        """The records that stay, and whether one of those that the map covers is a deletion."""
        kept, has_deletions, latest, offsets = [], False, self._latest, self._offsets
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
                    has_deletions = True
            kept.append(span)
        return kept, has_deletions

    # -- outputs --------------------------------------------------------------------------------------------------

    def _fits(self, number: int) -> bool:
        """Whether a source goes into the output that is open. One that has nothing yet takes whatever comes."""
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
        """The batches of a segment, as many at once as one read shows. A damaged one is never given a new checksum."""
        file, position = SegmentFile(self._disk, self._disk.open(source.path)), 0
        wanted = self._job.read_bytes
        while position < source.size_bytes:
            chunk = self._disk.pread(file.fd, min(wanted, source.size_bytes - position), position)
            batches, at = [], 0
            while at + HEADER_BYTES <= len(chunk):
                header = read_header(chunk, at)
                if header.length < LENGTH_MIN or header.magic != MAGIC:
                    raise CorruptMessage(f"no batch can start like the one at {position + at} in {source.path}")
                if at + header.size_bytes > len(chunk):
                    break
                batch = chunk[at : at + header.size_bytes]
                if checksum(batch) != header.crc:
                    raise CorruptMessage(f"the batch at {position + at} in {source.path} is damaged")
                batches.append((header, batch))
                at += header.size_bytes
            if batches:
                yield batches
                position, wanted = position + at, self._job.read_bytes
            elif len(chunk) < HEADER_BYTES or position + header.size_bytes > source.size_bytes:
                raise CorruptMessage(f"no whole batch stands at {position} in {source.path}")
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
    """Run a pass in another process. Raises as ``clean`` does, and CleanerFailed when that process ends too early."""
    command = [sys.executable, "-P", "-c", "from ottla.log.cleaner import main; main()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        # A session of its own: Ctrl-C in the broker's terminal is the broker's to handle.
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
    raise CleanerFailed("the cleaner's process ended before its work did")


def main() -> None:
    """The other process: a job on standard input, frames on standard output."""
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
        # The broker is gone, or has no use for the rest. The interpreter must not try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except OSError as error:
        sys.exit(f"the cleaner could not read a segment: {error}")


def _write_frame(out: IO[bytes], frame: Frame) -> None:
    out.write(_FRAME_HEAD.pack(frame.kind, len(frame.payload)))
    out.write(frame.payload)
    out.flush()
