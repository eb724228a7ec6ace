"""`ottla doctor`: the lines about a cluster, from a picture of it."""

from __future__ import annotations

from pictures import brokers, healthy, later, partition, topic, topics

from ottla.cli.doctor import Check
from ottla.cli.doctor_cluster import rows_of
from ottla.health.checks import CHECKS
from ottla.health.evaluation import NOT_CHECKED, evaluate
from ottla.health.types import ClusterPicture, Part


def rows(picture: ClusterPicture) -> dict[str, Check]:
    return {row.name: row for row in rows_of(picture, evaluate(picture))}


def test_nothing_is_found_in_a_healthy_cluster() -> None:
    found = rows(later(healthy(), healthy()))
    assert {name: row.verdict for name, row in found.items()} == {"protocol": "ok", "cluster": "ok"}
    count = len(CHECKS)
    assert found["cluster"].detail == (
        f"{count} of {count} checks found nothing (4 topics, 1 group, compared with 1m00s before)"
    )


def test_one_reading_says_how_to_run_the_checks_that_need_two() -> None:
    count = sum(check.needs_before for check in CHECKS)
    assert rows(healthy())["compare"].detail.startswith(f"{count} checks compare two readings and did not run")


def test_findings_have_verdict_objects_and_the_next_step() -> None:
    offline = topics(topic("orders", partition("orders", 0, leader=None, isr=())))
    found = rows(healthy(topics=offline, brokers={1: brokers()[1], 2: brokers()[2]}))
    lost, missing = found["offline-partitions"], found["missing-brokers"]
    assert (lost.verdict, lost.kind, lost.names) == ("fail", "partition", ("orders-0",))
    assert missing.verdict == "warn" and "ottla cluster decommission 3" in missing.remedy
    assert list(found)[:2] == ["protocol", "offline-partitions"]


def test_parts_that_cannot_be_read_are_named_and_their_checks_do_not_count_as_passed() -> None:
    found = rows(healthy(unknown={Part.ACLS: "not authorized"}))
    assert found[NOT_CHECKED].verdict == "info" and "ACLs are not known" in found[NOT_CHECKED].detail
    skipped = sum(Part.ACLS in check.needs or check.needs_before for check in CHECKS)
    assert found["cluster"].detail.startswith(f"{len(CHECKS) - skipped} of {len(CHECKS) - skipped} checks")
