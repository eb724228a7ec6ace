"""confluent-kafka in transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from drivers import DEADLINE_S, Place, Refused
from drivers.confluent_groups import ConfluentGroups, ConfluentMember


class ConfluentTransactions(ConfluentGroups):
    """librdkafka."""

    name = "confluent-kafka"

    def transactional(self, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> Any:
        return ConfluentTransactional(
            Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": timeout_ms,
                    "compression.type": codec,
                    "linger.ms": 1,
                    "log_level": 0,
                }
            )
        )


class ConfluentTransactional:
    """A producer with a transactional id, which it has when it is made."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        with _refusals():
            producer.init_transactions(DEADLINE_S)

    def begin(self) -> None:
        with _refusals():
            self._producer.begin_transaction()

    def send(self, place: Place, *values: bytes) -> None:
        """They are in the partition when this returns."""
        failures: list[Any] = []
        for value in values:
            self._producer.produce(
                place.topic, value, partition=place.partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )  # fmt: skip
        with _refusals():
            unsent = self._producer.flush(DEADLINE_S)
        if failures:
            raise Refused(failures[0].code(), failures[0].str())
        assert not unsent

    @staticmethod
    def standing(member: ConfluentMember) -> Any:
        """What the member is to its group at this moment."""
        return member._consumer.consumer_group_metadata()

    def send_offsets(self, offsets: Mapping[Place, int], standing: Any, group: str) -> None:
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        with _refusals():
            self._producer.send_offsets_to_transaction(positions, standing, DEADLINE_S)

    def commit(self) -> None:
        with _refusals():
            self._producer.commit_transaction(DEADLINE_S)

    def abort(self) -> None:
        with _refusals():
            self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        with _refusals():
            self._producer.flush(1)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from None
    except SystemError as error:
        # A fatal error comes with whatever is called next, and may be raised within a callback.
        fatal = error.__cause__
        if not isinstance(fatal, KafkaException):
            raise
        raise Refused(fatal.args[0].code(), fatal.args[0].str()) from None
