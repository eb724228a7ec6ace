"""One client's connection with a transport that is not there: intake, order, back-pressure, the end."""

from __future__ import annotations

import os
import random
import socket
import struct
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.env.metrics import Histogram
from ottla.net.connection import RECEIVE_BYTES, Connection, Slot
from ottla.net.server import ConnectionLimits, Server

MIB = 1 << 20
LIMITS = ConnectionLimits(total=10, per_host=10)


class Loop:
    """Runs what it was given when it is told to."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        while self.soon:
            soon, self.soon = self.soon, []
            for callback in soon:
                callback()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


class Transport:
    """Takes what is written, or holds it when its kernel is full."""

    def __init__(self, host: str, sock: socket.socket | None) -> None:
        self._host = host
        self._socket = sock
        self.sent = bytearray()
        self.buffered = bytearray()
        self.full = False
        self.reading = True
        self.ended = ""
        self.protocol: Connection = None  # type: ignore[assignment]

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return self._socket or self
        return ("127.0.0.1", 9092) if name == "sockname" else (self._host, 50_000)

    def fileno(self) -> int:
        return -1

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def write(self, data: bytes) -> None:
        if self._socket is not None and not self.full:
            self._socket.setblocking(True)
            self._socket.sendall(data)
        elif self.full:
            self.buffered += data
            self.protocol.pause_writing()
        else:
            self.sent += data

    def drain(self) -> None:
        self.full = False
        self.sent += self.buffered
        self.buffered.clear()
        self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Client:
    """A connection, what its handler saw, and both ends of its wire."""

    def __init__(
        self, server: Server, loop: Loop, sock: socket.socket | None = None, host: str = "10.0.0.1", listener: str = ""
    ) -> None:
        self.frames: list[bytes] = []
        self.slots: list[Slot] = []
        self.on_frame: Callable[[bytes], None] = self.reserve
        self._loop = loop
        self._kernel = bytearray()
        self.connection = Connection(server, server.first_handler(self._handle), listener)
        self.transport = self.connection.transport = Transport(host, sock)  # type: ignore[assignment]
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def _handle(self, _: Connection, buffer: bytearray, view: memoryview, start: int, end: int) -> None:
        assert bytes(view[start:end]) == bytes(buffer[start:end])
        self.frames.append(bytes(buffer[start:end]))
        self.on_frame(self.frames[-1])

    def reserve(self, frame: bytes) -> None:
        self.slots.append(self.connection.reserve(frame[0]))

    def echo(self, frame: bytes) -> None:
        self.connection.reserve(frame[0]).fill(frame)

    def feed(self, data: bytes) -> None:
        """Bytes arrive; the connection gets as many as it wants to read, the rest waits in the kernel."""
        self._kernel += data
        while self._kernel and self.transport.reading:
            view = self.connection.get_buffer(-1)
            assert len(view), "the loop takes an empty buffer for the end of the connection"
            count = min(len(view), len(self._kernel))
            view[:count] = self._kernel[:count]
            del self._kernel[:count]
            self.connection.buffer_updated(count)

    def turn(self) -> None:
        self._loop.run()
        self.feed(b"")
        self._loop.run()

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.sent)


class Fixture:
    def __init__(self, limits: ConnectionLimits = LIMITS, **settings: int) -> None:
        self.loop = Loop()
        self.clock = Clock()
        values = {"request_bytes_max": 100 * MIB, "idle_ms_max": 1000, "in_flight_max": 5} | settings
        loop: Any = self.loop
        self.server = Server(
            loop, clock=self.clock, before_replies=lambda: True, latency=defaultdict(Histogram), limits=limits, **values
        )

    def client(self, sock: socket.socket | None = None, host: str = "10.0.0.1", listener: str = "") -> Client:
        return Client(self.server, self.loop, sock, host, listener)

    def used_client(self, sock: socket.socket | None = None, host: str = "10.0.0.1", listener: str = "") -> Client:
        """Return a client that has sent a request, unless its connection was refused."""
        client = self.client(sock, host, listener)
        if not client.transport.ended:
            client.on_frame = client.echo
            client.feed(framed(ONE))
            client.turn()
        return client


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


@pytest.fixture
def client(fixture: Fixture) -> Client:
    return fixture.client()


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


ONE, TWO, THREE = b"1" * 8, b"2" * 20, b"3" * 300


# -- intake ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(8, 2000), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_frames_are_handled_whole_and_in_order_however_they_arrive(sizes: list[int], source: random.Random) -> None:
    client = Fixture(in_flight_max=1000).client()
    client.on_frame = client.echo
    payloads = [source.randbytes(size) for size in sizes]
    data = framed(*payloads)
    while data:
        count = source.randint(1, max(len(data) // 3, 1))
        client.feed(data[:count])
        data = data[count:]
        if source.random() < 0.5:
            client.turn()
    client.turn()
    assert client.frames == payloads
    assert client.sent == b"".join(payloads)


@pytest.mark.parametrize("size", [RECEIVE_BYTES - 5, RECEIVE_BYTES - 4, RECEIVE_BYTES, 3 * MIB, 9 * MIB])
def test_frame_larger_than_the_receive_buffer_is_handled_whole(client: Client, size: int) -> None:
    client.on_frame = client.echo
    large = random.Random(size).randbytes(size)
    client.feed(framed(ONE, large, TWO))
    client.turn()
    assert client.frames == [ONE, large, TWO]


def test_frame_buffer_that_is_used_again_shows_nothing_of_the_last_frame(fixture: Fixture) -> None:
    for fill in (b"a", b"b", b"c"):
        client = fixture.client()
        payload = fill * (MIB + ord(fill))
        client.feed(framed(payload))
        assert client.frames == [payload]


@pytest.mark.parametrize("size", [-1, 0, 7, 100 * MIB + 1, 2**31 - 1])
def test_frame_of_impossible_size_ends_the_connection(client: Client, size: int) -> None:
    client.feed(struct.pack(">i", size) + ONE)
    client.turn()
    assert client.frames == []
    assert client.transport.ended == "closed"


def test_claimed_size_allocates_only_what_arrives(fixture: Fixture) -> None:
    clients = [fixture.client() for _ in range(10)]
    tracemalloc.start()
    try:
        for client in clients:
            client.feed(struct.pack(">i", 100 * MIB) + b"x" * 10)
        assert tracemalloc.get_traced_memory()[1] < MIB
        for client in clients:
            client.feed(b"x" * 200_000)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


# -- replies --------------------------------------------------------------------------------------------------------


def test_replies_leave_in_the_order_of_the_requests(client: Client) -> None:
    client.feed(framed(ONE, TWO, THREE))
    client.slots[2].fill(b"third")
    client.slots[1].fill(b"second")
    client.turn()
    assert client.sent == b""
    client.slots[0].fill(b"first")
    client.turn()
    assert client.sent == b"firstsecondthird"


def test_request_without_a_reply_leaves_no_gap(client: Client) -> None:
    client.on_frame = lambda frame: None if frame == TWO else client.echo(frame)
    client.feed(framed(ONE, TWO, THREE))
    client.turn()
    assert client.sent == ONE + THREE


def test_withdrawn_reply_holds_nothing_back(client: Client) -> None:
    client.feed(framed(ONE, TWO))
    client.slots[1].fill(b"second")
    client.connection.withdraw(client.slots[0])
    client.turn()
    assert client.sent == b"second"


def test_nothing_leaves_before_the_files_are_written(fixture: Fixture, client: Client) -> None:
    fixture.server._before_replies = lambda: False
    client.on_frame = client.echo
    client.feed(framed(ONE))
    client.turn()
    assert client.sent == b""


# -- back-pressure --------------------------------------------------------------------------------------------------


def test_muted_client_is_not_read_from(client: Client) -> None:
    def mute_first(frame: bytes) -> None:
        client.echo(frame)
        if frame == ONE:
            client.connection.mute()

    client.on_frame = mute_first
    client.feed(framed(ONE, TWO))
    client.feed(framed(THREE))
    client.turn()
    assert client.frames == [ONE]
    client.connection.unmute()
    client.turn()
    assert client.frames == [ONE, TWO, THREE]


def test_client_with_too_many_requests_in_flight_is_not_read_from(client: Client) -> None:
    client.feed(framed(*[ONE] * 8))
    client.turn()
    assert len(client.frames) == 5
    client.slots[0].fill(b"reply")
    client.turn()
    assert len(client.frames) == 6


def test_client_that_is_owed_too_many_bytes_is_not_read_from() -> None:
    fixture = Fixture(in_flight_max=500)
    client = fixture.client()
    client.transport.full = True
    client.on_frame = lambda frame: client.connection.reserve(1).fill(bytes(600_000))
    client.feed(framed(*[ONE] * 100))
    client.turn()
    assert len(client.frames) == 2
    client.transport.drain()
    client.turn()
    assert len(client.frames) == 100


def test_bytes_behind_a_waiting_reply_count_as_owed() -> None:
    client = Fixture(in_flight_max=500).client()
    client.on_frame = lambda frame: (
        client.reserve(frame) if not client.slots else client.connection.reserve(1).fill(bytes(600_000))
    )
    client.feed(framed(*[ONE] * 100))
    client.turn()
    assert len(client.frames) == 3
    client.slots[0].fill(b"")
    client.turn()
    assert len(client.frames) == 100


def test_client_that_does_not_read_its_replies_is_not_read_from(client: Client) -> None:
    client.on_frame = client.echo
    client.transport.full = True
    client.feed(framed(ONE))
    client.turn()
    client.feed(framed(TWO))
    client.feed(framed(THREE))
    client.turn()
    assert THREE not in client.frames
    client.transport.drain()
    client.turn()
    assert client.sent == ONE + TWO + THREE


# -- regions --------------------------------------------------------------------------------------------------------


class Region:
    def __init__(self, fd: int, position: int, size_bytes: int) -> None:
        self.fd = fd
        self.position = position
        self.size_bytes = size_bytes

    @property
    def file(self) -> Region:
        return self


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.settimeout(5)
    with left, right:
        yield left, right


def test_region_leaves_between_the_bytes_around_it(
    fixture: Fixture, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        client = fixture.client(pair[0])
        client.feed(framed(ONE, TWO))
        client.slots[0].fill(b"head", [Region(fd, 2, 5), b"tail"])
        client.slots[1].fill(b"next")
        client.turn()
        assert pair[1].recv(17, socket.MSG_WAITALL) == b"head23456tailnext"
    finally:
        client.connection.connection_lost(None)
        os.close(fd)


def test_region_that_its_file_no_longer_holds_ends_the_connection(
    fixture: Fixture, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        client = fixture.client(pair[0])
        client.feed(framed(ONE))
        client.slots[0].fill(b"head", [Region(fd, 8, 100), b"tail"])
        client.turn()
        assert client.transport.ended == "aborted"
    finally:
        client.connection.connection_lost(None)
        os.close(fd)


# -- the end --------------------------------------------------------------------------------------------------------


def test_close_sends_what_is_owed_first(client: Client) -> None:
    client.feed(framed(ONE))
    client.connection.close()
    client.turn()
    assert client.transport.ended == ""
    client.slots[0].fill(b"reply")
    client.turn()
    assert client.sent == b"reply"
    assert client.transport.ended == "closed"


def test_close_takes_no_further_request(client: Client) -> None:
    client.on_frame = lambda frame: client.connection.close()
    client.feed(framed(ONE, TWO))
    client.turn()
    client.feed(framed(THREE))
    assert client.frames == [ONE]
    assert client.transport.ended == "closed"


def test_abort_waits_for_nothing(client: Client) -> None:
    client.feed(framed(ONE))
    client.connection.abort()
    assert client.transport.ended == "aborted"
    client.slots[0].fill(b"reply")
    client.turn()
    assert client.sent == b""


def test_client_that_closed_its_side_makes_what_is_parked_answer(client: Client) -> None:
    client.feed(framed(ONE))
    client.connection.on_close[lambda: client.slots[0].fill(b"what there is")] = None
    assert client.connection.eof_received() is True
    client.turn()
    assert client.sent == b"what there is"
    assert client.transport.ended == "closed"


def test_lost_client_is_forgotten_with_everything_that_is_parked_for_it(fixture: Fixture, client: Client) -> None:
    told: list[str] = []
    client.feed(framed(ONE))
    client.connection.on_close[lambda: told.append("gone")] = None
    client.connection.connection_lost(None)
    assert told == ["gone"]
    assert client.connection.in_flight == 0
    assert not fixture.server.connections


# -- all connections ------------------------------------------------------------------------------------------------


def test_connection_beyond_the_limit_is_refused() -> None:
    fixture = Fixture(LIMITS._replace(total=2))
    clients = [fixture.used_client() for _ in range(3)]
    assert [client.transport.ended for client in clients] == ["", "", "aborted"]
    clients[0].connection.connection_lost(None)
    clients[2].connection.connection_lost(None)
    assert fixture.used_client().transport.ended == ""
    assert fixture.server.refused_connections == 1


def test_limit_for_one_address_leaves_room_for_others() -> None:
    fixture = Fixture(LIMITS._replace(per_host=1))
    hosts = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert [fixture.used_client(host=host).transport.ended for host in hosts] == ["", "aborted", ""]


def test_limit_of_one_listener_leaves_room_for_others() -> None:
    fixture = Fixture(LIMITS._replace(per_listener={"EXTERNAL": 1}))
    first = fixture.used_client(listener="EXTERNAL")
    listeners = ["EXTERNAL", "INTERNAL", "INTERNAL"]
    assert [fixture.used_client(listener=name).transport.ended for name in listeners] == ["aborted", "", ""]
    first.connection.connection_lost(None)
    assert fixture.used_client(listener="EXTERNAL").transport.ended == ""


class HighSocket:
    """A socket whose descriptor is one of the last that clients may have, or above them."""

    def __init__(self, number: int) -> None:
        self.fileno = lambda: number

    def detach(self) -> int:
        return -1


@pytest.mark.parametrize("limits", [
    LIMITS._replace(total=2), LIMITS._replace(per_host=2), LIMITS._replace(per_listener={"": 2}),
])  # fmt: skip
def test_oldest_connection_without_a_request_is_closed_for_a_new_one(limits: ConnectionLimits) -> None:
    fixture = Fixture(limits)
    first, second = fixture.client(), fixture.used_client()
    for _ in range(3):
        third = fixture.client()
        assert [each.transport.ended for each in (first, second, third)] == ["aborted", "", ""]
        first = third
    assert (fixture.server.evicted_connections, fixture.server.refused_connections) == (3, 0)
    assert len(fixture.server.connections) == 2
    third.feed(framed(ONE))
    assert fixture.client().transport.ended == "aborted", "both have sent a request"
    assert fixture.server.refused_connections == 1


@pytest.mark.parametrize("flood", [["10.0.0.9"], ["2001:db8::1", "2001:db8::2", "2001:db8::3"]])
def test_many_connections_of_one_network_leave_those_of_others_alone(flood: list[str]) -> None:
    fixture = Fixture(LIMITS._replace(total=6, per_host=100))
    slow = [fixture.client(host=host) for host in ("10.0.0.1", "2001:db8:0:1::1")]
    attackers = [fixture.client(host=flood[number % len(flood)]) for number in range(30)]
    slow.append(fixture.client(host="10.0.0.2"))
    assert [each.transport.ended for each in slow] == [""] * 3
    assert [each.transport.ended for each in attackers] == ["aborted"] * 27 + [""] * 3
    assert len(fixture.server.fresh) == 6
    for each in slow:
        each.feed(framed(ONE))
    assert len(fixture.server.fresh) == 3


def test_incomplete_request_does_not_keep_a_connection() -> None:
    fixture = Fixture(LIMITS._replace(total=1))
    slow = fixture.client()
    slow.feed(framed(THREE)[:-1])
    assert fixture.client().transport.ended == ""
    assert slow.transport.ended == "aborted"


def test_connection_is_closed_only_where_that_makes_room() -> None:
    fixture = Fixture(LIMITS._replace(per_host=1, per_listener={"EXTERNAL": 2}))
    silent = [
        fixture.client(host="10.0.0.1", listener="INTERNAL"),
        fixture.client(host="10.0.0.2", listener="EXTERNAL"),
    ]
    used = fixture.used_client(host="10.0.0.3", listener="EXTERNAL")
    assert fixture.client(host="10.0.0.3").transport.ended == "aborted", "the address has a connection that is used"
    assert [each.transport.ended for each in (*silent, used)] == ["", "", ""]
    assert fixture.client(host="10.0.0.4", listener="EXTERNAL").transport.ended == ""
    assert [each.transport.ended for each in (*silent, used)] == ["", "aborted", ""]


def test_connection_without_a_request_is_closed_when_few_descriptors_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture(LIMITS._replace(total=1000, per_host=1000))
    monkeypatch.setattr(fixture.server.network, "descriptors_for_clients", lambda: 160)
    sockets: Any = [HighSocket(number) for number in (100, 101, 160, 161, 170, 171)]
    silent, used = fixture.client(sockets[0]), fixture.client(sockets[1])
    used.feed(framed(ONE))
    assert fixture.client(sockets[2]).transport.ended == ""
    assert [silent.transport.ended, used.transport.ended] == ["aborted", ""]
    assert fixture.client(sockets[3]).transport.ended == ""
    assert fixture.client(sockets[4]).transport.ended == "aborted", "descriptors for files are kept"
    assert fixture.client(sockets[5]).transport.ended == "aborted"


def test_connections_that_were_not_set_up_in_time_are_closed_in_several_iterations(fixture: Fixture) -> None:
    """Their times may be over in the same moment, and other clients are served in between."""
    fixture.server._limits = ConnectionLimits(total=1000, per_host=1000)
    timers: list[tuple[float, Callable[[], None]]] = []
    fixture.loop.call_later = lambda delay_s, callback: timers.append((delay_s, callback))  # type: ignore[attr-defined]
    clients = [fixture.client() for _ in range(130)]
    for each in clients[:120]:
        fixture.server.expect_setup(each.connection, 10.0)
    fixture.clock.now += 5.0
    for each in clients[120:]:
        fixture.server.expect_setup(each.connection, 10.0)
    fixture.server.set_up(clients[0].connection)
    fixture.clock.now += 5.0
    closed = []
    while len(timers) == 1 and timers[0][0] in (0.0, 10.0):
        timers.pop()[1]()
        closed.append(sum(bool(each.transport.ended) for each in clients))
    assert closed == [50, 100, 119]
    assert not clients[0].transport.ended
    assert [delay_s for delay_s, _ in timers] == [5.0]
    fixture.clock.now += 5.0
    timers.pop()[1]()
    assert sum(bool(each.transport.ended) for each in clients) == 129
    assert not timers and not fixture.server.unready


def test_connection_that_needs_a_login_is_fresh_until_then() -> None:
    fixture = Fixture(LIMITS._replace(total=2))
    fixture.server._begin["SASL"] = lambda connection: None
    clients = [fixture.client(listener="SASL") for _ in range(2)]
    fixture.server.set_up(clients[0].connection)
    assert fixture.client(listener="SASL").transport.ended == ""
    assert [each.transport.ended for each in clients] == ["", "aborted"]


def test_handshake_alone_does_not_keep_a_connection_that_needs_no_login() -> None:
    fixture = Fixture(LIMITS._replace(total=1))
    client = fixture.client(listener="SSL")
    fixture.server.set_up(client.connection)
    assert fixture.client(listener="SSL").transport.ended == ""
    assert client.transport.ended == "aborted"


BROKERS = LIMITS._replace(total=3, per_listener={"BROKERS": 3}, protected="BROKERS")


def test_connection_of_another_broker_replaces_the_one_that_was_used_least_recently() -> None:
    fixture = Fixture(BROKERS)
    old = fixture.used_client(listener="BROKERS")
    clients = [fixture.used_client(listener="EXTERNAL") for _ in range(2)]
    for number, client in enumerate([*clients[::-1], old]):
        client.connection.last_active = float(number)
    assert fixture.used_client(listener="BROKERS").transport.ended == ""
    assert [each.transport.ended for each in (old, *clients)] == ["", "", "aborted"]
    clients[1].connection.connection_lost(None)
    assert fixture.used_client(listener="EXTERNAL").transport.ended == "aborted"
    assert fixture.server.refused_connections == 1


def test_brokers_replace_no_connection_above_the_limit_of_their_listener() -> None:
    fixture = Fixture(BROKERS)
    client, *brokers = [fixture.used_client(listener=name) for name in ("EXTERNAL", "BROKERS", "BROKERS", "BROKERS")]
    assert client.transport.ended == "aborted"
    client.connection.connection_lost(None)
    assert fixture.used_client(listener="BROKERS").transport.ended == "aborted"
    assert [each.transport.ended for each in brokers] == ["", "", ""]


def test_smaller_total_closes_connections_but_those_of_brokers_stay() -> None:
    fixture = Fixture(BROKERS._replace(total=5))
    clients = [fixture.client(listener=name) for name in ("BROKERS", "EXTERNAL", "EXTERNAL", "EXTERNAL")]
    for number, client in enumerate(clients):
        client.connection.last_active = float(number)
    fixture.server.limit_connections(BROKERS._replace(per_listener={"EXTERNAL": 1}))
    assert [each.transport.ended for each in clients] == ["", "aborted", "", ""]
    fixture.server.limit_connections(BROKERS._replace(total=0))
    assert [each.transport.ended for each in clients] == ["", "aborted", "aborted", "aborted"]


def test_idle_connection_is_closed_and_a_waiting_one_is_not(fixture: Fixture) -> None:
    idle, waiting, busy = fixture.client(), fixture.client(), fixture.client()
    waiting.feed(framed(ONE))
    fixture.clock.now += 0.9
    busy.on_frame = busy.echo
    busy.feed(framed(ONE))
    fixture.loop.run()
    fixture.clock.now += 0.2
    sweep(fixture)
    assert [each.transport.ended for each in (idle, waiting, busy)] == ["closed", "", ""]


def test_idle_connection_that_does_not_take_its_replies_is_aborted(fixture: Fixture, client: Client) -> None:
    client.on_frame = client.echo
    client.transport.full = True
    client.feed(framed(ONE))
    fixture.loop.run()
    fixture.clock.now += 2
    sweep(fixture)
    assert client.transport.ended == "aborted"


def test_client_that_takes_its_replies_slowly_is_not_idle(fixture: Fixture, client: Client) -> None:
    client.on_frame = client.echo
    client.transport.full = True
    client.feed(framed(ONE))
    fixture.loop.run()
    fixture.clock.now += 0.9
    client.transport.drain()
    fixture.clock.now += 0.9
    sweep(fixture)
    assert client.transport.ended == ""


def test_idle_time_below_zero_means_never() -> None:
    fixture = Fixture(idle_ms_max=-1)
    client = fixture.client()
    fixture.clock.now += 10**9
    sweep(fixture)
    assert client.transport.ended == ""


def sweep(fixture: Fixture) -> None:
    fixture.loop.call_later = lambda delay, callback: None  # type: ignore[attr-defined]
    fixture.server._sweep()
    fixture.loop.run()
