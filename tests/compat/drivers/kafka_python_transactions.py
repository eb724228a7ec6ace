"""kafka-python in transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError

from drivers import DEADLINE_S, Place, Refused
from drivers.kafka_python import refusals
from drivers.kafka_python_groups import KafkaPythonGroups, KafkaPythonMember

_ILLEGAL_GENERATION = 22


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
        with refusals():
            producer.init_transactions()

    def begin(self) -> None:
        with refusals():
            self._producer.begin_transaction()

    def send(self, place: Place, *values: bytes) -> None:
        """They are in the partition when this returns."""
        with refusals():
            futures = [self._producer.send(place.topic, value, partition=place.partition) for value in values]
            for future in futures:
                future.get(DEADLINE_S)

    @staticmethod
    def standing(member: KafkaPythonMember) -> Any:
        """What the member is to its group at this moment."""
        return member._consumer.group_metadata()

    def send_offsets(self, offsets: Mapping[Place, int], standing: Any, group: str) -> None:
        positions = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        try:
            with refusals():
                self._producer.send_offsets_to_transaction(positions, standing)
        except CommitFailedError as error:
            raise Refused(_ILLEGAL_GENERATION, str(error)) from None

    def commit(self) -> None:
        with refusals():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with refusals():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(5)
