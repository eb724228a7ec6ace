"""A broker process for a test, on a free port and in a directory that is removed at the end."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

_START_S_MAX = 60.0
_STOP_S_MAX = 60.0

#: The broker does not wait for further members of a new group. It does not delete old records either: with Kafka's
#: default, records with a timestamp of years ago would be deleted five minutes after its start, during the tests.
TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "log.retention.check.interval.ms": "86400000"}


class BrokerFailed(Exception):
    """The broker did not start or did not stop. The text contains its standard error."""


class BrokerProcess:
    """A running ``ottla broker``. It stops with the ``with`` block, and with the process that started it."""

    def __init__(
        self,
        data: str,
        settings: Mapping[str, str],
        *,
        owns_data: bool,
        address: str | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """``address`` is the address of the listener; None stands for a free port of 127.0.0.1.

        ``prefix`` are words before the command, such as ``ip netns exec NAME``. The program that they name must replace
        itself by the broker.
        """
        self.data = data
        self._prefix = list(prefix)
        self.settings = dict(settings)
        self._owns_data = owns_data
        self._process: subprocess.Popen[str] | None = None
        self._stderr = tempfile.TemporaryFile("w+", prefix="ottla-broker-")  # noqa: SIM115 - closed with the broker
        self._reserved = reserve_port() if address is None else None
        self._host, self._port = "127.0.0.1", 0
        if self._reserved is not None:
            self._port = self._reserved.getsockname()[1]
        elif address is not None:
            self._host, _, port = address.rpartition(":")
            self._port = int(port)
        self.ready_line = ""

    @classmethod
    def start(cls, data: str | os.PathLike[str] | None = None, settings: Mapping[str, str] | None = None) -> Self:
        """Start a broker. Without ``data`` it gets a new directory, which is removed at the end. Raise BrokerFailed."""
        owns_data = data is None
        directory = tempfile.mkdtemp(prefix="ottla-") if data is None else os.fspath(data)
        broker = cls(directory, settings or {}, owns_data=owns_data)
        try:
            broker.launch()
        except BaseException:
            broker.close()
            raise
        return broker

    # -- life -----------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process, or start it again with the same data and port. Raise BrokerFailed."""
        assert self._process is None, "the broker is running"
        overrides = [f"-X{name}={value}" for name, value in {**TEST_SETTINGS, **self.settings}.items()]
        command = [
            *self._prefix, sys.executable, "-m", "ottla", "broker", "--data", self.data,
            "--listener", f"PLAINTEXT://{self._host}:{self._port}", *self._insecure(), *overrides,
        ]  # fmt: skip
        environment = {**os.environ, "OTTLA_END_WITH_STDIN": "1"}
        self._stderr.seek(0)
        self._stderr.truncate()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=environment
        )
        self.ready_line = self._await_ready(self._process)
        self._port = int(self.ready_line.split()[1].rsplit(":", 1)[1])

    def _insecure(self) -> list[str]:
        """Return the option for a host that is not loopback, such as one of a network namespace."""
        return [] if self._host == "127.0.0.1" else ["--insecure"]

    def _await_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            deadline = time.monotonic() + _START_S_MAX
            while selector.select(max(deadline - time.monotonic(), 0)):
                line = process.stdout.readline()
                if line.startswith("ready"):
                    return line.strip()
                if not line:
                    break
        process.kill()
        code = process.wait()
        self._close_pipes(process)
        self._process = None
        raise BrokerFailed(f"the broker did not start (exit code {code}): {self.errors().strip()}")

    def stop(self) -> int:
        """Stop the broker cleanly (SIGTERM). Return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the broker (SIGKILL). Return its exit code."""
        return self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Pause the broker (SIGSTOP) until ``resume``. Its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the broker continue (SIGCONT). Do nothing if it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.launch()

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        try:
            code = process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"the broker did not end on {number.name}: {self.errors()}") from None
        finally:
            self._close_pipes(process)
        return code

    @staticmethod
    def _close_pipes(process: subprocess.Popen[str]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Stop the broker, and remove its directory if ``start`` has created it."""
        try:
            self.stop()
        finally:
            if self._reserved is not None:
                self._reserved.close()
            self._stderr.close()
            if self._owns_data:
                shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Return the address of the broker, for ``bootstrap.servers``."""
        return f"{self._host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def pid_or_none(self) -> int | None:
        """Return the process id, None while the broker does not run. Any thread may ask."""
        process = self._process
        return None if process is None else process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        """Return the standard error of the broker, which is its log."""
        self._stderr.seek(0)
        return self._stderr.read()


def reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port and does not listen.

    While it is open, the operating system gives the port to no process that asks for any free port, also while the
    broker does not run. The broker can bind it, because both sockets have SO_REUSEADDR and only one of them listens.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
