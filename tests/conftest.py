"""Set-up for all tests: imports from the checkout, SIGINT, the division among workers, figures of campaigns.

With OTTLA_DIVIDED=1 a cluster takes the place of each broker (`divided_cluster.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import divided_cluster
import work_units
from ottla.env.collector import freeze_objects

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT))

# No deadline: a busy machine is slow, which these tests do not measure. Always the same examples, so that a run of the
# suite can be repeated; `make campaign NAME=properties` looks for new ones, and for three times as many.
_RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
settings.register_profile("ottla", deadline=None, derandomize=not _RANDOM, max_examples=100 if _RANDOM else 33)
settings.load_profile("ottla")

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands that a test runs do not use the profile of the user.
os.environ["OTTLA_PROFILE"] = ""

# `make campaign NAME=transactions-divided`
if divided_cluster.SWITCH in os.environ:
    divided_cluster.replace_brokers()

_FIGURE = "figure of a campaign"


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    # A part of the tests is imported sooner than all files are looked at.
    if worker is not None and config.args == config.getini("testpaths"):
        number = int(worker["workerid"].removeprefix("gw"))
        # The package is a plugin of pytest, which rewrites the assertions of all its modules too.
        files = [*(_ROOT / "tests").rglob("test_*.py"), *(_ROOT / "src" / "ottla").rglob("*.py")]
        work_units.rewrite_share(config, files, number, worker["workercount"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    work_units.order(items)


def pytest_collection_finish() -> None:
    # All test modules and some 16,000 tests live until the end. The garbage collector would visit them in every full
    # collection, of which each took nearly half a second.
    freeze_objects()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    # Units stay in the order of the collection, which is theirs.
    config.option.loadscopereorder = False
    return work_units.UnitScheduling(config, log)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Lines that a campaign adds here are printed at the end of the run, whichever process it ran in."""
    lines: list[str] = []
    yield lines
    request.node.user_properties += [(_FIGURE, line) for line in lines]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    ended = (report for report in reports if getattr(report, "when", None) == "teardown")
    lines = [line for report in ended for name, line in report.user_properties if name == _FIGURE]
    if lines:
        terminalreporter.section("figures of campaigns")
        for line in lines:
            terminalreporter.write_line(line)
