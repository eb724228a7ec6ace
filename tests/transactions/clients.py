"""Transactional producers of three libraries behind one face.

A call raises ``Failed`` whatever went wrong: what that means for the transaction is for the caller to find out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.testing.history import Place

with warnings.catch_warnings():
    # It reads its message schemas with a function that Python wants to drop; warnings are errors here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.structs import OffsetAndMetadata

CALL_S_MAX = 10.0
_CLOSE_S_MAX = 5.0
_SETTLE_S_MAX = 1.0
#: librdkafka tells of every lost connection; what counts is told by the exceptions
LOG_LEVEL = 0
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
logging.getLogger("kafka").setLevel(logging.CRITICAL)

T = TypeVar("T")


class Failed(Exception):
    """A call did not do what it says. ``again``: the library wants the same call once more."""

    def __init__(self, error: BaseException, *, again: bool = False) -> None:
        super().__init__(repr(error))
        self.again = again


class TransactionalClient(Protocol):
    """A producer that was initialized when it was made."""

    #: by value what became of it, known after a commit or abort: its offset, or why it has none
    results: dict[str, int | str]

    def begin(self) -> None: ...
    def send(self, place: Place, value: str) -> None: ...
    def flush(self) -> None: ...
    def offsets(self, group: str, place: Place, offset: int) -> None: ...
    def end(self, *, commit: bool) -> None: ...
    def close(self) -> None: ...


# -- confluent-kafka ------------------------------------------------------------------------------------------------


class Confluent:
    def __init__(self, bootstrap: str, transactional_id: str, client_id: str, timeout_ms: int) -> None:
        self.results: dict[str, int | str] = {}
        self._producer = Producer(confluent_settings(bootstrap, transactional_id, client_id, timeout_ms))
        self._bootstrap = bootstrap
        self._consumers: dict[str, Consumer] = {}
        try:
            self._call(self._producer.init_transactions, CALL_S_MAX)
        except Failed:
            self.close()
            raise

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, place: Place, value: str) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            self.results[value] = message.offset() if error is None else str(error)

        self._call(self._producer.produce, place.topic, value.encode(), None, place.partition, on_delivery)

    def flush(self) -> None:
        self._call(self._producer.flush, CALL_S_MAX)

    def offsets(self, group: str, place: Place, offset: int) -> None:
        if group not in self._consumers:
            settings = {"bootstrap.servers": self._bootstrap, "group.id": group, "log_level": LOG_LEVEL}
            self._consumers[group] = Consumer(settings)
        rows = [TopicPartition(place.topic, place.partition, offset)]
        metadata = self._consumers[group].consumer_group_metadata()
        self._call(self._producer.send_offsets_to_transaction, rows, metadata, CALL_S_MAX)

    def end(self, *, commit: bool) -> None:
        end = self._producer.commit_transaction if commit else self._producer.abort_transaction
        unsettled = 0 if commit else settle(self._producer)
        for attempts_left in reversed(range(3)):
            try:
                self._call(end, CALL_S_MAX)
                break
            except Failed as failed:
                if not failed.again or not attempts_left:
                    raise
            finally:
                self._serve()
        if unsettled:
            raise Failed(RuntimeError(f"{unsettled} records were purged"))

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._producer.purge()
        self._serve()
        # Threads and connections end with the last reference. confluent-kafka 2.16 keeps fatal errors for ever, and
        # with their frames this object, but then no longer these two.
        self._consumers.clear()
        del self._producer

    def _serve(self) -> None:
        """Delivery reports are called; a fatal error, which is raised here again, is known by then."""
        with suppress(KafkaException):
            self._producer.poll(0)

    @staticmethod
    def _call(function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except KafkaException as error:
            failed = Failed(error, again=error.args[0].retriable())
            error.__traceback__ = None  # see ``close``
        except (BufferError, SystemError) as error:
            # confluent-kafka 2.16 now and then forgets to say what the fatal error was.
            failed = Failed(error)
        raise failed


def settle(producer: Producer) -> int:
    """Wait, before an abort, for the answers that are due; how many records have none.

    In an abort, librdkafka 2.16 purges records that it has sent and whose answer was lost, and gives their sequence
    numbers to records of the next transaction, with the same epoch. If the purged batch arrives late, in that next
    transaction, the broker cannot distinguish the two: the purged records would be committed and the new ones would be
    acknowledged as duplicates. So the campaign replaces a producer that has aborted with unacknowledged records.
    """
    try:
        return producer.flush(_SETTLE_S_MAX)
    except (KafkaException, SystemError):
        return 0  # a fatal error has settled all of them


def confluent_settings(bootstrap: str, transactional_id: str, client_id: str, timeout_ms: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap, "transactional.id": transactional_id, "client.id": client_id, "linger.ms": 1,
        "transaction.timeout.ms": timeout_ms, "message.timeout.ms": timeout_ms,
        "socket.timeout.ms": min(timeout_ms, 10_000),
        "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300, "retry.backoff.ms": 20,
        "log_level": LOG_LEVEL,
        # With its default librdkafka 2.16 forgets a lone broker whose connection was lost, and offsets that it was
        # about to send there wait for ever.
        "metadata.recovery.strategy": "none",
    }  # fmt: skip


# -- aiokafka -------------------------------------------------------------------------------------------------------


class Aiokafka:
    """Its tasks run while a call of ours is awaited, in a loop of this thread."""

    def __init__(self, bootstrap: str, transactional_id: str, client_id: str, timeout_ms: int) -> None:
        self.results: dict[str, int | str] = {}
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)

        async def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, client_id=client_id,
                transaction_timeout_ms=timeout_ms, request_timeout_ms=8000, retry_backoff_ms=20,
            )  # fmt: skip

        self._producer = self._loop.run_until_complete(make())
        try:
            self._call(self._producer.start())
        except Failed:
            self.close()
            raise

    def begin(self) -> None:
        self._call(self._producer.begin_transaction())

    def send(self, place: Place, value: str) -> None:
        self._futures[value] = self._call(self._producer.send(place.topic, value.encode(), partition=place.partition))

    def flush(self) -> None:
        self._call(self._producer.flush())

    def offsets(self, group: str, place: Place, offset: int) -> None:
        rows = {AioPartition(place.topic, place.partition): offset}
        self._call(self._producer.send_offsets_to_transaction(rows, group))

    def end(self, *, commit: bool) -> None:
        try:
            self._call(self._producer.commit_transaction() if commit else self._producer.abort_transaction())
        finally:
            for value, future in self._futures.items():
                if future.done():
                    error = asyncio.CancelledError() if future.cancelled() else future.exception()
                    self.results[value] = future.result().offset if error is None else repr(error)
            self._futures.clear()

    def close(self) -> None:
        with suppress(Exception):
            self._loop.run_until_complete(asyncio.wait_for(self._producer.stop(), _CLOSE_S_MAX))
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def _call(self, awaitable: Awaitable[T]) -> T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(awaitable, CALL_S_MAX))
        except Exception as error:
            raise Failed(error) from None


# -- kafka-python ---------------------------------------------------------------------------------------------------


class KafkaPython:
    def __init__(self, bootstrap: str, transactional_id: str, client_id: str, timeout_ms: int) -> None:
        self.results: dict[str, int | str] = {}
        self._futures: dict[str, Any] = {}
        self._producer: Any = None

        def make() -> None:
            self._producer = KafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, client_id=client_id,
                transaction_timeout_ms=timeout_ms, request_timeout_ms=8000, retry_backoff_ms=20,
                reconnect_backoff_ms=20, reconnect_backoff_max_ms=300, max_block_ms=int(CALL_S_MAX * 1000),
                delivery_timeout_ms=9000,
            )  # fmt: skip

        _within(make)
        try:
            _within(self._producer.init_transactions)
        except Failed:
            self.close()
            raise

    def begin(self) -> None:
        _within(self._producer.begin_transaction)

    def send(self, place: Place, value: str) -> None:
        self._futures[value] = _within(
            lambda: self._producer.send(place.topic, value.encode(), partition=place.partition)
        )  # fmt: skip

    def flush(self) -> None:
        _within(lambda: self._producer.flush(CALL_S_MAX))

    def offsets(self, group: str, place: Place, offset: int) -> None:
        rows = {KafkaPythonPartition(place.topic, place.partition): OffsetAndMetadata(offset, "", -1)}
        _within(lambda: self._producer.send_offsets_to_transaction(rows, group))

    def end(self, *, commit: bool) -> None:
        if commit:
            # kafka-python 3.0 commits a transaction although some of its records were not stored.
            self.flush()
            if failed := [future.exception for future in self._futures.values() if future.failed()]:
                raise Failed(failed[0])
        try:
            _within(self._producer.commit_transaction if commit else self._producer.abort_transaction)
        finally:
            for value, future in self._futures.items():
                if future.is_done:
                    self.results[value] = repr(future.exception) if future.failed() else future.value.offset
            self._futures.clear()

    def close(self) -> None:
        with suppress(Failed):
            _within(lambda: self._producer.close(timeout=1))


def _within(function: Callable[[], T]) -> T:
    """Call something that may wait forever, for no longer than CALL_S_MAX."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(CALL_S_MAX)
    if results:
        return results[0]
    raise Failed(errors[0] if errors else TimeoutError(f"no answer within {CALL_S_MAX:.0f} s"))


LIBRARIES: dict[str, Callable[[str, str, str, int], TransactionalClient]] = {
    "confluent": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}
