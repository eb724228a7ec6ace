"""The connections between the members of a cluster, which a test can cut: brokers, ZooKeeper and clients.

    with Links({1: "127.0.0.1:9092", "zookeeper": "127.0.0.1:2181"}, member_of=lambda address: "clients") as links:
        links.addresses[1]              # clients connect to it instead of 127.0.0.1:9092
        links.cut("clients", 1)
        links.heal()

Every member that accepts connections has a proxy. A cut holds back all bytes between two members, in one direction or
in both. As in a real network no member gets an error: connections stay open, and new ones are accepted but carry
nothing. A connection that is closed on one side ends on the other side after the cut. When the cut ends, the bytes that
were held back arrive, because TCP sends them again.

A proxy listens only while its member listens, so that connections to a member that has ended are refused.

``ProcessMembers`` finds the member that opened a connection by its process. This needs no special rights, which the
rules of a firewall would.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from ottla.env.connections import ConnectionServer
from ottla.testing.loop_thread import START_S_MAX, LoopThread, dial
from ottla.testing.process import reserve_port

#: the id of a broker, ZOOKEEPER or CLIENTS
Member = int | str
ZOOKEEPER = "zookeeper"
#: every process that is no member of the cluster
CLIENTS = "clients"

_CHUNK_BYTES = 64 << 10
#: between two attempts to reach a member that does not listen
_RETRY_S = 0.05


class Links(LoopThread):
    """A proxy for each member that accepts connections, all in one thread, until it is closed."""

    def __init__(self, targets: Mapping[Member, str], member_of: Callable[[tuple[str, int]], Member]) -> None:
        """``targets`` are the addresses of the members. ``member_of`` returns the member that dials from an address."""
        super().__init__("links")
        self._reserved = {member: reserve_port() for member in targets}
        #: the address of the proxy of each member
        self.addresses = {
            member: f"127.0.0.1:{reserved.getsockname()[1]}" for member, reserved in self._reserved.items()
        }
        self._targets = dict(targets)
        self._member_of = member_of
        #: (sender, receiver) of each direction that is cut
        self._cuts: frozenset[tuple[Member, Member]] = frozenset()
        #: replaced whenever the cuts change
        self._changed: asyncio.Event
        self.start()

    # -- cuts -----------------------------------------------------------------------------------------------------

    def cut(self, one: Member, other: Member, *, one_way: bool = False) -> None:
        """Hold back what ``one`` sends to ``other``, and the opposite direction unless ``one_way``."""
        self._set_cuts(self._cuts | {(one, other)} | (set() if one_way else {(other, one)}))

    def heal(self) -> None:
        """End all cuts."""
        self._set_cuts(frozenset())

    def _set_cuts(self, cuts: frozenset[tuple[Member, Member]]) -> None:
        """Replace the cuts. Return when the proxies apply them."""

        async def apply() -> None:
            self._cuts = cuts
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

        asyncio.run_coroutine_threadsafe(apply(), self.loop).result(START_S_MAX)

    async def passable(self, sender: Member, receiver: Member) -> None:
        """Return when the direction is not cut."""
        while (sender, receiver) in self._cuts:
            await self._changed.wait()

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every connection and the thread."""
        super().close()
        for reserved in self._reserved.values():
            reserved.close()

    async def serve(self) -> None:
        self._changed = asyncio.Event()
        listening = [asyncio.Event() for _ in self._targets]
        proxies = [
            asyncio.ensure_future(self._serve_member(member, ready))
            for member, ready in zip(self._targets, listening, strict=True)
        ]
        for ready in listening:
            await ready.wait()
        self.started()
        await self.closed()
        for proxy in proxies:
            proxy.cancel()
        await asyncio.gather(*proxies, return_exceptions=True)

    async def _serve_member(self, member: Member, ready: asyncio.Event) -> None:
        """Listen while the member listens. While it does not, try to connect to it until it does."""
        host, _, port = self.addresses[member].rpartition(":")
        while True:
            is_down = asyncio.Event()

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_down: asyncio.Event = is_down
            ) -> None:
                await self._link(member, reader, writer, is_down)

            server = ConnectionServer(serve)
            try:
                await server.start(host=host, port=int(port))
                ready.set()
                await is_down.wait()
            finally:
                await server.close()
            while (probe := await dial(self._targets[member])) is None:
                await asyncio.sleep(_RETRY_S)
            probe[1].transport.abort()

    async def _link(
        self, member: Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_down: asyncio.Event
    ) -> None:
        """Connect a client of the proxy with the member, until both have closed the connection."""
        dialer = self._member_of(writer.get_extra_info("peername")[:2])
        dialled = await dial(self._targets[member])
        if dialled is None:
            is_down.set()
            writer.transport.abort()
            return
        tasks = [
            asyncio.ensure_future(self._pass(reader, dialled[1], dialer, member)),
            asyncio.ensure_future(self._pass(dialled[0], writer, member, dialer)),
        ]
        try:
            await asyncio.wait(tasks)
        finally:
            # Close the connection before waiting, because this task may be cancelled while it waits.
            dialled[1].transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: Member, receiver: Member
    ) -> None:
        """Pass bytes on until the sender closes the connection. A cut also holds back the end of the connection."""
        is_open = True
        while is_open:
            chunk = b""
            with suppress(OSError):
                chunk = await reader.read(_CHUNK_BYTES)
            is_open = bool(chunk)
            await self.passable(sender, receiver)
            try:
                if chunk:
                    writer.write(chunk)
                    await writer.drain()
                else:
                    writer.write_eof()
            except OSError:
                return  # the receiver has closed the connection


class ProcessMembers:
    """Finds the member that has opened a connection, by the sockets of its process in Linux's /proc."""

    def __init__(self, pids: Callable[[], Mapping[int, Member]]) -> None:
        """``pids`` returns the members by their current process ids. All other processes are clients."""
        self._pids = pids

    def __call__(self, address: tuple[str, int]) -> Member:
        """Return the member that dials from this address."""
        inode = _inode_of(address)
        for pid, member in self._pids().items():
            if inode is not None and _has_socket(pid, inode):
                return member
        return CLIENTS


def _inode_of(address: tuple[str, int]) -> str | None:
    """Return the number of the socket that is bound to a local IPv4 address and connected."""
    octets = bytes(map(int, address[0].split(".")))
    wanted = f"{int.from_bytes(octets, 'little'):08X}:{address[1]:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1] == wanted and fields[3] == "01":  # established
                return fields[9]
    return None


def _has_socket(pid: int, inode: str) -> bool:
    try:
        descriptors = os.scandir(f"/proc/{pid}/fd")
    except OSError:
        return False  # the process has ended
    with descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                if os.readlink(descriptor.path) == f"socket:[{inode}]":
                    return True
    return False
