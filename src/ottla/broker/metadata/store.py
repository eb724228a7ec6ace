"""The MetadataStore contract: a small tree of versioned nodes that all brokers of a cluster share.

Topics, partitions, configurations and live brokers are nodes of this tree. A single broker keeps it in a file
(``embedded``), a cluster in ZooKeeper. One conformance suite runs against every implementation. The rules are
restricted to those that ZooKeeper guarantees:

**Nodes.** A path is ``/a/b``. A node holds bytes and a version: 0 when created, one more with every put. A node that
was deleted and created again starts at 0 again; ``created`` tells the two apart. A node can be created only under a
node that exists, not under an ephemeral one; only a node without children can be deleted. The root ``/`` always exists
and is not a node: it has no value.

**Writes.** ``multi`` is the only way to write. It applies all operations or none; each operation sees the effect of
those before. It returns the new versions. A multi of more than MULTI_BYTES_MAX bytes is refused before it is sent,
because ZooKeeper answers such a multi by closing the connection. A multi whose answer is lost may have been applied:
it raises OutcomeUnknown, and the writer reads the nodes back to find out. Multis of one store are applied in the order
of the calls.

**Reads** show every multi that any store had returned before the read was called.

**Watches.** A watcher gets the tree, then its changes. It may get them late: a read or a Conflict can show a change of
another store before the watcher is called with it, unless ``watches_are_immediate``. It may get them merged: the
changes of several multis in one call, with the last state of each node only. After each call the watcher's copy of the
tree is the tree as it was at one moment, and that moment never goes back. A watcher survives a lost connection and an
expired session: when the session is established again, it is called with the changes that it missed.

**Sessions.** A store has one session at a time:

    ESTABLISHED ─── connection lost ──► SUSPENDED ─── connected in time ──► ESTABLISHED, the same id
                                            └─── connected too late ──► EXPIRED ──► ESTABLISHED, another id

Calls raise NotConnected unless the session is established; they are not queued. The store connects again by itself.
Ephemeral nodes belong to the session in which they were created, and are deleted when it expires or is closed; their
owner creates them again in the next session. A store that cannot connect does not learn that its session has expired:
it stays SUSPENDED while other brokers already act on the deletion of its ephemeral nodes. If a process is killed, its
session expires later: until then a create of the same ephemeral node by its next process raises NodeExists.

    StoreError                  the store failed; read the nodes back to find out whether a multi took effect
    ├── StoreClosed             the store was closed before the call
    ├── NotConnected            the session is not established; the call had no effect
    ├── OutcomeUnknown          the connection was lost during a multi: it was applied or not
    ├── MultiTooLarge           the multi has too many bytes, and was not sent
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.model.errors import OttlaError, StartError

ROOT = "/"

#: maximum size of a multi: ZooKeeper accepted 1,048,000 bytes and closed the connection at 1,049,000
MULTI_BYTES_MAX = 1_000_000
#: bytes that ZooKeeper's protocol needs for an operation besides path and value, rounded up
_OP_BYTES = 64
#: operations in one multi when many are split: more of them make one multi slow and all of them only a little faster
_OPS_PER_MULTI = 100


class Node(NamedTuple):
    """The value and the version of the node at a path."""

    value: bytes
    version: int
    #: the ``change`` of the multi that created the node (ZooKeeper: czxid); higher in a node that is created later
    created: int = 0


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


class Written(NamedTuple):
    """The result of a multi that was applied."""

    #: identifies the multi (ZooKeeper: zxid); higher than that of every multi applied before
    change: int
    #: the new version of the node of each operation, in their order; None for a Delete and for a Check
    versions: tuple[int | None, ...]


class SessionState(Enum):
    ESTABLISHED = "established"
    #: the connection was lost, and the session may have expired meanwhile
    SUSPENDED = "suspended"
    #: the ephemeral nodes of the session are deleted; also the state after ``close``
    EXPIRED = "expired"


class Session(NamedTuple):
    """The session of a store. Each session has another id."""

    session_id: int
    state: SessionState


SessionListener = Callable[[Session], None]


class MetadataStore(Protocol):
    """One broker's connection to the tree. All calls are made on one event loop, and none of them blocks it."""

    #: whether watchers are called with a change before any call of this store shows it
    watches_are_immediate: bool

    @property
    def session(self) -> Session:
        """Return the current session."""

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Call ``listener`` with the session after every change of its state or id, in order. ``close`` is no change.

        The listener is called before the calls that fail because of a lost connection raise their errors. Return a
        function that ends the calls of the listener.
        """

    async def heartbeat(self) -> None:
        """Return when the store has answered: the session had not expired when this method was called."""

    async def get(self, path: str) -> Node | None:
        """Return the node at ``path``, None if it does not exist."""

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the children of ``path``, sorted; empty if there are none or ``path`` does not exist."""

    async def load(self, prefix: str) -> dict[str, Node]:
        """Return the node at ``prefix`` and all its descendants by path, sorted, as of one moment."""

    async def multi(self, ops: Sequence[Op]) -> Written:
        """Apply all of ``ops`` or none, and return the new versions. Raise the Conflict of the first refused operation.

        On return the changes are durable, and the watchers of this store have been called with them and with all
        changes before them. Raise OutcomeUnknown if the connection is lost before the answer arrives, MultiTooLarge
        if the operations have more than MULTI_BYTES_MAX bytes.
        """

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call ``watcher`` with all nodes at and below ``prefix``, then with every change to them, until ``close``.

        The first call is made before this method returns; it is omitted if there are no nodes. A watcher that applies
        every list has a copy of the tree. A list names each node once or in the order of its changes.
        """

    async def close(self) -> None:
        """Complete the queued calls, delete the ephemeral nodes and close the store. Closing it again does nothing."""


class StoreError(OttlaError):
    """The store failed. A multi may have taken effect or not; read the nodes back to find out."""


class StoreClosed(StoreError):
    """The store was closed before the call."""

    def __init__(self) -> None:
        super().__init__("the metadata store is closed")


class NotConnected(StoreError):
    """The session is not established. The call had no effect."""

    def __init__(self) -> None:
        super().__init__("the metadata store is not connected")


class OutcomeUnknown(StoreError):
    """The connection was lost during a multi, which was applied or not; read the nodes back to find out."""

    def __init__(self) -> None:
        super().__init__("the connection to the metadata store was lost; a change may have been applied or not")


class MultiTooLarge(StoreError):
    """A multi has more than MULTI_BYTES_MAX bytes. It was not sent."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a change of the metadata has {size_bytes} bytes; at most {MULTI_BYTES_MAX} are allowed")


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
    """Raise ValueError, TypeError or MultiTooLarge if no store accepts the operations; called before they are sent."""
    for op in ops:
        check_path(op.path)
        if isinstance(op, Create | Put) and not isinstance(op.value, bytes):
            raise TypeError(f"the value of {op.path} is {type(op.value).__name__}, not bytes")
    size_bytes = sum(map(size_of, ops))
    if size_bytes > MULTI_BYTES_MAX:
        raise MultiTooLarge(size_bytes)


def size_of(op: Op) -> int:
    """Return the number of bytes of an operation in a multi."""
    return _OP_BYTES + len(op.path.encode()) + (len(op.value) if isinstance(op, Create | Put) else 0)


def in_multis(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Split operations that need not be applied together into multis that every store accepts."""
    multi: list[Op] = []
    size_bytes = 0
    for op in ops:
        if multi and (len(multi) == _OPS_PER_MULTI or size_bytes + size_of(op) > MULTI_BYTES_MAX // 2):
            yield multi
            multi, size_bytes = [], 0
        multi.append(op)
        size_bytes += size_of(op)
    if multi:
        yield multi


def is_below(prefix: str, path: str) -> bool:
    """Return whether ``path`` is ``prefix`` or a descendant of it."""
    return prefix == ROOT or path == prefix or path.startswith(prefix + "/")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT
