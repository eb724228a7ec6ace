"""The search of messages that a URL describes: where it begins, what it finds, how much it may spend."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.admin.topic_state import TopicState
from ottla.client.cluster import Cluster, Isolation
from ottla.edge.console.pages import BadInput, PageRequest
from ottla.edge.console.records.decoding import Codecs, Decoder
from ottla.edge.console.records.expression import Expression, parse_search, parse_time_ms
from ottla.edge.console.records.scan import BadPosition, Budget, Scan, Wanted, begin, parse_positions, resume
from ottla.edge.console.records.source import ClusterSource, LogRange
from ottla.edge.console.records.tokens import BadExpression
from ottla.edge.console.records.view import RecordView
from ottla.model.types import TopicPartition

STARTS: Final = ("newest", "oldest", "offset", "time")
ISOLATIONS: Final = ("committed", "all")
ROWS: Final = 50
ROWS_MAX: Final = 500
#: more partitions have no room in a URL; the reader chooses one
PARTITIONS_MAX: Final = 500
_OFFSET_MAX: Final = 2**63 - 1
_TOPIC_AGE_S: Final = 2.0
#: records that one search looks at before it pauses
_RECORDS: Final = 50_000_000
#: fields of the form that a link to the next page keeps
FIELDS: Final = ("from", "start", "partition", "q", "isolation", "rows")


class BadSearch(BadInput):
    """The text of the search cannot be read; the page shows the position."""

    def __init__(self, error: BadExpression) -> None:
        super().__init__(f"search: {error}")
        self.position = error.position


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """What the query of a page of messages says."""

    topic: str
    #: how many the topic has
    partition_count: int
    #: those that are searched, and those that have no leader
    partitions: list[int]
    offline: list[int]
    begins: str
    #: for begins=offset, or the time in ms for begins=time
    start: int
    search: Expression | None
    with_uncommitted: bool
    rows: int
    #: where a search resumes; None for a new one
    positions: dict[int, int] | None

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            is_backward=self.begins == "newest", test=self.search.matches if self.search else None, rows=self.rows,
            with_uncommitted=self.with_uncommitted,
        )  # fmt: skip

    def page_from(self, positions: dict[int, int] | None, rows: int) -> MessageQuery:
        """Return the query of a page that begins at these positions."""
        return replace(self, positions=positions, rows=rows)

    def notes(self, ranges: dict[int, LogRange]) -> list[str]:
        """Return what the reader may not expect: offsets outside of the log, partitions that cannot be read."""
        found = [f"partition {number} has no leader, so that it is not read" for number in self.offline[:10]]
        if self.begins == "offset" and self.positions is None:
            for number, known in ranges.items():
                if len(self.partitions) > 1 and known.start < known.end and known.start <= self.start < known.end:
                    continue
                found += _outside(number, self.start, known)
        return found[:10]


def _outside(number: int, offset: int, known: LogRange) -> list[str]:
    if known.start >= known.end:
        return [f"partition {number} is empty; its next offset is {known.end}"]
    span = f"partition {number} has offsets {known.start} to {known.end - 1}"
    if offset < known.start:
        return [f"{span}: offset {offset} was deleted, and the oldest record is shown first"]
    if offset >= known.end:
        return [f"{span}: offset {offset} is not written yet"]
    return []


async def topic_of(page: PageRequest) -> TopicState:
    """Return the topic in the path, as it was at most two seconds ago. Raise NotFound."""
    name = page.params["topic"]
    # Only this topic: the metadata of a cluster with thousands of them are large.
    return await page.read(("topic", name), lambda client: client.topic(name), age_s=_TOPIC_AGE_S)


async def parse_query(page: PageRequest) -> MessageQuery:
    """Return what the query says. Raise NotFound or BadInput."""
    topic = await topic_of(page)
    chosen = page.query.get("partition", "").strip()
    numbers = [each.name.partition for each in topic.partitions]
    if chosen:
        number = page.number("partition", 0)
        if number not in numbers:
            raise BadInput(f"partition: {topic.name} has no partition {number}; it has {len(numbers)}")
        numbers = [number]
    elif len(numbers) > PARTITIONS_MAX:
        raise BadInput(f"partition: the topic has {len(numbers)}; choose one, because {PARTITIONS_MAX} fit into a page")
    offline = {each.name.partition for each in topic.partitions if each.leader is None}
    begins = page.choice("from", STARTS)
    at = page.query.get("at", "")
    try:
        positions = parse_positions(at) if at else None
    except BadPosition as error:
        raise BadInput(str(error)) from None
    if positions is not None and not set(positions) <= set(numbers):
        raise BadInput("at: it names a partition that is not searched; begin the search again")
    try:
        search = parse_search(page.query.get("q", ""), _now_ms())
    except BadExpression as error:
        raise BadSearch(error) from None
    return MessageQuery(
        topic=topic.name, partition_count=len(topic.partitions), partitions=[n for n in numbers if n not in offline],
        offline=[n for n in numbers if n in offline], begins=begins, start=_start(page, begins), search=search,
        with_uncommitted=page.choice("isolation", ISOLATIONS) == "all", positions=positions,
        rows=page.number("rows", ROWS, low=1, high=ROWS_MAX),
    )  # fmt: skip


def _start(page: PageRequest, begins: str) -> int:
    if begins == "offset":
        return page.number("start", 0, high=_OFFSET_MAX)
    if begins == "time":
        try:
            return parse_time_ms(page.query.get("start", ""), _now_ms())
        except (ValueError, OverflowError) as error:
            raise BadInput(f"start: {error}") from None
    return 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def decoder_of(page: PageRequest, codecs: Codecs) -> Decoder:
    """Return a decoder that asks the registry with the login of the user, if there is a registry."""
    registry = page.console.registry
    return Decoder(registry.client_of(page.caller.identity) if registry is not None else None, codecs)


def source_of(cluster: Cluster, topic: str) -> ClusterSource:
    return ClusterSource(cluster, topic)


def begin_scan(
    cluster: Cluster, query: MessageQuery, budget: Budget, *, decoder: Decoder, make_row: Callable[[RecordView], Any]
) -> tuple[Scan, list[str]]:
    """Return the search at its beginning, or where it resumes, and notes about that. Blocks. Raise ClientError."""
    source = source_of(cluster, query.topic)
    ranges = dict(source.ranges(query.partitions))
    if query.positions is not None:
        parts = resume(ranges, query.wanted, query.positions)
    else:
        parts = begin(ranges, query.wanted, _starts(source, query))
    scan = Scan(query.wanted, budget, parts, decoder=decoder, make_row=make_row)
    return scan, query.notes(ranges)


def _starts(source: ClusterSource, query: MessageQuery) -> dict[int, int] | None:
    if query.begins == "offset":
        return dict.fromkeys(query.partitions, query.start)
    if query.begins != "time" or not query.partitions:
        return None
    wanted = {TopicPartition(query.topic, number): query.start for number in query.partitions}
    found = source.cluster.list_offsets(wanted, isolation=Isolation.READ_UNCOMMITTED)
    # -1: all records are older. The search begins at the end, whatever it is by then.
    return {name.partition: each.offset if each.offset >= 0 else _OFFSET_MAX for name, each in found.items()}


def budget_of(page: PageRequest) -> Budget:
    settings = page.console.settings
    return Budget(_RECORDS, settings.search_bytes_max, float(settings.search_seconds_max))


def commands_of(query: MessageQuery) -> list[str]:
    """Return the commands that print the same records, without the search."""
    topic, rows = shlex.quote(query.topic), query.rows
    only = query.partitions[0] if len(query.partitions) == 1 and query.partition_count > 1 else None
    ours, kafkas = [f"ottla consume {topic}"], [f"kafka-console-consumer --topic {topic}"]
    if only is not None:
        ours.append(f"-p {only}")
        kafkas.append(f"--partition {only}")
    if query.begins == "newest":
        ours.append(f"-O -{rows} -e")
    elif query.begins == "oldest":
        ours.append(f"-O beginning -n {rows}")
    else:
        ours.append(f"-O {'@' if query.begins == 'time' else ''}{query.start} -n {rows}")
    commands: list[str] = []
    if query.begins == "oldest":
        kafkas.append("--from-beginning")
    elif query.begins == "offset":
        kafkas += [f"--offset {query.start}"] if only is not None else [f"--partition 0 --offset {query.start}"]
    else:
        # Kafka's consumer begins at an offset, which another command finds for a time or for the newest records.
        when = "latest" if query.begins == "newest" else query.start
        commands.append(f"kafka-get-offsets --topic {topic} --time {when}")
        kafkas.append("--offset OFFSET" if only is not None else "--partition PARTITION --offset OFFSET")
    kafkas.append(f"--max-messages {rows} --property print.key=true --property print.headers=true")
    if query.with_uncommitted:
        ours.append("--isolation-level read_uncommitted")
    else:
        kafkas.append("--isolation-level read_committed")
    return [" ".join(ours), *commands, " ".join(kafkas)]
