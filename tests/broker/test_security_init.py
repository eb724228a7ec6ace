"""A broker with the files of `ottla security init`, and clients with the printed settings."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.main import main
from ottla.testing.secure import SecureBroker

pytestmark = [pytest.mark.broker, pytest.mark.client]

WAIT_S = 60


def ottla(*words: str) -> str:
    result = CliRunner().invoke(main, words, prog_name="ottla")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    started = SecureBroker(tmp_path_factory.mktemp("init") / "data")
    try:
        admin = AdminClient(started.with_password())
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        yield started
    finally:
        started.close()


def test_printed_settings_work(broker: SecureBroker) -> None:
    producer = Producer(broker.with_password())
    producer.produce("t", b"hello")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**broker.with_password(), "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    message = consumer.poll(WAIT_S)
    assert message is not None and message.value() == b"hello"
    consumer.close()


def test_no_file_of_the_broker_is_open_to_other_users(broker: SecureBroker) -> None:
    """All but the certificate that every client needs, and that one is in a closed directory."""
    found = {path: path.stat().st_mode & 0o777 for path in (broker.directory, *broker.directory.rglob("*"))}
    names = {path.name for path in found}
    assert {"t-0", "meta.properties", "metadata.db"} <= names and any(name.endswith(".log") for name in names)
    assert {str(path) for path, mode in found.items() if mode & 0o027} == {str(broker.directory / "tls" / "ca.pem")}
    assert found[broker.directory] == found[broker.directory / "t-0"] == 0o750


def test_command_line_works_with_the_client_file(broker: SecureBroker) -> None:
    config = str(broker.directory / "client.properties")
    listed = ottla("topic", "list", "-o", "name", "--command-config", config, "-b", f"localhost:{broker.ports[0]}")
    assert "t" in listed.split()


def test_wrong_password_is_refused(broker: SecureBroker) -> None:
    errors: list[KafkaError] = []
    client = Producer({**broker.with_password(), "sasl.password": "wrong", "error_cb": errors.append})
    deadline = time.monotonic() + WAIT_S
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors}:
        assert time.monotonic() < deadline, errors
        client.poll(1)


def test_certificate_is_the_identity_on_the_other_listener(broker: SecureBroker) -> None:
    assert "t" in AdminClient(broker.with_certificate("admin")).list_topics(timeout=WAIT_S).topics
    ottla("cert", "issue", "alice", "--data", str(broker.directory))
    assert "t" not in AdminClient(broker.with_certificate("alice")).list_topics(timeout=WAIT_S).topics


def test_consume_needs_the_right_to_read_the_topic_and_no_group(broker: SecureBroker) -> None:
    client = AdminClient(broker.with_password())
    client.create_topics([NewTopic("read", 1, 1)])["read"].result(WAIT_S)
    producer = Producer(broker.with_password())
    for number in range(3):
        producer.produce("read", b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    admin = ("--command-config", str(broker.directory / "client.properties"), "-b", f"localhost:{broker.ports[0]}")
    ottla("acl", "add", "--topic", "read", "--operation", "Read", "--allow-principal", "User:reader", *admin)
    ottla("cert", "issue", "reader", "--data", str(broker.directory))
    settings = broker.with_certificate("reader")
    words = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    assert ottla("consume", "read", "--exit", "--timeout", str(WAIT_S), *words) == "0\n1\n2\n"
    refused = CliRunner().invoke(main, ["produce", "read", *words], input="x", prog_name="ottla")
    assert refused.exit_code == 1 and "the user needs an ACL" in refused.stderr


def test_renewed_certificate_is_used_without_a_restart(broker: SecureBroker) -> None:
    def serial() -> object:
        context = ssl.create_default_context(cafile=str(broker.directory / "tls" / "ca.pem"))
        plain = socket.create_connection(("127.0.0.1", broker.ports[0]), WAIT_S)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            certificate = connection.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]

    before = serial()
    ottla("cert", "renew", "broker", "--data", str(broker.directory))
    deadline = time.monotonic() + WAIT_S
    while serial() == before:
        assert time.monotonic() < deadline, "the broker still uses the old certificate"
        time.sleep(0.2)
