"""kafka-python in groups: members, and the admin client's calls about groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition, errors

from drivers import Described, Place, Read, Refused
from drivers.kafka_python import KafkaPython, refusals

#: enough to join a group
_POLL_MS = 400


class KafkaPythonGroups:
    """kafka-python 3."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = KafkaPython(bootstrap)

    def member(
        self, group: str, *, client_id: str = "member", instance: str | None = None, reset: str = "earliest",
        read_committed: bool = False,
    ) -> KafkaPythonMember:  # fmt: skip
        return KafkaPythonMember(
            KafkaConsumer(
                bootstrap_servers=self._bootstrap, group_id=group, client_id=client_id, group_instance_id=instance,
                enable_auto_commit=False, auto_offset_reset=reset, heartbeat_interval_ms=200, metadata_max_age_ms=500,
                fetch_max_wait_ms=100, isolation_level="read_committed" if read_committed else "read_uncommitted",
            )
        )  # fmt: skip

    def list_groups(self) -> set[str]:
        with self._client.admin() as admin:
            return {each["group_id"] for each in admin.list_groups()}

    def describe_group(self, group: str) -> Described:
        with self._client.admin() as admin:
            found = admin.describe_groups([group])[group]
        members = (
            (
                member["client_id"],
                frozenset(
                    Place(each["topic"], partition)
                    for each in member["member_assignment"]["assigned_partitions"]
                    for partition in each["partitions"]
                ),
            )
            for member in found["members"]
        )
        return Described(state=found["group_state"], members=tuple(members))

    def group_offsets(self, group: str) -> dict[Place, int]:
        with self._client.admin() as admin:
            found = admin.list_group_offsets([group])[group]
        return {Place(*place): each.offset for place, each in found.items()}

    def delete_group(self, group: str) -> None:
        with self._client.admin() as admin:
            _check(admin.delete_groups([group])[group])

    def set_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        with self._client.admin() as admin:
            for said in admin.alter_group_offsets(group, _positions(offsets)).values():
                _check(said)

    def delete_group_offset(self, group: str, place: Place) -> None:
        with self._client.admin() as admin:
            for said in admin.delete_group_offsets(group, [TopicPartition(*place)]).values():
                _check(said)

    def reset_group_offset(self, group: str, place: Place, spec: Any) -> None:
        with self._client.admin() as admin:
            admin.reset_group_offsets(group, {TopicPartition(*place): spec})


class KafkaPythonMember:
    """A consumer whose heartbeats have a thread of their own."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=pattern)

    def assign(self, *places: Place) -> None:
        self._consumer.assign([TopicPartition(*place) for place in places])

    def poll(self) -> list[Read]:
        with refusals():
            found = self._consumer.poll(_POLL_MS)
        # A leader whose poll gave up between its assignment and the answer to it would never take it up: guarantees.md.
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()
        return [
            Read(Place(message.topic, message.partition), message.offset, message.value)
            for batch in found.values()
            for message in batch
        ]

    def assignment(self) -> set[Place]:
        return {Place(*place) for place in self._consumer.assignment()}

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        with refusals():
            self._consumer.commit(None if offsets is None else _positions(offsets))

    def committed(self, place: Place) -> int | None:
        with refusals():
            found: int | None = self._consumer.committed(TopicPartition(*place))
        return found

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def pause(self, place: Place) -> None:
        self._consumer.pause(TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self._consumer.resume(TopicPartition(*place))

    def close(self) -> None:
        self._consumer.close()


def _positions(offsets: Mapping[Place, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}


def _check(said: Any) -> None:
    """A result is an error, its class, or its name; or none of them, also under the name of one."""
    error = getattr(errors, said, None) if isinstance(said, str) else said
    if getattr(error, "errno", 0):
        raise Refused(error.errno, str(said))
