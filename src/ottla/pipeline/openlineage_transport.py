"""Where OpenLineage events go: a backend over HTTP, or a file with one event per line. Failures never disturb a run.

A thread sends the events. Its queue is bounded: if the backend is slower than the run, or away, events are dropped and
one warning is logged. The settings are those of a declaration, then the variables of OpenLineage's own clients:
OPENLINEAGE_URL, OPENLINEAGE_ENDPOINT, OPENLINEAGE_API_KEY, OPENLINEAGE_NAMESPACE, OPENLINEAGE_CONFIG and
OPENLINEAGE_DISABLED.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ottla.env.tasks import keep_thread
from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.document import read_document
from ottla.pipeline.fields import as_mapping
from ottla.pipeline.layout import resolve
from ottla.pipeline.openlineage import Event
from ottla.pipeline.problems import BadDeclaration, Problems

log = logging.getLogger("ottla.pipeline")

DEFAULT_ENDPOINT: Final = "api/v1/lineage"
DEFAULT_NAMESPACE: Final = "ottla"
_QUEUE_MAX: Final = 1000
_ANSWER_S_MAX: Final = 5.0
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5
#: how long the end of a run waits for events that were not sent yet
_DRAIN_S_MAX: Final = 5.0


class BadConfiguration(OttlaError):
    """The file that OPENLINEAGE_CONFIG names cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where events go: exactly one of `url` and `file` is set."""

    namespace: str = DEFAULT_NAMESPACE
    url: str | None = None
    api_key: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        """Return the target without credentials."""
        if self.file is not None:
            return self.file
        parts = urlsplit(self.url or "")
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def target_of(declaration: Declaration, variables: Mapping[str, str]) -> Target | None:
    """Return where the events of a pipeline go, None if nowhere. Raise BadConfiguration."""
    if variables.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return None
    declared = declaration.openlineage
    namespace = (declared and declared.namespace) or variables.get("OPENLINEAGE_NAMESPACE") or DEFAULT_NAMESPACE
    api_key = (declared and declared.api_key) or variables.get("OPENLINEAGE_API_KEY")
    endpoint = (declared and declared.endpoint) or variables.get("OPENLINEAGE_ENDPOINT") or DEFAULT_ENDPOINT
    if declared is not None and declared.file is not None:
        return Target(namespace=namespace, file=resolve(declaration, declared.file))
    url = (declared and declared.url) or variables.get("OPENLINEAGE_URL")
    if url:
        return Target(namespace=namespace, url=_joined(url, endpoint), api_key=api_key)
    if variables.get("OPENLINEAGE_CONFIG"):
        return _configured(variables["OPENLINEAGE_CONFIG"], namespace)
    return None


def _configured(path: str, namespace: str) -> Target | None:
    """Return the transport in a configuration file of OpenLineage's clients: of type http or file."""
    try:
        problems = Problems()
        document = read_document(Path(path).read_bytes(), path, problems)
        problems.refuse_if_any()
        transport = as_mapping(as_mapping(document)["transport"])
        kind = transport["type"].text
        if kind == "http":
            auth = as_mapping(transport["auth"]) if "auth" in transport else {}
            key = next((auth[name].text for name in ("apiKey", "api_key") if name in auth), None)
            endpoint = transport["endpoint"].text if "endpoint" in transport else DEFAULT_ENDPOINT
            return Target(namespace=namespace, url=_joined(transport["url"].text, endpoint), api_key=key)
        if kind == "file":
            return Target(namespace=namespace, file=transport["log_file_path"].text)
    except KeyError as error:
        raise BadConfiguration(f"OPENLINEAGE_CONFIG: {path} has no {error}; add it, or unset the variable") from None
    except (OSError, BadDeclaration) as error:
        raise BadConfiguration(f"OPENLINEAGE_CONFIG: {error}; correct or unset it") from None
    raise BadConfiguration(
        f"OPENLINEAGE_CONFIG: {path} has a transport of type {kind!r}; only http and file are supported"
    )


def _joined(url: str, endpoint: str) -> str:
    return f"{url.rstrip('/')}/{endpoint.lstrip('/')}"


class Sender:
    """Sends events in a thread."""

    def __init__(
        self, target: Target, *, queue_max: int = _QUEUE_MAX, send: Callable[[Target, bytes], None] | None = None
    ) -> None:
        self._target = target
        self._send = send or send_once
        self._events: queue.Queue[bytes | None] = queue.Queue(queue_max)
        self._stop = threading.Event()
        #: a warning was logged, and no event was sent since
        self._is_warned = False
        self.dropped = 0
        self._thread = keep_thread(self._run, "openlineage")
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue an event. Never waits and never raises."""
        try:
            self._events.put_nowait(json.dumps(event).encode())
        except queue.Full:
            self._drop("the queue is full")

    def close(self) -> None:
        """Send what is queued, for at most 5 s, then end."""
        try:
            self._events.put(None, timeout=_DRAIN_S_MAX)
        except queue.Full:
            pass
        self._thread.join(_DRAIN_S_MAX)
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            data = self._events.get()
            if data is None:
                return
            for attempt in range(_ATTEMPTS):
                try:
                    self._send(self._target, data)
                    self._is_warned = False
                    break
                except (OSError, HTTPException, ValueError) as error:
                    # An answer that refuses the event will be the same next time.
                    is_refused = isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500
                    if is_refused or self._is_warned or attempt + 1 == _ATTEMPTS or self._stop.wait(_PAUSE_S):
                        self._drop(str(error))
                        break

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if not self._is_warned:
            self._is_warned = True
            log.warning("OpenLineage events are not sent to %s: %s. The pipeline continues", self._target, why)


def send_once(target: Target, data: bytes) -> None:
    """Send one event. Raise OSError, HTTPException or ValueError."""
    if target.file is not None:
        path = Path(target.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data + b"\n")
        return
    headers = {"Content-Type": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    request = urllib.request.Request(target.url or "", data=data, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=_ANSWER_S_MAX) as answer:
        answer.read()
