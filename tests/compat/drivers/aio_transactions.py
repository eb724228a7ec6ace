"""aiokafka in transactions: each producer with a thread for its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from drivers import DEADLINE_S, Place, Refused
from drivers.aio_groups import AiokafkaGroups, AiokafkaMember

#: its error does not say so
_PRODUCER_FENCED = 90

T = TypeVar("T")


class AiokafkaTransactions(AiokafkaGroups):
    """aiokafka."""

    name = "aiokafka"

    def transactional(self, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> Any:
        return AiokafkaTransactional(
            bootstrap_servers=self._bootstrap, transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms, compression_type=None if codec == "none" else codec,
        )  # fmt: skip


class AiokafkaTransactional:
    """A producer with a transactional id, which it has when it is made."""

    def __init__(self, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(**settings)
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(DEADLINE_S)
        except ProducerFenced as error:
            raise Refused(_PRODUCER_FENCED, repr(error)) from None
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), repr(error)) from None

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, place: Place, *values: bytes) -> None:
        """They are in the partition when this returns."""

        async def send_all() -> None:
            futures = [await self._producer.send(place.topic, value, partition=place.partition) for value in values]
            await asyncio.gather(*futures)

        self._run(send_all())

    @staticmethod
    def standing(member: AiokafkaMember) -> None:
        """It names the group alone: who commits is not checked."""

    def send_offsets(self, offsets: Mapping[Place, int], standing: None, group: str) -> None:
        positions = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE_S)
            self._loop.close()
