"""Logins with GSSAPI against a KDC of MIT Kerberos: Java, librdkafka of kcat, and the library itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import DEADLINE_S, java_process
from drivers.java import LATENCY
from drivers.kcat import MISSING as KCAT_MISSING
from drivers.kcat import kcat_path

import kerberos
from kerberos import REALM, Realm
from ottla.client.async_connections import PeerUnreachable
from ottla.client.connection import BrokerConnection
from ottla.client.protocol.metadata import Node
from ottla.client.security import Security
from ottla.model.errors import ErrorCode
from ottla.testing.raw import RawClient
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest
from secure_broker import SecureBroker, allow_only, log_in_as_broker

pytestmark = pytest.mark.foreign

_MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    problem = kerberos.missing()
    if problem is not None:
        pytest.skip(problem)
    with Realm(tmp_path_factory.mktemp("kerberos")) as realm:
        yield realm


@pytest.fixture(scope="module")
def broker(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    service = f"kafka/localhost@{REALM}"
    login = f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{realm.add(service)}" principal="{service}";'
    directory = tmp_path_factory.mktemp("broker")
    settings = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": f"RULE:[2:$1-$2@$0](.*@{REALM})s/@.*//,DEFAULT",
        **{f"listener.name.{name}.gssapi.sasl.jaas.config": login for name in ("sasl_plaintext", "sasl_ssl", "short")},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(realm.config))
        # The file in which the library notes tickets that were used.
        patch.setenv("KRB5RCACHEDIR", str(directory))
        with SecureBroker(directory, settings) as broker:
            yield broker
            assert " ERROR " not in broker.process.errors()


def properties(broker: SecureBroker, listener: str, principal: str, keytab: str) -> str:
    login = f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'
    return broker.java(listener) + (
        f"sasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\nsasl.jaas.config={login}\n"
    )


def test_java_logs_in_with_its_keytab(broker: SecureBroker, realm: Realm, tmp_path: Path) -> None:
    problem = java_process.missing()
    if problem is not None:
        pytest.skip(problem)
    keytab = realm.add("alice", "job/host")
    # The second name has two parts, for which there is a rule.
    users = {"alice": "User:alice", "job/host": "User:job-host"}
    java = java_process.JavaProcess("", {"java.security.krb5.conf": str(realm.config)})
    try:
        for number, (principal, user) in enumerate(users.items()):
            topic = f"kerberos-{number}"
            allow_only(broker, topic, user)
            for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
                file = tmp_path / "client.properties"
                file.write_text(properties(broker, listener, principal, keytab))
                arguments = ["--topic", topic, "--num-records", "2", "--producer-acks", "all", "--record-size", "10"]
                at = java.at(broker.addresses[listener])
                assert "Percentiles" in at.run(LATENCY, *arguments, "--command-config", str(file))
    finally:
        java.close()


def as_broker(protocol: str, service: str, principal: str, keytab: str, authority: str) -> dict[str, str]:
    login = f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}";'
    return {
        "listeners": "PEERS://localhost:0", "listener.security.protocol.map": f"PEERS:{protocol}",
        "inter.broker.listener.name": "PEERS", "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.kerberos.service.name": service, "listener.name.peers.gssapi.sasl.jaas.config": login,
        "ssl.truststore.type": "PEM", "ssl.truststore.location": authority,
        "ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip


def test_another_broker_logs_in_with_its_keytab(broker: SecureBroker, realm: Realm) -> None:
    principal = f"kafka/other@{REALM}"
    keytab = realm.add(principal)
    # SHORT is the listener on which a client logs in again.
    for listener, protocol, times in (("SASL_SSL", "SASL_SSL", 1), ("SHORT", "SASL_PLAINTEXT", 3)):
        address = broker.addresses[listener].replace("127.0.0.1", "localhost")
        log_in_as_broker(as_broker(protocol, "kafka", principal, keytab, broker.authority), address, times=times)


def test_client_of_this_package_logs_in_with_its_keytab(broker: SecureBroker, realm: Realm) -> None:
    properties = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"dora@{REALM}", "sasl.kerberos.keytab": realm.add("dora"),
    }  # fmt: skip
    # The broker advertises an address for which Kerberos has no service, so one connection must do.
    node = Node(-1, "localhost", int(broker.addresses["SASL_PLAINTEXT"].rpartition(":")[2]))
    deadline = time.monotonic() + DEADLINE_S
    connection = BrokerConnection(node, Security.parse(properties), client_id="test", deadline=deadline)
    try:
        assert connection.ask(MetadataRequest(topics=[]), deadline=deadline).brokers
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("service", "name"), [("kafka", "absent"), ("other", "kafka/third")], ids=["unknown principal", "unknown service"]
)
def test_another_broker_that_kerberos_does_not_know_cannot_log_in(
    broker: SecureBroker, realm: Realm, service: str, name: str
) -> None:
    keytab = realm.add("kafka/third") if name == "kafka/third" else realm.add("spare")
    settings = as_broker("SASL_PLAINTEXT", service, f"{name}@{REALM}", keytab, broker.authority)
    address = broker.addresses["SASL_PLAINTEXT"].replace("127.0.0.1", "localhost")
    with pytest.raises(PeerUnreachable, match=f"no login to {service}@localhost with Kerberos"):
        log_in_as_broker(settings, address)


@pytest.mark.parametrize("token", [b"", b"garbage", b"\x60\x0b\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"])
def test_token_that_is_not_of_kerberos_is_refused(broker: SecureBroker, token: bytes) -> None:
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1).error_code == 0
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.receive_until_closed() == b""


def test_librdkafka_of_kcat_logs_in(broker: SecureBroker, realm: Realm) -> None:
    kcat, kinit = kcat_path(), shutil.which("kinit")
    if kcat is None or kinit is None:
        pytest.skip(KCAT_MISSING if kcat is None else "kinit is not installed: apt-get install krb5-user")
    keytab = realm.add("carol")
    allow_only(broker, "kerberos-carol", "User:carol")
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"carol@{REALM}", "sasl.kerberos.keytab": keytab,
        "sasl.kerberos.kinit.cmd": f"{kinit} -t '%{{sasl.kerberos.keytab}}' -k %{{sasl.kerberos.principal}}",
    }  # fmt: skip
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    address = broker.addresses["SASL_PLAINTEXT"].replace("127.0.0.1", "localhost")
    done = subprocess.run(
        [kcat, "-b", address, *options, "-X", "broker.address.family=v4", "-L", "-t", "kerberos-carol", "-m", "30"],
        capture_output=True, text=True, timeout=DEADLINE_S,
        env={**realm.environment, "KRB5CCNAME": f"FILE:{os.path.dirname(keytab)}/carol"},
    )  # fmt: skip
    if "libsasl2" in done.stderr or "No worthy mechs found" in done.stderr:
        pytest.skip("kcat has no GSSAPI: apt-get install libsasl2-modules-gssapi-mit")
    assert done.returncode == 0, done.stderr
    assert 'topic "kerberos-carol" with 1 partitions' in done.stdout, done.stdout
