"""The normal form of a schema, as Confluent's registry defines it.

Names are written in full, members in a fixed order, properties and aliases sorted. The text is parsed again afterwards,
so that a normalised schema is printed like every other one. Some schemas have no normal form, because Java cannot
convert a default or a property of theirs; they are invalid if they are to be normalised.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.schemas.avro.json_text import LONG_MAX, LONG_MIN, Json, double_text, float_text, quote, write
from ottla.schemas.avro.logical_types import first_properties
from ottla.schemas.avro.nodes import Array, Enum, Field, Fixed, Map, Named, Node, NoDefault, Properties, Record, Union
from ottla.schemas.avro.printer import Printer
from ottla.schemas.avro.problem import Problem
from ottla.schemas.schema import Budget


def normal_text(root: Node, known_names: Iterable[str], budget: Budget) -> str:
    """Return the text of the normal form; types in `known_names` are written as names. Raise InvalidSchema."""
    writer = _NormalPrinter(set(known_names), budget)
    try:
        writer.node(root, None)
    except Problem as problem:
        problem.inside("normalisation")
        raise problem.as_invalid_schema() from None
    return "".join(writer.parts)


class _NormalPrinter(Printer):
    __slots__ = ()

    def named(self, node: Named, space: str | None) -> None:
        # Java writes names without escape sequences; a name that would need one makes the text invalid.
        parts, name = self.parts, node.name.full
        if name in self.known:
            parts.append(f'"{name}"')
            return
        self.known.add(name)
        parts.append(f'{{"name":"{name}","type":"{node.type}"')
        if isinstance(node, Enum):
            symbols = ",".join([f'"{symbol}"' for symbol in node.symbols])
            parts.append(f',"symbols":[{symbols}]')
        elif isinstance(node, Fixed):
            parts.append(f',"size":{node.size}')
        elif isinstance(node, Record):
            parts.append(',"fields":[')
            for position, field in enumerate(node.fields):
                parts.append(f'{"," if position else ""}{{"name":"{field.name}","type":')
                self.node(field.type, None)
                self._end_of_field(field)
            parts.append("]")
        self._logical_type(node)
        if node.doc:
            parts.append(f',"doc":{quote(node.doc)}')
        if node.aliases:
            parts.append(f',"aliases":[{",".join(map(quote, _sorted(node.alias_texts())))}]')
        if isinstance(node, Enum) and node.default is not None:
            parts.append(f',"default":{quote(node.default)}')
        self._properties(node.properties)
        parts.append("}")

    def _end_of_field(self, field: Field) -> None:
        parts = self.parts
        parts.append(f',"order":"{field.order}"')
        if field.doc is not None:
            parts.append(f',"doc":{quote(field.doc)}')
        if field.aliases:
            parts.append(f',"aliases":[{",".join(map(quote, _sorted(field.aliases)))}]')
        if isinstance(field.type, Union) and not field.type.branches:
            raise Problem(f"field {field.name}: a union without branches has no normal form")
        if not isinstance(field.default, NoDefault):
            default = _typed_text(field.default, field.type)
            if default is not None:
                parts.append(f',"default":{default}')
        self._properties(field.properties)
        parts.append("}")

    def attributes(self, owner: Node | Field) -> None:
        if isinstance(owner, Node):
            self._logical_type(owner)
        self._properties(owner.properties)

    def _logical_type(self, node: Node) -> None:
        if node.logical_type is not None:
            for key, value in first_properties(node).items():
                self.parts.append(f',"{key}":{write(value)}')

    def _properties(self, properties: Properties) -> None:
        for key in _sorted(properties):
            text = _typed_text(properties[key], None)
            if text is None:
                raise Problem(f"the property {key} has an integer of more than 64 bits")
            self.parts.append(f',"{key}":{text}')


def _typed_text(value: Json, node: Node | None) -> str | None:
    """Return a value as JSON after Java has converted it to an object of the type `node` (None: of its own type).

    Return None where the conversion gives Java's null, which is no value: a default disappears then. Raise Problem if
    the conversion fails.
    """
    if isinstance(node, Union):
        if not node.branches:
            raise Problem("a union without branches has no normal form")
        node = node.branches[0]
    if value is None or isinstance(value, bool):
        return write(value)
    if isinstance(value, int):
        return _integer_text(value, node)
    if isinstance(value, float):
        if node is None or node.type == "double":
            return double_text(value)
        return float_text(value) if node.type == "float" else None
    if isinstance(value, str):
        if node is None or node.type in ("string", "enum"):
            return quote(value)
        if node.type in ("bytes", "fixed"):
            return quote(value.encode("latin-1", "replace").decode("latin-1"))
        return None
    if isinstance(value, list):
        return f"[{','.join([_member_text(item, _item_type(node)) for item in value])}]"
    members = [f"{quote(key)}:{_member_text(value[key], _member_type(node, key))}" for key in _sorted(value)]
    return "{" + ",".join(members) + "}"


def _integer_text(value: int, node: Node | None) -> str | None:
    if not LONG_MIN <= value <= LONG_MAX:
        return None
    if node is None or node.type in ("int", "long"):
        return str(value)
    if node.type == "double":
        return double_text(float(value))
    return float_text(float(value)) if node.type == "float" else None


def _member_text(value: Json, node: Node | None) -> str:
    text = _typed_text(value, node)
    if text is None:
        raise Problem(f"{write(value)[:40]} cannot be converted to the type of its place")
    return text


def _item_type(node: Node | None) -> Node | None:
    if node is None or isinstance(node, Array):
        return None if node is None else node.items
    raise Problem(f"a list is a default of type {node.type}")


def _member_type(node: Node | None, key: str) -> Node | None:
    if isinstance(node, Map):
        return node.items
    if isinstance(node, Record):
        if key not in node.fields_by_name:
            raise Problem(f"a default has the member {key}, which is no field of record {node.name.full}")
        return node.fields_by_name[key].type
    return None


def _sorted(texts: Iterable[str]) -> list[str]:
    """Sort as Java does, by units of 16 bits."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
