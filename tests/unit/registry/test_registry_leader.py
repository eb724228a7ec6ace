"""An instance without a leader: what changes wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.registry.election import Instance
from ottla.registry.service import Registration, Registry
from ottla.registry.state import State
from ottla.registry.store import StoreSettings
from ottla.web.app import HttpError

CHANGES = 5


class LeaderlessRegistry(Registry):
    """Waits until all changes wait, then gives up."""

    def __init__(self) -> None:
        super().__init__(StoreSettings("127.0.0.1:1", {}), "group", Instance("http", "127.0.0.1", 1), State())
        self.waiting = asyncio.Barrier(CHANGES)

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        await self.waiting.wait()
        return False


def test_changes_wait_for_a_leader_at_the_same_time() -> None:
    def decide(others: object) -> Registration:
        raise AssertionError("an instance without a leader decides nothing")

    async def run() -> list[int]:
        registry = LeaderlessRegistry()
        async with asyncio.timeout(30):
            changes = [registry.change(lambda: (None, [])) for _ in range(CHANGES - 2)]
            registrations = [registry.register(subject, decide, 1) for subject in ("a", "b")]
            outcomes = await asyncio.gather(*changes, *registrations, return_exceptions=True)
        return [outcome.error_code for outcome in outcomes if isinstance(outcome, HttpError)]

    assert asyncio.run(run()) == [50004] * CHANGES


def test_term_without_a_leader_is_refused() -> None:
    async def run() -> None:
        registry = LeaderlessRegistry()
        assert not registry.is_leading(0)
        await registry.append_in_term(0, {"t": []})

    with pytest.raises(HttpError) as error:
        asyncio.run(run())
    assert error.value.error_code == 50004
