"""What changes wait for without a leader, and what a change leaves behind that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.edge.registry.election import Instance
from ottla.edge.registry.records import SchemaVersion
from ottla.edge.registry.service import Registration, Registry
from ottla.edge.registry.state import State
from ottla.edge.registry.store import Applied, StoreSettings
from ottla.edge.web.app import HttpError

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


class AppendingRegistry(Registry):
    """The leader. Its appends do not end."""

    def __init__(self) -> None:
        super().__init__(StoreSettings("127.0.0.1:1", {}), "group", Instance("http", "127.0.0.1", 1), State())
        self.leader, self._is_prepared = self.own, True
        self.has_appended = asyncio.Event()
        self._writer.append = self._never_append  # type: ignore[method-assign]

    async def _never_append(self, batches: object) -> int:
        self.has_appended.set()
        return await asyncio.get_running_loop().create_future()


def test_change_that_is_cancelled_ends_the_term_and_no_other_request() -> None:
    """Its records may be appended nevertheless: the next change is decided when everything was read again."""

    def decide(others: object) -> Registration:
        row = SchemaVersion(subject="a", version=1, id=1, text='"string"')
        return Registration(row, [row.record()])

    async def run() -> tuple[bool, list[BaseException | Registration]]:
        registry = AppendingRegistry()
        async with asyncio.timeout(30):
            async with registry._changing:  # so that both wait, and make one group
                requests = [asyncio.create_task(registry.register(subject, decide, 1)) for subject in ("a", "b")]
                while len(registry._waiting) < 2:
                    await asyncio.sleep(0)
            await registry.has_appended.wait()
            requests[0].cancel()
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
        return registry._is_prepared, outcomes

    is_prepared, (first, second) = asyncio.run(run())
    assert not is_prepared
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, HttpError) and second.error_code == 50002


def test_registry_ends_if_records_cannot_be_applied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without them it would give out ids that the topic has already."""

    async def run() -> str:
        registry = AppendingRegistry()
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        registry.on_failure = failed.set_result
        monkeypatch.setattr(registry.state, "apply", lambda *row: 1 / 0)
        await asyncio.to_thread(registry._deliver, [Applied(b"{}", None, 0, 0)], 1)
        async with asyncio.timeout(30):
            return await failed

    assert "cannot be applied" in asyncio.run(run())
    assert "ZeroDivisionError" in caplog.text
