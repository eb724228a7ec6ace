"""Messages that clients cause are limited per minute and kind, and those that were left out are counted."""

from __future__ import annotations

import logging

import pytest

from ottla.broker import authentication, dispatch, listeners
from ottla.broker.apis import configs, groups, topics
from ottla.env import metrics_server
from ottla.env.log_limit import LogLimit
from ottla.env.process import log_to_stderr
from ottla.net import connection, server, tls


def logged(*messages: tuple[int, str, int]) -> list[str]:
    """Return those of the messages that a limit of three per minute admits: minute, text, argument."""
    limit, admitted = LogLimit(3), []
    for minute, text, argument in messages:
        record = logging.makeLogRecord({"msg": text, "args": (argument,), "created": 30.0 + 60 * minute})
        if limit.filter(record):
            admitted.append(record.getMessage())
    return admitted


def test_messages_of_one_kind_are_limited_and_those_of_another_are_not() -> None:
    many = [(0, "refused peer=%d", number) for number in range(10)]
    assert logged(*many, (0, "closed peer=%d", 1)) == [
        "refused peer=0", "refused peer=1", "refused peer=2", "closed peer=1",
    ]  # fmt: skip


def test_first_message_of_a_later_minute_tells_how_many_were_left_out() -> None:
    many = [(0, "refused peer=%d", number) for number in range(10)]
    later = [(1, "closed peer=%d", 1), (2, "refused peer=%d", 0), (2, "refused peer=%d", 1)]
    assert logged(*many, *later)[3:] == [
        "closed peer=1", "refused peer=0 (earlier ones that were not logged: 7)", "refused peer=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "module", [authentication, configs, connection, dispatch, groups, listeners, metrics_server, server, tls, topics]
)
def test_modules_whose_messages_clients_cause_have_a_limit(module: object) -> None:
    log: logging.Logger = module.log  # type: ignore[attr-defined]
    assert [type(each) for each in log.filters] == [LogLimit]


def test_failures_that_the_event_loop_logs_are_one_kind_although_their_texts_differ() -> None:
    """The event loop puts the object that failed behind the first line."""
    many = [(0, f"Future exception was never retrieved\nfuture: {number} %d", number) for number in range(10)]
    assert len(logged(*many)) == 3


def test_kinds_are_limited_too() -> None:
    many = [(0, f"message {number} of %d", number) for number in range(5_000)]
    assert len(logged(*many)) <= 1_000 + 3


def test_event_loop_has_a_limit() -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    loop = logging.getLogger("asyncio")
    try:
        for _ in range(2):
            log_to_stderr("info")
        assert [type(each) for each in loop.filters] == [LogLimit]
    finally:
        loop.filters.clear()
        logging.getLogger().handlers[:], logging.getLogger().level = before
