"""Names of a service in the Host header: protection against DNS rebinding."""

from __future__ import annotations

import socket

import pytest

from ottla.edge.registry.main import RegistrySettings
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError
from ottla.edge.web.hosts import Hosts


def is_allowed(hosts: Hosts, *headers: str) -> bool:
    try:
        hosts.check(headers)
    except HttpError as error:
        return (error.status, error.error_code, "allowed.hosts" in error.message) != (403, 40302, True)
    return True


LISTENING = Hosts(["127.0.0.1", "rest-1.example"], ["registry", ".shop.example"])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8081", "127.0.0.1", "[::1]:8081", "10.1.2.3:80", "localhost:8081", "LOCALHOST", "localhost.",
        "a.localhost", "rest-1.example:8082", "REST-1.EXAMPLE.", "registry:8081", "eu.shop.example", "",
    ],
)  # fmt: skip
def test_own_names_and_addresses_are_allowed(host: str) -> None:
    assert is_allowed(LISTENING, host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "evilshop.example",
        "rest-1.example.evil.example", "[evil.example]:80", "xregistry", "127.1", "0x7f000001",
    ],
)  # fmt: skip
def test_other_names_are_refused(host: str) -> None:
    assert not is_allowed(LISTENING, host)
    assert not is_allowed(LISTENING, "127.0.0.1", host)
    assert is_allowed(Hosts([], ["*"]), host)


def test_service_on_all_addresses_has_the_name_of_its_machine() -> None:
    name = socket.gethostname()
    assert is_allowed(Hosts(["0.0.0.0"], []), f"{name}:8081") and is_allowed(Hosts(["::"], []), name)


def test_names_come_from_the_settings() -> None:
    texts = {"listeners": "http://127.0.0.1:1,http://inside:2", "host.name": "outside"}
    assert RegistrySettings.parse(texts).own_hosts() == ["127.0.0.1", "inside", "outside"]
    advertised = {**texts, "advertised.listeners": "https://rest.example:1"}
    assert RestSettings.parse(advertised).own_hosts() == ["127.0.0.1", "inside", "rest.example", "outside"]
