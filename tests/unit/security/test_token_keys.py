"""The keys of a token issuer: where they may come from, and when they are read again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.model.settings_security import listener_settings
from ottla.security.errors import AuthenticationFailed, KeysBeingRead, SecurityConfigError
from ottla.security.oauth import OauthExchange, OauthRules
from ottla.security.sasl import Identity
from ottla.security.token_keys import TokenKeys, read_document
from ottla.security.web_documents import DocumentError, web_context
from token_issuer import AUDIENCE, ISSUER, TokenIssuer

KEY = ec.generate_private_key(ec.SECP256R1())
URL = "https://issuer.example/keys?secret=canary"


def document(*key_ids: str) -> bytes:
    row: dict[str, Any] = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    return json.dumps({"keys": [{**row, "kid": key_id} for key_id in key_ids]}).encode()


class Issuer:
    """A clock, and the document of the issuer; an exception is raised instead of it."""

    def __init__(self, *key_ids: str) -> None:
        self.now = 1000.0
        self.answer: bytes | Exception = document(*key_ids)
        self.readings = 0

    def read(self, url: str) -> bytes:
        self.readings += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def keys(self, url: str = URL) -> TokenKeys:
        return TokenKeys(url, refresh_s=3600.0, monotonic=lambda: self.now, read=self.read)


# -- URLs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "", "keys.json", "/keys.json", "ftp://host/keys", "http://issuer.example/keys", "http://10.0.0.1/keys",
        "file://host/keys", "file:keys", "https:///keys", "https://user:canary@host/keys", "jar:file:///x!/y",
        "https://[::1/keys", "http://localhost.example/keys",
    ],
)  # fmt: skip
def test_url_is_refused(url: str) -> None:
    with pytest.raises(SecurityConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url") as refused:
        Issuer("one").keys(url)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://h/k", "http://127.0.0.1:1/k", "http://[::1]/k", "http://localhost/k", "file:///k"]
)
def test_url_is_accepted(url: str) -> None:
    Issuer("one").keys(url).find("one")


def test_file_without_keys_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for data in (None, b"", b"{}", b'{"keys": []}'):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(SecurityConfigError):
            TokenKeys(f"file://{path}", refresh_s=1.0, monotonic=lambda: 0.0)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_no_key_is_known_before_the_web_server_was_asked() -> None:
    issuer = Issuer("one")
    issuer.answer = OSError("connection refused")
    keys = issuer.keys()
    assert issuer.readings == 0
    with pytest.raises(AuthenticationFailed):
        keys.find("one")


def test_unknown_key_is_looked_for_once_in_ten_seconds() -> None:
    issuer = Issuer("one")
    keys = issuer.keys()
    keys.find("one")
    issuer.answer = document("two")
    for _ in range(3):
        with pytest.raises(AuthenticationFailed):
            keys.find("two")
    assert issuer.readings == 1
    issuer.now += 10.0
    keys.find("two")
    # The issuer has withdrawn it.
    with pytest.raises(AuthenticationFailed):
        keys.find("one")
    assert issuer.readings == 2


def test_known_key_needs_no_reading() -> None:
    issuer = Issuer("one")
    keys = issuer.keys("file:///keys")
    for _ in range(3):
        keys.find("one")
        issuer.now += 60.0
    assert issuer.readings == 1


def test_login_with_an_unknown_key_is_checked_again_after_the_reading_of_another_one() -> None:
    issuer = Issuer("one")
    keys = issuer.keys()
    with keys._reading, pytest.raises(KeysBeingRead):
        keys.find("one")
    assert issuer.readings == 0
    keys.refresh()
    with keys._reading:
        assert keys.find("one") is not None  # a known key needs no reading


@pytest.mark.parametrize(
    "answer", [OSError("no route"), b"", b"{}", b"[" * 100_000, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}']
)
def test_known_keys_stay_when_the_document_cannot_be_used(
    answer: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer("one")
    keys = issuer.keys()
    keys.refresh()
    issuer.answer = answer
    keys.refresh()
    keys.find("one")
    assert "known keys stay url=https://issuer.example/keys error=" in caplog.text
    assert "canary" not in caplog.text


def test_document_is_read_at_each_interval_and_sooner_after_a_failure() -> None:
    issuer = Issuer("one")
    keys = issuer.keys()
    assert keys.take_due()
    assert not keys.take_due()
    issuer.answer = OSError("down")
    keys.refresh()
    issuer.now += 10.0
    assert keys.take_due()
    issuer.answer = document("one")
    keys.refresh()
    issuer.now += 3599.0
    assert not keys.take_due()
    issuer.now += 1.0
    assert keys.take_due()


# -- https -------------------------------------------------------------------------------------------------------------


class Over:
    """The keys of an https server, with the clock of the test."""

    def __init__(self, server: TokenIssuer, authority: Path | None) -> None:
        texts = {"ssl.truststore.type": "PEM", **({"ssl.truststore.location": str(authority)} if authority else {})}
        self.now = 1000.0
        self.keys = TokenKeys(
            server.url("/keys"), refresh_s=60.0, monotonic=lambda: self.now,
            tls=lambda: web_context(listener_settings(texts), {}),
        )  # fmt: skip

    def log_in(self, token: str) -> Identity | None:
        exchange = OauthExchange(jwks=self.keys, rules=OauthRules(issuer=ISSUER, audiences=(AUDIENCE,)))
        check = exchange.respond(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        assert not isinstance(check, bytes)
        check()
        return exchange.identity


def test_keys_are_read_over_https_and_a_new_key_is_found_by_the_first_token_that_names_it(tmp_path: Path) -> None:
    with TokenIssuer(tmp_path) as server:
        over = Over(server, server.authority)
        assert over.log_in(server.token()) is not None and server.key_requests == 1
        server.rotate("two")
        assert over.log_in(server.token()) is None and server.key_requests == 1  # too early for another request
        over.now += 10.0
        assert over.log_in(server.token()) is not None and server.key_requests == 2
        # Tokens with unknown keys cause one request in ten seconds.
        for number in range(5):
            unknown = jwt.encode({"sub": "a", "exp": time.time() + 60}, KEY, "ES256", {"kid": f"unknown-{number}"})
            assert over.log_in(unknown) is None
        assert server.key_requests == 2


def test_known_keys_are_used_while_the_server_is_down_and_no_key_is_known_without_it(tmp_path: Path) -> None:
    with TokenIssuer(tmp_path) as server:
        known, unknown = Over(server, server.authority), Over(server, server.authority)
        token, expired = server.token(), server.token(lifetime_s=-60.0)
        assert known.log_in(token) is not None
    for each in (known, unknown):
        each.now += 3600.0
        assert each.keys.take_due()
        each.keys.refresh()
    assert known.log_in(token) is not None and known.log_in(expired) is None
    assert unknown.log_in(token) is None


@pytest.mark.parametrize(("host", "is_trusted"), [("127.0.0.1", False), ("other.example", True)])
def test_no_key_of_a_server_that_cannot_prove_its_name_is_used(
    tmp_path: Path, host: str, is_trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with TokenIssuer(tmp_path, host=host) as server:
        over = Over(server, server.authority if is_trusted else None)
        assert over.log_in(server.token()) is None and server.key_requests == 0
    assert "the certificate of the web server is not trusted" in caplog.text


@pytest.mark.parametrize("status", [204, 302, 404, 500])
def test_error_of_the_server_leaves_the_known_keys(tmp_path: Path, status: int) -> None:
    with TokenIssuer(tmp_path) as server:
        over = Over(server, server.authority)
        assert over.log_in(server.token()) is not None
        server.status = status
        over.keys.refresh()
        assert over.log_in(server.token()) is not None and server.key_requests == 2


# -- web servers -------------------------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        data = b"x" * (3 << 20) if self.path == "/endless" else document("one")
        self.send_response(200 if self.path != "/missing" else 404)
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            pass  # the reader has had enough

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def web_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_keys_come_from_a_web_server(web_server: str) -> None:
    keys = TokenKeys(f"{web_server}/keys", refresh_s=1.0, monotonic=lambda: 100.0)
    assert keys.find("one") is not None


def test_redirect_is_refused(web_server: str) -> None:
    with pytest.raises(DocumentError, match="302"):
        read_document(f"{web_server}/moved")


def test_error_page_is_no_document(web_server: str) -> None:
    with pytest.raises(DocumentError, match="404"):
        read_document(f"{web_server}/missing")


def test_document_without_an_end_is_refused(web_server: str) -> None:
    with pytest.raises(DocumentError, match="more than 1048576 bytes"):
        read_document(f"{web_server}/endless")
