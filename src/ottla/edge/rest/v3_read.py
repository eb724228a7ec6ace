"""Beyond Confluent's version 3: read the records of a topic as a stream, by offset or by time.

Each record is a line of JSON (NDJSON), or a server-sent event if the client accepts `text/event-stream`. A record has
the fields that a request to produce it has, so that the output of one topic can be sent to another one.

The stream ends at the end of the topic, unless the client follows it; at `limit` records, `max_bytes` or `timeout`; and
when the client disconnects, which is noticed within half a second.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ottla.client.cluster import EARLIEST, LATEST, Cluster
from ottla.edge.rest import admin
from ottla.edge.rest.bodies import INT32_MAX, INT64_MAX, query_boolean, query_integer
from ottla.edge.rest.errors import (
    NO_CONSUMER_FREE,
    KafkaRefusal,
    RecordErrors,
    bad_request,
    partition_not_found,
    to_http,
)
from ottla.edge.rest.kafka import READ_AHEAD, Identity, Owner, check_expiry, kafka_partition
from ottla.edge.rest.proxy import INT32, INT64, Proxy
from ottla.edge.rest.records import BINARY, JSON, PLAIN_FORMATS, STRING, decode_plain, iso_time, read_time
from ottla.edge.rest.resources import Links
from ottla.edge.web.accept import choose_media_type
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.json_schemas import BOOLEAN, INTEGER, TEXT, enum_of, object_of
from ottla.env.tasks import start_task
from ottla.model.types import TopicPartition

_AUTO: Final = "AUTO"
_LIMIT_DEFAULT: Final = 1000
_TIMEOUT_DEFAULT_MS: Final = 30_000
_POLL_RECORDS: Final = 500
_POLL_S: Final = 0.25
#: an event stream without records has a comment, so that proxies between do not close it
_SILENCE_S: Final = 15.0
#: a position of more partitions is not written to each event
_POSITIONS_MAX: Final = 64
_NDJSON, _EVENTS = "application/x-ndjson", "text/event-stream"
#: lines of JSON are also sent as application/json, to clients that accept nothing else
_MEDIA_TYPES: Final = (_NDJSON, _EVENTS, "application/json")
#: librdkafka's codes: the end of a partition, and errors that pass
_PARTITION_EOF: Final = -191
_GROUP_AUTHORIZATION_FAILED: Final = 30
_IGNORED: Final = frozenset({_GROUP_AUTHORIZATION_FAILED, -195, -193, -187, -185})

_TIME: Final = {"anyOf": [{"type": "string", "format": "date-time"}, {**INT64, "maximum": 10**15 - 1}]}
_QUERY: Final = (
    Parameter("partition", "Only this partition; without it all.", INT32),
    Parameter("offset", "First offset: a number, earliest or latest. The default is latest if follow is set.",
              {"anyOf": [INT64, {"enum": ["earliest", "latest"]}]}),
    Parameter("timestamp", "Start with the first record at or after this time: ISO 8601 or milliseconds.", _TIME),
    Parameter("end_offset", "End before this offset.", INT64),
    Parameter("end_timestamp", "End before the first record at or after this time.", _TIME),
    Parameter("limit", f"Number of records. The default is {_LIMIT_DEFAULT}, or no limit if follow is set.",
              {**INT64, "minimum": 1}),
    Parameter("max_bytes", "Bytes of keys and values.", {**INT64, "minimum": 1}),
    Parameter("timeout", "Milliseconds until the stream ends.", INT64),
    Parameter("follow", "Whether to wait for new records at the end.", BOOLEAN),
    Parameter("format", "Format of keys and values. The default tries JSON, then text, then base64.",
              enum_of("auto", *map(str.lower, PLAIN_FORMATS))),
)  # fmt: skip


class _Range(NamedTuple):
    """What a client wants to read."""

    topic: str
    partition: int | None
    #: an offset, EARLIEST or LATEST; or None with a time in ms
    start: int | None
    start_ms: int | None
    end: int | None
    end_ms: int | None
    limit: int
    bytes_max: int
    timeout_s: float
    is_followed: bool
    form: str


class ReadRoutes:
    """The handler that reads records."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._streams = 0
        self._threads: ThreadPoolExecutor | None = None
        #: is set when the service stops
        self.is_stopping = False

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        part = {"type": ["object", "null"], "properties": {"type": TEXT, "data": {}}}
        record = object_of({"partition_id": INTEGER, "offset": INTEGER}, {
            "timestamp": TEXT, "headers": {"type": "array"}, "key": part, "value": part,
        })  # fmt: skip
        # An error after the start of the stream is its last line.
        failure = object_of({"error_code": INTEGER, "message": TEXT})
        return [
            self._proxy.operation(
                "records.list", "GET topics/{topic_name}/records", self.read,
                "Read records from an offset or a time, as lines of JSON or as server-sent events",
                {"anyOf": [record, failure]}, tag="Records (v3)", query=_QUERY, produces=_MEDIA_TYPES,
            )
        ]  # fmt: skip

    async def read(self, request: Request, links: Links) -> Response:
        wanted = _read_query(request, self._proxy.settings)
        if self._streams >= self._proxy.settings.read_streams_max:
            raise HttpError(503, NO_CONSUMER_FREE, "This process has as many streams of records as it allows.")
        self._streams += 1
        try:
            return await self._open(request, wanted)
        except BaseException:
            self._streams -= 1
            raise

    async def _open(self, request: Request, wanted: _Range) -> _Stream:
        """Find the offsets and create the consumer. The stream closes both when it ends."""
        media_type = choose_media_type(request.headers.get("accept"), _MEDIA_TYPES) or _NDJSON
        last_event = request.headers.get("last-event-id") if media_type == _EVENTS else None
        positions = _read_positions(last_event) if last_event else None
        starts, ends = await self._proxy.call(request, _find_range, wanted, positions)
        properties = {
            "group.id": f"ottla-rest-reader-{uuid.uuid4()}", "enable.auto.commit": "false",
            "enable.partition.eof": "true", "auto.offset.reset": "earliest", **READ_AHEAD,
        }  # fmt: skip
        kafka, identity = self._proxy.kafka, self._proxy.identity(request)
        consumer = await kafka.run(functools.partial(kafka.consumer, Owner(identity), properties))
        return _Stream(self, consumer, wanted, starts=starts, ends=ends, identity=identity, media_type=media_type)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function of a stream in a thread; each stream uses one thread at a time."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._proxy.settings.read_streams_max + 1, "rest-reader")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def closed(self) -> None:
        """Note that a stream has ended."""
        self._streams -= 1


class _Stream(Response):
    """The answer: it owns the consumer and closes it."""

    def __init__(
        self,
        routes: ReadRoutes,
        consumer: Any,
        wanted: _Range,
        *,
        starts: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
        identity: Identity,
        media_type: str,
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._routes = routes
        self._consumer = consumer
        self._wanted = wanted
        self._ends = ends
        self._identity = identity
        self._is_events = media_type == _EVENTS
        #: the next offset of each partition
        self._positions = dict(starts)
        self._open = {tp for tp in starts if wanted.is_followed or starts[tp] < ends[tp]}
        self._count = 0
        self._bytes = 0
        self._is_disconnected = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = start_task(self._watch(receive), "watch the client of a stream")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._copy(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()
            # In a thread, because it waits for the brokers' answers to requests in progress.
            await asyncio.shield(self._routes.run(self._consumer.close))
            self._routes.closed()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True

    async def _copy(self, send: Send) -> None:
        partitions = [kafka_partition(tp, self._positions[tp]) for tp in self._open]
        await self._routes.run(lambda: self._consumer.assign(partitions))
        deadline = time.monotonic() + self._wanted.timeout_s
        spoken_at = time.monotonic()
        while self._open and not self._is_disconnected and not self._routes.is_stopping:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._count >= self._wanted.limit or self._bytes >= self._wanted.bytes_max:
                return
            wait_s = min(left_s, _POLL_S)
            messages = await self._routes.run(functools.partial(self._consumer.consume, _POLL_RECORDS, wait_s))
            try:
                check_expiry(self._identity)
                text = "".join(map(self._write, messages))
            except RecordErrors as error:
                text = self._frame(json.dumps(to_http(error).as_json()))
                self._open.clear()
            if not text and self._is_events and time.monotonic() - spoken_at > _SILENCE_S:
                text = ":\n\n"
            if text:
                spoken_at = time.monotonic()
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    def _write(self, message: Any) -> str:
        """Return the text of a message; "" for the end of a partition and for records that are not wanted."""
        tp = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is not None:
            if error.code() == _PARTITION_EOF:
                if not self._wanted.is_followed:
                    self._open.discard(tp)
            elif error.code() not in _IGNORED:
                raise KafkaRefusal(error.code(), self._wanted.topic, error.str())
            return ""
        offset = message.offset()
        if tp not in self._open or self._count >= self._wanted.limit or self._bytes >= self._wanted.bytes_max:
            return ""
        if not self._wanted.is_followed and offset >= self._ends[tp]:
            self._open.discard(tp)
            return ""
        self._positions[tp] = offset + 1
        self._count += 1
        self._bytes += len(message.key() or b"") + len(message.value() or b"")
        if not self._wanted.is_followed and offset + 1 >= self._ends[tp]:
            self._open.discard(tp)
        return self._frame(json.dumps(_record(message, self._wanted.form), ensure_ascii=False))

    def _frame(self, text: str) -> str:
        if not self._is_events:
            return f"{text}\n"
        event_id = ""
        if len(self._positions) <= _POSITIONS_MAX:
            event_id = f"id: {','.join(f'{tp.partition}:{at}' for tp, at in self._positions.items())}\n"
        # JSON escapes the ends of lines, so that the text is one line.
        return f"{event_id}data: {text}\n\n"


def _record(message: Any, form: str) -> dict[str, Any]:
    found = {
        "partition_id": message.partition(), "offset": message.offset(), "timestamp": iso_time(message.timestamp()[1]),
    }  # fmt: skip
    headers = message.headers()
    if headers:
        found["headers"] = [
            {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
            for name, value in headers
        ]
    if message.key() is not None:
        found["key"] = describe(message.key(), form)
    found["value"] = describe(message.value(), form)
    return found


def describe(payload: bytes | None, form: str) -> dict[str, Any] | None:
    """Return a key or a value with its format. Raise HttpError 422 if it does not have the format that is wanted.

    >>> describe(b'{"a": 1}', "AUTO"), describe(b"a", "AUTO"), describe(b"\\xff", "AUTO")
    ({'type': 'JSON', 'data': {'a': 1}}, {'type': 'STRING', 'data': 'a'}, {'type': 'BINARY', 'data': '/w=='})
    """
    if payload is None:
        return None
    for each in (JSON, STRING) if form == _AUTO else ():
        try:
            return {"type": each, "data": decode_plain(each, payload)}
        except HttpError:
            continue
    each = BINARY if form == _AUTO else form
    return {"type": each, "data": decode_plain(each, payload)}


def _read_query(request: Request, settings: Any) -> _Range:
    """Return the range in the query. Raise HttpError 400 if it is not valid."""
    query = request.query_params
    is_followed = query_boolean(request, "follow")
    word = query.get("offset", "").lower()
    start: int | None = LATEST if is_followed else EARLIEST
    if word in ("earliest", "latest"):
        start = EARLIEST if word == "earliest" else LATEST
    elif word:
        start = query_integer(request, "offset", 0, 0, INT64_MAX)
    start_ms = _read_moment(query.get("timestamp"))
    if start_ms is not None and word:
        raise bad_request("offset and timestamp exclude each other")
    form = query.get("format", _AUTO).upper()
    if form not in (_AUTO, *PLAIN_FORMATS):
        raise bad_request(f"format must be one of auto, {', '.join(each.lower() for each in PLAIN_FORMATS)}")
    unlimited = INT64_MAX if is_followed else _LIMIT_DEFAULT
    longest_ms = settings.streaming_connection_max_duration_ms
    timeout_ms = query_integer(request, "timeout", longest_ms if is_followed else _TIMEOUT_DEFAULT_MS, 0, INT64_MAX)
    bytes_default = INT64_MAX if is_followed else settings.consumer_request_max_bytes
    return _Range(
        request.path_params["topic_name"],
        query_integer(request, "partition", None, 0, INT32_MAX),
        None if start_ms is not None else start,
        start_ms,
        query_integer(request, "end_offset", None, 0, INT64_MAX),
        _read_moment(query.get("end_timestamp")),
        query_integer(request, "limit", unlimited, 1, INT64_MAX) or unlimited,
        query_integer(request, "max_bytes", bytes_default, 1, INT64_MAX) or bytes_default,
        min(timeout_ms or 0, longest_ms) / 1000,
        is_followed,
        form,
    )


def _read_moment(text: str | None) -> int | None:
    """Return a time in ms. Raise HttpError 400 if it is neither ISO 8601 nor a number of milliseconds."""
    if not text:
        return None
    # A + in a query is a space, unless it is escaped.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else read_time(text.replace(" ", "+"))


def _read_positions(event_id: str) -> dict[int, int]:
    """Return partition -> next offset of the last event that a client got. Raise HttpError 400 if it is not valid."""
    positions = {}
    for pair in event_id.split(","):
        partition, _, offset = pair.partition(":")
        if not (partition.isdigit() and offset.isdigit() and pair.isascii() and len(pair) <= 30):
            raise bad_request("Last-Event-ID is none of this service")
        positions[int(partition)] = int(offset)
    return positions


def _find_range(
    cluster: Cluster, wanted: _Range, positions: dict[int, int] | None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset and the end of each partition. Raise HttpError 404 if there is no such partition."""
    topic = admin.describe_topic(cluster, wanted.topic)
    numbers = [row.partition_index for row in topic.partitions]
    if wanted.partition is not None:
        if wanted.partition not in numbers:
            raise partition_not_found(wanted.topic, wanted.partition)
        numbers = [wanted.partition]
    partitions = [TopicPartition(wanted.topic, number) for number in sorted(numbers)]
    firsts = admin.list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    starts = dict(ends) if wanted.start == LATEST else dict(firsts)
    if wanted.start_ms is not None:
        found = admin.list_offsets(cluster, dict.fromkeys(partitions, wanted.start_ms))
        starts = {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}
    elif wanted.start is not None and wanted.start >= 0:
        # Offsets that are deleted, or do not exist yet, are replaced by the nearest ones.
        starts = {tp: min(max(wanted.start, firsts[tp]), ends[tp]) for tp in partitions}
    for tp in partitions:
        if positions is not None and tp.partition in positions:
            starts[tp] = min(max(positions[tp.partition], firsts[tp]), ends[tp])
        if wanted.end is not None:
            ends[tp] = min(ends[tp], wanted.end)
    if wanted.end_ms is not None:
        found = admin.list_offsets(cluster, dict.fromkeys(partitions, wanted.end_ms))
        ends = {tp: min(ends[tp], found[tp]) if found[tp] >= 0 else ends[tp] for tp in partitions}
    return starts, ends
