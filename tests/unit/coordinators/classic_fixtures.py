"""A classic group in a room without a broker: a clock that is told, topics in a dict, every ticket accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment
from ottla.broker.groups.classic import ClassicGroup
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import Rebalance
from ottla.broker.groups.records import GroupMetadataValue
from ottla.broker.groups.replies import (
    heartbeat_reply,
    join_reply,
    leave_reply,
    read_heartbeat,
    read_join,
    read_leave,
    read_sync,
    sync_reply,
)
from ottla.broker.groups.subscription import Subscription, encode_subscription
from ottla.model.errors import ErrorCode
from ottla.model.settings_broker import BrokerSettings
from ottla.wire import Message
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_S = 3


class DictTopics:
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


def subscription(*topics: str, owned: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> bytes:
    return encode_subscription(Subscription(topics=topics, owned_partitions=owned, version=1))


class ClassicFixture:
    """One group, its clock, its world, and what became of each request. Requests are numbered; so are tickets."""

    def __init__(self, **settings: str) -> None:
        self.now = 1000.0
        self.topics = DictTopics()
        ids = count(1)
        self.context = GroupContext(settings=BrokerSettings(), topics=self.topics, new_uuid=lambda: str(next(ids)))
        self.configure(**settings)
        self.group = ClassicGroup("g", self.context)
        self._tickets = count(1)
        self.waiting: set[int] = set()
        self._builders: dict[int, Callable[[Any], Message]] = {}
        self.answers: dict[int, Message] = {}
        self.records: list[GroupMetadataValue] = []
        self.rebalances: list[Rebalance] = []

    def configure(self, **settings: str) -> None:
        texts = {name.replace("_", "."): text for name, text in settings.items()}
        self.context.settings = BrokerSettings.parse(texts)

    @property
    def moment(self) -> Moment:
        return Moment(self.now, 1_700_000_000_000 + int(self.now * 1000))

    # -- time and restarts --------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Wakes the group exactly when it asked for it, as the runtime does."""
        until = self.now + seconds
        while self.group.wake_at <= until:
            self.now = max(self.now, self.group.wake_at)
            self.take(self.group.expire(self.moment))
        self.now = until

    def restart(self) -> None:
        """A coordinator that knows only the log."""
        stored = self.group.stored
        self.take(self.group.retire(ErrorCode.NOT_COORDINATOR))
        self.group = ClassicGroup("g", self.context)
        if stored is not None:
            self.group.replay(stored)
            self.group.resume(self.moment)

    # -- requests -----------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        reason: str | None = None,
        client: str = "c",
        host: str = "/10.0.0.1",
        version: int = 3,
    ) -> int:
        """Version 3 unless told, so that a member is let in at once; the ticket's number comes back."""
        given = {"range": subscription("t")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id="g",
            session_timeout=session_ms,
            rebalance_timeout=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in given.items()],
            reason=reason,
        )
        ticket = self._ticket(lambda result: join_reply(result, version))
        self.take(self.group.join(read_join(request, Client(client, host, version)), ticket, self.moment), ticket)
        return ticket

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation.number if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in (assignments or {}).items()
            ],
        )
        ticket = self._ticket(sync_reply)
        self.take(self.group.sync(read_sync(request), ticket, self.moment), ticket)
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> int:
        request = HeartbeatRequest(
            group_id="g",
            generation_id=self.group.generation.number if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return heartbeat_reply(self.group.heartbeat(read_heartbeat(request), self.moment)).error_code

    def leave(
        self, *members: MemberIdentity | str, version: int = 5, client: str = "c", behind: bool = False
    ) -> LeaveGroupResponse:
        identities = [MemberIdentity(member_id=each) if isinstance(each, str) else each for each in members]
        request = LeaveGroupRequest(group_id="g", member_id=identities[0].member_id, members=identities)
        leaving = read_leave(request, version)
        ticket = self._ticket(lambda result: leave_reply(result, leaving, version))
        who = Client(client, "/10.0.0.9", version)
        self.take(self.group.leave(leaving, who, self.moment, lambda _: behind), ticket)
        answer = self.answers[ticket]
        assert isinstance(answer, LeaveGroupResponse)
        return answer

    def disconnect(self, ticket: int) -> None:
        """The client of a parked request closes its connection."""
        self.take(self.group.abandon(ticket, self.moment))

    def take(self, outcome: GroupOutcome[Any], own: int = 0) -> None:
        """What the runtime does with an outcome: store, replay, answer. A ticket is answered once."""
        if outcome.result is not None:
            outcome.replies.append((own, outcome.result))
        for record in outcome.records:
            assert isinstance(record.value, GroupMetadataValue)
            self.records.append(record.value)
            self.group.replay(record.value)
        for ticket, result in outcome.replies:
            assert isinstance(ticket, int)
            assert ticket not in self.answers, f"ticket {ticket} was answered twice"
            self.answers[ticket] = self._builders[ticket](result)
            self.waiting.discard(ticket)
        self.rebalances += outcome.rebalances

    def _ticket(self, build: Callable[[Any], Message]) -> int:
        ticket = next(self._tickets)
        self._builders[ticket] = build
        self.waiting.add(ticket)
        return ticket

    # -- answers ------------------------------------------------------------------------------------------------------

    def joined(self, ticket: int) -> JoinGroupResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def synced(self, ticket: int) -> SyncGroupResponse:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    # -- short ways ---------------------------------------------------------------------------------------------------

    def stable(self, members: int = 2, *, static: bool = False, version: int = 3) -> list[str]:
        """A group of so many members with a generation and assignments a0, a1, ...; the first one leads."""
        tickets = [
            self.join(instance=f"i{number}" if static else None, version=max(version, 5) if static else version)
            for number in range(members)
        ]
        self.pass_time(2 * DELAY_S)
        ids = [self.joined(ticket).member_id for ticket in tickets]
        self.become_stable(ids)
        return ids

    def become_stable(self, ids: list[str]) -> None:
        """Everybody syncs, the leader with assignments."""
        assignments = {member_id: f"a{number}".encode() for number, member_id in enumerate(ids)}
        for member_id in ids:
            self.sync(member_id, assignments=assignments if member_id == self.group.leader_id else None)
        assert self.group.state == "Stable"
