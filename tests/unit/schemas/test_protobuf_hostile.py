"""Protobuf: hostile schemas end with an error or a result within a bounded number of steps, without deep recursion."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2

from ottla.schemas.protobuf import parse
from ottla.schemas.protobuf.differences import Side, compare
from ottla.schemas.protobuf.loading import load
from ottla.schemas.schema import TEXT_BYTES_MAX, Budget, InvalidSchema, Reference, Resolved, SchemaTooComplex

_3 = 'syntax = "proto3"; '
_N = 20_000


@pytest.mark.parametrize(
    "text",
    [
        _3 + "message A {" * _N,
        _3 + "message A {" * 100 + "}" * 100,
        _3 + "option x = " + "{a:" * _N,
        _3 + "option x = " + "[" * _N,
        _3 + "option x = " + "<a " * _N,
        _3 + 'option java_package = "' + "a" * _N,
        _3 + 'option java_package = "' + "\\" * _N,
        _3 + "/*" + "*" * _N,
        _3 + "message A { int32 a = " + "9" * _N + "; }",
        _3 + "enum A { a = 0x" + "9" * _N + "; }",
        _3 + "message " + "A" * _N + " {}",
        _3 + "package " + "a." * _N + "a;",
        _3 + "message A { " + "a." * _N + "a f = 1; }",
        _3 + "message A { int32 a = 1 [" + "(o) = 1, " * 2000 + "(o) = 1]; }",
        _3 + "message A { int32 a = 1 [" + "deprecated = true, " * 2000 + "deprecated = true]; }",
        _3 + "".join(f"message {'A' * 1000} {{" for _ in range(30)) + "int32 a = 1;" + "}" * 30,
        _3 + "\0" * _N,
        _3 + "(" * _N,
        "A" * 4 * _N,
        _3 + 'option java_package = "\ud800";',
    ],
    ids=range(20),
)
def test_hostile_text_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(text)


def test_long_valid_text_is_read_within_the_budget() -> None:
    fields = "".join(f"int32 f{number} = {number}; // comment {number}\n" for number in range(1, 3000))
    values = "".join(f"V{number} = {number};" for number in range(5000))
    schema = parse(_3 + f"message A {{ {fields} }} enum E {{ {values} }}" + " " * 100_000 + "/**/" * 5000)
    assert len(schema.file_descriptor.message_type[0].field) == 2999
    assert schema.incompatibilities(schema) == []


@pytest.mark.parametrize("piece", ["message A%d {}", "enum E%d { V%d = 0; }", "/* %d */"])
def test_steps_grow_in_proportion_to_the_text(piece: str) -> None:
    def steps(count: int) -> int:
        budget = Budget()
        load(_3 + "".join(piece.replace("%d", str(index)) for index in range(count)), {}, budget)
        return -budget._left

    assert steps(400) - steps(200) <= 1.2 * (steps(200) - steps(0))


def test_schema_larger_than_the_limit_is_rejected() -> None:
    with pytest.raises(SchemaTooComplex):
        parse(" " * (TEXT_BYTES_MAX + 1))


def test_budget_limits_a_parse() -> None:
    with pytest.raises(SchemaTooComplex, match="more than 100 steps"):
        load(_3 + "message A {}" * 100, {}, Budget(100))


def test_long_chain_of_references_needs_no_recursion() -> None:
    count = 300
    texts = {
        f"f{index}.proto": _3 + f'import "f{index + 1}.proto"; message M{index} {{ M{index + 1} m = 1; }}'
        for index in range(count)
    }
    texts[f"f{count}.proto"] = _3 + f"message M{count} {{}}"
    references = tuple(Reference(path, path, 1) for path in texts)
    schema = parse(_3 + 'import "f0.proto"; message R { M0 m = 1; }', Resolved(references, texts))
    changed = tuple(Reference(path, path, 2) for path in texts)
    other = parse(_3 + 'import "f0.proto"; message R { M0 m = 1; }', Resolved(changed, texts))
    with pytest.raises(SchemaTooComplex, match="contain each other"):
        other.incompatibilities(schema)


def test_comparison_of_many_shared_messages_is_limited() -> None:
    levels = 40
    text = _3 + "".join(
        f"message M{index} {{ M{index + 1} a = 1; M{index + 1} b = 2; }}" for index in range(levels)
    ) + f"message M{levels} {{}}"  # fmt: skip
    sides = []
    for version in (1, 2):
        resolved = Resolved((Reference("m.proto", "m", version),), {"m.proto": text})
        schema = parse(_3 + 'import "m.proto"; message R { M0 m = 1; }', resolved)
        sides.append(Side(schema._linked, resolved))
    with pytest.raises(SchemaTooComplex, match="steps"):
        compare(*sides, Budget(10_000))


def test_descriptor_with_names_that_no_text_can_have_is_rejected() -> None:
    for name in ("", "a b", 'x"; message B {} //', "a.b", "1a"):
        descriptor = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
        descriptor.message_type.add(name=name)
        with pytest.raises(InvalidSchema, match="not a valid name"):
            parse(base64.b64encode(descriptor.SerializeToString()).decode())


def test_deeply_nested_descriptor_is_rejected() -> None:
    message = descriptor_pb2.DescriptorProto(name="A")
    for _ in range(60):
        message = descriptor_pb2.DescriptorProto(name="A", nested_type=[message])
    descriptor = descriptor_pb2.FileDescriptorProto(name="x", message_type=[message])
    with pytest.raises(InvalidSchema, match="nested more than 32 deep"):
        parse(base64.b64encode(descriptor.SerializeToString()).decode())
