"""Protobuf values to Arrow columns and back. No Spark.

| Protobuf                               | column                                                                    |
|----------------------------------------|---------------------------------------------------------------------------|
| bool, string, bytes, float, double     | the same                                                                  |
| int32, sint32, sfixed32                | int; int64 and its like: bigint                                           |
| uint32, fixed32                        | bigint                                                                    |
| uint64, fixed64                        | decimal(20,0)                                                             |
| enum                                   | string, the name; a number that has no name as its digits                 |
| message or group, repeated, map        | struct, array, map                                                        |
| oneof, optional                        | columns that are null when they are not set                               |
| google.protobuf.Timestamp              | timestamp in UTC; Duration: bigint, microseconds                          |
| google.protobuf.*Value (wrappers)      | the type inside, null when it is not set                                  |
| google.protobuf.Struct, Value, ListValue | string, as JSON                                                         |

A schema is a .proto text, which ``proto_compiler`` compiles, or the bytes of a FileDescriptorSet as protoc writes it.
Values are read with the reader schema, by field number: fields that a writer did not know have their default. A writer
schema whose field has another encoding under the same number is refused, because Protobuf would skip that field
without an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from ottla.spark.proto_compiler import compile_proto
from ottla.spark.wire_format import (
    Cause,
    OneSchema,
    Rejected,
    SchemaRefused,
    SchemasById,
    SchemaSource,
    ValueDecoder,
    decode_indexes,
    frame,
)

_WELL_KNOWN: Final = (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_JSON: Final = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_WRAPPERS: Final = tuple(f"google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name)
_SCALARS: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_ENUM: pa.string(),
}
#: types that Protobuf can read for each other; a type that is not here has an encoding of its own
_ENCODINGS: Final[Mapping[int, str]] = {
    **dict.fromkeys(
        (
            FieldDescriptor.TYPE_BOOL,
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_UINT32,
            FieldDescriptor.TYPE_UINT64,
            FieldDescriptor.TYPE_ENUM,
        ),
        "varint",
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), "fixed 32 bits"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), "fixed 64 bits"),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES), "bytes"),
}
_MICROS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ProtobufDecoder(ValueDecoder[tuple[int, ...]]):
    """Decodes Protobuf. Of a writer schema it keeps the path to the message.

    Raises SchemaRefused if the reader schema, or the writer schema of an id that is known in advance, cannot be used.
    """

    def __init__(self, source: SchemaSource, message: str | None, *, framed: bool) -> None:
        super().__init__(source, framed=framed)
        self._descriptor = find_message(source.latest(), message)
        self._class = message_factory.GetMessageClass(self._descriptor)
        self.type = message_type(self._descriptor)
        self._resolve_known_ids()

    def _build(self, rows: list[Message | None]) -> pa.Array:
        return _struct_column(self._descriptor, rows)

    def _read(self, payload: bytes, writer: tuple[int, ...] | None) -> Message:
        if writer is not None:
            indexes, payload = decode_indexes(payload)
            if indexes != writer:
                name = self._descriptor.full_name
                raise Rejected(Cause.TYPE_MISMATCH, f"message indexes {list(indexes)} are not those of {name}")
        return self._parse(payload)

    def _parse(self, value: bytes) -> Message:
        try:
            return self._class.FromString(value)
        except DecodeError as error:
            if _ends_early(value):
                raise Rejected(Cause.TRUNCATED, "the value ends within a field") from None
            raise Rejected(Cause.TYPE_MISMATCH, str(error)) from None

    def _resolve(self, schema_id: int, schema: str | bytes) -> tuple[int, ...]:
        """Return the path to the message in a writer schema. Raise SchemaRefused if its values cannot be read."""
        try:
            writer = find_message(schema, self._descriptor.full_name)
        except SchemaRefused as error:
            raise SchemaRefused(f"schema id {schema_id}: {error}") from None
        why = _why_unreadable(writer, self._descriptor, set())
        if why is not None:
            raise SchemaRefused(f"schema id {schema_id}: {why}")
        return message_indexes(writer)


class ProtobufEncoder:
    """Encodes rows as Protobuf values; with a schema id, each value has Confluent's framing."""

    def __init__(self, schema: str | bytes, message: str | None, *, schema_id: int | None) -> None:
        self._descriptor = find_message(schema, message)
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._indexes = message_indexes(self._descriptor)
        self._schema_id = schema_id
        self.type = message_type(self._descriptor)

    def encode(self, rows: pa.Array) -> pa.Array:
        return pa.array([self._encode_one(row) for row in rows.to_pylist(maps_as_pydicts="strict")], pa.binary())

    def _encode_one(self, row: Mapping[str, Any] | None) -> bytes | None:
        if row is None:
            return None
        message = self._class()
        try:
            _fill(message, self._descriptor, row)
        except (ValueError, TypeError, KeyError) as error:
            raise SchemaRefused(
                f"a row does not fit {self._descriptor.full_name} ({error}): cast its columns"
            ) from None
        payload: bytes = message.SerializeToString(deterministic=True)
        return payload if self._schema_id is None else frame(self._schema_id, payload, self._indexes)


# -- schemas --------------------------------------------------------------------------------------------------------


def compile_schemas(source: SchemaSource) -> SchemaSource:
    """Return the same schemas without texts. Raise SchemaRefused for a text that protoc refuses.

    Texts of other sources, which may not have all schemas yet, are compiled where they are used.
    """
    if isinstance(source, OneSchema):
        return replace(source, schema=_compiled(source.schema))
    if isinstance(source, SchemasById):
        compiled = {number: _compiled(each) for number, each in source.schemas.items()}
        return SchemasById(compiled, None if source.reader is None else _compiled(source.reader))
    return source


def _compiled(schema: str | bytes) -> bytes:
    return compile_proto(schema) if isinstance(schema, str) else schema


def find_message(schema: str | bytes, name: str | None) -> Descriptor:
    """Return a message of a schema; without a name, the first one of its last file. Raise SchemaRefused."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(_compiled(schema))
    except DecodeError:
        raise SchemaRefused(
            "the bytes are not a FileDescriptorSet: make them with protoc --descriptor_set_out"
        ) from None
    try:
        for module in _WELL_KNOWN:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        known = {module.DESCRIPTOR.name for module in _WELL_KNOWN}
        for file in files.file:
            if file.name not in known:
                pool.AddSerializedFile(file.SerializeToString())
        if name is None:
            last = pool.FindFileByName(files.file[-1].name)
            return next(iter(last.message_types_by_name.values()))
        return pool.FindMessageTypeByName(name)
    except (TypeError, ValueError) as error:
        raise SchemaRefused(f"the Protobuf schema cannot be used: {error}") from None
    except (KeyError, IndexError, StopIteration):
        there = ", ".join(f"{file.package}.{each.name}".strip(".") for file in files.file for each in file.message_type)
        raise SchemaRefused(f"the schema has no message {name or ''}: it has {there or 'none'}") from None


def _why_unreadable(writer: Descriptor, reader: Descriptor, seen: set[tuple[str, str]]) -> str | None:
    """Return which field has different encodings in two versions of a message; None if there is no such field."""
    if (writer.full_name, reader.full_name) in seen:
        return None
    seen.add((writer.full_name, reader.full_name))
    for field in writer.fields:
        read = reader.fields_by_number.get(field.number)
        if read is None:
            continue
        if _ENCODINGS.get(field.type, field.type) != _ENCODINGS.get(read.type, read.type):
            where = f"the field {field.number} of {writer.full_name}"
            return f"{where} is written as {_type_name(field)} and read as {_type_name(read)}, which differ in encoding"
        if field.message_type is not None and read.message_type is not None:
            why = _why_unreadable(field.message_type, read.message_type, seen)
            if why is not None:
                return why
    return None


def _type_name(field: FieldDescriptor) -> str:
    return str(descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def message_indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the path to a message in its file, as the wire format has it.

    Messages of the text count, as in Java's serializer; the messages that Protobuf makes of map fields do not.
    """
    indexes: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        among = outer.nested_types if outer is not None else descriptor.file.message_types_by_name.values()
        among = [each for each in among if not each.GetOptions().map_entry]
        indexes.insert(0, [each.full_name for each in among].index(descriptor.full_name))
        descriptor = outer
    return tuple(indexes)


def message_type(descriptor: Descriptor, outer: tuple[str, ...] = ()) -> pa.DataType:
    """Return the struct of a message. Raise SchemaRefused if the message contains itself."""
    if descriptor.full_name in outer:
        raise SchemaRefused(
            f"the message {descriptor.full_name} contains itself: columns cannot, so decode it yourself"
        )
    path = (*outer, descriptor.full_name)
    return pa.struct([(field.name, _field_type(field, path)) for field in descriptor.fields])


def _field_type(field: FieldDescriptor, path: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_value_type(key, path), _value_type(value, path))
    kind = _value_type(field, path)
    return pa.list_(kind) if field.is_repeated else kind


def _value_type(field: FieldDescriptor, path: tuple[str, ...]) -> pa.DataType:
    if not _is_message(field):
        return _SCALARS[field.type]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if name == _DURATION:
        return pa.int64()
    if name in _JSON:
        return pa.string()
    if name in _WRAPPERS:
        return _SCALARS[field.message_type.fields_by_name["value"].type]
    return message_type(field.message_type, path)


def _is_message(field: FieldDescriptor) -> bool:
    """Return whether values are messages: groups are, and the messages of editions that are encoded like groups."""
    return field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


# -- messages to columns --------------------------------------------------------------------------------------------


def _struct_column(descriptor: Descriptor, messages: Sequence[Message | None]) -> pa.Array:
    kind = message_type(descriptor)
    columns = [_field_column(field, messages) for field in descriptor.fields]
    mask = pa.array([message is None for message in messages], pa.bool_())
    if not columns:
        return pa.array([None if message is None else {} for message in messages], kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _field_column(field: FieldDescriptor, messages: Sequence[Message | None]) -> pa.Array:
    name = field.name
    if _is_map(field):
        return _map_column(field, messages)
    if field.is_repeated:
        lists = [() if message is None else getattr(message, name) for message in messages]
        flat = [value for values in lists for value in values]
        return pa.ListArray.from_arrays(_offsets(lists), _value_column(field, flat))
    if field.has_presence:
        values = [
            getattr(message, name) if message is not None and message.HasField(name) else None for message in messages
        ]
    else:
        values = [None if message is None else getattr(message, name) for message in messages]
    return _value_column(field, values)


def _map_column(field: FieldDescriptor, messages: Sequence[Message | None]) -> pa.Array:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    maps: list[Any] = [{} if message is None else getattr(message, field.name) for message in messages]
    keys = [each for entries in maps for each in entries]
    values = [entries[each] for entries in maps for each in entries]
    return pa.MapArray.from_arrays(_offsets(maps), _value_column(key, keys), _value_column(value, values))


def _offsets(lists: Sequence[Any]) -> pa.Array:
    offsets = [0]
    for each in lists:
        offsets.append(offsets[-1] + len(each))
    return pa.array(offsets, pa.int32())


def _value_column(field: FieldDescriptor, values: Sequence[Any]) -> pa.Array:
    """Return values of a field as a column; those of lists and maps without the list or map around them."""
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.array([None if each is None else names.get(each, str(each)) for each in values], pa.string())
    if not _is_message(field):
        return pa.array(values, _SCALARS[field.type])
    name = field.message_type.full_name
    if name in (_TIMESTAMP, _DURATION):
        micros = [None if each is None else each.seconds * _MICROS + each.nanos // 1000 for each in values]
        return pa.array(micros, _value_type(field, ()))
    if name in _JSON:
        texts = [None if each is None else json.dumps(json_format.MessageToDict(each)) for each in values]
        return pa.array(texts, pa.string())
    if name in _WRAPPERS:
        inner = field.message_type.fields_by_name["value"]
        return pa.array([None if each is None else each.value for each in values], _SCALARS[inner.type])
    return _struct_column(field.message_type, values)


# -- rows to messages -----------------------------------------------------------------------------------------------


def _fill(message: Message, descriptor: Descriptor, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        field = descriptor.fields_by_name[name]
        if value is None:
            continue
        if _is_map(field):
            _fill_map(getattr(message, name), field.message_type.fields_by_name["value"], value)
        elif field.is_repeated:
            target = getattr(message, name)
            for each in value:
                if _is_message(field):
                    _fill_value(target.add(), field.message_type, each)
                else:
                    target.append(_scalar(field, each))
        elif _is_message(field):
            getattr(message, name).SetInParent()
            _fill_value(getattr(message, name), field.message_type, value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill_map(target: Any, field: FieldDescriptor, entries: Mapping[Any, Any]) -> None:
    for key, value in entries.items():
        if _is_message(field):
            _fill_value(target[key], field.message_type, value)
        else:
            target[key] = _scalar(field, value)


def _fill_value(message: Message, descriptor: Descriptor, value: Any) -> None:
    fill = _FILL.get(descriptor.full_name)
    if fill is not None:
        fill(message, value)
    elif descriptor.full_name in _WRAPPERS:
        message.value = _scalar(descriptor.fields_by_name["value"], value)
    else:
        _fill(message, descriptor, value)


def _fill_timestamp(message: Message, value: datetime) -> None:
    since = value - (_EPOCH if value.tzinfo is not None else _EPOCH.replace(tzinfo=None))
    message.seconds = since.days * 86_400 + since.seconds
    message.nanos = since.microseconds * 1000


def _fill_duration(message: Message, micros: int) -> None:
    # Both parts of a duration have the same sign.
    sign = -1 if micros < 0 else 1
    message.seconds = sign * (abs(micros) // _MICROS)
    message.nanos = sign * (abs(micros) % _MICROS) * 1000


def _fill_json(message: Message, text: str) -> None:
    json_format.Parse(text, message)


_FILL: Final[Mapping[str, Callable[[Message, Any], None]]] = {
    _TIMESTAMP: _fill_timestamp,
    _DURATION: _fill_duration,
    **dict.fromkeys(_JSON, _fill_json),
}


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        named = field.enum_type.values_by_name.get(value)
        return named.number if named is not None else int(value)
    if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64):
        return int(value)
    return value


def _ends_early(data: bytes) -> bool:
    """Return whether the fields of a message go beyond its bytes."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind = tag & 7
        if kind == 0:
            _, position = _read_varint(data, position)
        elif kind == 2:
            size, position = _read_varint(data, position)
            position += size
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            return False
    return position > len(data)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if not byte & 0x80:
            return number, position
    # Bytes that are missing count as one more, so that the end is seen to be passed.
    return number, len(data) + 1
