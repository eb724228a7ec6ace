"""Checks of consumer groups, with hand-made lag."""

from __future__ import annotations

from typing import Any

import pytest
from pictures import NOW_MS, found, group, group_lag, healthy, later, member, only

from ottla.health.findings import Severity
from ottla.health.types import ClusterPicture

DAY_MS = 86_400_000


def lagging(state: str = "Stable", read_at_ms: int = NOW_MS, **offsets: Any) -> ClusterPicture:
    members = (member("a", 0, 1, 2),) if state == "Stable" else ()
    return healthy(
        groups={"billing": group("billing", *members, state=state)},
        lag={"billing": group_lag("billing", state, read_at_ms, **offsets)},
    )


def test_group_that_is_in_a_rebalance_at_both_readings_is_reported() -> None:
    joining = healthy(groups={"billing": group("billing", member("a"), state="PreparingRebalance")})
    finding = only("rebalancing-groups", later(joining, joining))
    assert finding.text == "1 group in a rebalance for 1m00s (billing)"
    assert "ottla group why billing" in finding.advice
    assert "rebalancing-groups" not in found(later(healthy(), joining))
    assert "rebalancing-groups" not in found(later(joining, joining, after_ms=100))


def test_members_without_partitions_are_information() -> None:
    crowded = group("billing", member("a", 0, 1, 2), member("b"), member("c"))
    finding = only("idle-members", healthy(groups={"billing": crowded}))
    assert (finding.severity, finding.text) == (Severity.INFO, "1 group with idle members (billing: 2)")


def test_partition_that_no_member_reads_is_reported() -> None:
    finding = only("unread-partitions", healthy(groups={"billing": group("billing", member("a", 0), member("b", 1))}))
    assert finding.names == ("orders-2",)


def test_group_of_two_applications_is_reported() -> None:
    mixed = group("billing", member("a", 0, 1, 2), member("b", topics=["payments"], partitions=()))
    finding = only("shared-group-ids", healthy(groups={"billing": mixed}))
    assert finding.names == ("billing",) and "orders" in finding.text and "payments" in finding.text
    common = group("billing", member("a", 0, 1, 2), member("b", topics=["orders", "payments"]))
    assert "shared-group-ids" not in found(healthy(groups={"billing": common}))


def test_commit_before_the_log_start_is_an_error_with_the_loss() -> None:
    finding = only("lost-records", lagging(committed=10, log_start=50))
    assert (finding.severity, finding.text) == (Severity.ERROR, "1 group lost records (billing: up to 40 offsets)")


def test_commit_after_the_log_end_is_an_error() -> None:
    assert only("commits-beyond-end", lagging(committed=500)).names == ("billing",)


def test_lag_of_most_of_the_retention_is_an_error() -> None:
    finding = only("lag-near-retention", lagging(committed=1, time_lag_ms=6 * DAY_MS))
    assert finding.text == "1 group will lose records (billing is behind by 86% of the retention)"
    assert "lag-near-retention" not in found(lagging(committed=1, time_lag_ms=5 * DAY_MS))


def test_group_with_members_and_without_commits_is_reported() -> None:
    assert only("groups-without-commits", lagging(committed=None)).names == ("billing",)
    assert "groups-without-commits" not in found(lagging(committed=None, log_end=0))
    assert "groups-without-commits" not in found(lagging("Empty", committed=None))


def compare(state: str, committed: tuple[int, int], ends: tuple[int, int], **fields: Any) -> ClusterPicture:
    """Return a picture and an earlier one, one minute before, with these commits and log ends."""
    before = lagging(state, NOW_MS - 60_000, committed=committed[0], log_end=ends[0])
    return later(before, lagging(state, committed=committed[1], log_end=ends[1], **fields))


@pytest.mark.parametrize(
    ("state", "committed", "ends", "name"),
    [
        ("Stable", (100, 100), (150, 200), "stalled-groups"),
        ("Empty", (100, 100), (150, 200), "stopped-groups"),
        ("Stable", (100, 120), (150, 200), "slow-groups"),
        ("Stable", (100, 160), (150, 200), None),  # it catches up
        ("Stable", (100, 100), (150, 150), None),  # nothing new: a commit may come
        ("Stable", (150, 200), (150, 200), None),
    ],
)
def test_progress_between_two_readings_decides(
    state: str, committed: tuple[int, int], ends: tuple[int, int], name: str | None
) -> None:
    picture = compare(state, committed, ends, time_lag_ms=120_000)
    assert found(picture).keys() == ({name} if name else set())


def test_group_that_is_behind_for_seconds_only_is_not_slow() -> None:
    assert found(compare("Stable", (100, 120), (150, 200), time_lag_ms=5000)) == {}
