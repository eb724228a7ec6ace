"""kafka-python in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError, KafkaError

from drivers import DEADLINE_S, Place, Refused
from drivers.kafka_python import refusals
from drivers.kafka_python_groups import KafkaPythonGroups, KafkaPythonMember

_ILLEGAL_GENERATION = 22
_REQUEST_TIMED_OUT = 7
#: a call that takes longer is looked at: does the client still ask the broker for something?
_PATIENCE_S = 10.0
#: It repeats what was refused about ten times in a second, and an answer takes a millisecond: whoever looks this often
#: for this long sees one of its requests, if there are any.
_WATCH_S, _GLANCE_S = 3.0, 0.005

T = TypeVar("T")


class KafkaPythonTransactions(KafkaPythonGroups):
    """kafka-python 3."""

    name = "kafka-python"

    def transactional(self, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> Any:
        return KafkaPythonTransactional(
            KafkaProducer(
                bootstrap_servers=self._bootstrap, transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms, compression_type=None if codec == "none" else codec,
            )
        )  # fmt: skip


class KafkaPythonTransactional:
    """A producer with a transactional id, which it has when it is made."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        self._is_stuck = False
        self._answered(producer.init_transactions)

    def _answered(self, call: Callable[[], T]) -> T:
        """What the call returns. Raises Refused when the client waits for an answer to what it never asked.

        kafka-python 3.0 forgets an AddPartitionsToTxn, EndTxn or InitProducerId when it finds the connection to the
        coordinator lost and the first attempt at another one fails: it asks for the coordinator again, but no more for
        what it wanted there. The records then wait until they expire (two minutes), and a commit or an abort waits for
        ever. What becomes of the transaction is not known, as after any other error. A call that takes long although
        the client does ask the broker for something is another matter: that must not happen, and fails.
        """
        answer = _start(call)
        with refusals():
            try:
                return answer.result(_PATIENCE_S)
            except TimeoutError:
                if self._asks_for_something(answer):
                    return answer.result(DEADLINE_S)
        self._is_stuck = True
        raise Refused(_REQUEST_TIMED_OUT, "the client waits, and asks for nothing")

    def _asks_for_something(self, answer: Future[Any]) -> bool:
        metrics = self._producer.metrics(raw=True)
        (in_flight,) = (metric for name, metric in metrics.items() if name.name == "requests-in-flight")
        deadline = time.monotonic() + _WATCH_S
        while time.monotonic() < deadline:
            if in_flight.value():
                return True
            with suppress(TimeoutError):
                answer.exception(_GLANCE_S)
                return True
        return False

    def begin(self) -> None:
        with refusals():
            self._producer.begin_transaction()

    def send(self, place: Place, *values: bytes) -> None:
        """They are in the partition when this returns."""

        def send_all() -> None:
            futures = [self._producer.send(place.topic, value, partition=place.partition) for value in values]
            for future in futures:
                future.get(DEADLINE_S)

        self._answered(send_all)

    @staticmethod
    def standing(member: KafkaPythonMember) -> Any:
        """What the member is to its group at this moment."""
        return member._consumer.group_metadata()

    def send_offsets(self, offsets: Mapping[Place, int], standing: Any, group: str) -> None:
        positions = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        try:
            self._answered(lambda: self._producer.send_offsets_to_transaction(positions, standing))
        except CommitFailedError as error:
            raise Refused(_ILLEGAL_GENERATION, str(error)) from None

    def commit(self) -> None:
        self._answered(self._producer.commit_transaction)

    def abort(self) -> None:
        self._answered(self._producer.abort_transaction)

    def close(self) -> None:
        if self._is_stuck:
            # A record that was never sent would keep it from closing; an abort throws that away.
            with suppress(Refused, KafkaError):
                self.abort()
        self._producer.close(5)


def _start(call: Callable[[], T]) -> Future[T]:
    """Runs the call in a thread that may stay behind: no call here has a deadline of its own that is short enough."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
