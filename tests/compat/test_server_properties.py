"""Files server.properties as people write them for Kafka: Ottla starts with them unchanged, and clients log in.

`server_properties/` has the files; only ports, paths and PEM texts are filled in. Every file is read and its
certificates and logins are prepared as at a start, in a few milliseconds. `OTTLA_SECURITY=1` (campaign `security`)
starts a broker with each of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import jwt
import pytest
import trustme
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

import kerberos
from kerberos import REALM, Realm
from ottla.broker.access.listener_security import ListenerSecurity
from ottla.broker.access.peer_logins import Peers
from ottla.broker.main import gather_settings
from ottla.broker.metadata.zookeeper.access import zookeeper_security
from ottla.cli.security_files import _store_user
from ottla.env.clock import SystemClock
from ottla.testing.process import reserve_port
from secure_broker import log_in_as_broker

FILES = Path(__file__).parent / "server_properties"
NAMES = sorted(path.stem for path in FILES.glob("*.properties"))
_EC = trustme.KeyType.ECDSA
_DEADLINE_S = 60.0


class Machine:
    """What the files refer to: key stores, keys of a token issuer, and free ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = trustme.CA(key_type=_EC)
        self.authority = self.write("ca.pem", authority.cert_pem.bytes())
        made = authority.issue_cert("localhost", key_type=_EC)
        key: Any = load_pem_private_key(made.private_key_pem.bytes(), None)
        chain = made.cert_chain_pems[0].bytes()
        certificate, trusted = load_pem_x509_certificate(chain), load_pem_x509_certificate(authority.cert_pem.bytes())
        encryption = BestAvailableEncryption(b"keystore-secret")
        keystore = serialize_key_and_certificates(b"localhost", key, certificate, [trusted], encryption)
        self.write("kafka.server.keystore.jks", keystore)
        truststore = serialize_key_and_certificates(
            None, None, None, [trusted], BestAvailableEncryption(b"truststore-secret")
        )
        self.write("kafka.server.truststore.jks", truststore)
        client = authority.issue_cert(
            "client.example", common_name="Client.Example", organization_unit_name="Clients", key_type=_EC
        )
        self.client = self.write("client.pem", client.private_key_and_cert_chain_pem.bytes())
        self._issuer = ec.generate_private_key(ec.SECP256R1())
        row = jwt.algorithms.ECAlgorithm.to_jwk(self._issuer.public_key(), as_dict=True)
        self.write("jwks.json", json.dumps({"keys": [{**row, "kid": "one"}]}).encode())
        self._reserved = [reserve_port() for _ in range(3)]
        self.ports = [each.getsockname()[1] for each in self._reserved]
        self.texts = {
            "DIR": str(directory), "KEYTAB": str(self.write("keytab", b"")),
            "KEY": _one_line(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
            "CHAIN": _one_line(chain), "AUTHORITY": _one_line(authority.cert_pem.bytes()),
            **{f"PORT{number}": str(port) for number, port in enumerate(self.ports, 1)},
        }  # fmt: skip

    def write(self, name: str, data: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path

    def properties(self, name: str, **changes: str) -> Path:
        """Return a copy of a file in which the variables are filled in."""
        text = (FILES / f"{name}.properties").read_text()
        # safe_substitute: rules for names have $ of their own.
        return self.write("server.properties", Template(text).safe_substitute({**self.texts, **changes}).encode())

    def token(self) -> str:
        claims = {"sub": "alice", "iss": "https://issuer.example", "aud": "kafka", "exp": time.time() + 3600}
        return jwt.encode(claims, self._issuer, "ES256", {"kid": "one"})

    def close(self) -> None:
        for each in self._reserved:
            each.close()


def _one_line(pem: bytes) -> str:
    """Return PEM as Kafka's documentation has it in a setting: one line, with spaces instead of line feeds."""
    return " ".join(pem.decode().split("\n")).strip()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    yield machine
    machine.close()


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kerberos"])
def test_file_for_kafka_is_read_and_its_security_prepared(machine: Machine, name: str) -> None:
    settings = gather_settings({}, config_file=str(machine.properties(name)))
    nothing: Any = None
    for endpoint in settings.endpoints:
        ListenerSecurity(
            endpoint.name, settings, loop=nothing, server=nothing, clock=SystemClock(),
            credentials=lambda mechanism: lambda name: None, shapes=lambda mechanism: {},
            secret=lambda: b"secret", tokens=dict, works=dict,
        )  # fmt: skip
    Peers(settings)
    assert (zookeeper_security(settings).tls is not None) == (name == "zookeeper-over-tls")
    assert "CONTROLLER" not in {endpoint.name for endpoint in settings.endpoints}


# -- brokers ----------------------------------------------------------------------------------------------------------


class Started:
    """A broker that was started with one of the files."""

    def __init__(self, machine: Machine, path: Path, environment: dict[str, str] | None = None) -> None:
        self._machine = machine
        self._log = (machine.directory / "log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "broker", "--config", str(path)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "OTTLA_END_WITH_STDIN": "1", **(environment or {})},
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready"):
            self.close()
            raise AssertionError((machine.directory / "log").read_text())

    def log_in(self, port: int = 1, **settings: Any) -> None:
        """Raise KafkaException if the broker refuses a client with these settings, which have _ instead of dots."""
        given = {name if name.endswith("_cb") else name.replace("_", "."): text for name, text in settings.items()}
        address = f"localhost:{self._machine.ports[port - 1]}"
        client = AdminClient({
            "bootstrap.servers": address, "log_level": 0, "ssl.ca.location": str(self._machine.authority),
            "broker.address.family": "v4", **given,
        })  # fmt: skip
        assert client.list_topics(timeout=_DEADLINE_S).brokers

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(_DEADLINE_S)
        self._log.close()


@pytest.fixture
def start(machine: Machine) -> Iterator[Any]:
    brokers: list[Started] = []

    def start(name: str, environment: dict[str, str] | None = None, **changes: str) -> Started:
        brokers.append(Started(machine, machine.properties(name, **changes), environment))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.close()


def only_with(name: str) -> Any:
    return pytest.mark.skipif("OTTLA_SECURITY" not in os.environ, reason=f"make campaign NAME=security starts {name}")


ALICE = {"sasl_username": "alice", "sasl_password": "alice-secret"}


@only_with("several-listeners")
def test_client_logs_in_to_each_of_several_listeners(machine: Machine, start: Any) -> None:
    broker = start("several-listeners")
    broker.log_in(1, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", **ALICE)
    broker.log_in(2, security_protocol="SASL_SSL", sasl_mechanism="PLAIN", **ALICE)
    pem = str(machine.client)
    broker.log_in(3, security_protocol="SSL", ssl_certificate_location=pem, ssl_key_location=pem)


@only_with("kraft-sasl-ssl-scram")
def test_admin_of_kraft_logs_in_with_scram(machine: Machine, start: Any) -> None:
    data = machine.directory / "kraft-combined-logs"
    data.mkdir()
    # As kafka-storage format --add-scram does for Kafka.
    asyncio.run(_store_user(data / "metadata.db", "admin", "admin-secret"))
    broker = start("kraft-sasl-ssl-scram")
    admin = {"sasl_username": "admin", "sasl_password": "admin-secret"}
    broker.log_in(1, security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", **admin)


@only_with("mutual-tls and pem-in-settings")
@pytest.mark.parametrize("name", ["mutual-tls", "pem-in-settings"])
def test_client_connects_with_its_certificate(machine: Machine, start: Any, name: str) -> None:
    pem = str(machine.client)
    start(name).log_in(1, security_protocol="SSL", ssl_certificate_location=pem, ssl_key_location=pem)


@only_with("oauthbearer")
def test_client_logs_in_with_a_token(machine: Machine, start: Any) -> None:
    given = {"oauth_cb": lambda _: (machine.token(), time.time() + 3600)}
    start("oauthbearer").log_in(1, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **given)


@only_with("delegation-tokens")
def test_client_logs_in_to_a_broker_with_delegation_tokens(start: Any) -> None:
    start("delegation-tokens").log_in(1, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", **ALICE)


@only_with("kerberos")
def test_broker_with_a_keytab_accepts_another_broker(machine: Machine, start: Any) -> None:
    problem = kerberos.missing()
    if problem is not None:
        pytest.skip(problem)
    (machine.directory / "realm").mkdir()
    with Realm(machine.directory / "realm") as realm, pytest.MonkeyPatch.context() as patch:
        keytab = realm.add(f"kafka/localhost@{REALM}")
        patch.setenv("KRB5_CONFIG", str(realm.config))
        patch.setenv("KRB5RCACHEDIR", str(machine.directory))
        start("kerberos", KEYTAB=keytab)
        path = machine.properties("kerberos", KEYTAB=keytab)
        settings = dict(line.split("=", 1) for line in _joined(path.read_text()).splitlines() if "=" in line)
        settings |= {"listeners": "SASL_PLAINTEXT://localhost:0"}
        log_in_as_broker(settings, f"localhost:{machine.ports[0]}")


def _joined(text: str) -> str:
    return text.replace("\\\n", " ")
