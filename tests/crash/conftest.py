"""Campaigns against broker processes: how long they are, their seed, and a place for their figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Campaign

_KILLS = 4
_LONG = 10
_SECONDS_PER_KILL = 20
_FIGURES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash", "crash campaigns")
    group.addoption("--kills", type=int, default=_KILLS, help="how often the broker is killed")
    group.addoption("--seed", type=int, default=None, help="repeat the draws of an earlier campaign")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: only in a campaign of more kills than `make test` has time for")
    config.stash[_FIGURES] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long campaign has more tests, and each may take longer than a test may otherwise."""
    kills = kills_of(config)
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.timeout(180 + _SECONDS_PER_KILL * kills))
    if kills < _LONG:
        left_out = [item for item in mine if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if figures := config.stash.get(_FIGURES, []):
        terminalreporter.section("crash campaigns")
        for line in figures:
            terminalreporter.write_line(line)


def kills_of(config: pytest.Config) -> int:
    # The options are unknown when pytest was started on a directory above this one.
    kills: int = config.getoption("--kills", _KILLS)
    return kills


@pytest.fixture
def campaign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Campaign]:
    """The campaign that a test plays; its brokers end with it."""
    config = request.config
    seed = config.getoption("--seed", None)
    made = Campaign(
        name=request.node.name.removeprefix("test_"),
        seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
        kills=kills_of(config),
        figures=config.stash[_FIGURES],
        directory=tmp_path,
    )
    print(f"\n{made.name}: --seed {made.seed}")
    try:
        yield made
    finally:
        made.close()
