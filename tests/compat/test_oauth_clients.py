"""Tokens of OAUTHBEARER that are refused, and sessions that end: clients must log in again on the same connection."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from drivers import DEADLINE_S

from ottla.client.async_connections import PeerUnreachable
from ottla.client.cluster import Cluster
from ottla.security.sasl_client import Sasl
from ottla.testing.raw import RawClient
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest
from secure_broker import PASSWORD, USER, SecureBroker, log_in, log_in_as_broker

pytestmark = pytest.mark.client

_SASL_AUTHENTICATION_FAILED = 58
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def broker(secure_broker: SecureBroker) -> SecureBroker:
    return secure_broker


# -- refusals ----------------------------------------------------------------------------------------------------------


def unsigned(token: str) -> str:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "one"}).encode()).rstrip(b"=").decode()
    return f"{header}.{token.split('.')[1]}."


REFUSED: dict[str, Callable[[SecureBroker], str]] = {
    "expired": lambda broker: broker.token(lifetime_s=-60),
    "of another issuer": lambda broker: broker.token(iss="https://evil.example"),
    "for another audience": lambda broker: broker.token(aud="other"),
    "unsigned": lambda broker: unsigned(broker.token()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_token_is_refused(broker: SecureBroker, case: str) -> None:
    found: list[int] = []
    token = REFUSED[case](broker)
    settings = broker.librdkafka(
        "SASL_PLAINTEXT", "OAUTHBEARER", oauth_cb=lambda _: (token, time.time() + 3600),
        error_cb=lambda error: found.append(error.code()),
    )  # fmt: skip
    client = AdminClient(settings)
    while not found:
        client.poll(1.0)
    assert found[0] == KafkaError._AUTHENTICATION


def test_refusal_is_that_of_the_rfc(broker: SecureBroker) -> None:
    """RFC 7628: the reason as JSON, then the client acknowledges it, then the login fails."""
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        client.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        message = f"n,,\x01auth=Bearer {unsigned(broker.token())}\x01\x01".encode()
        first = client.ask(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert (first.error_code, json.loads(first.auth_bytes)) == (0, {"status": "invalid_token"})
        second = client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
        assert second.error_code == _SASL_AUTHENTICATION_FAILED
        assert client.receive_until_closed() == b""


# -- sessions ----------------------------------------------------------------------------------------------------------


class Watched:
    """An idle client of librdkafka, and its statistics."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._brokers: list[dict[str, Any]] = []
        self.client = AdminClient({**settings, "statistics.interval.ms": 50, "stats_cb": self._note})

    def _note(self, text: str) -> None:
        self._brokers = list(json.loads(text)["brokers"].values())

    def total(self, name: str) -> int:
        return sum(each[name] for each in self._brokers)

    def logins(self) -> int:
        return sum(each["req"].get("SaslHandshake", 0) for each in self._brokers)

    def wait_for_logins(self, count: int) -> None:
        while self.logins() < count:
            self.client.poll(1.0)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_client_logs_in_again_on_its_connection_before_the_session_ends(broker: SecureBroker, mechanism: str) -> None:
    """The session of SCRAM ends by connections.max.reauth.ms, that of OAUTHBEARER with the token."""
    if mechanism == "OAUTHBEARER":
        lifetimes = iter([3, 3600, 3600])

        def new_token(_: str) -> tuple[str, float]:
            lifetime_s = next(lifetimes)
            return broker.token(lifetime_s=lifetime_s), time.time() + lifetime_s

        settings = broker.librdkafka("SASL_PLAINTEXT", mechanism, oauth_cb=new_token)
    else:
        settings = broker.librdkafka("SHORT", mechanism)
    watched = Watched(settings)
    assert watched.client.list_topics(timeout=DEADLINE_S).brokers
    # Nothing is sent between the logins, so that a busy machine cannot send a request after the end of the session.
    watched.wait_for_logins(2)
    assert watched.client.list_topics(timeout=DEADLINE_S).brokers
    assert watched.total("disconnects") == 0


def test_lifetime_of_the_session_is_in_the_answer_to_each_login(broker: SecureBroker) -> None:
    sasl = Sasl(mechanism="PLAIN", username=USER, password=PASSWORD)
    with RawClient(broker.addresses["SHORT"]) as client:
        assert log_in(client, "PLAIN", sasl.start()).session_lifetime == 3000
        assert log_in(client, "PLAIN", sasl.start()).session_lifetime == 3000
        assert client.ask(MetadataRequest(topics=[]), 12).brokers


# -- other brokers -----------------------------------------------------------------------------------------------------


def as_broker(broker: SecureBroker, protocol: str, token: str) -> dict[str, str]:
    """Return the settings of another broker, which has its token in a file."""
    broker.token_file.write_text(token)
    return {
        "listeners": "PEERS://127.0.0.1:0", "listener.security.protocol.map": f"PEERS:{protocol}",
        "inter.broker.listener.name": "PEERS", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.peers.oauthbearer.sasl.jaas.config": f"{_LOGIN} required;",
        "listener.name.peers.oauthbearer.sasl.oauthbearer.token.endpoint.url": f"file://{broker.token_file}",
        "ssl.truststore.type": "PEM", "ssl.truststore.location": broker.authority,
    }  # fmt: skip


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_another_broker_logs_in_with_its_token_and_again_on_the_same_connection(
    broker: SecureBroker, listener: str
) -> None:
    log_in_as_broker(as_broker(broker, listener, broker.token()), broker.addresses[listener], times=3)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_client_of_this_package_logs_in_with_its_token(broker: SecureBroker, listener: str) -> None:
    broker.token_file.write_text(broker.token())
    properties = {
        "security.protocol": listener, "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"file://{broker.token_file}",
        **({"ssl.ca.location": broker.authority} if listener == "SASL_SSL" else {}),
    }  # fmt: skip
    with Cluster(broker.addresses[listener], properties, client_id="test", timeout_s=DEADLINE_S) as cluster:
        assert cluster.brokers()


def test_another_broker_with_a_token_of_another_issuer_is_refused(broker: SecureBroker) -> None:
    settings = as_broker(broker, "SASL_PLAINTEXT", broker.token(iss="https://evil.example"))
    with pytest.raises(PeerUnreachable, match="Authentication failed"):
        log_in_as_broker(settings, broker.addresses["SASL_PLAINTEXT"])
