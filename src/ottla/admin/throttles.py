"""Throttles of moves: the settings that `kafka-reassign-partitions --throttle` sets and removes.

Works with Ottla and with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.admin.client import AdminClient
from ottla.admin.moves import Move

_LEADERS = "leader.replication.throttled.replicas"
_FOLLOWERS = "follower.replication.throttled.replicas"
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: how errors begin
_SUBJECT = "throttle of "


def throttled_replicas(moves: Iterable[Move]) -> dict[str, dict[str, str]]:
    """Return the settings of each topic: its replicas send, and the added replicas fetch, at the throttled rate."""
    replicas: dict[str, dict[str, list[str]]] = {}
    for move in moves:
        number = move.partition.partition
        lists = replicas.setdefault(move.partition.topic, {_LEADERS: [], _FOLLOWERS: []})
        lists[_LEADERS] += [f"{number}:{broker}" for broker in move.old]
        lists[_FOLLOWERS] += [f"{number}:{broker}" for broker in move.added]
    return {
        topic: {name: ",".join(values) for name, values in lists.items() if values} for topic, lists in replicas.items()
    }


def throttle(client: AdminClient, moves: Sequence[Move], rate: int) -> None:
    """Limit what each broker sends and fetches for these moves to ``rate`` bytes per second."""
    _alter_brokers(client, str(rate))
    client.alter_configs(
        "topic", {topic: values.items() for topic, values in throttled_replicas(moves).items()}, subject=_SUBJECT
    )


def throttled_topics(client: AdminClient) -> list[str]:
    """Return the topics that have throttled replicas."""
    values = client.topic_values((topic.name or "" for topic in client.metadata().topics), (_LEADERS, _FOLLOWERS))
    return sorted(topic for topic, found in values.items() if found)


def unthrottle(client: AdminClient) -> None:
    """Remove the throttles of all topics and brokers."""
    throttled = throttled_topics(client)
    client.alter_configs("topic", dict.fromkeys(throttled, ((_LEADERS, None), (_FOLLOWERS, None))), subject=_SUBJECT)
    _alter_brokers(client, None)


def _alter_brokers(client: AdminClient, rate: str | None) -> None:
    for node in client.brokers():
        client.alter_configs("broker", {str(node.broker_id): [(name, rate) for name in _RATES]}, subject=_SUBJECT)
