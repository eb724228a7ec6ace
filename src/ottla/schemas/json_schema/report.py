"""The state of the comparison of one pair of schemas: its two sides, and the differences that it found."""

from __future__ import annotations

from collections.abc import Generator, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ottla.schemas.json_schema.differences import Difference, Kind
from ottla.schemas.json_schema.model import MISSING, ArrayNode, EmptyNode, FalseNode, Node, ObjectNode
from ottla.schemas.json_schema.nodes import SchemaNodes
from ottla.schemas.json_schema.patterns import Patterns
from ottla.schemas.json_schema.text import JsonValue
from ottla.schemas.schema import Budget

#: differences that are kept for one pair; more would not help a user, and references can multiply them
_DIFFERENCES_MAX: Final = 250

#: what unevaluated properties or items may be, from nothing to everything
_CLOSED: Final = 0
_SCHEMA: Final = 1
_EMPTY: Final = 2
_ABSENT: Final = 3

#: a pattern that RE2 does not support may or may not accept a property
UNDECIDED: Final = object()


class Pair(NamedTuple):
    """Two schemas to compare: the writer's and the reader's. None: that side has no schema there."""

    original: Node | None
    update: Node | None
    #: inside of `not` the writer's and the reader's schema change places
    is_swapped: bool = False


Differences: TypeAlias = Sequence[Difference]
Steps: TypeAlias = Generator[Pair, Differences, None]
#: a node whose content model is open, closed or partially open
ContentModel: TypeAlias = ObjectNode | ArrayNode


@dataclass(slots=True, eq=False)
class Side:
    """The schema of the writer or of the reader."""

    nodes: SchemaNodes
    patterns: Patterns


def change(original: object, update: object) -> str:
    """Return how the kind of a difference ends if only one side has a value, otherwise ""; None: there is no value."""
    if original is None:
        return "ADDED"
    return "REMOVED" if update is None else ""


def change_of_set(original: Set[str], update: Set[str]) -> str:
    """Return how the kind of a difference between two sets ends."""
    return "EXTENDED" if update > original else "NARROWED" if update < original else "CHANGED"


class Report:
    """Collects the differences of one pair."""

    __slots__ = ("_budget", "_compatible", "_has_incompatible", "differences", "original", "update")

    def __init__(self, original: Side, update: Side, compatible: frozenset[Kind], budget: Budget) -> None:
        self.original = original
        self.update = update
        self.differences: list[Difference] = []
        self._compatible = compatible
        self._budget = budget
        self._has_incompatible = False

    def add(self, kind: Kind, *path: str, original: JsonValue = MISSING, update: JsonValue = MISSING) -> None:
        self._append(Difference(kind, path, original, update))

    def pair(self, original: JsonValue, update: JsonValue) -> Pair:
        """Return the nodes of two schemas."""
        return Pair(self.original.nodes.node(original), self.update.nodes.node(update))

    def extend(self, differences: Differences, *path: str) -> None:
        """Add the differences of a pair inside of this one, which is at this path."""
        for found in differences:
            if path:
                found = Difference(found.kind, path + found.path, found.original, found.update)
            self._append(found)

    def add_values(self, kind: Kind, keyword: str, original: JsonValue, update: JsonValue) -> None:
        """Add a difference between the values of a keyword; None: that side does not have it."""
        self.add(
            kind,
            keyword,
            original=MISSING if original is None else original,
            update=MISSING if update is None else update,
        )

    def compare_limit(self, name: str, keyword: str, original: JsonValue, update: JsonValue) -> None:
        """Compare a number that limits values; None: that side has no limit. `name` is how its kinds begin."""
        if original != update:
            kind = Kind(f"{name}_{change(original, update) or ('INCREASED' if original < update else 'DECREASED')}")
            self.add_values(kind, keyword, original, update)

    def compare_additional(self, name: str, keyword: str, original: ContentModel, update: ContentModel) -> Steps:
        """Compare what two objects, or two arrays, accept besides the properties or items that they define."""
        if original.permits_additional != update.permits_additional:
            kind = Kind(f"{name}_{'ADDED' if update.permits_additional else 'REMOVED'}")
            self.add(kind, keyword, original=original.permits_additional, update=update.permits_additional)
        elif original.additional is None and update.additional is not None:
            self.add(Kind(f"{name}_NARROWED"), keyword, update=update.additional)
        elif original.additional is not None and update.additional is None:
            self.add(Kind(f"{name}_EXTENDED"), keyword, original=original.additional)
        elif original.additional is not None:
            found = yield self.pair(original.additional, update.additional)
            self.extend(found, keyword)

    def compare_unevaluated(self, name: str, keyword: str, original: JsonValue, update: JsonValue) -> Steps:
        """Compare the schemas of properties or items that no other keyword evaluates; None: that side has none."""
        if original is None and update is None:
            return
        before = _openness(self.original, original)
        after = _openness(self.update, update)
        if before == after == _SCHEMA:
            found = yield self.pair(original, update)
            self.extend(found, keyword)
        elif before != after:
            if after < before:
                end = "REMOVED" if after == _CLOSED else "NARROWED"
            else:
                end = "ADDED" if before == _CLOSED else "EXTENDED"
            self.add_values(Kind(f"{name}_{end}"), keyword, original, update)

    def compare_covered(self, name: str, path: tuple[str, ...], original: JsonValue, update: JsonValue) -> Steps:
        """Compare the schema of a property or an item with what the side that does not define it accepts there.

        `name` is how its kinds begin, such as ITEM_ADDED.
        """
        found = yield self.pair(original, update)
        self.extend(found, *path)
        covered = "IS_COVERED" if self.tolerates(found) else "NOT_COVERED"
        kind = Kind(f"{name}_{covered}_BY_PARTIALLY_OPEN_CONTENT_MODEL")
        self.add(kind, *path, original=original, update=update)

    def compare_removed(
        self, name: str, path: tuple[str, ...], written: JsonValue, accepted: JsonValue, *, is_open: bool
    ) -> Steps:
        """Compare a property or an item that only the writer defines with what the reader accepts there.

        `name` is PROPERTY or ITEM. `accepted` is the schema of a partially open content model, UNDECIDED, or None.
        """
        if not is_open and accepted is not None and accepted is not UNDECIDED:
            yield from self.compare_covered(f"{name}_REMOVED", path, written, accepted)
            return
        if is_open:
            end = "REMOVED_FROM_OPEN_CONTENT_MODEL"
        elif accepted is UNDECIDED:
            end = "REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        elif isinstance(self.original.nodes.node(written), FalseNode):
            end = "WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL"
        else:
            end = "REMOVED_FROM_CLOSED_CONTENT_MODEL"
        self.add(Kind(f"{name}_{end}"), *path, original=written)

    def tolerates(self, differences: Differences) -> bool:
        """Return whether a reader tolerates all of these differences."""
        return all(found.kind in self._compatible for found in differences)

    def spend(self, steps: int) -> None:
        self._budget.spend(steps)

    @property
    def budget(self) -> Budget:
        return self._budget

    def _append(self, found: Difference) -> None:
        self._budget.spend(1 + len(found.path) // 4)
        is_incompatible = found.kind not in self._compatible
        if len(self.differences) < _DIFFERENCES_MAX:
            self.differences.append(found)
        elif is_incompatible and not self._has_incompatible:
            self.differences[-1] = found
        self._has_incompatible |= is_incompatible


def is_open(side: Side, node: ContentModel) -> bool:
    """Return whether other properties or items may have any value, as far as no pattern applies to them."""
    if not node.permits_additional or node.additional is not None:
        return False
    return node.unevaluated is None or isinstance(side.nodes.node(node.unevaluated), EmptyNode)


def schema_of_others(side: Side, node: ContentModel) -> JsonValue:
    """Return the schema that a partially open content model has for other properties or items; None if it has none."""
    if node.additional is not None:
        return node.additional
    if node.permits_additional and node.unevaluated is not None:
        unevaluated = side.nodes.node(node.unevaluated)
        if not isinstance(unevaluated, (FalseNode, EmptyNode)):
            return node.unevaluated
    return None


def _openness(side: Side, schema: JsonValue) -> int:
    if schema is None:
        return _ABSENT
    node = side.nodes.node(schema)
    if isinstance(node, FalseNode):
        return _CLOSED
    return _EMPTY if isinstance(node, EmptyNode) else _SCHEMA
