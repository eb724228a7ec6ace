"""Version 3: consumer groups, their members, assignments and lag."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import groups, resources
from ottla.edge.rest.bodies import path_integer
from ottla.edge.rest.errors import not_found
from ottla.edge.rest.groups import Group, Lag, Member
from ottla.edge.rest.proxy import (
    BOOLEAN,
    INTEGER,
    KAFKA_ERRORS,
    NULLABLE_TEXT,
    RELATED,
    TEXT,
    Proxy,
    answer,
    list_schema,
    resource_schema,
)
from ottla.edge.rest.resources import Json, Links, listing
from ottla.edge.rest.v3_topics import CLUSTER
from ottla.edge.web.app import Operation

_GROUP: Final = f"{CLUSTER}/consumer-groups/{{consumer_group_id}}"
_CONSUMER: Final = f"{_GROUP}/consumers/{{consumer_id}}"
_PLACE: Final = "{topic_name}/partitions/{partition_id}"

_GROUP_DATA: Final = resource_schema("KafkaConsumerGroup", {
    "consumer_group_id": TEXT, "is_simple": BOOLEAN, "partition_assignor": TEXT, "state": TEXT, "type": TEXT,
    "is_mixed_consumer_group": BOOLEAN, "coordinator": RELATED, "consumers": RELATED, "lag_summary": RELATED,
})  # fmt: skip
_CONSUMER_DATA: Final = resource_schema("KafkaConsumer", {
    "consumer_group_id": TEXT, "consumer_id": TEXT, "instance_id": NULLABLE_TEXT, "client_id": TEXT,
    "assignments": RELATED,
})  # fmt: skip
_ASSIGNMENT_DATA: Final = resource_schema("KafkaConsumerAssignment", {
    "consumer_group_id": TEXT, "consumer_id": TEXT, "topic_name": TEXT, "partition_id": INTEGER, "partition": RELATED,
    "lag": RELATED,
})  # fmt: skip
_LAG_DATA: Final = resource_schema("KafkaConsumerLag", {
    "consumer_group_id": TEXT, "topic_name": TEXT, "partition_id": INTEGER, "consumer_id": TEXT,
    "instance_id": NULLABLE_TEXT, "client_id": TEXT, "current_offset": INTEGER, "log_end_offset": INTEGER,
    "lag": INTEGER,
})  # fmt: skip
_SUMMARY_DATA: Final = resource_schema("KafkaConsumerGroupLagSummary", {
    "consumer_group_id": TEXT, "max_lag_consumer_id": TEXT, "max_lag_instance_id": NULLABLE_TEXT,
    "max_lag_client_id": TEXT, "max_lag_topic_name": TEXT, "max_lag_partition_id": INTEGER, "max_lag": INTEGER,
    "total_lag": INTEGER, "max_lag_consumer": RELATED, "max_lag_partition": RELATED,
})  # fmt: skip


class GroupRoutes:
    """Handlers of consumer groups."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        rows: list[tuple[str, Any, str, dict[str, Any]]] = [
            (f"{CLUSTER}/consumer-groups", self.list_groups, "List the consumer groups", list_schema(_GROUP_DATA)),
            (_GROUP, self.get_group, "Get a consumer group", _GROUP_DATA),
            (f"{_GROUP}/consumers", self.list_consumers, "List the members of a group", list_schema(_CONSUMER_DATA)),
            (_CONSUMER, self.get_consumer, "Get a member of a group", _CONSUMER_DATA),
            (f"{_CONSUMER}/assignments", self.list_assignments, "List the partitions of a member",
             list_schema(_ASSIGNMENT_DATA)),
            (f"{_CONSUMER}/assignments/{_PLACE}", self.get_assignment, "Get one partition of a member",
             _ASSIGNMENT_DATA),
            (f"{_GROUP}/lag-summary", self.get_lag_summary, "Get the largest and the total lag of a group",
             _SUMMARY_DATA),
            (f"{_GROUP}/lags", self.list_lags, "List the lag of a group in each partition", list_schema(_LAG_DATA)),
            (f"{_GROUP}/lags/{_PLACE}", self.get_lag, "Get the lag of a group in a partition", _LAG_DATA),
        ]  # fmt: skip
        return [
            Operation(method="GET", path=path, handler=handler, summary=summary, tag="Consumer Group (v3)",
                      answers={200: schema}, errors=KAFKA_ERRORS)
            for path, handler, summary, schema in rows
        ]  # fmt: skip

    async def list_groups(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        found = await self._proxy.call(request, groups.list_groups)
        return answer(
            listing("KafkaConsumerGroup", links.url("consumer-groups"), (_group(links, each) for each in found))
        )

    async def get_group(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        return answer(_group(links, await self._group(request)))

    # Members

    async def list_consumers(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        group = await self._group(request)
        rows = (resources.consumer(links, group.group_id, each) for each in group.members)
        return answer(listing("KafkaConsumer", links.url("consumer-groups", group.group_id, "consumers"), rows))

    async def get_consumer(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        group = await self._group(request)
        return answer(resources.consumer(links, group.group_id, _member(request, group)))

    async def list_assignments(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        group = await self._group(request)
        member = _member(request, group)
        rows = [
            resources.assignment(links, group.group_id, member.member_id, tp.topic, tp.partition)
            for tp in sorted(member.partitions)
        ]
        url = links.url("consumer-groups", group.group_id, "consumers", member.member_id, "assignments")
        return answer(listing("KafkaConsumerAssignment", url, rows))

    async def get_assignment(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        topic, partition = request.path_params["topic_name"], path_integer(request, "partition_id")
        group = await self._group(request)
        member = _member(request, group)
        if (topic, partition) not in member.partitions:
            raise not_found(f"Partition {partition} of topic {topic} is not assigned to this consumer.")
        return answer(resources.assignment(links, group.group_id, member.member_id, topic, partition))

    # Lag

    async def get_lag_summary(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        group, lags = await self._lags(request)
        if not lags:
            raise not_found("Consumer group offsets could not be found.")
        largest = max(lags, key=lambda row: row.lag)
        return answer(resources.lag_summary(links, group.group_id, largest, sum(row.lag for row in lags)))

    async def list_lags(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        group, lags = await self._lags(request)
        rows = (resources.lag(links, group.group_id, row) for row in lags)
        return answer(listing("KafkaConsumerLag", links.url("consumer-groups", group.group_id, "lags"), rows))

    async def get_lag(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        topic, partition = request.path_params["topic_name"], path_integer(request, "partition_id")
        group, lags = await self._lags(request)
        for row in lags:
            if (row.topic, row.partition) == (topic, partition):
                return answer(resources.lag(links, group.group_id, row))
        raise not_found(f"The group has no offset for partition {partition} of topic {topic}.")

    async def _group(self, request: Request) -> Group:
        name = request.path_params["consumer_group_id"]
        found = await self._proxy.call(request, groups.describe_group, name)
        if found is None:
            raise not_found(f"Consumer group {name} could not be found.")
        return found

    async def _lags(self, request: Request) -> tuple[Group, list[Lag]]:
        group = await self._group(request)
        return group, await self._proxy.call(request, groups.group_lags, group)


def _group(links: Links, group: Group) -> Json:
    return resources.consumer_group(
        links, group.group_id, is_simple=group.is_simple, assignor=group.assignor, state=group.state,
        group_type=group.group_type, is_mixed=group.is_mixed, coordinator_id=group.coordinator_id,
    )  # fmt: skip


def _member(request: Request, group: Group) -> Member:
    wanted = request.path_params["consumer_id"]
    for member in group.members:
        if member.member_id == wanted:
            return member
    raise not_found(f"Consumer {wanted} could not be found.")
