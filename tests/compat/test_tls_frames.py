"""Requests over TLS in many small records, as librdkafka sends them: the broker waits in the kernel for their rest."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator

import pytest
from drivers import DEADLINE_S

from secure_broker import SecureBroker

_CLIENT_ID = b"x" * 30_000
#: ApiVersions of version 0 with a long client id
_REQUEST = struct.pack(">hhih", 18, 0, 7, len(_CLIENT_ID)) + _CLIENT_ID
_FRAME = struct.pack(">i", len(_REQUEST)) + _REQUEST


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def client(request: pytest.FixtureRequest, secure_broker: SecureBroker) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=secure_broker.authority)
    context.maximum_version = request.param
    host, port = secure_broker.addresses["SSL"].split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_hostname=host) as tls:
            yield tls


def send(client: ssl.SSLSocket, data: bytes) -> None:
    for start in range(0, len(data), 300):
        client.sendall(data[start : start + 300])


def test_requests_in_small_records_are_answered(client: ssl.SSLSocket) -> None:
    for _ in range(3):
        send(client, _FRAME)
        with client.makefile("rb", buffering=1 << 16) as replies:
            size, correlation, error = struct.unpack(">iih", replies.read(10))
            assert (correlation, error) == (7, 0)
            assert len(replies.read(size - 6)) == size - 6


def test_client_that_closes_its_side_within_a_request_is_closed(client: ssl.SSLSocket) -> None:
    send(client, _FRAME[:10_000])
    socket.socket.shutdown(client, socket.SHUT_WR)
    assert client.recv(1) == b""
