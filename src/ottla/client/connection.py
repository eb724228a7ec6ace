"""One connection to one broker: a blocking socket, negotiated versions, requests in a pipeline, large replies in
memory that is used again.

A connection that has failed is closed and stays so; whoever owns it opens another. Every wait ends at a deadline, which
is a moment of `time.monotonic()`.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from ottla import __version__
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectionLost,
    Unreachable,
    UnsupportedByBroker,
)
from ottla.client.security import Security, authenticate
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
from ottla.wire.frame import Buffer, skip_tags
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

#: an attempt to connect to one address gives up after this, whatever the deadline
_CONNECT_S_MAX: Final = 5.0
#: a broker answers the first requests of a connection (versions, authentication) within this time; one that does not is
#: paused or cut off, and the time that is left belongs to other brokers
_HANDSHAKE_S_MAX: Final = 10.0
#: a size above this is no reply of Kafka's: another protocol was taken for one
REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
VERSION_MAX: Final = 1 << 15
#: the first version that carries the cluster's features
_API_VERSIONS: Final = 3
_API_VERSIONS_KEY: Final = 18
#: as many pieces as one sendmsg takes everywhere
_PIECES_MAX: Final = 512

_SIZE: Final = Struct(">i")
_CODE: Final = Struct(">h")
_HEADER: Final = Struct(">ihhih")
_READ_FAILURES: Final = (OSError, WireError, StructError, IndexError)


class Node(NamedTuple):
    """A broker and where it listens; one that nobody has asked for its id has -1."""

    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        name = "broker" if self.broker_id < 0 else f"broker {self.broker_id}"
        return f"{name} at {self.host}:{self.port}"


class Sent(NamedTuple):
    """A request whose answer is still to come."""

    correlation_id: int
    api_key: int
    version: int


class ReplyMemory:
    """Memory for replies. A piece is used again once nobody looks at what it held before."""

    _PIECES = 3
    _ROUNDING = 1 << 18

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A view of `size` bytes; as long as it, or anything made from it, is alive, the bytes stay what they are."""
        for piece in self._pieces:
            if len(piece) >= size and _is_free(piece):
                return memoryview(piece)[:size]
        piece = bytearray(-(-size // self._ROUNDING) * self._ROUNDING)
        self._pieces.append(piece)
        if len(self._pieces) > self._PIECES:
            del self._pieces[0]
        return memoryview(piece)[:size]


def _is_free(piece: bytearray) -> bool:
    try:
        # A bytearray refuses to change its size while somebody holds a view of it.
        piece.append(piece.pop())
    except BufferError:
        return False
    return True


class BrokerConnection:
    """Requests go out and answers come back in the same order; `ask` does one of each."""

    def __init__(self, node: Node, security: Security, *, client_id: str, deadline: float) -> None:
        self.node = node
        #: finalized features of the cluster and their levels, such as transaction.version
        self.features: dict[str, int] = {}
        self._client_id = client_id.encode()
        self._correlation_ids = itertools.count(1)
        self._sent: deque[Sent] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._open = True
        #: the connection was lost: its broker went away, did not answer in time or sent something else
        self.is_lost = False
        deadline = min(deadline, time.monotonic() + _HANDSHAKE_S_MAX)
        self._socket = self._connect(security, deadline)
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        try:
            self._negotiate(deadline)
            if security.sasl is not None:
                self._authenticate(security, deadline)
        except ClientError:
            self.close()
            raise

    def _connect(self, security: Security, deadline: float) -> socket.socket:
        left_s = min(deadline - time.monotonic(), _CONNECT_S_MAX)
        try:
            plain = socket.create_connection((self.node.host, self.node.port), max(left_s, 0.001))
        except OSError as error:
            raise Unreachable(str(self.node), str(error.strerror or error).lower()) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            plain.settimeout(max(deadline - time.monotonic(), 0.001))
            return security.wrap(plain, self.node.host)
        except OSError as error:
            plain.close()
            raise ConnectionLost(str(self.node), str(error.strerror or error).lower()) from None
        except ClientError:
            plain.close()
            raise

    def _negotiate(self, deadline: float) -> None:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        sent = self._send_message(request, _API_VERSIONS, deadline)
        _, frame = self.receive_frame(deadline, None)
        try:
            (code,) = _CODE.unpack_from(frame, _SIZE.size)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                # A broker that is older than the question answers in the oldest version, which every broker has.
                sent = self._send_message(ApiVersionsRequest(), 0, deadline)
                _, frame = self.receive_frame(deadline, None)
            answer: ApiVersionsResponse = _decode_answer(frame, sent)
        except _READ_FAILURES as error:
            raise self._lost(error) from None
        if answer.error_code:
            raise BrokerError(answer.error_code, str(self.node))
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self.features = {row.name: row.max_version_level for row in answer.finalized_features}

    def _authenticate(self, security: Security, deadline: float) -> None:
        # Loaded by those who need it.
        from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
        from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

        sasl = security.sasl
        assert sasl is not None
        answer = self.ask(SaslHandshakeRequest(mechanism=sasl.mechanism), deadline=deadline, version_min=1)
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationFailed(
                f"{self.node} does not take sasl.mechanism={sasl.mechanism}; it offers {offered}"
            )

        def ask(words: bytes) -> bytes:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=words), deadline=deadline)
            if answer.error_code:
                raise AuthenticationFailed(
                    f"{self.node} refuses user {sasl.username} ({answer.error_message or answer.error_code}); check "
                    "sasl.username, sasl.password and sasl.mechanism"
                )
            return bytes(answer.auth_bytes)

        authenticate(sasl, ask, self.node.host)

    def close(self) -> None:
        self._open = False
        self._sent.clear()
        with suppress(OSError):
            self._socket.close()

    # State

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def in_flight(self) -> int:
        """Requests whose answers have not been taken."""
        return len(self._sent)

    def version_of(self, api_key: int, version_min: int = 0, version_max: int = VERSION_MAX) -> int:
        """The newest version that both sides know within these bounds.

        :raises UnsupportedByBroker: if there is none.
        """
        known_min, known_max = APIS[api_key].versions
        served = self._versions.get(api_key)
        served_min, served_max = served or (0, -1)
        version = min(known_max, served_max, version_max)
        if version < max(known_min, served_min, version_min):
            raise UnsupportedByBroker(str(self.node), APIS[api_key].name, max(known_min, version_min), served)
        return version

    # Asking

    def ask(self, request: Message, *, deadline: float, version_min: int = 0, version_max: int = VERSION_MAX) -> Any:
        """The answer, in the newest version that both sides know within these bounds."""
        assert not self._sent, "an answer to an earlier request is still to be taken"
        self.send(request, deadline=deadline, version_min=version_min, version_max=version_max)
        return self.receive(deadline)

    def send(self, request: Message, *, deadline: float, version_min: int = 0, version_max: int = VERSION_MAX) -> Sent:
        """:raises ValueError: if the request has a value that its version has no room for."""
        return self._send_message(request, self.version_of(request.API_KEY, version_min, version_max), deadline)

    def _send_message(self, request: Message, version: int, deadline: float) -> Sent:
        return self.send_pieces(request.API_KEY, version, [encode(request, version)], deadline)

    def send_pieces(self, api_key: int, version: int, body: Sequence[Buffer], deadline: float) -> Sent:
        """Send a request whose body is there already, in pieces that are not copied."""
        sent = Sent(next(self._correlation_ids), api_key, version)
        tags = b"\0" if request_header_version(api_key, version) == 2 else b""
        size = _HEADER.size - _SIZE.size + len(self._client_id) + len(tags) + sum(map(len, body))
        head = _HEADER.pack(size, api_key, version, sent.correlation_id, len(self._client_id)) + self._client_id + tags
        try:
            if len(body) == 1 or self._is_tls:
                self._socket.settimeout(_left_s(deadline))
                self._socket.sendall(b"".join((head, *body)))
            else:
                self._send_all([memoryview(piece) for piece in (head, *body) if len(piece)], deadline)
        except OSError as error:
            raise self._lost(error) from None
        self._sent.append(sent)
        return sent

    def _send_all(self, pieces: list[memoryview], deadline: float) -> None:
        first = 0
        while first < len(pieces):
            self._socket.settimeout(_left_s(deadline))
            count = self._socket.sendmsg(pieces[first : first + _PIECES_MAX])
            while first < len(pieces) and count >= len(pieces[first]):
                count -= len(pieces[first])
                first += 1
            if count:
                pieces[first] = pieces[first][count:]

    def receive(self, deadline: float) -> Any:
        """The answer to the oldest request without one."""
        sent, frame = self.receive_frame(deadline, None)
        try:
            return _decode_answer(frame, sent)
        except _READ_FAILURES as error:
            raise self._lost(error) from None

    def receive_frame(self, deadline: float, memory: ReplyMemory | None) -> tuple[Sent, memoryview]:
        """The same undecoded, from the correlation id on; `memory` is where the bytes may live."""
        assert self._sent, "nothing was asked"
        sent = self._sent[0]
        try:
            start = bytearray(_SIZE.size)
            self._fill(memoryview(start), deadline)
            (size,) = _SIZE.unpack(start)
            if not _SIZE.size <= size <= REPLY_BYTES_MAX:
                raise WireError(f"an answer of {size} bytes")
            frame = memoryview(bytearray(size)) if memory is None else memory.take(size)
            self._fill(frame, deadline)
            (found,) = _SIZE.unpack_from(frame)
            if found != sent.correlation_id:
                raise WireError("it answered another question")
        except _READ_FAILURES as error:
            raise self._lost(error) from None
        self._sent.popleft()
        return sent, frame

    def _fill(self, view: memoryview, deadline: float) -> None:
        position, size = 0, len(view)
        receive_into, settimeout = self._socket.recv_into, self._socket.settimeout
        while position < size:
            settimeout(_left_s(deadline))
            count = receive_into(view[position:])
            if not count:
                raise WireError("it closed the connection")
            position += count

    def _lost(self, error: Exception) -> ConnectionLost:
        # What is left on the connection belongs to a question that nobody waits for any more.
        self.close()
        self.is_lost = True
        reason = "none in time" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", None) or error)
        return ConnectionLost(str(self.node), reason)


def body_position(frame: Buffer, sent: Sent) -> int:
    """Where the answer's body begins in its frame."""
    if response_header_version(sent.api_key, sent.version):
        return skip_tags(frame, _SIZE.size, len(frame))
    return _SIZE.size


def _decode_answer(frame: memoryview, sent: Sent) -> Any:
    answer, _ = decode(response_class(sent.api_key), sent.version, frame, body_position(frame, sent))
    return answer


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
