"""The opener's process does what ``open_batch`` does, is started again when it ends, and is gone after ``close``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from ottla.env import tasks as env_tasks
from ottla.log.opener import Opener, _Job
from ottla.log.opener_process import Message, execute
from ottla.model.errors import ErrorCode, InvalidRecord, InvalidTimestamp, KafkaError, RecordsTooLarge
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import Record, build_batch, find_timestamp, max_timestamp_record

KEYS = OpeningRules(requires_keys=True)
GOOD = build_batch([Record(timestamp=time, key=b"k", value=b"v") for time in (5, 9, 7)])
KEYLESS = build_batch([Record(key=b"k"), Record(), Record()])


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    """One process for all tests that only use it."""
    shared = Opener()
    yield shared
    shared.close()


def run(opener: Opener, batch: bytes, rules: OpeningRules) -> bytes | None:
    return asyncio.run(opener.open_batch(batch, rules, 3))


def running(opener: Opener) -> int:
    process = opener._process
    assert process is not None
    return process.pid


def test_process_returns_what_open_batch_returns(opener: Opener) -> None:
    assert run(opener, GOOD, KEYS) is None
    for codec in range(5):
        rules = KEYS._replace(codec=codec, level=None)
        assert run(opener, GOOD, rules) == open_batch(GOOD, rules)
    assert opener.started == 1


@pytest.mark.parametrize(
    ("batch", "rules", "error"),
    [
        (KEYLESS, KEYS, InvalidRecord),
        (GOOD, OpeningRules(timestamp_max=6), InvalidTimestamp),
        (GOOD, KEYS._replace(records_max=2), RecordsTooLarge),
        (GOOD[:-1], KEYS, InvalidRecord),
    ],
)
def test_process_raises_what_open_batch_raises(
    opener: Opener, batch: bytes, rules: OpeningRules, error: type[KafkaError]
) -> None:
    with pytest.raises(error) as here:
        open_batch(batch, rules)
    with pytest.raises(error) as there:
        run(opener, batch, rules)
    assert (str(there.value), there.value.code) == (str(here.value), here.value.code)
    assert there.value.record_errors == here.value.record_errors


@pytest.mark.parametrize("count", [3, 3000])
def test_searches_find_what_the_functions_find(opener: Opener, count: int) -> None:
    batch = build_batch([Record(timestamp=number % 1000) for number in range(count)])
    fields = {"starting_offset": 1, "max_bytes": 1 << 20}
    assert opener.find_timestamp(batch, 1, **fields) == find_timestamp(batch, 1, **fields) == (1, 1)
    assert opener.find_timestamp(batch, 5000, **fields) is None
    newest = max_timestamp_record(batch, max_bytes=1 << 20)
    assert opener.max_timestamp_record(batch, max_bytes=1 << 20) == newest


def test_process_is_started_again_when_it_ended() -> None:
    opener = Opener()
    try:
        assert run(opener, GOOD, KEYS) is None
        os.kill(running(opener), signal.SIGKILL)
        assert run(opener, GOOD, KEYS) is None
        assert opener.started == 2
    finally:
        opener.close()


def test_batch_that_ends_the_process_twice_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.log.opener._COMMAND", "raise SystemExit")
    opener = Opener()
    try:
        with pytest.raises(KafkaError, match="ended") as raised:
            run(opener, GOOD, KEYS)
        assert (raised.value.code, opener.started) == (ErrorCode.UNKNOWN_SERVER_ERROR, 2)
    finally:
        opener.close()


def test_process_that_cannot_be_started_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    opener = Opener()
    try:
        with pytest.raises(KafkaError, match="could not be started") as raised:
            run(opener, GOOD, KEYS)
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    finally:
        opener.close()


def test_close_ends_the_process_and_fails_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.log.opener._COMMAND", "import sys; sys.stdin.buffer.read()")  # it never answers
    opener = Opener()

    async def close_with_two_waiting() -> list[object]:
        jobs = [asyncio.ensure_future(opener.open_batch(GOOD, KEYS, 3)) for _ in range(2)]
        while not opener.started:
            await asyncio.sleep(0)
        opener.close()
        return list(await asyncio.gather(*jobs, return_exceptions=True))

    errors = asyncio.run(close_with_two_waiting())
    assert [isinstance(error, KafkaError) for error in errors] == [True, True]
    assert opener._process is None
    with pytest.raises(KafkaError):
        run(opener, GOOD, KEYS)


def test_cancelled_job_leaves_the_process_usable(opener: Opener) -> None:
    async def cancel_one() -> bytes | None:
        job = asyncio.ensure_future(opener.open_batch(GOOD, KEYS, 3))
        await asyncio.sleep(0)
        job.cancel()
        return await opener.open_batch(GOOD, KEYS._replace(codec=4), 3)

    assert asyncio.run(cancel_one()) == open_batch(GOOD, KEYS._replace(codec=4))
    assert opener._waiting_bytes == 0


def test_batches_beyond_the_bytes_that_may_wait_are_refused_for_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.log.opener._WAITING_BYTES_MAX", len(GOOD) * 2)
    opener = Opener()

    async def open_three() -> list[object]:
        return list(await asyncio.gather(*[opener.open_batch(GOOD, KEYS, 3) for _ in range(3)], return_exceptions=True))

    try:
        first, second, third = asyncio.run(open_three())
        assert (first, second) == (None, None)
        assert isinstance(third, KafkaError)
        assert third.code == ErrorCode.REQUEST_TIMED_OUT
        assert opener._waiting_bytes == 0
    finally:
        opener.close()


def test_short_jobs_go_first_but_long_ones_get_their_turn() -> None:
    opener = Opener()
    short = [_Job({}, b"") for _ in range(20)]
    long = [_Job({}, b"") for _ in range(3)]
    opener._short.extend(short)
    opener._long.extend(long)
    order = [opener._next() for _ in range(23)]
    assert [order.index(job) for job in long] == [8, 17, 22]
    assert [job for job in order if job in short] == short


def test_execute_reports_an_error_as_a_value() -> None:
    head, body = execute({"task": "open", "rules": list(KEYS)}, KEYLESS)
    assert (head["code"], [index for index, _ in head["records"]], body) == (87, [1, 2], b"")


def test_batch_is_refused_and_the_next_one_opened_after_an_unexpected_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env_tasks, "RESTART_S", 0)
    opener = Opener()
    execute_job, calls = opener._execute, 0

    def fail_first(job: _Job) -> Message:
        nonlocal calls
        calls += 1
        return execute_job(job) if calls > 1 else 1 / 0  # type: ignore[return-value]

    monkeypatch.setattr(opener, "_execute", fail_first)
    try:
        with pytest.raises(KafkaError) as refused:
            run(opener, GOOD, KEYS)
        assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert run(opener, GOOD, KEYS) is None
    finally:
        opener.close()
    assert "ZeroDivisionError" in caplog.text
