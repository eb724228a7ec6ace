"""Version 3: consumer groups, their members, assignments and lag."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import groups, resources
from ottla.edge.rest.bodies import path_integer
from ottla.edge.rest.errors import not_found
from ottla.edge.rest.groups import Group, Lag, Member
from ottla.edge.rest.proxy import RELATED, Proxy, answer, list_schema, resource_schema
from ottla.edge.rest.resources import Links, listing
from ottla.edge.web.app import Operation
from ottla.edge.web.json_schemas import BOOLEAN, INTEGER, NULLABLE_TEXT, TEXT

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
        row = partial(self._proxy.operation, tag="Consumer Group (v3)")
        group, place = "consumer-groups/{consumer_group_id}", "{topic_name}/partitions/{partition_id}"
        member = f"{group}/consumers/{{consumer_id}}"
        return [
            row("consumer-groups.list", "GET consumer-groups", self.list_groups, "List the consumer groups",
                list_schema(_GROUP_DATA)),
            row("consumer-groups.get", f"GET {group}", self.get_group, "Get a consumer group", _GROUP_DATA),
            row("consumers.list", f"GET {group}/consumers", self.list_consumers, "List the members of a group",
                list_schema(_CONSUMER_DATA)),
            row("consumers.get", f"GET {member}", self.get_consumer, "Get a member of a group", _CONSUMER_DATA),
            row("consumer-assignments.list", f"GET {member}/assignments", self.list_assignments,
                "List the partitions of a member", list_schema(_ASSIGNMENT_DATA)),
            row("consumer-assignments.get", f"GET {member}/assignments/{place}", self.get_assignment,
                "Get one partition of a member", _ASSIGNMENT_DATA),
            row("consumer-group-lag-summary.get", f"GET {group}/lag-summary", self.get_lag_summary,
                "Get the largest and the total lag of a group", _SUMMARY_DATA),
            row("consumer-lags.list", f"GET {group}/lags", self.list_lags,
                "List the lag of a group in each partition", list_schema(_LAG_DATA)),
            row("consumer-lags.get", f"GET {group}/lags/{place}", self.get_lag,
                "Get the lag of a group in a partition", _LAG_DATA),
        ]  # fmt: skip

    async def list_groups(self, request: Request, links: Links) -> Response:
        found = await self._proxy.call(request, groups.list_groups)
        rows = (resources.consumer_group(links, each) for each in found)
        return answer(listing("KafkaConsumerGroup", links.url("consumer-groups"), rows))

    async def get_group(self, request: Request, links: Links) -> Response:
        return answer(resources.consumer_group(links, await self._group(request)))

    # Members

    async def list_consumers(self, request: Request, links: Links) -> Response:
        group = await self._group(request)
        rows = (resources.consumer(links, group.group_id, each) for each in group.members)
        return answer(listing("KafkaConsumer", links.url("consumer-groups", group.group_id, "consumers"), rows))

    async def get_consumer(self, request: Request, links: Links) -> Response:
        group = await self._group(request)
        return answer(resources.consumer(links, group.group_id, _member(request, group)))

    async def list_assignments(self, request: Request, links: Links) -> Response:
        group = await self._group(request)
        member = _member(request, group)
        rows = [
            resources.assignment(links, group.group_id, member.member_id, tp.topic, tp.partition)
            for tp in sorted(member.partitions)
        ]
        url = links.url("consumer-groups", group.group_id, "consumers", member.member_id, "assignments")
        return answer(listing("KafkaConsumerAssignment", url, rows))

    async def get_assignment(self, request: Request, links: Links) -> Response:
        topic, partition = request.path_params["topic_name"], path_integer(request, "partition_id")
        group = await self._group(request)
        member = _member(request, group)
        if (topic, partition) not in member.partitions:
            raise not_found(f"Partition {partition} of topic {topic} is not assigned to this consumer.")
        return answer(resources.assignment(links, group.group_id, member.member_id, topic, partition))

    # Lag

    async def get_lag_summary(self, request: Request, links: Links) -> Response:
        group, lags = await self._lags(request)
        if not lags:
            raise not_found("Consumer group offsets could not be found.")
        largest = max(lags, key=lambda row: row.lag)
        return answer(resources.lag_summary(links, group.group_id, largest, sum(row.lag for row in lags)))

    async def list_lags(self, request: Request, links: Links) -> Response:
        group, lags = await self._lags(request)
        rows = (resources.lag(links, group.group_id, row) for row in lags)
        return answer(listing("KafkaConsumerLag", links.url("consumer-groups", group.group_id, "lags"), rows))

    async def get_lag(self, request: Request, links: Links) -> Response:
        topic, partition = request.path_params["topic_name"], path_integer(request, "partition_id")
        group, lags = await self._lags(request)
        for row in lags:
            if (row.topic_name, row.partition_id) == (topic, partition):
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


def _member(request: Request, group: Group) -> Member:
    wanted = request.path_params["consumer_id"]
    for member in group.members:
        if member.member_id == wanted:
            return member
    raise not_found(f"Consumer {wanted} could not be found.")
