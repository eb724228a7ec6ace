"""The parts of a picture about logs: offsets, newest timestamps and transactions that are open."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ottla.admin.failure import Failure
from ottla.admin.transactions import OpenTransaction, Transaction, Transactions
from ottla.client.cluster import EARLIEST, LATEST, Isolation
from ottla.client.protocol.metadata import Node, by_topic
from ottla.health.asker import Asker
from ottla.health.types import Offsets, Part
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.list_transactions import ListTransactionsRequest

_MAX_TIMESTAMP = -3
#: the first version of ListOffsets with timestamps, with isolation levels, and with the largest timestamp
_VERSION, _ISOLATION_VERSION, _MAX_TIMESTAMP_VERSION = 1, 2, 7
#: partitions in one request
_PARTITIONS_MAX = 5000
#: a transaction whose last record is younger may be known to its coordinator in a moment
_HANGING_AGE_MS = 10_000
#: partitions with open transactions whose producers are read
_OPEN_MAX = 2000
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def read_offsets(asker: Asker, leaders: Mapping[TopicPartition, Node], count_max: int) -> dict[TopicPartition, Offsets]:
    """Return the offsets of the first partitions, as far as their leaders answer."""
    if len(leaders) > count_max:
        asker.refused(Part.OFFSETS, f"only those of {count_max} of {len(leaders)} partitions were read")
    found: dict[TopicPartition, Offsets] = {}
    wanted = list(leaders)[:count_max]
    for node, names in _requests(leaders, wanted):
        # The high watermark is read before the last stable offset: if the second one is lower, a transaction is open.
        # A partition whose log begins at the end has no records, so a log start that is read first is good enough.
        starts = _ask(asker, node, names, EARLIEST)
        ends = _ask(asker, node, names, LATEST)
        stable = _ask(asker, node, names, LATEST, Isolation.READ_COMMITTED)
        found |= {
            name: Offsets(starts[name].offset, ends[name].offset, stable[name].offset if name in stable else None)
            for name in names
            if name in starts and name in ends
        }
    return found


def read_timestamps(
    asker: Asker, leaders: Mapping[TopicPartition, Node], offsets: Mapping[TopicPartition, Offsets], count_max: int
) -> dict[TopicPartition, int]:
    """Return the largest timestamp in the first partitions that have records."""
    wanted = [name for name, each in offsets.items() if each.end > each.start and not name.topic.startswith("__")]
    found: dict[TopicPartition, int] = {}
    for node, names in _requests(leaders, wanted[:count_max]):
        rows = _ask(asker, node, names, _MAX_TIMESTAMP)
        found |= {name: row.timestamp for name, row in rows.items() if row.timestamp >= 0}
    return found


def _requests(
    leaders: Mapping[TopicPartition, Node], wanted: Iterable[TopicPartition]
) -> Iterator[tuple[Node, list[TopicPartition]]]:
    """Yield the partitions of each leader, in parts that fit into one request."""
    by_node: dict[Node, list[TopicPartition]] = {}
    for name in wanted:
        by_node.setdefault(leaders[name], []).append(name)
    for node, names in by_node.items():
        for start in range(0, len(names), _PARTITIONS_MAX):
            yield node, names[start : start + _PARTITIONS_MAX]


def _ask(
    asker: Asker,
    node: Node,
    names: Sequence[TopicPartition],
    time_ms: int,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """Return the rows of the partitions without an error."""
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[ListOffsetsPartition(partition_index=name.partition, timestamp=time_ms) for name in rows],
        )
        for topic, rows in by_topic(names).items()
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics, timeout=5000)
    version_min = _ISOLATION_VERSION if isolation is Isolation.READ_COMMITTED else _VERSION
    part = Part.OFFSETS
    if time_ms == _MAX_TIMESTAMP:
        version_min, part = _MAX_TIMESTAMP_VERSION, Part.TIMESTAMPS
    answer = asker.ask(part, node, request, version_min)
    return {
        TopicPartition(topic.name, row.partition_index): row
        for topic in (answer.topics if answer is not None else ())
        for row in topic.partitions
        if not row.error_code
    }


def read_transactions(
    asker: Asker,
    nodes: Collection[Node],
    leaders: Mapping[TopicPartition, Node],
    offsets: Mapping[TopicPartition, Offsets],
    count_max: int,
) -> tuple[tuple[Transaction, ...], tuple[OpenTransaction, ...]]:
    """Return the open transactions that coordinators know, and those that no coordinator knows."""
    listed: list[str] = []
    for node in nodes:
        answer = asker.ask(Part.TRANSACTIONS, node, ListTransactionsRequest(state_filters=_OPEN_STATES))
        if answer is not None and asker.accepts(Part.TRANSACTIONS, answer.error_code):
            listed += [row.transactional_id for row in answer.transaction_states]
    if len(listed) > count_max:
        asker.refused(Part.TRANSACTIONS, f"only {count_max} of {len(listed)} open transactions were read")
    open_at = {
        name: leaders[name]
        for name, each in offsets.items()
        if each.stable is not None and each.stable < each.end and leaders[name].broker_id not in asker.problems
    }
    if not listed and not open_at:
        return (), ()
    before_ms = int(time.time() * 1000) - _HANGING_AGE_MS
    transactions = Transactions(asker.client)
    known: list[Transaction] = []
    hanging: list[OpenTransaction] = []
    try:
        # One request per coordinator, one per leader.
        known = [each for each in transactions.describe(sorted(listed)[:count_max]).values() if each is not None]
        hanging = transactions.find_unknown(dict(list(open_at.items())[:_OPEN_MAX]), before_ms) if open_at else []
    except Failure as failure:
        asker.refused(Part.TRANSACTIONS, failure.message)
    return tuple(known), tuple(hanging)
