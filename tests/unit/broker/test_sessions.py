"""Fetch sessions, rule by rule (KIP-227)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.fetch.sessions import (
    EVICTION_S,
    PARTITIONS_MAX,
    PARTITIONS_TOTAL_MAX,
    Client,
    FetchedPartition,
    FetchSessions,
    random_ids,
)
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.fetch import FetchPartition, FetchRequest

EPOCH_MAX = 2**31 - 1
ALICE = SimpleNamespace(principal="User:alice", listener="SASL_SSL")


def request(
    session_id: int, epoch: int, wanted: dict[str, list[tuple[int, int]]] | None = None,
    forgotten: dict[str, list[int]] | None = None,
) -> FetchRequest:  # fmt: skip
    """Partitions are (number, offset)."""
    topics = [
        (topic.encode(), [FetchPartition(number, -1, offset, -1, -1, 1) for number, offset in rows])
        for topic, rows in (wanted or {}).items()
    ]
    gone = [(topic.encode(), numbers) for topic, numbers in (forgotten or {}).items()]
    return FetchRequest(0, 1, 1, False, session_id, epoch, topics, gone)


def places(partitions: list[FetchedPartition]) -> list[tuple[str, int, int]]:
    return [(p.topic.decode(), p.number, p.request.fetch_offset) for p in partitions]


class Broker:
    def __init__(self, slots: int = 1000) -> None:
        self.sessions = FetchSessions(slots, itertools.count(1))
        self.now = 0.0

    def begin(self, *arguments: Any, topic_ids: bool = False, client: Client = ALICE) -> Any:
        return self.sessions.begin(request(*arguments), topic_ids, self.now, client)

    def open(self, wanted: dict[str, list[tuple[int, int]]], *, topic_ids: bool = False) -> Any:
        session, _, _ = self.begin(0, 0, wanted, topic_ids=topic_ids)
        return session

    def refuses(self, *arguments: Any, topic_ids: bool = False, client: Client = ALICE) -> ErrorCode:
        with pytest.raises(Refused) as refused:
            self.begin(*arguments, topic_ids=topic_ids, client=client)
        return refused.value.code


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_fetch_without_a_session_is_served_and_remembered_by_nobody(broker: Broker) -> None:
    session, partitions, news_only = broker.begin(0, -1, {"t": [(0, 5), (1, 6)]})
    assert session is None
    assert places(partitions) == [("t", 0, 5), ("t", 1, 6)]
    assert not news_only
    assert len(broker.sessions) == 0


def test_full_fetch_opens_a_session_and_is_answered_in_full(broker: Broker) -> None:
    session, partitions, news_only = broker.begin(0, 0, {"t": [(0, 5)]})
    assert session.session_id > 0
    assert places(partitions) == [("t", 0, 5)]
    assert not news_only


def test_next_fetch_needs_to_name_nothing(broker: Broker) -> None:
    session = broker.open({"t": [(0, 5), (1, 6)]})
    again, partitions, news_only = broker.begin(session.session_id, 1)
    assert again is session
    assert places(partitions) == [("t", 0, 5), ("t", 1, 6)]
    assert news_only


def test_next_fetch_changes_adds_and_forgets(broker: Broker) -> None:
    session = broker.open({"t": [(0, 5), (1, 6)]})
    changes = {"t": [(1, 60)], "u": [(0, 7)]}
    _, partitions, _ = broker.begin(session.session_id, 1, changes, {"t": [0, 9], "unknown": [0]})
    assert places(partitions) == [("t", 1, 60), ("u", 0, 7)]


def test_epochs_count_up_and_after_the_last_comes_one(broker: Broker) -> None:
    session = broker.open({"t": [(0, 5)]})
    for epoch in (1, 2, 3):
        broker.begin(session.session_id, epoch)
    session.epoch = EPOCH_MAX
    broker.begin(session.session_id, EPOCH_MAX)
    broker.begin(session.session_id, 1)


@pytest.mark.parametrize("epoch", [2, 5, EPOCH_MAX, -2, -(2**31)])
def test_wrong_epoch_is_refused_and_the_session_goes_on(broker: Broker, epoch: int) -> None:
    session = broker.open({"t": [(0, 5)]})
    assert broker.refuses(session.session_id, epoch) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert broker.begin(session.session_id, 1)[0] is session


@pytest.mark.parametrize("session_id", [0, -1, 12345])
def test_unknown_session_is_refused(broker: Broker, session_id: int) -> None:
    broker.open({"t": [(0, 5)]})
    assert broker.refuses(session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_client_that_changes_between_names_and_ids_is_refused(broker: Broker) -> None:
    by_name = broker.open({"t": [(0, 5)]})
    by_id = broker.open({"t": [(0, 5)]}, topic_ids=True)
    assert broker.refuses(by_name.session_id, 1, topic_ids=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert broker.refuses(by_id.session_id, 1) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert broker.begin(by_name.session_id, 1)[0] is by_name
    assert broker.begin(by_id.session_id, 1, topic_ids=True)[0] is by_id


def test_last_fetch_closes_the_session_and_is_served(broker: Broker) -> None:
    session = broker.open({"t": [(0, 5)]})
    closed, partitions, news_only = broker.begin(session.session_id, -1, {"t": [(1, 6)]})
    assert closed is None
    assert places(partitions) == [("t", 1, 6)]
    assert not news_only
    assert broker.refuses(session.session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_full_fetch_replaces_the_session_it_names(broker: Broker) -> None:
    old = broker.open({"t": [(0, 5)]})
    new, _, _ = broker.begin(old.session_id, 0, {"t": [(1, 6)]})
    assert new.session_id != old.session_id
    assert len(broker.sessions) == 1


def test_session_with_nothing_left_is_over(broker: Broker) -> None:
    session = broker.open({"t": [(0, 5)]})
    over, partitions, news_only = broker.begin(session.session_id, 1, {}, {"t": [0]})
    assert (over, partitions, news_only) == (None, [], False)
    assert broker.refuses(session.session_id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_partition_that_is_named_twice_is_served_once_as_it_was_named_last(broker: Broker) -> None:
    for epoch in (-1, 0):
        _, partitions, _ = broker.begin(0, epoch, {"t": [(0, 5), (1, 6), (0, 50)]})
        assert places(partitions) == [("t", 0, 50), ("t", 1, 6)]


def test_partition_that_had_data_comes_last_next_time(broker: Broker) -> None:
    session, partitions, _ = broker.begin(0, 0, {"t": [(0, 0), (1, 0), (2, 0)]})
    session.move_to_end(partitions[0])
    _, partitions, _ = broker.begin(session.session_id, 1)
    assert [p.number for p in partitions] == [1, 2, 0]


def test_partition_that_was_forgotten_meanwhile_does_not_come_back(broker: Broker) -> None:
    session, partitions, _ = broker.begin(0, 0, {"t": [(0, 0), (1, 0)]})
    broker.begin(session.session_id, 1, {}, {"t": [0]})
    session.move_to_end(partitions[0])
    assert [p.number for p in session.partitions.values()] == [1]


def test_only_news_are_told() -> None:
    partition = FetchedPartition(b"t", FetchPartition(0, -1, 0, -1, -1, 1))
    assert partition.must_be_sent(0, 10, 0, 0)
    assert not partition.must_be_sent(0, 10, 0, 0)
    assert partition.must_be_sent(0, 11, 0, 0)
    assert partition.must_be_sent(0, 11, 3, 0)
    assert partition.must_be_sent(0, 11, 3, 500)
    assert not partition.must_be_sent(0, 11, 3, 0)


def test_error_is_told_every_time_and_so_is_what_follows_it() -> None:
    partition = FetchedPartition(b"t", FetchPartition(0, -1, 0, -1, -1, 1))
    partition.must_be_sent(0, 10, 0, 0)
    assert partition.must_be_sent(1, -1, 0, 0)
    assert partition.must_be_sent(1, -1, 0, 0)
    assert partition.must_be_sent(0, 10, 0, 0)
    assert not partition.must_be_sent(0, 10, 0, 0)


def test_full_house_gives_no_session_until_one_is_old() -> None:
    broker = Broker(slots=2)
    first = broker.open({"t": [(0, 0)]})
    broker.now = 10.0
    second = broker.open({"t": [(0, 0)]})
    broker.begin(first.session_id, 1)
    assert broker.open({"t": [(0, 0)]}) is None
    broker.now = 10.0 + EVICTION_S
    assert broker.open({"t": [(0, 0)]}) is not None
    assert len(broker.sessions) == 2
    assert broker.refuses(second.session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_that_is_used_is_not_evicted() -> None:
    broker = Broker(slots=2)
    first, second = broker.open({"t": [(0, 0)]}), broker.open({"t": [(0, 0)]})
    broker.now = EVICTION_S
    broker.begin(first.session_id, 1)
    assert broker.open({"t": [(0, 0)]}) is not None
    assert broker.refuses(second.session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    broker.begin(first.session_id, 2)


def test_client_that_may_not_begin_a_session_is_served_without_one() -> None:
    broker = Broker(slots=1)
    asked = request(0, 0, {"t": [(0, 5)]})
    session, partitions, _ = broker.sessions.begin(asked, False, 0.0, ALICE, may_create=False)
    assert session is None and places(partitions) == [("t", 0, 5)]
    assert broker.open({"t": [(0, 0)]}) is not None


def test_larger_session_evicts_the_smallest_one_that_is_older_than_two_minutes() -> None:
    broker = Broker(slots=3)
    opened = {size: broker.open({"t": [(number, 0) for number in range(size)]}) for size in (1, 2, 3)}
    larger = {"t": [(number, 0) for number in range(2)]}
    broker.now = EVICTION_S
    for session in opened.values():
        broker.begin(session.session_id, 1)
    assert broker.open(larger) is None, "none of them is older than two minutes"
    broker.now += 2.0
    assert broker.open({"t": [(0, 0)]}) is None, "it is not larger than the smallest one"
    broker.now += 2.0
    assert broker.open(larger) is not None
    assert broker.refuses(opened[1].session_id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for size in (2, 3):
        broker.begin(opened[size].session_id, 2)
    assert len(broker.sessions) == 3


def test_larger_session_evicts_no_smaller_ones_for_the_partitions_of_all_sessions() -> None:
    broker = Broker()
    broker.sessions = FetchSessions(10, itertools.count(1), partitions_total_max=4)
    small = [broker.open({"t": [(0, 0)]}) for _ in range(2)]
    broker.now = EVICTION_S + 1
    for session in small:
        broker.begin(session.session_id, 1)
    broker.now += EVICTION_S - 1
    assert broker.open({"t": [(number, 0) for number in range(3)]}) is None
    assert len(broker.sessions) == 2


def test_no_slots_means_no_sessions() -> None:
    assert Broker(slots=0).open({"t": [(0, 0)]}) is None


def test_client_with_very_many_partitions_is_served_without_a_session(broker: Broker) -> None:
    many = [(number, 0) for number in range(PARTITIONS_MAX + 1)]
    session, partitions, _ = broker.begin(0, 0, {"t": many})
    assert session is None
    assert len(partitions) == len(many)


def test_session_that_grows_beyond_the_bound_is_over(broker: Broker) -> None:
    session = broker.open({"t": [(number, 0) for number in range(PARTITIONS_MAX)]})
    assert broker.refuses(session.session_id, 1, {"u": [(0, 0)]}) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(broker.sessions) == 0


def test_partitions_of_all_sessions_are_limited_until_one_is_old(broker: Broker) -> None:
    many = {"t": [(number, 0) for number in range(PARTITIONS_MAX)]}
    sessions = [broker.open(many) for _ in range(PARTITIONS_TOTAL_MAX // PARTITIONS_MAX)]
    assert None not in sessions
    assert broker.sessions.partitions == PARTITIONS_TOTAL_MAX
    assert broker.open({"t": [(0, 0)]}) is None
    broker.now = EVICTION_S
    assert broker.open({"t": [(0, 0)]}) is not None
    assert broker.sessions.partitions == PARTITIONS_TOTAL_MAX - PARTITIONS_MAX + 1
    assert broker.refuses(sessions[0].session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_that_grows_when_all_partitions_are_taken_is_over(broker: Broker) -> None:
    broker.sessions = FetchSessions(1000, itertools.count(1), partitions_total_max=2)
    session = broker.open({"t": [(0, 0), (1, 0)]})
    assert broker.refuses(session.session_id, 1, {"t": [(2, 0)]}) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.sessions.partitions == 0


def test_full_fetch_forgets_nothing(broker: Broker) -> None:
    session, partitions, _ = broker.begin(0, 0, {"t": [(0, 5)]}, {"t": [0]})
    assert places(partitions) == [("t", 0, 5)]
    assert len(session.partitions) == 1


@pytest.mark.parametrize(
    "stranger",
    [
        SimpleNamespace(principal="User:mallory", listener="SASL_SSL"),
        SimpleNamespace(principal="User:alice", listener="PLAINTEXT"),
    ],
)
def test_session_of_another_principal_or_listener_is_unknown(broker: Broker, stranger: Client) -> None:
    session = broker.open({"t": [(0, 5)]})
    # 1 it cannot be read or changed  2 nor ended  3 nor replaced by a new one
    code = broker.refuses(session.session_id, 1, {"u": [(0, 0)]}, {"t": [0]}, client=stranger)
    assert code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    broker.begin(session.session_id, -1, {"u": [(0, 0)]}, client=stranger)
    assert broker.begin(session.session_id, 0, {"u": [(0, 0)]}, client=stranger)[0] is not session
    again, partitions, _ = broker.begin(session.session_id, 1)
    assert again is session
    assert places(partitions) == [("t", 0, 5)]


def test_session_of_a_follower_is_unknown_to_another_follower(broker: Broker) -> None:
    wanted = request(0, 0, {"t": [(0, 5)]})._replace(replica_id=1)
    session, _, _ = broker.sessions.begin(wanted, False, 0.0, ALICE)
    assert session is not None
    with pytest.raises(Refused) as refused:
        broker.sessions.begin(request(session.session_id, 1)._replace(replica_id=2), False, 0.0, ALICE)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_ids_are_the_bits_of_the_source_of_randomness() -> None:
    drawn = iter([b"\xff" * 16, bytes(16), bytes([0, 0, 0, 7]) + bytes(12)])
    sessions = FetchSessions(1000, random_ids(lambda: next(drawn)))
    ids = []
    for _ in range(2):
        session, _, _ = sessions.begin(request(0, 0, {"t": [(0, 0)]}), False, 0.0, ALICE)
        assert session is not None
        ids.append(session.session_id)
    assert ids == [2**31 - 1, 7], "0 means that there is no session"
