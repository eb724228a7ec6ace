"""Random pairs of Avro schemas: one schema, and the same one after some changes, valid and invalid.

All randomness comes from a seed. The schemas use few names, so that names meet again: in other namespaces, as aliases,
as forward references and as second definitions.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "D", "Node")
SPACES = ("p", "p.q", "r")
FIELDS = ("a", "b", "c", "d", "key", "value", "metadata")
SYMBOLS = ("X", "Y", "Z", "W")
LOGICAL = (
    "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-nanos", "uuid", "decimal", "duration",
    "big-decimal", "map", "variant", "local-timestamp-micros", "unknown",
)  # fmt: skip
#: names that only some parsers accept
ODD_NAMES = ("é", "1a", "a-b", "", "a b", "int", "record", "p.A", ".A", "p..A", "A.", "µ1", "_")
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, 1.0, 0.5, -0.0, 1e7, 1e10, 1.25e-4, 0.001, 3.4e38,
)  # fmt: skip
TEXTS = (
    "",
    "X",
    "text",
    "1.5",
    " 2 ",
    "NaN",
    "-Infinity",
    "1e5f",
    "0x1p3",
    "ü",
    "Ж",
    'a"b\\',
    "\u0001\n\u001f/",
    "null",
)
KINDS = ("record", "record", "record", "array", "map", "union", "union", "enum", "fixed", "logical")
#: of the outermost schema of most pairs
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Pair:
    references: list[str]
    reader: str
    writer: str


def pair(seed: int) -> Pair:
    """Return the pair with this number."""
    return _Generator(seed).pair()


class _Generator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._defined: list[str] = []

    def pair(self) -> Pair:
        references = [self._text(self.schema(2)) for _ in range(self._below(3))] if self._chance(0.15) else []
        known = list(self._defined)
        writer = self.schema(_DEPTH if self._chance(0.8) else 1)
        reader = copy.deepcopy(writer)
        if self._chance(0.1):
            self._defined = known
            reader = self.schema(3)
        for _ in range(self._below(5)):
            reader = self._evolve(reader)
        if self._chance(0.15):
            reader = self._spoil(reader)
        if self._chance(0.5):
            reader, writer = writer, reader
        return Pair(references, self._text(reader), self._text(writer))

    def schema(self, depth: int) -> Any:
        """Return a schema as JSON."""
        if depth <= 0 or (depth < _DEPTH and self._chance(0.25)):
            return self._leaf()
        kind = "record" if depth == _DEPTH and self._chance(0.5) else self._choice(KINDS)
        if kind == "union":
            return self._union(depth)
        if kind in ("array", "map"):
            node = {"type": kind, "items" if kind == "array" else "values": self.schema(depth - 1)}
        elif kind == "logical":
            node = {"type": self._choice(PRIMITIVES)}
        else:
            node = self._named(kind, depth)
        self._decorate(node, kind)
        return node

    def _leaf(self) -> Any:
        if self._defined and self._chance(0.35):
            return self._choice(self._defined)
        if self._chance(0.04):
            return self._choice(NAMES)
        if self._chance(0.05):
            return {"type": self._choice((*PRIMITIVES, *NAMES))}
        return self._choice(PRIMITIVES)

    def _union(self, depth: int) -> Any:
        if self._chance(0.5):
            nullable = ["null", self.schema(depth - 1)]
            return nullable if self._chance(0.7) else nullable[::-1]
        branches: list[Any] = []
        seen: set[str] = set()
        for _ in range(self._below(5)):
            branch = self.schema(depth - 1)
            kind = branch if isinstance(branch, str) else "union" if isinstance(branch, list) else branch["type"]
            kind = branch.get("name", kind) if isinstance(branch, dict) else kind
            if (kind not in seen and kind != "union") or self._chance(0.03):
                branches.append(branch)
            seen.add(kind)
        return branches

    def _named(self, kind: str, depth: int) -> dict[str, Any]:
        name = self._choice(NAMES)
        if name in self._defined and self._chance(0.8):
            name += str(len(self._defined))
        node: dict[str, Any] = {"type": kind, "name": name}
        if self._chance(0.25):
            node["namespace"] = self._choice((*SPACES, ""))
        elif self._chance(0.1):
            node["name"] = f"{self._choice(SPACES)}.{name}"
        if self._chance(0.1):
            node["doc"] = self._choice(TEXTS)
        if self._chance(0.2):
            node["aliases"] = [self._choice((*NAMES, "p.A", ".B", "r.C")) for _ in range(1 + self._below(2))]
        if kind == "record":
            self._fill_record(node, depth)
        elif kind == "enum":
            node["symbols"] = [symbol for symbol in SYMBOLS if self._chance(0.7)]
            if node["symbols"] and self._chance(0.3):
                node["default"] = self._choice(node["symbols"])
        else:
            node["size"] = self._choice((0, 1, 4, 12, 16))
        full_name = f"{node['namespace']}.{name}" if node.get("namespace") else node["name"]
        self._defined.append(self._choice((name, full_name)))
        return node

    def _fill_record(self, node: dict[str, Any], depth: int) -> None:
        names = list(FIELDS)
        fields = []
        if self._chance(0.1):
            self._defined.append(node["name"])  # a recursive type
        for _ in range(self._below(5)):
            field: dict[str, Any] = {"name": names.pop(self._below(len(names))), "type": self.schema(depth - 1)}
            if self._chance(0.35):
                field["default"] = self._default(field["type"])
            if self._chance(0.1):
                field["doc"] = self._choice(TEXTS)
            if self._chance(0.15):
                field["aliases"] = [self._choice(FIELDS) for _ in range(1 + self._below(2))]
            if self._chance(0.1):
                field["order"] = self._choice(("ascending", "descending", "ignore", "IGNORE"))
            if self._chance(0.08):
                field["extra"] = self._value(2)
            fields.append(field)
        node["fields"] = fields
        if self._chance(0.03):
            node["type"] = "error"

    def _decorate(self, node: dict[str, Any], kind: str) -> None:
        if kind == "logical" or self._chance(0.08):
            node["logicalType"] = self._choice(LOGICAL)
            if self._chance(0.5):
                node["precision"] = self._choice((1, 4, 9, 38, 2**31, "4"))
            if self._chance(0.4):
                node["scale"] = self._choice((0, 2, 10, -1))
        if self._chance(0.08):
            node[self._choice(("x", "order", "default", "java-class", "confluent:tags"))] = self._value(2)

    def _default(self, schema: Any) -> Any:
        """Return a default that mostly fits."""
        if self._chance(0.12):
            return self._value(2)
        if isinstance(schema, list):
            return self._default(schema[0] if schema and self._chance(0.8) else self._choice(schema or ["null"]))
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null":
                return None
            case "boolean":
                return self._chance(0.5)
            case "int" | "long":
                return self._choice((0, 1, -5, 2**31, 2**31 - 1))
            case "float" | "double":
                return self._choice((*NUMBERS, "1.5", "NaN"))
            case "array":
                return [self._default(schema["items"]) for _ in range(self._below(3))]
            case "map":
                return {name: self._default(schema["values"]) for name in FIELDS[: self._below(3)]}
            case "record" | "error":
                fields = schema["fields"]
                return {each["name"]: self._default(each["type"]) for each in fields if self._chance(0.7)}
            case "enum":
                return self._choice(schema["symbols"] or ["X"])
        return self._choice(TEXTS)

    def _value(self, depth: int) -> Any:
        kind = self._below(8 if depth else 6)
        if kind == 0:
            return None
        if kind == 1:
            return self._chance(0.5)
        if kind < 4:
            return self._choice(NUMBERS)
        if kind < 6:
            return self._choice(TEXTS)
        count = self._below(3)
        if kind == 6:
            return [self._value(depth - 1) for _ in range(count)]
        return {self._choice(("b", "a", "é")): self._value(depth - 1) for _ in range(count)}

    # Changes

    def _evolve(self, root: Any) -> Any:
        """Return the schema after one change, as people make them."""
        places = _places(root)
        records = [place for place in places if isinstance(place[2], dict) and "fields" in place[2]]
        parent, key, node = self._choice(records if records and self._chance(0.4) else places)
        changed = self._changed(node)
        if changed is None:
            return root
        if parent is None:
            return changed
        parent[key] = changed
        return root

    def _changed(self, node: Any) -> Any:
        if isinstance(node, str):
            wider = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
            return self._choice((wider.get(node, "string"), ["null", node], [node], self._leaf(), self.schema(2)))
        if isinstance(node, list):
            return self._changed_union(node)
        match node["type"]:
            case "record" | "error":
                return self._changed_record(node)
            case "enum":
                symbols = node["symbols"]
                unused = [symbol for symbol in SYMBOLS if symbol not in symbols]
                if unused and self._chance(0.5):
                    symbols.insert(self._below(len(symbols) + 1), self._choice(unused))
                elif symbols:
                    symbols.pop(self._below(len(symbols)))
                if symbols and self._chance(0.3):
                    node["default"] = self._choice(symbols)
            case "fixed":
                node["size"] = self._choice((node["size"], 1, 16))
        if "name" in node and self._chance(0.4):
            self._rename(node)
        return node if self._chance(0.9) else ["null", node]

    def _changed_union(self, node: list[Any]) -> Any:
        if node and self._chance(0.4):
            node.pop(self._below(len(node)))
        elif node and self._chance(0.3):
            return node[0]
        else:
            node.insert(self._below(len(node) + 1), self.schema(1))
        return node

    def _changed_record(self, node: dict[str, Any]) -> Any:
        fields = node["fields"]
        change = self._below(7)
        if change == 0 or not fields:
            field: dict[str, Any] = {"name": self._choice((*FIELDS, "new1", "new2")), "type": self.schema(1)}
            if self._chance(0.6):
                field["default"] = self._default(field["type"])
            fields.insert(self._below(len(fields) + 1), field)
        elif change == 1:
            fields.pop(self._below(len(fields)))
        elif change == 2:
            field = self._choice(fields)
            if self._chance(0.7):
                field["aliases"] = [field["name"], *field.get("aliases", [])][: 1 + self._below(2)]
            field["name"] = self._choice((*FIELDS, "renamed"))
        elif change == 3:
            field = self._choice(fields)
            field["default"] = self._default(field["type"])
        elif change == 4:
            self._choice(fields).pop("default", None)
        elif change == 5:
            fields.append(fields.pop(0))
        else:
            self._rename(node)
        return node

    def _rename(self, node: dict[str, Any]) -> None:
        if self._chance(0.5):
            node["aliases"] = [node["name"]]
        if self._chance(0.5):
            node["name"] = self._choice((*NAMES, "Renamed"))
        else:
            node["namespace"] = self._choice((*SPACES, ""))

    def _spoil(self, root: Any) -> Any:
        """Return the schema after a change that may make it invalid."""
        parent, key, node = self._choice(_places(root))
        if not isinstance(node, dict) or self._chance(0.15):
            spoiled = self._choice(
                (None, 1, "Unknown", {}, {"type": ["int"]}, [node, node], {"type": {"type": "int"}}, [])
            )
            if parent is None:
                return spoiled
            parent[key] = spoiled
            return root
        attribute = self._choice(sorted(node))
        change = self._below(4)
        if change == 0:
            del node[attribute]
        elif change == 1:
            node[attribute] = self._choice((self._value(2), *ODD_NAMES))
        elif change == 2 and "name" in node:
            node[self._choice(("name", "namespace"))] = self._choice(ODD_NAMES)
        elif isinstance(node.get("fields"), list) and node["fields"]:
            self._spoil_field(node["fields"])
        elif isinstance(node.get("symbols"), list):
            node["symbols"].append(self._choice((*ODD_NAMES, "X", 1)))
        return root

    def _spoil_field(self, fields: list[Any]) -> None:
        field = self._choice(fields)
        attribute = self._choice(("name", "type", "default", "order", "aliases", "doc", "again"))
        if attribute == "again":
            fields.append(copy.deepcopy(field))
        elif self._chance(0.3):
            field.pop(attribute, None)
        else:
            field[attribute] = self._choice((self._value(2), *ODD_NAMES))

    # Text

    def _text(self, schema: Any) -> str:
        """Return JSON with random white space, comments and order of members."""
        style = self._below(4)
        if style == 0:
            return json.dumps(schema, ensure_ascii=False)
        if style == 1:
            return json.dumps(schema, indent=1)
        text = json.dumps(self._shuffled(schema) if style == 3 else schema, separators=(",", ":"))
        if self._chance(0.1):
            text = self._choice(("/* one { */", "// two\n", "\t\r\n")) + text
        if self._chance(0.02):
            text += self._choice((" ", "\n", "}", " // three", "\u0000", ',"x"'))
        return text

    def _shuffled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        keys = list(value)
        for index in range(len(keys) - 1, 0, -1):
            other = self._below(index + 1)
            keys[index], keys[other] = keys[other], keys[index]
        return {key: self._shuffled(value[key]) for key in keys}

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def _choice(self, values: Any) -> Any:
        return values[self._below(len(values))]


def _places(root: Any) -> list[tuple[Any, Any, Any]]:
    """Return all schemas inside of a schema, each with the object that contains it and its key there."""
    found = [(None, None, root)]
    for _, _, node in found:
        if isinstance(node, list):
            found += [(node, position, branch) for position, branch in enumerate(node)]
        elif isinstance(node, dict):
            found += [(node, key, node[key]) for key in ("items", "values") if key in node]
            fields = node.get("fields", [])
            found += [(field, "type", field["type"]) for field in fields if isinstance(field, dict) and "type" in field]
    return [
        place
        for place in found
        if isinstance(place[2], str | list) or (isinstance(place[2], dict) and place[2].get("type"))
    ]
