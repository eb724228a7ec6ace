"""Groups that are read again and again: verdicts by Burrow's rules, rates, events, and reasons for a lag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ottla.admin.group_state import GroupMember, GroupState
from ottla.client.protocol.metadata import Node
from ottla.lag.burrow import Status
from ottla.lag.forecast import Forecast, Trend
from ottla.lag.observed import ObservedGroups
from ottla.lag.reasons import reasons
from ottla.lag.types import GroupLag, LagSnapshot, PartitionLag
from ottla.model.types import TopicPartition

PLACES = [TopicPartition("orders", number) for number in range(3)]


def member(name: str, *partitions: TopicPartition) -> GroupMember:
    return GroupMember(
        member_id=f"{name}-id", instance_id=None, client_id=name, host="/10.0.0.1", partitions=partitions
    )


def group_lag(
    at_ms: int, offsets: Mapping[TopicPartition, tuple[int | None, int | None]], *members: GroupMember, **more: Any
) -> GroupLag:
    """Return a reading with the commit and the end of each partition."""
    owners = {place: each for each in members for place in each.partitions}
    state = more.pop("state", "Stable" if members else "Empty")
    start = more.pop("log_start", 0)
    return GroupLag(
        group_id="g",
        state=state,
        read_at_ms=at_ms,
        partitions={
            place: PartitionLag(name=place, committed=commit, log_start=start, log_end=end, member=owners.get(place))
            for place, (commit, end) in offsets.items()
        },
        group=GroupState(
            group_id="g", is_simple=False, state=state, group_type="classic", assignor="range",
            coordinator=Node(1, "h", 1), members=members,
        ),
        **more,
    )  # fmt: skip


def watched(*lags: GroupLag) -> ObservedGroups:
    groups = ObservedGroups()
    for lag in lags:
        groups.add(LagSnapshot(read_at_ms=lag.read_at_ms, groups={"g": lag}, log_starts={}, log_ends={}, seconds=0))
    return groups


def verdict(*lags: GroupLag) -> tuple[Status, Status] | None:
    """Return the verdict about the group and its worst partition."""
    group = watched(*lags).get("g")
    assert group is not None
    found = group.status("g", lags[-1].read_at_ms)
    return None if found is None else (found.status, max(each.status for each in found.partitions))


APP = member("app", *PLACES)


def readings(commits: list[int], end: int = 10_000, growth: int = 100, *members: GroupMember) -> list[GroupLag]:
    return [
        group_lag(6000 * at, {PLACES[0]: (commit, end + growth * at)}, *members) for at, commit in enumerate(commits)
    ]


def test_group_without_lag_is_ok_at_the_first_reading() -> None:
    assert verdict(group_lag(1000, {PLACES[0]: (50, 50)}, APP)) == (Status.OK, Status.OK)


def test_too_few_readings_give_no_verdict() -> None:
    assert verdict(*readings([10, 20], 10_000, 100, APP)) is None


@pytest.mark.parametrize(
    ("commits", "growth", "expected"),
    [
        ([10 * at for at in range(10)], 100, (Status.WARN, Status.WARN)),
        ([100] * 10, 100, (Status.ERR, Status.STALL)),
        ([1000, 2000, 3000, 4000, 500, 600, 700, 800], 0, (Status.ERR, Status.REWIND)),
        ([1000 * at for at in range(8)], 10, (Status.OK, Status.OK)),
    ],
)
def test_verdicts_are_those_of_burrow(commits: list[int], growth: int, expected: tuple[Status, Status]) -> None:
    assert verdict(*readings(commits, 10_000, growth, APP)) == expected


def test_group_whose_members_have_left_has_stopped() -> None:
    running = readings([100 * at for at in range(8)], 10_000, 100, APP)
    gone = [group_lag(48_000 + 6000 * at, {PLACES[0]: (700, 11_000 + 100 * at)}) for at in range(10)]
    assert verdict(*running, *gone) == (Status.ERR, Status.STOP)


def test_group_without_members_from_the_start_has_stopped() -> None:
    assert verdict(*(group_lag(6000 * at, {PLACES[0]: (5, 100)}) for at in range(2))) == (Status.ERR, Status.STOP)


def test_joined_and_left_members_and_states_are_events() -> None:
    one, two = member("one", *PLACES), member("two", PLACES[0])
    offsets = dict.fromkeys(PLACES, (1, 1))
    groups = watched(
        group_lag(0, offsets, one),
        group_lag(2000, offsets, one, state="PreparingRebalance"),
        group_lag(4000, offsets, member("one", *PLACES[1:]), two),
        group_lag(6000, offsets, one),
    )
    group = groups.get("g")
    assert group is not None
    assert [(each.at_ms, each.kind) for each in group.events] == [
        (2000, "state"), (4000, "state"), (4000, "joined"), (4000, "moved"), (6000, "left"),
    ]  # fmt: skip
    assert "1 member joined: two at /10.0.0.1" in [each.text for each in group.events]


def test_partition_that_stops_resumes_and_goes_back_is_an_event() -> None:
    steps = [(0, 10, 10), (10_000, 10, 20), (20_000, 10, 30), (30_000, 30, 30), (40_000, 5, 30)]
    group = watched(*(group_lag(at, {PLACES[0]: (commit, end)}, APP) for at, commit, end in steps)).get("g")
    assert group is not None
    assert [each.kind for each in group.events] == ["stopped", "resumed", "rewound"]
    assert "from 30 to 5" in group.events[-1].text


def test_group_that_could_not_be_read_has_no_event() -> None:
    group = watched(
        group_lag(0, {PLACES[0]: (1, 1)}, APP), group_lag(2000, {}, state="Unknown", problems=("no coordinator",))
    ).get("g")
    assert group is not None and not group.events and group.last is not None and group.last.read_at_ms == 0


def test_deleted_group_and_deleted_partition_are_forgotten() -> None:
    groups = watched(group_lag(0, dict.fromkeys(PLACES, (1, 1)), APP), group_lag(2000, {PLACES[0]: (1, 1)}, APP))
    group = groups.get("g")
    assert group is not None and list(group.partitions) == [PLACES[0]]
    groups.add(LagSnapshot(read_at_ms=4000, groups={}, log_starts={}, log_ends={}, seconds=0))
    assert "g" not in groups


def test_forecast_of_a_partition_and_of_the_group() -> None:
    group = watched(*readings([0, 3000, 6000], 10_000, 0, APP)).get("g")
    assert group is not None
    assert group.forecast(PLACES[0]).caught_up_in_s == pytest.approx(8.0)
    assert group.forecast().consumed_per_s == pytest.approx(500.0)
    assert group.forecast(PLACES[1]).trend is Trend.UNKNOWN


@pytest.mark.parametrize(
    ("lag", "severity", "words"),
    [
        (group_lag(0, {PLACES[0]: (1, 9)}), "error", "no members, and 8 records wait"),
        (group_lag(0, {PLACES[0]: (9, 9)}, APP, state="PreparingRebalance"), "warning", "in a rebalance"),
        (group_lag(0, {PLACES[0]: (9, 9)}, APP, member("idle")), "warning", "1 member of 2 have no partitions: idle"),
        (group_lag(0, {PLACES[1]: (1, 9)}, member("a", PLACES[0])), "warning", "No member has orders-1"),
        (group_lag(0, {PLACES[0]: (99, 9)}, APP), "error", "after the end of the log in orders-0"),
        (group_lag(0, {PLACES[0]: (1, 99)}, APP, log_start=50), "error", "Up to 49 records were deleted"),
        (group_lag(0, {PLACES[0]: (1, None)}, APP), "warning", "The end of orders-0 is not known"),
        (group_lag(0, {PLACES[0]: (None, 9)}, APP), "warning", "have committed nothing"),
        (
            group_lag(0, {PLACES[0]: (0, 9000), PLACES[1]: (9, 9), PLACES[2]: (0, 10)}, APP), "warning",
            "99 % of the lag is in orders-0, which app at /10.0.0.1 reads",
        ),
    ],
)  # fmt: skip
def test_reasons_name_what_is_wrong(lag: GroupLag, severity: str, words: str) -> None:
    found = [each for each in reasons(lag) if words in each.text]
    assert [each.severity for each in found] == [severity] and found[0].advice


def test_reasons_of_speed_come_from_the_forecast() -> None:
    lag = group_lag(0, {PLACES[0]: (1, 9)}, APP)
    slow = Forecast(trend=Trend.RISING, consumed_per_s=10, produced_per_s=30, is_never=True)
    assert "consumes 10 records per second and 30 arrive" in reasons(lag, slow)[0].text
    stalled = Forecast(trend=Trend.RISING, consumed_per_s=0, produced_per_s=30, is_never=True)
    assert "stalled" in reasons(lag, stalled)[0].text


def test_healthy_group_has_no_reasons() -> None:
    assert reasons(group_lag(0, dict.fromkeys(PLACES, (9, 9)), APP)) == []
