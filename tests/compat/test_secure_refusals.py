"""Clients that must not get in: wrong passwords, wrong certificates, wrong host names, old versions of TLS."""

from __future__ import annotations

import socket
import ssl
import struct
import warnings
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from drivers import DEADLINE_S, Refused, secure

from ottla.client.logins import check_login
from ottla.security.acls import Operation
from ottla.security.sasl_client import Sasl
from ottla.testing.raw import RawClient
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest
from secure_broker import PASSWORD_MECHANISMS, SUBJECT, USER, SecureBroker, allow, allow_only, log_in, revoke

pytestmark = pytest.mark.client

_SASL_AUTHENTICATION_FAILED, _TOPIC_AUTHORIZATION_FAILED, _UNSUPPORTED_SASL_MECHANISM = 58, 29, 33


@pytest.fixture(scope="module")
def broker(secure_broker: SecureBroker) -> SecureBroker:
    return secure_broker


def refusal_of(settings: dict[str, Any]) -> tuple[int, str]:
    """Return the code and the text of the first error that librdkafka reports for a client with these settings."""
    found: list[tuple[int, str]] = []
    client = AdminClient({**settings, "error_cb": lambda error: found.append((error.code(), error.str()))})
    while not found:
        client.poll(1.0)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)
    return found[0]


# -- passwords ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_wrong_password_is_refused(broker: SecureBroker, listener: str, mechanism: str) -> None:
    settings = broker.librdkafka(listener, mechanism, sasl_password="wrong")
    assert refusal_of(settings)[0] == KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_unknown_user_is_refused(broker: SecureBroker, mechanism: str) -> None:
    settings = broker.librdkafka("SASL_PLAINTEXT", mechanism, sasl_username="nobody")
    assert refusal_of(settings)[0] == KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_answers_do_not_tell_an_unknown_user_from_a_wrong_password(broker: SecureBroker, mechanism: str) -> None:
    answers = []
    for user in (USER, "nobody"):
        with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
            sasl = Sasl(mechanism=mechanism, username=user, password="wrong")
            answers.append(log_in(client, mechanism, sasl.start()))
            assert client.receive_until_closed() == b""
    assert answers[0] == answers[1]
    assert answers[0].error_code == _SASL_AUTHENTICATION_FAILED


def test_request_before_the_login_closes_the_connection(broker: SecureBroker) -> None:
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        client.send(MetadataRequest(topics=None), 12)
        assert client.receive_until_closed() == b""


@pytest.mark.parametrize("size_bytes", [65_537, 100 << 20, 0x7FFFFFFF, -1])
@pytest.mark.parametrize("version", [None, 0, 1])
def test_cve_2022_34917_size_of_a_frame_before_the_login_is_limited(
    broker: SecureBroker, version: int | None, size_bytes: int
) -> None:
    """Clients without a login made the broker reserve memory. A handshake does not raise the limit."""
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        if version is not None:
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), version).error_code == 0
        client.send_bytes(struct.pack(">i", size_bytes))
        assert client.receive_until_closed() == b""


def test_mechanism_that_is_not_enabled_is_refused(broker: SecureBroker) -> None:
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert answer.error_code == _UNSUPPORTED_SASL_MECHANISM
        assert set(answer.mechanisms) == {*PASSWORD_MECHANISMS, "OAUTHBEARER"}
        assert client.receive_until_closed() == b""


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_client_refuses_a_broker_of_another_authority(broker: SecureBroker, listener: str) -> None:
    mechanism = "PLAIN" if "SASL" in listener else ""
    settings = broker.librdkafka(listener, mechanism, ssl_ca_location=broker.other_authority)
    assert "certificate verify failed" in refusal_of(settings)[1]


def test_client_refuses_a_broker_with_another_host_name(broker: SecureBroker) -> None:
    settings = broker.librdkafka("SSL", broker_address_family="v4")
    settings["bootstrap.servers"] = settings["bootstrap.servers"].replace("127.0.0.1", "localhost")
    assert "certificate verify failed" in refusal_of(settings)[1]


@pytest.mark.parametrize("is_given", [False, True])
def test_broker_refuses_a_client_without_a_trusted_certificate(broker: SecureBroker, is_given: bool) -> None:
    file = broker.stranger if is_given else None
    settings = broker.librdkafka("MUTUAL", ssl_certificate_location=file, ssl_key_location=file)
    # With TLS 1.3 a client learns this after its own handshake, so that it may see a closed connection instead.
    assert refusal_of(settings)[0] in (KafkaError._SSL, KafkaError._TRANSPORT)


def test_certificate_of_another_authority_is_refused_where_none_is_needed(broker: SecureBroker) -> None:
    file = broker.stranger
    settings = broker.librdkafka("SSL", ssl_certificate_location=file, ssl_key_location=file)
    assert refusal_of(settings)[0] in (KafkaError._SSL, KafkaError._TRANSPORT)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_versions_of_tls_before_1_2_are_refused(broker: SecureBroker, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=broker.authority)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    host, port = broker.addresses["SSL"].split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as plain, pytest.raises(ssl.SSLError) as refused:
        context.wrap_socket(plain, server_hostname=host)
    assert refused.value.reason == "TLSV1_ALERT_PROTOCOL_VERSION"


# -- protocols ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_cve_2023_40217_request_without_tls_gets_no_answer(broker: SecureBroker, listener: str) -> None:
    """Bytes before the handshake were taken for bytes that had been decrypted."""
    with RawClient(broker.addresses[listener]) as client:
        client.send(ApiVersionsRequest(), 0)
        # OpenSSL may send an alert of TLS: two bytes after a header of five.
        assert len(client.receive_until_closed()) in (0, 7)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_tls_handshake_with_a_listener_without_tls_ends(broker: SecureBroker, listener: str) -> None:
    host, port = broker.addresses[listener].split(":")
    context = ssl.create_default_context(cafile=broker.authority)
    with socket.create_connection((host, int(port)), DEADLINE_S) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname=host)


# -- principals --------------------------------------------------------------------------------------------------------


def test_subject_of_the_certificate_is_the_principal(broker: SecureBroker) -> None:
    allow_only(broker, "of-certificate", f"User:{SUBJECT}")
    assert secure.confluent(broker.librdkafka("MUTUAL"), "of-certificate", 0) == b"record"
    with pytest.raises(Refused) as refused:
        secure.confluent(broker.librdkafka("SSL"), "of-certificate", 0)
    assert refused.value.code == _TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_user_that_logged_in_is_the_principal(broker: SecureBroker, mechanism: str) -> None:
    topic = f"of-alice-{mechanism}"
    allow_only(broker, topic, f"User:{USER}")
    assert secure.confluent(broker.librdkafka("SASL_SSL", mechanism), topic, 0) == b"record"
    with pytest.raises(Refused) as refused:
        secure.confluent(broker.librdkafka("PLAINTEXT"), topic, 0)
    assert refused.value.code == _TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(("listener", "mechanism"), [("SASL_SSL", "PLAIN"), ("SASL_PLAINTEXT", "SCRAM-SHA-512")])
def test_login_of_a_user_is_checked_at_the_cluster(broker: SecureBroker, listener: str, mechanism: str) -> None:
    properties = {name: str(text) for name, text in broker.librdkafka(listener, mechanism).items()}
    assert check_login(properties)
    assert not check_login({**properties, "sasl.password": "wrong"})
    assert not check_login({**properties, "sasl.username": "stranger"})


# -- ACLs that change --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_describe", [True, False])
def test_consumer_whose_read_is_revoked_while_it_waits_is_told(broker: SecureBroker, keeps_describe: bool) -> None:
    topic, principal = f"revoked-{keeps_describe}", f"User:{USER}"
    allow_only(broker, topic, "User:somebody")
    allow(broker, topic, principal, Operation.READ)
    if keeps_describe:
        allow(broker, topic, principal, Operation.DESCRIBE)
    settings = broker.librdkafka("SASL_SSL", "SCRAM-SHA-256", group_id=topic, enable_partition_eof=True)
    consumer = Consumer({**settings, "fetch.wait.max.ms": 2_000, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def next_error() -> int:
            while (message := consumer.poll(1.0)) is None:
                pass
            error = message.error()
            assert error is not None, "the topic is empty"
            return int(error.code())

        assert next_error() == KafkaError._PARTITION_EOF
        revoke(broker, topic, principal, Operation.READ)
        assert next_error() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        consumer.close()
