"""The JSON of version 3: resources with `kind`, `metadata` and links, and lists of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

#: sources of configs by Kafka's numbers
CONFIG_SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}
#: operations in the bits of `authorized_operations`
OPERATIONS: Final = (
    "UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
_OPERATIONS_UNKNOWN: Final = -(1 << 31)

Json = dict[str, Any]


class Links:
    """URLs and resource names of one cluster."""

    __slots__ = ("_base", "cluster_id")

    def __init__(self, base_url: str, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._base = f"{base_url}/v3/clusters/{quote(cluster_id, safe='')}"

    def url(self, *segments: str | int) -> str:
        """Return the URL of a resource of the cluster.

        >>> Links("http://h", "c").url("topics", "a/b")
        'http://h/v3/clusters/c/topics/a%2Fb'
        """
        return "/".join((self._base, *(quote(str(each), safe="-:") for each in segments)))

    def related(self, *segments: str | int) -> Json:
        return {"related": self.url(*segments)}

    def name(self, *pairs: tuple[str, str | int] | str) -> str:
        """Return a resource name.

        >>> Links("http://h", "c").name(("topic", "t"), "reassignment")
        'crn:///kafka=c/topic=t/reassignment'
        """
        parts = [f"kafka={quote(self.cluster_id, safe='')}"]
        for pair in pairs:
            parts.append(pair if isinstance(pair, str) else f"{pair[0]}={quote(str(pair[1]), safe='')}")
        return f"crn:///{'/'.join(parts)}"

    def resource(self, kind: str, segments: Sequence[str | int], name: Sequence[Any]) -> Json:
        """Return the fields that each resource of a cluster begins with."""
        return {
            "kind": kind,
            "metadata": {"self": self.url(*segments), "resource_name": self.name(*name)},
            "cluster_id": self.cluster_id,
        }


def listing(kind: str, url: str, data: Iterable[Json]) -> Json:
    """Return a list of resources."""
    return {"kind": f"{kind}List", "metadata": {"self": url, "next": None}, "data": list(data)}


def cluster(links: Links, controller_id: int) -> Json:
    return {
        **links.resource("KafkaCluster", (), ()),
        "controller": links.related("brokers", controller_id) if controller_id >= 0 else None,
        "acls": links.related("acls"),
        "brokers": links.related("brokers"),
        "broker_configs": links.related("broker-configs"),
        "consumer_groups": links.related("consumer-groups"),
        "topics": links.related("topics"),
        "partition_reassignments": links.related("topics", "-", "partitions", "-", "reassignment"),
    }


def topic(
    links: Links,
    name: str,
    *,
    is_internal: bool,
    replication_factor: int,
    partitions_count: int,
    operations: int = _OPERATIONS_UNKNOWN,
) -> Json:
    found = {
        **links.resource("KafkaTopic", ("topics", name), [("topic", name)]),
        "topic_name": name,
        "is_internal": is_internal,
        "replication_factor": replication_factor,
        "partitions_count": partitions_count,
        "partitions": links.related("topics", name, "partitions"),
        "configs": links.related("topics", name, "configs"),
        "partition_reassignments": links.related("topics", name, "partitions", "-", "reassignment"),
        "authorized_operations": [],
    }
    if operations != _OPERATIONS_UNKNOWN:
        found["authorized_operations"] = [word for bit, word in enumerate(OPERATIONS) if operations >> bit & 1]
    return found


def topic_of_metadata(links: Links, row: Any) -> Json:
    """Return a topic as the cluster's metadata describe it."""
    return topic(
        links, row.name, is_internal=row.is_internal, partitions_count=len(row.partitions),
        replication_factor=len(row.partitions[0].replica_nodes) if row.partitions else 0,
        operations=row.topic_authorized_operations,
    )  # fmt: skip


def partition(links: Links, topic_name: str, row: Any) -> Json:
    path = ("topics", topic_name, "partitions", row.partition_index)
    leader = links.related(*path, "replicas", row.leader_id) if row.leader_id >= 0 else None
    return {
        **links.resource("KafkaPartition", path, [("topic", topic_name), ("partition", row.partition_index)]),
        "topic_name": topic_name,
        "partition_id": row.partition_index,
        "leader": leader,
        "replicas": links.related(*path, "replicas"),
        "reassignment": links.related(*path, "reassignment"),
    }


def partition_with_offsets(links: Links, topic_name: str, number: int, earliest: int, latest: int) -> Json:
    path = ("topics", topic_name, "partitions", number, "offset")
    name = [("topic", topic_name), ("partition", number), "offset"]
    return {
        **links.resource("KafkaPartitionWithOffsets", path, name),
        "topic_name": topic_name,
        "partition_id": number,
        "earliest_offset": earliest,
        "latest_offset": latest,
    }


def replica(links: Links, topic_name: str, row: Any, broker_id: int) -> Json:
    path = ("topics", topic_name, "partitions", row.partition_index, "replicas", broker_id)
    name = [("topic", topic_name), ("partition", row.partition_index), ("replica", broker_id)]
    return {
        **links.resource("KafkaReplica", path, name),
        "topic_name": topic_name,
        "partition_id": row.partition_index,
        "broker_id": broker_id,
        "is_leader": broker_id == row.leader_id,
        "is_in_sync": broker_id in row.isr_nodes,
        "broker": links.related("brokers", broker_id),
    }


def reassignment(links: Links, topic_name: str, number: int, row: Any) -> Json:
    path = ("topics", topic_name, "partitions", number)
    name = [("topic", topic_name), ("partition", number), "reassignment"]
    return {
        **links.resource("KafkaReassignment", (*path, "reassignment"), name),
        "topic_name": topic_name,
        "partition_id": number,
        "adding_replicas": list(row.adding_replicas),
        "removing_replicas": list(row.removing_replicas),
        "replicas": links.related(*path, "replicas"),
    }


def broker(links: Links, row: Any) -> Json:
    return {
        **links.resource("KafkaBroker", ("brokers", row.node_id), [("broker", row.node_id)]),
        "broker_id": row.node_id,
        "host": row.host,
        "port": row.port,
        "rack": row.rack,
        "configs": links.related("brokers", row.node_id, "configs"),
        "partition_replicas": links.related("brokers", row.node_id, "partition-replicas"),
    }


def config(resource: Json, row: Any, owner: Mapping[str, Any]) -> Json:
    """Return a config. `resource` has the first fields, `owner` the fields that name the topic or the broker."""
    return {
        **resource,
        **owner,
        "name": row.name,
        "value": row.value,
        "is_default": row.config_source == 5,
        "is_read_only": row.read_only,
        "is_sensitive": row.is_sensitive,
        "source": CONFIG_SOURCES.get(row.config_source, "UNKNOWN"),
        "synonyms": [
            {"name": each.name, "value": each.value, "source": CONFIG_SOURCES.get(each.source, "UNKNOWN")}
            for each in row.synonyms
        ],
    }


def acl_url(links: Links, fields: Mapping[str, str]) -> str:
    return f"{links.url('acls')}?{urlencode(fields, safe='*')}"


def acl(links: Links, fields: Mapping[str, str]) -> Json:
    return {
        "kind": "KafkaAcl",
        "metadata": {"self": acl_url(links, fields), "resource_name": None},
        "cluster_id": links.cluster_id,
        **fields,
    }


def consumer_group(links: Links, row: Any) -> Json:
    group = row.group_id
    path = ("consumer-groups", group)
    return {
        **links.resource("KafkaConsumerGroup", path, [("consumer-group", group)]),
        "consumer_group_id": group,
        "is_simple": row.is_simple,
        "partition_assignor": row.assignor,
        "state": row.state,
        "type": row.protocol,
        "is_mixed_consumer_group": row.is_mixed,
        "coordinator": links.related("brokers", row.coordinator_id),
        "consumers": links.related(*path, "consumers"),
        "lag_summary": links.related(*path, "lag-summary"),
    }


def consumer(links: Links, group: str, member: Any) -> Json:
    path = ("consumer-groups", group, "consumers", member.member_id)
    return {
        **links.resource("KafkaConsumer", path, [("consumer-group", group), ("consumer", member.member_id)]),
        "consumer_group_id": group,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": links.related(*path, "assignments"),
    }


def assignment(links: Links, group: str, member_id: str, topic_name: str, number: int) -> Json:
    place = ("partitions", number)
    path = ("consumer-groups", group, "consumers", member_id, "assignments", topic_name, *place)
    name = [("consumer-group", group), ("consumer", member_id), ("assignment", topic_name), ("partition", number)]
    return {
        **links.resource("KafkaConsumerAssignment", path, name),
        "consumer_group_id": group,
        "consumer_id": member_id,
        "topic_name": topic_name,
        "partition_id": number,
        "partition": links.related("topics", topic_name, *place),
        "lag": links.related("consumer-groups", group, "lags", topic_name, *place),
    }


def lag(links: Links, group: str, row: Any) -> Json:
    path = ("consumer-groups", group, "lags", row.topic_name, "partitions", row.partition_id)
    name = [("consumer-group", group), ("lag", row.topic_name), ("partition", row.partition_id)]
    return {**links.resource("KafkaConsumerLag", path, name), "consumer_group_id": group, **row._asdict()}


def lag_summary(links: Links, group: str, largest: Any, total: int) -> Json:
    path = ("consumer-groups", group, "lag-summary")
    return {
        **links.resource("KafkaConsumerGroupLagSummary", path, [("consumer-group", group), "lag-summary"]),
        "consumer_group_id": group,
        "max_lag_consumer_id": largest.consumer_id,
        "max_lag_instance_id": largest.instance_id,
        "max_lag_client_id": largest.client_id,
        "max_lag_topic_name": largest.topic_name,
        "max_lag_partition_id": largest.partition_id,
        "max_lag": largest.lag,
        "total_lag": total,
        "max_lag_consumer": links.related("consumer-groups", group, "consumers", largest.consumer_id),
        "max_lag_partition": links.related("topics", largest.topic_name, "partitions", largest.partition_id),
    }
