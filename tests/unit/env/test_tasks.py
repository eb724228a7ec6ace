"""Threads and tasks beside the loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading

import pytest

from ottla.env import tasks as env_tasks
from ottla.env.process import log_to_stderr
from ottla.env.tasks import Tasks, ThreadPool, attempt, keep_thread


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


def test_unexpected_error_of_a_job_reaches_the_caller_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        pool = ThreadPool(asyncio.get_running_loop(), 1, "test")
        results: list[OSError | None] = []

        def fail() -> None:
            raise ValueError("boom")

        pool.submit(fail, results.append)
        pool.submit(lambda: None, results.append)
        await pool.drain()
        pool.close()
        assert isinstance(results[0], OSError) and results[1] is None

    asyncio.run(scenario())
    assert "Traceback" in caplog.text and "boom" in caplog.text


def test_kept_task_begins_again_after_an_unexpected_exception(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_tasks, "RESTART_S", 0)

    async def scenario() -> None:
        tasks, has_begun_again, runs = Tasks(), asyncio.Event(), 0

        async def work() -> None:
            nonlocal runs
            runs += 1
            if runs == 1:
                raise AttributeError("boom")
            has_begun_again.set()
            await asyncio.Future()

        task = tasks.keep(work, "the task")
        await has_begun_again.wait()
        await tasks.stop()
        assert runs == 2 and task.cancelled()

    asyncio.run(scenario())
    assert "the task" in caplog.text and "Traceback" in caplog.text and "boom" in caplog.text


def test_kept_thread_goes_on_after_an_unexpected_exception(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_tasks, "RESTART_S", 0)
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise AttributeError("boom")

    thread = keep_thread(work, "the thread")
    thread.start()
    thread.join()
    assert len(runs) == 2
    assert "the thread" in caplog.text and "Traceback" in caplog.text


def test_exception_that_is_expected_is_left_to_those_that_wait_for_the_task(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def fail() -> None:
            raise ValueError("boom")

        task = Tasks().start(fail(), "the task", expected=(ValueError,))
        with pytest.raises(ValueError, match="boom"):
            await task

    asyncio.run(scenario())
    assert not caplog.records


def test_periodic_work_that_fails_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        attempt(lambda: 1 / 0, "division")

    asyncio.run(scenario())
    assert "division" in caplog.text and "ZeroDivisionError" in caplog.text


def test_exception_that_ends_a_thread_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    level = root.level
    try:
        log_to_stderr("info")
        thread = threading.Thread(target=lambda: 1 / 0, name="the thread")
        thread.start()
        thread.join()
    finally:
        root.setLevel(level)
    text = capsys.readouterr().err
    assert "ERROR" in text and "the thread" in text and "ZeroDivisionError" in text
