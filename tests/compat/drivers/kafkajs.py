"""kafkajs: the pure JavaScript client, run by tests/compat/node/client.js."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.locking import locked

from drivers import CODECS, DEADLINE_S, Received, Record, Refused

#: kafkajs brings no codec but gzip; what is here needs no compiler
PACKAGES = {"kafkajs": "2.2.4", "kafkajs-snappy": "1.1.0", "lz4-napi": "2.10.0", "zstd-codec": "0.1.5"}
MISSING = "Node is not installed: apt-get install nodejs npm"
_SCRIPT = Path(__file__).resolve().parent.parent / "node" / "client.js"
_INSTALL_S_MAX = 300.0

_numbers = itertools.count()


def install(directory: Path) -> str | None:
    """Install kafkajs and codecs in the directory unless they are there. Return one line that says why not."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        return MISSING
    with locked(directory):
        return _install(npm, directory)


def _install(npm: str, directory: Path) -> str | None:
    if all((directory / "node_modules" / name / "package.json").exists() for name in PACKAGES):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund"]
    command += [f"{name}@{version}" for name, version in PACKAGES.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S_MAX)
    except subprocess.TimeoutExpired:
        return "kafkajs could not be installed in time: is the npm registry reachable?"
    return f"kafkajs could not be installed: {done.stderr.strip().splitlines()[-1]}" if done.returncode else None


class KafkaJs:
    """kafkajs's producer, consumer and admin client."""

    name = "kafkajs"
    codecs = CODECS

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

    def shows(self, record: Record) -> Record:
        """Headers are an object here too: values of a name stand together where the name came first."""
        names = dict.fromkeys(name for name, _ in record.headers)
        return replace(record, headers=tuple(pair for each in names for pair in record.headers if pair[0] == each))

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        """Its consumer knows only groups, so each call makes one."""
        members = [{"groupId": f"kafkajs-reader-{os.getpid()}-{next(_numbers)}"}]
        seek = [{"topic": topic, "partition": partition, "offset": str(offset)}] if offset else []
        found = self.share(members, [topic], count, seek=seek, run={"autoCommit": False})
        return [_received(each) for each in found["members"][0]["records"][:count]]

    def share(self, members: list[dict[str, Any]], topics: list[Any], count: int, **options: Any) -> dict[str, Any]:
        """Consumers of one group, all in one process; see client.js for the options and the answer."""
        subscribe = {"topics": topics, "fromBeginning": True}
        task = {"do": "consume", "members": members, "subscribe": subscribe, "run": {}, "count": count, **options}
        found: dict[str, Any] = self._run(task)
        found["calls"] = [_answer(each) for each in found["calls"]]
        return found

    def transact(self, transactional_id: str, *steps: dict[str, Any]) -> None:
        """Transactions of one producer, one after another; see client.js for what a step is."""
        self._run({"do": "transact", "producer": {"transactionalId": transactional_id}, "steps": steps})

    def administer(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Calls methods of the admin client; each gives its result, or the Refused that it raised."""
        answers = self._run({"do": "admin", "calls": calls})
        return [_answer(answer) for answer in answers]

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


def _answer(answer: dict[str, Any]) -> Any:
    return _refused(answer["error"]) if "error" in answer else answer["result"]


def _refused(error: dict[str, Any]) -> Refused:
    # What is said of several groups at once is said of each.
    code = error["groups"][0]["errorCode"] if error.get("groups") else error["code"]
    return Refused(code if isinstance(code, int) else -1, f"{error['type']} {error['message']}")


def _received(message: dict[str, Any]) -> Received:
    headers = [
        (name, _bytes(value))
        for name, values in message["headers"].items()
        for value in (values if isinstance(values, list) else [values])
    ]
    record = Record(
        value=_bytes(message["value"]),
        key=_bytes(message["key"]),
        headers=tuple(headers),
        timestamp_ms=int(message["timestamp"]),
    )
    return Received(offset=int(message["offset"]), record=record, append_time=None)


def _buffer(data: bytes | None) -> dict[str, str] | None:
    return None if data is None else {"base64": base64.b64encode(data).decode()}


def _bytes(buffer: dict[str, str] | None) -> bytes | None:
    return None if buffer is None else base64.b64decode(buffer["base64"])
