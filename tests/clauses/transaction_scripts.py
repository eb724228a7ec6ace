"""Conversations with a transaction coordinator and with partitions that are written to in transactions, odd ones above
all: what is said to two brokers must be answered alike. Producer ids get names, as ids of members do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.clauses.group_requests import commit, fetch
from tests.clauses.group_scripts import Wire
from tests.clauses.transaction_requests import (
    ADD_V,
    COMMIT_V,
    END_V,
    INIT_V,
    OFFSETS_V,
    PRODUCE_V,
    READ_COMMITTED,
    Owner,
    Places,
    add,
    add_batch,
    add_offsets,
    await_settled,
    begin,
    end,
    init,
    init_again,
    list_offsets,
    markers,
    producers_of,
    txn_commit,
    write,
)

from ottla.model.batch import read_header
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire import Struct
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_transactions import ListTransactionsRequest

_CONTROL = 0x20
_CLOCK = {"transaction_start_time", "last_timestamp"}
#: the broker's own affair; texts for people; what Kafka says of a batch that it has already
_NOT_COMPARED = {
    "session_id", "preferred_read_replica", "current_leader", "leader_epoch", "snapshot_id", "error_message",
    "log_append_time", "log_start_offset",
}  # fmt: skip
_CONCURRENT_TRANSACTIONS = 51


class TransactionWire(Wire):
    """A wire on which producers have names, and batches are shown."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, {}, name)
        self._own_name = name
        # An owner has one connection to its coordinator: what is not compared is asked on the same.
        self._clients["a"] = RawClient(address, client_id="client-a")
        self._producers: dict[int, str] = {}
        self._topics = 0
        self._ids = 0

    @property
    def _helper(self) -> RawClient:
        return self._clients["a"]

    def topic(self, partitions: int = 1) -> str:
        """A new topic, known by what it is in this script."""
        self._topics += 1
        name = f"{self._own_name}-{self._topics}"
        self.ids[name] = topic_id = self._helper.create_topic(name, partitions)
        self._names[topic_id] = name
        # A first write may have to wait until the partition is there.
        self._until_written(name, partitions)
        return name

    def _until_written(self, name: str, partitions: int) -> None:
        for partition in range(partitions):
            request = produce_request((name, partition, batch_of(b"first")), acks=-1)
            deadline = time.monotonic() + 60
            while code := self._helper.ask(request, 9).responses[0].partition_responses[0].error_code:
                assert time.monotonic() < deadline, code
                time.sleep(0.02)

    def id(self) -> str:
        """A transactional id that only this script uses."""
        self._ids += 1
        return f"{self._own_name}.{self._ids}"

    def owner(self, timeout_ms: int = 60_000) -> Owner:
        owner = begin(self._helper, self.id(), timeout_ms)
        self._named_producer(owner.producer_id)
        return owner

    def opened(self, *topics: str, partitions: int = 1) -> Owner:
        """The owner of a transaction with these topics in it."""
        owner = self.owner()
        self.join(owner, {topic: range(partitions) for topic in topics})
        return owner

    def join(self, owner: Owner, places: Places) -> None:
        deadline = time.monotonic() + 60
        codes = {_CONCURRENT_TRANSACTIONS}
        while codes == {_CONCURRENT_TRANSACTIONS}:
            assert time.monotonic() < deadline, "the transaction before does not end"
            rows = self._helper.ask(add(owner, places), ADD_V).results_by_topic_v3_and_below
            codes = {row.partition_error_code for topic in rows for row in topic.results_by_partition}
        assert codes == {0}, rows

    def settle(self, owner: Owner) -> None:
        """Wait until its transaction is over; how long that takes is not compared."""
        self.transcript.append(("state", await_settled(self._helper, owner.transactional_id)))

    def finish(self, owner: Owner, *, commit: bool = True) -> None:
        self.ask(end(owner, commit=commit), END_V)
        self.settle(owner)

    def end_soon(self, owner: Owner, *, commit: bool) -> None:
        """EndTxn 5, repeated while Kafka answers CONCURRENT_TRANSACTIONS; the last answer is compared."""
        deadline = time.monotonic() + 15
        while self.ask(end(owner, commit=commit), 5).error_code == _CONCURRENT_TRANSACTIONS:
            assert time.monotonic() < deadline, "the markers of the previous transaction are not written"
            del self.transcript[-1]

    def see(self, owner: Owner) -> None:
        self.ask(DescribeTransactionsRequest(transactional_ids=[owner.transactional_id]), 0)

    def look_at(self, topic: str, offset: int = 0, version: int = 16) -> None:
        """What readers of either kind see, and who writes."""
        key = self.ids[topic] if version > 12 else topic
        for isolation in (0, READ_COMMITTED):
            request = fetch_request({key: [fetch_from(0, offset)]}, isolation_level=isolation)
            self.ask(request, version, note=f"isolation {isolation}")
            for timestamp in (-1, -2, 0):
                self.ask(list_offsets(topic, timestamp, isolation), 7, note=f"{timestamp}, isolation {isolation}")
        self.ask(producers_of({topic: [0]}), 0)

    # -- what is compared ---------------------------------------------------------------------------------------------

    def _digest(self, value: Any, version: int) -> Any:
        found = super()._digest(value, version)
        if isinstance(value, Struct):
            for name in found:
                if name == "producer_id":
                    found[name] = self._named_producer(found[name])
                elif name in _CLOCK:
                    found[name] = "some time" if found[name] > 0 else found[name]
                elif name == "records":
                    found[name] = self._batches(bytes(value.records or b""))
                elif name in _NOT_COMPARED:
                    found[name] = None
                elif name == "aborted_transactions" and found[name] and value.records:
                    # Kafka may name some that are behind the records; nobody is harmed.
                    end = max(base + count for base, count, *_ in self._batches(bytes(value.records)))
                    found[name] = [row for row in found[name] if row["first_offset"] < end]
                elif name == "timestamp":
                    found[name] = found[name] > 0
                elif name == "transaction_states" and "unknown_state_filters" in found:
                    own = f"'{self._own_name}."
                    found[name] = [row for row in found[name] if own in repr(row["transactional_id"])]
        return found

    def _named_producer(self, producer_id: int) -> str:
        if producer_id < 0:
            return str(producer_id)
        return self._producers.setdefault(producer_id, f"producer{len(self._producers) + 1}")

    def _batches(self, data: bytes) -> list[Any]:
        found, position = [], 0
        while position + 61 <= len(data):
            header = read_header(data, position)
            size = header.length + 12
            kind = data[position + 61 : position + size] if header.attributes & _CONTROL else b""
            found.append((
                header.base_offset, header.record_count, header.attributes, self._named_producer(header.producer_id),
                header.producer_epoch, header.base_sequence, kind[:12].hex(), header.leader_epoch,
            ))  # fmt: skip
            position += size
        return found


Script = Callable[[TransactionWire], None]
TRANSACTION_SCRIPTS: list[Script] = []


#: for clients that have an epoch for every transaction
NEWER_SCRIPTS: list[Script] = []


def script(function: Script) -> Script:
    TRANSACTION_SCRIPTS.append(function)
    return function


def newer(function: Script) -> Script:
    NEWER_SCRIPTS.append(function)
    return function


def wrong(owner: Owner) -> dict[str, Owner]:
    """Almost the owner."""
    return {
        "epoch below": owner._replace(epoch=owner.epoch - 1),
        "epoch above": owner._replace(epoch=owner.epoch + 1),
        "no epoch": owner._replace(epoch=-1),
        "producer": owner._replace(producer_id=owner.producer_id + 1_000_000),
        "no producer": owner._replace(producer_id=-1),
        "id": owner._replace(transactional_id="stranger"),
        "empty id": owner._replace(transactional_id=""),
    }


# -- a producer begins ------------------------------------------------------------------------------------------------


@script
def producers_that_begin(wire: TransactionWire) -> None:
    for version in range(6):
        name = wire.id()
        for transactional_id in (None, ""):
            wire.ask(init(transactional_id), version, note=f"{transactional_id!r}")
            wire.ask(init(transactional_id, 0), version, note=f"{transactional_id!r} no timeout")
        for timeout in (0, -1, 900_001, 2**31 - 1, -(2**31)):
            wire.ask(init(name, timeout), version, note=f"timeout {timeout}")
        for timeout in (1, 900_000):
            wire.ask(init(name, timeout), version, note=f"timeout {timeout}")
        wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0)
    for version in (3, 4, 5):
        for transactional_id in (wire.id(), None):
            for producer_id, epoch in ((-1, 0), (0, -1), (-2, -2), (-1, -2), (5, -5)):
                request = init(transactional_id, producer_id=producer_id, producer_epoch=epoch)
                wire.ask(request, version, note=f"{transactional_id} {producer_id} {epoch}")
        wire.ask(init(None, producer_id=77_777_777, producer_epoch=3), version, note="no id, producer")
        unknown = Owner(wire.id(), 4_000_000, 5)
        wire.ask(init_again(unknown), version, note="unknown id with a producer")
        wire.see(unknown)


@script
def producers_that_come_back(wire: TransactionWire) -> None:
    for version in (3, 4, 5):
        owner = wire.owner()
        for note, other in wrong(owner).items():
            if other.transactional_id == owner.transactional_id:
                wire.ask(init_again(other), version, note=note)
        wire.see(owner)
        wire.ask(init_again(owner), version, note="current")
        wire.ask(init_again(owner), version, note="the same again")
        wire.ask(init(owner.transactional_id), version, note="somebody else")
        wire.ask(init_again(owner), version, note="two behind")
        wire.ask(init_again(owner._replace(epoch=owner.epoch + 1)), version, note="one behind, not asked for")
        wire.ask(init_again(owner._replace(epoch=owner.epoch + 2)), version, note="current")
        wire.see(owner)


@script
def producers_that_come_back_with_an_open_transaction(wire: TransactionWire) -> None:
    topic = wire.topic()
    for version in (0, 3, 4, 5):
        owner = wire.opened(topic)
        wire.ask(init(owner.transactional_id), version, note="somebody else")
        wire.settle(owner)
        wire.see(owner)
        wire.ask(init(owner.transactional_id), version, note="somebody else, again")
        wire.see(owner)
        wire.ask(add(owner, {topic: [0]}), ADD_V, note="fenced")
        wire.ask(end(owner), END_V, note="fenced")
    for version in (3, 4, 5):
        owner = wire.opened(topic)
        for note, other in wrong(owner).items():
            # Kafka lets an older epoch of the producer end the transaction of the current one: not here.
            if other.transactional_id == owner.transactional_id and "epoch" not in note:
                wire.ask(init_again(other), version, note=note)
        wire.see(owner)
        # Kafka aborts the transaction and then fences the one who asked; here it gets its epoch.
        wire.ask(init_again(owner), version, note="current")
        wire.settle(owner)
        wire.see(owner)


@script
def timeout_of_the_newest_owner_counts(wire: TransactionWire) -> None:
    owner = wire.owner()
    for timeout in (5000, 7000):
        wire.ask(init(owner.transactional_id, timeout), 5)
        wire.see(owner)


# -- partitions and groups that join ----------------------------------------------------------------------------------


@script
def partitions_that_cannot_join(wire: TransactionWire) -> None:
    topic = wire.topic(2)
    for version in range(4):
        owner = wire.owner()
        for note, other in wrong(owner).items():
            wire.ask(add(other, {topic: [0]}), version, note=note)
            wire.ask(add(other, {topic: [0], "nowhere": [0]}), version, note=f"{note}, unknown topic")
        for places in ({"nowhere": [0]}, {topic: [0, 2]}, {topic: [-1]}, {topic: [0, 1], "nowhere": [0, 1]},
                       {"": [0]}, {"a b": [0]}):  # fmt: skip
            wire.ask(add(owner, places), version, note=f"{places}")
        wire.see(owner)
        wire.ask(add(owner, {topic: [0]}), version)
        wire.see(owner)
        wire.ask(add(owner, {topic: [0]}), version, note="again")
        wire.ask(add(owner, {topic: [0, 1]}), version, note="one more")
        wire.ask(add(owner, {}), version, note="nothing")
        wire.see(owner)
        wire.ask(add(owner._replace(epoch=owner.epoch + 1), {topic: [0]}), version, note="ongoing, epoch")


@script
def partitions_that_brokers_add(wire: TransactionWire) -> None:
    topic = wire.topic(2)
    for version in (4, 5):
        owner = wire.owner()
        for note, other in {**wrong(owner), "owner": owner}.items():
            wire.ask(add_batch((other, {topic: [0]}), verify_only=True), version, note=note)
        wire.ask(add_batch((owner, {"nowhere": [0], topic: [0]}), verify_only=True), version, note="unknown")
        wire.see(owner)
        for note, other in wrong(owner).items():
            wire.ask(add_batch((other, {topic: [0]})), version, note=f"add, {note}")
        wire.ask(add_batch((owner, {"nowhere": [0], topic: [0]})), version, note="add, unknown")
        wire.see(owner)
    owner = wire.opened(topic)
    wire.ask(add_batch((owner, {topic: [0]}), verify_only=True), 4, note="is in it")
    wire.ask(add_batch((owner, {topic: [1]}), verify_only=True), 4, note="is not in it")
    wire.ask(add_batch((owner, {topic: [0, 1]}), verify_only=True), 4, note="one is, one is not")


@script
def groups_that_join(wire: TransactionWire) -> None:
    for version in range(5):
        owner, group = wire.owner(), wire.group()
        for note, other in wrong(owner).items():
            wire.ask(add_offsets(other, group), version, note=note)
        wire.ask(add_offsets(owner, ""), version, note="no group")
        wire.see(owner)
        owner = wire.owner()
        wire.ask(add_offsets(owner, group), version)
        wire.ask(add_offsets(owner, group), version, note="again")
        wire.see(owner)


# -- the end ----------------------------------------------------------------------------------------------------------


@script
def ends(wire: TransactionWire) -> None:
    topic = wire.topic()
    for version in range(5):
        for first in (True, False):
            owner = wire.owner()
            for result in (True, False):
                wire.ask(end(owner, commit=result), version, note=f"empty, commit {result}")
            wire.join(owner, {topic: [0]})
            for note, other in wrong(owner).items():
                for result in (True, False):
                    wire.ask(end(other, commit=result), version, note=f"{note}, commit {result}")
            wire.see(owner)
            wire.ask(end(owner, commit=first), version, note=f"commit {first}")
            wire.settle(owner)
            wire.see(owner)
            wire.ask(end(owner, commit=not first), version, note=f"commit {not first} after commit {first}")
            wire.ask(end(owner, commit=first), version, note=f"commit {first} again")
            for note, other in wrong(owner).items():
                wire.ask(end(other, commit=first), version, note=f"{note}, ended")
            wire.see(owner)
        # After a new owner came there is nothing to end.
        wire.ask(init(owner.transactional_id), 5)
        wire.ask(end(owner), version, note="fenced")
        wire.ask(end(owner._replace(epoch=owner.epoch + 1)), version, note="nothing to end")


@script
def transactions_after_one_another(wire: TransactionWire) -> None:
    topic = wire.topic()
    owner = wire.owner()
    for number, result in enumerate((True, False, False, True)):
        wire.join(owner, {topic: [0]})
        wire.ask(write(owner, topic, number * 2, b"a", b"b"), PRODUCE_V)
        wire.look_at(topic)
        wire.finish(owner, commit=result)
        wire.look_at(topic)
    for version in (4, 5, 7, 11, 12, 13):
        wire.look_at(topic, 3, version)


# -- records ----------------------------------------------------------------------------------------------------------


@script
def records_that_do_not_belong(wire: TransactionWire) -> None:
    """The owner is in the transaction with the first topic, not with the other."""
    for version in (3, 7, 9, 10, 11):
        topic, other_topic = wire.topic(), wire.topic()
        owner = wire.opened(topic)
        wire.ask(write(owner, other_topic), version, note="not added")
        for note, other in wrong(owner).items():
            if other.producer_id >= 0 and other.epoch >= 0:
                wire.ask(write(other, topic), version, note=note)
        wire.ask(write(owner, topic, transactional_id=None), version, note="null id")
        wire.look_at(topic)
        wire.ask(write(owner, topic), version)
        wire.ask(write(owner, topic, 1, transactional=False, transactional_id=None), version, note="not transactional")
        wire.ask(write(owner, topic, 1, transactional=False), version, note="not transactional, with id")
        for note, other in wrong(owner).items():
            if other.producer_id >= 0 and other.epoch >= 0:
                wire.ask(write(other, topic, 1), version, note=f"second, {note}")
        wire.ask(write(owner, topic, 5), version, note="sequence")
        wire.ask(write(owner, topic), version, note="the same again")
        wire.look_at(topic)
        wire.finish(owner)
        wire.ask(write(owner, topic, 1), version, note="after the end")
        wire.ask(write(owner, topic, 1, transactional=False, transactional_id=None), version, note="idempotent")
        wire.look_at(topic)


@script
def records_of_an_epoch_after_another(wire: TransactionWire) -> None:
    topic = wire.topic()
    owner = wire.opened(topic)
    wire.ask(write(owner, topic, 0), PRODUCE_V)
    wire.finish(owner)
    wire.ask(init_again(owner), 5)
    later = owner._replace(epoch=owner.epoch + 1)
    wire.join(later, {topic: [0]})
    wire.ask(write(later, topic, 5), PRODUCE_V, note="sequence of a new epoch")
    wire.ask(write(owner, topic, 1), PRODUCE_V, note="fenced")
    wire.ask(write(later, topic, 0), PRODUCE_V)
    wire.ask(write(owner, topic, 1), PRODUCE_V, note="fenced")
    wire.look_at(topic)
    wire.finish(later, commit=False)
    wire.look_at(topic)


@script
def requests_of_two_producers(wire: TransactionWire) -> None:
    """What is wrong with one batch is wrong with the request: nothing of it is written."""
    for version in (3, 9, 11):
        for note, second_is_other, transactional, has_id in (
            ("two producers", True, True, True), ("two producers", True, True, False),
            ("one in a transaction", False, False, True), ("one in a transaction", False, False, False),
        ):  # fmt: skip
            one, two = wire.topic(), wire.topic()
            first, other = wire.opened(one, two), wire.opened(one, two)
            second = other if second_is_other else first
            rows = [
                (topic, 0, batch_of(
                    b"v", producer_id=owner.producer_id, producer_epoch=owner.epoch, base_sequence=0,
                    transactional=in_transaction,
                ))
                for topic, owner, in_transaction in ((one, first, True), (two, second, transactional))
            ]  # fmt: skip
            name = first.transactional_id if has_id else None
            wire.ask(produce_request(*rows, acks=-1, transactional_id=name), version, note=f"{note}, id {has_id}")
            wire.look_at(one)
            wire.look_at(two)


@script
def requests_with_one_batch_outside_of_the_transaction(wire: TransactionWire) -> None:
    for version in (3, 9, 11):
        for has_id in (True, False):
            one, two = wire.topic(), wire.topic()
            owner = wire.opened(one)
            batch = batch_of(
                b"v", producer_id=owner.producer_id, producer_epoch=owner.epoch, base_sequence=0, transactional=True
            )
            name = owner.transactional_id if has_id else None
            for other in (batch, batch_of(b"v")):
                request = produce_request((one, 0, batch), (two, 0, other), acks=-1, transactional_id=name)
                wire.ask(request, version, note=f"id {has_id}")
            wire.look_at(one)
            wire.look_at(two)
        plain = produce_request((one, 0, batch_of(b"v")), acks=-1, transactional_id="x")
        wire.ask(plain, version, note="plain, with id")
        for acks in (0, 1):
            wire.ask(write(owner, one, 1, acks=1), version, note=f"acks {acks}")


@script
def what_readers_see(wire: TransactionWire) -> None:
    """Transactions that lie across one another: what was committed first may have to wait."""
    topic = wire.topic()
    first, second, third = (wire.opened(topic) for _ in range(3))
    for number, owner in enumerate((first, second, first, third, second)):
        wire.ask(write(owner, topic, (0, 0, 1, 0, 1)[number]), PRODUCE_V)
    wire.ask(produce_request((topic, 0, batch_of(b"plain")), acks=-1), 9)
    wire.look_at(topic)
    for owner, result in ((second, False), (first, False), (third, True)):
        wire.finish(owner, commit=result)
        for offset in (0, 3, 7):
            wire.look_at(topic, offset)
    for isolation in (0, READ_COMMITTED):
        for size in (1, 100, 200):
            request = fetch_request(
                {wire.ids[topic]: [fetch_from(0, 0, partition_max_bytes=size)]}, isolation_level=isolation
            )
            wire.ask(request, 16, note=f"{size} bytes")
    wire.ask(fetch_request({wire.ids[topic]: [fetch_from(0, 99)]}, isolation_level=READ_COMMITTED), 16, note="beyond")


# -- an epoch for every transaction (KIP-890) -------------------------------------------------------------------------


@newer
def epochs_that_rise_with_every_transaction(wire: TransactionWire) -> None:
    """Clients may speak the newer versions although transaction.version is not there: franz-go does."""
    topic = wire.topic()
    owner = wire.owner()
    for number, result in enumerate((True, False, False, True)):
        wire.ask(write(owner, topic, 0, b"a", b"b"), 12)
        wire.look_at(topic)
        wire.see(owner)
        wire.ask(end(owner, commit=result), 5)
        wire.settle(owner)
        wire.see(owner)
        wire.ask(end(owner, commit=result), 5, note="again")
        wire.ask(end(owner, commit=not result), 5, note="reversed")
        wire.look_at(topic)
        wire.ask(write(owner, topic, 2, b"late"), 12, note="late")
        owner = owner._replace(epoch=number + 1)
    for result in (True, False):
        wire.ask(end(owner, commit=result), 5, note=f"nothing is open, commit {result}")
        wire.settle(owner)
        wire.see(owner)


@newer
def empty_transaction_that_is_ended_right_after_a_commit(wire: TransactionWire) -> None:
    """Its EndTxn arrives while the markers of the transaction before are being written."""
    topic = wire.topic()
    for result in (False, True):
        owner = wire.owner()
        wire.ask(write(owner, topic, 0, b"a"), 12)
        wire.ask(end(owner), 5)
        following = owner._replace(epoch=owner.epoch + 1)
        wire.end_soon(following, commit=result)
        wire.settle(following)
        wire.see(following)


@newer
def offsets_that_bring_their_group_along(wire: TransactionWire) -> None:
    topic = wire.topic()
    for result in (True, False):
        owner, group = wire.owner(), wire.group()
        for note, other in wrong(owner).items():
            wire.ask(txn_commit(other, group, {(topic, 0): 6}), 5, note=note)
        wire.ask(txn_commit(owner, group, {(topic, 0): 7}), 5)
        wire.see(owner)
        wire.ask(fetch(group, None, 8, stable=True), 8)
        wire.ask(end(owner, commit=result), 5)
        wire.settle(owner)
        wire.ask(fetch(group, None, 8, stable=True), 8)
        wire.ask(txn_commit(owner, group, {(topic, 0): 8}), 5, note="late")


# -- offsets ----------------------------------------------------------------------------------------------------------


@script
def offsets_in_transactions(wire: TransactionWire) -> None:
    topic = wire.topic(2)
    for version in range(5):
        for result in (True, False):
            owner, group = wire.owner(), wire.group()
            wire.ask(txn_commit(owner, group, {(topic, 0): 5}), version, note="group not added")
            wire.ask(fetch(group, None, 8), 8)
            wire.ask(add_offsets(owner, group), min(version, OFFSETS_V))
            wire.ask(commit(group, {(topic, 0): 1}), 8)
            for note, other in wrong(owner).items():
                wire.ask(txn_commit(other, group, {(topic, 0): 6}), version, note=note)
            wire.ask(txn_commit(owner, group, {(topic, 0): 7, (topic, 5): 8, ("nowhere", 0): 9}), version)
            for stable in (False, True):
                for asked in (7, 8, 9):
                    wire.ask(fetch(group, {topic: [0, 1]}, asked, stable=stable), asked, note=f"stable {stable}")
                wire.ask(fetch(group, None, 8, stable=stable), 8, note=f"all, stable {stable}")
            wire.finish(owner, commit=result)
            wire.ask(fetch(group, {topic: [0, 1]}, 8, stable=True), 8, note="ended")
            wire.ask(fetch(group, None, 8), 8, note="ended, all")
            wire.ask(txn_commit(owner, group, {(topic, 0): 9}), version, note="after the end")
            wire.ask(fetch(group, None, 8), 8)


@script
def offsets_of_members(wire: TransactionWire) -> None:
    topic = wire.topic()
    for version in range(3, 5):
        group = wire.group()
        owner = wire.owner()
        wire.ask(add_offsets(owner, group), OFFSETS_V)
        offsets = {(topic, 0): 5}
        # The first that is taken makes a group in Kafka's memory, which then says otherwise of strangers.
        for generation, member in ((0, ""), (1, ""), (5, "m"), (0, "m"), (-1, "")):
            wire.ask(txn_commit(owner, group, offsets, generation, member), version, note=f"no group {generation}")
        member, generation = wire.become_stable(group)
        for given, name, instance in (
            (generation, member, None), (generation + 1, member, None), (generation - 1, member, None),
            (generation, "stranger", None), (-1, "", None), (generation, "", None), (-1, member, None),
            (generation, member, "unknown"), (-1, "", "unknown"),
        ):  # fmt: skip
            request = txn_commit(owner, group, offsets, given, name, instance)
            wire.ask(request, version, note=f"{given - generation:+} {bool(name)} {instance}")
        wire.ask(txn_commit(owner, "", offsets), version, note="no group")
        wire.ask(fetch(group, None, 8, stable=True), 8)
        wire.finish(owner)
        wire.ask(fetch(group, None, 8, stable=True), 8)


@script
def plain_commits_beside_a_transaction(wire: TransactionWire) -> None:
    """Which counts is decided by where they are in the log."""
    topic = wire.topic()
    for plain_first in (True, False):
        for result in (True, False):
            owner, group = wire.owner(), wire.group()
            wire.ask(add_offsets(owner, group), OFFSETS_V)
            steps = [(commit(group, {(topic, 0): 1}), 8), (txn_commit(owner, group, {(topic, 0): 2}), COMMIT_V)]
            for request, version in steps if plain_first else reversed(steps):
                wire.ask(request, version)
            wire.ask(fetch(group, None, 8), 8)
            wire.finish(owner, commit=result)
            wire.ask(fetch(group, None, 8, stable=True), 8)


# -- markers and questions --------------------------------------------------------------------------------------------


@script
def markers_from_outside(wire: TransactionWire) -> None:
    topic = wire.topic(2)
    first = wire.owner()
    wire.ask(init(first.transactional_id), INIT_V)
    owner = first._replace(epoch=first.epoch + 1)
    wire.join(owner, {topic: [0, 1]})
    wire.ask(write(owner, topic), PRODUCE_V)
    place = {topic: [0]}
    wire.ask(markers(), 1, note="nothing")
    wire.ask(markers((owner, True, {"nowhere": [0], topic: [9]})), 1, note="unknown")
    wire.ask(markers((owner._replace(epoch=owner.epoch - 1), True, place)), 1, note="epoch below")
    wire.look_at(topic)
    wire.ask(markers((owner._replace(epoch=owner.epoch + 1), False, place), coordinator_epoch=3), 1, note="epoch above")
    wire.look_at(topic)
    wire.ask(markers((owner, False, place), coordinator_epoch=3), 1, note="epoch below the marker's")
    higher = owner._replace(epoch=owner.epoch + 1)
    wire.ask(markers((higher, False, place), coordinator_epoch=2), 1, note="coordinator below")
    wire.ask(markers((higher, True, place), coordinator_epoch=3), 1, note="again")
    stranger = Owner("", owner.producer_id + 500_000, 0)
    wire.ask(markers((stranger, True, {topic: [1]})), 1, note="unknown producer")
    wire.ask(markers((higher, True, place), (stranger, False, place), coordinator_epoch=4), 1, note="two")
    wire.ask(markers((Owner("", -1, -1), False, place)), 1, note="nobody")
    wire.look_at(topic)
    wire.see(owner)


@script
def questions(wire: TransactionWire) -> None:
    topic = wire.topic(2)
    empty, ongoing, committed, aborted = wire.owner(), wire.opened(topic), wire.opened(topic), wire.opened(topic)
    wire.finish(committed)
    wire.finish(aborted, commit=False)
    names = [owner.transactional_id for owner in (empty, ongoing, committed, aborted)]
    for asked in ([], names, ["stranger"], [""], [names[1], "stranger", ""]):
        wire.ask(DescribeTransactionsRequest(transactional_ids=asked), 0)
    states = (
        [], ["Ongoing"], ["Empty", "CompleteAbort"], ["ongoing"], ["Nope"], ["Nope", "Ongoing", "nope"], [""],
        ["Dead"], ["PrepareEpochFence"], ["PrepareCommit", "PrepareAbort"],
    )  # fmt: skip
    for version in range(3):
        for filters in states:
            wire.ask(ListTransactionsRequest(state_filters=filters), version, note=f"{filters}")
        for producers in ([ongoing.producer_id], [-1], [ongoing.producer_id, empty.producer_id, 1 << 60]):
            wire.ask(
                ListTransactionsRequest(producer_id_filters=producers), version, note=f"{len(producers)} producers"
            )
        both = ListTransactionsRequest(producer_id_filters=[empty.producer_id], state_filters=["Ongoing"])
        wire.ask(both, version, note="both")
    for version in (1, 2):
        for duration in (-1, -2, 0, 3_600_000, 2**62, -(2**63)):
            wire.ask(ListTransactionsRequest(duration_filter=duration), version, note=f"duration {duration}")
    for pattern in (None, "", names[0], "questions", "questions.*", ".*[.]1", "^questions[.]2$", "(", "[", "stranger",
                    "(?i)QUESTIONS.*"):  # fmt: skip
        wire.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2, note=f"pattern {pattern}")


@script
def coordinators(wire: TransactionWire) -> None:
    for version in range(1, 4):
        for key in ("g", "", "x" * 300):
            wire.ask(FindCoordinatorRequest(key=key, key_type=1), version)
    for version in (4, 5, 6):
        for keys in ([], ["g"], ["g", "g", ""], ["a", "\n"]):
            wire.ask(FindCoordinatorRequest(coordinator_keys=keys, key_type=1), version)


@script
def internal_topic_is_not_for_clients(wire: TransactionWire) -> None:
    owner = wire.owner()
    internal = "__transaction_state"
    wire.ask(produce_request((internal, 0, batch_of(b"v")), acks=-1), 9)
    wire.ask(add(owner, {internal: [0]}), ADD_V)
    wire.ask(add(owner, {"__consumer_offsets": [0]}), ADD_V)
    wire.see(owner)


@script
def deleted_topics(wire: TransactionWire) -> None:
    """A topic that is gone does not keep its transaction from ending."""
    stays, goes = wire.topic(), wire.topic()
    owner = wire.opened(stays, goes)
    for topic in (stays, goes):
        wire.ask(write(owner, topic), PRODUCE_V)
    wire.ask(DeleteTopicsRequest(topic_names=[goes], timeout=30_000), 5)
    wire.see(owner)
    wire.finish(owner)
    wire.look_at(stays)
