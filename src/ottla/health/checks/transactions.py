"""Checks of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.health.checks.definition import ERROR, WARNING, Check, Problem, check
from ottla.health.types import ClusterPicture, Part
from ottla.model.figures import format_count, format_duration_ms, format_first

#: coordinators look for transactions whose time is over every 10 s
_GRACE_MS = 60_000
_LONG_MS = 5 * 60_000
_ENDING_STATES = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@check(
    severity=ERROR,
    kind="partition",
    problem="A transaction is open in a partition and no coordinator knows it: it never ends, and read_committed "
    "consumers wait before it forever.",
    advice="'ottla txn hanging' shows it, 'ottla txn abort --help' ends it",
    needs=[Part.OFFSETS, Part.TRANSACTIONS],
)
def hanging_transactions(picture: ClusterPicture) -> Iterator[Problem]:
    rows = sorted(picture.hanging, key=lambda each: each.last_timestamp)
    if rows:
        age = format_duration_ms(max(picture.read_at_ms - rows[0].last_timestamp, 0))
        names = [str(each.name) for each in rows]
        text = f"{format_count(len(rows), 'hanging transaction')}, the oldest for {age} ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=ERROR,
    kind="transaction",
    problem="A transaction is open for longer than its timeout: its coordinator does not abort it.",
    advice="see the log of the coordinator ('ottla txn describe ID'); 'ottla txn abort --help' ends it",
    needs=[Part.TRANSACTIONS],
)
def transactions_past_timeout(picture: ClusterPicture) -> Iterator[Problem]:
    late = [
        each
        for each in picture.transactions
        if each.started_ms is not None
        and each.state == "Ongoing"
        and picture.read_at_ms - each.started_ms > each.timeout_ms + _GRACE_MS
    ]
    if late:
        names = [each.transactional_id for each in late]
        text = f"{format_count(len(late), 'transaction')} open for longer than the timeout ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="transaction",
    problem="A transaction is open for more than five minutes: read_committed consumers get no later records.",
    advice="commit more often, or set a shorter transaction.timeout.ms; 'ottla txn describe ID' shows its partitions",
    needs=[Part.TRANSACTIONS],
)
def long_transactions(picture: ClusterPicture) -> Iterator[Problem]:
    open_ms = {
        each.transactional_id: picture.read_at_ms - each.started_ms
        for each in picture.transactions
        if each.started_ms is not None and each.state == "Ongoing"
        and picture.read_at_ms - each.started_ms <= each.timeout_ms + _GRACE_MS
    }  # fmt: skip
    names = sorted((name for name, span in open_ms.items() if span > _LONG_MS), key=lambda name: -open_ms[name])
    if names:
        span = format_duration_ms(open_ms[names[0]])
        text = f"{format_count(len(names), 'transaction')} open for long ({names[0]}: {span})"
        yield Problem(text, names)


@check(
    severity=ERROR,
    kind="transaction",
    problem="A transaction was committed or aborted, and its markers are not written: a leader does not take them.",
    advice="start the brokers that lead its partitions: 'ottla txn describe ID' shows them",
    needs=[Part.TRANSACTIONS],
    needs_before=True,
)
def stuck_transactions(picture: ClusterPicture) -> Iterator[Problem]:
    before = picture.before.transactions if picture.before is not None else ()
    ending = {
        (each.transactional_id, each.producer_id, each.producer_epoch, each.started_ms)
        for each in before
        if each.state in _ENDING_STATES
    }
    names = [
        each.transactional_id
        for each in picture.transactions
        if each.state in _ENDING_STATES
        and (each.transactional_id, each.producer_id, each.producer_epoch, each.started_ms) in ending
    ]
    if names:
        span = format_duration_ms(picture.elapsed_ms)
        text = f"{format_count(len(names), 'transaction')} without markers for {span} ({format_first(names)})"
        yield Problem(text, names)


CHECKS: tuple[Check, ...] = (hanging_transactions, transactions_past_timeout, stuck_transactions, long_transactions)
