"""Cluster-wide broker settings: the config resource of type BROKER with an empty name.

librdkafka refuses that name, so these two requests are written here by hand, in their oldest living versions:
DescribeConfigs (32) v1 and IncrementalAlterConfigs (44) v0, both before flexible encoding.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from struct import Struct, error
from typing import NamedTuple, TypeVar

from ottla.cli.failure import Failure, NotHealthy

_DESCRIBE_CONFIGS = (32, 1)
_INCREMENTAL_ALTER_CONFIGS = (44, 0)
_BROKER_RESOURCE = 4
_SET, _DELETE = 0, 1
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024

_HEADER = Struct(">hhih")
_I8 = Struct(">b")
_I16 = Struct(">h")
_I32 = Struct(">i")

_T = TypeVar("_T")


class DefaultEntry(NamedTuple):
    """One cluster-wide setting; `source` is Kafka's number for where the value comes from."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool


class DefaultConfig:
    """The settings that all brokers share, asked of one of them."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s

    def describe(self) -> list[DefaultEntry]:
        body = _I32.pack(1) + _I8.pack(_BROKER_RESOURCE) + _string("") + _I32.pack(-1) + b"\0"
        return self._ask(_DESCRIBE_CONFIGS, body, _read_described)

    def alter(self, values: Mapping[str, str], deleted: Iterable[str], *, dry_run: bool) -> None:
        changes = [_string(key) + _I8.pack(_SET) + _string(value) for key, value in values.items()]
        changes += [_string(key) + _I8.pack(_DELETE) + _string(None) for key in deleted]
        resource = _I8.pack(_BROKER_RESOURCE) + _string("") + _I32.pack(len(changes)) + b"".join(changes)
        self._ask(_INCREMENTAL_ALTER_CONFIGS, _I32.pack(1) + resource + bytes([dry_run]), _read_altered)

    def _ask(self, api: tuple[int, int], body: bytes, read: Callable[[_Reply], _T]) -> _T:
        client_id = b"ottla-cli"
        request = _HEADER.pack(*api, 1, len(client_id)) + client_id + body
        try:
            with socket.create_connection((self._host, self._port), timeout=self._timeout_s) as connection:
                connection.sendall(_I32.pack(len(request)) + request)
                (size,) = _I32.unpack(_receive(connection, 4))
                if not 0 < size <= _RESPONSE_BYTES_MAX:
                    raise ConnectionError(f"a reply of {size} bytes")
                return read(_Reply(_receive(connection, size)))
        except (OSError, error, UnicodeDecodeError) as problem:
            raise NotHealthy(
                f"broker {self._host}:{self._port} did not answer the request for its default settings ({problem}); "
                "see 'ottla doctor'"
            ) from None


class _Reply:
    """Fields of a response, read one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # The correlation id and the throttle time stand before everything else.
        self._position = 8

    def number(self, kind: Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return int(value)

    def string(self) -> str | None:
        size = self.number(_I16)
        if size < 0:
            return None
        start = self._position
        self._position += size
        return self._data[start : start + size].decode()


def _read_described(reply: _Reply) -> list[DefaultEntry]:
    _read_result(reply, results=reply.number(_I32))
    entries = []
    for _ in range(reply.number(_I32)):
        name, value = reply.string(), reply.string()
        read_only, source, sensitive = reply.number(_I8), reply.number(_I8), reply.number(_I8)
        for _ in range(reply.number(_I32)):
            reply.string(), reply.string(), reply.number(_I8)
        entries.append(DefaultEntry(name or "", value, source, bool(read_only), bool(sensitive)))
    return entries


def _read_altered(reply: _Reply) -> None:
    _read_result(reply, results=reply.number(_I32))


def _read_result(reply: _Reply, results: int) -> None:
    if results != 1:
        raise ConnectionError(f"{results} results for one question")
    code, message = reply.number(_I16), reply.string()
    if code:
        raise Failure(f"broker defaults: {message or f'error {code}'}")
    reply.number(_I8)
    reply.string()


def _string(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    data = text.encode()
    return _I16.pack(len(data)) + data


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return data
