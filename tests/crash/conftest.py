"""Campaigns against broker processes: how long they are, their seed, and a place for their figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_campaign import Campaign

_KILLS = 4
#: of the short slice in `make test`; a longer campaign draws one, and prints it
_SLICE_SEED = 1
_LONG = 10
_SECONDS_PER_KILL = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash", "crash campaigns")
    group.addoption("--kills", type=int, default=_KILLS, help="how often the broker is killed")
    group.addoption("--seed", type=int, default=None, help="repeat the draws of an earlier campaign")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: only in a campaign of more kills than `make test` has time for")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A long campaign has more tests, and each may take longer than a test may otherwise."""
    kills = kills_of(config)
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.timeout(600 + _SECONDS_PER_KILL * kills))
    if kills < _LONG:
        left_out = [item for item in mine if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def kills_of(config: pytest.Config) -> int:
    # The options are unknown when pytest was started on a directory above this one.
    kills: int = config.getoption("--kills", _KILLS)
    return kills


@pytest.fixture
def campaign(request: pytest.FixtureRequest, figures: list[str], tmp_path: Path) -> Iterator[Campaign]:
    """The campaign that a test plays; its brokers end with it."""
    config = request.config
    kills = kills_of(config)
    seed = config.getoption("--seed", None)
    if seed is None:
        seed = _SLICE_SEED if kills <= _KILLS else random.SystemRandom().getrandbits(32)
    made = Campaign(
        name=request.node.name.removeprefix("test_"),
        seed=seed,
        kills=kills,
        figures=figures,
        directory=tmp_path,
    )
    print(f"\n{made.name}: --seed {made.seed}")
    try:
        yield made
    finally:
        made.close()
