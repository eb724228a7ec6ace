"""Vulnerabilities of others in logins, each tried here. TLS, ACLs and other parts have theirs elsewhere."""

from __future__ import annotations

import hmac
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.model.setting_types import InvalidSettings
from ottla.model.settings import BrokerSettings
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.jaas import LOGIN_MODULES, parse_jaas
from ottla.security.oauth import Jwks, OauthExchange, OauthRules
from ottla.security.sasl import Exchange, PlainExchange, ScramExchange
from ottla.security.sasl_client import Sasl
from ottla.security.sasl_client import ScramExchange as ScramClient
from ottla.security.scram import Mechanism, ScramCredential, ScramServer

SHA256 = Mechanism.SCRAM_SHA_256
ALICE = ScramCredential.from_password(SHA256, "secret", b"0123456789abcdef", 4096)
KEY = ec.generate_private_key(ec.SECP256R1())


def plain() -> PlainExchange:
    return PlainExchange({"admin": "admin-secret"}, {SHA256: {"alice": ALICE}.get})


def scram() -> ScramExchange:
    return ScramExchange(ScramServer(SHA256, {"alice": ALICE}.get, nonce="server", secret=b"x"))


def public_key(key: Any, key_id: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    return row | {"kid": key_id}


def oauth() -> OauthExchange:
    keys = Jwks()
    keys.load(json.dumps({"keys": [public_key(KEY, "one")]}).encode())
    return OauthExchange(jwks=keys, rules=OauthRules())


def bearer(token: str, authorization_id: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {token}\x01\x01".encode()


def signed(key: Any = KEY, **headers: Any) -> str:
    claims = {"sub": "alice", "exp": int(time.time()) + 60}
    return jwt.encode(claims, key, "ES256", {"kid": "one", **headers})


def say(exchange: Exchange, message: bytes) -> bytes:
    answer = exchange.respond(message)
    return answer if isinstance(answer, bytes) else answer()


def scram_proof(exchange: ScramExchange, first: bytes = b"") -> bytes:
    """Return the final message of a client that knows the password."""
    client = ScramClient(Sasl(mechanism="SCRAM-SHA-256", username="alice", password="secret"), "client")
    proof = client.answer(say(exchange, first or client.first()))
    assert proof is not None
    return proof


# -- CVE-2017-12610: a crafted message gave an authenticated client the name of another user ---------------------------


def test_cve_2017_12610_plain_client_cannot_ask_for_another_user() -> None:
    exchange = plain()
    with pytest.raises(AuthenticationFailed):
        say(exchange, b"admin\0alice\0secret")
    assert exchange.identity is None


def test_cve_2017_12610_scram_client_cannot_ask_for_another_user() -> None:
    with pytest.raises(AuthenticationFailed):
        say(scram(), b"n,a=admin,n=alice,r=client")


def test_cve_2017_12610_oauthbearer_client_cannot_ask_for_another_user() -> None:
    exchange = oauth()
    say(exchange, bearer(signed(), "a=admin"))
    assert exchange.identity is None


# -- CVE-2021-38153: the time of a comparison told how much of a secret was right --------------------------------------


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """The arguments of all comparisons that take the same time for all contents."""
    found: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def note(one: bytes, other: bytes) -> bool:
        found.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", note)
    return found


@pytest.mark.parametrize("password", ["x", "admin-secrex", "admin-secret and more"])
def test_cve_2021_38153_password_is_compared_in_constant_time(
    compared: list[tuple[bytes, bytes]], password: str
) -> None:
    with pytest.raises(AuthenticationFailed):
        say(plain(), f"\0admin\0{password}".encode())
    assert any(len(one) == len(other) == 32 and one != other for one, other in compared)


def test_cve_2021_38153_proof_is_compared_in_constant_time(compared: list[tuple[bytes, bytes]]) -> None:
    exchange = scram()
    client = ScramClient(Sasl(mechanism="SCRAM-SHA-256", username="alice", password="wrong"), "client")
    proof = client.answer(say(exchange, client.first()))
    assert proof is not None
    with pytest.raises(AuthenticationFailed):
        say(exchange, proof)
    assert any(other == ALICE.stored_key and one != other for one, other in compared)


# -- CVE-2024-56128: the nonce of the final message was not compared, then only its end was ----------------------------


@pytest.mark.parametrize(
    "nonce", [b"client", b"server", b"xclientserver", b"clientserverx", b"xserver", b"clientSERVER"]
)
def test_cve_2024_56128_nonce_of_the_final_message_must_be_equal(nonce: bytes) -> None:
    exchange = scram()
    proof = scram_proof(exchange)
    with pytest.raises(AuthenticationFailed):
        say(exchange, proof.replace(b"r=clientserver", b"r=" + nonce))
    assert exchange.identity is None


@pytest.mark.parametrize(
    "challenge", [b"r=server,s=QUFB,i=4096", b"r=client,s=QUFB,i=4096", b"r=xclientS,s=QUFB,i=4096"]
)
def test_cve_2024_56128_client_refuses_a_challenge_without_its_nonce(challenge: bytes) -> None:
    client = ScramClient(Sasl(mechanism="SCRAM-SHA-256", username="alice", password="secret"), "client")
    client.first()
    with pytest.raises(AuthenticationFailed):
        client.answer(challenge)


# -- CVE-2023-25194, CVE-2025-27818, CVE-2025-27819: a login module of the settings ran code ---------------------------


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "com.sun.security.auth.module.UnixLoginModule",
        "org.apache.kafka.common.security.plain.PlainLoginModule2",
        "org.apache.kafka.common.security.PLAIN.PlainLoginModule",
        "os.system",
    ],
)
def test_cve_2023_25194_2025_27818_2025_27819_unknown_login_module_is_refused(module: str) -> None:
    assert module not in LOGIN_MODULES
    with pytest.raises(SecurityConfigError, match="is not one of"):
        parse_jaas("sasl.jaas.config", f'{module} required user.provider.url="ldap://evil.example" password="canary";')


def test_cve_2023_25194_second_login_module_is_refused() -> None:
    plain_module = next(iter(LOGIN_MODULES))
    with pytest.raises(SecurityConfigError):
        parse_jaas(
            "sasl.jaas.config", f"{plain_module} required; com.sun.security.auth.module.JndiLoginModule required;"
        )


# -- CVE-2025-27817: an address in untrusted data was read -------------------------------------------------------------


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    tried: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        tried.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield tried
    assert not tried


_STRANGER = ec.generate_private_key(ec.SECP256R1())
_HEADERS: dict[str, Callable[[], dict[str, Any]]] = {
    "jku": lambda: {"jku": "http://169.254.169.254/keys"},
    "x5u": lambda: {"x5u": "file:///etc/passwd"},
    "jwk": lambda: {"jwk": public_key(_STRANGER, "one")},
    "kid": lambda: {"kid": "../../../../dev/null"},
    "crit": lambda: {"crit": ["exp"]},
}


@pytest.mark.parametrize("header", _HEADERS)
def test_cve_2025_27817_token_cannot_name_its_own_key(header: str, no_network: list[Any]) -> None:
    exchange = oauth()
    assert say(exchange, bearer(signed(_STRANGER, **_HEADERS[header]()))) == b'{"status":"invalid_token"}'
    assert exchange.identity is None


# -- CVE-2026-33557, CVE-2026-110985: tokens were accepted without a check of their signature --------------------------


def test_cve_2026_33557_2026_110985_without_keys_every_token_is_refused() -> None:
    """`test_listeners.py` shows that a broker without a JWKS does not start."""
    exchange = OauthExchange(jwks=Jwks(), rules=OauthRules())
    assert say(exchange, bearer(signed())) == b'{"status":"invalid_token"}'
    assert exchange.identity is None


# -- CVE-2023-30450: a security setting with a wrong name was ignored --------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "sasl.enabled.mechanism", "ssl.client.auths", "ssl.keystore.locations", "sasl.oauthbearer.jwks.url",
        "listener.name.sasl_plaintext.sasl.enabled.mechanism", "listener.name.other.ssl.client.auth",
        "listener.name.sasl_plaintext.plain.sasl.jaas.confg", "security.inter.broker.protocl",
    ],
)  # fmt: skip
def test_cve_2023_30450_misspelt_security_setting_ends_the_start(name: str) -> None:
    texts = {"log.dirs": "/data", "listeners": "SASL_PLAINTEXT://127.0.0.1:0", name: "canary"}
    with pytest.raises(InvalidSettings) as refused:
        BrokerSettings.parse(texts)
    assert name in str(refused.value)
    assert "canary" not in str(refused.value)
