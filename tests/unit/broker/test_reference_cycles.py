"""Requests and connections leave no reference cycles: `env/collector.py` relies on this."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections import Counter

import uvloop
from tests.clauses.group_requests import become_stable, commit, consumer_join, join, leave

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.model.settings import BrokerSettings
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest


def test_clients_of_groups_leave_no_reference_cycles() -> None:
    garbage = uvloop.run(_garbage())
    assert garbage == {}


async def _garbage() -> Counter[str]:
    """Return the types of the objects that only the garbage collector could free after clients have left."""
    with tempfile.TemporaryDirectory() as data:
        settings = BrokerSettings.parse({
            "log.dirs": data, "listeners": "PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms": "0",
        })  # fmt: skip
        broker = Broker(settings, system_environment(settings, asyncio.get_running_loop()))
        await broker.start()
        address = f"127.0.0.1:{broker.endpoints[0].port}"
        try:
            await asyncio.to_thread(_ask, address, "first")
            while broker.server.connections:
                await asyncio.sleep(0.01)
            gc.collect()
            gc.disable()
            await asyncio.to_thread(_ask, address, "second")
            while broker.server.connections:
                await asyncio.sleep(0.01)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
            return Counter(name for name in names if name.startswith("ottla."))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            await broker.stop()


def _ask(address: str, group: str) -> None:
    with RawClient(address) as client, RawClient(address) as second:
        while client.ask(FindCoordinatorRequest(key=group), 1).error_code:
            pass  # the internal topic is being created
        member, _ = become_stable(client, group)
        client.ask(commit(group, {("one", 0): 0}), 8)
        parked = second.ask(join(group), 9).member_id
        second.send(join(group, parked), 9)  # parked until the first member leaves
        client.ask(leave(group, member), 4)
        client.ask(consumer_join(f"{group}-modern", "a-member"), 1)
