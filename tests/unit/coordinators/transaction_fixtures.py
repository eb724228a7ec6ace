"""Transactions in a room without a broker: a clock that is told, a log in a list, deliveries that wait to be made."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

from tests.unit.coordinators.classic_fixtures import DictTopics

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import CoordinatorContext, Moment, Producer
from ottla.broker.transactions.records import (
    Delivery,
    Ending,
    TransactionLogValue,
    TransactionOutcome,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from ottla.broker.transactions.replies import (
    add_offsets_reply,
    add_partitions_reply,
    end_reply,
    init_reply,
    read_init,
)
from ottla.broker.transactions.requests import EndTransaction
from ottla.broker.transactions.shard import TransactionShard
from ottla.model.errors import ErrorCode
from ottla.model.settings_broker import BrokerSettings
from ottla.model.types import TopicPartition
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnTopicResult,
)
from ottla.wire.messages.end_txn import EndTxnResponse
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

TIMEOUT_MS = 60_000
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
OFFSETS = TopicPartition("__consumer_offsets", 7)
NOBODY = Producer(-1, -1)

Codes = dict[TopicPartition, int]


class NotStored(Exception):
    """The client is told to come back."""


class TransactionFixture:
    """One shard, its log as bytes, its clock. Every request is answered at once."""

    def __init__(self, **settings: str) -> None:
        self.now_ms = 1_700_000_000_000
        self.topics = DictTopics()
        for name, partitions in (("t", 2), ("u", 1), ("__consumer_offsets", 50)):
            self.topics.create(name, partitions)
        texts = {name.replace("_", "."): text for name, text in settings.items()}
        self.context = CoordinatorContext(settings=BrokerSettings.parse(texts), topics=self.topics)
        self.coordinator_epoch = 5
        self.shard = TransactionShard(self.context, self.coordinator_epoch)
        self.log: list[tuple[bytes, bytes | None]] = []
        #: handed out and not made
        self.deliveries: list[Delivery] = []
        #: of all lives
        self.endings: list[Ending] = []
        self.producer_ids = count(1000)
        #: whether the next records cannot be stored
        self.log_is_broken = False

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ms / 1000, self.now_ms)

    def restart(self) -> None:
        """A coordinator that knows only the log."""
        self.coordinator_epoch += 1
        self.shard = TransactionShard(self.context, self.coordinator_epoch)
        for key, value in self.log:
            record = decode_transaction(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.resume(self.moment)
        self.deliveries = []
        self.take("", self.shard.after_load(self.moment))

    def take(self, transactional_id: str, outcome: TransactionOutcome[Any]) -> Any:
        """What the runtime does: store, replay, answer, begin to deliver."""
        if outcome.records and self.log_is_broken:
            self.shard.discard_soft_state(transactional_id, self.moment)
            raise NotStored
        for record in outcome.records:
            self.log.append(encode_transaction(record))
            self.shard.replay(record)
        self.deliveries += outcome.deliveries
        self.endings += [outcome.ending] if outcome.ending is not None else []
        return outcome.result

    def deliver(self) -> None:
        """All that is under way arrives."""
        while self.deliveries:
            self.deliver_one(self.deliveries.pop(0))

    def deliver_one(self, delivery: Delivery) -> None:
        with suppress(NotStored):
            self.take(delivery.transactional_id, self.shard.delivered(delivery, self.moment))

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        for transactional_id, outcome in self.shard.expire(self.moment):
            with suppress(NotStored):
                self.take(transactional_id, outcome)

    # -- requests -----------------------------------------------------------------------------------------------------

    def init(
        self, name: str = "x", expected: Producer = NOBODY, *, timeout_ms: int = TIMEOUT_MS, version: int = 4,
        fresh: int | None = None, **flags: bool,
    ) -> InitProducerIdResponse:  # fmt: skip
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout=timeout_ms, producer_id=expected.producer_id,
            producer_epoch=expected.epoch, **flags,
        )  # fmt: skip
        given = next(self.producer_ids) if fresh is None else fresh
        return init_reply(self.take(name, self.shard.init_producer_id(read_init(request), given, self.moment)), version)

    def begin(self, name: str = "x", expected: Producer = NOBODY) -> Producer:
        """An initialized producer."""
        answer = self.init(name, expected)
        if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self.deliver()
            answer = self.init(name, expected)
        assert answer.error_code == ErrorCode.NONE
        return Producer(answer.producer_id, answer.producer_epoch)

    def add(
        self, producer: Producer, *partitions: TopicPartition, name: str = "x", version: int = 3,
        sent: tuple[int, int] = (0, 0),
    ) -> Codes:  # fmt: skip
        client = Client("c", "/10.0.0.1", version, *sent)
        outcome = self.shard.add_partitions(name, producer, partitions or (T0,), client, self.moment)
        return codes_of(add_partitions_reply(self.take(name, outcome), version).results_by_topic_v3_and_below)

    def produce(self, producer: Producer, *partitions: TopicPartition, name: str = "x") -> Codes:
        """What the coordinator says to a Produce that adds its partitions by itself."""
        outcome = self.shard.add_partitions_of(name, producer, partitions or (T0,), self.moment, verify_only=False)
        return dict(self.take(name, outcome))

    def add_offsets(self, producer: Producer, *, version: int = 3, sent: tuple[int, int] = (0, 0)) -> int:
        client = Client("c", "/10.0.0.1", version, *sent)
        outcome = self.shard.add_offsets("x", producer, OFFSETS, client, self.moment)
        return add_offsets_reply(self.take("x", outcome), version).error_code

    def end(
        self, producer: Producer, *, commit: bool = True, name: str = "x", version: int = 3, fresh: int | None = None,
        sent: tuple[int, int] = (0, 0),
    ) -> EndTxnResponse:  # fmt: skip
        request = EndTransaction(name, producer, commit)
        client = Client("c", "/10.0.0.1", version, *sent)
        outcome = self.shard.end_txn(request, client, self.moment, own_epoch=version >= 5, fresh_producer_id=fresh)
        return end_reply(self.take(name, outcome), version)

    # -- looks --------------------------------------------------------------------------------------------------------

    def value(self, name: str = "x") -> TransactionLogValue:
        return self.shard.values[name]

    def state(self, name: str = "x") -> TransactionState:
        return self.value(name).state

    def owner(self, name: str = "x") -> Producer:
        return Producer(self.value(name).producer_id, self.value(name).producer_epoch)


def codes_of(topics: Any) -> Codes:
    results: list[AddPartitionsToTxnTopicResult] = list(topics)
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_error_code
        for topic in results
        for each in topic.results_by_partition
    }
