"""The checker finds what is planted, and is silent where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checker import Anomalies, Final, History, Member, Place, Reading, check, figures_of, parse_events

P = Place("t", 0)
Event = dict[str, Any]


def assigned(t: float) -> Event:
    return {"t": t, "event": "assigned", "partitions": [list(P)]}


def revoked(t: float) -> Event:
    return {"t": t, "event": "revoked", "partitions": [list(P)]}


def processed(t: float, first: int, last: int) -> Event:
    return {"t": t, "event": "processed", "ranges": [[*P, first, last]]}


def committed(t: float, offset: int, outcome: str = "ok", begin: float | None = None) -> Event:
    begin = t - 0.1 if begin is None else begin
    return {"t": t, "event": "committed", "begin": begin, "offsets": [[*P, offset]], "outcome": outcome}


def stopped(t: float) -> Event:
    return {"t": t, "event": "stopped"}


def failed(t: float) -> Event:
    return {"t": t, "event": "failed", "error": "something"}


def fenced(t: float) -> Event:
    return {"t": t, "event": "fenced", "error": "82"}


def reading(t: float, offset: int | None) -> Reading:
    return Reading(t, t, {} if offset is None else {P: offset})


def member(name: str, *events: Event, **fields: Any) -> Member:
    return Member(name, list(events), **fields)


def found(
    *members: Member, produced: int, readings: list[Reading] | None = None, final: Final | None = None
) -> Anomalies:
    return check(History(list(members), readings or [], {P: produced}, final))


def first(*events: Event, **fields: Any) -> Member:
    """A member that processes ten records and commits them, and then what is said."""
    return member("a", assigned(1), processed(2, 0, 9), committed(3, 10), *events, **fields)


# -- what is fine ---------------------------------------------------------------------------------------------------


def test_a_member_that_takes_over_where_the_other_committed_is_fine() -> None:
    second = member("b", assigned(5), processed(6, 10, 19), committed(7, 20), stopped(9))
    final = Final(8, {P: ["b"]}, frozenset({"b"}))
    readings = [reading(0, None), reading(4, 10), reading(7.5, 20)]
    assert found(first(revoked(4)), second, produced=20, readings=readings, final=final) == {}


def test_what_was_not_committed_may_be_processed_again() -> None:
    killed = first(processed(3.5, 10, 14), killed_at=4)
    assert found(killed, member("b", assigned(5), processed(6, 10, 14)), produced=15) == {}


def test_a_commit_without_an_answer_may_be_there_or_not() -> None:
    lost = first(processed(4, 10, 14), committed(5, 15, "unknown"), revoked(5))
    for start in (10, 15):
        last = max(start, 14)
        assert found(lost, member("b", assigned(6), processed(7, start, last)), produced=last + 1) == {}


def test_commit_may_be_applied_and_its_repetition_refused_after_a_start_of_the_broker() -> None:
    repeated = first(processed(3.1, 10, 14), committed(4, 15, "refused", begin=3.2), revoked(4.2))
    second = member("b", assigned(5), processed(6, 15, 15))
    assert found(repeated, second, produced=16, readings=[reading(4.5, 15)]) == {}


def test_a_killed_member_may_have_committed_with_its_last_breath() -> None:
    killed = first(processed(3.5, 10, 14), killed_at=4)
    readings = [reading(4.5, 15)]
    assert found(killed, member("b", assigned(5), processed(6, 15, 15)), produced=16, readings=readings) == {}


def test_a_frozen_member_may_not_know_that_it_has_lost_a_partition() -> None:
    frozen = first(processed(13, 10, 14), committed(14, 15, "refused"), revoked(14.5), frozen=[(4, 12)])
    second = member("b", assigned(10), processed(10.5, 10, 14), committed(11, 15))
    assert found(frozen, second, produced=15) == {}


def test_an_assignment_that_a_frozen_member_hears_of_late_is_no_second_owner() -> None:
    late = member("a", assigned(12.01), processed(12.02, 0, 9), revoked(12.03), frozen=[(4, 12)])
    second = member("b", assigned(10), processed(10.5, 0, 9), committed(11, 10))
    assert found(late, second, produced=10) == {}


def test_a_partition_may_be_given_to_a_member_that_stands_still_after_another_has_left_it() -> None:
    second = member("b", assigned(12.01), processed(12.02, 10, 10), frozen=[(3.5, 12)])
    assert found(first(revoked(4)), second, produced=11) == {}


def test_commits_that_run_at_the_same_time_have_no_order() -> None:
    slow = first(committed(9, 10, begin=4))
    assert found(slow, member("b", committed(6, 15), committed(7, 15)), produced=10) == {}


def test_a_static_member_may_replace_another_that_does_not_know_it_yet() -> None:
    old, new = first(fenced(6), instance="i", may_be_fenced=True), member("b", assigned(5), instance="i")
    assert found(old, new, produced=10) == {}


def test_a_torn_last_line_is_not_read() -> None:
    assert parse_events(['{"t": 1, "event": "started"}\n', '{"t": 2, "ev']) == [{"t": 1, "event": "started"}]


# -- what is not ----------------------------------------------------------------------------------------------------


def again() -> Anomalies:
    return found(first(revoked(4)), member("b", assigned(5), processed(6, 9, 12)), produced=13)


def by_a_zombie() -> Anomalies:
    """The broker takes a commit that was begun after the next owner had committed more."""
    frozen = first(committed(14, 12), revoked(15), frozen=[(4, 12)])
    return found(frozen, member("b", assigned(10), processed(10.5, 10, 14), committed(11, 15)), produced=15)


def overlapping(**fields: Any) -> Anomalies:
    return found(first(revoked(6), **fields), member("b", assigned(5)), produced=10)


def final(owners: list[str], committed: int = 10, live: str = "a") -> Anomalies:
    end = Final(5, {P: owners} if owners else {}, frozenset(live))
    return found(first(), produced=10, readings=[reading(6, committed)], final=end)


PLANTED: list[tuple[str, Callable[[], Anomalies]]] = [
    ("unprocessed", lambda: found(first(), produced=11)),
    ("phantom", lambda: found(first(), produced=9)),
    ("phantom", lambda: found(first({"t": 4, "event": "misread"}), produced=10)),
    ("skipped", lambda: found(first(processed(4, 11, 12)), produced=13)),
    ("skipped", lambda: found(first(revoked(4)), member("b", assigned(5), processed(6, 11, 12)), produced=13)),
    ("skipped", lambda: found(member("a", assigned(1), processed(2, 3, 4)), produced=5)),
    ("repeated", lambda: found(first(processed(4, 9, 10)), produced=11)),
    ("committed-again", again),
    ("unowned", lambda: found(first(revoked(4), processed(5, 10, 10)), produced=11)),
    ("two-owners", overlapping),
    ("two-owners", lambda: overlapping(frozen=[(7, 9)])),
    ("commit-back", lambda: found(first(committed(5, 9)), produced=10)),
    ("commit-back", by_a_zombie),
    ("reading-back", lambda: found(first(), produced=10, readings=[reading(3, 10), reading(4, 9)])),
    ("reading-back", lambda: found(first(), produced=10, readings=[reading(3, 10), reading(4, None)])),
    ("commit-lost", lambda: found(first(), produced=10, readings=[reading(4, None)])),
    ("commit-unasked", lambda: found(first(), produced=10, readings=[reading(4, 11)])),
    ("commit-unasked", lambda: found(first(committed(4, 11, "refused")), produced=10, readings=[reading(5, 11)])),
    ("final-owner", lambda: final([])),
    ("final-owner", lambda: final(["b"])),
    ("final-owner", lambda: final(["a", "b"])),
    ("final-owner", lambda: final(["a"], live="b")),
    ("final-offset", lambda: final(["a"], committed=9)),
    ("failed", lambda: found(first(failed(4)), produced=10)),
    ("failed", lambda: found(first(fenced(4)), produced=10)),
    ("failed", lambda: found(first(asked_to_stop=True), produced=10)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_planted_anomaly_is_found(name: str, planted: Callable[[], Anomalies]) -> None:
    assert name in planted()


def test_figures_count_what_was_processed_again() -> None:
    killed = first(processed(3.5, 10, 14), killed_at=4)
    history = History([killed, member("b", assigned(5), processed(6, 10, 14))], [], {P: 15})
    assert figures_of(history)[:4] == (15, 5, 2, 1)
