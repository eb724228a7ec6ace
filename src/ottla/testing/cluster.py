"""A cluster for a test: ZooKeeper and several brokers, each a process, on free ports and in a new directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.cli.zookeeper_server import Server, ServerProcess
from ottla.testing.links import ZOOKEEPER, Links, Member, ProcessMembers
from ottla.testing.process import BrokerProcess, reserve_port

#: each broker serves metrics; the address is in its ``ready_line``
_TEST_SETTINGS = {"metrics.listener": "HTTP://127.0.0.1:0"}


class ClusterProcess:
    """ZooKeeper and brokers with the ids 1, 2, 3 and so on. They stop with the ``with`` block or this process.

    with ClusterProcess.start(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.brokers[1].kill()
        cluster.brokers[1].launch()
        cluster.brokers[2].pause()

    With ``can_cut`` all connections pass a proxy in this process, and a test can cut the network between two members:

    with ClusterProcess.start(brokers=3, can_cut=True) as cluster:
        cluster.cut(1, 2)
        cluster.cut(1, ZOOKEEPER, one_way=True)  # only the bytes that broker 1 sends
        cluster.cut(CLIENTS, 3)
        cluster.heal()
    """

    def __init__(
        self,
        data: Path,
        brokers: int,
        settings: Mapping[str, str],
        own_settings: Mapping[int, Mapping[str, str]],
        directories: Mapping[int, Path],
        *,
        can_cut: bool,
    ) -> None:
        self.data = data
        self._reserved = reserve_port()
        port: int = self._reserved.getsockname()[1]
        self.zookeeper = ServerProcess(Server(data=data / "zookeeper", port=port))
        self.connect = f"127.0.0.1:{port}/ottla"
        self._links: Links | None = None
        self.brokers: dict[int, BrokerProcess] = {}
        for number in range(1, brokers + 1):
            own = {"zookeeper.connect": self.connect, "broker.id": str(number), **own_settings.get(number, {})}
            directory = directories.get(number, data / f"broker-{number}")
            self.brokers[number] = BrokerProcess(
                str(directory), {**_TEST_SETTINGS, **own, **settings}, owns_data=False
            )  # fmt: skip
        if can_cut:
            self._add_links(f"127.0.0.1:{port}")

    def _add_links(self, zookeeper: str) -> None:
        """Let brokers and clients connect to proxies of ZooKeeper and of the brokers, which advertise their proxies."""
        targets: dict[Member, str] = {number: broker.bootstrap for number, broker in self.brokers.items()}
        self._links = links = Links({**targets, ZOOKEEPER: zookeeper}, ProcessMembers(self._pids))
        for number, broker in self.brokers.items():
            broker.settings["zookeeper.connect"] = f"{links.addresses[ZOOKEEPER]}/ottla"
            broker.settings["advertised.listeners"] = f"PLAINTEXT://{links.addresses[number]}"

    def _pids(self) -> dict[int, Member]:
        return {pid: number for number, broker in self.brokers.items() if (pid := broker.pid_or_none) is not None}

    @classmethod
    def start(
        cls,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        own_settings: Mapping[int, Mapping[str, str]] | None = None,
        directories: Mapping[int, Path] | None = None,
        *,
        can_cut: bool = False,
    ) -> Self:
        """Start ZooKeeper and the brokers in a new directory. Raise ZooKeeperFailed without Java or pyspark.

        ``settings`` apply to all brokers, ``own_settings`` to single brokers by id. ``directories`` are the data
        directories of single brokers by id; they are not removed at the end.
        """
        cluster = cls.prepare(brokers, settings, own_settings, directories, can_cut=can_cut)
        try:
            for broker in cluster.brokers.values():
                broker.launch()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @classmethod
    def prepare(
        cls,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        own_settings: Mapping[int, Mapping[str, str]] | None = None,
        directories: Mapping[int, Path] | None = None,
        *,
        can_cut: bool = False,
    ) -> Self:
        """Start only ZooKeeper, for a test that launches the brokers itself. See ``start``."""
        data = Path(tempfile.mkdtemp(prefix="ottla-cluster-"))
        try:
            cluster = cls(data, brokers, settings or {}, own_settings or {}, directories or {}, can_cut=can_cut)
        except BaseException:
            shutil.rmtree(data, ignore_errors=True)
            raise
        try:
            cluster.zookeeper.wait_until_ready()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all brokers, for ``bootstrap.servers``."""
        if self._links is not None:
            return ",".join(self._links.addresses[number] for number in self.brokers)
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again with its data, after ``zookeeper.stop()``."""
        self.zookeeper = ServerProcess(self.zookeeper.server)
        self.zookeeper.wait_until_ready()

    def cut(self, one: Member, other: Member, *, one_way: bool = False) -> None:
        """Hold back the bytes between two members; with ``one_way`` only those that ``one`` sends to ``other``.

        A member is the id of a broker, ``ZOOKEEPER`` or ``CLIENTS``. Connections stay open and carry nothing, as in a
        network that drops packets.
        """
        assert self._links is not None, "start the cluster with can_cut=True"
        self._links.cut(one, other, one_way=one_way)

    def heal(self) -> None:
        """End all cuts. The bytes that were held back arrive now."""
        if self._links is not None:
            self._links.heal()

    def close(self) -> None:
        """Stop all processes and remove the directory."""
        try:
            for broker in self.brokers.values():
                broker.resume()
                broker.kill()
                broker.close()
            self.zookeeper.stop()
        finally:
            if self._links is not None:
                self._links.close()
            self._reserved.close()
            shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
