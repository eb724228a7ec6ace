"""The nodes of a simulated ensemble: operations on them, and the conflicts that refuse an operation."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Put,
    StoreError,
    VersionConflict,
    Written,
    is_below,
    parent_of,
)


class Tree:
    """The nodes, and the session that owns each ephemeral one."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._owners: dict[str, int] = {}
        self._child_counts: dict[str, int] = {}

    def copy(self) -> Tree:
        """Return a tree with the same nodes, for reads."""
        twin = Tree()
        twin._nodes = dict(self._nodes)
        return twin

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(each.rpartition("/")[2] for each in self._nodes if parent_of(each) == path))

    def load(self, prefix: str) -> dict[str, Node]:
        return {path: node for path, node in sorted(self._nodes.items()) if is_below(prefix, path)}

    def multi(self, ops: Sequence[Op], change: int, session_id: int) -> tuple[Written, list[Changed]]:
        """Apply all operations or none. Return the new versions and the changes; raise a Conflict."""
        before: list[tuple[str, Node | None, int | None]] = []
        versions: list[int | None] = []
        changes: list[Changed] = []
        try:
            for op in ops:
                old, owner = self._nodes.get(op.path), self._owners.get(op.path)
                changed = self._apply(op, change, session_id)
                if changed is not None:
                    before.append((op.path, old, owner))
                    changes.append(changed)
                versions.append(None if changed is None or changed.node is None else changed.node.version)
        except StoreError:
            for path, old, owner in reversed(before):
                self._set(path, old, owner)
            raise
        return Written(change, tuple(versions)), changes

    def delete_ephemerals(self, session_id: int) -> list[Changed]:
        paths = [path for path, owner in self._owners.items() if owner == session_id]
        for path in paths:
            self._set(path, None, None)
        return [Changed(path, None) for path in paths]

    def _apply(self, op: Op, change: int, session_id: int) -> Changed | None:
        path, old = op.path, self._nodes.get(op.path)
        if isinstance(op, Create):
            return self._apply_create(op, change, session_id)
        if old is None:
            raise NoNode(path)
        if op.version not in (None, old.version):
            raise VersionConflict(path)
        if isinstance(op, Put):
            return self._set(path, Node(op.value, old.version + 1, old.created), self._owners.get(path))
        if isinstance(op, Delete):
            if self._child_counts.get(path):
                raise NotEmpty(path)
            return self._set(path, None, None)
        return None

    def _apply_create(self, op: Create, change: int, session_id: int) -> Changed:
        parent = parent_of(op.path)
        if parent != ROOT and parent not in self._nodes:
            raise NoNode(parent)
        if parent in self._owners:
            raise EphemeralParent(parent)
        if op.path in self._nodes:
            raise NodeExists(op.path)
        return self._set(op.path, Node(op.value, 0, change), session_id if op.ephemeral else None)

    def _set(self, path: str, node: Node | None, owner: int | None) -> Changed:
        parent = parent_of(path)
        self._child_counts[parent] = self._child_counts.get(parent, 0) + (node is not None) - (path in self._nodes)
        self._nodes.pop(path, None)
        self._owners.pop(path, None)
        if node is not None:
            self._nodes[path] = node
            if owner is not None:
                self._owners[path] = owner
        return Changed(path, node)
