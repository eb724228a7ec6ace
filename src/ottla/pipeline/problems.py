"""Problems of a declaration: the place, what is wrong, and what to write instead.

Reading and checking do not stop at the first problem: all problems are collected in one list and shown together.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.model.errors import OttlaError

if TYPE_CHECKING:
    from ottla.pipeline.edits import Decision


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something was written. Lines and columns count from 1, as editors do."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def seen_from(self, other: Place) -> str:
        """Return how a message about `other` names this place: by its line, and by its file if that is another one."""
        return f"line {self.line}" if self.file == other.file else f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    place: Place
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.instead}"


@dataclass(slots=True)
class Problems:
    """The problems found so far."""

    _found: dict[Problem, None] = field(default_factory=dict)

    def add(self, place: Place, what: str, instead: str) -> None:
        self._found[Problem(place, what, instead)] = None

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def refuse_if_any(self) -> None:
        if self._found:
            raise BadDeclaration(self)


class BadDeclaration(ValueError):
    """A declaration that cannot be run, with everything that is wrong with it, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar; None if none is.

    >>> nearest("fromat", ["format", "from", "topic"])
    'format'
    >>> nearest("zebra", ["format", "topic"]) is None
    True
    """
    by_folded = {one.lower().replace("-", "_"): one for one in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str], *, none: str) -> str:
    """Return what to write instead of an unknown word; `none` if there are no known words.

    >>> suggestion("jsn", ["json", "avro"], none="declare one first")
    'write json'
    >>> suggestion("xml", ["json", "avro"], none="declare one first")
    'write one of json, avro'
    """
    known = list(known)
    if not known:
        return none
    close = nearest(word, known)
    if close is not None:
        return f"write {close}"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"write one of {shown}" if len(known) > 1 else f"write {shown}"


class StartRefused(OttlaError):
    """A flow cannot continue with its checkpoint or table."""

    def __init__(self, refused: Collection[Decision]) -> None:
        self.refused = tuple(refused)
        lines = [f"flow {one.flow} {one.plan}: {'; '.join(one.reasons)}; {one.remedy}" for one in refused]
        super().__init__("\n".join(lines))
