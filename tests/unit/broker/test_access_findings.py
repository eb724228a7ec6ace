"""Known ways around authorization, each tried on this broker; the first part of a name is that of the finding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop
from tests.served_apis import served_apis
from tests.unit.broker import memory_broker
from tests.unit.broker.memory_broker import MemoryBroker, MemoryTransport

from ottla.broker.metadata.access_nodes import ACCESS_ROOTS, AccessView
from ottla.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from ottla.testing.raw import batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_user_scram_credentials,
    consumer_group_heartbeat,
    create_acls,
    create_topics,
    delete_acls,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_for_leader_epoch,
    txn_offset_commit,
    write_txn_markers,
)
from ottla.wire.messages.fetch import ReplicaState

TOPIC, TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
TOPIC_REFUSED, CLUSTER_REFUSED, TRANSACTION_REFUSED, SESSION_NOT_FOUND = 29, 31, 53, 70
ALICE, MALLORY = "User:alice", "User:mallory"
_TIMEOUT_S = 60


class Cluster:
    """A broker with a topic of alice that has a record."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.connect = broker.connect
        self.root = broker.root.decoded

    async def create(self) -> Cluster:
        topic = create_topics.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        await self.root(create_topics.CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        await self.root(produce_request(("orders", 0, batch_of(b"secret")), acks=1), 11)
        return self

    async def allow(self, principal: str, resource: ResourceType, name: str, operation: Operation) -> None:
        acl = creation(resource, name, PatternType.LITERAL, principal, operation, Permission.ALLOW)
        (result,) = (await self.root(create_acls.CreateAclsRequest(creations=[acl]), 3)).results
        assert result.error_code == 0, result

    def log_end(self) -> int:
        return int(self.broker.broker.replicas.find("orders", 0).log.log_end_offset)  # type: ignore[union-attr]


def creation(
    resource: ResourceType, name: str, pattern_type: PatternType, principal: str, operation: Operation,
    permission: Permission,
) -> create_acls.AclCreation:  # fmt: skip
    return create_acls.AclCreation(
        resource_type=resource, resource_name=name, resource_pattern_type=pattern_type, principal=principal, host="*",
        operation=operation, permission_type=permission,
    )  # fmt: skip


def play(data: Path, script: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with MemoryBroker(data) as broker, asyncio.timeout(_TIMEOUT_S):
            await script(await Cluster(broker).create())

    uvloop.run(main())


# -- replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11, 14, 17])
def test_cve_2018_1288_client_cannot_fetch_as_a_replica(tmp_path: Path, version: int) -> None:
    """The right to read a topic is not the right to be one of its replicas."""

    async def script(cluster: Cluster) -> None:
        await cluster.allow(MALLORY, TOPIC, "orders", Operation.READ)
        partition: Any = cluster.broker.broker.replicas.find("orders", 0)
        key: Any = partition.topic_id if version >= 13 else "orders"
        for replica_id in (0, 1, 7):
            request = fetch_request({key: [fetch_from(0, 0)]}, max_wait=0)
            if version >= 15:
                request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=1)
            else:
                request.replica_id = replica_id
            reply = await cluster.connect(MALLORY).decoded(request, version)
            (row,) = reply.responses[0].partitions
            assert (row.error_code, row.high_watermark, row.records or b"") == (TOPIC_REFUSED, -1, b"")
        assert not partition.followers

    play(tmp_path, script)


@pytest.mark.parametrize("version", [12, 13])
def test_user_who_may_read_no_topic_cannot_take_the_fetch_sessions_of_others(tmp_path: Path, version: int) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.allow(ALICE, TOPIC, "orders", Operation.READ)
        partition: Any = cluster.broker.broker.replicas.find("orders", 0)
        orders, other = (partition.topic_id, b"?" * 16) if version >= 13 else ("orders", "other")
        mallory = cluster.connect(MALLORY)
        sessions = cluster.broker.broker.parts.fetch.sessions  # type: ignore[union-attr]
        for topic in (orders, other):
            wanted: Any = {topic: [fetch_from(number, 0) for number in range(100)]}
            for _ in range(3):
                reply = await mallory.decoded(fetch_request(wanted, session=(0, 0), max_wait=0), version)
                assert reply.session_id == 0 and {row.error_code for row in reply.responses[0].partitions} - {0}
        assert len(sessions) == 0
        # A client that may read one of its topics has a session for all of them.
        wanted = {other: [fetch_from(0, 0)], orders: [fetch_from(0, 0)]}
        reply = await cluster.connect(ALICE).decoded(fetch_request(wanted, session=(0, 0), max_wait=0), version)
        assert reply.session_id and len(sessions) == 1

    play(tmp_path, script)


def test_topic_name_that_is_not_utf_8_is_refused_like_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Produce and Fetch do not decode names that are known. A traceback per request would fill the disk with logs."""
    encode = memory_broker.request_bytes
    monkeypatch.setattr(memory_broker, "request_bytes", lambda *of: encode(*of).replace(b"strange", b"str\xffnge"))

    async def script(cluster: Cluster) -> None:
        mallory = cluster.connect(MALLORY)
        requests = (
            (fetch_request({"strange": [fetch_from(0, 0)]}, session=(0, 0), max_wait=0), 12),
            (produce_request(("strange", 0, batch_of(b"x")), acks=1), 11),
        )
        for request, version in requests:
            reply = await mallory.ask(request, version)
            assert b"str\xffnge" in reply and TOPIC_REFUSED.to_bytes(2) in reply
        assert not mallory.connection.closing

    play(tmp_path, script)


def test_fetch_session_of_another_user_cannot_be_read_advanced_or_ended(tmp_path: Path) -> None:
    """Nor does its id tell which topics there are."""

    async def script(cluster: Cluster) -> None:
        await cluster.allow(ALICE, TOPIC, "orders", Operation.READ)
        alice, mallory = cluster.connect(ALICE), cluster.connect(MALLORY)
        wanted = {"orders": [fetch_from(0, 0)]}
        session = (await alice.decoded(fetch_request(wanted, session=(0, 0), max_wait=0), 12)).session_id
        assert session
        for epoch in (1, 2):
            reply = await mallory.decoded(fetch_request({}, session=(session, epoch), max_wait=0), 12)
            assert (reply.error_code, reply.session_id, len(reply.responses)) == (SESSION_NOT_FOUND, 0, 0)
        for epoch in (-1, 0):
            await mallory.decoded(fetch_request({}, session=(session, epoch), max_wait=0), 12)
        reply = await alice.decoded(fetch_request({}, session=(session, 1), max_wait=0), 12)
        assert (reply.error_code, reply.session_id) == (0, session)
        again = cluster.connect(ALICE)  # a client goes on with its session after it has connected again
        reply = await again.decoded(fetch_request({}, session=(session, 2), max_wait=0), 12)
        assert (reply.error_code, reply.session_id) == (0, session)

    play(tmp_path, script)


def test_cve_2018_1288_client_cannot_ask_for_epochs_of_a_hidden_topic_as_a_replica(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        row = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic="orders", partitions=[row])
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(replica_id=1, topics=[topic])
        reply = await cluster.connect(MALLORY).decoded(request, 4)
        (answer,) = reply.topics[0].partitions
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (TOPIC_REFUSED, -1, -1)

    play(tmp_path, script)


# -- transactions -----------------------------------------------------------------------------------------------------


async def begin_transaction(cluster: Cluster) -> tuple[MemoryTransport, int, int]:
    """Let alice begin a transaction in her topic. Return her connection, producer id and epoch."""
    await cluster.allow(ALICE, TRANSACTION, "alice", Operation.ALL)
    await cluster.allow(ALICE, TOPIC, "orders", Operation.ALL)
    alice = cluster.connect(ALICE)
    while (await alice.decoded(find_coordinator.FindCoordinatorRequest(key="alice", key_type=1), 3)).error_code:
        await asyncio.sleep(0)  # the internal topic is being created
    producer = await alice.decoded(
        init_producer_id.InitProducerIdRequest(transactional_id="alice", transaction_timeout=60_000), 4
    )
    assert producer.error_code == 0, producer
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    added = await alice.decoded(
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="alice", v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch, v3_and_below_topics=topics,
        ), 3,
    )  # fmt: skip
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    return alice, producer.producer_id, producer.producer_epoch


@pytest.mark.parametrize("transactional_id", ["alice", None])
@pytest.mark.parametrize("version", [9, 12])
def test_cve_2018_17196_client_cannot_append_to_the_transaction_of_another(
    tmp_path: Path, version: int, transactional_id: str | None
) -> None:
    """Mallory may write to the topic, and knows alice's producer id, but may not use her transactional id."""

    async def script(cluster: Cluster) -> None:
        _, producer_id, epoch = await begin_transaction(cluster)
        await cluster.allow(MALLORY, TOPIC, "orders", Operation.WRITE)
        before = cluster.log_end()
        batch = batch_of(b"forged", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        for request in (
            produce_request(("orders", 0, batch), acks=-1, transactional_id=transactional_id),
            produce_request(("orders", 0, batch), ("orders", 1, batch), acks=-1, transactional_id=transactional_id),
        ):
            reply = await cluster.connect(MALLORY).decoded(request, version)
            codes = {row.error_code for topic in reply.responses for row in topic.partition_responses}
            assert codes == {TRANSACTION_REFUSED}
        assert cluster.log_end() == before

    play(tmp_path, script)


def _transaction_requests(producer_id: int, epoch: int) -> list[tuple[Any, int, Callable[[Any], int], int]]:
    """Return requests that change alice's transaction, with version, the place of the error and the error."""
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    own = {"transactional_id": "alice", "producer_id": producer_id, "producer_epoch": epoch}
    row = txn_offset_commit.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    offsets = [txn_offset_commit.TxnOffsetCommitRequestTopic(name="orders", partitions=[row])]
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=False,
        topics=[write_txn_markers.WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
    )  # fmt: skip

    def code(reply: Any) -> int:
        return int(reply.error_code)

    return [
        (init_producer_id.InitProducerIdRequest(transactional_id="alice", transaction_timeout=1000), 4, code,
         TRANSACTION_REFUSED),
        (add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="alice", v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch, v3_and_below_topics=topics,
        ), 3, lambda reply: reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
         TRANSACTION_REFUSED),
        (add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[add_partitions_to_txn.AddPartitionsToTxnTransaction(**own, topics=topics)]
        ), 5, code, CLUSTER_REFUSED),
        (add_offsets_to_txn.AddOffsetsToTxnRequest(**own, group_id="g"), 4, code, TRANSACTION_REFUSED),
        (txn_offset_commit.TxnOffsetCommitRequest(**own, group_id="g", topics=offsets), 5,
         lambda reply: reply.topics[0].partitions[0].error_code, TRANSACTION_REFUSED),
        (end_txn.EndTxnRequest(**own, committed=True), 4, code, TRANSACTION_REFUSED),
        (end_txn.EndTxnRequest(**own, committed=False), 5, code, TRANSACTION_REFUSED),
        (write_txn_markers.WriteTxnMarkersRequest(markers=[marker]), 2,
         lambda reply: reply.markers[0].topics[0].partitions[0].error_code, CLUSTER_REFUSED),
    ]  # fmt: skip


def test_cve_2023_50976_client_cannot_change_the_transaction_of_another(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        _, producer_id, epoch = await begin_transaction(cluster)
        await cluster.allow(MALLORY, TOPIC, "orders", Operation.ALL)
        describe = describe_transactions.DescribeTransactionsRequest(transactional_ids=["alice"])
        before = await cluster.root(describe, 0), cluster.log_end()
        mallory = cluster.connect(MALLORY)
        for request, version, code, expected in _transaction_requests(producer_id, epoch):
            assert code(await mallory.decoded(request, version)) == expected, request
        assert (await cluster.root(describe, 0), cluster.log_end()) == before

    play(tmp_path, script)


# -- ACLs -------------------------------------------------------------------------------------------------------------

_NAMES, _PRINCIPALS = ("a", "ab", "b", "*"), ("User:x", "User:y", "User:*")


def _random_change(rng: Random) -> Any:
    resource = rng.choice([ResourceType.TOPIC, ResourceType.GROUP])
    name, principal = rng.choice(_NAMES), rng.choice(_PRINCIPALS)
    pattern_type = PatternType.LITERAL if name == "*" else rng.choice([PatternType.LITERAL, PatternType.PREFIXED])
    if rng.random() < 0.6:
        operation = rng.choice([Operation.READ, Operation.WRITE, Operation.ALL])
        permission = rng.choice([Permission.ALLOW, Permission.DENY])
        return create_acls.CreateAclsRequest(
            creations=[creation(resource, name, pattern_type, principal, operation, permission)]
        )
    row = delete_acls.DeleteAclsFilter(
        resource_type_filter=resource, resource_name_filter=rng.choice([name, None]), pattern_type_filter=1,
        principal_filter=principal, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    return delete_acls.DeleteAclsRequest(filters=[row])


_ALL_ACLS = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def _enforced(broker: MemoryBroker) -> dict[Any, Any]:
    return {pattern: frozenset(entries) for pattern, entries in broker.authorizer.find(_ALL_ACLS)}


async def _stored(broker: MemoryBroker) -> dict[Any, Any]:
    store: Any = broker.broker.store
    view = AccessView()
    for path, node in (await store.load("/")).items():
        if path.startswith(ACCESS_ROOTS):
            view.apply(path, node.value)
    return view.acls


def test_cve_2024_27309_acls_that_are_enforced_are_those_in_the_store_after_each_change(tmp_path: Path) -> None:
    """Also after a restart."""

    async def main() -> None:
        rng = Random(27309)
        enforced: dict[Any, Any] = {}
        for _ in range(4):
            async with MemoryBroker(tmp_path) as broker:
                assert _enforced(broker) == enforced
                for _ in range(40):
                    request = _random_change(rng)
                    await broker.root.decoded(request, 3)
                    enforced = _enforced(broker)
                    assert enforced == await _stored(broker)
        assert enforced

    uvloop.run(main())


def test_cve_2026_82266_client_without_login_has_no_rights(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        anonymous = cluster.connect("User:ANONYMOUS")
        topic = create_topics.CreatableTopic(name="mine", num_partitions=1, replication_factor=1)
        made = await anonymous.decoded(create_topics.CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        assert made.topics[0].error_code == TOPIC_REFUSED
        listed = await anonymous.decoded(metadata.MetadataRequest(topics=None), 12)
        assert not listed.topics
        named = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="mine")])
        reply = await anonymous.decoded(named, 12)
        assert reply.topics[0].error_code == TOPIC_REFUSED
        acl = creation(TOPIC, "*", PatternType.LITERAL, "User:ANONYMOUS", Operation.ALL, Permission.ALLOW)
        reply = await anonymous.decoded(create_acls.CreateAclsRequest(creations=[acl]), 3)
        assert reply.results[0].error_code == CLUSTER_REFUSED
        assert "mine" not in cluster.broker.broker.view.topics

    play(tmp_path, script)


@pytest.mark.parametrize("host", ["10.0.0.9", "::ffff:10.0.0.9"])
def test_denial_of_an_address_holds_on_a_listener_for_ipv6(tmp_path: Path, host: str) -> None:
    """The operating system writes an address of IPv4 as one of IPv6 there."""

    async def script(cluster: Cluster) -> None:
        await cluster.allow(MALLORY, TOPIC, "orders", Operation.ALL)
        acl = creation(TOPIC, "orders", PatternType.LITERAL, MALLORY, Operation.ALL, Permission.DENY)
        acl.host = "10.0.0.9"
        await cluster.root(create_acls.CreateAclsRequest(creations=[acl]), 3)
        request = produce_request(("orders", 0, batch_of(b"value")), acks=1)
        codes = [
            (await cluster.connect(MALLORY, each).decoded(request, 11)).responses[0].partition_responses[0].error_code
            for each in (host, "10.0.0.8")
        ]
        assert codes == [TOPIC_REFUSED, 0]

    play(tmp_path, script)


def test_user_cannot_change_any_password_without_alter_on_the_cluster(tmp_path: Path) -> None:
    """Neither its own nor the one of an administrator."""

    async def script(cluster: Cluster) -> None:
        rows = [
            alter_user_scram_credentials.ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"s" * 32
            )
            for name in ("mallory", "root")
        ]
        request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=rows)
        reply = await cluster.connect(MALLORY).decoded(request, 0)
        assert [result.error_code for result in reply.results] == [CLUSTER_REFUSED, CLUSTER_REFUSED]
        assert not cluster.broker.broker.view.access.credentials

    play(tmp_path, script)


def test_regular_expression_of_a_member_finds_no_hidden_topic(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        topic = create_topics.CreatableTopic(name="orders-of-others", num_partitions=1, replication_factor=1)
        await cluster.root(create_topics.CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        await cluster.allow(MALLORY, ResourceType.GROUP, "g", Operation.READ)
        await cluster.allow(MALLORY, TOPIC, "orders", Operation.READ)
        mallory = cluster.connect(MALLORY)
        while (await mallory.decoded(find_coordinator.FindCoordinatorRequest(key="g"), 3)).error_code:
            await asyncio.sleep(0)  # the internal topic is being created
        joined = await mallory.decoded(
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="m", member_epoch=0, rebalance_timeout=60_000, subscribed_topic_regex=".*",
                topic_partitions=[],
            ), 1,
        )  # fmt: skip
        assert joined.error_code == 0, joined
        assigned = [bytes(each.topic_id) for each in joined.assignment.topic_partitions]
        assert assigned == [cluster.broker.broker.view.topics["orders"].topic_id]

    play(tmp_path, script)


#: LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, AlterPartition, BrokerRegistration and others
_BROKER_APIS = (4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73)


def test_requests_between_the_brokers_of_kafka_are_not_served() -> None:
    assert not set(_BROKER_APIS) & set(served_apis())
