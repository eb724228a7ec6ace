"""Conversations with a group coordinator, odd ones above all: what is said to two brokers must be answered alike.

A script is a function of a ``Wire``. Everything that is answered on it goes into a transcript, in which member ids and
topic ids have names of their own: the first id that a broker makes up is ``id1`` on either side.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable
from typing import Any

from tests.clauses.group_requests import (
    SUBSCRIBED,
    asked,
    beat,
    commit,
    consumer_join,
    delete_offsets,
    fetch,
    join,
    leave,
    subscription,
    sync,
)

from ottla.testing.raw import Closed, RawClient
from ottla.wire import ZERO_UUID, Message, Struct
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest

#: the broker's own affair
_NOT_COMPARED = {"throttle_time", "node_id", "host", "port"}
#: an id that a broker made up: a UUID as Java prints it, or in Kafka's own 22 letters
_MADE_UP = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![\w-])[\w-]{22}(?![\w-])")
_EPOCHS = {"member_epoch", "group_epoch", "assignment_epoch"}
#: what a parked request is given to prove that it is not
_SILENCE_S = 0.15


class Wire:
    """Some connections to one broker, and what was heard on them."""

    def __init__(self, address: str, ids: dict[str, bytes], name: str) -> None:
        self.transcript: list[tuple[str, Any]] = []
        self.ids = ids
        self._names = {topic_id: topic for topic, topic_id in ids.items()}
        self._address = address
        self._name = name
        self._clients: dict[str, RawClient] = {}
        self._parked: dict[str, tuple[str, int, int, int]] = {}
        self._made_up: dict[str, str] = {}
        self._groups = 0
        self._first_epoch: int | None = None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def group(self) -> str:
        """A name that only this script uses."""
        self._groups += 1
        self.count_from_one()
        return f"{self._name}.{self._groups}"

    def count_from_one(self) -> None:
        """What follows are generations of a classic group, which start alike."""
        self._first_epoch = None

    def ask(self, request: Message, version: int, who: str = "a", note: str = "") -> Any:
        self._start(request, version, who, note)
        return self.take(who)

    def park(self, request: Message, version: int, who: str, note: str = "") -> None:
        """Send a request that is not answered before others are."""
        self._start(request, version, who, f"parked {note}")
        if select.select([self._clients[who].socket], [], [], _SILENCE_S)[0]:
            self.transcript.append((self._parked[who][0], "was not parked"))

    def take(self, who: str) -> Any:
        """The answer to what ``who`` asked."""
        label, api_key, version, correlation_id = self._parked.pop(who)
        try:
            answer = self._clients[who].receive(api_key, version, correlation_id)
        except Closed:
            self._clients.pop(who).close()
            self.transcript.append((label, "closed"))
            return None
        self.transcript.append((label, self._digest(answer, version)))
        return answer

    def _start(self, request: Message, version: int, who: str, note: str) -> None:
        if who not in self._clients:
            self._clients[who] = RawClient(self._address, client_id=f"client-{who}")
        label = f"{len(self.transcript)} {type(request).__name__} v{version} {note}".strip()
        self._parked[who] = label, request.API_KEY, version, self._clients[who].send(request, version)

    # -- what is compared ---------------------------------------------------------------------------------------------

    def _digest(self, value: Any, version: int) -> Any:
        if isinstance(value, Struct):
            found = {}
            for field in type(value).FIELDS:
                inner = getattr(value, field.name)
                if not field.is_in(version) or field.name in _NOT_COMPARED:
                    continue
                if field.name == "error_message":
                    # Kafka says NONE, or nothing, or null where there is no error, from one version to the next.
                    found[field.name] = bool(inner) if value.error_code else None
                elif inner and (field.name in _EPOCHS or (field.name == "generation_id" and self._first_epoch)):
                    found[field.name] = inner if inner < 0 else f"first{inner - self._first(inner):+}"
                elif field.name == "groups" and field.type.element.__name__ == "ListedGroup":
                    # Groups of other scripts come and go as they like.
                    found["groups"] = self._sorted(
                        [each for each in inner if each.group_id.startswith(f"{self._name}.")], version
                    )
                else:
                    found[field.name] = self._digest(inner, version)
            return found
        if isinstance(value, list | tuple):
            return self._sorted(value, version)
        if isinstance(value, bytes) and value in self._names:
            return f"topic {self._names[value]}"
        return self._named(value) if isinstance(value, str) else value

    def _sorted(self, values: Any, version: int) -> list[Any]:
        """In an order of its own, one row per partition: Kafka answers from hash maps, and may name a topic twice."""
        rows: list[Any] = []
        for each in values:
            found = self._digest(each, version)
            partitions = found.pop("partitions", None) if isinstance(found, dict) else None
            rows += [found] if not partitions else [{**found, "row": row} for row in partitions]
        return sorted(rows, key=repr)

    def _first(self, epoch: int) -> int:
        """Kafka 4.3 starts at 2, earlier ones at 1: what counts is how they go on."""
        if self._first_epoch is None:
            self._first_epoch = epoch
        return self._first_epoch

    def _named(self, text: str) -> str:
        return _MADE_UP.sub(lambda found: self._made_up.setdefault(found[0], f"id{len(self._made_up) + 1}"), text)

    # -- steps that many scripts begin with ---------------------------------------------------------------------------

    def become_member(self, group: str, version: int = 9, who: str = "a", **fields: Any) -> Any:
        answer = self.ask(join(group, **fields), version, who)
        if answer.error_code == 79:
            answer = self.ask(join(group, answer.member_id, **fields), version, who)
        return answer

    def become_stable(self, group: str, **fields: Any) -> tuple[str, int]:
        joined = self.become_member(group, **fields)
        member, generation = joined.member_id, joined.generation_id
        self.ask(sync(group, generation, member, {member: b"mine"}), 3)
        return member, generation

    def become_two(self, group: str) -> tuple[str, str, int]:
        """A Stable group of two: the leader, the follower, the generation."""
        first, _ = self.become_stable(group)
        given = self.ask(join(group), 9, "b").member_id
        self.park(join(group, given), 9, "b")
        self.ask(join(group, first), 9, "a")
        joined = self.take("b")
        second, generation = joined.member_id, joined.generation_id
        self.park(sync(group, generation, second), 3, "b")
        self.ask(sync(group, generation, first, {first: b"for a", second: b"for b"}), 3, "a")
        self.take("b")
        return first, second, generation

    def look(self, group: str) -> None:
        """How the group is seen from outside."""
        self.ask(DescribeGroupsRequest(groups=[group]), 5, "watch")
        self.ask(ListGroupsRequest(), 5, "watch")
        self.ask(fetch(group, None, 8), 8, "watch")


Script = Callable[[Wire], None]
SCRIPTS: list[Script] = []


def script(function: Script) -> Script:
    SCRIPTS.append(function)
    return function


# -- coordinators -----------------------------------------------------------------------------------------------------


@script
def coordinators(wire: Wire) -> None:
    for version in range(4):
        for key in ("g", "", "x" * 300):
            wire.ask(FindCoordinatorRequest(key=key), version)
        for kind in (2, 3, -1, 127) if version else ():
            wire.ask(FindCoordinatorRequest(key="g", key_type=kind), version, note=f"type {kind}")
    for version in (4, 5, 6):
        for keys in ([], ["g"], ["g", "g", ""], ["a", "b", "\n"]):
            wire.ask(FindCoordinatorRequest(coordinator_keys=keys), version)
        for kind in (3, -1):
            wire.ask(FindCoordinatorRequest(coordinator_keys=["g"], key_type=kind), version, note=f"type {kind}")


# -- joining ----------------------------------------------------------------------------------------------------------


@script
def joins_that_are_refused(wire: Wire) -> None:
    for version in range(10):
        group = wire.group()
        wire.ask(join(""), version, note="no group id")
        wire.ask(join("", "somebody"), version, note="no group id")
        for timeout in (-1, 0, 5999, 1_800_001, 2**31 - 1):
            wire.ask(join(group, session_timeout=timeout), version, note=f"session {timeout}")
        wire.ask(join(group, "stranger"), version, note="unknown group, member id")
        wire.ask(join(group, protocols={}), version, note="no protocols")
        wire.ask(join(group, protocol_type=""), version, note="no protocol type")
        wire.ask(join(group, "stranger", protocols={}), version, note="no protocols, member id")
        if version >= 5:
            wire.ask(join(group, "stranger", group_instance_id="i"), version, note="unknown static member")
        wire.ask(join(group, session_timeout=0, protocols={}), version, note="two wrongs")


@script
def first_generation_of_every_version(wire: Wire) -> None:
    for version in range(10):
        group = wire.group()
        joined = wire.become_member(group, version)
        wire.look(group)
        member, generation = joined.member_id, joined.generation_id
        wire.ask(beat(group, generation, member), min(version, 4), note="completing")
        wire.ask(commit(group, {("one", 0): 5}, generation, member), min(version + 2, 9), note="completing")
        wire.ask(sync(group, generation, member, {member: b"mine"}), min(version, 5))
        wire.look(group)
        wire.ask(beat(group, generation, member), min(version, 4), note="stable")
        wire.ask(commit(group, {("one", 0): 5}, generation, member), min(version + 2, 9), note="stable")
        for described in range(7):
            asks = DescribeGroupsRequest(groups=[group], include_authorized_operations=described >= 3)
            wire.ask(asks, described)
        wire.ask(leave(group, member), min(version, 5))
        wire.look(group)
        for described in range(7):
            wire.ask(DescribeGroupsRequest(groups=[group]), described, note="empty")


@script
def pending_ids(wire: Wire) -> None:
    for version in range(4, 10):
        group = wire.group()
        first = wire.ask(join(group), version).member_id
        wire.ask(sync(group, 0, first), 5, note="pending")
        wire.ask(beat(group, 0, first), 4, note="pending")
        wire.ask(beat(group, -1, first), 4, note="pending")
        wire.ask(commit(group, {("one", 0): 1}, 0, first), 9, note="pending")
        wire.ask(commit(group, {("one", 0): 1}, -1, first), 9, note="pending")
        wire.ask(leave(group, first), 5, note="pending")
        wire.ask(join(group, first), version, note="it left")
        wire.look(group)


@script
def joins_into_a_stable_group(wire: Wire) -> None:
    group = wire.group()
    member, generation = wire.become_stable(group)
    for version in (0, 3, 4, 6, 7, 9):
        wire.ask(join(group, protocol_type="connect"), version, note="other type")
        wire.ask(join(group, protocols={"sticky": SUBSCRIBED}), version, note="other protocol")
        wire.ask(join(group, protocols={}), version, note="no protocol")
        wire.ask(join(group, "stranger"), version, note="unknown member")
        wire.ask(join(group, member, protocol_type="connect"), version, note="other type, member")
        wire.ask(join(group, member, session_timeout=1), version, note="session")
    wire.ask(join(group, member, protocols={"sticky": SUBSCRIBED}), 9, note="the only member changes its protocol")
    wire.look(group)
    wire.ask(beat(group, generation, member), 4, note="the generation before")


@script
def leader_rejoins(wire: Wire) -> None:
    for version in (0, 1, 4, 5, 8, 9):
        group = wire.group()
        member, generation = wire.become_stable(group)
        wire.ask(join(group, member), version, note="leader")
        wire.ask(join(group, member), version, note="leader, completing")
        wire.ask(join(group, member, protocols={"range": b"else"}), version, note="leader, else")
        wire.ask(sync(group, generation, member, {member: b"x"}), 5, note="generation before")
        wire.look(group)


@script
def follower_rejoins(wire: Wire) -> None:
    group = wire.group()
    first, second, generation = wire.become_two(group)
    for version in range(10):
        wire.ask(join(group, second), version, "b", note="nothing new")
    wire.look(group)
    wire.park(join(group, second, {"range": subscription("three")}), 9, "b", note="other topics")
    wire.look(group)
    wire.ask(beat(group, generation, first), 4, note="preparing")
    wire.ask(beat(group, generation, second), 4, "c", note="preparing, parked")
    wire.ask(beat(group, generation - 1, first), 4, note="preparing, old")
    wire.ask(sync(group, generation, first), 5, note="preparing")
    wire.ask(sync(group, generation - 1, first), 5, note="preparing, old")
    wire.ask(commit(group, {("one", 0): 7}, generation, first), 9, note="preparing")
    wire.ask(commit(group, {("one", 0): 8}, generation - 1, first), 9, note="preparing, old")
    wire.ask(join(group, "stranger"), 9, "c", note="preparing")
    wire.ask(join(group, first), 9, "a")
    wire.take("b")
    wire.look(group)
    wire.ask(commit(group, {("one", 0): 9}, generation + 1, first), 9, note="completing")
    wire.ask(join(group, second, {"range": subscription("three")}), 9, "b", note="completing, nothing new")
    wire.park(sync(group, generation + 1, second, {second: b"ignored"}), 5, "b")
    wire.ask(sync(group, generation + 1, first, {first: b"1", second: b"2", "stranger": b"3"}), 5)
    wire.take("b")
    wire.ask(sync(group, generation + 1, second, {second: b"ignored"}), 5, "b", note="again")
    wire.ask(sync(group, generation + 1, first, {first: b"ignored"}), 5, note="again")
    wire.look(group)


@script
def completing_is_interrupted(wire: Wire) -> None:
    group = wire.group()
    first, second, generation = wire.become_two(group)
    wire.park(join(group, first), 9, "a", note="leader")
    wire.ask(join(group, second), 9, "b")
    wire.take("a")
    wire.park(sync(group, generation + 1, second), 5, "b")
    wire.park(join(group, first, {"range": subscription("three")}), 9, "a", note="leader changes its mind")
    wire.take("b")
    wire.look(group)
    wire.ask(leave(group, second), 5, "b")
    wire.take("a")
    wire.look(group)


@script
def protocols_are_voted_for(wire: Wire) -> None:
    group = wire.group()
    member, _ = wire.become_stable(group, protocols={"a": b"1", "b": b"2", "c": b"3"})
    given = wire.ask(join(group, protocols={"c": b"4", "b": b"5", "d": b"6"}), 9, "b").member_id
    wire.park(join(group, given, protocols={"c": b"4", "b": b"5", "d": b"6"}), 9, "b")
    wire.ask(join(group, protocols={"d": b"7"}), 9, "c", note="not common")
    wire.ask(join(group, protocols={"a": b"7"}), 9, "c", note="no longer common")
    wire.ask(join(group, member, protocols={"a": b"1", "b": b"2", "c": b"3"}), 9)
    wire.take("b")
    wire.look(group)


@script
def odd_protocols(wire: Wire) -> None:
    for protocols in ({"": b""}, {"range": b""}, {"range": b"\0"}, {"range": b"\1"}, {"x" * 30_000: b"1"},
                      {"\n\0": b"\n"}):  # fmt: skip
        for kind in ("consumer", "connect", "\0", "y" * 20_000):
            group = wire.group()
            member, generation = wire.become_stable(group, protocols=protocols, protocol_type=kind)
            wire.look(group)
            wire.ask(commit(group, {("one", 0): 1, ("three", 0): 2}, generation, member), 9)
            wire.ask(delete_offsets(group, {"one": [0, 1], "nowhere": [0]}), 0, note="subscribed?")
            wire.ask(DeleteGroupsRequest(groups_names=[group]), 2)
            wire.ask(leave(group, member), 5)
            wire.ask(delete_offsets(group, {"one": [0, 1], "nowhere": [0]}), 0, note="empty")
            wire.look(group)


# -- syncing ----------------------------------------------------------------------------------------------------------


@script
def syncs_that_are_refused(wire: Wire) -> None:
    group = wire.group()
    joined = wire.become_member(group)
    member, generation = joined.member_id, joined.generation_id
    for state in ("completing", "stable"):
        for version in range(6):
            wire.ask(sync("", generation, member), version, note=f"{state}, no group id")
            wire.ask(sync("nobody's", generation, member), version, note=f"{state}, unknown group")
            wire.ask(sync(group, generation, "stranger"), version, note=f"{state}, stranger")
            wire.ask(sync(group, generation, ""), version, note=f"{state}, no member id")
            for away in (-1, 1, -2, 2**31 - 2):
                wire.ask(sync(group, generation + away, member), version, note=f"{state}, generation {away}")
        for kind, name in (("connect", "range"), ("consumer", "sticky"), ("", None), (None, ""), (None, None)):
            wire.ask(sync(group, generation, member, protocol_type=kind, protocol_name=name), 5, note=state)
        wire.ask(sync(group, generation, member, group_instance_id="i"), 3, note=f"{state}, not static")
        wire.ask(sync(group, generation, member, {member: b"m"}, protocol_type="consumer", protocol_name="range"), 5)
        wire.look(group)
    for version in range(6):
        wire.ask(sync(group, generation, member), version, note="again")


# -- heartbeats, leaving ----------------------------------------------------------------------------------------------


@script
def heartbeats_that_are_refused(wire: Wire) -> None:
    group, simple = wire.group(), wire.group()
    member, generation = wire.become_stable(group)
    wire.ask(commit(simple, {("one", 0): 1}), 9)
    for version in range(5):
        wire.ask(beat("", generation, member), version, note="no group id")
        wire.ask(beat("nobody's", generation, member), version, note="unknown group")
        wire.ask(beat(simple, -1, ""), version, note="simple group")
        wire.ask(beat(simple, 0, "x"), version, note="simple group")
        wire.ask(beat(group, generation, "stranger"), version, note="stranger")
        wire.ask(beat(group, generation, ""), version, note="no member id")
        wire.ask(beat(group, generation + 1, member), version, note="generation to come")
        wire.ask(beat(group, -1, member), version, note="generation -1")
        if version >= 3:
            wire.ask(beat(group, generation, member, "i"), version, note="not static")
            wire.ask(beat(group, generation, "", "i"), version, note="not static")


@script
def leaving(wire: Wire) -> None:
    for version in range(6):
        group, simple = wire.group(), wire.group()
        wire.ask(commit(simple, {("one", 0): 1}), 9)
        member, _ = wire.become_stable(group)
        wire.ask(leave("", member), version, note="no group id")
        wire.ask(leave("nobody's", member), version, note="unknown group")
        wire.ask(leave(simple, member), version, note="simple group")
        wire.ask(leave(group, "stranger"), version, note="stranger")
        wire.ask(leave(group, ""), version, note="no member id")
        if version >= 3:
            wire.ask(leave(group), version, note="nobody")
            wire.ask(leave("nobody's"), version, note="nobody, unknown group")
            wire.ask(leave(group, ("", "i"), (member, "i"), ("", None), ("x", "y")), version, note="not static")
            wire.ask(leave(group, "stranger", member, member), version, note="twice")
        else:
            wire.ask(leave(group, member), version)
        wire.ask(leave(group, member), version, note="again")
        wire.ask(beat(group, 1, member), 4, note="gone")
        wire.look(group)


# -- static members ---------------------------------------------------------------------------------------------------


@script
def static_member_starts_again(wire: Wire) -> None:
    for version in range(5, 10):
        group = wire.group()
        joined = wire.ask(join(group, group_instance_id="i"), version)
        old, generation = joined.member_id, joined.generation_id
        wire.ask(sync(group, generation, old, {old: b"mine"}, group_instance_id="i"), 5)
        new = wire.ask(join(group, group_instance_id="i"), version, note="again").member_id
        wire.look(group)
        wire.ask(beat(group, generation, old, "i"), 4, note="old")
        wire.ask(beat(group, generation, old), 4, note="old, without instance")
        wire.ask(sync(group, generation, old, group_instance_id="i"), 5, note="old")
        wire.ask(join(group, old, group_instance_id="i"), version, note="old")
        wire.ask(commit(group, {("one", 0): 1}, generation, old, group_instance_id="i"), 9, note="old")
        wire.ask(leave(group, (old, "i")), 5, note="old")
        wire.ask(beat(group, generation, new, "i"), 4, note="new")
        wire.ask(beat(group, generation, new, "j"), 4, note="other instance")
        wire.ask(beat(group, generation, new), 4, note="new, without instance")
        wire.ask(sync(group, generation, new, group_instance_id="i"), 5, note="new")
        wire.ask(commit(group, {("one", 0): 1}, generation, new, group_instance_id="i"), 9, note="new")
        wire.ask(join(group, new), version, note="new, without instance")
        wire.ask(join(group, new, group_instance_id="j"), version, note="new, other instance")
        wire.ask(leave(group, ("", "j"), ("", "i")), 5, note="administrator")
        wire.look(group)


@script
def static_follower_starts_again(wire: Wire) -> None:
    for version in range(5, 10):
        group = wire.group()
        first = wire.ask(join(group, group_instance_id="i"), version).member_id
        wire.ask(sync(group, 1, first, {first: b"mine"}), 5)
        wire.park(join(group, group_instance_id="j"), version, "b")
        wire.ask(join(group, first, group_instance_id="i"), version)
        second = wire.take("b").member_id
        wire.park(sync(group, 2, second), 5, "b")
        wire.ask(sync(group, 2, first, {first: b"1", second: b"2"}), 5)
        wire.take("b")
        new = wire.ask(join(group, group_instance_id="j"), version, "b", note="follower again").member_id
        wire.ask(sync(group, 2, new, group_instance_id="j"), 5, "b")
        wire.ask(join(group, group_instance_id="i"), version, note="leader again")
        wire.look(group)


@script
def odd_instance_ids(wire: Wire) -> None:
    for instance in ("", " ", "\0", "z" * 900):
        group = wire.group()
        wire.ask(join(group, group_instance_id=instance), 9)
        wire.look(group)


# -- offsets ----------------------------------------------------------------------------------------------------------


@script
def commits_of_nobody(wire: Wire) -> None:
    for version in range(2, 11):
        group = wire.group()
        one = wire.ids["one"] if version >= 10 else "one"
        three = wire.ids["three"] if version >= 10 else "three"
        nowhere = b"\7" * 16 if version >= 10 else "nowhere"
        for generation, member in ((0, ""), (5, "x"), (-2, ""), (-1, "x")):
            other = wire.group()
            wire.ask(commit(other, {(one, 0): 1}, generation, member), version, note=f"{generation} {member}")
            wire.look(other)
        wire.ask(commit("", {(one, 0): 1}), version, note="no group id")
        wire.ask(fetch("", None, 9), 9)
        wire.ask(commit(group, {}), version, note="nothing")
        wire.ask(commit(group, {(nowhere, 0): 1, (one, 9): 1, (one, -1): 1, (one, 1): 1}), version, note="nowhere")
        wire.look(group)
        wire.ask(commit(group, {(nowhere, 0): 1, (one, 0): 1, (one, 7): 2}), version, note="partly nowhere")
        wire.ask(commit(group, {(three, 0): (3, "m" * 4096), (three, 1): (4, "m" * 4097)}), version, note="metadata")
        wire.ask(commit(group, {(three, 2): (5, "ž" * 4096), (one, 0): (6, None)}), version, note="metadata")
        wire.look(group)
        for offset in (-1, -2, 2**63 - 1, -(2**63)):
            wire.ask(commit(group, {(one, 0): offset}), version, note=f"offset {offset}")
            wire.look(group)
        wire.ask(commit(group, {(one, 0): 3}, leader_epoch=5), version, note="epoch")
        wire.ask(commit(group, {(one, 0): 3}, leader_epoch=-7), version, note="epoch")
        if version < 5:
            for time_ms in (100_000, 2**63 - 1):
                wire.ask(commit(group, {(one, 0): 3}, retention_time=time_ms), version, note=f"retention {time_ms}")
        if version >= 7:
            wire.ask(commit(group, {(one, 0): 3}, group_instance_id="i"), version, note="instance")
        wire.look(group)


@script
def commits_to_the_same_partition_twice(wire: Wire) -> None:
    group = wire.group()
    request = commit(group, {("one", 0): 1, ("three", 0): 2})
    request.topics = [*request.topics, *commit(group, {("one", 0): 9}).topics]
    for version in (2, 8, 9):
        wire.ask(request, version)
        wire.look(group)


@script
def commits_beside_members(wire: Wire) -> None:
    for version in range(2, 11):
        group = wire.group()
        one = wire.ids["one"] if version >= 10 else "one"
        member, generation = wire.become_stable(group)
        for its_generation, its_member in (
            (-1, ""), (-1, member), (-1, "stranger"), (-2, ""), (generation, "stranger"), (generation, ""),
            (generation - 1, member), (generation + 1, member), (generation, member),
        ):  # fmt: skip
            note = f"{its_generation} {'member' if its_member == member else its_member!r}"
            wire.ask(commit(group, {(one, 0): 1, (one, 9): 2}, its_generation, its_member), version, note=note)
        if version >= 7:
            for its_member in ("", member):
                wire.ask(commit(group, {(one, 0): 1}, -1, its_member, group_instance_id="i"), version)
                wire.ask(commit(group, {(one, 0): 1}, generation, its_member, group_instance_id="i"), version)
        wire.look(group)
        wire.ask(leave(group, member), 5)
        for its_generation, its_member in ((-1, ""), (-1, "x"), (generation, member), (generation, ""), (0, "")):
            wire.ask(commit(group, {(one, 0): 4}, its_generation, its_member), version, note="empty")
        wire.look(group)


@script
def offsets_are_fetched(wire: Wire) -> None:
    group = wire.group()
    wire.ask(commit(group, {("one", 0): (5, "text"), ("three", 2): (7, None)}, leader_epoch=0), 9)
    for version in range(1, 11):
        one = wire.ids["one"] if version >= 10 else "one"
        three = wire.ids["three"] if version >= 10 else "three"
        nowhere = b"\7" * 16 if version >= 10 else "nowhere"
        for name in (group, "nobody's", ""):
            wire.ask(fetch(name, {one: [0, 1, -1], three: [2, 0]}, version), version)
            wire.ask(fetch(name, {nowhere: [0], three: []}, version), version, note="unknown")
            wire.ask(fetch(name, {}, version), version, note="nothing")
            if version >= 2:
                wire.ask(fetch(name, None, version), version, note="all")
            if version >= 7:
                wire.ask(fetch(name, None, version, stable=True), version, note="stable")
        if version >= 8:
            wire.ask(OffsetFetchRequest(groups=[]), version)
            wire.ask(OffsetFetchRequest(groups=[asked(group, None), asked("", {}), asked(group, {one: [0]})]), version)
        if version >= 9:
            for member, epoch in (("x", -1), ("x", 0), ("x", 3), ("", -1), ("", 0), (None, 0)):
                wire.ask(fetch(group, None, version, member=member, epoch=epoch), version, note=f"{member} {epoch}")
                wire.ask(fetch("nobody's", None, version, member=member, epoch=epoch), version, note=f"{member}")
        if version >= 10:
            wire.ask(fetch(group, {ZERO_UUID: [0]}, version), version, note="zero id")


@script
def offsets_are_deleted(wire: Wire) -> None:
    group = wire.group()
    wire.ask(delete_offsets(group, {"one": [0]}), 0, note="unknown group")
    wire.ask(delete_offsets("", {"one": [0]}), 0, note="no group id")
    wire.ask(delete_offsets(group, {}), 0, note="unknown group, nothing")
    wire.ask(commit(group, {("one", 0): 5, ("three", 0): 7}), 9)
    wire.ask(delete_offsets(group, {}), 0, note="nothing")
    wire.ask(delete_offsets(group, {"one": [], "nowhere": [0], "three": [1, 9, -1]}), 0, note="not committed")
    wire.ask(delete_offsets(group, {"one": [0, 0, 4]}), 0)
    wire.look(group)
    wire.ask(delete_offsets(group, {"three": [0]}), 0, note="the last")
    wire.ask(commit(group, {("one", 0): 5}), 9, note="Kafka keeps a simple group without offsets until it restarts")
    for kind in ("consumer", "connect"):
        other = wire.group()
        member, generation = wire.become_stable(other, protocol_type=kind)
        wire.ask(commit(other, {("one", 0): 5, ("three", 0): 7}, generation, member), 9)
        wire.ask(delete_offsets(other, {"one": [0, 4], "three": [0], "nowhere": [0]}), 0, note=kind)
        wire.look(other)
        wire.ask(leave(other, member), 5)
        wire.ask(delete_offsets(other, {"one": [0]}), 0, note=f"{kind}, empty")
        wire.look(other)


# -- groups as a whole ------------------------------------------------------------------------------------------------


@script
def groups_are_deleted(wire: Wire) -> None:
    for version in range(3):
        simple, stable, empty, pending = (wire.group() for _ in range(4))
        wire.ask(commit(simple, {("one", 0): 5}), 9)
        wire.become_stable(stable)
        member, _ = wire.become_stable(empty)
        wire.ask(leave(empty, member), 5)
        wire.ask(join(pending), 9)
        for names in ([], [""], ["nobody's"], [simple, "nobody's", stable], [simple], [empty, empty], [pending]):
            wire.ask(DeleteGroupsRequest(groups_names=names), version)
        for group in (simple, stable, empty):
            wire.look(group)


@script
def groups_are_listed(wire: Wire) -> None:
    simple, stable, empty, consumer = (wire.group() for _ in range(4))
    wire.ask(commit(simple, {("one", 0): 5}), 9)
    wire.become_stable(stable)
    member, _ = wire.become_stable(empty, protocol_type="connect")
    wire.ask(leave(empty, member), 5)
    wire.ask(consumer_join(consumer, "m1"), 1)
    for version in range(6):
        wire.ask(ListGroupsRequest(), version)
        for states in (["Stable"], ["stable", "EMPTY"], ["nonsense"], [""], ["Dead"]) if version >= 4 else ():
            wire.ask(ListGroupsRequest(states_filter=states), version, note=str(states))
    for types in (["classic"], ["Consumer"], ["CLASSIC", "consumer"], ["nonsense"], [""], ["share"], ["unknown"]):
        wire.ask(ListGroupsRequest(types_filter=types), 5, note=str(types))
        wire.ask(ListGroupsRequest(types_filter=types, states_filter=["stable"]), 5, note=str(types))


@script
def groups_are_described(wire: Wire) -> None:
    simple, stable, consumer = (wire.group() for _ in range(3))
    wire.ask(commit(simple, {("one", 0): 5}), 9)
    wire.become_stable(stable)
    wire.ask(consumer_join(consumer, "m1"), 1)
    for version in range(7):
        for names in ([], [""], ["nobody's"], [simple], [consumer], [stable], [stable, "nobody's", simple]):
            for asks in (False, True) if version >= 3 else (False,):
                request = DescribeGroupsRequest(groups=names, include_authorized_operations=asks)
                wire.ask(request, version, note=f"{len(names)} {asks}")
    for version in range(2):
        for names in ([], [""], ["nobody's"], [simple], [stable], [consumer], [consumer, "nobody's"]):
            for asks in (False, True):
                request = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=asks)
                wire.ask(request, version, note=f"{len(names)} {asks}")


@script
def odd_group_ids(wire: Wire) -> None:
    for tail in (" ", "\0", "a\nb", "ž€😀", "/..", "x" * 300, "y" * 10_000):
        group = f"{wire.group()}{tail}"
        wire.ask(commit(group, {("one", 0): 5}), 9, note=repr(tail[:9]))
        wire.look(group)
        wire.become_stable(group)
        wire.look(group)
        other = f"{wire.group()}{tail}"
        wire.ask(consumer_join(other, "m1"), 1)
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[other]), 1)
    for blank in (" ", "\n"):
        wire.ask(join(blank), 9, note="blank")
        wire.ask(commit(blank, {("one", 0): 1}), 9, note="blank")
        wire.ask(consumer_join(blank, "m1"), 1, note="blank")


# -- too large --------------------------------------------------------------------------------------------------------


@script
def what_is_too_large_for_the_log(wire: Wire) -> None:
    """What becomes of the group differs: Kafka keeps its members and rebalances, Ottla goes back to what is stored."""
    # Metadata that is too large is refused by Ottla when the member joins: group.member.max.metadata.bytes.
    group = wire.group()
    joined = wire.become_member(group, protocols={"range": SUBSCRIBED})
    wire.ask(sync(group, joined.generation_id, joined.member_id, {joined.member_id: bytes(2 << 20)}), 5)
    wire.ask(fetch(group, None, 8), 8)
    for version in (2, 8, 9):
        group = wire.group()
        request = commit(group, {})
        request.topics = commit(group, {("one", 0): (5, "m" * 4096)}).topics * 400
        wire.ask(request, version, note="commit")
        wire.ask(fetch(group, None, 8), 8)
        wire.ask(DescribeGroupsRequest(groups=[group]), 6)
    group = wire.group()
    member, generation = wire.become_stable(group)
    wire.park(join(group), 3, "b")
    request = commit(group, {}, generation, member)
    request.topics = commit(group, {("one", 0): (5, "m" * 4096)}).topics * 400
    wire.ask(request, 8, note="commit in a rebalance")
    wire.ask(beat(group, generation, member), 4)
    wire.ask(join(group, member), 9)
    wire.take("b")
