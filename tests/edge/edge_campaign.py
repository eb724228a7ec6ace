"""The command line of campaigns that kill processes: how many kills, which seed, what was found."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol, TypeVar

_SHOWN_MAX = 20


class Outcome(Protocol):
    """What a campaign found. `violations` is empty if all is well."""

    violations: list[str]


Found = TypeVar("Found", bound=Outcome)


def run_command(
    description: str | None, kills: int, run: Callable[[argparse.Namespace], Found], summary: Callable[[Found], str],
    *switches: str,
) -> int:  # fmt: skip
    """Run a campaign with the arguments of the command line, and print its outcome. Return the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=1)
    for switch in switches:
        parser.add_argument(switch, action="store_true")
    outcome = run(parser.parse_args())
    print(summary(outcome))
    for line in outcome.violations[:_SHOWN_MAX]:
        print("VIOLATION", line)
    return 1 if outcome.violations else 0
