"""What a round reads while a broker is away: the figures of the round before, for a short time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ottla.admin.client import AdminClient
from ottla.edge.monitor import source as module
from ottla.edge.monitor.source import GroupFilter, RoundSource, without_overtaken_ends
from ottla.lag.first_records import ReadLimits
from ottla.lag.reading import ClusterLagSource
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Away(OttlaError):
    """A broker gives no answer."""


class Answers:
    """What the cluster answers in the next rounds, and the time."""

    def __init__(self) -> None:
        self.committed: Mapping[str, Any] = {}
        self.ranges: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = ({}, {})
        self.times: dict[TopicPartition, int | None] | OttlaError = {}
        self.now = 1000.0


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()

    def first_timestamps(*_: Any) -> Any:
        if isinstance(made.times, OttlaError):
            raise made.times
        return dict(made.times), []

    monkeypatch.setattr(ClusterLagSource, "committed", lambda *_: dict(made.committed))
    monkeypatch.setattr(ClusterLagSource, "ranges", lambda *_: (dict(made.ranges[0]), dict(made.ranges[1])))
    monkeypatch.setattr(ClusterLagSource, "first_timestamps", first_timestamps)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def source() -> RoundSource:
    return RoundSource(AdminClient("127.0.0.1:1", {}, timeout_s=1), ReadLimits())


def test_commits_of_a_group_without_a_coordinator_are_those_of_the_round_before(
    source: RoundSource, answers: Answers
) -> None:
    answers.committed = {"g": {A0: 5}, "h": {A0: 7}}
    assert source.committed(["g", "h"]) == answers.committed
    source.end()
    answers.committed = {"g": Away("no coordinator"), "h": {A0: 8}, "new": Away("no coordinator")}
    found = source.committed(["g", "h", "new"])
    assert (found["g"], found["h"]) == ({A0: 5}, {A0: 8})
    assert isinstance(found["new"], Away)
    assert source.notes == ["earlier commits are used for 1 group: no coordinator"]


def test_offsets_of_a_partition_without_a_leader_are_those_of_the_round_before(
    source: RoundSource, answers: Answers
) -> None:
    answers.ranges = ({A0: 1, A1: 2}, {A0: 10, A1: 20})
    source.ranges([A0, A1])
    source.end()
    answers.ranges = ({A1: 2}, {A1: 21})
    assert source.ranges([A0, A1]) == ({A0: 1, A1: 2}, {A0: 10, A1: 21})
    assert source.notes == ["1 partition gave no offsets; for 1 the last known ones are used"]


def test_the_time_of_a_record_is_known_for_its_offset_only(source: RoundSource, answers: Answers) -> None:
    answers.times = {A0: 111, A1: None}
    source.first_timestamps({A0: (5, 10), A1: (3, 4)})
    source.end()
    answers.times = Away("no leader")
    found, problems = source.first_timestamps({A0: (5, 10), A1: (3, 4)})
    assert (found, problems) == ({A0: 111, A1: None}, ["no leader"])
    source.end()
    assert source.first_timestamps({A0: (6, 10)}) == ({}, ["no leader"])


def test_figures_are_remembered_for_two_minutes(source: RoundSource, answers: Answers) -> None:
    answers.committed = {"g": {A0: 5}}
    source.committed(["g"])
    source.end()
    answers.committed = {"g": Away("no coordinator")}
    for now, is_known in ((1060.0, True), (1119.0, True), (1121.0, False)):
        answers.now = now
        assert (source.committed(["g"]) == {"g": {A0: 5}}) is is_known
        source.end()


def test_groups_are_chosen_by_regular_expressions() -> None:
    chosen = GroupFilter("^shop-", "-test$")
    assert [chosen.accepts(name) for name in ("shop-a", "shop-test", "other")] == [True, False, False]
    with pytest.raises(ValueError, match="is not a regular expression"):
        GroupFilter("(")


def lag_of(committed: int, end: int) -> GroupLag:
    row = PartitionLag(name=A0, committed=committed, log_start=0, log_end=end, time_lag_ms=0)
    return GroupLag(group_id="g", state="Stable", read_at_ms=1, partitions={A0: row})


def test_a_commit_that_has_reached_an_earlier_log_end_is_not_at_the_end() -> None:
    """The partition has a new leader and has grown: 0 would be wrong."""
    moved = without_overtaken_ends(lag_of(10, 10), lag_of(8, 10), {A0})
    assert (moved.total, moved.time_lag_ms) == (None, None)
    assert without_overtaken_ends(lag_of(10, 10), None, {A0}).total is None
    assert without_overtaken_ends(lag_of(10, 10), moved, {A0}).total is None


def test_a_group_that_was_at_the_end_stays_there_while_its_partition_has_no_leader() -> None:
    for earlier in ({A0}, set[TopicPartition]()):
        assert without_overtaken_ends(lag_of(10, 10), lag_of(10, 10), earlier).total == 0
    assert without_overtaken_ends(lag_of(10, 10), lag_of(8, 10), {A1}).total == 0
    assert without_overtaken_ends(lag_of(9, 10), lag_of(8, 10), {A0}).total == 1
