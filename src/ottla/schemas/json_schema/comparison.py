"""Compares a reader's schema with a writer's, pair of nodes by pair of nodes.

The comparison of a pair is a generator (`compare_*.py`). It yields each pair of schemas inside of it and is sent the
differences of that pair. `Comparison` runs these generators on a stack of its own, so that deep schemas and long chains
of references cost no Python stack.

Each pair is compared once, and its differences are kept. A pair that is reached again during its own comparison is
recursive: it is assumed to be compatible. If that assumption was wrong, a result that was built on it may be
wrong as well. Therefore the comparison is repeated with the pairs that are now known to be incompatible, until there
is no new one; Confluent does the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.schemas.json_schema.compare_nodes import compare_nodes
from ottla.schemas.json_schema.differences import Difference, Kind
from ottla.schemas.json_schema.model import Node
from ottla.schemas.json_schema.report import Differences, Pair, Report, Side, Steps
from ottla.schemas.schema import Budget

#: steps for one pair
_PAIR_STEPS: Final = 10


class _Frame(NamedTuple):
    key: tuple[Node, Node]
    report: Report
    steps: Steps


class Comparison:
    """One comparison of a writer's schema with a reader's."""

    def __init__(self, original: Side, update: Side, compatible: frozenset[Kind], budget: Budget) -> None:
        self._original = original
        self._update = update
        self._compatible = compatible
        self._budget = budget
        self._known: dict[tuple[Node, Node], Differences] = {}
        self._under_way: set[tuple[Node, Node]] = set()
        #: pairs that an earlier repetition found incompatible
        self._incompatible: dict[tuple[Node, Node], Differences] = {}
        self._assumed = False

    def differences(self) -> Differences:
        """Return all differences. Raise SchemaTooComplex if that takes too many steps."""
        while True:
            self._known = {}
            self._assumed = False
            found = self._run(Pair(self._original.nodes.root, self._update.nodes.root))
            incompatible = {
                key: differences
                for key, differences in self._known.items()
                if any(each.kind not in self._compatible for each in differences)
            }
            if not self._assumed or incompatible.keys() == self._incompatible.keys():
                return found
            self._incompatible = incompatible

    def _run(self, root: Pair) -> Differences:
        stack: list[_Frame] = []
        found = self._begin(root, stack, self._original, self._update)
        while stack:
            frame = stack[-1]
            try:
                inside = frame.steps.send(found) if found is not None else next(frame.steps)
            except StopIteration:
                stack.pop()
                self._under_way.discard(frame.key)
                found = self._known[frame.key] = frame.report.differences
                continue
            found = self._begin(inside, stack, frame.report.original, frame.report.update)
        assert found is not None
        return found

    def _begin(self, pair: Pair, stack: list[_Frame], original: Side, update: Side) -> Differences | None:
        """Return the differences of a pair if they are known; otherwise push its comparison and return None."""
        if pair.original is None or pair.update is None:
            return _one_sided(pair)
        if pair.is_swapped:
            original, update = update, original
        key = (original.nodes.resolve(pair.original), update.nodes.resolve(pair.update))
        self._budget.spend(1)
        if key in self._known:
            return self._known[key]
        if key in self._under_way:
            if key in self._incompatible:
                return self._incompatible[key]
            self._assumed = True
            return ()
        self._budget.spend(_PAIR_STEPS)
        self._under_way.add(key)
        report = Report(original, update, self._compatible, self._budget)
        stack.append(_Frame(key, report, compare_nodes(report, *key)))
        return None


def _one_sided(pair: Pair) -> Differences:
    if pair.update is not None:
        return (Difference(Kind.SCHEMA_ADDED, (), update=pair.update.raw),)
    if pair.original is not None:
        return (Difference(Kind.SCHEMA_REMOVED, (), original=pair.original.raw),)
    return ()
