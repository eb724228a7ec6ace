"""The requests of ZooKeeper's protocol that the metadata store sends, and the decoding of their answers. Pure.

kazoo has no request for a recursive watch and none that reads many nodes at once. All paths here are full paths: they
include the chroot.

| request | opcode | answer |
|---|---|---|
| create_request | 1 | None |
| acl_request (getACL) | 6 | tuple[Entry, ...] |
| set_acl_request | 7 | None |
| multi_request, barrier_request | 14 | MultiAnswer |
| read_request (multiRead) | 22 | list[ReadAnswer] |
| watch_request (addWatch, persistent and recursive) | 106 | None |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Any, NamedTuple

from ottla.broker.metadata.store import Create, Delete, Node, Op, Put
from ottla.broker.metadata.zookeeper.acl import OPEN_ACL, Entry

#: ZooKeeper's error codes, as far as the store tells them apart
OK = 0
RUNTIME_INCONSISTENCY = -2
UNIMPLEMENTED = -6
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111

_CREATE, _DELETE, _GET_DATA, _SET_DATA, _GET_ACL, _SET_ACL, _GET_CHILDREN = 1, 2, 4, 5, 6, 7, 8
_CHECK, _MULTI, _MULTI_READ, _ADD_WATCH = 13, 14, 22, 106
_ERROR = -1
_PERSISTENT_RECURSIVE = 1
_EPHEMERAL = 1
#: the version that fits every node, and one that fits none
_ANY_VERSION, _NO_VERSION = -1, -2

_INT = Struct("!i")
_OP_HEADER = Struct("!i?i")
#: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid
_STAT = Struct("!qqqqiiiqiiq")
_LAST_OP = _OP_HEADER.pack(-1, True, -1)

#: the result of a read that the ACL of the node does not allow
_FORBIDDEN = object()

#: raised by the decoding of a malformed answer
MALFORMED_ANSWER = (error, UnicodeDecodeError, ValueError)


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its header."""

    opcode: int
    payload: bytes
    #: decodes the answer, which begins at the offset
    decode: Callable[[bytes, int], Any]


class MultiAnswer(NamedTuple):
    """The answer of a multi: the new node versions, or the refused operation."""

    #: (version, czxid) of the node of each Put, None for other operations; empty if the multi was refused
    stats: tuple[tuple[int, int] | None, ...]
    #: position and error code of the refused operation, None if the multi was applied
    refused: tuple[int, int] | None


class ReadAnswer(NamedTuple):
    """The node at a path, None if it does not exist, and the names of its children."""

    node: Node | None
    #: empty unless the children were asked for
    children: tuple[str, ...]
    #: whether the node exists and may not be read
    is_forbidden: bool = False


def create_request(path: str, acl: bytes = OPEN_ACL) -> Request:
    """Return a request that creates an empty node."""
    return Request(_CREATE, _create(path, b"", acl, ephemeral=False), _decode_nothing)


def acl_request(path: str) -> Request:
    """Return a request for the ACL of a node."""
    return Request(_GET_ACL, _string(path), _decode_acl)


def set_acl_request(path: str, acl: bytes) -> Request:
    """Return a request that replaces the ACL of a node."""
    return Request(_SET_ACL, _string(path) + acl + _version(None), _decode_nothing)


def barrier_request(path: str) -> Request:
    """Return a request that changes nothing, but is ordered by the majority of the servers like a change.

    The server that answers it has applied all changes that were answered before this request was sent. ZooKeeper's
    ``sync`` does not ensure this: the leader answers it before it has applied a change that a follower has answered,
    and a leader that has lost the majority answers it, too.
    """
    return Request(
        _MULTI, _OP_HEADER.pack(_CHECK, False, -1) + _string(path) + _version(None) + _LAST_OP, _decode_multi
    )


def watch_request(path: str) -> Request:
    """Return a request that sends an event for every change at and below ``path``, until the connection is lost."""
    return Request(_ADD_WATCH, _string(path) + _INT.pack(_PERSISTENT_RECURSIVE), _decode_nothing)


def multi_request(ops: Sequence[Op], chroot: str, acl_of: Callable[[str], bytes] = lambda path: OPEN_ACL) -> Request:
    """Return a request that applies all operations or none. ``acl_of`` returns the ACL of a new node."""
    payload = bytearray()
    for op in ops:
        path = chroot + op.path
        if isinstance(op, Create):
            payload += _OP_HEADER.pack(_CREATE, False, -1) + _create(
                path, op.value, acl_of(op.path), ephemeral=op.ephemeral
            )
        elif isinstance(op, Put):
            payload += _OP_HEADER.pack(_SET_DATA, False, -1) + _string(path) + _buffer(op.value) + _version(op.version)
        elif isinstance(op, Delete):
            payload += _OP_HEADER.pack(_DELETE, False, -1) + _string(path) + _version(op.version)
        else:
            payload += _OP_HEADER.pack(_CHECK, False, -1) + _string(path) + _version(op.version)
    return Request(_MULTI, bytes(payload + _LAST_OP), _decode_multi)


def read_request(paths: Iterable[str], *, with_children: bool) -> Request:
    """Return a request for the nodes at all paths and, if asked for, the names of their children."""
    payload = bytearray()
    for path in paths:
        record = _string(path) + b"\0"  # no watch
        payload += _OP_HEADER.pack(_GET_DATA, False, -1) + record
        if with_children:
            payload += _OP_HEADER.pack(_GET_CHILDREN, False, -1) + record
    return Request(
        _MULTI_READ, bytes(payload + _LAST_OP), _decode_reads_with_children if with_children else _decode_reads
    )


def _create(path: str, value: bytes, acl: bytes, *, ephemeral: bool) -> bytes:
    return _string(path) + _buffer(value) + acl + _INT.pack(_EPHEMERAL if ephemeral else 0)


def _version(version: int | None) -> bytes:
    if version is None:
        return _INT.pack(_ANY_VERSION)
    return _INT.pack(version if version >= 0 else _NO_VERSION)


def _string(text: str) -> bytes:
    return _buffer(text.encode())


def _buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def _decode_nothing(answer: bytes, offset: int) -> None:
    return None


def _decode_multi(answer: bytes, offset: int) -> MultiAnswer:
    stats: list[tuple[int, int] | None] = []
    refused: tuple[int, int] | None = None
    number = 0
    while True:
        opcode, done, _ = _OP_HEADER.unpack_from(answer, offset)
        offset += _OP_HEADER.size
        if done:
            return MultiAnswer((), refused) if refused is not None else MultiAnswer(tuple(stats), None)
        stat: tuple[int, int] | None = None
        if opcode == _ERROR:
            (code,) = _INT.unpack_from(answer, offset)
            offset += _INT.size
            # OK: the operation was rolled back. RUNTIME_INCONSISTENCY: it was not tried.
            if refused is None and code not in (OK, RUNTIME_INCONSISTENCY):
                refused = (number, code)
        elif opcode == _CREATE:
            _, offset = _read_buffer(answer, offset)
        elif opcode == _SET_DATA:
            stat, offset = _read_stat(answer, offset)
        elif opcode not in (_DELETE, _CHECK):
            raise ValueError(f"the answer of a multi has opcode {opcode}")
        stats.append(stat)
        number += 1


def _decode_reads(answer: bytes, offset: int) -> list[ReadAnswer]:
    return [_read_answer(node, ()) for node in _decode_results(answer, offset)]


def _decode_reads_with_children(answer: bytes, offset: int) -> list[ReadAnswer]:
    results = _decode_results(answer, offset)
    return [_read_answer(node, names) for node, names in zip(results[::2], results[1::2], strict=True)]


def _read_answer(node: Any, names: Any) -> ReadAnswer:
    if node is _FORBIDDEN or names is _FORBIDDEN:
        return ReadAnswer(None, (), is_forbidden=True)
    return ReadAnswer(node, names or ())


def _decode_acl(answer: bytes, offset: int) -> tuple[Entry, ...]:
    (count,) = _INT.unpack_from(answer, offset)
    offset += _INT.size
    entries = []
    for _ in range(count):
        (permissions,) = _INT.unpack_from(answer, offset)
        scheme, offset = _read_buffer(answer, offset + _INT.size)
        identity, offset = _read_buffer(answer, offset)
        entries.append(Entry(permissions, scheme.decode(), identity.decode()))
    return tuple(entries)


def _decode_results(answer: bytes, offset: int) -> list[Any]:
    """Return a Node, the names of the children, _FORBIDDEN or None (an error) for each operation of a multiRead."""
    results: list[Any] = []
    while True:
        opcode, done, _ = _OP_HEADER.unpack_from(answer, offset)
        offset += _OP_HEADER.size
        if done:
            return results
        result: Any = None
        if opcode == _ERROR:
            (code,) = _INT.unpack_from(answer, offset)
            offset += _INT.size
            result = _FORBIDDEN if code == NO_AUTH else None
        elif opcode == _GET_DATA:
            value, offset = _read_buffer(answer, offset)
            (version, created), offset = _read_stat(answer, offset)
            result = Node(value, version, created)
        elif opcode == _GET_CHILDREN:
            result, offset = _read_names(answer, offset)
        else:
            raise ValueError(f"the answer of a multiRead has opcode {opcode}")
        results.append(result)


def _read_names(answer: bytes, offset: int) -> tuple[tuple[str, ...], int]:
    (count,) = _INT.unpack_from(answer, offset)
    offset += _INT.size
    names = []
    for _ in range(count):
        name, offset = _read_buffer(answer, offset)
        names.append(name.decode())
    return tuple(names), offset


def _read_stat(answer: bytes, offset: int) -> tuple[tuple[int, int], int]:
    stat = _STAT.unpack_from(answer, offset)
    return (stat[4], stat[0]), offset + _STAT.size


def _read_buffer(answer: bytes, offset: int) -> tuple[bytes, int]:
    (size_bytes,) = _INT.unpack_from(answer, offset)
    offset += _INT.size
    if size_bytes <= 0:  # -1: null
        return b"", offset
    if offset + size_bytes > len(answer):
        raise ValueError("an answer ends inside a value")
    return bytes(answer[offset : offset + size_bytes]), offset + size_bytes
