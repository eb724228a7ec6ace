"""Schemas that are made to take long, to take much memory, to end in a crash, or to fetch something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_PROTO3 = 'syntax = "proto3"; '


class Hostile(NamedTuple):
    """One schema, and the error codes that the registry may answer with; 0 stands for an accepted schema."""

    name: str
    schema_type: str
    text: str
    codes: tuple[int, ...]


def avro_records(levels: int, leaf: Any = "int") -> str:
    """Return records inside of records."""
    for level in range(levels):
        leaf = {"type": "record", "name": f"R{level}", "fields": [{"name": "f", "type": leaf}]}
    return _dump(leaf)


def avro_arrays(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def nested_keyword(keyword: str, levels: int, *, is_list: bool = False) -> str:
    """Return a JSON schema with one keyword inside of itself."""
    start, end = (f'{{"{keyword}":[', "]}") if is_list else (f'{{"{keyword}":', "}")
    return start * levels + "{}" + end * levels


def messages(levels: int) -> str:
    return _PROTO3 + "message A {" * levels + "int32 a = 1;" + "}" * levels


def one_of(count: int, shift: int = 0) -> str:
    """Return alternatives of which each has to be compared with each other one."""
    parts = [{"type": "object", "properties": {"a": {"const": n + shift}, "b": {}}} for n in range(count)]
    return _dump({"oneOf": parts})


def mutual_unions(width: int, leaf: str) -> str:
    """Return a union of records of which each has unions of all earlier ones: each is compared with each."""
    names = [f"R{n}" for n in range(width)]
    records = [
        {"type": "record", "name": name, "fields": [
            {"name": "leaf", "type": leaf}, *({"name": f"u{k}", "type": names[: n + 1]} for k in range(3)),
        ]}
        for n, name in enumerate(names)
    ]  # fmt: skip
    return _dump({"type": "record", "name": "Root", "fields": [{"name": "u", "type": records}]})


def doubled_definitions(levels: int, keyword: str, leaf: Any) -> str:
    """Return definitions of which each refers twice to the next one: 2**levels copies of a leaf."""
    definitions: dict[str, Any] = {f"d{levels}": leaf}
    for level in range(levels):
        parts = [{"$ref": f"#/definitions/d{level + 1}"}, {"$ref": f"#/definitions/d{level + 1}", "title": "2"}]
        inner: Any = dict(zip("ab", parts, strict=True)) if keyword == "properties" else parts
        definitions[f"d{level}"] = {keyword: inner}
    return _dump({"definitions": definitions, "$ref": "#/definitions/d0"})


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


INVALID, TOO_LARGE, ACCEPTED = 42201, 42209, 0
_REFUSED = (INVALID, TOO_LARGE)
_BOUNDED = (ACCEPTED, INVALID, TOO_LARGE)


def deep() -> Iterator[Hostile]:
    yield Hostile("avro records", "AVRO", avro_records(230), _REFUSED)
    yield Hostile("avro arrays", "AVRO", avro_arrays(20_000), _REFUSED)
    default = _dump({"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": 0}]})
    yield Hostile("avro default", "AVRO", default.replace(":0}", ":" + "[" * 20_000 + "]" * 20_000 + "}"), _REFUSED)
    yield Hostile("avro text", "AVRO", "[" * 100_000, _REFUSED)
    for keyword in ("not", "items", "additionalProperties"):
        yield Hostile(f"json {keyword}", "JSON", nested_keyword(keyword, 5000), _REFUSED)
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield Hostile(f"json {keyword}", "JSON", nested_keyword(keyword, 5000, is_list=True), _REFUSED)
    yield Hostile("json enum", "JSON", '{"enum":[' + "[" * 20_000 + "]" * 20_000 + "]}", _REFUSED)
    yield Hostile("protobuf messages", "PROTOBUF", messages(1000), _REFUSED)
    yield Hostile("protobuf option", "PROTOBUF", _PROTO3 + "option (x) = " + "{a:" * 10_000, _REFUSED)


def wide() -> Iterator[Hostile]:
    fields = [{"name": f"f{n}", "type": "int"} for n in range(40_000)]
    yield Hostile("avro fields", "AVRO", _dump({"type": "record", "name": "R", "fields": fields}), _BOUNDED)
    symbols = [f"s{n}" for n in range(100_000)]
    yield Hostile("avro symbols", "AVRO", _dump({"type": "enum", "name": "E", "symbols": symbols}), _BOUNDED)
    properties = {f"p{n}": {"type": "string", "pattern": "(a{1,90}){1,90}" + str(n)} for n in range(20_000)}
    yield Hostile("json patterns", "JSON", _dump({"properties": properties}), (TOO_LARGE,))
    yield Hostile("json enum", "JSON", _dump({"enum": list(range(200_000))}), _BOUNDED)
    lines = "".join(f"message M{n} {{ int32 a = 1; }}" for n in range(20_000))
    yield Hostile("protobuf messages", "PROTOBUF", _PROTO3 + lines, _BOUNDED)
    yield Hostile("protobuf comment", "PROTOBUF", _PROTO3 + "/*" + "*" * 900_000, _REFUSED)


def cycles() -> Iterator[Hostile]:
    yield Hostile("avro alias of itself", "AVRO", _dump(
        {"type": "record", "name": "R", "aliases": ["R"], "fields": [{"name": "f", "type": ["null", "R"]}]},
    ), _BOUNDED)  # fmt: skip
    yield Hostile("avro record of itself", "AVRO", _dump(
        {"type": "record", "name": "R", "fields": [{"name": "f", "type": "R"}]},
    ), _BOUNDED)  # fmt: skip
    yield Hostile("json reference to itself", "JSON", '{"$ref":"#"}', _BOUNDED)
    yield Hostile("json references in a circle", "JSON", _dump(
        {"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
         "$ref": "#/definitions/a"},
    ), _BOUNDED)  # fmt: skip
    yield Hostile("json allOf of itself", "JSON", '{"allOf":[{"$ref":"#"},{"$ref":"#"}]}', _BOUNDED)
    yield Hostile("json dynamic reference", "JSON", _dump(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicAnchor": "x",
         "anyOf": [{"$dynamicRef": "#x"}, {"$dynamicRef": "#x"}]},
    ), _BOUNDED)  # fmt: skip
    yield Hostile("protobuf message of itself", "PROTOBUF", _PROTO3 + "message A { A a = 1; A b = 2; }", (ACCEPTED,))


def expressions() -> Iterator[Hostile]:
    for expression in ("(a+)+$", "(a|a)*b", "(.*){1,32000}", "((a{1,999}){1,999}){1,999}", "(?=a)\\1", "[" * 500):
        rows = {"patternProperties": {expression: {}}, "properties": {"a" * 300: {"pattern": expression}}}
        yield Hostile(f"json {expression[:20]}", "JSON", _dump(rows | {"additionalProperties": False}), _BOUNDED)


def texts() -> Iterator[Hostile]:
    """Texts that are no Unicode, or that no parser accepts."""
    yield Hostile("avro surrogate", "AVRO", '{"type":"record","name":"R","doc":"\\ud800","fields":[]}', _BOUNDED)
    yield Hostile("avro surrogate name", "AVRO", '{"type":"enum","name":"E","symbols":["\\udfff"]}', _REFUSED)
    yield Hostile(
        "json surrogate", "JSON", '{"title":"\\ud800","properties":{"\\udfff":{"const":"\\ud800"}}}', _BOUNDED
    )
    yield Hostile("json number", "JSON", '{"maximum":' + "9" * 100_000 + "}", _BOUNDED)
    yield Hostile("json exponent", "JSON", '{"multipleOf":1e999999999}', _BOUNDED)
    yield Hostile("json nan", "JSON", '{"maximum":NaN}', _REFUSED)
    yield Hostile("avro number", "AVRO", '{"type":"fixed","name":"F","size":' + "9" * 10_000 + "}", _REFUSED)
    decimal = '{"type":"bytes","logicalType":"decimal","precision":999999999999,"scale":1e9}'
    yield Hostile("avro precision", "AVRO", decimal, _BOUNDED)
    yield Hostile("protobuf zero", "PROTOBUF", _PROTO3 + "message A { \0 }", _REFUSED)
    yield Hostile("unknown type", "XSD", "<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", _REFUSED)


def remote(url: str, path: str) -> Iterator[Hostile]:
    """References to a server and to a file."""
    for target in (url, f"{url}/a.json", f"file://{path}", path, "//127.0.0.1/a.json", "ftp://127.0.0.1/a.json",
                   "http://registry.invalid/a.json", "jar:file:/a!/b"):  # fmt: skip
        yield Hostile(f"json $ref {target}", "JSON", _dump({"$ref": target}), (INVALID,))
        yield Hostile(f"json $id {target}", "JSON", _dump({"$id": target, "properties": {"a": {"$ref": "b.json"}}}),
                      (INVALID,))  # fmt: skip
    yield Hostile("json $schema", "JSON", _dump({"$schema": f"{url}/draft", "type": "object"}), _BOUNDED)
    dynamic = _dump({"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": f"{url}#x"})
    yield Hostile("json $dynamicRef", "JSON", dynamic, (INVALID,))
    for target in (path, f"../../../..{path}", f"file://{path}", url, "google/protobuf/../../etc/passwd", ""):
        for word in ("import", "import public", "import weak"):
            yield Hostile(f"protobuf {word} {target}", "PROTOBUF", f'{_PROTO3}{word} "{target}";', _BOUNDED)
    yield Hostile("avro name", "AVRO", _dump([path]), (INVALID,))
    yield Hostile("avro type", "AVRO", _dump({"type": "record", "name": "R", "fields": [{"name": "f", "type": url}]}),
                  (INVALID,))  # fmt: skip
