"""Kafka clients of users with tokens: who owns them, and their end with the token. No broker is reached."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.edge.rest.consumers import InstanceOptions, Instances
from ottla.edge.rest.kafka import BATCH_BYTES, Identity, Kafka, Owner
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError

SETTINGS = RestSettings.parse({
    "bootstrap.servers": "127.0.0.1:1", "client.security.protocol": "SASL_PLAINTEXT",
    "client.sasl.mechanism": "PLAIN", "client.sasl.username": "proxy", "client.sasl.password": "own",
})  # fmt: skip
OPTIONS = InstanceOptions("one", "JSON", None, None, None, None)


def identity(name: str = "ann", text: str = "first", lifetime_s: float = 600) -> Identity:
    return Identity(name, token=text, expires_ms=int((time.time() + lifetime_s) * 1000))


def test_newer_token_of_the_same_user_replaces_an_older_one() -> None:
    first, newer = identity(), identity(text="newer", lifetime_s=900)
    owner = Owner(first)
    assert owner.is_same_user(first)
    assert owner.is_same_user(newer)
    assert not owner.is_same_user(identity("bob"))
    assert not owner.is_same_user(Identity("ann"))
    assert not owner.is_same_user(Identity("ann", (("sasl.username", "ann"),)))
    owner.renew(newer)
    assert owner.identity is newer
    owner.renew(first)
    assert owner.identity is newer


def test_users_with_passwords_are_the_same_only_with_the_same_password() -> None:
    owner = Owner(Identity("ann", (("sasl.password", "1"),)))
    assert owner.is_same_user(Identity("ann", (("sasl.password", "1"),)))
    assert not owner.is_same_user(Identity("ann", (("sasl.password", "2"),)))


def test_clients_of_a_token_are_closed_when_it_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        kafka = Kafka(SETTINGS)
        instances = Instances(SETTINGS, kafka)
        user = identity()
        producer = kafka.producer(user, BATCH_BYTES)
        assert kafka.producer(user, BATCH_BYTES) is producer
        instance = instances.create("group", user, OPTIONS)
        kafka.close_idle()
        instances.close_expired()
        assert kafka.producer(user, BATCH_BYTES) is producer
        assert instances.find("group", "one", identity(text="newer", lifetime_s=900)) is instance
        monkeypatch.setattr(Identity, "is_expired", property(lambda self: bool(self.token)))
        kafka.close_idle()
        instances.close_expired()
        with pytest.raises(HttpError) as refusal:
            kafka.producer(user, BATCH_BYTES)
        assert (refusal.value.status, refusal.value.error_code) == (401, 40101)
        with pytest.raises(HttpError, match="not found"):
            instances.find("group", "one", user)
        await instances.close()
        await kafka.close()

    asyncio.run(check())


def test_login_of_the_proxy_is_not_used_for_a_token() -> None:
    async def check() -> None:
        kafka = Kafka(SETTINGS)
        user = identity()
        config = kafka._config(Owner(user))
        assert config["sasl.mechanism"] == "OAUTHBEARER"
        assert config["oauth_cb"]("") == ("first", (user.expires_ms or 0) / 1000)
        assert not {"sasl.username", "sasl.password"} & config.keys()
        with kafka._make_cluster(user) as cluster:
            assert cluster.security.sasl is not None
            assert cluster.security.sasl.mechanism == "OAUTHBEARER"
        await kafka.close()

    asyncio.run(check())
