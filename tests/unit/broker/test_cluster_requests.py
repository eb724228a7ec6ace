"""Elections, reassignments and other requests about brokers, handled by one broker of a cluster of three."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import (
    OWN_ID,
    UNUSED,
    broker_changes,
    make_context,
    make_metadata,
    make_view,
)
from tests.unit.broker.test_cluster_topics import ClusterAdmin, run

from ottla.broker.cluster.cluster_apis import ClusterApis
from ottla.broker.cluster.metadata_apis import api_versions
from ottla.broker.groups.group_apis import GroupApis
from ottla.broker.metadata.nodes import incarnation_of, registered_path
from ottla.broker.metadata.store import Put
from ottla.broker.metadata.zookeeper.ensemble import Ensemble, Member
from ottla.model.errors import ErrorCode
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.create_topics import CreatableReplicaAssignment
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

PREFERRED, UNCLEAN = 0, 1
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
Script = Callable[[ClusterAdmin], Coroutine[Any, Any, None]]


class RequestAdmin:
    """Sends requests to the handlers of a broker."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self.admin = admin
        self.apis = ClusterApis(metadata=admin.metadata, ensemble=UNUSED)

    async def elect(self, kind: int, topics: dict[str, list[int]] | None) -> dict[tuple[str, int], int]:
        rows = None
        if topics is not None:
            rows = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=rows)
        answer = await self.apis.elect_leaders(request, make_context(2))
        return {
            (topic.topic, row.partition_id): row.error_code
            for topic in answer.replica_election_results
            for row in topic.partition_result
        }

    async def reassign(self, targets: dict[tuple[str, int], list[int] | None], **fields: Any) -> list[int]:
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name=name, partitions=[ReassignablePartition(partition_index=number, replicas=ids)])
                for (name, number), ids in targets.items()
            ],
            **fields,
        )
        answer = await self.apis.alter_partition_reassignments(request, make_context(1))
        assert (answer.error_code, answer.error_message) == (0, None)
        return [row.error_code for topic in answer.responses for row in topic.partitions]

    def reassignments(self, topics: dict[str, list[int]] | None = None) -> list[tuple[str, int, Any, Any, Any]]:
        rows = None
        if topics is not None:
            rows = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in topics.items()
            ]
        request = ListPartitionReassignmentsRequest(topics=rows)
        answer = self.apis.list_partition_reassignments(request, make_context(0))
        return [
            (topic.name, row.partition_index, row.replicas, row.adding_replicas, row.removing_replicas)
            for topic in answer.topics
            for row in topic.partitions
        ]

    async def create(self, *assignments: list[int]) -> None:
        """Create topic ``t`` with these replicas."""
        rows = [CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in enumerate(assignments)]
        code, _ = await self.admin.create(assignments=rows)
        assert code == 0

    async def set_state(self, number: int, **fields: Any) -> None:
        topic = self.admin.view.topics["t"]
        partitions = list(topic.partitions)
        partitions[number] = partitions[number].changed(**fields)
        changed = type(topic)(name="t", topic_id=topic.topic_id, partitions=tuple(partitions), config=topic.config)
        await self.admin.store.multi([Put("/brokers/topics/t/state", changed.state_json())])

    def leaders(self) -> list[int]:
        return [leader for leader, _, _ in self.admin.partitions("t")]


def played(path: Path, script: Callable[[RequestAdmin], Coroutine[Any, Any, None]]) -> None:
    async def test(admin: ClusterAdmin) -> None:
        await admin.register(0, 1, 2)
        await script(RequestAdmin(admin))

    run(path, test)


# -- elections --------------------------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected_where_they_are_in_sync(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1], [0, 1], [0, 1])
        await admin.set_state(1, leader=1)
        await admin.set_state(2, leader=1, isr=(1,))
        asked = {"t": [0, 1, 2, 3], "u": [0]}
        assert await admin.elect(PREFERRED, asked) == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 1): 0,
            ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ("t", 3): UNKNOWN,
            ("u", 0): UNKNOWN,
        }
        assert admin.leaders() == [0, 0, 1]
        assert admin.admin.view.topics["t"].partitions[1].leader_epoch == 1
        assert (admin.apis.elections, admin.apis.unclean_elections) == (1, 0)

    played(tmp_path, script)


def test_elections_for_all_partitions_leave_out_those_that_are_not_needed(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1], [0, 1], [0, 1])
        await admin.set_state(1, leader=1)
        await admin.set_state(2, leader=1, isr=(1,))
        expected = {("t", 1): 0, ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await admin.elect(PREFERRED, None) == expected

    played(tmp_path, script)


def test_unclean_election_takes_a_replica_that_was_not_in_sync(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([2, 0], [1, 0])
        await admin.set_state(0, leader=-1, isr=(2,))
        await admin.admin.stop(2)
        assert await admin.elect(UNCLEAN, {"t": [0, 1]}) == {("t", 0): 0, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED}
        assert admin.admin.partitions("t")[0] == (0, (2, 0), (0,))
        assert (admin.apis.elections, admin.apis.unclean_elections) == (1, 1)
        await admin.set_state(0, leader=-1)
        await admin.admin.stop(0)
        assert await admin.elect(UNCLEAN, {"t": [0]}) == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    played(tmp_path, script)


def test_unknown_election_type_is_rejected(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        request = ElectLeadersRequest(election_type=2, topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
        answer = await admin.apis.elect_leaders(request, make_context(2))
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    played(tmp_path, script)


# -- reassignments ----------------------------------------------------------------------------------------------------


def test_reassignment_is_started_listed_and_cancelled(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1], [1, 0])
        assert await admin.reassign({("t", 0): [2, 1]}) == [0]
        expected = [("t", 0, (2, 1, 0), (2,), (0,))]
        assert admin.reassignments() == expected
        assert admin.reassignments({"t": [0, 1], "u": [0]}) == expected
        assert admin.reassignments({"t": [1]}) == []
        assert await admin.reassign({("t", 0): None}) == [0]
        assert admin.reassignments() == []
        assert sorted(admin.admin.partitions("t")[0][1]) == [0, 1]

    played(tmp_path, script)


def test_reassignment_to_the_replicas_in_another_order_is_complete_at_once(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1])
        assert await admin.reassign({("t", 0): [1, 0]}) == [0]
        assert admin.reassignments() == []
        assert admin.admin.partitions("t")[0][1] == (1, 0)

    played(tmp_path, script)


@pytest.mark.parametrize(
    ("number", "target", "code"),
    [
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [0, 0], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [0, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (1, [0], UNKNOWN),
    ],
)
def test_invalid_reassignment_is_rejected(
    tmp_path: Path, number: int, target: list[int] | None, code: ErrorCode
) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1])
        assert await admin.reassign({("t", number): target, ("u", 0): [0]}) == [code, UNKNOWN]

    played(tmp_path, script)


def test_reassignment_may_not_change_the_replication_factor_if_the_client_says_so(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        await admin.create([0, 1])
        for target in ([0], [0, 1, 2]):
            codes = await admin.reassign({("t", 0): target}, allow_replication_factor_change=False)
            assert codes == [ErrorCode.INVALID_REPLICATION_FACTOR]
        assert await admin.reassign({("t", 0): [0, 2]}, allow_replication_factor_change=False) == [0]

    played(tmp_path, script)


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_stopped_broker_is_unregistered_and_its_node_keeps_its_version_and_incarnation(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        store = admin.admin.store

        async def unregister(broker_id: int) -> int:
            request = UnregisterBrokerRequest(broker_id=broker_id)
            return (await admin.apis.unregister_broker(request, make_context(0))).error_code

        assert await unregister(2) == ErrorCode.INVALID_REQUEST, "it runs"
        assert await unregister(9) == ErrorCode.BROKER_ID_NOT_REGISTERED
        await admin.admin.stop(2)
        before = await store.get(registered_path(2))
        assert await unregister(2) == 0
        after = await store.get(registered_path(2))
        assert before is not None
        assert after is not None
        assert (incarnation_of(after.value), after.version) == (incarnation_of(before.value), before.version + 1)
        assert sorted(admin.admin.view.registered) == [0, 1]
        assert await unregister(2) == ErrorCode.BROKER_ID_NOT_REGISTERED

    played(tmp_path, script)


def quorum(topic: str, ensemble: Ensemble | None = None) -> Any:
    partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
    request = DescribeQuorumRequest(topics=[DescribeQuorumRequestTopicData(topic_name=topic, partitions=partitions)])

    async def read_ensemble() -> Ensemble | None:
        return ensemble

    apis = ClusterApis(metadata=make_metadata(make_view()), ensemble=read_ensemble)
    return asyncio.run(apis.describe_quorum(request, make_context(2)))


def test_quorum_is_the_controller_and_the_live_brokers() -> None:
    answer = quorum("__cluster_metadata")
    (row,) = answer.topics[0].partitions
    assert (answer.error_code, row.error_code, row.leader_id, row.leader_epoch) == (0, 0, 2, 1)
    assert [each.replica_id for each in row.current_voters] == [0, 1, 2]
    assert {each.log_end_offset for each in row.current_voters} == {row.high_watermark}
    assert [(node.node_id, node.listeners[0].host) for node in answer.nodes] == [
        (0, "host-0"), (OWN_ID, "dialled"), (2, "host-2")
    ]  # fmt: skip


def test_quorum_is_the_ensemble_if_it_says_who_leads() -> None:
    members = (
        Member(1, "zk-1", 2181, (7 << 32) + 40, is_voter=True),
        Member(2, "zk-2", 2181, (7 << 32) + 41, is_voter=True),
        Member(3, "zk-3", 0, -1, is_voter=True),
        Member(9, "zk-9", 2181, (7 << 32) + 39, is_voter=False),
    )
    answer = quorum("__cluster_metadata", Ensemble(2, members))
    (row,) = answer.topics[0].partitions
    assert (row.leader_id, row.leader_epoch, row.high_watermark) == (2, 7, (7 << 32) + 41)
    voters = [(each.replica_id, each.log_end_offset) for each in row.current_voters]
    assert voters == [(1, (7 << 32) + 40), (2, (7 << 32) + 41), (3, -1)]
    assert [each.replica_id for each in row.observers] == [9]
    assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in answer.nodes] == [
        (1, "zk-1", 2181), (2, "zk-2", 2181), (9, "zk-9", 2181)
    ]  # fmt: skip


def test_quorum_of_another_topic_is_unknown() -> None:
    assert quorum("t").topics[0].partitions[0].error_code == UNKNOWN


# -- features ---------------------------------------------------------------------------------------------------------

INVALID = ErrorCode.INVALID_UPDATE_VERSION
UPGRADE, SAFE_DOWNGRADE = 1, 2


async def update(admin: RequestAdmin, *changes: tuple[str, int, int], version: int = 2, **fields: Any) -> int:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in changes
    ]
    request = UpdateFeaturesRequest(feature_updates=updates, **fields)
    answer = await admin.apis.update_features(request, make_context(version))
    assert len(answer.results) == (len(changes) if version < 2 and not answer.error_code else 0)
    return answer.error_code


def finalized(admin: RequestAdmin) -> tuple[int, dict[str, int]]:
    """Return the epoch and the levels that ApiVersions shows."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = api_versions(request, make_context(4), [], admin.admin.view)
    return answer.finalized_features_epoch, {row.name: row.max_version_level for row in answer.finalized_features}


DEFAULT_LEVELS = {"group.version": 1, "metadata.version": 30, "transaction.version": 2}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "code"),
    [
        ("transaction.version", 2, UPGRADE, 0),
        ("transaction.version", 2, SAFE_DOWNGRADE, 0),
        ("transaction.version", 3, UPGRADE, INVALID),
        ("transaction.version", 1, UPGRADE, INVALID),
        ("transaction.version", 2, 7, INVALID),
        ("transaction.version", -1, SAFE_DOWNGRADE, INVALID),
        ("metadata.version", 29, SAFE_DOWNGRADE, INVALID),
        ("kraft.version", 1, UPGRADE, INVALID),
    ],
)
def test_level_that_is_current_or_invalid_changes_nothing(
    tmp_path: Path, feature: str, level: int, upgrade_type: int, code: int, version: int
) -> None:
    async def script(admin: RequestAdmin) -> None:
        assert await update(admin, (feature, level, upgrade_type), version=version) == code
        assert finalized(admin) == (0, DEFAULT_LEVELS)

    played(tmp_path, script)


def test_level_is_lowered_and_raised_again(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        changes = ("transaction.version", 1, SAFE_DOWNGRADE), ("group.version", 0, SAFE_DOWNGRADE)
        assert await update(admin, *changes, validate_only=True) == 0
        assert finalized(admin) == (0, DEFAULT_LEVELS)
        assert await update(admin, *changes) == 0
        # A feature of level 0 is disabled, and not shown.
        assert finalized(admin) == (1, {"metadata.version": 30, "transaction.version": 1})
        assert await update(admin, ("group.version", 1, SAFE_DOWNGRADE)) == INVALID, "it is an upgrade"
        assert await update(admin, ("group.version", 1, UPGRADE), ("kraft.version", 1, UPGRADE)) == INVALID
        assert await update(admin, ("group.version", 1, UPGRADE), ("transaction.version", 2, UPGRADE)) == 0
        assert finalized(admin) == (2, DEFAULT_LEVELS)

    played(tmp_path, script)


def test_level_that_a_broker_does_not_support_is_rejected(tmp_path: Path) -> None:
    async def script(admin: RequestAdmin) -> None:
        assert await update(admin, ("transaction.version", 1, SAFE_DOWNGRADE)) == 0
        admin.admin.view.apply(broker_changes(0, features={"transaction.version": (0, 1)}))
        assert await update(admin, ("transaction.version", 2, UPGRADE)) == INVALID

    played(tmp_path, script)


def test_consumer_protocol_is_refused_while_its_feature_is_disabled() -> None:
    view = make_view()
    view.feature_levels = {"group.version": 0}
    request = ConsumerGroupHeartbeatRequest(group_id="g")
    apis = GroupApis(metadata=make_metadata(view), groups=UNUSED)
    answer: Any = apis.consumer_group_heartbeat(request, make_context(1))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
