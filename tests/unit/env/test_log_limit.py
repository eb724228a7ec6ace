"""Messages that clients cause are limited per minute and kind, and those that were left out are counted."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from ottla.broker import dispatch
from ottla.broker.access import authentication
from ottla.broker.access import listener_security as listeners
from ottla.broker.cluster import config_apis as configs
from ottla.broker.cluster import topic_apis as topics
from ottla.broker.coordination import find_coordinator as coordinators
from ottla.env import metrics_server
from ottla.env.log_limit import PER_MINUTE_MAX, LogLimit
from ottla.env.process import log_to_stderr
from ottla.net import connection, server, tls


def logged(*messages: tuple[int, str, int]) -> list[str]:
    """Return those of the messages that a limit of three per minute admits: minute, text, argument."""
    limit, admitted = LogLimit(3), []
    for minute, text, argument in messages:
        fields = {"msg": text, "args": (argument,), "created": 30.0 + 60 * minute, "levelno": logging.WARNING}
        record = logging.makeLogRecord(fields)
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
    "module",
    [authentication, configs, connection, coordinators, dispatch, listeners, metrics_server, server, tls, topics],
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


@pytest.fixture
def process_log() -> Iterator[None]:
    """The log of a process of Ottla. What it was before is restored."""
    root, loop = logging.getLogger(), logging.getLogger("asyncio")
    before = root.handlers[:], root.level
    try:
        for _ in range(2):
            log_to_stderr("info")
        yield
    finally:
        loop.filters.clear()
        root.handlers[:], root.level = before


@pytest.mark.usefixtures("process_log")
def test_event_loop_has_a_limit() -> None:
    assert [type(each) for each in logging.getLogger("asyncio").filters] == [LogLimit]


@pytest.mark.usefixtures("process_log")
def test_warnings_of_all_modules_have_a_limit_and_events_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A retry without a limit of its own does not fill the log."""
    (handler,) = (each for each in logging.getLogger().handlers if any(isinstance(f, LogLimit) for f in each.filters))
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(sys.stderr)
    log = logging.getLogger("ottla.module.without.a.limit")
    for number in range(3 * PER_MINUTE_MAX):
        log.info("event number=%d", number)
        log.warning("retry failed number=%d", number)
        log.critical("directory is offline number=%d", number)
    lines = capsys.readouterr().err.splitlines()
    assert sum("event" in line for line in lines) == sum("offline" in line for line in lines) == 3 * PER_MINUTE_MAX
    # The test may begin in one minute and end in the next one.
    assert PER_MINUTE_MAX <= sum("retry failed" in line for line in lines) <= 2 * PER_MINUTE_MAX
