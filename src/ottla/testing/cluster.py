"""A cluster of one's own: ZooKeeper and several brokers, each a process, on free ports and in a new directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.cli.zookeeper_server import Server, ServerProcess
from ottla.testing.process import BrokerProcess, reserve_port

#: a test's cluster notices failures early, and each broker serves metrics: their address is in its ``ready_line``
_TEST_SETTINGS = {"replica.lag.time.max.ms": "3000", "metrics.listener": "HTTP://127.0.0.1:0"}


class ClusterProcess:
    """ZooKeeper and brokers with the ids 1, 2, 3 and so on. They end with the block, and with this process.

    with ClusterProcess.start(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.brokers[1].kill()
        cluster.brokers[1].launch()
        cluster.brokers[2].pause()
    """

    def __init__(
        self, data: Path, brokers: int, settings: Mapping[str, str], own_settings: Mapping[int, Mapping[str, str]],
        directories: Mapping[int, Path],
    ) -> None:  # fmt: skip
        self.data = data
        self._reserved = reserve_port()
        port: int = self._reserved.getsockname()[1]
        self.zookeeper = ServerProcess(Server(data=data / "zookeeper", port=port))
        self.connect = f"127.0.0.1:{port}/ottla"
        self.brokers: dict[int, BrokerProcess] = {}
        for number in range(1, brokers + 1):
            own = {"zookeeper.connect": self.connect, "broker.id": str(number), **own_settings.get(number, {})}
            directory = directories.get(number, data / f"broker-{number}")
            self.brokers[number] = BrokerProcess(
                str(directory), {**_TEST_SETTINGS, **own, **settings}, owns_data=False
            )  # fmt: skip

    @classmethod
    def start(
        cls, brokers: int = 3, settings: Mapping[str, str] | None = None,
        own_settings: Mapping[int, Mapping[str, str]] | None = None, directories: Mapping[int, Path] | None = None,
    ) -> Self:  # fmt: skip
        """Start ZooKeeper and the brokers in a new directory. Raise ZooKeeperFailed without Java or pyspark.

        ``settings`` are those of all brokers, ``own_settings`` those of single brokers by id.
        ``directories`` are data directories of single brokers; they are not removed at the end.
        """
        data = Path(tempfile.mkdtemp(prefix="ottla-cluster-"))
        try:
            cluster = cls(data, brokers, settings or {}, own_settings or {}, directories or {})
        except BaseException:
            shutil.rmtree(data, ignore_errors=True)
            raise
        try:
            cluster.zookeeper.wait_until_ready()
            for broker in cluster.brokers.values():
                broker.launch()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def bootstrap(self) -> str:
        """For ``bootstrap.servers``: all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again with its data, after ``zookeeper.stop()``."""
        self.zookeeper = ServerProcess(self.zookeeper.server)
        self.zookeeper.wait_until_ready()

    def close(self) -> None:
        """Stop everything and remove the directory."""
        try:
            for broker in self.brokers.values():
                broker.resume()
                broker.kill()
                broker.close()
            self.zookeeper.stop()
        finally:
            self._reserved.close()
            shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
