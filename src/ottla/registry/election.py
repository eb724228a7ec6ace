"""Which instance of the registry is the leader: a consumer group decides, with the protocol of Confluent's registry.

Every instance is a member of the group and sends its address. The member that the coordinator chose as leader of the
group assigns the role: the instance that has it keeps it, otherwise the smallest address gets it. Instances of
Confluent's registry can be members of the same group.

The coordinator makes a new group wait for more members, three seconds with Kafka's default. Until then an instance that
sees no other member acts as the leader. Two of them cannot both succeed, because the transactions of `store.py` fence
the earlier one. For the same reason an instance that finds the leader's process ended need not wait until the session
of the leader expires (`Registry.replace_leader`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RemovedFromGroup
from ottla.client.membership import Membership, members_of
from ottla.env.tasks import keep_thread
from ottla.registry.store import StoreSettings

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
#: how long the members of the group are asked for when the leader has ended
_SUCCESSOR_S: Final = 5.0


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
        now = time.monotonic()
        self._ended[leader.url] = now
        with self._settings.connect(_SUCCESSOR_S) as cluster:
            members = members_of(cluster, self._group)
        if members and all(members.values()):
            self._seen = {Instance.parse(json.loads(data)) for data in members.values()}
        others = [
            each for each in self._seen | {self._own}
            if each.is_eligible and now - self._ended.get(each.url, -_ENDED_S) >= _ENDED_S
        ]  # fmt: skip
        return min(others, key=lambda each: each.url, default=None)

    def resign(self) -> None:
        """Join again as an instance that is not the leader, because another one has fenced it."""
        self._is_leader = False
        self._rejoin.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                with self._settings.connect() as cluster:
                    self._lead_while_alone(cluster)
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

    def _lead_while_alone(self, cluster: Cluster) -> None:
        if self._own.is_eligible and not self._is_leader and not members_of(cluster, self._group):
            self._announce(self._own)

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
                    "two members of group %s have the same address. If no instance was restarted a moment ago, give "
                    "each its own address with host.name: requests cannot be forwarded otherwise", self._group,
                )  # fmt: skip
            identity = assignment.get("master_identity")
            self._announce(Instance.parse(identity) if identity else None)
            members = members_of(cluster, self._group)
            if all(members.values()):
                self._seen = {Instance.parse(json.loads(each)) for each in members.values()}
            while not self._rejoin.wait(_HEARTBEAT_S) and member.heartbeat():
                pass

    def _announce(self, leader: Instance | None) -> None:
        self._is_leader = leader is not None and leader.url == self._own.url
        self._elected(leader)
