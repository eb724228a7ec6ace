"""Protobuf: each kind of difference, its path and its verdict."""

from __future__ import annotations

import pytest

from ottla.schemas.protobuf import ProtobufSchema, parse
from ottla.schemas.protobuf.differences import Side, compare
from ottla.schemas.schema import Budget, Reference, Resolved

_3 = 'syntax = "proto3"; '


def _differences(writer: ProtobufSchema, reader: ProtobufSchema) -> list[str]:
    sides = [Side(schema._linked, schema.resolved) for schema in (writer, reader)]
    return [f"{item.kind} {item.path}" for item in compare(*sides, Budget())]


@pytest.mark.parametrize(
    ("writer", "reader", "expected", "compatible"),
    [
        ("package a;", "package b;", ["PACKAGE_CHANGED #/"], False),
        ("message A {} message B {}", "message A {}", ["MESSAGE_REMOVED #/B"], False),
        ("message A {}", "message A {} message B {}", ["MESSAGE_ADDED #/B"], True),
        ("message A {} message B {}", "message B {} message A {}", ["MESSAGE_MOVED #/A", "MESSAGE_MOVED #/B"], True),
        ("enum E { Z = 0; A = 1; B = 2; }", "enum E { Z = 0; C = 1; D = 3; }",
         ["ENUM_CONST_CHANGED #/E/1", "ENUM_CONST_REMOVED #/E/2", "ENUM_CONST_ADDED #/E/3"], True),
        ("enum E { Z = 0; }", "enum F { Z = 0; }", ["ENUM_REMOVED #/E", "ENUM_ADDED #/F"], True),
        ("message A { int32 a = 1; }", "message A { int32 b = 2; }",
         ["FIELD_REMOVED #/A/1", "FIELD_ADDED #/A/2"], True),
        ("message A { int32 a = 1; }", "message A { int32 b = 1; }", ["FIELD_NAME_CHANGED #/A/1"], True),
        ("message A { int32 a = 1; }", "message A { int64 a = 1; }", [], True),
        ("message A { int32 a = 1; }", "message A { E a = 1; } enum E { Z = 0; }", ["ENUM_ADDED #/E"], True),
        ("message A { string a = 1; }", "message A { bytes a = 1; }", [], True),
        ("message A { int32 a = 1; }", "message A { sint32 a = 1; }", ["FIELD_SCALAR_KIND_CHANGED #/A/1"], False),
        ("message A { fixed32 a = 1; }", "message A { float a = 1; }", ["FIELD_SCALAR_KIND_CHANGED #/A/1"], False),
        ("message A { int32 a = 1; }", "message A { A a = 1; }", ["FIELD_KIND_CHANGED #/A/1"], False),
        ("message A { map<string, int32> a = 1; }", "message A { map<string, string> a = 1; }",
         ["FIELD_SCALAR_KIND_CHANGED #/A/1"], False),
        ("message A { A a = 1; } message B {}", "message A { B a = 1; } message B {}",
         ["FIELD_NAMED_TYPE_CHANGED #/A/1"], False),
        ("message A { optional int32 a = 1; }", "message A { repeated int32 a = 1; }",
         ["FIELD_NUMERIC_LABEL_CHANGED #/A/1"], False),
        ("message A { optional string a = 1; }", "message A { repeated string a = 1; }",
         ["FIELD_STRING_OR_BYTES_LABEL_CHANGED #/A/1"], True),
        ("message A { int32 a = 1; }", "message A { oneof o { int32 a = 1; } }", ["ONEOF_ADDED #/A/o"], True),
        ("message A { int32 a = 1; int32 b = 2; }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/A/o", "ONEOF_ADDED #/A/o"], False),
        ("message A { oneof o { int32 a = 1; } int32 b = 2; }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
         ["FIELD_MOVED_TO_EXISTING_ONEOF #/A/o"], False),
        ("message A { oneof o { int32 a = 1; int32 b = 2; } }", "message A { oneof o { int32 a = 1; } }",
         ["ONEOF_FIELD_REMOVED #/A/o/2"], False),
        ("message A { oneof o { int32 a = 1; } }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
         ["ONEOF_FIELD_ADDED #/A/o/2"], True),
        ("message A { oneof o { int32 a = 1; } }", "message A { }", ["ONEOF_REMOVED #/A/o"], True),
        ("message A { oneof o { int32 a = 1; } }", "message A { int32 a = 1; }",
         ["ONEOF_REMOVED #/A/o", "ONEOF_FIELD_MOVED_TO_TOP_LEVEL #/A/1"], True),
        ("message A { message B { int32 a = 1; } }", "message A { message B { string a = 1; } }",
         ["FIELD_SCALAR_KIND_CHANGED #/A/B/1"], False),
    ],
)  # fmt: skip
def test_differences_have_confluents_names_paths_and_verdicts(
    writer: str, reader: str, expected: list[str], compatible: bool
) -> None:
    schemas = parse(_3 + writer), parse(_3 + reader)
    assert _differences(*schemas) == expected
    assert (schemas[1].incompatibilities(schemas[0]) == []) == compatible


def test_required_fields() -> None:
    without, required = parse("message A {}"), parse("message A { required int32 a = 1; }")
    assert [item.kind for item in required.incompatibilities(without)] == ["REQUIRED_FIELD_ADDED"]
    assert [item.kind for item in without.incompatibilities(required)] == ["REQUIRED_FIELD_REMOVED"]


def test_group_is_not_a_message() -> None:
    group = parse("message A { optional group B = 1 { optional int32 a = 1; } }")
    message = parse("message A { optional B b = 1; message B { optional int32 a = 1; } }")
    assert "FIELD_KIND_CHANGED" in [item.kind for item in message.incompatibilities(group)]
    assert group.incompatibilities(parse(group.formatted("serialized"))) == []


def test_incompatibility_shows_both_parts() -> None:
    writer, reader = parse(_3 + "message A { int32 a = 1; }"), parse(_3 + "message A { string b = 1; }")
    (found,) = reader.incompatibilities(writer)
    assert found.kind == "FIELD_SCALAR_KIND_CHANGED"
    assert found.path == "#/A/1"
    assert found.reader_fragment == "string b = 1;"
    assert found.writer_fragment == "int32 a = 1;"
    assert "#/A/1" in found.description


def _referring(definition: str, version: int) -> ProtobufSchema:
    resolved = Resolved((Reference("b.proto", "b", version),), {"b.proto": _3 + definition})
    return parse(_3 + 'import "b.proto"; message A { B b = 1; }', resolved)


def test_type_of_a_reference_is_compared_if_its_version_changed() -> None:
    before, after = _referring("message B { int32 a = 1; }", 1), _referring("message B { string a = 1; }", 2)
    assert _differences(before, after) == ["FIELD_SCALAR_KIND_CHANGED #/B/1", "FIELD_NAMED_TYPE_CHANGED #/A/1"]
    assert _differences(before, _referring("message B { string a = 1; }", 1)) == []
    assert _differences(before, _referring("message B { int32 a = 1; int32 c = 2; }", 2)) == ["FIELD_ADDED #/B/2"]


def test_type_may_move_into_a_reference() -> None:
    inline = parse(_3 + "message A { B b = 1; } message B { int32 a = 1; }")
    assert _differences(_referring("message B { int32 a = 1; }", 1), inline) == ["MESSAGE_ADDED #/B"]


def test_messages_that_contain_each_other_are_compared_once() -> None:
    text = "message B { C c = 1; B b = 2; } message C { B b = 1; repeated C c = 2; }"
    assert _differences(_referring(text, 1), _referring(text, 2)) == []


def test_verdict_is_the_same_for_text_and_descriptor() -> None:
    writer = parse(_3 + "message A { map<string, int32> m = 1; oneof o { int32 a = 2; string b = 3; } }")
    reader = parse(_3 + "message A { map<string, string> m = 1; oneof o { int32 a = 2; } }")
    expected = [(item.kind, item.path) for item in reader.incompatibilities(writer)]
    registered = parse(writer.formatted("serialized"))
    assert [(item.kind, item.path) for item in reader.incompatibilities(registered)] == expected
