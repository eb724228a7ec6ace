"""Reads the rounds of one cluster. Blocking; used by one thread at a time.

Each round reads groups, offsets and times. Every `health_every_s` seconds a round also reads the state of the cluster
for the checks of `ottla.health`, which needs more requests. What took long is repeated less often (`_SHARE_MAX`), so
that a cluster with 10,000 topics costs no more than a part of one core.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.admin.client import AdminClient
from ottla.admin.outages import GROUPS_TOPIC
from ottla.edge.monitor.commit_feed import CommitFeed
from ottla.edge.monitor.histories import Histories, SeenCommit
from ottla.edge.monitor.reading import BrokerReading, ClusterReading, GroupReading
from ottla.edge.monitor.source import GroupFilter, RoundSource, without_overtaken_ends
from ottla.health.evaluation import evaluate
from ottla.health.findings import Finding
from ottla.health.picture import PictureOptions, read_picture
from ottla.health.types import ClusterPicture
from ottla.lag.burrow import GroupHistory, Rules
from ottla.lag.first_records import ReadLimits
from ottla.lag.reading import LagReader
from ottla.lag.types import GroupLag, LagSnapshot
from ottla.model.errors import OttlaError
from ottla.model.printable import shown

#: reading the state of the cluster takes at most this share of the time
_SHARE_MAX: Final = 0.2
#: certificates change seldom, and each costs a connection
_CERTIFICATES_EVERY: Final = 20
#: a commit that was made at most this long before the last round has the lag of this round
_NEW_MS: Final = 2000
_FORGET_MAX: Final = 10_000
#: a group with a commit this new may be missing in the list of groups
_YOUNG_MS: Final = 60_000
#: brokers that are no longer in the metadata are remembered for this long
_BROKER_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The bounds of the rounds of one cluster."""

    health_every_s: float = 30.0
    limits: ReadLimits = field(default_factory=ReadLimits)
    rules: Rules = field(default_factory=Rules)
    #: partitions with commits, counted for each group, that have a window for Burrow's rules
    windows_max: int = 50_000
    groups: GroupFilter = field(default_factory=GroupFilter)


@dataclass(slots=True)
class _Health:
    """The last reading of what the checks need."""

    picture: ClusterPicture | None = None
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    due: float = 0.0
    number: int = 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class ClusterReader:
    """Reads the rounds of one cluster, and remembers what Burrow's rules and forecasts need."""

    def __init__(
        self,
        name: str,
        client: AdminClient,
        options: ReaderOptions = ReaderOptions(),  # noqa: B008 (it cannot be changed)
        *,
        clock_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._name = name
        self._client = client
        self._options = options
        self._clock_ms = clock_ms
        self._source = RoundSource(client, options.limits, options.groups)
        self._lags = LagReader(client, limits=options.limits, clock_ms=clock_ms, source=self._source)
        self._feed = CommitFeed(client, options.limits.time_s)
        self._is_seeded = False
        self.histories = Histories(options.rules, windows_max=options.windows_max)
        self._health = _Health()
        self._last = ClusterReading(cluster=name)
        #: groups, and topics of groups, whose commits are forgotten before the next round
        self._to_forget: deque[tuple[str, str | None]] = deque(maxlen=_FORGET_MAX)
        #: when each broker was in the metadata
        self._seen_brokers: dict[int, float] = {}

    @property
    def last(self) -> ClusterReading:
        """Return the last reading; one with the number 0 before the first round."""
        return self._last

    def forget(self, group_id: str, topic: str | None) -> None:
        """Forget the commits of a group, or those in one topic, before the next round. May be called by any thread."""
        self._to_forget.append((group_id, topic))

    def read(self) -> ClusterReading:
        """Return the readings of a new round. A failure of the whole round is its `problem`; nothing is raised."""
        began = time.monotonic()
        try:
            found = self._read()
        except OttlaError as error:
            found = replace(self._last, problem=shown(str(error)) or type(error).__name__, notes=())
        self._last = replace(found, number=self._last.number + 1, seconds=time.monotonic() - began)
        return self._last

    def _read(self) -> ClusterReading:
        while self._to_forget:
            group_id, topic = self._to_forget.popleft()
            if topic is None:
                self.histories.forget(group_id)
            else:
                self.histories.forget_topic(group_id, topic)
        self._source.begin()
        # Before the log ends, so that the lag of a commit is never negative.
        offsets_topic = self._source.topics.get(GROUPS_TOPIC)
        commits = self._feed.read([each.name for each in offsets_topic.partitions] if offsets_topic is not None else ())
        snapshot = self._without_overtaken_ends(self._lags.read(all_topics=True))
        self._source.end()
        self._add_commits(commits, snapshot)
        self.histories.add_heads(snapshot.log_ends)
        health = self._read_health(snapshot.groups)
        groups = {name: self._group(each) for name, each in snapshot.groups.items()}
        self.histories.keep(groups, snapshot.read_at_ms, self._is_young)
        return ClusterReading(
            cluster=self._name,
            read_at_ms=snapshot.read_at_ms,
            notes=(*snapshot.problems, *self._source.notes, *filter(None, [self._feed.problem])),
            cluster_id=self._source.cluster_id,
            controller_id=self._source.controller_id,
            groups=groups,
            brokers=self._brokers(health.picture),
            partitions=self._source.partition_states(),
            internal_topics=frozenset(each.name for each in self._source.topics.values() if each.internal),
            log_starts=snapshot.log_starts,
            log_ends=snapshot.log_ends,
            picture=health.picture,
            findings=health.findings,
            picture_problem=health.problem,
        )

    def _without_overtaken_ends(self, snapshot: LagSnapshot) -> LagSnapshot:
        earlier = self._source.earlier_ends
        if not earlier:
            return snapshot
        last = self._last.groups
        groups = {
            name: without_overtaken_ends(each, last[name].lag if name in last else None, earlier)
            for name, each in snapshot.groups.items()
        }
        return replace(snapshot, groups=groups)

    def _add_commits(self, commits: Sequence[SeenCommit], snapshot: LagSnapshot) -> None:
        now_ms, before_ms = snapshot.read_at_ms, self._last.read_at_ms
        for commit in commits:
            # The lag of a commit of long ago is not known: the log has grown since then.
            is_new = before_ms and commit.timestamp_ms >= before_ms - _NEW_MS
            if self._options.groups.accepts(commit.group_id):
                self.histories.add_commit(commit, now_ms, snapshot.log_ends if is_new else {})
        # A feed has no commits from before its start: the offsets that it does not have are taken once.
        has_feed, is_seed = self._feed.is_usable, self._feed.is_complete and not self._is_seeded
        self._is_seeded = self._is_seeded or is_seed
        for group_id, lag in snapshot.groups.items():
            known = self._last.groups.get(group_id)
            old = known.lag.partitions if known is not None else {}
            for name, row in lag.partitions.items():
                has_changed = name not in old or row.committed != old[name].committed
                is_missing = is_seed and self.histories.window(group_id, name) is None
                if row.committed is not None and (is_missing if has_feed else has_changed):
                    commit = SeenCommit(group_id, name, row.committed, now_ms)
                    self.histories.add_commit(commit, now_ms, snapshot.log_ends)

    def _group(self, lag: GroupLag) -> GroupReading:
        self.histories.set_owners(lag)
        return GroupReading(
            lag=lag,
            verdict=self.histories.evaluate(lag.group_id, lag.read_at_ms),
            forecast=self.histories.add_sample(lag),
            commits=self.histories.commits(lag.group_id),
        )

    def _is_young(self, history: GroupHistory) -> bool:
        return history.last_commit_ms > self._clock_ms() - _YOUNG_MS

    def _read_health(self, lag: Mapping[str, GroupLag]) -> _Health:
        health, began = self._health, time.monotonic()
        if began < health.due:
            return health
        options = PictureOptions(certificates=health.number % _CERTIFICATES_EVERY == 0)
        health.number += 1
        try:
            health.picture = read_picture(self._client, options=options, lag=lag, before=health.picture)
            health.findings = tuple(evaluate(health.picture))
            health.problem = ""
        except OttlaError as error:
            health.problem = shown(str(error))
        health.due = began + max(self._options.health_every_s, (time.monotonic() - began) / _SHARE_MAX)
        return health

    def _brokers(self, picture: ClusterPicture | None) -> dict[int, BrokerReading]:
        now = time.monotonic()
        source = self._source
        found = {
            number: BrokerReading(
                id=number,
                host=node.host,
                port=node.port,
                rack=source.racks.get(number),
                is_controller=number == source.controller_id,
                problem=picture.brokers[number].problem if picture and number in picture.brokers else "",
            )
            for number, node in source.nodes.items()
        }
        self._seen_brokers |= dict.fromkeys(found, now)
        self._seen_brokers = {number: at for number, at in self._seen_brokers.items() if now - at < _BROKER_S}
        for number, before in self._last.brokers.items():
            if number not in found and number in self._seen_brokers:
                found[number] = replace(before, is_registered=False, is_controller=False)
        return dict(sorted(found.items()))
