"""Elections, reassignments and other requests about the brokers. Pure functions decide, the store keeps the decision.

Every broker handles these requests, not only the controller: the versions in the store make that safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from ottla.broker.cluster.broker_addresses import Nodes
from ottla.broker.cluster.controller import Changes, count_changes
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata import reassignment
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.leadership import elect_preferred, elect_unclean, ops_elect, partition_of, replace_partition
from ottla.broker.metadata.nodes import FEATURE_LEVELS, feature_json, registered_path, unregistered_json
from ottla.broker.metadata.store import Create, Op, Put
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.broker.metadata.zookeeper.ensemble import Ensemble, Member
from ottla.broker.request import RequestContext
from ottla.model.errors import (
    ErrorCode,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    Refused,
    UnknownTopicOrPartition,
)
from ottla.model.features import FEATURES, FIXED
from ottla.model.settings import min_insync_replicas
from ottla.model.types import TopicPartition
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_PREFERRED, _UNCLEAN = 0, 1
#: topics whose states are written in one multi
_TOPICS_PER_MULTI = 50
_METADATA_TOPIC = "__cluster_metadata"
_ENSEMBLE_LISTENER = "ZOOKEEPER"
_UPGRADE, _DOWNGRADES = 1, (2, 3)
#: first version of UpdateFeatures without a result for each feature
_NO_RESULTS_FROM = 2

#: the error of each partition, None if it was changed
Results = dict[TopicPartition, KafkaError | None]
Change = Callable[[ClusterView, TopicView, int], PartitionView]


class ClusterApis(Component):
    """Elections, reassignments and other requests about the brokers."""

    def __init__(self, *, metadata: ClusterMetadata, ensemble: Callable[[], Awaitable[Ensemble | None]]) -> None:
        self._metadata = metadata
        self._ensemble = ensemble
        #: leaders that this broker has elected for requests, not as the controller, and those that were unclean
        self.elections = 0
        self.unclean_elections = 0

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            43: ServedApi(0, 2, self.elect_leaders),
            45: ServedApi(0, 1, self.alter_partition_reassignments),
            46: ServedApi(0, 0, self.list_partition_reassignments, large_reply=True),
            55: ServedApi(0, 2, self.describe_quorum),
            57: ServedApi(0, 2, self.update_features),
            64: ServedApi(0, 0, self.unregister_broker),
        }

    async def elect_leaders(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        """ElectLeaders (43) v0-v2. v1 election type and top-level error. Null asks for all partitions."""
        if not context.may_cluster():
            return _refused_election(request)
        kind = request.election_type

        def elect(view: ClusterView, topic: TopicView, number: int) -> PartitionView:
            if kind == _UNCLEAN:
                return elect_unclean(topic, number, self._alive(view), min_isr=self._min_isr(topic))
            return elect_preferred(topic, number, self._alive(view))

        asked: dict[str, list[int]] = {}
        if request.topic_partitions is None:
            asked = {name: list(range(len(topic.partitions))) for name, topic in self._metadata.view.topics.items()}
        else:
            for each in request.topic_partitions:
                asked.setdefault(each.topic, []).extend(each.partitions)
        if kind in (_PREFERRED, _UNCLEAN):
            results = await self._change_partitions(asked, elect, ops_elect)
        else:
            unknown = InvalidRequest(f"election type {kind} does not exist")
            results = {TopicPartition(name, number): unknown for name in asked for number in asked[name]}
        if request.topic_partitions is None:
            results = {name: error for name, error in results.items() if not _is_not_needed(error)}
        topics: dict[str, list[PartitionResult]] = {name: [] for name in asked}
        for name, error in results.items():
            code, message = _code_and_message(error)
            row = PartitionResult(partition_id=name.partition, error_code=code, error_message=message)
            topics[name.topic].append(row)
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST if asked and kind not in (_PREFERRED, _UNCLEAN) else 0,
            replica_election_results=[
                ReplicaElectionResult(topic=topic, partition_result=rows) for topic, rows in topics.items()
            ],
        )

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        """AlterPartitionReassignments (45) v0-v1. Null replicas cancel. v1 may forbid another replication factor."""
        if not context.may_cluster():
            return _refused_reassignments(request)
        wanted: dict[TopicPartition, Sequence[int] | None] = {
            TopicPartition(topic.name, row.partition_index): row.replicas
            for topic in request.topics
            for row in topic.partitions
        }

        def reassign(view: ClusterView, topic: TopicView, number: int) -> PartitionView:
            target = wanted[TopicPartition(topic.name, number)]
            alive, min_isr = self._alive(view), self._min_isr(topic)
            if target is None:
                return reassignment.cancel(topic, number, alive=alive, min_isr=min_isr)
            known = {*alive, *view.registered}
            reassigned = reassignment.start(topic, number, target, alive=alive, known=known, min_isr=min_isr)
            replicas = reassignment.target_of(partition_of(topic, number))
            if not request.allow_replication_factor_change and len(target) != len(replicas):
                raise InvalidReplicationFactor(
                    f"{topic.name}-{number} has {len(replicas)} replicas; {len(target)} would change that"
                )
            return reassigned

        asked: dict[str, list[int]] = {}
        for name in wanted:
            asked.setdefault(name.topic, []).append(name.partition)
        results = await self._change_partitions(asked, reassign, reassignment.ops_reassign)
        topics: dict[str, list[ReassignablePartitionResponse]] = {}
        for name, error in results.items():
            code, message = _code_and_message(error)
            row = ReassignablePartitionResponse(partition_index=name.partition, error_code=code, error_message=message)
            topics.setdefault(name.topic, []).append(row)
        return AlterPartitionReassignmentsResponse(
            error_message=None,
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=[ReassignableTopicResponse(name=topic, partitions=rows) for topic, rows in topics.items()],
        )

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        """ListPartitionReassignments (46) v0. Null asks for all; partitions that are not reassigned are left out."""
        if not context.may_cluster():
            return ListPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        asked: dict[str, set[int]] | None = None
        if request.topics is not None:
            asked = {topic.name: set(topic.partition_indexes) for topic in request.topics}
        topics: dict[str, list[OngoingPartitionReassignment]] = {}
        for each in reassignment.list_reassignments(self._metadata.view, asked):
            if asked is None or each.partition in asked[each.topic]:
                topics.setdefault(each.topic, []).append(
                    OngoingPartitionReassignment(
                        partition_index=each.partition, replicas=each.replicas, adding_replicas=each.adding,
                        removing_replicas=each.removing,
                    )
                )  # fmt: skip
        return ListPartitionReassignmentsResponse(
            error_message=None,
            topics=[OngoingTopicReassignment(name=name, partitions=rows) for name, rows in topics.items()],
        )

    async def _change_partitions(
        self,
        asked: Mapping[str, Iterable[int]],
        change: Change,
        operations: Callable[[ClusterView, Iterable[TopicView]], list[Op]],
    ) -> Results:
        """Change partitions in the store, _TOPICS_PER_MULTI topics at a time. Return the error of each, or None.

        ``change`` returns a partition as it shall be, or raises the KafkaError for it.
        """
        results: Results = {}
        names = list(asked)
        for start in range(0, len(names), _TOPICS_PER_MULTI):
            part = names[start : start + _TOPICS_PER_MULTI]

            def decide(view: ClusterView, part: list[str] = part) -> tuple[list[Op], tuple[Results, Changes]]:
                found: Results = {}
                changed = [
                    after
                    for name in part
                    if (after := _changed_topic(view, name, asked[name], change, found)) is not None
                ]
                return operations(view, changed), (found, count_changes(view, changed))

            try:
                found, changes = await self._metadata.write(decide)
                results |= found
                self.elections += changes.elections
                self.unclean_elections += changes.unclean_elections
            except KafkaError as error:
                results |= {TopicPartition(name, number): error for name in part for number in asked[name]}
        return results

    def _alive(self, view: ClusterView) -> set[int]:
        return set(view.brokers) or {self._metadata.broker_id}

    def _min_isr(self, topic: TopicView) -> int:
        return min_insync_replicas(topic.config, self._metadata.settings, topic.replication_factor)

    # -- brokers --------------------------------------------------------------------------------------------------

    async def unregister_broker(
        self, request: UnregisterBrokerRequest, context: RequestContext
    ) -> UnregisterBrokerResponse:
        """UnregisterBroker (64) v0. The broker must be stopped; it is registered again at its next start."""
        if not context.may_cluster():
            return UnregisterBrokerResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        path = registered_path(request.broker_id)

        def decide(view: ClusterView) -> tuple[list[Op], None]:
            if request.broker_id not in view.registered or node is None:
                raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
            if request.broker_id in view.brokers or view.versions[path] != node.version:
                raise InvalidRequest(f"broker {request.broker_id} is running; stop it first")
            # The node stays: its version tells the runs of the broker apart (KIP-903).
            return [Put(path, unregistered_json(node.value), node.version)], None

        try:
            node = await self._metadata.store.get(path)
            await self._metadata.write(decide)
        except KafkaError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=str(error))
        return UnregisterBrokerResponse(error_message=None)

    async def describe_quorum(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        """DescribeQuorum (55) v0-v2. v1 times. v2 nodes and messages.

        ZooKeeper keeps the metadata, so its ensemble is the quorum: its members are the voters, the epoch of its leader
        is the leader epoch, and transaction ids are the offsets. Without an ensemble, or if it does not say who leads,
        the controller is shown as the leader, its epoch as the leader epoch, and the live brokers as voters, so that
        tools work.
        """
        if not context.may_cluster():
            return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        topics = list(request.topics)
        if [topic.topic_name for topic in topics] != [_METADATA_TOPIC] or len(topics[0].partitions) != 1:
            return DescribeQuorumResponse(
                topics=[
                    DescribeQuorumResponseTopicData(
                        topic_name=topic.topic_name,
                        partitions=[
                            DescribeQuorumResponsePartitionData(
                                partition_index=row.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                                error_message=None,
                            )
                            for row in topic.partitions
                        ],
                    )
                    for topic in topics
                ],
                error_message=None,
            )  # fmt: skip
        ensemble = await self._ensemble()
        number = topics[0].partitions[0].partition_index
        if ensemble is not None:
            return _describe_ensemble(ensemble, number)
        nodes = Nodes(self._metadata, context)
        controller = self._metadata.view.controller
        partition = DescribeQuorumResponsePartitionData(
            partition_index=number, error_message=None, leader_id=nodes.controller_id,
            leader_epoch=controller.epoch if controller is not None else 0, high_watermark=self._metadata.view.version,
            current_voters=[
                ReplicaState(replica_id=node, log_end_offset=self._metadata.view.version) for node in nodes.by_id
            ],
        )  # fmt: skip
        return DescribeQuorumResponse(
            error_message=None,
            topics=[DescribeQuorumResponseTopicData(topic_name=_METADATA_TOPIC, partitions=[partition])],
            nodes=[
                Node(
                    node_id=node.broker_id, listeners=[Listener(name=context.listener, host=node.host, port=node.port)]
                )
                for node in nodes.by_id.values()
            ],
        )

    async def update_features(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """UpdateFeatures (57) v0-v2. v1 upgrade type and validation only. v2 no results.

        All changes are made, or none. Clients learn a new level when they connect.
        """
        if not context.may_cluster():
            return UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        def decide(view: ClusterView) -> tuple[list[Op], None]:
            for each in request.feature_updates:
                _check_feature(view, each, context.version)
            changes = {each.feature: each.max_version_level for each in request.feature_updates}
            if request.validate_only or all(view.feature_level(name) == level for name, level in changes.items()):
                return [], None
            value = feature_json({**view.feature_levels, **changes})
            version = view.versions.get(FEATURE_LEVELS)
            return [Create(FEATURE_LEVELS, value) if version is None else Put(FEATURE_LEVELS, value, version)], None

        try:
            await self._metadata.write(decide)
        except KafkaError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=str(error))
        names = dict.fromkeys(each.feature for each in request.feature_updates)
        has_results = context.version < _NO_RESULTS_FROM
        results = [UpdatableFeatureResult(feature=name, error_message=None) for name in names] if has_results else []
        return UpdateFeaturesResponse(error_message=None, results=results)


def _refused_election(request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Return the answer for a client that may not elect leaders: v0 has the error in each partition only."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results = [
        ReplicaElectionResult(
            topic=each.topic,
            partition_result=[
                PartitionResult(partition_id=number, error_code=code, error_message=None) for number in each.partitions
            ],
        )
        for each in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _is_not_needed(error: KafkaError | None) -> bool:
    return error is not None and error.code == ErrorCode.ELECTION_NOT_NEEDED


def _refused_reassignments(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    """Return the answer for a client that may not reassign partitions."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(partition_index=row.partition_index, error_code=code, error_message=None)
                for row in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=None, responses=responses)


def _changed_topic(
    view: ClusterView, name: str, numbers: Iterable[int], change: Change, results: Results
) -> TopicView | None:
    """Return the topic with its partitions changed, None if none is. Put the error of each into ``results``."""
    topic = view.topics.get(name)
    changed: TopicView | None = None
    for number in dict.fromkeys(numbers):
        key = TopicPartition(name, number)
        results[key] = None
        try:
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            current = changed or topic
            changed = replace_partition(current, number, change(view, current, number)) or changed
        except KafkaError as error:
            results[key] = error
    return changed


def _code_and_message(error: KafkaError | None) -> tuple[int, str | None]:
    return (0, None) if error is None else (error.code, str(error))


def _describe_ensemble(ensemble: Ensemble, number: int) -> DescribeQuorumResponse:
    def state(member: Member) -> ReplicaState:
        return ReplicaState(replica_id=member.server_id, log_end_offset=member.zxid)

    partition = DescribeQuorumResponsePartitionData(
        partition_index=number, error_message=None, leader_id=ensemble.leader_id, leader_epoch=ensemble.epoch,
        high_watermark=ensemble.zxid,
        current_voters=[state(member) for member in ensemble.members if member.is_voter],
        observers=[state(member) for member in ensemble.members if not member.is_voter],
    )  # fmt: skip
    return DescribeQuorumResponse(
        error_message=None,
        topics=[DescribeQuorumResponseTopicData(topic_name=_METADATA_TOPIC, partitions=[partition])],
        nodes=[
            Node(
                node_id=member.server_id,
                listeners=[Listener(name=_ENSEMBLE_LISTENER, host=member.host, port=member.port)],
            )
            for member in ensemble.members
            if member.port
        ],
    )


def _check_feature(view: ClusterView, update: FeatureUpdateKey, version: int) -> None:
    """Raise INVALID_UPDATE_VERSION if a feature cannot be changed to a level."""
    wanted, name = update.max_version_level, update.feature

    def invalid(reason: str) -> KafkaError:
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, f"level {wanted} of feature {name!r}: {reason}")

    if name not in FEATURES:
        raise invalid("the brokers do not support this feature")
    own = FEATURES[name]
    is_downgrade = update.allow_downgrade if version == 0 else update.upgrade_type in _DOWNGRADES
    if version > 0 and update.upgrade_type != _UPGRADE and not is_downgrade:
        raise invalid(f"upgrade type {update.upgrade_type} does not exist")
    for broker, (low, high) in [
        ("this broker", own),
        *((f"broker {each.broker_id}", each.features.get(name, own)) for each in view.brokers.values()),
    ]:
        if not low <= wanted <= high:
            raise invalid(f"{broker} supports the levels {low} to {high}")
    current = view.feature_level(name)
    if wanted < current and not is_downgrade:
        raise invalid(f"it is {current}, and a lower level needs the upgrade type of a downgrade")
    if wanted > current and is_downgrade and version > 0:
        raise invalid(f"it is {current}, which is lower, and the upgrade type is that of a downgrade")
    if wanted != current and name in FIXED:
        raise invalid(f"only level {current} is implemented")
