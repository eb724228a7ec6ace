"""Remora's routes: `/consumers` lists the groups, `/consumers/GROUP` has one with its partitions and its lag per topic.

Remora has one cluster; these routes are about the cluster of `bootstrap.servers`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.monitor.clusters import MonitoredClusters
from ottla.edge.monitor.reading import GroupReading
from ottla.edge.web.app import HttpError, Operation
from ottla.edge.web.json_schemas import (
    INTEGER,
    NULLABLE_INTEGER,
    NULLABLE_TEXT,
    TEXT,
    TEXTS,
    list_of,
    map_of,
    object_of,
)
from ottla.lag.types import PartitionLag

_TAG: Final = "Remora"
#: what kafka-consumer-groups shows for a partition without a member
_NONE: Final = "-"
_NODE: Final = object_of({"id": INTEGER, "id_string": TEXT, "host": TEXT, "port": INTEGER})
_ASSIGNMENT: Final = object_of(
    {"group": TEXT},
    {"coordinator": _NODE, "topic": NULLABLE_TEXT, "partition": NULLABLE_INTEGER, "offset": NULLABLE_INTEGER,
     "lag": NULLABLE_INTEGER, "consumer_id": NULLABLE_TEXT, "host": NULLABLE_TEXT, "client_id": NULLABLE_TEXT,
     "log_end_offset": NULLABLE_INTEGER},
)  # fmt: skip
_GROUP: Final = object_of(
    {"state": TEXT, "partition_assignment": list_of(_ASSIGNMENT), "lag_per_topic": map_of(INTEGER)}
)


class RemoraRoutes:
    """Handlers of Remora's routes."""

    def __init__(self, clusters: MonitoredClusters) -> None:
        self._clusters = clusters

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        return [
            Operation(
                method="GET", path="/consumers", handler=self.list_groups, summary="List the groups.", tag=_TAG,
                answers={200: TEXTS},
            ),
            Operation(
                method="GET", path="/consumers/{group}", handler=self.get_group, tag=_TAG, answers={200: _GROUP},
                summary="Get a group with its partitions and its lag per topic.",
                errors={404: "There is no such group."},
            ),
        ]  # fmt: skip

    async def list_groups(self, request: Request) -> Response:
        reading = await self._clusters.first.fresh()
        return _answer([*reading.groups])

    async def get_group(self, request: Request) -> Response:
        reading = await self._clusters.first.fresh()
        group = reading.groups.get(request.path_params["group"])
        if group is None:
            raise HttpError(404, 404, f"there is no group {request.path_params['group']!r}")
        return _answer(_group(group))


def _group(group: GroupReading) -> dict[str, Any]:
    lags: dict[str, int] = {}
    for row in group.lag.partitions.values():
        if row.lag is not None:
            lags[row.name.topic] = lags.get(row.name.topic, 0) + row.lag
    rows = [_assignment(group, row) for row in group.lag.partitions.values()]
    return {"state": group.state, "partition_assignment": rows, "lag_per_topic": lags}


def _assignment(group: GroupReading, row: PartitionLag) -> dict[str, Any]:
    found: dict[str, Any] = {"group": group.group_id}
    if group.lag.group is not None:
        node = group.lag.group.coordinator
        found["coordinator"] = {
            "id": node.broker_id, "id_string": str(node.broker_id), "host": node.host, "port": node.port,
        }  # fmt: skip
    member = row.member
    found |= {"topic": row.name.topic, "partition": row.name.partition}
    optional = {"offset": row.committed, "lag": row.lag}
    found |= {name: value for name, value in optional.items() if value is not None}
    found |= {
        "consumer_id": _NONE if member is None else member.member_id,
        "host": _NONE if member is None else member.host,
        "client_id": _NONE if member is None else member.client_id,
    }
    if row.log_end is not None:
        found["log_end_offset"] = row.log_end
    return found


def _answer(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=False), media_type="application/json")
