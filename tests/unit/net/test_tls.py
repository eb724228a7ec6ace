"""A connection behind TLS, with a client in memory: bytes arrive whole and in order, and nothing leaves unencrypted."""

from __future__ import annotations

import os
import random
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from tests.unit.net.test_connection import Client, Fixture, Transport, framed

from ottla.net.connection import Connection
from ottla.net.network import SocketNetwork
from ottla.net.tls import TlsConnection, TlsLayer, TlsServer

CA = trustme.CA(key_type=trustme.KeyType.ECDSA)
SERVER_CERT = CA.issue_cert("broker.example", key_type=trustme.KeyType.ECDSA)
CLIENT_CERT = CA.issue_cert("alice@example.org", common_name="alice", key_type=trustme.KeyType.ECDSA)


def server_context(**fields: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    SERVER_CERT.configure_cert(context)
    CA.configure_trust(context)
    for name, value in fields.items():
        setattr(context, name, value)
    return context


def client_context(**fields: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    CA.configure_trust(context)
    for name, value in fields.items():
        setattr(context, name, value)
    return context


class RawTransport(Transport):
    """The socket of the server's side."""

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return super().get_extra_info(name)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # type: ignore[override]
        assert high == 0


class LowWatermark(SocketNetwork):
    """A network with one socket, of which only the low watermark can be set."""

    def __init__(self) -> None:
        self.bytes_min = 1
        self.calls = 0

    def direct_socket(self, socket_fd: int) -> Any:
        return self

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.bytes_min = value
        self.calls += 1


class TlsClient(Client):
    """A connection behind TLS, and the client's side of the encryption."""

    def __init__(
        self, fixture: Fixture, server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None,
        host: str = "broker.example",
    ) -> None:  # fmt: skip
        self.frames, self.slots, self.on_frame = [], [], self.reserve
        self._loop, self._kernel = fixture.loop, bytearray()
        self.outcomes: list[ssl.SSLError | None] = []
        self.reads = 0
        fixture.server.network = self.low_watermark = LowWatermark()
        self.connection = TlsConnection(fixture.server, self._handle)
        self.layer = TlsLayer(
            self.connection, server or server_context(), server_name=None, call_soon=fixture.loop.call_soon,
            handshake_done=lambda layer, error: self.outcomes.append(error),
        )  # fmt: skip
        self.layer.received = self.connection.set_low_watermark
        raw: Any = RawTransport("10.0.0.1", None)
        self.transport = raw
        raw.protocol = self.layer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (client or client_context()).wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.layer.connection_made(raw)
        self.received = bytearray()
        self.error: ssl.SSLError | None = None
        self.is_ended = False

    def shake_hands(self, pieces: random.Random | None = None) -> None:
        for _ in range(10):
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self.error = error
            self.exchange(pieces)
            if self.error is not None or self.transport.ended:
                return
        self.exchange(pieces)

    def exchange(self, pieces: random.Random | None = None) -> None:
        """Carry encrypted bytes in both directions, in pieces of random sizes."""
        data = self._outgoing.read()
        while data:
            count = pieces.randint(1, len(data)) if pieces is not None else len(data)
            self._carry(data[:count])
            data = data[count:]
        self._carry(b"")
        self._incoming.write(bytes(self.transport.sent))
        self.transport.sent.clear()

    def _carry(self, data: bytes) -> None:
        """Give bytes to the kernel, from which the layer gets them when there are as many as the low watermark."""
        self._kernel += data
        while (
            self._kernel
            and len(self._kernel) >= self.low_watermark.bytes_min
            and self.transport.reading
            and not self.transport.ended
        ):
            view = self.layer.get_buffer(-1)
            count = min(len(view), len(self._kernel))
            view[:count] = self._kernel[:count]
            del self._kernel[:count]
            self.reads += 1
            self.layer.buffer_updated(count)

    def send(self, data: bytes, pieces: random.Random | None = None) -> None:
        self.tls.write(data)
        self.exchange(pieces)

    def turn(self) -> None:
        for _ in range(20):
            self._loop.run()
            self.exchange()

    def read(self) -> bytes:
        """Return everything that the server sent so far."""
        try:
            while piece := self.tls.read(1 << 20):
                self.received += piece
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        return bytes(self.received)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture(in_flight_max=5)


def opened(fixture: Fixture, **sides: Any) -> TlsClient:
    client = TlsClient(fixture, **sides)
    client.on_frame = client.echo
    client.shake_hands()
    assert client.outcomes == [None]
    return client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_request_is_decrypted_and_its_reply_encrypted(fixture: Fixture, version: ssl.TLSVersion) -> None:
    client = opened(fixture, client=client_context(maximum_version=version))
    client.send(framed(b"request of a client"))
    fixture.loop.run()
    assert client.frames == [b"request of a client"]
    assert b"request" not in client.transport.sent
    client.exchange()
    assert client.read() == b"request of a client"


@pytest.mark.parametrize("seed", range(40))
def test_frames_arrive_whole_and_in_order_however_they_are_split(seed: int) -> None:
    """With two requests in flight at most, so that the connection often stops reading in the middle of a record.

    No byte waits in the kernel for bytes that are not sent.
    """
    source = random.Random(seed)
    version = source.choice([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    sizes = [source.choice([source.randint(8, 3000), source.randint(8, 300_000)]) for _ in range(source.randint(1, 6))]
    fixture = Fixture(in_flight_max=2)
    client = TlsClient(fixture, client=client_context(maximum_version=version))
    client.on_frame = client.echo
    client.shake_hands(source)
    payloads = [source.randbytes(size) for size in sizes]
    data = framed(*payloads)
    while data:
        count = source.randint(1, len(data))
        client.send(data[:count], source)
        data = data[count:]
        if source.random() < 0.5:
            client.turn()
    client.turn()
    assert client.frames == payloads
    assert client.read() == b"".join(payloads)


def test_event_loop_waits_for_the_rest_of_a_frame(fixture: Fixture) -> None:
    """It reads some thousand bytes at a time, although the client sends records of 500 bytes."""
    client = opened(fixture)
    data = framed(bytes(16_000), bytes(100_000), b"the last one")
    before = client.reads
    for start in range(0, len(data), 500):
        client.send(data[start : start + 500])
    assert [len(frame) for frame in client.frames] == [16_000, 100_000, 12]
    assert client.low_watermark.bytes_min == 1
    assert client.reads - before < 20 and client.low_watermark.calls < 10, "there are 233 records"


def test_connection_that_does_not_read_decrypts_nothing(fixture: Fixture) -> None:
    client = opened(fixture)
    client.connection.mute()
    client.send(framed(b"first of all", b"second one"))
    client.turn()
    before = len(client.frames)
    client.send(framed(b"third one"))
    client.turn()
    assert len(client.frames) == before == 1
    assert not client.transport.reading
    client.connection.unmute()
    client.turn()
    assert client.frames == [b"first of all", b"second one", b"third one"]


def test_records_of_a_file_are_encrypted(fixture: Fixture, tmp_path: Path) -> None:
    """They never take the way past the encryption, also with a socket that could."""
    data = os.urandom(700_000)
    path = tmp_path / "segment"
    path.write_bytes(b"head" + data)
    client = opened(fixture)
    client.on_frame = client.reserve
    with path.open("rb") as file:
        region: Any = SimpleNamespace(position=4, size_bytes=len(data), file=SimpleNamespace(fd=file.fileno()))
        client.send(framed(b"fetch it"))
        client.slots[0].fill(b"header", [region, b"trailer"])
        fixture.loop.run()
        assert data[:100] not in client.transport.sent and b"header" not in client.transport.sent
        client.exchange()
        assert client.read() == b"header" + data + b"trailer"


def test_large_reply_lets_other_connections_in(fixture: Fixture, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    client = opened(fixture)
    client.on_frame = client.reserve
    with path.open("rb") as file:
        region: Any = SimpleNamespace(position=0, size_bytes=1 << 20, file=SimpleNamespace(fd=file.fileno()))
        client.send(framed(b"fetch it"))
        client.slots[0].fill(b"", [region])
        fixture.server.end_turn()
        assert 0 < len(client.transport.sent) < 400_000
        assert client.connection.sending
        client.turn()
        assert len(client.read()) == 1 << 20


def test_full_socket_holds_the_rest_of_a_reply_in_its_file(fixture: Fixture, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    client = opened(fixture)
    client.on_frame = client.reserve
    with path.open("rb") as file:
        region: Any = SimpleNamespace(position=0, size_bytes=1 << 20, file=SimpleNamespace(fd=file.fileno()))
        client.send(framed(b"fetch it"))
        client.transport.full = True
        client.slots[0].fill(b"", [region])
        client.turn()
        assert len(client.transport.buffered) < 100_000
        client.transport.drain()
        client.turn()
        assert len(client.read()) == 1 << 20


def test_close_tells_the_client_that_nothing_follows(fixture: Fixture) -> None:
    client = opened(fixture)
    client.send(framed(b"last one"))
    client.connection.close()
    client.turn()
    assert client.read() == b"last one" and client.is_ended
    assert client.transport.ended == "closed"


def test_client_that_ends_its_side_still_gets_its_replies(fixture: Fixture) -> None:
    client = opened(fixture)
    client.on_frame = client.reserve
    client.send(framed(b"last one"))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.exchange()
    client.slots[0].fill(b"reply")
    client.turn()
    assert client.transport.ended == "closed"


def test_client_that_ends_its_side_gets_replies_to_requests_that_waited(fixture: Fixture) -> None:
    """More requests than may be in flight arrive in the same read as the end."""
    client = opened(fixture)
    payloads = [b"request %d" % number for number in range(20)]
    for payload in payloads:
        client.tls.write(framed(payload))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.turn()
    assert client.frames == payloads
    assert client.transport.ended == "closed"


def test_client_that_does_not_trust_the_certificate_ends_the_handshake(fixture: Fixture) -> None:
    client = TlsClient(fixture, client=ssl.create_default_context())
    client.shake_hands()
    assert client.error is not None and client.error.reason == "CERTIFICATE_VERIFY_FAILED"
    assert [type(each) for each in client.outcomes] == [ssl.SSLError] and client.transport.ended


def test_client_checks_the_name_of_the_broker(fixture: Fixture) -> None:
    client = TlsClient(fixture, host="other.example")
    client.shake_hands()
    assert client.error is not None and "Hostname mismatch" in str(client.error)


@pytest.mark.parametrize(
    "data", [framed(b"plaintext request of a client"), b"GET / HTTP/1.1\r\n\r\n", bytes(40), b"\x16\x03\x01"]
)
def test_bytes_that_are_no_tls_close_the_connection_and_reach_no_handler(fixture: Fixture, data: bytes) -> None:
    client = TlsClient(fixture)
    client._carry(data)
    client.layer.eof_received()
    assert client.frames == [] and client.transport.ended
    client.layer.connection_lost(None)
    assert len(client.outcomes) == 1 and client.outcomes[0] is not None


def test_damaged_record_ends_the_connection(fixture: Fixture) -> None:
    client = opened(fixture)
    client.tls.write(framed(b"request"))
    data = bytearray(client._outgoing.read())
    data[-1] ^= 1
    client._carry(bytes(data))
    assert client.frames == [] and client.transport.ended == "aborted"


def test_connection_that_is_lost_during_the_handshake_is_forgotten(fixture: Fixture) -> None:
    tls = TlsServer(server_context, handshakes_max=10, setup_s=10.0, ready=lambda connection, layer: None)
    layer = tls.factory(fixture.server, lambda *arguments: None, "SSL")()
    layer.connection_made(RawTransport("10.0.0.1", None))  # type: ignore[arg-type]
    assert len(fixture.server.connections) == 1
    layer.connection_lost(None)
    assert not fixture.server.connections
    assert tls.failed == 1


def test_oldest_handshake_ends_when_there_are_too_many(fixture: Fixture) -> None:
    """Clients that begin a handshake and send no more do not keep others out. Those that send nothing do not count."""
    done: list[Any] = []
    tls = TlsServer(
        server_context, handshakes_max=2, setup_s=10.0, ready=lambda connection, tls: done.append(connection)
    )  # fmt: skip

    def connect() -> tuple[TlsLayer, RawTransport]:
        layer, raw = tls.factory(fixture.server, lambda *arguments: None, "SSL")(), RawTransport("10.0.0.1", None)
        layer.connection_made(raw)  # type: ignore[arg-type]
        return layer, raw

    def send(layer: TlsLayer, data: bytes) -> None:
        view = layer.get_buffer(-1)
        view[: len(data)] = data
        layer.buffer_updated(len(data))

    silent = [connect() for _ in range(5)]
    assert all(layer.object is None for layer, _ in silent), "a connection without bytes has no state of TLS"
    begun = [connect() for _ in range(3)]
    for layer, _ in begun:
        send(layer, b"\x16\x03\x01\x00\xff")
    assert [raw.ended for _, raw in begun] == ["aborted", "", ""]
    assert [raw.ended for _, raw in silent] == [""] * 5
    assert tls.failed == 1
    client = client_context().wrap_bio(incoming := ssl.MemoryBIO(), outgoing := ssl.MemoryBIO(), server_hostname="x")
    layer, raw = silent[0]
    client.context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    send(layer, outgoing.read())
    assert [raw.ended for _, raw in begun] == ["aborted", "aborted", ""]
    assert raw.sent, "the new client is served"
    assert incoming.pending == 0 and done == []


def test_certificate_of_the_client_is_asked_for_and_known(fixture: Fixture) -> None:
    wanted = server_context(verify_mode=ssl.CERT_REQUIRED)
    with_certificate = client_context()
    CLIENT_CERT.configure_cert(with_certificate)
    client = opened(fixture, server=wanted, client=with_certificate)
    assert b"alice" in (client.layer.object.getpeercert(True) or b"")
    stranger = TlsClient(fixture, server=wanted)
    stranger.shake_hands()
    stranger.exchange()
    assert stranger.outcomes[0] is not None and stranger.frames == []


def test_connection_without_tls_is_not_changed() -> None:
    """TlsConnection replaces exactly what would write to the socket."""
    direct = {"_send_with_more", "_send_region"}
    assert direct <= vars(TlsConnection).keys() and direct <= vars(Connection).keys()
