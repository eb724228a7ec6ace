"""Leader hints (KIP-951): tagged fields of Produce and Fetch replies that name the leader and its address."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from ottla.wire.primitives import write_uvarint

_INT32 = Struct(">i")
_LEADER = Struct(">ii")
_NO_TAGS = b"\0"
_NODE_ENDPOINTS_TAG = 0


class LeaderHint(NamedTuple):
    """The leader of a partition, -1 if it has none, and its leader epoch."""

    leader_id: int
    leader_epoch: int


class NodeAddress(NamedTuple):
    """A broker and its address for one client."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def leader_field(tag: int, leader: LeaderHint) -> bytes:
    """Return the tagged field with the current leader of a partition, without the number of tagged fields."""
    value = _LEADER.pack(*leader) + _NO_TAGS
    return write_uvarint(tag) + write_uvarint(len(value)) + value


def reply_tags(nodes: Iterable[NodeAddress]) -> bytes:
    """Return all tagged fields at the end of a reply: the addresses of leaders, if there are any."""
    rows = [_INT32.pack(node.broker_id) + _text(node.host) + _INT32.pack(node.port) + _text(node.rack) + _NO_TAGS
            for node in nodes]  # fmt: skip
    if not rows:
        return _NO_TAGS
    value = write_uvarint(len(rows) + 1) + b"".join(rows)
    return b"\1" + write_uvarint(_NODE_ENDPOINTS_TAG) + write_uvarint(len(value)) + value


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return write_uvarint(len(data) + 1) + data
