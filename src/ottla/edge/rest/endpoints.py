"""Which operations are served: `api.v2.enable`, `api.v3.enable`, `api.endpoints.allowlist`, `api.endpoints.blocklist`.

The lists have the names of Confluent's proxy. `api.v3.topics.*` is every operation of topics, and
`api.v3.topics.delete` is one of them. A disabled operation is answered as if it did not exist, before the user is
authenticated: 404 for GET, 405 for other methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest.settings import RestSettings
from ottla.edge.rest.v3_topics import CLUSTER
from ottla.edge.web.app import HttpError, Operation
from ottla.model.errors import StartError

_V2_PARTITION: Final = "/topics/{topic_name}/partitions/{partition_id}"
_V2_INSTANCE: Final = "/consumers/{group}/instances/{instance}"
_TOPIC: Final = f"{CLUSTER}/topics/{{topic_name}}"
_PARTITION: Final = f"{_TOPIC}/partitions/{{partition_id}}"
_BROKER: Final = f"{CLUSTER}/brokers/{{broker_id}}"
_GROUP: Final = f"{CLUSTER}/consumer-groups/{{consumer_group_id}}"
_MEMBER: Final = f"{_GROUP}/consumers/{{consumer_id}}"
_PLACE: Final = "{topic_name}/partitions/{partition_id}"

#: name without its version -> method and path
_V2: Final = {
    "root.get": "GET /",
    "root.post": "POST /",
    "brokers.list": "GET /brokers",
    "topics.list": "GET /topics",
    "topics.get": "GET /topics/{topic_name}",
    "partitions.list": "GET /topics/{topic_name}/partitions",
    "partitions.get": f"GET {_V2_PARTITION}",
    "partitions.get-offsets": f"GET {_V2_PARTITION}/offsets",
    # Confluent's names for one format each (produce-to-topic.json, consumers.consume-json) do not exist here.
    "produce-to-topic.produce": "POST /topics/{topic_name}",
    "produce-to-partition.produce": f"POST {_V2_PARTITION}",
    "consumers.create": "POST /consumers/{group}",
    "consumers.delete": f"DELETE {_V2_INSTANCE}",
    "consumers.subscribe": f"POST {_V2_INSTANCE}/subscription",
    "consumers.get-subscription": f"GET {_V2_INSTANCE}/subscription",
    "consumers.unsubscribe": f"DELETE {_V2_INSTANCE}/subscription",
    "consumers.consume": f"GET {_V2_INSTANCE}/records",
    "consumers.commit-offsets": f"POST {_V2_INSTANCE}/offsets",
    "consumers.get-committed-offsets": f"GET {_V2_INSTANCE}/offsets",
    "consumers.seek-to-beginning": f"POST {_V2_INSTANCE}/positions/beginning",
    "consumers.seek-to-end": f"POST {_V2_INSTANCE}/positions/end",
    "consumers.seek-to-offset": f"POST {_V2_INSTANCE}/positions",
    "consumers.assign": f"POST {_V2_INSTANCE}/assignments",
    "consumers.get-assignments": f"GET {_V2_INSTANCE}/assignments",
}
_V3: Final = {
    "clusters.list": "GET /v3/clusters",
    "clusters.get": f"GET {CLUSTER}",
    "brokers.list": f"GET {CLUSTER}/brokers",
    "brokers.get": f"GET {_BROKER}",
    "brokers-configs.list": f"GET {CLUSTER}/brokers/-/configs",
    "broker-configs.list": f"GET {_BROKER}/configs",
    "broker-configs.alter": f"POST {_BROKER}/configs:alter",
    "broker-configs.get": f"GET {_BROKER}/configs/{{name}}",
    "broker-configs.update": f"PUT {_BROKER}/configs/{{name}}",
    "broker-configs.delete": f"DELETE {_BROKER}/configs/{{name}}",
    "cluster-configs.list": f"GET {CLUSTER}/broker-configs",
    "cluster-configs.alter": f"POST {CLUSTER}/broker-configs:alter",
    "cluster-configs.get": f"GET {CLUSTER}/broker-configs/{{name}}",
    "cluster-configs.update": f"PUT {CLUSTER}/broker-configs/{{name}}",
    "cluster-configs.delete": f"DELETE {CLUSTER}/broker-configs/{{name}}",
    "topics.list": f"GET {CLUSTER}/topics",
    "topics.create": f"POST {CLUSTER}/topics",
    "topics.get": f"GET {_TOPIC}",
    "topics.partitions": f"PATCH {_TOPIC}",
    "topics.delete": f"DELETE {_TOPIC}",
    "topic-configs.list-all": f"GET {CLUSTER}/topics/-/configs",
    "topic-configs.alter-multi": f"POST {CLUSTER}/topics/-/configs:alter",
    "topic-configs.list": f"GET {_TOPIC}/configs",
    "topic-configs.alter": f"POST {_TOPIC}/configs:alter",
    "topic-configs.get": f"GET {_TOPIC}/configs/{{name}}",
    "topic-configs.update": f"PUT {_TOPIC}/configs/{{name}}",
    "topic-configs.delete": f"DELETE {_TOPIC}/configs/{{name}}",
    "partitions.list": f"GET {_TOPIC}/partitions",
    "partitions.get": f"GET {_PARTITION}",
    "partitions.list.offsets": f"GET {_PARTITION}/offset",
    "replicas.list": f"GET {_PARTITION}/replicas",
    "replicas.get": f"GET {_PARTITION}/replicas/{{broker_id}}",
    "replicas.search-by-broker": f"GET {_BROKER}/partition-replicas",
    "partition-reassignments.list": f"GET {CLUSTER}/topics/-/partitions/-/reassignment",
    "partition-reassignments.search-by-topic": f"GET {_TOPIC}/partitions/-/reassignment",
    "partition-reassignments.get": f"GET {_PARTITION}/reassignment",
    "consumer-groups.list": f"GET {CLUSTER}/consumer-groups",
    "consumer-groups.get": f"GET {_GROUP}",
    "consumers.list": f"GET {_GROUP}/consumers",
    "consumers.get": f"GET {_MEMBER}",
    "consumer-assignments.list": f"GET {_MEMBER}/assignments",
    "consumer-assignments.get": f"GET {_MEMBER}/assignments/{_PLACE}",
    "consumer-group-lag-summary.get": f"GET {_GROUP}/lag-summary",
    "consumer-lags.list": f"GET {_GROUP}/lags",
    "consumer-lags.get": f"GET {_GROUP}/lags/{_PLACE}",
    "acls.list": f"GET {CLUSTER}/acls",
    "acls.create": f"POST {CLUSTER}/acls",
    "acls.delete": f"DELETE {CLUSTER}/acls",
    "acls.batch-create": f"POST {CLUSTER}/acls:batch",
    "produce.produce-to-topic": f"POST {_TOPIC}/records",
    "batch-produce.produce-to-topic": f"POST {_TOPIC}/records:batch",
    # Confluent's proxy does not read records in version 3.
    "records.list": f"GET {_TOPIC}/records",
}
#: method and path -> name
NAMES: Final = {
    **{row: f"api.v2.{name}" for name, row in _V2.items()},
    **{row: f"api.v3.{name}" for name, row in _V3.items()},
}


def served(operations: Sequence[Operation], settings: RestSettings) -> list[Operation]:
    """Return the operations without those that the settings disable. Raise StartError if a name is not known."""
    known = {*NAMES.values(), *map(_group, NAMES.values())}
    for name in (*settings.api_endpoints_allowlist, *settings.api_endpoints_blocklist):
        if name not in known:
            raise StartError(f"no operation has the name {name}; docs/reference/rest.md lists the names")
    versions = {"api.v2.": settings.api_v2_enable, "api.v3.": settings.api_v3_enable}
    found = []
    for operation in operations:
        name = name_of(operation)
        if not versions[name[:7]]:
            continue
        found.append(operation if _is_enabled(name, settings) else _disabled(operation))
    return found


def name_of(operation: Operation) -> str:
    return NAMES[f"{operation.method} {operation.path}"]


def _group(name: str) -> str:
    """Return the name of all operations of the same kind.

    >>> _group("api.v3.partitions.list.offsets")
    'api.v3.partitions.*'
    """
    return ".".join((*name.split(".")[:3], "*"))


def _is_enabled(name: str, settings: RestSettings) -> bool:
    names = {name, _group(name)}
    allowed = settings.api_endpoints_allowlist
    return (not allowed or not names.isdisjoint(allowed)) and names.isdisjoint(settings.api_endpoints_blocklist)


def _disabled(operation: Operation) -> Operation:
    """Return the operation with a handler that answers as if it did not exist."""

    async def refuse(request: Request) -> Response:
        if operation.method == "GET":
            raise HttpError(404, 404, "HTTP 404 Not Found")
        raise HttpError(405, 405, "HTTP 405 Method Not Allowed")

    return replace(operation, handler=refuse, is_public=True, body=None)
