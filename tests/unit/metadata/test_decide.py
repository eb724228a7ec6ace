"""Decisions that are made from metadata, written with their versions, and made again after a conflict."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.unit.metadata.metadata_store_fixtures import Simulated

import ottla
from ottla.broker.metadata.decide import ATTEMPTS_MAX, Outcome, decide_and_write, load_view, outcome_of, read_and_write
from ottla.broker.metadata.nodes import TOPICS, count_change, ops_create_skeleton
from ottla.broker.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiTooLarge,
    Node,
    Op,
    Put,
    StoreError,
    Written,
)
from ottla.broker.metadata.topic_plans import ops_bump_leader_epochs, ops_create_topic, ops_delete_topic, put_state
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, StorageError
from ottla.testing.metadata_store import SimulatedEnsemble, SimulatedStore, Timing

R = TypeVar("R")

#: watches that arrive after every test has ended
LATE = Timing(watch_s=(1000.0, 1000.0))


def play(scenario: Callable[[SimulatedEnsemble], Awaitable[None]], timing: Timing = LATE) -> None:
    servers = Simulated(timing=timing)
    servers.run(scenario(servers.ensemble))


async def open_tree(ensemble: SimulatedEnsemble, client: str = "one") -> tuple[SimulatedStore, ClusterView]:
    """Return the store of a client and its view, which a watch keeps current."""
    store = ensemble.connect(client)
    await read_and_write(store, lambda: store.load("/"), lambda nodes: (ops_create_skeleton(nodes), None))
    view = ClusterView()
    await store.watch("/", view.apply)
    return store, view


async def write(
    store: MetadataStore, view: ClusterView, decide: Callable[[ClusterView], tuple[Sequence[Op], R]], *,
    watched: bool = True,
) -> R:  # fmt: skip
    return await decide_and_write(store, view, decide, turn=asyncio.Lock(), watched=watched)


def count_up(view: ClusterView) -> tuple[list[Op], int]:
    """A decision: increase the version of a node by one and return the version that it was based on."""
    return [count_change(TOPICS, view.versions[TOPICS], b"x")], view.versions[TOPICS]


def test_decision_is_made_again_from_the_store_when_the_view_lags() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        assert await write(one, first, count_up) == 0
        assert second.versions[TOPICS] == 0
        assert await write(two, second, count_up) == 1

    play(scenario)


def test_failed_store_is_an_error_that_requests_are_answered_with() -> None:
    class Failing(SimulatedStore):
        """A store whose disk does not work."""

        async def multi(self, ops: Sequence[Op]) -> Written:
            raise StoreError("disk I/O error")

        async def get(self, path: str) -> Node | None:
            raise StoreError("disk I/O error")

    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        store.__class__ = Failing
        with pytest.raises(StorageError, match="disk I/O error"):
            await write(store, view, count_up)
        with pytest.raises(StorageError, match="disk I/O error"):
            await read_and_write(store, lambda: store.get(TOPICS), lambda _: ([], None))

    play(scenario)


def test_concurrent_decisions_are_all_applied_in_some_order() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        clients = [await open_tree(ensemble, name) for name in "abc"]
        calls = [write(store, view, count_up) for store, view in clients for _ in range(10)]
        assert sorted(await asyncio.gather(*calls)) == list(range(30))

    play(scenario, Timing())


def test_decisions_that_conflict_are_made_again_one_at_a_time() -> None:
    decisions = 0

    def count(view: ClusterView) -> tuple[list[Op], int]:
        nonlocal decisions
        decisions += 1
        return count_up(view)

    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        turn = asyncio.Lock()
        calls = [decide_and_write(store, view, count, turn=turn) for _ in range(300)]
        assert sorted(await asyncio.gather(*calls)) == list(range(300))
        assert decisions == 1 + 2 * 299

    play(scenario)


def refuse_unless_counted(view: ClusterView) -> tuple[list[Op], None]:
    if view.versions[TOPICS] == 0:
        raise InvalidRequest("nothing was counted")
    return [], None


def test_refusal_from_a_view_that_lags_is_decided_again() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        with pytest.raises(InvalidRequest):
            await write(two, second, refuse_unless_counted)
        await write(one, first, count_up)
        await write(two, second, refuse_unless_counted)

    play(scenario)


def test_nothing_to_write_from_a_view_that_lags_is_decided_again() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        await write(one, first, count_up)
        assert await write(two, second, lambda view: ([], view.versions[TOPICS])) == 1

    play(scenario)


def test_repeated_decision_without_operations_does_not_load_the_metadata() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        await write(one, first, count_up)
        turn = asyncio.Lock()
        assert (
            await decide_and_write(two, second, lambda view: ([], view.versions[TOPICS]), turn=turn, repeated=True) == 0
        )
        assert await decide_and_write(two, second, count_up, turn=turn, repeated=True) == 1

    play(scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_decision_whose_answer_is_lost_is_applied_once(applied: bool) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        ensemble.lose_answer("one", applied=applied)
        assert await write(store, view, count_up) == 0
        assert ensemble.tree()[TOPICS].version == 1

    play(scenario)


def test_outcome_that_stays_unknown_is_a_timeout_for_the_client() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        ensemble.lose_answer("one", applied=True)
        lost = asyncio.ensure_future(write(one, first, count_up))
        while ensemble.tree()[TOPICS].version == 0:
            await asyncio.sleep(0.0001)
        ensemble.cut("one")
        await write(two, second, count_up)
        ensemble.heal("one")
        with pytest.raises(KafkaError) as raised:
            await lost
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT

    play(scenario)


def test_client_gets_a_timeout_while_the_store_is_not_connected() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        ensemble.cut("one")
        await asyncio.sleep(10)
        for decide in (count_up, lambda view: ([], None)):
            with pytest.raises(KafkaError) as raised:
                await write(store, view, decide)
            assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT

    play(scenario)


def test_outcome_is_unknown_if_the_store_does_not_connect_again() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        writing = asyncio.ensure_future(write(store, view, count_up))
        await asyncio.sleep(0)
        ensemble.cut("one")
        with pytest.raises(KafkaError) as raised:
            await writing
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT

    play(scenario)


def test_repeatable_change_is_decided_again_after_a_lost_answer() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, _ = await open_tree(ensemble)
        ensemble.lose_answer("one", applied=True)

        async def read() -> ClusterView:
            while True:
                try:
                    return await load_view(store)
                except KafkaError:
                    await asyncio.sleep(1)

        assert await read_and_write(store, read, count_up, repeatable=True) == 1
        assert ensemble.tree()[TOPICS].version == 2

    play(scenario)


def test_too_many_conflicts_are_a_timeout_for_the_client() -> None:
    attempts = 0

    def decide_wrongly(view: ClusterView) -> tuple[list[Op], None]:
        nonlocal attempts
        attempts += 1
        return [Check(TOPICS, 99)], None

    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        with pytest.raises(KafkaError) as raised:
            await write(store, view, decide_wrongly)
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert attempts == 1 + ATTEMPTS_MAX

    play(scenario)


def test_change_that_is_too_large_for_the_store_violates_a_policy() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        large = Create("/large", bytes(2_000_000))
        with pytest.raises(MultiTooLarge):
            await store.multi([large])
        with pytest.raises(PolicyViolation, match="2000070 bytes"):
            await write(store, view, lambda view: ([large], None))

    play(scenario)


def test_leader_epochs_are_bumped_once_after_a_conflict_and_only_of_own_partitions() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, _ = await open_tree(ensemble)
        view = await load_view(one)
        for name, leader in (("mine", 1), ("other", 2), ("changed", 1)):
            partition = PartitionView(leader=leader, leader_epoch=0, replicas=(1, 2), isr=(1, 2))
            topic = TopicView(name=name, topic_id=name.encode().ljust(16), partitions=(partition,))
            await one.multi(ops_create_topic(view, topic))
        view = await load_view(one)
        changed = replace(view.topics["changed"], partitions=(partition.changed(isr=(1,)),))
        await one.multi([put_state(view, changed)])
        await write(
            one, view, lambda current: (ops_bump_leader_epochs(current, list(view.topics), 1), None), watched=False
        )
        topics = (await load_view(one)).topics
        assert {name: topic.partitions[0].leader_epoch for name, topic in topics.items()} == {
            "mine": 1, "other": 0, "changed": 1,
        }  # fmt: skip
        assert topics["changed"].partitions[0].isr == (1,)

    play(scenario)


@pytest.mark.parametrize("op", [Put(TOPICS, b""), Delete(TOPICS)])
def test_write_without_a_version_is_a_defect(op: Op) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store, view = await open_tree(ensemble)
        with pytest.raises(AssertionError, match="names its version"):
            await write(store, view, lambda view: ([op], None))

    play(scenario)


def test_only_decide_writes_to_the_metadata_store() -> None:
    source = Path(ottla.__file__).parent
    writers = [
        str(path.relative_to(source)) for path in source.rglob("*.py") if re.search(r"\.multi\(", path.read_text())
    ]
    # Registration and election create ephemeral nodes, whose absence they must act on at once. `ottla security init`
    # creates the store of a broker that has never run.
    allowed = [
        "broker/cluster/controller.py", "broker/cluster/registration.py", "broker/metadata/decide.py",
        "cli/security_files.py",
    ]  # fmt: skip
    assert sorted(name for name in writers if not name.startswith("testing/")) == allowed


def test_creation_whose_answer_is_lost_is_not_repeated_after_another_client_deleted_the_topic() -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        (one, first), (two, second) = await open_tree(ensemble), await open_tree(ensemble, "two")
        partition = PartitionView(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        topic = TopicView(name="t", topic_id=bytes(16), partitions=(partition,))
        ensemble.lose_answer("one", applied=True)
        lost = asyncio.ensure_future(write(one, first, lambda view: (ops_create_topic(view, topic), None)))
        while "/brokers/topics/t" not in ensemble.tree():
            await asyncio.sleep(0.0001)
        ensemble.cut("one")
        await write(two, second, lambda view: (ops_delete_topic(view, view.topics["t"], 0, b"x"), None), watched=False)
        ensemble.heal("one")
        with pytest.raises(KafkaError) as raised:
            await lost
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert "/brokers/topics/t" not in ensemble.tree()

    play(scenario, Timing(watch_s=(0.0, 0.0)))


BEFORE, WRITTEN, UNKNOWN = Outcome.NOT_APPLIED, Outcome.APPLIED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("ops", "nodes", "outcome"),
    [
        ([Create("/a", b"x")], {}, BEFORE),
        ([Create("/a", b"x")], {"/a": Node(b"x", 0)}, WRITTEN),
        ([Create("/a", b"x")], {"/a": Node(b"y", 0)}, UNKNOWN),
        ([Put("/a", b"x", 3)], {"/a": Node(b"old", 3)}, BEFORE),
        ([Put("/a", b"x", 3)], {"/a": Node(b"x", 4)}, WRITTEN),
        ([Put("/a", b"x", 3)], {"/a": Node(b"y", 4)}, UNKNOWN),
        ([Put("/a", b"x", 3)], {"/a": Node(b"x", 5)}, UNKNOWN),
        ([Put("/a", b"x", 3)], {}, UNKNOWN),
        ([Delete("/a", 3)], {"/a": Node(b"old", 3)}, BEFORE),
        ([Delete("/a", 3)], {}, WRITTEN),
        ([Check("/e", 1), Put("/a", b"x", 3)], {"/e": Node(b"", 1), "/a": Node(b"old", 3)}, BEFORE),
        ([Check("/e", 1), Put("/a", b"x", 3)], {"/e": Node(b"", 2), "/a": Node(b"old", 3)}, UNKNOWN),
        ([Check("/e", 1), Put("/a", b"x", 3)], {"/e": Node(b"", 2), "/a": Node(b"x", 4)}, WRITTEN),
        ([Put("/e", b"1", 1), Delete("/a", 3)], {"/e": Node(b"2", 2)}, UNKNOWN),
    ],
)
def test_outcome_is_read_from_versions_and_values(ops: Sequence[Op], nodes: dict[str, Node], outcome: Outcome) -> None:
    assert outcome_of(ops, nodes) is outcome
