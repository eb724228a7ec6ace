"""Protobuf: schemas whose syntax is right, but which protoc refuses."""

from __future__ import annotations

import pytest
from tests.schemas.protoc import compile_with_protoc

from ottla.schemas.protobuf.loading import load
from ottla.schemas.schema import Budget, InvalidSchema

_3 = 'syntax = "proto3"; '
_OPTIONS = 'import "google/protobuf/descriptor.proto"; '

INVALID = {
    _3 + "message A { int32 a = 1; int32 b = 1; }": 'have the same number 1',
    _3 + "message A { int32 a = 1; string a = 2; }": '"A.a" is already defined',
    _3 + "message A {} enum A { Z = 0; }": '"A" is already defined',
    _3 + "enum A { Z = 0; } enum B { Z = 0; }": '"Z" is already defined',
    _3 + "message A { int32 a = 0; }": "must be between 1 and 536870911",
    _3 + "message A { int32 a = 536870912; }": "must be between 1 and 536870911",
    _3 + "message A { int32 a = 19000; }": "19000 to 19999 belong to Protobuf itself",
    _3 + "message A { reserved 1; int32 a = 1; }": "has the number 1, which is reserved",
    _3 + "message A { reserved 1 to max; int32 a = 99; }": "has the number 99, which is reserved",
    _3 + 'message A { reserved "a"; int32 a = 1; }': 'the field "a" has a name that is reserved',
    _3 + 'message A { reserved "a", "a"; }': 'the name "a" is reserved twice',
    _3 + "message A { reserved 1 to 5, 3; }": "overlaps 1 to 5",
    "message A { extensions 1 to 5; optional int32 a = 3; }": "has the number 3, which is for extensions",
    "message A { extensions 1 to 5; reserved 4; }": "overlaps",
    _3 + "message A { B b = 1; }": 'the type "B" is not defined',
    _3 + "message A { .A.B b = 1; }": 'the type ".A.B" is not defined',
    _3 + "message A { google.protobuf.Timestamp t = 1; }": 'is not defined',
    _3 + 'import "google/type/interval.proto"; message A { google.protobuf.Timestamp t = 1; }': "which is not imported",
    _3 + "message A { A.b c = 1; int32 b = 2; }": "not a type",
    _3 + "message a { message b {} } message A { message a {} a.b c = 1; }": 'the type "a.b" is not defined',
    _3 + "enum E { A = 1; }": "the first value of an enum must be 0 in proto3",
    _3 + "enum E { }": 'the enum "E" has no values',
    _3 + "enum E { A = 0; B = 0; }": "set the option allow_alias",
    _3 + "enum E { option allow_alias = true; A = 0; }": "has the option allow_alias but no aliases",
    _3 + "enum E { reserved 0; A = 0; }": "has the number 0, which is reserved",
    _3 + "enum E { E_A = 0; A = 1; }": "are equal without case",
    _3 + "message A { map<float, int32> m = 1; }": "the key of a map must be",
    _3 + "message A { map<A, int32> m = 1; }": "the key of a map must be",
    "enum E { A = 1; } message M { map<int32, E> m = 1; }": "must have 0 as its first value",
    _3 + "message A { oneof o { } }": 'the oneof "o" has no fields',
    _3 + "message A { int32 foo_bar = 1; int32 fooBar = 2; }": 'the same name "fooBar" in JSON',
    _3 + "message A { int32 a = 1 [default = 1]; }": "is not allowed in proto3",
    "message A { optional int32 a = 1 [default = 2147483648]; }": "must be a number between",
    "message A { optional int32 a = 1 [default = 1.5]; }": "must be a number between",
    "message A { optional bool a = 1 [default = 1]; }": "must be true or false",
    "message A { optional E a = 1 [default = X]; } enum E { Y = 0; }": 'must be a value of the enum "E"',
    "message A { optional A a = 1 [default = X]; }": "the field is a message",
    "message A { repeated int32 a = 1 [default = 1]; }": "the field is repeated",
    _3 + "message A { extensions 5; }": "extension ranges are not allowed in proto3",
    "message A {} extend A { optional int32 a = 1; }": "does not declare 1 as an extension number",
    "message A { extensions 1; } extend A { required int32 a = 1; }": "an extension cannot be required",
    "enum E { A = 0; } extend E { optional int32 a = 1; }": '"E" is not a message',
    _3 + "message A { int32 a = 1 [foo = 1]; }": 'has no field "foo"',
    _3 + "message A { int32 a = 1 [deprecated = 1.5]; }": '"deprecated" must be true or false',
    _3 + "message A { int32 a = 1 [deprecated = 1]; }": '"deprecated" must be true or false',
    _3 + "message A { option deprecated = 0; }": '"deprecated" must be true or false',
    _3 + "message A { option deprecated = True; }": '"deprecated" must be true or false',
    _3 + "message A { option deprecated = 't'; }": '"deprecated" must be true or false',
    _3 + "message A { repeated int64 a = 1 [jstype = 1]; }": '"jstype" must be the name of a value of',
    _3 + "option optimize_for = 1;": '"optimize_for" must be the name of a value of',
    _3 + _OPTIONS + "extend google.protobuf.FieldOptions { repeated bool b = 50000; } "
    "message A { int32 a = 1 [(b) = true, (b) = 0]; }": '"b" must be true or false',
    _3 + "message A { int32 a = 1 [deprecated = true, deprecated = true]; }": "it is set twice",
    _3 + "message A { int32 a = 1 [packed = true]; }": "packed is allowed for repeated numbers only",
    _3 + "message A { int32 a = 1 [jstype = JS_STRING]; }": "jstype is allowed for 64-bit integers only",
    _3 + "message A { int32 a = 1 [(foo) = 1]; }": 'the option "(foo)" is not defined',
    _3 + "option features.field_presence = IMPLICIT;": "features are allowed in editions only",
    _3 + _OPTIONS + "extend google.protobuf.FieldOptions { int32 o = 50000; } message A { int32 a = 1 [(o) = 'x']; }": (
        '"o" must be a number'
    ),
    _3 + "service S { rpc M(E) returns (E); } enum E { A = 0; }": '"E" is not a message',
    _3 + "service S { rpc M(X) returns (X); }": 'the type "X" is not defined',
    _3 + 'import "google/protobuf/any.proto"; import "google/protobuf/any.proto";': "is imported twice",
    _3 + "package a; message a {} message A { a.a.B b = 1; }": 'the type "a.a.B" is not defined',
    'enum E { A = 0; } ' + _3: "must be the first statement",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), INVALID.items(), ids=list(INVALID.values()))
def test_invalid_schema_is_rejected_with_its_cause(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        load(text, {}, Budget())
    assert message in str(caught.value)


def test_protoc_rejects_the_same_schemas() -> None:
    results = compile_with_protoc(list(INVALID))
    assert [text for text, result in zip(INVALID, results, strict=True) if not isinstance(result, str)] == []


def test_numbers_for_booleans_and_enums_are_allowed_in_braces() -> None:
    """A value in braces has the text format of messages, which accepts them."""
    text = (
        _3 + _OPTIONS + "enum E { A = 0; B = 1; } message O { bool b = 1; repeated bool c = 2; E e = 3; } "
        "extend google.protobuf.FieldOptions { O o = 50000; } "
        "message M { int32 a = 1 [(o) = { b: 1, c: [true, f, 0], e: 1 }]; }"
    )
    linked, _ = load(text, {}, Budget())
    (expected,) = compile_with_protoc([text])
    field = linked.descriptor.message_type[1].field[0]
    assert field.options.SerializeToString() == expected.message_type[1].field[0].options.SerializeToString()


def test_closed_enum_of_another_file_is_rejected_in_proto3() -> None:
    texts = {"closed.proto": "enum E { A = 1; }"}
    with pytest.raises(InvalidSchema, match="closed enum of proto2"):
        load(_3 + 'import "closed.proto"; message M { E e = 1; }', texts, Budget())


def test_import_that_is_missing_is_ignored_unless_a_type_comes_from_it() -> None:
    text = _3 + 'import "validate.proto"; message A { int32 a = 1 [(validate.rules).int32.gt = 0]; }'
    linked, canonical = load(text, {}, Budget())
    assert "[(validate.rules).int32.gt = 0]" in canonical
    assert list(linked.descriptor.dependency) == []
    with pytest.raises(InvalidSchema, match=r'the type "validate.Rules" is not defined'):
        load(_3 + 'import "validate.proto"; message A { validate.Rules a = 1; }', {}, Budget())
