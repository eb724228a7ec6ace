"""Secrets that a broker knows or is sent appear in none of its output, its command line, its files and its answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)

from ottla.model.settings import BROKER_SETTINGS
from ottla.testing.raw import RawClient
from ottla.wire.messages import alter_configs, describe_configs, incremental_alter_configs
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

pytestmark = [pytest.mark.broker, pytest.mark.client]

WAIT_S = 60
ISSUER, AUDIENCE = "https://issuer.example", "kafka"


def canary(place: str) -> str:
    """Return the secret of a place; each has a name of its own, so that a failure says which one was shown."""
    return f"canary-{place}-5e1f"


class SecuredBroker:
    """A broker with a secret in each of its settings, and the clients that use it rightly and wrongly."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        issued = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
        self.trusted = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.trusted))
        key: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
        chain = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
        root = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
        lock = BestAvailableEncryption(canary("keystore").encode())
        self._write(directory / "key.p12", serialize_key_and_certificates(b"b", key, chain, None, lock))
        lock = BestAvailableEncryption(canary("truststore").encode())
        trusts = [PKCS12Certificate(root, b"ca")]
        self._write(directory / "trust.p12", serialize_java_truststore(trusts, lock))
        self._issuer = ec.generate_private_key(ec.SECP256R1())
        row = jwt.algorithms.ECAlgorithm.to_jwk(self._issuer.public_key(), as_dict=True)
        self._write(directory / "keys.json", json.dumps({"keys": [{**row, "kid": "one"}]}).encode())
        #: parts of tokens of OAUTHBEARER that were sent
        self.tokens: list[str] = []
        config = directory / "server.properties"
        config.write_text("".join(f"{name}={text}\n" for name, text in self._settings(directory).items()))
        self._log = directory / "output"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla", "broker", "--config", str(config), "--data", str(self.data)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
                env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
            )  # fmt: skip
        assert self._process.stdout is not None
        self._ready = self._process.stdout.readline()
        assert self._ready.startswith("ready"), self._log.read_text()
        self.port = int(self._ready.split()[1].rpartition(":")[2])

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)

    @staticmethod
    def _settings(directory: Path) -> dict[str, str]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0", "log.level": "DEBUG",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/keys.json",
            "sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module} user_admin="{canary("plain")}";',
            "sasl.jaas.config": f'{module} username="broker" password="{canary("jaas")}";',
            "ssl.keystore.location": f"{directory}/key.p12", "ssl.keystore.password": canary("keystore"),
            "ssl.key.password": canary("key"), "ssl.truststore.location": f"{directory}/trust.p12",
            "ssl.truststore.password": canary("truststore"),
            "authorizer.class.name": "acl", "super.users": "User:admin",
            "zookeeper.ssl.keystore.password": canary("zookeeper"), "zookeeper.auth.digest": canary("digest"),
            "confluent.license": canary("license"),
        }  # fmt: skip
        if "delegation.token.secret.key" in BROKER_SETTINGS:
            settings["delegation.token.secret.key"] = canary("delegation")
        return settings

    def client(self, user: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
        return {
            "bootstrap.servers": f"localhost:{self.port}", "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": password, "ssl.ca.location": str(self.trusted),
        }  # fmt: skip

    def token(self, **changes: Any) -> str:
        """Return a token of OAUTHBEARER for carol, valid unless claims are changed."""
        claims = {"sub": "carol", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 3600, **changes}
        token = jwt.encode({**claims, "jti": canary("jwt")}, self._issuer, "ES256", {"kid": "one"})
        self.tokens += token.split(".")[1:]
        return token

    def connect(self) -> RawClient:
        client = RawClient(f"127.0.0.1:{self.port}")
        context = ssl.create_default_context(cafile=str(self.trusted))
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        return client

    def log_in(self, client: RawClient, mechanism: str, *tokens: str) -> int:
        """Log in with these tokens and return the last error code."""
        assert client.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
        codes = [client.ask(SaslAuthenticateRequest(auth_bytes=each.encode()), 2).error_code for each in tokens]
        return int(codes[-1])

    def shown_secrets(self, text: str) -> list[str]:
        return [line for line in text.splitlines() if any(each in line for each in ("canary", *self.tokens))]

    def send_tokens(self, mechanism: str, *tokens: bytes) -> None:
        """Log in by hand with these tokens, until the broker closes the connection."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        name = mechanism.encode()
        frames = [struct.pack(">hhihh", 17, 1, 1, -1, len(name)) + name]
        frames += [struct.pack(">hhihi", 36, 0, 2, -1, len(token)) + token for token in tokens]
        plain = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        with context.wrap_socket(plain, server_hostname="localhost") as connection, suppress(OSError):
            for frame in frames:
                connection.sendall(struct.pack(">i", len(frame)) + frame)
            while connection.recv(4096):
                pass

    def command_line(self) -> str:
        return Path(f"/proc/{self._process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()

    def stop(self) -> str:
        """Stop the broker and return all that it has written to its output."""
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        rest, _ = self._process.communicate(timeout=WAIT_S)
        return self._ready + rest + self._log.read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    secured = SecuredBroker(tmp_path_factory.mktemp("secrets"))
    yield secured
    secured.stop()


def use_oauth_tokens(broker: SecuredBroker) -> None:
    """Log in with a valid token, and fail to with tokens whose signature is right."""
    wrong: list[dict[str, Any]] = [{"exp": int(time.time()) - 3600}, {"aud": "others"}, {"iss": "others"}, {"sub": ""}]
    for changes in ({}, *wrong):
        first = f"n,,\x01auth=Bearer {broker.token(**changes)}\x01\x01"
        with broker.connect() as client:
            if not changes:
                assert broker.log_in(client, "OAUTHBEARER", first) == 0
                client.ask(MetadataRequest(topics=None), 9)
            else:  # the first answer is the error, which the client confirms
                assert broker.log_in(client, "OAUTHBEARER", first, "\x01") == 58, changes


#: settings whose values are secrets, of brokers, of listeners and unknown ones
SECRET_NAMES = (
    "ssl.keystore.password", "sasl.jaas.config", "delegation.token.secret.key", "listener.name.x.ssl.key.password",
    "listener.name.x.plain.sasl.jaas.config", "some.client.secret", "consumer.token",
)  # fmt: skip
#: type and name of each kind of resource: broker, defaults of all brokers, group, topic
RESOURCES = ((4, "0"), (4, ""), (32, "g"), (2, "t"))


def alter_secrets(broker: SecuredBroker) -> list[str]:
    """Send secrets in both requests that change settings, to each resource. Return all replies and descriptions."""
    answers = []
    with broker.connect() as client:
        assert broker.log_in(client, "PLAIN", f"\0admin\0{canary('plain')}") == 0
        for kind, resource in RESOURCES:
            for name in SECRET_NAMES:
                answers += _altered(client, kind, resource, name)
            row = describe_configs.DescribeConfigsResource(
                resource_type=kind, resource_name=resource, configuration_keys=None
            )
            request = describe_configs.DescribeConfigsRequest(
                resources=[row], include_synonyms=True, include_documentation=True
            )
            answers.append(repr(client.ask(request, 4)))
    return answers


def _altered(client: RawClient, kind: int, resource: str, name: str) -> Iterator[str]:
    """Yield the replies of AlterConfigs and IncrementalAlterConfigs, which validate first and then change."""
    value = canary("altered")
    for validate_only in (True, False):
        legacy = alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=[alter_configs.AlterableConfig(name=name, value=value)]
        )
        yield repr(client.ask(alter_configs.AlterConfigsRequest(resources=[legacy], validate_only=validate_only), 2))
        for operation in (0, 2):  # set, append
            change = incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
            row = incremental_alter_configs.AlterConfigsResource(
                resource_type=kind, resource_name=resource, configs=[change]
            )
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[row], validate_only=validate_only
            )
            yield repr(client.ask(request, 1))


def test_answers_and_output_of_a_broker_show_no_secret(broker: SecuredBroker) -> None:
    admin = AdminClient(broker.client("admin", canary("plain")))
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
    user = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), canary("scram").encode()
    )
    admin.alter_user_scram_credentials([user])["alice"].result(WAIT_S)

    answers = []
    resources = [(ResourceType.BROKER, "0"), (ResourceType.TOPIC, "t")]
    for kind, name in resources:
        for future in admin.describe_configs([ConfigResource(kind, name)]).values():
            for entry in future.result(WAIT_S).values():
                answers += [
                    f"{entry.name}={entry.value}",
                    *(f"{each}={found.value}" for each, found in entry.synonyms.items()),
                ]
    answers.append(str(admin.describe_user_scram_credentials(["alice"])["alice"].result(WAIT_S)))
    for name in ("ssl.key.password", "ssl.keystore.pasword", "listener.name.sasl_ssl.ssl.key.password"):
        change = ConfigEntry(name, canary("altered"), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[change])
        refused = admin.incremental_alter_configs([resource])[resource].exception(WAIT_S)
        assert isinstance(refused, KafkaException)
        answers.append(str(refused))
    answers += alter_secrets(broker)
    assert broker.shown_secrets("\n".join(answers)) == []

    # Right and wrong logins.
    Producer(broker.client("alice", canary("scram"), "SCRAM-SHA-256")).list_topics(timeout=WAIT_S)
    for mechanism, token in (
        ("PLAIN", f"\0admin\0{canary('wrong-plain')}".encode()),
        ("PLAIN", canary("no-plain").encode()),
        ("SCRAM-SHA-256", f"n,,n=alice,r={canary('nonce')}".encode()),
        ("SCRAM-SHA-256", canary("no-scram").encode()),
        ("OAUTHBEARER", f"n,,\x01auth=Bearer {canary('token')}\x01\x01".encode()),
        ("GSSAPI", canary("ticket").encode()),
    ):
        broker.send_tokens(mechanism, token, canary("second-token").encode())
    use_oauth_tokens(broker)

    assert broker.shown_secrets(broker.command_line()) == []
    assert oct((broker.data / "metadata.db").stat().st_mode & 0o777) == "0o600"
    output = broker.stop()
    assert "login refused" in output
    assert broker.shown_secrets(output) == []
    stored = b"".join(path.read_bytes() for path in broker.data.rglob("*") if path.is_file())
    assert broker.shown_secrets(stored.decode("latin-1")) == []
