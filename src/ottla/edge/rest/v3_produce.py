"""Version 3: produce as a stream of records on one connection, and in batches."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ottla.edge.rest.bodies import Fields, charset_of, read_object
from ottla.edge.rest.errors import INVALID_BATCH, INVALID_PAYLOAD, RecordErrors, bad_request, to_http, unprocessable
from ottla.edge.rest.json_stream import JsonStream
from ottla.edge.rest.kafka import Arrival, Delivery, Identity, Kafka
from ottla.edge.rest.producing import DataEncoder, wait_for_all
from ottla.edge.rest.proxy import INT32, INT64, KAFKA_ERRORS, Proxy, answer, request_schema
from ottla.edge.rest.records import (
    PLAIN_FORMATS,
    SCHEMA_FORMATS,
    Encoded,
    iso_time,
    now_ms,
    read_headers,
    read_partition,
    read_time,
)
from ottla.edge.rest.resources import Links
from ottla.edge.rest.writable_topics import Topics, check_size
from ottla.edge.web.app import HttpError, Operation
from ottla.edge.web.json_schemas import (
    INTEGER,
    NULLABLE_INTEGER,
    NULLABLE_TEXT,
    TEXT,
    enum_of,
    list_of,
    object_of,
    or_null,
)

#: records of one stream that are sent and not acknowledged
_IN_FLIGHT_MAX: Final = 2000
#: results of one stream that wait for a client which sends all records before it reads
_RESULT_BYTES_MAX: Final = 16 << 20
#: a client that reads nothing for this long while results wait is disconnected
_UNREAD_S_MAX: Final = 60.0
_ID_MAX: Final = 80
_ID: Final = re.compile(rf"[0-9a-zA-Z_-]{{1,{_ID_MAX}}}")
#: a stream has no limit for its body, only for each record
_UNLIMITED: Final = 1 << 62

_DATA: Final = {
    "type": ["object", "null"],
    "properties": {
        "type": enum_of(*PLAIN_FORMATS, *SCHEMA_FORMATS),
        "subject": NULLABLE_TEXT, "subject_name_strategy": {
            "type": ["string", "null"], "enum": ["TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME", None],
        },
        "schema_id": or_null(INT32), "schema_version": or_null({**INT32, "minimum": 1}),
        "schema": NULLABLE_TEXT, "data": {},
    },
    "required": ["data"], "additionalProperties": False,
}  # fmt: skip
_RECORD: Final = {
    "partition_id": or_null(INT32),
    "headers": {"type": ["array", "null"], "items": request_schema({"name": TEXT}, {"value": TEXT})},
    "key": _DATA, "value": _DATA,
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
}  # fmt: skip
#: a GET of records also returns the offset of a record, so that its answer can be sent
_FIELDS: Final = frozenset((*_RECORD, "offset"))
_EXAMPLE: Final = {"key": {"type": "STRING", "data": "a"}, "value": {"type": "JSON", "data": {"id": 1}}}
_DESCRIBED: Final = object_of(
    {"type": TEXT, "size": INTEGER},
    {"subject": NULLABLE_TEXT, "schema_id": INTEGER, "schema_version": NULLABLE_INTEGER},
)
_RESULT: Final = {
    "cluster_id": TEXT, "topic_name": TEXT, "partition_id": INTEGER, "offset": INTEGER, "timestamp": NULLABLE_TEXT,
    "key": _DESCRIBED, "value": _DESCRIBED,
}  # fmt: skip


class ProduceRoutes:
    """Handlers that produce records."""

    def __init__(self, proxy: Proxy, topics: Topics, encoder: DataEncoder) -> None:
        self._proxy = proxy
        self._topics = topics
        self._encoder = encoder

    def operations(self, request_max_bytes: int) -> list[Operation]:
        """Return the rows of the table of operations."""
        row, path = partial(self._proxy.operation, tag="Records (v3)"), "topics/{topic_name}/records"
        errors = {**KAFKA_ERRORS, 413: "The request, or a record, is too large.", 422: "The body is empty (42206)."}
        entry = request_schema({"id": {"type": "string", "pattern": f"^{_ID.pattern}$"}}, _RECORD)
        entries = request_schema(
            {"entries": {"type": "array", "items": entry, "minItems": 1}}, None, {"entries": [{"id": "1", **_EXAMPLE}]}
        )
        failure = object_of({"id": TEXT, "error_code": INTEGER}, {"message": TEXT})
        results = object_of({
            "successes": list_of(object_of({"id": TEXT}, _RESULT)),
            "failures": list_of(failure),
        })  # fmt: skip
        return [
            row("produce.produce-to-topic", f"POST {path}", self.produce,
                "Produce records: JSON objects one after the other, of which each gets a line as its answer when it is "
                "acknowledged, in the same order", object_of({"error_code": INTEGER}, {"message": TEXT, **_RESULT}),
                body=request_schema({}, {**_RECORD, "offset": INT64}, _EXAMPLE), errors=errors,
                body_bytes_max=_UNLIMITED),
            row("batch-produce.produce-to-topic", f"POST {path}:batch", self.produce_batch,
                "Produce a batch of records, each with an id", body=entries, answers={207: results},
                errors={**errors, 422: "The batch is empty, too long, or its ids are not distinct (42208)."},
                body_bytes_max=request_max_bytes),
        ]  # fmt: skip

    async def produce(self, request: Request, links: Links) -> Response:
        sender = self._sender(request, links.cluster_id)
        settings = self._proxy.settings
        stream = _Stream(request, sender, settings.request_max_bytes, settings.streaming_connection_max_duration_ms)
        await stream.read_first()
        return stream

    async def produce_batch(self, request: Request, links: Links) -> Response:
        body = await request.body()
        if not body.strip():
            raise unprocessable("Request body is empty. Data is required.", INVALID_BATCH)
        fields = Fields(await read_object(request))
        entries = fields.array("entries") if fields.has("entries") else []
        ids = _distinct_ids(entries, self._proxy.settings.api_v3_produce_batch_maximum_entries)
        sender = self._sender(request, links.cluster_id)
        records = [{name: value for name, value in entry.items() if name != "id"} for entry in entries]
        sent = [await sender.send_or_fail(record) for record in records]
        await wait_for_all([each.delivery for each in sent if each.delivery is not None], sender.arrival)
        successes, failures = [], []
        for name, each in zip(ids, sent, strict=True):
            result = each.result(sender)
            if result.pop("error_code") == 200:
                successes.append({"id": name, **result})
            else:
                failures.append({"id": name, **each.result(sender)})
        return answer({"successes": successes, "failures": failures}, 207)

    def _sender(self, request: Request, cluster_id: str) -> _Sender:
        identity, topic = self._proxy.identity(request), request.path_params["topic_name"]
        return _Sender(self._proxy.kafka, identity, self._topics, self._encoder, cluster_id=cluster_id, topic=topic)


def _distinct_ids(entries: list[Any], count_max: int) -> list[str]:
    """Return the ids of the entries. Raise HttpError 422 (42208) if the batch is not valid."""
    ids: list[str] = []
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise unprocessable("Batch entry identifier is not a valid string.", INVALID_BATCH)
        ids.append(name)
    if len(set(ids)) != len(ids):
        raise unprocessable("Batch entry IDs are not distinct.", INVALID_BATCH)
    if not ids:
        raise unprocessable("Empty batch.", INVALID_BATCH)
    if len(ids) > count_max:
        raise unprocessable(f"Too many entries in batch. At most {count_max} are allowed.", INVALID_BATCH)
    return ids


class _Sent:
    """A record that was sent, or why it was not."""

    __slots__ = ("delivery", "error", "key", "value")

    def __init__(self, delivery: Delivery | None, key: Encoded, value: Encoded, error: HttpError | None) -> None:
        self.delivery = delivery
        self.key = key
        self.value = value
        self.error = error

    @property
    def is_done(self) -> bool:
        return self.delivery is None or self.delivery.is_done

    def result(self, sender: _Sender) -> dict[str, Any]:
        """Return the answer for this record."""
        delivery = self.delivery
        error = self.error
        if delivery is not None and delivery.error is not None:
            error = delivery.error.http
        if error is not None or delivery is None:
            assert error is not None
            if error.status == 422:
                # Confluent's server has the detailed code in the text only.
                return {"error_code": 422, "message": f"Error: {error.error_code} : {error.message}"}
            return {"error_code": error.error_code, "message": error.message}
        found = {
            "error_code": 200, "cluster_id": sender.cluster_id, "topic_name": sender.topic,
            "partition_id": delivery.partition, "offset": delivery.offset,
            "timestamp": iso_time(delivery.timestamp_ms),
        }  # fmt: skip
        if self.key.format is not None:
            found["key"] = self.key.described()
        if self.value.format is not None:
            found["value"] = self.value.described()
        return found

    def line(self, sender: _Sender) -> str:
        """Return the answer as a line of JSON."""
        delivery = self.delivery
        if delivery is None or delivery.error is not None or self.key.schema_id or self.value.schema_id:
            return json.dumps(self.result(sender), ensure_ascii=False) + "\n"
        # The usual case, written by hand because it is the larger part of the work for a small record.
        key, value = self.key, self.value
        described = ""
        if key.format is not None:
            described = f',"key":{{"type":"{key.format}","size":{len(key.payload or b"")}}}'
        if value.format is not None:
            described += f',"value":{{"type":"{value.format}","size":{len(value.payload or b"")}}}'
        return (
            f'{sender.line_start}{delivery.partition},"offset":{delivery.offset},'
            f'"timestamp":"{iso_time(delivery.timestamp_ms)}"{described}}}\n'
        )


class _Sender:
    """Sends the records of one request."""

    def __init__(
        self, kafka: Kafka, identity: Identity, topics: Topics, encoder: DataEncoder, *, cluster_id: str, topic: str
    ) -> None:
        self.arrival = Arrival()
        self.cluster_id = cluster_id
        self.topic = topic
        self.line_start = (
            f'{{"error_code":200,"cluster_id":{json.dumps(cluster_id)},"topic_name":{json.dumps(topic)},"partition_id":'
        )
        self._kafka = kafka
        self._identity = identity
        self._topics = topics
        self._encoder = encoder

    async def send_or_fail(self, found: Any) -> _Sent:
        """Send a record of a request. An error of the record becomes its result."""
        try:
            return await self._send(found)
        except RecordErrors as error:
            return _failed(to_http(error))

    async def _send(self, found: Mapping[str, Any]) -> _Sent:
        if not _FIELDS.issuperset(found):
            raise bad_request(f"Unrecognized field: {min(set(found) - _FIELDS)[:_ID_MAX]}")
        partition = read_partition(found.get("partition_id"))
        headers = read_headers(found.get("headers"))
        timestamp_ms = read_time(found.get("timestamp")) or now_ms()
        # The encoder may register a schema, so the topic is authorized before.
        topic = await self._topics.find(self._identity, self.topic, partition)
        key = await self._encoder.encode(self._identity, topic, found.get("key"), is_key=True)
        value = await self._encoder.encode(self._identity, topic, found.get("value"), is_key=False)
        check_size(topic, key.payload, value.payload)
        delivery = await self._kafka.producer(self._identity, topic.batch_bytes_max).send(
            self.arrival, self.topic, partition, key.payload, value.payload, headers=headers, timestamp_ms=timestamp_ms
        )
        return _Sent(delivery, key, value, None)


def _failed(error: HttpError) -> _Sent:
    return _Sent(None, Encoded(None), Encoded(None), error)


class _Stream(Response):
    """The answer to a stream of records: it is sent while the records still arrive.

    One task reads and sends records. It stops reading while too many are not acknowledged, and while the client does
    not read the results (back-pressure). Another task collects the results in the order of the records.
    """

    def __init__(self, request: Request, sender: _Sender, record_bytes_max: int, duration_max_ms: int) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]  # it is not known
        self._request = request
        self._sender = sender
        self._json = JsonStream(record_bytes_max, charset_of(request))
        self._end_at = asyncio.get_running_loop().time() + duration_max_ms / 1000
        #: records that are read and not sent, and the error that ends the stream after them
        self._records: deque[dict[str, Any]] = deque()
        self._error: HttpError | None = None
        self._is_complete = False
        #: records that are not acknowledged, in their order
        self._pending: deque[_Sent] = deque()
        #: results that the client has not read
        self._lines: list[str] = []
        self._lines_size = 0
        self._has_sent_all = False
        self._room = asyncio.Event()
        self._output = asyncio.Event()

    async def read_first(self) -> None:
        """Read until there is a record or an error. Raise HttpError 422 if the body is empty."""
        while not self._records and self._error is None and not self._is_complete:
            await self._read_piece()
        if not self._records and self._error is None:
            raise unprocessable("Payload error. Request body is empty. Data is required.", INVALID_PAYLOAD)

    async def _read_piece(self) -> None:
        """Read a piece of the body; keep its records, or the error that ends the stream."""
        try:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                self._is_complete = True
                return
            self._is_complete = not message.get("more_body", False)
            for record in self._json.feed(message.get("body", b""), is_last=self._is_complete):
                self._records.append(record)
        except HttpError as error:
            self._error = error
            self._is_complete = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        working = asyncio.gather(self._send_records(), self._collect_results())
        working.add_done_callback(lambda _: self._output.set())
        try:
            while not working.done() or self._lines:
                await self._output.wait()
                self._output.clear()
                body = "".join(self._lines).encode()
                self._lines.clear()
                # Waits while the client does not read. A client that never does must not keep the connection.
                async with asyncio.timeout(_UNREAD_S_MAX):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                self._lines_size = sum(map(len, self._lines))
                self._room.set()
                if working.done():
                    self._output.set()
            working.result()
        except TimeoutError:
            # The connection is closed, because its answer is not complete.
            return
        finally:
            working.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_records(self) -> None:
        """Read records and send them, until the client has no more or an error ends the stream."""
        try:
            async with asyncio.timeout_at(self._end_at):
                while True:
                    while self._records:
                        await self._wait_for_room()
                        sent = await self._sender.send_or_fail(self._records.popleft())
                        self._pending.append(sent)
                        if sent.is_done:
                            self._sender.arrival.report()
                    if self._is_complete:
                        break
                    await self._read_piece()
        except TimeoutError:
            self._error = HttpError(408, 408, "The connection is open for longer than allowed and is closed.")
        if self._error is not None:
            self._pending.append(_failed(self._error))
        self._has_sent_all = True
        self._sender.arrival.report()

    async def _wait_for_room(self) -> None:
        while len(self._pending) >= _IN_FLIGHT_MAX or self._lines_size >= _RESULT_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    async def _collect_results(self) -> None:
        """Write the line of each record that is done, in the order of the records."""
        while not self._has_sent_all or self._pending:
            await self._sender.arrival.wait()
            while self._pending and self._pending[0].is_done:
                line = self._pending.popleft().line(self._sender)
                self._lines.append(line)
                self._lines_size += len(line)
            self._room.set()
            self._output.set()
