"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial

from ottla.broker.cluster.broker_addresses import Nodes, send_away_if_cut_off
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.topic_plans import PARTITIONS_PER_CALL_MAX
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.request import RequestContext
from ottla.env.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError, Refused
from ottla.model.features import FEATURES
from ottla.security.acls import CLUSTER_NAME, ResourceType
from ottla.wire import ZERO_UUID
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_CHARACTERS_MAX = 200
_NOT_ASKED = -(1 << 31)
_BY_ID_FROM = 12
#: DescribeTopicPartitions reports a leader without the client's listener as newer versions of Metadata do
_LATEST = 13
_BROKER_ENDPOINTS, _CONTROLLER_ENDPOINTS = 1, 2
_MAY_NOT_CREATE = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
#: most partitions in one reply of DescribeTopicPartitions
_DESCRIBE_PARTITIONS_MAX = 2000


def api_versions(
    request: ApiVersionsRequest, context: RequestContext, served: Iterable[tuple[int, int, int]], view: ClusterView
) -> ApiVersionsResponse:
    """ApiVersions (18) v0-v4. v3 flexible, client software. The response header is v0 in every version."""
    names = (request.client_software_name, request.client_software_version)
    if context.version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    context.connection.software = " ".join(names)[:_SOFTWARE_CHARACTERS_MAX]
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in served],
        # Clients of v3 fail to parse a supported feature whose lowest level is 0 (KAFKA-17492).
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=level)
            for name, (low, level) in FEATURES.items()
            if low > 0 or context.version >= 4
        ],
        finalized_features_epoch=view.feature_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name in FEATURES
            if (level := view.feature_level(name)) > 0
        ],
    )


class MetadataApis(Component):
    """The APIs with which clients find brokers and topics."""

    def __init__(self, *, metadata: ClusterMetadata, replicas: ReplicaManager, topics: TopicApis, clock: Clock) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._clock = clock

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            3: ServedApi(0, 13, self.metadata, cached=True, large_reply=True),
            60: ServedApi(0, 2, self.describe_cluster),
            75: ServedApi(0, 0, self.describe_topic_partitions, large_reply=True),
        }

    def metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Metadata (3) v0-v13. v1 null asks for all. v4 auto-creation. v7 leader epoch. v10 topic ids. v12 by id."""
        if request.topics is None or (context.version == 0 and not request.topics):
            describe = _Describer(self._metadata, self._replicas, request, context)
            known = self._metadata.view.topics.values()
            topics = (topic for topic in known if context.may(ResourceType.TOPIC, topic.name, quiet=True))
            return describe.answer([describe.topic(topic) for topic in topics])
        # Answer each topic once, so that a request cannot multiply the size of its reply.
        asked = list({(wanted.name, wanted.topic_id): wanted for wanted in request.topics or ()}.values())
        if context.version < _BY_ID_FROM and any(each.topic_id != ZERO_UUID or each.name is None for each in asked):
            return _Describer(self._metadata, self._replicas, request, context).answer(
                [_unanswerable(wanted) for wanted in asked]
            )
        create = self._metadata.settings.auto_create_topics_enable and (
            request.allow_auto_topic_creation or context.version < 4
        )
        created: dict[str, TopicView | KafkaError | None] = {}
        missing: list[str] = []
        if create and len(asked) <= PARTITIONS_PER_CALL_MAX:
            missing, refused = self._missing_names(context, asked)
            created = dict.fromkeys(refused, _MAY_NOT_CREATE)
        if missing:
            return self._create_and_answer(request, context, asked, missing, created)
        describe = _Describer(self._metadata, self._replicas, request, context)
        return describe.answer([describe.wanted_topic(wanted, created) for wanted in asked])

    def _missing_names(
        self, context: RequestContext, asked: Iterable[MetadataRequestTopic]
    ) -> tuple[list[str], list[str]]:
        """Return the names of topics to create, and the names of missing topics that the client may not create.

        A topic that was deleted a moment ago is created in the background.
        """
        missing: list[str] = []
        refused: list[str] = []
        for wanted in asked:
            name = wanted.name
            if (
                name is not None
                and wanted.topic_id == ZERO_UUID
                and name not in self._metadata.view.topics
                and context.may(ResourceType.TOPIC, name, quiet=True)
            ):
                if not context.may_cluster("create", quiet=True) and not context.may(
                    ResourceType.TOPIC, name, "create"
                ):
                    refused.append(name)
                elif self._metadata.view.recently_deleted(name, self._clock.wall_ms()):
                    # As in Kafka, where creation always takes place in the background: a client that looks whether its
                    # DeleteTopics took effect must not be shown a new topic in the answer to its question.
                    self._topics.create_topic_in_background(name)
                else:
                    missing.append(name)
        return missing, refused

    async def _create_and_answer(
        self,
        request: MetadataRequest,
        context: RequestContext,
        asked: Iterable[MetadataRequestTopic],
        missing: Iterable[str],
        created: dict[str, TopicView | KafkaError | None],
    ) -> MetadataResponse:
        """Create topics and answer; ``created`` has the errors of topics that the client may not create."""
        for name in missing:
            try:
                created[name] = await self._topics.create_topic_by_default(name)
            except KafkaError as error:
                created[name] = error
        describe = _Describer(self._metadata, self._replicas, request, context)
        return describe.answer([describe.wanted_topic(wanted, created) for wanted in asked])

    def describe_cluster(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        """DescribeCluster (60) v0-v2. v1 endpoint type. v2 fenced brokers."""
        if request.endpoint_type != _BROKER_ENDPOINTS:
            for_controllers = request.endpoint_type == _CONTROLLER_ENDPOINTS
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if for_controllers
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this is a broker; controllers have no endpoints of their own",
            )
        nodes = Nodes(self._metadata, context)
        send_away_if_cut_off(self._metadata, context)
        asked = request.include_cluster_authorized_operations
        fenced = nodes.fenced() if request.include_fenced_brokers else []
        return DescribeClusterResponse(
            error_message=None,
            cluster_id=self._metadata.cluster_id,
            controller_id=nodes.controller_id,
            brokers=[
                DescribeClusterBroker(
                    broker_id=node.broker_id, host=node.host, port=node.port, rack=node.rack, is_fenced=is_fenced
                )
                for is_fenced, group in ((False, nodes.by_id.values()), (True, fenced))
                for node in group
            ],
            cluster_authorized_operations=context.operations(ResourceType.CLUSTER, CLUSTER_NAME)
            if asked
            else _NOT_ASKED,
        )

    def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        """DescribeTopicPartitions (75) v0. Topics in order of name, as many partitions as asked for, then a cursor."""
        cursor = request.cursor
        asked = {topic.name for topic in request.topics}
        if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
            refused = [
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)
                for name in sorted(asked)
            ]
            return DescribeTopicPartitionsResponse(topics=refused, next_cursor=None)
        names = sorted(
            asked or filter(partial(context.may, ResourceType.TOPIC, quiet=True), self._metadata.view.topics)
        )
        first = cursor.topic_name if cursor is not None else ""
        limit = max(min(request.response_partition_limit, _DESCRIBE_PARTITIONS_MAX), 1)
        answer = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        nodes = Nodes(self._metadata, context)
        for name in names:
            if name < first:
                continue
            start = cursor.partition_index if cursor is not None and name == first else 0
            if limit <= 0:
                answer.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=start)
                break
            described = self._describe_partitions(context, nodes, name, start, limit)
            topics.append(described)
            limit -= len(described.partitions)
            topic = self._metadata.view.topics.get(name) if not described.error_code else None
            if topic is not None and start + len(described.partitions) < len(topic.partitions):
                answer.next_cursor = DescribeTopicPartitionsResponseCursor(
                    topic_name=name, partition_index=start + len(described.partitions)
                )
                break
        answer.topics = topics
        return answer

    def _describe_partitions(
        self, context: RequestContext, nodes: Nodes, name: str, start: int, limit: int
    ) -> DescribeTopicPartitionsResponseTopic:
        if not context.may(ResourceType.TOPIC, name):
            return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        operations = context.operations(ResourceType.TOPIC, name)
        topic = self._metadata.view.topics.get(name)
        if topic is None:
            return DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_authorized_operations=operations
            )
        here = self._replicas.topics.get(name.encode(), {})
        partitions = []
        for number, view in enumerate(topic.partitions[start : start + limit], start):
            seen = nodes.of_partition(view, here.get(number), _LATEST)
            partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    error_code=seen.error_code, partition_index=number, leader_id=seen.leader_id,
                    leader_epoch=view.leader_epoch, replica_nodes=view.replicas, isr_nodes=view.isr,
                    eligible_leader_replicas=view.elr, last_known_elr=(), offline_replicas=seen.offline_replicas,
                )
            )  # fmt: skip
        return DescribeTopicPartitionsResponseTopic(
            name=name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions,
            topic_authorized_operations=operations,
        )  # fmt: skip


def _unanswerable(wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    """Return the answer to a request by topic id in v10 or v11: they have the field, but it may be used from v12 on."""
    return MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or "", topic_id=wanted.topic_id)


class _Describer:
    """Builds the reply to one Metadata request."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        request: MetadataRequest,
        context: RequestContext,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._context = context
        self._version = context.version
        self._are_operations_asked = request.include_topic_authorized_operations
        self._cluster_operations = (
            context.operations(ResourceType.CLUSTER, CLUSTER_NAME)
            if request.include_cluster_authorized_operations
            else _NOT_ASKED
        )
        self._nodes = Nodes(self._metadata, context)
        send_away_if_cut_off(self._metadata, context)

    def answer(self, topics: list[MetadataResponseTopic]) -> MetadataResponse:
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
                for node in self._nodes.by_id.values()
            ],
            cluster_id=self._metadata.cluster_id,
            controller_id=self._nodes.controller_id,
            topics=topics,
            cluster_authorized_operations=self._cluster_operations,
        )

    def wanted_topic(
        self, wanted: MetadataRequestTopic, created: Mapping[str, TopicView | KafkaError | None]
    ) -> MetadataResponseTopic:
        view = self._metadata.view
        if wanted.topic_id != ZERO_UUID or wanted.name is None:
            topic = view.topics_by_id.get(wanted.topic_id)
            if topic is not None and self._context.may(ResourceType.TOPIC, topic.name):
                return self.topic(topic)
            code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return MetadataResponseTopic(error_code=code, name=None, topic_id=wanted.topic_id)
        if not self._context.may(ResourceType.TOPIC, wanted.name):
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=wanted.name)
        found = view.topics.get(wanted.name) or created.get(wanted.name)
        if found is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=wanted.name)
        if isinstance(found, KafkaError):
            return MetadataResponseTopic(error_code=found.code, name=wanted.name)
        return self.topic(found)

    def topic(self, topic: TopicView) -> MetadataResponseTopic:
        here = self._replicas.topics.get(topic.name.encode(), {})
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=[
                self._partition(number, view, here.get(number)) for number, view in enumerate(topic.partitions)
            ],
            topic_authorized_operations=(
                self._context.operations(ResourceType.TOPIC, topic.name) if self._are_operations_asked else _NOT_ASKED
            ),
        )

    def _partition(self, number: int, view: PartitionView, replica: Partition | None) -> MetadataResponsePartition:
        nodes = self._nodes.of_partition(view, replica, self._version)
        answer = MetadataResponsePartition(
            error_code=nodes.error_code,
            partition_index=number,
            leader_id=nodes.leader_id,
            leader_epoch=view.leader_epoch,
            replica_nodes=view.replicas,
            isr_nodes=view.isr,
            offline_replicas=nodes.offline_replicas,
        )
        if self._version == 0 and nodes.offline_replicas:
            # The first version has no field for offline replicas. Kafka leaves them out and reports an error.
            answer.replica_nodes = [each for each in view.replicas if each not in nodes.offline_replicas]
            answer.isr_nodes = [each for each in view.isr if each not in nodes.offline_replicas]
            answer.error_code = answer.error_code or ErrorCode.REPLICA_NOT_AVAILABLE
        return answer
