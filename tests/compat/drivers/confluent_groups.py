"""confluent-kafka in groups: members of either protocol, and the admin client's calls about groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from drivers import DEADLINE_S, Described, Place, Read, Refused

_POLL_S = 0.1
_POLL_RECORDS_MAX = 100


class ConfluentGroups:
    """librdkafka; ``protocol`` is classic or consumer."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str, protocol: str = "classic", **settings: Any) -> None:
        self._bootstrap = bootstrap
        self._settings = {"group.protocol": protocol, **settings}
        if protocol == "classic":
            # With the newer protocol the broker says how often, and the client refuses to be told.
            self._settings["heartbeat.interval.ms"] = 200
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def member(
        self, group: str, *, client_id: str = "member", instance: str | None = None, reset: str = "earliest",
        read_committed: bool = False,
    ) -> ConfluentMember:  # fmt: skip
        settings = {
            **self._settings,
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "client.id": client_id,
            "auto.offset.reset": "error" if reset == "none" else reset,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        return ConfluentMember(Consumer(settings | ({"group.instance.id": instance} if instance else {})))

    def list_groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(DEADLINE_S)
        assert not found.errors
        return {each.group_id for each in found.valid}

    def describe_group(self, group: str) -> Described:
        found = self._only(self._admin.describe_consumer_groups([group]))
        members = (
            (member.client_id, frozenset(map(_place, member.assignment.topic_partitions))) for member in found.members
        )
        return Described(state=found.state.name.capitalize(), members=tuple(members))

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = self._only(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {_place(each): each.offset for each in found.topic_partitions}

    def delete_group(self, group: str) -> None:
        self._only(self._admin.delete_consumer_groups([group]))

    def set_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        wanted = ConsumerGroupTopicPartitions(group, _positions(offsets))
        found = self._only(self._admin.alter_consumer_group_offsets([wanted]))
        for each in found.topic_partitions:
            if each.error is not None:
                raise Refused(each.error.code(), each.error.str())

    @staticmethod
    def _only(futures: Mapping[str, Any]) -> Any:
        (future,) = futures.values()
        with _refusals():
            return future.result(DEADLINE_S)


class ConfluentMember:
    """A consumer that remembers nothing: librdkafka does."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        assert pattern.startswith("^"), "that is how librdkafka knows a pattern"
        self._consumer.subscribe([pattern])

    def assign(self, *places: Place) -> None:
        self._consumer.assign([TopicPartition(*place) for place in places])

    def poll(self) -> list[Read]:
        found = []
        for message in self._consumer.consume(_POLL_RECORDS_MAX, _POLL_S):
            error = message.error()
            if error is not None:
                raise Refused(error.code(), error.str())
            found.append(Read(Place(message.topic(), message.partition()), message.offset(), message.value()))
        return found

    def assignment(self) -> set[Place]:
        return set(map(_place, self._consumer.assignment()))

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        wanted = {} if offsets is None else {"offsets": _positions(offsets)}
        with _refusals():
            self._consumer.commit(**wanted, asynchronous=False)

    def committed(self, place: Place) -> int | None:
        with _refusals():
            (found,) = self._consumer.committed([TopicPartition(*place)], DEADLINE_S)
        return found.offset if found.offset >= 0 else None

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place, offset))

    def pause(self, place: Place) -> None:
        self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._consumer.resume([TopicPartition(*place)])

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from None


def _place(each: TopicPartition) -> Place:
    return Place(each.topic, each.partition)


def _positions(offsets: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset) for place, offset in offsets.items()]
