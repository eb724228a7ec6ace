"""Makes descriptors comparable, and tells whether a record that one schema wrote can be read with another."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf import message_factory, unknown_fields
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.protobuf.checks import json_name
from ottla.schemas.protobuf.known_files import known_file
from ottla.schemas.protobuf.loading import ROOT
from ottla.schemas.protobuf.options import is_map, is_repeated


def option_pool(schema: ProtobufSchema) -> DescriptorPool:
    """Return a pool that knows all options that a schema may use."""
    pool = DescriptorPool()
    contents = schema.descriptors()
    if not any(b"FileDescriptorProto" in content for content in contents):
        contents.insert(0, known_file("google/protobuf/descriptor.proto").serialized)
    for content in contents:
        pool.AddSerializedFile(content)
    return pool


def comparable(descriptor: Any, pool: DescriptorPool) -> Any:
    """Return a copy without what is known to differ between protoc and Ottla, with all options interpreted.

    protoc sets json_name everywhere, puts messages of maps and groups between the others, and sets empty options for a
    method with an empty body.
    """
    file_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FileDescriptorProto"))
    copy = file_class.FromString(descriptor.SerializeToString())
    copy.name = ROOT
    copy.ClearField("source_code_info")
    for message in copy.message_type:
        _clean_message(message)
    _clean_fields(copy.extension)
    _order_messages(copy.message_type, copy.extension)
    for service in copy.service:
        for method in service.method:
            if not method.options.ByteSize():
                method.ClearField("options")
    return copy


def _clean_message(message: Any) -> None:
    _clean_fields(message.field)
    _clean_fields(message.extension)
    for nested in message.nested_type:
        _clean_message(nested)
    _order_messages(message.nested_type, [*message.field, *message.extension])


def _clean_fields(fields: Any) -> None:
    for field in fields:
        if field.extendee or field.json_name == json_name(field.name):
            field.ClearField("json_name")


def _order_messages(messages: Any, fields: Any) -> None:
    groups = {field.type_name.rpartition(".")[2] for field in fields if field.type == field.TYPE_GROUP}
    last = [item for item in messages if item.options.map_entry or item.name in groups]
    first = [item for item in messages if not (item.options.map_entry or item.name in groups)]
    ordered = [type(item).FromString(item.SerializeToString()) for item in (*first, *last)]
    del messages[:]
    messages.extend(ordered)


def without_order(descriptor: Any, pool: DescriptorPool) -> Any:
    """Return a copy whose fields are in the order of their numbers, as a canonical text may change that order."""
    copy = comparable(descriptor, pool)
    for message in copy.message_type:
        _sort_fields(message)
    return copy


def _sort_fields(message: Any) -> None:
    fields = sorted(
        (type(field).FromString(field.SerializeToString()) for field in message.field), key=lambda f: f.number
    )
    del message.field[:]
    message.field.extend(fields)
    nested = sorted(
        (type(item).FromString(item.SerializeToString()) for item in message.nested_type), key=lambda m: m.name
    )
    del message.nested_type[:]
    message.nested_type.extend(nested)
    for item in message.nested_type:
        _sort_fields(item)


def unread_fields(writer: ProtobufSchema, reader: ProtobufSchema, seed: int) -> list[str]:
    """Write random records of each message that both schemas have, and read them with the reader's schema.

    Return the fields that both have, but whose content the reader did not take.
    """
    random = Random(seed)
    writers, readers = _pool(writer), _pool(reader)
    unread: list[str] = []
    for name, message in writers.FindFileByName(ROOT).message_types_by_name.items():
        other = readers.FindFileByName(ROOT).message_types_by_name.get(name)
        if other is None:
            continue
        record = message_factory.GetMessageClass(message)()
        _fill(record, random, 3)
        read = message_factory.GetMessageClass(other)()
        try:
            read.MergeFromString(record.SerializePartialToString())
        except DecodeError:
            unread.append(f"{name}, which cannot be decoded")
        else:
            unread += _unread(read)
    return unread


def _pool(schema: ProtobufSchema) -> DescriptorPool:
    pool = DescriptorPool()
    for descriptor in schema.descriptors():
        pool.AddSerializedFile(descriptor)
    return pool


def _unread(message: Any) -> list[str]:
    numbers = message.DESCRIPTOR.fields_by_number
    found = [
        f"{message.DESCRIPTOR.full_name}.{numbers[item.field_number].name}"
        for item in unknown_fields.UnknownFieldSet(message)
        if item.field_number in numbers and not _is_closed_enum(numbers[item.field_number])
    ]
    for field, value in message.ListFields():
        if field.message_type is None or is_map(field):
            continue
        for item in value if is_repeated(field) else [value]:
            found += _unread(item)
    return found


def _is_closed_enum(field: FieldDescriptor) -> bool:
    """Return whether a field is an enum of proto2, whose unknown numbers are unknown fields by definition."""
    return field.enum_type is not None and field.enum_type.is_closed


def _fill(message: Any, random: Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if is_map(field):
            continue
        if field.message_type is not None and depth == 0:
            continue
        if is_repeated(field):
            items = getattr(message, field.name)
            for _ in range(2):
                if field.message_type is not None:
                    _fill(items.add(), random, depth - 1)
                else:
                    items.append(_scalar(field, random))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), random, depth - 1)
        else:
            setattr(message, field.name, _scalar(field, random))


def _scalar(field: FieldDescriptor, random: Random) -> Any:
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_BOOL:
            return True
        case kinds.CPPTYPE_STRING:
            return b"abc" if field.type == kinds.TYPE_BYTES else "abc"
        case kinds.CPPTYPE_FLOAT | kinds.CPPTYPE_DOUBLE:
            return float(random.randint(1, 9))
        case kinds.CPPTYPE_ENUM:
            return random.choice(field.enum_type.values).number
        case _:
            return random.randint(1, 100)
