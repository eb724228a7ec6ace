"""A small blocking client for what confluent-kafka has no call for: one request, one answer, any broker.

It speaks PLAINTEXT only. Verbs import this file when they run, never before, as they do with `ottla.cli.cluster`.
Whatever goes wrong leaves here as a `Failure` with its exit code.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

from ottla.cli.connection import Connection, split_addresses
from ottla.cli.failure import Failure, NotFound, NotHealthy
from ottla.cli.output import escape_controls
from ottla.model.errors import ErrorCode
from ottla.wire import (
    APIS,
    Message,
    WireError,
    decode,
    encode,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.wire.frame import skip_tags
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_CLIENT_ID = b"ottla-cli"
#: a connection attempt to one address gives up after this, whatever --timeout allows for the whole
_CONNECT_S_MAX = 3.0
_AGAIN_S = 0.1
_RESPONSE_BYTES_MAX = 100 * 1024 * 1024
_RECEIVE_BYTES = 1 << 16

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")

#: many keys at once
_FIND_COORDINATOR_MIN = 4
#: from here on a question about a topic does not create it
_METADATA_MIN = 4

#: codes that pass: the cluster is just deciding who is responsible, or that one is not ready yet
_PASSING = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
#: what a broker without this person's permission says; Ottla itself sends only one of them
_FORBIDDEN = {29: "topic", 30: "group", 31: "cluster", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transaction"}

_T = TypeVar("_T")


class CoordinatorType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class Node(NamedTuple):
    """A broker and where it listens; one that nobody has asked for its id has -1."""

    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        name = "broker" if self.broker_id < 0 else f"broker {self.broker_id}"
        return f"{name} at {self.host}:{self.port}"


class TryAgain(NotHealthy):
    """The answer is no for now: asked again in a moment, it may be another."""


class WireClient:
    """Connections to the brokers of one cluster; each is opened when it is first asked."""

    def __init__(self, connection: Connection) -> None:
        _check_plaintext(connection.properties)
        self._connection = connection
        self._open: dict[tuple[str, int], _BrokerConnection] = {}
        self._first: Node | None = None

    def close(self) -> None:
        for opened in self._open.values():
            opened.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Asking

    def ask(self, node: Node, request: Message, version_min: int = 0) -> Any:
        """The answer of this broker, in the newest version that both sides know and that is not below the least."""
        return self._connected(node).ask(request, version_min)

    def ask_any(self, request: Message, version_min: int = 0) -> Any:
        return self.ask(self._bootstrap(), request, version_min)

    def until_settled(self, question: Callable[[], _T]) -> _T:
        """Ask again while the answer is `TryAgain`, for as long as the person is willing to wait."""
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                return question()
            except TryAgain:
                if time.monotonic() + _AGAIN_S >= deadline:
                    raise
            time.sleep(_AGAIN_S)

    # Where things are

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers and topics: those named, which must exist, or all."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        metadata: MetadataResponse = self.ask_any(request, _METADATA_MIN)
        for topic in metadata.topics:
            # Among all topics one may be just going; only somebody who named it must hear of that.
            if named is not None:
                check(topic.error_code, f"topic {shown(topic.name or '')}")
        return metadata

    def brokers(self) -> list[Node]:
        return sorted(nodes_of(self.metadata([])).values())

    def coordinators(self, kind: CoordinatorType, keys: Iterable[str]) -> dict[str, Node]:
        """The broker that coordinates each of these groups or transactions."""
        asked = list(dict.fromkeys(keys))
        if not asked:
            return {}
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=asked)
        answer = self.ask_any(request, _FIND_COORDINATOR_MIN)
        found = {}
        for row in answer.coordinators:
            check(row.error_code, f"coordinator of {shown(row.key)}", row.error_message)
            found[row.key] = Node(row.node_id, row.host, row.port)
        missing = [key for key in asked if key not in found]
        if missing:
            raise NotHealthy(f"{self._bootstrap()} names no coordinator of {shown(missing[0])}; see 'ottla doctor'")
        return found

    # Connections

    def _bootstrap(self) -> Node:
        """The first address that somebody answers at."""
        if self._first is None:
            reasons = []
            for host, port in split_addresses(self._connection.bootstrap):
                node = Node(-1, host, port)
                try:
                    self._connected(node)
                except _NoConnection as failure:
                    reasons.append(failure.reason)
                else:
                    self._first = node
                    return node
            _fail_unreachable(self._connection.bootstrap, reasons)
        return self._first

    def _connected(self, node: Node) -> _BrokerConnection:
        address = (node.host, node.port)
        if address not in self._open:
            self._open[address] = _BrokerConnection(node, self._connection.timeout_s)
        return self._open[address]


class _NoConnection(NotHealthy):
    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node} cannot be reached ({reason}); see 'ottla doctor'")
        self.reason = reason


class _BrokerConnection:
    """One connection, and what the broker at its end can do."""

    def __init__(self, node: Node, timeout_s: float) -> None:
        self._node = node
        self._timeout_s = timeout_s
        self._correlation_ids = itertools.count(1)
        try:
            self._socket = socket.create_connection((node.host, node.port), min(timeout_s, _CONNECT_S_MAX))
        except OSError as error:
            raise _NoConnection(node, str(error.strerror or error).lower()) from None
        try:
            # The oldest version is the one that every broker can answer.
            answer = self._ask(ApiVersionsRequest(), 0)
            check(answer.error_code, str(node))
        except Failure:
            self.close()
            raise
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def ask(self, request: Message, version_min: int) -> Any:
        return self._ask(request, self._version(request, version_min))

    def _version(self, request: Message, version_min: int) -> int:
        known_min, known_max = request.VERSIONS
        served_min, served_max = self._versions.get(request.API_KEY, (0, -1))
        version: int = min(known_max, served_max)
        if version < max(known_min, served_min, version_min):
            has = f"has versions {served_min} to {served_max}" if served_max >= 0 else "does not have it"
            needed = max(known_min, version_min)
            raise Failure(
                f"the broker cannot do this: it takes {APIS[request.API_KEY].name} in version {needed} or newer, and "
                f"{self._node} {has}"
            )
        return version

    def _ask(self, request: Message, version: int) -> Any:
        api_key, correlation_id = request.API_KEY, next(self._correlation_ids)
        header = _HEADER.pack(api_key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
        tags = b"\0" if request_header_version(api_key, version) == 2 else b""
        try:
            payload = header + tags + encode(request, version)
        except ValueError as error:
            raise Failure(f"this cannot be asked: {shown(str(error))}") from None
        try:
            frame = self._exchange(_SIZE.pack(len(payload)) + payload)
            return _read_answer(frame, api_key, version, correlation_id)
        except (OSError, WireError, StructError, IndexError) as error:
            # What is left on the connection belongs to a question that nobody waits for any more.
            self.close()
            raise self._silent(error) from None

    def _exchange(self, data: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(data)
        (size,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        if not _SIZE.size <= size <= _RESPONSE_BYTES_MAX:
            raise WireError(f"an answer of {size} bytes")
        return self._receive(size, deadline)

    def _receive(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(min(size - len(received), _RECEIVE_BYTES))
            if not data:
                raise WireError("it closed the connection")
            received += data
        return bytes(received)

    def _silent(self, error: Exception) -> NotHealthy:
        cause = f"none within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return NotHealthy(
            f"{self._node} accepts connections but gives no Kafka answer ({cause}); check the port, and that its "
            "listener is PLAINTEXT, or run 'ottla doctor'"
        )


def nodes_of(metadata: MetadataResponse) -> dict[int, Node]:
    return {row.node_id: Node(row.node_id, row.host, row.port) for row in metadata.brokers}


def check(code: int, subject: str, text: str | None = None) -> None:
    """Raise what an error code means for `subject`; 0 is no error."""
    if code:
        raise failure_of(code, subject, text)


def failure_of(code: int, subject: str, text: str | None = None) -> Failure:
    """An error code as a line that says what to do, with the broker's own text where it sent one."""
    name = _name_of(code)
    said = f"{name}, {shown(text)}" if text else name
    if code in _PASSING:
        return TryAgain(f"{subject}: {said}; try again in a moment, or see 'ottla doctor'")
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFound(f"{subject} does not exist; see 'ottla topic list'")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla group list'")
    if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla txn list'")
    if code == ErrorCode.REQUEST_TIMED_OUT:
        return NotHealthy(f"{subject}: {said}; see 'ottla doctor'")
    if code in _FORBIDDEN:
        return Failure(f"{subject}: the cluster does not allow this client to do that ({_FORBIDDEN[code]} permission)")
    return Failure(f"{subject}: {said}")


def shown(name: str) -> str:
    """A name or text from the cluster may hold anything, terminal commands included; text stays text."""
    return escape_controls(name, keep="")


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"Kafka's error {code}"


def _check_plaintext(properties: Mapping[str, str]) -> None:
    protocol = properties.get("security.protocol")
    if protocol is not None and protocol.lower() == "plaintext":
        return
    secured = [name for name in properties if name.startswith(("sasl.", "ssl."))]
    named = f"security.protocol={protocol}" if protocol is not None else next(iter(secured), None)
    if named is not None:
        raise Failure(
            f"this verb speaks PLAINTEXT only so far, and {shown(named)} is set (-X or --command-config); name a "
            "PLAINTEXT listener with -b and set -X security.protocol=plaintext"
        )


def _read_answer(frame: bytes, api_key: int, version: int, correlation_id: int) -> Any:
    (found,) = _SIZE.unpack_from(frame)
    if found != correlation_id:
        raise WireError("it answered another question")
    position = _SIZE.size
    if response_header_version(api_key, version):
        position = skip_tags(frame, position, len(frame))
    answer, _ = decode(response_class(api_key), version, frame, position)
    return answer


def _fail_unreachable(bootstrap: str, reasons: list[str]) -> NoReturn:
    # The words are those of the other client; loading it is slow, which somebody who waited for nothing can bear.
    from ottla.cli.cluster import unreachable

    raise unreachable(bootstrap, "; ".join(sorted(set(reasons))))
