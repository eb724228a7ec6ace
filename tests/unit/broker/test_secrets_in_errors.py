"""No error that a wrong setting causes shows a secret, and neither does its traceback."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from ottla.broker.access.listener_security import ListenerSecurity
from ottla.broker.access.peer_logins import Peers
from ottla.broker.main import gather_settings
from ottla.cli.connection import load_properties
from ottla.cli.listeners import find_listener
from ottla.model.settings import describe_broker

SECRET = "canary-71f3"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)
ISSUED = AUTHORITY.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return the settings of a listener that works: a PKCS12 file with a password."""
    key = load_pem_private_key(ISSUED.private_key_pem.bytes(), None)
    store = serialize_key_and_certificates(b"b", key, None, None, BestAvailableEncryption(SECRET.encode()))  # type: ignore[arg-type]
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode()))
    open_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = ISSUED.cert_chain_pems[0].bytes()
    written = {"no-certificate.p12": store, "locked.pem": pem + chain, "open.pem": open_pem + chain, "bad.pem": b"x"}
    for name, data in written.items():
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(0o600)
    return {name: str(tmp_path / name) for name in written}


def start(properties: dict[str, str], tmp_path: Path) -> None:
    """Do what a broker does with its settings before it listens."""
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    settings = gather_settings({}, config_file=str(file), data=str(tmp_path / "data"))
    parts: Any = {"loop": None, "server": None, "clock": None, "credentials": lambda mechanism: None}
    for endpoint in settings.endpoints:
        ListenerSecurity(endpoint.name, settings, secret=bytes, **parts)
    Peers(settings)


SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}
TLS = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.type": "PEM"}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    "wrong",
    [
        {**SASL, JAAS: SECRET},
        {**SASL, JAAS: f"{SECRET} required;"},
        {**SASL, JAAS: f'{PLAIN} required password="{SECRET}"'},
        {**SASL, JAAS: f'{PLAIN} required password="{SECRET}'},
        {**SASL, JAAS: f"{PLAIN} required password {SECRET};"},
        {**SASL, JAAS: f'{PLAIN} required "{SECRET}"="a";'},
        {**SASL, JAAS: f'{PLAIN} required password="{SECRET}" password="{SECRET}";'},
        {**SASL, JAAS: f'{PLAIN} required {SECRET}="a" {SECRET}="b";'},
        {**SASL, JAAS: f'{PLAIN} {SECRET} password="a";'},
        {**SASL, "sasl.jaas.config": f'{PLAIN.replace("Plain", "Other")} required password="{SECRET}";'},
        {**SASL, "sasl.jaas.config": f'{PLAIN.replace("plain.Plain", "scram.Scram")} required password="{SECRET}";'},
        {**SASL, "listener.name.other.plain.sasl.jaas.config": f'{PLAIN} required password="{SECRET}";'},
        {**SASL, "listener.name.sasl_plaintext.sasl.jass.config": SECRET},
        {**SASL, "sasl.jass.config": SECRET},
        {**SASL, "sasl.login.password": SECRET},
        {**SASL, "ssl.keystore.pasword": SECRET},
        {**SASL, "delegation.token.secret.keys": SECRET},
        {**TLS, "ssl.keystore.location": "{bad.pem}", "ssl.key.password": SECRET},
        {**TLS, "ssl.keystore.location": "{locked.pem}", "ssl.key.password": f"{SECRET}-wrong"},
        {**TLS, "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "{bad.pem}", "ssl.keystore.password": SECRET},
        {
            **TLS, "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "{no-certificate.p12}",
            "ssl.keystore.password": SECRET,
        },
        {**TLS, "ssl.keystore.key": SECRET, "ssl.keystore.certificate.chain": "x"},
        {
            **TLS, "ssl.keystore.location": "{open.pem}", "ssl.client.auth": "required",
            "ssl.truststore.type": "PKCS12", "ssl.truststore.location": "{bad.pem}", "ssl.truststore.password": SECRET,
        },
    ],
)  # fmt: skip
def test_wrong_setting_is_reported_without_its_secret(
    wrong: dict[str, str], files: dict[str, str], tmp_path: Path
) -> None:
    for name, path in files.items():
        wrong = {setting: value.replace(f"{{{name}}}", path) for setting, value in wrong.items()}
    with pytest.raises(Exception) as raised:
        start(wrong, tmp_path)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_settings_show_no_secret() -> None:
    given = {
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "listeners": "SASL_SSL://127.0.0.1:0", "sasl.jaas.config": SECRET, "ssl.keystore.password": SECRET,
        "ssl.key.password": SECRET, "ssl.truststore.password": SECRET, "ssl.keystore.key": SECRET,
        "listener.name.sasl_ssl.ssl.key.password": SECRET, "listener.name.sasl_ssl.plain.sasl.jaas.config": SECRET,
        "zookeeper.ssl.keystore.password": SECRET, "confluent.license": SECRET,
        "remote.log.storage.manager.impl.prefix.key": SECRET,
        "kafka.metrics.reporters.auth": SECRET, "controller.quorum.password": SECRET,
    }  # fmt: skip
    settings = gather_settings(given)
    assert SECRET not in f"{settings!r} {settings} {settings.listener_overrides!r} {settings.of_listener('SASL_SSL')!r}"
    entries = {entry.name: entry for entry in describe_broker(settings)}
    assert SECRET not in repr(entries)
    assert entries["ssl.key.password"].sensitive and entries["zookeeper.ssl.keystore.password"].sensitive


def test_line_of_a_client_file_is_reported_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.username=u\nsasl.password=a\n{SECRET}\n")
    with pytest.raises(Exception) as raised:
        load_properties(str(file))
    assert "line 3" in str(raised.value) and SECRET not in str(raised.value)


def test_doctor_hides_secrets_in_the_command_line_of_a_process(tmp_path: Path) -> None:
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (tmp_path / "net").mkdir()
    row = "0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1"
    (tmp_path / "net" / "tcp").write_text(f"header\n{row}\n")
    (process / "fd" / "3").symlink_to("socket:[4711]")
    (process / "cmdline").write_text(
        f"broker\0-Xsasl.jaas.config=a password={SECRET} b\0-X\0ssl.key.password={SECRET}\0"
    )
    shown = find_listener(9092, str(tmp_path))
    assert shown is not None and "sasl.jaas.config=(hidden)" in shown and SECRET not in shown
