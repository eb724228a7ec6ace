"""kcat: librdkafka as a command, usually an older one than Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from drivers import CODECS, DEADLINE_S, Headers, Received, Record, Refused

MISSING = "kcat is not installed: apt-get install kcat"


def kcat_path() -> str | None:
    return shutil.which("kcat")


class Kcat:
    """The kcat command. It shows text only, and has no way to set a timestamp."""

    name = "kcat"
    codecs = CODECS

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def expresses(self, record: Record) -> Record:
        return record.without_timestamp()

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        settings = ["-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        settings += ["-X", "message.max.bytes=67108864"]
        # Headers and nulls are the command's, so records that share them go together.
        for (headers, keyed, tombstone), group in groupby(records, _shape):
            command = ["-P", "-t", topic, "-p", str(partition), "-z", codec, *settings, "-D", r"\x1e"]
            command += ["-K", r"\x1f"] if keyed else []
            command += ["-Z"] if tombstone else []
            for name, value in headers:
                command += ["-H", name if value is None else f"{name}={value.decode()}"]
            lines = [(r.key + b"\x1f" if r.key is not None else b"") + (r.value or b"") + b"\x1e" for r in group]
            self.run(*command, stdin=b"".join(lines).decode())

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        out = self.run("-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-J", "-q")
        return [_received(json.loads(line)) for line in out.splitlines()]

    def run(self, *arguments: str, stdin: str = "") -> str:
        path = kcat_path()
        assert path is not None, MISSING
        done = subprocess.run(
            [path, "-b", self._bootstrap, *arguments], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode:
            raise Refused(-1, done.stderr)
        return done.stdout


def _shape(record: Record) -> tuple[Headers, bool, bool]:
    return record.headers, record.key is not None, record.value is None


def _received(message: dict[str, Any]) -> Received:
    flat = message.get("headers", [])
    headers = tuple((name, _bytes(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    record = Record(
        value=_bytes(message["payload"]), key=_bytes(message["key"]), headers=headers, timestamp_ms=message["ts"]
    )
    return Received(offset=message["offset"], record=record, append_time=message["tstype"] == "logappend")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
