"""The declarations of message classes: their fields, and the versions of each field.

A class under `ottla.wire.messages` covers every version of one Kafka struct. It declares each field once:

    class MetadataResponseBroker(Struct):
        node_id: int = field("int32", (0, 13), default=0)
        rack: str | None = field("string", (1, 13), nullable_versions=(1, 13), default=None)

From the declarations the class gets `__slots__`, FIELDS (which field exists in which version, and how it is written)
and `__init__` with one keyword parameter per field. `ottla.wire.codec_source` builds encoders and decoders from FIELDS.
Type checkers and editors know the attributes and the parameters of `__init__` by `dataclass_transform`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform, overload

#: Kafka's "no id": what a version without topic ids, or an unknown topic, has in a uuid field.
ZERO_UUID: Final = bytes(16)

#: FLEXIBLE_FROM of an API that has no version with compact lengths and tagged fields.
NEVER_FLEXIBLE: Final = 1 << 15

_Versions: TypeAlias = tuple[int, int]
_T = TypeVar("_T")
_S = TypeVar("_S", bound="Struct")


class Array(NamedTuple):
    """The type of a field that holds a sequence."""

    element: str | type[Struct]


#: A primitive by its Kafka name ("int32", "string", "records", ...), a nested struct, or an array of either.
FieldType: TypeAlias = "str | type[Struct] | Array"


class Field(NamedTuple):
    """One field of a struct over all versions. Version ranges include both ends."""

    name: str
    type: FieldType
    versions: _Versions
    #: Where null may stand on the wire; None if nowhere.
    nullable_versions: _Versions | None = None
    #: Number of the tagged field, in the versions of `tag_versions`; elsewhere the field is positional.
    tag: int | None = None
    tag_versions: _Versions | None = None
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
        """Return whether this is a struct that is always there: it has neither a null nor a tag to be absent by."""
        return isinstance(self.type, type) and self.nullable_versions is None and self.tag is None


class _Declaration(tuple[Any, ...]):
    """The arguments of `field` in a class body: the members of Field after the name."""

    __slots__ = ()


class _Fields:
    """The attribute FIELDS of a class until its first use: codecs need it for few of the classes that are imported."""

    def __init__(self, declared: dict[str, _Declaration]) -> None:
        self._declared = declared

    def __get__(self, instance: object, cls: type[Struct]) -> tuple[Field, ...]:
        cls.FIELDS = tuple(Field(name, *declaration) for name, declaration in self._declared.items())
        return cls.FIELDS


@overload
def field(
    wire_type: FieldType,
    versions: _Versions,
    *,
    default: _T,
    nullable_versions: _Versions | None = None,
    tag: int | None = None,
    tag_versions: _Versions | None = None,
) -> _T: ...


@overload
def field(wire_type: type[_S], versions: _Versions, *, default_factory: Callable[[], _S]) -> _S: ...


def field(
    wire_type: FieldType,
    versions: _Versions,
    *,
    default: Any = None,
    default_factory: Any = None,
    nullable_versions: _Versions | None = None,
    tag: int | None = None,
    tag_versions: _Versions | None = None,
) -> Any:
    """Declare a field of a struct. `default_factory` is the class of a struct that is always there."""
    return _Declaration((wire_type, versions, nullable_versions, tag, tag_versions, default))


def _init_first_object(self: Any, **values: Any) -> None:
    """Be the `__init__` of a class until its first object is made.

    It is compiled only then, because a process makes objects of few of the classes that it imports: most classes are
    never used, and a decoder makes objects without `__init__`.
    """
    cls = type(self)
    cls.__init__ = _compile_init(cls)
    cls.__init__(self, **values)


def _compile_init(cls: type[Struct]) -> Callable[..., None]:
    """Return an `__init__` with one keyword parameter for each field."""
    names: dict[str, Any] = {}
    parameters, lines = ["self"], []
    for each in cls.FIELDS:
        value = each.name
        if each.is_required_struct():
            names[each.type.__name__] = each.type  # type: ignore[union-attr]
            value = f"{each.type.__name__}() if {each.name} is None else {each.name}"  # type: ignore[union-attr]
        parameters.append(f"{each.name}={each.default!r}")
        lines.append(f"    self.{each.name} = {value}")
    if lines:
        parameters.insert(1, "*")
    source = "\n".join([f"def __init__({', '.join(parameters)}):", *(lines or ["    pass"])])
    # The text is made from the declarations of a class only.
    exec(compile(source, f"<{cls.__name__}>", "exec"), names)  # noqa: S102
    compiled: Callable[..., None] = names["__init__"]
    return compiled


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class StructType(type):
    """Turns the field declarations of a class into `__slots__` and FIELDS."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> StructType:
        declared = {key: value for key, value in namespace.items() if type(value) is _Declaration}
        if declared:
            for key in declared:
                del namespace[key]
            namespace["FIELDS"] = _Fields(declared)
        namespace.setdefault("__slots__", tuple(declared))
        namespace.setdefault("__init__", _init_first_object)
        return super().__new__(mcs, name, bases, namespace, **keywords)


class Struct(metaclass=StructType):
    """Parent of every message class; two structs are equal when all their fields are."""

    #: In wire order; tagged fields stand among the others, where Kafka's schema has them.
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    # Structs are mutable, so equal ones may stop being equal: they are no dictionary keys.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, each.name), getattr(other, each.name)) for each in type(self).FIELDS)

    def __repr__(self) -> str:
        values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in type(self).FIELDS)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """A whole request or response body; the structs nested in it are plain Structs."""

    API_KEY: ClassVar[int]
    #: First and last version that can be encoded and decoded, both included.
    VERSIONS: ClassVar[_Versions]
    #: First version with compact lengths and tagged fields.
    FLEXIBLE_FROM: ClassVar[int]

    def __init_subclass__(
        cls, *, api_key: int = -1, versions: _Versions = (0, -1), flexible_from: int = NEVER_FLEXIBLE
    ) -> None:
        """A message that is no body of an API has no key; one that is never sent has no version."""
        cls.API_KEY = api_key
        cls.VERSIONS = versions
        cls.FLEXIBLE_FROM = flexible_from


class Api(NamedTuple):
    """Where the classes of one API are, and what can be said of it without importing them."""

    #: Module under `ottla.wire.messages`.
    module: str
    #: Class names are this plus "Request" and "Response".
    name: str
    versions: _Versions
    flexible_from: int


def _same(left: object, right: object) -> bool:
    """Equality of two field values; a list equals a tuple with the same elements."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right
