"""The opener's process: reads jobs from standard input, one at a time, and writes results to standard output.

This is a separate module, so that the process imports little of the broker and uses little memory. See `opener.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from struct import Struct
from typing import IO, Any

from ottla.model.errors import KafkaError
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import Bytes, find_timestamp, max_timestamp_record
from ottla.model.schema_ids import SchemaRef, SchemaRules, Source, divert, find_schemas

_NICENESS = 5
_SIZES = Struct(">II")

Found = tuple[int, int] | None
Message = tuple[dict[str, Any], bytes]


def main() -> None:
    """Execute the jobs from standard input until it is closed."""
    os.nice(_NICENESS)
    stream, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        while (message := read_message(stream)) is not None:
            write_message(out, *execute(*message))
            del message
    except BrokenPipeError:
        # The broker has ended. Prevent the interpreter from flushing to the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def execute(request: dict[str, Any], batch: bytes) -> Message:
    """Execute one job. Return head and body of its result; the head contains the error if one was raised."""
    try:
        if request["task"] == "open":
            stored = open_batch(batch, OpeningRules(*request["rules"]))
            return {"changed": stored is not None}, stored or b""
        if request["task"] == "find_schemas":
            return find_schemas(batch, _schema_rules(request))._asdict(), b""
        if request["task"] == "divert":
            diverted = divert(batch, _schema_rules(request), Source(*request["source"]))
            sizes = [len(each) for each in diverted.batches]
            return {"sizes": sizes, "count": diverted.record_count}, b"".join((*diverted.batches, diverted.kept))
        search: Callable[..., Found] = SEARCHES[request["task"]]
        return {"found": search(batch, **request["arguments"])}, b""
    except KafkaError as error:
        return {"code": int(error.code), "text": str(error), "records": error.record_errors}, b""


def _schema_rules(request: dict[str, Any]) -> SchemaRules:
    rules = SchemaRules(*request["rules"])
    return rules._replace(unknown=tuple(SchemaRef(*each) for each in rules.unknown))


SEARCHES: dict[str, Callable[..., Found]] = {
    "find_timestamp": find_timestamp,
    "max_timestamp_record": max_timestamp_record,
}


def write_message(out: IO[bytes], head: dict[str, Any], body: Bytes) -> None:
    """Write and flush one message."""
    text = json.dumps(head).encode()
    out.write(_SIZES.pack(len(text), len(body)))
    out.write(text)
    out.write(body)
    out.flush()


def read_message(stream: IO[bytes]) -> Message | None:
    """Return head and body of the next message; None if the stream ends."""
    sizes = stream.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    head_bytes, body_bytes = _SIZES.unpack(sizes)
    text, body = stream.read(head_bytes), stream.read(body_bytes)
    if len(text) < head_bytes or len(body) < body_bytes:
        return None
    return json.loads(text), body
