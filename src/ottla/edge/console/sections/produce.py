"""The form that produces a record, with its schema checked, and the form that produces a record again."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.topic_state import TopicState
from ottla.client.errors import ClientError
from ottla.client.registry import RegisteredSchema, RegistryError, SchemaRegistry
from ottla.edge.console.message_query import decoder_of, source_of, topic_of
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, View
from ottla.edge.console.records import outgoing, showing
from ottla.edge.console.records.decoding import Codecs
from ottla.edge.console.records.lookup import find_record
from ottla.edge.console.records.outgoing import FORMATS, SAME, SCHEMA, BadRecord, Headers, Outgoing
from ottla.edge.console.records.scan import BadPosition, parse_positions
from ottla.edge.console.records.view import RecordView
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.edge.console.topic_tabs import topic_tabs
from ottla.model.hashing import murmur2
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

_PARTS: Final = ("key", "value")
_SCHEMA_ID_MAX: Final = 2**31 - 1
_KEY_CHARACTERS: Final = 100


class Produce:
    """The pages topics/TOPIC/produce."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                "topics/{topic}/produce", self.form, plan=self.plan, role=Role.EDITOR,
                summary="Produce a record, or one again.",
            )
        ]  # fmt: skip

    async def form(self, page: PageRequest) -> View:
        topic = await topic_of(page)
        source = await self._source(page, page.query.get("copy", ""))
        subjects, problem = await self._subjects(page, topic.name)
        data: dict[str, Any] = {
            "topic": topic.name, "partitions": len(topic.partitions), "subjects": subjects, "problem": problem,
            "copy": page.query.get("copy", ""), "fields": _fields(source, subjects),
        }  # fmt: skip
        formats = (SAME, *FORMATS) if source is not None else FORMATS
        usable = [each for each in formats if each != SCHEMA or page.console.registry is not None]
        return View(
            "topics/produce.html", topic.name, data, tabs=topic_tabs(page, topic.name, "messages"),
            extra={"formats": usable}, commands=_commands(topic.name),
        )  # fmt: skip

    async def plan(self, page: PageRequest) -> Plan:
        topic = await topic_of(page)
        source = await self._source(page, page.form.get("copy", ""))
        try:
            key = await self._part(page, topic.name, "key", source)
            value = await self._part(page, topic.name, "value", source)
            headers = _headers(page, source)
        except BadRecord as error:
            raise BadInput(str(error)) from None
        numbers = [each.name.partition for each in topic.partitions if each.leader is not None]
        partition, where = _partition(page, topic, key.data)
        record = Record(key=key.data, value=value.data, headers=headers)
        shown = showing.line(decoder_of(page, self._codecs).decode(key.data), _KEY_CHARACTERS)[0]
        words = f"key {shown!r} ({key.words()}), value of {value.words()}, {len(headers)} headers, {where}"
        return Plan(
            title=f"Produce a record to {topic.name}", changes=[Change(f"topic {topic.name}", None, words)],
            confirm=topic.name if topic.internal or topic.name.startswith("_") else "",
            warnings=await self._warnings(page, topic.name, key, value),
            apply=partial(_append, topic=topic.name, partition=partition, numbers=numbers, record=record),
            then=url("topics", topic.name, "messages", partition="" if partition is None else partition)[1:],
            commands=_commands(topic.name),
        )  # fmt: skip

    # -- parts --------------------------------------------------------------------------------------------------------

    async def _part(self, page: PageRequest, topic: str, part: str, source: RecordView | None) -> Outgoing:
        kind = page.choice(f"{part}_format", (*FORMATS, SAME))
        # Browsers send line ends as \r\n, whatever was typed.
        text = page.form.get(part, "").replace("\r\n", "\n")
        if kind == SAME:
            if source is None:
                raise BadInput(f"{part}_format: {SAME} needs a record that is produced again")
            return Outgoing((source.key if part == "key" else source.value).bytes)
        if kind != SCHEMA:
            return outgoing.encode(part, kind, text)
        registry = page.console.registry
        if registry is None:
            raise BadInput(f"{part}_format: the console has no registry; start it with --registry URL")
        schema_id = page.number(f"{part}_schema", -1, low=-1, high=_SCHEMA_ID_MAX)
        client = registry.client_of(page.caller.identity)

        def encode() -> Outgoing:
            schema = outgoing.find_schema(client, part, f"{topic}-{part}", None if schema_id < 0 else schema_id)
            return outgoing.encode_with_schema(part, text, schema, client, self._codecs)

        return await asyncio.to_thread(encode)

    async def _source(self, page: PageRequest, copy: str) -> RecordView | None:
        """Return the record that is produced again, by its PARTITION.OFFSET; None without one."""
        if not copy:
            return None
        topic = await topic_of(page)
        try:
            places = list(parse_positions(copy).items())
        except BadPosition:
            places = []
        if len(places) != 1 or places[0][0] >= len(topic.partitions):
            raise BadInput(f"copy: {copy[:40]!r} is not PARTITION.OFFSET of a record of {topic.name}")
        (partition, offset), decoder = places[0], decoder_of(page, self._codecs)
        found = await page.run(
            lambda client: client.call(
                lambda cluster: find_record(source_of(cluster, topic.name), partition, offset, decoder)
            )
        )
        if found.view is None:
            raise BadInput(f"copy: there is no record at offset {offset} of partition {partition}: {found.absence}")
        return found.view

    async def _subjects(self, page: PageRequest, topic: str) -> tuple[dict[str, Any], str]:
        """Return the latest schema of the key and of the value, if there is one, and why they are not known."""
        registry = page.console.registry
        if registry is None:
            return {}, ""
        found: dict[str, Any] = {}
        for part in _PARTS:
            subject = f"{topic}-{part}"
            try:
                schema = await registry.run(partial(_latest, subject=subject), page.caller.identity)
                found[part] = {
                    "subject": subject, "version": schema.version, "id": schema.id, "type": schema.schema_type,
                }  # fmt: skip
            except RegistryError as error:
                if error.status != 404:
                    return found, str(error)
            except ClientError as error:
                return found, str(error)
        return found, ""

    async def _warnings(self, page: PageRequest, topic: str, key: Outgoing, value: Outgoing) -> list[str]:
        subjects, _ = await self._subjects(page, topic)
        found = [
            f"The subject {subjects[part]['subject']} has a schema, and this {part} is sent without one."
            for part, made in zip(_PARTS, (key, value), strict=True)
            if part in subjects and made.data is not None and made.schema is None and made.data[:1] != b"\0"
        ]
        if value.data is None:
            found.append("A null value deletes the key in a compacted topic.")
        if topic.startswith("_"):
            found.append("This topic belongs to the cluster or to a service: a wrong record may break it.")
        return found


def _latest(client: SchemaRegistry, subject: str) -> RegisteredSchema:
    return client.version(subject)


def _headers(page: PageRequest, source: RecordView | None) -> Headers:
    if page.form.get("headers_format") == SAME:
        if source is None:
            raise BadInput(f"headers_format: {SAME} needs a record that is produced again")
        return list(source.headers_raw)
    return outgoing.parse_headers(page.form.get("headers", ""))


def _partition(page: PageRequest, topic: TopicState, key: bytes | None) -> tuple[int | None, str]:
    """Return the partition, None if any will do, and how the preview calls it."""
    count = len(topic.partitions)
    if page.form.get("partition", "").strip():
        number = page.number("partition", 0, high=count - 1)
        return number, f"partition {number}"
    if key is None:
        return None, "in any partition"
    # As Java's producers do, so that records with the same key are in one partition.
    number = (murmur2(key) & 0x7FFFFFFF) % count
    return number, f"partition {number}, by its key"


def _fields(source: RecordView | None, subjects: dict[str, Any]) -> dict[str, str]:
    """Return what the fields of the form have at first."""
    if source is None:
        return {f"{part}_format": SCHEMA if part in subjects else "text" for part in _PARTS}
    lines = outgoing.header_lines(source.headers_raw)
    fields = {
        "partition": str(source.partition), "headers": lines or "",
        "headers_format": SAME if lines is None else "lines",
    }  # fmt: skip
    for part, each in zip(_PARTS, (source.key, source.value), strict=True):
        fields[f"{part}_format"], fields[part] = outgoing.as_text(each.decoded, each.bytes)
        if fields[f"{part}_format"] == SCHEMA:
            fields[f"{part}_schema"] = str(each.decoded.schema_id)
    return fields


def _append(
    client: AdminClient, *, topic: str, partition: int | None, numbers: Sequence[int], record: Record
) -> list[str]:
    number = random.choice(numbers) if partition is None else partition
    record.timestamp = time.time_ns() // 1_000_000
    offset = client.append_batch(TopicPartition(topic, number), build_batch([record]))
    return [f"appended to partition {number} at offset {offset}"]


def _commands(topic: str) -> tuple[str, ...]:
    name = shlex.quote(topic)
    return f"ottla produce {name} -k KEY", f"kafka-console-producer --topic {name} --property parse.key=true"
