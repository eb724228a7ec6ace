"""What one round reads about groups and offsets, with few requests, and with what is remembered of the round before.

    metadata                    one request for each round: brokers, topics, replicas
    groups                      one ListGroups per broker
    descriptions, commits, log starts and ends, timestamps: see `ottla.lag.reading`

While a broker is away, its groups give no commits and its partitions no ends. For a short time the figures of the round
before take their place: a group whose coordinator is away cannot commit, and a partition without a leader does not
grow, so the lag in time goes on to grow as it does for the consumers. The reading has a note about it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from ottla.admin import group_requests, outages
from ottla.admin.client import AdminClient, topic_state_of
from ottla.admin.group_state import GroupState
from ottla.admin.topic_state import PartitionState, TopicState
from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError
from ottla.client.many import ask_many
from ottla.client.protocol.metadata import Node
from ottla.lag.first_records import ReadLimits
from ottla.lag.reading import ClusterLagSource
from ottla.lag.types import GroupLag
from ottla.model.errors import OttlaError
from ottla.model.figures import format_count
from ottla.model.printable import shown
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_groups import ListGroupsRequest

#: how long the figures of an earlier round take the place of those that could not be read
_MEMORY_S: Final = 120.0
_ROUND_S_MAX: Final = 5.0

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class GroupFilter:
    """Which groups are read: those that match ``allow``, if it is set, and do not match ``deny``, as in Burrow."""

    def __init__(self, allow: str = "", deny: str = "") -> None:
        """Raise ValueError if one of them is not a regular expression."""
        try:
            self._allow = re.compile(allow) if allow else None
            self._deny = re.compile(deny) if deny else None
        except re.error as error:
            raise ValueError(f"{error.pattern!r} is not a regular expression: {error}") from None

    def accepts(self, group_id: str) -> bool:
        if self._allow is not None and not self._allow.search(group_id):
            return False
        return self._deny is None or not self._deny.search(group_id)


def without_overtaken_ends(
    lag: GroupLag, before: GroupLag | None, earlier_ends: Collection[TopicPartition]
) -> GroupLag:
    """Return the lag without the log ends of an earlier round that a newer commit has reached.

    The partition has a leader again and has grown: how far is not known, so that the group is not at the end.
    """
    rows = dict(lag.partitions)
    for name in rows.keys() & earlier_ends if earlier_ends else ():
        row = rows[name]
        old = before.partitions.get(name) if before is not None else None
        # Once the end is not known, it stays so, although the commit stays where it is.
        has_moved = old is None or old.committed != row.committed or old.log_end is None
        if has_moved and row.committed is not None and row.log_end is not None and row.committed >= row.log_end:
            rows[name] = replace(row, log_end=None, time_lag_ms=None, first_unread_ms=None)
    return replace(lag, partitions=rows) if earlier_ends else lag


class _Memory(Generic[K, V]):
    """The values of the round before, and those of this one, each with the time when it was read."""

    def __init__(self) -> None:
        self._before: dict[K, tuple[float, V]] = {}
        self._now: dict[K, tuple[float, V]] = {}

    def known(self, key: K, now: float) -> tuple[V] | None:
        """Return the value of the round before, in a tuple; None if there is none, or if it is too old."""
        found = self._before.get(key)
        return (found[1],) if found is not None and now - found[0] <= _MEMORY_S else None

    def names(self, now: float) -> list[K]:
        return [key for key, (at, _) in self._before.items() if now - at <= _MEMORY_S]

    def add(self, key: K, value: V, now: float) -> None:
        self._now[key] = (now, value)

    def keep(self, key: K) -> None:
        """Keep a value of the round before, with its time."""
        self._now[key] = self._before[key]

    def end(self) -> None:
        self._before, self._now = self._now, {}


class RoundSource(ClusterLagSource):
    """The source of a `LagReader` that is made once and used for all rounds. Not thread safe."""

    def __init__(self, client: AdminClient, limits: ReadLimits, accepts: GroupFilter | None = None) -> None:
        super().__init__(client, limits)
        self._admin = client
        self._accepts = accepts or GroupFilter()
        #: of this round
        self.nodes: dict[int, Node] = {}
        self.racks: dict[int, str | None] = {}
        self.cluster_id = ""
        self.controller_id: int | None = None
        self.topics: dict[str, TopicState] = {}
        self.notes: list[str] = []
        #: partitions whose log ends are those of an earlier round
        self.earlier_ends: set[TopicPartition] = set()
        self._names: _Memory[str, None] = _Memory()
        self._states: _Memory[str, GroupState] = _Memory()
        self._commits: _Memory[str, Mapping[TopicPartition, int]] = _Memory()
        self._starts: _Memory[TopicPartition, int] = _Memory()
        self._ends: _Memory[TopicPartition, int] = _Memory()
        self._times: _Memory[tuple[TopicPartition, int], int | None] = _Memory()

    def begin(self) -> None:
        """Begin a round with a request for metadata. Raise Failure if no broker answers."""
        self.notes = []
        # Another broker is asked if the first one is away.
        answer = self._admin.call(
            lambda cluster: cluster.retry("metadata", lambda deadline: cluster.metadata(None, deadline))
        )
        self.nodes = {row.node_id: Node(row.node_id, row.host, row.port) for row in answer.brokers}
        self.racks = {row.node_id: row.rack for row in answer.brokers}
        self.cluster_id = answer.cluster_id or ""
        self.controller_id = answer.controller_id if answer.controller_id >= 0 else None
        self.topics = {
            row.name: topic_state_of(row, internal=row.is_internal)
            for row in sorted(answer.topics, key=lambda row: row.name or "")
            if row.name and not row.error_code
        }

    def partition_states(self) -> dict[TopicPartition, PartitionState]:
        return {each.name: each for topic in self.topics.values() for each in topic.partitions}

    # The parts of a lag, in the order in which they are read

    def group_ids(self) -> tuple[list[str], list[str]]:
        listed, failures = self._admin.call(self._list_groups)
        topic = self.topics.get(outages.GROUPS_TOPIC)
        offline = outages.without_leader(topic)
        if offline:
            failures.append(str(outages.incomplete_list("groups", outages.GROUPS_TOPIC, offline)))
        now = time.monotonic()
        names = {name for name in listed if self._accepts.accepts(name)}
        for name in names:
            self._names.add(name, None, now)
        if failures:
            away = [name for name in self._names.names(now) if name not in names]
            for name in away:
                self._names.keep(name)
            names.update(away)
        return sorted(names), failures

    def _list_groups(self, cluster: Cluster) -> tuple[list[str], list[str]]:
        found: list[str] = []
        failures = []
        deadline = time.monotonic() + min(self._admin.timeout_s, _ROUND_S_MAX)
        for node, _, reply in ask_many(
            cluster, [(node, ListGroupsRequest()) for node in self.nodes.values()], deadline
        ):
            if not isinstance(reply, ClientError) and reply.error_code:
                reply = BrokerError(reply.error_code, f"groups of broker {node.broker_id}")
            if isinstance(reply, ClientError):
                failures.append(f"groups of broker {node.broker_id}: {reply}")
                continue
            found += [each.group_id for each in filter(None, map(group_requests.listing, reply.groups))]
        return found, failures

    def describe(self, group_ids: Sequence[str]) -> Mapping[str, GroupState | Exception]:
        return self._filled("descriptions", super().describe(group_ids), self._states)

    def committed(self, group_ids: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, int] | Exception]:
        return self._filled("commits", super().committed(group_ids), self._commits)

    def _filled(
        self, what: str, found: Mapping[str, T | Exception], memory: _Memory[str, T]
    ) -> dict[str, T | Exception]:
        """Return what was found, and what is remembered in place of what failed."""
        now = time.monotonic()
        filled: dict[str, T | Exception] = {}
        count, reason = 0, ""
        for name, value in found.items():
            filled[name] = value
            if not isinstance(value, Exception):
                memory.add(name, value, now)
            elif (known := memory.known(name, now)) is not None:
                memory.keep(name)
                filled[name] = known[0]
                count, reason = count + 1, reason or str(value)
        if count:
            self.notes.append(shown(f"earlier {what} are used for {format_count(count, 'group')}: {reason}"))
        return filled

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        return [
            each.name
            for topic in self.topics.values()
            if topics is None or topic.name in topics
            for each in topic.partitions
        ]

    def ranges(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        now = time.monotonic()
        starts, ends = super().ranges(partitions)
        missing = [name for name in partitions if name not in ends]
        self.earlier_ends = set(missing)
        for found, memory in ((starts, self._starts), (ends, self._ends)):
            for name, offset in found.items():
                memory.add(name, offset, now)
            for name in missing:
                if name not in found and (known := memory.known(name, now)) is not None:
                    memory.keep(name)
                    found[name] = known[0]
        if missing:
            used = sum(name in ends for name in missing)
            without = format_count(len(missing), "partition")
            self.notes.append(f"{without} gave no offsets; for {used} the last known ones are used")
        return starts, ends

    def first_timestamps(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[Mapping[TopicPartition, int | None], Sequence[str]]:
        now = time.monotonic()
        found: dict[TopicPartition, int | None] = {}
        problems: Sequence[str] = ()
        try:
            times, problems = super().first_timestamps(ranges)
            found |= times
        except OttlaError as error:
            problems = [str(error)]
        for name, (start, _) in ranges.items():
            if name in found:
                self._times.add((name, start), found[name], now)
            elif (known := self._times.known((name, start), now)) is not None:
                self._times.keep((name, start))
                found[name] = known[0]
        return found, problems

    def end(self) -> None:
        """End a round: forget what it did not read."""
        memories: list[_Memory[Any, Any]] = [self._names, self._states, self._commits]
        for memory in (*memories, self._starts, self._ends, self._times):
            memory.end()
