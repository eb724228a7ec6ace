"""Concurrent admin requests on one broker: each of them is decided from what the others have stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from admin_fixtures import BROKER, GROUP, TOPIC, Admin, create_skeleton
from tests.unit.broker.cluster_fixtures import make_transaction_apis
from tests.unit.metadata.metadata_store_fixtures import Simulated

from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.store import SessionState
from ottla.broker.transactions.producer_ids import BLOCK
from ottla.model.errors import ErrorCode, InvalidTopic
from ottla.testing.metadata_store import Timing
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

Calls = Callable[[Admin], list[Awaitable[int]]]


def run_at_once(path: Path, before: Calls, calls: Calls) -> tuple[list[int], Admin]:
    """Make the calls ``before`` one after the other, then ``calls`` at the same time; return their codes."""

    async def run() -> tuple[list[int], Admin]:
        store = EmbeddedStore.open(path / "metadata.db")
        await create_skeleton(store)
        admin = await Admin(store).open()
        for call in before(admin):
            assert await call == 0
        codes = await asyncio.gather(*calls(admin))
        await store.close()
        return codes, admin

    return asyncio.run(run())


def test_number_of_partitions_never_decreases(tmp_path: Path) -> None:
    codes, admin = run_at_once(
        tmp_path,
        lambda admin: [admin.create_topic("t", 4)],
        lambda admin: [admin.create_partitions("t", 8), admin.create_partitions("t", 6)],
    )
    assert codes == [0, ErrorCode.INVALID_PARTITIONS]
    assert len(admin.view.topics["t"].partitions) == 8


def test_both_increases_succeed_in_increasing_order(tmp_path: Path) -> None:
    codes, admin = run_at_once(
        tmp_path,
        lambda admin: [admin.create_topic("t", 4)],
        lambda admin: [admin.create_partitions("t", 6), admin.create_partitions("t", 8)],
    )
    assert codes == [0, 0]
    assert len(admin.view.topics["t"].partitions) == 8


def test_settings_of_a_topic_that_are_changed_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    changes = {"retention.ms": "1000", "segment.bytes": "1000000", "max.message.bytes": "5000"}
    codes, admin = run_at_once(
        tmp_path,
        lambda admin: [admin.create_topic("t")],
        lambda admin: [admin.set_configs(TOPIC, "t", {name: value}) for name, value in changes.items()],
    )
    assert codes == [0, 0, 0]
    assert admin.view.topics["t"].config == changes


def test_settings_of_a_group_that_are_changed_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    changes = {"consumer.session.timeout.ms": "46000", "consumer.heartbeat.interval.ms": "6000"}
    codes, admin = run_at_once(
        tmp_path,
        lambda admin: [],
        lambda admin: [admin.set_configs(GROUP, "g", {name: value}) for name, value in changes.items()],
    )
    assert codes == [0, 0]
    assert admin.view.group_configs["g"] == changes


def test_settings_of_a_broker_that_are_changed_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    changes = {"log.retention.ms": "1000", "max.connections": "50"}
    codes, admin = run_at_once(
        tmp_path,
        lambda admin: [],
        lambda admin: [admin.set_configs(BROKER, "0", {name: value}) for name, value in changes.items()],
    )
    assert codes == [0, 0]
    assert admin.view.broker_configs["0"] == changes


def test_names_that_collide_are_not_created_at_the_same_time(tmp_path: Path) -> None:
    codes, admin = run_at_once(
        tmp_path, lambda admin: [], lambda admin: [admin.create_topic("a.b"), admin.create_topic("a_b")]
    )
    assert codes == [0, InvalidTopic.code]
    assert list(admin.view.topics) == ["a.b"]


def play(scenario: Callable[[Admin, Admin], Awaitable[None]]) -> None:
    """Run with two brokers on one distributed store, whose watches arrive after the test."""
    servers = Simulated(timing=Timing(watch_s=(1000.0, 1000.0)))

    async def run() -> None:
        await create_skeleton(setup := servers.ensemble.connect("setup"))
        await setup.close()
        admins = [Admin(servers.ensemble.connect(f"broker-{number}"), broker_id=number) for number in range(2)]
        await scenario(await admins[0].open(), await admins[1].open())

    servers.run(run())


async def catch_up(admin: Admin) -> None:
    """Let the view of a broker include all changes so far: those before an own write are shown first."""
    await admin.store.multi([])


def test_change_from_an_old_view_is_applied_to_the_topic_that_replaced_the_old_one() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        await one.create_topic("t", 4)
        await one.set_configs(TOPIC, "t", {"retention.ms": "1000"})
        await catch_up(two)
        await one.delete_topic("t")
        await one.create_topic("t", 1)
        await one.set_configs(TOPIC, "t", {"segment.bytes": "1000000"})
        assert len(two.view.topics["t"].partitions) == 4
        assert await two.set_configs(TOPIC, "t", {"max.message.bytes": "5000"}) == 0
        assert two.view.topics["t"].config == {"segment.bytes": "1000000", "max.message.bytes": "5000"}
        assert len(two.view.topics["t"].partitions) == 1

    play(scenario)


def test_partitions_are_added_to_the_topic_that_replaced_the_old_one() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        await one.create_topic("t", 4)
        await catch_up(two)
        await one.delete_topic("t")
        await one.create_topic("t", 1)
        topic_id = one.view.topics["t"].topic_id
        assert await two.create_partitions("t", 5) == 0
        assert (two.view.topics["t"].topic_id, len(two.view.topics["t"].partitions)) == (topic_id, 5)

    play(scenario)


def test_topic_that_replaced_another_is_not_deleted_by_the_old_id() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        await one.create_topic("t")
        await catch_up(two)
        old_id = two.view.topics["t"].topic_id
        await one.delete_topic("t")
        await one.create_topic("t")
        assert await two.delete_topic_by_id(old_id) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await two.delete_topic("t") == 0

    play(scenario)


def test_settings_of_a_group_that_were_replaced_are_not_restored_from_an_old_view() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        await one.set_configs(GROUP, "g", {"consumer.session.timeout.ms": "46000"})
        await catch_up(two)
        await one.set_configs(GROUP, "g", {"consumer.session.timeout.ms": None})
        await one.set_configs(GROUP, "g", {"consumer.heartbeat.interval.ms": "6000"})
        assert await two.set_configs(GROUP, "g", {"consumer.assignment.interval.ms": "1500"}) == 0
        assert two.view.group_configs["g"] == {
            "consumer.heartbeat.interval.ms": "6000",
            "consumer.assignment.interval.ms": "1500",
        }

    play(scenario)


def test_topic_that_another_broker_has_just_created_exists() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        await one.create_topic("t", 2)
        assert await two.create_topic("t") == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await two.create_partitions("t", 3) == 0
        assert await two.create_topic("a.b") == 0
        assert await one.create_topic("a_b") == InvalidTopic.code

    play(scenario)


def test_brokers_take_different_blocks_of_producer_ids() -> None:
    async def scenario(one: Admin, two: Admin) -> None:
        ids = await asyncio.gather(*(admin.producer_ids.next() for admin in (one, two) for _ in range(3)))
        assert sorted(ids) == [0, 1, 2, 1000, 1001, 1002]

    play(scenario)


def test_producer_gets_a_retriable_error_while_the_store_is_not_connected() -> None:
    servers = Simulated()

    async def run() -> None:
        store = servers.ensemble.connect("broker-0")
        admin = Admin(store)
        apis = make_transaction_apis(metadata=admin.metadata, producer_ids=admin.producer_ids)
        request = InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        assert (await apis.init_producer_id(request, admin.context)).producer_id == 0
        for _ in range(BLOCK - 1):
            await admin.producer_ids.next()
        servers.ensemble.cut("broker-0")
        answer = await apis.init_producer_id(request, admin.context)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        servers.ensemble.heal("broker-0")
        while store.session.state is not SessionState.ESTABLISHED:
            await asyncio.sleep(1)
        assert (await apis.init_producer_id(request, admin.context)).producer_id == BLOCK

    servers.run(run())
