"""The nodes of the metadata tree: the paths that Kafka used in ZooKeeper, but with one state node per topic.

    /cluster/id                    {"version": 1, "id": "..."}
    /cluster/secret                {"version": 1, "secret": "..."}: random bytes, the same for all brokers
    /brokers/topics                {"version": 1, "last_change": "..."}
    /brokers/topics/T              {"version": 3, "topic_id": "...", "partitions": {"0": [1, 2, 3]},
                                    "adding_replicas": {"0": [3]}, "removing_replicas": {}}
    /brokers/topics/T/state        {"version": 3, "partitions": [[leader, leader_epoch, [isr...], partition_epoch,
                                    [elr...], [[broker, last_epoch, end_offset]...]]], "min_isr": 2}
    /brokers/ids/N                 ephemeral, the broker is alive; its ``created`` is the broker epoch
                                   {"version": 5, "host": "h", "port": 9092, "endpoints": ["PLAINTEXT://h:9092"],
                                    "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"}, "rack": null,
                                    "timestamp": "1700000000000", "features": {}, "incarnation": "..."}
    /brokers/registered/N          {"version": 1, "incarnation": "...", "endpoints": ["PLAINTEXT://h:9092"],
                                    "rack": null, "log_dirs_run": "...", "log_dirs": {"<directory id>": "..."},
                                    "leaving": true}
    /controller                    ephemeral {"version": 1, "brokerid": 1, "timestamp": "1700000000000"}
    /controller_epoch              {"version": 1, "broker": 1}; its version is the controller epoch
    /config/topics/T               {"version": 1, "config": {"retention.ms": "1000"}}
    /config/brokers/N, <default>   the same
    /config/groups                 {"version": 1, "last_change": "..."}
    /config/groups/G               the same; G is the group's name, percent-encoded
    /admin/deleted_topics/T        {"version": 1, "deleted_ms": 1700000000000}
    /feature                       {"version": 1, "levels": {"transaction.version": 1}}: levels that are not the default
    /latest_producer_id_block      {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}

The version of /brokers/topics counts the topics that were deleted, those that got partitions, and those that were
created with a name that can collide with another one. Every other change of a topic checks it, because a topic that is
deleted and created again has the same versions as before. The version of /config/groups counts the deletions of its
children for the same reason. The value is random: it lets a writer recognise its own change if the answer is lost.

Kafka had a state node per partition, whose version was the partition epoch. With one node per topic, a leader change of
ten thousand partitions takes one write per topic, and the partition epoch is a column. A state of version 1 has no such
column: its partition epochs are 0. The last two columns are the eligible leader replicas (KIP-966) and the ends of logs
that may have lost records. Version 2 does not have them, and version 3 omits them in rows where both are empty. A state
that needs neither column is written in version 2.

``min_isr`` is min.insync.replicas of all partitions, or a list if they differ. It is part of the state, because the
leader may acknowledge a record with fewer in-sync replicas only after the eligible leader replicas of the larger value
are removed. One write does both, so no broker can act on one without the other. States of earlier releases lack it.

A broker replaces /brokers/registered/N at every start, before anything else. Each multi that adds broker N to an ISR
checks the version of this node, so that an addition conflicts if it is based on an earlier run of the broker (KIP-903).
``log_dirs`` has each log directory with the incarnation of the last run that used it, and ``log_dirs_run`` is the last
run whose directories were written there: the broker writes both after it has marked the logs that are lost.
``leaving`` is added when the broker begins a clean stop. It is alive until its logs are closed, but joins no ISR.
A broker becomes controller in one multi that creates /controller and puts /controller_epoch. Each multi with an
automatic decision of the controller checks the version of /controller_epoch, so that a former controller changes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from ottla.broker.metadata.store import Create, Op, Put
from ottla.model.types import Endpoint

CLUSTER_ID = "/cluster/id"
#: random bytes from which salts of users that do not exist are made
CLUSTER_SECRET = "/cluster/secret"
TOPICS = "/brokers/topics"
BROKER_IDS = "/brokers/ids"
REGISTERED = "/brokers/registered"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
BROKER_DEFAULT = "<default>"
GROUP_CONFIGS = "/config/groups"
DELETED_TOPICS = "/admin/deleted_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE_LEVELS = "/feature"

#: exceptions that parsing a malformed value can raise
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)

#: the nodes that every tree has, parents before children
SKELETON = (
    "/cluster", "/brokers", TOPICS, BROKER_IDS, REGISTERED, CONTROLLER_EPOCH,
    "/config", TOPIC_CONFIGS, BROKER_CONFIGS, GROUP_CONFIGS, "/admin", DELETED_TOPICS,
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


def broker_path(broker_id: int) -> str:
    """Return the ephemeral node of a live broker."""
    return f"{BROKER_IDS}/{broker_id}"


def registered_path(broker_id: int) -> str:
    """Return the node that a broker replaces at every start."""
    return f"{REGISTERED}/{broker_id}"


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


def broker_json(
    endpoints: Sequence[Endpoint],
    *,
    rack: str | None,
    incarnation: bytes,
    timestamp_ms: int,
    security_protocols: Mapping[str, str] | None = None,
    features: Mapping[str, tuple[int, int]] | None = None,
) -> bytes:
    """Return the value of /brokers/ids/N, in Kafka's format with the incarnation added.

    ``endpoints`` are the advertised ones and must not be empty. ``security_protocols`` are by listener name; a listener
    without an entry has the protocol of its name, as in Kafka. ``features`` have their lowest and highest level.
    """
    protocols = security_protocols or {}
    return to_json(
        {
            "version": 5,
            "host": endpoints[0].host,
            "port": endpoints[0].port,
            "endpoints": [str(endpoint) for endpoint in endpoints],
            "listener_security_protocol_map": {each.name: protocols.get(each.name, each.name) for each in endpoints},
            "rack": rack,
            "timestamp": str(timestamp_ms),
            "features": {
                name: {"min_version": lowest, "max_version": highest}
                for name, (lowest, highest) in (features or {}).items()
            },
            "incarnation": incarnation.hex(),
        }
    )


def registered_json(
    incarnation: bytes,
    endpoints: Sequence[Endpoint] = (),
    rack: str | None = None,
    *,
    log_dirs_run: str | None = None,
    log_dirs: Mapping[str, str] | None = None,
    log_dirs_unusable: Sequence[str] = (),
    log_dirs_paths: Mapping[str, str] | None = None,
) -> bytes:
    """Return the value of /brokers/registered/N. ``incarnation`` is random and new at every start.

    ``endpoints`` and ``rack`` are those of /brokers/ids/N, which is deleted when the broker stops. Earlier releases
    wrote neither of them, nor the log directories.
    """
    value: dict[str, Any] = {"version": 1, "incarnation": incarnation.hex()}
    if endpoints:
        value |= {"endpoints": [str(endpoint) for endpoint in endpoints], "rack": rack}
    if log_dirs_run is not None:
        value |= {"log_dirs_run": log_dirs_run, "log_dirs": dict(log_dirs or {})}
    if log_dirs_unusable:
        value["log_dirs_unusable"] = list(log_dirs_unusable)
    if log_dirs_paths:
        value["log_dirs_paths"] = dict(log_dirs_paths)
    return to_json(value)


def unregistered_json(value: bytes) -> bytes:
    """Return the value of /brokers/registered/N of a broker that an administrator has unregistered.

    It keeps the incarnation, by which the broker recognises its data if it is started again.
    """
    return to_json({**json.loads(value), "unregistered": True})


def is_unregistered(value: bytes) -> bool:
    return bool(json.loads(value).get("unregistered"))


def leaving_json(value: bytes) -> bytes:
    """Return the value of /brokers/registered/N of a broker that has begun a clean stop. Its next start replaces it."""
    return to_json({**json.loads(value), "leaving": True})


def is_leaving(value: bytes) -> bool:
    return bool(json.loads(value).get("leaving"))


def incarnation_of(value: bytes) -> bytes:
    """Return the incarnation in the value of /brokers/ids/N or /brokers/registered/N. Raise one of MALFORMED."""
    return bytes.fromhex(json.loads(value)["incarnation"])


def controller_json(broker_id: int, timestamp_ms: int) -> bytes:
    """Return the value of /controller."""
    return to_json({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def controller_epoch_json(broker_id: int) -> bytes:
    """Return the value of /controller_epoch, which names the broker that was last elected."""
    return to_json({"version": 1, "broker": broker_id})


def feature_json(levels: Mapping[str, int]) -> bytes:
    """Return the value of /feature, the levels that an administrator has set."""
    return to_json({"version": 1, "levels": dict(levels)})


def config_json(config: Mapping[str, str]) -> bytes:
    return to_json({"version": 1, "config": dict(config)})


def config_of(value: bytes) -> dict[str, str]:
    config: dict[str, str] = json.loads(value)["config"]
    if not all(isinstance(text, str) for text in config.values()):
        raise ValueError("a setting is not text")
    return config
