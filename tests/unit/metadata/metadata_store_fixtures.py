"""Metadata stores for tests: every implementation behind one interface, and an event loop with virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from ottla.broker.metadata.embedded import FILE_NAME, EmbeddedStore
from ottla.broker.metadata.store import Changed, MetadataStore, Node
from ottla.testing.metadata_store import SimulatedEnsemble, Timing

T = TypeVar("T")
Scenario = Callable[[MetadataStore], Awaitable[None]]


class Place(Protocol):
    """One tree of an implementation, empty at the beginning of a test."""

    async def open(self) -> MetadataStore: ...

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run on an event loop that suits the implementation."""


class Servers(Protocol):
    """A store that several clients share, and faults between it and a client. The tree is empty at the beginning."""

    async def open_client(self, client: str) -> MetadataStore: ...

    def cut(self, client: str) -> None:
        """Let no message of the client pass. The client notices that only after some time."""

    def heal(self, client: str) -> None:
        """Let the messages of the client pass again."""

    def break_connection(self, client: str) -> None:
        """Close the connection of the client, which notices at once and connects again."""

    def lose_answer(self, client: str, *, applied: bool) -> None:
        """Lose the answer of the client's next multi, which is applied or not."""

    def expire(self, client: str) -> None:
        """End the session of the client."""

    def crash(self, client: str) -> None:
        """End the process of the client. ``open_client`` starts its next process."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run on an event loop that suits the implementation."""


class Embedded:
    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    async def open(self) -> MetadataStore:
        return EmbeddedStore.open(self.path)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(main)


class Simulated:
    """A simulated ensemble on a loop with virtual time: a Place, and Servers."""

    def __init__(self, directory: Path | None = None, *, seed: int = 1, timing: Timing | None = None) -> None:
        self.loop = VirtualLoop()
        self.ensemble = SimulatedEnsemble(self.loop, Random(seed), timing=timing)
        self.opened = 0
        self.cut, self.heal = self.ensemble.cut, self.ensemble.heal
        self.break_connection, self.lose_answer = self.ensemble.break_connection, self.ensemble.lose_answer
        self.expire, self.crash = self.ensemble.expire, self.ensemble.crash

    async def open(self) -> MetadataStore:
        self.opened += 1
        return await self.open_client(f"client-{self.opened}")

    async def open_client(self, client: str) -> MetadataStore:
        return self.ensemble.connect(client)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return run_on(self.loop, main)


def play(place: Place, *scenarios: Scenario) -> None:
    """Run the scenarios one after the other, each with a store of its own on the same tree."""

    async def run() -> None:
        for scenario in scenarios:
            store = await place.open()
            try:
                await scenario(store)
            finally:
                await store.close()

    place.run(run())


class Tree:
    """A watcher that records its calls and keeps a copy of the nodes."""

    def __init__(self) -> None:
        self.calls: list[list[Changed]] = []
        self.nodes: dict[str, Node] = {}

    def __call__(self, changes: list[Changed]) -> None:
        self.calls.append(changes)
        for path, node in changes:
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node

    @property
    def contents(self) -> dict[str, tuple[bytes, int]]:
        return {path: (node.value, node.version) for path, node in self.nodes.items()}

    @property
    def paths(self) -> list[str]:
        return [path for changes in self.calls for path, _ in changes]


async def content(store: MetadataStore, path: str) -> tuple[bytes, int] | None:
    """Return the value and the version of a node."""
    node = await store.get(path)
    return None if node is None else (node.value, node.version)


async def contents(store: MetadataStore, prefix: str) -> dict[str, tuple[bytes, int]]:
    return {path: (node.value, node.version) for path, node in (await store.load(prefix)).items()}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer. It supports no threads and no sockets."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        self._now_s += seconds


class _VirtualSelector(selectors.SelectSelector):
    """A selector that lets the time of the loop pass instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        self._loop.jump(timeout)
        return super().select(0)


def run_on(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine, then cancel its other tasks and close the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
