"""`make campaign`: list all campaigns, or run one of them and end with one line of verdict.

    python tests/campaign                                      # the list
    python tests/campaign NAME=cluster-kills KILLS=5 SEED=2    # one campaign

The exit code is 0 if the campaign has passed, 1 if it has failed, and 2 if it cannot run.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
# Python puts the directory of this file first, whose modules are those of the package `campaign`.
sys.path[:1] = [str(_TESTS), str(_TESTS.parent)]
from campaign.catalogue import CAMPAIGNS, MAKE_VARIABLES, Campaign  # noqa: E402
from campaign.report import CANNOT_RUN, CannotRun, Report  # noqa: E402


def table() -> str:
    """Return the list of all campaigns, with their options and defaults."""
    rows = [("name", "takes", "needs", "what it does"), ("----", "-----", "-----", "------------")]
    rows += [(each.name, each.takes, each.needs or "-", each.description) for each in CAMPAIGNS.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row in rows:
        *cells, description = row
        lines.append("  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), description]))
        options = CAMPAIGNS[row[0]].options if row[0] in CAMPAIGNS else ()
        if options:
            lines.append(" " * (sum(widths) + 6) + " ".join(map(str, options)))
    return "\n".join(
        [*lines, "", "make campaign NAME=cluster-kills KILLS=5 SEED=2    runs one; all options may be left out"]
    )


def describe(campaign: Campaign) -> str:
    """Return the options of one campaign, a line each."""
    lines = [
        f"{campaign.name}: {campaign.description}",
        f"  takes {campaign.takes}; needs {campaign.needs or 'nothing'}",
    ]
    return "\n".join([*lines, *(f"  {each!s:24} {each.help}" for each in campaign.options)])


def run(campaign: Campaign, values: Mapping[str, object]) -> int:
    """Run a campaign and print its verdict. Return the exit code."""
    report = Report(campaign.name)
    # The processes that a campaign has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _function(campaign)(report, **values)
    except CannotRun as missing:
        report.missing = str(missing)
    except KeyboardInterrupt:
        report.problem("interrupted")
    except Exception as error:
        report.say(traceback.format_exc())
        report.problem(f"{type(error).__name__}: {error}")
    report.verdict()
    return report.exit_code


def _function(campaign: Campaign) -> Callable[..., None]:
    """Return the function ``DIRECTORY/MODULE:FUNCTION``. Modules of tests are imported by their names alone."""
    place, _, name = campaign.function.partition(":")
    directory, _, module = place.rpartition("/")
    if directory:
        sys.path.insert(0, str(_TESTS / directory))
    function: Callable[..., None] = getattr(importlib.import_module(module), name or "run")
    return function


def main(words: Sequence[str]) -> int:
    """Run what ``NAME=…`` and options such as ``KILLS=5`` ask for. Options may also be environment variables."""
    given = dict(word.split("=", 1) for word in words)
    name = given.pop("NAME", "")
    if not name:
        print(table())
        return 0
    if name not in CAMPAIGNS:
        print(f"there is no campaign {name!r}; there are {', '.join(CAMPAIGNS)}", file=sys.stderr)
        return CANNOT_RUN
    campaign = CAMPAIGNS[name]
    unknown = given.keys() - {each.name for each in campaign.options} - MAKE_VARIABLES
    try:
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: no such option")
        values = {
            each.keyword: each.parse(given.get(each.name) or os.environ.get(each.name)) for each in campaign.options
        }
    except ValueError as error:
        print(f"{error}\n{describe(campaign)}", file=sys.stderr)
        return CANNOT_RUN
    return run(campaign, values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
