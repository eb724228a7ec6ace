"""A blocking connection to one broker: negotiated versions, pipelined requests, reused memory for large replies.

A connection that has failed is closed, and its owner opens another one. Every wait ends at a deadline, which is a
moment of `time.monotonic()`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from ottla import __version__
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectionLost,
    Unreachable,
    UnsupportedByBroker,
)
from ottla.client.protocol.frames import (
    MALFORMED,
    SIZE,
    ReplyMemory,
    RequestWriter,
    Sent,
    decode_reply,
    read_correlation_id,
    reply_size,
)
from ottla.client.protocol.handshake import (
    SASL_HANDSHAKE_VERSION,
    Ask,
    LoginRefused,
    MechanismNotEnabled,
    NextToken,
    log_in,
    negotiate,
)
from ottla.client.protocol.metadata import Node
from ottla.client.security import Security, TicketLogin, begin_login
from ottla.security.errors import AuthenticationFailed as LoginFailed
from ottla.security.sasl_client import Sasl, SaslExchange
from ottla.wire import APIS, Message, WireError, encode
from ottla.wire.frame import Buffer

#: limit for an attempt to connect to one address, whatever the deadline
_CONNECT_S_MAX: Final = 5.0
#: limit for the first requests of a connection (versions, login). A broker that takes longer is paused or cut off, and
#: the rest of the time belongs to other brokers
_HANDSHAKE_S_MAX: Final = 10.0
#: a larger size is not that of a reply: the peer speaks another protocol
REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
VERSION_MAX: Final = 1 << 15
_SASL_HANDSHAKE_KEY, _SASL_AUTHENTICATE_KEY = 17, 36
#: pieces in one sendmsg, which every operating system accepts
_PIECES_MAX: Final = 512

_READ_FAILURES: Final = (OSError, *MALFORMED)

_T = TypeVar("_T")


class BrokerConnection:
    """Sends requests and returns the replies in the same order; `ask` does one of each."""

    def __init__(self, node: Node, security: Security, *, client_id: str, deadline: float) -> None:
        """Connect, negotiate versions and log in. Raise ClientError."""
        self.node = node
        #: finalized features of the cluster and their levels, such as transaction.version
        self.features: Mapping[str, int] = {}
        self._requests = RequestWriter(client_id)
        #: requests without a reply, oldest first
        self._sent: deque[Sent] = deque()
        self._versions: Mapping[int, tuple[int, int]] = {}
        self._open = True
        #: the broker closed the connection, did not reply in time, or sent something else than a reply
        self.is_lost = False
        deadline = min(deadline, time.monotonic() + _HANDSHAKE_S_MAX)
        self._socket = self._connect(security, deadline)
        self._is_tls = security.tls is not None
        try:
            self._negotiate(deadline)
            if security.sasl is not None:
                self._log_in(security.sasl, deadline)
        except ClientError:
            self.close()
            raise

    def _connect(self, security: Security, deadline: float) -> socket.socket:
        left_s = min(deadline - time.monotonic(), _CONNECT_S_MAX)
        try:
            plain = socket.create_connection((self.node.host, self.node.port), max(left_s, 0.001))
        except OSError as error:
            raise Unreachable(str(self.node), str(error.strerror or error).lower()) from None
        except (ValueError, OverflowError) as error:
            # The metadata of a broker may have an address that cannot exist.
            raise Unreachable(str(self.node), str(error)) from None
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
        served = self._run(negotiate(__version__), None, deadline)
        if served.error_code:
            raise BrokerError(served.error_code, str(self.node))
        self._versions, self.features = served.versions, served.features

    def _log_in(self, login: Sasl | TicketLogin, deadline: float) -> None:
        self.version_of(_SASL_HANDSHAKE_KEY, SASL_HANDSHAKE_VERSION, SASL_HANDSHAKE_VERSION)
        steps = log_in(login.mechanism, self.version_of(_SASL_AUTHENTICATE_KEY))
        try:
            self._run(steps, begin_login(login, self.node.host), deadline)
        except MechanismNotEnabled as error:
            offered = ", ".join(error.enabled) or "none"
            raise AuthenticationFailed(
                f"{self.node} does not take sasl.mechanism={login.mechanism}; it offers {offered}"
            ) from None
        except LoginRefused as error:
            raise AuthenticationFailed(
                f"{self.node} refuses user {login.username} ({error.reason}); check sasl.username, sasl.password and "
                "sasl.mechanism"
            ) from None
        except LoginFailed as error:
            raise AuthenticationFailed(str(error)) from None

    def _run(self, steps: Generator[Ask | NextToken, Any, _T], exchange: SaslExchange | None, deadline: float) -> _T:
        """Run the steps of a handshake. Return its result."""
        result: Any = None
        try:
            while True:
                step = steps.send(result)
                if isinstance(step, Ask):
                    self._send_message(step.request, step.version, deadline)
                    _, result = self.receive_frame(deadline, None)
                else:
                    assert exchange is not None
                    challenge = step.challenge
                    result = exchange.first() if challenge is None else exchange.answer(challenge)
        except StopIteration as done:
            value: _T = done.value
            return value
        except _READ_FAILURES as error:
            raise self._lost(error) from None

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
        """Return the number of requests without a reply."""
        return len(self._sent)

    def version_of(self, api_key: int, version_min: int = 0, version_max: int = VERSION_MAX) -> int:
        """Return the newest version within these bounds that both sides know.

        :raises UnsupportedByBroker: if there is none.
        """
        known_min, known_max = APIS[api_key].versions
        served = self._versions.get(api_key)
        served_min, served_max = served or (0, -1)
        version = min(known_max, served_max, version_max)
        if version < max(known_min, served_min, version_min):
            raise UnsupportedByBroker(str(self.node), APIS[api_key].name, max(known_min, version_min), served)
        return version

    # Requests

    def ask(self, request: Message, *, deadline: float, version_min: int = 0, version_max: int = VERSION_MAX) -> Any:
        """Return the reply, in the newest version within these bounds that both sides know."""
        assert not self._sent, "an earlier request has no reply yet"
        self.send(request, deadline=deadline, version_min=version_min, version_max=version_max)
        return self.receive(deadline)

    def send(self, request: Message, *, deadline: float, version_min: int = 0, version_max: int = VERSION_MAX) -> Sent:
        """Send a request without waiting for the reply.

        :raises ValueError: if the version of the request has no field for one of its values.
        """
        return self._send_message(request, self.version_of(request.API_KEY, version_min, version_max), deadline)

    def _send_message(self, request: Message, version: int, deadline: float) -> Sent:
        return self.send_pieces(request.API_KEY, version, [encode(request, version)], deadline)

    def send_pieces(self, api_key: int, version: int, body: Sequence[Buffer], deadline: float) -> Sent:
        """Send a request whose body is encoded already. Its pieces are not copied."""
        sent, header = self._requests.header(api_key, version)
        head = SIZE.pack(len(header) + sum(map(len, body))) + header
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
        """Return the reply to the oldest request without one."""
        sent, frame = self.receive_frame(deadline, None)
        try:
            return decode_reply(frame, sent)
        except _READ_FAILURES as error:
            raise self._lost(error) from None

    def receive_frame(self, deadline: float, memory: ReplyMemory | None) -> tuple[Sent, memoryview]:
        """Return the next reply as bytes, which start with the correlation id. `memory`, if given, receives it."""
        assert self._sent, "no request waits for a reply"
        sent = self._sent[0]
        try:
            start = bytearray(SIZE.size)
            self._fill(memoryview(start), deadline)
            size = reply_size(start, 0, REPLY_BYTES_MAX)
            frame = memoryview(bytearray(size)) if memory is None else memory.take(size)
            self._fill(frame, deadline)
            if read_correlation_id(frame) != sent.correlation_id:
                raise WireError("it replied to another request")
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
        # Close it, because the next bytes may be the reply to a request that has timed out.
        self.close()
        self.is_lost = True
        reason = "none in time" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", None) or error)
        return ConnectionLost(str(self.node), reason)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
