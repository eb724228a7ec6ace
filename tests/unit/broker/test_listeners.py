"""The security of a listener, made from settings: what it refuses at start, and what it does by default."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.broker.access.listener_security import ListenerSecurity
from ottla.broker.access.peer_logins import Peers
from ottla.broker.metadata.access_nodes import AccessView, entity_path
from ottla.broker.metadata.nodes import config_json
from ottla.env.clock import SystemClock
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.security.certificates import Certificates
from ottla.security.quotas import Entity
from ottla.security.sasl import OWN_WORK, PlainExchange, ScramExchange, Work
from ottla.security.scram import Mechanism, ScramCredential

_EC = trustme.KeyType.ECDSA
CA = trustme.CA(key_type=_EC)
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of TLS that a broker needs."""
    directory = tmp_path_factory.mktemp("tls")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": write_certificate(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write(directory / "ca.pem", CA.cert_pem.bytes()),
    }


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)


def write_certificate(path: Path) -> str:
    return write(path, CA.issue_cert("127.0.0.1", key_type=_EC).private_key_and_cert_chain_pem.bytes())


def settings(protocol: str, **texts: str) -> BrokerSettings:
    return BrokerSettings.parse({"log.dirs": "/data", "listeners": f"{protocol}://127.0.0.1:0", **texts})


def secured(protocol: str, **texts: str) -> ListenerSecurity:
    nothing: Any = None
    return ListenerSecurity(
        protocol, settings(protocol, **texts), loop=nothing, server=nothing, clock=SystemClock(),
        credentials=lambda mechanism: lambda name: None, shapes=lambda mechanism: {},
        secret=lambda: b"secret", tokens=dict, works=dict,
    )  # fmt: skip


def refusal(protocol: str, **texts: str) -> str:
    with pytest.raises(StartError) as refused:
        secured(protocol, **texts)
    return str(refused.value)


# -- what is refused at start ------------------------------------------------------------------------------------------


def test_tls_without_a_certificate_is_refused() -> None:
    assert refusal("SSL").startswith("listener SSL (SSL): ")
    assert "ssl.keystore.location" in refusal("SSL")


def test_login_without_a_mechanism_is_refused() -> None:
    assert "set sasl.enabled.mechanisms" in refusal("SASL_PLAINTEXT")


def test_login_module_of_another_mechanism_is_refused_and_its_password_not_shown() -> None:
    texts = {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f'{SCRAM} required password="canary";'}
    text = refusal("SASL_PLAINTEXT", **texts)
    assert "which is not for PLAIN" in text
    assert "canary" not in text


def test_class_that_is_no_login_module_is_refused() -> None:
    texts = {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;",
    }
    assert "is not one of" in refusal("SASL_PLAINTEXT", **texts)


def test_tokens_without_the_keys_of_their_issuer_are_refused() -> None:
    """CVE-2026-33557, CVE-2026-110985: without keys, Kafka accepted tokens that nobody had signed."""
    text = refusal("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "OAUTHBEARER"})
    assert "sasl.oauthbearer.jwks.endpoint.url must be" in text


def test_option_for_unsecured_tokens_is_refused() -> None:
    texts = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH} required unsecuredLoginStringClaim_sub="a";',
    }
    assert "unsecured tokens, which prove nothing" in refusal("SASL_PLAINTEXT", **texts)


KERBEROS = 'com.sun.security.auth.module.Krb5LoginModule required keyTab="{}" principal="kafka/host@REALM";'


@pytest.mark.parametrize(
    ("service", "login", "words"),
    [
        ("kafka", "", "GSSAPI needs a keytab and a principal"),
        ("kafka", KERBEROS.format(""), "GSSAPI needs a keytab and a principal"),
        ("", KERBEROS.format("/keytab"), "sasl.kerberos.service.name is ''"),
        ("other", KERBEROS.format("/keytab"), "sasl.kerberos.service.name is 'other'"),
        ("kafka", f"{PLAIN} required;", "which is not for GSSAPI"),
    ],
)
def test_incomplete_settings_of_kerberos_are_refused(service: str, login: str, words: str) -> None:
    texts = {"sasl.enabled.mechanisms": "GSSAPI", "sasl.kerberos.service.name": service, "sasl.jaas.config": login}
    assert words in refusal("SASL_PLAINTEXT", **texts)


def test_keytab_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    keytab = write(tmp_path / "keytab", b"this is no keytab")
    texts = {"sasl.enabled.mechanisms": "GSSAPI", "sasl.kerberos.service.name": "kafka"}
    login = KERBEROS.format(keytab)
    text = refusal("SASL_PLAINTEXT", **texts, **{"sasl.jaas.config": login})
    # The second on a system without the library.
    assert f"the keytab {keytab} cannot be used for kafka/host@REALM" in text or "apt-get install" in text
    if "apt-get install" not in text:
        Path(keytab).chmod(0o644)
        assert "can be read by other users" in refusal("SASL_PLAINTEXT", **texts, **{"sasl.jaas.config": login})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({}, "sasl.mechanism.inter.broker.protocol"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "to the login module of PLAIN"),
        (
            {"sasl.mechanism.inter.broker.protocol": "PLAIN", "sasl.jaas.config": f'{PLAIN} required username="a";'},
            "has no option password",
        ),
    ],
)
def test_broker_that_cannot_log_in_to_others_is_refused(texts: dict[str, str], words: str) -> None:
    wanted = settings("SASL_PLAINTEXT", **{"security.inter.broker.protocol": "SASL_PLAINTEXT", **texts})
    with pytest.raises(StartError, match=words):
        Peers(wanted)


# -- what a listener does ----------------------------------------------------------------------------------------------


def test_listener_without_security_has_neither_tls_nor_logins() -> None:
    made = secured("PLAINTEXT")
    assert (made.tls, made.is_sasl, made.is_tls, made.begin) == (None, False, False, None)


def test_mechanisms_are_those_that_are_enabled() -> None:
    login = f'{PLAIN} required user_alice="one";'
    texts = {"sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN", "sasl.jaas.config": login}
    made = secured("SASL_PLAINTEXT", **texts)._mechanisms
    assert list(made) == ["SCRAM-SHA-512", "PLAIN"]
    assert isinstance(made["SCRAM-SHA-512"](), ScramExchange)
    exchange = made["PLAIN"]()
    assert isinstance(exchange, PlainExchange)
    assert exchange.respond(b"\0alice\0one")() == b""


def test_tokens_are_checked_by_the_settings_of_the_listener(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    row = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = write(tmp_path / "keys.json", json.dumps({"keys": [row]}).encode())
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler"
    made = secured("SASL_PLAINTEXT", **{
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{OAUTH} required;",
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": handler,
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.issuer": "https://issuer.example",
        "sasl.oauthbearer.expected.audience": "other, kafka",
        "sasl.oauthbearer.sub.claim.name": "name",
        "sasl.oauthbearer.scope.claim.name": "roles",
        "sasl.oauthbearer.clock.skew.seconds": "60",
    })._mechanisms["OAUTHBEARER"]  # fmt: skip

    def principal(**changes: Any) -> str | None:
        claims = {"iss": "https://issuer.example", "aud": "kafka", "name": "alice", "exp": time.time() + 60}
        exchange = made()
        text = jwt.encode({**claims, **changes}, key, "ES256")
        check = exchange.respond(f"n,,\x01auth=Bearer {text}\x01\x01".encode())
        assert callable(check)
        check()
        return None if exchange.identity is None else exchange.identity.principal

    assert principal() == "User:alice"
    assert principal(aud=["x", "other"], roles=["a", "b"], exp=time.time() - 30) == "User:alice"
    for changes in ({"iss": "x"}, {"aud": "x"}, {"name": 1}, {"roles": 1}, {"exp": time.time() - 90}):
        assert principal(**changes) is None


def test_work_for_unknown_users_is_that_for_known_ones() -> None:
    made = secured("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "PLAIN"})
    assert made._work_of_unknown("nobody") == OWN_WORK
    made._works = lambda: {Work(Mechanism.SCRAM_SHA_512, 8192): 3}
    assert made._work_of_unknown("nobody") == Work(Mechanism.SCRAM_SHA_512, 8192)


def test_work_for_unknown_users_is_that_for_users_with_credentials_of_both_mechanisms() -> None:
    """A known user's password is checked with one of the two."""
    sha256, sha512 = (ScramCredential(b"salt", b"k", b"v", iterations) for iterations in (4096, 8192))
    known = {Mechanism.SCRAM_SHA_256: sha256, Mechanism.SCRAM_SHA_512: sha512}
    view = AccessView()
    config = config_json({mechanism.title: credential.text() for mechanism, credential in known.items()})
    for name in ("alice", "bob"):
        view.apply(entity_path(Entity(name)), config)
    made = secured("SASL_PLAINTEXT", **{"sasl.enabled.mechanisms": "PLAIN"})
    made._works = lambda: view.works
    made._credentials = lambda mechanism: lambda name: view.credentials.get(name, {}).get(mechanism)
    made._mechanisms = made._make_mechanisms()

    def work_of(name: str) -> tuple[Mechanism, int]:
        check: Any = made._mechanisms["PLAIN"]().respond(f"\0{name}\0wrong".encode())
        _, _, stored, fake = check.args
        mechanism, credential = stored or fake
        return mechanism, credential.iterations

    assert {work_of(f"stranger-{number}") for number in range(50)} == {work_of("alice")} == {work_of("bob")}


def test_login_module_of_a_listener_replaces_the_shared_one() -> None:
    own = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    texts = {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f'{PLAIN} required user_alice="shared";'}
    exchange = secured("SASL_PLAINTEXT", **texts, **{own: f'{PLAIN} required user_alice="own";'})._mechanisms["PLAIN"]()
    check = exchange.respond(b"\0alice\0own")
    assert callable(check)
    assert check() == b""


def test_session_of_a_mechanism_has_its_own_length() -> None:
    texts = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "connections.max.reauth.ms": "1000"}
    own = {"listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "2000"}
    rules = secured("SASL_PLAINTEXT", **texts, **own)._rules()
    assert (rules.session_ms_max("PLAIN"), rules.session_ms_max("SCRAM-SHA-256")) == (2000, 1000)


@pytest.mark.parametrize(
    ("protocol", "texts", "mode"),
    [
        ("SSL", {"ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
        ("SSL", {"ssl.client.auth": "requested"}, ssl.CERT_OPTIONAL),
        ("SSL", {}, ssl.CERT_NONE),
        # As in Kafka: clients that log in need no certificate unless their listener says so.
        ("SASL_SSL", {"ssl.client.auth": "required"}, ssl.CERT_NONE),
        ("SASL_SSL", {"listener.name.sasl_ssl.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
    ],
)
def test_certificates_of_clients(tls: dict[str, str], protocol: str, texts: dict[str, str], mode: int) -> None:
    made = secured(protocol, **tls, **{"sasl.enabled.mechanisms": "SCRAM-SHA-256", **texts})
    assert made._certificates.context.verify_mode == mode


# -- certificates while the broker runs --------------------------------------------------------------------------------


def test_new_certificate_is_used_and_a_wrong_one_is_not(tmp_path: Path, tls: dict[str, str]) -> None:
    path = tmp_path / "broker.pem"
    texts = {**tls, "ssl.keystore.location": write_certificate(path)}
    certificates = Certificates(settings("SSL", **texts).of_listener("SSL"))
    first = certificates.context
    certificates.reload("SSL")
    assert certificates.context is first
    write_certificate(path)
    certificates.reload("SSL")
    second = certificates.context
    assert second is not first
    write(path, b"this is no certificate")
    certificates.reload("SSL")
    assert certificates.context is second


# -- figures -----------------------------------------------------------------------------------------------------------


def test_failed_handshakes_and_logins_of_a_listener_are_counted_by_mechanism(tls: dict[str, str]) -> None:
    listener = secured("SASL_SSL", **tls, **{"sasl.enabled.mechanisms": "SCRAM-SHA-256"})
    dispatcher: Any = SimpleNamespace(handle=None)
    listener.handler(dispatcher)
    assert listener.tls is not None and listener.authentication is not None
    listener.tls.failed = 2
    listener.authentication.refused["SCRAM-SHA-256"] += 1
    listener.authentication.accepted["SCRAM-SHA-256"] += 3
    assert listener.refused() == {"TLS": 2, "SCRAM-SHA-256": 1}
    assert listener.accepted() == {"SCRAM-SHA-256": 3}, "a handshake alone is no login"


def test_listener_without_logins_counts_none() -> None:
    listener = secured("PLAINTEXT")
    assert (listener.accepted(), listener.refused()) == ({}, {})


def test_broker_imports_the_libraries_for_tokens_and_certificates_only_when_it_needs_them() -> None:
    """They take a sixth of its start."""
    program = "import sys, ottla.broker.main; print(*{'cryptography', 'jwt'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.split() == []
