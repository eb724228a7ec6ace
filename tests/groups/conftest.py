"""Groups of real clients: which broker they meet, how long a storm is, and a place for its figures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from benchmarks import kafka_server
from group_campaign import Campaign
from group_run import SESSION_S, GroupRun

from campaign.processes import check_log, free_port
from ottla.testing import BrokerProcess

_CHANGES = 8
#: of the short slice in `make test`; a longer storm draws one, and prints it
_SLICE_SEED = 1
_SECONDS_PER_CHANGE = 15
#: librdkafka gives up a heartbeat that is not answered within this time, and then may not leave its group at all: on a
#: busy machine an answer waits for the disk
_HEARTBEAT_MS = "2000"
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.heartbeat.interval.ms": _HEARTBEAT_MS,
    "group.consumer.min.heartbeat.interval.ms": _HEARTBEAT_MS,
    "offsets.topic.num.partitions": "4",
}
#: what our broker checks while it is tried: groups and offsets are what a replay of their log gives
_VERIFY = {"group.verify.interval.ms": "300"}
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("groups", "storms over consumer groups")
    group.addoption("--changes", type=int, default=_CHANGES, help="how many changes a storm makes")
    group.addoption("--storm-seed", type=int, default=None, help="repeat the draws of an earlier storm")
    group.addoption("--against", choices=("ottla", "kafka"), default="ottla", help="the broker that members meet")
    group.addoption("--spare-broker", action="store_true", help="a long storm does not end Ottla's broker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600 + _SECONDS_PER_CHANGE * changes_of(config)))


def changes_of(config: pytest.Config) -> int:
    # The options are unknown when pytest was started on a directory above this one.
    changes: int = config.getoption("--changes", _CHANGES)
    return changes


def _against(config: pytest.Config) -> str:
    name: str = config.getoption("--against", "ottla")
    return name


class Server(Protocol):
    """What members meet."""

    @property
    def bootstrap(self) -> str: ...


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One broker for all tests that do not hurt it."""
    if _against(request.config) == "kafka":
        problem = kafka_server.fetch() or kafka_server.available()
        if problem is not None:
            pytest.skip(problem)
        kafka = kafka_server.ApacheKafka(settings=_SETTINGS)
        try:
            kafka.start()
            yield kafka
        finally:
            kafka.stop()
        return
    with BrokerProcess.start(settings={**_SETTINGS, **_VERIFY}) as broker:
        yield broker
        check_log(broker)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of one's own, to be restarted and killed."""
    if _against(request.config) == "kafka":
        pytest.skip("only Ottla's broker is killed here")
    listener = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
    with BrokerProcess.start(tmp_path / "data", {**_SETTINGS, **_VERIFY, **listener}) as broker:
        try:
            yield broker
        finally:
            print(f"the broker wrote:\n{broker.errors()[-3000:]}")
        check_log(broker)


@pytest.fixture
def campaign(request: pytest.FixtureRequest, figures: list[str], tmp_path: Path) -> Iterator[Campaign]:
    config = request.config
    seed = config.getoption("--storm-seed", None)
    changes = changes_of(config)
    if seed is None:
        seed = _SLICE_SEED if changes <= _CHANGES else random.SystemRandom().getrandbits(32)
    runs: list[GroupRun] = []

    def new_run(bootstrap: str, **options: Any) -> GroupRun:
        number = next(_numbers)
        made = GroupRun(bootstrap, tmp_path / f"group-{number}", group=f"group-{number}-{seed}", seed=seed, **options)
        runs.append(made)
        return made

    name = request.node.name.removeprefix("test_")
    print(f"\n{name}: --storm-seed {seed}, diaries in {tmp_path}")
    spare = _against(config) == "kafka" or config.getoption("--spare-broker", False)
    try:
        yield Campaign(name, seed, changes, changes > _CHANGES, spare, new_run, figures)
    finally:
        for run in runs:
            run.close()
            for member in run.members:
                print(f"{member.name} wrote to {member.output_path}:\n{member.output_path.read_text()[-600:]}")
