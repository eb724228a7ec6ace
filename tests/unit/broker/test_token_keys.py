"""The keys of a token issuer: where they may come from, and when they are read again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.broker.token_keys import TokenKeys, read_document
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.web_documents import DocumentError

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


def test_login_does_not_wait_while_another_one_reads() -> None:
    issuer = Issuer("one")
    keys = issuer.keys()
    with keys._reading, pytest.raises(AuthenticationFailed):
        keys.find("one")
    assert issuer.readings == 0


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
