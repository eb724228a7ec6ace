"""The page of one record, its value as a file, and who has read it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound
from ottla.admin.group_batches import committed_many
from ottla.admin.transactions import Transactions
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.edge.console.message_query import decoder_of, source_of, topic_of
from ottla.edge.console.pages import BadInput, Download, PageRequest, Route, Tab, View
from ottla.edge.console.records import showing
from ottla.edge.console.records.decoding import Codecs, LazyPart
from ottla.edge.console.records.lookup import Lookup, batch_row, find_record
from ottla.edge.console.records.rows import content
from ottla.edge.console.records.view import RecordView
from ottla.edge.console.rendering import url
from ottla.model.types import TopicPartition

_VIEWS: Final = ("tree", "json", "raw", "hex")
_HEADERS_MAX: Final = 200
_HEADER_CHARACTERS: Final = 2000
_KEY_CHARACTERS: Final = 4000
_OFFSET_MAX: Final = 2**63 - 1
#: the commits of all groups may be this old
_COMMITS_AGE_S: Final = 5.0
_GROUPS_SHOWN_MAX: Final = 500
#: a JSON form has the whole value up to this size
_CONTENT_BYTES_MAX: Final = 1 << 20


class RecordPages:
    """The pages below topics/TOPIC/p/PARTITION/o/OFFSET, which is the permanent link to a record."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs

    def routes(self) -> Sequence[Route]:
        place = "topics/{topic}/p/{partition}/o/{offset}"
        return [
            Route(place, self.show, summary="Show a record."),
            Route(f"{place}/value", self.value, summary="Get the bytes of the value of a record, or of its key."),
            Route(f"{place}/readers", self.readers, summary="List the groups that have read a record."),
        ]

    async def show(self, page: PageRequest) -> View:
        name, offset = await place_of(page)
        found = await self._find(page, name, offset)
        view = found.view
        data: dict[str, Any] = {
            "topic": name.topic, "partition": name.partition, "offset": offset, "absence": found.absence,
            "next_offset": found.next_offset, "log_start": found.range.start, "log_end": found.range.end,
            "stable_end": found.range.stable, "batch": batch_row(found.batch) if found.batch else None,
            "record": None if view is None else record_data(view),
        }  # fmt: skip
        extra = {"place": _place_path(page, name, offset), "views": []}
        if view is not None:
            extra |= self._shown(page, view, name, offset)
        topic = shlex.quote(name.topic)
        return View(
            "topics/record.html", f"{name.topic} {name.partition}/{offset}", data, extra=extra,
            status=200 if view is not None else 404,
            commands=(
                f"ottla consume {topic} -p {name.partition} -O {offset} -n 1 -J",
                f"kafka-console-consumer --topic {topic} --partition {name.partition} --offset {offset} "
                "--max-messages 1 --property print.key=true --property print.headers=true",
            ),
        )  # fmt: skip

    def _shown(self, page: PageRequest, view: RecordView, name: TopicPartition, offset: int) -> dict[str, Any]:
        """Return the value in the form that the query chooses."""
        decoded = view.value.decoded
        usual = "tree" if decoded.has_structure else "hex" if decoded.kind == "binary" else "raw"
        chosen = page.choice("view", ("", *_VIEWS)) or usual
        place = ("c", page.cluster.name, "topics", name.topic, "p", name.partition, "o", offset)
        views = [Tab(title=each, href=url(*place, view=each), is_open=each == chosen) for each in _VIEWS]
        extra: dict[str, Any] = {
            "views": views, "chosen": chosen, "nodes": [], "hex_rows": [], "text": "", "is_cut": False,
            "key_hex": showing.hex_rows(view.key.bytes) if view.key.decoded.kind == "binary" else [],
            "produce": url("c", page.cluster.name, "topics", name.topic, "produce", copy=f"{name.partition}.{offset}"),
        }  # fmt: skip
        if chosen == "tree" and decoded.has_structure:
            extra["nodes"], extra["is_cut"] = showing.tree(decoded.data)
        elif chosen == "hex":
            extra["hex_rows"] = showing.hex_rows(view.value.bytes)
            extra["is_cut"] = len(view.value.bytes or b"") > showing.HEX_BYTES
        else:
            extra["text"], extra["is_cut"] = showing.raw(decoded) if chosen == "raw" else showing.pretty(decoded)
        return extra

    async def value(self, page: PageRequest) -> Download:
        name, offset = await place_of(page)
        part = page.choice("part", ("value", "key"))
        found = await self._find(page, name, offset)
        if found.view is None:
            raise NotFound(f"there is no record at offset {offset} of {name}: {found.absence}")
        data = (found.view.key if part == "key" else found.view.value).bytes
        if data is None:
            raise NotFound(f"the {part} of this record is null, so that it has no bytes")
        return Download(f"{name}-{offset}-{part}", "application/octet-stream", bytes(data))

    async def _find(self, page: PageRequest, name: TopicPartition, offset: int) -> Lookup:
        decoder = decoder_of(page, self._codecs)

        def find(cluster: Cluster) -> Lookup:
            return find_record(source_of(cluster, name.topic), name.partition, offset, decoder)

        return await page.run(lambda client: client.call(find))

    # -- readers ------------------------------------------------------------------------------------------------------

    async def readers(self, page: PageRequest) -> View:
        name, offset = await place_of(page)
        commits, problems = await page.read("commits of all groups", _commits, age_s=_COMMITS_AGE_S)
        rows: list[dict[str, Any]] = [
            {"group": group, "committed": offsets[name], "has_read": offsets[name] > offset,
             "behind": max(offset + 1 - offsets[name], 0)}
            for group, offsets in commits.items()
            if name in offsets
        ]  # fmt: skip
        rows.sort(key=lambda row: (-row["behind"], row["group"]))
        producer = page.number("producer", -1, low=-1)
        transactions, problem = await self._transactions(page, producer) if producer >= 0 else ([], "")
        data = {
            "topic": name.topic, "partition": name.partition, "offset": offset, "groups": rows[:_GROUPS_SHOWN_MAX],
            "total": len(rows), "problems": [*problems, *([problem] if problem else [])],
            "transactional_ids": transactions,
        }  # fmt: skip
        return View(
            "topics/readers.html", f"Who has read {name.topic} {name.partition}/{offset}", data,
            commands=("ottla group list", "kafka-consumer-groups --describe --all-groups"),
            extra={"place": _place_path(page, name, offset)},
        )  # fmt: skip

    async def _transactions(self, page: PageRequest, producer_id: int) -> tuple[list[str], str]:
        """Return the transactional ids of a producer, or why they are not known."""
        try:
            found = await page.run(lambda client: Transactions(client).list_ids(producer_ids=[producer_id]))
        except Failure as failure:
            return [], f"the transactional id of the producer is not known: {failure.message}"
        return [each.transactional_id for each in found], ""


async def place_of(page: PageRequest) -> tuple[TopicPartition, int]:
    """Return the partition and offset in the path. Raise NotFound or BadInput."""
    topic = await topic_of(page)
    number = _number(page.params["partition"], "partition")
    if number >= len(topic.partitions):
        raise NotFound(f"{topic.name} has no partition {number}; it has {len(topic.partitions)}")
    return TopicPartition(topic.name, number), _number(page.params["offset"], "offset")


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _OFFSET_MAX:
        raise BadInput(f"{what}: {text[:40]!r} is not a whole number from 0 on")
    return int(text)


def _place_path(page: PageRequest, name: TopicPartition, offset: int) -> str:
    return url("c", page.cluster.name, "topics", name.topic, "p", name.partition, "o", offset)


def record_data(view: RecordView) -> dict[str, Any]:
    """Return a record as values of JSON."""
    batch, record = view.batch, view.record
    has_producer = batch.producer_id >= 0
    return {
        "timestamp_ms": view.timestamp, "has_append_time": view.has_append_time, "size": view.size,
        "transaction": view.state, "key": _part(view.key), "value": _part(view.value),
        "headers": [
            {
                "name": showing.visible(name[:_HEADER_CHARACTERS]),
                "value": None if value is None else showing.visible(value[:_HEADER_CHARACTERS]),
                "size": len(raw or b""),
            }
            for (name, value), (_, raw) in zip(
                view.headers[:_HEADERS_MAX], record.headers[:_HEADERS_MAX], strict=True
            )
        ],
        "header_count": len(record.headers),
        "producer_id": batch.producer_id if has_producer else None,
        "producer_epoch": batch.producer_epoch if has_producer else None,
        "sequence": batch.base_sequence + record.offset_delta if has_producer and batch.base_sequence >= 0 else None,
    }  # fmt: skip


def _part(part: LazyPart) -> dict[str, Any]:
    decoded = part.decoded
    size = len(part.bytes or b"")
    is_large = size > _CONTENT_BYTES_MAX
    return {
        "kind": decoded.kind, "size": size, "schema_id": decoded.schema_id, "schema_name": decoded.schema_name,
        "problem": decoded.problem, "is_cut": is_large, "line": showing.line(decoded, _KEY_CHARACTERS)[0],
        "content": None if is_large else content(decoded, part.bytes),
    }  # fmt: skip


def _commits(client: AdminClient) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """Return the committed offsets of all groups, and why some are missing."""
    groups, failures = client.groups()
    problems = [failure.message for failure in failures]

    def read(cluster: Cluster) -> dict[str, Any]:
        return committed_many(cluster, [each.group_id for each in groups], cluster.timeout_s)

    found: dict[str, dict[TopicPartition, int]] = {}
    for group, offsets in client.call(read).items():
        if isinstance(offsets, ClientError):
            if len(problems) < 10:
                problems.append(f"group {group}: {offsets}")
        else:
            found[group] = offsets
    return found, problems
