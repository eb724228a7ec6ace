"""Clients that never log in: connections that send nothing, half a TLS handshake, garbage, or tokens without end."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from tests.hostile.harness import Attacked, scaled

from ottla.testing.process import reserve_port
from ottla.testing.raw import RawClient
from ottla.wire.messages.api_versions import ApiVersionsRequest

pytestmark = pytest.mark.broker

#: connections that are opened before the broker gets the time to accept them; its backlog is limited
TOGETHER = 40
#: how long the broker waits for a login
SETUP_S = 1.0
WAIT_S = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    directory = tmp_path_factory.mktemp("certificates")
    made = trustme.CA()
    issued = made.issue_cert("127.0.0.1")
    path = directory / "broker.pem"
    path.touch(0o600)
    path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return made, path


@pytest.fixture(scope="module")
def secure_broker(authority: tuple[trustme.CA, Path]) -> Iterator[tuple[Attacked, int]]:
    """A broker whose listener SECURE is attacked; the bystander uses the other one. Also the port of SECURE."""
    with contextlib.closing(reserve_port()) as reserved, contextlib.closing(reserve_port()) as plain:
        port = reserved.getsockname()[1]
        settings = {
            "listeners": f"SECURE://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{plain.getsockname()[1]}",
            "listener.security.protocol.map": "SECURE:SASL_SSL,PLAINTEXT:PLAINTEXT",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority[1]),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512", "max.connections.per.ip": "20000",
            "connection.setup.timeout.ms": str(int(SETUP_S * 1000)),
        }  # fmt: skip
        with Attacked(settings) as attacked:
            yield attacked, port


@pytest.fixture
def target(secure_broker: tuple[Attacked, int]) -> tuple[Attacked, int]:
    """The same broker for every attack, measured from now on."""
    secure_broker[0].measure()
    return secure_broker


def connections(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def open_many(port: int, count: int, first_bytes: bytes) -> list[socket.socket]:
    """Open connections that send something and then nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 1000), hard), hard))
    found = []
    for number in range(count):
        found.append(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
        with contextlib.suppress(ConnectionError):
            found[-1].sendall(first_bytes)
        if number % TOGETHER == TOGETHER - 1:
            time.sleep(0.01)  # other clients are accepted in between
    return found


def client_hello() -> bytes:
    context = ssl.create_default_context()
    sent = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return sent.read()


GARBAGE = {
    "nothing": b"",
    "half a ClientHello": client_hello()[:100],
    "a ClientHello": client_hello(),
    "a Kafka frame": struct.pack(">ihhih", 10, 18, 0, 1, -1),
    "a TLS record of another size": b"\x16\x03\x01\xff\xff" + bytes(1000),
    "random bytes": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("first_bytes", GARBAGE.values(), ids=GARBAGE)
def test_connections_without_a_login_are_closed_and_cost_little(
    target: tuple[Attacked, int], first_bytes: bytes
) -> None:
    attacked, port = target
    before = connections(attacked.process.pid)
    opened = open_many(port, scaled(300, 10_000), first_bytes)
    eventually(lambda: connections(attacked.process.pid) <= before + 10)
    attacked.report().check()
    for each in opened:
        each.close()


def logged_out(port: int, authority: trustme.CA) -> ssl.SSLSocket:
    """Return a connection with TLS and without a login."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), WAIT_S), server_hostname="127.0.0.1")


def test_bytes_that_arrive_slowly_do_not_extend_the_time_for_the_login(target: tuple[Attacked, int]) -> None:
    attacked, port = target
    hello = client_hello()
    slow = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(20)]
    closed: set[socket.socket] = set()
    began = time.monotonic()
    for byte in hello:
        for each in slow:
            try:
                each.sendall(bytes([byte]))
            except ConnectionError:
                closed.add(each)
        if len(closed) == len(slow):
            break
        time.sleep(0.02)
        assert time.monotonic() - began < WAIT_S
    assert len(closed) == len(slow), "a byte now and then has kept the connection open"
    attacked.report().check()
    for each in slow:
        each.close()


@pytest.mark.parametrize("size", [64 * 1024 + 1, 1 << 20, (1 << 31) - 1, -1])
def test_frame_that_is_too_large_before_the_login_ends_the_connection(
    target: tuple[Attacked, int], authority: tuple[trustme.CA, Path], size: int
) -> None:
    attacked, port = target
    for _ in range(scaled(5, 200)):
        with logged_out(port, authority[0]) as client:
            client.settimeout(WAIT_S)
            client.sendall(struct.pack(">i", size) + bytes(8))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert client.recv(1) == b"", "a frame of this size was answered"
    attacked.report().check()


def test_tokens_without_end_are_cut_off(target: tuple[Attacked, int], authority: tuple[trustme.CA, Path]) -> None:
    """Handshakes are repeated, and no login follows: the connection ends when its time is over."""
    attacked, port = target
    handshake = struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", 13) + b"SCRAM-SHA-512"
    frame = struct.pack(">i", len(handshake)) + handshake
    with logged_out(port, authority[0]) as client:
        client.settimeout(WAIT_S)
        began = time.monotonic()
        try:
            while True:
                client.sendall(frame)
                if not client.recv(4096):
                    break
                assert time.monotonic() - began < WAIT_S, "the broker answers for ever"
        except (ConnectionError, ssl.SSLError):
            pass
    attacked.report().check()


def test_silent_connections_do_not_keep_clients_out_when_descriptors_run_out() -> None:
    """The oldest connection that never sent a request is closed for each new one. Those that are used stay."""
    with Attacked() as attacked:
        pid, limit = attacked.process.pid, scaled(256, 1024)
        port = attacked.bootstrap.rsplit(":", 1)[1]
        with RawClient(attacked.bootstrap) as used:
            used.ask(ApiVersionsRequest(), 0)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
            opened = open_many(int(port), 2 * limit, b"")
            for _ in range(20):
                with RawClient(attacked.bootstrap) as client:
                    assert client.ask(ApiVersionsRequest(), 0).error_code == 0
            assert used.ask(ApiVersionsRequest(), 0).error_code == 0
            assert connections(pid) <= limit
            attacked.report().check()
        for each in opened:
            each.close()
