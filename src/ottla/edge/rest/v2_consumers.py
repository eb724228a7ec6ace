"""Version 2: consumer instances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ottla.client.cluster import EARLIEST, LATEST
from ottla.edge.rest import admin
from ottla.edge.rest.bodies import INT32_MAX, INT64_MAX, Fields, query_integer, read_object, read_optional_object
from ottla.edge.rest.consumers import Instance, InstanceOptions, Instances, Load, Reading
from ottla.edge.rest.errors import (
    CONSUMER_CONFIG,
    CONSUMER_CONFIG_VALUE,
    ILLEGAL_STATE,
    PARTITION_NOT_FOUND,
    bad_request,
    unprocessable,
)
from ottla.edge.rest.group_consumer import Commit
from ottla.edge.rest.kafka import Identity
from ottla.edge.rest.proxy import DIGITS_OR_INT32, INT32, INT64, KAFKA_ERRORS, Proxy, no_content, request_schema
from ottla.edge.rest.records import PLAIN_FORMATS, decode_plain, read_time
from ottla.edge.rest.schema_data import SchemaData
from ottla.edge.rest.v2_media import (
    CONSUMER_TYPES,
    EMBEDDED,
    RECORD_TYPES,
    V2,
    answer_v2,
    check_accepted,
    operation_v2,
)
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.json_schemas import BOOLEAN, INTEGER, TEXT, TEXTS, enum_of, list_of, object_of, or_null
from ottla.model.types import TopicPartition

_RESETS: Final = {
    "earliest": "earliest", "latest": "latest", "none": "error", "smallest": "earliest", "largest": "latest",
}  # fmt: skip
_NAME_MAX: Final = 249
_PARTITIONS_MAX: Final = 10_000
_TIMEOUT_MAX_MS: Final = 600_000
_FETCH_MIN_MAX: Final = 10_000_000

_PLACE: Final = request_schema({"topic": TEXT, "partition": INT32})
_PLACES: Final = request_schema({"partitions": list_of(_PLACE)})
_OFFSET: Final = request_schema({"topic": TEXT, "partition": INT32, "offset": INT64}, {"metadata": TEXT})
_OFFSETS: Final = list_of(_OFFSET)
_TIME: Final = request_schema(
    {"topic": TEXT, "partition": INT32, "timestamp": {"type": "string", "format": "date-time"}}
)
_NAME: Final = {"type": "string", "maxLength": _NAME_MAX}
_NEW: Final = or_null(request_schema({}, {
    "id": _NAME, "name": _NAME, "format": enum_of(*map(str.lower, EMBEDDED)),
    "auto.offset.reset": enum_of(*_RESETS),
    "auto.commit.enable": {"anyOf": [BOOLEAN, {"enum": ["true", "false", None]}]},
    "fetch.min.bytes": {**DIGITS_OR_INT32, "minimum": -1, "maximum": _FETCH_MIN_MAX},
    "consumer.request.timeout.ms": {**DIGITS_OR_INT32, "minimum": 0, "maximum": _TIMEOUT_MAX_MS},
}, {"name": "reader", "format": "json", "auto.offset.reset": "earliest"}))  # fmt: skip
# Clients that are written for several proxies send options that only one of them has.
_NEW["additionalProperties"] = True
_RECORD: Final = object_of({"topic": TEXT, "key": {}, "value": {}, "partition": INTEGER, "offset": INTEGER})
_ERRORS: Final = {
    **KAFKA_ERRORS,
    404: "There is no such consumer instance in this process (40403).",
    406: "The Accept header names another format than the instance has (40601).",
    409: "Subscription and assignment exclude each other, or a partition is not assigned (40903).",
    422: "A field is missing or not valid.",
}

_T = TypeVar("_T")


class ConsumerRoutesV2:
    """Handlers of consumer instances."""

    def __init__(self, proxy: Proxy, instances: Instances, schemas: SchemaData | None) -> None:
        self._proxy = proxy
        self._instances = instances
        self._schemas = schemas

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        row = partial(operation_v2, tag="Consumers (v2)", produces=CONSUMER_TYPES, consumes=(V2,), errors=_ERRORS)
        reading = [
            Parameter("timeout", "Milliseconds to wait for records, if less than the instance's timeout.",
                      {**INT64, "minimum": -1}),
            Parameter("max_bytes", "Bytes of keys and values in the answer.", {**INT64, "minimum": -1}),
        ]  # fmt: skip
        topic = {"type": "string", "minLength": 1, "maxLength": _NAME_MAX}
        subscription = request_schema({}, {"topics": list_of(topic), "topic_pattern": TEXT}, {"topics": ["orders"]})
        commits = or_null(request_schema({}, {"offsets": _OFFSETS}))
        positions = request_schema(
            {}, {"offsets": _OFFSETS, "timestamps": list_of(_TIME)},
            {"offsets": [{"topic": "orders", "partition": 0, "offset": 0}]},
        )  # fmt: skip
        created = object_of({"instance_id": TEXT, "base_uri": TEXT})
        taken = {**_ERRORS, 409: "The name exists (40902).", 503: "There are too many instances (50301)."}
        one = "/consumers/{group}/instances/{instance}"
        return [
            row("consumers.create", "POST /consumers/{group}", self.create, "Create a consumer instance in a group",
                created, body=_NEW, body_required=False, errors=taken),
            row("consumers.delete", f"DELETE {one}", self.delete, "Delete a consumer instance"),
            row("consumers.subscribe", f"POST {one}/subscription", self.subscribe,
                "Subscribe to topics or to a pattern", body=subscription),
            row("consumers.get-subscription", f"GET {one}/subscription", self.get_subscription,
                "List the topics of the subscription", object_of({"topics": TEXTS})),
            row("consumers.unsubscribe", f"DELETE {one}/subscription", self.unsubscribe, "End the subscription"),
            row("consumers.assign", f"POST {one}/assignments", self.assign, "Assign partitions", body=_PLACES),
            row("consumers.get-assignments", f"GET {one}/assignments", self.get_assignments,
                "List the assigned partitions", _PLACES),
            row("consumers.seek-to-offset", f"POST {one}/positions", self.seek,
                "Set positions, by offset or by time", body=positions),
            row("consumers.seek-to-beginning", f"POST {one}/positions/beginning", self.seek_beginning,
                "Set positions to the first records", body=_PLACES),
            row("consumers.seek-to-end", f"POST {one}/positions/end", self.seek_end,
                "Set positions behind the last records", body=_PLACES),
            row("consumers.consume", f"GET {one}/records", self.read,
                "Read records; Accept must name the format of the instance", list_of(_RECORD),
                query=reading, produces=RECORD_TYPES),
            row("consumers.commit-offsets", f"POST {one}/offsets", self.commit,
                "Commit offsets of records; without a body, of all records read", {"type": "array"}, body=commits,
                body_required=False),
            row("consumers.get-committed-offsets", f"GET {one}/offsets", self.committed,
                "Get committed offsets of the partitions in the body", object_of({"offsets": _OFFSETS}),
                body=_PLACES),
        ]  # fmt: skip

    # Life

    async def create(self, request: Request) -> Response:
        group = request.path_params["group"]
        options = _read_options(Fields(await read_optional_object(request) or {}), self._schemas is not None)
        if len(group) > _NAME_MAX:
            raise unprocessable(f"the group's name has more than {_NAME_MAX} characters", CONSUMER_CONFIG)
        instance = self._instances.create(group, self._proxy.identity(request), options)
        path = f"/consumers/{quote(group, safe='')}/instances/{quote(instance.name, safe='')}"
        base = f"{self._proxy.base_url(request)}{path}"
        return answer_v2({"instance_id": instance.name, "base_uri": base})

    async def delete(self, request: Request) -> Response:
        await self._instances.delete(self._find(request))
        return no_content()

    def _find(self, request: Request) -> Instance:
        identity = self._proxy.identity(request)
        return self._instances.find(request.path_params["group"], request.path_params["instance"], identity)

    async def _run(self, instance: Instance, function: Callable[[], _T]) -> _T:
        """Run a request of the consumer in a thread; meanwhile the instance does not expire."""
        instance.requests += 1
        try:
            return await self._proxy.kafka.run(function)
        finally:
            instance.requests -= 1

    # Subscription and assignment

    async def subscribe(self, request: Request) -> Response:
        instance = self._find(request)
        fields = Fields(await read_object(request))
        topics = fields.array("topics") if fields.has("topics") else []
        pattern = fields.optional_text("topic_pattern")
        if not all(isinstance(each, str) and 1 <= len(each) <= _NAME_MAX for each in topics):
            raise bad_request(f"topics must be an array of names with at most {_NAME_MAX} characters")
        if len(topics) > _PARTITIONS_MAX:
            raise bad_request(f"topics has more than {_PARTITIONS_MAX:,} names")
        if topics and pattern is not None:
            raise HttpError(409, ILLEGAL_STATE, "Illegal state: topics and topic_pattern are mutually exclusive")
        if not topics and pattern is None:
            raise unprocessable("topics or topic_pattern is required")
        if any(each.startswith("^") for each in topics):
            raise unprocessable("the name of a topic does not start with ^; use topic_pattern")
        if pattern is None:
            await self._run(instance, lambda: instance.consumer.subscribe(topics))
        else:
            await self._instances.subscribe_to_pattern(instance, pattern)
        return no_content()

    async def get_subscription(self, request: Request) -> Response:
        instance = self._find(request)
        return answer_v2({"topics": sorted(instance.consumer.subscription)})

    async def unsubscribe(self, request: Request) -> Response:
        instance = self._find(request)
        await self._run(instance, instance.consumer.unsubscribe)
        return no_content()

    async def assign(self, request: Request) -> Response:
        instance = self._find(request)
        partitions = _read_partitions(await read_object(request))
        await self._run(instance, lambda: instance.consumer.assign(partitions))
        return no_content()

    async def get_assignments(self, request: Request) -> Response:
        instance = self._find(request)
        found = await self._run(instance, instance.consumer.assignment)
        return answer_v2({"partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in found]})

    # Positions

    async def seek(self, request: Request) -> Response:
        instance = self._find(request)
        fields = Fields(await read_object(request))
        offsets = {
            _read_partition(each): each.integer("offset", 0, INT64_MAX)
            for each in (fields.objects("offsets") if fields.has("offsets") else [])
        }
        times = {
            _read_partition(each): read_time(each.text("timestamp"))
            for each in (fields.objects("timestamps") if fields.has("timestamps") else [])
        }
        if not offsets and not times:
            raise unprocessable("offsets or timestamps are required")
        if times:
            found = await self._proxy.call(request, admin.list_offsets, times)
            late = [tp for tp, offset in found.items() if offset < 0]
            ends = await self._proxy.call(request, admin.list_offsets, dict.fromkeys(late, LATEST)) if late else {}
            offsets = {**found, **ends, **offsets}
        await self._run(instance, lambda: instance.consumer.seek(offsets))
        return no_content()

    async def seek_beginning(self, request: Request) -> Response:
        return await self._seek_to(request, EARLIEST)

    async def seek_end(self, request: Request) -> Response:
        return await self._seek_to(request, LATEST)

    async def _seek_to(self, request: Request, where: int) -> Response:
        instance = self._find(request)
        partitions = _read_partitions(await read_object(request))
        assigned = set(await self._run(instance, instance.consumer.assignment))
        # The offset is found now, so that records of later requests are behind it. An unknown partition fails below.
        known = dict.fromkeys([tp for tp in partitions if tp in assigned], where)
        offsets = await self._proxy.call(request, admin.list_offsets, known) if known else {}
        wanted = {tp: offsets.get(tp, 0) for tp in partitions}
        await self._run(instance, lambda: instance.consumer.seek(wanted))
        return no_content()

    # Records and offsets

    async def read(self, request: Request) -> Response:
        instance = self._find(request)
        form = instance.options.format
        media_type = check_accepted(request, form)
        settings = self._proxy.settings
        own = instance.options.request_timeout_ms
        timeout_ms = settings.consumer_request_timeout_ms if own is None else own
        wanted = query_integer(request, "timeout", -1, -1, INT64_MAX)
        if wanted is not None and wanted > 0:
            timeout_ms = min(timeout_ms, wanted)
        bytes_max = query_integer(request, "max_bytes", -1, -1, INT64_MAX) or -1
        limit = settings.consumer_request_max_bytes
        decode, load = self._decoder(form, self._proxy.identity(request))
        found = await self._instances.read(instance, Reading(
            timeout_ms / 1000, min(bytes_max, limit) if bytes_max > 0 else limit, partial(_record, decode),
            request.is_disconnected, load,
        ))  # fmt: skip
        return answer_v2(found, media_type)

    def _decoder(self, form: str, identity: Identity) -> tuple[Callable[[bytes | None], Any], Load | None]:
        """Return what decodes keys and values, and what gets their schemas before: None for a plain format."""
        if form in PLAIN_FORMATS or self._schemas is None:
            return partial(decode_plain, form), None
        return partial(self._schemas.decode, form), partial(self._schemas.load, identity)

    async def commit(self, request: Request) -> Response:
        instance = self._find(request)
        body = await read_optional_object(request)
        commits: list[Commit] | None = None
        if body is not None and body.get("offsets") is not None:
            commits = [
                # The offset of the last record that was read: the next one is the position of the group.
                Commit(
                    _read_partition(each), each.integer("offset", 0, INT64_MAX - 1) + 1, each.optional_text("metadata")
                )
                for each in Fields(body).objects("offsets")
            ]
        await self._run(instance, lambda: instance.consumer.commit(commits))
        return answer_v2([])

    async def committed(self, request: Request) -> Response:
        instance = self._find(request)
        body = await read_optional_object(request)
        if body is None:
            raise HttpError(404, PARTITION_NOT_FOUND, "Partition not found. The body names no partitions.")
        partitions = _read_partitions(body)
        found = await self._run(instance, lambda: instance.consumer.committed(partitions))
        rows = [
            {"topic": each.tp.topic, "partition": each.tp.partition, "offset": each.offset,
             "metadata": each.metadata or ""}
            for each in found
        ]  # fmt: skip
        return answer_v2({"offsets": rows})


def _record(decode: Callable[[bytes | None], Any], message: Any) -> dict[str, Any]:
    try:
        key, value = decode(message.key()), decode(message.value())
    except HttpError as error:
        place = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
        raise HttpError(error.status, error.error_code, f"{error.message}: {place}") from None
    return {
        "topic": message.topic(), "key": key, "value": value, "partition": message.partition(),
        "offset": message.offset(),
    }  # fmt: skip


def _read_options(fields: Fields, has_registry: bool) -> InstanceOptions:
    """Return the options of a new instance. Raise HttpError 422 for a value that is not allowed."""
    form = (fields.optional_text("format") or "binary").upper()
    if form not in EMBEDDED:
        raise unprocessable("Invalid format type.")
    if form not in PLAIN_FORMATS and not has_registry:
        raise unprocessable(f"{form} needs a schema registry; start the proxy with --registry", CONSUMER_CONFIG)
    reset = fields.optional_text("auto.offset.reset")
    if reset is not None and reset.lower() not in _RESETS:
        raise _wrong_option(f"auto.offset.reset must be one of {', '.join(_RESETS)}")
    commit = fields.value("auto.commit.enable")
    if isinstance(commit, str) and commit.lower() in ("true", "false"):
        commit = commit.lower() == "true"
    if commit is not None and not isinstance(commit, bool):
        raise _wrong_option("auto.commit.enable must be true or false")
    name = fields.optional_text("id") or fields.optional_text("name")
    if name is not None and len(name) > _NAME_MAX:
        raise _wrong_option(f"name has more than {_NAME_MAX} characters")
    bytes_min = _read_number(fields, "fetch.min.bytes", -1, _FETCH_MIN_MAX)
    timeout_ms = _read_number(fields, "consumer.request.timeout.ms", 0, _TIMEOUT_MAX_MS)
    return InstanceOptions(name, form, _RESETS[reset.lower()] if reset else None, commit, bytes_min, timeout_ms)


def _read_number(fields: Fields, name: str, low: int, high: int) -> int | None:
    number = fields.optional_number(name, -INT32_MAX)
    if number is not None and not low <= number <= high:
        raise _wrong_option(f"{name} must be between {low} and {high}", CONSUMER_CONFIG_VALUE)
    return number


def _wrong_option(reason: str, error_code: int = CONSUMER_CONFIG) -> HttpError:
    return unprocessable(f"Invalid consumer configuration: {reason}", error_code)


def _read_partition(fields: Fields) -> TopicPartition:
    return TopicPartition(fields.text("topic"), fields.integer("partition"))


def _read_partitions(body: dict[str, Any]) -> list[TopicPartition]:
    entries = Fields(body).objects("partitions")
    if len(entries) > _PARTITIONS_MAX:
        raise bad_request(f"partitions has more than {_PARTITIONS_MAX:,} entries")
    return [_read_partition(each) for each in entries]
