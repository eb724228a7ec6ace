"""Protobuf: references, base64, formats, the normal form and tags."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from ottla.schemas.protobuf import parse
from ottla.schemas.protobuf.known_files import KNOWN_PATHS, known_file
from ottla.schemas.schema import Entity, InvalidSchema, Reference, Resolved, UnknownFormat

_3 = 'syntax = "proto3"; '
_MAP = (
    _3 + "package p; message A { map<string, B> m = 1; message B { int32 b = 2; int32 a = 1; } optional string s = 5; }"
)


def test_descriptor_in_base64_becomes_text_with_full_names() -> None:
    schema = parse(_MAP)
    registered = parse(schema.formatted("serialized"))
    assert registered.text == (
        'syntax = "proto3";\npackage p;\n\nmessage A {\n  repeated .p.A.MEntry m = 1;\n  optional string s = 5;\n\n'
        "  message B {\n    int32 b = 2;\n    int32 a = 1;\n  }\n  message MEntry {\n    option map_entry = true;\n  \n"
        "    string key = 1;\n    .p.A.B value = 2;\n  }\n}\n"
    )
    assert registered.formatted("serialized") == schema.formatted("serialized")
    assert parse(registered.text).text == registered.text


def test_normal_forms_of_text_and_descriptor_are_equal() -> None:
    schema = parse(_MAP)
    assert schema.normalized().text == (
        'syntax = "proto3";\npackage p;\n\nmessage A {\n  map<string, .p.A.B> m = 1;\n  optional string s = 5;\n\n'
        "  message B {\n    int32 a = 1;\n    int32 b = 2;\n  }\n}\n"
    )
    assert parse(schema.formatted("serialized")).normalized().text == schema.normalized().text


def test_normal_form_sorts_options_reserved_numbers_and_enums() -> None:
    text = """
    import "google/protobuf/descriptor.proto";
    message O { optional int32 a = 1; repeated string tags = 2; optional O o = 3; }
    extend google.protobuf.FieldOptions { optional O opt = 50000; }
    message M { reserved "b", "a"; reserved 9, 3 to 4, 7 to 7;
      optional int32 z = 2
        [(opt).o.a = 0x10, deprecated = true, (opt).tags = "x", (opt).o.tags = "y", (.opt).tags = "z"];
      optional float y = 1 [json_name = "j", default = 1.50]; }
    enum E { C = 2; A = 1; B = 0; }
    """
    normal = parse(text).normalized()
    assert (
        'message M {\n  reserved 3 to 4;\n  reserved 7;\n  reserved 9;\n  reserved "a";\n  reserved "b";\n\n'
        '  optional float y = 1 [\n    default = 1.5,\n    json_name = "j"\n  ];\n  optional int32 z = 2 [\n'
        '    deprecated = true,\n    (opt) = {\n      o: {\n        a: 16,\n        tags: "y"\n      },\n'
        '      tags: [\n        "x",\n        "z"\n      ]\n    }\n  ];\n}\nenum E {\n  B = 0;\n  A = 1;\n  C = 2;\n}\n'
    ) in normal.text
    assert normal.normalized().text == normal.text


@pytest.mark.parametrize("header", [_3, "", 'edition = "2023"; '])
def test_normal_form_keeps_zero_as_the_first_value(header: str) -> None:
    text = header + "enum E { Z = 0; P = 1; N = -1; } message A { map<string, E> m = 1; }"
    assert "Z = 0;\n  N = -1;\n  P = 1;\n" in parse(text).normalized().text


def test_normal_form_sorts_a_closed_enum_without_zero_at_its_start() -> None:
    assert "N = -1;\n  P = 1;\n" in parse("enum E { P = 1; N = -1; }").normalized().text


def test_serialized_format_is_accepted_by_the_protobuf_library() -> None:
    schema = parse(_3 + 'import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp t = 1; }')
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(base64.b64decode(schema.formatted("serialized")))
    assert pool.FindMessageTypeByName("A").fields_by_name["t"].message_type.full_name == "google.protobuf.Timestamp"


def test_descriptor_of_an_edition_has_its_features() -> None:
    text = (
        'edition = "2023"; option features.field_presence = IMPLICIT; message A { int32 a = 1; repeated int32 b = 2; }'
    )
    schema = parse(text)
    assert schema.file_descriptor.edition == 1000
    assert schema.file_descriptor.options.features.field_presence == 2
    assert parse(schema.formatted("serialized")).file_descriptor == schema.file_descriptor


def test_custom_options_are_encoded_in_the_descriptor() -> None:
    text = _3 + (
        'import "google/protobuf/descriptor.proto"; message O { string s = 1; map<string, int32> m = 2; O o = 3; } '
        "extend google.protobuf.MessageOptions { O opt = 50000; } "
        'message A { option (opt) = { s: "x" m { key: "k" value: 1 } o < s: "y" > }; }'
    )
    schema = parse(text)
    assert parse(schema.text).file_descriptor == schema.file_descriptor
    assert parse(schema.formatted("serialized")).normalized().text == schema.normalized().text


def test_format_ignore_extensions_omits_custom_options_and_extensions() -> None:
    text = _3 + (
        'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { int32 o = 50000; } '
        'message A { int32 a = 1 [(o) = 1, deprecated = true, (confluent.field_meta).doc = "d"]; }'
    )
    printed = parse(text).formatted("ignore_extensions")
    assert "extend" not in printed
    assert "(o)" not in printed
    assert '(confluent.field_meta).doc = "d"' in printed


def test_formats() -> None:
    schema = parse(_3 + "message A {}")
    assert schema.formatted("") == schema.formatted("DEFAULT") == schema.text
    with pytest.raises(UnknownFormat, match="no format"):
        schema.formatted("resolved")


def test_references_are_resolved_in_any_order_and_in_base64() -> None:
    leaf = parse(_3 + "package leaf; message L { int32 a = 1; }")
    texts = {
        "middle.proto": _3 + 'import public "leaf.proto"; package middle; message M { leaf.L l = 1; }',
        "leaf.proto": leaf.formatted("serialized"),
    }
    references = (Reference("middle.proto", "middle", 1), Reference("leaf.proto", "leaf", 1))
    schema = parse(
        _3 + 'import "middle.proto"; package p; message A { middle.M m = 1; leaf.L l = 2; }',
        Resolved(references, texts),
    )
    assert schema.resolved.references == references
    assert [field.type_name for field in schema.file_descriptor.message_type[0].field] == [".middle.M", ".leaf.L"]
    assert [descriptor_pb2.FileDescriptorProto.FromString(item).name for item in schema.descriptors()] == [
        "leaf.proto",
        "middle.proto",
        "default",
    ]


def test_type_of_an_import_that_is_not_public_is_not_visible() -> None:
    texts = {"b.proto": _3 + 'import "c.proto"; message B { C c = 1; }', "c.proto": _3 + "message C {}"}
    with pytest.raises(InvalidSchema, match=r'"C" is defined in "c.proto", which is not imported'):
        parse(_3 + 'import "b.proto"; message A { C c = 1; }', Resolved((), texts))


def test_error_of_a_reference_names_the_reference() -> None:
    with pytest.raises(InvalidSchema, match=r'in the reference "b.proto": line 1, column 34'):
        parse(_3 + 'import "b.proto";', Resolved((), {"b.proto": _3 + "message A { x }"}))


def test_files_that_import_each_other_are_rejected() -> None:
    texts = {"a.proto": _3 + 'import "b.proto";', "b.proto": _3 + 'import "a.proto";'}
    with pytest.raises(InvalidSchema, match="imports itself"):
        parse(_3 + 'import "a.proto";', Resolved((), texts))


def test_known_files_need_no_reference() -> None:
    for path in sorted(KNOWN_PATHS):
        types = known_file(path).file.types
        name = f"{known_file(path).file.package}.{types[0].name}"
        schema = parse(_3 + f'import "{path}"; message A {{ {name} x = 1; }}')
        assert schema.file_descriptor.message_type[0].field[0].type_name == f".{name}"


def test_custom_option_of_a_descriptor_is_printed_if_its_definition_is_known() -> None:
    definition = (
        _3 + 'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { string o = 50000; }'
    )
    resolved = Resolved((), {"o.proto": definition})
    schema = parse(_3 + 'import "o.proto"; message A { int32 a = 1 [(o) = "x"]; }', resolved)
    registered = schema.formatted("serialized")
    assert '[(o) = "x"]' in parse(registered, resolved).text
    assert "(o)" not in parse(registered).text


def test_options_of_confluent_are_known_without_an_import() -> None:
    text = _3 + (
        'message A { option (confluent.message_meta) = { doc: "d" params: [{ value: "2", key: "precision" }] }; '
        'int32 a = 1 [(.confluent.field_meta) = { tags: ["PII"] }]; }'
    )
    schema = parse(text)
    assert schema.tags() == {"PII"}
    assert parse(schema.formatted("serialized")).tags() == {"PII"}
    assert 'value: "2",\n        key: "precision"' in parse(schema.formatted("serialized")).text


def test_tags_are_added_and_removed() -> None:
    schema = parse(_3 + "package p; message A { int32 a = 1; message B { oneof o { int32 b = 1; } } }")
    record, field, choice = Entity("sr_record", "A"), Entity("sr_field", "A.a"), Entity("sr_field", "A.B.o.b")
    tagged = schema.with_tags({record: frozenset("R"), field: frozenset("XY"), choice: frozenset("Z")}, {})
    assert tagged.tags() == {"R", "X", "Y", "Z"}
    assert tagged.tagged_entities() == {
        record: {"R"},
        field: {"X", "Y"},
        Entity("sr_field", "A.B.b"): {"Z"},
    }
    reduced = tagged.with_tags({}, {record: frozenset("R"), field: frozenset("X")})
    assert reduced.tags() == {"Y", "Z"}
    assert "message_meta" not in reduced.text
    assert not schema.tags()
    with pytest.raises(InvalidSchema, match=r'no field "A\.c"'):
        schema.with_tags({Entity("sr_field", "A.c"): frozenset("X")}, {})
    with pytest.raises(InvalidSchema, match='no message "C"'):
        schema.with_tags({Entity("sr_record", "C"): frozenset("X")}, {})


def test_tags_that_are_set_field_by_field_are_merged() -> None:
    schema = parse(
        _3 + 'message A { int32 a = 1 [(confluent.field_meta).tags = "X", (confluent.field_meta).doc = "d"]; }'
    )
    tagged = schema.with_tags({Entity("sr_field", "A.a"): frozenset("Y")}, {})
    assert tagged.tags() == {"X", "Y"}
    assert 'doc: "d"' in tagged.text


def test_name_is_that_of_the_first_message() -> None:
    assert parse(_3 + "package p; enum E { Z = 0; } message A {} message B {}").name == "p.A"
    assert parse(_3 + "enum E { Z = 0; }").name == "E"
    assert parse("").name is None
    assert parse(_3 + 'import public "google/protobuf/timestamp.proto";').name == "google.protobuf.Timestamp"


def test_top_level_fields() -> None:
    schema = parse(
        _3 + "message A { int32 a = 1; oneof o { int32 b = 2; } message B { int32 c = 1; } } message D { int32 d = 1; }"
    )
    assert [name for name in "abcd" if schema.has_top_level_field(name)] == ["a", "d"]


def test_schema_without_references_finds_the_same_text_with_references() -> None:
    text = _3 + 'import "b.proto"; message A {}'
    resolved = Resolved((Reference("b.proto", "b", 1),), {"b.proto": _3 + "message B {}"})
    plain, referring = parse(text), parse(text, resolved)
    assert plain.is_equivalent(referring)
    assert not referring.is_equivalent(plain)
    assert not plain.is_equivalent(parse(_3 + "message A {}"))


def test_descriptor_of_a_python_module_is_equivalent_to_the_text_without_names_in_json() -> None:
    registered = parse(base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode())
    text = registered.text.replace(' [json_name = "seconds"]', "").replace(' [json_name = "nanos"]', "")
    assert registered.name == "google.protobuf.Timestamp"
    assert text.endswith("message Timestamp {\n  int64 seconds = 1;\n  int32 nanos = 2;\n}\n")
    assert parse(text).is_equivalent(registered)
    assert not parse(text.replace("nanos = 2", 'nanos = 2 [json_name = "n"]')).is_equivalent(registered)
