"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping

from ottla.broker.cluster.broker_addresses import Nodes, may_lead, send_away_if_cut_off
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component, ServedApi
from ottla.broker.groups.runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import NO_LEADER
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.request import RequestContext
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC, TransactionRuntime
from ottla.env.log_limit import LogLimit
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import ResourceType
from ottla.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
#: the topic in which coordinators keep their state, by key type
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_TOPIC}
_RESOURCES = {_GROUP: ResourceType.GROUP, _TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_REFUSALS = {
    _GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _SHARE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class CoordinatorApis(Component):
    """Finds coordinators, and creates the topics in which they keep their state."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        topics: TopicApis,
        groups: GroupRuntime,
        transactions: TransactionRuntime,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._groups = groups
        self._transactions = transactions

    def apis(self) -> Mapping[int, ServedApi]:
        return {10: ServedApi(0, 6, self.find_coordinator)}

    def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        """FindCoordinator (10) v0-v6. v1 key type. v4 many keys."""
        missing = _TOPICS.get(request.key_type)
        keys = request.coordinator_keys if context.version >= 4 else [request.key]
        if (
            missing is not None
            and missing not in self._metadata.view.topics
            and any(_may_find(context, request.key_type, key) for key in keys)
        ):
            return self._create_and_find(request, context)
        return self._coordinators(request, context)

    async def _create_and_find(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        """Create the topic of the coordinators, then answer. If it cannot be created, no coordinator is available.

        Another broker may not know yet that it coordinates, and some clients do not retry what it refuses then. As in
        Kafka, the reply lets them ask again.
        """
        try:
            if request.key_type == _TRANSACTION:
                await self._create_transaction_topic()
            else:
                await self._create_offsets_topic()
        except KafkaError as error:
            log.error("an internal topic cannot be created topic=%s error=%s", _TOPICS[request.key_type], error)
        return self._coordinators(request, context, only_here=True)

    async def _create_offsets_topic(self) -> None:
        """Create ``__consumer_offsets`` unless it exists. Raise a KafkaError if there are too few brokers."""
        settings = self._metadata.settings
        factor = settings.offsets_topic_replication_factor
        config = {
            "cleanup.policy": "compact", "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }  # fmt: skip
        await self._topics.create_internal_topic(
            OFFSETS_TOPIC, partitions=settings.offsets_topic_num_partitions,
            replication_factor=factor if settings.is_set("offsets.topic.replication.factor") else None,
            config=lambda _: config,
        )  # fmt: skip

    def _coordinators(
        self, request: FindCoordinatorRequest, context: RequestContext, *, only_here: bool = False
    ) -> FindCoordinatorResponse:
        """Return the coordinators; with ``only_here`` those on other brokers are not available yet."""
        keys = request.coordinator_keys if context.version >= 4 else [request.key]
        nodes = Nodes(self._metadata, context)
        send_away_if_cut_off(self._metadata, context)
        if only_here:
            nodes.by_id = {number: node for number, node in nodes.by_id.items() if number == self._metadata.broker_id}
        found = [
            self._coordinator(nodes, request.key_type, key)
            if _may_find(context, request.key_type, key)
            else Coordinator(key=key, node_id=-1, port=-1, error_code=_REFUSALS[request.key_type], error_message=None)
            for key in keys
        ]
        first = found[0] if found else Coordinator()
        return FindCoordinatorResponse(
            error_code=first.error_code, error_message=first.error_message, node_id=first.node_id, host=first.host,
            port=first.port, coordinators=found,
        )  # fmt: skip

    def _coordinator(self, nodes: Nodes, key_type: int, key: str) -> Coordinator:
        """Return the broker that leads the partition of the internal topic in which this key has its state."""
        if (name := _TOPICS.get(key_type)) is not None:
            topic = self._metadata.view.topics.get(name)
            number = (self._groups if key_type == _GROUP else self._transactions).partition_for(key)
            leader = topic.partitions[number].leader if topic is not None else NO_LEADER
            is_led = leader != self._metadata.broker_id or may_lead(self._replicas.find(name, number))
            if is_led and leader not in nodes.just_lost and (node := nodes.by_id.get(leader)) is not None:
                return Coordinator(key=key, node_id=leader, host=node.host, port=node.port, error_message=None)
            code, text = (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"partition {number} of {name} has no leader now; try again",
            )
            return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
        code, text = ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
        return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)

    async def _create_transaction_topic(self) -> None:
        """Create ``__transaction_state`` unless it exists. Raise a KafkaError if there are too few brokers."""
        settings = self._metadata.settings
        factor = settings.transaction_state_log_replication_factor
        min_isr = settings.transaction_state_log_min_isr

        def config(replicas: int) -> dict[str, str]:
            is_available = replicas >= 3 or settings.is_set("transaction.state.log.min.isr")
            return {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": str(min_isr if is_available else 1),
                "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            }

        await self._topics.create_internal_topic(
            TRANSACTION_TOPIC, partitions=settings.transaction_state_log_num_partitions,
            replication_factor=factor if settings.is_set("transaction.state.log.replication.factor") else None,
            config=config,
        )  # fmt: skip


def _may_find(context: RequestContext, key_type: int, key: str) -> bool:
    if key_type == _SHARE:
        return context.may_cluster("share groups")
    resource = _RESOURCES.get(key_type)
    return resource is None or context.may(resource, key)
