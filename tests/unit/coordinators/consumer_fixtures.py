"""A group of the consumer protocol without a broker, and clients of both protocols that behave well."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment
from ottla.broker.groups.consumer import ConsumerGroup
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import CauseKind, Rebalance
from ottla.broker.groups.reconcile import as_sets
from ottla.broker.groups.records import CoordinatorRecord
from ottla.broker.groups.replies import (
    consumer_heartbeat_reply,
    join_reply,
    leave_reply,
    read_consumer_heartbeat,
    read_heartbeat,
    read_join,
    read_leave,
    read_sync,
    sync_reply,
)
from ottla.broker.groups.requests import ConsumerHeartbeatResult
from ottla.broker.groups.subscription import Subscription, decode_assignment, encode_subscription
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.settings_broker import BrokerSettings
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SESSION_S = 45
REBALANCE_MS = 60_000
CLASSIC_SESSION_MS = 10_000

Place = tuple[str, int]


class Topics:
    """Topics as (id, partitions) by name."""

    def __init__(self) -> None:
        self.version = 0
        self._by_name: dict[str, tuple[bytes, int]] = {}
        self._ids = count(1)

    def create(self, name: str, partitions: int) -> None:
        self._by_name[name] = (next(self._ids).to_bytes(16, "big"), partitions)
        self.version += 1

    def grow(self, name: str, partitions: int) -> None:
        self._by_name[name] = (self._by_name[name][0], partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1

    def partition_count(self, topic: str) -> int | None:
        return self._by_name[topic][1] if topic in self._by_name else None

    def topic_id(self, topic: str) -> bytes | None:
        return self._by_name[topic][0] if topic in self._by_name else None

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, (each, _) in self._by_name.items() if each == topic_id), None)

    def names(self) -> Iterable[str]:
        return self._by_name

    def end_offset(self, topic: str, partition: int) -> int | None:
        return None


class ConsumerFixture:
    """One group, its clock, its world, its log."""

    def __init__(self, **settings: str) -> None:
        self.now = 1000.0
        self.topics = Topics()
        ids = count(1)
        self.context = GroupContext(settings=BrokerSettings(), topics=self.topics, new_uuid=lambda: f"made-{next(ids)}")
        if settings:
            self.context.settings = BrokerSettings.parse(
                {name.replace("_", "."): text for name, text in settings.items()}
            )
        self.group = ConsumerGroup("g", self.context)
        self.log: list[CoordinatorRecord] = []
        self.rebalances: list[Rebalance] = []

    @property
    def moment(self) -> Moment:
        return Moment(self.now, 1_700_000_000_000 + int(self.now * 1000))

    def take(self, outcome: GroupOutcome[Any]) -> Any:
        """Append, replay, and go on, as the shard does. Returns the result."""
        self.log.extend(outcome.records)
        for record in outcome.records:
            self.group.replay(record)
        if outcome.records:
            self.group.resume(self.moment)
        self.rebalances.extend(outcome.rebalances)
        assert not outcome.replies, "no request is parked"
        return outcome.result

    def pass_time(self, seconds: float) -> None:
        """Wakes the group exactly when it asked for it, as the runtime does."""
        until = self.now + seconds
        while self.group.wake_at <= until:
            self.now = max(self.now, self.group.wake_at)
            self.take(self.group.expire(self.moment))
        self.now = until

    def restart(self) -> None:
        """A coordinator that knows only the log."""
        self.group = ConsumerGroup("g", self.context)
        for record in self.log:
            self.group.replay(record)
        self.group.resume(self.moment)

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, *, client: str = "c", version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        heartbeat = read_consumer_heartbeat(request, Client(client, "/10.0.0.1", version))
        try:
            result = self.take(self.group.heartbeat(heartbeat, self.moment))
        except KafkaError as error:
            result = ConsumerHeartbeatResult(error_code=error.code, error_message=str(error) or None)
        return consumer_heartbeat_reply(result)

    def join(
        self, member_id: str, *topics: str, regex: str | None = None, instance: str | None = None, **more: object
    ) -> ConsumerGroupHeartbeatResponse:
        """A first heartbeat."""
        return self.heartbeat(join_request(member_id, *topics, regex=regex, instance=instance, **more))

    def become_stable(self, *consumers: Consumer | ClassicConsumer, rounds_max: int = 10) -> int:
        """Heartbeats of all in turn until the group is at rest. Returns how many rounds that took."""
        for rounds in range(1, rounds_max + 1):
            for consumer in consumers:
                consumer.heartbeat()
            if self.group.state == "Stable" and all(each.is_current for each in consumers):
                return rounds
        raise AssertionError(f"{self.group.state} after {rounds_max} rounds")

    def causes(self) -> list[CauseKind]:
        """Of the last rebalance."""
        return [cause.kind for cause in self.rebalances[-1].causes]


def join_request(
    member_id: str, *topics: str, regex: str | None = None, instance: str | None = None, **more: object
) -> ConsumerGroupHeartbeatRequest:
    fields: dict[str, object] = {
        "group_id": "g",
        "member_id": member_id,
        "instance_id": instance,
        "rebalance_timeout": REBALANCE_MS,
        "subscribed_topic_names": list(topics) if topics or regex is None else None,
        "subscribed_topic_regex": regex,
    }
    return ConsumerGroupHeartbeatRequest(**(fields | more))  # type: ignore[arg-type]


class Consumer:
    """A client that does what it is told, at once unless ``is_stuck``."""

    def __init__(
        self,
        fixture: ConsumerFixture,
        member_id: str,
        *topics: str,
        regex: str | None = None,
        instance: str | None = None,
    ) -> None:
        self.fixture, self.member_id, self.topics, self.regex, self.instance = (
            fixture,
            member_id,
            topics,
            regex,
            instance,
        )
        self.epoch = 0
        self.owned: set[Place] = set()
        self.is_stuck = False
        self.error = 0
        self._assigned: set[Place] = set()
        self._is_changed = False
        self._must_send_all = False

    @property
    def is_current(self) -> bool:
        return (
            self.owned == self._assigned
            and self.epoch == self.fixture.group.stored.current(self.member_id).member_epoch
        )

    def subscribe(self, *topics: str, regex: str | None = None) -> None:
        self.topics, self.regex, self._is_changed = topics, regex, True

    def heartbeat(self) -> ConsumerGroupHeartbeatResponse:
        if self.epoch == 0:
            request = join_request(self.member_id, *self.topics, regex=self.regex, instance=self.instance)
        else:
            request = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance,
                topic_partitions=self._reported(),
            )
            if self._is_changed or self._must_send_all:
                request.subscribed_topic_names, request.subscribed_topic_regex = list(self.topics), self.regex or ""
            if self._must_send_all:
                request.rebalance_timeout = REBALANCE_MS
            self._is_changed = self._must_send_all = False
        return self.receive(self.fixture.heartbeat(request))

    def heartbeat_with_lost_answer(self) -> None:
        """The coordinator gets the heartbeat, the client no answer. KIP-848: it sends all fields the next time."""
        known = (self.epoch, set(self.owned), set(self._assigned))
        self.heartbeat()
        self.epoch, self.owned, self._assigned = known
        self._must_send_all = True

    def receive(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        self.error = answer.error_code
        if answer.error_code:
            if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.epoch = 0
                self.owned, self._assigned = set(), set()
            return answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assigned = {
                (self.fixture.topics.topic_name(each.topic_id) or each.topic_id.hex(), number)
                for each in answer.assignment.topic_partitions
                for number in each.partitions
            }
        if not self.is_stuck:
            self.owned = set(self._assigned)
        return answer

    def leave(self, *, for_a_while: bool = False) -> ConsumerGroupHeartbeatResponse:
        self.owned, self._assigned = set(), set()
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=-2 if for_a_while else -1, instance_id=self.instance
        )
        self.epoch = 0
        return self.fixture.heartbeat(request)

    def _reported(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self.owned):
            by_topic.setdefault(topic, []).append(number)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=self.fixture.topics.topic_id(topic) or bytes(16), partitions=numbers
            )
            for topic, numbers in by_topic.items()
        ]


class ClassicConsumer:
    """A cooperative client of the classic protocol."""

    def __init__(self, fixture: ConsumerFixture, member_id: str, *topics: str, instance: str | None = None) -> None:
        self.fixture, self.member_id, self.topics, self.instance = fixture, member_id, topics, instance
        self.epoch = 0
        self.owned: set[Place] = set()
        self.error = 0
        self.must_join = True

    @property
    def is_current(self) -> bool:
        return not self.must_join

    def heartbeat(self) -> int:
        if self.must_join:
            self.join()
            if not self.error:
                self.sync()
            return self.error
        request = HeartbeatRequest(
            group_id="g", generation_id=self.epoch, member_id=self.member_id, group_instance_id=self.instance
        )
        self.error = self.fixture.group.heartbeat_classic(read_heartbeat(request), self.fixture.moment)
        self.must_join = bool(self.error)
        if self.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned = set()
        return self.error

    def join(self, version: int = 3, **more: object) -> JoinGroupResponse:
        request = self.join_request(**more)
        join = read_join(request, Client("classic", "/10.0.0.2", version))
        answer = join_reply(self.fixture.take(self.fixture.group.join_classic(join, self.fixture.moment)), version)
        self.error = answer.error_code
        if not self.error:
            self.member_id, self.epoch = answer.member_id, answer.generation_id
        return answer

    def join_request(self, **more: object) -> JoinGroupRequest:
        names = sorted({topic for topic, _ in self.owned})
        owned = tuple((name, tuple(sorted(n for topic, n in self.owned if topic == name))) for name in names)
        data = encode_subscription(Subscription(topics=self.topics, owned_partitions=owned, version=1))
        fields: dict[str, object] = {
            "group_id": "g",
            "session_timeout": CLASSIC_SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="cooperative-sticky", metadata=data)],
        }
        return JoinGroupRequest(**(fields | more))  # type: ignore[arg-type]

    def sync(self) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id="g", generation_id=self.epoch, member_id=self.member_id, group_instance_id=self.instance
        )
        answer = sync_reply(self.fixture.group.sync_classic(read_sync(request), self.fixture.moment))
        self.error = answer.error_code
        if not self.error:
            partitions = decode_assignment(answer.assignment).partitions
            self.owned = {(topic, number) for topic, numbers in partitions for number in numbers}
            self.must_join = False
        return answer

    def leave(self) -> LeaveGroupResponse:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=self.member_id)])
        self.owned, self.must_join = set(), True
        leaving = read_leave(request, 5)
        result = self.fixture.take(self.fixture.group.leave_classic(leaving, self.fixture.moment))
        return leave_reply(result, leaving, 5)


def snapshot(group: ConsumerGroup) -> dict[str, object]:
    """All that is durable, for comparing."""
    stored = group.stored
    return {
        "epoch": stored.epoch_value,
        "assignment": stored.assignment_value,
        "members": stored.members,
        "targets": stored.targets,
        "currents": stored.currents,
        "regexes": stored.regexes,
        "static": stored.static_members,
        "owners": stored.owners,
        "classic": stored.classic_count,
        "protocols": +stored.classic_protocols,
        "subscribers": +stored.regex_subscribers,
    }


def assigned(group: ConsumerGroup, member_id: str) -> dict[bytes, set[int]]:
    return as_sets(group.stored.current(member_id).assigned_partitions)
