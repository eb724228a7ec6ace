"""Settings of the REST proxy."""

from __future__ import annotations

import pytest

from ottla.edge.rest.settings import RestSettings
from ottla.model.setting_types import InvalidSettings


def test_settings_and_properties_of_clients_are_separated() -> None:
    settings = RestSettings.parse({
        "bootstrap.servers": "h:1", "consumer.request.timeout.ms": "5", "consumer.fetch.wait.max.ms": "7",
        "producer.linger.ms": "9", "client.security.protocol": "SSL", "admin.client.id": "x", "consumer.threads": "3",
        "client.timeout.ms": "200",
    })  # fmt: skip
    assert (settings.consumer_request_timeout_ms, settings.client_timeout_ms) == (5, 200)
    assert dict(settings.consumer) == {"fetch.wait.max.ms": "7"}
    assert dict(settings.producer) == {"linger.ms": "9"}
    assert dict(settings.client) == {"security.protocol": "SSL", "client.id": "x"}
    assert settings.ignored == ("consumer.threads",)
    assert settings.consumer_instance_timeout_ms == 300_000


@pytest.mark.parametrize(
    "texts", [{"api.v3.produce.batch.maximum.entries": "51"}, {"request.max.bytes": "x"}, {"no.such.setting": "1"}]
)
def test_invalid_settings_are_rejected(texts: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings):
        RestSettings.parse(texts)


def test_settings_of_confluents_server_without_effect_are_ignored() -> None:
    names = ("idle.timeout.ms", "metrics.jmx.prefix", "shutdown.graceful.ms", "thread.pool.max")
    assert RestSettings.parse(dict.fromkeys(names, "1")).ignored == names
