"""What a broker does with its partitions while it cannot reach the metadata store, and while it stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata

from ottla.broker.cluster.lease_check import LeaseCheck
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.offline_reports import OfflineReports
from ottla.broker.cluster.probes import Probes
from ottla.broker.component import Component
from ottla.broker.components import Components
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import state_path, topic_path
from ottla.broker.metadata.store import Changed, Node, Watcher
from ottla.broker.metadata.view import AccessChanges, LogEnd, PartitionView, TopicView, ViewChanges
from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.partition import Role
from ottla.env import tasks as env_tasks
from ottla.env.tasks import Tasks
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.security.acls import Pattern, PatternType, ResourceType

STATE = PartitionView(leader=1, leader_epoch=3, replicas=(1, 2), isr=(1, 2))


class LeaseFixture(LeaseCheck):
    """A broker that leads one partition; ``calls`` has what it did."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        name = SimpleNamespace(topic="t", partition=0)
        self.partition = SimpleNamespace(
            role=Role.LEADER, isr=(1, 2), maximal_isr=(1, 2), min_in_sync=1, name=name, topic_id=b"id", broker_id=1,
            leader_id=1, followers={2: SimpleNamespace(fetched_at=0.0)}, suspended=None,
        )  # fmt: skip
        replicas: Any = SimpleNamespace(
            replicated=lambda: [self.partition], suspend=self._suspend, apply_state=self._apply,
            set_lease=lambda is_over: None, distrust_fetches=lambda: None,
        )  # fmt: skip
        self.topic = SimpleNamespace(topic_id=b"id", partitions=(STATE,))
        self.view: Any = SimpleNamespace(topics={"t": self.topic}, brokers={})
        #: the two monotonic clocks
        self.monotonic = self.since_boot = 0.0
        clock: Any = SimpleNamespace(monotonic=lambda: self.monotonic, since_boot=lambda: self.since_boot)
        self.registration: Any = SimpleNamespace(lease=SimpleNamespace(until=10.0), epoch=1)
        super().__init__(
            metadata=make_metadata(self.view, broker_id=1), replicas=replicas, registration=self.registration,
            clock=clock, is_alone=False, follow=lambda partitions: None,
            roles_changed=lambda: self.calls.append(f"coordinators see {self.partition.role.value}"),
        )  # fmt: skip

    def check_at(self, time_s: float) -> None:
        self.monotonic = self.since_boot = time_s
        self.check(time_s)

    def _suspend(self, partition: Any) -> None:
        partition.role, partition.suspended = Role.FOLLOWER, {}

    def _apply(self, partition: Any, state: PartitionView) -> None:
        partition.role, partition.suspended = Role.LEADER if state.leader == 1 else Role.FOLLOWER, None


class MembershipFixture(Membership):
    """The membership of a broker that leads one partition."""

    def __init__(self) -> None:
        self.lease_check: Any = LeaseFixture()
        self.lease: LeaseFixture = self.lease_check
        self.calls, self.partition, self.view = self.lease.calls, self.lease.partition, self.lease.view
        self._metadata, self._replicas = self.lease._metadata, self.lease._replicas
        self._clock, self.registration = self.lease._clock, self.lease.registration
        self.fetchers: Any = SimpleNamespace(unfollow=lambda partition: None)
        self._is_leaving = self._is_alone = False


class ProbesFixture(Probes):
    """The probes of broker 1, which is the controller."""

    def __init__(self, clients: Any = None) -> None:
        super().__init__(
            metadata=make_metadata(cast(Any, SimpleNamespace(brokers={})), broker_id=1), clients=clients, tasks=Tasks(),
            controller=cast(Any, SimpleNamespace(is_active=True)), loop=asyncio.get_running_loop(),
        )  # fmt: skip


@pytest.fixture
def lease() -> LeaseFixture:
    return LeaseFixture()


@pytest.fixture
def membership() -> MembershipFixture:
    return MembershipFixture()


def test_coordinators_are_unloaded_and_loaded_again_with_the_lease(lease: LeaseFixture) -> None:
    lease.check_at(9.0)
    assert lease.calls == []
    lease.check_at(11.0)
    lease.check_at(11.1)
    assert lease.calls == ["coordinators see follower"]
    assert lease._metadata.is_cut_off
    lease.registration.lease.until = 20.0
    lease.check_at(12.0)
    assert lease.calls == ["coordinators see follower", "coordinators see leader"]
    assert not lease._metadata.is_cut_off


def test_leader_without_the_store_leads_while_its_followers_fetch(lease: LeaseFixture) -> None:
    for tenth in range(90, 120):
        lease.partition.followers[2].fetched_at = tenth / 10
        lease.check_at(tenth / 10)
    assert lease.calls == []


def test_fetch_that_waited_in_the_socket_of_a_paused_leader_is_no_proof(lease: LeaseFixture) -> None:
    """The process was paused from 9 to 30. The follower may have been elected meanwhile."""
    lease.check_at(9.0)
    lease.partition.followers[2].fetched_at = 30.0
    lease.check_at(30.0)
    assert lease.calls == ["coordinators see follower"]


def test_pause_after_the_end_of_the_lease_is_a_pause_too(lease: LeaseFixture) -> None:
    for tenth in range(90, 120):
        lease.partition.followers[2].fetched_at = tenth / 10
        lease.check_at(tenth / 10)
    assert lease.calls == []
    lease.partition.followers[2].fetched_at = 30.0
    lease.check_at(30.0)
    assert lease.calls == ["coordinators see follower"]


def test_machine_that_was_suspended_has_no_lease(lease: LeaseFixture) -> None:
    """Its monotonic clock stood still, so that its followers seem to have fetched a moment ago."""
    lease.check_at(9.0)
    lease.partition.followers[2].fetched_at = 9.0
    lease.since_boot = 3600.0
    lease.check(3600.0)
    assert lease.calls == ["coordinators see follower"]


def test_leader_resumes_without_the_store_when_all_in_sync_replicas_fetch_again(lease: LeaseFixture) -> None:
    lease.check_at(9.0)
    lease.check_at(10.5)
    assert lease.calls == ["coordinators see follower"]
    lease.check_at(11.0)
    lease.partition.suspended = {2: 11.2}
    lease.check_at(11.5)
    assert lease.calls == ["coordinators see follower", "coordinators see leader"]
    assert not lease._metadata.is_cut_off


def test_leader_without_a_registration_does_not_resume(lease: LeaseFixture) -> None:
    """The store can be reached, and says that others are elected."""
    lease.check_at(10.5)
    lease.registration.epoch = -1
    lease.partition.suspended = {2: 11.2}
    lease.check_at(11.5)
    assert lease.calls == ["coordinators see follower"]


def test_paused_leader_without_in_sync_followers_leads(lease: LeaseFixture) -> None:
    """No other broker can have been elected."""
    lease.partition.isr = lease.partition.maximal_isr = (1,)
    lease.partition.followers = {}
    lease.check_at(9.0)
    lease.check_at(30.0)
    assert lease.calls == []


def test_broker_with_an_unclean_log_does_not_lead_again(lease: LeaseFixture) -> None:
    lease.check_at(11.0)
    lease.topic.partitions = (replace(STATE, unclean=(LogEnd(broker=1, last_epoch=3, end_offset=5),)),)
    lease.registration.lease.until = 20.0
    lease.check_at(12.0)
    assert lease.partition.role is Role.FOLLOWER


def test_broker_that_leaves_follows_no_partition(membership: MembershipFixture) -> None:
    """A leader would add it to the ISR again."""
    membership.partition.role, membership.partition.leader_id = Role.FOLLOWER, 2
    membership.view.brokers = {2: SimpleNamespace(broker_id=2, endpoint=lambda name: "other", endpoints=())}
    membership.endpoints = ()
    membership.fetchers = SimpleNamespace(follow=lambda partition, endpoint: membership.calls.append(endpoint))
    membership._follow([membership.partition])  # type: ignore[list-item]
    assert membership.calls == ["other"]
    membership._is_leaving = True
    membership._follow([membership.partition])  # type: ignore[list-item]
    assert membership.calls == ["other"]


def test_broker_that_leaves_hands_each_topic_over_once(
    membership: MembershipFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller elects it again while it is alive. It would never stop."""
    topic: Any = SimpleNamespace(name="t", partitions=())
    monkeypatch.setattr("ottla.broker.cluster.membership.leave", lambda view, broker, min_isr: [topic])
    monkeypatch.setattr(
        "ottla.broker.cluster.membership.ops_elect", lambda view, topics: [each.name for each in topics]
    )

    async def write(decide: Any) -> Any:
        ops, names = decide(membership.view)
        membership.calls.append(f"write {ops}")
        return names

    async def resign() -> None:
        membership.calls.append("resign")

    async def announce_leave() -> None:
        membership.calls.append("announce")

    monkeypatch.setattr(membership._metadata, "write", write)
    monkeypatch.setattr(membership.registration, "announce_leave", announce_leave, raising=False)
    membership.controller = SimpleNamespace(resign=resign)  # type: ignore[assignment]
    membership.fetchers = SimpleNamespace(stop=lambda: None)
    assert membership._may_control()
    asyncio.run(membership.leave())
    assert membership.calls == ["resign", "announce", "write ['t']", "write []"]
    assert not membership._may_control(), "it would elect itself"


def test_replicas_are_checked_and_reported_while_the_lease_is_valid(membership: MembershipFixture) -> None:
    calls = membership.calls
    membership.isr_changes = SimpleNamespace(check=lambda now: calls.append("ISR"))  # type: ignore[assignment]
    reports: Any = SimpleNamespace(
        report_logs=lambda: calls.append("offline"), report_directories=lambda: calls.append("directories")
    )
    membership._offline_reports = reports
    membership._sync_due = 100.0
    membership._replicas.complete_confirmed = lambda: calls.append("confirmed")
    membership.lease.since_boot = 9.0
    membership.check_replicas(9.0)
    assert calls == ["ISR", "offline", "directories"]
    calls.clear()
    membership.lease.monotonic = membership.lease.since_boot = 11.0
    membership.check_replicas(11.0)
    assert calls == ["coordinators see follower", "confirmed"]


def test_log_that_goes_offline_is_reported_once(membership: MembershipFixture) -> None:
    async def case() -> None:
        written: list[list[str]] = []

        async def mark_offline(numbers: Any) -> None:
            written.append([f"{topic}-{number}" for topic in numbers for number in numbers[topic]])

        class Reports(OfflineReports):
            async def _mark_offline(self, runs: Any) -> None:
                await mark_offline(runs)

        replicas: Any = membership._replicas
        replicas.storage = SimpleNamespace(offline={})
        failed_dirs: Any = SimpleNamespace(run_of=lambda log: -1)
        reports = Reports(
            metadata=membership._metadata, replicas=replicas, log_store=cast(Any, None), failed_dirs=failed_dirs,
            tasks=Tasks(), monotonic=lambda: 0.0, is_alone=False,
        )  # fmt: skip
        reports.report_logs()
        assert not reports._is_reporting
        replicas.storage.offline = [SimpleNamespace(name=("t", 0), log=None)]
        reports.report_logs()
        reports.report_logs()
        await asyncio.sleep(0)
        assert written == [["t-0"]]
        reports._is_reporting = False
        membership.view.topics["t"].partitions = (replace(STATE, isr=(2,), leader=2),)
        reports.report_logs()
        await asyncio.sleep(0)
        assert written == [["t-0"]], "the broker is not in the ISR any more"

    asyncio.run(case())


def test_change_that_arrives_after_the_logs_are_closed_only_changes_the_view() -> None:
    topic = TopicView(name="t", topic_id=bytes(15) + b"x", partitions=(STATE,))
    announced: list[ViewChanges] = []

    class Listener(Component):
        def on_view(self, changes: ViewChanges) -> None:
            announced.append(changes)

    components = Components()
    components.begin([Listener()])
    watchers: list[Watcher] = []

    async def watch(prefix: str, watcher: Watcher) -> None:
        watchers.append(watcher)

    store: Any = SimpleNamespace(watch=watch)
    metadata = ClusterMetadata(store, BrokerSettings.parse({}), cluster_id="cluster", new_id=lambda: bytes(16))
    asyncio.run(metadata.follow(components.announce))
    watchers[0]([Changed(topic_path("t"), Node(topic.assignment_json(), 0, 1))])
    assert len(announced) == 1
    components.note_closed_logs()
    watchers[0]([Changed(state_path("t"), Node(topic.state_json(), 0, 1))])
    assert list(metadata.view.topics) == ["t"] and len(announced) == 1


def test_component_learns_of_changed_access_and_of_the_view_before_the_next_component() -> None:
    calls: list[str] = []

    class Listener(Component):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_access(self, changed: AccessChanges) -> None:
            calls.append(f"{self.name}: access of {len(changed)}")

        def on_view(self, changes: ViewChanges) -> None:
            calls.append(f"{self.name}: view")

    components = Components()
    components.begin([Listener("partitions"), Component(), Listener("fetch")])
    changes = ViewChanges(topics=[], broker_settings=False, brokers=False, controller=False)
    components.announce(changes)
    assert calls == ["partitions: view", "fetch: view"]
    calls.clear()
    components.announce(changes._replace(access=[Pattern(ResourceType.TOPIC, "t", PatternType.LITERAL)]))
    assert calls == ["partitions: access of 1", "partitions: view", "fetch: access of 1", "fetch: view"]


@pytest.mark.parametrize("completes", [True, False])
def test_stop_waits_for_syncs_but_not_for_ever(completes: bool) -> None:
    """A commit whose record is stored must not be refused because the broker stops before the sync completes."""

    class Syncing:
        looks = 0

        @property
        def writers(self) -> Syncing:
            return self

        @property
        def has_waiting(self) -> bool:
            self.looks += 1
            return not completes or self.looks < 4

    class Commits(GroupCommit):
        written = False

        def __init__(self) -> None:
            self._waiting = {Syncing(): None}  # type: ignore[dict-item]

        def write_turn(self) -> None:
            self.written = True

    commits = Commits()
    asyncio.run(commits.complete_writes(60 if completes else 0.05))
    assert commits.written
    (syncing,) = commits._waiting
    assert syncing.looks == 4 or not completes  # type: ignore[attr-defined]


def test_broker_that_was_started_again_is_probed_with_its_new_registration() -> None:
    """The view may show the new registration without the absence before it. An old one cannot be declared dead."""
    probed: list[tuple[int, int]] = []

    def view(**epochs: int) -> Any:
        brokers = {int(name[1:]): SimpleNamespace(broker_id=int(name[1:]), epoch=e) for name, e in epochs.items()}
        return SimpleNamespace(brokers=brokers, registered={}, controller=SimpleNamespace(broker_id=1))

    async def probe(broker: Any) -> None:
        probed.append((broker.broker_id, broker.epoch))
        await asyncio.Event().wait()

    async def run() -> None:
        probes = ProbesFixture()
        probes._probe = probe  # type: ignore[method-assign]
        for seen in (view(b1=1, b2=2, b3=3), view(b1=1, b2=2, b3=9), view(b1=1, b3=9), view(b1=1, b2=12, b3=9)):
            probes.follow(seen)
            await asyncio.sleep(0)
        await probes._tasks.stop()

    asyncio.run(run())
    assert probed == [(2, 2), (3, 3), (3, 9), (2, 12)]


def test_probe_of_a_broker_goes_on_after_an_unexpected_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env_tasks, "RESTART_S", 0)
    endpoint = Endpoint("PLAINTEXT", "localhost", 9092)
    brokers = {2: SimpleNamespace(broker_id=2, epoch=2, endpoint=lambda listener: endpoint)}
    view: Any = SimpleNamespace(brokers=brokers, registered={}, controller=None)

    async def run() -> None:
        opened_again, calls = asyncio.Event(), 0

        async def open_connection(endpoint: Endpoint) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise AttributeError("'NoneType' object has no attribute 'setsockopt'")
            opened_again.set()
            await asyncio.Future()

        probes = ProbesFixture(SimpleNamespace(open=open_connection))
        probes.follow(view)
        async with asyncio.timeout(10):
            await opened_again.wait()
        await probes._tasks.stop()

    asyncio.run(run())
    assert "probe broker 2" in caplog.text and "Traceback" in caplog.text


def test_broker_whose_id_another_process_has_taken_ends(membership: MembershipFixture) -> None:
    async def keep() -> None:
        raise StartError("another broker with id 1 was started")

    reasons: list[str] = []
    membership.registration.keep = keep
    membership._fail = reasons.append
    asyncio.run(membership._stay_registered())
    assert reasons == ["another broker with id 1 was started"]
