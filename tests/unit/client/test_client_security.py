"""Client properties, and the conversations by which client and broker come to trust each other."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from fake_cluster import FakeCluster

from ottla.client.cluster import Cluster
from ottla.client.errors import AuthenticationFailed, PropertyRefused
from ottla.client.security import Security, begin_login
from ottla.security.errors import AuthenticationFailed as LoginFailed
from ottla.security.sasl_client import PASSWORD_MECHANISMS as MECHANISMS
from ottla.security.sasl_client import Sasl, ScramExchange
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeResponse
from token_issuer import CLIENT_ID, CLIENT_SECRET, TokenIssuer

SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me",
         "sasl.password": "secret"}  # fmt: skip


# -- properties -------------------------------------------------------------------------------------------------------


def test_without_properties_nothing_is_hidden() -> None:
    assert Security.parse({}) == Security(protocol="PLAINTEXT", tls=None, sasl=None)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"ssl.ca.locaton": "x"}, r"did you mean ssl\.ca\.location\?"),
        ({"linger.ms": "5"}, "client property linger.ms is not known; known are security.protocol"),
        ({"security.protocol": "TLS"}, "choose one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.password": "x"}, "sasl.password has no effect with security.protocol=PLAINTEXT"),
        ({"security.protocol": "ssl", "sasl.username": "x"}, "set it to SASL_PLAINTEXT or SASL_SSL"),
        ({"security.protocol": "sasl_plaintext"}, "choose PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({**SCRAM, "sasl.mechanism": "SPNEGO"}, "sasl.mechanism=SPNEGO is not known"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "GSSAPI needs sasl.kerberos.service.name"),
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "token.endpoint.url must be file:///PATH or https"),
        (
            {**SCRAM, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://a.example/"},
            "needs an id and a secret of the client",
        ),
        ({**SCRAM, "sasl.password": ""}, "needs sasl.password"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/gone"}, "cannot be used.*must be PEM"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "convert the store to PEM or PKCS12"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "x"}, "choose https or none"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_way_out(properties: dict[str, str], told: str) -> None:
    with pytest.raises(PropertyRefused, match=told):
        Security.parse(properties)


def test_names_of_both_clients_are_understood() -> None:
    java = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'org.x.PlainLoginModule required username="me" password="a\\"b";',
    }
    librdkafka = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": 'a"b',
    }
    assert Security.parse(java) == Security.parse(librdkafka)


def test_who_asks_for_plaintext_by_name_gets_it() -> None:
    assert Security.parse({**SCRAM, "security.protocol": "plaintext"}).sasl is None


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Security.parse(SCRAM))


def test_certificates_are_checked_unless_somebody_says_no() -> None:
    tls = Security.parse({"security.protocol": "SSL"}).tls
    assert tls is not None and (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
    tls = Security.parse({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}).tls
    assert tls is not None and (tls.check_hostname, tls.verify_mode) == (False, ssl.CERT_REQUIRED)
    tls = Security.parse({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}).tls
    assert tls is not None and (tls.check_hostname, tls.verify_mode) == (False, ssl.CERT_NONE)


def test_a_key_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "not.pem"
    file.write_text("nothing")
    with pytest.raises(PropertyRefused, match="the key must be the certificate's"):
        Security.parse({"security.protocol": "SSL", "ssl.certificate.location": str(file)})


def test_pkcs12_and_pem_in_properties_are_read(tmp_path: Path) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = authority.issue_cert("me", key_type=trustme.KeyType.ECDSA)
    key: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    store = tmp_path / "me.p12"
    store.write_bytes(serialize_key_and_certificates(b"me", key, certificate, None, BestAvailableEncryption(b"secret")))
    store.chmod(0o600)
    trusted = {"security.protocol": "SSL", "ssl.truststore.certificates": authority.cert_pem.bytes().decode()}
    pkcs12 = {"ssl.keystore.location": str(store), "ssl.keystore.password": "secret"}
    pem = {
        "ssl.keystore.key": issued.private_key_pem.bytes().decode(),
        "ssl.keystore.certificate.chain": issued.cert_chain_pems[0].bytes().decode(),
    }
    for given in (pkcs12, {**pkcs12, "ssl.keystore.type": "PKCS12"}, pem):
        tls = Security.parse({**trusted, **given}).tls
        assert tls is not None and tls.check_hostname and tls.verify_mode is ssl.CERT_REQUIRED
        assert tls.cert_store_stats()["x509_ca"] == 1
    with pytest.raises(PropertyRefused, match=r"ssl\.keystore\.password is wrong") as refused:
        Security.parse({**trusted, **pkcs12, "ssl.keystore.password": "canary-secret"})
    assert "canary" not in str(refused.value)


# -- SCRAM ------------------------------------------------------------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    sasl = Sasl(mechanism="SCRAM-SHA-256", username="user", password="pencil")
    exchange = ScramExchange(sasl, "rOprNGfwEbeRWgbNEkqO")
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.answer(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=W22Z,i=4096",
        b"r=nonce,s=W22Z,i=4096",
        b"r=nonceX,s=!,i=4096",
        b"r=nonceX,s=W22Z,i=many",
        b"r=nonceX,s=W22Z,i=1",
        b"r=nonceX,s=W22Z,i=999999999",
        b"e=unknown-user",
        b"\xff",
    ],
)
def test_a_challenge_that_cannot_be_trusted_is_refused(challenge: bytes) -> None:
    exchange = ScramExchange(Sasl(mechanism="SCRAM-SHA-256", username="u", password="p"), "nonce")
    exchange.first()
    with pytest.raises(LoginFailed):
        exchange.answer(challenge)


def test_a_name_with_signs_of_the_grammar_is_escaped() -> None:
    exchange = ScramExchange(Sasl(mechanism="SCRAM-SHA-256", username="a=b,c", password="p"), "nonce")
    assert exchange.first() == b"n,,n=a=3Db=2Cc,r=nonce"


class ScramBroker:
    """The other side of the conversation; it knows one password, or pretends to."""

    def __init__(self, digest: str, password: bytes, *, liar: bool = False) -> None:
        self._digest = digest
        self._salted = hashlib.pbkdf2_hmac(digest, password, b"salt", 4096)
        self._liar = liar
        self._words: list[str] = []

    def handshake(self, broker_id: int, request: Any) -> Any:
        return SaslHandshakeResponse(mechanisms=list(MECHANISMS))

    def first(self, broker_id: int, request: Any) -> Any:
        bare = request.auth_bytes.decode().removeprefix("n,,")
        salt = base64.b64encode(b"salt").decode()
        self._words = [bare, f"{bare.split('r=')[1]}server"]
        self._words[1] = f"r={self._words[1]},s={salt},i=4096"
        return SaslAuthenticateResponse(auth_bytes=self._words[1].encode())

    def second(self, broker_id: int, request: Any) -> Any:
        final, _, proof = request.auth_bytes.decode().partition(",p=")
        signed = ",".join([*self._words, final]).encode()
        client_key = self._hmac(self._salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._digest, client_key).digest(), signed)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed")
        server = self._hmac(self._hmac(self._salted, b"Server Key"), b"lies" if self._liar else signed)
        return SaslAuthenticateResponse(auth_bytes=b"v=" + base64.b64encode(server))

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._digest).digest()


def plan(fake: FakeCluster, broker: ScramBroker) -> None:
    fake.plan("SaslHandshake", broker.handshake)
    fake.plan("SaslAuthenticate", broker.first, broker.second)


@pytest.mark.parametrize(("mechanism", "digest"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_a_broker_that_knows_the_password_is_trusted(fake: FakeCluster, mechanism: str, digest: str) -> None:
    plan(fake, ScramBroker(digest, b"secret"))
    with Cluster("fake:9001", {**SCRAM, "sasl.mechanism": mechanism}, timeout_s=60) as cluster:
        assert set(cluster.topics()) == {"t"}


def test_a_wrong_password_is_not_tried_again(fake: FakeCluster) -> None:
    plan(fake, ScramBroker("sha512", b"other"))
    with (
        Cluster("fake:9001", SCRAM, timeout_s=60) as cluster,
        pytest.raises(AuthenticationFailed, match=r"refuses user me \(Authentication failed\); check sasl.username"),
    ):
        cluster.topics()
    assert len(fake.requests("SaslAuthenticate")) == 2


def test_a_broker_that_does_not_know_the_password_is_not_trusted(fake: FakeCluster) -> None:
    plan(fake, ScramBroker("sha512", b"secret", liar=True))
    with (
        Cluster("fake:9001", SCRAM, timeout_s=60) as cluster,
        pytest.raises(AuthenticationFailed, match="the broker does not know this user's password"),
    ):
        cluster.topics()


def test_a_mechanism_that_the_broker_lacks_is_told_with_those_it_has(fake: FakeCluster) -> None:
    fake.plan("SaslHandshake", lambda *_: SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "GSSAPI"]))
    with (
        Cluster("fake:9001", SCRAM, timeout_s=60) as cluster,
        pytest.raises(
            AuthenticationFailed, match=r"does not take sasl\.mechanism=SCRAM-SHA-512; it offers PLAIN, GSSAPI"
        ),
    ):
        cluster.topics()


def test_plain_sends_name_and_password(fake: FakeCluster) -> None:
    fake.plan("SaslHandshake", lambda *_: SaslHandshakeResponse(mechanisms=["PLAIN"]))
    fake.plan("SaslAuthenticate", lambda *_: SaslAuthenticateResponse())
    with Cluster("fake:9001", {**SCRAM, "sasl.mechanism": "PLAIN"}, timeout_s=60) as cluster:
        cluster.topics()
    assert fake.requests("SaslAuthenticate")[0].auth_bytes == b"\0me\0secret"


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_client_logs_in_with_a_token_of_the_issuer(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    with TokenIssuer(tmp_path) as issuer:
        shared = {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "ssl.ca.location": str(issuer.authority),
            "sasl.oauthbearer.token.endpoint.url": issuer.url("/token"),
        }  # fmt: skip
        librdkafka = {
            "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        }  # fmt: skip
        java = {"sasl.jaas.config": f'{module} required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}";'}
        for names in (librdkafka, java):
            login = Security.parse({**shared, **names}).sasl
            assert login is not None and login.username == CLIENT_ID and CLIENT_SECRET not in repr(login)
            said = [begin_login(login, "").first() for _ in range(2)]
            assert said[0].startswith(b"n,,\x01auth=Bearer ey") and said[0] == said[1]
        assert len(issuer.forms) == 2
        wrong = Security.parse({**shared, **librdkafka, "sasl.oauthbearer.client.secret": "canary"}).sasl
        assert wrong is not None
        with pytest.raises(LoginFailed, match="status 401") as refused:
            begin_login(wrong, "").first()
        assert "canary" not in str(refused.value)
