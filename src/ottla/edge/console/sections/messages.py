"""The records of a topic: a page of them, searches, the live tail, files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, TypeVar

from ottla.client.cluster import Cluster
from ottla.edge.console import rendering
from ottla.edge.console.message_query import (
    FIELDS,
    ISOLATIONS,
    PARTITIONS_MAX,
    ROWS_MAX,
    STARTS,
    BadSearch,
    MessageQuery,
    begin_scan,
    budget_of,
    commands_of,
    decoder_of,
    parse_query,
    source_of,
)
from ottla.edge.console.pages import BadInput, Download, Events, PageRequest, Route, View
from ottla.edge.console.records.decoding import Codecs, Decoder
from ottla.edge.console.records.rows import CSV_COLUMNS, csv_line, csv_row, json_line, row_of
from ottla.edge.console.records.scan import Budget, Scan
from ottla.edge.console.records.tail import Tail
from ottla.edge.console.records.view import RecordView
from ottla.edge.console.rendering import url
from ottla.edge.console.sections.produce import Produce
from ottla.edge.console.sections.record import RecordPages
from ottla.edge.console.topic_tabs import topic_tabs

#: a page is shown after this long, with what was found until then
_FIRST_S: Final = 1.5
#: a live search shows its progress this often
_STEP_S: Final = 0.4
#: and a file gets its next lines, after so many bytes of records
_STEP_BYTES_MAX: Final = 16 << 20
_TAIL_EVERY_S: Final = 0.3
_TAIL_IDLE_S: Final = 1.0
#: steps of searches at the same time: they use a core each, and other pages must stay fast
_STEPS_AT_ONCE: Final = 3
_FILE_RECORDS_MAX: Final = 10_000
#: figures of the page that its live search continues
_FIGURES: Final = ("scanned", "matched", "bytes")
_FILE_PAGE: Final = 200

T = TypeVar("T")


class Messages:
    """The tab Messages."""

    def __init__(self) -> None:
        self.codecs = Codecs()
        self._turn = asyncio.Semaphore(_STEPS_AT_ONCE)

    def routes(self) -> Sequence[Route]:
        return [
            Route("topics/{topic}/messages", self.show, summary="List and search the records of a topic."),
            Route("topics/{topic}/messages/search", self.search, summary="Continue a search, as events."),
            Route("topics/{topic}/messages/live", self.live, summary="Follow the end of a topic, as events."),
            Route("topics/{topic}/messages/file", self.file, summary="Get records as JSON lines or CSV."),
        ]

    async def show(self, page: PageRequest) -> View:
        try:
            query = await parse_query(page)
        except BadInput as error:
            return self._refused(page, error)
        (scan, notes), rows = await self._first_rows(page, query)
        progress = scan.progress()
        at = scan.positions()
        data: dict[str, Any] = {
            "topic": query.topic, "partitions": query.partition_count, "notes": notes, "records": rows,
            "progress": progress, "next": _own(page, "messages", at=at) if at else "", "problem": "",
        }  # fmt: skip
        left = query.rows - len(rows)
        extra = _form(page, query.partition_count)
        # A search that has not ended goes on while the page is open; without a script by its link.
        if scan.pause == "" and left > 0:
            figures = {name: progress[name] for name in _FIGURES}
            figures |= {"ms": round(scan.seconds * 1000), "page_rows": page.query.get("rows", "")}
            extra["stream"] = _own(page, "messages/search", at=at, rows=left, **figures)
        return View(
            "topics/messages.html", query.topic, data, tabs=topic_tabs(page, query.topic, "messages"),
            commands=commands_of(query), extra=extra,
        )  # fmt: skip

    def _refused(self, page: PageRequest, error: BadInput) -> View:
        topic = page.params["topic"]
        data: dict[str, Any] = {
            "topic": topic, "partitions": None, "notes": [], "records": [], "progress": None, "next": "",
            "problem": str(error),
        }  # fmt: skip
        if isinstance(error, BadSearch):
            data["problem_position"] = error.position
        return View(
            "topics/messages.html", topic, data, tabs=topic_tabs(page, topic, "messages"), status=400,
            extra=_form(page, None),
        )  # fmt: skip

    async def _first_rows(self, page: PageRequest, query: MessageQuery) -> tuple[tuple[Scan, list[str]], list[Any]]:
        decoder, budget = decoder_of(page, self.codecs), budget_of(page)

        def read(cluster: Cluster) -> tuple[tuple[Scan, list[str]], list[Any]]:
            begun = begin_scan(cluster, query, budget, decoder=decoder, make_row=row_of)
            return begun, begun[0].step(source_of(cluster, query.topic), _FIRST_S)

        return await self._read(page, read, is_search=query.search is not None)

    async def _read(self, page: PageRequest, function: Callable[[Cluster], T], *, is_search: bool) -> T:
        """Return what a function returns that reads records. At most a few searches run at the same time.

        Lists do not wait for searches, because they are short.
        """
        async with self._turn if is_search else nullcontext():
            return await page.run(lambda client: client.call(function))

    # -- live ---------------------------------------------------------------------------------------------------------

    async def search(self, page: PageRequest) -> Events:
        query = await parse_query(page)
        decoder, budget = decoder_of(page, self.codecs), budget_of(page)
        scan, _ = await self._read(
            page, lambda cluster: begin_scan(cluster, query, budget, decoder=decoder, make_row=row_of), is_search=False
        )
        return Events(self._search(page, query, scan))

    async def _search(self, page: PageRequest, query: MessageQuery, scan: Scan) -> AsyncIterator[tuple[str, str]]:
        while not scan.pause:
            rows = await self._step(page, query, scan)
            if rows:
                yield "rows+", _rows_text(page, query.topic, rows)
            at = scan.positions()
            link = _own(page, "messages", at=at, rows=page.query.get("page_rows", "")) if at else ""
            progress = scan.progress()
            for name in _FIGURES:
                progress[name] += page.number(name, 0)
            progress["seconds"] += page.number("ms", 0) / 1000
            yield "progress", rendering.part("topics/message_progress.html", progress=progress, next=link)
        yield "end", scan.pause

    async def _step(self, page: PageRequest, query: MessageQuery, scan: Scan) -> list[Any]:
        def step(cluster: Cluster) -> list[Any]:
            return scan.step(source_of(cluster, query.topic), _STEP_S, bytes_max=_STEP_BYTES_MAX)

        return await self._read(page, step, is_search=True)

    async def live(self, page: PageRequest) -> Events:
        return Events(self._tail(page, await parse_query(page)))

    async def _tail(self, page: PageRequest, query: MessageQuery) -> AsyncIterator[tuple[str, str]]:
        tail = Tail(query.wanted, decoder_of(page, self.codecs))
        pause_s = _TAIL_EVERY_S
        while True:
            rows = await self._read(
                page, lambda cluster: tail.poll(source_of(cluster, query.topic), query.partitions),
                is_search=query.search is not None,
            )  # fmt: skip
            if rows:
                yield "+rows", _rows_text(page, query.topic, rows)
            figures = {"scanned": tail.scanned, "matched": tail.matched, "left_out": tail.left_out}
            yield "progress", rendering.part("topics/message_tail.html", **figures)
            pause_s = _TAIL_EVERY_S if rows else min(pause_s * 1.5, _TAIL_IDLE_S)
            await asyncio.sleep(pause_s)

    # -- files --------------------------------------------------------------------------------------------------------

    async def file(self, page: PageRequest) -> Download:
        query = await parse_query(page)
        kind = page.choice("as", ("jsonl", "csv"))
        media_type = "application/x-ndjson" if kind == "jsonl" else "text/csv; charset=utf-8"
        return Download(f"{query.topic}.{kind}", media_type, self._lines(page, query, kind))

    async def _lines(self, page: PageRequest, query: MessageQuery, kind: str) -> AsyncIterator[bytes]:
        """Yield the records from where the page begins: at most 10,000, and as many as the budget finds."""
        decoder, left = decoder_of(page, self.codecs), budget_of(page)

        def make_line(view: RecordView) -> str:
            return json_line(query.topic, view) if kind == "jsonl" else csv_line(query.topic, view)

        if kind == "csv":
            yield csv_row(list(CSV_COLUMNS)).encode()
        count, at, pause = 0, query.positions, "rows"
        while pause == "rows" and count < _FILE_RECORDS_MAX:
            part = query.page_from(at, min(_FILE_PAGE, _FILE_RECORDS_MAX - count))

            scan = await self._read(page, partial(_begin, part, left, decoder, make_line), is_search=False)
            while not scan.pause:
                lines = await self._step(page, part, scan)
                count += len(lines)
                for line in lines:
                    yield line.encode("utf-8", "backslashreplace")
            at, pause = scan.position_map(), scan.pause
            left = Budget(left.records - scan.scanned, left.bytes - scan.bytes, left.seconds - scan.seconds)
        if pause not in ("rows", "end"):
            # Otherwise a reader of the file would take it for complete.
            text = f"the search has paused, because its {pause} is spent"
            yield (csv_row(["", "", "", "", "", text, ""]) if kind == "csv" else f'{{"paused": "{text}"}}\n').encode()


def _begin(
    query: MessageQuery, budget: Budget, decoder: Decoder, make_line: Callable[[RecordView], str], cluster: Cluster
) -> Scan:
    return begin_scan(cluster, query, budget, decoder=decoder, make_row=make_line)[0]


def _own(page: PageRequest, path: str, **more: Any) -> str:
    """Return a path of this topic with the fields of the form."""
    fields = {name: page.query.get(name, "") for name in FIELDS} | more
    return url("c", page.cluster.name, "topics", page.params["topic"], *path.split("/"), **fields)


def _form(page: PageRequest, partitions: int | None) -> dict[str, Any]:
    """Return what the template needs besides the data."""
    at = page.query.get("at", "")
    return {
        "starts": STARTS, "isolations": ISOLATIONS, "rows_max": ROWS_MAX, "partitions_max": PARTITIONS_MAX,
        "partition_count": partitions, "stream": "", "is_resumed": bool(at),
        "live": _own(page, "messages/live"), "files_max": _FILE_RECORDS_MAX,
        **{kind: _own(page, "messages/file", at=at, **{"as": kind}) for kind in ("jsonl", "csv")},
        "again": _own(page, "messages"), "produce": _own(page, "produce"),
    }  # fmt: skip


def _rows_text(page: PageRequest, topic: str, rows: Sequence[Any]) -> str:
    return rendering.part("topics/message_rows.html", cluster=page.cluster.name, topic=topic, records=rows)


def message_routes() -> Sequence[Route]:
    """Return the routes of the tab Messages, and of records."""
    messages = Messages()
    return [*messages.routes(), *RecordPages(messages.codecs).routes(), *Produce(messages.codecs).routes()]
