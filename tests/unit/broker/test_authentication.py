"""Logins with SASL, as a client sees them: states, refusals, sessions, and what may be sent before."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.unit.net.test_connection import Client, Fixture, Loop, framed

from ottla.broker.access.authentication import NO_MECHANISM, Authentication, LoginRules
from ottla.model.errors import ErrorCode
from ottla.net.connection import ANONYMOUS, Connection
from ottla.security import sasl
from ottla.security.errors import AuthenticationFailed, KeysBeingRead
from ottla.security.sasl_client import Sasl, ScramExchange
from ottla.security.scram import Mechanism, ScramCredential, ScramServer
from ottla.wire import Message, decode, encode, request_header_version, response_class, response_header_version
from ottla.wire.frame import skip_tags
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

SHA256 = Mechanism.SCRAM_SHA_256
ALICE = ScramCredential.from_password(SHA256, "secret", b"0123456789abcdef", 4096)
TOKEN_BYTES_MAX, REQUEST_BYTES_MAX = 4096, 1 << 20


class Timers(Loop):
    """A loop with timers and an executor that runs jobs when the loop runs."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Any:
        entry = (delay, lambda: callback(*args))
        self.timers.append(entry)
        timers = self.timers

        class Handle:
            def cancel(self) -> None:
                if entry in timers:
                    timers.remove(entry)

        return Handle()

    def fire(self) -> list[float]:
        """Run the timers; return their delays."""
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()
        self.run()
        return [delay for delay, _ in timers]

    def run_in_executor(self, _: None, work: Callable[[], bytes]) -> Future[bytes]:
        future: Future[bytes] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self.soon.append(run)
        return future


class NoWatch:
    """In place of ``PeerWatch``: tests call ``peer_closed`` themselves."""

    def add(self, connection: Connection, fd: int) -> None:
        pass

    def remove(self, connection: Connection, fd: int) -> None:
        pass

    def close(self) -> None:
        pass


class LoginFixture(Fixture):
    def __init__(self) -> None:
        super().__init__(request_bytes_max=REQUEST_BYTES_MAX)
        self.loop = self.timers = Timers()
        self.server._loop = self.loop  # type: ignore[assignment]
        self.server.call_soon = self.loop.call_soon  # type: ignore[assignment]
        self.server.peers = NoWatch()
        self.session_ms_max = 0
        self.handled: list[tuple[str, int]] = []
        self.authentication = Authentication(
            self.loop, self.server, self.clock,  # type: ignore[arg-type]
            mechanisms={
                "PLAIN": lambda: sasl.PlainExchange({"admin": "admin-secret"}, {SHA256: {"alice": ALICE}.get}),
                "SCRAM-SHA-256": lambda: sasl.ScramExchange(
                    ScramServer(SHA256, {"alice": ALICE}.get, nonce="S", secret=b"x")
                ),
            },
            rules=LoginRules(
                REQUEST_BYTES_MAX, TOKEN_BYTES_MAX, setup_s=10.0, refusal_delay_s=0.1,
                session_ms_max=lambda mechanism: self.session_ms_max,
            ),
            handle_authenticated=self._handle,
        )  # fmt: skip
        self.server._begin["SASL"] = self.authentication.begin

    def _handle(self, connection: Connection, buffer: Any, view: memoryview, start: int, end: int) -> None:
        (api_key,) = struct.unpack_from(">h", buffer, start)
        if api_key in (17, 36):
            self.authentication.handle(connection, buffer, view, start, end)
            return
        self.handled.append((connection.principal, api_key))
        connection.reserve(api_key).fill(b"")


class LoginClient(Client):
    """A client that sends requests and reads their answers."""

    def __init__(self, fixture: LoginFixture) -> None:
        self._fixture = fixture
        super().__init__(fixture.server, fixture.loop)

    def ask(self, request: Message, version: int) -> Any:
        """Send a request. Return its answer; None if there is none yet."""
        self.send(request, version)
        return self.answer(request, version)

    def send(self, request: Message, version: int) -> None:
        tags = b"\0" if request_header_version(request.API_KEY, version) == 2 else b""
        header = struct.pack(">hhih", request.API_KEY, version, 1, 2) + b"me" + tags
        self.feed(framed(header + encode(request, version)))
        self.turn()

    def answer(self, request: Message, version: int) -> Any:
        sent = bytes(self.transport.sent)
        self.transport.sent.clear()
        if not sent:
            return None
        start = 8
        if response_header_version(request.API_KEY, version):
            start = skip_tags(sent, start, len(sent))
        return decode(response_class(request.API_KEY), version, sent, start)[0]

    def turn(self) -> None:
        for _ in range(3):
            super().turn()


@pytest.fixture
def fixture() -> LoginFixture:
    return LoginFixture()


@pytest.fixture
def client(fixture: LoginFixture, monkeypatch: pytest.MonkeyPatch) -> LoginClient:
    handle = fixture.authentication.handle
    monkeypatch.setattr(
        "tests.unit.net.test_connection.Connection", lambda server, *_: Connection(server, handle, "SASL")
    )
    return LoginClient(fixture)


def handshake(client: LoginClient, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> Any:
    return client.ask(SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(client: LoginClient, token: bytes, version: int = 2) -> Any:
    return client.ask(SaslAuthenticateRequest(auth_bytes=token), version)


def log_in(client: LoginClient, version: int = 2) -> Any:
    """Log in as alice; return the last answer."""
    assert handshake(client).error_code == 0
    exchange = ScramExchange(Sasl(mechanism="SCRAM-SHA-256", username="alice", password="secret"), "C")
    token: bytes | None = exchange.first()
    answer = None
    while token is not None:
        answer = authenticate(client, token, version)
        assert answer.error_code == 0, answer.error_message
        token = exchange.answer(answer.auth_bytes)
    return answer


def metadata(client: LoginClient) -> None:
    client.send(MetadataRequest(topics=None), 9)


def test_login_and_then_requests_as_the_principal(fixture: LoginFixture, client: LoginClient) -> None:
    assert client.connection.principal == ANONYMOUS
    answer = log_in(client)
    assert (answer.error_code, answer.error_message, answer.session_lifetime) == (0, None, 0)
    metadata(client)
    assert fixture.handled == [("User:alice", 3)]
    assert fixture.authentication.accepted == {"SCRAM-SHA-256": 1} and not fixture.authentication.refused
    assert not fixture.server.unready
    client.feed(struct.pack(">i", REQUEST_BYTES_MAX))
    assert not client.transport.ended, "requests may be large now"


def test_mechanisms_are_listed_also_on_success(client: LoginClient) -> None:
    assert list(handshake(client).mechanisms) == ["PLAIN", "SCRAM-SHA-256"]


def test_versions_are_answered_before_the_login(fixture: LoginFixture, client: LoginClient) -> None:
    client.send(ApiVersionsRequest(), 3)
    assert fixture.handled == [(ANONYMOUS, 18)]
    log_in(client)


def test_other_requests_before_the_login_close_the_connection(fixture: LoginFixture, client: LoginClient) -> None:
    metadata(client)
    assert client.transport.ended and fixture.handled == []
    assert fixture.authentication.refused == {NO_MECHANISM: 1}


def test_request_that_follows_the_login_in_one_packet_waits_for_it(fixture: LoginFixture, client: LoginClient) -> None:
    """Its handler is the dispatcher, not that of the login."""
    handshake(client, "PLAIN")
    header = struct.pack(">hhih", 36, 1, 1, 2) + b"me"
    login = header + encode(SaslAuthenticateRequest(auth_bytes=b"\0admin\0admin-secret"), 1)
    request = struct.pack(">hhih", 3, 1, 2, 2) + b"me" + encode(MetadataRequest(topics=None), 1)
    client.feed(framed(login, request))
    client.turn()
    assert fixture.handled == [("User:admin", 3)]


@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "x" * 300])
def test_unknown_mechanism_is_answered_with_the_known_ones(
    fixture: LoginFixture, client: LoginClient, mechanism: str
) -> None:
    answer = handshake(client, mechanism)
    assert fixture.authentication.refused == {NO_MECHANISM: 1}, "names of clients are no label values"
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(answer.mechanisms) == ["PLAIN", "SCRAM-SHA-256"] and client.transport.ended


@pytest.mark.parametrize("token", [b"\0admin\0wrong", b"\0nobody\0secret", b"\0alice\0wrong", b"\xff"])
def test_refusal_is_delayed_and_does_not_say_why(fixture: LoginFixture, client: LoginClient, token: bytes) -> None:
    handshake(client, "PLAIN")
    request = SaslAuthenticateRequest(auth_bytes=token)
    assert client.ask(request, 2) is None
    delays = fixture.timers.fire()
    assert 0.1 in delays
    client.turn()
    answer = client.answer(request, 2)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, sasl.REFUSAL_TEXT)
    assert client.transport.ended and client.connection.principal == ANONYMOUS
    assert fixture.authentication.refused == {"PLAIN": 1} and not fixture.authentication.accepted


def test_password_of_a_stored_user_is_checked_outside_of_the_loop(client: LoginClient) -> None:
    handshake(client, "PLAIN")
    assert authenticate(client, b"\0alice\0secret").error_code == 0
    assert client.connection.principal == "User:alice"


def test_authentication_without_a_handshake_is_refused(client: LoginClient) -> None:
    assert authenticate(client, b"\0admin\0admin-secret").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.transport.ended and client.connection.principal == ANONYMOUS


def test_mechanism_cannot_be_changed_in_the_middle(client: LoginClient) -> None:
    handshake(client, "SCRAM-SHA-256")
    assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.transport.ended


def test_handshake_of_version_0_is_followed_by_tokens_without_headers(
    fixture: LoginFixture, client: LoginClient
) -> None:
    handshake(client, "PLAIN", version=0)
    client.feed(framed(b"\0admin\0admin-secret"))
    client.turn()
    assert bytes(client.transport.sent) == struct.pack(">i", 0)
    client.transport.sent.clear()
    metadata(client)
    assert fixture.handled == [("User:admin", 3)]


def test_wrong_token_after_a_handshake_of_version_0_closes_the_connection(
    fixture: LoginFixture, client: LoginClient
) -> None:
    handshake(client, "PLAIN", version=0)
    client.feed(framed(b""))
    fixture.timers.fire()
    client.turn()
    assert client.transport.ended and not client.transport.sent


def test_frames_are_small_before_the_login(fixture: LoginFixture, client: LoginClient) -> None:
    client.feed(struct.pack(">i", TOKEN_BYTES_MAX + 1))
    client.turn()
    assert client.transport.ended and fixture.server.refused_frames == 1


def test_client_that_does_not_log_in_is_closed(fixture: LoginFixture, client: LoginClient) -> None:
    handshake(client)
    fixture.clock.now += 10.0
    fixture.timers.fire()
    assert client.transport.ended == "aborted"


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_client_that_authenticates_again_in_time_goes_on(fixture: LoginFixture, client: LoginClient) -> None:
    fixture.session_ms_max = 60_000
    assert log_in(client).session_lifetime == 60_000
    assert log_in(client).session_lifetime == 60_000
    assert 60.0 in [delay for delay, _ in fixture.timers.timers]
    metadata(client)
    assert fixture.handled == [("User:alice", 3)]


def test_timer_of_a_session_ends_with_its_connection(fixture: LoginFixture, client: LoginClient) -> None:
    """Otherwise the timer would keep the closed connection in memory, for as long as the session would have lasted."""
    fixture.session_ms_max = 3_600_000
    log_in(client)
    assert 3600.0 in [delay for delay, _ in fixture.timers.timers]
    client.connection.connection_lost(None)
    assert 3600.0 not in [delay for delay, _ in fixture.timers.timers]


def test_request_after_the_end_of_the_session_closes_the_connection(fixture: LoginFixture, client: LoginClient) -> None:
    fixture.session_ms_max = 60_000
    log_in(client)
    fixture.timers.fire()
    metadata(client)
    assert fixture.handled == [] and client.transport.ended


def test_login_after_the_end_of_the_session_begins_another_one(fixture: LoginFixture, client: LoginClient) -> None:
    fixture.session_ms_max = 60_000
    log_in(client)
    fixture.timers.fire()
    log_in(client)
    metadata(client)
    assert fixture.handled == [("User:alice", 3)]


def test_client_cannot_become_another_principal(fixture: LoginFixture, client: LoginClient) -> None:
    fixture.session_ms_max = 60_000
    handshake(client, "PLAIN")
    assert authenticate(client, b"\0admin\0admin-secret").error_code == 0
    handshake(client, "PLAIN")
    request = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
    assert client.ask(request, 2) is None
    fixture.timers.fire()
    client.turn()
    assert client.transport.ended and client.connection.principal == "User:admin"


def test_client_cannot_change_its_mechanism(fixture: LoginFixture, client: LoginClient) -> None:
    fixture.session_ms_max = 60_000
    log_in(client)
    assert handshake(client, "PLAIN").error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert client.transport.ended


def test_second_handshake_of_a_session_without_an_end_is_refused(client: LoginClient) -> None:
    log_in(client)
    assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_connection_that_is_lost_during_a_computation_is_left_alone(fixture: LoginFixture, client: LoginClient) -> None:
    handshake(client, "PLAIN")
    tags = struct.pack(">hhih", 36, 1, 1, 2) + b"me"
    client.feed(framed(tags + encode(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 1)))
    client.connection.connection_lost(None)
    fixture.loop.run()
    assert client.connection.principal == ANONYMOUS


@pytest.mark.parametrize("leaves", ["lost", "reset", "closed its side"])
def test_nothing_is_computed_for_a_client_that_has_left(
    fixture: LoginFixture, client: LoginClient, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as a refused login."""
    computed: list[str] = []
    monkeypatch.setattr(sasl.PlainExchange, "_check", lambda self, name, *_: computed.append(name))
    handshake(client, "PLAIN")
    header = struct.pack(">hhih", 36, 1, 1, 2) + b"me"
    client.feed(framed(header + encode(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 1)))
    if leaves == "lost":
        client.connection.connection_lost(None)
    else:
        client.connection.peer_closed(reads_nothing=leaves == "reset")
    if not client.connection.closing:
        pytest.fail("the connection of a client that does not wait for its login stays open")
    client.connection.connection_lost(None)
    fixture.loop.run()
    assert not computed
    assert fixture.authentication.refused["PLAIN"] == 1
    assert fixture.timers.fire() == [10.0], "only the time limit of logins is left"


class FailingLogin:
    """A login whose computation fails."""

    identity: sasl.Identity | None = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def respond(self, token: bytes) -> Callable[[], bytes]:
        return self._fail

    def _fail(self) -> bytes:
        raise self._error


@pytest.mark.parametrize("error", [AuthenticationFailed("wrong"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("has_left", [True, False])
def test_failed_login_is_counted_and_its_error_is_taken(
    fixture: LoginFixture, client: LoginClient, error: Exception, has_left: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop logs an error that no code takes, with a traceback and without a limit."""
    fixture.authentication._mechanisms["PLAIN"] = lambda: FailingLogin(error)  # type: ignore[index]
    futures: list[Any] = []
    run_in_executor = fixture.timers.run_in_executor

    def noted(executor: None, work: Callable[[], bytes]) -> Future[bytes]:
        futures.append(run_in_executor(executor, work))
        if has_left:  # a thread has begun: the computation cannot be cancelled any more
            futures[0].cancel = lambda: False
        return futures[0]  # type: ignore[no-any-return]

    fixture.timers.run_in_executor = noted  # type: ignore[method-assign]
    handshake(client, "PLAIN")
    header = struct.pack(">hhih", 36, 1, 1, 2) + b"me"
    with caplog.at_level("INFO"):
        client.feed(framed(header + encode(SaslAuthenticateRequest(auth_bytes=b"x"), 1)))
        if has_left:
            client.connection.connection_lost(None)
        fixture.loop.run()
    assert futures[0].done()
    assert fixture.authentication.refused["PLAIN"] == 1
    assert [record.name for record in caplog.records] == ["ottla.broker.access.authentication"]


# -- keys of token issuers ---------------------------------------------------------------------------------------------


class KeysLater:
    """A login whose key is known after some attempts."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self.identity: sasl.Identity | None = None

    def respond(self, token: bytes) -> Callable[[], bytes]:
        return self._check

    def _check(self) -> bytes:
        if self._attempts:
            self._attempts -= 1
            raise KeysBeingRead("the keys are being read")
        self.identity = sasl.Identity("User:alice")
        return b""


def test_login_is_checked_again_while_the_keys_of_the_issuer_are_read(
    fixture: LoginFixture, client: LoginClient
) -> None:
    exchange = KeysLater(attempts=3)
    fixture.authentication._mechanisms["OAUTHBEARER"] = lambda: exchange  # type: ignore[index]
    assert handshake(client, "OAUTHBEARER").error_code == 0
    assert authenticate(client, b"token") is None
    for _ in range(3):
        assert exchange.identity is None
        assert 0.1 in fixture.timers.fire()
        client.turn()
    assert client.answer(SaslAuthenticateRequest(auth_bytes=b""), 2).error_code == 0
    metadata(client)
    assert fixture.handled[-1][0] == "User:alice"


def test_login_of_a_closed_connection_is_not_checked_again(fixture: LoginFixture, client: LoginClient) -> None:
    exchange = KeysLater(attempts=1)
    fixture.authentication._mechanisms["OAUTHBEARER"] = lambda: exchange  # type: ignore[index]
    handshake(client, "OAUTHBEARER")
    authenticate(client, b"token")
    client.connection.abort()
    fixture.timers.fire()
    assert exchange.identity is None
