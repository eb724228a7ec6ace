"""A transaction coordinator moves between two brokers of one process, and back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata, make_transaction_apis
from tests.unit.broker.request_fixtures import request_context
from tests.unit.coordinators.test_transaction_runtime import PRODUCER_ID, TransactionRuntimeFixture, _add_request
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA

from ottla.broker.client import Client
from ottla.broker.coordinators.runtime import StaleConnection
from ottla.broker.transactions.records import TransactionState
from ottla.model.errors import ErrorCode
from ottla.wire.messages.end_txn import EndTxnRequest

#: version of EndTxn of clients before KIP-890
OLD_CLIENT, NEW_CLIENT = 3, 5


class TwoCoordinators:
    """Two brokers with a replica of ``__transaction_state``. One leads; the other gets the same log when it does."""

    def __init__(self, path: Path) -> None:
        for name in ("a", "b"):
            (path / name).mkdir()
        self.a, self.b = TransactionRuntimeFixture(path / "a"), TransactionRuntimeFixture(path / "b")
        self.epoch = 0
        #: connections that broker A has accepted
        self.accepted = 3
        self.a.runtime.context.accepted = lambda: self.accepted
        self.b.manager.apply_state(self.b.state, replace(ONLY_REPLICA, leader=2, partition_epoch=1))
        self.b.runtime.refresh()

    async def lead(self, leader: TransactionRuntimeFixture) -> None:
        """Move the leadership: the new leader has every record of the old one."""
        self.epoch += 1
        former = self.a if leader is self.b else self.b
        for each, leader_id in ((former, 2), (leader, 1)):
            each.manager.apply_state(each.state, replace(ONLY_REPLICA, leader=leader_id, leader_epoch=self.epoch))
            each.runtime.refresh()
            if each is former:
                self._copy(former, leader)
        for _ in range(5):
            await self.a.turn_disk()
            await self.b.turn_disk()

    def _copy(self, source: TransactionRuntimeFixture, target: TransactionRuntimeFixture) -> None:
        source.manager.commits.write_turn()
        offset = target.state.log.log_end_offset
        while offset < source.state.log.log_end_offset:
            region = source.state.log.read(offset, 1 << 20, source.state.log.written_end_offset, at_least_one=True)
            assert region is not None
            records = memoryview(region.read())
            _, offset = target.state.log.append_as_follower(records, leader_epoch=self.epoch, now_ms=1)
        # Written at the end of the turn in which it becomes leader: the coordinator must wait for that.
        target.manager.commits.pending[target.state.log] = None

    def ask(self, broker: TransactionRuntimeFixture, name: str, request: Any, version: int, connection: int) -> Any:
        unused = SimpleNamespace(expect=lambda *_: None, note_arrived=lambda _: None)
        apis = make_transaction_apis(metadata=make_metadata(), transactions=broker.runtime, awaited_commits=unused)
        client = Client("c", "/h", version, connection, 1)
        return getattr(apis, name)(request, request_context(version, client=client))

    def end(self, broker: TransactionRuntimeFixture, *, version: int = OLD_CLIENT, connection: int = 9) -> Any:
        request = EndTxnRequest(transactional_id="x", producer_id=PRODUCER_ID, producer_epoch=0, committed=True)
        return self.ask(broker, "end_txn", request, version, connection)


def test_transaction_goes_on_at_the_next_coordinator(tmp_path: Path) -> None:
    async def run() -> None:
        brokers = TwoCoordinators(tmp_path)
        await brokers.a.begin()
        await brokers.lead(brokers.b)
        assert brokers.end(brokers.a).error_code == ErrorCode.NOT_COORDINATOR
        assert brokers.b.x == TransactionState.ONGOING
        brokers.end(brokers.b)
        await brokers.b.turn_disk()
        assert brokers.b.x == TransactionState.COMPLETE_COMMIT

    asyncio.run(run())


@pytest.mark.parametrize(("version", "is_refused"), [(OLD_CLIENT, True), (NEW_CLIENT, False)])
def test_delayed_request_does_not_end_a_transaction_that_began_at_another_coordinator(
    tmp_path: Path, version: int, is_refused: bool
) -> None:
    """KAFKA-17754: the first request is delayed at A while B commits and the next transaction begins there."""

    async def run() -> None:
        brokers = TwoCoordinators(tmp_path)
        await brokers.a.begin()
        await brokers.lead(brokers.b)
        brokers.end(brokers.b, connection=1)
        await brokers.b.turn_disk()
        brokers.ask(brokers.b, "add_partitions_to_txn", _add_request(), 3, 1)
        await brokers.b.turn_disk()
        assert brokers.b.x == TransactionState.ONGOING
        await brokers.lead(brokers.a)
        if is_refused:
            with pytest.raises(StaleConnection):
                brokers.end(brokers.a, version=version, connection=brokers.accepted)
            assert brokers.a.x == TransactionState.ONGOING
        brokers.end(brokers.a, version=version, connection=brokers.accepted + is_refused)
        await brokers.a.turn_disk()
        assert brokers.a.x == TransactionState.COMPLETE_COMMIT

    asyncio.run(run())


def test_connection_is_not_stale_at_the_first_coordinator(tmp_path: Path) -> None:
    """The topic is created when the first client asks for its coordinator, over a connection that is open by then."""

    async def run() -> None:
        brokers = TwoCoordinators(tmp_path)
        await brokers.a.begin()
        brokers.end(brokers.a, connection=1)
        await brokers.a.turn_disk()
        assert brokers.a.x == TransactionState.COMPLETE_COMMIT

    asyncio.run(run())
