"""Single cases of a simulated cluster, step by step."""

from __future__ import annotations

import asyncio
from typing import Any

from sim_client import Client
from sim_fault_sequences import FaultSequences
from sim_script import play, produce, until
from sim_world import World

from ottla.model.errors import ErrorCode


def test_first_batch_that_a_follower_refused_comes_first_when_the_follower_leads() -> None:
    """A producer sends its first batches to a broker that begins to lead between two of them."""

    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        client = Client(world, "producer")
        first = replication.store.leader_of(place)
        sequences = FaultSequences(world, world.rng, lambda: True)
        sequences._rng = _Last()  # type: ignore[assignment]
        state = replication.store.view.topics[place.topic].partitions[place.partition]
        follower = [each for each in state.isr if each != first][-1]
        assert await produce(client, place, follower, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        sequences._move_leader(place)
        await asyncio.sleep(1)
        assert replication.store.leader_of(place) == follower
        codes = [await produce(client, place, follower, sequence) for sequence in (1, 0, 1, 2)]
        assert codes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0, 0]

    play(script)


def test_replica_whose_power_failed_before_its_first_sync_is_not_in_sync_without_its_log() -> None:
    """The folder of a log that was never synced is lost with it, and the broker then has no logs at all."""

    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        leader = replication.store.leader_of(place)
        assert await produce(Client(world, "producer"), place, leader, 0) == 0
        await asyncio.sleep(1)
        follower = next(number for number in world.hosts if number != leader)
        host = world.hosts[follower]
        host.kill("power")
        for folder in host.disk.listdir("/data"):
            if folder[-2:-1] == "-":
                host.disk.remove_tree(f"/data/{folder}")
        host.start()
        is_refilled = False
        while not is_refilled:
            await asyncio.sleep(0.001)
            replica = host.broker.replicas.find(*place) if host.is_ready and host.broker is not None else None
            is_refilled = replica is not None and replica.log.log_end_offset > 0
            if replica is not None and not is_refilled:
                state = replication.store.view.topics[place.topic].partitions[place.partition]
                assert follower not in state.isr, "it could be elected without the record"

    play(script)


def test_replicas_without_records_pass_the_checks_at_the_end() -> None:
    async def script(world: World) -> None:
        replication: Any = world.replication
        replication.at_end()

    play(script)


def test_log_whose_leader_epochs_are_lost_on_all_replicas_is_reported() -> None:
    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        leader = replication.store.leader_of(place)
        assert await produce(Client(world, "producer"), place, leader, 0) == 0
        replicas = replication._replicas(place)
        await until(lambda: all(each.high_watermark == 1 for each in replicas.values()))
        replication.at_end()
        assert world.violations == {}
        for replica in replicas.values():
            replica.log.epochs.truncate_from_end(0)
        replication.at_end()
        assert len(world.violations.pop("epochs-differ")) == len(replicas)

    play(script)


def test_reply_that_left_before_the_broker_lost_its_session_is_no_violation() -> None:
    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        store = replication.store
        replication.sample()
        follower = next(number for number in world.hosts if number != store.leader_of(place))
        broker: Any = world.hosts[follower].broker
        before = world.loop.time()
        await asyncio.sleep(1)
        broker.parts.membership.registration.lease.end()
        ended_at = world.loop.time()
        assert store.may_act_on_old_role(follower, place, before, s_after=0.0)
        assert not store.may_act_on_old_role(follower, place, ended_at, s_after=0.0)

    play(script)


def test_acknowledgement_that_arrives_after_its_replicas_were_removed_is_no_violation() -> None:
    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        leader = replication.store.leader_of(place)
        assert await produce(Client(world, "producer"), place, leader, 0) == 0
        await until(lambda: all(each.log.synced_end_offset == 1 for each in replication._replicas(place).values()))
        replication.sample()
        for number, host in world.hosts.items():
            if number != leader and host.broker is not None:
                host.broker.replicas.remove(replication._replicas(place)[number], f"moved-{number}")
        replication.acknowledged(place, 0)
        assert world.violations == {}
        replication.acknowledged(place, 1)
        assert list(world.violations.pop("acknowledged-unsynced"))

    play(script)


class _Last:
    """In place of a generator of random numbers: chooses the last item."""

    def choice(self, items: list[int]) -> int:
        return items[-1]
