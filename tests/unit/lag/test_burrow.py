"""Burrow's rules, each with a history that it decides, and each of their exceptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from ottla.lag.burrow import (
    Commit,
    GroupHistory,
    GroupStatus,
    PartitionHistory,
    PartitionStatus,
    Rules,
    Status,
    evaluate_group,
    evaluate_partition,
)
from ottla.model.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
START_MS = 1_700_000_000_000
EVERY_MS = 10_000
RULES = Rules()


def commit(offset: int, at_ms: int, lag: int | None) -> Commit:
    return Commit(offset=offset, timestamp_ms=at_ms, observed_ms=at_ms, lag=lag)


def history(offsets: Sequence[int], lags: Sequence[int | None]) -> PartitionHistory:
    """Commits that are ten seconds apart."""
    rows = [commit(o, START_MS + n * EVERY_MS, lag) for n, (o, lag) in enumerate(zip(offsets, lags, strict=True))]
    return PartitionHistory(deque(rows, maxlen=10))


def judge(
    offsets: Sequence[int],
    lags: Sequence[int | None],
    heads: Sequence[int],
    *,
    after_ms: int = EVERY_MS,
    rules: Rules = RULES,
) -> PartitionStatus:
    """The verdict this long after the last commit."""
    now_ms = START_MS + (len(offsets) - 1) * EVERY_MS + after_ms
    return evaluate_partition(A0, history(offsets, lags), heads, now_ms, rules=rules)


FALLING = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]
RISING = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
FORWARD = list(range(100, 200, 10))
SAME = [100] * 10


# 1: what cannot be judged is OK


def test_without_commits_a_partition_is_ok_and_not_complete() -> None:
    found = evaluate_partition(A0, None, [50], START_MS, rules=Rules())
    assert (found.status, found.complete, found.start, found.current_lag) == (Status.OK, 0.0, None, 0)


def test_a_short_window_is_judged_at_once_and_shows_its_share() -> None:
    found = judge(FORWARD[:3], RISING[:3], [500])
    assert (found.status, found.complete) == (Status.WARN, 0.3)


def test_a_window_below_the_minimum_is_ok() -> None:
    assert judge(FORWARD[:3], RISING[:3], [500], rules=Rules(minimum_complete=0.4)).status is Status.OK
    assert judge(FORWARD[:4], RISING[:4], [500], rules=Rules(minimum_complete=0.4)).status is Status.WARN


# 2: the current lag


def test_a_group_at_the_end_is_ok_whatever_its_window_has() -> None:
    assert judge(SAME, RISING, [100], after_ms=10_000_000).status is Status.OK


def test_a_lag_that_is_allowed_is_ok() -> None:
    assert judge(SAME, RISING, [105], rules=Rules(allowed_lag=5)).status is Status.OK
    assert judge(SAME, RISING, [106], rules=Rules(allowed_lag=5)).status is Status.STALL


def test_a_commit_after_the_last_known_end_has_no_lag() -> None:
    assert judge(FORWARD, RISING, [150]).current_lag == 0


# 3: STOP


def test_a_group_that_has_not_committed_for_longer_than_its_window_has_stopped() -> None:
    assert judge(FORWARD, FALLING, [500], after_ms=90_000).status is Status.OK
    assert judge(FORWARD, FALLING, [500], after_ms=91_000).status is Status.STOP


def test_the_clock_has_a_resolution_of_a_second() -> None:
    assert judge(FORWARD, FALLING, [500], after_ms=90_999).status is Status.OK


def test_a_group_that_had_reached_a_recent_end_has_not_stopped_yet() -> None:
    assert judge(FORWARD, FALLING, [190, 500], after_ms=10_000_000).status is Status.OK
    assert judge(FORWARD, FALLING, [191, 500], after_ms=10_000_000).status is Status.STOP


def test_a_stop_counts_although_the_lag_was_zero_in_the_window() -> None:
    assert judge(FORWARD, [0] * 10, [500], after_ms=10_000_000).status is Status.STOP


def test_a_stop_comes_before_a_rewind() -> None:
    assert judge([100, 50], [10, 60], [500], after_ms=10_000_000).status is Status.STOP


# 4: REWIND


def test_a_step_back_that_is_not_made_up_for_is_a_rewind() -> None:
    assert judge([100, 110, 20, 30], [0, 0, 90, 80], [500]).status is Status.REWIND


def test_a_step_back_that_is_made_up_for_is_none() -> None:
    assert judge([100, 110, 20, 110], [9, 8, 90, 7], [500]).status is Status.OK
    assert judge([100, 110, 20, 109], [9, 8, 90, 7], [500]).status is Status.REWIND


def test_a_place_that_was_regained_and_left_again_counts_as_regained() -> None:
    assert judge([100, 50, 100, 40], [9, 59, 8, 7], [500]).status is Status.OK


def test_only_the_first_step_back_of_the_window_is_looked_at() -> None:
    assert judge([100, 90, 120, 30], [9, 8, 7, 6], [500]).status is Status.OK


# 5: a lag of zero in the window


def test_a_group_that_was_at_the_end_once_is_ok() -> None:
    assert judge(SAME, [10, 20, 0, 40, 50, 60, 70, 80, 90, 100], [500]).status is Status.OK


def test_a_lag_that_was_allowed_once_is_ok() -> None:
    lags = [10, 20, 5, 40, 50, 60, 70, 80, 90, 100]
    assert judge(SAME, lags, [500], rules=Rules(allowed_lag=5)).status is Status.OK
    assert judge(SAME, lags, [500], rules=Rules(allowed_lag=4)).status is Status.STALL


def test_a_missing_lag_is_not_zero() -> None:
    assert judge(SAME, [10, None, *RISING[2:]], [500]).status is Status.STALL


# 6: STALL


def test_commits_of_the_same_offset_with_lag_are_a_stall() -> None:
    assert judge(SAME, RISING, [500]).status is Status.STALL


def test_a_stall_does_not_depend_on_the_course_of_the_lag() -> None:
    assert judge(SAME, FALLING, [500]).status is Status.STALL


def test_one_offset_that_differs_is_no_stall() -> None:
    assert judge([*SAME[:9], 101], RISING, [500]).status is Status.WARN


# 7: WARN


def test_a_lag_that_never_becomes_smaller_is_a_warning() -> None:
    assert judge(FORWARD, RISING, [500]).status is Status.WARN
    assert judge(FORWARD, [30] * 10, [500]).status is Status.WARN


def test_missing_lags_are_skipped_between_their_neighbours() -> None:
    assert judge(FORWARD[:3], [20, None, 30], [500]).status is Status.WARN
    assert judge(FORWARD[:3], [30, None, 20], [500]).status is Status.OK


# 8: otherwise OK


def test_a_lag_that_became_smaller_once_is_ok() -> None:
    assert judge(FORWARD, [10, 20, 30, 29, 50, 60, 70, 80, 90, 100], [500]).status is Status.OK


# windows


def test_a_window_keeps_the_last_commits() -> None:
    group = GroupHistory()
    for number in range(13):
        group.add(A0, commit(number, START_MS + number * EVERY_MS, 1), Rules())
    assert [each.offset for each in group.partitions[A0].commits] == list(range(3, 13))


def test_a_commit_that_follows_too_soon_takes_the_place_and_the_time_of_the_last_one() -> None:
    rules = Rules(min_distance_ms=1000)
    group = GroupHistory()
    for offset, after_ms in ((1, 0), (2, 999), (3, 1000), (4, 1999), (5, 2000)):
        group.add(A0, commit(offset, START_MS + after_ms, offset), rules)
    kept = [(each.offset, each.timestamp_ms - START_MS, each.lag) for each in group.partitions[A0].commits]
    assert kept == [(2, 0, 2), (4, 1000, 4), (5, 2000, 5)]


def test_a_commit_older_than_a_week_is_ignored() -> None:
    group = GroupHistory()
    week_ms = Rules().expire_group_s * 1000
    group.add(A0, Commit(offset=1, timestamp_ms=START_MS - week_ms - 1, observed_ms=START_MS, lag=1), Rules())
    assert group.partitions == {}
    group.add(A0, Commit(offset=1, timestamp_ms=START_MS - week_ms, observed_ms=START_MS, lag=1), Rules())
    assert list(group.partitions) == [A0]


# groups


def group_of(**partitions: PartitionHistory) -> GroupHistory:
    names = {"a0": A0, "a1": A1, "b0": B0}
    return GroupHistory({names[name]: each for name, each in partitions.items()}, last_commit_ms=START_MS)


def group_status(group: GroupHistory | None, heads: dict[TopicPartition, list[int]], now_ms: int) -> GroupStatus:
    return evaluate_group("g", group, heads, now_ms, Rules())


NOW_MS = START_MS + 10 * EVERY_MS
HEADS = {A0: [500], A1: [500], B0: [500]}


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (history(FORWARD, FALLING), Status.OK),
        (history(FORWARD, RISING), Status.WARN),
        (history(SAME, RISING), Status.ERR),
        (history([100, 50], [9, 59]), Status.ERR),
    ],
)
def test_a_group_is_as_its_worst_partition_with_err_for_what_is_worse_than_a_warning(
    second: PartitionHistory, status: Status
) -> None:
    assert group_status(group_of(a0=history(FORWARD, FALLING), a1=second), HEADS, NOW_MS).status is status


def test_a_groups_figures_are_those_of_its_partitions() -> None:
    found = group_status(group_of(a0=history(FORWARD, RISING), a1=history(FORWARD[:3], RISING[:3])), HEADS, NOW_MS)
    assert found.total_lag == (500 - 190) + (500 - 120)
    assert found.max_lag is not None and (found.max_lag.name, found.max_lag.current_lag) == (A1, 380)
    assert found.complete == 0.5


def test_the_partition_of_the_largest_lag_need_not_be_the_worst() -> None:
    found = group_status(
        group_of(a0=history(SAME, RISING), a1=history(FORWARD, FALLING)), {A0: [101], A1: [9000]}, NOW_MS
    )
    assert found.status is Status.ERR
    assert found.max_lag is not None and (found.max_lag.name, found.max_lag.status) == (A1, Status.OK)


def test_partitions_of_the_topic_without_a_commit_are_ok_and_not_complete() -> None:
    found = group_status(group_of(a0=history(FORWARD, FALLING)), HEADS, NOW_MS)
    assert [(each.name, each.status, each.complete) for each in found.partitions] == [
        (A0, Status.OK, 1.0),
        (A1, Status.OK, 0.0),
    ]
    assert found.complete == 0.5


def test_a_group_that_is_not_known_or_has_expired_is_not_found() -> None:
    assert group_status(None, {}, NOW_MS) == GroupStatus(group_id="g", status=Status.NOTFOUND, complete=1.0)
    known = group_of(a0=history(FORWARD, FALLING))
    week_ms = Rules().expire_group_s * 1000
    assert group_status(known, HEADS, START_MS + week_ms).status is not Status.NOTFOUND
    assert group_status(known, HEADS, START_MS + week_ms + 1).status is Status.NOTFOUND


def test_the_numbers_are_those_of_burrows_metrics() -> None:
    assert [(each.name, each.value) for each in Status] == [
        ("NOTFOUND", 0), ("OK", 1), ("WARN", 2), ("ERR", 3), ("STOP", 4), ("STALL", 5), ("REWIND", 6),
    ]  # fmt: skip
