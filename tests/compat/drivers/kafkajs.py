"""kafkajs: the pure JavaScript client, run by tests/compat/node/client.js."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivers import DEADLINE_S, Record, Refused

VERSION = "2.2.4"
MISSING = "Node is not installed: apt-get install nodejs npm"
_SCRIPT = Path(__file__).resolve().parent.parent / "node" / "client.js"
_INSTALL_S_MAX = 120.0


def install(directory: Path) -> str | None:
    """Brings kafkajs into the directory unless it is there; when it cannot, one line that says why."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return MISSING
    if (directory / "node_modules" / "kafkajs" / "package.json").exists():
        return None
    directory.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", f"kafkajs@{VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S_MAX)
    except subprocess.TimeoutExpired:
        return "kafkajs could not be installed in time: is the npm registry reachable?"
    return f"kafkajs could not be installed: {done.stderr.strip().splitlines()[-1]}" if done.returncode else None


class KafkaJs:
    """kafkajs's producer and admin client."""

    name = "kafkajs"
    #: the others need packages of their own
    codecs = ("none", "gzip")

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._modules = directory / "node_modules"

    def expresses(self, record: Record) -> Record:
        """Headers are an object: names that repeat stand together, and a header without a value cannot be said."""
        names = dict.fromkeys(name for name, _ in record.headers)
        headers = tuple((name, value or b"") for each in names for name, value in record.headers if name == each)
        return replace(record, headers=headers)

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        messages = []
        for record in records:
            headers: dict[str, Any] = {}
            for name, value in record.headers:
                headers.setdefault(name, []).append(_buffer(value))
            message = {
                "key": _buffer(record.key),
                "value": _buffer(record.value),
                "partition": partition,
                "headers": {name: values if len(values) > 1 else values[0] for name, values in headers.items()},
            }
            if record.timestamp_ms is not None:
                message["timestamp"] = str(record.timestamp_ms)
            messages.append(message)
        send = {"topic": topic, "acks": acks, "compression": self.codecs.index(codec), "messages": messages}
        producer = {"idempotent": True, "maxInFlightRequests": 1} if idempotent else {}
        self._run({"do": "produce", "producer": producer, "send": send})

    def fetch(self, topic: str, offset: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
        """One fetch of partition 0, below the consumer, which knows only groups: offset, key, value of each record."""
        found = self._run({"do": "fetch", "topic": topic, "partition": 0, "offset": offset})
        return [(int(each["offset"]), _bytes(each["key"]), _bytes(each["value"])) for each in found]

    def administer(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Calls methods of the admin client; each gives its result, or the Refused that it raised."""
        answers = self._run({"do": "admin", "calls": calls})
        return [_refused(answer["error"]) if "error" in answer else answer["result"] for answer in answers]

    def _run(self, task: dict[str, Any]) -> Any:
        node = shutil.which("node")
        assert node is not None, MISSING
        done = subprocess.run(
            [node, str(_SCRIPT)], input=json.dumps({"bootstrap": self._bootstrap, **task}), capture_output=True,
            text=True, timeout=DEADLINE_S, env={**os.environ, "NODE_PATH": str(self._modules)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise _refused(answer["error"])
        return answer["result"]


def _refused(error: dict[str, Any]) -> Refused:
    code = error["code"]
    return Refused(code if isinstance(code, int) else -1, f"{error['type']} {error['message']}")


def _buffer(data: bytes | None) -> dict[str, str] | None:
    return None if data is None else {"base64": base64.b64encode(data).decode()}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
