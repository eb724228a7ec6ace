"""What a broker does with its partitions while it cannot reach the metadata store, and while it stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata

from ottla.broker.broker import Broker
from ottla.broker.cluster.contacts import Contacts
from ottla.broker.cluster.membership import Membership
from ottla.broker.metadata.nodes import state_path, topic_path
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.broker.partitions.partition import Role
from ottla.env import tasks as env_tasks
from ottla.env.tasks import Tasks
from ottla.model.errors import StartError
from ottla.model.types import Endpoint

STATE = PartitionView(leader=1, leader_epoch=3, replicas=(1, 2), isr=(1, 2))


class MembershipFixture(Membership):
    """A broker that leads one partition; ``calls`` has what it did."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        name = SimpleNamespace(topic="t", partition=0)
        self.partition = SimpleNamespace(
            role=Role.LEADER, isr=(1, 2), maximal_isr=(1, 2), min_in_sync=1, name=name, topic_id=b"id", broker_id=1,
            leader_id=1, followers={2: SimpleNamespace(fetched_at=0.0)}, suspended=None,
        )  # fmt: skip
        self._replicas: Any = SimpleNamespace(
            replicated=lambda: [self.partition], suspend=self._suspend, apply_state=self._apply,
            set_lease=lambda is_over: None, distrust_fetches=lambda: None,
        )  # fmt: skip
        topic = SimpleNamespace(topic_id=b"id", partitions=(STATE,))
        self.view: Any = SimpleNamespace(topics={"t": topic}, brokers={})
        self._metadata = make_metadata(self.view, broker_id=1)
        #: the two monotonic clocks
        self.monotonic = self.since_boot = 0.0
        self._clock: Any = SimpleNamespace(monotonic=lambda: self.monotonic, since_boot=lambda: self.since_boot)
        self.registration: Any = SimpleNamespace(lease=SimpleNamespace(until=10.0), epoch=1)
        self.fetchers: Any = SimpleNamespace(unfollow=lambda partition: None)
        self._contacts = Contacts()
        self._is_lease_over = self._is_leaving = False
        self._silence_check_due = self._lease_checked_at = 0.0
        self.state = STATE
        self._role_of = lambda state: self.state
        self._roles_changed = lambda: self.calls.append(f"coordinators see {self.partition.role.value}")

    def check_at(self, time_s: float) -> None:
        self.monotonic = self.since_boot = time_s
        self.check_lease(time_s)

    def _suspend(self, partition: Any) -> None:
        partition.role, partition.suspended = Role.FOLLOWER, {}

    def _apply(self, partition: Any, state: PartitionView) -> None:
        partition.role, partition.suspended = Role.LEADER if state.leader == 1 else Role.FOLLOWER, None


@pytest.fixture
def membership() -> MembershipFixture:
    return MembershipFixture()


def test_coordinators_are_unloaded_and_loaded_again_with_the_lease(membership: MembershipFixture) -> None:
    membership.check_at(9.0)
    assert membership.calls == []
    membership.check_at(11.0)
    membership.check_at(11.1)
    assert membership.calls == ["coordinators see follower"]
    assert membership._metadata.is_cut_off
    membership.registration.lease.until = 20.0
    membership.check_at(12.0)
    assert membership.calls == ["coordinators see follower", "coordinators see leader"]
    assert not membership._metadata.is_cut_off


def test_leader_without_the_store_leads_while_its_followers_fetch(membership: MembershipFixture) -> None:
    for tenth in range(90, 120):
        membership.partition.followers[2].fetched_at = tenth / 10
        membership.check_at(tenth / 10)
    assert membership.calls == []


def test_fetch_that_waited_in_the_socket_of_a_paused_leader_is_no_proof(membership: MembershipFixture) -> None:
    """The process was paused from 9 to 30. The follower may have been elected meanwhile."""
    membership.check_at(9.0)
    membership.partition.followers[2].fetched_at = 30.0
    membership.check_at(30.0)
    assert membership.calls == ["coordinators see follower"]


def test_pause_after_the_end_of_the_lease_is_a_pause_too(membership: MembershipFixture) -> None:
    for tenth in range(90, 120):
        membership.partition.followers[2].fetched_at = tenth / 10
        membership.check_at(tenth / 10)
    assert membership.calls == []
    membership.partition.followers[2].fetched_at = 30.0
    membership.check_at(30.0)
    assert membership.calls == ["coordinators see follower"]


def test_machine_that_was_suspended_has_no_lease(membership: MembershipFixture) -> None:
    """Its monotonic clock stood still, so that its followers seem to have fetched a moment ago."""
    membership.check_at(9.0)
    membership.partition.followers[2].fetched_at = 9.0
    membership.since_boot = 3600.0
    membership.check_lease(3600.0)
    assert membership.calls == ["coordinators see follower"]


def test_leader_resumes_without_the_store_when_all_in_sync_replicas_fetch_again(membership: MembershipFixture) -> None:
    membership.check_at(9.0)
    membership.check_at(10.5)
    assert membership.calls == ["coordinators see follower"]
    membership.check_at(11.0)
    membership.partition.suspended = {2: 11.2}
    membership.check_at(11.5)
    assert membership.calls == ["coordinators see follower", "coordinators see leader"]
    assert not membership._metadata.is_cut_off


def test_leader_without_a_registration_does_not_resume(membership: MembershipFixture) -> None:
    """The store can be reached, and says that others are elected."""
    membership.check_at(10.5)
    membership.registration.epoch = -1
    membership.partition.suspended = {2: 11.2}
    membership.check_at(11.5)
    assert membership.calls == ["coordinators see follower"]


def test_paused_leader_without_in_sync_followers_leads(membership: MembershipFixture) -> None:
    """No other broker can have been elected."""
    membership.partition.isr = membership.partition.maximal_isr = (1,)
    membership.partition.followers = {}
    membership.check_at(9.0)
    membership.check_at(30.0)
    assert membership.calls == []


def test_broker_with_an_unclean_log_does_not_lead_again(membership: MembershipFixture) -> None:
    membership.check_at(11.0)
    membership.state = replace(STATE, leader=NO_LEADER)
    membership.registration.lease.until = 20.0
    membership.check_at(12.0)
    assert membership.partition.role is Role.FOLLOWER


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
    membership._session_s, membership.controller = 6.0, SimpleNamespace(resign=resign)  # type: ignore[assignment]
    membership.fetchers = SimpleNamespace(stop=lambda: None)
    assert membership._may_control()
    asyncio.run(membership.leave())
    assert membership.calls == ["resign", "announce", "write ['t']", "write []"]
    assert not membership._may_control(), "it would elect itself"


def test_replicas_are_checked_and_reported_while_the_lease_is_valid(membership: MembershipFixture) -> None:
    calls = membership.calls
    membership.isr_changes = SimpleNamespace(check=lambda now: calls.append("ISR"))  # type: ignore[assignment]
    membership._report_offline = lambda: calls.append("offline")  # type: ignore[method-assign]
    membership._record_failed_dirs = lambda: calls.append("directories")  # type: ignore[method-assign]
    membership._sync_due = 100.0
    membership._replicas.complete_confirmed = lambda: calls.append("confirmed")
    membership.since_boot = 9.0
    membership.check_replicas(9.0)
    assert calls == ["ISR", "offline", "directories"]
    calls.clear()
    membership.monotonic = membership.since_boot = 11.0
    membership.check_replicas(11.0)
    assert calls == ["coordinators see follower", "confirmed"]


def test_log_that_goes_offline_is_reported_once(membership: MembershipFixture) -> None:
    async def case() -> None:
        written: list[list[str]] = []

        async def mark_offline(numbers: Any) -> None:
            written.append([f"{topic}-{number}" for topic in numbers for number in numbers[topic]])

        replicas: Any = membership._replicas
        replicas.storage = SimpleNamespace(offline={})
        membership._tasks, membership._session_s, membership._is_reporting = Tasks(), 6.0, False
        membership._mark_offline = mark_offline  # type: ignore[method-assign]
        membership._failed_dirs = SimpleNamespace(run_of=lambda log: -1)  # type: ignore[assignment]
        membership._report_offline()
        assert not membership._is_reporting
        replicas.storage.offline = [SimpleNamespace(name=("t", 0), log=None)]
        membership._report_offline()
        membership._report_offline()
        await asyncio.sleep(0)
        assert written == [["t-0"]]
        membership._is_reporting = False
        membership.view.topics["t"].partitions = (replace(STATE, isr=(2,), leader=2),)
        membership._report_offline()
        await asyncio.sleep(0)
        assert written == [["t-0"]], "the broker is not in the ISR any more"

    asyncio.run(case())


def test_change_that_arrives_after_the_logs_are_closed_only_changes_the_view() -> None:
    topic = TopicView(name="t", topic_id=bytes(15) + b"x", partitions=(STATE,))
    broker: Any = object.__new__(Broker)
    broker.parts = SimpleNamespace(metadata=SimpleNamespace(view=ClusterView()))
    broker._are_logs_closed = True
    broker._changed([
        Changed(topic_path("t"), Node(topic.assignment_json(), 0, 1)),
        Changed(state_path("t"), Node(topic.state_json(), 0, 1)),
    ])  # fmt: skip
    assert list(broker.view.topics) == ["t"]


@pytest.mark.parametrize("completes", [True, False])
def test_stop_waits_for_syncs_but_not_for_ever(monkeypatch: pytest.MonkeyPatch, completes: bool) -> None:
    """A commit whose record is stored must not be refused because the broker stops before the sync completes."""
    if not completes:
        monkeypatch.setattr("ottla.broker.broker._WRITES_S", 0.05)

    class Commits:
        looks = 0
        written = False

        def write_turn(self) -> None:
            self.written = True

        @property
        def has_waiting_writers(self) -> bool:
            self.looks += 1
            return not completes or self.looks < 4

    async def main() -> Commits:
        broker: Any = Broker.__new__(Broker)
        commits = Commits()
        broker._env = SimpleNamespace(loop=asyncio.get_running_loop())
        broker.replicas = SimpleNamespace(commits=commits)
        await broker._complete_writes()
        return commits

    commits = asyncio.run(main())
    assert commits.written
    assert commits.looks == 4 or not completes


def test_broker_that_was_started_again_is_probed_with_its_new_registration(membership: MembershipFixture) -> None:
    """The view may show the new registration without the absence before it. An old one cannot be declared dead."""
    probed: list[tuple[int, int]] = []

    def view(**epochs: int) -> Any:
        brokers = {int(name[1:]): SimpleNamespace(broker_id=int(name[1:]), epoch=e) for name, e in epochs.items()}
        return SimpleNamespace(brokers=brokers, registered={}, controller=SimpleNamespace(broker_id=1))

    async def probe(broker: Any) -> None:
        probed.append((broker.broker_id, broker.epoch))
        await asyncio.Event().wait()

    async def run() -> None:
        membership._probes, membership._tasks = {}, Tasks()
        membership._probe = probe  # type: ignore[method-assign]
        membership.controller = cast(Any, SimpleNamespace(is_active=True))
        membership._loop = asyncio.get_running_loop()
        for seen in (view(b1=1, b2=2, b3=3), view(b1=1, b2=2, b3=9), view(b1=1, b3=9), view(b1=1, b2=12, b3=9)):
            membership._probe_others(seen)
            await asyncio.sleep(0)
        await membership._tasks.stop()

    asyncio.run(run())
    assert probed == [(2, 2), (3, 3), (3, 9), (2, 12)]


def test_probe_of_a_broker_goes_on_after_an_unexpected_exception(
    membership: MembershipFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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

        membership._probes, membership._tasks = {}, Tasks()
        membership._clients = cast(Any, SimpleNamespace(open=open_connection))
        membership.controller = cast(Any, SimpleNamespace(is_active=True))
        membership._loop = asyncio.get_running_loop()
        membership._probe_others(view)
        async with asyncio.timeout(10):
            await opened_again.wait()
        await membership._tasks.stop()

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
