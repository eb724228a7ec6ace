"""Delegation tokens: their HMACs, and logins with them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from ottla.security.errors import AuthenticationFailed
from ottla.security.sasl import Identity, ScramExchange
from ottla.security.sasl_client import Sasl
from ottla.security.sasl_client import ScramExchange as ScramClient
from ottla.security.scram import Mechanism, ScramServer
from ottla.security.tokens import DelegationToken, TokenIndex, TokenLogins, TokenSecret

SECRET = TokenSecret(key=b"secret of the tokens")
TOKEN = DelegationToken(
    token_id="id", owner="User:alice", requester="User:admin", renewers=("User:bob",), issued_ms=1000,
    expires_ms=2000, expires_ms_max=3000,
)  # fmt: skip
PASSWORD = base64.b64encode(SECRET.hmac("id")).decode()


class TokenClient(ScramClient):
    """A client that logs in with a token."""

    def __init__(self, mechanism: str, token_id: str, password: str, extension: str = "tokenauth=true") -> None:
        super().__init__(Sasl(mechanism=mechanism, username=token_id, password=password), "nonce")
        if extension:
            self._first_bare += f",{extension}"


def log_in(client: ScramClient, mechanism: Mechanism = Mechanism.SCRAM_SHA_256, now_ms: int = 1500) -> ScramExchange:
    logins = TokenLogins(SECRET, lambda: {"id": TOKEN}, lambda: now_ms)
    server = ScramServer(mechanism, {}.get, nonce="server", secret=b"x")
    server.find_token = lambda token_id: logins.credential(mechanism, token_id)
    exchange = ScramExchange(server, logins)
    message: bytes | None = client.first()
    while message is not None:
        answer = exchange.respond(message)
        message = client.answer(answer() if callable(answer) else answer)
    return exchange


def test_hmac_is_that_of_kafka() -> None:
    assert SECRET.hmac("id") == hmac.digest(b"secret of the tokens", b"id", hashlib.sha512)
    assert "secret" not in repr(SECRET)


@pytest.mark.parametrize("mechanism", Mechanism)
def test_login_with_a_token_has_the_principal_of_its_owner(mechanism: Mechanism) -> None:
    exchange = log_in(TokenClient(mechanism.title, "id", PASSWORD), mechanism)
    assert exchange.identity == Identity("User:alice", 2000, is_token=True)


@pytest.mark.parametrize(
    ("client", "now_ms"),
    [
        (lambda: TokenClient("SCRAM-SHA-256", "id", PASSWORD), 2001),
        (lambda: TokenClient("SCRAM-SHA-256", "id", "wrong"), 1500),
        (lambda: TokenClient("SCRAM-SHA-256", "other", PASSWORD), 1500),
        (lambda: TokenClient("SCRAM-SHA-256", "id", PASSWORD, "tokenauth=false"), 1500),
        (lambda: TokenClient("SCRAM-SHA-256", "id", PASSWORD, ""), 1500),
    ],
    ids=["expired", "wrong HMAC", "unknown id", "not as a token", "without the extension"],
)
def test_login_is_refused(client: Callable[[], TokenClient], now_ms: int) -> None:
    with pytest.raises(AuthenticationFailed):
        log_in(client(), now_ms=now_ms)


def test_token_that_expires_during_the_login_is_refused() -> None:
    times = iter([1500, 2001])
    logins = TokenLogins(SECRET, lambda: {"id": TOKEN}, lambda: next(times))
    assert logins.credential(Mechanism.SCRAM_SHA_256, "id") is not None
    assert logins.find("id") is None


def test_user_cannot_log_in_as_a_token_where_there_are_none() -> None:
    server = ScramServer(Mechanism.SCRAM_SHA_256, {}.get, nonce="server", secret=b"x")
    exchange, client = ScramExchange(server), TokenClient("SCRAM-SHA-256", "id", PASSWORD)
    challenge = exchange.respond(client.first())
    proof = client.answer(challenge() if callable(challenge) else challenge)
    assert proof is not None
    with pytest.raises(AuthenticationFailed):
        exchange.respond(proof)


def test_index_follows_added_and_removed_tokens_and_another_secret() -> None:
    index, secret, other = TokenIndex(), TokenSecret(key=b"secret"), TokenSecret(key=b"other")
    for token_id in ("a", "b"):
        index.add(token_id)
    assert index.find(secret, secret.hmac("a")) == "a"
    index.add("c")
    index.add("a")
    index.remove("b")
    index.remove("unknown")
    assert [index.find(secret, secret.hmac(each)) for each in "abc"] == ["a", None, "c"]
    assert index.find(other, secret.hmac("a")) is None
    assert index.find(other, other.hmac("a")) == "a"
    index.remove("a")
    assert index.find(other, other.hmac("a")) is None
