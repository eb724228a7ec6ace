"""A metadata store in memory for one broker. It keeps its nodes across kills and power failures, as a synced one does.

A multi is applied some time after the call and answered some time after that. A broker that is killed in between gets
no answer, although the multi may have been applied.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sim_loop import LIFE, VirtualLoop

from ottla.cluster.store import (
    ROOT,
    Changed,
    Conflict,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Put,
    StoreClosed,
    VersionConflict,
    Watcher,
    check_ops,
    is_below,
    parent_of,
)


class SimulatedTree:
    """The nodes, and the delays of the store."""

    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self.loop = loop
        self._rng = rng
        self.nodes: dict[str, Node] = {}

    def delay(self) -> float:
        return self._rng.expovariate(1000)

    def connect(self) -> SimulatedStore:
        return SimulatedStore(self)

    def apply(self, ops: Sequence[Op]) -> list[Changed]:
        """Apply all operations or none. Raise Conflict."""
        nodes = dict(self.nodes)
        changes = [changed for op in ops if (changed := _apply(nodes, op)) is not None]
        self.nodes = nodes
        return changes


class SimulatedStore:
    """One broker's connection; see ``ottla.cluster.store.MetadataStore``."""

    def __init__(self, tree: SimulatedTree) -> None:
        self._tree = tree
        self._watches: list[tuple[str, Watcher]] = []
        self._last = 0.0
        self._is_closed = False

    async def get(self, path: str) -> Node | None:
        return await self._call(lambda: self._tree.nodes.get(path))

    async def children(self, path: str) -> tuple[str, ...]:
        def find() -> tuple[str, ...]:
            return tuple(sorted(each.rpartition("/")[2] for each in self._tree.nodes if parent_of(each) == path))

        return await self._call(find)

    async def load(self, prefix: str) -> dict[str, Node]:
        return await self._call(lambda: self._below(prefix))

    async def multi(self, ops: Sequence[Op]) -> list[int | None]:
        check_ops(ops)
        changes = await self._call(lambda: self._tree.apply(ops))
        self._notify(changes)
        versions = {change.path: change.node.version for change in changes if change.node is not None}
        return [versions.get(op.path) for op in ops]

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        nodes = await self._call(lambda: self._below(prefix))
        self._watches.append((prefix, watcher))
        if nodes:
            watcher([Changed(path, node) for path, node in nodes.items()])

    async def close(self) -> None:
        self._is_closed = True

    def _below(self, prefix: str) -> dict[str, Node]:
        return {path: node for path, node in sorted(self._tree.nodes.items()) if is_below(prefix, path)}

    def _notify(self, changes: list[Changed]) -> None:
        for prefix, watcher in self._watches:
            relevant = [change for change in changes if is_below(prefix, change.path)]
            if relevant:
                watcher(relevant)

    async def _call(self, work: Callable[[], Any]) -> Any:
        """Do the work in the store, then give the result to the caller; calls do not overtake each other."""
        if self._is_closed:
            raise StoreClosed
        loop = self._tree.loop
        future: asyncio.Future[Any] = loop.create_future()
        done_at = max(loop.time(), self._last) + self._tree.delay()
        self._last = answered_at = done_at + self._tree.delay()
        world = contextvars.copy_context()
        world.run(LIFE.set, None)

        def run() -> None:
            try:
                result, error = work(), None
            except Conflict as conflict:
                result, error = None, conflict
            loop.call_at(answered_at, answer, result, error, context=world)

        def answer(result: Any, error: Conflict | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                future.exception()

        loop.call_at(done_at, run, context=world)
        return await future


def _apply(nodes: dict[str, Node], op: Op) -> Changed | None:
    path = op.path
    if isinstance(op, Create):
        parent = parent_of(path)
        if parent != ROOT and parent not in nodes:
            raise NoNode(parent)
        if path in nodes:
            raise NodeExists(path)
        nodes[path] = Node(op.value, 0)
        return Changed(path, nodes[path])
    if path not in nodes:
        raise NoNode(path)
    version = nodes[path].version
    if op.version not in (None, version):
        raise VersionConflict(path)
    if isinstance(op, Put):
        nodes[path] = Node(op.value, version + 1)
        return Changed(path, nodes[path])
    if isinstance(op, Delete):
        if any(parent_of(each) == path for each in nodes):
            raise NotEmpty(path)
        del nodes[path]
        return Changed(path, None)
    return None
