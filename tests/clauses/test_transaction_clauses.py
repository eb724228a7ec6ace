"""Clauses about transactions: exact codes of every version, that what was refused changed nothing, and the limits.

What Kafka answers to the same is compared in test_transactions_same_as_kafka.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.clauses.conftest import NewTopic, Topic, await_coordinator
from tests.clauses.group_requests import become_stable, commit, fetch
from tests.clauses.transaction_requests import (
    ADD_FENCED_FROM,
    ADD_V,
    COMMIT_V,
    END_FENCED_FROM,
    END_V,
    INIT_FENCED_FROM,
    INIT_V,
    OFFSETS_FENCED_FROM,
    OFFSETS_V,
    PRODUCE_V,
    READ_COMMITTED,
    Owner,
    add,
    add_offsets,
    await_settled,
    await_transactions,
    begin,
    end,
    init,
    init_again,
    list_offsets,
    markers,
    producers_of,
    txn_commit,
    until_free,
    write,
)

from ottla.model.batch import read_header
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.list_transactions import ListTransactionsRequest

#: `make campaign NAME=transactions` also runs what takes long
LONG = "OTTLA_LONG" in os.environ
_OUT_OF_ORDER, _EPOCH, _STATE, _MAPPING, _TIMEOUT, _CONCURRENT = 45, 47, 48, 49, 50, 51
_UNKNOWN_PRODUCER = 59
_UNKNOWN_TOPIC, _INVALID_REQUEST, _NOT_ATTEMPTED, _FENCED, _ABORTABLE = 3, 42, 55, 90, 120
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _UNSTABLE, _NOT_FOUND = 22, 25, 88, 105
_NOT_ENOUGH_REPLICAS, _COORDINATOR_FENCED, _COORDINATOR_TROUBLE = 19, 52, (14, 15, 16)
_numbers = itertools.count()


@pytest.fixture
def transactional_id(client: RawClient) -> str:
    await_transactions(client)
    return f"clause-transaction-{next(_numbers)}"


@pytest.fixture
def owner(client: RawClient, transactional_id: str) -> Owner:
    """Of an id with epoch 1, so that there is one before."""
    begin(client, transactional_id)
    return begin(client, transactional_id)


def added(client: RawClient, owner: Owner, places: Any, version: int = ADD_V) -> dict[tuple[str, int], int]:
    """Error codes by partition."""
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in client.ask(add(owner, places), version).results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }


def join(client: RawClient, owner: Owner, *topics: str) -> None:
    deadline = time.monotonic() + 60
    while set(codes := set(added(client, owner, {topic: [0] for topic in topics}).values())) == {_CONCURRENT}:
        assert time.monotonic() < deadline
    assert codes == {0}


def produced(client: RawClient, request: Any, version: int = PRODUCE_V) -> list[int]:
    answer = client.ask(request, version)
    return [row.error_code for topic in answer.responses for row in topic.partition_responses]


def described(client: RawClient, owner: Owner) -> Any:
    (told,) = client.ask(DescribeTransactionsRequest(transactional_ids=[owner[0]]), 0).transaction_states
    return told


def finish(client: RawClient, owner: Owner, *, commit: bool = True) -> str:
    assert client.ask(end(owner, commit=commit), END_V).error_code == 0
    return await_settled(client, owner.transactional_id)


def fetched(client: RawClient, topic: str, offset: int = 0, isolation: int = READ_COMMITTED, **fields: Any) -> Any:
    request = fetch_request({topic: [fetch_from(0, offset)]}, isolation_level=isolation, **fields)
    return client.ask(request, 12).responses[0].partitions[0]


def offset_of(client: RawClient, topic: str, timestamp: int, isolation: int = READ_COMMITTED) -> int:
    return int(client.ask(list_offsets(topic, timestamp, isolation), 7).topics[0].partitions[0].offset)


def commit_codes(client: RawClient, request: Any, version: int = COMMIT_V) -> set[int]:
    return {row.error_code for topic in client.ask(request, version).topics for row in topic.partitions}


def committed(client: RawClient, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    """Offset and error code of the first partition."""
    (told,) = client.ask(fetch(group, {topic: [0]}, 8, stable=stable), 8).groups
    row = told.topics[0].partitions[0]
    return row.committed_offset, row.error_code


# -- a producer begins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_empty_id_is_an_invalid_request(client: RawClient, transactional_id: str, version: int) -> None:
    answer = client.ask(init(""), version)
    assert (answer.error_code, answer.producer_id) == (_INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("timeout", [0, -1, 900_001, 2**31 - 1])
def test_timeout_that_is_not_positive_or_above_the_limit_is_refused(
    client: RawClient, transactional_id: str, version: int, timeout: int
) -> None:
    assert client.ask(init(transactional_id, timeout), version).error_code == _TIMEOUT
    (told,) = client.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
    assert told.error_code == _NOT_FOUND


@pytest.mark.parametrize("version", [3, 4, 5])
def test_older_epoch_may_not_begin_again(client: RawClient, owner: Owner, version: int) -> None:
    zombie = owner._replace(epoch=owner.epoch - 1)
    wanted = _FENCED if version >= INIT_FENCED_FROM else _EPOCH
    assert client.ask(init_again(zombie), version).error_code == wanted
    assert described(client, owner).producer_epoch == owner.epoch


@pytest.mark.parametrize("version", [3, 4, 5])
def test_older_epoch_does_not_abort_the_transaction_of_the_current_one(
    client: RawClient, owner: Owner, topic: Topic, version: int
) -> None:
    """Kafka lets it: any epoch of the right producer id ends what is open."""
    join(client, owner, topic.name)
    wanted = _FENCED if version >= INIT_FENCED_FROM else _EPOCH
    assert client.ask(init_again(owner._replace(epoch=owner.epoch - 1)), version).error_code == wanted
    assert described(client, owner).transaction_state == "Ongoing"


def test_who_asks_again_with_the_epoch_it_had_gets_the_same_answer(client: RawClient, owner: Owner) -> None:
    first, again = (client.ask(init_again(owner), INIT_V) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (0, owner.epoch + 1)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, first.producer_epoch)


# -- what the transaction touches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_wrong_owner_adds_nothing(client: RawClient, owner: Owner, topic: Topic, version: int) -> None:
    place = (topic.name, 0)
    fenced = _FENCED if version >= ADD_FENCED_FROM else _EPOCH
    for other, code in (
        (owner._replace(epoch=0), fenced), (owner._replace(epoch=9), fenced),
        (owner._replace(producer_id=owner.producer_id + 99), _MAPPING),
        (owner._replace(transactional_id="stranger"), _MAPPING),
        (owner._replace(transactional_id=""), _INVALID_REQUEST),
    ):  # fmt: skip
        assert added(client, other, {topic.name: [0]}, version) == {place: code}
    assert described(client, owner).transaction_state == "Empty"


@pytest.mark.parametrize("version", range(4))
def test_unknown_partition_keeps_the_others_out(
    client: RawClient, owner: Owner, new_topic: NewTopic, version: int
) -> None:
    name = new_topic(partitions=2).name
    assert added(client, owner, {name: [0, 1, 2], "nowhere": [0]}, version) == {
        (name, 0): _NOT_ATTEMPTED, (name, 1): _NOT_ATTEMPTED, (name, 2): _UNKNOWN_TOPIC, ("nowhere", 0): _UNKNOWN_TOPIC,
    }  # fmt: skip
    told = described(client, owner)
    assert (told.transaction_state, list(told.topics)) == ("Empty", [])


@pytest.mark.parametrize("version", range(5))
def test_wrong_owner_adds_no_group(client: RawClient, owner: Owner, group: str, version: int) -> None:
    fenced = _FENCED if version >= OFFSETS_FENCED_FROM else _EPOCH
    for other, code in (
        (owner._replace(epoch=0), fenced), (owner._replace(producer_id=owner.producer_id + 99), _MAPPING),
        (owner._replace(transactional_id="stranger"), _MAPPING),
    ):  # fmt: skip
        assert client.ask(add_offsets(other, group), version).error_code == code
    assert described(client, owner).transaction_state == "Empty"


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_wrong_owner_ends_nothing(client: RawClient, owner: Owner, topic: Topic, version: int) -> None:
    join(client, owner, topic.name)
    fenced = _FENCED if version >= END_FENCED_FROM else _EPOCH
    for other, code in (
        (owner._replace(epoch=0), fenced), (owner._replace(epoch=9), fenced),
        (owner._replace(producer_id=owner.producer_id + 99), _MAPPING),
        (owner._replace(transactional_id="stranger"), _MAPPING),
        (owner._replace(transactional_id=""), _INVALID_REQUEST),
    ):  # fmt: skip
        assert client.ask(end(other), version).error_code == code
    assert described(client, owner).transaction_state == "Ongoing"


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("result", [True, False])
def test_end_can_be_repeated_and_not_reversed(
    client: RawClient, owner: Owner, topic: Topic, version: int, result: bool
) -> None:
    assert client.ask(end(owner, commit=result), version).error_code == _STATE
    join(client, owner, topic.name)
    assert client.ask(end(owner, commit=result), version).error_code == 0
    state = await_settled(client, owner.transactional_id)
    assert client.ask(end(owner, commit=not result), version).error_code == _STATE
    assert client.ask(end(owner, commit=result), version).error_code == 0
    assert described(client, owner).transaction_state == state == ("CompleteCommit" if result else "CompleteAbort")


def test_repeated_end_writes_no_second_marker(client: RawClient, owner: Owner, topic: Topic) -> None:
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name)) == [0]
    finish(client, owner)
    finish(client, owner)
    assert offset_of(client, topic.name, -1) == 2


def test_next_request_waits_for_the_end_or_is_told_to_come_back(client: RawClient, owner: Owner, topic: Topic) -> None:
    """All three are sent before the first is answered."""
    join(client, owner, topic.name)
    asked = [
        (request.API_KEY, version, client.send(request, version))
        for request, version in ((end(owner), END_V), (end(owner), END_V), (add(owner, {topic.name: [0]}), ADD_V))
    ]
    first, second, third = (client.receive(*each) for each in asked)
    assert first.error_code == 0
    assert second.error_code in (0, _CONCURRENT)
    assert third.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code in (0, _CONCURRENT)
    await_settled(client, owner.transactional_id)


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 5, 7, 9, 10, 11])
def test_record_outside_of_the_transaction_is_not_written(
    client: RawClient, owner: Owner, new_topic: NewTopic, version: int
) -> None:
    inside, outside = new_topic().name, new_topic().name
    join(client, owner, inside)
    assert produced(client, write(owner, outside), version) == [_ABORTABLE if version >= 11 else _STATE]
    assert offset_of(client, outside, -1, 0) == 0
    assert produced(client, write(owner, inside), version) == [0]


@pytest.mark.parametrize("version", [3, 9, 11])
def test_record_of_a_wrong_owner_is_not_written(client: RawClient, owner: Owner, topic: Topic, version: int) -> None:
    join(client, owner, topic.name)
    for other, code in (
        (owner._replace(epoch=0), _EPOCH), (owner._replace(epoch=9), _EPOCH),
        (owner._replace(producer_id=owner.producer_id + 99), _MAPPING),
        (owner._replace(transactional_id="stranger"), _MAPPING),
    ):  # fmt: skip
        assert produced(client, write(other, topic.name), version) == [code]
    assert offset_of(client, topic.name, -1, 0) == 0


@pytest.mark.parametrize("version", [3, 9, 11])
def test_plain_record_of_a_producer_with_an_open_transaction_is_refused(
    client: RawClient, owner: Owner, topic: Topic, version: int
) -> None:
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name), version) == [0]
    plain = write(owner, topic.name, 1, transactional=False, transactional_id=None)
    assert produced(client, plain, version) == [_STATE]
    assert offset_of(client, topic.name, -1, 0) == 1


@pytest.mark.parametrize("version", [3, 9, 11])
def test_request_of_two_producers_is_refused_as_a_whole(
    client: RawClient, owner: Owner, new_topic: NewTopic, version: int
) -> None:
    one, two = new_topic().name, new_topic().name
    other = begin(client, f"{owner.transactional_id}-other")
    for each in (owner, other):
        join(client, each, one, two)
    rows = [
        (topic, 0, batch_of(b"v", producer_id=each.producer_id, producer_epoch=each.epoch, base_sequence=0,
                            transactional=True))
        for topic, each in ((one, owner), (two, other))
    ]  # fmt: skip
    request = produce_request(*rows, acks=-1, transactional_id=owner.transactional_id)
    assert produced(client, request, version) == [_MAPPING, _MAPPING]
    assert [offset_of(client, topic, -1, 0) for topic in (one, two)] == [0, 0]


def test_record_of_a_fenced_epoch_is_refused_although_the_partition_does_not_know_the_new_one(
    client: RawClient, owner: Owner, topic: Topic
) -> None:
    join(client, owner, topic.name)
    assert client.ask(init_again(owner), INIT_V).error_code == _CONCURRENT
    await_settled(client, owner.transactional_id)
    assert produced(client, write(owner, topic.name)) == [_EPOCH]


@pytest.mark.parametrize("commit", [False, True])
def test_sequence_of_an_ended_transaction_is_refused_so_that_the_client_raises_its_epoch(
    client: RawClient, owner: Owner, topic: Topic, commit: bool
) -> None:
    """Kafka acknowledges two records here without storing them, and answers one or three with a fatal error."""
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name, 0, b"a", b"b")) == [0]
    finish(client, owner, commit=commit)
    join(client, owner, topic.name)
    for values in ((b"c",), (b"c", b"d"), (b"c", b"d", b"e")):
        assert produced(client, write(owner, topic.name, 0, *values)) == [_UNKNOWN_PRODUCER]
    assert produced(client, write(owner, topic.name, 1, b"d")) == [_UNKNOWN_PRODUCER]
    assert client.ask(init_again(owner), INIT_V).error_code == _CONCURRENT
    await_settled(client, owner.transactional_id)
    again = client.ask(init_again(owner), INIT_V)
    assert (again.error_code, again.producer_epoch) == (0, owner.epoch + 1)
    later = owner._replace(epoch=again.producer_epoch)
    join(client, later, topic.name)
    assert produced(client, write(later, topic.name, 0, b"c")) == [0]
    finish(client, later)


def test_sequence_wraps_within_a_transaction(client: RawClient, owner: Owner, topic: Topic) -> None:
    last = 2**31 - 1
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name, last - 1, b"a", b"b")) == [0]
    assert produced(client, write(owner, topic.name, 1)) == [_OUT_OF_ORDER]
    assert produced(client, write(owner, topic.name, 0, b"c")) == [0]
    finish(client, owner)
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name, 1, b"d")) == [0]
    finish(client, owner)
    assert offset_of(client, topic.name, -1) == 6


def test_batch_may_hold_the_wrap_of_sequences(client: RawClient, owner: Owner, topic: Topic) -> None:
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name, 2**31 - 2, b"a", b"b", b"c", b"d")) == [0]
    assert produced(client, write(owner, topic.name, 2**31 - 2, b"a", b"b", b"c", b"d")) == [0]
    assert offset_of(client, topic.name, -1, 0) == 4
    assert produced(client, write(owner, topic.name, 2, b"e")) == [0]


# -- readers ----------------------------------------------------------------------------------------------------------


def test_reader_of_committed_records_is_given_what_is_stable_and_what_was_aborted(
    client: RawClient, owner: Owner, topic: Topic
) -> None:
    name = topic.name
    other = begin(client, f"{owner.transactional_id}-other")
    join(client, owner, name)
    join(client, other, name)
    assert produced(client, write(owner, name)) == [0]
    assert produced(client, write(other, name)) == [0]
    finish(client, other, commit=False)
    # The first transaction is open: nothing is stable.
    row = fetched(client, name)
    assert (row.last_stable_offset, row.high_watermark, row.records) == (0, 3, b"")
    assert (offset_of(client, name, -1), offset_of(client, name, -1, 0)) == (0, 3)
    finish(client, owner)
    row = fetched(client, name)
    assert (row.last_stable_offset, row.high_watermark) == (4, 4)
    assert [(each.producer_id, each.first_offset) for each in row.aborted_transactions] == [(other.producer_id, 1)]
    assert fetched(client, name, 3).aborted_transactions == ()
    assert fetched(client, name, isolation=0).aborted_transactions in (None, ())
    assert offset_of(client, name, -1) == 4


def test_parked_reader_wakes_up_when_the_transaction_ends(
    client: RawClient, ottla_broker: BrokerProcess, owner: Owner, topic: Topic
) -> None:
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name)) == [0]
    with RawClient(ottla_broker.bootstrap) as reader:
        # Longer than the client waits for any answer: the end of the wait cannot be what wakes the reader.
        request = fetch_request(
            {topic.name: [fetch_from(0, 0)]}, isolation_level=READ_COMMITTED, max_wait=600_000
        )  # fmt: skip
        sent = reader.send(request, 12)
        finish(client, owner)
        row = reader.receive(request.API_KEY, 12, sent).responses[0].partitions[0]
    assert row.last_stable_offset == 2
    assert len(row.records) > 0


def test_marker_is_a_control_batch_of_its_producer(client: RawClient, owner: Owner, topic: Topic) -> None:
    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name)) == [0]
    finish(client, owner, commit=False)
    data = bytes(fetched(client, topic.name, 1).records)
    header = read_header(data, 0)
    assert (header.base_offset, header.attributes, header.base_sequence) == (1, 0x30, -1)
    assert (header.producer_id, header.producer_epoch) == (owner.producer_id, owner.epoch)
    # Length 16, no attributes, deltas 0, key of 4 bytes: version 0 and type 0, value of 6: version 0 and epoch.
    assert data[61:72] == bytes.fromhex("2000000008000000000c00")


# -- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [True, False])
def test_offsets_count_when_their_transaction_is_committed(
    client: RawClient, owner: Owner, topic: Topic, group: str, result: bool
) -> None:
    assert client.ask(commit(group, {(topic.name, 0): 1}), 8).topics[0].partitions[0].error_code == 0
    assert client.ask(add_offsets(owner, group), OFFSETS_V).error_code == 0
    assert commit_codes(client, txn_commit(owner, group, {(topic.name, 0): 7})) == {0}
    assert committed(client, group, topic.name) == (1, 0)
    assert committed(client, group, topic.name, stable=True) == (-1, _UNSTABLE)
    finish(client, owner, commit=result)
    assert committed(client, group, topic.name, stable=True) == (7 if result else 1, 0)


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_that_is_not_in_the_transaction_are_refused(
    client: RawClient, owner: Owner, topic: Topic, group: str, version: int
) -> None:
    wanted = {_ABORTABLE} if version >= 4 else {_STATE}
    assert commit_codes(client, txn_commit(owner, group, {(topic.name, 0): 7}), version) == wanted
    assert committed(client, group, topic.name, stable=True) == (-1, 0)


@pytest.mark.parametrize("version", [3, 4])
def test_member_and_generation_of_offsets_are_checked(
    client: RawClient, owner: Owner, topic: Topic, group: str, version: int
) -> None:
    member, generation = become_stable(client, group)
    assert client.ask(add_offsets(owner, group), OFFSETS_V).error_code == 0
    offsets = {(topic.name, 0): 7}
    for given, name, code in (
        (generation + 1, member, _ILLEGAL_GENERATION), (generation - 1, member, _ILLEGAL_GENERATION),
        (generation, "stranger", _UNKNOWN_MEMBER),
    ):  # fmt: skip
        assert commit_codes(client, txn_commit(owner, group, offsets, given, name), version) == {code}
    assert committed(client, group, topic.name, stable=True) == (-1, 0)
    assert commit_codes(client, txn_commit(owner, group, offsets, generation, member), version) == {0}


def test_offsets_without_a_group_id_are_refused(client: RawClient, owner: Owner, topic: Topic, group: str) -> None:
    client.ask(add_offsets(owner, ""), OFFSETS_V)
    assert 0 not in commit_codes(client, txn_commit(owner, "", {(topic.name, 0): 7}))


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_never_refused_with_a_code_that_clients_of_groups_do_not_know(
    client: RawClient, owner: Owner, topic: Topic, group: str, version: int
) -> None:
    """Sent before the end is answered: the coordinator is busy, and librdkafka gives up at NOT_ENOUGH_REPLICAS."""
    assert client.ask(add_offsets(owner, group), OFFSETS_V).error_code == 0
    late = txn_commit(owner, group, {(topic.name, 0): 7})
    asked = [(each.API_KEY, of, client.send(each, of)) for each, of in ((end(owner), END_V), (late, version))]
    _, answer = (client.receive(*each) for each in asked)
    await_settled(client, owner.transactional_id)
    assert answer.topics[0].partitions[0].error_code != _NOT_ENOUGH_REPLICAS


# -- markers and questions --------------------------------------------------------------------------------------------


def test_marker_from_outside_ends_the_transaction_of_its_partition(
    client: RawClient, owner: Owner, topic: Topic
) -> None:
    def mark(who: Owner, **fields: Any) -> int:
        rows = client.ask(markers((who, False, {topic.name: [0]}), **fields), 1).markers[0].topics[0].partitions
        return int(rows[0].error_code)

    join(client, owner, topic.name)
    assert produced(client, write(owner, topic.name)) == [0]
    assert mark(owner._replace(epoch=0)) == _EPOCH
    assert fetched(client, topic.name).last_stable_offset == 0
    assert mark(owner, coordinator_epoch=5) == 0
    assert fetched(client, topic.name).last_stable_offset == 2
    assert mark(owner, coordinator_epoch=4) == _COORDINATOR_FENCED
    assert offset_of(client, topic.name, -1, 0) == 2


def test_marker_of_nobody_is_not_written(client: RawClient, topic: Topic) -> None:
    answer = client.ask(markers((Owner("", -1, -1), False, {topic.name: [0]})), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code != 0
    assert offset_of(client, topic.name, -1, 0) == 0
    (row,) = client.ask(producers_of({topic.name: [0]}), 0).topics[0].partitions
    assert list(row.active_producers) == []


def test_transactions_are_described(client: RawClient, owner: Owner, new_topic: NewTopic) -> None:
    name = new_topic(partitions=3).name
    assert set(added(client, owner, {name: [2, 0]}).values()) == {0}
    told = described(client, owner)
    assert (told.error_code, told.transaction_state, told.transaction_timeout) == (0, "Ongoing", 60_000)
    assert (told.producer_id, told.producer_epoch) == (owner.producer_id, owner.epoch)
    assert [(row.topic, list(row.partitions)) for row in told.topics] == [(name, [0, 2])]
    assert abs(told.transaction_start_time - time.time() * 1000) < 60_000
    assert described(client, Owner("stranger", 0, 0)).error_code == _NOT_FOUND


def test_transactions_are_listed_by_every_filter(client: RawClient, owner: Owner, topic: Topic) -> None:
    other = begin(client, f"{owner.transactional_id}-other")
    join(client, owner, topic.name)

    def listed(version: int = 2, **filters: Any) -> set[str]:
        answer = client.ask(ListTransactionsRequest(**filters), version)
        assert answer.error_code == 0
        return {row.transactional_id for row in answer.transaction_states} & {owner[0], other[0]}

    assert listed(0) == listed() == {owner[0], other[0]}
    assert listed(state_filters=["Ongoing"]) == {owner[0]}
    assert listed(producer_id_filters=[other.producer_id]) == {other[0]}
    assert listed(state_filters=["Ongoing"], producer_id_filters=[other.producer_id]) == set()
    assert listed(state_filters=["Ongoing"], duration_filter=3_600_000) == set()
    assert listed(transactional_id_pattern=".*-other") == {other[0]}
    answer = client.ask(ListTransactionsRequest(state_filters=["Nope", "Ongoing"]), 0)
    assert list(answer.unknown_state_filters) == ["Nope"]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty() -> Iterator[BrokerProcess]:
    """One that looks for late transactions all the time."""
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
        "transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3",
    }  # fmt: skip
    with BrokerProcess.start(settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            await_transactions(client)
            await_coordinator(client)
        yield broker
        assert "Traceback" not in broker.errors()


def test_transaction_that_takes_too_long_is_aborted_and_fenced_once(hasty: BrokerProcess) -> None:
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("slow")
        owner = begin(client, "slow", 1)
        join(client, owner, "slow")
        produced(client, write(owner, "slow"))
        deadline = time.monotonic() + 60
        while (told := described(client, owner)).transaction_state != "CompleteAbort":
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        assert told.producer_epoch == owner.epoch + 1
        assert produced(client, write(owner, "slow", 1)) == [_EPOCH]
        assert set(added(client, owner, {"slow": [0]}).values()) == {_FENCED}
        assert client.ask(end(owner), END_V).error_code == _FENCED
        assert client.ask(end(owner), 1).error_code == _EPOCH
        assert fetched(client, "slow").last_stable_offset == fetched(client, "slow").high_watermark
        again = begin(client, "slow")
        assert (again.producer_id, again.epoch) == (owner.producer_id, owner.epoch + 2)


@pytest.mark.skipif(not LONG, reason="32,766 requests: make campaign NAME=transactions")
def test_producer_gets_a_new_id_when_its_epochs_are_used_up(hasty: BrokerProcess) -> None:
    with RawClient(hasty.bootstrap) as client:
        owner = begin(client, "worn")
        client.create_topic("worn")
        epoch = owner.epoch
        with ExitStack() as stack:
            # Many at once: nothing is open, so each takes the next epoch. A connection is served one by one.
            crowd = [stack.enter_context(RawClient(hasty.bootstrap)) for _ in range(50)]
            while epoch < 32766:
                request = init("worn")
                sent = [(each, each.send(request, INIT_V)) for each in crowd[: 32766 - epoch]]
                for each, correlation_id in sent:
                    answer = each.receive(request.API_KEY, INIT_V, correlation_id)
                    assert answer.error_code in (0, _CONCURRENT)
                    assert answer.error_code or answer.producer_id == owner.producer_id
                    epoch = max(epoch, answer.producer_epoch)
        last = owner._replace(epoch=32766)
        join(client, last, "worn")
        assert produced(client, write(last, "worn")) == [0]
        # The one epoch that is left fences the last owner; the next gets a new id.
        assert client.ask(init("worn"), INIT_V).error_code == _CONCURRENT
        answer = until_free(client, lambda: client.ask(init("worn"), INIT_V))
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        assert answer.producer_id != owner.producer_id
        assert client.ask(end(last), END_V).error_code == _MAPPING
        row = fetched(client, "worn")
        assert [each.producer_id for each in row.aborted_transactions] == [owner.producer_id]


def test_thousands_of_open_transactions_have_room(hasty: BrokerProcess) -> None:
    count = 10_000 if LONG else 2_000
    with RawClient(hasty.bootstrap) as client:
        client.create_topic("crowded")
    before = _memory(hasty)
    requests = [init(f"crowd-{number}", 900_000) for number in range(count)]
    with _Crowd(hasty) as crowd:
        owners = [
            Owner(str(request.transactional_id), answer.producer_id, answer.producer_epoch)
            for request, answer in zip(requests, crowd.ask(requests, INIT_V), strict=True)
        ]
        assert len({owner.producer_id for owner in owners} - {-1}) == count
        crowd.ask([add(owner, {"crowded": [0]}) for owner in owners], ADD_V)
        crowd.ask([write(owner, "crowded") for owner in owners], PRODUCE_V)
    used = _memory(hasty) - before
    print(f"{used // count} bytes for each open transaction")
    assert used < count * 10_000
    hasty.restart()
    with RawClient(hasty.bootstrap) as client:
        await_transactions(client)
        row = fetched(client, "crowded")
        assert (row.last_stable_offset, row.high_watermark) == (0, count)
        with _Crowd(hasty) as crowd:
            assert {answer.error_code for answer in crowd.ask([end(owner) for owner in owners], END_V)} == {0}
        for owner in owners:
            assert await_settled(client, owner.transactional_id) == "CompleteCommit"
        row = fetched(client, "crowded", count)
        assert row.last_stable_offset == row.high_watermark == 2 * count


class _Crowd:
    """Many connections: a broker serves each one by one. The same request number always takes the same one."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._clients = [RawClient(broker.bootstrap) for _ in range(50)]

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    def ask(self, requests: list[Any], version: int) -> list[Any]:
        answers: list[Any] = []
        width = len(self._clients)
        for start in range(0, len(requests), width):
            part = list(zip(self._clients, requests[start : start + width], strict=False))
            sent = [(client, request.API_KEY, client.send(request, version)) for client, request in part]
            answers += [client.receive(api_key, version, number) for client, api_key, number in sent]
        return answers


def _memory(broker: BrokerProcess) -> int:
    """Bytes of the process that are not shared with files."""
    with open(f"/proc/{broker.pid}/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


# -- a broker that comes back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_every_state_survives_a_restart(hasty: BrokerProcess, how: str) -> None:
    topic = f"states-{how}"
    with RawClient(hasty.bootstrap) as client:
        client.create_topic(topic)
        owners = {state: begin(client, f"{how}-{state}") for state in ("Empty", "Ongoing", "Commit", "Abort", "Late")}
        for state, owner in owners.items():
            if state != "Empty":
                join(client, owner, topic)
                assert produced(client, write(owner, topic)) == [0]
        finish(client, owners["Commit"])
        finish(client, owners["Abort"], commit=False)
        # The broker ends while the markers of this one may be on their way.
        client.send(end(owners["Late"]), END_V)
    getattr(hasty, how)()
    hasty.launch()
    with RawClient(hasty.bootstrap) as client:
        await_transactions(client)
        found = {state: await_settled(client, owner.transactional_id) for state, owner in owners.items()}
        assert found.pop("Late") in ("CompleteCommit", "Ongoing")
        assert found == {
            "Empty": "Empty", "Ongoing": "Ongoing", "Commit": "CompleteCommit", "Abort": "CompleteAbort",
        }  # fmt: skip
        for state, owner in owners.items():
            assert described(client, owner).producer_epoch == owner.epoch, state
        # Who was in the midst of it goes on, and is still alone.
        assert produced(client, write(owners["Ongoing"], topic, 1)) == [0]
        until_free(client, lambda: client.ask(end(owners["Late"]), END_V))
        finish(client, owners["Ongoing"])
        row = fetched(client, topic)
        assert row.last_stable_offset == row.high_watermark
        assert [each.producer_id for each in row.aborted_transactions] == [owners["Abort"].producer_id]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_outcome_that_was_answered_is_completed_after_a_restart(hasty: BrokerProcess, how: str) -> None:
    """Many partitions, and the broker ends as soon as it has answered: some markers may be missing."""
    topic = f"outcome-{how}"
    with RawClient(hasty.bootstrap) as client:
        client.create_topic(topic, 50)
        owner = begin(client, f"outcome-{how}")
        assert set(added(client, owner, {topic: range(50)}).values()) == {0}
        rows = [
            (topic, number, batch_of(b"v", producer_id=owner.producer_id, producer_epoch=owner.epoch, base_sequence=0,
                                     transactional=True))
            for number in range(50)
        ]  # fmt: skip
        answer = client.ask(produce_request(*rows, acks=-1, transactional_id=owner.transactional_id), PRODUCE_V)
        assert {row.error_code for each in answer.responses for row in each.partition_responses} == {0}
        assert client.ask(end(owner), END_V).error_code == 0
        getattr(hasty, how)()
    hasty.launch()
    with RawClient(hasty.bootstrap) as client:
        await_transactions(client)
        assert await_settled(client, owner.transactional_id) == "CompleteCommit"
        request = fetch_request(
            {topic: [fetch_from(number, 0) for number in range(50)]}, isolation_level=READ_COMMITTED
        )  # fmt: skip
        rows = client.ask(request, 12).responses[0].partitions
        assert {row.last_stable_offset == row.high_watermark >= 2 for row in rows} == {True}
        assert {tuple(row.aborted_transactions) for row in rows} == {()}


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_pending_offsets_survive_a_restart(hasty: BrokerProcess, how: str) -> None:
    group = f"pending-{how}"
    with RawClient(hasty.bootstrap) as client:
        client.create_topic(group)
        owner = begin(client, group)
        assert client.ask(add_offsets(owner, group), OFFSETS_V).error_code == 0
        assert commit_codes(client, txn_commit(owner, group, {(group, 0): 7})) == {0}
    getattr(hasty, how)()
    hasty.launch()
    with RawClient(hasty.bootstrap) as client:
        await_transactions(client)
        await_coordinator(client)
        assert committed(client, group, group, stable=True) == (-1, _UNSTABLE)
        finish(client, owner)
        assert committed(client, group, group, stable=True) == (7, 0)


def test_group_joins_before_anybody_looked_for_its_coordinator(tmp_path: Path) -> None:
    """A new broker has no topic of offsets: it is made when somebody looks for a group. kafkajs does so afterwards."""
    with BrokerProcess.start(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        await_transactions(client)
        client.create_topic("read")
        owner = begin(client, "first")
        code = until_free(client, lambda: client.ask(add_offsets(owner, "g"), OFFSETS_V)).error_code
        await_coordinator(client)
        if code:
            assert code in _COORDINATOR_TROUBLE
            assert client.ask(add_offsets(owner, "g"), OFFSETS_V).error_code == 0
        assert commit_codes(client, txn_commit(owner, "g", {("read", 0): 7})) == {0}
        finish(client, owner)
        assert committed(client, "g", "read", stable=True) == (7, 0)
