"""What the monitor remembers from round to round, and what Burrow's rules say about it."""

from __future__ import annotations

from ottla.edge.monitor.histories import Histories, SeenCommit
from ottla.lag.burrow import Rules, Status
from ottla.lag.forecast import Trend
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
START_MS = 1_700_000_000_000
EVERY_MS = 10_000


def at(number: int) -> int:
    return START_MS + number * EVERY_MS


def histories(*, windows_max: int = 100) -> Histories:
    return Histories(Rules(), windows_max=windows_max)


def commit(made: Histories, group: str, name: TopicPartition, offset: int | None, number: int, end: int = 0) -> None:
    made.add_commit(SeenCommit(group, name, offset, at(number)), at(number), {name: end} if end else {})


def lag_of(group: str, number: int, committed: int, end: int) -> GroupLag:
    row = PartitionLag(name=A0, committed=committed, log_start=0, log_end=end)
    return GroupLag(group_id=group, state="Stable", read_at_ms=at(number), partitions={A0: row})


def test_a_group_that_commits_while_its_lag_grows_is_a_warning() -> None:
    made = histories()
    for number in range(10):
        commit(made, "g", A0, 100 + number, number, end=200 + 20 * number)
        made.add_heads({A0: 200 + 20 * number})
    verdict = made.evaluate("g", at(9))
    assert (verdict.status, verdict.complete, verdict.total_lag) == (Status.WARN, 1.0, 271)


def test_a_group_that_repeats_its_commit_while_records_arrive_stalls() -> None:
    made = histories()
    for number in range(10):
        commit(made, "g", A0, 100, number, end=200 + number)
        made.add_heads({A0: 200 + number})
    assert made.evaluate("g", at(9)).partitions[0].status is Status.STALL


def test_a_commit_whose_lag_is_not_known_counts_with_its_offset() -> None:
    made = histories()
    for number in range(3):
        commit(made, "g", A0, 100, number)
    made.add_heads({A0: 300})
    verdict = made.evaluate("g", at(2)).partitions[0]
    assert (verdict.status, verdict.current_lag) == (Status.STALL, 200)
    assert verdict.start is not None and verdict.start.lag is None


def test_a_topic_that_was_created_again_begins_with_new_log_ends() -> None:
    made = histories()
    commit(made, "g", A0, 100, 0, end=100)
    made.add_heads({A0: 100})
    made.add_heads({A0: 5})
    commit(made, "g", A0, 5, 1, end=5)
    made.add_heads({A0: 900})
    # The end that the group had reached belongs to the topic of before.
    assert made.evaluate("g", at(3)).total_lag == 895


def test_a_deleted_commit_ends_its_window() -> None:
    made = histories()
    commit(made, "g", A0, 1, 0)
    commit(made, "g", B0, 1, 0)
    commit(made, "g", A0, None, 1)
    assert [each.name for each in made.evaluate("g", at(1)).partitions] == [B0]
    assert made.windows == 1


def test_a_topic_or_a_group_can_be_forgotten() -> None:
    made = histories()
    for name in (A0, A1, B0):
        commit(made, "g", name, 1, 0)
    assert made.forget_topic("g", "a") and not made.forget_topic("g", "a")
    assert made.windows == 1
    assert made.forget("g") and not made.forget("g")
    assert (made.windows, made.evaluate("g", at(0)).status) == (0, Status.NOTFOUND)


def test_deleted_and_expired_groups_are_forgotten() -> None:
    made = histories()
    for group in ("deleted", "kept", "new"):
        commit(made, group, A0, 1, 0)
    made.keep(["kept"], at(1), lambda history: history is made._groups["new"].history)
    assert [made.evaluate(group, at(1)).status is Status.NOTFOUND for group in ("deleted", "kept", "new")] == [
        True, False, False,
    ]  # fmt: skip
    made.keep(["kept", "new"], at(0) + 604_801_000, lambda history: True)
    assert made.windows == 0


def test_windows_are_limited_and_those_left_out_are_counted() -> None:
    made = histories(windows_max=2)
    for group in ("a", "b", "c"):
        commit(made, group, A0, 1, 0)
    commit(made, "a", A0, 2, 1)
    assert (made.windows, made.left_out, made.commits("a"), made.commits("c")) == (2, 1, 2, 0)


def test_partitions_without_a_commit_are_part_of_the_group() -> None:
    made = histories()
    commit(made, "g", A0, 1, 0)
    made.add_heads({A0: 1, A1: 9, B0: 3})
    verdict = made.evaluate("g", at(0))
    assert [each.name for each in verdict.partitions] == [A0, A1]


def test_a_forecast_needs_two_rounds_and_starts_again_with_other_partitions() -> None:
    made = histories()
    assert made.add_sample(lag_of("g", 0, 0, 1000)).trend is Trend.UNKNOWN
    found = made.add_sample(lag_of("g", 1, 500, 1000))
    assert (found.trend, found.caught_up_in_s) == (Trend.FALLING, 10.0)
    other = GroupLag(
        group_id="g", state="Stable", read_at_ms=at(2),
        partitions={B0: PartitionLag(name=B0, committed=1, log_start=0, log_end=1)},
    )  # fmt: skip
    assert made.add_sample(other).trend is Trend.UNKNOWN
