"""The kinds of differences between two JSON schemas, by Confluent's names, and which of them a reader tolerates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final

from ottla.schemas.json_schema.model import MISSING
from ottla.schemas.json_schema.text import JsonValue, print_json
from ottla.schemas.schema import Incompatibility

#: characters of each fragment in an incompatibility
_FRAGMENT_LENGTH_MAX: Final = 1000


class Kind(StrEnum):
    """What a change did, seen from the writer's schema (the original) to the reader's (the update)."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    ID_CHANGED = auto()
    TITLE_CHANGED = auto()
    DESCRIPTION_CHANGED = auto()
    DEFAULT_CHANGED = auto()
    SCHEMA_ADDED = auto()
    SCHEMA_REMOVED = auto()
    TYPE_EXTENDED = auto()
    TYPE_NARROWED = auto()
    TYPE_CHANGED = auto()

    MAX_LENGTH_ADDED = auto()
    MAX_LENGTH_REMOVED = auto()
    MAX_LENGTH_INCREASED = auto()
    MAX_LENGTH_DECREASED = auto()
    MIN_LENGTH_ADDED = auto()
    MIN_LENGTH_REMOVED = auto()
    MIN_LENGTH_INCREASED = auto()
    MIN_LENGTH_DECREASED = auto()
    PATTERN_ADDED = auto()
    PATTERN_REMOVED = auto()
    PATTERN_CHANGED = auto()

    MAXIMUM_ADDED = auto()
    MAXIMUM_REMOVED = auto()
    MAXIMUM_INCREASED = auto()
    MAXIMUM_DECREASED = auto()
    MINIMUM_ADDED = auto()
    MINIMUM_REMOVED = auto()
    MINIMUM_INCREASED = auto()
    MINIMUM_DECREASED = auto()
    EXCLUSIVE_MAXIMUM_ADDED = auto()
    EXCLUSIVE_MAXIMUM_REMOVED = auto()
    EXCLUSIVE_MAXIMUM_INCREASED = auto()
    EXCLUSIVE_MAXIMUM_DECREASED = auto()
    EXCLUSIVE_MINIMUM_ADDED = auto()
    EXCLUSIVE_MINIMUM_REMOVED = auto()
    EXCLUSIVE_MINIMUM_INCREASED = auto()
    EXCLUSIVE_MINIMUM_DECREASED = auto()
    MULTIPLE_OF_ADDED = auto()
    MULTIPLE_OF_REMOVED = auto()
    MULTIPLE_OF_EXPANDED = auto()
    MULTIPLE_OF_REDUCED = auto()
    MULTIPLE_OF_CHANGED = auto()

    REQUIRED_ATTRIBUTE_ADDED = auto()
    REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED = auto()
    REQUIRED_ATTRIBUTE_REMOVED = auto()
    MAX_PROPERTIES_ADDED = auto()
    MAX_PROPERTIES_REMOVED = auto()
    MAX_PROPERTIES_INCREASED = auto()
    MAX_PROPERTIES_DECREASED = auto()
    MIN_PROPERTIES_ADDED = auto()
    MIN_PROPERTIES_REMOVED = auto()
    MIN_PROPERTIES_INCREASED = auto()
    MIN_PROPERTIES_DECREASED = auto()
    ADDITIONAL_PROPERTIES_ADDED = auto()
    ADDITIONAL_PROPERTIES_REMOVED = auto()
    ADDITIONAL_PROPERTIES_EXTENDED = auto()
    ADDITIONAL_PROPERTIES_NARROWED = auto()
    UNEVALUATED_PROPERTIES_ADDED = auto()
    UNEVALUATED_PROPERTIES_REMOVED = auto()
    UNEVALUATED_PROPERTIES_EXTENDED = auto()
    UNEVALUATED_PROPERTIES_NARROWED = auto()
    DEPENDENCY_ARRAY_ADDED = auto()
    DEPENDENCY_ARRAY_REMOVED = auto()
    DEPENDENCY_ARRAY_EXTENDED = auto()
    DEPENDENCY_ARRAY_NARROWED = auto()
    DEPENDENCY_ARRAY_CHANGED = auto()
    DEPENDENCY_SCHEMA_ADDED = auto()
    DEPENDENCY_SCHEMA_REMOVED = auto()
    REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL = auto()
    REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL = auto()
    OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL = auto()
    PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()

    MAX_ITEMS_ADDED = auto()
    MAX_ITEMS_REMOVED = auto()
    MAX_ITEMS_INCREASED = auto()
    MAX_ITEMS_DECREASED = auto()
    MIN_ITEMS_ADDED = auto()
    MIN_ITEMS_REMOVED = auto()
    MIN_ITEMS_INCREASED = auto()
    MIN_ITEMS_DECREASED = auto()
    MAX_CONTAINS_ADDED = auto()
    MAX_CONTAINS_REMOVED = auto()
    MAX_CONTAINS_INCREASED = auto()
    MAX_CONTAINS_DECREASED = auto()
    MIN_CONTAINS_ADDED = auto()
    MIN_CONTAINS_REMOVED = auto()
    MIN_CONTAINS_INCREASED = auto()
    MIN_CONTAINS_DECREASED = auto()
    UNIQUE_ITEMS_ADDED = auto()
    UNIQUE_ITEMS_REMOVED = auto()
    ADDITIONAL_ITEMS_ADDED = auto()
    ADDITIONAL_ITEMS_REMOVED = auto()
    ADDITIONAL_ITEMS_EXTENDED = auto()
    ADDITIONAL_ITEMS_NARROWED = auto()
    UNEVALUATED_ITEMS_ADDED = auto()
    UNEVALUATED_ITEMS_REMOVED = auto()
    UNEVALUATED_ITEMS_EXTENDED = auto()
    UNEVALUATED_ITEMS_NARROWED = auto()
    ITEM_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL = auto()
    ITEM_ADDED_TO_CLOSED_CONTENT_MODEL = auto()
    ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL = auto()
    ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL = auto()
    ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()
    ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL = auto()

    ENUM_ARRAY_EXTENDED = auto()
    ENUM_ARRAY_NARROWED = auto()
    ENUM_ARRAY_CHANGED = auto()

    COMBINED_TYPE_EXTENDED = auto()
    COMBINED_TYPE_CHANGED = auto()
    COMBINED_TYPE_SUBSCHEMAS_CHANGED = auto()
    PRODUCT_TYPE_EXTENDED = auto()
    PRODUCT_TYPE_NARROWED = auto()
    SUM_TYPE_EXTENDED = auto()
    SUM_TYPE_NARROWED = auto()
    NOT_TYPE_EXTENDED = auto()
    NOT_TYPE_NARROWED = auto()


def _kinds(*names: str) -> frozenset[Kind]:
    return frozenset(Kind(name) for name in names)


_LIMITS: Final = ("LENGTH", "PROPERTIES", "ITEMS", "CONTAINS")
_OTHERS: Final = ("ADDITIONAL_PROPERTIES", "UNEVALUATED_PROPERTIES", "ADDITIONAL_ITEMS", "UNEVALUATED_ITEMS")

#: the differences that a reader tolerates
COMPATIBLE: Final = frozenset(
    {
        *_kinds(*(f"MAX_{limit}_{change}" for limit in _LIMITS for change in ("INCREASED", "REMOVED"))),
        *_kinds(*(f"MIN_{limit}_{change}" for limit in _LIMITS for change in ("DECREASED", "REMOVED"))),
        *_kinds(*(f"{prefix}MAXIMUM_{change}" for prefix in ("", "EXCLUSIVE_") for change in ("INCREASED", "REMOVED"))),
        *_kinds(*(f"{prefix}MINIMUM_{change}" for prefix in ("", "EXCLUSIVE_") for change in ("DECREASED", "REMOVED"))),
        *_kinds(*(f"{what}_{change}" for what in _OTHERS for change in ("ADDED", "EXTENDED"))),
        Kind.ID_CHANGED,
        Kind.TITLE_CHANGED,
        Kind.DESCRIPTION_CHANGED,
        Kind.DEFAULT_CHANGED,
        Kind.SCHEMA_REMOVED,
        Kind.TYPE_EXTENDED,
        Kind.PATTERN_REMOVED,
        Kind.MULTIPLE_OF_REDUCED,
        Kind.MULTIPLE_OF_REMOVED,
        Kind.REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED,
        Kind.REQUIRED_ATTRIBUTE_REMOVED,
        Kind.DEPENDENCY_ARRAY_NARROWED,
        Kind.DEPENDENCY_ARRAY_REMOVED,
        Kind.DEPENDENCY_SCHEMA_REMOVED,
        Kind.PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL,
        Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL,
        Kind.OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL,
        Kind.PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        Kind.PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL,
        Kind.PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        Kind.PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        Kind.UNIQUE_ITEMS_REMOVED,
        Kind.ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL,
        Kind.ITEM_ADDED_TO_CLOSED_CONTENT_MODEL,
        Kind.ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        Kind.ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL,
        Kind.ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        Kind.ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
        Kind.ENUM_ARRAY_EXTENDED,
        Kind.COMBINED_TYPE_EXTENDED,
        Kind.PRODUCT_TYPE_NARROWED,
        Kind.SUM_TYPE_EXTENDED,
        Kind.NOT_TYPE_NARROWED,
    }
)

#: with the compatibility policy LENIENT, which treats every object as closed when a property is added
COMPATIBLE_LENIENT: Final = COMPATIBLE | {
    Kind.ADDITIONAL_PROPERTIES_NARROWED,
    Kind.ADDITIONAL_PROPERTIES_REMOVED,
    Kind.UNEVALUATED_PROPERTIES_NARROWED,
    Kind.UNEVALUATED_PROPERTIES_REMOVED,
    Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL,
    Kind.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL,
    Kind.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL,
    Kind.PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
    Kind.PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, with its place relative to the pair of schemas that was compared."""

    kind: Kind
    path: tuple[str, ...]
    #: the parts of the writer's and the reader's schema; MISSING if that side has none
    original: JsonValue = MISSING
    update: JsonValue = MISSING

    @property
    def place(self) -> str:
        """The path as Confluent prints it: names are not escaped, and the root is "#/"."""
        return "#/" + "/".join(self.path)

    def as_incompatibility(self) -> Incompatibility:
        return Incompatibility(
            kind=self.kind,
            path=self.place,
            description=_describe(self.kind, self.place),
            reader_fragment=_fragment(self.update),
            writer_fragment=_fragment(self.original),
        )


#: words of a kind -> what the reader's schema does; the first entry whose words are in the name counts
_DESCRIPTIONS: Final[Sequence[tuple[str, str]]] = (
    ("PROPERTY_ADDED_TO_OPEN", "defines a property that the writer's schema allows with any value"),
    ("WITH_DEFAULT_ADDED_TO_OPEN", "defines a property that the writer's schema allows with any value"),
    ("ITEM_ADDED_TO_OPEN", "defines an item that the writer's schema allows with any value"),
    ("REQUIRED_PROPERTY_ADDED", "requires a property that the writer's schema does not define"),
    ("REMOVED_FROM_CLOSED", "has a closed content model without a property or item of the writer's schema"),
    ("REMOVED_NOT_COVERED", "has no schema that accepts a property or item of the writer's schema"),
    ("ADDED_NOT_COVERED", "defines a property or item more narrowly than the additional ones of the writer's schema"),
    ("REQUIRED_ATTRIBUTE_ADDED", "requires a property that is optional in the writer's schema"),
    ("ADDITIONAL_PROPERTIES_REMOVED", "forbids additional properties, which the writer's schema allows"),
    ("UNEVALUATED_PROPERTIES_REMOVED", "forbids unevaluated properties, which the writer's schema allows"),
    ("ADDITIONAL_ITEMS_REMOVED", "forbids additional items, which the writer's schema allows"),
    ("UNEVALUATED_ITEMS_REMOVED", "forbids unevaluated items, which the writer's schema allows"),
    ("COMBINED_TYPE_CHANGED", "combines schemas with another keyword than the writer's schema"),
    ("SUBSCHEMAS_CHANGED", "combines schemas that do not accept those of the writer's schema"),
    ("PRODUCT_TYPE_EXTENDED", "combines more schemas than the writer's schema"),
    ("SUM_TYPE_NARROWED", "has fewer alternatives than the writer's schema"),
    ("NOT_TYPE_EXTENDED", "excludes more values than the writer's schema"),
    ("ENUM_ARRAY", "does not list all values of the writer's schema"),
    ("TYPE_", "has a type that does not accept all values of the writer's type"),
    ("SCHEMA_ADDED", "has a schema that the writer's schema does not have"),
    ("_INCREASED", "has a larger value than the writer's schema"),
    ("_DECREASED", "has a smaller value than the writer's schema"),
    ("_NARROWED", "is narrower than the writer's schema"),
    ("_EXTENDED", "has more elements than the writer's schema"),
    ("_ADDED", "has a keyword that the writer's schema does not have"),
    ("", "has another value than the writer's schema"),
)


def _describe(kind: Kind, place: str) -> str:
    return next(f"the reader's schema {text}, at {place}" for words, text in _DESCRIPTIONS if words in kind)


def _fragment(value: JsonValue) -> str:
    return "" if value is MISSING else print_json(value, _FRAGMENT_LENGTH_MAX)
