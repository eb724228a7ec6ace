"""From a frame to its handler and back: what is served, what closes the connection, what is a bug and says so."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata

from ottla.broker.access.permissions import ALL_ALLOWED
from ottla.broker.access.throttling import Throttling
from ottla.broker.component import ServedApi
from ottla.broker.dispatch import MESSAGE_BYTES_MAX, Dispatcher
from ottla.model.errors import InvalidRequest
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

DESCRIBE_CLUSTER = 60


class Reply:
    def __init__(self) -> None:
        self.data: bytes | None = None

    def fill(self, data: bytes) -> None:
        self.data = data


class Connection:
    """What dispatch does to a connection."""

    def __init__(self) -> None:
        self.peer_host, self.software = "10.0.0.1", ""
        self.local_address = ("127.0.0.1", 9092)
        self.replies: list[Reply] = []
        self.ended = ""
        self.closing = False
        self.muted = 0

    def reserve(self, api_key: int) -> Reply:
        self.replies.append(Reply())
        return self.replies[-1]

    def withdraw(self, reply: Reply) -> None:
        self.replies.remove(reply)

    def touch(self) -> None:
        self.touched = True

    def watch_peer(self) -> None:
        self.watched = True

    def mute(self) -> None:
        self.muted += 1

    def unmute(self) -> None:
        self.muted -= 1

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Jobs:
    """Work that the dispatcher defers; a request of more than 64 KB does not fit into an iteration."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def may_run(self, units: int) -> bool:
        return units <= 2_000

    def add(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def __len__(self) -> int:
        return len(self.jobs)


class Desk:
    """A dispatcher with one API, and the connection it talks to."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.deferred = Jobs()
        self.metadata = make_metadata()
        self.waiting_fetches: dict[Any, Any] = {}
        data_api: Any = SimpleNamespace(handle=self._data, waiting=self.waiting_fetches)
        self.apis = apis = {DESCRIBE_CLUSTER: ServedApi(0, 2, handler), 18: ServedApi(0, 4)}
        self.data_frames: list[tuple[int, int]] = []
        self.connection: Any = Connection()
        replicas: Any = SimpleNamespace(generation=0)
        deferred: Any = self.deferred
        self.dispatcher = Dispatcher(
            "PLAINTEXT", apis, produce=data_api, fetch=data_api, metadata=self.metadata, replicas=replicas,
            access=ALL_ALLOWED, throttling=Throttling(UNUSED, lambda: 0.0, UNUSED), deferred=deferred,
        )  # fmt: skip

    def _data(
        self, connection: Any, buffer: Any, view: Any, start: int, end: int, version: int, correlation: int
    ) -> None:
        self.data_frames.append((struct.unpack_from(">h", buffer, start)[0], version))

    def take(self, frame: bytes) -> None:
        buffer = bytearray(b"size" + frame + b"behind")
        self.dispatcher.handle(self.connection, buffer, memoryview(buffer), 4, 4 + len(frame))


def ask(version: int = 0) -> bytes:
    return request_bytes(DescribeClusterRequest(), version, 7)


def answer(*_: object) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_message=None, cluster_id="here")


async def answer_later(*_: object) -> DescribeClusterResponse:
    await asyncio.sleep(0)
    return answer()


def refuse(*_: object) -> DescribeClusterResponse:
    raise InvalidRequest("cannot be answered")


async def refuse_later(*_: object) -> DescribeClusterResponse:
    await asyncio.sleep(0)
    raise InvalidRequest("cannot be answered")


def fail(*_: object) -> DescribeClusterResponse:
    raise RuntimeError("a bug")


async def fail_later(*_: object) -> DescribeClusterResponse:
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("handler", [answer, answer_later])
def test_request_is_answered_now_or_later(handler: Callable[..., Any]) -> None:
    async def run() -> None:
        desk = Desk(handler)
        desk.take(ask())
        assert desk.connection.muted == (handler is answer_later)
        await settle()
        assert read_answer(desk.connection.replies[0].data[4:], DESCRIBE_CLUSTER, 0, 7).cluster_id == "here"
        assert (desk.connection.muted, desk.connection.ended) == (0, "")

    asyncio.run(run())


@pytest.mark.parametrize("handler", [refuse, refuse_later])
def test_request_that_has_no_answer_closes_the_connection_and_owes_nothing(
    handler: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(handler)
        desk.take(ask())
        await settle()
        assert desk.connection.ended == "closed"
        assert desk.connection.replies == []
        assert desk.connection.muted == 0

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("handler", [fail, fail_later])
def test_bug_ends_the_connection_at_once_and_is_logged(
    handler: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(handler)
        desk.take(ask())
        await settle()
        assert desk.connection.ended == "aborted"

    asyncio.run(run())
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 61, 0, 1, -1) + b"\0\0\0",
        struct.pack(">hhih", DESCRIBE_CLUSTER, 3, 1, -1) + b"\0\0\0",
        struct.pack(">hhih", DESCRIBE_CLUSTER, -1, 1, -1) + b"\0\0\0",
        struct.pack(">hhih", 0, 2, 1, -1) + bytes(30),
        struct.pack(">hhih", 1, 3, 1, -1) + bytes(30),
        struct.pack(">hhi", DESCRIBE_CLUSTER, 0, 1),
        struct.pack(">hhih", DESCRIBE_CLUSTER, 0, 1, 9) + b"short",
        struct.pack(">hhih", DESCRIBE_CLUSTER, 0, 1, -2) + b"\0\0\0",
        struct.pack(">hhih", DESCRIBE_CLUSTER, 0, 1, -1) + b"\0",
    ],
    ids=["api", "version", "negative", "produce-v2", "fetch-v3", "no-client-id", "client-id", "bad-length", "cut"],
)
def test_frame_that_cannot_be_understood_closes_the_connection(frame: bytes) -> None:
    desk = Desk(answer)
    desk.take(frame)
    assert desk.connection.ended == "closed"
    assert desk.connection.replies == []
    assert desk.dispatcher.refused == 1


def test_records_go_their_own_way() -> None:
    desk = Desk(answer)
    for key, version in ((0, 3), (0, 13), (1, 4), (1, 18)):
        desk.take(struct.pack(">hhih", key, version, 1, -1) + bytes(10))
    assert desk.data_frames == [(0, 3), (0, 13), (1, 4), (1, 18)]


@pytest.mark.parametrize("key", [1, DESCRIBE_CLUSTER])
def test_only_records_may_be_large(key: int) -> None:
    desk = Desk(answer)
    padding = bytes(MESSAGE_BYTES_MAX)
    desk.take(struct.pack(">hhih", 0, 9, 1, -1) + padding)
    assert desk.connection.ended == ""
    desk.take(struct.pack(">hhih", key, 4 if key == 1 else 0, 1, -1) + padding)
    assert desk.connection.ended == "closed"


LARGE_FETCH = struct.pack(">hhih", 1, 12, 1, -1) + bytes(100_000)
SMALL_FETCH = struct.pack(">hhih", 1, 12, 1, -1) + bytes(40)


def test_large_frame_is_deferred_and_nothing_else_of_its_connection_is_read() -> None:
    desk = Desk(answer)
    desk.take(LARGE_FETCH)
    assert (desk.data_frames, desk.connection.muted) == ([], 1)
    (job,) = desk.deferred.jobs
    job()
    assert (desk.data_frames, desk.connection.muted) == ([(1, 12)], 0)
    assert desk.connection.touched


def test_large_produce_is_not_deferred() -> None:
    desk = Desk(answer)
    desk.take(struct.pack(">hhih", 0, 9, 1, -1) + bytes(100_000))
    assert (desk.data_frames, desk.deferred.jobs) == ([(0, 9)], [])


def test_deferred_frame_of_a_closed_connection_is_dropped() -> None:
    desk = Desk(answer)
    desk.take(LARGE_FETCH)
    desk.connection.closing = True
    desk.deferred.jobs[0]()
    assert desk.data_frames == []


def test_deferred_frame_that_cannot_be_understood_closes_the_connection() -> None:
    desk = Desk(answer)
    desk.take(struct.pack(">hhih", DESCRIBE_CLUSTER, 9, 1, -1) + bytes(100_000))
    assert desk.connection.ended == ""
    desk.deferred.jobs[0]()
    assert desk.connection.ended == "closed"


def test_fetch_behind_one_of_a_follower_answers_that_one_first() -> None:
    desk = Desk(answer)
    answered: list[int] = []
    desk.waiting_fetches[desk.connection] = SimpleNamespace(
        is_replica=True, answer_now=lambda: answered.append(len(desk.data_frames))
    )
    desk.take(SMALL_FETCH)
    assert answered == [0]
    assert (len(desk.data_frames), desk.connection.muted) == (1, 0)


@pytest.mark.parametrize("frame", [SMALL_FETCH, LARGE_FETCH])
def test_fetch_behind_one_that_waits_is_handled_when_that_is_answered(frame: bytes) -> None:
    desk = Desk(answer)
    waiting = desk.waiting_fetches[desk.connection] = SimpleNamespace(on_done=None, is_replica=False)
    desk.take(frame)
    for job in desk.deferred.jobs:
        job()
    desk.deferred.jobs.clear()
    assert (desk.data_frames, desk.connection.muted) == ([], 1)
    assert desk.connection.watched
    del desk.waiting_fetches[desk.connection]
    waiting.on_done()
    assert desk.data_frames == []
    desk.deferred.jobs[0]()
    assert (desk.data_frames, desk.connection.muted) == ([(1, 12)], 0)


def test_request_with_a_large_reply_runs_after_work_that_is_deferred_already() -> None:
    desk = Desk(answer)
    desk.apis[DESCRIBE_CLUSTER] = desk.apis[DESCRIBE_CLUSTER]._replace(large_reply=True)
    desk.take(ask())
    assert len(desk.connection.replies) == 1
    desk.take(LARGE_FETCH)
    desk.take(ask())
    assert len(desk.connection.replies) == 1
    for job in desk.deferred.jobs:
        job()
    assert len(desk.connection.replies) == 2
    assert desk.connection.muted == 0


def test_other_request_behind_a_fetch_that_waits_is_handled_at_once() -> None:
    desk = Desk(answer)
    desk.waiting_fetches[desk.connection] = SimpleNamespace(on_done=None, is_replica=False)
    desk.take(ask())
    assert len(desk.connection.replies) == 1


def test_api_versions_of_an_unknown_version_are_answered_without_reading_the_body() -> None:
    desk = Desk(answer)
    desk.take(struct.pack(">hhih", 18, 99, 7, -1) + b"\xff\xff\xff")
    found = read_answer(desk.connection.replies[0].data[4:], 18, 0, 7)
    assert found.error_code == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in found.api_keys] == [(18, 0, 4)]
    assert desk.connection.ended == ""


def test_reply_is_cached_unless_the_broker_is_cut_off() -> None:
    """A broker that is cut off closes the connection of each client that asks, which the cache cannot."""
    asked: list[Any] = []

    def handler(request: Any, context: Any) -> DescribeClusterResponse:
        asked.append(request)
        return DescribeClusterResponse()

    desk = Desk(handler)
    desk.apis[DESCRIBE_CLUSTER] = ServedApi(0, 2, handler, cached=True)
    for _ in range(3):
        desk.take(ask())
    assert len(asked) == 1
    desk.metadata.just_lost = lambda: frozenset([2])
    for _ in range(3):
        desk.take(ask())
    assert len(asked) == 2, "the leader of some partitions has probably ended"
    desk.metadata.just_lost = frozenset
    desk.metadata.is_cut_off = True
    for _ in range(3):
        desk.take(ask())
    assert len(asked) == 5
    assert len({reply.data for reply in desk.connection.replies}) == 1
