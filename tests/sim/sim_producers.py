"""Simulated producers: idempotent with acks=all, plain with acks=1, and transactional ones.

They write what they asked and what they were told into the history. A record that is sent outside of a transaction is
a transaction of one record in the history: its commit is asked for with the send and answered by the acknowledgement.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sim_client import GROUP, NOT_COORDINATOR, NOT_LEADER, RETRIABLE, TRANSACTION, Client, Lost, batch

from ottla.testing.history import Outcome, Place
from ottla.testing.raw import produce_request
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from sim_world import World

_PRODUCE_V = 11
#: the first version of Produce that adds the partition to the transaction (KIP-890)
_PRODUCE_ADDS_V = 12
_TRANSACTION_TIMEOUT_MS = 6000


class Refused(Exception):
    """The broker refused a request for good: this producer cannot go on."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class IdempotentProducer(Client):
    """Sends batches with sequence numbers and repeats each until it is acknowledged."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._numbers = 0
        self._lives = 0

    async def run(self) -> None:
        while not self.is_over:
            self._lives += 1
            producer = f"{self.name}.{self._lives}"
            self.world.history.init(producer, producer)
            producer_id, epoch = await self._init()
            self.world.history.initialized(producer)
            try:
                await self._send_all(producer, producer_id, epoch)
            except Refused as refused:
                self.world.violation("refused-producer", f"{producer}: a producer without a fault got {refused}")

    async def _init(self) -> tuple[int, int]:
        while True:
            try:
                reply = await self.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout=1000), 4)
                if not reply.error_code:
                    return reply.producer_id, reply.producer_epoch
            except Lost:
                pass
            await self.pause(0.1)

    async def _send_all(self, producer: str, producer_id: int, epoch: int) -> None:
        sequences: dict[Place, int] = {}
        while not self.is_over and self.rng.random() > 0.02:
            place = self.rng.choice(self.world.places)
            waiting: list[tuple[int, str, str]] = []
            for _ in range(self.rng.choice((1, 1, 2, 4))):
                self._numbers += 1
                value = f"{self.name}-{self._numbers}"
                txn = self.world.history.begin(producer)
                self.world.history.send(txn, place, value)
                self.world.history.end(txn, commit=True)
                waiting.append((sequences.setdefault(place, 0), txn, value))
                sequences[place] += 1
            await self._send(place, waiting, producer_id, epoch)
            await self.pause(0.08)

    async def _send(self, place: Place, waiting: list[tuple[int, str, str]], producer_id: int, epoch: int) -> None:
        """Send all batches without waiting, and again from the first one that is not acknowledged."""
        while waiting:
            requests = [
                produce_request(
                    (place.topic, place.partition, batch(
                        [value], self.world.now_ms(), producer_id=producer_id, producer_epoch=epoch,
                        base_sequence=sequence,
                    )), acks=-1, timeout_ms=2000,
                )
                for sequence, _, value in waiting
            ]  # fmt: skip
            acknowledged = 0
            try:
                broker, _ = await self.leader_of(place)
                for reply in await self.ask_all(requests, _PRODUCE_V, broker=broker):
                    row = reply.responses[0].partition_responses[0]
                    if row.error_code in NOT_LEADER:
                        self.forget_leader(place)
                    if row.error_code in RETRIABLE:
                        break
                    if row.error_code:
                        raise Refused(row.error_code)
                    _, txn, value = waiting[acknowledged]
                    acknowledged += 1
                    self.world.acknowledged(place, row.base_offset)
                    self.world.history.sent(txn, value, offset=row.base_offset)
                    self.world.history.ended(txn, Outcome.OK)
            except Lost:
                pass
            del waiting[:acknowledged]
            if waiting:
                await self.pause(0.1)


class PlainProducer(Client):
    """Sends with acks=1 and never repeats.

    Its records are in the files of the leader, and stay there when the process is killed. They may be lost without
    power, and with several brokers if another leader is elected that has not fetched them.
    """

    async def run(self) -> None:
        number = 0
        producer = self._begin(number)
        while not self.is_over:
            number += 1
            value = f"{self.name}-{number}"
            place = self.rng.choice(self.world.places)
            txn = self.world.history.begin(producer)
            self.world.history.send(txn, place, value)
            self.world.history.end(txn, commit=True)
            content = batch([value], self.world.now_ms())
            try:
                await self._send(txn, place, value, produce_request((place.topic, place.partition, content), acks=1))
            except Lost:
                # What the lost connection still delivers may be stored after what the next one sends.
                producer = self._begin(number)
            await self.pause(0.15)

    async def _send(self, txn: str, place: Place, value: str, request: Any) -> None:
        """Send one record, and note whether it was acknowledged. Raise Lost without a reply."""
        replication = self.world.replication
        broker, _ = await self.leader_of(place)
        before, asked_at = replication.leadership(place) if replication is not None else None, self.world.loop.time()
        row = (await self.ask(request, _PRODUCE_V, broker=broker)).responses[0].partition_responses[0]
        if row.error_code in NOT_LEADER:
            self.forget_leader(place)
        if row.error_code:
            return
        if replication is None or replication.acknowledged_weakly(broker, place, row.base_offset, asked_at, before):
            self.world.history.sent_weakly(txn, place, value, row.base_offset)

    def _begin(self, number: int) -> str:
        """Begin a producer whose records must be stored in the order in which it sends them."""
        producer = f"{self.name}.{number}"
        self.world.history.init(producer, producer)
        self.world.history.initialized(producer)
        return producer


class TransactionalProducer(Client):
    """Writes transactions. Two of them may share a transactional id and fence each other."""

    def __init__(self, world: World, name: str, transactional_id: str, *, adds_itself: bool) -> None:
        super().__init__(world, name)
        self._id = transactional_id
        #: whether the broker adds partitions to the transaction by itself (KIP-890)
        self._adds_itself = adds_itself
        self._lives = 0
        self._numbers = 0
        self._offset = 0
        self._producer_id = self._epoch = -1
        self._sequences: dict[Place, int] = {}

    async def run(self) -> None:
        await self.find_coordinator(self._id, TRANSACTION)
        await self.find_coordinator(self._group, GROUP)
        while not self.is_over:
            self._lives += 1
            producer = f"{self.name}.{self._lives}"
            try:
                await self._init(producer)
                while not self.is_over and self.rng.random() > 0.05:
                    await self._transaction(producer)
                    await self.pause(0.1)
            except Refused:
                await self.pause(1.5)
        while not await self._has_committed():
            await self.pause(1.5)

    async def _has_committed(self) -> bool:
        """Commit a transaction with all partitions, now that the faults are over. Return False if that failed.

        Another producer with the same transactional id may be the cause, until it has committed its own.
        """
        self._lives += 1
        producer = f"{self.name}.{self._lives}"
        try:
            await self._init(producer)
            txn = self.world.history.begin(producer)
            for place in self.world.places:
                await self._write(txn, place)
            await self._end(txn, commit=True)
        except Refused:
            return False
        return True

    @property
    def _group(self) -> str:
        return f"group-of-{self._id}"

    async def _init(self, producer: str) -> None:
        self.world.history.init(producer, self._id)
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout=_TRANSACTION_TIMEOUT_MS)
        reply = await self._until_answered(request, 5, TRANSACTION)
        self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch
        self._sequences.clear()
        self.world.history.initialized(producer)

    async def _until_answered(self, request: Any, version: int, to: int | Place) -> Any:
        """Return the reply without error, or raise Refused. ``to``: a kind of coordinator, or a partition's leader."""
        while True:
            try:
                if isinstance(to, Place):
                    reply = await self.ask_leader(to, request, version)
                else:
                    reply = await self.ask_coordinator(to, self._key(to), request, version)
                code = _error_of(reply)
                if not code:
                    return reply
                if isinstance(to, Place):
                    if code in NOT_LEADER:
                        self.forget_leader(to)
                elif code in NOT_COORDINATOR:
                    self.forget_coordinator(to, self._key(to))
                if code not in RETRIABLE:
                    raise Refused(code)
            except Lost:
                pass
            await self.pause(0.1)

    def _key(self, kind: int) -> str:
        return self._group if kind == GROUP else self._id

    async def _transaction(self, producer: str) -> None:
        history = self.world.history
        txn = history.begin(producer)
        places = self.rng.sample(self.world.places, self.rng.randint(1, len(self.world.places)))
        for place in places:
            await self._write(txn, place)
        if self.rng.random() < 0.4:
            await self._commit_offset(txn)
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.choice((1.0, _TRANSACTION_TIMEOUT_MS / 1000 + 1)))
        await self._end(txn, commit=self.rng.random() < 0.7)

    async def _end(self, txn: str, *, commit: bool) -> None:
        history = self.world.history
        history.end(txn, commit=commit)
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=self._producer_id, producer_epoch=self._epoch, committed=commit
        )
        reply = await self._until_answered(request, 5 if self._adds_itself else 3, TRANSACTION)
        history.ended(txn, Outcome.OK)
        if self._adds_itself:
            if (reply.producer_id, reply.producer_epoch) != (self._producer_id, self._epoch):
                self._sequences.clear()
            self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch

    async def _write(self, txn: str, place: Place) -> None:
        if not self._adds_itself:
            topics = [AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])]
            await self._until_answered(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self._id, v3_and_below_producer_id=self._producer_id,
                    v3_and_below_producer_epoch=self._epoch, v3_and_below_topics=topics,
                ), 3, TRANSACTION,
            )  # fmt: skip
        values = []
        for _ in range(self.rng.randint(1, 3)):
            self._numbers += 1
            values.append(f"{self.name}-{self._numbers}")
            self.world.history.send(txn, place, values[-1])
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        content = batch(
            values, self.world.now_ms(), producer_id=self._producer_id, producer_epoch=self._epoch,
            base_sequence=sequence, transactional=True,
        )  # fmt: skip
        request = produce_request(
            (place.topic, place.partition, content), acks=-1, timeout_ms=2000, transactional_id=self._id
        )
        reply = await self._until_answered(request, _PRODUCE_ADDS_V if self._adds_itself else _PRODUCE_V, place)
        offset = reply.responses[0].partition_responses[0].base_offset
        self.world.acknowledged(place, offset + len(values) - 1)
        for number, value in enumerate(values):
            self.world.history.sent(txn, value, offset=offset + number)

    async def _commit_offset(self, txn: str) -> None:
        self._offset += 1
        place = self.world.places[0]
        if not self._adds_itself:
            await self._until_answered(
                AddOffsetsToTxnRequest(
                    transactional_id=self._id, producer_id=self._producer_id, producer_epoch=self._epoch,
                    group_id=self._group,
                ), 3, TRANSACTION,
            )  # fmt: skip
        self.world.history.offsets(txn, self._group, place, self._offset)
        row = TxnOffsetCommitRequestPartition(partition_index=place.partition, committed_offset=self._offset)
        await self._until_answered(
            TxnOffsetCommitRequest(
                transactional_id=self._id, group_id=self._group, producer_id=self._producer_id,
                producer_epoch=self._epoch,
                topics=[TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])],
            ), 5 if self._adds_itself else 3, GROUP,
        )  # fmt: skip


def _error_of(reply: Any) -> int:
    """Return the first error code in a reply to a request of a transactional producer."""
    if hasattr(reply, "responses"):
        return int(reply.responses[0].partition_responses[0].error_code)
    if hasattr(reply, "topics"):
        return next((row.error_code for topic in reply.topics for row in topic.partitions if row.error_code), 0)
    if hasattr(reply, "results_by_topic_v3_and_below"):
        rows = [row for topic in reply.results_by_topic_v3_and_below for row in topic.results_by_partition]
        return next((row.partition_error_code for row in rows if row.partition_error_code), 0)
    return int(reply.error_code)
