"""Find the schema ids in the records of a batch, for topics with `schema.validation`.

Serializers put an id in front of the bytes that they write, or into a record header (Confluent's format):

    zero byte   schema id (4 bytes)      bytes of the key or the value
    one byte    schema guid (16 bytes)   the same; usual in the headers `__key_schema_id` and `__value_schema_id`

A header counts more than the bytes in front. The broker asks the schema registry about each id once, so that the cost
of a batch is a look at the beginning of each record. Like `opening.py` this runs on the event loop for small batches
and in another process for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from ottla.model.batch import HEADER_BYTES, read_header
from ottla.model.errors import InvalidRecord, RecordError, RecordsTooLarge
from ottla.model.opening import RECORD_ERRORS_MAX, RECORDS_MAX
from ottla.model.records import (
    BODY_BYTES_MIN,
    Bytes,
    Record,
    build_batch,
    empty_batch,
    iterate_records,
    open_records,
    read_headers,
    read_varint,
    record_spans,
    retain_spans,
)

#: different schema ids in one batch, so that a client cannot make the broker ask for thousands
IDS_MAX = 256

#: headers of a record in a dead-letter topic, after the headers that it had; the names are those of quarantine tables
CAUSE, TOPIC, PARTITION, OFFSET_MIN = "_cause", "_topic", "_partition", "_offset_min"

_KEY_HEADER, _VALUE_HEADER = "__key_schema_id", "__value_schema_id"
_HEADER_END = b"_schema_id"
_ID_BYTES, _GUID_BYTES = 5, 17
#: the length and the attributes of a record with null key and value, and what two numbers of a batch may add
_RECORD_EXTRA_BYTES = 40


class SchemaRef(NamedTuple):
    """A schema that a record names, and the subject under which it must be registered; None if any will do."""

    #: a number, or the text of a guid
    id: int | str
    subject: str | None = None


class SchemaRules(NamedTuple):
    """Which parts of a record must have a known schema id, and what may be spent on a batch."""

    keys: bool
    values: bool
    #: schemas that the registry does not know
    unknown: tuple[SchemaRef, ...] = ()
    #: subjects of the schemas; None if any will do
    key_subject: str | None = None
    value_subject: str | None = None
    #: size of the decompressed records
    bytes_max: int = 16 << 20
    records_max: int = RECORDS_MAX


class FoundSchemas(NamedTuple):
    """The schemas of a batch in the order of their first use, and index and reason of each invalid record."""

    schemas: list[SchemaRef]
    errors: list[tuple[int, str]]


class Source(NamedTuple):
    """Where diverted records were to be appended."""

    topic: str
    partition: int
    #: the end of the log when the batch arrived: its records would have got offsets from there on
    log_end_offset: int
    #: maximum size of a batch in the dead-letter topic
    batch_bytes_max: int


class Diverted(NamedTuple):
    """A batch without its invalid records, and these as batches for the dead-letter topic."""

    kept: bytes
    batches: list[bytes]
    record_count: int


def find_schemas(batch: Bytes, rules: SchemaRules, *, errors_max: int = RECORD_ERRORS_MAX) -> FoundSchemas:
    """Return the schemas of a batch, and the records without one or with one of ``rules.unknown``.

    The cost is about a microsecond per record. Raise InvalidRecord if the batch is damaged, RecordsTooLarge if it
    exceeds the limits of the rules. At most ``errors_max`` invalid records are returned.
    """
    verdicts = _Verdicts(rules.unknown)
    errors: list[tuple[int, str]] = []
    for index, reason in _check_records(batch, rules, verdicts):
        if len(errors) < errors_max:
            errors.append((index, reason))
    return FoundSchemas(verdicts.schemas, errors)


def invalid_records(errors: list[tuple[int, str]]) -> InvalidRecord:
    """Return the error that names these records."""
    index, reason = errors[0]
    more = f" and {len(errors) - 1} others" if len(errors) > 1 else ""
    records = tuple(RecordError(*each) for each in errors)
    return InvalidRecord(f"record {index}{more} of the batch cannot be stored: {reason}", record_errors=records)


def divert(batch: Bytes, rules: SchemaRules, source: Source) -> Diverted:
    """Split a batch. The offsets and sequence numbers of its valid records stay as they are.

    Raise RecordsTooLarge if an invalid record does not fit into a batch of the dead-letter topic.
    """
    reasons = dict(find_schemas(batch, rules, errors_max=rules.records_max).errors)
    data, spans = record_spans(batch, max_bytes=rules.bytes_max)
    kept = [span for index, span in enumerate(spans) if index not in reasons]
    header = read_header(batch)
    dead = [
        _dead_letter(record, reasons[index], source)
        for index, record in enumerate(iterate_records(batch, max_bytes=rules.bytes_max))
        if index in reasons
    ]
    batches = [build_batch(part) for part in _in_batches(dead, source.batch_bytes_max)]
    return Diverted(retain_spans(header, data, kept) if kept else empty_batch(header), batches, len(dead))


def parse_schema_id(data: Bytes) -> int | str | None:
    """Return the schema id at the beginning of these bytes; None if there is none."""
    if len(data) >= _ID_BYTES and data[0] == 0:
        return int.from_bytes(data[1:_ID_BYTES])
    if len(data) >= _GUID_BYTES and data[0] == 1:
        return str(UUID(bytes=bytes(data[1:_GUID_BYTES])))
    return None


class _Verdicts:
    """The schemas of one batch, and for each whether its records are invalid."""

    __slots__ = ("_by_schema", "_unknown", "schemas", "valid")

    def __init__(self, unknown: tuple[SchemaRef, ...]) -> None:
        self._unknown = frozenset(unknown)
        self._by_schema: dict[SchemaRef, str | None] = {}
        self.schemas: list[SchemaRef] = []
        #: the first five bytes of values that are not in ``unknown``: most values of a batch begin with the same
        self.valid: set[bytes] = set()

    def of_value(self, data: bytes, subject: str | None) -> str | None:
        """Return why a record with a value that begins with ``data`` is invalid; None if it is not."""
        reason = self.of_part("value", data, subject)
        if reason is None and data[0] == 0:
            self.valid.add(data[:_ID_BYTES])
        return reason

    def of_part(self, part: str, data: bytes, subject: str | None) -> str | None:
        """Return why a record whose key or value begins with ``data`` is invalid; None if it is not."""
        schema_id = parse_schema_id(data)
        if schema_id is None:
            return f"the {part} does not begin with a schema id"
        schema = SchemaRef(schema_id, subject)
        if schema not in self._by_schema:
            if len(self.schemas) == IDS_MAX:
                return f"the batch has more than {IDS_MAX} schema ids"
            self.schemas.append(schema)
            self._by_schema[schema] = self._reason(schema) if schema in self._unknown else None
        return self._by_schema[schema]

    def _reason(self, schema: SchemaRef) -> str:
        where = "" if schema.subject is None else f" under subject {schema.subject}"
        return f"the schema registry has no schema with id {schema.id}{where}"


def _check_records(batch: Bytes, rules: SchemaRules, verdicts: _Verdicts) -> Iterator[tuple[int, str]]:
    """Yield index and reason of each invalid record.

    One loop without calls for the usual lengths of a number. Lengths are in zigzag form, in which 1 stands for -1 and
    every odd number is negative. Timestamps and offsets are skipped; a number that is longer than allowed is not found
    here, but no reader can read past it.
    """
    header, data, position = open_records(batch, rules.bytes_max)
    if header.record_count > rules.records_max:
        raise RecordsTooLarge(f"batch has {header.record_count} records, more than {rules.records_max}")
    keys, values, valid, size_bytes = rules.keys, rules.values, verdicts.valid, len(data)
    index = 0
    try:
        for index in range(header.record_count):
            number = data[position]
            if number < 0x80:
                length, position = number >> 1 if not number & 1 else -1, position + 1
            else:
                length, position = read_varint(data, position)
            end = position + length
            if length < BODY_BYTES_MIN or end > size_bytes:
                raise InvalidRecord(f"record {index} has an impossible length of {length} bytes", index)
            position += 1
            while data[position] > 0x7F:  # timestamp delta
                position += 1
            position += 1
            while data[position] > 0x7F:  # offset delta
                position += 1
            position += 1
            number = data[position]
            if number < 0x80 and (number == 1 or not number & 1):
                key_length, key_start = number >> 1 if number != 1 else -1, position + 1
            else:
                key_length, key_start = read_varint(data, position)
            key_end = key_start + key_length if key_length > 0 else key_start
            number = data[key_end]
            if number < 0x80 and (number == 1 or not number & 1):
                value_length, value_start = number >> 1 if number != 1 else -1, key_end + 1
            else:
                value_length, value_start = read_varint(data, key_end)
            value_end = value_start + value_length if value_length > 0 else value_start
            if value_end >= end or key_length < -1 or value_length < -1:
                raise InvalidRecord(f"record {index} has an impossible key or value", index)
            position = end
            has_headers = data[value_end] and data.find(_HEADER_END, value_end, end) >= 0
            prefix = data[value_start : value_start + _ID_BYTES]
            if prefix in valid and value_length >= _ID_BYTES and not has_headers and not keys:
                continue
            reason = None
            if values and value_length >= 0:
                value = data[value_start : min(value_start + _GUID_BYTES, value_end)]
                if has_headers:
                    value = _header_of(data, value_end, _VALUE_HEADER) or value
                reason = verdicts.of_value(value, rules.value_subject)
            if keys and key_length >= 0 and reason is None:
                key = data[key_start : min(key_start + _GUID_BYTES, key_end)]
                if has_headers:
                    key = _header_of(data, value_end, _KEY_HEADER) or key
                reason = verdicts.of_part("key", key, rules.key_subject)
            if reason is not None:
                yield index, reason
    except IndexError:
        raise InvalidRecord(f"the batch ends in the middle of record {index}", index) from None
    if position != size_bytes:
        raise InvalidRecord(f"{size_bytes - position} bytes follow the last record")


def _header_of(data: bytes, position: int, name: str) -> bytes | None:
    headers, _ = read_headers(data, position)
    return next((value for key, value in reversed(headers) if key == name), None)


def _dead_letter(record: Record, reason: str, source: Source) -> Record:
    added = {
        CAUSE: reason, TOPIC: source.topic, PARTITION: str(source.partition),
        OFFSET_MIN: str(source.log_end_offset + record.offset_delta),
    }  # fmt: skip
    headers = [*record.headers, *((name, text.encode()) for name, text in added.items())]
    return Record(timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)


def _in_batches(records: list[Record], size_bytes_max: int) -> Iterator[list[Record]]:
    """Yield the records in groups whose batches have at most ``size_bytes_max`` bytes. Raise RecordsTooLarge."""
    group: list[Record] = []
    size_bytes = 0
    for record in records:
        record_bytes = _size_max(record)
        if record_bytes > size_bytes_max:
            raise RecordsTooLarge(f"a record with {record_bytes} bytes is too large for the dead-letter topic")
        if group and size_bytes + record_bytes > size_bytes_max:
            yield group
            group, size_bytes = [], 0
        group.append(record)
        size_bytes += record_bytes
    if group:
        yield group


def _size_max(record: Record) -> int:
    """Return at least the size of a batch with this record; the header of the batch is counted in each."""
    headers = sum(
        len(name.encode("utf-8", "surrogateescape")) + len(value or b"") + 10 for name, value in record.headers
    )
    return HEADER_BYTES + _RECORD_EXTRA_BYTES + len(record.key or b"") + len(record.value or b"") + headers
