"""The console of a demonstration: `ottla console` as a process, and a record of each event in its topic of changes.

So the pages show the kills while they happen. The broker is one of the processes that are killed: an event that cannot
be written is written again later, in order.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ottla.admin.client import AdminClient
from ottla.demo.journal import Entry
from ottla.demo.parts import Part
from ottla.env.tasks import keep_thread
from ottla.model.errors import OttlaError

#: who has made the changes, in the console
_USER: Final = "demonstration"
_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.5
#: events that wait for a broker; a demonstration has a few dozen in all
_WAITING_MAX: Final = 1000
_START_S_MAX: Final = 5.0
_LOOK_S: Final = 0.02
_PACKAGES: Final = ("starlette", "uvicorn", "httptools", "jinja2")


def is_installed() -> bool:
    """Return whether the extra `edge`, which has the packages of the console, is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


class WebConsole:
    """The console process, and the thread that writes events for it."""

    def __init__(self, bootstrap: str, directory: Path, listen: str) -> None:
        """``listen`` is the URL to listen on; another port is chosen if that one is in use."""
        self._bootstrap = bootstrap
        words = ["ottla", "console", "--bootstrap", bootstrap, "--listen", _free_url(listen)]
        words += ["-X", f"data.dir={directory / 'console'}", "-X", "cluster.name=shop"]
        words += ["-X", f"pipeline.status.urls={directory / 'lake'}"]
        self._part = Part("console", words, directory / "console.log")
        self._waiting: deque[Entry] = deque(maxlen=_WAITING_MAX)
        self._wanted = threading.Event()
        self._is_stopped = threading.Event()
        self._thread = keep_thread(self._write_events, "demo-console")
        self._thread.start()

    def wait_until_ready(self) -> str:
        """Return the URL of the console; empty if it has not started in a few seconds."""
        deadline = time.monotonic() + _START_S_MAX
        while time.monotonic() < deadline:
            found = re.search(r"^ready (\S+)", self._part.written(), re.M)
            if found is not None:
                return found[1]
            if self._is_stopped.wait(_LOOK_S):
                break
        return ""

    @property
    def password(self) -> str:
        """Return the password that the first start has printed; empty after a later start."""
        found = re.search(r"log in as \w+ with the password (\S+)", self._part.written())
        return found[1] if found else ""

    def show(self, entry: Entry) -> None:
        """Write an event, when the broker takes it."""
        self._waiting.append(entry)
        self._wanted.set()

    def _write_events(self) -> None:
        while not self._is_stopped.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while self._waiting and not self._is_stopped.is_set():
                try:
                    with AdminClient(self._bootstrap, {}, timeout_s=_TIMEOUT_S, ended=self._is_stopped) as client:
                        self._write_waiting(client)
                except OttlaError:  # the broker was killed, and is started again
                    self._is_stopped.wait(_RETRY_S)

    def _write_waiting(self, client: AdminClient) -> None:
        # These modules need packages of the extra `edge`.
        from ottla.edge.console.changes import ChangeRecord, append
        from ottla.edge.console.settings import ConsoleSettings

        topic = ConsoleSettings.parse({}).changes_topic
        while self._waiting:
            append(client, topic, ChangeRecord.event(user=_USER, title=self._waiting[0].text))
            self._waiting.popleft()

    def stop(self) -> None:
        self._is_stopped.set()
        self._wanted.set()
        self._part.stop()
        self._thread.join(_TIMEOUT_S)


def _free_url(listen: str) -> str:
    """Return the URL if its port is free, otherwise the same with port 0, which chooses a free one."""
    parts = urlsplit(listen)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((parts.hostname or "127.0.0.1", parts.port or 0))
        except OSError:
            return f"{parts.scheme}://{parts.hostname}:0"
    return listen
