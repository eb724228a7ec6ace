"""The codec against everything: every message in every version, a slow twin, kio, and broken bytes.

Messages are filled from a random source: a seeded one where a test walks all messages and versions, one that
Hypothesis steers (and shrinks) where it looks for surprises.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.util
import io
import random
import struct
import tracemalloc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.wire import (
    APIS,
    ZERO_UUID,
    Message,
    Struct,
    WireError,
    decode,
    encode,
    request_class,
    response_class,
)
from ottla.wire.schema import Array, Field

CLASSES = [cls for key in APIS for cls in (request_class(key), response_class(key))]
every_message = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
needs_kio = pytest.mark.skipif(
    importlib.util.find_spec("kio") is None, reason="kio is not installed; `pip install -e '.[dev]'` brings it"
)

FIXED = {
    "bool": "?",
    "float64": "d",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uuid": "16s",
}
STRINGS = ("", "a", "orders", "žluťoučký kůň", "𝄞", "x" * 127, "x" * 128, "x" * 32_767)
BLOBS = (b"", b"\0", bytes(range(256)), bytes(20_000))

EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@every_message
@EXAMPLES
@given(source=st.randoms(use_true_random=False))
def test_what_is_written_is_read_back(cls: type[Message], source: random.Random) -> None:
    for version in versions(cls):
        message = filled(cls, version, source)
        body = encode(message, version)
        for buffer in (body, memoryview(body), bytearray(body)):
            assert decode(cls, version, buffer, 0) == (message, len(body))


@every_message
def test_encoding_is_that_of_the_slow_twin(cls: type[Message]) -> None:
    for version, message in samples(cls):
        assert encode(message, version) == Twin(cls, version).write(message)


@every_message
def test_a_message_may_begin_and_end_anywhere_in_the_buffer(cls: type[Message]) -> None:
    for version, message in samples(cls):
        body = encode(message, version)
        assert decode(cls, version, b"before" + body + b"after", 6) == (message, 6 + len(body))


@every_message
def test_unknown_tags_are_skipped_at_every_level(cls: type[Message]) -> None:
    for version, message in samples(cls):
        twin = Twin(cls, version, unknown_tags=True)
        body = twin.write(message)
        assert decode(cls, version, body, 0) == (message, len(body))


@every_message
def test_fields_a_version_lacks_are_dropped(cls: type[Message]) -> None:
    newest = max(versions(cls))
    for version, message in samples(cls):
        donor = filled(cls, newest, random.Random(version))
        for field in cls.FIELDS:
            if not field.is_in(version):
                setattr(message, field.name, getattr(donor, field.name))
        body = encode(message, version)
        decoded, _ = decode(cls, version, body, 0)
        assert encode(decoded, version) == body


@every_message
def test_bytes_cut_anywhere_are_a_wire_error(cls: type[Message]) -> None:
    for version, message in samples(cls, small=True):
        body = encode(message, version)
        for cut in range(len(body)):
            with pytest.raises(WireError):
                decode(cls, version, body[:cut], 0)


@every_message
def test_damaged_bytes_are_a_message_or_a_wire_error(cls: type[Message]) -> None:
    for version, message in samples(cls, small=True):
        body = bytearray(encode(message, version) or b"\0")
        source = random.Random(version)
        for _ in range(60):
            damaged = bytearray(body)
            for _ in range(source.randint(1, 3)):
                damaged[source.randrange(len(damaged))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            try:
                _, position = decode(cls, version, damaged, 0)
            except WireError:
                continue
            assert position <= len(damaged)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(cls=st.sampled_from(CLASSES), noise=st.binary(max_size=80))
def test_noise_is_a_message_or_a_wire_error(cls: type[Message], noise: bytes) -> None:
    for version in versions(cls):
        try:
            _, position = decode(cls, version, noise, 0)
        except WireError:
            continue
        assert position <= len(noise)


def test_lengths_beyond_the_buffer_are_refused_before_anything_is_allocated() -> None:
    tracemalloc.start()
    try:
        for cls in CLASSES:
            for version, message in samples(cls, small=True):
                decode(cls, version, encode(message, version), 0)
                tracemalloc.reset_peak()
                before_bytes, _ = tracemalloc.get_traced_memory()
                for body in bodies_with_a_huge_length(cls, version, message):
                    with pytest.raises(WireError):
                        decode(cls, version, body, 0)
                _, peak_bytes = tracemalloc.get_traced_memory()
                assert peak_bytes - before_bytes < 100_000
    finally:
        tracemalloc.stop()


def bodies_with_a_huge_length(cls: type[Message], version: int, message: Message) -> Iterator[bytes]:
    twin = Twin(cls, version)
    body = twin.write(message)
    for position, size in twin.lengths:
        for huge in (0x7FFF_FFFF, 0x0FFF_FFFF, len(body) + 1):
            if twin.flexible:
                length = uvarint(huge + 1)
            else:
                length = (min(huge, 0x7FFF) if size == 2 else huge).to_bytes(size, "big")
            yield body[:position] + length + body[position + size :]


@needs_kio
@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].module)
def test_kio_reads_what_ottla_writes_and_writes_the_same_bytes(key: int) -> None:
    for cls, kind in ((request_class(key), "request"), (response_class(key), "response")):
        for version, message in samples(cls):
            kio_cls = kio_class(APIS[key].module, version, kind, cls.__name__)
            tame_for_kio(message, kio_cls)
            body = encode(message, version)
            expected = to_kio(message, kio_cls)
            assert kio_decode(kio_cls, body) == expected
            assert kio_encode(expected) == body
            assert decode(cls, version, kio_encode(expected), 0) == (message, len(body))


# Filling messages


def versions(cls: type[Message]) -> range:
    return range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)


def samples(cls: type[Message], *, small: bool = False) -> Iterator[tuple[int, Any]]:
    """Each version with a sparse and a full message; small ones have no value of more than a few bytes."""
    for version in versions(cls):
        for seed in range(2):
            yield version, filled(cls, version, random.Random(seed), small=small, full=seed == 0)


def filled(cls: type[Any], version: int, source: random.Random, *, small: bool = False, full: bool = False) -> Any:
    """A message as this version can carry it: what the version lacks keeps its default."""

    def value(field_type: Any, field: Field | None) -> Any:
        if field and not full and source.random() < 0.3:
            if field.is_nullable_in(version):
                return None
            if field.is_tagged_in(version):
                return field.default
        if isinstance(field_type, Array):
            return tuple(value(field_type.element, None) for _ in range(count(field_type)))
        if not isinstance(field_type, str):
            return filled(field_type, version, source, small=small, full=full)
        return primitive(field_type, source, small)

    def count(array: Array) -> int:
        if not small and array.element == "int32" and source.random() < 0.1:
            return source.choice((8, 9, 126, 127, 128, 200))
        return 1 if full else source.randint(0, 2)

    present = {field.name: value(field.type, field) for field in cls.FIELDS if field.is_in(version)}
    for field in cls.FIELDS:
        # A tagged struct of defaults is not sent, so it is read back as absent.
        is_tagged_struct = field.is_tagged_in(version) and isinstance(field.type, type)
        if is_tagged_struct and present[field.name] == field.type():
            present[field.name] = None
    return cls(**present)


def primitive(field_type: str, source: random.Random, small: bool) -> Any:
    if field_type == "string":
        return source.choice(STRINGS[:4] if small else STRINGS)
    if field_type in ("bytes", "records"):
        return source.choice(BLOBS[:2] if small else BLOBS)
    if field_type == "bool":
        return source.random() < 0.5
    if field_type == "uuid":
        return source.choice((ZERO_UUID, bytes(range(16)), b"\xff" * 16))
    if field_type == "float64":
        return source.choice((0.0, -1.5, 1e300, float("inf")))
    if field_type.startswith("uint"):
        return source.choice((0, 1, 2 ** int(field_type.removeprefix("uint")) - 1))
    bits = int(field_type.removeprefix("int"))
    edges = (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
    return source.choice((*edges, source.randint(edges[-1], edges[-2])))


# The slow twin


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + uvarint(value >> 7)


class Twin:
    """Writes a message field by field, as the protocol guide says it; notes where it wrote lengths."""

    def __init__(self, cls: type[Message], version: int, *, unknown_tags: bool = False) -> None:
        self.version = version
        self.flexible = version >= cls.FLEXIBLE_FROM
        self.unknown_tags = unknown_tags
        self.body = b""
        #: Position and size of every length that was written and was not null.
        self.lengths: list[tuple[int, int]] = []

    def write(self, message: Struct) -> bytes:
        tagged: dict[int, tuple[Field, Any]] = {}
        for field in type(message).FIELDS:
            value = getattr(message, field.name)
            if field.is_tagged_in(self.version):
                default = field.type() if isinstance(field.type, type) else field.default
                if value is not None and value != default:
                    tagged[field.tag or 0] = (field, value)
            elif field.is_in(self.version):
                self.value(field.type, value, field.is_nullable_in(self.version))
        if self.flexible:
            self.tags(tagged)
        return self.body

    def value(self, field_type: Any, value: Any, nullable: bool) -> None:
        if isinstance(field_type, Array):
            self.length(4, None if value is None else len(value))
            for element in value or ():
                self.value(field_type.element, element, False)
        elif field_type in FIXED:
            self.body += struct.pack(f">{FIXED[field_type]}", value)
        elif isinstance(field_type, str):
            raw = value.encode() if isinstance(value, str) else value
            self.length(2 if field_type == "string" else 4, None if raw is None else len(raw))
            self.body += raw or b""
        else:
            if nullable:
                self.body += b"\xff" if value is None else b"\x01"
            if value is not None:
                self.write(value)

    def length(self, size: int, length: int | None) -> None:
        if self.flexible:
            written = uvarint(0 if length is None else length + 1)
        else:
            written = (-1 if length is None else length).to_bytes(size, "big", signed=True)
        if length is not None:
            self.lengths.append((len(self.body), len(written)))
        self.body += written

    def tags(self, tagged: dict[int, tuple[Field, Any]]) -> None:
        # Between, before and after the known ones, with one-byte and longer numbers, empty and not.
        unknown = {9: b"", 40: b"new", 0x7FFF_FFFF: b"\xff" * 200} if self.unknown_tags else {}
        self.body += uvarint(len(tagged) + len(unknown))
        for tag, (field, value) in sorted(tagged.items()):
            body, self.body = self.body, b""
            lengths, self.lengths = self.lengths, []
            self.value(field.type, value, field.is_nullable_in(self.version))
            head = body + uvarint(tag) + uvarint(len(self.body))
            self.lengths = lengths + [(len(head) + position, size) for position, size in self.lengths]
            self.body = head + self.body
        for tag, raw in unknown.items():
            self.body += uvarint(tag) + uvarint(len(raw)) + raw


# kio


def kio_class(module: str, version: int, kind: str, name: str) -> Any:
    return getattr(importlib.import_module(f"kio.schema.{module}.v{version}.{kind}"), name)


def kio_encode(entity: Any) -> bytes:
    from kio.serial import entity_writer

    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_decode(kio_cls: Any, body: bytes) -> Any:
    from kio.serial import entity_reader

    entity, size = entity_reader(kio_cls)(body, 0)
    assert size == len(body)
    return entity


def nested_kio_class(field: Any) -> Any:
    from kio.serial._introspect import classify_field

    return classify_field(field).type_


def tame_for_kio(message: Struct, kio_cls: Any) -> None:
    """Replace what kio's Python types cannot hold: unknown error codes, times before 1970 or far away."""
    for field in dataclasses.fields(kio_cls):
        value = getattr(message, field.name)
        kafka_type = field.metadata.get("kafka_type")
        if kafka_type == "error_code":
            setattr(message, field.name, abs(value) % 100)
        elif kafka_type in ("datetime_i64", "timedelta_i64"):
            setattr(message, field.name, abs(value) % 2**40)
        elif kafka_type is None:
            for nested in value if isinstance(value, tuple) else (value,) if value is not None else ():
                tame_for_kio(nested, nested_kio_class(field))


def to_kio(message: Struct, kio_cls: Any) -> Any:
    values = {}
    for field in dataclasses.fields(kio_cls):
        value = getattr(message, field.name)
        if value is None and "tag" in field.metadata and field.metadata.get("kafka_type") is None:
            continue
        convert = kio_converter(field)
        values[field.name] = tuple(map(convert, value)) if isinstance(value, tuple) else convert(value)
    return kio_cls(**values)


def kio_converter(field: Any) -> Any:
    def convert(value: Any) -> Any:
        kafka_type = field.metadata.get("kafka_type")
        if value is None:
            return None
        if kafka_type is None:
            return to_kio(value, nested_kio_class(field))
        if kafka_type == "uuid":
            return None if value == ZERO_UUID else uuid.UUID(bytes=value)
        if kafka_type == "error_code":
            return nested_kio_class(field)(value)
        if kafka_type.startswith("timedelta"):
            return datetime.timedelta(milliseconds=value)
        if kafka_type == "datetime_i64":
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return epoch + datetime.timedelta(milliseconds=value)
        return value

    return convert
