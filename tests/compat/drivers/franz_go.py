"""franz-go: a strict parser, topic ids, and the newest request versions. Built from tests/compat/go."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drivers import CODECS, DEADLINE_S, Received, Record, Refused


class FranzGo:
    """franz-go with its defaults."""

    name = "franz-go"
    codecs = CODECS

    def __init__(self, bootstrap: str, command: Path) -> None:
        self._bootstrap = bootstrap
        self._command = command

    def at(self, bootstrap: str) -> FranzGo:
        """The same, with another broker."""
        return FranzGo(bootstrap, self._command)

    def expresses(self, record: Record) -> Record:
        return record

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        lines = [
            {
                "key": _encode(record.key),
                "value": _encode(record.value),
                "headers": [{"key": name, "value": _encode(value)} for name, value in record.headers],
                "timestamp_ms": record.timestamp_ms,
            }
            for record in records
        ]
        stdin = "".join(json.dumps(line) + "\n" for line in lines)
        # As much as its default, or more when a record is larger: the broker is to decide, not the client.
        batch_bytes_max = max([1_000_012, *(len(record.value or b"") + 1000 for record in records)])
        options = [codec, str(acks), str(idempotent).lower(), str(batch_bytes_max)]
        self._run("produce", topic, str(partition), *options, stdin=stdin)

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        out = self._run("consume", topic, str(partition), str(offset), str(count))
        return [_received(json.loads(line)) for line in out.splitlines()]

    def administer(self, topic: str) -> dict[str, Any]:
        """What the admin client found on its walk; see main.go."""
        found: dict[str, Any] = json.loads(self._run("admin", topic))
        return found

    def version(self) -> str:
        """Return the version of Kafka that the client infers from the broker's APIs."""
        return self._run("versions").strip()

    def share(self, topic: str, group: str, protocol: str) -> dict[str, Any]:
        """What two members of a group, and the admin client about them, found; see group.go."""
        found: dict[str, Any] = json.loads(self._run("group", topic, group, protocol))
        return found

    def copy_in_transactions(self, source: str, target: str, name: str) -> dict[str, Any]:
        """What was copied, who was fenced, and what the admin client found; see transaction.go."""
        found: dict[str, Any] = json.loads(self._run("transaction", source, target, name))
        return found

    def acls(self, verb: str, *arguments: str) -> list[list[str]]:
        """Add, list or remove ACLs of topics; see acls.go. Return those that were listed or removed."""
        found: list[list[str]] = json.loads(self._run("acls", verb, *arguments) or "[]")
        return found

    def abort_empty(self, topic: str, name: str, times: int) -> dict[str, int]:
        """Commit a record, then at once abort an empty transaction; return how many were refused, by error code."""
        refused: dict[str, int] = json.loads(self._run("abort-empty", topic, name, str(times)))
        return refused

    def _run(self, verb: str, *arguments: str, stdin: str = "") -> str:
        command = [str(self._command), verb, self._bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        if done.returncode:
            word, _, rest = done.stderr.partition(" ")
            raise Refused(int(rest.split()[0]) if word == "refused" else -1, done.stderr)
        return done.stdout


def _received(line: dict[str, Any]) -> Received:
    record = Record(
        value=_decode(line["value"]),
        key=_decode(line["key"]),
        headers=tuple((header["key"], _decode(header["value"])) for header in line["headers"]),
        timestamp_ms=line["timestamp_ms"],
    )
    return Received(offset=line["offset"], record=record, append_time=line["append_time"])


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
