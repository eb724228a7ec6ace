"""Starts, kills and stops the broker and the driver of a demonstration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ottla.demo.counts import without_driver
from ottla.demo.journal import Journal
from ottla.demo.parts import Broker, Driver, PartFailed, RunningPipeline
from ottla.demo.show import Scene

_BROKER_LOOK_S: Final = 0.02
_BROKER_START_S_MAX: Final = 30.0

#: starts the pipeline of a file; its output is appended to the log
StartPipeline = Callable[[Path, Path], RunningPipeline]


class Stopped(Exception):
    """The demonstration was stopped before its end."""


class Processes:
    """The processes of one demonstration, in its directory. Implements `kills.Actions`."""

    def __init__(
        self,
        directory: Path,
        scene: Scene,
        journal: Journal,
        *,
        listener: str,
        insecure: bool = False,
        metrics: str | None = None,
        start_pipeline: StartPipeline = Driver,
    ) -> None:
        # Config
        self._directory = directory
        self._insecure = insecure
        self._metrics = metrics
        self._start_pipeline = start_pipeline
        self.file = directory / "shop.yaml"
        self.driver_log = directory / "driver.log"
        # State
        self._scene = scene
        self._journal = journal
        self.listener = listener
        self._broker: Broker | None = None
        self.pipeline: RunningPipeline | None = None
        #: called after each kill
        self.on_kill: Callable[[], None] = lambda: None

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker is started first"
        return self._broker

    def start_broker(self) -> int:
        data, log = self._directory / "broker", self._directory / "broker.log"
        self._broker = Broker(data, log, listener=self.listener, insecure=self._insecure, metrics=self._metrics)
        self._scene.broker = f"process {self._broker.pid}, starting"
        return self._broker.pid

    def is_broker_ready(self) -> bool:
        """Return whether the broker accepts connections, and show that. Raise PartFailed if it has ended."""
        if not self.broker.ready:
            return False
        self._scene.broker = f"process {self.broker.pid}, serves {self.broker.bootstrap}"
        return True

    def wait_for_broker(self, stop: threading.Event) -> str:
        """Return the address of the broker that is starting. Raise Stopped or PartFailed if it does not start."""
        deadline = time.monotonic() + _BROKER_START_S_MAX
        while not self.is_broker_ready():
            if stop.wait(_BROKER_LOOK_S):
                raise Stopped
            if time.monotonic() > deadline:
                raise PartFailed(
                    f"the broker has not started in {_BROKER_START_S_MAX:.0f} s; {self.broker.log} has its output"
                )
        bootstrap = self.broker.bootstrap
        # A broker that is started again must have the same port.
        host, _, port = self.listener.rpartition(":")
        self.listener = f"{host}:{bootstrap.rpartition(':')[2]}" if port == "0" else self.listener
        return bootstrap

    def kill_broker(self) -> int:
        pid = self.broker.pid
        self.broker.kill()
        self.on_kill()
        self._scene.broker = f"process {pid}, killed"
        return pid

    def start_driver(self) -> int:
        self.pipeline = self._start_pipeline(self.file, self.driver_log)
        self._scene.driver = f"process {self.pipeline.pid}"
        self._scene.starting_since_s = self._journal.elapsed_s
        return self.pipeline.pid

    def kill_driver(self) -> int:
        assert self.pipeline is not None
        pid = self.pipeline.pid
        self.pipeline.kill()
        self.pipeline = None
        self.on_kill()
        self._scene.driver = f"process {pid}, killed"
        self._scene.starting_since_s = None
        if self._scene.status is not None:
            self._scene.status = without_driver(self._scene.status)
        return pid

    def stop_driver(self, hurry: threading.Event, *, broker_is_up: bool) -> None:
        """Stop the driver after its batches; kill it if the broker is down, which it would wait for."""
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None and broker_is_up:
            pipeline.stop(hurry)
        elif pipeline is not None:
            pipeline.kill()

    def stop_broker(self, hurry: threading.Event) -> None:
        if self._broker is not None:
            self._broker.stop(hurry)
