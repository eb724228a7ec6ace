"""Version 3: clusters, brokers, topics, partitions, offsets, replicas and reassignments."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import admin, resources
from ottla.edge.rest.bodies import INT32_MAX, path_integer, query_boolean, read_required
from ottla.edge.rest.errors import INVALID_PAYLOAD, bad_request, not_found, partition_not_found, unprocessable
from ottla.edge.rest.proxy import (
    CLUSTER,
    CONFIG_VALUE,
    INT32,
    KAFKA_ERRORS,
    NULLABLE_RELATED,
    RELATED,
    Proxy,
    answer,
    flag,
    list_schema,
    no_content,
    request_schema,
    resource_schema,
)
from ottla.edge.rest.resources import Links, listing
from ottla.edge.web.app import Operation, Parameter
from ottla.edge.web.json_schemas import (
    BOOLEAN,
    INTEGER,
    INTEGERS,
    NULLABLE_INTEGER,
    NULLABLE_TEXT,
    TEXT,
    TEXTS,
    enum_of,
    list_of,
)

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INT16_MAX: Final = (1 << 15) - 1

_CLUSTER_DATA: Final = resource_schema("KafkaCluster", {
    "controller": NULLABLE_RELATED, "acls": RELATED, "brokers": RELATED, "broker_configs": RELATED,
    "consumer_groups": RELATED, "topics": RELATED, "partition_reassignments": RELATED,
})  # fmt: skip
_TOPIC_DATA: Final = resource_schema("KafkaTopic", {
    "topic_name": TEXT, "is_internal": BOOLEAN, "replication_factor": INTEGER, "partitions_count": INTEGER,
    "partitions": RELATED, "configs": RELATED, "partition_reassignments": RELATED, "authorized_operations": TEXTS,
})  # fmt: skip
_PARTITION_DATA: Final = resource_schema("KafkaPartition", {
    "topic_name": TEXT, "partition_id": INTEGER, "leader": NULLABLE_RELATED, "replicas": RELATED,
    "reassignment": RELATED,
})  # fmt: skip
_OFFSETS_DATA: Final = resource_schema("KafkaPartitionWithOffsets", {
    "topic_name": TEXT, "partition_id": INTEGER, "earliest_offset": INTEGER, "latest_offset": INTEGER,
})  # fmt: skip
_REPLICA_DATA: Final = resource_schema("KafkaReplica", {
    "topic_name": TEXT, "partition_id": INTEGER, "broker_id": INTEGER, "is_leader": BOOLEAN, "is_in_sync": BOOLEAN,
    "broker": RELATED,
})  # fmt: skip
_REASSIGNMENT_DATA: Final = resource_schema("KafkaReassignment", {
    "topic_name": TEXT, "partition_id": INTEGER, "adding_replicas": INTEGERS, "removing_replicas": INTEGERS,
    "replicas": RELATED,
})  # fmt: skip
_BROKER_DATA: Final = resource_schema("KafkaBroker", {
    "broker_id": INTEGER, "host": NULLABLE_TEXT, "port": NULLABLE_INTEGER, "rack": NULLABLE_TEXT,
    "configs": RELATED, "partition_replicas": RELATED,
})  # fmt: skip
_NEW_TOPIC: Final = request_schema({"topic_name": {"type": "string", "pattern": f"^{_TOPIC_NAME.pattern}$"}}, {
    "partitions_count": {**INT32, "minimum": -1}, "replication_factor": {**INT32, "minimum": -1, "maximum": _INT16_MAX},
    "replicas_assignments": {
        "type": "object", "additionalProperties": False,
        "patternProperties": {"^[0-9]{1,9}$": {"type": "array", "items": INT32, "minItems": 1}},
    },
    "configs": list_of(request_schema({"name": TEXT}, {"value": CONFIG_VALUE})),
    "validate_only": BOOLEAN,
}, {"topic_name": "orders", "partitions_count": 1})  # fmt: skip


class TopicRoutes:
    """Handlers of clusters, brokers, topics and partitions."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        return [*self._cluster_operations(), *self._topic_operations(), *self._partition_operations()]

    def _cluster_operations(self) -> list[Operation]:
        row, broker = self._proxy.operation, "brokers/{broker_id}"
        return [
            row("clusters.list", "GET /v3/clusters", self.list_clusters,
                "List the clusters: the one that the proxy uses", list_schema(_CLUSTER_DATA), tag="Cluster (v3)"),
            row("clusters.get", f"GET {CLUSTER}", self.get_cluster, "Get the cluster", _CLUSTER_DATA,
                tag="Cluster (v3)"),
            row("brokers.list", "GET brokers", self.list_brokers, "List the brokers", list_schema(_BROKER_DATA),
                tag="Broker (v3)"),
            row("brokers.get", f"GET {broker}", self.get_broker, "Get a broker", _BROKER_DATA, tag="Broker (v3)"),
            row("replicas.search-by-broker", f"GET {broker}/partition-replicas", self.list_broker_replicas,
                "List the replicas of a broker", list_schema(_REPLICA_DATA), tag="Replica (v3)"),
        ]  # fmt: skip

    def _topic_operations(self) -> list[Operation]:
        row, topic = partial(self._proxy.operation, tag="Topic (v3)"), "topics/{topic_name}"
        operations_flag = flag("include_authorized_operations", "Whether to list what the user may do with the topic.")
        new_count = request_schema({"partitions_count": {**INT32, "minimum": 1}})
        invalid = {**KAFKA_ERRORS, 422: "A field is missing, or the name is not valid (42206)."}
        return [
            row("topics.list", "GET topics", self.list_topics, "List the topics", list_schema(_TOPIC_DATA),
                query=[operations_flag]),
            row("topics.create", "POST topics", self.create_topic,
                "Create a topic; validate_only checks without a change", body=_NEW_TOPIC,
                answers={201: _TOPIC_DATA, 200: _TOPIC_DATA}, errors=invalid),
            row("topics.get", f"GET {topic}", self.get_topic, "Get a topic", _TOPIC_DATA, query=[operations_flag]),
            row("topics.partitions", f"PATCH {topic}", self.patch_topic, "Raise the number of partitions of a topic",
                _TOPIC_DATA, body=new_count, errors={**KAFKA_ERRORS, 422: "partitions_count is missing."}),
            row("topics.delete", f"DELETE {topic}", self.delete_topic, "Delete a topic"),
        ]  # fmt: skip

    def _partition_operations(self) -> list[Operation]:
        row, topic = partial(self._proxy.operation, tag="Partition (v3)"), "topics/{topic_name}"
        one, moves = f"{topic}/partitions/{{partition_id}}", list_schema(_REASSIGNMENT_DATA)
        only = "Only earliest_and_latest exists, which is also the default."
        offset_type = Parameter("offset_type", only, enum_of("earliest_and_latest"))
        return [
            row("partitions.list", f"GET {topic}/partitions", self.list_partitions, "List the partitions of a topic",
                list_schema(_PARTITION_DATA)),
            row("partitions.get", f"GET {one}", self.get_partition, "Get a partition", _PARTITION_DATA),
            row("partitions.list.offsets", f"GET {one}/offset", self.get_offsets,
                "Get the first offset of a partition and the offset after the last record", _OFFSETS_DATA,
                query=[offset_type]),
            row("replicas.list", f"GET {one}/replicas", self.list_replicas, "List the replicas of a partition",
                list_schema(_REPLICA_DATA)),
            row("replicas.get", f"GET {one}/replicas/{{broker_id}}", self.get_replica, "Get a replica", _REPLICA_DATA),
            row("partition-reassignments.get", f"GET {one}/reassignment", self.get_reassignment,
                "Get the reassignment of a partition in progress", _REASSIGNMENT_DATA),
            row("partition-reassignments.list", "GET topics/-/partitions/-/reassignment", self.list_reassignments,
                "List all reassignments in progress", moves),
            row("partition-reassignments.search-by-topic", f"GET {topic}/partitions/-/reassignment",
                self.list_topic_reassignments, "List the reassignments of a topic in progress", moves),
        ]  # fmt: skip

    # Clusters and brokers

    async def list_clusters(self, request: Request, links: Links) -> Response:
        metadata = await self._proxy.call(request, admin.describe_cluster)
        found = resources.cluster(links, metadata.controller_id)
        return answer(listing("KafkaCluster", f"{self._proxy.base_url(request)}/v3/clusters", [found]))

    async def get_cluster(self, request: Request, links: Links) -> Response:
        metadata = await self._proxy.call(request, admin.describe_cluster)
        return answer(resources.cluster(links, metadata.controller_id))

    async def list_brokers(self, request: Request, links: Links) -> Response:
        metadata = await self._proxy.call(request, admin.describe_cluster)
        rows = sorted(metadata.brokers, key=lambda row: row.node_id)
        return answer(listing("KafkaBroker", links.url("brokers"), (resources.broker(links, row) for row in rows)))

    async def get_broker(self, request: Request, links: Links) -> Response:
        wanted = path_integer(request, "broker_id")
        metadata = await self._proxy.call(request, admin.describe_cluster)
        for row in metadata.brokers:
            if row.node_id == wanted:
                return answer(resources.broker(links, row))
        raise not_found(f"Broker {wanted} cannot be found.")

    async def list_broker_replicas(self, request: Request, links: Links) -> Response:
        wanted = path_integer(request, "broker_id")
        metadata = await self._proxy.call(request, admin.list_topics)
        if wanted not in {row.node_id for row in metadata.brokers}:
            raise not_found(f"Broker {wanted} cannot be found.")
        rows = [
            resources.replica(links, topic.name or "", row, wanted)
            for topic in sorted(metadata.topics, key=lambda each: each.name or "")
            for row in sorted(topic.partitions, key=lambda each: each.partition_index)
            if wanted in row.replica_nodes
        ]
        return answer(listing("KafkaReplica", links.url("brokers", wanted, "partition-replicas"), rows))

    # Topics

    async def list_topics(self, request: Request, links: Links) -> Response:
        # Confluent's server reads the name in camel case for the list only.
        with_operations = query_boolean(request, "include_authorized_operations") or query_boolean(
            request, "includeAuthorizedOperations"
        )
        metadata = await self._proxy.call(request, admin.list_topics, with_operations=with_operations)
        rows = sorted((row for row in metadata.topics if row.partitions), key=lambda row: row.name or "")
        found = (resources.topic_of_metadata(links, row) for row in rows)
        return answer(listing("KafkaTopic", links.url("topics"), found))

    async def get_topic(self, request: Request, links: Links) -> Response:
        with_operations = query_boolean(request, "include_authorized_operations")
        name = request.path_params["topic_name"]
        row = await self._proxy.call(request, admin.describe_topic, name, with_operations=with_operations)
        return answer(resources.topic_of_metadata(links, row))

    async def create_topic(self, request: Request, links: Links) -> Response:
        fields = await read_required(request)
        name = fields.text("topic_name")
        if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
            raise unprocessable("Payload error. Invalid topic name.", INVALID_PAYLOAD)
        partitions = fields.optional_integer("partitions_count", -1)
        replicas = fields.optional_integer("replication_factor", -1, _INT16_MAX)
        assignments = _assignments(fields.mapping("replicas_assignments"))
        configs = [
            (each.text("name"), each.scalar_text("value"))
            for each in (fields.objects("configs") if fields.has("configs") else [])
        ]
        validate_only = fields.boolean("validate_only")
        made = await self._proxy.call(
            request, admin.create_topic, name, partitions=partitions, replication_factor=replicas,
            assignments=assignments, configs=configs, validate_only=validate_only,
        )  # fmt: skip
        count = made[0] if made[0] > 0 else len(assignments) or max(partitions or 0, 0)
        factor = made[1] if made[1] > 0 else len(next(iter(assignments.values()), ())) or max(replicas or 0, 0)
        if not validate_only:
            await self._proxy.call(request, admin.wait_until_known, name, count)
        found = resources.topic(links, name, is_internal=False, replication_factor=factor, partitions_count=count)
        return answer(found, 200 if validate_only else 201, {"location": links.url("topics", name)})

    async def patch_topic(self, request: Request, links: Links) -> Response:
        name = request.path_params["topic_name"]
        fields = await read_required(request, required="Partitions_count is required.")
        count = fields.integer("partitions_count", 1)
        await self._proxy.call(request, admin.add_partitions, name, count)
        await self._proxy.call(request, admin.wait_until_known, name, count)
        row = await self._proxy.call(request, admin.describe_topic, name)
        return answer(resources.topic_of_metadata(links, row))

    async def delete_topic(self, request: Request, links: Links) -> Response:
        await self._proxy.call(request, admin.delete_topic, request.path_params["topic_name"])
        return no_content()

    # Partitions

    async def list_partitions(self, request: Request, links: Links) -> Response:
        topic = await self._topic(request)
        rows = sorted(topic.partitions, key=lambda row: row.partition_index)
        found = (resources.partition(links, topic.name, row) for row in rows)
        return answer(listing("KafkaPartition", links.url("topics", topic.name, "partitions"), found))

    async def get_partition(self, request: Request, links: Links) -> Response:
        topic, row = await self._partition(request)
        return answer(resources.partition(links, topic, row))

    async def get_offsets(self, request: Request, links: Links) -> Response:
        wanted = request.query_params.get("offset_type", "earliest_and_latest")
        if wanted != "earliest_and_latest":
            raise bad_request(f"offset_type:{wanted} is invalid")
        topic, row = await self._partition(request)
        number = row.partition_index
        earliest, latest = await self._proxy.call(request, admin.partition_offsets, topic, number)
        return answer(resources.partition_with_offsets(links, topic, number, earliest, latest))

    async def list_replicas(self, request: Request, links: Links) -> Response:
        topic, row = await self._partition(request)
        found = (resources.replica(links, topic, row, broker_id) for broker_id in row.replica_nodes)
        url = links.url("topics", topic, "partitions", row.partition_index, "replicas")
        return answer(listing("KafkaReplica", url, found))

    async def get_replica(self, request: Request, links: Links) -> Response:
        topic, row = await self._partition(request)
        broker_id = path_integer(request, "broker_id")
        if broker_id not in row.replica_nodes:
            raise not_found(f"Broker {broker_id} has no replica of this partition.")
        return answer(resources.replica(links, topic, row, broker_id))

    async def get_reassignment(self, request: Request, links: Links) -> Response:
        topic, row = await self._partition(request)
        number = row.partition_index
        found = await self._proxy.call(request, admin.list_reassignments, {topic: [number]})
        if not found:
            raise not_found(f"No reassignment of partition {number} of topic {topic} is in progress.")
        return answer(resources.reassignment(links, topic, number, next(iter(found.values()))))

    async def list_reassignments(self, request: Request, links: Links) -> Response:
        found = await self._proxy.call(request, admin.list_reassignments, None)
        return answer(_moves(links, links.url("topics", "-", "partitions", "-", "reassignment"), found))

    async def list_topic_reassignments(self, request: Request, links: Links) -> Response:
        topic = request.path_params["topic_name"]
        # A topic that does not exist has none, as with Confluent's server.
        every = await self._proxy.call(request, admin.list_reassignments, None)
        found = {tp: row for tp, row in every.items() if tp.topic == topic}
        return answer(_moves(links, links.url("topics", topic, "partitions", "-", "reassignment"), found))

    async def _topic(self, request: Request) -> Any:
        return await self._proxy.call(request, admin.describe_topic, request.path_params["topic_name"])

    async def _partition(self, request: Request) -> tuple[str, Any]:
        number = path_integer(request, "partition_id")
        topic = await self._topic(request)
        for row in topic.partitions:
            if row.partition_index == number:
                return topic.name, row
        raise partition_not_found(topic.name, number)


def _moves(links: Links, url: str, found: dict[Any, Any]) -> dict[str, Any]:
    rows = (resources.reassignment(links, tp.topic, tp.partition, row) for tp, row in sorted(found.items()))
    return listing("KafkaReassignment", url, rows)


def _assignments(found: dict[str, Any]) -> dict[int, list[int]]:
    """Return partition -> broker ids. Raise HttpError 400 for other types."""
    assignments = {}
    for partition, brokers in found.items():
        if not (partition.isascii() and partition.isdigit() and len(partition) <= 9):
            raise bad_request("the keys of replicas_assignments must be numbers of partitions")
        if not isinstance(brokers, list) or not brokers:
            raise bad_request(f"replicas_assignments[{partition}] must be an array of broker ids")
        for each in brokers:
            if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= INT32_MAX:
                raise bad_request(f"replicas_assignments[{partition}] must contain broker ids")
        assignments[int(partition)] = brokers
    return assignments
