"""One broker with a listener of each protocol, and what clients need to log in to it.

    with SecureBroker(directory) as broker:
        Producer(broker.librdkafka("SASL_SSL", "SCRAM-SHA-512"))

    PLAINTEXT, SASL_PLAINTEXT, SASL_SSL    as their names say
    SSL                                    ssl.client.auth=requested: clients without a certificate are accepted
    MUTUAL                                 SSL with ssl.client.auth=required
    SHORT                                  SASL_PLAINTEXT with sessions of three seconds (connections.max.reauth.ms)

All certificates have EC keys, because a handshake with RSA takes several times as long. ACLs decide, and everybody may
use a resource that has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from ottla.broker.access.peer_logins import Peers
from ottla.client.async_connections import BrokerClients
from ottla.client.protocol.frames import decode_reply
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.net.network import SocketNetwork
from ottla.security.acls import Operation, PatternType, Permission, ResourceType
from ottla.security.sasl_client import SaslExchange
from ottla.security.scram import Mechanism
from ottla.testing import BrokerProcess
from ottla.testing.process import reserve_port
from ottla.testing.raw import RawClient
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

#: protocols by listener
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
}
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: all ways to connect with a password or a certificate: a listener and a mechanism, which is empty without SASL
WAYS = [
    (name, mechanism)
    for name in LISTENERS
    if name != "SHORT"
    for mechanism in (PASSWORD_MECHANISMS if "SASL" in name else ("",))
]
SASL_LISTENERS = [name for name, protocol in LISTENERS.items() if "SASL" in protocol]
ISSUER, AUDIENCE = "https://issuer.example", "kafka"
#: has a password for PLAIN and for both SCRAM mechanisms
USER, PASSWORD = "alice", "alice's secret, =,"
#: the subject of the client certificate
SUBJECT = "CN=client.example,OU=Clients,O=Example"
_MODULE = "org.apache.kafka.common.security."
_EC = trustme.KeyType.ECDSA
_SALT = b"a salt of 16 bytes"


class SecureBroker:
    """A running broker with all LISTENERS on 127.0.0.1."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """Start the broker. ``settings`` are added to its settings, or replace them."""
        #: has a token for Java clients
        self.token_file = directory / "token"
        self._reserved = [reserve_port() for _ in LISTENERS]
        ports = [each.getsockname()[1] for each in self._reserved]
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)}
        authority, stranger = trustme.CA(key_type=_EC), trustme.CA(key_type=_EC)
        self.authority = _write(directory / "ca.pem", authority.cert_pem.bytes())
        #: an authority that the broker does not know
        self.other_authority = _write(directory / "other-ca.pem", stranger.cert_pem.bytes())
        self.keystore = _pem(directory / "broker.pem", authority.issue_cert("127.0.0.1", key_type=_EC))
        #: key and certificate of a client, and those of a client of the other authority
        self.client = _pem(directory / "client.pem", _client_certificate(authority))
        self.stranger = _pem(directory / "stranger.pem", _client_certificate(stranger))
        self._issuer = ec.generate_private_key(ec.SECP256R1())
        row = jwt.algorithms.ECAlgorithm.to_jwk(self._issuer.public_key(), as_dict=True)
        #: the public keys of the issuer
        self.keys = _write(directory / "keys.json", json.dumps({"keys": [{**row, "kid": "one"}]}).encode())
        self.process = BrokerProcess.start(settings={**self._settings(), **(settings or {})})
        try:
            with RawClient(self.addresses["PLAINTEXT"]) as client:
                set_password(client, USER, PASSWORD)
        except BaseException:
            self.close()
            raise

    def _settings(self) -> dict[str, str]:
        plain = f'{_MODULE}plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        return {
            "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "ssl.client.auth": "requested",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.short.connections.max.reauth.ms": "3000",
            "sasl.enabled.mechanisms": ",".join((*PASSWORD_MECHANISMS, "OAUTHBEARER")),
            **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": plain for name in SASL_LISTENERS},
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{self.keys}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "delegation.token.secret.key": "secret of the tokens",
            "authorizer.class.name": "acl",
            "allow.everyone.if.no.acl.found": "true",
        }

    # -- settings of clients --------------------------------------------------------------------------------------

    def way(self, listener: str, mechanism: str = "") -> dict[str, str]:
        """Return what a client needs, by names of its own; a name is missing if there is nothing to say."""
        found = {"bootstrap": self.addresses[listener], "protocol": LISTENERS[listener]}
        if "SSL" in LISTENERS[listener]:
            found["ca"] = self.authority
        if listener == "MUTUAL":
            found["certificate"] = self.client
        if mechanism == "OAUTHBEARER":
            return found | {"mechanism": mechanism, "token": self.token()}
        return found | ({"mechanism": mechanism, "user": USER, "password": PASSWORD} if mechanism else {})

    def librdkafka(self, listener: str, mechanism: str = "", **changes: Any) -> dict[str, Any]:
        """Return the settings of a client of librdkafka. ``changes`` have _ instead of dots; None removes one."""
        names = {
            "bootstrap": ("bootstrap.servers",), "protocol": ("security.protocol",), "ca": ("ssl.ca.location",),
            "certificate": ("ssl.certificate.location", "ssl.key.location"), "mechanism": ("sasl.mechanism",),
            "user": ("sasl.username",), "password": ("sasl.password",),
        }  # fmt: skip
        way = self.way(listener, mechanism)
        settings: dict[str, Any] = {name: text for key, text in way.items() for name in names.get(key, ())}
        if mechanism == "OAUTHBEARER":
            settings["oauth_cb"] = lambda _: (self.token(), time.time() + 3600)
        changed = {"log_level": 0, **settings, **{_dotted(name): value for name, value in changes.items()}}
        return {name: value for name, value in changed.items() if value is not None}

    def java(self, listener: str, mechanism: str = "") -> str:
        """Return the settings of a Java client as the text of a file of properties."""
        lines = {"security.protocol": LISTENERS[listener]}
        if "SSL" in LISTENERS[listener]:
            lines |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if listener == "MUTUAL":
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.client}
        if mechanism == "OAUTHBEARER":
            _write(self.token_file, self.token().encode())
            lines |= {
                "sasl.mechanism": mechanism, "sasl.oauthbearer.token.endpoint.url": f"file://{self.token_file}",
                "sasl.login.callback.handler.class": f"{_MODULE}oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config": f"{_MODULE}oauthbearer.OAuthBearerLoginModule required;",
            }  # fmt: skip
        elif mechanism:
            kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            login = f'{_MODULE}{kind}LoginModule required username="{USER}" password="{PASSWORD}";'
            lines |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def token(self, *, lifetime_s: int = 3600, **changes: Any) -> str:
        """Return a token that the broker accepts for the user, with changed claims. A claim of None is left out."""
        claims = {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + lifetime_s, **changes}
        given = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(given, self._issuer, "ES256", {"kid": "one"})

    def close(self) -> None:
        self.process.close()
        for each in self._reserved:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def allow_only(broker: SecureBroker, topic: str, principal: str) -> None:
    """Create a topic that one principal may use."""
    with RawClient(broker.addresses["PLAINTEXT"]) as client:
        client.create_topic(topic)
    allow(broker, topic, principal, Operation.ALL)


def allow(broker: SecureBroker, topic: str, principal: str, operation: Operation) -> None:
    """Allow a principal to do something with a topic."""
    creation = AclCreation(
        resource_type=ResourceType.TOPIC, resource_name=topic, resource_pattern_type=PatternType.LITERAL,
        principal=principal, host="*", operation=operation, permission_type=Permission.ALLOW,
    )  # fmt: skip
    with RawClient(broker.addresses["PLAINTEXT"]) as client:
        (result,) = client.ask(CreateAclsRequest(creations=[creation]), 3).results
        assert result.error_code == 0, result


def revoke(broker: SecureBroker, topic: str, principal: str, operation: Operation) -> None:
    """Delete what ``allow`` created."""
    acl = DeleteAclsFilter(
        resource_type_filter=ResourceType.TOPIC, resource_name_filter=topic, pattern_type_filter=PatternType.LITERAL,
        principal_filter=principal, host_filter="*", operation=operation, permission_type=Permission.ALLOW,
    )  # fmt: skip
    with RawClient(broker.addresses["PLAINTEXT"]) as client:
        (result,) = client.ask(DeleteAclsRequest(filters=[acl]), 3).filter_results
        assert result.error_code == 0 and len(result.matching_acls) == 1, result


def log_in(client: RawClient, mechanism: str, exchange: SaslExchange) -> Any:
    """Log in over a connection and return the last answer: that of the login, or that of the refusal."""
    handshake = client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
    assert handshake.error_code == 0, handshake
    token: bytes | None = exchange.first()
    while token is not None:
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        if answer.error_code:
            return answer
        token = exchange.answer(answer.auth_bytes)
    return answer


def log_in_as_broker(settings: Mapping[str, str], address: str, *, times: int = 1) -> None:
    """Log in as another broker with these settings would, one or more times on one connection, and send a request.

    Raise StartError if the settings are wrong, and Unreachable if the broker refuses the login.
    """
    host, port = address.rsplit(":", 1)
    wanted = {"zookeeper.connect": "127.0.0.1:1", "log.dirs": "/data", "broker.id": "2", **settings}
    peers = Peers(BrokerSettings.parse(wanted))

    async def main() -> None:
        clients = BrokerClients(
            asyncio.get_running_loop(), SocketNetwork(), client_id="broker-2", security=peers.security
        )
        try:
            endpoint = Endpoint("PEERS", host, int(port))
            connection = await clients.open(endpoint, timeout_s=60.0)
            assert peers.security.log_in is not None
            for _ in range(times - 1):
                await clients._log_in(connection, peers.security.log_in)
            sent, frame = clients._requests.frame(MetadataRequest(topics=[]), 12)
            answer: Any = decode_reply(await connection.send(frame), sent)
            assert answer.brokers
        finally:
            clients.close()

    asyncio.run(main())


def _dotted(name: str) -> str:
    """Return the name of a setting of librdkafka; those of callbacks have no dots."""
    return name if name.endswith("_cb") else name.replace("_", ".")


def set_password(client: RawClient, user: str, password: str) -> None:
    """Give a user SCRAM credentials of both mechanisms."""
    rows = [
        ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=4096, salt=_SALT,
            salted_password=hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), _SALT, 4096),
        )
        for mechanism in Mechanism
    ]  # fmt: skip
    (result,) = client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=rows), 0).results
    assert result.error_code == 0, result


def _client_certificate(authority: trustme.CA) -> trustme.LeafCert:
    name, unit, organization = (part.partition("=")[2] for part in SUBJECT.split(","))
    return authority.issue_cert(
        name, common_name=name, organization_unit_name=unit, organization_name=organization, key_type=_EC
    )


def _pem(path: Path, certificate: trustme.LeafCert) -> str:
    """Write key and certificates. The key is in PKCS #8, because Java reads no other form."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _write(path, text + b"".join(each.bytes() for each in certificate.cert_chain_pems))


def _write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)
