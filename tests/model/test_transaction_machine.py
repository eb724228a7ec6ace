"""Transactions over a bad network: requests are late, lost or doubled, brokers restart, markers take their time.

Clients are honest: one connection at a time, one request at a time, the next transaction only after the answer to the
last. A client that waits too long opens a new connection and asks again there; what it sent before may still arrive.
The twin keeps no state machine: it numbers the transactions of the clients and looks which of them a request settles.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.coordinators.transaction_fixtures import NOBODY, T0, T1, TIMEOUT_MS, U0, NotStored, TransactionFixture

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.transactions.records import (
    Delivery,
    TransactionLogKey,
    TransactionLogValue,
    TransactionRecord,
    TransactionState,
    encode_transaction,
)
from ottla.model.errors import ErrorCode

ONGOING = TransactionState.ONGOING
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
PICK = st.integers(0, 30)
#: what becomes of a request: the answer does not come, or comes not before the client has asked again
FATES = ["arrives"] * 5 + ["late", "overtaken", "answer lost"]


@dataclass(frozen=True, eq=False)
class Request:
    """What a client wants; it may be sent more than once."""

    client: Client
    kind: str
    producer: Producer
    #: which of all transactions is meant
    transaction: int = 0
    commit: bool = False
    partition: Any = T0


@dataclass(frozen=True)
class Frame:
    """A request on its way."""

    request: Request
    connection: int
    correlation_id: int


@dataclass(eq=False)
class Client:
    """A producer and what it knows."""

    name: str
    #: whether it speaks KIP-890
    is_new: bool
    connection: int = 0
    correlation_id: int = 0
    producer: Producer | None = None
    #: 0 when none is open
    transaction: int = 0
    waits_for: Request | None = None
    #: the last one sent, if it is not answered
    sent: Frame | None = None


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fixture = TransactionFixture(transactional_id_expiration_ms="300000")
        self.connections = count(1)
        self.transactions = count(1)
        self.clients: list[Client] = []
        #: by connection, in order; and what arrived before and may arrive once more
        self.flying: dict[int, list[Frame]] = {}
        self.arrived: list[Frame] = []
        self.made: list[Delivery] = []
        #: by id: which transaction the coordinator has open, or is ending
        self.open: dict[str, int] = {}
        #: whether it was committed
        self.outcomes: dict[int, bool] = {}
        #: who was given a producer id and epoch
        self.owners: dict[tuple[str, Producer], Client] = {}
        self.known_producer_ids: set[int] = set()
        self.seen: dict[str, TransactionLogValue] = {}

    @initialize(new=st.lists(st.booleans(), min_size=3, max_size=3), epoch=st.sampled_from([0, 32763, 32766]))
    def start(self, new: list[bool], epoch: int) -> None:
        """Two clients fight for one id, whose epochs may be near their end; one has its own."""
        value = TransactionLogValue(
            producer_id=7, producer_epoch=epoch, timeout_ms=TIMEOUT_MS, state=TransactionState.EMPTY,
            last_update_ms=self.fixture.now_ms,
        )  # fmt: skip
        record = TransactionRecord(TransactionLogKey("x"), value)
        self.fixture.log.append(encode_transaction(record))
        self.fixture.shard.replay(record)
        self.look()
        self.clients = [Client("yxx"[index], each, next(self.connections)) for index, each in enumerate(new)]

    # -- clients ------------------------------------------------------------------------------------------------------

    @rule(pick=PICK, choice=st.integers(0, 9), fate=st.sampled_from(FATES))
    def work(self, pick: int, choice: int, fate: str) -> None:
        """A client goes on with what it does, and the network does something to that."""
        client = self.clients[pick % len(self.clients)]
        if client.waits_for is None:
            self.want(self.next_request(client, choice))
        elif client.sent is None:
            self.send(client)
        else:
            fate = "overtaken"
        if fate == "answer lost":
            assert client.sent is not None
            unread, client.sent = client.sent, None
            self.flush(unread.connection)
        if fate in ("answer lost", "overtaken"):
            # It waited too long and asks again.
            client.connection = next(self.connections)
            client.correlation_id = choice
            self.send(client)
        if fate != "late":
            self.flush(client.connection)

    def next_request(self, client: Client, choice: int) -> Request:
        producer = client.producer
        if producer is None:
            return Request(client, "init", NOBODY)
        if choice == 0:
            # A client that failed begins anew; it goes on with its epoch if it may.
            return Request(client, "init", NOBODY if client.transaction else producer)
        may_end = client.transaction or (client.is_new and choice == 1)
        client.transaction = client.transaction or next(self.transactions)
        if may_end and choice < 7:
            return Request(client, "end", producer, client.transaction, commit=choice > 2)
        return Request(client, "add", producer, client.transaction, partition=(T0, T1, U0)[choice % 3])

    def want(self, request: Request) -> None:
        request.client.waits_for = request
        self.send(request.client)

    def send(self, client: Client) -> None:
        assert client.waits_for is not None
        client.correlation_id += 1
        client.sent = Frame(client.waits_for, client.connection, client.correlation_id)
        self.flying.setdefault(client.connection, []).append(client.sent)

    # -- the network --------------------------------------------------------------------------------------------------

    def flush(self, connection: int) -> None:
        """All that was sent through this connection arrives."""
        while self.flying.get(connection):
            self.arrive_on(connection, is_broken=False)

    @precondition(lambda self: self.flying)
    @rule(pick=PICK, is_broken=st.booleans())
    def arrive(self, pick: int, is_broken: bool) -> None:
        self.arrive_on(sorted(self.flying)[pick % len(self.flying)], is_broken=is_broken)

    def arrive_on(self, connection: int, *, is_broken: bool) -> None:
        frame = self.flying[connection].pop(0)
        if not self.flying[connection]:
            del self.flying[connection]
        self.arrived.append(frame)
        self.handle(frame, is_broken)

    @precondition(lambda self: self.arrived)
    @rule(pick=st.integers(0, 12))
    def arrive_again(self, pick: int) -> None:
        """One of the last, most likely."""
        self.handle(self.arrived[-1 - pick % len(self.arrived)], False)

    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        """Not too often. Connections end with the process; without them old clients have nothing under way."""
        if pick > 10:
            return
        self.fixture.restart()
        self.flying.clear()
        self.arrived = [frame for frame in self.arrived if frame.request.client.is_new]
        for client in self.clients:
            client.connection, client.sent = next(self.connections), None
        self.look()

    def handle(self, frame: Frame, is_broken: bool) -> None:
        request = frame.request
        name = request.client.name
        before = self.fixture.shard.values.get(name)
        self.fixture.log_is_broken = is_broken
        code, producer = ErrorCode.NOT_COORDINATOR, NOBODY
        try:
            code, producer = self.ask(frame)
        except NotStored:
            pass
        self.fixture.log_is_broken = False
        self.check(request, before, code)
        self.look()
        if request.client.sent is frame and request.client.waits_for is request:
            if code == CONCURRENT and before is not None and request.kind != "init":
                assert before.state in PREPARED, "a client is told to wait for nothing"
            self.answer(request, code, producer)

    def ask(self, frame: Frame) -> tuple[ErrorCode, Producer]:
        request, fixture = frame.request, self.fixture
        name, is_new = request.client.name, request.client.is_new
        sent = (frame.connection, frame.correlation_id)
        if request.kind == "init":
            begun = fixture.init(name, request.producer)
            return ErrorCode(begun.error_code), Producer(begun.producer_id, begun.producer_epoch)
        if request.kind == "end":
            fresh = next(fixture.producer_ids)
            version = 5 if is_new else 3
            ended = fixture.end(
                request.producer, name=name, commit=request.commit, version=version, fresh=fresh, sent=sent
            )
            return ErrorCode(ended.error_code), Producer(ended.producer_id, ended.producer_epoch)
        if is_new:
            codes = fixture.produce(request.producer, request.partition, name=name)
        else:
            codes = fixture.add(request.producer, request.partition, name=name, sent=sent)
        return ErrorCode(codes[request.partition]), NOBODY

    def answer(self, request: Request, code: ErrorCode, producer: Producer) -> None:
        """The client learns what became of its request."""
        client = request.client
        client.sent = None
        if code in (CONCURRENT, ErrorCode.NOT_COORDINATOR):
            return
        client.waits_for = None
        if code != ErrorCode.NONE:
            client.producer, client.transaction = None, 0
            return
        if request.kind == "init":
            client.producer, client.transaction = producer, 0
        elif request.kind == "end":
            client.transaction = 0
            if client.is_new:
                client.producer = producer
        if producer != NOBODY:
            assert producer.epoch <= 32766
            assert self.owners.setdefault((client.name, producer), client) is client, "two have the same epoch"

    # -- the coordinator ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.fixture.deliveries)
    @rule(pick=PICK, is_broken=st.booleans())
    def deliver(self, pick: int, is_broken: bool) -> None:
        delivery = self.fixture.deliveries.pop(pick % len(self.fixture.deliveries))
        name = delivery.transactional_id
        assert self.outcomes[self.open[name]] == delivery.commit
        self.fixture.log_is_broken = is_broken
        self.fixture.deliver_one(delivery)
        self.fixture.log_is_broken = False
        assert (self.fixture.state(name) in PREPARED) == is_broken
        self.made.append(delivery)
        self.look()

    @precondition(lambda self: self.fixture.deliveries)
    @rule()
    def deliver_all(self) -> None:
        self.made += self.fixture.deliveries
        self.fixture.deliver()
        self.look()

    @precondition(lambda self: self.made)
    @rule(pick=st.integers(0, 4))
    def deliver_again(self, pick: int) -> None:
        """It may be over, or its completion was not stored; never is it that of another transaction."""
        delivery = self.made[-1 - pick % len(self.made)]
        if all(delivery is not each for each in self.fixture.deliveries):
            outcome = self.fixture.shard.delivered(delivery, self.fixture.moment)
            if outcome.records:
                assert delivery.transactional_id not in {each.transactional_id for each in self.fixture.deliveries}
            self.fixture.take(delivery.transactional_id, outcome)
            self.look()

    @rule(milliseconds=st.integers(0, 45_000))
    def pass_time(self, milliseconds: int) -> None:
        before = dict(self.fixture.shard.values)
        self.fixture.pass_time(milliseconds)
        for name, value in before.items():
            after = self.fixture.shard.values.get(name)
            if value.state == ONGOING and after is not None and after.state in PREPARED:
                assert value.start_ms + TIMEOUT_MS < self.fixture.now_ms
                assert after.producer_epoch == value.producer_epoch + 1, "its producer is fenced"
                self.settle(name, commit=False)
        self.look()

    # -- the twin -----------------------------------------------------------------------------------------------------

    def check(self, request: Request, before: TransactionLogValue | None, code: ErrorCode) -> None:
        """What this request may have done."""
        name = request.client.name
        after = self.fixture.shard.values.get(name)
        changed = after is not before
        owner = Producer(before.producer_id, before.producer_epoch) if before is not None else NOBODY
        if request.kind != "init" and request.producer != owner:
            assert not changed, "a fenced producer changed something"
        if request.kind == "init" and changed and before is not None and before.state == ONGOING:
            assert request.producer in (NOBODY, owner), "a fenced producer aborted the transaction of the current one"
            self.settle(name, commit=False)
        if request.kind == "add" and code == ErrorCode.NONE:
            if before is None or before.state != ONGOING:
                self.open[name] = request.transaction
            assert self.open[name] == request.transaction, "a late request joined another transaction"
            assert request.transaction not in self.outcomes, "a transaction went on after its end"
        if request.kind == "end" and changed:
            assert before is not None
            if before.state == ONGOING:
                assert self.open[name] == request.transaction, "a late request ended another transaction"
            self.open[name] = request.transaction
            self.settle(name, commit=request.commit)
        if request.kind == "end" and code == ErrorCode.NONE:
            assert self.outcomes[request.transaction] == request.commit, "the client was told what is not true"

    def settle(self, name: str, *, commit: bool) -> None:
        assert self.open[name] not in self.outcomes, "a transaction ended twice"
        self.outcomes[self.open[name]] = commit

    def look(self) -> None:
        """Epochs never go back, and a producer id never comes back."""
        for name, value in self.fixture.shard.values.items():
            seen = self.seen.get(name)
            if seen is not None and seen.producer_id == value.producer_id:
                assert seen.producer_epoch <= value.producer_epoch
            else:
                assert value.producer_id not in self.known_producer_ids
                self.known_producer_ids.add(value.producer_id)
        self.seen = dict(self.fixture.shard.values)

    @invariant()
    def prepared_is_delivered_once(self) -> None:
        waiting = [delivery.transactional_id for delivery in self.fixture.deliveries]
        assert len(waiting) == len(set(waiting))

    @invariant()
    def log_tells_the_same(self) -> None:
        assert known_from_the_log(self.fixture) == self.fixture.shard.durable()

    def teardown(self) -> None:
        """Every transaction that was settled is completed in the end."""
        self.fixture.deliver()
        self.fixture.pass_time(0)
        self.fixture.deliver()
        assert all(value.state not in PREPARED for value in self.fixture.shard.values.values())


def known_from_the_log(fixture: TransactionFixture) -> dict[str, object]:
    other = TransactionFixture()
    other.log = list(fixture.log)
    other.restart()
    return other.shard.durable()


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)


@pytest.mark.parametrize("seed", range(40))
def test_long_storm(seed: int) -> None:
    """The same over hundreds of steps, as the machine prefers short runs; mostly clients at work."""
    chance = random.Random(seed)
    machine = TransactionMachine()
    machine.start([chance.random() < 0.4 for _ in range(3)], chance.choice([0, 32700, 32763]))
    for _ in range(400):
        dice = chance.random()
        pick = chance.randrange(31)
        if dice < 0.6:
            machine.work(pick if dice < 0.3 else 0, chance.randrange(10), chance.choice(FATES))
        elif dice < 0.75:
            if machine.fixture.deliveries:
                machine.deliver(pick, chance.random() < 0.1)
        elif dice < 0.85:
            if machine.flying:
                machine.arrive(pick, chance.random() < 0.2)
        elif dice < 0.92:
            if machine.arrived:
                machine.arrive_again(chance.randrange(13))
        elif dice < 0.96:
            if machine.made:
                machine.deliver_again(chance.randrange(5))
        elif dice < 0.99:
            machine.pass_time(chance.randrange(30_000))
        else:
            machine.restart(0)
        machine.prepared_is_delivered_once()
    machine.log_tells_the_same()
    machine.teardown()
    assert len(machine.outcomes) > 10
