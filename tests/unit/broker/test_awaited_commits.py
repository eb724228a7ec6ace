"""The connection of a librdkafka client is closed if AddOffsetsToTxn is not followed by TxnOffsetCommit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.transactions.awaited_commits import AwaitedCommits
from ottla.env.timers import TimerWheel

LIBRDKAFKA = "confluent-kafka-python 2.16.0-librdkafka-2.16.0"


class Loop:
    """The clock of an event loop that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> Any:
        timer = (when, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [each for each in self.timers if each[0] <= self.now]:
            self.timers.remove(timer)
            timer[1]()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def awaited(loop: Loop) -> AwaitedCommits:
    wheel: Any = TimerWheel(loop)  # type: ignore[arg-type]
    return AwaitedCommits(wheel)


def client(software: str = LIBRDKAFKA) -> Any:
    connection = SimpleNamespace(software=software, is_closed=False)
    connection.close = lambda: setattr(connection, "is_closed", True)
    return connection


def test_connection_is_closed_a_second_after_the_offsets_were_added(awaited: AwaitedCommits, loop: Loop) -> None:
    connection, other = client(), client()
    awaited.expect("a", connection)
    awaited.expect("b", other)
    loop.advance(0.9)
    awaited.note_arrived("b")
    assert not connection.is_closed
    loop.advance(0.2)
    assert connection.is_closed
    assert not other.is_closed


def test_time_begins_again_with_the_next_request(awaited: AwaitedCommits, loop: Loop) -> None:
    first, second = client(), client()
    awaited.expect("a", first)
    loop.advance(0.9)
    awaited.expect("a", second)
    loop.advance(0.9)
    assert not first.is_closed and not second.is_closed
    loop.advance(0.2)
    assert second.is_closed and not first.is_closed


def test_other_clients_keep_their_connections(awaited: AwaitedCommits, loop: Loop) -> None:
    """kafka-python forgets a request whose connection is lost at the wrong moment."""
    connection = client("kafka-python 3.0.12")
    awaited.expect("a", connection)
    awaited.note_arrived("never added")
    loop.advance(5.0)
    assert not connection.is_closed
