"""Clients that were written elsewhere, behind one face: what a test says once is then asked of each of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

CODECS: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
#: no call to a broker on this machine takes this long unless something is wrong
DEADLINE_S = 120.0

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an application gives to a client, and what it gets back."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    #: None when the client's clock decides
    timestamp_ms: int | None = None

    def without_timestamp(self) -> Record:
        return replace(self, timestamp_ms=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A record with its place in the log."""

    offset: int
    record: Record
    #: the timestamp is the broker's (LogAppendTime); None when the client does not tell
    append_time: bool | None


class Refused(Exception):
    """The broker said no; the code is the protocol's."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code


class Writer(Protocol):
    """A client that can produce."""

    name: str
    #: what it can compress with here
    codecs: tuple[str, ...]

    def expresses(self, record: Record) -> Record:
        """The record as this client can send it: some have no way to say everything."""

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        """Send the records to one partition and wait for the answers. Raises Refused."""


class Reader(Protocol):
    """A client that can consume a partition from an offset, without a group."""

    name: str
    codecs: tuple[str, ...]

    def shows(self, record: Record) -> Record:
        """The record as this client can show it."""

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        """The first ``count`` records from ``offset`` on."""


class Admin(Protocol):
    """A client that can manage a cluster. Everything raises Refused."""

    name: str
    #: whether it knows IncrementalAlterConfigs; otherwise a change replaces everything that was set
    incremental: bool

    def create_topic(
        self, topic: str, *, partitions: int = 1, replication_factor: int = 1, config: Mapping[str, str] | None = None
    ) -> None: ...

    def list_topics(self) -> set[str]: ...

    def partition_leaders(self, topic: str) -> dict[int, int]: ...

    def delete_topic(self, topic: str) -> None: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def topic_config(self, topic: str) -> dict[str, str | None]: ...

    def broker_config(self, broker: int) -> dict[str, str | None]: ...

    def set_topic_config(self, topic: str, name: str, value: str) -> None: ...

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """The partition's low watermark afterwards."""

    def brokers(self) -> dict[int, tuple[str, int]]: ...

    def controller(self) -> int: ...

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]: ...

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older; None when there is none."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Read(NamedTuple):
    """A record of a member, as far as tests of groups look at it."""

    place: Place
    offset: int
    value: bytes | None


class Member(Protocol):
    """A consumer with a group. Everything raises Refused."""

    def subscribe(self, *topics: str) -> None: ...

    def subscribe_pattern(self, pattern: str) -> None: ...

    def assign(self, *places: Place) -> None:
        """Partitions without membership; positions are the group's committed offsets."""

    def poll(self) -> list[Read]:
        """What came within a short time."""

    def assignment(self) -> set[Place]: ...

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        """These offsets, or the positions."""

    def committed(self, place: Place) -> int | None: ...

    def seek(self, place: Place, offset: int) -> None: ...

    def pause(self, place: Place) -> None: ...

    def resume(self, place: Place) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an admin client says of a group."""

    state: str
    #: client id and partitions of each member
    members: tuple[tuple[str, frozenset[Place]], ...]


class GroupAdmin(Protocol):
    """A client that can join groups and look after them. Everything raises Refused."""

    name: str

    def member(
        self, group: str, *, client_id: str = "member", instance: str | None = None, reset: str = "earliest",
        read_committed: bool = False,
    ) -> Member: ...  # fmt: skip

    def list_groups(self) -> set[str]: ...

    def describe_group(self, group: str) -> Described: ...

    def group_offsets(self, group: str) -> dict[Place, int]: ...


class FullGroupAdmin(GroupAdmin, Protocol):
    """One that can also change groups."""

    def delete_group(self, group: str) -> None: ...

    def set_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None: ...


def await_group_offsets(groups: GroupAdmin, group: str, wanted: Mapping[Place, int]) -> None:
    """Return when these are the committed offsets of the group.

    EndTxn is answered before the marker is written where the offsets are, as in Kafka. If that is another broker than
    the transaction's coordinator, its clients see the offsets a moment after the commit.
    """
    deadline = time.monotonic() + DEADLINE_S
    while (found := groups.group_offsets(group)) != wanted:
        assert time.monotonic() < deadline, f"the group has committed {found} instead of {wanted}"
        time.sleep(0.02)
