"""The text of a parsed schema, equal to the one that Java's Schema.toString returns."""

from __future__ import annotations

from ottla.schemas.avro.json_text import quote, write
from ottla.schemas.avro.nodes import Container, Enum, Field, Fixed, Named, Node, NoDefault, Record, Union
from ottla.schemas.schema import DEPTH_MAX, Budget, SchemaTooComplex


def schema_text(root: Node, budget: Budget, known_names: frozenset[str] = frozenset()) -> str:
    """Return the text. Types in `known_names`, and types that were written before, are written as names.

    Raise SchemaTooComplex if definitions inside of each other are too deep.
    """
    printer = Printer(set(known_names), budget)
    printer.node(root, None)
    return "".join(printer.parts)


class Printer:
    """Appends the text of nodes to `parts`. The normal form is a subclass."""

    __slots__ = ("_budget", "_depth", "known", "parts")

    def __init__(self, known: set[str], budget: Budget) -> None:
        #: names of types that are not written out again
        self.known = known
        self._budget = budget
        self._depth = 0
        self.parts: list[str] = []

    def node(self, node: Node, space: str | None) -> None:
        """Append the text of a node that stands inside of the namespace `space`."""
        parts = self.parts
        self._budget.spend()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SchemaTooComplex(f"definitions are nested more than {DEPTH_MAX} levels deep")
        if isinstance(node, Named):
            self.named(node, space)
        elif isinstance(node, Union):
            separator = "["
            for branch in node.branches:
                parts.append(separator)
                separator = ","
                self.node(branch, space)
            parts.append("]" if node.branches else "[]")
        elif isinstance(node, Container):
            parts.append(f'{{"type":"{node.type}","{node.attribute}":')
            self.node(node.items, space)
            self.attributes(node)
            parts.append("}")
        elif node.properties:
            parts.append(f'{{"type":"{node.type}"')
            self.attributes(node)
            parts.append("}")
        else:
            parts.append(f'"{node.type}"')
        self._depth -= 1

    def named(self, node: Named, space: str | None) -> None:
        name, parts = node.name, self.parts
        if name.full in self.known:
            parts.append(quote(name.qualified(space)))
            return
        self.known.add(name.full)
        type_name = "error" if isinstance(node, Record) and node.is_error else node.type
        parts.append(f'{{"type":"{type_name}","name":{quote(name.name)}')
        if name.space != space:
            parts.append(f',"namespace":{quote(name.space or "")}')
        if node.doc is not None:
            parts.append(f',"doc":{quote(node.doc)}')
        if isinstance(node, Record):
            separator = ',"fields":['
            for field in node.fields:
                parts.append(f'{separator}{{"name":{quote(field.name)},"type":')
                separator = ","
                self.node(field.type, name.space)
                self._end_of_field(field)
            parts.append("]" if node.fields else ',"fields":[]')
        elif isinstance(node, Enum):
            parts.append(f',"symbols":[{",".join(map(quote, node.symbols))}]')
            if node.default is not None:
                parts.append(f',"default":{quote(node.default)}')
        elif isinstance(node, Fixed):
            parts.append(f',"size":{node.size}')
        self.attributes(node)
        if node.aliases:
            aliases = ",".join([quote(alias.qualified(name.space)) for alias in node.aliases])
            parts.append(f',"aliases":[{aliases}]')
        parts.append("}")

    def _end_of_field(self, field: Field) -> None:
        parts = self.parts
        if field.doc is not None:
            parts.append(f',"doc":{quote(field.doc)}')
        if not isinstance(field.default, NoDefault):
            parts.append(f',"default":{write(field.default)}')
        if field.order != "ascending":
            parts.append(f',"order":"{field.order}"')
        if field.aliases:
            parts.append(f',"aliases":[{",".join(map(quote, field.aliases))}]')
        self.attributes(field)
        parts.append("}")

    def attributes(self, owner: Node | Field) -> None:
        """Append the attributes that Avro does not define."""
        for key, value in owner.properties.items():
            self.parts.append(f",{quote(key)}:{write(value)}")
