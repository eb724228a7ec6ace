"""Logins with PLAIN, SCRAM and OAUTHBEARER."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.oauth import Jwks, OauthExchange, OauthRules, check_token
from ottla.security.sasl import Exchange, Identity, PlainExchange, ScramExchange, Work
from ottla.security.sasl_client import Sasl
from ottla.security.sasl_client import ScramExchange as ClientExchange
from ottla.security.scram import Mechanism, ScramCredential, ScramServer

SHA256 = Mechanism.SCRAM_SHA_256


def complete(exchange: Exchange, token: bytes) -> bytes:
    answer = exchange.respond(token)
    return answer if isinstance(answer, bytes) else answer()


# -- PLAIN ------------------------------------------------------------------------------------------------------------


def plain() -> PlainExchange:
    bob = ScramCredential.from_password(SHA256, "bob-secret", b"salt", 4096)
    return PlainExchange({"admin": "admin-secret"}, {SHA256: {"bob": bob}.get})


@pytest.mark.parametrize(("user", "password"), [("admin", "admin-secret"), ("bob", "bob-secret")])
@pytest.mark.parametrize("asks_for_itself", [True, False])
def test_plain_accepts_users_of_the_settings_and_of_the_store(user: str, password: str, asks_for_itself: bool) -> None:
    exchange = plain()
    authorization_id = user if asks_for_itself else ""
    assert complete(exchange, f"{authorization_id}\0{user}\0{password}".encode()) == b""
    assert exchange.identity == Identity(f"User:{user}")


@pytest.mark.parametrize(
    "token",
    [b"", b"\0admin", b"\0admin\0", b"\0\0admin-secret", b"\0admin\0bob-secret", b"bob\0admin\0admin-secret",
     b"\0bob\0admin-secret", b"\0nobody\0bob-secret", b"\0admin\0admin-secret\0more", b"\0\xff\0x",
     b"\0admin\0" + b"x" * 5000],
)  # fmt: skip
def test_plain_refuses_everything_else(token: bytes) -> None:
    exchange = plain()
    with pytest.raises(AuthenticationFailed):
        complete(exchange, token)
    assert exchange.identity is None


@pytest.mark.parametrize("name", ["admin\n", "ad\x1bmin", "admin\u2028", "a" * 1025])
def test_names_that_no_user_may_have_are_refused_by_each_mechanism(name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        complete(PlainExchange({name: "secret"}, {}), f"\0{name}\0secret".encode())
    secret = ScramCredential.from_password(SHA256, "secret", b"salt", 4096)
    server = ScramExchange(ScramServer(SHA256, {name: secret}.get, nonce="S", secret=b"x"))
    client = ClientExchange(Sasl(mechanism="SCRAM-SHA-256", username=name, password="secret"), "C")
    proof = client.answer(complete(server, client.first()))
    assert proof is not None
    with pytest.raises(AuthenticationFailed, match="control"):
        complete(server, proof)
    with pytest.raises(AuthenticationFailed, match="control"):
        check_token(token(sub=name), jwks(jwk(KEY)), OauthRules())


def test_plain_computes_a_salted_password_for_unknown_users_too() -> None:
    exchange = plain()
    assert callable(exchange.respond(b"\0nobody\0x")) and callable(exchange.respond(b"\0bob\0x"))


@pytest.mark.parametrize("user", ["bob", "admin", "nobody"])
def test_plain_computes_as_much_for_an_unknown_user_as_for_a_known_one(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = ScramCredential.from_password(Mechanism.SCRAM_SHA_512, "bob-secret", b"salt", 8192)
    finders = {Mechanism.SCRAM_SHA_512: {"bob": bob}.get}
    exchange = PlainExchange({"admin": "x"}, finders, lambda name: Work(Mechanism.SCRAM_SHA_512, 8192))
    computed: list[tuple[str, int]] = []
    derive = hashlib.pbkdf2_hmac

    def note(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        computed.append((digest, iterations))
        return derive(digest, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", note)
    with pytest.raises(AuthenticationFailed):
        complete(exchange, f"\0{user}\0wrong".encode())
    assert computed == [("sha512", 8192)]


# -- SCRAM ------------------------------------------------------------------------------------------------------------


def test_scram_login_has_an_identity_at_its_end_only() -> None:
    known = ScramCredential.from_password(SHA256, "secret", b"0123456789abcdef", 4096)
    exchange = ScramExchange(ScramServer(SHA256, {"alice": known}.get, nonce="S", secret=b"x"))
    client = ClientExchange(Sasl(mechanism="SCRAM-SHA-256", username="alice", password="secret"), "C")
    proof = client.answer(exchange.respond(client.first()))
    assert proof is not None and exchange.identity is None
    assert client.answer(exchange.respond(proof)) is None
    assert exchange.identity == Identity("User:alice")


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------

KEY = ec.generate_private_key(ec.SECP256R1())
RULES = OauthRules(issuer="https://issuer", audiences=("kafka",))


def jwk(key: Any, key_id: str = "one", **fields: Any) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    made: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return made | {"kid": key_id, "use": "sig"} | fields


def jwks(*keys: dict[str, Any]) -> Jwks:
    made = Jwks()
    made.load(json.dumps({"keys": list(keys) or [jwk(KEY)]}).encode())
    return made


def token(key: Any = KEY, algorithm: str = "ES256", key_id: str | None = "one", **claims: Any) -> str:
    values = {"sub": "alice", "iss": "https://issuer", "aud": "kafka", "exp": int(time.time()) + 3600} | claims
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode({name: value for name, value in values.items() if value is not None}, key, algorithm, headers)


def message(text: str, authorization_id: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {text}\x01\x01".encode()


def test_signed_token_is_accepted_and_its_expiry_known() -> None:
    exchange = OauthExchange(jwks=jwks(), rules=RULES)
    expires = int(time.time()) + 60
    assert complete(exchange, message(token(exp=expires), "a=alice")) == b""
    assert exchange.identity == Identity("User:alice", expires * 1000)


def test_key_without_an_id_is_used_if_it_is_the_only_one() -> None:
    exchange = OauthExchange(jwks=jwks(), rules=RULES)
    complete(exchange, message(token(key_id=None)))
    assert exchange.identity is not None


def made_by_hand(algorithm: str, sign: Callable[[bytes], bytes]) -> str:
    header, claims = ({"alg": algorithm, "kid": "one"}, {"sub": "alice", "exp": int(time.time()) + 60})
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims)]
    signature = base64.urlsafe_b64encode(sign(b".".join(parts))).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


def signed_with_the_public_key(text: bytes) -> bytes:
    """An HMAC with the public key as its secret, which a library that believes the token's header would accept."""
    return hmac.digest(json.dumps(jwk(KEY)).encode(), text, "sha256")


REFUSED: dict[str, Any] = {
    "expired": lambda: token(exp=int(time.time()) - 3600),
    "no expiry": lambda: token(exp=None),
    "other issuer": lambda: token(iss="https://evil"),
    "no issuer": lambda: token(iss=None),
    "other audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "no user": lambda: token(sub=None),
    "not yet valid": lambda: token(nbf=int(time.time()) + 3600),
    "other key": lambda: token(ec.generate_private_key(ec.SECP256R1())),
    "unknown key id": lambda: token(key_id="two"),
    "unsigned": lambda: made_by_hand("none", lambda text: b""),
    "public key as a secret": lambda: made_by_hand("HS256", signed_with_the_public_key),
    "no token at all": lambda: "x.y.z",
}


@pytest.mark.parametrize("case", REFUSED)
def test_token_is_refused(case: str) -> None:
    exchange = OauthExchange(jwks=jwks(), rules=RULES)
    assert complete(exchange, message(REFUSED[case]())) == b'{"status":"invalid_token"}'
    assert exchange.identity is None
    with pytest.raises(AuthenticationFailed):
        complete(exchange, b"\x01")
    with pytest.raises(AuthenticationFailed):
        complete(exchange, message(token()))


@pytest.mark.parametrize(
    "text", [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01",
             b"y,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", b"\xff"]
)  # fmt: skip
def test_malformed_message_is_refused(text: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        complete(OauthExchange(jwks=jwks(), rules=RULES), text)


def test_client_may_not_ask_for_another_user() -> None:
    exchange = OauthExchange(jwks=jwks(), rules=RULES)
    complete(exchange, message(token(), "a=root"))
    assert exchange.identity is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', b'{"keys": [1]}',
             b"[" * 100_000, b'{"keys": {"a": 1}}']
)  # fmt: skip
def test_document_without_public_keys_is_refused_and_the_keys_stay(data: bytes) -> None:
    keys = jwks()
    with pytest.raises(SecurityConfigError):
        keys.load(data)
    assert keys.find("one") is not None


def test_rsa_keys_and_several_keys() -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    exchange = OauthExchange(jwks=jwks(jwk(KEY), jwk(other, "two")), rules=RULES)
    complete(exchange, message(token(other, "RS256", "two")))
    assert exchange.identity is not None
