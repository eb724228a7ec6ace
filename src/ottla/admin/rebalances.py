"""The rebalance journal of Ottla brokers: who caused the last rebalances of a group, and which setting to look at.

Ottla brokers write one JSON record per finished rebalance to a compacted topic, keyed by group and generation modulo
20. The topic is small, so all of it is read. Any client may write to it, so its records are validated. Other brokers
have no such topic, and no request of Kafka's protocol returns these causes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.admin.failure import NotHealthy
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.client import AdminClient

JOURNAL_TOPIC = "__ottla_rebalances"

_NUMBERS = {
    "generation": "generation",
    "startedMs": "started_ms",
    "durationMs": "duration_ms",
    "membersBefore": "members_before",
    "membersAfter": "members_after",
    "causesLeftOut": "causes_left_out",
}
_CAUSE_TEXTS = {
    "kind": "kind",
    "memberId": "member_id",
    "clientId": "client_id",
    "clientHost": "client_host",
    "groupInstanceId": "group_instance_id",
    "detail": "detail",
}


class Advice(NamedTuple):
    """The settings to check and the explanation for one kind of cause."""

    settings: tuple[str, ...]
    text: str


#: by the kind of cause, as brokers write it
ADVICE: Mapping[str, Advice] = {
    "joined": Advice(
        ("group.instance.id", "group.initial.rebalance.delay.ms"),
        "Normal when you scale out. If it happens at each restart, give members a group.instance.id; if many start at "
        "once, raise the delay.",
    ),
    "left": Advice(
        ("group.instance.id",),
        "Normal when you scale in. In a rolling restart, static members get their partitions back without a rebalance.",
    ),
    "removed by an administrator": Advice(
        (), "An administrator removed the member; check that the removal was intended and is complete."
    ),
    "session timeout": Advice(
        ("session.timeout.ms", "heartbeat.interval.ms"),
        "No heartbeat in time: a killed process, a long pause (garbage collection, a frozen container) or a lost "
        "network. Keep the session at three heartbeats or more.",
    ),
    "max poll interval": Advice(
        ("max.poll.interval.ms", "max.poll.records"),
        "Processing took longer than allowed between two polls: take fewer records at a time, or allow more time.",
    ),
    "never fetched its assignment": Advice(
        ("rebalance.timeout.ms", "max.poll.interval.ms"),
        "The member joined and then went silent: look for a crash or a block in its rebalance listener.",
    ),
    "metadata change": Advice(
        ("partition.assignment.strategy",),
        "A member changed its subscription or its assignors: expected in a deployment, otherwise find the "
        "member that changes its subscription.",
    ),
    "new topic or partition": Advice(
        ("metadata.max.age.ms",), "Expected: topics that the group reads were created, deleted or got partitions."
    ),
    "leader rejoined": Advice(
        (), "The leading member asked for a new assignment, as after it restarted or saw new partitions."
    ),
    "coordinator moved": Advice(
        (), "The broker that coordinates the group restarted, or another took over; look at the brokers' log."
    ),
    "static member fenced": Advice(
        ("group.instance.id",), "Two consumers use the same group.instance.id; give each its own."
    ),
    "group protocol changed": Advice(
        ("group.protocol",), "Members moved between the classic and the consumer protocol: expected in an upgrade."
    ),
}


def read_journal(client: AdminClient, group: str, time_limit_s: float) -> list[bytes] | None:
    """Return the last value under each key of this group in each partition; None if the cluster has no journal.

    A group has entries in several partitions if its coordinator has moved to another broker.
    """
    topic = client.topics().get(JOURNAL_TOPIC)
    if topic is None:
        return None
    names = [partition.name for partition in topic.partitions]
    starts, ends = client.find_offsets(names, "earliest"), client.find_offsets(names, "latest")
    deadline = time.monotonic() + time_limit_s
    key_start = f"{group}/".encode()
    last: dict[tuple[TopicPartition, bytes], bytes] = {}
    for name in names:
        start, end = starts[name].offset or 0, ends[name].offset or 0
        if time.monotonic() >= deadline:
            raise NotHealthy(f"{JOURNAL_TOPIC} could not be read within {time_limit_s:g} s; raise --timeout")
        for record in client.read_records(name, start, end, committed=False) if end > start else ():
            key = record.key or b""
            # The name of a group may contain slashes, so the key must end with the prefix and digits.
            if key.startswith(key_start) and key[len(key_start) :].isdigit():
                last.pop((name, key), None)
                if record.value is not None:
                    last[name, key] = record.value
    return list(last.values())


def parse_journal(values: Sequence[bytes], group: str) -> list[dict[str, Any]]:
    """Return the rebalances in these records, newest first. Other records are ignored."""
    entries = [entry for value in values if (entry := _parse_entry(value, group)) is not None]
    return sorted(entries, key=lambda entry: (entry["started_ms"], entry["generation"]), reverse=True)


def _parse_entry(value: bytes, group: str) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("groupId") != group or not isinstance(found.get("causes"), list):
        return None
    entry: dict[str, Any] = {"type": str(found.get("groupType"))}
    for field, name in _NUMBERS.items():
        number = found.get(field)
        # Larger numbers are not times that a calendar has.
        if type(number) is not int or not 0 <= number < 2**47:
            return None
        entry[name] = number
    entry["causes"] = [
        {name: _text(cause.get(field)) for field, name in _CAUSE_TEXTS.items()}
        for cause in found["causes"]
        if isinstance(cause, dict)
    ]
    return entry


def _text(value: object) -> str | None:
    # JSON can have single surrogates, which cannot be printed.
    return None if value is None else str(value).encode(errors="replace").decode()


def advice_rows(rebalances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each kind of cause, the most frequent first."""
    kinds = Counter(cause["kind"] for one in rebalances for cause in one["causes"])
    return [
        {"kind": kind, "count": count, "settings": list(ADVICE[kind].settings), "advice": ADVICE[kind].text}
        for kind, count in kinds.most_common()
        if kind in ADVICE
    ]
