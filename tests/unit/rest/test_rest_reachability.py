"""A cluster that does not answer: the health and the log of the proxy, and requests that wait at its stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ottla.client.errors import AuthenticationFailed, BrokerError, ClientError, ConnectionLost, Unreachable
from ottla.client.reachability import why_unreachable
from ottla.edge.rest.kafka import SERVICE, Kafka
from ottla.edge.rest.reachability import Reachability
from ottla.edge.rest.settings import RestSettings
from ottla.model.errors import ErrorCode

#: no program listens on port 1
SETTINGS = RestSettings.parse({"bootstrap.servers": "127.0.0.1:1"})


def test_health_and_log_tell_whether_the_cluster_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        kafka = Kafka(SETTINGS)
        reachability = Reachability(kafka)
        assert reachability.health() == "the cluster was not asked yet"
        for _ in range(2):
            await reachability.ask()
            health = reachability.health()
            assert health is not None and "cannot be reached" in health and "127.0.0.1" not in health
        [line] = caplog.messages
        assert line.startswith("the cluster at 127.0.0.1:1 cannot be reached (connection refused)")

        async def answer(*_: Any, **__: Any) -> None: ...

        monkeypatch.setattr(kafka, "call", answer)
        for _ in range(2):
            await reachability.ask()
            assert reachability.health() is None
        assert caplog.messages[1:] == ["the cluster at 127.0.0.1:1 answers now"]
        await kafka.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(check())


class Answering:
    """A cluster whose requests for metadata end like this."""

    def __init__(self, error: ClientError | None) -> None:
        self._error = error

    def metadata(self, topics: list[str], deadline: float) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "with_login", "without_login"),
    [
        (None, True, True),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t"), True, True),
        (AuthenticationFailed("wrong password"), False, True),
        (Unreachable("broker", "refused"), False, False),
    ],
)
def test_refused_login_counts_if_the_client_needs_one(
    error: ClientError | None, with_login: bool, without_login: bool
) -> None:
    cluster: Any = Answering(error)
    assert (why_unreachable(cluster) is None) == with_login
    assert (why_unreachable(cluster, needs_login=False) is None) == without_login


def test_idle_connection_that_was_closed_is_replaced_before_a_verdict() -> None:
    class Restarted(Answering):
        def metadata(self, topics: list[str], deadline: float) -> None:
            error, self._error = self._error, None
            if error is not None:
                raise error

    cluster: Any = Restarted(ConnectionLost("broker", "it closed the connection"))
    assert why_unreachable(cluster) is None


def test_request_that_waits_for_the_cluster_ends_with_the_proxy() -> None:
    async def check() -> None:
        kafka = Kafka(SETTINGS)
        asking = asyncio.create_task(kafka.cluster_id(SERVICE))
        await asyncio.sleep(0)
        await kafka.close()
        with pytest.raises(Unreachable):
            await asking

    asyncio.run(check())
