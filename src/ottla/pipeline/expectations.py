"""Expectations: conditions on the rows of a flow, and what happens to rows that violate them.

A row for which the predicate is NULL violates it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from ottla.pipeline.document import Text
from ottla.pipeline.predicate import read_predicate
from ottla.pipeline.problems import Place, Problems, suggestion

OnViolation = Literal["warn", "drop", "quarantine", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A condition on a row, and what to do with a row that does not meet it."""

    name: str
    predicate: Text
    on_violation: OnViolation = "warn"
    place: Place = field(compare=False)

    @property
    def violated_sql(self) -> str:
        """A predicate that is true, never NULL, for the rows that violate this one."""
        return f"NOT coalesce(({self.predicate.text}\n), false)"


def check_predicate(predicate: Text, called: str, columns: Collection[str] | None, problems: Problems) -> None:
    """Add problems of a predicate. `columns` are those of the rows; None if they are not certain."""
    read = read_predicate(predicate.text)
    for flaw in read.flaws:
        problems.add(predicate.place_of(flaw.position), f"{called} does not parse: {flaw.what}", flaw.instead)
    if columns is None:
        return
    known = {column.lower() for column in columns}
    for token in read.columns:
        if token.text.lower() not in known:
            problems.add(
                predicate.place_of(token.position),
                f"{called} asks for {token.text!r}, which is not a column of the rows",
                suggestion(token.text, columns, none="declare a schema first"),
            )
