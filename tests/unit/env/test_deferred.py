"""Work that is spread over iterations of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.env.deferred import SLICE_ROWS, SLICE_S, UNITS_MAX, Deferred, between_slices


class Loop:
    """An event loop whose iterations are run by hand, and a clock."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.now = 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def iterate(self) -> None:
        """Two iterations of the loop: jobs let others go first once."""
        self.run_callbacks()
        self.run_callbacks()

    def run_callbacks(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deferred(loop: Loop) -> Deferred:
    fake: Any = loop
    return Deferred(fake, lambda: loop.now)


def test_bounded_amount_of_work_runs_in_one_iteration(loop: Loop, deferred: Deferred) -> None:
    assert deferred.may_run(UNITS_MAX - 1)
    assert not deferred.may_run(2)
    assert deferred.may_run(1)
    assert not deferred.may_run(1)
    loop.iterate()
    assert deferred.may_run(UNITS_MAX)


def test_work_larger_than_an_iteration_never_runs_at_once(deferred: Deferred) -> None:
    assert not deferred.may_run(UNITS_MAX + 1)


def test_jobs_run_in_order_a_slice_per_iteration(loop: Loop, deferred: Deferred) -> None:
    done: list[int] = []

    def job(number: int, took_s: float) -> Callable[[], None]:
        def run() -> None:
            done.append(number)
            loop.now += took_s

        return run

    for number, took_s in enumerate([SLICE_S / 2, SLICE_S / 2, 5.0, 0.0, 0.0]):
        deferred.add(job(number, took_s))
    expected = [[0, 1], [0, 1, 2], [0, 1, 2, 3, 4]]
    for so_far in expected:
        loop.iterate()
        assert done == so_far
    assert not loop.callbacks
    assert len(deferred) == 0


def test_callback_that_was_added_after_a_job_runs_before_it(loop: Loop, deferred: Deferred) -> None:
    done: list[str] = []
    deferred.add(lambda: done.append("job"))
    loop.call_soon(lambda: done.append("reply"))
    loop.iterate()
    assert done == ["reply", "job"]


def test_job_that_is_added_by_a_job_runs_in_the_next_iteration(loop: Loop, deferred: Deferred) -> None:
    done: list[str] = []
    deferred.add(lambda: deferred.add(lambda: done.append("second")))
    loop.iterate()
    assert done == []
    loop.iterate()
    assert done == ["second"]


def test_job_that_fails_does_not_stop_the_others(loop: Loop, deferred: Deferred) -> None:
    done: list[str] = []
    deferred.add(lambda: done.remove("never added"))
    deferred.add(lambda: done.append("good"))
    with pytest.raises(ValueError):
        loop.iterate()
    loop.iterate()
    assert done == ["good"]


def test_loop_serves_others_between_slices_of_rows() -> None:
    async def run() -> list[int]:
        served: list[int] = []

        async def serve_others() -> None:
            while True:
                served.append(len(seen))
                await asyncio.sleep(0)

        seen: list[int] = []
        others = asyncio.create_task(serve_others())
        for row in range(2 * SLICE_ROWS + 1):
            await between_slices(row)
            seen.append(row)
        others.cancel()
        return served

    assert asyncio.run(run()) == [SLICE_ROWS, 2 * SLICE_ROWS]
