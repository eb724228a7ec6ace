"""Fetches that cost the broker far more than they cost the client that sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.hostile.harness import Attacked, scaled

from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request, request_bytes
from ottla.wire.messages.fetch import FetchPartition

pytestmark = pytest.mark.broker

PARTITIONS = scaled(1_000, 10_000)
FOREVER_MS = 2**31 - 1
TOPIC = "wide"


@contextmanager
def attacked() -> Iterator[Attacked]:
    """A broker with a topic of many partitions."""
    with Attacked() as target:
        with RawClient(target.bootstrap, timeout_s=60) as client:
            client.create_topic(TOPIC, PARTITIONS)
        target.measure()
        yield target


def all_partitions() -> list[FetchPartition]:
    return [fetch_from(number, 0) for number in range(PARTITIONS)]


def full_fetch(*, max_wait: int = 0, session: tuple[int, int] = (0, 0)) -> bytes:
    """A fetch of all partitions as a frame; (0, 0) starts a session, (0, -1) does without."""
    return request_bytes(fetch_request({TOPIC: all_partitions()}, session=session, max_wait=max_wait), 12, 1)


def open_session(client: RawClient) -> int:
    """Start a fetch session over all partitions; its id, 0 if the broker gives no session."""
    client.send_frame(full_fetch())
    answer = client.receive(1, 12, 1)
    assert answer.error_code == 0
    return int(answer.session_id)


def test_flood_of_incremental_fetches_over_many_partitions() -> None:
    """52 bytes each, and once each cost the broker all partitions of the session, parked on top of one another."""
    with attacked() as target, ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(RawClient(target.bootstrap, timeout_s=60))
            session = open_session(client)
            for epoch in range(1, scaled(100, 400) + 1):
                client.send(fetch_request({}, session=(session, epoch), max_wait=FOREVER_MS), 12)
        target.report().check()


def test_flood_of_incremental_fetches_that_do_not_wait() -> None:
    """Each is answered at once, so the broker is as busy as the attacker makes it; the bystander has its turns."""
    with attacked() as target, RawClient(target.bootstrap, timeout_s=60) as client:
        session = open_session(client)
        for epoch in range(1, scaled(300, 5_000) + 1):
            assert client.ask(fetch_request({}, session=(session, epoch)), 12).error_code == 0
        target.report().check()


def test_many_sessions_over_many_partitions() -> None:
    """Sessions stay in memory after their connection has ended, so their partitions are limited in all."""
    with attacked() as target:
        sessions = []
        for _ in range(scaled(5, 20)):
            with RawClient(target.bootstrap, timeout_s=60) as client:
                sessions.append(open_session(client))
        assert sessions[0]
        target.report().check()


def test_many_long_polls_over_many_partitions_that_are_woken_together() -> None:
    """Without sessions. Each of them looks at all partitions when a record is written to one of them."""
    with attacked() as target, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.bootstrap, timeout_s=60)) for _ in range(scaled(5, 20))]
        frame = full_fetch(session=(0, -1), max_wait=scaled(2_000, 5_000))
        for client in clients:
            client.send_frame(frame)
        with RawClient(target.bootstrap, timeout_s=60) as writer:
            for number in range(10):
                writer.ask(produce_request((TOPIC, number, batch_of(b"value"))), 9)
        for client in clients:
            client.receive(1, 12, 1)
        target.report().check()
