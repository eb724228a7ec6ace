"""The nodes of the metadata tree: the paths that Kafka used in ZooKeeper, but with one state node per topic.

    /cluster/id                    {"version": 1, "id": "..."}
    /brokers/topics                {"version": 1, "last_change": "..."}
    /brokers/topics/T              {"version": 3, "topic_id": "...", "partitions": {"0": [1, 2, 3]},
                                    "adding_replicas": {"0": [3]}, "removing_replicas": {}}
    /brokers/topics/T/state        {"version": 2, "partitions": [[leader, leader_epoch, [isr...], partition_epoch]]}
    /config/topics/T               {"version": 1, "config": {"retention.ms": "1000"}}
    /config/brokers/N, <default>   the same
    /config/groups                 {"version": 1, "last_change": "..."}
    /config/groups/G               the same; G is the group's name, percent-encoded
    /admin/deleted_topics/T        {"version": 1, "deleted_ms": 1700000000000}
    /latest_producer_id_block      {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}

The version of /brokers/topics counts the topics that were deleted, those that got partitions, and those that were
created with a name that can collide with another one. Every other change of a topic checks it, because a topic that is
deleted and created again has the same versions as before. The version of /config/groups counts the deletions of its
children for the same reason. The value is random: it lets a writer recognise its own change if the answer is lost.

Kafka had a state node per partition, whose version was the partition epoch. With one node per topic, a leader change of
ten thousand partitions takes one write per topic, and the partition epoch is a column. A state of version 1 has no such
column: its partition epochs are 0.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any
from urllib.parse import quote, unquote

from ottla.cluster.store import Create, Op, Put

CLUSTER_ID = "/cluster/id"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
BROKER_DEFAULT = "<default>"
GROUP_CONFIGS = "/config/groups"
DELETED_TOPICS = "/admin/deleted_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

#: exceptions that parsing a malformed value can raise
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)

#: the nodes that every tree has, parents before children
SKELETON = (
    "/cluster", "/brokers", TOPICS, "/config", TOPIC_CONFIGS, BROKER_CONFIGS, GROUP_CONFIGS, "/admin", DELETED_TOPICS,
)  # fmt: skip


def ops_create_skeleton(existing: Container[str]) -> list[Op]:
    """Return the operations that create the missing nodes of SKELETON, in a new tree or in one of an older version."""
    return [Create(path) for path in SKELETON if path not in existing]


def count_change(path: str, version: int, change_id: bytes) -> Op:
    """Return the operation that counts a change below ``path`` in its version. ``change_id`` is random."""
    return Put(path, to_json({"version": 1, "last_change": change_id.hex()}), version)


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def topic_of(path: str) -> str:
    """Return the topic whose node or state is at this path."""
    return path.removeprefix(TOPICS + "/").partition("/")[0]


def state_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(broker: str) -> str:
    return f"{BROKER_CONFIGS}/{broker or BROKER_DEFAULT}"


def group_config_path(group: str) -> str:
    """Return the node of a group's settings. Group names may contain any character, paths may not."""
    return f"{GROUP_CONFIGS}/{quote(group, safe='').replace('.', '%2E')}"


def group_of(path: str) -> str:
    """Return the group whose settings are at this path."""
    return unquote(path.removeprefix(GROUP_CONFIGS + "/"))


def deleted_topic_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


def to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def config_json(config: Mapping[str, str]) -> bytes:
    return to_json({"version": 1, "config": dict(config)})


def config_of(value: bytes) -> dict[str, str]:
    config: dict[str, str] = json.loads(value)["config"]
    if not all(isinstance(text, str) for text in config.values()):
        raise ValueError("a setting is not text")
    return config
