"""How long campaigns over transactions are, their seeds, and a place for their figures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from txn_campaign import Campaign

#: what `make test` has time for
_KILLS = 5
_RECORDS = 5000
_RUNS = 5
#: of the short slice in `make test`: two of its runs of mixed clients kill the broker, in two transactions time out.
#: A longer campaign draws its seed, and prints it.
_SLICE_SEED = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("transactions", "campaigns over transactions")
    group.addoption("--txn-kills", type=int, default=_KILLS, help="how often clients and the broker are killed")
    group.addoption("--txn-records", type=int, default=_RECORDS, help="how many records are copied")
    group.addoption("--txn-runs", type=int, default=_RUNS, help="how many runs of mixed clients")
    group.addoption("--txn-seed", type=int, default=None, help="repeat the draws of an earlier campaign")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kills, records, runs = _sizes(config)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600 + 15 * kills + 60 * runs + records // 1000))


def _sizes(config: pytest.Config) -> tuple[int, int, int]:
    # The options are unknown when pytest was started on a directory above this one.
    return (
        config.getoption("--txn-kills", _KILLS),
        config.getoption("--txn-records", _RECORDS),
        config.getoption("--txn-runs", _RUNS),
    )


@pytest.fixture
def campaign(request: pytest.FixtureRequest, figures: list[str], tmp_path: Path) -> Iterator[Campaign]:
    """The campaign that a test plays; its processes end with it."""
    config = request.config
    seed = config.getoption("--txn-seed", None)
    kills, records, runs = _sizes(config)
    if seed is None:
        is_slice = (kills, records, runs) == (_KILLS, _RECORDS, _RUNS)
        seed = _SLICE_SEED if is_slice else random.SystemRandom().getrandbits(32)
    made = Campaign(
        name=request.node.name.removeprefix("test_"),
        seed=seed,
        kills=kills,
        records=records,
        runs=runs,
        figures=figures,
        directory=tmp_path,
    )
    print(f"\n{made.name}: --txn-seed {made.seed}")
    try:
        yield made
    finally:
        made.close()
