"""Which listeners a broker starts with, and which address of another broker it connects to."""

from __future__ import annotations

import pytest
from cluster_fixtures import broker_changes

from ottla.broker.access.listener_security import insecure_listeners
from ottla.broker.cluster.broker_addresses import endpoint_for_brokers
from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.view import ClusterView
from ottla.client.async_connections import PeerUnreachable
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint

OPEN_HOSTS = ["", "0.0.0.0", "[::]", "10.0.0.1", "broker.example", "[::ffff:10.0.0.1]"]


def settings_of(listener: str, **more: str) -> BrokerSettings:
    return BrokerSettings.parse(
        {"listeners": listener, **{name.replace("_", "."): text for name, text in more.items()}}
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "[::1]", "localhost"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_every_protocol_is_accepted_on_loopback(host: str, protocol: str) -> None:
    assert insecure_listeners(settings_of(f"{protocol}://{host}:9092")) == []


@pytest.mark.parametrize("host", OPEN_HOSTS)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
def test_open_listener_without_encryption_or_authentication_is_refused(host: str, protocol: str) -> None:
    with pytest.raises(StartError) as refused:
        insecure_listeners(settings_of(f"{protocol}://{host}:9092"))
    for remedy in ("127.0.0.1", "--insecure", "allow.insecure.listeners=true"):
        assert remedy in str(refused.value)
    assert ("ssl.client.auth=required" if protocol == "SSL" else "ottla security init") in str(refused.value)


def test_second_listener_is_checked_too() -> None:
    with pytest.raises(StartError, match=r"listener B://0\.0\.0\.0:2 uses SASL_PLAINTEXT"):
        insecure_listeners(
            settings_of("A://127.0.0.1:1,B://0.0.0.0:2", listener_security_protocol_map="A:PLAINTEXT,B:SASL_PLAINTEXT")
        )


@pytest.mark.parametrize("host", OPEN_HOSTS)
def test_encrypted_listeners_with_authentication_are_accepted_everywhere(host: str) -> None:
    assert insecure_listeners(settings_of(f"SASL_SSL://{host}:9092")) == []
    assert insecure_listeners(settings_of(f"SSL://{host}:9092", ssl_client_auth="required")) == []


def test_client_auth_of_the_listener_counts() -> None:
    overrides = {"listener.name.ssl.ssl.client.auth": "requested"}
    with pytest.raises(StartError, match="uses SSL"):
        insecure_listeners(
            BrokerSettings.parse({"listeners": "SSL://0.0.0.0:9092", "ssl.client.auth": "required", **overrides})
        )


def test_insecure_listener_is_returned_if_it_is_allowed() -> None:
    settings = settings_of("PLAINTEXT://0.0.0.0:9092", allow_insecure_listeners="true")
    assert insecure_listeners(settings) == [Endpoint("PLAINTEXT", "0.0.0.0", 9092)]


def other_broker(*listeners: str) -> BrokerView:
    view = ClusterView()
    view.apply(broker_changes(2, listeners=listeners))
    return view.brokers[2]


def test_missing_listener_is_replaced_only_without_security() -> None:
    plain = BrokerSettings.parse(
        {"listeners": "INTERNAL://127.0.0.1:1", "listener.security.protocol.map": "INTERNAL:PLAINTEXT"}
    )
    assert endpoint_for_brokers(other_broker("PLAINTEXT"), plain).name == "PLAINTEXT"
    for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        secured = BrokerSettings.parse(
            {"listeners": "INTERNAL://127.0.0.1:1", "listener.security.protocol.map": f"INTERNAL:{protocol}"}
        )
        with pytest.raises(PeerUnreachable, match="broker 2 has no listener INTERNAL"):
            endpoint_for_brokers(other_broker("PLAINTEXT"), secured)
