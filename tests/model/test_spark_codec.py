"""The Arrow codec against aiokafka and against the broker's own reader and builder, with numpy and with numba."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from ottla.model.batch import CODECS, CRC_POSITION, HEADER_BYTES, checksum  # noqa: E402
from ottla.model.errors import InvalidRecord  # noqa: E402
from ottla.model.records import Record, build_batch, iterate_records  # noqa: E402
from ottla.spark import compiled_scan, kernels  # noqa: E402
from ottla.spark.decode import COLUMNS, AbortedTransactions, DamagedBatch, decode, decode_chunks  # noqa: E402
from ottla.spark.encode import RecordTooLarge, encode, murmur2_partitions  # noqa: E402

with warnings.catch_warnings():
    # kafka-python reads its resources in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2

FOREVER = 1 << 62
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

codecs = st.integers(0, len(CODECS) - 1)
short_payloads = st.none() | st.binary(max_size=9) | st.binary(min_size=1, max_size=2).map(lambda part: part * 70)
payloads = short_payloads | st.binary(min_size=1, max_size=2).map(lambda part: part * 5000)
WITH_HEADERS = (*COLUMNS, "headers")
headers = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), st.none() | st.binary(max_size=99)), max_size=4
)
timestamps = st.integers(0, 2**41) | st.integers(1_700_000_000_000, 1_700_000_100_000)
records = st.builds(Record, timestamp=timestamps, key=payloads, value=payloads, headers=headers)
short_records = st.builds(Record, timestamp=timestamps, key=short_payloads, value=short_payloads, headers=headers)
record_lists = st.lists(records, min_size=1, max_size=20)


@st.composite
def long_record_lists(draw: st.DrawFn) -> list[Record]:
    """Many records cheaply drawn: runs of equal ones, so that guesses of equal lengths are right and wrong."""
    kinds = draw(st.lists(short_records, min_size=1, max_size=4))
    runs = draw(st.lists(st.tuples(st.integers(0, len(kinds) - 1), st.integers(1, 90)), min_size=1, max_size=12))
    return [kinds[kind] for kind, count in runs for _ in range(count)]


@pytest.fixture(autouse=True, scope="module", params=["numpy", "numba"])
def both_scans(request: pytest.FixtureRequest) -> Iterator[None]:
    chosen = kernels.scan if request.param == "numpy" else compiled_scan.load_compiled()
    if chosen is None:
        pytest.skip("numba is not installed, or turned off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_scan, "SCANNER", chosen)
        yield


class Row(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batch: Any) -> list[Row]:
    batch.validate(full=True)
    names = ("offset", "timestamp", "key", "value", "headers")
    columns = {name: batch.column(name) for name in names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return [
        Row(offset, timestamp // 1000, key, value, [(header["key"], header["value"]) for header in listed or []])
        for offset, timestamp, key, value, listed in zip(*(columns[name].to_pylist() for name in names), strict=True)
    ]


def decoded(data: bytes, start: int = 0, end: int = FOREVER) -> tuple[list[Row], int]:
    rows, next_offset = decode(memoryview(data), start=start, end=end, aborted=None, columns=WITH_HEADERS)
    return rows_of(rows), next_offset


def slow(data: bytes) -> list[Row]:
    return [Row(read.offset, read.timestamp, read.key, read.value, read.headers) for read in iterate_records(data)]


def encoded(records: list[Record], **options: Any) -> list[bytes]:
    lists = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
    batches = encode(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.timestamp for record in records], pa.int64()),
        pa.array(lists, HEADERS),
        now_ms=0,
        **options,
    )
    return [batch.data for batch in batches]


@settings(deadline=None)
@given(st.lists(st.tuples(long_record_lists() | record_lists, codecs), min_size=1, max_size=4), st.data())
def test_reply_is_read_as_the_slow_reader_reads_it(
    batches: list[tuple[list[Record], int]], data: st.DataObject
) -> None:
    reply, base_offset, expected = b"", 5, []
    for records, codec in batches:
        batch = build_batch(records, base_offset=base_offset, codec=codec)
        expected += slow(batch)
        reply += batch
        base_offset += len(records) + data.draw(st.integers(0, 3))
    start = data.draw(st.integers(0, base_offset))
    end = data.draw(st.integers(start, base_offset + 1))
    rows, next_offset = decoded(reply, start, end)
    assert rows == [row for row in expected if start <= row.offset < end]
    assert next_offset >= min(end, expected[-1].offset + 1)


@settings(deadline=None)
@given(long_record_lists(), codecs, st.integers(1, 50), st.integers(1, 5000))
def test_pieces_together_are_the_whole(records: list[Record], codec: int, rows_max: int, bytes_max: int) -> None:
    reply = build_batch(records, codec=codec) + build_batch(records, base_offset=len(records))
    whole, next_offset = decoded(reply)
    chunks = list(
        decode_chunks(
            memoryview(reply),
            start=0,
            end=FOREVER,
            aborted=None,
            columns=WITH_HEADERS,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
    )
    assert [row for chunk in chunks for row in rows_of(chunk.rows)] == whole
    assert all(len(chunk.rows) <= rows_max for chunk in chunks)
    for chunk in chunks[:-1]:
        assert chunk.next_offset > chunk.rows.column("offset")[-1].as_py()
    assert chunks[-1].next_offset == next_offset


@settings(deadline=None)
@given(st.sets(st.integers(0, 2**31 - 2), min_size=1, max_size=50).map(sorted), codecs)
def test_any_gaps_between_offsets_are_kept(deltas: list[int], codec: int) -> None:
    batch = build_batch([Record(offset_delta=delta, timestamp=0) for delta in deltas], codec=codec)
    assert [row.offset for row in decoded(batch)[0]] == deltas


@settings(deadline=None)
@given(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=20))
def test_any_timestamp_is_kept(instants: list[int]) -> None:
    assert [row.timestamp for row in decoded(build_batch([Record(timestamp=at) for at in instants]))[0]] == instants
    records = [Record(timestamp=at) for at in instants]
    assert encoded(records, codec=0, batch_bytes_max=1 << 20) == [build_batch(records)]


@settings(deadline=None)
@given(record_lists, codecs)
def test_what_aiokafka_builds_is_read(records: list[Record], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 24,
    )  # fmt: skip
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, record.headers)
    rows, next_offset = decoded(bytes(builder.build()))
    assert rows == [
        Row(offset, record.timestamp, record.key, record.value, record.headers) for offset, record in enumerate(records)
    ]
    assert next_offset == len(records)


@settings(deadline=None)
@given(long_record_lists() | record_lists, codecs, st.integers(22_000, 100_000))
def test_what_is_written_is_read_by_aiokafka(records: list[Record], codec: int, batch_bytes_max: int) -> None:
    read = []
    for data in encoded(records, codec=codec, batch_bytes_max=batch_bytes_max):
        batch = DefaultRecordBatch(bytearray(data))
        assert batch.validate_crc()
        for offset, record in enumerate(batch):
            assert record.offset == offset
            read.append(Record(-1, record.timestamp, record.key, record.value, list(record.headers)))
    assert read == records


@settings(deadline=None)
@given(long_record_lists() | record_lists)
def test_batch_is_byte_for_byte_that_of_the_slow_builder(records: list[Record]) -> None:
    assert encoded(records, codec=0, batch_bytes_max=1 << 30) == [build_batch(records)]


@settings(deadline=None)
@given(long_record_lists() | record_lists, codecs, st.integers(70, 3000))
def test_limit_holds_or_the_record_that_breaks_it_is_named(
    records: list[Record], codec: int, batch_bytes_max: int
) -> None:
    alone = [len(build_batch([record])) for record in records]
    if max(alone) > batch_bytes_max:
        with pytest.raises(RecordTooLarge) as refused:
            encoded(records, codec=codec, batch_bytes_max=batch_bytes_max)
        assert alone[refused.value.row] == refused.value.size_bytes > batch_bytes_max
        return
    batches = encoded(records, codec=codec, batch_bytes_max=batch_bytes_max)
    assert max(map(len, batches)) <= batch_bytes_max
    read = [record for batch in batches for record in iterate_records(batch)]
    assert [(one.timestamp, one.key, one.value, one.headers) for one in read] == [
        (one.timestamp, one.key, one.value, one.headers) for one in records
    ]


@settings(deadline=None)
@given(long_record_lists() | record_lists, codecs)
def test_reading_what_was_read_and_written_changes_nothing(records: list[Record], codec: int) -> None:
    [first] = encoded(records, codec=codec, batch_bytes_max=1 << 30)
    rows, _ = decode(memoryview(first), start=0, end=FOREVER, aborted=None, columns=WITH_HEADERS)
    [again] = encode(
        rows.column("key"), rows.column("value"), rows.column("timestamp"), rows.column("headers"),
        codec=codec, batch_bytes_max=1 << 30, now_ms=0,
    )  # fmt: skip
    assert again.data == first


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=60), max_size=80), st.integers(1, 1000))
def test_partitions_are_those_of_kafka_python(keys: list[bytes | None], count: int) -> None:
    expected = [0 if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert murmur2_partitions(pa.array(keys, pa.binary()), count, sticky=0).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(long_record_lists() | record_lists, codecs, st.randoms(use_true_random=False), st.booleans())
def test_damage_behind_a_good_checksum_is_found_by_all_readers_or_by_none(
    records: list[Record], codec: int, chance: random.Random, cut: bool
) -> None:
    damaged = bytearray(build_batch(records, codec=codec))
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(HEADER_BYTES, len(damaged))
        damaged[position] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256), damaged[position] ^ 1))
    if cut:
        del damaged[chance.randrange(HEADER_BYTES, len(damaged)) :]
        damaged[8:12] = (len(damaged) - 12).to_bytes(4, "big")
    damaged[CRC_POSITION : CRC_POSITION + 4] = checksum(damaged).to_bytes(4, "big")
    try:
        expected = slow(bytes(damaged))
    except InvalidRecord:
        with pytest.raises(DamagedBatch):
            decoded(bytes(damaged))
        return
    rows, _ = decode(memoryview(damaged), start=0, end=FOREVER, aborted=None)
    assert rows.column("key").to_pylist() == [row.key for row in expected]
    assert rows.column("value").to_pylist() == [row.value for row in expected]
    assert rows.column("offset").to_pylist() == [row.offset for row in expected]


@settings(deadline=None, max_examples=100)
@given(record_lists, codecs, st.randoms(use_true_random=False))
def test_damage_anywhere_is_refused_and_nothing_else_happens(
    records: list[Record], codec: int, chance: random.Random
) -> None:
    data = bytearray(build_batch(records, codec=codec) + build_batch(records, base_offset=len(records), codec=codec))
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with contextlib.suppress(DamagedBatch):
        decode(memoryview(data), start=0, end=FOREVER, aborted=AbortedTransactions(), columns=WITH_HEADERS)
