"""What every schema format offers: a parsed schema that can be printed, normalised and compared.

The three formats are `schemas/avro`, `schemas/json_schema` and `schemas/protobuf`; `schemas/formats.py` chooses one of
them. The words are those of Confluent's schema registry, because its clients and its stored topic are the contract:

- The *canonical text* is what the registry stores and returns: the text without insignificant white space for Avro and
  JSON Schema, the text in one layout for Protobuf. Two schemas with the same canonical text get the same id.
- A *normalised* schema also has its members in a fixed order, so that texts that mean the same become equal.
- A *reader* can read a *writer*'s data if `reader.incompatibilities(writer)` is empty. BACKWARD compatibility means
  that the new schema is the reader; FORWARD means that it is the writer.

The cost of a hostile schema is limited: each format counts its steps against a `Budget` and raises `SchemaTooComplex`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Self

from ottla.model.errors import OttlaError

#: nested definitions; the deepest schemas in use have about 30
DEPTH_MAX: Final = 200
#: bytes of one schema's text, together with its references
TEXT_BYTES_MAX: Final = 8 << 20
#: steps of one parse, normalisation or comparison: about 2 s of one core
STEPS_MAX: Final = 1_000_000


class SchemaType(StrEnum):
    """The formats, by the names of the registry's field `schemaType`."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class InvalidSchema(OttlaError):
    """The text is not a valid schema; the message says where and why."""


class SchemaTooComplex(InvalidSchema):
    """The schema exceeds a limit of depth, size or work."""


class AllowanceSpent(Exception):
    """The steps of `steps_allowed` are spent. The caller can do the work again where it may take longer."""


class UnknownFormat(OttlaError):
    """A schema of this type cannot be printed in the requested format."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another schema uses under `name`: one version of a subject."""

    name: str
    subject: str
    #: -1 stands for the latest version
    version: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """The references of a schema together with the text of each one, and of each one's own references.

    `texts` is in the order in which they must be parsed: a schema comes after the schemas that it refers to.
    """

    references: tuple[Reference, ...] = ()
    #: name of the reference -> text of the schema
    texts: Mapping[str, str] = field(default_factory=dict)


NO_REFERENCES: Final = Resolved()


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a reader cannot read a writer's data."""

    #: Confluent's name of the reason, such as READER_FIELD_MISSING_DEFAULT_VALUE
    kind: str
    #: where in the schema, as a JSON pointer or as Confluent prints it for this format
    path: str
    description: str
    #: the parts of both schemas that do not fit; "" if that side has none
    reader_fragment: str = ""
    writer_fragment: str = ""


class Budget:
    """Counts the steps of one operation. Raise SchemaTooComplex when `steps_max` is exceeded.

    The operations of a request share the steps of `steps_allowed`, if there is such a block.
    """

    __slots__ = ("_error", "_left", "_steps_max")

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._left = self._steps_max = steps_max
        self._error: type[Exception] = SchemaTooComplex
        allowance = _ALLOWANCE.get()
        if allowance is not None:
            allowance.limit(self)

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise self._error(
                f"the schema takes more than {self._steps_max:,} steps to process; split it into smaller ones"
            )

    def lower(self, steps_max: int, error: type[Exception]) -> None:
        """Lower the limit to this number of steps, and raise this error when they are spent."""
        if steps_max < self._left:
            self._left = self._steps_max = max(steps_max, 0)
            self._error = error

    @property
    def spent(self) -> int:
        return self._steps_max - self._left


class _Allowance:
    """The steps of one `steps_allowed` block."""

    def __init__(self, steps: int, error: type[Exception]) -> None:
        self._left = steps
        self._error = error
        #: the operation in progress; operations follow one another
        self._budget: Budget | None = None

    def limit(self, budget: Budget) -> None:
        """Limit an operation to the steps that earlier ones have left."""
        if self._budget is not None:
            self._left -= self._budget.spent
        self._budget = budget
        budget.lower(self._left, self._error)


_ALLOWANCE: ContextVar[_Allowance | None] = ContextVar("steps_allowed", default=None)


@contextmanager
def steps_allowed(steps: int, error: type[Exception] = SchemaTooComplex) -> Iterator[None]:
    """Limit the steps that all operations of the block take together. More: raise ``error``."""
    token = _ALLOWANCE.set(_Allowance(steps, error))
    try:
        yield
    finally:
        _ALLOWANCE.reset(token)


class ParsedSchema(ABC):
    """A valid schema of one format. Immutable."""

    schema_type: ClassVar[SchemaType]

    #: each format sets them
    _text: str
    _resolved: Resolved

    @property
    def text(self) -> str:
        """The canonical text."""
        return self._text

    @property
    def resolved(self) -> Resolved:
        """The references and their texts, as given to `parse`."""
        return self._resolved

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The full name of the record (Avro), the title (JSON Schema) or the first message (Protobuf)."""

    @abstractmethod
    def normalized(self) -> Self:
        """Return the schema in its normal form; equal meanings have equal texts."""

    @abstractmethod
    def formatted(self, format_name: str) -> str:
        """Return the text in the format that the parameter `format` of the registry's routes names; "" is canonical.

        Raise UnknownFormat if this type has no such format.
        """

    @abstractmethod
    def incompatibilities(self, writer: ParsedSchema, *, lenient: bool = False) -> list[Incompatibility]:
        """Return the reasons why this schema, as the reader, cannot read what `writer` wrote; none if it can.

        :param lenient: the compatibility policy LENIENT, which only JSON Schema has.
        """

    @abstractmethod
    def is_equivalent(self, other: ParsedSchema) -> bool:
        """Return whether a lookup of this schema finds `other`, although their texts may differ.

        A schema with all references expanded is equivalent to the same schema with references, for instance.
        """

    @abstractmethod
    def tags(self) -> frozenset[str]:
        """Return the tags inside of the schema (Confluent's `confluent:tags`)."""

    @abstractmethod
    def tagged_entities(self) -> Mapping[Entity, frozenset[str]]:
        """Return the tags of each record and field that has some, as `with_tags` takes them."""

    @abstractmethod
    def with_tags(self, add: Mapping[Entity, frozenset[str]], remove: Mapping[Entity, frozenset[str]]) -> Self:
        """Return the schema with tags added to and removed from its records and fields.

        Raise InvalidSchema if the schema has no such record or field.
        """

    @abstractmethod
    def has_top_level_field(self, name: str) -> bool:
        """Return whether the outermost record, object or message has this field."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A record or field that tags are attached to: Confluent's entityType (sr_record, sr_field) and entityPath."""

    kind: str
    path: str
