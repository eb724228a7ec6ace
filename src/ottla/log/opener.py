"""The opener: another process that opens batches, so that this work does not block the event loop.

Opening a batch is pure Python, so a thread would hold the interpreter lock that the event loop needs. One process,
started for the first batch that needs it, reads one job at a time from its standard input and writes the result to its
standard output:

    job     ─►  size of the head in bytes, size of the batch in bytes, head (JSON), batch
    result  ◄─  the same; the head contains the error, if any, and the batch is the one to append

A thread of the broker waits for the results. Short jobs run before long ones, but after ``_SHORT_IN_A_ROW`` short jobs
one long job runs. A connection submits one job at a time, so that clients take turns. The size of the waiting batches
is limited: beyond ``_WAITING_BYTES_MAX`` a batch is rejected with REQUEST_TIMED_OUT, which producers retry.

If the process ends during a job (the kernel may kill it because of its memory), the job is retried once in a new
process. The process ends when its standard input is closed, and ``close`` ends it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ottla.env.tasks import keep_thread
from ottla.log.opener_process import SEARCHES, Found, Message, read_message, write_message
from ottla.model.batch import read_header
from ottla.model.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    RecordError,
    RecordsTooLarge,
    Refused,
)
from ottla.model.opening import OpeningRules
from ottla.model.records import Bytes
from ottla.model.schema_ids import Diverted, FoundSchemas, SchemaRef, SchemaRules, Source

#: a job up to this number of records and bytes is short: it takes a few milliseconds
_SHORT_RECORDS_MAX = 10_000
_SHORT_BYTES_MAX = 256 << 10
_SHORT_IN_A_ROW = 8
#: a batch up to this size is searched in the calling thread, which then holds the interpreter lock for about 1 ms
_HERE_RECORDS_MAX = 1000
_HERE_BYTES_MAX = 64 << 10
#: maximum size of all waiting batches; a batch that waits alone may be larger
_WAITING_BYTES_MAX = 16 << 20
_ATTEMPTS = 2
_COMMAND = "from ottla.log.opener_process import main; main()"


class _ProcessEnded(Exception):
    """The process ended before it wrote the result of a job."""


class _Job:
    """A batch, the request that describes the task, and the future of the result."""

    __slots__ = ("batch", "future", "request")

    def __init__(self, request: dict[str, Any], batch: Bytes) -> None:
        self.request = request
        self.batch = batch
        self.future: Future[Message] = Future()


class Opener:
    """Opens batches in another process. Call the coroutines on the event loop, the searches in any other thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._short: deque[_Job] = deque()
        self._long: deque[_Job] = deque()
        self._short_in_a_row = 0
        self._waiting_bytes = 0
        self._closed = False
        #: number of opened batches and of started processes, for tests and metrics
        self.opened = 0
        self.started = 0

    async def open_batch(self, batch: Bytes, rules: OpeningRules, records: int) -> bytes | None:
        """Return or raise the result of ``open_batch`` in `model/opening.py`; ``records`` is the count in the header.

        Raise Refused with REQUEST_TIMED_OUT if too many batches wait.
        """
        head, stored = await self._open({"task": "open", "rules": rules}, batch, records)
        return stored if head["changed"] else None

    async def find_schemas(self, batch: Bytes, rules: SchemaRules, records: int) -> FoundSchemas:
        """Return or raise the result of ``find_schemas`` in `model/schema_ids.py`, or raise as ``open_batch`` does."""
        head, _ = await self._open({"task": "find_schemas", "rules": rules}, batch, records)
        schemas = [SchemaRef(*each) for each in head["schemas"]]
        return FoundSchemas(schemas, [(index, reason) for index, reason in head["errors"]])

    async def divert(self, batch: Bytes, rules: SchemaRules, source: Source, records: int) -> Diverted:
        """Return or raise the result of ``divert`` in `model/schema_ids.py`, or raise as ``open_batch`` does."""
        head, body = await self._open({"task": "divert", "rules": rules, "source": source}, batch, records)
        batches, start = [], 0
        for size_bytes in head["sizes"]:
            batches.append(body[start : start + size_bytes])
            start += size_bytes
        return Diverted(body[start:], batches, head["count"])

    async def _open(self, request: dict[str, Any], batch: Bytes, records: int) -> Message:
        is_short = records <= _SHORT_RECORDS_MAX and len(batch) <= _SHORT_BYTES_MAX
        if self._waiting_bytes and self._waiting_bytes + len(batch) > _WAITING_BYTES_MAX:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "too many batches wait to be opened; try again")
        job = _Job(request, batch)
        self._submit(job, is_short=is_short)
        return await asyncio.wrap_future(job.future)

    def find_timestamp(self, batch: bytes, timestamp: int, *, starting_offset: int, max_bytes: int) -> Found:
        """Return the result of ``records.find_timestamp``; a large batch is opened in the other process. Blocks."""
        arguments = {"timestamp": timestamp, "starting_offset": starting_offset, "max_bytes": max_bytes}
        return self._search("find_timestamp", batch, arguments)

    def max_timestamp_record(self, batch: bytes, *, max_bytes: int) -> Found:
        """Return the result of ``records.max_timestamp_record``; opens a large batch in the other process. Blocks."""
        return self._search("max_timestamp_record", batch, {"max_bytes": max_bytes})

    def _search(self, task: str, batch: bytes, arguments: dict[str, int]) -> Found:
        if read_header(batch).record_count <= _HERE_RECORDS_MAX and len(batch) <= _HERE_BYTES_MAX:
            return SEARCHES[task](batch, **arguments)
        job = _Job({"task": task, "arguments": arguments}, batch)
        self._submit(job, is_short=False)
        found = job.future.result()[0]["found"]
        return None if found is None else (found[0], found[1])

    def close(self) -> None:
        """End the process. The waiting jobs fail."""
        with self._changed:
            self._closed = True
            waiting = [*self._short, *self._long]
            self._short.clear()
            self._long.clear()
            self._changed.notify_all()
            if self._process is not None:
                self._process.kill()
        for job in waiting:
            self._finish(job, _stopped())
        if self._thread is not None:
            self._thread.join()

    # -- jobs -----------------------------------------------------------------------------------------------------

    def _submit(self, job: _Job, *, is_short: bool) -> None:
        with self._changed:
            if self._closed:
                raise _stopped()
            if self._thread is None:
                self._thread = keep_thread(self._run, "opener")
                self._thread.start()
            self._waiting_bytes += len(job.batch)
            (self._short if is_short else self._long).append(job)
            self._changed.notify_all()

    def _next(self) -> _Job | None:
        """Wait for a job and return it; return None if the opener is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._short or self._long)
            if self._closed:
                return None
            if self._short and (not self._long or self._short_in_a_row < _SHORT_IN_A_ROW):
                self._short_in_a_row += 1
                return self._short.popleft()
            self._short_in_a_row = 0
            return self._long.popleft()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if job.future.cancelled():
                self._finish(job, None)
                continue
            result: Message | KafkaError = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be opened")
            try:
                result = self._execute(job)
            except KafkaError as error:
                result = error
            finally:
                # After any exception, because the request waits for the result.
                self._finish(job, result)
        self._end_process()

    def _execute(self, job: _Job) -> Message:
        for _ in range(_ATTEMPTS):
            try:
                head, stored = self._exchange(self._running_process(), job)
            except OSError as error:
                self._end_process()
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the opener could not be started: {error}") from None
            except _ProcessEnded:
                self._end_process()
                if self._closed:
                    raise _stopped() from None
                continue
            self.opened += 1
            if "code" in head:
                raise _to_error(head)
            return head, stored
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the process that opens batches ended during this batch")

    def _finish(self, job: _Job, result: Message | KafkaError | None) -> None:
        with self._changed:
            self._waiting_bytes -= len(job.batch)
        if result is None or not job.future.set_running_or_notify_cancel():
            return
        if isinstance(result, KafkaError):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)

    # -- the process ----------------------------------------------------------------------------------------------

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A new session, so that Ctrl-C in the terminal reaches only the broker, which then ends this process.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self.started += 1
        with self._changed:  # only now, because the event loop also takes this lock and must not wait for Popen
            self._process = process
            if self._closed:
                raise _ProcessEnded
        return process

    def _exchange(self, process: subprocess.Popen[bytes], job: _Job) -> Message:
        assert process.stdin is not None and process.stdout is not None
        try:
            write_message(process.stdin, job.request, job.batch)
        except OSError:
            raise _ProcessEnded from None
        answer = read_message(process.stdout)
        if answer is None:
            raise _ProcessEnded
        return answer

    def _end_process(self) -> None:
        with self._changed:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):  # closing flushes the rest of a job that the process did not read
                stream.close()
        process.wait()


def _stopped() -> KafkaError:
    return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker is stopping")


def _to_error(head: dict[str, Any]) -> KafkaError:
    """Return the error that the other process raised."""
    code, text = ErrorCode(head["code"]), str(head["text"])
    errors = tuple(RecordError(index, reason) for index, reason in head["records"])
    if code == ErrorCode.INVALID_TIMESTAMP:
        return InvalidTimestamp(text, errors)
    if code == ErrorCode.MESSAGE_TOO_LARGE:
        return RecordsTooLarge(text)
    if code == ErrorCode.INVALID_RECORD:
        return InvalidRecord(text, record_errors=errors)
    return Refused(code, text)
