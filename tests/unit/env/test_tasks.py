"""Threads and tasks beside the loop."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from ottla.env.tasks import Tasks, ThreadPool


def test_work_runs_in_threads_and_reports_on_the_loop() -> None:
    async def scenario() -> None:
        pool = ThreadPool(asyncio.get_running_loop(), 3, "test")
        results: list[OSError | None] = []
        for _ in range(20):
            pool.submit(lambda: None, results.append)
        await pool.drain()
        pool.close()
        assert results == [None] * 20

    asyncio.run(scenario())


def test_an_os_error_reaches_the_one_who_asked() -> None:
    async def scenario() -> None:
        pool = ThreadPool(asyncio.get_running_loop(), 1, "test")
        results: list[OSError | None] = []

        def fail() -> None:
            raise OSError(errno.EIO, "disk")

        pool.submit(fail, results.append)
        await pool.drain()
        pool.close()
        assert results[0] is not None and results[0].errno == errno.EIO

    asyncio.run(scenario())


def test_a_failed_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = Tasks()

        async def fail() -> None:
            raise ValueError("boom")

        tasks.start(fail(), "the task")
        while not caplog.records:
            await asyncio.sleep(0)
        await tasks.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "the task" in caplog.text and "boom" in caplog.text
