"""The brokers of a campaign: one broker, or a cluster in which each victim is chosen by its role.

In a cluster all topics have three replicas. A killed broker stays down until the campaign starts it again, and the next
blow waits until all replicas are in sync, so that one broker at a time is down, as an operator would restart them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from campaign_input import PARTITIONS
from driver_processes import PATIENCE_S

from campaign.cluster import ClusterState
from ottla.spark.commit import TRANSACTIONAL_ID_PREFIX
from ottla.testing import BrokerProcess, ClusterProcess
from ottla.wire.messages.list_transactions import ListTransactionsRequest

#: a small cluster has few partitions of internal topics, and each topic has three replicas
_CLUSTER_SETTINGS: Final = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
}


class Role(Enum):
    """The work by which the victim of a blow is chosen."""

    INPUT_LEADER = "leader of the input"
    OUTPUT_LEADER = "leader of the output"
    GROUP_COORDINATOR = "group coordinator"
    TRANSACTION_COORDINATOR = "transaction coordinator"
    CONTROLLER = "controller"


class Brokers(Protocol):
    """What a campaign does with its brokers."""

    #: kills and pauses, by the role of the victim
    blows: Counter[str]

    @property
    def bootstrap(self) -> str: ...

    @property
    def work_without_one(self) -> bool:
        """Whether drivers must make progress while a broker is down."""

    def kill(self) -> None:
        """kill -9 of one broker. Raise AssertionError if it has logged a traceback."""

    def launch(self) -> None:
        """Start the killed broker. Return when it can be killed again."""

    def pause(self) -> None:
        """SIGSTOP of one broker."""

    def resume(self) -> None:
        """SIGCONT of the paused broker."""

    def compare_replicas(self, topics: Sequence[str]) -> None:
        """Stop the brokers. Raise AssertionError if the replicas of a partition have different bytes."""

    def close(self) -> None: ...


class OneBroker:
    """A broker without a cluster: nothing works while it is down."""

    work_without_one = False

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.blows: Counter[str] = Counter()
        self._broker = BrokerProcess.start(directory / "data", settings)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def kill(self) -> None:
        _kill(self._broker)
        self.blows["killed"] += 1

    def launch(self) -> None:
        self._broker.launch()

    def pause(self) -> None:
        self._broker.pause()
        self.blows["paused"] += 1

    def resume(self) -> None:
        self._broker.resume()

    def compare_replicas(self, topics: Sequence[str]) -> None:
        """Do nothing: there is one replica."""

    def close(self) -> None:
        self._broker.close()


class BrokerCluster:
    """ZooKeeper and several brokers. The seed decides the role of each victim."""

    work_without_one = True

    def __init__(
        self,
        brokers: int,
        settings: Mapping[str, str],
        *,
        seed: int,
        input_topic: str,
        output_topic: str,
        group: str,
        say: Callable[[str], None],
    ) -> None:
        self.blows: Counter[str] = Counter()
        self._rng = random.Random(f"{seed} roles")
        #: the topics whose leaders are struck
        self.input_topic, self.output_topic = input_topic, output_topic
        self._group = group
        self._say = say
        self._victim: int | None = None
        self._cluster = ClusterProcess.start(brokers, {**_CLUSTER_SETTINGS, **settings})
        self._state = ClusterState(self._cluster, deadline_s=PATIENCE_S)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, role: Role | None = None) -> None:
        """kill -9 of the broker with this role, or with a role that the seed gives."""
        self._victim = self._choose(role, "killed")
        _kill(self._cluster.brokers[self._victim])

    def launch(self) -> None:
        assert self._victim is not None, "no broker was killed"
        self._cluster.brokers[self._victim].launch()
        self._victim = None
        self._state.wait_in_sync()

    def pause(self) -> None:
        self._victim = self._choose(None, "paused")
        self._state.pause(self._victim)

    def resume(self) -> None:
        assert self._victim is not None, "no broker was paused"
        self._state.resume(self._victim)
        self._victim = None
        self._state.wait_in_sync()

    def compare_replicas(self, topics: Sequence[str]) -> None:
        self._state.wait_in_sync()
        problems = self._state.stop_brokers()
        for topic in topics:
            problems += self._state.check_whole_replicas(topic, PARTITIONS)
        assert not problems, "\n".join(problems)

    def close(self) -> None:
        self._cluster.close()

    # -- roles ------------------------------------------------------------------------------------------------------

    def _choose(self, role: Role | None, blow: str) -> int:
        role = role or self._rng.choice(list(Role))
        number = self._find(role)
        self.blows[f"{role.value} {blow}"] += 1
        self._say(f"    broker {number}, {role.value}: {blow}")
        return number

    def _find(self, role: Role) -> int:
        """Return the id of a broker with this role."""
        if role is Role.GROUP_COORDINATOR:
            return self._state.group_coordinator(self._group)
        if role is Role.TRANSACTION_COORDINATOR:
            numbers = list(self._state.brokers)
            return self._rng.choice([number for number in numbers if self._coordinates_sinks(number)] or numbers[:1])
        if role is Role.CONTROLLER:
            return self._state.controller()
        topic = self.input_topic if role is Role.INPUT_LEADER else self.output_topic
        return self._state.leader(self._rng.randrange(PARTITIONS), topic)

    def _coordinates_sinks(self, number: int) -> bool:
        """Return whether a broker coordinates the transactions of a sink."""
        rows = self._state.ask_broker(number, ListTransactionsRequest(), 0).transaction_states
        return any(row.transactional_id.startswith(TRANSACTIONAL_ID_PREFIX) for row in rows)


def start_brokers(
    count: int,
    directory: Path,
    settings: Mapping[str, str],
    *,
    seed: int,
    input_topic: str,
    output_topic: str,
    group: str,
    say: Callable[[str], None],
) -> Brokers:
    """Start one broker, or a cluster if ``count`` is larger than one."""
    if count == 1:
        return OneBroker(directory, settings)
    return BrokerCluster(
        count, settings, seed=seed, input_topic=input_topic, output_topic=output_topic, group=group, say=say
    )


def _kill(broker: BrokerProcess) -> None:
    assert "Traceback" not in broker.errors(), broker.errors()
    broker.kill()
