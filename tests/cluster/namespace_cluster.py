"""Three brokers and ZooKeeper, each in a network namespace of its own, and an observer of what ZooKeeper stores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from network_namespaces import Hosts

from ottla.testing import BrokerProcess

ZOOKEEPER = "zookeeper"
#: where this program and most clients run, and where clients run that are cut off together with a broker
CLIENTS, OTHER_CLIENTS = "clients", "other-clients"
_BROKERS = (1, 2, 3)
_CHROOT = "/ottla"
_START_S_MAX = 60.0
_OBSERVE_S = 0.05

#: the base setup of the cases: failures are noticed within seconds
SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
}


def host_of(broker: int) -> str:
    return f"broker-{broker}"


class NamespaceCluster:
    """Brokers with the ids 1, 2 and 3. The calling thread moves into the namespace of the clients."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Start everything. Raise CannotRun without root or nftables."""
        self.data = Path(tempfile.mkdtemp(prefix="ottla-partitions-"))
        self.brokers: dict[int, BrokerProcess] = {}
        self._zookeeper: subprocess.Popen[str] | None = None
        self._hosts: Hosts | None = None
        try:
            self._start({**SETTINGS, **(settings or {})})
        except BaseException:
            self.close()
            raise

    def _start(self, settings: Mapping[str, str]) -> None:
        self._hosts = hosts = Hosts([*map(host_of, _BROKERS), ZOOKEEPER, CLIENTS, OTHER_CLIENTS])
        hosts.enter(CLIENTS)
        server = f"{hosts.addresses[ZOOKEEPER]}:2181"
        self._zookeeper = subprocess.Popen(
            [*hosts.prefix(ZOOKEEPER), sys.executable, "-m", "ottla", "zookeeper",
             "--data", str(self.data / ZOOKEEPER), "--listen", server],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
        )  # fmt: skip
        assert self._zookeeper.stdout is not None
        ready = self._zookeeper.stdout.readline()
        if not ready.startswith("ready"):
            raise RuntimeError("ZooKeeper did not start: see its message above")
        for number in _BROKERS:
            host = host_of(number)
            own = {"zookeeper.connect": server + _CHROOT, "broker.id": str(number)}
            self.brokers[number] = BrokerProcess(
                str(self.data / host), {**settings, **own}, owns_data=False,
                address=f"{hosts.addresses[host]}:9092", prefix=hosts.prefix(host),
            )  # fmt: skip
            self.brokers[number].launch()
        self.observer = Observer(server + _CHROOT)

    @property
    def hosts(self) -> Hosts:
        assert self._hosts is not None
        return self._hosts

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def close(self) -> None:
        """Stop everything, and delete the namespaces and the data."""
        try:
            if hasattr(self, "observer"):
                self.observer.close()
            for broker in self.brokers.values():
                broker.kill()
                broker.close()
            if self._zookeeper is not None:
                self._zookeeper.communicate()
        finally:
            if self._hosts is not None:
                self._hosts.close()
            shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PartitionState(NamedTuple):
    """The state of a partition in ZooKeeper."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]


class Change(NamedTuple):
    """A state that the observer saw for the first time."""

    time: float
    topic: str
    partition: int
    state: PartitionState


class Observer:
    """Reads the states of partitions, the controller and the registered brokers from ZooKeeper, 20 times a second."""

    def __init__(self, connect: str) -> None:
        self._client = KazooClient(connect, timeout=10.0)
        self._client.start(timeout=_START_S_MAX)
        self._is_closing = threading.Event()
        #: the topics to observe
        self.topics: list[str] = []
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.changes: list[Change] = []
        self.controller = -1
        #: each controller with the time since which it is the controller
        self.controllers: list[tuple[float, int]] = []
        self.registered: frozenset[int] = frozenset()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def _run(self) -> None:
        while not self._is_closing.wait(_OBSERVE_S):
            for topic in self.topics:
                self._read_topic(topic)
            controller = self._read("/controller")
            found = int(json.loads(controller)["brokerid"]) if controller else -1
            if found != self.controller:
                self.controller = found
                self.controllers.append((time.monotonic(), found))
            try:
                self.registered = frozenset(map(int, self._client.get_children("/brokers/ids")))
            except KazooException:
                self.registered = frozenset()

    def _read_topic(self, topic: str) -> None:
        value = self._read(f"/brokers/topics/{topic}/state")
        for number, row in enumerate(json.loads(value)["partitions"] if value else ()):
            leader, leader_epoch, isr, _, *rest = row
            elr = rest[0] if rest else ()
            state = PartitionState(leader, leader_epoch, tuple(sorted(isr)), tuple(sorted(elr)))
            if self.states.get((topic, number)) != state:
                self.states[topic, number] = state
                self.changes.append(Change(time.monotonic(), topic, number, state))

    def _read(self, path: str) -> bytes | None:
        try:
            value, _ = self._client.get(path)
        except KazooException:
            return None
        return bytes(value)
