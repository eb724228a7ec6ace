"""Record batches against the readers and builders of aiokafka and kafka-python, and under random damage."""

import contextlib
import dataclasses
import tracemalloc
import warnings

import aiokafka.record.default_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model.batch import CODECS, read_header
from ottla.model.errors import InvalidRecord, InvalidTimestamp
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import (
    Record,
    build_batch,
    find_timestamp,
    iterate_records,
    max_timestamp_record,
    recompress,
    record_timestamps,
)

with warnings.catch_warnings():
    # kafka-python reads its resources in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records

GZIP, SNAPPY = CODECS.index("gzip"), CODECS.index("snappy")

codecs = st.integers(0, len(CODECS) - 1)
#: kafka-python reads snappy only with a library that needs a compiler
codecs_of_kafka_python = codecs.filter(lambda codec: codec != SNAPPY)
payloads = st.none() | st.binary(max_size=200) | st.binary(min_size=1, max_size=3).map(lambda part: part * 5000)
headers = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=20), st.none() | st.binary(max_size=200)))
timestamps = st.integers(0, 2**41) | st.integers(1_700_000_000_000, 1_700_000_100_000)
unplaced = st.builds(Record, timestamp=timestamps, key=payloads, value=payloads, headers=headers)
record_lists = st.lists(unplaced, min_size=1, max_size=20)

CLIENTS = pytest.mark.parametrize(
    "client",
    [aiokafka.record.default_records, kafka.record.default_records],
    ids=["aiokafka", "kafka-python"],
)


def placed(records: list[Record], base_offset: int) -> list[Record]:
    """What reading must give for what was built."""
    return [
        Record(base_offset + delta, record.timestamp, record.key, record.value, record.headers, delta)
        for delta, record in enumerate(records)
    ]


@settings(deadline=None)
@given(record_lists, codecs, st.integers(0, 2**62))
def test_what_is_built_is_read(records: list[Record], codec: int, base_offset: int) -> None:
    built = build_batch(records, base_offset=base_offset, codec=codec)
    assert list(iterate_records(built)) == placed(records, base_offset)


@settings(deadline=None)
@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=5))
def test_any_timestamp_is_kept(instants: list[int]) -> None:
    built = build_batch([Record(timestamp=instant) for instant in instants])
    assert [record.timestamp for record in iterate_records(built)] == instants


@settings(deadline=None)
@given(st.sets(st.integers(0, 2**31 - 2), min_size=1, max_size=20).map(sorted), codecs)
def test_any_gaps_between_offsets_are_kept(deltas: list[int], codec: int) -> None:
    built = build_batch([Record(offset_delta=delta, timestamp=0) for delta in deltas], codec=codec)
    assert [record.offset for record in iterate_records(built)] == deltas


@settings(deadline=None)
@given(record_lists, codecs, codecs)
def test_recompressing_equals_building_with_that_codec(records: list[Record], one: int, two: int) -> None:
    assert recompress(build_batch(records, codec=one), two) == build_batch(records, codec=two)


@settings(deadline=None)
@given(record_lists, codecs)
def test_scans_agree_with_reading_every_record(records: list[Record], codec: int) -> None:
    built = build_batch(records, codec=codec, base_offset=7)
    read = list(iterate_records(built))
    assert list(record_timestamps(built)) == [(record.offset, record.timestamp) for record in read]
    newest = max(record.timestamp for record in read)
    assert max_timestamp_record(built) == next((r.offset, newest) for r in read if r.timestamp == newest)


@settings(deadline=None)
@given(record_lists, codecs, st.booleans(), timestamps, timestamps)
def test_open_batch_names_the_same_records_as_a_look_at_each(
    records: list[Record], codec: int, requires_keys: bool, one: int, two: int
) -> None:
    rules = OpeningRules(requires_keys=requires_keys, timestamp_min=min(one, two), timestamp_max=max(one, two))
    dense = [dataclasses.replace(record, offset_delta=-1) for record in records]
    without_key = {index for index, record in enumerate(dense) if requires_keys and record.key is None}
    out_of_range = {
        index
        for index, record in enumerate(dense)
        if record.timestamp != -1 and not rules.timestamp_min <= record.timestamp <= rules.timestamp_max
    } - without_key
    built = build_batch(dense, codec=codec)
    if not without_key and not out_of_range:
        assert open_batch(built, rules) is None
        return
    with pytest.raises(InvalidTimestamp if out_of_range else InvalidRecord) as raised:
        open_batch(built, rules)
    errors = raised.value.record_errors
    assert [error.batch_index for error in errors] == sorted(without_key | out_of_range)
    assert {error.batch_index for error in errors if "key" in error.text} == without_key


@settings(deadline=None)
@given(record_lists, timestamps, st.integers(0, 30))
def test_time_lookup_agrees_with_a_plain_search(records: list[Record], instant: int, start: int) -> None:
    built = build_batch(records, base_offset=7)
    expected = None
    for record in iterate_records(built):
        if record.timestamp >= instant and record.offset >= start:
            expected = (record.offset, record.timestamp)
            break
    assert find_timestamp(built, instant, starting_offset=start) == expected


@CLIENTS
@settings(deadline=None, max_examples=50)
@given(data=st.data(), records=record_lists)
def test_clients_read_what_we_build(client: object, data: st.DataObject, records: list[Record]) -> None:
    codec = data.draw(codecs if "aiokafka" in client.__name__ else codecs_of_kafka_python)
    built = build_batch(records, codec=codec, base_offset=11)
    batch = client.DefaultRecordBatch(built)
    assert batch.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert read == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in placed(records, 11)]


@CLIENTS
@settings(deadline=None, max_examples=50)
@given(data=st.data(), records=record_lists)
def test_we_read_what_clients_build(client: object, data: st.DataObject, records: list[Record]) -> None:
    codec = data.draw(codecs if "aiokafka" in client.__name__ else codecs_of_kafka_python)
    builder = client.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=1, producer_id=4, producer_epoch=0, base_sequence=0,
        batch_size=10_000_000,
    )  # fmt: skip
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp, record.key, record.value, record.headers)
    built = bytes(builder.build())
    assert list(iterate_records(built)) == placed(records, 0)
    assert read_header(built).producer_id == 4


@settings(deadline=None, max_examples=100)
@given(record_lists)
def test_our_uncompressed_bytes_are_those_of_aiokafka(records: list[Record]) -> None:
    builder = aiokafka.record.default_records.DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=10_000_000,
    )  # fmt: skip
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp, record.key, record.value, record.headers)
    ours, theirs = build_batch(records), bytes(builder.build())
    # A producer leaves the leader epoch to the leader, and clients differ in what they write there.
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


def read_in_every_way(batch: bytes, max_bytes: int) -> None:
    for read in (iterate_records, record_timestamps):
        with contextlib.suppress(InvalidRecord):
            for _ in read(batch, max_bytes=max_bytes):
                pass
    with contextlib.suppress(InvalidRecord):
        max_timestamp_record(batch, max_bytes=max_bytes)
    for rules in (OpeningRules(requires_keys=True), OpeningRules(timestamp_min=0), OpeningRules(codec=GZIP)):
        with contextlib.suppress(InvalidRecord, InvalidTimestamp):
            open_batch(batch, rules._replace(bytes_max=max_bytes))
    with contextlib.suppress(InvalidRecord):
        recompress(batch, GZIP, max_bytes=max_bytes)


@settings(deadline=None, max_examples=150)
@given(
    records=record_lists,
    codec=codecs,
    damage=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8),
    behind_header=st.booleans(),
)
def test_damage_raises_invalid_record_and_nothing_else(
    records: list[Record], codec: int, damage: list[tuple[int, int]], behind_header: bool
) -> None:
    batch = bytearray(build_batch(records, codec=codec))
    first = 61 if behind_header else 0
    for position, value in damage:
        batch[first + position % (len(batch) - first)] = value
    read_in_every_way(bytes(batch), 1 << 20)


@settings(deadline=None, max_examples=100)
@given(section=st.binary(max_size=300), codec=st.integers(0, 7), count=st.integers(0, 40))
def test_noise_raises_invalid_record_and_nothing_else(section: bytes, codec: int, count: int) -> None:
    batch = bytearray(build_batch([Record(timestamp=0)], codec=0)[:61] + section)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[21:23] = codec.to_bytes(2, "big")
    batch[23:27] = batch[57:61] = count.to_bytes(4, "big")
    read_in_every_way(bytes(batch), 1 << 20)


@settings(deadline=None, max_examples=100)
@given(records=record_lists, codec=codecs, cut=st.integers(0, 2**16))
def test_a_batch_cut_anywhere_is_refused(records: list[Record], codec: int, cut: int) -> None:
    batch = build_batch(records, codec=codec)
    with pytest.raises(InvalidRecord):
        list(iterate_records(batch[: cut % len(batch)]))


def test_a_count_that_lies_does_not_take_memory() -> None:
    batch = bytearray(build_batch([Record(timestamp=0, value=bytes(1000))]))
    batch[23:27] = (2**31 - 2).to_bytes(4, "big")
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    tracemalloc.start()
    try:
        read_in_every_way(bytes(batch), 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
