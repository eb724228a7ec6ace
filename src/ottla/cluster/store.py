"""The MetadataStore contract: a small tree of versioned nodes that all brokers of a cluster share.

Topics, partitions, configurations and live brokers are nodes of this tree. A single broker keeps it in a file
(``embedded``), a cluster in ZooKeeper. One conformance suite runs against every implementation. The rules are
restricted to those that ZooKeeper guarantees:

- A path is ``/a/b``. A node holds bytes and a version: 0 when created, one more with every put. A node that
  was deleted and created again starts at 0 again.
- A node can be created only under a node that exists, not under an ephemeral one; only a node without
  children can be deleted. The root ``/`` always exists and is not a node: it has no value.
- ``multi`` is the only way to write. It applies all operations or none; each operation sees the effect of those before.
- Ephemeral nodes are deleted when the store object that created them is closed or its process ends.
- A watcher gets one stream of changes in commit order.

Values are small: ZooKeeper refuses a multi of more than 1 MiB.

    StoreError                  the store failed; read the nodes back to find out whether a multi took effect
    ├── StoreClosed             the store was closed before the call
    ├── MalformedNode           the value of a node is damaged
    ├── UnusableStore           the store cannot be opened; the text says what to do (also a StartError)
    └── Conflict                an operation of a multi was refused, and the multi changed nothing
        ├── NodeExists          create: the path is taken
        ├── NoNode              the path does not exist; for a create its parent, which is then the path named
        ├── NotEmpty            delete: the node has children
        ├── EphemeralParent     create: the parent is ephemeral
        └── VersionConflict     the node has another version
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.model.errors import OttlaError, StartError

ROOT = "/"


class Node(NamedTuple):
    """The value and the version of the node at a path."""

    value: bytes
    version: int


class Changed(NamedTuple):
    """The node that is now at ``path``, None if it was deleted."""

    path: str
    node: Node | None


class Create(NamedTuple):
    """Create a node with version 0."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


class Put(NamedTuple):
    """Replace the value of a node. Conflicts unless the node has ``version``, if that is not None."""

    path: str
    value: bytes
    version: int | None = None


class Delete(NamedTuple):
    """Delete a node without children. Conflicts unless the node has ``version``, if that is not None."""

    path: str
    version: int | None = None


class Check(NamedTuple):
    """Change nothing; conflicts unless the node has this version (fencing)."""

    path: str
    version: int


Op = Create | Put | Delete | Check
Watcher = Callable[[list[Changed]], None]


class MetadataStore(Protocol):
    """One broker's connection to the tree. All calls are made on one event loop, and none of them blocks it."""

    async def get(self, path: str) -> Node | None:
        """Return the node at ``path``, None if it does not exist."""

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the children of ``path``, sorted; empty if there are none or ``path`` does not exist."""

    async def load(self, prefix: str) -> dict[str, Node]:
        """Return the node at ``prefix`` and all its descendants by path, sorted, as of one moment."""

    async def multi(self, ops: Sequence[Op]) -> None:
        """Apply all of ``ops`` or none. Raise the Conflict of the first operation that is refused.

        On return the changes are durable and the watchers of this store have been called with them.
        """

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call ``watcher`` with all nodes at and below ``prefix``, then with every change to them, until ``close``.

        The first call is made before this method returns; it is omitted if there are no nodes. No change is lost
        between the first call and the next ones: a watcher that applies every list has a copy of the tree. One call
        can contain the changes of several multis. If a node changes twice in quick succession, both calls may have
        its newer state.
        """

    async def close(self) -> None:
        """Complete the queued calls, delete the ephemeral nodes and close the store. Closing it again does nothing."""


class StoreError(OttlaError):
    """The store failed. A multi may have taken effect or not; read the nodes back to find out."""


class StoreClosed(StoreError):
    """The store was closed before the call."""

    def __init__(self) -> None:
        super().__init__("the metadata store is closed")


class MalformedNode(StoreError):
    """A node's value is not what the schema says: the store is damaged."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"node {path} cannot be read: {type(reason).__name__} {reason}".replace("\n", "; "))


class UnusableStore(StoreError, StartError):
    """The store cannot be opened. The text tells the operator what to do."""


class Conflict(StoreError):
    """An operation of a multi was refused, and the multi changed nothing."""

    reason = "was refused"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} {self.reason}")
        self.path = path


class NodeExists(Conflict):
    reason = "exists already"


class NoNode(Conflict):
    reason = "does not exist"


class NotEmpty(Conflict):
    reason = "has children"


class EphemeralParent(Conflict):
    reason = "is ephemeral and cannot have children"


class VersionConflict(Conflict):
    reason = "has another version"


#: characters that ZooKeeper refuses in a path
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff"
_PATH = re.compile(rf"(?:/(?!\.{{1,2}}(?:/|\Z))[^/{_UNPRINTABLE}]+)+")


def check_path(path: str) -> None:
    """Raise ValueError if ``path`` cannot be the path of a node; the rule is the same for every implementation."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path such as /brokers/ids/1")


def check_prefix(path: str) -> None:
    """Raise ValueError if ``path`` is neither the root nor a possible path of a node."""
    if path != ROOT:
        check_path(path)


def check_ops(ops: Sequence[Op]) -> None:
    """Raise ValueError or TypeError if an operation is invalid for every store; called before any is applied."""
    for op in ops:
        check_path(op.path)
        if isinstance(op, Create | Put) and not isinstance(op.value, bytes):
            raise TypeError(f"the value of {op.path} is {type(op.value).__name__}, not bytes")


def is_below(prefix: str, path: str) -> bool:
    """Return whether ``path`` is ``prefix`` or a descendant of it."""
    return prefix == ROOT or path == prefix or path.startswith(prefix + "/")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT
