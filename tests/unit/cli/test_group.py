"""`ottla group`."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaError, Message

from ottla.admin.error_codes import failure_of
from ottla.admin.failure import Failure, NotHealthy
from ottla.admin.group_state import GroupListing, GroupMember, GroupState
from ottla.admin.rebalances import ADVICE
from ottla.admin.topic_state import Outcome
from ottla.broker.groups.journal import Cause, CauseKind, Rebalance, journal_key
from ottla.cli import cluster as cluster_module
from ottla.cli import group_lag
from ottla.cli.duration import format_duration_ms, parse_duration_ms
from ottla.cli.group_why import draw_timeline
from ottla.client.protocol.metadata import Node
from ottla.lag.first_records import ReadLimits
from ottla.lag.reading import LagReader
from ottla.model.types import TopicPartition

JOURNAL = "__ottla_rebalances"


class FakeGroups:
    """A cluster of topics with groups added to it; it remembers in which order it was asked."""

    def __init__(self, topics: Any) -> None:
        self.topics_cluster = topics
        self.states: dict[str, GroupState] = {}
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.asked: list[str] = []
        self.refused: dict[TopicPartition, Failure] = {}
        #: limits of the lags that were read
        self.limits: list[ReadLimits] = []
        #: why timestamps are missing; none is returned then
        self.missing_times: list[str] = []
        #: whether timestamps were read
        self.has_read_times = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.topics_cluster, name)

    def add_group(self, name: str, *members: GroupMember, group_type: str = "classic", is_simple: bool = False) -> None:
        self.states[name] = GroupState(
            group_id=name,
            is_simple=is_simple,
            state="Stable" if members else "Empty",
            group_type=group_type,
            assignor="range" if members else None,
            coordinator=self.brokers()[0],
            members=members,
        )
        self.committed.setdefault(name, {})

    def groups(self) -> tuple[list[GroupListing], list[Failure]]:
        listings = [
            GroupListing(group_id=g.group_id, is_simple=g.is_simple, state=g.state, group_type=g.group_type)
            for g in self.states.values()
        ]
        return listings, list(self.refused.values())

    def describe_groups(self, names: Sequence[str]) -> list[GroupState]:
        return [self.states.get(name) or _unknown(name) for name in names]

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        self.asked.append("commits")
        return self.committed.get(group, {})

    def find_offsets(self, partitions: Any, at: str | int, *, committed: bool = False) -> Any:
        self.asked.append(str(at))
        return self.topics_cluster.find_offsets(partitions, at, committed=committed)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Failure]:
        self.changes.append(("commit", group, dict(offsets)))
        return self.refused

    def delete_groups(self, names: Sequence[str]) -> list[Outcome]:
        self.changes.append(("delete", list(names)))
        return [Outcome(name=name, failure=None) for name in names]


class FakeLagSource:
    """What a lag is made of, from the cluster in memory."""

    def __init__(self, groups: FakeGroups) -> None:
        self._groups = groups

    def group_ids(self) -> tuple[list[str], list[str]]:
        return list(self._groups.states), []

    def describe(self, group_ids: Sequence[str]) -> Mapping[str, GroupState | Exception]:
        return dict(zip(group_ids, self._groups.describe_groups(group_ids), strict=True))

    def committed(self, group_ids: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, int] | Exception]:
        return {name: self._groups.committed_offsets(name) for name in group_ids}

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        known = self._groups.topics()
        return [each.name for topic in topics or known if topic in known for each in known[topic].partitions]

    def ranges(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        starts, ends = (self._groups.find_offsets(partitions, at) for at in ("earliest", "latest"))
        return {tp: at.offset for tp, at in starts.items()}, {tp: at.offset for tp, at in ends.items()}

    def first_timestamps(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[Mapping[TopicPartition, int | None], Sequence[str]]:
        self._groups.has_read_times = True
        if self._groups.missing_times:
            return {}, self._groups.missing_times
        found: dict[TopicPartition, int | None] = {}
        for tp, (start, end) in ranges.items():
            unread = [m for m in self._groups.records[tp] if start <= (m.offset() or 0) < end]
            found[tp] = unread[0].timestamp()[1] if unread else None
        return found, []


def _unknown(name: str) -> GroupState:
    node = Node(broker_id=1, host="127.0.0.1", port=9092)
    return GroupState(
        group_id=name, is_simple=True, state="Dead", group_type="classic", assignor=None, coordinator=node, members=()
    )


def member(name: str, *partitions: TopicPartition) -> GroupMember:
    return GroupMember(
        member_id=f"{name}-1", instance_id=None, client_id=name, host="/10.0.0.1", partitions=tuple(partitions)
    )


A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> FakeGroups:
    fake = FakeGroups(cluster)
    monkeypatch.setattr(cluster_module, "connect", lambda connection: fake)

    def lag_reader(connected: FakeGroups, limits: ReadLimits) -> LagReader:
        connected.limits.append(limits)
        return LagReader(connected, limits=limits, source=FakeLagSource(connected))  # type: ignore[arg-type]

    monkeypatch.setattr(group_lag, "lag_reader", lag_reader)
    return fake


@pytest.fixture
def orders(cluster: FakeGroups) -> FakeGroups:
    """Topic a with five records in partition 0 and none in 1; group g, stopped, has read two of them."""
    cluster.add_topic("a", 2)
    for number in range(5):
        cluster.store("a", b"v", time_ms=1000 * (number + 1))
    cluster.add_group("g")
    cluster.committed["g"] = {A0: 2}
    return cluster


# list


def test_list_is_a_table_of_types_and_states(cluster: FakeGroups, ottla: Any) -> None:
    cluster.add_group("g", member("c"))
    cluster.add_group("plain", is_simple=True)
    assert ottla("group", "list").output.split("\n") == [
        "GROUP  TYPE     STATE   PROTOCOL TYPE",
        "g      classic  Stable  consumer",
        "plain  classic  Empty   -",
        "",
    ]


def test_list_that_is_not_complete_is_printed_with_a_warning_and_an_exit_code(cluster: FakeGroups, ottla: Any) -> None:
    cluster.add_group("g")
    cluster.refused = {A0: NotHealthy("the list is not complete: because")}
    result = ottla("group", "list", "-o", "name")
    assert (result.exit_code, result.stdout) == (4, "g\n")
    assert result.stderr == "warning: the list is not complete: because\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--state", "empty"), "old\n"),
        (("--type", "consumer"), "new\n"),
        (("--state", "Stable", "--state", "Empty"), "old\nnew\n"),
        (("--state", "Dead"), ""),
    ],
)
def test_list_is_filtered_by_state_and_type(cluster: FakeGroups, ottla: Any, words: Sequence[str], names: str) -> None:
    cluster.add_group("old")
    cluster.add_group("new", member("c"), group_type="consumer")
    assert ottla("group", "list", *words, "-o", "name").output == names


@pytest.mark.parametrize("output", ["table", "name", "json", "yaml"])
def test_a_groups_name_cannot_steer_a_terminal_or_pass_for_two(cluster: FakeGroups, ottla: Any, output: str) -> None:
    cluster.add_group("x\x1b[2J\ny")
    shown = ottla("group", "list", "-o", output).output
    assert "\x1b" not in shown and "\ny" not in shown


# describe


def test_describe_shows_state_and_then_partitions(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app", A0), member("idle"))
    orders.store("a", b"v", partition=1)
    orders.committed["g"] = {A0: 5, A1: 1}
    assert ottla("group", "describe", "g").output.split("\n") == [
        "GROUP        g",
        "COORDINATOR  1 (127.0.0.1:9092)",
        "TYPE         classic",
        "STATE        Stable",
        "ASSIGNOR     range",
        "MEMBERS      2",
        "TOTAL LAG    0",
        "TIME LAG     0",
        "",
        "TOPIC  PARTITION  COMMITTED  END  LAG  TIME-LAG  CONSUMER-ID  CLIENT-ID  HOST",
        "a              0          5    5    0  0         app-1        app        /10.0.0.1",
        "a              1          1    1    0  0         -            -          -",
        "-              -          -    -    -  -         idle-1       idle       /10.0.0.1",
        "",
    ]


def test_a_partition_without_a_commit_has_no_lag_rather_than_a_wrong_one(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app", A0, A1))
    (group,) = json.loads(ottla("group", "describe", "g", "-o", "json").output)
    assert [(one["current_offset"], one["lag"]) for one in group["offsets"]] == [(2, 3), (None, None)]
    assert group["total_lag"] == 3
    assert "TOTAL LAG    3 (1 of 2 partitions have no commit)" in ottla("group", "describe", "g").output


def test_a_stopped_group_shows_the_partitions_of_its_topic_that_have_no_commit(orders: FakeGroups, ottla: Any) -> None:
    orders.store("a", b"v", partition=1)
    orders.add_topic("other", 1)
    shown = ottla("group", "describe", "g").output
    assert "TOTAL LAG    3 (1 of 2 partitions have no commit)" in shown
    assert "a              1          -    1    -" in shown
    assert "other" not in shown


def test_commits_are_read_before_log_ends(orders: FakeGroups, ottla: Any) -> None:
    ottla("group", "describe", "g")
    assert orders.asked == ["commits", "earliest", "latest"]


def test_time_lag_is_the_age_of_the_first_record_not_consumed(orders: FakeGroups, ottla: Any) -> None:
    before_ms = int(time.time() * 1000)
    (group,) = json.loads(ottla("group", "describe", "g", "-o", "json").output)
    after_ms = int(time.time() * 1000)
    assert before_ms - 3000 <= group["offsets"][0]["time_lag_ms"] <= after_ms - 3000
    assert group["max_time_lag_ms"] == group["offsets"][0]["time_lag_ms"]


def test_a_distance_of_transaction_markers_is_no_time(
    orders: FakeGroups, ottla: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.committed["g"] = {A0: 5}
    monkeypatch.setattr(orders.topics_cluster, "_find", lambda name, at: 0 if at == "earliest" else 6)
    (lag, _) = json.loads(ottla("group", "describe", "g", "-o", "json").output)[0]["offsets"]
    assert (lag["lag"], lag["time_lag_ms"]) == (1, 0)


def test_a_record_from_the_future_is_not_behind(orders: FakeGroups, ottla: Any) -> None:
    orders.records[A0][2] = Message(topic="a", partition=0, offset=2, timestamp=(1, int(time.time() * 1000) + 90_000))
    (lag, _) = json.loads(ottla("group", "describe", "g", "-o", "json").output)[0]["offsets"]
    assert lag["time_lag_ms"] == 0


def test_lag_is_shown_to_those_who_may_not_read_the_records(orders: FakeGroups, ottla: Any) -> None:
    orders.missing_times = ["time lag not read: records of a-0: TOPIC_AUTHORIZATION_FAILED"]
    result = ottla("group", "describe", "g", "-o", "json")
    assert [json.loads(result.stdout)[0]["offsets"][0][name] for name in ("lag", "time_lag_ms")] == [3, None]
    assert result.stderr == "warning: time lag not read: records of a-0: TOPIC_AUTHORIZATION_FAILED\n"


def test_time_lag_is_read_for_as_long_as_the_timeout_allows(orders: FakeGroups, ottla: Any) -> None:
    orders.missing_times = ["no time lag for 1 of 1 partitions within 7 s"]
    result = ottla("group", "describe", "g", "--timeout", "7")
    assert (result.exit_code, result.stderr) == (
        0,
        "warning: no time lag for 1 of 1 partitions within 7 s; raise --timeout\n",
    )
    assert [limits.time_s for limits in orders.limits] == [7]


def test_a_commit_beyond_the_end_is_said_so_and_has_no_negative_lag(orders: FakeGroups, ottla: Any) -> None:
    orders.committed["g"] = {A0: 900}
    shown = ottla("group", "describe", "g").output
    assert "a              0        900    5    -" in shown
    assert "Committed beyond the end of the log: a-0." in shown


def test_a_commit_in_a_topic_that_is_gone_is_still_shown(orders: FakeGroups, ottla: Any) -> None:
    orders.committed["g"] = {TopicPartition("gone", 0): 7}
    shown = ottla("group", "describe", "g").output
    assert "gone           0          7    -" in shown
    assert "No log end: gone." in shown


def test_the_members_view_shows_assignments(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app", A0, A1, TopicPartition("b", 3)), member("idle"))
    assert ottla("group", "describe", "g", "--members").output.split("\n") == [
        "GROUP  g",
        "",
        "CONSUMER-ID  INSTANCE-ID  CLIENT-ID  HOST       PARTITIONS  ASSIGNMENT",
        "app-1                  -  app        /10.0.0.1           3  a:0,1 b:3",
        "idle-1                 -  idle       /10.0.0.1           0  -",
        "",
    ]


def test_the_state_view_reads_no_records(orders: FakeGroups, ottla: Any) -> None:
    shown = ottla("group", "describe", "g", "--state").output
    assert "TOTAL LAG    3" in shown and "TOPIC" not in shown
    assert not orders.has_read_times


def test_describe_shows_what_exists_and_leaves_with_not_found(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "describe", "nope", "g", "-o", "name")
    assert (result.exit_code, result.stdout) == (3, "g\n")
    assert result.stderr == "error: group nope does not exist; see 'ottla group list'\n"


def test_yaml_says_the_same_as_json(orders: FakeGroups, ottla: Any) -> None:
    words = ("group", "describe", "g", "--state", "--members")
    assert yaml.safe_load(ottla(*words, "-o", "yaml").output) == json.loads(ottla(*words, "-o", "json").output)


# reset


def test_reset_is_a_plan_until_it_is_executed(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "reset", "g", "--to-earliest", "--all-topics")
    assert result.stdout.split("\n") == [
        "GROUP  TOPIC  PARTITION  CURRENT  NEW",
        "g      a              0        2    0",
        "",
    ]
    assert (result.stderr, orders.changes) == ("nothing was changed; add --execute to commit this\n", [])


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 5),
        (("--to-offset", "4"), 4),
        (("--to-timestamp", "3500"), 3),
        (("--to-datetime", "1970-01-01T00:00:01.5Z"), 1),
        (("--by-duration", "1h30m"), 5),
        (("--by-duration", "P20000D"), 5),
        (("--shift-by", "2"), 4),
        (("--shift-by", "-1"), 1),
        (("--to-current",), 2),
    ],
)
def test_reset_goes_where_it_is_told(orders: FakeGroups, ottla: Any, words: Sequence[str], offset: int) -> None:
    ottla("group", "reset", "g", "--all-topics", *words, "--execute")
    assert orders.changes == [("commit", "g", {A0: offset})]


@pytest.mark.parametrize(
    ("words", "offset", "note"),
    [
        (("--to-offset", "99"), 5, "offset 99 is beyond the end of the log, moved to 5"),
        (("--shift-by", "-9"), 0, "offset -7 is before the start of the log, moved to 0"),
    ],
)
def test_offsets_outside_the_log_are_moved_into_it_with_a_note(
    orders: FakeGroups, ottla: Any, words: Sequence[str], offset: int, note: str
) -> None:
    result = ottla("group", "reset", "g", "--all-topics", *words, "-o", "json")
    (row,) = json.loads(result.stdout)
    assert (row["new_offset"], row["note"]) == (offset, note)
    assert f"note: a-0: {note}\n" in result.stderr


def test_reset_takes_some_partitions_of_a_topic(orders: FakeGroups, ottla: Any) -> None:
    ottla("group", "reset", "g", "--topic", "a:1", "--topic", "a:0", "--to-latest", "--execute")
    ottla("group", "reset", "g", "--topic", "a:1", "--to-latest", "--execute")
    assert orders.changes == [("commit", "g", {A0: 5, A1: 0}), ("commit", "g", {A1: 0})]


def test_a_partition_without_a_commit_cannot_be_shifted(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "reset", "g", "--topic", "a", "--shift-by", "1", "--execute")
    assert orders.changes == [("commit", "g", {A0: 3})]
    assert "note: a-1 is skipped: no commit to shift from\n" in result.stderr


def test_a_commit_in_a_topic_that_is_gone_is_left_out(orders: FakeGroups, ottla: Any) -> None:
    orders.committed["g"] = {A0: 2, TopicPartition("gone", 0): 7}
    result = ottla("group", "reset", "g", "--all-topics", "--to-latest", "--execute")
    assert orders.changes == [("commit", "g", {A0: 5})]
    assert "note: gone-0 is skipped: it no longer exists\n" in result.stderr


def test_what_was_exported_is_read_back(orders: FakeGroups, ottla: Any, tmp_path: Path) -> None:
    exported = ottla("group", "reset", "g", "--topic", "a", "--to-offset", "0", "--export")
    assert (exported.stdout, exported.stderr) == ("a,0,0\na,1,0\n", "")
    (tmp_path / "plan.csv").write_text(exported.stdout)
    ottla("group", "reset", "g", "--from-file", str(tmp_path / "plan.csv"), "--execute")
    assert orders.changes == [("commit", "g", {A0: 0, A1: 0})]


def test_a_file_may_quote_its_topics_as_kafka_does(orders: FakeGroups, ottla: Any) -> None:
    ottla("group", "reset", "g", "--from-file", "-", "--execute", stdin='"a",0,4\n\n')
    assert orders.changes == [("commit", "g", {A0: 4})]


@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        ("a,0\n", 2, "line 1: 'a,0' is not TOPIC,PARTITION,OFFSET"),
        ("a,0,1\na,0,x\n", 2, "line 2: 'a,0,x' is not TOPIC,PARTITION,OFFSET"),
        ("a,0,-1\n", 2, "line 1: 'a,0,-1' is not"),
        ("a,0,1\na,0,2\n", 2, "line 2: a-0 occurs twice"),
        ("", 2, "the file has no lines"),
        ("a,7,1\n", 3, "a has no partition 7"),
        ("nope,0,1\n", 3, "topic nope does not exist"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(
    orders: FakeGroups, ottla: Any, text: str, code: int, complaint: str
) -> None:
    result = ottla("group", "reset", "g", "--from-file", "-", "--execute", stdin=text)
    assert (result.exit_code, orders.changes) == (code, [])
    assert complaint in result.stderr


def test_a_group_with_active_members_is_refused_with_their_names(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app", A0))
    result = ottla("group", "reset", "g", "--all-topics", "--to-latest", "--execute")
    assert (result.exit_code, result.stdout, orders.changes) == (1, "", [])
    assert result.stderr == (
        "error: group g still has active members (1), so its offsets cannot be set; stop app at /10.0.0.1, "
        "wait until 'ottla group describe' says Empty, then try again\n"
    )


def test_a_plan_for_an_active_group_says_that_it_would_be_refused(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app", A0))
    result = ottla("group", "reset", "g", "--all-topics", "--to-latest")
    assert result.exit_code == 0 and "warning: group g still has active members" in result.stderr


def test_a_partition_that_was_refused_is_an_error_beside_the_others(orders: FakeGroups, ottla: Any) -> None:
    orders.refused = {A1: Failure("a-1: refused")}
    result = ottla("group", "reset", "g", "--topic", "a", "--to-latest", "--execute", "-o", "json")
    assert [row["error"] for row in json.loads(result.stdout)] == [None, "a-1: refused"]
    assert (result.exit_code, result.stderr) == (1, "1 of 2 offsets of g committed\nerror: a-1: refused\n")


def test_a_new_group_gets_its_first_offsets(orders: FakeGroups, ottla: Any) -> None:
    ottla("group", "reset", "new", "--topic", "a:0", "--to-offset", "1", "--execute")
    assert orders.changes == [("commit", "new", {A0: 1})]


@pytest.mark.parametrize("words", [("--all-topics", "--to-latest"), ("--topic", "a", "--shift-by", "1")])
def test_what_needs_commits_needs_a_group(orders: FakeGroups, ottla: Any, words: Sequence[str]) -> None:
    assert ottla("group", "reset", "new", *words, "--execute").exit_code == 3
    assert orders.changes == []


def test_a_group_without_commits_has_nothing_to_move(orders: FakeGroups, ottla: Any) -> None:
    orders.committed["g"] = {}
    assert ottla("group", "seek", "g", "--to", "start").exit_code == 1
    assert orders.changes == []


@pytest.mark.parametrize(
    "words",
    [
        ("--all-topics",),
        ("--to-latest",),
        ("--all-topics", "--topic", "a", "--to-latest"),
        ("--all-topics", "--to-latest", "--to-earliest"),
        ("--all-topics", "--to-offset", "-1"),
        ("--all-topics", "--to-timestamp", "soon"),
        ("--all-topics", "--by-duration", "soon"),
        ("--all-topics", "--to-latest", "--dry-run", "--execute"),
        ("--all-topics", "--to-latest", "--export", "-o", "json"),
        ("--topic", "a:x", "--to-latest"),
        ("--from-file", "-", "--topic", "a"),
    ],
)
def test_reset_refuses_wrong_usage_with_code_2(orders: FakeGroups, ottla: Any, words: Sequence[str]) -> None:
    result = ottla("group", "reset", "g", *words, stdin="a,0,1\n")
    assert (result.exit_code, orders.changes) == (2, [])


# seek


@pytest.mark.parametrize(
    ("where", "offset"), [("start", 0), ("end", 5), ("3", 3), ("@3500", 3), ("1970-01-01T00:00:02Z", 1), ("-90m", 5)]
)
def test_seek_acts_at_once(orders: FakeGroups, ottla: Any, where: str, offset: int) -> None:
    assert ottla("group", "seek", "g", "--to", where).exit_code == 0
    assert orders.changes == [("commit", "g", {A0: offset})]


def test_seek_takes_topics_and_a_dry_run(orders: FakeGroups, ottla: Any) -> None:
    orders.add_topic("b")
    result = ottla("group", "seek", "g", "--to", "end", "--topics", "a,b", "--dry-run", "-o", "json")
    assert [(row["topic_name"], row["partition_id"]) for row in json.loads(result.stdout)] == [
        ("a", 0), ("a", 1), ("b", 0),
    ]  # fmt: skip
    assert orders.changes == []


def test_a_time_without_its_sign_does_not_skip_everything(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "seek", "g", "--to", "1622505600000")
    assert (result.exit_code, orders.changes) == (1, [])
    assert "write @1622505600000 if it is a time" in result.stderr


@pytest.mark.parametrize(("words", "code"), [(("nope", "--to", "start"), 3), (("g", "--to", "soon"), 2), (("g",), 2)])
def test_seek_refuses_what_it_cannot_know(orders: FakeGroups, ottla: Any, words: Sequence[str], code: int) -> None:
    assert ottla("group", "seek", *words).exit_code == code
    assert orders.changes == []


# delete


def test_delete_needs_yes_when_nobody_can_be_asked(orders: FakeGroups, ottla: Any) -> None:
    assert ottla("group", "delete", "g").exit_code == 2
    assert ottla("group", "delete", "g", "--yes").output == "deleted group g\n"
    assert orders.changes == [("delete", ["g"])]


def test_a_missing_group_stops_a_deletion_unless_that_is_fine(orders: FakeGroups, ottla: Any) -> None:
    assert ottla("group", "delete", "g", "nope", "--yes").exit_code == 3
    assert orders.changes == []
    assert ottla("group", "delete", "g", "nope", "--yes", "--if-exists").exit_code == 0
    assert orders.changes == [("delete", ["g"])]


def test_a_group_with_active_members_is_not_deleted(orders: FakeGroups, ottla: Any) -> None:
    orders.add_group("g", member("app"))
    result = ottla("group", "delete", "g", "--yes")
    assert (result.exit_code, orders.changes) == (1, [])
    assert "'ottla group describe g --members' shows them" in result.stderr


def test_a_dry_deletion_deletes_nothing(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "delete", "g", "--dry-run", "-o", "json")
    assert json.loads(result.output) == [{"consumer_group_id": "g", "result": "would delete"}]
    assert orders.changes == []


# why


def rebalance(group: str, generation: int, started_ms: int, *causes: Cause, **more: Any) -> Rebalance:
    fields = {"duration_ms": 12_000, "members_before": 4, "members_after": 3, **more}
    return Rebalance(
        group_id=group, group_type="classic", generation=generation, started_ms=started_ms, causes=causes, **fields
    )


@pytest.fixture
def journal(orders: FakeGroups) -> FakeGroups:
    orders.add_topic(JOURNAL, 2)
    return orders


def store(cluster: FakeGroups, entry: Rebalance, partition: int = 0) -> None:
    cluster.store(JOURNAL, entry.to_json(), journal_key(entry.group_id, entry.generation), partition=partition)


def why(ottla: Any, group: str = "g", *words: str) -> Any:
    return json.loads(ottla("group", "why", group, "-o", "json", *words).stdout)


def test_why_tells_who_when_how_long_and_what_to_look_at(journal: FakeGroups, ottla: Any) -> None:
    started_ms = int(time.time() * 1000) - 190_000
    cause = Cause(
        kind=CauseKind.SESSION_TIMEOUT, member_id="app-2-f6", client_id="app-2", client_host="/10.0.0.7",
        group_instance_id="pod-7", detail="no heartbeat for 45 s",
    )  # fmt: skip
    store(journal, rebalance("g", 41, started_ms, cause, causes_left_out=2))
    shown = ottla("group", "why", "g").output
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started_ms / 1000))
    assert f"{local}  3 min ago  took 12.0s  members 4 -> 3  generation 41\n" in shown
    assert (
        "  session timeout: app-2 at /10.0.0.7 (member app-2-f6, instance pod-7): no heartbeat for 45 s\n  and 2 more\n"
    ) in shown
    assert "session timeout (1x) [session.timeout.ms, heartbeat.interval.ms]: No heartbeat" in shown


def test_why_shows_the_newest_first_from_every_partition(journal: FakeGroups, ottla: Any) -> None:
    for generation in range(5):
        store(journal, rebalance("g", generation, 1000 + generation), partition=generation % 2)
    assert [one["generation"] for one in why(ottla)["rebalances"]] == [4, 3, 2, 1, 0]
    assert [one["generation"] for one in why(ottla, "g", "-n", "2")["rebalances"]] == [4, 3]


def test_a_later_entry_takes_the_place_of_one_under_the_same_key(journal: FakeGroups, ottla: Any) -> None:
    store(journal, rebalance("g", 1, 1000))
    store(journal, rebalance("g", 21, 2000))
    assert [one["generation"] for one in why(ottla)["rebalances"]] == [21]


def test_an_entry_that_was_deleted_is_gone(journal: FakeGroups, ottla: Any) -> None:
    store(journal, rebalance("g", 1, 1000))
    journal.store(JOURNAL, None, journal_key("g", 1))
    assert why(ottla)["rebalances"] == []


def test_groups_with_slashes_are_told_apart(journal: FakeGroups, ottla: Any) -> None:
    journal.add_group("g/1")
    store(journal, rebalance("g/1", 3, 1000))
    store(journal, rebalance("g", 4, 1000))
    assert [one["generation"] for one in why(ottla, "g")["rebalances"]] == [4]
    assert [one["generation"] for one in why(ottla, "g/1")["rebalances"]] == [3]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not json",
        b"[]",
        b'{"groupId":"g"}',
        b"[" * 100_000,
        b'{"groupId":"g","causes":[],"generation":1,"startedMs":1e300,"durationMs":1,"membersBefore":1,"membersAfter":1,"causesLeftOut":0}',
        b'{"groupId":"g","causes":[],"generation":1,"startedMs":999999999999999999,"durationMs":1,"membersBefore":1,'
        b'"membersAfter":1,"causesLeftOut":0}',
    ],
)
def test_what_is_no_entry_is_passed_over(journal: FakeGroups, ottla: Any, value: bytes) -> None:
    store(journal, rebalance("g", 1, 1000))
    journal.store(JOURNAL, value, b"g/7")
    journal.store(JOURNAL, value, None)
    assert [one["generation"] for one in why(ottla)["rebalances"]] == [1]


def test_a_cause_of_a_later_broker_is_shown_without_advice(journal: FakeGroups, ottla: Any) -> None:
    value = json.loads(rebalance("g", 1, 1000, Cause(kind=CauseKind.LEFT)).to_json())
    value["causes"][0]["kind"] = "moon phase"
    value["moon"] = "full"
    journal.store(JOURNAL, json.dumps(value).encode(), b"g/1")
    shown = ottla("group", "why", "g").output
    assert "  moon phase\n" in shown and "WHAT TO LOOK AT" not in shown


def test_a_clients_reason_cannot_steer_a_terminal(journal: FakeGroups, ottla: Any) -> None:
    value = json.loads(rebalance("g", 1, 1000, Cause(kind=CauseKind.LEFT, detail="\x1b[2J")).to_json())
    value["causes"][0]["clientId"] = "\ud800"
    journal.store(JOURNAL, json.dumps(value).encode(), b"g/1")
    shown = ottla("group", "why", "g").output
    assert "\x1b" not in shown and "left: ?: \\x1b[2J" in shown


def test_a_cluster_without_a_journal_says_so(orders: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "why", "g")
    assert (result.exit_code, result.stderr) == (
        1, "error: this cluster keeps no journal of rebalances; only Ottla brokers write it\n",
    )  # fmt: skip


def test_a_group_that_never_rebalanced_is_no_error(journal: FakeGroups, ottla: Any) -> None:
    result = ottla("group", "why", "g")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "group g has no rebalance in the journal\n"


@pytest.mark.parametrize("partitions", [0, 1])
def test_why_of_a_group_that_does_not_exist_is_not_found(orders: FakeGroups, ottla: Any, partitions: int) -> None:
    if partitions:
        orders.add_topic(JOURNAL, partitions)
    assert ottla("group", "why", "nope").exit_code == 3


def test_there_is_advice_for_every_cause_a_broker_writes() -> None:
    assert set(ADVICE) == {kind.value for kind in CauseKind}


def test_the_timeline_is_as_high_as_rebalances_were_long() -> None:
    entries = [
        {"started_ms": 60_000, "duration_ms": 8000},
        {"started_ms": 30_000, "duration_ms": 4000},
        {"started_ms": 0, "duration_ms": 0},
    ]
    bar = draw_timeline(entries, 60_000).split("\n")[0]
    assert (bar[0], bar[30], bar[59]) == ("▁", "▄", "█")
    assert bar[60:] == "  highest 8.0s"


# the rest


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [("1h30m", 5_400_000), ("PT1H30M", 5_400_000), ("P7D", 604_800_000), ("90s", 90_000), ("250ms", 250),
     ("PT0.25S", 250), ("PT1.5S", 1500), ("2m", 120_000), ("P1DT1S", 86_401_000)],
)  # fmt: skip
def test_a_duration_has_two_spellings(text: str, span_ms: int) -> None:
    assert parse_duration_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "-1h", "1h-30m", "1.5h", "h", "P1Y", "9" * 30 + "d", "٣h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0"), (999, "999ms"), (59_999, "59.9s"), (192_000, "3m12s"), (7_500_000, "2h05m"), (273_600_000, "3d04h")],
)
def test_a_duration_is_shown_in_its_two_largest_units(span_ms: int, text: str) -> None:
    assert format_duration_ms(span_ms) == text


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (KafkaError.GROUP_ID_NOT_FOUND, 3),
        (KafkaError.NON_EMPTY_GROUP, 1),
        (KafkaError.UNKNOWN_MEMBER_ID, 1),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 4),
    ],
)
def test_errors_of_groups_have_their_codes(code: int, exit_code: int) -> None:
    assert failure_of(KafkaError(code), "group g").exit_code == exit_code
