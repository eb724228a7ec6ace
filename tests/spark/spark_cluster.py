"""A standalone Spark cluster on this machine, from the files that pyspark brings: a master, workers, and a way to die.

    with SparkCluster.start(directory, workers=2) as cluster:
        session = build_session("job", cluster.master)
        cluster.kill_worker(0)

Every worker and what it has started (executors, and their Python processes) is a session of its own, so that a worker
is killed as a machine is: with everything on it, at once. All listen on 127.0.0.1 alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from campaign.processes import free_port, kill_session, wait_until
from ottla.spark.java import find_java

HOST = "127.0.0.1"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
#: a JVM's start, on a machine that has other things to do
_PATIENCE_S = 90.0
_STOP_S_MAX = 15.0
#: what a job must bring along itself, because a cluster is started by somebody else
_UNKNOWN = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class SparkCluster:
    """A master and its workers; they end with the block."""

    def __init__(self, directory: Path) -> None:
        # Config
        self._directory = directory
        self._spark_home = Path(pyspark.__file__).resolve().parent
        self._port = free_port()
        self._web_port = free_port(avoid=[self._port])
        # State
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @classmethod
    def start(cls, directory: Path, *, workers: int, cores: int = 1, memory: str = "1500m") -> Self:
        """Start it, and return when every worker is known to the master."""
        cluster = cls(directory)
        try:
            cluster._launch(workers, cores, memory)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _launch(self, workers: int, cores: int, memory: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self._master = self._run("master", _MASTER, "--host", HOST, *ports)
        self.wait_until(lambda: bool(self.state()), "the master answers")
        for number in range(workers):
            name = f"worker-{number}"
            size = ["-c", str(cores), "-m", memory, "-d", str(self._directory / name)]
            self._workers.append(self._run(name, _WORKER, "--host", HOST, "--webui-port", "0", *size, self.master))
        self.wait_until(lambda: self.workers_alive() == workers, "all workers are registered")

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(self._spark_home / "bin" / "spark-class"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(name),
                start_new_session=True,
            )

    def _environment(self, name: str) -> Mapping[str, str]:
        return {key: value for key, value in os.environ.items() if key not in _UNKNOWN} | {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(self._spark_home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / f"{name}-local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def state(self) -> dict[str, Any]:
        """What the master says of itself; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}

    def workers_alive(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self.state().get("workers", []))

    def cores_used(self) -> int:
        """By executors, on workers that are alive."""
        return sum(worker["coresused"] for worker in self.state().get("workers", []) if worker["state"] == "ALIVE")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def kill_worker(self, number: int) -> None:
        """kill -9 for a worker, its executors and their Python processes; returns when the master has noticed."""
        before = self.workers_alive()
        kill_session(self._workers[number])
        self.wait_until(lambda: self.workers_alive() < before, "the master misses a worker")

    def stop(self) -> None:
        """End what is left."""
        processes = [*self._workers, *([self._master] if self._master is not None else [])]
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S_MAX)
            kill_session(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, lambda: f"{what}\n{self._logs()}", _PATIENCE_S)

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._directory.glob("*.log")))
