"""The checks of `ottla doctor` that concern the cluster: controller, brokers that do not run, partitions, leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from ottla.admin.cluster import ClusterState
from ottla.admin.failure import Failure
from ottla.admin.status import describe_status
from ottla.cli.cluster_status import opened
from ottla.cli.connection import ClusterOptions
from ottla.cli.doctor import FAIL, OK, WARN, Check
from ottla.cli.output import format_first

#: the share of partitions that may be led by other replicas than the preferred ones; brokers use the same limit
_NOT_PREFERRED_MAX = 0.1


def check_partitions(connection: ClusterOptions) -> Iterator[Check]:
    """Yield the checks of the cluster. The check fails if the cluster stops answering."""
    try:
        with opened(connection) as admin:
            state = admin.state()
            checks = list(judge(state, admin.min_isr))
    except (Failure, click.UsageError) as error:
        checks = [Check("partitions", FAIL, error.message, "see the logs of the brokers")]
    yield from checks


def judge(state: ClusterState, min_isr: Callable[[set[str]], dict[str, int]]) -> Iterator[Check]:
    """Yield the verdicts about this state of a cluster."""
    if state.controller_id is None:
        yield Check(
            "controller", FAIL, "no broker is the controller: no leaders are elected",
            "check that ZooKeeper runs and that the brokers reach it (zookeeper.connect)",
        )  # fmt: skip
    else:
        yield Check("controller", OK, f"broker {state.controller_id}")
    missing = sorted({number for each in state.partitions for number in each.replicas} - state.brokers.keys())
    if missing:
        names = ", ".join(map(str, missing))
        yield Check(
            "brokers", WARN, f"brokers with replicas that do not run: {names}",
            f"start them; if one is lost for good: 'ottla cluster decommission {missing[0]}'",
        )  # fmt: skip
    summary = describe_status(state, min_isr)
    yield _check_replicas(summary, bool(missing))
    moved, total = summary["not_preferred_leaders"], summary["partitions"]
    if moved > total * _NOT_PREFERRED_MAX:
        yield Check(
            "leaders", WARN, f"{moved} of {total} partitions are not led by their preferred replicas",
            "'ottla cluster elect' moves the leaders back; brokers do so by themselves every few minutes",
        )  # fmt: skip


def _check_replicas(summary: dict[str, object], is_broker_missing: bool) -> Check:
    """Return the verdict about the worst problem that a partition has."""
    problems = summary["problems"]
    assert isinstance(problems, list)
    by_problem: dict[str, list[str]] = {}
    for row in problems:
        by_problem.setdefault(row["problem"], []).append(f"{row['topic_name']}:{row['partition_id']}")
    start = "start the brokers that do not run" if is_broker_missing else "see the logs of the brokers"
    if names := by_problem.get("no leader"):
        return Check(
            "partitions", FAIL, f"{len(names)} without a leader ({format_first(names)})",
            f"{start}; only if their data is lost: 'ottla cluster elect --unclean TOPIC'",
        )  # fmt: skip
    if names := by_problem.get("under min.insync.replicas"):
        text = (
            f"{len(names)} with fewer in-sync replicas than min.insync.replicas refuse acks=all ({format_first(names)})"
        )
        return Check("partitions", FAIL, text, start)
    if names := by_problem.get("replicas not in sync"):
        text = f"{len(names)} with replicas that are not in sync ({format_first(names)})"
        return Check("partitions", WARN, text, f"{start}; 'ottla cluster status --wait' waits until they are in sync")
    if names := by_problem.get("replicas added"):
        return Check("partitions", OK, f"{len(names)} get more replicas; see 'ottla cluster reassign'")
    return Check("partitions", OK, f"{summary['partitions']}, all replicas in sync")
