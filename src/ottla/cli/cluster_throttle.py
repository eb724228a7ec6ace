"""Throttles of moves: the settings that `kafka-reassign-partitions --throttle` sets and removes.

Works with Ottla and with Apache Kafka. Verbs import this file when they run, never before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.metadata.placement import Move
from ottla.cli.cluster_admin import ClusterAdmin
from ottla.cli.error_codes import check
from ottla.cli.output import shown
from ottla.client.protocol.metadata import Node
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
#: topics in one request
_TOPICS_PER_REQUEST = 500
_LEADERS = "leader.replication.throttled.replicas"
_FOLLOWERS = "follower.replication.throttled.replicas"
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

#: values of settings by name; None removes a setting
Settings = Mapping[str, str | None]


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


def throttle(admin: ClusterAdmin, moves: Sequence[Move], rate: int) -> None:
    """Limit what each broker sends and fetches for these moves to ``rate`` bytes per second."""
    for node in admin.client.brokers():
        _alter(admin, node, _BROKER, {str(node.broker_id): dict.fromkeys(_RATES, str(rate))})
    _alter_topics(admin, throttled_replicas(moves))


def unthrottle(admin: ClusterAdmin) -> None:
    """Remove the throttles of all topics and brokers."""
    throttled = _throttled_topics(admin, [topic.name or "" for topic in admin.client.metadata().topics])
    _alter_topics(admin, {topic: {_LEADERS: None, _FOLLOWERS: None} for topic in throttled})
    for node in admin.client.brokers():
        _alter(admin, node, _BROKER, {str(node.broker_id): dict.fromkeys(_RATES)})


def _throttled_topics(admin: ClusterAdmin, topics: Sequence[str]) -> list[str]:
    found = []
    for start in range(0, len(topics), _TOPICS_PER_REQUEST):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=[_LEADERS, _FOLLOWERS]
                )
                for name in topics[start : start + _TOPICS_PER_REQUEST]
            ]
        )
        rows = admin.client.ask_any(request).results
        found += [row.resource_name for row in rows if any(config.value for config in row.configs)]
    return found


def _alter_topics(admin: ClusterAdmin, topics: Mapping[str, Settings]) -> None:
    names = list(topics)
    for start in range(0, len(names), _TOPICS_PER_REQUEST):
        part = names[start : start + _TOPICS_PER_REQUEST]
        _alter(admin, None, _TOPIC, {name: topics[name] for name in part})


def _alter(admin: ClusterAdmin, node: Node | None, kind: int, resources: Mapping[str, Settings]) -> None:
    """Change settings of topics or brokers. ``node`` is the broker to ask, None for any."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[
                    AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
                    for name, value in settings.items()
                ],
            )
            for resource, settings in resources.items()
        ]
    )
    reply = admin.client.ask_any(request) if node is None else admin.client.ask(node, request)
    for row in reply.responses:
        subject = f"throttle of {'topic' if kind == _TOPIC else 'broker'} {shown(row.resource_name)}"
        check(row.error_code, subject, row.error_message)
