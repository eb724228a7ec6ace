"""The settings that HTTP services share."""

from __future__ import annotations

import pytest

from ottla.edge.web.server import Listener
from ottla.edge.web.service import insecure_listeners
from ottla.edge.web.settings import WebSettings
from ottla.model.errors import StartError
from ottla.model.setting_types import ANY, INT, InvalidSettings, Setting


class ShopSettings(WebSettings):
    client_prefixes = ("kafkastore.",)
    ignored_names = frozenset({"host.name"})

    shop_size = Setting("shop.size", INT, 7, ANY, "How large the shop is.")


def test_values_defaults_and_rows_of_the_service() -> None:
    settings = ShopSettings.parse({"listeners": "http://127.0.0.1:1,https://127.0.0.1:2", "shop.size": "9"})
    assert settings.listeners == ("http://127.0.0.1:1", "https://127.0.0.1:2")
    assert (settings.shop_size, settings.log_level, ShopSettings.parse({}).shop_size) == (9, "INFO", 7)


def test_properties_of_the_client_lose_their_prefix() -> None:
    settings = ShopSettings.parse(
        {"kafkastore.bootstrap.servers": "a:1", "kafkastore.sasl.password": "s3cret", "client.retries": "3"}
    )
    assert settings.client == {"sasl.password": "s3cret", "retries": "3"}
    assert settings.bootstrap_servers == "a:1"
    assert "s3cret" not in repr(settings)


def test_option_wins_over_the_bootstrap_servers_of_the_client() -> None:
    settings = ShopSettings.parse({"bootstrap.servers": "b:2", "kafkastore.bootstrap.servers": "a:1"})
    assert settings.bootstrap_servers == "b:2"


def test_every_problem_is_reported() -> None:
    with pytest.raises(InvalidSettings) as error:
        ShopSettings.parse({"listener": "x", "shop.size": "many", "log.level": "LOUD"})
    assert [text.split(";")[0].split(":")[0] for text in error.value.problems] == [
        "unknown setting 'listener'",
        "invalid value 'many' for shop.size",
        "invalid value 'LOUD' for log.level",
    ]


def test_ignored_settings_are_named() -> None:
    assert ShopSettings.parse({"host.name": "x"}).ignored == ("host.name",)


@pytest.mark.parametrize("url", ["http://127.0.0.1:0", "http://localhost:8081", "http://[::1]:8081"])
def test_loopback_needs_no_protection(url: str) -> None:
    assert insecure_listeners(WebSettings.parse({}), [Listener.parse(url)]) == []


@pytest.mark.parametrize("url", ["http://0.0.0.0:8081", "http://10.0.0.1:8081", "http://example.com:8081"])
@pytest.mark.parametrize("texts", [{}, {"ssl.client.authentication": "REQUIRED"}])
def test_other_addresses_without_tls_are_refused_unless_allowed(url: str, texts: dict[str, str]) -> None:
    listener = Listener.parse(url)
    with pytest.raises(StartError, match=r"use https .* --insecure"):
        insecure_listeners(WebSettings.parse(texts), [listener])
    assert insecure_listeners(WebSettings.parse({**texts, "allow.insecure.listeners": "true"}), [listener]) == [
        listener
    ]


def test_other_addresses_need_tls_and_authentication() -> None:
    listener = Listener.parse("https://0.0.0.0:8081")
    with pytest.raises(StartError, match=r"or set authentication.method, or allow it with --insecure"):
        insecure_listeners(WebSettings.parse({"ssl.client.authentication": "REQUESTED"}), [listener])
    assert insecure_listeners(WebSettings.parse({"ssl.client.authentication": "REQUIRED"}), [listener]) == []


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ssl.client.authentication", "requested", "REQUESTED"),
        ("ssl.client.auth", "true", "REQUIRED"),
        ("ssl.client.auth", "false", "NONE"),
        ("ssl.client.auth", "required", "REQUIRED"),
    ],
)
def test_certificates_of_clients_have_confluents_and_kafkas_names(name: str, text: str, value: str) -> None:
    settings = WebSettings.parse({name: text, "ssl.keystore.location": "k", "ssl.key.password": "s3cret"})
    assert settings.ssl_client_authentication == value
    assert (settings.tls().ssl_client_auth, settings.tls().ssl_keystore_location) == (value.lower(), "k")
    assert "s3cret" not in repr(settings) + repr(settings.tls())


def test_service_without_a_listener_does_not_start() -> None:
    with pytest.raises(StartError, match="--listen"):
        insecure_listeners(WebSettings.parse({}), [])
