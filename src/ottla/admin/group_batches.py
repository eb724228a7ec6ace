"""The requests about many consumer groups: one per coordinator and a few hundred groups, not one per group.

A group that cannot be read does not fail the others: it gets the error instead of a result. Blocking functions of a
`Cluster`; they raise ClientError only if the cluster as a whole does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ottla.admin import group_requests
from ottla.admin.group_state import GroupState
from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError, UnsupportedByBroker
from ottla.client.many import ask_many, parts_of
from ottla.client.protocol.metadata import CoordinatorType, Node, coordinator_requests
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

#: groups in one request; a reply has a row for each partition of each group
GROUPS_MAX: Final = 200
#: keys in one request for coordinators
_KEYS_MAX: Final = 1000
#: the first version of OffsetFetch that asks for all partitions, and the first for several groups
_ALL_PARTITIONS_FROM: Final = 2
_SEVERAL_GROUPS_FROM: Final = 8
_OFFSET_FETCH_MAX: Final = 9
_PAUSE_S: Final = 0.1
#: requests that are sent before the first reply is read
_IN_FLIGHT_MAX: Final = 16
#: limit for the requests of one round, so that a broker that does not answer leaves time for another round
_ROUND_S_MAX: Final = 5.0

_T = TypeVar("_T")
#: a result or an error by group
Found = dict[str, _T | ClientError]


def describe_many(cluster: Cluster, groups: Iterable[str], timeout_s: float) -> Found[GroupState]:
    """Return each group, or why it could not be described; one that does not exist has the state Dead."""
    return _at_coordinators(cluster, groups, timeout_s, _describe)


def committed_many(cluster: Cluster, groups: Iterable[str], timeout_s: float) -> Found[dict[TopicPartition, int]]:
    """Return the committed offsets of each group, or why they could not be read."""
    return _at_coordinators(cluster, groups, timeout_s, _committed)


def coordinators_of(cluster: Cluster, groups: Sequence[str], deadline: float) -> dict[str, Node | ClientError]:
    """Return the coordinator of each group, or why there is none at the moment. Raise ClientError without a reply."""
    found: dict[str, Node | ClientError] = {}
    for part in parts_of(groups, _KEYS_MAX):
        node = cluster.any_node(deadline)
        version = cluster.version_at(node, FindCoordinatorRequest.API_KEY, deadline)
        for request in coordinator_requests(CoordinatorType.GROUP, part, version):
            answer = cluster.ask(node, request, deadline=deadline)
            rows: Sequence[Any] = answer.coordinators or [answer]
            for row in rows:
                key = request.key or getattr(row, "key", "")
                found[key] = (
                    BrokerError(row.error_code, f"coordinator of {key}", row.error_message)
                    if row.error_code
                    else Node(row.node_id, row.host, row.port)
                )
    missing = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator")
    return {group: found.get(group, missing) for group in groups}


_Attempt = Callable[[Cluster, Mapping[Node, Sequence[str]], float], Found[_T]]


def _at_coordinators(cluster: Cluster, groups: Iterable[str], timeout_s: float, attempt: _Attempt[_T]) -> Found[_T]:
    """Return what `attempt` finds at the coordinators. Repeat it after transient errors, until the timeout."""
    pending = list(dict.fromkeys(groups))
    found: Found[_T] = {}
    until = time.monotonic() + timeout_s
    while pending:
        by_node: dict[Node, list[str]] = {}
        named = partial(coordinators_of, cluster, pending)
        for group, node in cluster.retry("groups", named, timeout_s=max(until - time.monotonic(), _PAUSE_S)).items():
            if isinstance(node, ClientError):
                found[group] = node
            else:
                by_node.setdefault(node, []).append(group)
        found |= attempt(cluster, by_node, min(until, time.monotonic() + _ROUND_S_MAX))
        pending = [group for group in pending if isinstance(error := found[group], ClientError) and error.retriable]
        if time.monotonic() + _PAUSE_S >= until or (cluster.ended is not None and cluster.ended.is_set()):
            break
        if pending:
            time.sleep(_PAUSE_S)
    return found


def _parts(by_node: Mapping[Node, Sequence[str]], size: int) -> Iterator[tuple[Node, tuple[str, ...]]]:
    for node, groups in by_node.items():
        for part in parts_of(groups, size):
            yield node, part


def _describe(cluster: Cluster, by_node: Mapping[Node, Sequence[str]], deadline: float) -> Found[GroupState]:
    found: Found[GroupState] = {}
    asked = [(node, ConsumerGroupDescribeRequest(group_ids=list(part))) for node, part in _parts(by_node, GROUPS_MAX)]
    classic: dict[Node, list[str]] = {}
    for node, request, reply in ask_many(cluster, asked, deadline):
        rows = {} if isinstance(reply, ClientError) else {row.group_id: row for row in reply.groups}
        for group in request.group_ids:
            if isinstance(reply, ClientError) and not isinstance(reply, UnsupportedByBroker):
                found[group] = reply
                continue
            state = _read(group_requests.consumer_state, node, rows.get(group)) if group in rows else None
            if state is None:
                classic.setdefault(node, []).append(group)
            else:
                found[group] = state
    asked_classic = [(node, DescribeGroupsRequest(groups=list(part))) for node, part in _parts(classic, GROUPS_MAX)]
    for node, described, reply in ask_many(cluster, asked_classic, deadline):
        rows = {} if isinstance(reply, ClientError) else {row.group_id: row for row in reply.groups}
        for group in described.groups:
            if isinstance(reply, ClientError):
                found[group] = reply
            elif group in rows:
                found[group] = _read(group_requests.classic_state, node, rows[group])
            else:
                found[group] = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group}", "no row in the reply")
    return found


def _committed(
    cluster: Cluster, by_node: Mapping[Node, Sequence[str]], deadline: float
) -> Found[dict[TopicPartition, int]]:
    found: Found[dict[TopicPartition, int]] = {}
    asked: list[tuple[Node, OffsetFetchRequest]] = []
    for node, groups in by_node.items():
        try:
            version = cluster.version_at(node, OffsetFetchRequest.API_KEY, deadline)
        except ClientError as error:
            found |= dict.fromkeys(groups, error)
            continue
        # Older brokers take one group in a request. Their requests are sent without waiting for replies.
        size = GROUPS_MAX if version >= _SEVERAL_GROUPS_FROM else 1
        asked += [(node, _offset_fetch(part, version)) for part in parts_of(groups, size)]
    for part in parts_of(asked, _IN_FLIGHT_MAX):
        for _, request, reply in ask_many(
            cluster, part, deadline, version_min=_ALL_PARTITIONS_FROM, version_max=_OFFSET_FETCH_MAX
        ):
            names = [each.group_id for each in request.groups] or [request.group_id]
            rows = {} if isinstance(reply, ClientError) else {each.group_id: each for each in reply.groups}
            for group in names:
                if isinstance(reply, ClientError):
                    found[group] = reply
                elif rows and group not in rows:
                    found[group] = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group}", "no row in the reply")
                else:
                    found[group] = _read(group_requests.committed_rows, rows.get(group, reply), group)
    return found


def _offset_fetch(groups: Sequence[str], version: int) -> OffsetFetchRequest:
    if version < _SEVERAL_GROUPS_FROM:
        return OffsetFetchRequest(group_id=groups[0], topics=None)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])


def _read(parse: Callable[..., _T], *row: Any) -> _T | ClientError:
    try:
        return parse(*row)
    except ClientError as error:
        return error
