"""Version 2: topics, partitions, offsets, brokers, and produce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import admin
from ottla.edge.rest.admin import ConfigTarget
from ottla.edge.rest.bodies import INT32_MAX, Fields, path_integer, read_object
from ottla.edge.rest.errors import (
    AUTHENTICATION_FAILED,
    KAFKA_ERROR,
    KAFKA_RETRIABLE,
    KEY_SCHEMA_MISSING,
    NOT_AUTHORIZED,
    UNKNOWN_TOPIC_OR_PARTITION,
    VALUE_SCHEMA_MISSING,
    KafkaRefusal,
    no_registry,
    partition_not_found,
    topic_not_found,
    unprocessable,
)
from ottla.edge.rest.kafka import Arrival, Delivery, Identity
from ottla.edge.rest.producing import wait_for_all, with_pauses
from ottla.edge.rest.proxy import DIGITS_OR_INT32, INT32, KAFKA_ERRORS, Proxy, request_schema
from ottla.edge.rest.records import BINARY, PLAIN_FORMATS, encode_plain, now_ms
from ottla.edge.rest.schema_data import SchemaData, SchemaWanted
from ottla.edge.rest.v2_media import EMBEDDED, TOPIC_TYPES, V2, answer_v2, operation_v2, produced_format
from ottla.edge.rest.writable_topics import Topics, WritableTopic, check_size
from ottla.edge.web.app import Operation
from ottla.edge.web.json_schemas import (
    BOOLEAN,
    INTEGER,
    NULLABLE_INTEGER,
    NULLABLE_TEXT,
    TEXT,
    TEXTS,
    list_of,
    object_of,
)

_RECORDS_MAX: Final = 100_000
_OWN_CODES: Final = (AUTHENTICATION_FAILED, NOT_AUTHORIZED, KAFKA_RETRIABLE)
#: error of a record -> status of the whole answer
_STATUSES: Final = {AUTHENTICATION_FAILED: 401, NOT_AUTHORIZED: 403}

_REPLICA: Final = object_of({"broker": INTEGER, "leader": BOOLEAN, "in_sync": BOOLEAN})
_PARTITION: Final = object_of({"partition": INTEGER, "leader": INTEGER, "replicas": list_of(_REPLICA)})
_PARTITIONS: Final = list_of(_PARTITION)
_RECORD: Final = request_schema({}, {"key": {}, "value": {}, "partition": INT32})
_SCHEMAS: Final = {"key_schema": TEXT, "key_schema_id": DIGITS_OR_INT32, "value_schema": TEXT,
                   "value_schema_id": DIGITS_OR_INT32}  # fmt: skip
_PRODUCED: Final = object_of({
    "offsets": list_of(object_of({
        "partition": NULLABLE_INTEGER, "offset": NULLABLE_INTEGER,
        "error_code": NULLABLE_INTEGER, "error": NULLABLE_TEXT,
    })),
    "key_schema_id": NULLABLE_INTEGER, "value_schema_id": NULLABLE_INTEGER,
})  # fmt: skip

#: the results of all records, or an error of the request
_REFUSED: Final = {"anyOf": [_PRODUCED, {"$ref": "#/components/schemas/Error"}]}


class TopicRoutesV2:
    """Handlers of topics and brokers."""

    def __init__(self, proxy: Proxy, topics: Topics, schemas: SchemaData | None) -> None:
        self._proxy = proxy
        self._topics = topics
        self._schemas = schemas

    def operations(self, request_max_bytes: int) -> list[Operation]:
        """Return the rows of the table of operations."""
        one = "/topics/{topic_name}/partitions/{partition_id}"
        offsets = object_of({"beginning_offset": INTEGER, "end_offset": INTEGER})
        topic = object_of(
            {"name": TEXT, "configs": {"type": "object", "additionalProperties": TEXT}, "partitions": _PARTITIONS}
        )
        brokers = object_of({"brokers": list_of(INTEGER)})
        row = partial(operation_v2, tag="Topics (v2)", produces=TOPIC_TYPES)
        records = {"type": "array", "items": _RECORD, "minItems": 1, "maxItems": _RECORDS_MAX}
        produce = partial(
            row, handler=self.produce, answers={200: _PRODUCED, 401: _REFUSED, 403: _REFUSED},
            # BINARY decodes the value as base64; for JSON it is a string.
            body=request_schema({"records": records}, _SCHEMAS, {"records": [{"value": "aGVsbG8="}]}),
            consumes=(V2, *EMBEDDED.values()), body_bytes_max=request_max_bytes, checks_media_type=True,
            errors={**KAFKA_ERRORS, 413: "The request is too large.", 415: "The Content-Type is none of version 2.",
                    422: "A field is missing, or a schema (42201 to 42207)."},
        )  # fmt: skip
        # Clients and load balancers use it to find out whether version 2 is served.
        root = partial(
            row, handler=self.get_root, summary="Tell that version 2 is served", answer={"type": "object"},
            errors={406: "The Accept header excludes the answer."},
        )  # fmt: skip
        return [
            root("root.get", "GET /"),
            root("root.post", "POST /"),
            row("topics.list", "GET /topics", self.list_topics, "List the names of topics", TEXTS),
            row("topics.get", "GET /topics/{topic_name}", self.get_topic,
                "Get a topic with its configs and partitions", topic),
            row("partitions.list", "GET /topics/{topic_name}/partitions", self.list_partitions,
                "List the partitions of a topic", _PARTITIONS),
            row("partitions.get", f"GET {one}", self.get_partition, "Get a partition", _PARTITION),
            row("partitions.get-offsets", f"GET {one}/offsets", self.get_offsets,
                "Get the first offset of a partition and the offset after the last record", offsets),
            row("brokers.list", "GET /brokers", self.list_brokers, "List the ids of brokers", brokers),
            # Confluent's names for one format each (produce-to-topic.json, consumers.consume-json) do not exist here.
            produce("produce-to-topic.produce", "POST /topics/{topic_name}", summary="Produce records to a topic"),
            produce("produce-to-partition.produce", f"POST {one}", summary="Produce records to a partition"),
        ]  # fmt: skip

    async def get_root(self, request: Request) -> Response:
        if request.method == "POST":
            produced_format(request)
        return answer_v2({})

    async def list_topics(self, request: Request) -> Response:
        metadata = await self._proxy.call(request, admin.list_topics)
        return answer_v2(sorted(row.name or "" for row in metadata.topics if row.partitions))

    async def get_topic(self, request: Request) -> Response:
        # Its error is 40403, that of the partitions of a topic 40401, as with other proxies.
        name = request.path_params["topic_name"]
        topic = await self._proxy.call(request, admin.describe_topic, name)
        target = ConfigTarget(admin.TOPIC, name)
        found = (await self._proxy.call(request, admin.describe_configs, [target]))[target]
        configs = {row.name: row.value or "" for row in sorted(found.configs, key=lambda row: row.name)}
        return answer_v2({"name": name, "configs": configs, "partitions": _partitions(topic)})

    async def list_partitions(self, request: Request) -> Response:
        return answer_v2(_partitions(await self._topic(request)))

    async def get_partition(self, request: Request) -> Response:
        return answer_v2(await self._partition(request))

    async def get_offsets(self, request: Request) -> Response:
        number = (await self._partition(request))["partition"]
        topic = request.path_params["topic_name"]
        first, end = await self._proxy.call(request, admin.partition_offsets, topic, number)
        return answer_v2({"beginning_offset": first, "end_offset": end})

    async def list_brokers(self, request: Request) -> Response:
        metadata = await self._proxy.call(request, admin.describe_cluster)
        return answer_v2({"brokers": sorted(row.node_id for row in metadata.brokers)})

    async def _topic(self, request: Request) -> Any:
        name = request.path_params["topic_name"]
        try:
            return await self._proxy.call(request, admin.describe_topic, name)
        except KafkaRefusal as refusal:
            raise _v2_error(refusal, name) from None

    async def _partition(self, request: Request) -> dict[str, Any]:
        number = path_integer(request, "partition_id")
        topic = await self._topic(request)
        for row in _partitions(topic):
            if row["partition"] == number:
                return row
        raise partition_not_found(topic.name, number)

    # Produce

    async def produce(self, request: Request) -> Response:
        form = produced_format(request)
        topic = request.path_params["topic_name"]
        partition = path_integer(request, "partition_id") if "partition_id" in request.path_params else None
        fields = Fields(await read_object(request))
        records = fields.objects("records")
        if not 1 <= len(records) <= _RECORDS_MAX:
            raise unprocessable(f"records must have between 1 and {_RECORDS_MAX:,} records")
        numbers = [
            record.optional_integer("partition", 0, INT32_MAX) if record.has("partition") else partition
            async for record in with_pauses(records)
        ]
        identity = self._proxy.identity(request)
        highest = max((number for number in numbers if number is not None), default=None)
        try:
            # The encoders may register a schema, so the topic is authorized before.
            writable = await self._topics.find(identity, topic, highest)
        except KafkaRefusal as refusal:
            if refusal.http.error_code in _STATUSES:
                return _answer_produced([_failed(refusal) for _ in records], None, None)
            raise _v2_error(refusal, topic) from None
        encode_key, key_id = await self._encoder(form, identity, writable, fields, records, part="key")
        encode_value, value_id = await self._encoder(form, identity, writable, fields, records, part="value")
        # Everything is checked before the first record is sent.
        prepared = [
            (number, encode_key(record.value("key")), encode_value(record.value("value")))
            async for number, record in with_pauses(list(zip(numbers, records, strict=True)))
        ]
        for _, key, value in prepared:
            check_size(writable, key, value)
        producer = self._proxy.kafka.producer(identity, writable.batch_bytes_max)
        arrival = Arrival()
        time_ms = now_ms()
        sent = [
            await producer.send(arrival, topic, number, key, value, timestamp_ms=time_ms)
            async for number, key, value in with_pauses(prepared)
        ]
        await wait_for_all(sent, arrival)
        return _answer_produced([_offset(each) for each in sent], key_id, value_id)

    async def _encoder(
        self, form: str, identity: Identity, topic: WritableTopic, fields: Fields, records: list[Fields], *, part: str
    ) -> tuple[Callable[[Any], bytes | None], int | None]:
        """Return the function that makes bytes of all keys or all values, and the id of their schema.

        Raise HttpError 422 (42201, 42202) if records have such a part and the request has no schema for it.
        """
        schema_id, text = (
            fields.optional_number(f"{part}_schema_id"),
            fields.optional_text(f"{part}_schema", INT32_MAX),
        )
        if form in PLAIN_FORMATS:
            return partial(encode_plain, form), None
        if schema_id is None and text is None:
            if any(record.has(part) for record in records):
                code = KEY_SCHEMA_MISSING if part == "key" else VALUE_SCHEMA_MISSING
                raise unprocessable(f"Request includes {part}s but does not include {part} schema", code)
            return partial(encode_plain, BINARY), None
        if self._schemas is None:
            raise no_registry()
        wanted = SchemaWanted(topic, part == "key", form, schema_id=schema_id, text=text if schema_id is None else None)
        found = await self._schemas.find(identity, wanted)
        return lambda data: found.encode(data).payload, found.schema_id


def _answer_produced(offsets: list[dict[str, Any]], key_id: int | None, value_id: int | None) -> Response:
    """Return the results of all records. The status is that of a record which was not authorized, if there is one."""
    status = next((_STATUSES[each["error_code"]] for each in offsets if each["error_code"] in _STATUSES), 200)
    return answer_v2({"offsets": offsets, "key_schema_id": key_id, "value_schema_id": value_id}, status=status)


def _offset(delivery: Delivery) -> dict[str, Any]:
    if delivery.error is not None:
        return _failed(delivery.error)
    return {"partition": delivery.partition, "offset": delivery.offset, "error_code": None, "error": None}


def _failed(refusal: KafkaRefusal) -> dict[str, Any]:
    code = refusal.http.error_code
    known = code if code in _OWN_CODES else KAFKA_ERROR
    return {"partition": None, "offset": None, "error_code": known, "error": refusal.http.message}


def _partitions(topic: Any) -> list[dict[str, Any]]:
    return [
        {
            "partition": row.partition_index, "leader": row.leader_id,
            "replicas": [
                {"broker": broker, "leader": broker == row.leader_id, "in_sync": broker in row.isr_nodes}
                for broker in row.replica_nodes
            ],
        }
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]  # fmt: skip


def _v2_error(refusal: KafkaRefusal, topic: str) -> Exception:
    """Return version 2's error for an unknown topic, and other errors as they are."""
    return topic_not_found(topic) if refusal.http.error_code == UNKNOWN_TOPIC_OR_PARTITION else refusal
