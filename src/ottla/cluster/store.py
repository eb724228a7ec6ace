"""The MetadataStore contract: a small tree of versioned nodes that every broker of a cluster sees alike.

Topics, partitions, configurations and who is alive are nodes of this tree. A single broker keeps it in a file
(``embedded``), a cluster in ZooKeeper. One conformance suite runs against every implementation, and the
rules are those that ZooKeeper can keep:

- A path is ``/a/b``. A node holds bytes and a version: 0 when created, one more with every put. A node that
  was deleted and created again starts at 0 again.
- A node can be created only under a node that exists, not under an ephemeral one; only a node without
  children can be deleted. The root ``/`` always exists and is not a node: it has no value.
- ``multi`` is the only way to write: all operations happen or none, and each sees what those before it did.
- Ephemeral nodes vanish with the store object that made them, by ``close`` or by the death of its process.
- Watching is one stream of changes in commit order.

Values are small: ZooKeeper refuses a multi of more than 1 MiB.

    StoreError                  the store failed; whether a multi took effect is unknown until it is read back
    ├── StoreClosed             the store was closed before the call
    ├── MalformedNode           the value of a node is damaged
    ├── UnusableStore           the store cannot be opened; the text says what to do (also a StartError)
    └── Conflict                an operation of a multi was refused, and nothing of the multi happened
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
    """What stands at a path."""

    value: bytes
    version: int


class Changed(NamedTuple):
    """The node at ``path`` is now this one; None when it is gone."""

    path: str
    node: Node | None


class Create(NamedTuple):
    """A new node with version 0."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


class Put(NamedTuple):
    """A new value for a node that exists, in ``version`` unless that is None."""

    path: str
    value: bytes
    version: int | None = None


class Delete(NamedTuple):
    """Take away a node without children, in ``version`` unless that is None."""

    path: str
    version: int | None = None


class Check(NamedTuple):
    """Refuse the multi unless the node has this version: fencing."""

    path: str
    version: int


Op = Create | Put | Delete | Check
Watcher = Callable[[list[Changed]], None]


class MetadataStore(Protocol):
    """One broker's hold on the tree. All calls belong to one event loop, which none of them blocks."""

    async def get(self, path: str) -> Node | None:
        """The node at ``path``, None when there is none."""

    async def children(self, path: str) -> tuple[str, ...]:
        """The names right under ``path`` in order; empty when it has none or does not exist."""

    async def load(self, prefix: str) -> dict[str, Node]:
        """The node at ``prefix`` and all below, by path in order; one read, however many there are."""

    async def multi(self, ops: Sequence[Op]) -> None:
        """Do all of ``ops`` or none; raises the Conflict of the first that is refused.

        On return the changes are durable and the watchers of this store have been called with them.
        """

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call ``watcher`` with all that is at and below ``prefix``, then with every change, until ``close``.

        The first call (left out when nothing is there) happens before this returns, and nothing falls between
        it and the changes: whoever applies each list in turn holds the tree. A call may carry the changes of
        several multis. A node that changes twice in quick succession may show its newer state both times.
        """

    async def close(self) -> None:
        """Finish what was asked for, drop the ephemeral nodes and let go. Closing again does nothing."""


class StoreError(OttlaError):
    """The store failed; whether a multi took effect is unknown until it is read back."""


class StoreClosed(StoreError):
    """The store was closed before the call."""

    def __init__(self) -> None:
        super().__init__("the metadata store is closed")


class MalformedNode(StoreError):
    """A node's value is not what the schema says: the store is damaged."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"node {path} cannot be read: {type(reason).__name__} {reason}".replace("\n", "; "))


class UnusableStore(StoreError, StartError):
    """The store cannot be opened. The text is for a person and says what to do next."""


class Conflict(StoreError):
    """An operation of a multi was refused, and nothing of the multi happened."""

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
    """Raise ValueError for what is no path of a node; every implementation refuses the same ones."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is not a path such as /brokers/ids/1")


def check_prefix(path: str) -> None:
    """Like check_path, for where the root is allowed as well."""
    if path != ROOT:
        check_path(path)


def check_ops(ops: Sequence[Op]) -> None:
    """Raise for operations that no store could carry out, before any of them is tried."""
    for op in ops:
        check_path(op.path)
        if isinstance(op, Create | Put) and not isinstance(op.value, bytes):
            raise TypeError(f"the value of {op.path} is {type(op.value).__name__}, not bytes")


def is_below(prefix: str, path: str) -> bool:
    """Whether ``path`` is ``prefix`` or a descendant of it."""
    return prefix == ROOT or path == prefix or path.startswith(prefix + "/")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT
