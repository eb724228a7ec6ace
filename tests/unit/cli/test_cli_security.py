"""`ottla security init`, `ottla cert` and `ottla doctor security`, without a broker."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.access.listener_security import insecure_listeners
from ottla.broker.main import gather_settings
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.cli.connection import load_properties, make_connection
from ottla.cli.doctor_security import check_security
from ottla.client.security import Security
from ottla.model.settings import BrokerSettings
from ottla.security.authority import describe
from ottla.security.certificates import load_key_pair, server_context, subject_of
from ottla.security.principals import SslPrincipalMapper
from ottla.security.scram import Mechanism, ScramCredential


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory of an `ottla security init` and what it has printed."""
    from click.testing import CliRunner

    from ottla.cli.main import main

    directory = tmp_path_factory.mktemp("security") / "data"
    result = CliRunner().invoke(main, ["security", "init", "--data", str(directory), "-o", "json"], prog_name="ottla")
    assert result.exit_code == 0, result.output
    return directory, json.loads(result.stdout)


def settings_in(directory: Path) -> BrokerSettings:
    return gather_settings({}, config_file=str(directory / "server.properties"))


def test_created_files_are_for_their_owner_alone(made: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = made
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.rglob("*") if path.is_file()}
    assert modes.pop("ca.pem") == 0o644
    assert set(modes) >= {"server.properties", "client.properties", "ca.key", "broker.pem", "admin.pem", "metadata.db"}
    assert set(modes.values()) == {0o600}
    folders = {path.name: path.stat().st_mode & 0o777 for path in (directory, directory / "tls")}
    assert set(folders.values()) == {0o750}


def test_created_settings_are_those_of_a_secure_broker(made: tuple[Path, dict[str, Any]]) -> None:
    settings = settings_in(made[0])
    assert settings.data_dirs == (str(made[0]),)
    assert insecure_listeners(settings) == []
    assert [settings.protocol_of(endpoint.name) for endpoint in settings.endpoints] == ["SASL_SSL", "SSL"]
    assert settings.inter_broker_listener == "SSL"
    for name in ("SASL_SSL", "SSL"):
        server_context(settings.of_listener(name))
    own = load_key_pair(settings.of_listener("SSL"))
    mapper = SslPrincipalMapper(settings.ssl_principal_mapping_rules)
    user = mapper.name(subject_of(ssl.PEM_cert_to_DER_cert(own.certificates.decode())))
    assert f"User:{user}" in settings.super_users.split(";")


def test_admin_user_has_the_printed_password(made: tuple[Path, dict[str, Any]]) -> None:
    directory, printed = made

    async def stored() -> bytes:
        store = EmbeddedStore.open(directory / "metadata.db")
        try:
            node = await store.get("/config/users/admin")
        finally:
            await store.close()
        assert node is not None
        return node.value

    credential = ScramCredential.parse(json.loads(asyncio.run(stored()))["config"]["SCRAM-SHA-512"])
    password = printed["clients"]["librdkafka"]["sasl.password"]
    assert credential.is_password(Mechanism.SCRAM_SHA_512, password)
    assert len(password) == 32
    for client in ("java", "aiokafka", "kafka-python", "kafkajs", "spark"):
        assert password in str(printed["clients"][client]), client


def test_client_file_works_for_the_command_line_and_for_our_client(made: tuple[Path, dict[str, Any]]) -> None:
    directory, printed = made
    java = load_properties(str(directory / "client.properties"))
    assert java == printed["clients"]["java"]
    connection = make_connection(None, {}, java, 1.0)
    librdkafka = printed["clients"]["librdkafka"]
    assert {"bootstrap.servers": connection.bootstrap, **connection.properties} == librdkafka
    for properties in (java, librdkafka):
        security = Security.parse({name: text for name, text in properties.items() if name != "bootstrap.servers"})
        assert security.tls is not None and security.tls.check_hostname
        assert security.sasl is not None and security.sasl.username == "admin"


def test_second_init_overwrites_nothing(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    before = {path: path.read_bytes() for path in directory.rglob("*.*") if path.is_file()}
    result = ottla("security", "init", "--data", str(directory))
    assert result.exit_code == 1 and "is not overwritten" in result.stderr
    assert {path: path.read_bytes() for path in directory.rglob("*.*") if path.is_file()} == before


def test_hosts_are_in_the_certificate_and_advertised(tmp_path: Path, ottla: Any) -> None:
    result = ottla(
        "security", "init", "--data", str(tmp_path), "--host", "b.example", "--host", "10.0.0.1", "--port", "1"
    )
    assert result.exit_code == 0
    settings = settings_in(tmp_path)
    assert [str(each) for each in settings.endpoints] == ["SASL_SSL://0.0.0.0:1", "SSL://0.0.0.0:2"]
    assert [str(each) for each in settings.advertised_endpoints] == ["SASL_SSL://b.example:1", "SSL://b.example:2"]
    (broker,) = describe((tmp_path / "tls" / "broker.pem").read_bytes())
    assert broker.hosts == ("b.example", "10.0.0.1", "localhost", "127.0.0.1", "::1")
    assert "b.example:1" in result.stdout and "ottla broker --config" in result.stdout


@pytest.mark.parametrize("name", ["broker", "ca", "a/b", ".x", ""])
def test_admin_with_a_name_that_cannot_be_is_refused(name: str, tmp_path: Path, ottla: Any) -> None:
    assert ottla("security", "init", "--data", str(tmp_path / "d"), "--admin", name).exit_code == 1
    assert not (tmp_path / "d").exists()


def test_directory_of_a_broker_of_a_cluster_is_refused(tmp_path: Path, ottla: Any) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=abc\n")
    result = ottla("security", "init", "--data", str(tmp_path))
    assert result.exit_code == 1 and "belongs to a broker of a cluster" in result.stderr


# -- ottla cert -------------------------------------------------------------------------------------------------------


def test_issued_certificate_makes_its_client_a_user(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    assert ottla("cert", "issue", "alice", "--data", str(directory), "--days", "3").exit_code == 0
    path = directory / "tls" / "alice.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    mapper = SslPrincipalMapper(settings_in(directory).ssl_principal_mapping_rules)
    text = path.read_text()
    assert mapper.name(subject_of(ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :]))) == "alice"
    again = ottla("cert", "issue", "alice", "--data", str(directory))
    assert again.exit_code == 1 and "not overwritten" in again.stderr
    assert path.read_text() == text


def test_certificates_are_shown_without_keys(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    result = ottla("cert", "show", "--data", str(directory), "-o", "json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["broker"]["kind"] == "broker" and rows["broker"]["hosts"] == ["localhost", "127.0.0.1", "::1"]
    assert rows["admin"]["kind"] == "client" and 363 <= rows["admin"]["days"] <= 365
    assert "KEY" not in result.stdout
    table = ottla("cert", "show", str(directory / "tls" / "ca.pem"))
    assert "authority" in table.stdout
    assert ottla("cert", "show").exit_code == 2
    assert ottla("cert", "show", str(directory / "tls" / "ca.key")).exit_code == 1


def test_renewed_certificate_has_the_same_names_and_a_new_key(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    path = directory / "tls" / "broker.pem"
    before, old = path.read_bytes(), describe(path.read_bytes())[0]
    assert ottla("cert", "renew", "broker", "--data", str(directory), "--days", "700").exit_code == 0
    new = describe(path.read_bytes())[0]
    assert (new.name, new.hosts, new.is_for_brokers) == (old.name, old.hosts, True)
    assert new.serial != old.serial and new.not_after > old.not_after
    assert path.read_bytes().split(b"-----END PRIVATE")[0] != before.split(b"-----END PRIVATE")[0]
    assert ottla("cert", "renew", "nobody", "--data", str(directory)).exit_code == 3


def test_broker_certificate_needs_a_host(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    assert ottla("cert", "issue", "b2", "--broker", "--data", str(made[0])).exit_code == 2


def test_key_of_the_authority_must_be_private(tmp_path: Path, ottla: Any) -> None:
    assert ottla("security", "init", "--data", str(tmp_path)).exit_code == 0
    (tmp_path / "tls" / "ca.key").chmod(0o640)
    result = ottla("cert", "issue", "bob", "--data", str(tmp_path))
    assert result.exit_code == 1 and f"chmod 600 {tmp_path}/tls/ca.key" in result.stderr


def test_moved_key_of_the_authority_is_named_with_an_option(tmp_path: Path, ottla: Any) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for directory in (data, other):
        assert ottla("security", "init", "--data", str(directory)).exit_code == 0
    key, safe = data / "tls" / "ca.key", tmp_path / "safe.key"
    key.rename(safe)
    for verb in (["issue", "bob"], ["renew", "broker"]):
        words = ["cert", *verb, "--data", str(data)]
        lost = ottla(*words)
        assert lost.exit_code == 1 and f"is not in {key}; " in lost.stderr and "--ca-key FILE" in lost.stderr
        assert "security init" not in lost.stderr
        wrong = ottla(*words, "--ca-key", str(other / "tls" / "ca.key"))
        assert wrong.exit_code == 1 and f"{other}/tls/ca.key is not the key of the authority" in wrong.stderr
        missing = ottla(*words, "--ca-key", str(tmp_path / "typo.key"))
        assert missing.exit_code == 1 and f"{tmp_path}/typo.key; check --ca-key" in missing.stderr
        assert ottla(*words, "--ca-key", str(safe)).exit_code == 0
    authority = describe((data / "tls" / "ca.pem").read_bytes())[0]
    assert describe((data / "tls" / "bob.pem").read_bytes())[0].issuer == authority.name
    (data / "tls" / "ca.pem").unlink()
    assert f"ottla security init --data {data}" in ottla("cert", "issue", "eve", "--data", str(data)).stderr


# -- ottla doctor security --------------------------------------------------------------------------------------------

NOW = datetime.datetime.now(datetime.UTC)
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def findings(directory: Path, changes: dict[str, str], days_later: float = 0) -> list[tuple[str, str]]:
    """Return the verdicts that are not ok, with their texts, of the created settings with some changes."""
    properties = {**load_properties(str(directory / "server.properties")), **changes}
    file = directory / "changed.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    file.chmod(0o600)
    checks = check_security(str(file), NOW + datetime.timedelta(days=days_later))
    found = [(check.verdict, f"{check.detail}; {check.remedy}") for check in checks]
    assert found
    return [each for each in found if each[0] != "ok"]


def test_created_settings_have_no_finding(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    result = ottla("doctor", "security", "--config", str(directory / "server.properties"), "-o", "json")
    checks = json.loads(result.stdout)
    assert result.exit_code == 0 and {check["verdict"] for check in checks} == {"ok"}
    assert {"certificate", "ACLs", "super users", "listener SSL", "listener SASL_SSL"} <= {
        each["name"] for each in checks
    }


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        ({"listeners": "PLAINTEXT://0.0.0.0:2,SSL://[::1]:1"}, "fail", "everyone in the network reads"),
        (
            {"listeners": "SASL_PLAINTEXT://:2,SSL://[::1]:1", "sasl.enabled.mechanisms": "PLAIN"},
            "fail", "PLAIN sends passwords",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:2,SSL://[::1]:1", "sasl.enabled.mechanisms": "PLAIN"},
            "warn", "PLAIN sends passwords",
        ),
        ({"listeners": "SSL://0.0.0.0:1", "ssl.client.auth": "requested"}, "fail", "clients need no identity"),
        ({"advertised.listeners": "SASL_SSL://else.example:1,SSL://localhost:2"}, "fail", "clients use else.example"),
        ({"ssl.keystore.location": "/missing.pem"}, "fail", "/missing.pem cannot be read"),
        ({"authorizer.class.name": ""}, "warn", "every client may do everything"),
        ({"allow.everyone.if.no.acl.found": "true"}, "warn", "without an ACL are open"),
        ({"super.users": ""}, "fail", "no user can create the first ACL"),
        ({"super.users": "User:ANONYMOUS"}, "fail", "clients without a login"),
        ({"super.users": "admin"}, "fail", "User:NAME"),
        ({"ssl.endpoint.identification.algorithm": ""}, "warn", "does not check the host names"),
        ({"metrics.listener": "HTTP://0.0.0.0:9464"}, "warn", "shows the names of topics"),
        ({"allow.insecure.listeners": "true"}, "warn", "allow.insecure.listeners"),
        ({"unknown.setting": "1"}, "fail", "unknown setting"),
        ({"listener.name.sasl_ssl.plain.sasl.jaas.config": f'{JAAS} user_bob="short";'}, "warn", "characters: bob"),
        ({"listener.name.sasl_ssl.plain.sasl.jaas.config": "x"}, "fail", "one login module"),
    ],
)  # fmt: skip
def test_doctor_finds(changes: dict[str, str], verdict: str, text: str, made: Any) -> None:
    found = findings(made[0], changes)
    assert any(each[0] == verdict and text in each[1] for each in found), found
    assert all(remedy.strip() for _, line in found for remedy in [line.rpartition("; ")[2]])


def test_doctor_finds_certificates_that_end(made: tuple[Path, dict[str, Any]], ottla: Any) -> None:
    directory, _ = made
    ottla("cert", "renew", "broker", "--data", str(directory), "--days", "100")
    (soon,) = findings(directory, {}, days_later=79.5)
    assert soon[0] == "warn" and "expires in 20 days" in soon[1] and "ottla cert renew broker --data" in soon[1]
    (late,) = findings(directory, {}, days_later=101)
    assert late[0] == "fail" and "has expired" in late[1]
    assert any("new authority" in text for _, text in findings(directory, {}, days_later=3640))


def test_doctor_finds_files_that_others_can_read(tmp_path: Path, ottla: Any) -> None:
    assert ottla("security", "init", "--data", str(tmp_path)).exit_code == 0
    config, key, metadata = tmp_path / "server.properties", tmp_path / "tls" / "broker.pem", tmp_path / "metadata.db"
    with config.open("a") as file:
        file.write("ssl.key.password=unused-password\n")
    for path in (config, key, metadata):
        os.chmod(path, 0o644)
    tmp_path.chmod(0o755)
    result = ottla("doctor", "security", "--config", str(config))
    assert result.exit_code == 1
    for path in (config, key, metadata):
        assert f"chmod 600 {path}" in result.stdout
    assert f"chmod 750 {tmp_path}" in result.stdout


def test_doctor_security_needs_a_file(ottla: Any) -> None:
    assert ottla("doctor", "security").exit_code == 2
    assert ottla("doctor", "--config", "x").exit_code == 2


# -- Java's client settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "a"},
            {"ssl.certificate.location": "a", "ssl.key.location": "a"},
        ),
        ({"ssl.keystore.location": "a.p12"}, {"ssl.keystore.location": "a.p12"}),
        ({"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "a"}, {"ssl.keystore.location": "a"}),
        (
            {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"},
            {"ssl.key.pem": "k", "ssl.certificate.pem": "c"},
        ),
        ({"ssl.truststore.certificates": "c", "ssl.protocol": "TLSv1.3"}, {"ssl.ca.pem": "c"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        (
            {"ssl.ca.location": "own", "ssl.truststore.type": "PEM", "ssl.truststore.location": "a"},
            {"ssl.ca.location": "own"},
        ),
    ],
)  # fmt: skip
def test_java_settings_of_tls_are_translated(java: dict[str, str], librdkafka: dict[str, str]) -> None:
    assert make_connection("b:1", {}, java, 1.0).properties == librdkafka


@pytest.mark.parametrize("kind", ["truststore", "keystore"])
def test_jks_files_are_refused(kind: str, ottla: Any, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=SSL\nssl.{kind}.type=JKS\nssl.{kind}.location=a.jks\n")
    result = ottla("topic", "list", "--command-config", str(file))
    assert result.exit_code == 2 and f"ssl.{kind}.type=JKS can only be read by Java" in result.stderr
