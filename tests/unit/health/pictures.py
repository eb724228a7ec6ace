"""A healthy cluster as a picture, and ways to break one part of it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ottla.admin.group_state import GroupListing
from ottla.admin.topic_state import PartitionState
from ottla.client.protocol.metadata import Node
from ottla.health.checks import CHECKS
from ottla.health.evaluation import evaluate
from ottla.health.findings import Finding
from ottla.health.types import (
    BrokerPicture,
    CertificatePicture,
    ClusterPicture,
    DirectoryPicture,
    Feature,
    GroupPicture,
    MemberPicture,
    Offsets,
    TopicPicture,
)
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.types import TopicPartition

NOW_MS = 1_800_000_000_000
NOW = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC)
GIB = 1 << 30
TOPIC_SETTINGS = {
    "cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": "604800000", "retention.bytes": "-1",
    "segment.bytes": "1073741824", "segment.ms": "604800000", "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false", "message.timestamp.type": "CreateTime",
}  # fmt: skip
BROKER_SETTINGS = {
    "listeners": "SASL_SSL://0.0.0.0:9093", "advertised.listeners": "", "authorizer.class.name": "acl",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    "super.users": "User:admin", "sasl.enabled.mechanisms": "SCRAM-SHA-512", "auto.create.topics.enable": "false",
    "default.replication.factor": "3", "min.insync.replicas": "2", "offsets.retention.minutes": "10080",
    "replica.fetch.max.bytes": "1048576", "message.max.bytes": "1048588", "unclean.leader.election.enable": "false",
    "leader.replication.throttled.rate": "9223372036854775807", "allow.everyone.if.no.acl.found": "false",
    "follower.replication.throttled.rate": "9223372036854775807",
}  # fmt: skip


def partition(topic: str, number: int, **fields: Any) -> PartitionState:
    """Return a partition with three replicas, all in sync, led by the preferred one; ``fields`` replace that."""
    replicas = tuple((number + step) % 3 + 1 for step in range(3))
    given: dict[str, Any] = {"leader": replicas[0], "replicas": replicas, "isr": replicas, **fields}
    return PartitionState(name=TopicPartition(topic, number), **given)


def topic(name: str, *partitions: PartitionState, count: int = 3, **settings: str) -> TopicPicture:
    """Return a topic; ``settings`` have underscores for dots."""
    own = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicPicture(
        name=name,
        internal=name.startswith("__"),
        partitions=partitions or tuple(partition(name, number) for number in range(count)),
        settings={**TOPIC_SETTINGS, **own},
    )


def directory(number: int, **fields: Any) -> DirectoryPicture:
    given = {"total_bytes": 800 * GIB, "usable_bytes": 400 * GIB, "size_bytes": 300 * GIB, **fields}
    return DirectoryPicture(broker_id=number, path="/data", **given)


def broker(number: int, **fields: Any) -> BrokerPicture:
    given: dict[str, Any] = {
        "node": Node(number, f"kafka-{number}.example", 9093),
        "rack": "abc"[(number - 1) % 3],
        "settings": BROKER_SETTINGS,
        "directories": (directory(number),),
        "versions": {0: (0, 12), 3: (0, 13)},
        "features": {"metadata.version": Feature(27, 27)},
        **fields,
    }
    return BrokerPicture(**given)


def member(name: str, *numbers: int, topics: Iterable[str] = ("orders",), **fields: Any) -> MemberPicture:
    assigned = tuple(TopicPartition("orders", number) for number in numbers)
    given: dict[str, Any] = {"topics": frozenset(topics), "partitions": assigned, **fields}
    return MemberPicture(member_id=name, client_id=f"client-{name}", host="/10.0.0.9", **given)


def group(name: str, *members: MemberPicture, state: str = "Stable") -> GroupPicture:
    listing = GroupListing(group_id=name, is_simple=False, state=state, group_type="classic")
    return GroupPicture(listing=listing, coordinator=1, members=members)


def group_lag(name: str, state: str = "Stable", read_at_ms: int = NOW_MS, **offsets: Any) -> GroupLag:
    """Return the lag of a group in partition 0 of `orders`: ``committed``, ``log_start``, ``log_end``, …"""
    given = {"committed": 100, "log_start": 0, "log_end": 100, **offsets}
    name_ = TopicPartition("orders", 0)
    return GroupLag(
        group_id=name, state=state, read_at_ms=read_at_ms, partitions={name_: PartitionLag(name=name_, **given)}
    )


def certificate(**fields: Any) -> CertificatePicture:
    given: dict[str, Any] = {
        "broker_id": 1, "listener": "SASL_SSL", "host": "kafka-1.example", "hosts": ("kafka-1.example",),
        "not_before": NOW - datetime.timedelta(days=10), "not_after": NOW + datetime.timedelta(days=300), **fields,
    }  # fmt: skip
    return CertificatePicture(**given)


def healthy(**fields: Any) -> ClusterPicture:
    """Return a healthy cluster of three brokers, with these fields replaced."""
    given: dict[str, Any] = {
        "read_at_ms": NOW_MS,
        "cluster_id": "c",
        "controller_id": 1,
        "bootstrap_hosts": ("kafka-1.example",),
        "brokers": brokers(),
        "topics": topics(),
        "offsets": {TopicPartition("orders", number): Offsets(0, 100, 100) for number in range(3)},
        "timestamps": {TopicPartition("orders", 0): NOW_MS - 1000},
        "groups": {"billing": group("billing", member("a", 0, 1), member("b", 2))},
        "quotas": (quota(1_000_000.0),),
        "certificates": (certificate(),),
        "lag": {"billing": group_lag("billing")},
        **fields,
    }
    return ClusterPicture(**given)


def brokers(**first: Any) -> dict[int, BrokerPicture]:
    """Return three brokers; these fields of the first one are replaced."""
    return {1: broker(1, **first), 2: broker(2), 3: broker(3)}


def broker_settings(each: Mapping[str, str], first: Mapping[str, str] | None = None) -> dict[int, BrokerPicture]:
    """Return three brokers with these settings; those of the first one alone come last."""
    return {
        number: broker(number, settings={**BROKER_SETTINGS, **each, **(first or {} if number == 1 else {})})
        for number in (1, 2, 3)
    }


def topics(*others: TopicPicture) -> dict[str, TopicPicture]:
    """Return the topics of the healthy cluster, and others, which replace those with the same name."""
    internal = (topic("__consumer_offsets"), topic("__transaction_state"))
    return {each.name: each for each in (topic("orders"), topic("payments"), *internal, *others)}


def quota(value: float) -> dict[str, Any]:
    return {
        "entity": "user=ana", "user": "ana", "client_id": None, "ip": None, "quota": "producer_byte_rate",
        "value": value,
    }  # fmt: skip


def later(before: ClusterPicture, now: ClusterPicture, after_ms: int = 60_000) -> ClusterPicture:
    """Return ``now`` with an earlier reading."""
    return replace(now, before=replace(before, read_at_ms=now.read_at_ms - after_ms))


def found(picture: ClusterPicture) -> dict[str, Finding]:
    """Return the findings by check; of several from one check the last."""
    return {each.check: each for each in evaluate(picture)}


def only(name: str, picture: ClusterPicture) -> Finding:
    """Return the finding of this check. Fail if it found nothing, or more than one thing."""
    (check,) = [each for each in CHECKS if each.name == name]
    (finding,) = check.run(picture) if check.can_run(picture) else []
    return finding
