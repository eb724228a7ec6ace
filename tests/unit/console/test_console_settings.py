"""The settings of the console."""

from __future__ import annotations

import pytest

from ottla.edge.console.roles import Role, Roles
from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.web.server import Listener
from ottla.model.setting_types import InvalidSettings

LOOPBACK = [Listener("http", "127.0.0.1", 8080)]
OPEN = [*LOOPBACK, Listener("https", "0.0.0.0", 8443)]


def test_more_clusters_have_properties_of_their_own() -> None:
    texts = {"cluster.test.bootstrap.servers": "b:1", "cluster.test.client.id": "x", "bootstrap.servers": "a:1"}
    settings = ConsoleSettings.parse(texts)
    assert settings.clusters == {"test": {"bootstrap.servers": "b:1", "client.id": "x"}}


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"cluster.test.client.id": "x"}, "cluster.test.bootstrap.servers is missing"),
        ({"roles": "ana:owner"}, "'ana:owner' is not NAME:ROLE"),
        ({"cluster.name": "a", "cluster.a.bootstrap.servers": "b:1"}, "also the name of another cluster"),
        ({"nothing": "x"}, "nothing"),
    ],
)
def test_wrong_settings_are_named(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        ConsoleSettings.parse(texts)


def test_people_without_a_login_read_on_loopback_only() -> None:
    settings = ConsoleSettings.parse({})
    assert Roles(settings, LOOPBACK).anonymous is Role.VIEWER
    assert Roles(settings, OPEN).anonymous is Role.NONE
    assert Roles(ConsoleSettings.parse({"role.anonymous": "viewer"}), OPEN).anonymous is Role.VIEWER


def test_roles_are_those_of_the_settings_and_read_only_wins() -> None:
    roles = Roles(ConsoleSettings.parse({"roles": "ana:admin, bob:editor"}), OPEN)
    assert (roles.of("ana"), roles.of("bob"), roles.of("eve")) == (Role.ADMIN, Role.EDITOR, Role.VIEWER)
    assert roles.allows(Role.ADMIN, Role.EDITOR) and not roles.allows(Role.VIEWER, Role.EDITOR)
    read_only = Roles(ConsoleSettings.parse({"read.only": "true", "roles": "ana:admin"}), OPEN)
    assert read_only.allows(Role.ADMIN, Role.VIEWER) and not read_only.allows(Role.ADMIN, Role.EDITOR)
