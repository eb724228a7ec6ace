"""What a worker did that may be killed at any time: one sign for each step, in a file for each of its lives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path


class Step(StrEnum):
    BEGUN = "b"
    ENDING = "e"
    COMMITTED = "c"
    ABORTED = "a"


#: where a life stood when it ended
_LEFT = {Step.BEGUN: "left open", Step.ENDING: "left while they were ended"}


class Tally:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, step: Step) -> None:
        """The sign is in the file when this returns, whatever happens then."""
        os.write(self._descriptor, step.encode())


def count_transactions(paths: Iterable[Path]) -> str:
    """How all transactions ended, for a person."""
    counts: Counter[str] = Counter()
    for path in paths:
        steps = path.read_text()
        counts["committed"] += steps.count(Step.COMMITTED)
        counts["aborted"] += steps.count(Step.ABORTED)
        if steps and (left := _LEFT.get(Step(steps[-1]))):
            counts[left] += 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())
