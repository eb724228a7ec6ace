"""A short slice of the simulation, and proof that a seed determines its run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_campaign import run_seed
from sim_checks import CHECKS
from sim_log import LogWorld
from sim_planted import OF_ONE_LOG, PLANTED, Planted, find
from sim_profiles import ENABLED, GENERAL
from sim_world import World

from ottla.broker.partitions.partition import Partition

HERE = Path(__file__).parent
#: seeds in `make test`; `make sim SEEDS=1000` runs more
SEEDS = range(1, 11)
#: seeds with three brokers; `make sim BROKERS=3 SEEDS=1000` runs more
CLUSTER_SEEDS = range(1, 6)
#: one seed of each profile; `make sim BROKERS=3 PROFILE=...` runs more
PROFILE_SEED = 2


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """A broker that is killed logs errors."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_run_keeps_every_promise(seed: int) -> None:
    assert run_seed(seed).violations == {}


@pytest.mark.parametrize("seed", CLUSTER_SEEDS)
def test_run_of_a_cluster_keeps_every_promise(seed: int) -> None:
    assert run_seed(seed, brokers=3).violations == {}


@pytest.mark.parametrize("profile", [name for name in ENABLED if name != GENERAL])
def test_run_of_each_profile_keeps_every_promise(profile: str) -> None:
    assert run_seed(PROFILE_SEED, brokers=3, profile=profile).violations == {}


def test_same_seed_of_a_profile_gives_the_same_trace_in_another_process() -> None:
    """The profile draws from several generators, and suspends and lags change the order of events."""
    code = "import logging; logging.disable(50); from sim_world import World; "
    code += "print(World(2, brokers=3, profile='clocks').run().trace_hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == World(2, brokers=3, profile="clocks").run().trace_hash


def test_consumers_of_the_closest_replica_read_committed_records_only() -> None:
    world = World(3, brokers=3, racks=True)
    assert world.run().violations == {}
    assert sum(reader.from_followers for reader in world.rack_readers) > 0


def test_log_that_is_truncated_keeps_what_it_counted_as_synced() -> None:
    for seed in range(1, 51):
        assert LogWorld(seed).run() == {}, seed


@pytest.mark.parametrize("seed", [3, 7])
def test_same_seed_gives_the_same_trace(seed: int) -> None:
    first = World(seed).run()
    kept_alive = [object() for _ in range(1000)]  # so that the second run gets other addresses
    second = World(seed).run()
    assert first.trace == second.trace
    assert first.trace_hash == second.trace_hash
    assert len(first.trace) > 100
    assert kept_alive


def test_same_seed_gives_the_same_trace_in_another_process() -> None:
    """The order of a set of strings depends on PYTHONHASHSEED, so a run that depends on such an order is found."""
    code = "import logging; logging.disable(50); from sim_world import World; print(World(7).run().trace_hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == World(7).run().trace_hash


def test_same_seed_of_a_cluster_gives_the_same_trace_in_another_process() -> None:
    code = (
        "import logging; logging.disable(50); from sim_world import World; print(World(2, brokers=3).run().trace_hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == World(2, brokers=3).run().trace_hash


def test_different_seeds_give_different_runs() -> None:
    assert World(1).run().trace_hash != World(2).run().trace_hash


@pytest.mark.parametrize("name", [
    "acknowledge-before-sync", "sync-covers-truncated-bytes", "recovery-forgets-producers", "high-watermark-moves-back",
    "acknowledge-before-followers-sync", "high-watermark-moves-back-in-election",
])  # fmt: skip
def test_planted_bug_is_found(name: str) -> None:
    """Some of the bugs that are found soon; `make sim-planted` plants all of them."""
    # A run of one log takes milliseconds, and few of them have a sync during a truncation.
    assert find(name, range(1, 101 if name in OF_ONE_LOG else 11)) is not None


@pytest.mark.parametrize("check", [
    "records-not-deleted", "hanging-transaction", "eligible-lacks-committed",
])  # fmt: skip
def test_check_reports_its_planted_bug_first(check: str) -> None:
    """Some of the checks whose bug is found soon; `make sim-planted` plants all of them."""
    assert find(CHECKS[check], range(1, 11), check) is not None


def test_every_check_has_a_planted_bug_and_a_row_in_the_documentation() -> None:
    text = (HERE.parents[1] / "docs" / "internals" / "simulation.md").read_text()
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert set(CHECKS.values()) <= set(PLANTED)
    assert rows >= set(CHECKS)


def test_every_bug_can_be_planted() -> None:
    """The code that it replaces may have moved."""
    for name in PLANTED:
        with Planted(name):
            pass


def test_planted_bug_is_removed_again() -> None:
    before = Partition.until
    with Planted("acknowledge-before-sync"):
        assert Partition.until is not before
    assert Partition.until is before
