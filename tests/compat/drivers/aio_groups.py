"""aiokafka in groups: members, each with a thread for its event loop, and what the admin client can say of groups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from drivers import DEADLINE_S, Described, Place, Read, Refused
from drivers.aio import Aiokafka

_POLL_MS = 100
T = TypeVar("T")


class AiokafkaGroups:
    """aiokafka."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = Aiokafka(bootstrap)

    def member(
        self, group: str, *, client_id: str = "member", instance: str | None = None, reset: str = "earliest",
        read_committed: bool = False,
    ) -> AiokafkaMember:  # fmt: skip
        return AiokafkaMember(
            lambda: AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap, group_id=group, client_id=client_id, group_instance_id=instance,
                enable_auto_commit=False, auto_offset_reset=reset, heartbeat_interval_ms=200, metadata_max_age_ms=500,
                fetch_max_wait_ms=100, isolation_level="read_committed" if read_committed else "read_uncommitted",
            )
        )  # fmt: skip

    def list_groups(self) -> set[str]:
        return {each[0] for each in self._client.with_admin(lambda admin: admin.list_consumer_groups())}

    def describe_group(self, group: str) -> Described:
        (answer,) = self._client.with_admin(lambda admin: admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        if code:
            raise Refused(code)
        told = []
        for _, client_id, _, _, assigned in members:
            topics = ConsumerProtocolMemberAssignment.decode(assigned).assignment if assigned else []
            told.append((client_id, frozenset(Place(topic, number) for topic, numbers in topics for number in numbers)))
        return Described(state=state, members=tuple(told))

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = self._client.with_admin(lambda admin: admin.list_consumer_group_offsets(group))
        return {Place(*place): each.offset for place, each in found.items()}


class AiokafkaMember:
    """A consumer that goes on in the background, as it would in an application."""

    def __init__(self, new_consumer: Callable[[], AIOKafkaConsumer]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start() -> AIOKafkaConsumer:
            consumer = new_consumer()
            await consumer.start()
            return consumer

        self._consumer = self._run(start())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(DEADLINE_S)
        except KafkaError as error:
            raise Refused(error.errno, str(error)) from None

    def _call(self, act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def within() -> Any:
            return act(*arguments, **options)

        return self._run(within())

    def subscribe(self, *topics: str) -> None:
        self._call(self._consumer.subscribe, list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self._call(self._consumer.subscribe, pattern=pattern)

    def assign(self, *places: Place) -> None:
        self._call(self._consumer.assign, [TopicPartition(*place) for place in places])

    def poll(self) -> list[Read]:
        found = self._run(self._consumer.getmany(timeout_ms=_POLL_MS))
        return [
            Read(Place(message.topic, message.partition), message.offset, message.value)
            for batch in found.values()
            for message in batch
        ]

    def assignment(self) -> set[Place]:
        return {Place(*place) for place in self._call(self._consumer.assignment)}

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        wanted = None if offsets is None else {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._consumer.commit(wanted))

    def committed(self, place: Place) -> int | None:
        found: int | None = self._run(self._consumer.committed(TopicPartition(*place)))
        return found

    def seek(self, place: Place, offset: int) -> None:
        self._call(self._consumer.seek, TopicPartition(*place), offset)

    def pause(self, place: Place) -> None:
        self._call(self._consumer.pause, TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self._call(self._consumer.resume, TopicPartition(*place))

    def close(self) -> None:
        try:
            self._run(self._consumer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE_S)
            self._loop.close()
