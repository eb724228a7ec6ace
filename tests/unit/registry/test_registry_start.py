"""The start of a registry whose cluster does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.edge.registry import main
from ottla.edge.registry.store import StoreSettings
from ottla.edge.web.service import StoppedAtStart


def test_start_reports_a_cluster_that_does_not_answer_and_ends_with_a_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def prepare_topic(where: StoreSettings) -> None:
            loop.call_soon_threadsafe(stop.set)
            real_prepare(where)

        real_prepare: Any = main.prepare_topic
        monkeypatch.setattr(main, "prepare_topic", prepare_topic)
        with pytest.raises(StoppedAtStart):
            # No program listens on port 1.
            await main._prepare_unless_stopped(stop, StoreSettings("127.0.0.1:1", {}))

    asyncio.run(check())
    [line] = caplog.messages
    assert line.startswith("the cluster at 127.0.0.1:1 cannot be reached (connection refused)")
