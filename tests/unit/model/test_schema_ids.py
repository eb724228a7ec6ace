"""Schema ids in batches: where they are found, which records are invalid, and the split into kept and dead ones."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from ottla.model.batch import checksum, read_header
from ottla.model.errors import InvalidRecord, RecordsTooLarge
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.schema_ids import (
    IDS_MAX,
    SchemaRef,
    SchemaRules,
    Source,
    divert,
    find_schemas,
    invalid_records,
    parse_schema_id,
)

VALUES = SchemaRules(keys=False, values=True)
KEYS = SchemaRules(keys=True, values=False)
BOTH = SchemaRules(keys=True, values=True)
GUID = UUID("0123abcd-0000-4000-8000-00000000000f")
SOURCE = Source("orders", 3, 100, 1 << 20)
NO_ID = "the value does not begin with a schema id"


def framed(schema_id: int, data: bytes = b"data") -> bytes:
    return b"\0" + schema_id.to_bytes(4) + data


def refs(*ids: int | str) -> list[SchemaRef]:
    return [SchemaRef(each) for each in ids]


def batch(*values: bytes | None, codec: int = 0, **fields: int) -> bytes:
    return build_batch([Record(timestamp=5, key=b"k", value=value) for value in values], codec=codec, **fields)


@pytest.mark.parametrize("codec", range(5))
def test_ids_are_found_once_each_in_every_codec(codec: int) -> None:
    found = find_schemas(batch(framed(7), framed(9), framed(7, b""), codec=codec), VALUES)
    assert found == (refs(7, 9), [])


def test_tombstones_pass_and_other_values_without_an_id_do_not() -> None:
    found = find_schemas(batch(None, b"", b"\0\0\0\0", b"json", framed(1), b"\x02" + bytes(20)), VALUES)
    assert found == (refs(1), [(1, NO_ID), (2, NO_ID), (3, NO_ID), (5, NO_ID)])


def test_unknown_ids_make_their_records_invalid() -> None:
    data = batch(framed(1), framed(2), None, framed(2), framed(3))
    reason = "the schema registry has no schema with id 2"
    assert find_schemas(data, VALUES._replace(unknown=(SchemaRef(2),))) == (refs(1, 2, 3), [(1, reason), (3, reason)])
    assert find_schemas(data, VALUES._replace(unknown=(SchemaRef(2),)), errors_max=1).errors == [(1, reason)]


def test_guid_in_a_header_counts_more_than_the_value() -> None:
    named = [("__value_schema_id", b"\1" + GUID.bytes), ("__key_schema_id", framed(8, b""))]
    records = [
        Record(timestamp=5, key=framed(1), value=b"{}", headers=named),
        Record(timestamp=5, key=framed(1), value=framed(2), headers=named[:1]),
        Record(timestamp=5, key=framed(1), value=framed(2), headers=[("__value_schema_id", None), ("x", b"y")]),
        Record(timestamp=5, key=framed(1), value=framed(3), headers=[("__value_schema_id", b"\1short")]),
    ]
    assert find_schemas(build_batch(records), BOTH) == (refs(str(GUID), 8, 1, 2), [(3, NO_ID)])
    unknown = VALUES._replace(unknown=(SchemaRef(str(GUID)),))
    assert [index for index, _ in find_schemas(build_batch(records), unknown).errors] == [0, 1, 3]


def test_guid_in_front_of_the_bytes_is_an_id_too() -> None:
    assert parse_schema_id(b"\1" + GUID.bytes + b"data") == str(GUID)
    assert parse_schema_id(b"\1" + GUID.bytes[:15]) is None
    assert find_schemas(batch(b"\1" + GUID.bytes), VALUES) == (refs(str(GUID)), [])


def test_keys_are_checked_only_if_the_topic_asks_for_it() -> None:
    data = build_batch([Record(timestamp=5, key=b"k", value=framed(1)), Record(timestamp=5, value=b"x")])
    assert find_schemas(data, KEYS) == ([], [(0, "the key does not begin with a schema id")])
    assert [index for index, _ in find_schemas(data, BOTH).errors] == [0, 1]


def test_schemas_of_keys_and_values_have_subjects_of_their_own() -> None:
    rules = BOTH._replace(key_subject="t-key", value_subject="t-value")
    data = build_batch([Record(timestamp=5, key=framed(1), value=framed(1))] * 2)
    schemas = [SchemaRef(1, "t-value"), SchemaRef(1, "t-key")]
    assert find_schemas(data, rules) == (schemas, [])
    found = find_schemas(data, rules._replace(unknown=(schemas[1],)))
    reason = "the schema registry has no schema with id 1 under subject t-key"
    assert found == (schemas, [(0, reason), (1, reason)])


def test_number_of_ids_is_limited() -> None:
    found = find_schemas(batch(*(framed(number) for number in range(IDS_MAX + 2)), framed(0)), VALUES)
    assert len(found.schemas) == IDS_MAX
    reason = f"the batch has more than {IDS_MAX} schema ids"
    assert found.errors == [(IDS_MAX, reason), (IDS_MAX + 1, reason)]


def test_error_names_every_invalid_record() -> None:
    error = invalid_records(find_schemas(batch(b"a", framed(1), b"b"), VALUES).errors)
    assert str(error) == f"record 0 and 1 others of the batch cannot be stored: {NO_ID}"
    assert [tuple(each) for each in error.record_errors] == [(0, NO_ID), (2, NO_ID)]


def test_limits_of_records_and_bytes() -> None:
    with pytest.raises(RecordsTooLarge):
        find_schemas(batch(framed(1), framed(1)), VALUES._replace(records_max=1))
    with pytest.raises(RecordsTooLarge):
        find_schemas(batch(framed(1, bytes(1000)), codec=1), VALUES._replace(bytes_max=100))


@pytest.mark.parametrize("codec", range(5))
def test_diverted_batch_keeps_offsets_and_sequences(codec: int) -> None:
    data = batch(framed(1), b"bad", framed(2), None, codec=codec, producer_id=4, producer_epoch=2, base_sequence=10)
    diverted = divert(data, VALUES._replace(unknown=(SchemaRef(2),)), SOURCE)
    before, after = read_header(data), read_header(diverted.kept)
    assert checksum(diverted.kept) == after.crc and after.attributes == before.attributes
    assert [(each.offset_delta, each.value) for each in iterate_records(diverted.kept)] == [(0, framed(1)), (3, None)]
    assert (after.last_offset_delta, after.record_count) == (3, 2)
    assert after[9:12] == before[9:12] == (4, 2, 10)
    (dead,) = diverted.batches
    assert diverted.record_count == 2
    assert [(each.timestamp, each.key, each.value) for each in iterate_records(dead)] == [
        (5, b"k", b"bad"), (5, b"k", framed(2)),
    ]  # fmt: skip
    assert next(iter(iterate_records(dead))).headers == [
        ("_cause", NO_ID.encode()), ("_topic", b"orders"), ("_partition", b"3"), ("_offset_min", b"101"),
    ]  # fmt: skip


def test_batch_of_invalid_records_becomes_an_empty_batch() -> None:
    data = batch(b"a", b"b", producer_id=4, producer_epoch=2, base_sequence=10)
    kept = divert(data, VALUES, SOURCE).kept
    header = read_header(kept)
    assert list(iterate_records(kept)) == []
    assert (header.record_count, header.last_offset_delta) == (0, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 10)


def test_dead_letters_are_split_into_batches_that_their_topic_takes() -> None:
    data = batch(*(b"x" * 400 for _ in range(10)))
    diverted = divert(data, VALUES, SOURCE._replace(batch_bytes_max=2000))
    assert sum(read_header(each).record_count for each in diverted.batches) == diverted.record_count == 10
    assert len(diverted.batches) > 1 and all(len(each) <= 2000 for each in diverted.batches)
    with pytest.raises(RecordsTooLarge):
        divert(data, VALUES, SOURCE._replace(batch_bytes_max=300))


def test_damaged_batches_raise_invalid_record_or_nothing() -> None:
    source = random.Random(16)
    good = build_batch([Record(timestamp=5, key=b"k", value=framed(1), headers=[("__value_schema_id", b"x")])] * 3)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(source.choice((1, 1, 2, 5))):
            data[source.randrange(57, len(data))] = source.randrange(256)
        try:
            find_schemas(bytes(data), BOTH)
            divert(bytes(data), BOTH, SOURCE)
        except InvalidRecord:
            pass
