"""A consumer group against whatever its members do: joins and crashes, lost answers, lies, time, restarts.

Some clients behave well (they report what they own and do what they are told, though not always at once), a liar sends
anything. Topics come, grow and go. The coordinator restarts from its log, and now and then a decision is not stored.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.coordinators.consumer_fixtures import (
    SESSION_S,
    ClassicConsumer,
    Consumer,
    ConsumerFixture,
    Place,
    snapshot,
)

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import NEVER
from ottla.broker.groups.consumer import ConsumerGroup
from ottla.broker.groups.replies import read_consumer_heartbeat
from ottla.model.errors import KafkaError
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

TOPICS = ("t", "u", "v")
CLIENTS_MAX = 4
CLASSIC_MAX = 2

topics = st.sampled_from(TOPICS)
#: most members of most groups want the same
subscriptions = st.sampled_from([("t",), ("t",), ("t",), ("t", "u"), ("u", "v"), ()])
regexes = st.sampled_from([None, None, None, "[tu]", "v.*"])
which = st.integers(0, CLIENTS_MAX - 1)

has_clients = precondition(lambda self: self.clients)
has_classic = precondition(lambda self: self.old)


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fixture = ConsumerFixture()
        self.clients: list[Consumer] = []
        self.old: list[ClassicConsumer] = []
        #: a process that starts anew has a new member id
        self.starts = 0
        #: Clients here know topics by name, so that none is created anew.
        self.deleted: set[str] = set()
        #: highest epochs seen
        self.epoch = 0
        self.member_epochs: dict[str, int] = {}

    @initialize()
    def one_topic(self) -> None:
        self.fixture.topics.create("t", 3)

    # -- topics and time ----------------------------------------------------------------------------------------------

    @rule(name=topics, partitions=st.integers(1, 6))
    def change_topic(self, name: str, partitions: int) -> None:
        existing = self.fixture.topics.partition_count(name)
        if existing is None and name not in self.deleted:
            self.fixture.topics.create(name, partitions)
        elif existing is not None and partitions > existing:
            self.fixture.topics.grow(name, partitions)

    @precondition(lambda self: self.starts > 3)
    @rule(name=st.sampled_from(["u", "v"]))
    def delete_topic(self, name: str) -> None:
        if self.fixture.topics.partition_count(name) is not None:
            self.fixture.topics.delete(name)
            self.deleted.add(name)

    @rule(seconds=st.sampled_from([0.5, 5, 20, 44, 61]))
    def pass_time(self, seconds: float) -> None:
        self.fixture.pass_time(seconds)
        self.drop_outcasts()

    @rule()
    def restart(self) -> None:
        before = snapshot(self.fixture.group)
        self.fixture.restart()
        assert snapshot(self.fixture.group) == before
        assert (self.fixture.group.wake_at != NEVER) == bool(self.fixture.group.members)

    # -- clients of the consumer protocol -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(topics=subscriptions, regex=regexes, instance=st.sampled_from([None, None, "s1", "s2"]))
    def start(self, topics: tuple[str, ...], regex: str | None, instance: str | None) -> None:
        """A new process, or the next one after a crash; a static one may find its instance in use."""
        self.starts += 1
        client = Consumer(self.fixture, f"m{self.starts}", *topics, regex=regex, instance=instance)
        client.heartbeat()
        if not client.error:
            # An older process with this instance id was thrown out before; real clients end when they hear of it.
            self.clients = [each for each in self.clients if instance is None or each.instance != instance]
            self.clients.append(client)

    @has_clients
    @rule(index=which, slow=st.booleans(), lost=st.booleans())
    def heartbeat(self, index: int, slow: bool, lost: bool) -> None:
        """It may be slow to do what it is told, and the answer may be lost."""
        client = self.client(index)
        client.is_stuck = slow
        if lost:
            client.heartbeat_with_lost_answer()
        else:
            client.heartbeat()

    @has_clients
    @rule()
    def heartbeats_of_all(self) -> None:
        for client in [*self.clients, *self.old]:
            client.heartbeat()

    @has_clients
    @rule(index=which)
    def decision_is_not_stored(self, index: int) -> None:
        """The append failed: the group is as it was, and so is the client, which got an error."""
        client = self.client(index)
        before = {key: value.copy() if isinstance(value, dict) else value for key, value in self.snapshot().items()}
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance,
            topic_partitions=client._reported(),
        )
        with suppress(KafkaError):
            heartbeat = read_consumer_heartbeat(request, Client("c", "/10.0.0.1", 1))
            self.fixture.group.heartbeat(heartbeat, self.fixture.moment)
        assert self.snapshot() == before

    @has_clients
    @rule(index=which, topics=subscriptions, regex=regexes)
    def subscribe(self, index: int, topics: tuple[str, ...], regex: str | None) -> None:
        self.client(index).subscribe(*topics, regex=regex)

    @has_clients
    @rule(index=which, topics=subscriptions, crashed=st.booleans())
    def restart_client(self, index: int, topics: tuple[str, ...], crashed: bool) -> None:
        """Static ones leave for a while and come back; dynamic ones leave for good, if they do not just crash."""
        client = self.client(index)
        self.clients.remove(client)
        if not crashed:
            client.leave(for_a_while=client.instance is not None)
        self.start(topics, None, client.instance)

    @has_clients
    @rule(index=which, crashed=st.booleans())
    def stop_client(self, index: int, crashed: bool) -> None:
        client = self.client(index)
        self.clients.remove(client)
        if not crashed:
            client.leave()

    # -- clients of the classic protocol ------------------------------------------------------------------------------

    @precondition(lambda self: not self.fixture.group.is_empty and len(self.old) < CLASSIC_MAX)
    @rule(topics=subscriptions)
    def start_classic(self, topics: tuple[str, ...]) -> None:
        self.starts += 1
        client = ClassicConsumer(self.fixture, f"old{self.starts}", *topics)
        if not client.join().error_code:
            self.old.append(client)

    @has_classic
    @rule(index=which)
    def heartbeat_classic(self, index: int) -> None:
        self.old[index % len(self.old)].heartbeat()

    @precondition(lambda self: self.old and not self.fixture.group.is_empty)
    @rule(index=which)
    def join_whose_answer_is_lost(self, index: int) -> None:
        client = self.old[index % len(self.old)]
        known = client.epoch
        client.join()
        client.epoch = known

    @has_classic
    @rule(index=which, crashed=st.booleans())
    def stop_classic(self, index: int, crashed: bool) -> None:
        client = self.old.pop(index % len(self.old))
        if not crashed:
            client.leave()

    # -- the liar -----------------------------------------------------------------------------------------------------

    @rule(
        member_id=st.sampled_from(["liar", "liar", "m1", "m2"]),
        epoch=st.integers(-3, 12),
        topics=st.none() | subscriptions,
        claims=st.none() | st.lists(st.tuples(topics, st.integers(0, 5)), max_size=4),
        timeout=st.sampled_from([-1, 1000, 60_000]),
        instance=st.sampled_from([None, None, "liar"]),
        regex=st.sampled_from([None, "", "(", ".*"]),
    )
    def lie(
        self,
        member_id: str,
        epoch: int,
        topics: tuple[str, ...] | None,
        claims: list[Place] | None,
        timeout: int,
        instance: str | None,
        regex: str | None,
    ) -> None:
        owned = None
        if claims is not None:
            owned = [
                ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=self.fixture.topics.topic_id(topic) or bytes(16), partitions=[number]
                )
                for topic, number in claims
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout=timeout,
            subscribed_topic_names=topics,
            subscribed_topic_regex=regex,
            topic_partitions=owned,
        )
        if member_id == "liar" or not any(client.member_id == member_id for client in self.clients):
            self.fixture.heartbeat(request)

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[tuple[bytes, int], str] = {}
        for member_id, current in self.fixture.group.stored.currents.items():
            for partitions in (current.assigned_partitions, current.partitions_pending_revocation):
                for topic_id, numbers in partitions:
                    for number in numbers:
                        assert owners.setdefault((topic_id, number), member_id) == member_id
        assert owners == self.fixture.group.stored.owners
        assert self.fixture.group.stored.currents.keys() == self.fixture.group.members.keys()

    @invariant()
    def members_read_only_what_they_own(self) -> None:
        for client in [*self.clients, *self.old]:
            if client.member_id in self.fixture.group.members:
                current = self.fixture.group.stored.current(client.member_id)
                mine = {
                    (self.fixture.topics.topic_name(topic_id), number)
                    for partitions in (current.assigned_partitions, current.partitions_pending_revocation)
                    for topic_id, numbers in partitions
                    for number in numbers
                }
                assert {place for place in client.owned if self.fixture.topics.topic_id(place[0])} <= mine

    @invariant()
    def epochs_never_go_back(self) -> None:
        stored = self.fixture.group.stored
        assert self.epoch <= stored.epoch
        assert stored.assignment_epoch <= stored.epoch
        self.epoch = stored.epoch
        seen: dict[str, int] = {}
        for member_id in stored.members:
            epoch = stored.current(member_id).member_epoch
            assert epoch <= stored.assignment_epoch
            if epoch >= 0:
                assert epoch >= self.member_epochs.get(member_id, 0)
                seen[member_id] = epoch
        self.member_epochs = seen

    @invariant()
    def log_tells_everything(self) -> None:
        fresh = ConsumerGroup("g", self.fixture.context)
        for record in self.fixture.log:
            fresh.replay(record)
        assert snapshot(fresh) == self.snapshot()

    def teardown(self) -> None:
        """Whoever is alive goes on, everybody else falls silent: the group comes to rest, and all is shared out."""
        alive = [*self.clients, *self.old]
        for client in self.clients:
            client.is_stuck = False
        for _ in range(SESSION_S // 5 + 8):
            for client in alive:
                client.heartbeat()
            self.fixture.pass_time(5)
        if not self.fixture.group.is_empty:
            self.fixture.become_stable(*alive, rounds_max=2)
            self.everything_is_shared_out()
        self.no_partition_has_two_owners()
        self.log_tells_everything()

    def everything_is_shared_out(self) -> None:
        group = self.fixture.group
        assert set(group.members) == {client.member_id for client in [*self.clients, *self.old]}
        wanted = {
            (self.fixture.topics.topic_id(name), number)
            for name in group.subscribed_topics()
            for number in range(self.fixture.topics.partition_count(name) or 0)
        }
        assert group.stored.owners.keys() == wanted

    # -- small things -------------------------------------------------------------------------------------------------

    def client(self, index: int) -> Consumer:
        return self.clients[index % len(self.clients)]

    def snapshot(self) -> dict[str, object]:
        return snapshot(self.fixture.group)

    def drop_outcasts(self) -> None:
        """A client that was thrown out while it was silent knows by its own clock that its session is over."""
        for client in [*self.clients, *self.old]:
            if client.member_id not in self.fixture.group.members:
                client.owned = set()


RANDOM = "OTTLA_RANDOM_EXAMPLES" in os.environ
TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(
    max_examples=240 if RANDOM else 60, stateful_step_count=50, deadline=None, derandomize=not RANDOM
)
