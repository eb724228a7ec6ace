"""What the ensemble of ZooKeeper says about itself: its members, its leader and how far each member is.

Every server is asked with ZooKeeper's four-letter commands: ``srvr`` returns its mode and its last zxid, and is enabled
by default; ``conf`` returns its id, if the operator has enabled it. Otherwise the id is the one that the node
/zookeeper/config has for the address of the server. A server that is alone has the id 0, as ZooKeeper itself says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, cast

from ottla.broker.metadata.store import StoreError
from ottla.env.tasks import start_task
from ottla.model.types import Endpoint
from ottla.net.network import Network

#: time for the answer of a server
_ANSWER_S = 1.0
#: an answer is used again for this time
_FRESH_S = 1.0
_ANSWER_BYTES_MAX = 64 << 10
_SINGLE_SERVER_ID = 0
_MODE = re.compile(r"^Mode: (\w+)$", re.M)
_ZXID = re.compile(r"^Zxid: 0x([0-9a-f]{1,16})$", re.M)
_SERVER_ID = re.compile(r"^serverId=([0-9]{1,9})$", re.M)
#: server.N=host:port:port[:role][;[client host:]client port]
_MEMBER = re.compile(
    r"^server\.([0-9]{1,9})=(\[[^\]]+\]|[^:\s]+):[0-9]+:[0-9]+(?::(\w+))?(?:;(?:(\[[^\]]+\]|[^:\s]+):)?([0-9]+))?", re.M
)
_ANY_HOST = ("", "0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]")


class ConfiguredMember(NamedTuple):
    """A member in /zookeeper/config."""

    server_id: int
    host: str
    #: None if the configuration that this server was started with does not have it
    client_port: int | None
    is_voter: bool


class Member(NamedTuple):
    """A member of the ensemble."""

    server_id: int
    #: the address for clients
    host: str
    port: int
    #: the last transaction that it has; -1 if it did not answer
    zxid: int
    is_voter: bool


class Ensemble(NamedTuple):
    """The members that are known, by their ids, and the leader."""

    leader_id: int
    members: tuple[Member, ...]

    @property
    def zxid(self) -> int:
        """Return the last transaction of the leader."""
        return next(member.zxid for member in self.members if member.server_id == self.leader_id)

    @property
    def epoch(self) -> int:
        """Return the epoch of the leader, which is the upper half of its transaction ids."""
        return self.zxid >> 32


class ServerState(NamedTuple):
    """The answer of one server."""

    #: None if the server does not tell its id
    server_id: int | None
    mode: str
    zxid: int


def parse_state(srvr: str, conf: str) -> ServerState | None:
    """Return the state of a server from its answers; None if it is not part of a quorum or refuses ``srvr``."""
    mode, zxid, server_id = _MODE.search(srvr), _ZXID.search(srvr), _SERVER_ID.search(conf)
    if mode is None or zxid is None:
        return None
    return ServerState(None if server_id is None else int(server_id[1]), mode[1], int(zxid[1], 16))


def parse_config(text: str) -> list[ConfiguredMember]:
    """Return the members in the value of /zookeeper/config."""
    members = []
    for number, host, role, client_host, client_port in _MEMBER.findall(text):
        address = host if client_host in _ANY_HOST else client_host
        port = int(client_port) if client_port else None
        members.append(ConfiguredMember(int(number), address, port, is_voter=role != "observer"))
    return members


def combine(
    servers: Sequence[Endpoint], states: Sequence[ServerState | None], configured: Sequence[ConfiguredMember]
) -> Ensemble | None:
    """Return the ensemble; None if no server says that it is the leader, or the id of the leader is not known."""
    found: dict[int, Member] = {}
    leader_id: int | None = None
    for server, state in zip(servers, states, strict=True):
        if state is None:
            continue
        known = _configured_as(server, configured)
        server_id = state.server_id if state.server_id is not None else known.server_id if known is not None else None
        if server_id is None and state.mode == "standalone":
            server_id = _SINGLE_SERVER_ID
        if server_id is None:
            continue
        found[server_id] = Member(server_id, server.host, server.port, state.zxid, state.mode != "observer")
        if state.mode in ("leader", "standalone"):
            leader_id = server_id
    if leader_id is None:
        return None
    for each in configured:
        if each.server_id not in found:
            found[each.server_id] = Member(each.server_id, each.host, each.client_port or 0, -1, each.is_voter)
    return Ensemble(leader_id, tuple(member for _, member in sorted(found.items())))


def _configured_as(server: Endpoint, configured: Iterable[ConfiguredMember]) -> ConfiguredMember | None:
    """Return the configured member at an address; by its host alone if its port is not known and the host is unique."""
    of_host = [each for each in configured if each.host.strip("[]") == server.host]
    exact = [each for each in of_host if each.client_port == server.port]
    if exact:
        return exact[0]
    return of_host[0] if len(of_host) == 1 and of_host[0].client_port is None else None


class EnsembleReader:
    """Asks all servers, at most once a second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        servers: Sequence[str],
        config: Callable[[], Awaitable[str]],
    ) -> None:
        """``servers`` are HOST:PORT; ``config`` returns the value of /zookeeper/config or raises StoreError."""
        self._loop = loop
        self._network = network
        self._servers = [_endpoint_of(server) for server in servers]
        self._config = config
        self._reading: asyncio.Task[Ensemble | None] | None = None
        self._read_at = float("-inf")

    async def read(self) -> Ensemble | None:
        """Return the ensemble, None if its leader cannot be found out."""
        if self._reading is None or (self._reading.done() and self._loop.time() - self._read_at > _FRESH_S):
            self._read_at = self._loop.time()
            self._reading = start_task(self._read(), "read the ensemble")
        return await asyncio.shield(self._reading)

    async def _read(self) -> Ensemble | None:
        states, text = await asyncio.gather(
            asyncio.gather(*(self._ask_server(server) for server in self._servers)), self._read_config()
        )
        return combine(self._servers, states, parse_config(text))

    async def _read_config(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._config()
        except (StoreError, TimeoutError):
            return ""

    async def _ask_server(self, server: Endpoint) -> ServerState | None:
        return parse_state(*await asyncio.gather(self._ask(server, b"srvr"), self._ask(server, b"conf")))

    async def _ask(self, server: Endpoint, command: bytes) -> str:
        """Return the answer of a server; empty if there is none."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                transport = await self._network.connect(server, lambda: _AnswerProtocol(command, answer))
                return (await answer).decode(errors="replace")
        except (OSError, TimeoutError):
            return ""
        finally:
            if transport is not None:
                transport.abort()


class _AnswerProtocol(asyncio.BufferedProtocol):
    """Sends a command, and collects the answer until the server closes the connection."""

    def __init__(self, command: bytes, answer: asyncio.Future[bytes]) -> None:
        self._command = command
        self._answer = answer
        self._buffer = bytearray(4096)
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._command)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if len(self._received) < _ANSWER_BYTES_MAX:
            self._received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_result(bytes(self._received))


def _endpoint_of(server: str) -> Endpoint:
    host, _, port = server.rpartition(":")
    return Endpoint("ZOOKEEPER", host.strip("[]"), int(port))
