"""Compare the rows that a test expects with the rows that a flow has made, and show how they differ.

Rows are mappings of columns to values of Python, as Arrow gives them. Only columns that the test names are compared.
Values are equal if their types make them so: decimals by their value, times by their moment, NaN equals NaN, and
floating-point numbers within a relative error of 1e-9. Rows form a bag: their order does not matter, their number does.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]

_RELATIVE_ERROR = 1e-9
_ABSOLUTE_ERROR = 1e-12
_SHOWN_ROWS_MAX = 20
_SHOWN_CHARACTERS_MAX = 40
#: rows that are paired by their similarity; more than people read
_PAIRED_ROWS_MAX = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """An expected row and the row that was received in its place."""

    expected: Row
    received: Row
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison. Each row is in one place of it."""

    columns: tuple[str, ...]
    equal: int = 0
    different: tuple[Difference, ...] = ()
    missing: tuple[Row, ...] = ()
    unexpected: tuple[Row, ...] = ()

    @property
    def is_equal(self) -> bool:
        return not (self.different or self.missing or self.unexpected)


def compare_rows(expected: Sequence[Row], received: Sequence[Row], *, ordered: bool = False) -> Comparison:
    """Compare rows in the columns that any expected row has. A column that a row does not have is null in it.

    With `ordered` the n-th row is compared with the n-th row.
    """
    named = dict.fromkeys(name for row in expected for name in row)
    columns = tuple(named) or tuple(dict.fromkeys(name for row in received for name in row))
    wanted = [{name: row.get(name) for name in columns} for row in expected]
    given = [{name: row.get(name) for name in columns} for row in received]
    if ordered:
        return _compare_in_order(columns, wanted, given)
    matching = _match(wanted, given)
    missing = [row for at, row in enumerate(wanted) if at not in matching]
    taken = set(matching.values())
    unexpected = [row for at, row in enumerate(given) if at not in taken]
    different = _pair(columns, missing, unexpected)
    paired = {id(each.expected) for each in different} | {id(each.received) for each in different}
    return Comparison(
        columns=columns,
        equal=len(matching),
        different=tuple(different),
        missing=tuple(row for row in missing if id(row) not in paired),
        unexpected=tuple(row for row in unexpected if id(row) not in paired),
    )


def same(one: Any, two: Any) -> bool:
    """Return whether two values are equal.

    >>> same(Decimal("1.0"), Decimal("1.00")), same(0.1 + 0.2, 0.3), same(None, 0), same(True, 1)
    (True, True, False, False)
    """
    if isinstance(one, float) and isinstance(two, float):
        return (math.isnan(one) and math.isnan(two)) or math.isclose(
            one, two, rel_tol=_RELATIVE_ERROR, abs_tol=_ABSOLUTE_ERROR
        )
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            return False
        if _is_map(one) and _is_map(two):
            # A map comes as a list of pairs, whose order means nothing.
            pairs = [[dict(enumerate(pair)) for pair in each] for each in (one, two)]
            return len(_match(*pairs)) == len(one)
        return all(map(same, one, two))
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and bool(one == two)


def _compare_in_order(columns: tuple[str, ...], wanted: Sequence[Row], given: Sequence[Row]) -> Comparison:
    different, equal = [], 0
    for one, two in zip(wanted, given, strict=False):
        names = tuple(name for name in columns if not same(one[name], two[name]))
        if names:
            different.append(Difference(one, two, names))
        else:
            equal += 1
    return Comparison(
        columns=columns,
        equal=equal,
        different=tuple(different),
        missing=tuple(wanted[len(given) :]),
        unexpected=tuple(given[len(wanted) :]),
    )


def _match(wanted: Sequence[Mapping[Any, Any]], given: Sequence[Mapping[Any, Any]]) -> dict[int, int]:
    """Return a largest matching of equal rows, from positions in `wanted` to positions in `given`."""
    matching: dict[int, int] = {}
    free: dict[object, list[int]] = defaultdict(list)
    for at, row in enumerate(given):
        free[_key(row, exact=True)].append(at)
    for at, row in enumerate(wanted):
        if candidates := free[_key(row, exact=True)]:
            matching[at] = candidates.pop(0)
    # What is left can be equal only by floating-point numbers that differ a little.
    taken = set(matching.values())
    near: dict[object, list[int]] = defaultdict(list)
    for at, row in enumerate(given):
        if at not in taken and _has_float(row):
            near[_key(row, exact=False)].append(at)
    left = [at for at, row in enumerate(wanted) if at not in matching and _has_float(row)]
    options = {
        at: [other for other in near.get(_key(wanted[at], exact=False), ()) if same(wanted[at], given[other])]
        for at in left[:_PAIRED_ROWS_MAX]
    }
    return matching | _augment(options)


def _augment(options: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return a largest matching of the keys with their options, by augmenting paths.

    Equality within an error is not transitive, so that the first partner that fits may be the only one for another.
    """
    partner_of: dict[int, int] = {}

    def find(at: int, tried: set[int]) -> bool:
        for other in options[at]:
            if other not in tried:
                tried.add(other)
                if other not in partner_of or find(partner_of[other], tried):
                    partner_of[other] = at
                    return True
        return False

    for at in options:
        find(at, set())
    return {at: other for other, at in partner_of.items()}


def _pair(columns: tuple[str, ...], missing: Sequence[Row], unexpected: Sequence[Row]) -> list[Difference]:
    """Pair rows that agree in at least half of their columns: most likely they are the same row."""
    pairs = []
    for at, one in enumerate(missing[:_PAIRED_ROWS_MAX]):
        for other, two in enumerate(unexpected[:_PAIRED_ROWS_MAX]):
            names = tuple(name for name in columns if not same(one[name], two[name]))
            if len(names) * 2 <= len(columns):
                pairs.append((len(names), at, other, names))
    found: dict[int, Difference] = {}
    taken: set[int] = set()
    for _, at, other, names in sorted(pairs):
        if at not in found and other not in taken:
            found[at] = Difference(missing[at], unexpected[other], names)
            taken.add(other)
    return [found[at] for at in sorted(found)]


def _key(value: Any, *, exact: bool) -> object:
    """Return a hashable value that equal values share. Without `exact` all floating-point numbers share one."""
    if isinstance(value, float):
        return ("float", repr(value) if exact else "")
    if isinstance(value, Mapping):
        return ("mapping", frozenset((name, _key(each, exact=exact)) for name, each in value.items()))
    if isinstance(value, list) and _is_map(value):
        keys = (repr(_key(each, exact=exact)) for each in value)
        return ("map", tuple(sorted(keys)))
    if isinstance(value, list | tuple):
        return ("list", tuple(_key(each, exact=exact) for each in value))
    if isinstance(value, Decimal):
        return ("decimal", value.normalize())
    return (type(value).__name__, value)


def _has_float(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_float, value))
    return isinstance(value, float)


def _is_map(value: Sequence[Any]) -> bool:
    """Return whether this is a map as Arrow gives it: a list of pairs. Structs are mappings, and lists are lists."""
    return bool(value) and all(isinstance(each, tuple) and len(each) == 2 for each in value)


# -- showing ----------------------------------------------------------------------------------------------------------


def describe_comparison(name: str, comparison: Comparison) -> list[str]:
    """Return the lines that show how rows differ, with aligned columns; none if they do not."""
    if comparison.is_equal:
        return []
    lines = _Lines(comparison.columns)
    for each in comparison.different:
        lines.add("- expected", each.expected, "")
        lines.add("+ received", each.received, f"differs in {', '.join(each.columns)}")
    for row in comparison.missing:
        lines.add("- missing", row, "")
    for row in comparison.unexpected:
        lines.add("+ unexpected", row, "")
    expected = comparison.equal + len(comparison.different) + len(comparison.missing)
    received = comparison.equal + len(comparison.different) + len(comparison.unexpected)
    head = f"{name}: {expected} expected, {received} received, {comparison.equal} of them equal"
    return [head, *lines.aligned()]


@dataclass(slots=True)
class _Lines:
    columns: tuple[str, ...]
    _cells: list[list[str]] = field(default_factory=list)

    def add(self, word: str, row: Row, remark: str) -> None:
        self._cells.append([word, *(format_value(row[name]) for name in self.columns), remark])

    def aligned(self) -> list[str]:
        shown = [["", *self.columns, ""], *self._cells[:_SHOWN_ROWS_MAX]]
        widths = [max(len(cells[at]) for cells in shown) for at in range(len(self.columns) + 2)]
        lines = [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            for cells in shown
        ]
        hidden = len(self._cells) - _SHOWN_ROWS_MAX
        return [*lines, f"  ... and {hidden} more"] if hidden > 0 else lines


def format_value(value: Any) -> str:
    """Return a value as one short line.

    >>> [format_value(value) for value in (None, "null", "a b", Decimal("1.50"), [1, None], {"a": b"x"})]
    ['null', '"null"', 'a b', '1.50', '[1, null]', '{a: x}']
    """
    text = _format(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."


def _format(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        try:
            return _format(value.decode())
        except UnicodeDecodeError:
            return f"base64 {base64.b64encode(value).decode()}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_format(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list) and _is_map(value):
        return "{" + ", ".join(f"{_format(name)}: {_format(each)}" for name, each in value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format, value)) + "]"
    if isinstance(value, str) and (value != value.strip() or value in ("", "null") or not value.isprintable()):
        return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
    return str(value)
