"""SASL logins of one listener: what a client may send before it is authenticated, and its session after that.

    accepted ──► ApiVersions, SaslHandshake ──► SaslAuthenticate, once or more ──► all requests
                                  └─ version 0 ─► tokens without headers ────────┘

A connection begins with ``Authentication.handle`` as its handler. After the login it has the dispatcher's, so that an
authenticated request costs nothing here. The session ends when the credentials expire, or after
``connections.max.reauth.ms``: the client must authenticate again before that, with the same mechanism as the same
principal (KIP-368). After it, requests other than a login close the connection.

A refused client gets the same text whatever the reason is, after a delay. The log has the reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from ottla.env.clock import Clock
from ottla.env.log_limit import LogLimit
from ottla.model.errors import ErrorCode
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection, Handler, Slot
from ottla.net.server import Server
from ottla.security.errors import AuthenticationFailed, KeysBeingRead
from ottla.security.sasl import REFUSAL_TEXT, Exchange, Identity, Mechanisms
from ottla.wire import (
    Message,
    WireError,
    decode,
    encode,
    request_class,
    request_header_version,
    response_header_version,
)
from ottla.wire.frame import HEADER_TAGS_MAX, REQUEST_START, frame_reply, skip_client_id, skip_tags
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeResponse

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
_VERSION_MAX = {SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 2}
_SIZE = Struct(">i")
#: time after which a login is checked again that needs a key which may be in the document that is being read
_KEYS_S = 0.1
#: the reason of a refusal that is not sent to a client
_LEFT = "the client closed the connection before the end of the login"
#: in place of a mechanism, for clients that have not chosen an enabled one
NO_MECHANISM = "none"


class _Login:
    """A login that is not complete, or the session of an authenticated client."""

    __slots__ = ("exchange", "expiry", "is_session", "is_token", "mechanism", "session_mechanism")

    def __init__(self) -> None:
        self.mechanism = ""
        self.exchange: Exchange | None = None
        #: whether the client is authenticated, and with which mechanism
        self.is_session = False
        #: whether it authenticated with a delegation token
        self.is_token = False
        self.session_mechanism = ""
        #: the timer of the end of the session; None if it does not end
        self.expiry: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        """Forget the end of the session: the timer would keep a closed connection in memory until then."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


class LoginRules(NamedTuple):
    """The settings of a listener's logins."""

    request_bytes_max: int
    token_bytes_max: int
    setup_s: float
    refusal_delay_s: float
    #: longest session for a mechanism in milliseconds; 0 for no limit
    session_ms_max: Callable[[str], int]


class Authentication:
    """The logins of one listener."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        clock: Clock,
        *,
        mechanisms: Mechanisms,
        rules: LoginRules,
        handle_authenticated: Handler,
    ) -> None:
        self._loop = loop
        self._server = server
        self._clock = clock
        self._mechanisms = mechanisms
        self._rules = rules
        self._handle_authenticated = handle_authenticated
        # Logins by mechanism, of which only enabled ones are counted under their names
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int) -> None:
        """Handle a request of a client that is not authenticated, or a login of one that is."""
        api_key, version, correlation_id = REQUEST_START.unpack_from(buffer, start)
        login = connection.login
        if not isinstance(login, _Login):
            login = connection.login = _Login()
        try:
            if api_key == API_VERSIONS:
                self._handle_authenticated(connection, buffer, view, start, end)
                return
            if api_key not in _VERSION_MAX or not 0 <= version <= _VERSION_MAX[api_key]:
                raise AuthenticationFailed(f"request {api_key} version {version} before the login")
            position = skip_client_id(buffer, start + 8, end)
            if request_header_version(api_key, version) == 2:
                position = skip_tags(buffer, position, end, HEADER_TAGS_MAX)
            request, _ = decode(request_class(api_key), version, bytes(view[position:end]), 0, 10)
        except (AuthenticationFailed, WireError, IndexError) as error:
            self._end(connection, error)
            return
        send = partial(_fill, connection.reserve(api_key), api_key, version, correlation_id)
        if api_key == SASL_HANDSHAKE:
            self._handshake(connection, login, request, version, send)
        else:
            self._authenticate(connection, login, request, send)

    def handle_expired(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int
    ) -> None:
        """Handle a request after the end of the session: only a login is accepted."""
        (api_key,) = REQUEST_START.unpack_from(buffer, start)[:1]
        if api_key in _VERSION_MAX:
            self.handle(connection, buffer, view, start, end)
        else:
            self._end(connection, AuthenticationFailed("the session of the client is over"))

    def _end(self, connection: Connection, reason: Exception) -> None:
        """Close the connection without an answer."""
        self.refused[_mechanism_of(connection)] += 1
        log.info("connection closed peer=%s listener=%s reason=%s", connection.peer_host, connection.listener, reason)
        connection.close()

    def _handshake(
        self, connection: Connection, login: _Login, request: Any, version: int, send: Callable[[Message], None]
    ) -> None:
        def answer(error_code: int) -> None:
            send(SaslHandshakeResponse(error_code=error_code, mechanisms=list(self._mechanisms)))

        if login.exchange is not None or (login.is_session and login.expiry is None):
            answer(ErrorCode.ILLEGAL_SASL_STATE)
            self._end(connection, AuthenticationFailed("a second handshake"))
            return
        begin = self._mechanisms.get(request.mechanism)
        if begin is None or (login.is_session and request.mechanism != login.session_mechanism):
            answer(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            self._end(connection, AuthenticationFailed(f"mechanism {request.mechanism[:40]!r} is not enabled"))
            return
        login.mechanism, login.exchange = request.mechanism, begin()
        answer(0)
        if version == 0:
            self._swap_muted(connection, self._handle_token, 0, self._rules.token_bytes_max)

    def _swap_muted(self, connection: Connection, handle: Handler, bytes_min: int, bytes_max: int) -> None:
        """Change the handler of a connection that may be in the middle of its input."""
        connection.mute()
        connection.handle_with(handle, frame_bytes_min=bytes_min, frame_bytes_max=bytes_max)
        self._server.call_soon(connection.unmute)

    def _authenticate(
        self, connection: Connection, login: _Login, request: Any, send: Callable[[Message], None]
    ) -> None:
        def answer(token: bytes, error_code: int, lifetime_ms: int = 0) -> None:
            message = SaslAuthenticateResponse(
                error_code=error_code, error_message=REFUSAL_TEXT if error_code else None, auth_bytes=token,
                session_lifetime=lifetime_ms,
            )  # fmt: skip
            send(message)

        if login.exchange is None:
            answer(b"", ErrorCode.ILLEGAL_SASL_STATE)
            self._end(connection, AuthenticationFailed("SaslAuthenticate without a handshake"))
            return
        self._respond(connection, login, bytes(request.auth_bytes), answer)

    def _handle_token(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int
    ) -> None:
        """Handle a token without a header, after a handshake of version 0."""
        login = connection.login
        assert isinstance(login, _Login)
        slot = connection.reserve(SASL_AUTHENTICATE)

        def answer(token: bytes, error_code: int, lifetime_ms: int = 0) -> None:
            if error_code:
                connection.withdraw(slot)
            else:
                slot.fill(_SIZE.pack(len(token)) + token)

        self._respond(connection, login, bytes(view[start:end]), answer)

    # -- tokens ---------------------------------------------------------------------------------------------------

    def _respond(self, connection: Connection, login: _Login, token: bytes, answer: Callable[..., None]) -> None:
        exchange = login.exchange
        assert exchange is not None
        connection.mute()
        try:
            result = exchange.respond(token)
        except AuthenticationFailed as error:
            self._refuse(connection, login, answer, error)
            return
        if isinstance(result, bytes):
            self._responded(connection, login, answer, result)
            return
        self._compute(connection, login, answer, result)

    def _compute(
        self, connection: Connection, login: _Login, answer: Callable[..., None], work: Callable[[], bytes]
    ) -> None:
        """Compute the answer in a thread. If the client leaves before a thread has begun, nothing is computed."""
        if connection.closing:
            return
        future = self._loop.run_in_executor(None, work)

        def give_up() -> None:
            connection.abort()
            future.cancel()

        connection.on_close[give_up] = None
        connection.watch_peer()
        future.add_done_callback(partial(self._computed, connection, login, answer=answer, work=work, give_up=give_up))

    def _computed(
        self,
        connection: Connection,
        login: _Login,
        future: asyncio.Future[bytes],
        *,
        answer: Callable[..., None],
        work: Callable[[], bytes],
        give_up: Callable[[], None],
    ) -> None:
        connection.on_close.pop(give_up, None)
        # The failure is taken in any case: the event loop logs failures that are not taken, and those without a limit.
        error = AuthenticationFailed(_LEFT) if future.cancelled() else future.exception()
        if error is None and connection.closing:
            error = AuthenticationFailed(_LEFT)
        if error is None:
            self._responded(connection, login, answer, future.result())
        elif isinstance(error, KeysBeingRead):
            # The reading has a time limit, and so has the login.
            self._loop.call_later(_KEYS_S, self._compute, connection, login, answer, work)
        elif isinstance(error, AuthenticationFailed):
            self._refuse(connection, login, answer, error)
        else:
            self.refused[login.mechanism] += 1
            log.error("login failed mechanism=%s peer=%s", login.mechanism, connection.peer_host, exc_info=error)
            connection.abort()

    def _responded(self, connection: Connection, login: _Login, answer: Callable[..., None], token: bytes) -> None:
        exchange = login.exchange
        assert exchange is not None
        identity = exchange.identity
        if identity is None:
            answer(token, 0)
        elif login.is_session and identity.principal != connection.principal:
            self._refuse(connection, login, answer, AuthenticationFailed("the client changed its principal"))
            return
        else:
            lifetime_ms = self._lifetime_ms(login.mechanism, identity.expires_ms)
            if lifetime_ms is not None and lifetime_ms <= 0:
                self._refuse(connection, login, answer, AuthenticationFailed("the credentials have expired"))
                return
            self._accept(connection, login, identity, lifetime_ms)
            answer(token, 0, lifetime_ms or 0)
        self._server.call_soon(connection.unmute)

    def _lifetime_ms(self, mechanism: str, expires_ms: int | None) -> int | None:
        """Return how long the session of a client lasts; None if it does not end."""
        longest = self._rules.session_ms_max(mechanism) or math.inf
        left = math.inf if expires_ms is None else expires_ms - self._clock.wall_ms()
        lifetime = min(longest, left)
        return None if lifetime == math.inf else int(lifetime)

    def _accept(self, connection: Connection, login: _Login, identity: Identity, lifetime_ms: int | None) -> None:
        self.accepted[login.mechanism] += 1
        connection.principal = identity.principal
        login.exchange, login.is_token = None, identity.is_token
        login.is_session, login.session_mechanism = True, login.mechanism
        login.stop_timer()
        if lifetime_ms is not None:
            connection.on_close[login.stop_timer] = None
            login.expiry = self._loop.call_later(lifetime_ms / 1000, self._expire, connection)
        connection.handle_with(self._handle_authenticated, frame_bytes_max=self._rules.request_bytes_max)
        self._server.set_up(connection)

    def _expire(self, connection: Connection) -> None:
        connection.handle_with(self.handle_expired, frame_bytes_max=self._rules.token_bytes_max)

    def _refuse(
        self, connection: Connection, login: _Login, answer: Callable[..., None], reason: AuthenticationFailed
    ) -> None:
        self.refused[login.mechanism] += 1
        log.info(
            "login refused peer=%s listener=%s mechanism=%s reason=%s", connection.peer_host, connection.listener,
            login.mechanism, reason,
        )  # fmt: skip

        if connection.closing:
            return

        def tell() -> None:
            if not connection.closing:
                answer(b"", ErrorCode.SASL_AUTHENTICATION_FAILED)
                connection.close()

        self._loop.call_later(self._rules.refusal_delay_s, tell)

    def begin(self, connection: Connection) -> None:
        """Limit what a new connection may send, and how long its login may take."""
        connection.frame_bytes_max = self._rules.token_bytes_max
        self._server.expect_setup(connection, self._rules.setup_s)


def is_token_session(connection: Connection) -> bool:
    """Return whether the client of a connection authenticated with a delegation token."""
    return isinstance(connection.login, _Login) and connection.login.is_token


def _mechanism_of(connection: Connection) -> str:
    login = connection.login
    return (login.mechanism if isinstance(login, _Login) else "") or NO_MECHANISM


def _fill(slot: Slot, api_key: int, version: int, correlation_id: int, message: Message) -> None:
    slot.fill(frame_reply(correlation_id, encode(message, version), response_header_version(api_key, version)))
