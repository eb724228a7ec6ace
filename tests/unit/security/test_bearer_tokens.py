"""Tokens with which a broker or a client logs in: where they come from, and when they are renewed."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ottla.model.settings_security import listener_settings
from ottla.security.bearer_tokens import (
    BearerToken,
    ClientCredentials,
    RefreshRules,
    TokenSource,
    check_extensions,
    parse_token,
)
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.sasl_client import BearerExchange
from ottla.security.web_documents import DocumentError, Limits, request_document, web_context
from token_issuer import CLIENT_ID, CLIENT_SECRET, TokenIssuer


def token(**claims: Any) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "ES256"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, b"signature"))


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_times_of_a_token_are_those_of_its_claims() -> None:
    text = token(sub="a", iat=100, exp=200)
    assert parse_token(text, now=150.0) == BearerToken(text, 100.0, 200.0)
    assert text not in repr(parse_token(text, now=150.0))


def test_token_without_an_issue_time_was_issued_now() -> None:
    assert parse_token(token(name="a", exp=200), now=150.0, user_claim="name").issued == 150.0


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "a.b", "a.b.c.d", "a.b.c", f"{token(sub='a', exp=200)}\x01", f"{token(sub='a', exp=200)}\n",
        token(sub="a"), token(exp=200), token(sub="", exp=200), token(sub=1, exp=200), token(sub="a", exp="x"),
        token(sub="a", exp=[]), token(sub="a", exp=100), token(sub="a", exp=float("inf")),
        token(sub="a", exp=float("nan")), token(sub="a" * 70_000, exp=200),
    ],
)  # fmt: skip
def test_token_that_no_broker_accepts_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_token(text, now=150.0)


@pytest.mark.parametrize(
    ("lifetime", "now", "random", "expected"),
    [
        (1000.0, 0.0, 0.0, 700.0),  # 0.8 would be later than five minutes before the expiry
        (10_000.0, 0.0, 0.0, 8000.0),
        (10_000.0, 0.0, 1.0, 8500.0),
        (10_000.0, 8500.0, 0.0, 8560.0),  # not sooner than a minute from now
        (300.0, 0.0, 0.0, 240.0),  # a lifetime that is too short for these limits
        (10.0, 0.0, 1.0, 8.5),
    ],
)
def test_token_is_renewed_at_the_time_of_kafka(lifetime: float, now: float, random: float, expected: float) -> None:
    found = RefreshRules().refresh_at(BearerToken("x", 0.0, lifetime), now, random)
    assert found == pytest.approx(expected)


# -- the source -------------------------------------------------------------------------------------------------------


class Asked:
    """A clock, and an issuer whose tokens are valid for 1,000 seconds."""

    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.requests = 0
        self.is_down = False
        self.source = TokenSource(self.fetch, wall=lambda: self.now, **options)

    def fetch(self) -> str:
        self.requests += 1
        if self.is_down:
            raise AuthenticationFailed("the issuer is down")
        return token(sub="a", iat=self.now, exp=self.now + 1000, number=self.requests)


def test_token_is_asked_for_once_and_renewed_before_it_expires() -> None:
    asked = Asked()
    assert asked.source.current() is None and not asked.source.is_due()
    first = asked.source.token()
    asked.now += 699
    assert asked.source.token() == first and asked.requests == 1
    asked.now += 2
    assert asked.source.is_due() and asked.source.current() == first
    second = asked.source.token()
    assert second != first and asked.requests == 2 and not asked.source.is_due()


def test_token_is_used_until_it_expires_while_the_issuer_is_down() -> None:
    asked = Asked()
    first = asked.source.token()
    asked.now, asked.is_down = asked.now + 800, True
    assert asked.source.token() == first
    asked.now += 199
    with pytest.raises(AuthenticationFailed, match="the issuer is down"):
        asked.source.token()
    asked.now, asked.is_down = asked.now + 60, False
    assert asked.source.token() != first


def test_issuer_that_is_down_is_asked_less_and_less_often() -> None:
    asked = Asked()
    asked.is_down = True
    for _ in range(6000):
        with pytest.raises(AuthenticationFailed, match="the issuer is down"):
            asked.source.renew()
        asked.now += 0.01
    # After 0.1, 0.2, 0.4 ... 6.4 seconds, then every 10 seconds of this minute.
    assert 11 <= asked.requests <= 13


def test_token_in_a_file_is_read_at_each_login() -> None:
    asked = Asked(is_file=True)
    assert asked.source.token() != asked.source.token()
    assert asked.source.current() is None and not asked.source.is_due()


def test_threads_that_need_a_token_together_ask_once() -> None:
    asked, begun, answered = Asked(), threading.Event(), threading.Event()
    fetch = asked.fetch

    def slow() -> str:
        begun.set()
        answered.wait(60)
        return fetch()

    asked.source = TokenSource(slow, wall=lambda: asked.now)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(asked.source.token())) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    answered.set()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1 and len(found) == 5 and asked.requests == 1


# -- the token endpoint -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenIssuer]:
    with TokenIssuer(tmp_path_factory.mktemp("issuer")) as issuer:
        yield issuer


def credentials(issuer: TokenIssuer, **changes: Any) -> ClientCredentials:
    settings = listener_settings({"ssl.truststore.type": "PEM", "ssl.truststore.location": str(issuer.authority)})
    given: dict[str, Any] = {
        "url": issuer.url("/token"), "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET,
        "tls": lambda: web_context(settings, {}), **changes,
    }  # fmt: skip
    return ClientCredentials(**given)


def test_token_comes_from_the_endpoint_over_https(issuer: TokenIssuer) -> None:
    found = credentials(issuer, scope="kafka other").fetch()
    assert parse_token(found, now=time.time()).expires > time.time() + 3000
    assert issuer.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["kafka other"]}


def test_options_of_the_login_module_decide_alone_which_authority_is_trusted(issuer: TokenIssuer) -> None:
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(issuer.authority)}
    credentials(issuer, tls=lambda: web_context(None, options)).fetch()
    with pytest.raises(SecurityConfigError):
        web_context(None, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/gone"})
    unchecked = web_context(None, {**options, "ssl.endpoint.identification.algorithm": ""})
    assert unchecked.check_hostname and unchecked.verify_mode is ssl.CERT_REQUIRED


def test_issuer_with_a_certificate_of_an_unknown_authority_gets_no_secret(issuer: TokenIssuer) -> None:
    count = len(issuer.forms)
    with pytest.raises(AuthenticationFailed, match="certificate of the web server is not trusted"):
        credentials(issuer, tls=ssl.create_default_context).fetch()
    assert len(issuer.forms) == count


def test_issuer_with_a_certificate_for_another_name_gets_no_secret(tmp_path: Path) -> None:
    with TokenIssuer(tmp_path, host="other.example") as other:
        with pytest.raises(AuthenticationFailed, match=r"certificate of the web server is not trusted: .*mismatch"):
            credentials(other).fetch()
        assert other.forms == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client_secret": "canary-of-another"}, "status 401"),
        ({"url": "/missing", "client_secret": "canary-of-another"}, "status 401"),
    ],
)
def test_refusal_of_the_issuer_names_no_secret(issuer: TokenIssuer, change: dict[str, str], words: str) -> None:
    if "url" in change:
        change = {**change, "url": issuer.url(change["url"])}
    with pytest.raises(AuthenticationFailed, match=words) as refused:
        credentials(issuer, **change).fetch()
    assert "canary" not in str(refused.value) and refused.value.__cause__ is None


@pytest.mark.parametrize(
    "answer", [b"", b"canary", b"{}", b'{"access_token": 1}', b"[" * 100_000, b'["canary"]', b"x" * (2 << 20)]
)
def test_answer_without_a_token_is_not_shown(issuer: TokenIssuer, answer: bytes) -> None:
    issuer.answer = lambda: answer
    try:
        with pytest.raises(AuthenticationFailed) as refused:
            credentials(issuer).fetch()
    finally:
        issuer.answer = None
    assert "canary" not in str(refused.value) and len(str(refused.value)) < 200


def test_redirect_is_an_error(issuer: TokenIssuer) -> None:
    issuer.status = 302
    try:
        with pytest.raises(AuthenticationFailed, match="status 302"):
            credentials(issuer).fetch()
    finally:
        issuer.status = 200


@pytest.mark.parametrize("is_tls", [True, False])
def test_server_that_sends_a_byte_now_and_then_is_given_up(is_tls: bool) -> None:
    """The server never stops: neither in the handshake of TLS nor in the headers of its answer."""
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with accepted:
            # The beginning of a record of TLS, or of the header lines.
            for byte in b"\x16\x03\x03\x40\x00" if is_tls else b"HTTP/1.1 200 OK\r\nA: ":
                accepted.sendall(bytes([byte]))
            while not ended.wait(0.02):
                try:
                    accepted.sendall(b"a")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        url = f"{'https' if is_tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            with pytest.raises(DocumentError):
                request_document(
                    urlsplit(url), Limits(1000, 60.0, 60.0, total_s=0.2), tls=ssl.create_default_context(), headers={}
                )
        finally:
            ended.set()
            thread.join(60)


def test_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc.def.ghi\n")
    assert ClientCredentials(url=f"file://{path}").fetch() == "abc.def.ghi"
    path.unlink()
    with pytest.raises(AuthenticationFailed, match="No such file"):
        ClientCredentials(url=f"file://{path}").fetch()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must be file:///PATH or https://HOST/PATH"),
        ("http://issuer.example/token", "allowed for this machine only"),
        ("https://u:canary@issuer.example/token", "user name or a password"),
        ("https://issuer.example/token", "clientId and clientSecret"),
        ("https://issuer.example:port/token", "is no URL"),
    ],
)
def test_wrong_endpoint_is_refused_at_start(url: str, words: str) -> None:
    with pytest.raises(SecurityConfigError, match=words) as refused:
        ClientCredentials(url=url).check()
    assert "canary" not in str(refused.value)


# -- the login --------------------------------------------------------------------------------------------------------


def test_message_of_the_login_has_the_token_and_extensions() -> None:
    exchange = BearerExchange(lambda: "a.b.c", {"traceId": "7"})
    assert exchange.first() == b"n,,\x01auth=Bearer a.b.c\x01traceId=7\x01\x01"
    assert exchange.answer(b"") is None


def test_refusal_is_acknowledged_and_then_raised() -> None:
    exchange = BearerExchange(lambda: "a.b.c")
    exchange.first()
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed, match="refuses the token"):
        exchange.answer(b"")


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a1": "x"}, {"": "x"}, {"a": "x\x01auth=Bearer y"}])
def test_extension_that_the_rfc_does_not_allow_is_refused(extensions: dict[str, str]) -> None:
    with pytest.raises(SecurityConfigError):
        check_extensions(extensions)
    check_extensions({"traceId": "a b"})
