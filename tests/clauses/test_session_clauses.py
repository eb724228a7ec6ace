"""Fetch sessions over the wire (KIP-227). The rules one by one are in tests/unit/broker/test_sessions.py."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request

VERSIONS = range(7, 19)
every_version = pytest.mark.parametrize("version", VERSIONS)


class Session:
    """A client that fetches as the protocol tells it to."""

    def __init__(self, client: RawClient, topic: Any, version: int) -> None:
        self.client = client
        self.version = version
        self.topic = topic.key(by_id=version >= 13)
        self.id = 0

    def fetch(self, epoch: int, *partitions: Any, forget: list[int] | None = None, **fields: Any) -> Any:
        wanted = {self.topic: list(partitions)} if partitions else {}
        forgotten = {self.topic: forget} if forget else None
        request = fetch_request(wanted, session=(self.id, epoch), forgotten=forgotten, **fields)
        answer = self.client.ask(request, self.version)
        if epoch == 0:
            self.id = answer.session_id
        return answer


def rows(answer: Any) -> list[tuple[int, int, bool]]:
    """Of each partition: number, error and whether there are records."""
    assert answer.error_code == 0
    return [(row.partition_index, row.error_code, row.records != b"") for t in answer.responses for row in t.partitions]


@pytest.fixture
def topic(new_topic: Any) -> Any:
    return new_topic(partitions=3)


def write(client: RawClient, topic: Any, partition: int) -> None:
    client.ask(produce_request((topic.name, partition, batch_of(b"v"))), 9)


@every_version
def test_first_answer_names_every_partition_and_the_next_only_news(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    first = session.fetch(0, *[fetch_from(number, 0) for number in range(3)])
    assert first.session_id > 0
    assert rows(first) == [(0, 0, False), (1, 0, False), (2, 0, False)]
    second = session.fetch(1)
    assert (second.session_id, rows(second)) == (session.id, [])
    write(client, topic, 1)
    assert rows(session.fetch(2)) == [(1, 0, True)]
    assert rows(session.fetch(3)) == [(1, 0, True)]
    assert rows(session.fetch(4, fetch_from(1, 1))) == []


@every_version
def test_news_end_the_wait_of_a_session(client: RawClient, topic: Any, version: int, ottla_broker: Any) -> None:
    session = Session(client, topic, version)
    session.fetch(0, *[fetch_from(number, 0) for number in range(3)])
    waiting = client.send(fetch_request({}, session=(session.id, 1), max_wait=60_000), version)
    with RawClient(ottla_broker.bootstrap) as writer:
        write(writer, topic, 2)
    assert rows(client.receive(1, version, waiting)) == [(2, 0, True)]


@every_version
def test_error_is_told_until_it_is_gone(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    assert rows(session.fetch(0, fetch_from(0, 99), fetch_from(1, 0))) == [(0, 1, False), (1, 0, False)]
    assert rows(session.fetch(1)) == [(0, 1, False)]
    assert rows(session.fetch(2, fetch_from(0, 0))) == [(0, 0, False)]
    assert rows(session.fetch(3)) == []


@every_version
def test_forgotten_partition_is_not_served(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    session.fetch(0, fetch_from(0, 0), fetch_from(1, 0))
    write(client, topic, 0)
    assert rows(session.fetch(1, forget=[0])) == []
    assert rows(session.fetch(2, fetch_from(0, 0))) == [(0, 0, True)]


@every_version
def test_session_without_partitions_is_over(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    session.fetch(0, fetch_from(0, 0))
    over = session.fetch(1, forget=[0])
    assert (over.error_code, over.session_id, over.responses) == (0, 0, ())
    assert session.fetch(2).error_code == 70


@every_version
def test_wrong_epoch_and_unknown_session_answer_the_whole_request(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    session.fetch(0, fetch_from(0, 0))
    for epoch in (2, -2, 2**31 - 1):
        answer = session.fetch(epoch, fetch_from(1, 0), max_wait=60_000)
        assert (answer.error_code, answer.session_id, answer.responses) == (71, 0, ())
    assert rows(session.fetch(1)) == []
    session.id += 1
    answer = session.fetch(2, fetch_from(1, 0), max_wait=60_000)
    assert (answer.error_code, answer.session_id, answer.responses) == (70, 0, ())


@every_version
def test_last_fetch_closes_the_session(client: RawClient, topic: Any, version: int) -> None:
    session = Session(client, topic, version)
    session.fetch(0, fetch_from(0, 0))
    last = session.fetch(-1, fetch_from(1, 0))
    assert (last.session_id, rows(last)) == (0, [(1, 0, False)])
    assert session.fetch(1).error_code == 70


def test_session_knows_whether_topics_are_names_or_ids(client: RawClient, topic: Any) -> None:
    by_name = Session(client, topic, 12)
    by_name.fetch(0, fetch_from(0, 0))
    assert client.ask(fetch_request({}, session=(by_name.id, 1)), 13).error_code == 106
    assert rows(by_name.fetch(1)) == []
    by_id = Session(client, topic, 13)
    by_id.fetch(0, fetch_from(0, 0))
    assert client.ask(fetch_request({}, session=(by_id.id, 1)), 12).error_code == 106
    assert rows(by_id.fetch(1)) == []


def test_session_outlives_its_connection(client: RawClient, topic: Any, ottla_broker: Any) -> None:
    session = Session(client, topic, 11)
    session.fetch(0, fetch_from(0, 0))
    with RawClient(ottla_broker.bootstrap) as other:
        session.client = other
        assert rows(session.fetch(1)) == []


def test_full_broker_serves_without_sessions(start_ottla_broker: Any) -> None:
    broker = start_ottla_broker(settings={"max.incremental.fetch.session.cache.slots": "2"})
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        found = [client.ask(fetch_request({"t": [fetch_from(0, 0)]}, session=(0, 0)), 11).session_id for _ in range(4)]
    assert [session_id > 0 for session_id in found] == [True, True, False, False]
