"""Random JSON schemas, changes of them and documents for them; what each verdict promises is checked with documents.

The schemas use the keywords for which a verdict "compatible" is a promise: each document of the writer is valid for the
reader. docs/reference/schema-compatibility.md lists the keywords for which Confluent's rules do not keep it. Here they
do not occur: objects and arrays have a type, the parts of a combination have different types, properties have no
defaults, and there are no patternProperties.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jsonschema import validators

from ottla.schemas.json_schema import JsonSchema, parse

DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
Schema = dict[str, Any]
TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_LIMITS = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems"),
}
_NAMES = "abcd"


class Generator:
    """Makes schemas of one draft."""

    def __init__(self, source: random.Random, draft: str) -> None:
        self._random = source
        self._draft = draft
        self._is_modern = "/draft/" in draft
        self._is_newest = "2020" in draft
        self._has_definition = False

    def root(self) -> Schema:
        self._has_definition = self._random.random() < 0.3
        schema = {"$schema": self._draft, **self.schema(3)}
        if self._has_definition:
            group = "$defs" if self._is_modern else "definitions"
            schema[group] = {"node": {"type": "object", "properties": {"v": self.schema(1), "next": self._reference()}}}
        return schema

    def schema(self, depth: int, types: tuple[str, ...] = TYPES) -> Schema:
        pick = self._random.random()
        if depth and pick < 0.12 and types == TYPES:
            return self._combination(depth)
        if pick < 0.17 and types == TYPES and depth < 3:
            return {"not": self.schema(0)}
        if pick < 0.25 and types == TYPES and depth < 3 and self._has_definition:
            return self._reference()
        if pick < 0.35 and types == TYPES:
            names = self._random.sample(("string", "integer", "boolean", "null"), 2)
            schema: Schema = {"type": names}
            for name in names:
                schema.update(self._limits(name))
            return schema
        return self._typed(self._random.choice(types), depth)

    def _reference(self) -> Schema:
        return {"$ref": "#/$defs/node" if self._is_modern else "#/definitions/node"}

    def _combination(self, depth: int) -> Schema:
        keyword = self._random.choice(("allOf", "anyOf", "oneOf"))
        if keyword == "allOf":
            name = self._random.choice(("string", "integer", "object"))
            return {keyword: [self._typed(name, depth - 1) for _ in range(self._random.randrange(1, 3))]}
        families = self._random.sample(("string", "number", "boolean", "null", "object", "array"), 3)
        return {keyword: [self._typed(name, depth - 1) for name in families[: self._random.randrange(1, 4)]]}

    def _limits(self, name: str) -> Schema:
        limits: Schema = {}
        for keyword in _LIMITS.get(name, ()):
            if self._random.random() < 0.3:
                limits[keyword] = self._random.randrange(0, 3) + (3 if keyword.startswith("max") else 0)
        return limits

    def _typed(self, name: str, depth: int) -> Schema:
        schema: Schema = {"type": name, **self._limits(name)}
        chance = self._random.random
        if chance() < 0.1:
            schema["title"] = self._random.choice("xyz")
        if name == "string" and chance() < 0.1:
            schema["pattern"] = self._random.choice(("^a", "b$", "a|b"))
        elif name == "string" and chance() < 0.15:
            schema["enum"] = self._random.sample(("", "a", "bb", "abab"), self._random.randrange(1, 4))
        elif name in ("integer", "number"):
            if chance() < 0.15:
                schema["multipleOf"] = self._random.choice((1, 2, 3, 4, 6))
            if chance() < 0.1 and "draft-04" not in self._draft:
                schema[self._random.choice(("exclusiveMinimum", "exclusiveMaximum"))] = self._random.randrange(0, 5)
        elif name == "object":
            self._add_object_keywords(schema, depth)
        elif name == "array":
            self._add_array_keywords(schema, depth)
        return schema

    def _add_object_keywords(self, schema: Schema, depth: int) -> None:
        chance = self._random.random
        names = self._random.sample(_NAMES, self._random.randrange(0, 4)) if depth else []
        if names:
            schema["properties"] = {name: self.schema(depth - 1) for name in names}
            required = [name for name in names if chance() < 0.3]
            if required:
                schema["required"] = required
        pick = chance()
        if pick < 0.4:
            schema["additionalProperties"] = False
        elif pick < 0.5 and depth:
            schema["additionalProperties"] = self.schema(depth - 1)
        elif pick < 0.6 and self._is_modern:
            schema["unevaluatedProperties"] = self._random.choice((False, True, self.schema(0)))
        if chance() < 0.1:
            schema["dependentRequired" if self._is_modern else "dependencies"] = {"a": self._random.sample("bcd", 1)}

    def _add_array_keywords(self, schema: Schema, depth: int) -> None:
        chance = self._random.random
        if chance() < 0.15:
            schema["uniqueItems"] = True
        if not depth:
            return
        if chance() < 0.5:
            schema["items"] = self.schema(depth - 1)
        elif chance() < 0.5:
            first, rest = ("prefixItems", "items") if self._is_newest else ("items", "additionalItems")
            schema[first] = [self.schema(depth - 1) for _ in range(self._random.randrange(1, 3))]
            if chance() < 0.6:
                schema[rest] = False if chance() < 0.5 and "draft-04" not in self._draft else self.schema(depth - 1)


class Sampler:
    """Makes documents for a schema. Some of them are not valid."""

    def __init__(self, source: random.Random, root: Schema) -> None:
        self._random = source
        self._root = root

    def document(self, schema: Any, depth: int = 6) -> Any:
        if not isinstance(schema, dict) or depth < 0:
            return self._anything()
        if "$ref" in schema:
            group = self._root.get("$defs") or self._root["definitions"]
            return self.document(group["node"], depth - 1)
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema:
                return self.document(self._random.choice(schema[keyword]), depth - 1)
        if "not" in schema or "type" not in schema:
            return self._anything()
        name = schema["type"] if isinstance(schema["type"], str) else self._random.choice(schema["type"])
        return getattr(self, f"_{name}")(schema, depth)

    def _anything(self) -> Any:
        return self._random.choice(
            ("", "a", "bbbbbbb", 0, -7, 4, 2.5, True, None, {}, {"a": 1}, {"b": "x", "c": None}, [], [1])
        )

    def _string(self, schema: Schema, depth: int) -> str:
        low = schema.get("minLength", 0)
        return "".join(self._random.choices("ab", k=self._random.randint(low, schema.get("maxLength", low + 6))))

    def _number(self, schema: Schema, depth: int) -> float:
        return self._integer(schema, depth) + self._random.choice((0, 0, 0.5))

    def _integer(self, schema: Schema, depth: int) -> int:
        low = max(schema.get("minimum", -9), schema.get("exclusiveMinimum", -9))
        high = min(schema.get("maximum", 12), schema.get("exclusiveMaximum", 12))
        return self._random.randint(low, max(low, high))

    def _boolean(self, schema: Schema, depth: int) -> bool:
        return self._random.random() < 0.5

    def _null(self, schema: Schema, depth: int) -> None:
        return None

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        document = {}
        for name, inside in schema.get("properties", {}).items():
            if name in schema.get("required", ()) or self._random.random() < 0.5:
                document[name] = self.document(inside, depth - 1)
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        for name in (*_NAMES, "extra"):
            is_needed = len(document) < schema.get("minProperties", 0)
            if (
                others is not False
                and name not in schema.get("properties", {})
                and (is_needed or self._random.random() < 0.4)
            ):
                document[name] = self.document(others, depth - 1)
        return document

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        items = schema.get("items", True)
        first = schema.get("prefixItems", items if isinstance(items, list) else [])
        others = schema.get("additionalItems", True) if isinstance(items, list) else items
        low = schema.get("minItems", 0)
        length = self._random.randint(low, max(low, min(schema.get("maxItems", 4), 4)))
        if others is False:
            length = min(length, len(first))
        return [self.document(first[i] if i < len(first) else others, depth - 1) for i in range(length)]


def relaxations(schema: Schema) -> list[Callable[[], None]]:
    """Return changes in place, each of which accepts more documents."""
    changes: list[Callable[[], None]] = []
    for keyword in ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties"):
        if keyword in schema:
            changes.append(
                lambda keyword=keyword: schema.update({keyword: max(schema[keyword] - 1, 0)} if schema[keyword] else {})
            )
    for keyword in ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties"):
        if keyword in schema:
            changes.append(lambda keyword=keyword: schema.update({keyword: schema[keyword] + 1}))
    removable = (
        *_LIMITS["string"],
        *_LIMITS["integer"],
        "pattern",
        "multipleOf",
        "uniqueItems",
        "required",
        "dependencies",
        "dependentRequired",
    )
    for keyword in removable:
        if keyword in schema:
            changes.append(lambda keyword=keyword: schema.pop(keyword))
    if schema.get("type") == "integer":
        changes.append(lambda: schema.update(type="number"))
    if schema.get("type") in ("string", "boolean", "object"):
        changes.append(lambda: schema.update(type=[schema["type"], "null"]))
    if "enum" in schema:
        changes.append(lambda: schema["enum"].append("z" * (1 + max(map(len, schema["enum"])))))
    if schema.get("additionalProperties") is False:
        changes.append(lambda: schema.pop("additionalProperties"))
    if "anyOf" in schema:
        changes.append(lambda: schema["anyOf"].append({"enum": [f"part{len(schema['anyOf'])}"]}))
    is_open = schema.get("additionalProperties", True) is True and "unevaluatedProperties" not in schema
    for name in schema.get("properties", ()) if is_open else ():
        if name not in schema.get("required", ()):
            changes.append(lambda name=name: schema["properties"].pop(name))
    return changes


def restrictions(schema: Schema) -> list[Callable[[], None]]:
    """Return changes in place, each of which rejects documents that were valid."""
    changes: list[Callable[[], None]] = []
    for keyword in ("minLength", "minItems", "minProperties"):
        if keyword in schema:
            changes.append(lambda keyword=keyword: schema.update({keyword: schema[keyword] + 1}))
    for keyword in ("maxLength", "maxItems", "maxProperties", "maximum"):
        if schema.get(keyword):
            changes.append(lambda keyword=keyword: schema.update({keyword: schema[keyword] - 1}))
    if schema.get("type") == "string":
        changes.append(lambda: schema.update({"minLength": 1} if "minLength" not in schema else {"pattern": "x"}))
    if schema.get("type") == "number":
        changes.append(lambda: schema.update(type="integer"))
    for keyword in ("type", "enum"):
        if isinstance(schema.get(keyword), list) and len(schema[keyword]) > 1:
            changes.append(schema[keyword].pop)
    if schema.get("type") == "array" and "uniqueItems" not in schema:
        changes.append(lambda: schema.update(uniqueItems=True))
    optional = sorted(set(schema.get("properties", {})) - set(schema.get("required", ())))
    if optional:
        changes.append(lambda: schema.update(required=[*schema.get("required", []), optional[0]]))
    if schema.get("type") == "object" and schema.get("additionalProperties", True) is True:
        changes.append(lambda: schema.update(additionalProperties=False))
    return changes


def places(schema: Any) -> list[Schema]:
    """Return the schema and all schemas inside of it, but those in `not`, where a restriction accepts more."""
    if not isinstance(schema, dict):
        return []
    found = [schema]
    for inside in schema.get("properties", {}).values():
        found += places(inside)
    # Not in allOf: a part can be restricted without an effect on the whole.
    for keyword in ("items", "prefixItems", "anyOf"):
        inside = schema.get(keyword)
        for each in inside if isinstance(inside, list) else [inside]:
            found += places(each)
    for part in schema.get("oneOf", ()):
        # A part that accepts more types may overlap with another one, and then oneOf accepts less.
        found += places(part)[1:]
    found += places(schema.get("additionalProperties"))
    return found


def change(
    source: random.Random, schema: Schema, changes: Callable[[Schema], list[Callable[[], None]]]
) -> Schema | None:
    """Return a copy with one of the changes at a random place; None if there is no such change."""
    copied = copy.deepcopy(schema)
    possible = [each for place in places(copied) for each in changes(place)]
    if not possible:
        return None
    source.choice(possible)()
    return copied if copied != schema else None


@dataclass
class Tally:
    pairs: int = 0
    compatible: int = 0
    documents: int = 0
    relaxed: int = 0
    restricted: int = 0
    #: incompatible pairs with a document that the reader rejects
    proven: int = 0


def reasons(writer: JsonSchema, reader: JsonSchema) -> list[str]:
    return [f"{found.kind} {found.path}" for found in reader.incompatibilities(writer)]


def check_pair(seed: int, tally: Tally) -> None:
    """Make a pair of schemas and assert what the verdict promises. The assertion names the seed."""
    source = random.Random(seed)
    draft = source.choice(DRAFTS)
    generator = Generator(source, draft)
    writer = generator.root()
    parsed = _parse(writer)
    assert reasons(parsed, parsed) == [], (seed, writer)
    normal = parsed.normalized()
    assert normal.normalized().text == normal.text, seed
    assert reasons(parsed, normal) == reasons(normal, parsed) == [], (seed, writer)

    kind = source.choice(("relaxed", "restricted", "both", "other"))
    reader: Schema | None = None
    if kind == "relaxed":
        reader = change(source, writer, relaxations)
    elif kind == "restricted":
        reader = change(source, writer, restrictions)
    elif kind == "both":
        reader = change(source, writer, lambda schema: relaxations(schema) + restrictions(schema))
        for _ in range(3):
            reader = (
                change(source, reader or writer, lambda schema: relaxations(schema) + restrictions(schema)) or reader
            )
    if reader is None:
        kind, reader = "other", generator.root()
    found = reasons(parsed, _parse(reader))
    tally.pairs += 1
    tally.compatible += not found
    if kind == "relaxed":
        tally.relaxed += 1
        assert found == [], (seed, writer, reader)
    elif kind == "restricted":
        tally.restricted += 1
        assert found != [], (seed, writer, reader)
    broken = _broken_documents(source, writer, reader, tally)
    if found:
        tally.proven += bool(broken)
    else:
        assert broken == [], (seed, writer, reader, broken)


def _parse(schema: Schema) -> JsonSchema:
    return parse(json.dumps(schema))


def _broken_documents(source: random.Random, writer: Schema, reader: Schema, tally: Tally) -> list[Any]:
    """Return documents that are valid for the writer and not for the reader."""
    validator = validators.validator_for(writer)
    for_writer, for_reader = validator(writer), validator(reader)
    sampler = Sampler(source, writer)
    broken = []
    for _ in range(6):
        document = sampler.document(writer)
        if for_writer.is_valid(document):
            tally.documents += 1
            if not for_reader.is_valid(document):
                broken.append(document)
    return broken
