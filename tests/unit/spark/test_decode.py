"""Record batches to Arrow: what is dropped, what is refused, what comes out. Everything with numpy and with numba."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

pa = pytest.importorskip("pyarrow")

from ottla.model.batch import CODECS, CRC_POSITION, checksum  # noqa: E402
from ottla.model.compression import compress  # noqa: E402
from ottla.model.records import Record, build_batch, empty_batch, read_header  # noqa: E402
from ottla.spark import compiled_scan, kernels  # noqa: E402
from ottla.spark import decode as decoding  # noqa: E402
from ottla.spark.decode import COLUMNS, AbortedTransactions, DamagedBatch, decode, decode_chunks  # noqa: E402

FOREVER = 1 << 62
ABORT, COMMIT = 0, 1
ZSTD = CODECS.index("zstd")

WITH_HEADERS = (*COLUMNS, "headers")


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int


@pytest.fixture(autouse=True, params=["numpy", "numba"])
def both_scans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = kernels.scan if request.param == "numpy" else compiled_scan.load_compiled()
    if chosen is None:
        pytest.skip("numba is not installed, or turned off")
    monkeypatch.setattr(compiled_scan, "SCANNER", chosen)


def some(*values: bytes | None, timestamp: int = 5) -> list[Record]:
    return [Record(timestamp=timestamp, key=b"k", value=value) for value in values]


def marker(kind: int, base_offset: int, producer_id: int) -> bytes:
    record = Record(timestamp=5, key=struct.pack(">hh", 0, kind), value=b"\0" * 6)
    return build_batch([record], base_offset=base_offset, producer_id=producer_id, transactional=True, control=True)


def transactional(base_offset: int, producer_id: int, *values: bytes) -> bytes:
    return build_batch(some(*values), base_offset=base_offset, producer_id=producer_id, transactional=True)


def resealed(batch: bytes | bytearray) -> bytes:
    batch = bytearray(batch)
    batch[CRC_POSITION : CRC_POSITION + 4] = checksum(batch).to_bytes(4, "big")
    return bytes(batch)


def read(data: bytes, start: int = 0, end: int = FOREVER, **options: Any) -> tuple[list[dict[str, Any]], int]:
    options = {"aborted": None, **options}
    rows, next_offset = decode(memoryview(data), start=start, end=end, **options)
    rows.validate(full=True)
    return rows.to_pylist(), next_offset


def values_of(data: bytes, start: int = 0, end: int = FOREVER, **options: Any) -> tuple[list[bytes], int]:
    rows, next_offset = read(data, start, end, **options)
    return [row["value"] for row in rows], next_offset


def test_columns_have_the_types_that_spark_expects() -> None:
    rows, _ = decode(memoryview(build_batch(some(b"v"))), start=0, end=9, aborted=None, columns=WITH_HEADERS)
    assert rows.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ]
    )


def test_nothing_gives_no_rows_and_the_position_it_was_asked_for() -> None:
    rows, next_offset = decode(memoryview(b""), start=7, end=9, aborted=None, columns=WITH_HEADERS)
    assert (len(rows), next_offset, rows.schema) == (0, 7, decoding.schema_of(WITH_HEADERS))


def test_columns_come_in_the_order_asked_for() -> None:
    batch = memoryview(build_batch(some(b"v")))
    rows, _ = decode(batch, start=0, end=9, aborted=None, columns=["timestamp", "value"])
    assert rows.schema.names == ["timestamp", "value"]


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_null_and_empty_are_told_apart(codec: int) -> None:
    records = [Record(timestamp=1, key=key, value=value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    rows, _ = read(build_batch(records, codec=codec))
    assert [(row["key"], row["value"]) for row in rows] == [(record.key, record.value) for record in records]


def test_log_append_time_gives_every_record_the_time_of_the_batch() -> None:
    records = [Record(timestamp=time, value=b"v") for time in (1000, 3000, 2000)]
    batch = build_batch(records, timestamp_type=1) + build_batch(records, base_offset=3)
    rows, _ = read(batch)
    assert [(row["timestamp"].timestamp(), row["timestampType"]) for row in rows] == [
        (3.0, 1), (3.0, 1), (3.0, 1), (1.0, 0), (3.0, 0), (2.0, 0),
    ]  # fmt: skip


def test_timestamp_beyond_arrow_becomes_the_last_one_it_has() -> None:
    batch = build_batch([Record(timestamp=1 << 62, value=b"v")])
    rows, _ = decode(memoryview(batch), start=0, end=9, aborted=None)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [((1 << 63) - 1) // 1000 * 1000]


def test_headers_are_null_where_a_record_has_none() -> None:
    records = [Record(timestamp=1, headers=headers) for headers in ([("a", b"1"), ("a", None)], [], [("", b"")])]
    rows, _ = read(build_batch(records), columns=WITH_HEADERS)
    assert [row["headers"] for row in rows] == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [{"key": "", "value": b""}],
    ]


def test_headers_of_dropped_rows_are_not_mixed_up() -> None:
    records = [Record(timestamp=1, headers=[(f"h{index}", b"v")] * (index % 4)) for index in range(200)]
    rows, _ = read(build_batch(records), 50, 150, columns=WITH_HEADERS)
    names = [[header["key"] for header in row["headers"] or []] for row in rows]
    assert names == [[f"h{index}"] * (index % 4) for index in range(50, 150)]


def test_header_key_that_is_not_utf8_is_shown_as_far_as_it_can_be_read() -> None:
    rows, _ = read(build_batch([Record(timestamp=1, headers=[("\udcff!", b"v")])]), columns=WITH_HEADERS)
    assert rows[0]["headers"] == [{"key": "�!", "value": b"v"}]


def test_rows_outside_of_the_range_are_dropped() -> None:
    data = build_batch(some(b"0", b"1", b"2")) + build_batch(some(b"3", b"4", b"5"), base_offset=3)
    assert values_of(data, 1, 5) == ([b"1", b"2", b"3", b"4"], 6)


def test_batches_behind_the_end_stay_closed() -> None:
    damaged = bytearray(build_batch(some(b"9"), base_offset=9))
    damaged[-1] ^= 1
    assert values_of(build_batch(some(b"0")) + bytes(damaged), 0, 5) == ([b"0"], 9)


def test_batch_before_the_start_does_not_move_the_position_back() -> None:
    assert values_of(build_batch(some(b"0")), 5) == ([], 5)


def test_gaps_of_compaction_are_kept() -> None:
    records = [Record(timestamp=1, value=str(delta).encode(), offset_delta=delta) for delta in (3, 64, 9000)]
    rows, next_offset = read(build_batch(records, base_offset=100))
    assert ([row["offset"] for row in rows], next_offset) == ([103, 164, 9100], 9101)


def test_empty_batch_moves_the_position() -> None:
    empty = empty_batch(read_header(build_batch(some(b"0", b"1", b"2"), codec=ZSTD)))
    assert values_of(empty) == ([], 3)
    assert values_of(empty + build_batch(some(b"3"), base_offset=3)) == ([b"3"], 4)


def test_control_batches_are_skipped_whatever_the_isolation() -> None:
    data = transactional(0, 7, b"0") + marker(ABORT, 1, 7)
    assert values_of(data) == ([b"0"], 2)
    assert values_of(data, aborted=AbortedTransactions()) == ([b"0"], 2)


def test_aborted_transaction_is_dropped_up_to_its_marker() -> None:
    data = transactional(0, 7, b"committed") + marker(COMMIT, 1, 7)
    data += transactional(2, 7, b"aborted") + transactional(3, 8, b"other") + build_batch(some(b"plain"), base_offset=4)
    data += marker(ABORT, 5, 7) + transactional(6, 7, b"later")
    aborted = AbortedTransactions([Aborted(7, 2)])
    assert values_of(data, aborted=aborted) == ([b"committed", b"other", b"plain", b"later"], 7)


def test_aborted_transaction_that_began_before_the_fetch_is_dropped() -> None:
    data = transactional(50, 7, b"aborted") + marker(ABORT, 51, 7) + transactional(52, 7, b"later")
    assert values_of(data, 50, aborted=AbortedTransactions([Aborted(7, 3)])) == ([b"later"], 53)


def test_two_aborted_transactions_of_one_producer_are_both_dropped() -> None:
    data = transactional(0, 7, b"one") + marker(ABORT, 1, 7) + transactional(2, 7, b"between") + marker(COMMIT, 3, 7)
    data += transactional(4, 7, b"two") + marker(ABORT, 5, 7)
    assert values_of(data, aborted=AbortedTransactions([Aborted(7, 4), Aborted(7, 0)])) == ([b"between"], 6)


def test_list_of_the_next_reply_replaces_the_last() -> None:
    aborted = AbortedTransactions()
    # Both replies name the transaction: the first because it was listed ahead of the data, the second for the data.
    aborted.feed([Aborted(7, 1)])
    assert values_of(build_batch(some(b"0")), aborted=aborted) == ([b"0"], 1)
    aborted.feed([Aborted(7, 1)])
    data = transactional(1, 7, b"aborted") + marker(ABORT, 2, 7) + transactional(3, 7, b"later")
    assert values_of(data, 1, aborted=aborted) == ([b"later"], 4)


def test_batch_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    whole, cut = build_batch(some(b"0")), build_batch(some(b"1"), base_offset=1)
    for size_bytes in range(len(cut)):
        assert values_of(whole + cut[:size_bytes]) == ([b"0"], 1)


def test_any_bit_turned_over_behind_the_checksum_is_noticed() -> None:
    batch = build_batch(some(b"0", b"1"), base_offset=40)
    for position in range(CRC_POSITION, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        with pytest.raises(DamagedBatch) as caught:
            read(build_batch(some(b"before")) + bytes(damaged))
        assert caught.value.offset == 40


def put(batch: bytes, position: int, form: str, number: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(form, changed, position, number)
    return resealed(changed)


@pytest.mark.parametrize(
    ("position", "form", "number", "why"),
    [
        (16, ">b", 1, "magic is 1"),
        (8, ">i", 3, "too few"),
        (8, ">i", -1, "too few"),
        (0, ">q", 2, "do not follow offset 3"),
        (57, ">i", -1, "-1 records"),
        (57, ">i", 5, "5 records"),
        (23, ">i", -1, "delta -1"),
        (57, ">i", 0, "0 records cannot take"),
        (57, ">i", 1, "follow the last record"),
        (21, ">h", 5, "codec 5"),
        (21, ">h", 4, "zstd records are damaged"),
        (0, ">q", (1 << 63) - 2, "64 bits"),
    ],
)
def test_damage_is_named(position: int, form: str, number: int, why: str) -> None:
    batch = build_batch(some(b"4", b"5"), base_offset=4)
    data = build_batch(some(b"0", b"1", b"2", b"3")) + put(batch, position, form, number)
    with pytest.raises(DamagedBatch, match=why):
        read(data)


def section_batch(section: bytes, count: int) -> bytes:
    batch = bytearray(build_batch([Record(timestamp=1 << 62)] * count))[:61] + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return resealed(batch)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (b"\x0e\0\0\0\1\1\0\0", "does not end where"),
        (b"\x0a\0\0\0\1\1\0", "impossible length of 5"),
        (b"\x10\0\0\0\1\1\0", "impossible length of 8"),
        (b"\x0b\0\0\0\1\1\0", "impossible length of -6"),
        (b"\x0c\0\0\0\3\1\0", "field of -2 bytes"),
        (b"\x0c\0\0\0\1\3\0", "field of -2 bytes"),
        (b"\x0c\0\0\0\1\2\0", "does not end where|ends in the middle"),
        (b"\x0c\0\0\0\1\1\2", "ends in the middle"),
        (b"\x0c\0\0\2\1\1\0", "offset delta 1"),
        (b"\x0c\0\0\1\1\1\0", "offset delta -1"),
        (b"\x80\x80\x80\x80\x80\x80\0", "varint"),
        (b"\xff\xff\xff\xff\x7f\0\0", "varint"),
        (b"\x1e\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\2\0\1\1\0", "varint"),
        (b"\x1e\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1\0\1\1\0", "beyond 64 bits"),
        (b"\x1a\0\0\x80\x80\x80\x80\x80\x80\0\1\1\0\0\0\0", "varint"),
        (b"\x80", "1 bytes"),
    ],
    ids=repr,
)
def test_records_with_a_good_checksum_but_wrong_inside_are_refused(section: bytes, why: str) -> None:
    with pytest.raises(DamagedBatch, match=why):
        read(section_batch(section, 1))


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(DamagedBatch, match="offset delta 1 after 1"):
        read(section_batch(b"\x0c\0\0\2\1\1\0" * 2, 2))


@pytest.mark.parametrize(
    "tail", [b"\2\0", b"\2\1\0", b"\2\2a\3", b"\4\0\0", b"\1\0", b"\2\0\0\0", b"\xfe\xff\xff\xff\x0f\0"], ids=repr
)
@pytest.mark.parametrize("copies", [1, 40])
def test_damaged_headers_are_refused_when_they_are_read(tail: bytes, copies: int) -> None:
    section = b""
    for index in range(copies):
        body = b"\0\0" + bytes([2 * index]) + b"\1\1" + tail
        section += bytes([2 * len(body)]) + body
    batch = section_batch(section, copies)
    assert len(read(batch, columns=["value"])[0]) == copies
    with pytest.raises(DamagedBatch):
        read(batch, columns=["value", "headers"])


def test_many_headers_in_one_record_are_read() -> None:
    headers = [(str(number), str(number).encode()) for number in range(5000)]
    rows, _ = read(build_batch([Record(timestamp=1, headers=headers), *some(b"v")]), columns=WITH_HEADERS)
    assert [(header["key"], header["value"]) for header in rows[0]["headers"]] == headers


def test_decompression_stops_at_its_bound() -> None:
    section = compress(ZSTD, bytes(1 << 20))
    batch = bytearray(section_batch(section, 1))
    struct.pack_into(">h", batch, 21, ZSTD)
    chunks = decode_chunks(memoryview(resealed(batch)), start=0, end=9, aborted=None, batch_bytes_max=1 << 16)
    with pytest.raises(DamagedBatch, match="more than 65536 bytes"):
        next(chunks)


def test_reply_that_opens_too_far_for_one_arrow_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DECODED_BYTES_MAX", 1000)
    data = build_batch(some(b"0" * 800), codec=ZSTD) + build_batch(some(b"1" * 800), base_offset=1, codec=ZSTD)
    with pytest.raises(DamagedBatch, match="fetch less"):
        read(data)


def test_large_replies_come_in_pieces_whose_positions_can_be_resumed_from() -> None:
    sizes = [3, 1, 40, 2, 2]
    data, base_offset = b"", 0
    for size in sizes:
        data += build_batch(some(*[b"v" * 20] * size), base_offset=base_offset, codec=ZSTD)
        base_offset += size
    options: dict[str, Any] = {"end": FOREVER, "aborted": None}
    chunks = list(decode_chunks(memoryview(data), start=0, rows_max=10, bytes_max=200, **options))
    assert [len(chunk.rows) for chunk in chunks] == [4, 10, 10, 10, 10, 4]
    seen: list[int] = []
    for chunk in chunks:
        seen += chunk.rows.column("offset").to_pylist()
        rest, _ = decode(memoryview(data), start=chunk.next_offset, **options)
        assert seen + rest.column("offset").to_pylist() == list(range(48))


def test_result_does_not_change_when_the_memory_of_the_reply_is_reused() -> None:
    reply = bytearray(build_batch([Record(timestamp=1, key=b"key", value=b"value", headers=[("name", b"content")])]))
    rows, _ = decode(memoryview(reply), start=0, end=9, aborted=None, columns=WITH_HEADERS)
    before = rows.to_pylist()
    reply[:] = bytes(len(reply))
    assert rows.to_pylist() == before


@pytest.mark.parametrize("size", [0, 1, 57, 58, 8183, 8184, 1 << 20, 3 << 20])
def test_length_of_any_size_is_read(size: int) -> None:
    records = some(b"a", b"x" * size, b"b", b"y" * size)
    assert values_of(build_batch(records))[0] == [record.value for record in records]


def test_numba_is_loaded_when_there_is_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(compiled_scan, "load_compiled", lambda: loaded.append("numba"))
    monkeypatch.setattr(compiled_scan, "SCANNER", compiled_scan.Scanner(rows_before_numba=9))
    reply = build_batch(some(b"a", b"b", b"c", b"d"))
    for expected in ([], [], ["numba"], ["numba"]):
        assert values_of(reply)[0] == [b"a", b"b", b"c", b"d"]
        assert loaded == expected


def test_environment_turns_numba_off() -> None:
    program = "import ottla.spark.compiled_scan as k, sys; print(k.load_compiled(), 'numba' in sys.modules)"
    environment = {**os.environ, "OTTLA_NUMBA": "0"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["None", "False"]
