"""Transactional ids: who may do what, and what becomes of a transaction. Codes are those of Apache Kafka 4.3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinators.transaction_fixtures import (
    NOBODY,
    OFFSETS,
    T0,
    T1,
    TIMEOUT_MS,
    U0,
    NotStored,
    TransactionFixture,
    codes_of,
)

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.transactions.records import (
    Ending,
    TransactionLogKey,
    TransactionLogValue,
    TransactionRecord,
    TransactionState,
)
from ottla.broker.transactions.replies import added_partitions, described_transaction, read_filter
from ottla.broker.transactions.transitions import EPOCH_LAST_OF_CLIENTS, unknown_states, write_error
from ottla.model.errors import ErrorCode, Refused
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_transactions import ListTransactionsRequest

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
OLD_FENCED = ErrorCode.INVALID_PRODUCER_EPOCH
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
BAD_STATE = ErrorCode.INVALID_TXN_STATE

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

LAST = EPOCH_LAST_OF_CLIENTS


@pytest.fixture
def fixture() -> TransactionFixture:
    return TransactionFixture()


def put(fixture: TransactionFixture, epoch: int, state: TransactionState = EMPTY, **fields: object) -> Producer:
    """An id that has come far."""
    value = TransactionLogValue(
        producer_id=7, producer_epoch=epoch, timeout_ms=TIMEOUT_MS, state=state, last_update_ms=fixture.now_ms
    )
    fixture.shard.replay(TransactionRecord(TransactionLogKey("x"), replace(value, **fields)))  # type: ignore[arg-type]
    return Producer(7, epoch)


def committed(fixture: TransactionFixture, producer: Producer, *, version: int = 3) -> Producer:
    """After a whole transaction."""
    if version < 5:
        fixture.add(producer)
    else:
        fixture.produce(producer)
    answer = fixture.end(producer, version=version, fresh=2000)
    assert answer.error_code == NONE
    fixture.deliver()
    return producer if version < 5 else Producer(answer.producer_id, answer.producer_epoch)


# -- InitProducerId ---------------------------------------------------------------------------------------------------


def test_new_id_gets_the_fresh_producer_id_and_epoch_0(fixture: TransactionFixture) -> None:
    answer = fixture.init(fresh=55)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 55, 0)


def test_next_producer_of_an_id_gets_the_next_epoch(fixture: TransactionFixture) -> None:
    first = fixture.begin()
    assert fixture.begin() == Producer(first.producer_id, 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_beyond_what_the_broker_allows_is_refused(fixture: TransactionFixture, timeout_ms: int) -> None:
    answer = fixture.init(timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_empty_id_is_no_id(fixture: TransactionFixture) -> None:
    assert fixture.init("").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("expected", [Producer(5, -1), Producer(-1, 5)])
def test_producer_id_and_epoch_come_together(fixture: TransactionFixture, expected: Producer) -> None:
    assert fixture.init(expected=expected).error_code == ErrorCode.INVALID_REQUEST


def test_two_phase_commit_is_refused_as_where_it_is_switched_off(fixture: TransactionFixture) -> None:
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert fixture.init(version=6, enable2_pc=True).error_code == refused
    assert fixture.init(version=6, keep_prepared_txn=True).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_new_producer_aborts_what_the_one_before_left_open(fixture: TransactionFixture) -> None:
    old = fixture.begin()
    fixture.add(old, T0, T1)
    assert fixture.init().error_code == CONCURRENT
    (delivery,) = fixture.deliveries
    assert (delivery.producer, delivery.commit) == (Producer(old.producer_id, 1), False)
    assert (delivery.partitions, delivery.coordinator_epoch) == ((T0, T1), 5)
    assert fixture.init().error_code == CONCURRENT, "the markers are under way"
    fixture.deliver()
    answer = fixture.init()
    assert (answer.error_code, answer.producer_epoch) == (NONE, 2)


def test_producer_that_goes_on_after_an_error_gets_the_next_epoch(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.begin(expected=producer) == Producer(producer.producer_id, 1)


def test_retry_of_that_gets_the_same_answer(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    again = [fixture.begin(expected=producer) for _ in range(3)]
    assert again == [Producer(producer.producer_id, 1)] * 3


def test_retry_is_fenced_once_somebody_else_came(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.begin(expected=producer)
    fixture.begin()
    assert fixture.init(expected=producer).error_code == FENCED


@pytest.mark.parametrize(("version", "code"), [(3, OLD_FENCED), (4, FENCED), (6, FENCED)])
def test_old_clients_know_the_fence_under_its_old_name(
    fixture: TransactionFixture, version: int, code: ErrorCode
) -> None:
    first = fixture.begin()
    fixture.begin()
    fixture.begin()
    assert fixture.init(expected=first, version=version).error_code == code


def test_wrong_producer_id_is_fenced(fixture: TransactionFixture) -> None:
    fixture.begin()
    assert fixture.init(expected=Producer(4, 0)).error_code == FENCED


def test_producer_whose_id_expired_is_let_in(fixture: TransactionFixture) -> None:
    answer = fixture.init(expected=Producer(4, 9), fresh=55)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 55, 0)


def test_fenced_producer_cannot_abort_the_transaction_of_the_current_one(fixture: TransactionFixture) -> None:
    """Kafka aborts it: any epoch of the right producer id will do."""
    fenced = fixture.begin()
    current = fixture.begin()
    fixture.add(current)
    assert fixture.init(expected=fenced).error_code == FENCED
    assert fixture.state() == ONGOING


def test_producer_may_start_over_from_its_own_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    assert fixture.init(expected=producer).error_code == CONCURRENT
    fixture.deliver()
    assert fixture.begin(expected=producer) == Producer(producer.producer_id, 1)


def test_delayed_retry_does_not_abort_what_was_begun_since(fixture: TransactionFixture) -> None:
    first = fixture.begin()
    second = fixture.begin(expected=first)
    fixture.add(second)
    assert fixture.init(expected=first).error_code == FENCED
    assert fixture.state() == ONGOING


@pytest.mark.parametrize("is_known", [False, True])
def test_exhausted_epoch_brings_a_new_producer_id(fixture: TransactionFixture, is_known: bool) -> None:
    old = put(fixture, LAST)
    answer = fixture.init(expected=old if is_known else NOBODY, fresh=55)
    assert (answer.producer_id, answer.producer_epoch) == (55, 0)
    assert fixture.value().previous_producer_id == 7


def test_retry_after_exhaustion_gets_the_same_producer_id(fixture: TransactionFixture) -> None:
    old = put(fixture, LAST)
    first = fixture.init(expected=old, fresh=55)
    again = fixture.init(expected=old, fresh=56)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, first.producer_id, 0)


def test_fence_takes_the_last_epoch_and_the_next_producer_a_new_id(fixture: TransactionFixture) -> None:
    put(fixture, LAST, ONGOING, partitions=(T0,), start_ms=fixture.now_ms)
    assert fixture.init().error_code == CONCURRENT
    assert fixture.deliveries[0].producer == Producer(7, 32767)
    fixture.deliver()
    answer = fixture.init(fresh=55)
    assert (answer.producer_id, answer.producer_epoch) == (55, 0)


def test_nobody_gets_the_last_epoch(fixture: TransactionFixture) -> None:
    """Not even who started over with the last but one."""
    old = put(fixture, LAST, ONGOING, partitions=(T0,), start_ms=fixture.now_ms)
    assert fixture.init(expected=old).error_code == CONCURRENT
    fixture.deliver()
    assert fixture.owner() == Producer(7, 32767)
    answer = fixture.init(expected=old, fresh=55)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 55, 0)


def test_fresh_producer_id_is_asked_for_when_it_is_needed(fixture: TransactionFixture) -> None:
    assert fixture.shard.needs_producer_id("x")
    put(fixture, LAST - 1)
    assert not fixture.shard.needs_producer_id("x")
    put(fixture, LAST)
    assert fixture.shard.needs_producer_id("x")


# -- AddPartitionsToTxn, AddOffsetsToTxn ------------------------------------------------------------------------------


def test_first_partition_begins_the_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.now_ms += 10
    assert fixture.add(producer, T1, T0) == {T0: NONE, T1: NONE}
    assert (fixture.state(), fixture.value().partitions, fixture.value().start_ms) == (
        ONGOING,
        (T0, T1),
        fixture.now_ms,
    )


def test_more_partitions_join_the_same_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0)
    started = fixture.value().start_ms
    fixture.now_ms += 10
    fixture.add(producer, U0)
    assert (fixture.value().partitions, fixture.value().start_ms) == ((T0, U0), started)


def test_partition_that_is_there_costs_no_record(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0, T1)
    before = len(fixture.log)
    assert fixture.add(producer, T0) == {T0: NONE}
    assert len(fixture.log) == before


def test_one_unknown_partition_keeps_out_all(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    gone, unknown = TopicPartition("t", 2), TopicPartition("nope", 0)
    assert fixture.add(producer, T0, gone, unknown) == {
        T0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert fixture.state() == EMPTY


def test_topics_of_the_broker_are_not_for_clients(fixture: TransactionFixture) -> None:
    """A marker would end up in the coordinator's own log."""
    producer = fixture.begin()
    own = TopicPartition("__transaction_state", 3)
    assert fixture.add(producer, T0, own, OFFSETS) == {
        T0: ErrorCode.OPERATION_NOT_ATTEMPTED,
        own: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert fixture.state() == EMPTY


@pytest.mark.parametrize(("version", "code"), [(0, OLD_FENCED), (1, OLD_FENCED), (2, FENCED), (3, FENCED)])
def test_fenced_producer_adds_nothing(fixture: TransactionFixture, version: int, code: ErrorCode) -> None:
    fenced = fixture.begin()
    fixture.begin()
    assert fixture.add(fenced, version=version) == {T0: code}
    assert fixture.add_offsets(fenced, version=version) == code
    assert fixture.state() == EMPTY


def test_only_the_producer_id_of_the_transactional_id_adds(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.add(Producer(3, producer.epoch)) == {T0: MAPPING}
    assert fixture.add(producer, name="other") == {T0: MAPPING}
    assert fixture.add(producer, name="") == {T0: ErrorCode.INVALID_REQUEST}


def test_nothing_is_added_while_markers_are_under_way(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer)
    assert fixture.add(producer, T1) == {T1: CONCURRENT}
    assert fixture.add_offsets(producer) == CONCURRENT
    fixture.deliver()
    assert fixture.add(producer, T1) == {T1: NONE}


def test_offsets_of_a_group_belong_to_the_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.add_offsets(producer) == NONE
    fixture.end(producer)
    assert fixture.deliveries[0].partitions == (OFFSETS,)


def test_broker_form_answers_for_one_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    outcome = fixture.shard.add_partitions_of("x", producer, [T0, U0], fixture.moment, verify_only=False)
    reply = added_partitions("x", fixture.take("x", outcome))
    (result,) = reply.results_by_transaction
    assert (result.transactional_id, codes_of(result.topic_results)) == ("x", {T0: NONE, U0: NONE})
    assert fixture.value().client_transaction_version == 2


def test_broker_form_may_only_look(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0)
    outcome = fixture.shard.add_partitions_of("x", producer, [T0, T1], fixture.moment, verify_only=True)
    codes = fixture.take("x", outcome)
    assert codes == {T0: NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert outcome.records == []


# -- Produce ----------------------------------------------------------------------------------------------------------


def test_partition_is_verified_while_its_transaction_is_open(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0)
    assert fixture.shard.verify("x", producer, T0) == NONE
    assert fixture.shard.verify("x", producer, T1) == ErrorCode.TRANSACTION_ABORTABLE
    assert fixture.shard.verify("x", Producer(producer.producer_id, 9), T0) == FENCED
    assert fixture.shard.verify("x", Producer(9, 0), T0) == MAPPING
    assert fixture.shard.verify("y", producer, T0) == MAPPING
    fixture.end(producer)
    assert fixture.shard.verify("x", producer, T0) == CONCURRENT
    fixture.deliver()
    assert fixture.shard.verify("x", producer, T0) == ErrorCode.TRANSACTION_ABORTABLE


def test_new_clients_add_by_writing(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.produce(producer, T0) == {T0: NONE}
    assert (fixture.state(), fixture.value().client_transaction_version) == (ONGOING, 2)


def test_old_clients_do_not(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.shard.verify("x", producer, T0) == ErrorCode.TRANSACTION_ABORTABLE
    assert fixture.state() == EMPTY


@pytest.mark.parametrize(
    ("code", "knows_abortable", "adds", "told"),
    [
        (FENCED, True, True, OLD_FENCED),
        (MAPPING, False, False, MAPPING),
        (CONCURRENT, True, False, ErrorCode.NOT_ENOUGH_REPLICAS),
        (CONCURRENT, True, True, CONCURRENT),
        (ErrorCode.NOT_COORDINATOR, True, True, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.TRANSACTION_ABORTABLE, False, False, BAD_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, True, False, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, True, True, ErrorCode.NOT_ENOUGH_REPLICAS),
        (NONE, False, False, NONE),
    ],
)
def test_write_is_told_what_its_version_knows(
    code: ErrorCode, knows_abortable: bool, adds: bool, told: ErrorCode
) -> None:
    assert write_error(code, knows_abortable=knows_abortable, adds=adds) == told


# -- EndTxn with one epoch for many transactions ----------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_ends_with_markers_of_its_epoch(fixture: TransactionFixture, commit: bool) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0, U0)
    answer = fixture.end(producer, commit=commit)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, -1, -1)
    assert fixture.state() == (PREPARE_COMMIT if commit else PREPARE_ABORT)
    (delivery,) = fixture.deliveries
    assert (delivery.producer, delivery.commit, delivery.partitions) == (producer, commit, (T0, U0))
    fixture.deliver()
    assert fixture.state() == (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert (fixture.owner(), fixture.value().partitions) == (producer, ())


@pytest.mark.parametrize("commit", [True, False])
def test_retry_waits_for_the_markers_and_then_succeeds(fixture: TransactionFixture, commit: bool) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer, commit=commit)
    assert fixture.end(producer, commit=commit).error_code == CONCURRENT
    fixture.deliver()
    assert fixture.end(producer, commit=commit).error_code == NONE
    assert fixture.end(producer, commit=not commit).error_code == BAD_STATE


def test_nothing_can_be_ended_where_nothing_was_begun(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    assert fixture.end(producer, commit=True).error_code == BAD_STATE
    assert fixture.end(producer, commit=False).error_code == BAD_STATE


@pytest.mark.parametrize(("version", "code"), [(1, OLD_FENCED), (2, FENCED), (4, FENCED), (5, FENCED)])
def test_fenced_producer_ends_nothing(fixture: TransactionFixture, version: int, code: ErrorCode) -> None:
    fenced = fixture.begin()
    fixture.add(fixture.begin())
    assert fixture.end(fenced, version=version).error_code == code
    assert fixture.state() == ONGOING


@pytest.mark.parametrize("version", [3, 5])
def test_only_the_producer_id_of_the_transactional_id_ends(fixture: TransactionFixture, version: int) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    assert fixture.end(Producer(3, producer.epoch), version=version).error_code == MAPPING
    assert fixture.end(producer, name="y", version=version).error_code == MAPPING
    assert fixture.end(producer, name="", version=version).error_code == ErrorCode.INVALID_REQUEST


def test_delayed_end_from_an_older_connection_does_not_end_the_next_transaction(fixture: TransactionFixture) -> None:
    """KAFKA-17754: the client gave up on connection 1 and ended its transaction through connection 2."""
    producer = fixture.begin()
    fixture.add(producer, sent=(1, 10))
    delayed = (1, 11)
    assert fixture.end(producer, sent=(2, 12)).error_code == NONE
    fixture.deliver()
    fixture.add(producer, sent=(2, 13))
    assert fixture.end(producer, sent=delayed).error_code == CONCURRENT
    assert fixture.end(producer, commit=False, sent=delayed).error_code == CONCURRENT
    assert fixture.state() == ONGOING
    assert fixture.end(producer, sent=(2, 14)).error_code == NONE


def test_duplicate_on_the_same_connection_does_not_end_the_next_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, sent=(1, 10))
    fixture.end(producer, sent=(1, 11))
    fixture.deliver()
    fixture.add(producer, sent=(1, 12))
    assert fixture.end(producer, sent=(1, 11)).error_code == CONCURRENT
    assert fixture.state() == ONGOING


def test_delayed_add_does_not_begin_a_transaction(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, sent=(2, 1))
    fixture.end(producer, sent=(2, 2))
    fixture.deliver()
    assert fixture.add(producer, T1, sent=(1, 5)) == {T1: CONCURRENT}
    assert fixture.add_offsets(producer, sent=(1, 6)) == CONCURRENT
    assert fixture.state() == COMPLETE_COMMIT


def test_client_may_end_through_a_new_connection(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, sent=(1, 10))
    assert fixture.end(producer, sent=(2, 0)).error_code == NONE


def test_client_may_use_one_correlation_id_for_all(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    for _ in range(3):
        assert fixture.add(producer, sent=(1, 0)) == {T0: NONE}
        assert fixture.end(producer, sent=(1, 0)).error_code == NONE
        fixture.deliver()


def test_correlation_ids_may_wrap(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, sent=(1, 2**31 - 1))
    assert fixture.end(producer, sent=(1, -(2**31))).error_code == NONE


def test_next_producer_may_have_an_older_connection(fixture: TransactionFixture) -> None:
    """Connections of different clients say nothing of each other."""
    fixture.add(fixture.begin(), sent=(9, 1))
    producer = fixture.begin()
    assert fixture.add(producer, sent=(3, 1)) == {T0: NONE}


def test_delivery_of_an_earlier_life_is_not_awaited(fixture: TransactionFixture) -> None:
    """A marker that it tried again could end the client's next transaction, which has the same epoch."""
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer)
    (earlier,) = fixture.deliveries
    assert fixture.shard.awaits_delivery(earlier)
    fixture.restart()
    (current,) = fixture.deliveries
    assert (fixture.shard.awaits_delivery(earlier), fixture.shard.awaits_delivery(current)) == (False, True)
    fixture.deliver()
    assert not fixture.shard.awaits_delivery(current)


# -- EndTxn with an epoch for every transaction -----------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_every_end_gives_the_next_epoch(fixture: TransactionFixture, commit: bool) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    answer = fixture.end(producer, commit=commit, version=5)
    following = Producer(producer.producer_id, 1)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, *following)
    (delivery,) = fixture.deliveries
    assert delivery.producer == following, "above every record of the transaction"
    assert fixture.produce(following) == {T0: CONCURRENT}
    fixture.deliver()
    assert fixture.produce(following) == {T0: NONE}


@pytest.mark.parametrize("commit", [True, False])
def test_retry_of_an_end_gets_the_same_epoch(fixture: TransactionFixture, commit: bool) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    fixture.end(producer, commit=commit, version=5)
    assert fixture.end(producer, commit=commit, version=5).error_code == CONCURRENT
    fixture.deliver()
    for _ in range(2):
        again = fixture.end(producer, commit=commit, version=5)
        assert (again.error_code, again.producer_epoch) == (NONE, 1)
    assert fixture.end(producer, commit=not commit, version=5).error_code == BAD_STATE


def test_retry_is_known_after_a_restart(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    fixture.end(producer, version=5)
    fixture.restart()
    fixture.deliver()
    assert fixture.end(producer, version=5).producer_epoch == 1


def test_delayed_end_of_an_epoch_that_is_over_is_fenced(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    following = committed(fixture, producer, version=5)
    fixture.produce(following)
    assert fixture.end(producer, version=5).error_code == FENCED
    assert fixture.state() == ONGOING


def test_epoch_before_the_current_one_did_not_end_what_an_old_client_ended(fixture: TransactionFixture) -> None:
    first = fixture.begin()
    committed(fixture, fixture.begin(expected=first))
    assert fixture.end(first, version=5).error_code == FENCED


@pytest.mark.parametrize("commit", [False, True])
def test_next_transaction_cannot_be_ended_before_all_markers_are_durable(
    fixture: TransactionFixture, commit: bool
) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    answer = fixture.end(producer, version=5)
    following = Producer(answer.producer_id, answer.producer_epoch)
    assert fixture.end(following, commit=commit, version=5).error_code == CONCURRENT
    fixture.deliver()
    assert fixture.end(following, commit=commit, version=5).error_code == (BAD_STATE if commit else NONE)


@pytest.mark.parametrize("before", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_empty_transaction_may_be_aborted_but_not_committed(fixture: TransactionFixture, before: str) -> None:
    producer = fixture.begin()
    if before != "Empty":
        fixture.produce(producer)
        answer = fixture.end(producer, commit=before == "CompleteCommit", version=5)
        producer = Producer(answer.producer_id, answer.producer_epoch)
        fixture.deliver()
    assert fixture.end(producer, commit=True, version=5).error_code == BAD_STATE
    answer = fixture.end(producer, commit=False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (NONE, producer.epoch + 1)
    assert (fixture.state(), fixture.deliveries) == (COMPLETE_ABORT, []), "there is nothing to mark"
    assert fixture.end(producer, commit=False, version=5).producer_epoch == producer.epoch + 1


def test_last_epoch_of_a_producer_id_ends_with_a_new_producer_id(fixture: TransactionFixture) -> None:
    producer = put(fixture, LAST)
    fixture.produce(producer)
    answer = fixture.end(producer, version=5, fresh=55)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 55, 0)
    assert fixture.deliveries[0].producer == Producer(7, 32767)
    assert fixture.end(producer, version=5, fresh=56).error_code == CONCURRENT
    fixture.deliver()
    assert fixture.owner() == Producer(55, 0)
    again = fixture.end(producer, version=5, fresh=57)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, 55, 0)
    assert fixture.produce(Producer(55, 0)) == {T0: NONE}
    assert fixture.end(producer, version=5, fresh=58).error_code == MAPPING


def test_producer_that_missed_its_new_producer_id_may_ask_for_it(fixture: TransactionFixture) -> None:
    producer = put(fixture, LAST)
    fixture.produce(producer)
    fixture.end(producer, version=5, fresh=55)
    fixture.deliver()
    answer = fixture.init(expected=producer, fresh=56)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, 55, 0)


def test_end_is_retried_when_no_producer_id_could_be_had(fixture: TransactionFixture) -> None:
    producer = put(fixture, LAST)
    fixture.produce(producer)
    assert fixture.end(producer, version=5).error_code == CONCURRENT
    assert fixture.state() == ONGOING


def test_fenced_producer_does_not_learn_the_epoch_of_the_one_who_fenced_it(fixture: TransactionFixture) -> None:
    """Kafka tells it, as it looks like a retry of its own abort."""
    fenced = fixture.begin()
    fixture.produce(fenced)
    assert fixture.init().error_code == CONCURRENT
    assert fixture.end(fenced, commit=False, version=5).error_code == FENCED
    fixture.deliver()
    assert fixture.end(fenced, commit=False, version=5).error_code == FENCED


# -- deliveries -------------------------------------------------------------------------------------------------------


def test_delivery_that_is_over_completes_nothing(fixture: TransactionFixture) -> None:
    """The next one looks the same: same producer, same partitions, same outcome."""
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer)
    (first,) = fixture.deliveries
    fixture.deliver()
    fixture.add(producer)
    fixture.end(producer)
    assert fixture.deliveries == [first]
    assert fixture.shard.delivered(first, fixture.moment).records == []
    assert fixture.state() == PREPARE_COMMIT
    fixture.deliver()
    assert fixture.state() == COMPLETE_COMMIT


def test_markers_go_out_again_after_a_restart(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0, T1)
    fixture.end(producer, commit=False)
    (before,) = fixture.deliveries
    fixture.restart()
    (again,) = fixture.deliveries
    assert again == replace(before, coordinator_epoch=6)
    assert fixture.shard.delivered(before, fixture.moment).records == []
    fixture.deliver()
    assert fixture.state() == COMPLETE_ABORT


def test_prepared_transaction_without_partitions_is_complete_after_a_restart(fixture: TransactionFixture) -> None:
    """Kafka writes one when an empty transaction is aborted."""
    put(fixture, 4, PREPARE_ABORT, start_ms=fixture.now_ms, client_transaction_version=2)
    fixture.shard.resume(fixture.moment)
    fixture.take("x", fixture.shard.after_load(fixture.moment))
    assert (fixture.state(), fixture.deliveries) == (COMPLETE_ABORT, [])


def test_completion_that_was_not_stored_is_tried_again(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer)
    fixture.log_is_broken = True
    fixture.deliver()
    assert fixture.state() == PREPARE_COMMIT
    fixture.log_is_broken = False
    fixture.pass_time(1)
    assert fixture.state() == COMPLETE_COMMIT


def test_end_that_was_not_stored_did_not_happen(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    fixture.log_is_broken = True
    fixture.pass_time(TIMEOUT_MS + 1)
    fixture.log_is_broken = False
    assert (fixture.state(), fixture.deliveries) == (ONGOING, [])
    assert fixture.end(producer, version=5).error_code == NONE
    fixture.deliver()
    assert fixture.state() == COMPLETE_COMMIT


def test_init_that_was_not_stored_fences_nobody(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    committed(fixture, producer, version=5)
    fixture.log_is_broken = True
    with pytest.raises(NotStored):
        fixture.init()
    assert fixture.end(producer, version=5).error_code == NONE, "the retry of what was served before"


def test_replay_of_the_log_is_what_was(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    following = committed(fixture, producer, version=5)
    fixture.produce(following, T0, U0)
    fixture.begin("y")
    before = fixture.shard.durable()
    fixture.restart()
    assert fixture.shard.durable() == before
    assert fixture.shard.retire(ErrorCode.NOT_COORDINATOR).replies == []


# -- time -------------------------------------------------------------------------------------------------------------


def test_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer)
    fixture.pass_time(TIMEOUT_MS)
    assert fixture.state() == ONGOING
    fixture.pass_time(1)
    assert fixture.state() == PREPARE_ABORT
    fixture.deliver()
    assert fixture.add(producer) == {T0: FENCED}
    assert fixture.end(producer).error_code == FENCED
    assert fixture.init(expected=producer).error_code == FENCED
    assert fixture.owner() == Producer(producer.producer_id, 1)


def test_new_client_learns_by_its_abort_that_it_was_too_late(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.produce(producer)
    fixture.pass_time(TIMEOUT_MS + 1)
    fixture.deliver()
    assert fixture.produce(producer) == {T0: FENCED}
    assert fixture.end(producer, commit=True, version=5).error_code == BAD_STATE
    answer = fixture.end(producer, commit=False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (NONE, 1)


def test_timeout_counts_from_the_first_partition(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.pass_time(TIMEOUT_MS)
    fixture.add(producer)
    fixture.pass_time(TIMEOUT_MS // 2)
    fixture.add(producer, T1)
    fixture.pass_time(TIMEOUT_MS // 2 + 1)
    assert fixture.state() == PREPARE_ABORT


def test_timeout_counts_on_after_a_restart(fixture: TransactionFixture) -> None:
    fixture.add(fixture.begin())
    fixture.now_ms += TIMEOUT_MS + 1
    fixture.restart()
    assert fixture.state() == ONGOING
    fixture.pass_time(0)
    assert fixture.state() == PREPARE_ABORT


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_idle_id_is_forgotten(state: TransactionState) -> None:
    fixture = TransactionFixture(transactional_id_expiration_ms="5000")
    put(fixture, 3, state)
    fixture.pass_time(4999)
    assert "x" in fixture.shard.values
    fixture.pass_time(1)
    assert fixture.shard.values == {}
    assert fixture.log[-1][1] is None
    assert fixture.begin().epoch == 0


def test_id_at_work_is_not_forgotten() -> None:
    fixture = TransactionFixture(transactional_id_expiration_ms="5000")
    producer = fixture.begin()
    fixture.add(producer)
    fixture.end(producer)
    fixture.pass_time(10_000)
    assert fixture.state() == PREPARE_COMMIT


# -- questions --------------------------------------------------------------------------------------------------------


def test_transaction_is_described(fixture: TransactionFixture) -> None:
    producer = fixture.begin()
    fixture.add(producer, T0, T1, U0)
    found = described_transaction("x", fixture.value())
    assert (found.error_code, found.transactional_id, found.transaction_state) == (NONE, "x", "Ongoing")
    assert (found.producer_id, found.producer_epoch) == producer
    assert (found.transaction_timeout, found.transaction_start_time) == (TIMEOUT_MS, fixture.now_ms)
    assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [0, 1]), ("u", [0])]


def test_unknown_id_is_not_found(fixture: TransactionFixture) -> None:
    assert (
        described_transaction("nope", fixture.shard.values.get("nope")).error_code
        == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    assert described_transaction("", fixture.shard.values.get("")).error_code == ErrorCode.INVALID_REQUEST


def test_transactions_are_listed_by_what_is_asked_for(fixture: TransactionFixture) -> None:
    first = fixture.begin("app-1")
    fixture.begin("app-2")
    fixture.add(first, name="app-1")
    fixture.now_ms += 100

    def listed(**filters: object) -> list[str]:
        request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]
        return [each for each, _ in fixture.shard.list_transactions(read_filter(request), fixture.moment)]

    assert listed() == ["app-1", "app-2"]
    assert listed(state_filters=["Ongoing", "Nonsense"]) == ["app-1"]
    assert listed(state_filters=["Nonsense"]) == []
    assert listed(producer_id_filters=[first.producer_id]) == ["app-1"]
    assert listed(state_filters=["Ongoing"], duration_filter=99) == ["app-1"]
    assert listed(state_filters=["Ongoing"], duration_filter=100) == []
    assert listed(transactional_id_pattern="app-[2-9]") == ["app-2"]
    assert listed(transactional_id_pattern="app") == [], "the whole id matches, or nothing"
    assert listed(transactional_id_pattern="") == ["app-1", "app-2"]
    with pytest.raises(Refused) as refusal:
        listed(transactional_id_pattern="(")
    assert refusal.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_unknown_states_go_back_to_who_asked() -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense", "PrepareEpochFence"])
    assert unknown_states(request.state_filters) == ["Nonsense"]


# -- figures ----------------------------------------------------------------------------------------------------------


def test_ids_are_counted_by_state_and_the_oldest_transaction_under_way_is_known(fixture: TransactionFixture) -> None:
    assert fixture.shard.count_by_state() == ({}, None)
    producers = {name: fixture.begin(name) for name in ("idle", "first", "second")}
    assert fixture.shard.count_by_state() == ({"Empty": 3}, None)
    began_ms = fixture.now_ms
    for name in ("first", "second"):
        fixture.add(producers[name], name=name)
        fixture.now_ms += 100
    assert fixture.shard.count_by_state() == ({"Empty": 1, "Ongoing": 2}, began_ms)
    fixture.end(producers["first"], name="first")
    assert fixture.shard.count_by_state() == ({"Empty": 1, "PrepareCommit": 1, "Ongoing": 1}, began_ms), (
        "markers are missing"
    )
    fixture.deliver()
    assert fixture.shard.count_by_state() == ({"Empty": 1, "CompleteCommit": 1, "Ongoing": 1}, began_ms + 100)


@pytest.mark.parametrize("version", [3, 5])
def test_each_transaction_has_one_ending(fixture: TransactionFixture, version: int) -> None:
    producer = fixture.begin()
    fixture.end(producer, version=version)  # nothing is open: no ending
    for commit, ending in ((True, Ending.COMMITTED), (False, Ending.ABORTED)):
        producer = fixture.owner()
        fixture.add(producer) if version < 5 else fixture.produce(producer)
        fixture.endings.clear()
        fixture.end(producer, commit=commit, version=version)
        fixture.end(producer, commit=commit, version=version)
        fixture.deliver()
        fixture.end(producer, commit=commit, version=version)
        assert fixture.endings == [ending]


def test_timeout_is_an_ending_of_its_own(fixture: TransactionFixture) -> None:
    fixture.add(fixture.begin())
    fixture.pass_time(TIMEOUT_MS + 1)
    fixture.deliver()
    fixture.restart()
    assert fixture.endings == [Ending.TIMED_OUT]
