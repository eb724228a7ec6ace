"""Every API in every version, with each of its needs allowed, denied and not mentioned, against Kafka's rules.

The rows of `permissions.py` generate the clients: one for each combination of rights. ``access_rules.py`` and the
modules of requests say what Kafka answers. A request is sent with resources that exist, and again with each of them
missing: the client must not see a difference if it may not describe the resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from tests.served_apis import served_apis
from tests.unit.broker.access_admin_requests import ADMIN_SHAPES, TRANSACTION_SHAPES
from tests.unit.broker.access_data_requests import GROUP_SHAPES, TOPIC_SHAPES
from tests.unit.broker.access_rules import (
    ABSENT,
    AUTHORIZATION_CODES,
    CLUSTER,
    CLUSTER_NAME,
    FIELDS_OF,
    TOPIC,
    UNKNOWN_TOPIC_ID,
    Acl,
    Names,
    Rule,
    Shape,
    is_granted,
)
from tests.unit.broker.memory_broker import MemoryBroker, MemoryTransport

from ottla.broker.access.permissions import NEEDS
from ottla.broker.metadata.view import ViewChanges
from ottla.security.acls import Entry, Operation, Pattern, Permission, ResourceType
from ottla.testing.raw import read_answer
from ottla.wire.messages import (
    add_partitions_to_txn,
    consumer_group_heartbeat,
    describe_cluster,
    describe_groups,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_commit,
)
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

SHAPES = [*TOPIC_SHAPES, *GROUP_SHAPES, *TRANSACTION_SHAPES, *ADMIN_SHAPES]
CASES_MIN = 5_000
_FAILURES_SHOWN = 40
_CODES = frozenset(AUTHORIZATION_CODES.values())

#: what an ACL says about one need: (operation of the need or another one, on ``*`` or on the name, allow or deny)
_ALLOW, _DENY, _NONE, _DESCRIBE_ONLY, _DENY_ALL = "allow", "deny", "none", "describe only", "deny all"


class Case(NamedTuple):
    shape: Shape
    version: int
    acls: tuple[Acl, ...]
    names: Names

    def __str__(self) -> str:
        rights = ", ".join(
            f"{each.permission.name} {each.operation.name} {each.resource.name}:{each.name}" for each in self.acls
        )
        absent = [name for name in self.names if name in ABSENT]
        return f"API {self.shape.api_key} v{self.version} with [{rights}], absent {absent}"


def acls_for(resource: ResourceType, operation: Operation, state: str) -> Iterator[Acl]:
    """Yield the ACLs of a client for one need. A client whose right is denied has an ACL that allows it, too."""
    if resource == CLUSTER:
        names = [CLUSTER_NAME]
    else:
        names = [name for each in (Names(), ABSENT) for name in _names_of(each, resource)]
    if state == _ALLOW:
        yield from (Acl(resource, name, operation, Permission.ALLOW) for name in names)
    elif state == _DESCRIBE_ONLY:
        yield from (Acl(resource, name, Operation.DESCRIBE, Permission.ALLOW) for name in names)
    elif state in (_DENY, _DENY_ALL):
        allowed = Operation.ALL if state == _DENY_ALL else operation
        yield Acl(resource, CLUSTER_NAME if resource == CLUSTER else "*", allowed, Permission.ALLOW)
        yield from (Acl(resource, name, allowed, Permission.DENY) for name in names)


def _names_of(names: Names, resource: ResourceType) -> list[str]:
    return [text for each in FIELDS_OF.get(resource, ()) if isinstance(text := getattr(names, each), str)]


def clients_of(api_key: int) -> list[tuple[Acl, ...]]:
    """Return the ACLs of each client: all combinations of allowed, denied and not mentioned, and some others."""
    needs = list(dict.fromkeys((need.resource, need.operation) for need in NEEDS[api_key]))
    states: list[tuple[str, ...]] = list(product((_ALLOW, _DENY, _NONE), repeat=len(needs)))
    for place in range(len(needs)):
        for state in (_DESCRIBE_ONLY, _DENY_ALL):
            states.append(tuple(state if each == place else _ALLOW for each in range(len(needs))))
            states.append(tuple(state if each == place else _NONE for each in range(len(needs))))
    return list(dict.fromkeys(
        tuple(acl for need, state in zip(needs, row, strict=True) for acl in acls_for(*need, state))
        for row in states
    ))  # fmt: skip


def refusing_rule(case: Case) -> Rule | None:
    """Return the rule by which Kafka refuses a request; None if it allows it."""
    for rule in case.shape.rules:
        if rule.applies(case.version, case.names) and not any(g.holds(case.acls, case.names) for g in rule.grants):
            return rule
    return None


def is_by_id(rule: Rule, version: int) -> bool:
    """Return whether requests of this version name a topic by its id."""
    return rule.ids_from is not None and version >= rule.ids_from


def is_hidden(case: Case, resource: ResourceType) -> bool:
    return not any(
        is_granted(case.acls, resource, name, Operation.DESCRIBE) for name in _names_of(case.names, resource)
    )


def codes_in(reply: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the error codes of a reply with their fields."""
    for field in type(reply).FIELDS:
        value = getattr(reply, field.name)
        where = f"{path}{field.name}"
        if field.name.endswith("error_code"):
            yield where, value
        for element in value if isinstance(value, list | tuple) else [value]:
            if hasattr(type(element), "FIELDS"):
                yield from codes_in(element, f"{where}.")


def find_fault(case: Case, reply: Any) -> str:
    """Return what is wrong with a reply; an empty text if it is Kafka's."""
    found = {(path, code) for path, code in codes_in(reply) if code in _CODES}
    rule = refusing_rule(case)
    if rule is None:
        if found:
            return f"is allowed, but the reply has {sorted(found)}"
    else:
        code = rule.code
        if is_by_id(rule, case.version) and case.names.topic_id == ABSENT.topic_id:
            code = UNKNOWN_TOPIC_ID
            found |= {(path, each) for path, each in codes_in(reply) if each == code}
        expected = {(path, code) for path in rule.paths(case.version)}
        if found != expected:
            return f"Kafka answers {sorted(expected)}, the reply has {sorted(found)}"
        if case.shape.rules and expected:
            return ""
    for listing in case.shape.listings:
        is_due = listing.applies(case.version, case.names) and any(
            grant.holds(case.acls, case.names) for grant in listing.grants
        )
        if listing.is_shown(reply, case.names) != is_due:
            return "shows what the client may not see" if not is_due else "does not show what the client may see"
    return ""


class Matrix:
    """Sends the cases to a broker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._ask = broker.root.decoded
        self.names = Names()
        self.cases = 0
        self.faults: list[str] = []

    async def create_resources(self) -> None:
        await self._restore()
        for key_type, key in ((0, self.names.group), (1, self.names.transaction)):
            request = find_coordinator.FindCoordinatorRequest(key=key, key_type=key_type)
            while (await self._ask(request, 3)).error_code:
                await asyncio.sleep(0)  # the internal topic is being created
        await self._restore()
        for transactional_id in (self.names.transaction, self.names.open_transaction):
            producer = await self._ask(
                init_producer_id.InitProducerIdRequest(
                    transactional_id=transactional_id, transaction_timeout=900_000
                ), 4,
            )  # fmt: skip
            assert producer.error_code == 0, producer
        added = await self._ask(
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.names.open_transaction,
                v3_and_below_producer_id=producer.producer_id, v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    add_partitions_to_txn.AddPartitionsToTxnTopic(name=self.names.topic, partitions=[0])
                ],
            ), 3,
        )  # fmt: skip
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, added
        joined = await self._ask(
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=self.names.consumer_group, member_id="member", member_epoch=0, rebalance_timeout=60_000,
                subscribed_topic_names=[self.names.topic], topic_partitions=[],
            ), 1,
        )  # fmt: skip
        assert joined.error_code == 0, joined

    async def _restore(self) -> None:
        """Create the topic and the group unless they exist."""
        topic = CreatableTopic(name=self.names.topic, num_partitions=1, replication_factor=1)
        await self._ask(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        found = await self._ask(
            metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=self.names.topic)]), 12
        )
        self.names = self.names._replace(topic_id=bytes(found.topics[0].topic_id))
        row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        committed = offset_commit.OffsetCommitRequestTopic(name=self.names.topic, partitions=[row])
        await self._ask(
            offset_commit.OffsetCommitRequest(
                group_id=self.names.group, generation_id_or_member_epoch=-1, member_id="", topics=[committed]
            ), 8,
        )  # fmt: skip

    async def run(self, shape: Shape, versions: range) -> None:
        clients = clients_of(shape.api_key)
        principals = [f"User:{number}" for number in range(len(clients))]
        self._put_acls(principals, clients)
        connections = [self._broker.connect(principal) for principal in principals]
        for version in filter(shape.versions, versions):
            before = await self._send(shape, version, connections, clients, None)
            for resource in shape.names:
                after = await self._send(shape, version, connections, clients, resource)
                for old, new in zip(before, after, strict=True):
                    self._compare(old, new, resource)
        for connection in connections:
            connection.close()

    def _put_acls(self, principals: Sequence[str], clients: Sequence[tuple[Acl, ...]]) -> None:
        """Replace all ACLs, in the same way as a change in the metadata store does."""
        view = self._broker.broker.view.access
        changed: dict[Pattern, set[Entry]] = {pattern: set() for pattern in view.acls}
        for principal, acls in zip(principals, clients, strict=True):
            for acl in acls:
                entry = Entry(principal, "*", acl.operation, acl.permission)
                changed.setdefault(Pattern(acl.resource, acl.name), set()).add(entry)
        view.acls = {pattern: frozenset(entries) for pattern, entries in changed.items() if entries}
        changes = ViewChanges(topics=[], broker_settings=False, brokers=False, controller=False, access=list(changed))
        self._broker.broker.components.announce(changes)

    async def _send(
        self, shape: Shape, version: int, connections: Sequence[MemoryTransport], clients: Sequence[tuple[Acl, ...]],
        absent: ResourceType | None,
    ) -> list[tuple[Case, bytes] | None]:  # fmt: skip
        """Send the requests of all clients and look at the replies; with a type of resource that does not exist."""
        if not shape.changes_state:
            sent = [
                self._begin(shape, version, connection, acls, absent)
                for connection, acls in zip(connections, clients, strict=True)
            ]
            replies = [each and (each[0], await each[1]) for each in sent]
        else:
            replies = []
            for connection, acls in zip(connections, clients, strict=True):
                await self._restore()
                each = self._begin(shape, version, connection, acls, absent)
                replies.append(each and (each[0], await each[1]))
        for reply in replies:
            if reply is not None:
                self._check(*reply)
        return replies

    def _begin(
        self, shape: Shape, version: int, connection: MemoryTransport, acls: tuple[Acl, ...],
        absent: ResourceType | None,
    ) -> tuple[Case, asyncio.Future[bytes]] | None:  # fmt: skip
        names = self.names
        if absent is not None:
            names = names._replace(**{field: getattr(ABSENT, field) for field in FIELDS_OF[absent]})
        if shape.skips(version, names, acls):
            return None
        return Case(shape, version, acls, names), connection.begin(shape.make(version, names), version)

    def _check(self, case: Case, frame: bytes) -> None:
        self.cases += 1
        fault = find_fault(case, read_answer(frame, case.shape.api_key, case.version, 7))
        if fault:
            self.faults.append(f"{case}: {fault}")

    def _compare(
        self, before: tuple[Case, bytes] | None, after: tuple[Case, bytes] | None, resource: ResourceType
    ) -> None:
        """Compare the replies about a resource that exists and about one that does not."""
        if before is None or after is None:
            return
        case = after[0]
        rule = refusing_rule(case)
        if rule is None or rule is not refusing_rule(before[0]) or not is_hidden(case, resource):
            return
        if resource is TOPIC and is_by_id(rule, case.version):
            # Ids are random and not secret, as in Kafka. The name is.
            if _bytes(before[0].names.topic) in before[1]:
                self.faults.append(f"{case}: tells the name of the topic")
            return
        frame = after[1]
        for old, new in zip(before[0].names, case.names, strict=True):
            frame = frame.replace(_bytes(new), _bytes(old))
        if frame != before[1]:
            self.faults.append(f"{case}: tells whether the resource exists: {before[1]!r}, {frame!r}")


def _bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode()


def test_every_api_has_a_row_and_a_generator() -> None:
    served = set(served_apis())
    assert served <= set(NEEDS), "broker/access/permissions.py has no row for these APIs"
    assert served <= {shape.api_key for shape in SHAPES}, "the modules of requests have none for these APIs"


def test_every_right_that_kafka_requires_is_in_the_table() -> None:
    for shape in SHAPES:
        needs = {(need.resource, need.operation) for need in NEEDS[shape.api_key]}
        required = {(grant.resource, grant.operation) for rule in shape.rules for grant in rule.grants}
        assert required <= needs, f"API {shape.api_key} lacks {required - needs}"


async def _run_matrix(data: Path) -> Matrix:
    settings = {
        "group.consumer.session.timeout.ms": "600000", "group.consumer.max.session.timeout.ms": "600000",
    }  # fmt: skip
    async with MemoryBroker(data, settings) as broker:
        matrix = Matrix(broker)
        await matrix.create_resources()
        served = served_apis()
        for shape in SHAPES:
            if (api := served.get(shape.api_key)) is not None:
                await matrix.run(shape, range(api.version_min, api.version_max + 1))
        return matrix


def test_replies_are_kafkas_and_hide_what_the_client_may_not_describe(tmp_path: Path) -> None:
    matrix = uvloop.run(_run_matrix(tmp_path))
    shown = "\n".join(matrix.faults[:_FAILURES_SHOWN])
    assert not matrix.faults, f"{len(matrix.faults)} of {matrix.cases} cases:\n{shown}"
    assert matrix.cases >= CASES_MIN


_OPERATIONS_OF = {
    TOPIC: [3, 4, 5, 6, 7, 8, 10, 11], ResourceType.GROUP: [3, 6, 8, 10, 11], CLUSTER: [5, 7, 8, 9, 10, 11, 12],
}  # fmt: skip


async def _shown_operations(data: Path, acls: Sequence[Acl]) -> dict[ResourceType, int]:
    """Return the authorized operations that replies show to a client with these ACLs."""
    async with MemoryBroker(data) as broker:
        matrix = Matrix(broker)
        await matrix.create_resources()
        matrix._put_acls(["User:a"], [tuple(acls)])
        client = broker.connect("User:a")
        topics = await client.decoded(
            metadata.MetadataRequest(
                topics=[metadata.MetadataRequestTopic(name=matrix.names.topic)],
                include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
            ), 10,
        )  # fmt: skip
        groups = await client.decoded(
            describe_groups.DescribeGroupsRequest(groups=[matrix.names.group], include_authorized_operations=True), 5
        )
        cluster = await client.decoded(
            describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True), 1
        )
        assert cluster.cluster_authorized_operations == topics.cluster_authorized_operations
        return {
            TOPIC: topics.topics[0].topic_authorized_operations,
            ResourceType.GROUP: groups.groups[0].authorized_operations,
            CLUSTER: cluster.cluster_authorized_operations,
        }  # fmt: skip


def test_authorized_operations_are_those_that_the_client_may_do(tmp_path: Path) -> None:
    names = {TOPIC: "t-exists", ResourceType.GROUP: "g-exists", CLUSTER: CLUSTER_NAME}
    acls = [Acl(kind, "*" if kind != CLUSTER else CLUSTER_NAME, Operation.ALL, Permission.ALLOW) for kind in names] + [
        Acl(TOPIC, "t-exists", Operation.DELETE, Permission.DENY)
    ]
    shown = uvloop.run(_shown_operations(tmp_path, acls))
    assert shown == {
        kind: sum(1 << each for each in of_kind if is_granted(acls, kind, names[kind], Operation(each)))
        for kind, of_kind in _OPERATIONS_OF.items()
    }
    assert shown[TOPIC] & 1 << Operation.DELETE == 0


def test_client_that_may_not_describe_the_cluster_sees_none_of_its_operations(tmp_path: Path) -> None:
    acls = [Acl(CLUSTER, CLUSTER_NAME, Operation.CREATE, Permission.ALLOW)] + [
        Acl(kind, "*", Operation.DESCRIBE, Permission.ALLOW) for kind in (TOPIC, ResourceType.GROUP)
    ]
    shown = uvloop.run(_shown_operations(tmp_path, acls))
    describe = 1 << Operation.DESCRIBE
    assert shown == {TOPIC: describe, ResourceType.GROUP: describe, CLUSTER: 0}
