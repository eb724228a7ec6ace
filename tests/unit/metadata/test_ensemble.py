"""What the servers of ZooKeeper say about themselves, as ZooKeeper 3.9 says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from ottla.broker.metadata.store import NotConnected
from ottla.broker.metadata.zookeeper.ensemble import (
    ConfiguredMember,
    Ensemble,
    EnsembleReader,
    Member,
    ServerState,
    combine,
    parse_config,
    parse_state,
)
from ottla.model.types import Endpoint
from ottla.net.network import SocketNetwork

SRVR = """Zookeeper version: 3.9.5-293c895a8d966a3ecb92872be4a1daf87d725da2, built on 2026-02-11 20:18 UTC
Latency min/avg/max: 0/0.0/0
Connections: 1
Zxid: 0x{zxid:x}
Mode: {mode}
Node count: 5
"""
CONF = "clientPort=33889\ntickTime=500\nserverId={}\nmembership: \nserver.1=h:1:2:participant\n"
REFUSED = "conf is not executed because it is not in the whitelist.\n"
NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"
CONFIG = """server.1=zk-1:2888:3888:participant;0.0.0.0:2181
server.2=zk-2:2888:3888:participant
server.3=[::1]:2888:3888:observer;[::1]:2182
version=0"""
SERVERS = [Endpoint("ZOOKEEPER", "zk-1", 2181), Endpoint("ZOOKEEPER", "zk-2", 2181), Endpoint("ZOOKEEPER", "::1", 2182)]


def test_state_of_a_server_is_read_from_its_answers() -> None:
    assert parse_state(SRVR.format(zxid=0x700000029, mode="leader"), CONF.format(2)) == ServerState(
        2, "leader", 0x700000029
    )
    assert parse_state(SRVR.format(zxid=5, mode="follower"), REFUSED) == ServerState(None, "follower", 5)
    assert parse_state(NOT_SERVING, CONF.format(2)) is None
    assert parse_state("", "") is None


def test_members_are_read_from_the_configuration() -> None:
    assert parse_config(CONFIG) == [
        ConfiguredMember(1, "zk-1", 2181, is_voter=True),
        ConfiguredMember(2, "zk-2", None, is_voter=True),
        ConfiguredMember(3, "[::1]", 2182, is_voter=False),
    ]
    assert parse_config("") == parse_config("version=0") == []


def test_members_are_known_by_their_addresses_if_they_do_not_tell_their_ids() -> None:
    states = [ServerState(None, "follower", 40), ServerState(None, "leader", (7 << 32) + 41), None]
    ensemble = combine(SERVERS, states, parse_config(CONFIG))
    assert ensemble == Ensemble(
        2,
        (
            Member(1, "zk-1", 2181, 40, is_voter=True),
            Member(2, "zk-2", 2181, (7 << 32) + 41, is_voter=True),
            Member(3, "[::1]", 2182, -1, is_voter=False),
        ),
    )
    assert (ensemble.epoch, ensemble.zxid) == (7, (7 << 32) + 41)


def test_id_that_a_server_tells_counts_more_than_its_address() -> None:
    states = [ServerState(3, "follower", 40), ServerState(1, "leader", 41), ServerState(2, "observer", 39)]
    ensemble = combine(SERVERS, states, [])
    assert ensemble is not None
    assert (ensemble.leader_id, [member.server_id for member in ensemble.members]) == (1, [1, 2, 3])
    assert [member.is_voter for member in ensemble.members] == [True, False, True]


def test_server_that_is_alone_has_the_id_0() -> None:
    ensemble = combine(SERVERS[:1], [ServerState(None, "standalone", 9)], [])
    assert ensemble == Ensemble(0, (Member(0, "zk-1", 2181, 9, is_voter=True),))


@pytest.mark.parametrize(
    "states",
    [
        [None, None, None],
        [ServerState(1, "follower", 40), None, None],
        [None, None, ServerState(None, "leader", 41)],
    ],
)
def test_ensemble_without_a_known_leader_is_unknown(states: list[ServerState | None]) -> None:
    """The last server leads, but two members of its host have no port, so that its id is not known."""
    configured = parse_config("server.1=[::1]:1:2:participant\nserver.2=[::1]:3:4:participant")
    assert combine(SERVERS, states, configured) is None


@asynccontextmanager
async def server(answers: dict[bytes, str]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answer four-letter commands at an address, and record them. A command without an answer is not answered."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = await reader.readexactly(4)
        asked.append(command)
        writer.write(answers[command].encode())
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"{host}:{port}", asked


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_servers_are_asked_once_for_requests_at_the_same_time_and_those_that_do_not_run_are_left_out(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async def config() -> str:
            raise NotConnected

        answers = {b"srvr": SRVR.format(zxid=(3 << 32) + 1, mode="leader"), b"conf": CONF.format(5)}
        async with server(answers) as (address, asked):
            async with server({}) as (closed, _):
                pass
            reader = EnsembleReader(asyncio.get_running_loop(), SocketNetwork(), [closed, address], config)
            first, second = await asyncio.gather(reader.read(), reader.read())
            assert first is not None
            assert first == second
            assert (first.leader_id, first.epoch, len(first.members)) == (5, 3, 1)
            assert sorted(asked) == [b"conf", b"srvr"]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
