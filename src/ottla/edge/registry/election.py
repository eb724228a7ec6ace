"""Which instance of the registry is the leader: a consumer group decides, with the protocol of Confluent's registry.

Every instance is a member of the group and sends its address. The member that the coordinator chose as leader of the
group assigns the role: the instance that has it keeps it, otherwise the smallest address gets it. Instances of
Confluent's registry can be members of the same group.

A rebalance takes time: the coordinator makes a new group wait for more members, three seconds with Kafka's default, and
any group for members that have ended, until their sessions expire. An instance does not wait for it:

- Before it joins, it acts on what the group says: it is the leader if it is alone, otherwise it follows the leader of
  the last rebalance. If that is itself, and another rebalance has begun, its successor may be the reason: it waits.
- A process that starts removes the member with its own address from the group: that process cannot run any more,
  because this one listens there. It does so once. If two instances are configured with one address, which is reported,
  they do not remove each other again and again.
- An instance that replaces a leader whose process has ended removes it from the group (`Registry.replace_leader`).

Two leaders at a time cannot both succeed, because the transactions of `store.py` fence the earlier one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RemovedFromGroup
from ottla.client.membership import DescribedMember, Membership, members_of, remove_members
from ottla.edge.registry.store import CLIENT_ID, TIMEOUT_S, StoreSettings
from ottla.env.tasks import keep_thread

log = logging.getLogger(__name__)

GROUP_DEFAULT: Final = "schema-registry"
_PROTOCOL_TYPE: Final = "sr"
_PROTOCOL: Final = "v0"
_SESSION_S: Final = 10.0
_HEARTBEAT_S: Final = 1.0
_PAUSE_S: Final = 0.5
_DUPLICATE_URLS: Final = 1
#: an instance that could not be reached is not chosen as a successor for this long
_ENDED_S: Final = 5.0
#: how long the coordinator is asked when the leader has ended
_REQUEST_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Instance:
    """The address of an instance, for requests that other instances forward to it."""

    scheme: str
    host: str
    port: int
    is_eligible: bool = True

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def as_json(self, *, is_leader: bool = False) -> dict[str, Any]:
        return {
            "version": 1, "host": self.host, "port": self.port, "master_eligibility": self.is_eligible,
            "scheme": self.scheme, "leader": is_leader,
        }  # fmt: skip

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Instance:
        eligible = value.get("master_eligibility", True)
        return cls(value.get("scheme", "http"), value["host"], int(value["port"]), bool(eligible))


def assign(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the assignment of every member: which of them is the leader. Pure.

    Members with the same address cannot reach each other, so that is an error, which every member reports.
    """
    parsed = {member: json.loads(data) for member, data in members.items()}
    instances = {member: Instance.parse(value) for member, value in parsed.items()}
    eligible = [member for member, instance in instances.items() if instance.is_eligible]
    current = [member for member in eligible if parsed[member].get("leader")]
    candidates = current if len(current) == 1 else eligible
    leader = min(candidates, key=lambda member: instances[member].url, default=None)
    has_duplicates = len({instance.url for instance in instances.values()}) < len(instances)
    assignment = {
        "version": 1,
        "error": _DUPLICATE_URLS if has_duplicates else 0,
        "master": leader,
        "master_identity": instances[leader].as_json() if leader is not None else None,
    }
    data = json.dumps(assignment).encode()
    return dict.fromkeys(members, data)


def client_id_of(url: str) -> str:
    """Return the client id of an instance in the group. Brokers hide the address in the metadata during a rebalance."""
    return f"{CLIENT_ID}-{url}"


def members_at(urls: Collection[str], members: Mapping[str, DescribedMember]) -> list[str]:
    """Return the ids of the members that have one of these addresses. Pure."""
    client_ids = {client_id_of(url) for url in urls}
    return [
        member_id
        for member_id, member in members.items()
        if member.client_id in client_ids or any(each.url in urls for each in _instances([member]))
    ]


def leader_of(members: Iterable[DescribedMember]) -> Instance | None:
    """Return the leader of the last rebalance; None if there was none. Pure."""
    identities = (_parse(each.assignment).get("master_identity") for each in members)
    return next((Instance.parse(each) for each in identities if each), None)


def _is_stable(members: Mapping[str, DescribedMember]) -> bool:
    """Return whether the group does not rebalance. While it does, brokers hide the metadata."""
    return all(each.metadata for each in members.values())


def _instances(members: Iterable[DescribedMember]) -> set[Instance]:
    """Return the addresses in the metadata of the members."""
    return {Instance.parse(value) for each in members if {"host", "port"} <= (value := _parse(each.metadata)).keys()}


def _parse(data: bytes) -> dict[str, Any]:
    """Return the JSON object; empty if it is hidden, or of a group of another kind, which this instance cannot join."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Election:
    """Takes part in the election, in a thread of its own, for as long as the process lives."""

    def __init__(
        self, settings: StoreSettings, group: str, own: Instance, elected: Callable[[Instance | None], None]
    ) -> None:
        """`elected` is called in the thread with the new leader; None if there is none."""
        self._settings = settings
        self._group = group
        self._own = own
        self._elected = elected
        self._is_leader = False
        #: whether an earlier process with this address can still be a member of the group
        self._has_predecessor = True
        #: the members of the group when it was last stable
        self._seen: set[Instance] = set()
        #: address of an instance that could not be reached, and when
        self._ended: dict[str, float] = {}
        self._is_stopped = threading.Event()
        self._rejoin = threading.Event()
        self._thread = keep_thread(self._run, "registry-election")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that another instance becomes the leader at once. Wait for up to two seconds."""
        self._is_stopped.set()
        self._rejoin.set()
        self._thread.join(2.0)

    def claim(self) -> None:
        """Keep the role of the leader in the next election, because the leader before has ended."""
        self._is_leader = True

    def successor_of(self, leader: Instance) -> Instance | None:
        """Return the member that takes the place of a leader that has ended; None if there is none.

        While the group rebalances, the members that were seen last are taken.
        """
        self._ended[leader.url] = time.monotonic()
        with self._connect(_REQUEST_S) as cluster:
            self._note_members(members_of(cluster, self._group))
        ended = self._urls_ended()
        others = [each for each in self._seen | {self._own} if each.is_eligible and each.url not in ended]
        return min(others, key=lambda each: each.url, default=None)

    def remove_ended(self) -> None:
        """Remove the instances that could not be reached from the group, so that a rebalance need not wait for them."""
        with self._connect(_REQUEST_S) as cluster:
            self._remove(cluster, self._urls_ended(), members_of(cluster, self._group))

    def resign(self) -> None:
        """Join again as an instance that is not the leader, because another one has fenced it."""
        self._is_leader = False
        self._rejoin.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                with self._connect() as cluster:
                    self._act_before_join(cluster)
                    member = Membership(
                        cluster, self._group, protocol_type=_PROTOCOL_TYPE, protocol=_PROTOCOL,
                        session_timeout_s=_SESSION_S,
                    )  # fmt: skip
                    try:
                        self._take_part(cluster, member)
                    finally:
                        member.leave()
            except RemovedFromGroup as error:
                log.warning("removed from group %s, joining again: %s", self._group, error)
                self._announce(None)
            except ClientError as error:
                log.warning("group %s: %s", self._group, error)
                self._is_stopped.wait(_PAUSE_S)

    def _act_before_join(self, cluster: Cluster) -> None:
        members = members_of(cluster, self._group)
        leader, is_stable = leader_of(members.values()), _is_stable(members)
        if self._has_predecessor:
            self._has_predecessor = False
            for member_id in self._remove(cluster, {self._own.url}, members):
                del members[member_id]
        self._note_members(members)
        if not members:
            leader, is_stable = self._own, True
        is_own = leader is not None and leader.url == self._own.url
        if leader is not None and not self._is_leader and (not is_own or (is_stable and self._own.is_eligible)):
            self._announce(leader)

    def _take_part(self, cluster: Cluster, member: Membership) -> None:
        while not self._is_stopped.is_set():
            self._rejoin.clear()
            own = json.dumps(self._own.as_json(is_leader=self._is_leader)).encode()
            data = member.join(own, assign)
            if data is None:
                continue
            assignment = json.loads(data)
            if assignment["error"]:
                log.warning(
                    "two members of group %s have the same address: give each its own with host.name; requests cannot "
                    "be forwarded otherwise", self._group,
                )  # fmt: skip
            identity = assignment.get("master_identity")
            self._announce(Instance.parse(identity) if identity else None)
            self._note_members(members_of(cluster, self._group))
            while not self._rejoin.wait(_HEARTBEAT_S) and member.heartbeat():
                pass

    def _announce(self, leader: Instance | None) -> None:
        self._is_leader = leader is not None and leader.url == self._own.url
        self._elected(leader)

    def _connect(self, timeout_s: float = TIMEOUT_S) -> Cluster:
        return self._settings.connect(timeout_s, client_id_of(self._own.url))

    def _note_members(self, members: Mapping[str, DescribedMember]) -> None:
        if members and _is_stable(members):
            self._seen = _instances(members.values())

    def _urls_ended(self) -> set[str]:
        """Return the addresses that could not be reached a moment ago."""
        now = time.monotonic()
        return {url for url, at in list(self._ended.items()) if now - at < _ENDED_S}

    def _remove(self, cluster: Cluster, urls: Collection[str], members: Mapping[str, DescribedMember]) -> Sequence[str]:
        """Remove the members with these addresses from the group. Return their ids."""
        member_ids = members_at(urls, members)
        if member_ids:
            log.info("removing %s from group %s: its process has ended", ", ".join(sorted(urls)), self._group)
            remove_members(cluster, self._group, member_ids, "its process has ended")
        return member_ids
