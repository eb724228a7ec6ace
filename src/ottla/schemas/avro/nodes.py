"""The nodes of a parsed Avro schema.

Each mention of a primitive, array, map or union in the text is a node of its own. A record, enum or fixed is one node
that all mentions of its name share, so the nodes of a recursive schema form a cycle. The comparison of schemas
remembers pairs of nodes by their identity, as Java does, and its answers depend on that.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

from ottla.schemas.avro.json_text import Json

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: names that always mean a type of Avro, so that a type with such a name is written with its namespace
TYPE_NAMES: Final = PRIMITIVES | {"record", "enum", "array", "map", "union", "fixed"}

Properties: TypeAlias = dict[str, Json]
#: shared by all nodes without properties; never changed
NO_PROPERTIES: Final[Properties] = {}


class Name:
    """A name with its namespace (None: no namespace) and both together."""

    __slots__ = ("full", "name", "space")

    def __init__(self, name: str, space: str | None) -> None:
        """`name` may contain its namespace, which then replaces `space`."""
        dot = name.rfind(".")
        if dot >= 0:
            name, space = name[dot + 1 :], name[:dot]
        self.name = name
        self.space = space or None
        self.full = f"{space}.{name}" if space else name

    def qualified(self, space: str | None) -> str:
        """Return the name as it is written inside of the namespace `space`."""
        return (
            self.name if self.space is not None and self.space == space and self.name not in TYPE_NAMES else self.full
        )


class Node:
    """A primitive type; the other types are subclasses."""

    __slots__ = ("logical_type", "properties", "type")

    def __init__(self, type_name: str) -> None:
        self.type = type_name
        #: attributes that Avro does not define, in the order of the text; also the attributes of logical types
        self.properties = NO_PROPERTIES
        #: a logical type that is valid for this type; None also if the property names an invalid one
        self.logical_type: str | None = None

    def children(self) -> list[Node]:
        """Return the types inside of this one, in the order of the text."""
        return []


class Container(Node):
    """An array or a map: a type of any number of items of one type."""

    __slots__ = ("items",)

    type_name: ClassVar[str]
    #: the attribute that has the type of the items
    attribute: ClassVar[str]

    def __init__(self, items: Node) -> None:
        super().__init__(self.type_name)
        self.items = items

    def children(self) -> list[Node]:
        return [self.items]


class Array(Container):
    __slots__ = ()
    type_name, attribute = "array", "items"


class Map(Container):
    __slots__ = ()
    type_name, attribute = "map", "values"


class Union(Node):
    __slots__ = ("branches",)

    def __init__(self, branches: list[Node]) -> None:
        super().__init__("union")
        self.branches = branches

    def children(self) -> list[Node]:
        return self.branches


class Named(Node):
    """A record, enum or fixed."""

    __slots__ = ("aliases", "doc", "name")

    def __init__(self, type_name: str, name: Name, doc: str | None) -> None:
        super().__init__(type_name)
        self.name = name
        self.doc = doc
        #: without duplicates
        self.aliases: tuple[Name, ...] = ()

    def alias_texts(self) -> set[str]:
        """Return the full names of the aliases; one without a namespace begins with a dot if this type has one."""
        own = self.name.space
        return {f".{alias.name}" if alias.space is None and own is not None else alias.full for alias in self.aliases}


class Fixed(Named):
    __slots__ = ("size",)

    def __init__(self, name: Name, doc: str | None, size: int) -> None:
        super().__init__("fixed", name, doc)
        self.size = size


class Enum(Named):
    __slots__ = ("default", "symbols")

    def __init__(self, name: Name, doc: str | None, symbols: list[str], default: str | None) -> None:
        super().__init__("enum", name, doc)
        self.symbols = symbols
        self.default = default


class NoDefault:
    """The default of a field that has none; null is a default."""

    __slots__ = ()


NO_DEFAULT: Final = NoDefault()


class Field:
    """A field of a record."""

    __slots__ = ("aliases", "default", "doc", "name", "order", "properties", "type")

    def __init__(self, name: str, type_: Node, doc: str | None, default: Json | NoDefault, order: str) -> None:
        self.name = name
        self.type = type_
        self.doc = doc
        self.default = default
        #: ascending, descending or ignore
        self.order = order
        #: without duplicates
        self.aliases: tuple[str, ...] = ()
        self.properties = NO_PROPERTIES


class Record(Named):
    __slots__ = ("fields", "fields_by_name", "is_error")

    def __init__(self, name: Name, doc: str | None, fields: list[Field], is_error: bool) -> None:
        super().__init__("record", name, doc)
        self.fields = fields
        self.fields_by_name = {field.name: field for field in fields}
        self.is_error = is_error

    def children(self) -> list[Node]:
        return [field.type for field in self.fields]


class Unresolved(Node):
    """A name that was used before its definition. The parser replaces it before the schema is complete."""

    __slots__ = ("full_name", "target", "written")

    def __init__(self, full_name: str, written: str) -> None:
        super().__init__("record")
        self.full_name = full_name
        #: the definition, when the text is read to its end
        self.target: Named | None = None
        #: the name as it stands in the text
        self.written = written
