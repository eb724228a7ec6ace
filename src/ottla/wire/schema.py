"""The vocabulary of message schemas: what a generated message class is made of.

A class under `ottla.wire.messages` covers every version of one Kafka struct. Its FIELDS table says which
field exists in which version and how it is written; `ottla.wire.codec` builds its encoders and decoders
from that table, so the generated classes carry data only.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, TypeAlias

#: Kafka's "no id": what a version without topic ids, or an unknown topic, has in a uuid field.
ZERO_UUID: Final = bytes(16)

#: FLEXIBLE_FROM of an API that has no version with compact lengths and tagged fields.
NEVER_FLEXIBLE: Final = 1 << 15


class Struct:
    """Parent of every generated class; two structs are equal when all their fields are."""

    __slots__ = ()

    #: In wire order; tagged fields stand among the others, where Kafka's schema has them.
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    # Structs are mutable, so equal ones may stop being equal: they are no dictionary keys.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in type(self).FIELDS)

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in type(self).FIELDS)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """A whole request or response body; the structs nested in it are plain Structs."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    #: First and last version that can be encoded and decoded, both included.
    VERSIONS: ClassVar[tuple[int, int]]
    #: First version with compact lengths and tagged fields.
    FLEXIBLE_FROM: ClassVar[int]


class Array(NamedTuple):
    """The type of a field that holds a sequence."""

    element: str | type[Struct]


#: A primitive by its Kafka name ("int32", "string", "records", ...), a nested struct, or an array of either.
FieldType: TypeAlias = str | type[Struct] | Array


class Field(NamedTuple):
    """One field of a struct over all versions. Version ranges include both ends."""

    name: str
    type: FieldType
    versions: tuple[int, int]
    #: Where null may stand on the wire; None if nowhere.
    nullable_versions: tuple[int, int] | None = None
    #: Number of the tagged field, in the versions of `tag_versions`; elsewhere the field is positional.
    tag: int | None = None
    tag_versions: tuple[int, int] | None = None
    #: The value where a version lacks the field, or a tagged field was not sent. For a nested struct it is
    #: None: a tagged struct that was not sent is None, any other is a struct of defaults.
    default: int | float | str | bytes | tuple[()] | None = None

    def is_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        nullable = self.nullable_versions
        return nullable is not None and nullable[0] <= version <= nullable[1]

    def is_tagged_in(self, version: int) -> bool:
        tagged = self.tag_versions
        return tagged is not None and tagged[0] <= version <= tagged[1]

    def is_required_struct(self) -> bool:
        """Whether this is a struct that is always there: it has neither a null nor a tag to be absent by."""
        return isinstance(self.type, type) and self.nullable_versions is None and self.tag is None


class Api(NamedTuple):
    """Where the classes of one API are, and what can be said of it without importing them."""

    #: Module under `ottla.wire.messages`.
    module: str
    #: Class names are this plus "Request" and "Response".
    name: str
    versions: tuple[int, int]
    flexible_from: int


def _same(left: object, right: object) -> bool:
    """Equality of two field values; a list equals a tuple with the same elements."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right
