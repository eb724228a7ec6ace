"""A follower's connection to a leader after exceptions that its code does not expect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.partitions import leader_session
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.leader_fetcher import LeaderFetcher
from ottla.broker.partitions.partition import Role
from ottla.model.errors import ErrorCode, StorageError
from ottla.model.types import Endpoint, TopicPartition


class _Clients:
    """Fails as uvloop does when a connection is reset while it is opened; the second call is only noted."""

    def __init__(self) -> None:
        self.opened_again = asyncio.Event()
        self._calls = 0

    async def open(self, endpoint: Endpoint) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise AttributeError("'NoneType' object has no attribute 'setsockopt'")
        self.opened_again.set()
        await asyncio.Future()


class _Partition:
    topic_id = b"t" * 16
    name = TopicPartition("t", 0)
    leader_epoch = 1
    role = Role.FOLLOWER


def test_connection_to_a_leader_is_opened_again_after_an_unexpected_exception(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_session, "_REOPEN_S", 0)

    async def scenario() -> None:
        clients: Any = _Clients()
        followers = SimpleNamespace(write=lambda partition: None)
        replicas: Any = SimpleNamespace(followers=followers, commits=SimpleNamespace(), referrers=[])
        clock: Any = SimpleNamespace(wall_ms=lambda: 0)
        settings: Any = None
        fetchers = ReplicaFetchers(
            loop=asyncio.get_running_loop(), clients=clients, replicas=replicas, clock=clock, broker_id=1,
            broker_epoch=lambda: 1, settings=lambda: settings,
        )  # fmt: skip
        partition: Any = _Partition()
        fetchers.follow(partition, Endpoint("PLAINTEXT", "localhost", 9092))
        async with asyncio.timeout(10):
            await clients.opened_again.wait()
        fetchers.stop()

    asyncio.run(scenario())
    assert "Traceback" in caplog.text and "setsockopt" in caplog.text


class _NoConnection:
    """Opens no connection."""

    async def open(self, endpoint: Endpoint) -> Any:
        await asyncio.Future()


def test_failure_that_is_repeated_is_logged_once_until_records_are_copied_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        clients: Any = _NoConnection()
        followers = SimpleNamespace(
            write=lambda partition: None,
            sync=lambda partition: None,
            follow_log_start=lambda partition, offset: None,
        )
        replicas: Any = SimpleNamespace(followers=followers, commits=SimpleNamespace(), referrers=[])
        clock: Any = SimpleNamespace(wall_ms=lambda: 0)
        fetchers = ReplicaFetchers(
            loop=asyncio.get_running_loop(), clients=clients, replicas=replicas, clock=clock, broker_id=1,
            broker_epoch=lambda: 1, settings=lambda: None,  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        partition: Any = _Partition()
        partition.offline, partition.follow_high_watermark = False, lambda offset: None
        partition.log = SimpleNamespace(log_start_offset=3, log_end_offset=9)
        endpoint = Endpoint("PLAINTEXT", "localhost", 9092)
        fetchers.follow(partition, endpoint)
        of_leader: LeaderFetcher = fetchers._fetchers[endpoint]
        (followed,) = of_leader._followed.values()
        followed.first_request = 1
        refused: Any = SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)
        taken: Any = SimpleNamespace(
            error_code=0, diverging=None, records=b"", high_watermark=0, log_start_offset=0,
            topic_id=partition.topic_id, partition=0,
        )  # fmt: skip

        def lines() -> int:
            return sum("not copied" in record.message for record in caplog.records)

        for _ in range(1000):
            of_leader._handle_error(followed, refused)
        assert lines() == 1
        for _ in range(1000):
            of_leader._fail(followed, StorageError("the disk is full"), 1.0)
        assert lines() == 2, "another reason is logged"
        followed.first_request = 1
        of_leader.take_rows([taken], 1)
        of_leader._fail(followed, StorageError("the disk is full"), 1.0)
        assert lines() == 3, "it is logged again after records were copied"
        for _ in range(1000):
            of_leader._session._log_refusal("error code 31")
        assert sum("fetches from a leader fail" in record.message for record in caplog.records) == 1
        fetchers.stop()
        await fetchers.tasks.stop()

    asyncio.run(scenario())
