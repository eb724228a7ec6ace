"""What a check is: a row of the table, with a pure function that finds problems in a picture of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ottla.health.findings import Finding, Severity
from ottla.health.types import ClusterPicture, Part
from ottla.model.printable import shown

#: names in one finding; its text has the full number
NAMES_MAX = 100
INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


class Problem(NamedTuple):
    """What a check has found."""

    #: one line with figures
    text: str
    #: the worst first
    names: Iterable[str]
    #: the next step, if it is not the one of the check
    advice: str = ""
    #: if it is not the one of the check
    severity: Severity | None = None


Find = Callable[[ClusterPicture], Iterator[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row of the table of checks."""

    name: str
    severity: Severity
    #: the kind of the objects that it names
    kind: str
    #: what is wrong, and why that matters
    problem: str
    advice: str
    #: without these parts of a picture it says nothing
    needs: frozenset[Part]
    #: it needs an earlier reading
    needs_before: bool
    find: Find

    def can_run(self, picture: ClusterPicture) -> bool:
        """Return whether the picture has all that the check needs."""
        return not self.needs & picture.unknown.keys() and (picture.before is not None or not self.needs_before)

    def run(self, picture: ClusterPicture) -> list[Finding]:
        """Return the findings about this state of a cluster. Names of clients and topics are escaped."""
        return [
            Finding(
                check=self.name,
                severity=self.severity if found.severity is None else found.severity,
                text=shown(found.text),
                advice=shown(found.advice or self.advice),
                kind=self.kind,
                names=tuple(shown(name) for name, _ in zip(found.names, range(NAMES_MAX), strict=False)),
            )
            for found in self.find(picture)
        ]


def check(
    *, severity: Severity, kind: str, problem: str, advice: str, needs: Iterable[Part] = (), needs_before: bool = False
) -> Callable[[Find], Check]:
    """Make a check of a function. Its name is that of the function, with hyphens."""

    def decorate(find: Find) -> Check:
        return Check(
            name=find.__name__.replace("_", "-"),
            severity=severity,
            kind=kind,
            problem=problem,
            advice=advice,
            needs=frozenset(needs),
            needs_before=needs_before,
            find=find,
        )

    return decorate
