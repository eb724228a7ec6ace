"""Arrow columns to record batches, and keys to partitions."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from ottla.model.batch import CODEC_MASK, CODECS, checksum, read_header  # noqa: E402
from ottla.model.records import Record, build_batch, iterate_records  # noqa: E402
from ottla.spark.encode import Encoded, RecordTooLarge, UnusableColumn, encode, murmur2_partitions  # noqa: E402

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def written(
    keys: Any = None, values: Any = None, timestamps: Any = None, headers: Any = None, **options: Any
) -> list[Encoded]:
    options = {"codec": 0, "batch_bytes_max": 1 << 20, "now_ms": NOW, **options}
    return encode(keys, values, timestamps, headers, **options)


def records_of(batches: list[Encoded]) -> list[Record]:
    return [record for batch in batches for record in iterate_records(batch.data)]


def binary(*values: bytes | None) -> Any:
    return pa.array(values, pa.binary())


def test_no_rows_give_no_batches() -> None:
    assert written(values=binary()) == []
    assert written() == []


def test_null_and_empty_are_told_apart() -> None:
    pairs = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    records = records_of(written(binary(*[key for key, _ in pairs]), binary(*[value for _, value in pairs])))
    assert [(record.key, record.value) for record in records] == pairs


def test_missing_columns_are_null() -> None:
    assert [(record.key, record.value) for record in records_of(written(values=binary(b"v")))] == [(None, b"v")]
    assert [(record.key, record.value) for record in records_of(written(keys=binary(b"k")))] == [(b"k", None)]


def test_rows_without_any_bytes_are_written() -> None:
    batch = written(values=pa.nulls(3))
    assert [(record.key, record.value) for record in records_of(batch)] == [(None, None)] * 3


def test_batch_is_of_no_producer_and_starts_at_offset_0() -> None:
    [batch] = written(values=binary(b"a", b"b"))
    header = read_header(batch.data)
    assert header.crc == checksum(batch.data)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 1, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (batch.records, batch.max_timestamp, header.max_timestamp) == (2, NOW, NOW)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(2)], ids=str)
def test_strings_and_other_binaries_are_taken(kind: Any) -> None:
    column = pa.array(["ab", None, "cd"] if pa.types.is_string(kind) or pa.types.is_large_string(kind)
                      else [b"ab", None, b"cd"], kind)  # fmt: skip
    assert [record.value for record in records_of(written(values=column))] == [b"ab", None, b"cd"]


def test_numbers_are_refused_with_a_way_out() -> None:
    with pytest.raises(UnusableColumn, match="value column is int64; cast it to string or binary"):
        written(values=pa.array([1]))


def test_slices_and_chunks_are_written_like_whole_columns() -> None:
    keys = binary(b"x", b"a", None, b"c", b"x").slice(1, 3)
    values = pa.chunked_array([binary(b"1"), binary(b"2", b"3")])
    records = records_of(written(keys, values))
    assert [(record.key, record.value) for record in records] == [(b"a", b"1"), (None, b"2"), (b"c", b"3")]


@pytest.mark.parametrize(("unit", "per_ms"), [("s", 0.001), ("ms", 1), ("us", 1000), ("ns", 1_000_000)])
def test_timestamps_of_any_unit_become_milliseconds(unit: str, per_ms: float) -> None:
    column = pa.array([int(5000 * per_ms), None], pa.timestamp(unit, tz="UTC"))
    assert [record.timestamp for record in records_of(written(values=binary(b"", b""), timestamps=column))] == [
        5000,
        NOW,
    ]


def test_time_before_1970_is_rounded_down() -> None:
    column = pa.array([-1], pa.timestamp("us"))
    assert [record.timestamp for record in records_of(written(values=binary(b""), timestamps=column))] == [-1]


def test_newest_timestamp_is_told() -> None:
    [batch] = written(values=binary(b"", b"", b""), timestamps=pa.array([5, 9, 7]))
    assert batch.max_timestamp == read_header(batch.data).max_timestamp == 9


def test_timestamps_too_far_apart_are_refused() -> None:
    with pytest.raises(UnusableColumn, match="64 bits"):
        written(values=binary(b"", b""), timestamps=pa.array([-(1 << 63), 1 << 62]))


def test_headers_are_written_in_their_order() -> None:
    lists = [[("a", b"1"), ("ä", None)], None, [], [("a", b""), ("a", b"2")]]
    column = pa.array([None if one is None else [{"key": k, "value": v} for k, v in one] for one in lists], HEADERS)
    records = records_of(written(values=binary(b"", b"", b"", b""), headers=column))
    assert [record.headers for record in records] == [one or [] for one in lists]


def test_headers_of_a_slice_are_its_own() -> None:
    column = pa.array([[{"key": str(row), "value": None}] * row for row in range(5)], HEADERS).slice(2, 2)
    records = records_of(written(values=binary(b"", b""), headers=column))
    assert [record.headers for record in records] == [[("2", None)] * 2, [("3", None)] * 3]


def test_header_without_a_key_is_refused() -> None:
    column = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    with pytest.raises(UnusableColumn, match="no key"):
        written(values=binary(b""), headers=column)


def test_headers_of_another_form_are_refused() -> None:
    with pytest.raises(UnusableColumn, match="not an array of structs"):
        written(values=binary(b""), headers=pa.array(["a=b"]))
    with pytest.raises(UnusableColumn, match="not key and value"):
        written(values=binary(b""), headers=pa.array([[{"name": "a", "value": b""}]]))


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
@pytest.mark.parametrize("batch_bytes_max", [200, 1000, 16_384])
def test_batches_stay_within_their_limit_and_keep_the_order(codec: int, batch_bytes_max: int) -> None:
    values = [str(row).encode() * (row % 17) for row in range(3000)]
    timestamps = pa.array([NOW + row * 37 % 1000 for row in range(3000)])
    batches = written(values=binary(*values), timestamps=timestamps, codec=codec, batch_bytes_max=batch_bytes_max)
    assert max(len(batch.data) for batch in batches) <= batch_bytes_max
    assert [record.value for record in records_of(batches)] == values
    assert [record.timestamp for record in records_of(batches)] == timestamps.to_pylist()
    if not codec:
        assert sum(len(batch.data) for batch in batches) > 0.8 * batch_bytes_max * (len(batches) - 1)


def test_every_batch_counts_its_offsets_and_times_from_its_own_start() -> None:
    values = [b"v" * 50] * 300
    batches = written(values=binary(*values), timestamps=pa.array(range(300)), batch_bytes_max=1000)
    row = 0
    for batch in batches:
        records = [Record(timestamp=row + delta, value=b"v" * 50) for delta in range(batch.records)]
        assert batch.data == build_batch(records)
        row += batch.records


@pytest.mark.parametrize("size", [10, 60, 9000])
def test_record_of_exactly_the_limit_is_written_and_one_byte_more_is_refused(size: int) -> None:
    fitting = len(build_batch([Record(timestamp=NOW, key=b"k", value=b"x" * size)]))
    columns = (binary(b"s", b"k"), binary(b"", b"x" * size))
    assert len(written(*columns, batch_bytes_max=fitting)) == 2
    with pytest.raises(RecordTooLarge, match="Raise kafka") as caught:
        written(*columns, batch_bytes_max=fitting - 1)
    assert (caught.value.row, caught.value.size_bytes) == (1, fitting)


def test_what_a_codec_would_only_make_larger_goes_uncompressed() -> None:
    [batch] = written(values=binary(b"\x93\x01\xfe"), codec=CODECS.index("gzip"))
    assert read_header(batch.data).attributes & CODEC_MASK == 0


#: from the tests of the Java client, which all others share
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("copies", [1, 50])
def test_hash_of_keys_is_that_of_the_java_client(copies: int) -> None:
    count = (1 << 31) - 1
    partitions = murmur2_partitions(binary(*[*MURMUR2] * copies), count)
    assert partitions.tolist() == [(number & 0x7FFFFFFF) % count for number in MURMUR2.values()] * copies


def test_empty_key_is_hashed_and_null_key_is_not() -> None:
    partitions = murmur2_partitions(binary(None, b"", None), 1000, sticky=7)
    assert partitions.tolist() == [7, 275646681 % 1000, 7]


def test_rows_without_keys_share_a_partition_of_the_topic() -> None:
    assert murmur2_partitions(pa.nulls(4), 3, sticky=10).tolist() == [1] * 4
    chosen = set(murmur2_partitions(pa.nulls(1000), 3).tolist())
    assert len(chosen) == 1
    assert chosen <= {0, 1, 2}


def test_keys_of_a_slice_are_hashed_as_such() -> None:
    keys = binary(b"x", *MURMUR2, b"y")
    assert murmur2_partitions(keys.slice(1, 3), 99).tolist() == murmur2_partitions(keys, 99).tolist()[1:4]


def test_explicit_partition_wins() -> None:
    explicit = pa.array([2, None, 0], pa.int32())
    assert murmur2_partitions(binary(b"21", b"21", None), 3, explicit=explicit, sticky=1).tolist() == [
        2, (-973932308 & 0x7FFFFFFF) % 3, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("partition", [-1, 3])
def test_partition_that_the_topic_does_not_have_is_refused(partition: int) -> None:
    with pytest.raises(UnusableColumn, match=f"row 1 is for partition {partition}, the topic has 0 to 2"):
        murmur2_partitions(binary(None, None), 3, explicit=pa.array([0, partition]))
