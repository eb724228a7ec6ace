"""One broker at a time is the controller, and it decides from the view after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.metadata.metadata_store_fixtures import Simulated
from tests.unit.metadata.test_registration import LoopClock, opened, until

from ottla.broker.cluster import controller as election
from ottla.broker.cluster.controller import Controller
from ottla.broker.metadata.decide import established
from ottla.broker.metadata.nodes import broker_json, broker_path, registered_json, registered_path
from ottla.broker.metadata.store import Changed, Create, MetadataStore, Node, Put
from ottla.broker.metadata.topic_plans import ops_create_topic, put_state
from ottla.broker.metadata.view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.model.types import Endpoint


class Member:
    """A broker with a view and a controller, and nothing else."""

    def __init__(self, place: Simulated, number: int, store: MetadataStore) -> None:
        self.number, self.store, self.view = number, store, ClusterView()
        self.may_lead = True
        self.controller = Controller(
            store, number, view=lambda: self.view, may_lead=lambda: self.may_lead, min_isr=lambda topic: 2,
            wanted_min_isr=lambda view, topic, count: 2,
            unclean_allowed=lambda topic: False, clock=LoopClock(place.loop),
        )  # fmt: skip

    @classmethod
    async def start(cls, place: Simulated, number: int) -> Member:
        member = cls(place, number, await opened(place, f"broker-{number}"))
        await member.store.watch("/", member.changed)
        await member.register()
        member.task = asyncio.create_task(member.controller.run())
        return member

    task: asyncio.Task[None]

    async def register(self) -> None:
        endpoint = Endpoint("PLAINTEXT", "localhost", 9000 + self.number)
        value = broker_json([endpoint], rack=None, incarnation=b"1", timestamp_ms=0)
        await self.store.multi([Create(broker_path(self.number), value, ephemeral=True)])

    def changed(self, changes: list[Changed]) -> None:
        self.view.apply(changes)
        self.controller.wake()

    async def create_topic(self, *replicas: int) -> None:
        partition = PartitionView(leader=replicas[0], leader_epoch=0, replicas=replicas, isr=replicas)
        topic = TopicView(name="orders", topic_id=bytes(16), partitions=(partition,))
        await self.store.multi(ops_create_topic(self.view, topic))

    @property
    def partition(self) -> PartitionView:
        return self.view.topics["orders"].partitions[0]


def run(scenario: Callable[[Simulated, list[Member]], Awaitable[None]]) -> None:
    place = Simulated()

    async def main() -> None:
        members = [await Member.start(place, number) for number in (1, 2, 3)]
        await until(lambda: all(member.view.controller is not None for member in members))
        await scenario(place, members)
        for member in members:
            member.task.cancel()

    place.run(main())


def active(members: list[Member]) -> list[int]:
    return [member.number for member in members if member.controller.is_active]


def test_exactly_one_broker_is_the_controller() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        assert len(active(members)) == 1

    run(scenario)


def test_another_broker_takes_over_when_the_session_of_the_controller_ends() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        epoch = members[first - 1].controller.epoch
        members[first - 1].task.cancel()
        place.crash(f"broker-{first}")
        others = [member for member in members if member.number != first]
        await until(lambda: bool(active(others)))
        (second,) = active(others)
        assert members[second - 1].controller.epoch > epoch

    run(scenario)


def test_controller_elects_when_the_leader_is_gone() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        leader, other = (number for number in (1, 2, 3) if number != first)
        observer = members[first - 1]
        await observer.create_topic(leader, other, first)
        members[leader - 1].task.cancel()
        place.crash(f"broker-{leader}")
        await until(lambda: observer.partition.leader not in (leader, NO_LEADER))
        assert (observer.partition.leader, observer.partition.leader_epoch) == (other, 1)
        assert set(observer.partition.isr) == {other, first}

    run(scenario)


def test_controller_without_work_reads_nothing_from_the_store() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        controller = members[first - 1]
        await controller.create_topic(1, 2, 3)
        await until(lambda: "orders" in controller.view.topics)
        loads: list[str] = []
        load = controller.store.load

        async def counted(path: str) -> dict[str, Node]:
            loads.append(path)
            return await load(path)

        controller.store.load = counted  # type: ignore[method-assign]
        for _ in range(100):
            controller.controller.wake()
            await asyncio.sleep(0.1)
        assert loads == []

    run(scenario)


def test_declaring_a_broker_dead_does_not_wait_for_the_end_of_its_session() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        leader, other = (number for number in (1, 2, 3) if number != first)
        observer = members[first - 1]
        await members[leader - 1].store.multi([Create(registered_path(leader), registered_json(b"1"))])
        await observer.create_topic(leader, other)
        place.crash(f"broker-{leader}")
        before = place.loop.time()
        await observer.controller.declare_dead(leader, 0)
        await until(lambda: observer.partition.leader == other)
        assert place.loop.time() - before < 1.0

    run(scenario)


def test_controller_whose_process_has_ended_is_replaced_at_once() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        dead, (other, another) = members[first - 1], [each for each in members if each.number != first]
        await dead.store.multi([Create(registered_path(first), registered_json(b"1"))])
        dead.task.cancel()
        place.crash(f"broker-{first}")
        before = place.loop.time()
        await other.controller.declare_dead(first, 0)
        await until(lambda: bool(active([other, another])))
        assert place.loop.time() - before < 1.0
        assert await other.store.get(broker_path(first)) is None

    run(scenario)


def test_only_the_controller_declares_others_dead() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        one, two = (each for each in members if each.number != first)
        await one.store.multi([Create(registered_path(one.number), registered_json(b"1"))])
        await two.controller.declare_dead(one.number, 0)
        assert await two.store.get(broker_path(one.number)) is not None

    run(scenario)


def test_later_run_of_a_broker_is_not_declared_dead() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        other = next(number for number in (1, 2, 3) if number != first)
        await members[other - 1].store.multi([Create(registered_path(other), registered_json(b"1"))])
        await members[other - 1].store.multi([Put(registered_path(other), registered_json(b"2"), 0)])
        await members[first - 1].controller.declare_dead(other, 0)
        assert await members[first - 1].store.get(broker_path(other)) is not None

    run(scenario)


def test_former_controller_changes_nothing() -> None:
    """Its view still says that it is the controller, but another one was elected."""

    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        old = members[first - 1]
        old.may_lead = False
        place.expire(f"broker-{first}")
        others = [member for member in members if member.number != first]
        await until(lambda: bool(active(others)))
        other = others[0]
        await other.create_topic(other.number, others[1].number)
        await established(old.store)
        await old.controller.declare_dead(other.number, 0)
        assert await other.store.get(broker_path(other.number)) is not None

    run(scenario)


def test_controller_that_resigns_is_replaced_at_once() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        old = members[first - 1]
        old.may_lead = False
        before = place.loop.time()
        await old.controller.resign()
        await until(lambda: bool(active([member for member in members if member is not old])))
        assert place.loop.time() - before < 1.0

    run(scenario)


def test_broker_that_did_not_get_the_answer_to_its_election_is_the_controller() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (former,) = [member for member in members if member.controller.is_active]
        former.may_lead = False
        for member in members:
            if member is not former:
                place.ensemble.lose_answer(f"broker-{member.number}", applied=True)
        await former.controller.resign()
        await until(lambda: bool({*active(members)} - {former.number}))

    run(scenario)


def test_controller_of_an_idle_cluster_looks_at_the_view_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    async def scenario(place: Simulated, members: list[Member]) -> None:
        await members[0].create_topic(1, 2, 3)
        await asyncio.sleep(5.0)
        monkeypatch.setattr(election, "elect", lambda view, names, **_: looks.append(place.loop.time()) or [])
        await asyncio.sleep(40.0)

    run(scenario)
    assert 3 <= len(looks) <= 5


def test_controller_looks_at_the_topics_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[str] | None] = []

    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = [member for member in members if member.controller.is_active]
        await asyncio.sleep(1.0)
        elect = election.elect

        def noted(view: ClusterView, names: Collection[str] | None, **options: Any) -> list[TopicView]:
            looks.append(None if names is None else [*names])
            return elect(view, names, **options)

        monkeypatch.setattr(election, "elect", noted)
        first.controller.wake(["orders", "payments"])
        first.controller.wake(["orders"])
        await asyncio.sleep(1.0)
        first.controller.wake()
        await asyncio.sleep(1.0)

    run(scenario)
    assert looks == [["orders", "payments"], None]


def test_leader_without_enough_replicas_is_replaced_although_the_view_does_not_change() -> None:
    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        observer = members[first - 1]
        await observer.create_topic(1, 2, 3)
        topic = observer.view.topics["orders"]
        alone = replace(topic.partitions[0], isr=(1,), elr=(2,), partition_epoch=1)
        await observer.store.multi([put_state(observer.view, replace(topic, partitions=(alone,)))])
        await until(lambda: observer.partition.leader == 2)

    run(scenario)


def test_controller_reports_its_election_once_it_is_active() -> None:
    reports: list[bool] = []

    async def scenario(place: Simulated, members: list[Member]) -> None:
        (first,) = active(members)
        for member in members:
            member.controller.on_elected = lambda member=member: reports.append(member.controller.epoch >= 0)
        members[first - 1].may_lead = False
        await members[first - 1].controller.resign()
        await until(lambda: bool({*active(members)} - {first}))

    run(scenario)
    assert reports == [True]
