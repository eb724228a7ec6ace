"""The copy of the tree that the store in ZooKeeper keeps: which nodes are stale, and when known values are applied.

Events name changed nodes without their values, and answers show values as of a transaction. The copy changes only when
no node is stale: then the known values are the tree at one moment. This file does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ottla.broker.metadata.store import ROOT, Changed, Node, is_below, parent_of


class TreeCopy:
    """The tree as the watchers know it, and the changes since that they do not know yet."""

    def __init__(self) -> None:
        #: the tree as the watchers know it
        self.nodes: dict[str, Node] = {}
        #: nodes that changed since, by the order of their last change
        self._changed: dict[str, None] = {}
        #: those of which the value is not known, and the zxid of the last change; includes the root before it is listed
        self._stale: dict[str, int] = {}
        #: values of changed nodes, None if deleted
        self._values: dict[str, Node | None] = {}
        #: stale nodes in reads without an answer
        self._reading: set[str] = set()
        #: number of own multis without an answer that change a node; the answer will show its value
        self._writing: dict[str, int] = {}
        #: whether the whole tree is being read
        self.is_reloading = True

    def below(self, prefix: str) -> dict[str, Node]:
        """Return the nodes at and below a path, in the order of their paths."""
        return {path: self.nodes[path] for path in sorted(self.nodes) if is_below(prefix, path)}

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the children of a node."""
        return tuple(sorted(each.rpartition("/")[2] for each in self.nodes if parent_of(each) == path))

    # -- connections ----------------------------------------------------------------------------------------------

    def begin_reload(self) -> None:
        """Read the whole tree again: a new connection has begun, and changes may have been missed."""
        self._stale = {ROOT: 0}
        self.is_reloading = True

    def forget_changes(self) -> None:
        """Forget what was not applied: the connection is lost, and with it the answers."""
        self._changed.clear()
        self._values.clear()
        self._reading.clear()
        self._writing.clear()

    # -- changes --------------------------------------------------------------------------------------------------

    def note_event(self, path: str, zxid: int) -> None:
        """A node was changed in a transaction; its value is not known."""
        self._changed.pop(path, None)
        self._changed[path] = None
        self._stale[path] = zxid

    def set_value(self, path: str, node: Node | None, zxid: int) -> None:
        """Store the value of a stale node, unless an event of a later change has arrived."""
        changed_at = self._stale.get(path)
        if changed_at is not None and changed_at <= zxid:
            del self._stale[path]
            self._values[path] = node

    def begin_write(self, paths: Iterable[str]) -> None:
        """A multi that changes these nodes was sent: they need not be read before its answer."""
        for path in paths:
            self._writing[path] = self._writing.get(path, 0) + 1

    def finish_write(self, paths: Iterable[str]) -> None:
        """The answer of a multi that changes these nodes has arrived."""
        for path in paths:
            self._writing[path] -= 1
            if not self._writing[path]:
                del self._writing[path]

    # -- reads ----------------------------------------------------------------------------------------------------

    def begin_reads(self, nodes_max: int) -> Iterator[list[str]]:
        """Yield the paths of each read that must be sent now: the stale nodes that no answer is awaited for."""
        reading, writing = self._reading, self._writing
        paths = iter([path for path in self._stale if path not in reading and path not in writing])
        while chunk := list(islice(paths, nodes_max)):
            reading.update(chunk)
            yield chunk

    def finish_read(self, paths: Iterable[str]) -> None:
        """The answer of a read has arrived. ``set_found`` gets the values."""
        self._reading.difference_update(paths)

    def set_found(self, path: str, node: Node | None, children: Iterable[str], zxid: int) -> None:
        """Store the value of a node that was read, and note its children; none unless the tree is being read again."""
        if path == ROOT:
            self._stale.pop(ROOT, None)
        else:
            self.set_value(path, node, zxid)
        for child in children:
            # A child that is in the list already has had an event since the watch was set.
            if child not in self._changed:
                self._changed[child] = None
                self._stale[child] = 0

    def apply_values(self) -> list[Changed] | None:
        """Apply the known values to the copy and return what has changed. Return None if a node is stale."""
        if self._stale:
            return None
        nodes, values = self.nodes, self._values
        if self.is_reloading:
            self.is_reloading = False
            deleted = [path for path in nodes if path not in self._changed]
            self._changed.update(dict.fromkeys(sorted(deleted, reverse=True)))
        if not self._changed:
            return []
        changes = [Changed(path, values.get(path)) for path in self._changed if nodes.get(path) != values.get(path)]
        self._changed, self._values = {}, {}
        for path, node in changes:
            if node is None:
                del nodes[path]
            else:
                nodes[path] = node
        return changes
