"""Creation, change and deletion of topics. The controller plans a change, the store keeps it, a watch applies it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ottla.broker.access.throttling import UNCOUNTED, Usage
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.leadership import set_min_isr
from ottla.broker.metadata.schema_settings import check_validation
from ottla.broker.metadata.store import Op
from ottla.broker.metadata.topic_plans import (
    PARTITIONS_PER_CALL_MAX,
    NewTopic,
    check_topic_name,
    ops_create_topic,
    ops_delete_topic,
    ops_update_topic,
    plan_create_partitions,
    plan_create_topic,
)
from ottla.broker.metadata.view import INTERNAL_TOPICS, ClusterView, TopicView
from ottla.broker.partitions.log_moves import LogMoves
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.request import RequestContext
from ottla.env.clock import Clock
from ottla.env.deferred import between_slices
from ottla.env.log_limit import LogLimit
from ottla.env.tasks import Tasks
from ottla.model.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    PolicyViolation,
    Refused,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model.settings import InvalidSettings, describe_topic, validate_topic_overrides
from ottla.security.acls import ResourceType
from ottla.wire import ZERO_UUID
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: replicas of internal topics, if there are as many brokers and no setting says otherwise
_INTERNAL_REPLICAS = 3


class TopicApis(Component):
    """Creation, change and deletion of topics."""

    def __init__(
        self, *, metadata: ClusterMetadata, replicas: ReplicaManager, clock: Clock, log_moves: LogMoves, tasks: Tasks
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._log_moves = log_moves
        self._tasks = tasks
        #: names of topics whose creation in the background has not ended
        self._being_created: set[str] = set()

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            19: ServedApi(2, 7, self.create_topics),
            20: ServedApi(1, 6, self.delete_topics),
            35: ServedApi(1, 5, self.describe_log_dirs, large_reply=True),
            37: ServedApi(0, 3, self.create_partitions),
        }

    async def create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        """CreateTopics (19) v2-v7. v5 counts and configs in the answer. v7 topic id."""
        repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
        partitions = sum(max(topic.num_partitions, len(topic.assignments), 1) for topic in request.topics)
        results = []
        for topic in request.topics:
            try:
                if topic.name in repeated:
                    raise InvalidRequest("the request names this topic more than once")
                if partitions > PARTITIONS_PER_CALL_MAX:
                    raise PolicyViolation(f"one call may create {PARTITIONS_PER_CALL_MAX} partitions at most")
                if not context.may_cluster(quiet=True):
                    context.check_topic(topic.name)
                wanted = _new_topic(topic)
                context.check_dead_letters(topic.name, {}, wanted.config)
                created = await self._create(wanted, validate_only=request.validate_only, usage=context.usage)
                context.usage.record_mutations(len(created.partitions))
                results.append(self._created(created, request.validate_only, context))
            except KafkaError as error:
                results.append(
                    CreatableTopicResult(name=topic.name, error_code=error.code, error_message=str(error), configs=None)
                )
        answered = {result.name: result for result in results}
        return CreateTopicsResponse(topics=list(answered.values()))

    async def _create(self, topic: NewTopic, *, validate_only: bool = False, usage: Usage = UNCOUNTED) -> TopicView:
        """Create the topic and return it. Raise a KafkaError if that is not possible."""
        topic_id = self._metadata.new_id()

        def decide(view: ClusterView) -> tuple[list[Op], TopicView]:
            planned = self._plan(view, topic, topic_id, self._metadata.live_brokers(view))
            usage.check_mutations()
            return [] if validate_only else ops_create_topic(view, planned), planned

        return await self._metadata.write(decide)

    def _plan(self, view: ClusterView, topic: NewTopic, topic_id: bytes, brokers: Sequence[int]) -> TopicView:
        planned = plan_create_topic(
            view, brokers, topic, topic_id=topic_id,
            default_partitions=self._metadata.settings.num_partitions,
            default_replication_factor=self._metadata.settings.default_replication_factor,
        )  # fmt: skip
        try:
            validate_topic_overrides(topic.config)
            check_validation(topic.name, self._metadata.topic_settings(planned), self._metadata.settings)
        except InvalidSettings as error:
            raise InvalidConfig(str(error)) from None
        return self._with_min_isr(view, planned)

    def _with_min_isr(self, view: ClusterView, topic: TopicView) -> TopicView:
        return (
            set_min_isr(view, topic, lambda view, _, count: self._metadata.wanted_min_isr(view, topic.config, count))
            or topic
        )

    async def create_topic_by_default(self, name: str) -> TopicView | None:
        """Create a topic with the broker's defaults and return it; return the existing one if there is one by now."""
        check_topic_name(name)
        if name in INTERNAL_TOPICS:  # the broker creates them itself, with their own settings
            return None
        wanted = NewTopic(name=name, partition_count=-1, replication_factor=-1, assignments={}, config={})
        try:
            await self._create(wanted)
        except TopicAlreadyExists:
            pass
        return self._metadata.view.topics.get(name)

    def create_topic_in_background(self, name: str) -> None:
        """Start auto-creation of a topic and return at once; a later Metadata request finds the topic."""
        if name in self._being_created:
            return
        self._being_created.add(name)

        async def create() -> None:
            try:
                await self.create_topic_by_default(name)
            except KafkaError as error:
                log.warning("topic could not be created automatically topic=%s error=%s", name, error)
            finally:
                self._being_created.discard(name)

        self._tasks.start(create(), f"create topic {name}")

    async def create_internal_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int | None,
        config: Callable[[int], dict[str, str]],
    ) -> None:
        """Create an internal topic unless it exists. Raise a KafkaError if there are fewer brokers than replicas.

        Without a replication factor it has three replicas, or as many as there are brokers. Brokers that are registered
        and down count. ``config`` returns the settings of the topic for its replication factor.
        """
        topic_id = self._metadata.new_id()

        def decide(view: ClusterView) -> tuple[list[Op], None]:
            alive = self._metadata.live_brokers(view)
            factor = replication_factor or min(_INTERNAL_REPLICAS, len({*alive, *view.registered}))
            wanted = NewTopic(
                name=name, partition_count=partitions, replication_factor=factor, assignments={}, config=config(factor)
            )
            planned = self._plan(view, wanted, topic_id, alive)
            return ops_create_topic(view, planned), None

        try:
            await self._metadata.write(decide)
        except TopicAlreadyExists:
            pass

    def _created(self, topic: TopicView, validate_only: bool, context: RequestContext) -> CreatableTopicResult:
        if not context.may(ResourceType.TOPIC, topic.name, "show its settings", quiet=True):
            return CreatableTopicResult(
                name=topic.name, topic_id=ZERO_UUID if validate_only else topic.topic_id, error_message=None,
                topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, num_partitions=-1, replication_factor=-1,
            )  # fmt: skip
        return CreatableTopicResult(
            name=topic.name,
            topic_id=ZERO_UUID if validate_only else topic.topic_id,
            error_message=None,
            num_partitions=len(topic.partitions),
            replication_factor=len(topic.partitions[0].replicas),
            configs=[
                CreatableTopicConfigs(
                    name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source_id,
                    is_sensitive=entry.sensitive,
                )
                for entry in describe_topic(topic.config, self._metadata.settings, topic.replication_factor)
            ],
        )  # fmt: skip

    async def delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        """DeleteTopics (20) v1-v6. v5 error message. v6 by name or by id."""
        wanted = list(request.topics) or [DeleteTopicState(name=name) for name in request.topic_names]
        keys = Counter(topic.name if topic.name is not None else topic.topic_id for topic in wanted)
        results = []
        for row, each in enumerate({(each.name, each.topic_id): each for each in wanted}.values()):
            await between_slices(row)
            result = DeletableTopicResult(name=each.name, topic_id=each.topic_id, error_message=None)
            try:
                if keys[each.name if each.name is not None else each.topic_id] > 1:
                    raise InvalidRequest("the request names this topic more than once")
                if not self._metadata.settings.delete_topic_enable:
                    if context.version < 3:
                        raise InvalidRequest("topic deletion is disabled; set delete.topic.enable=true")
                    raise TopicDeletionDisabled("topic deletion is disabled; set delete.topic.enable=true")
                _check_deletion(self._metadata.view, each, context)
                topic = await self._delete(each, context.usage)
                context.usage.record_mutations(len(topic.partitions))
                result.name, result.topic_id = topic.name, topic.topic_id
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error) or None
            results.append(result)
        return DeleteTopicsResponse(responses=results)

    async def _delete(self, wanted: DeleteTopicState, usage: Usage) -> TopicView:
        """Delete the topic, record its deletion and return it. Raise a KafkaError if it does not exist."""
        change_id = self._metadata.new_id()

        def decide(view: ClusterView) -> tuple[list[Op], TopicView]:
            topic = _topic_to_delete(view, wanted)
            usage.check_mutations()
            return ops_delete_topic(view, topic, self._clock.wall_ms(), change_id), topic

        return await self._metadata.write(decide)

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        """CreatePartitions (37) v0-v3."""
        repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
        results: dict[str, CreatePartitionsTopicResult] = {}
        for wanted in request.topics:
            result = results[wanted.name] = CreatePartitionsTopicResult(name=wanted.name, error_message=None)
            try:
                if wanted.name in repeated:
                    raise InvalidRequest("the request names this topic more than once")
                context.check_topic(wanted.name)
                added = await self._grow(wanted, request.validate_only, context.usage)
                context.usage.record_mutations(added)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, str(error)
        return CreatePartitionsResponse(results=list(results.values()))

    async def _grow(self, wanted: CreatePartitionsTopic, validate_only: bool, usage: Usage) -> int:
        """Add partitions to a topic. Return how many. Raise a KafkaError if that is not possible."""
        assignments: Sequence[Sequence[int]] | None = None
        if wanted.assignments is not None:
            assignments = [assignment.broker_ids for assignment in wanted.assignments]
        change_id = self._metadata.new_id()

        def decide(view: ClusterView) -> tuple[list[Op], int]:
            topic = view.topics.get(wanted.name)
            if topic is None:
                raise UnknownTopicOrPartition("this broker does not host this topic")
            if topic.internal:
                raise InvalidTopic("partitions of an internal topic cannot be changed")
            larger = plan_create_partitions(view, topic, self._metadata.live_brokers(view), wanted.count, assignments)
            larger = self._with_min_isr(view, larger)
            usage.check_mutations()
            added = len(larger.partitions) - len(topic.partitions)
            return [] if validate_only else ops_update_topic(view, larger, change_id), added

        return await self._metadata.write(decide)

    def describe_log_dirs(self, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
        """DescribeLogDirs (35) v1-v5. Null asks for all. v3 top-level error. v4 total and usable bytes. v5 cordoned."""
        if not context.may_cluster():
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        asked = None
        if request.topics is not None:
            asked = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
        results = []
        store = self._replicas.store
        for directory in store.dirs:
            path = store.absolute_path(directory)
            if directory.offline:
                results.append(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path))
                continue
            topics: dict[str, list[DescribeLogDirsPartition]] = {}
            for name, log in directory.logs.items():
                # A log that could not be opened has no known size. Kafka lists only replicas that are online, too.
                if log.failure is None and (asked is None or name in asked):
                    replica = self._replicas.find(name.topic, name.partition)
                    lag = replica.lag_records if replica is not None else 0
                    partition = DescribeLogDirsPartition(
                        partition_index=name.partition, partition_size=log.size_bytes, offset_lag=lag
                    )
                    topics.setdefault(name.topic, []).append(partition)
            for future in self._log_moves.copies(directory):
                name = future.log.name
                if asked is None or name in asked:
                    partition = DescribeLogDirsPartition(
                        partition_index=name.partition, partition_size=future.log.size_bytes,
                        offset_lag=future.lag_records, is_future_key=True,
                    )  # fmt: skip
                    topics.setdefault(name.topic, []).append(partition)
            total, usable = self._replicas.storage.disk_space(directory)
            results.append(
                DescribeLogDirsResult(
                    log_dir=path,
                    topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
                    total_bytes=total,
                    usable_bytes=usable,
                )
            )
        return DescribeLogDirsResponse(results=results)


def _new_topic(wanted: CreatableTopic) -> NewTopic:
    """Return the topic that the client requests. Raise a KafkaError if the request contradicts itself."""
    names = [config.name for config in wanted.configs]
    if len(set(names)) != len(names):
        raise InvalidRequest("the request sets a config more than once")
    config: dict[str, str] = {}
    for entry in wanted.configs:
        if entry.value is None:
            raise InvalidConfig(f"config {entry.name!r} has no value")
        config[entry.name] = entry.value
    if len({a.partition_index for a in wanted.assignments}) != len(wanted.assignments):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned more than once")
    return NewTopic(
        name=wanted.name,
        partition_count=wanted.num_partitions,
        replication_factor=wanted.replication_factor,
        assignments={a.partition_index: a.broker_ids for a in wanted.assignments},
        config=config,
    )


def _check_deletion(view: ClusterView, wanted: DeleteTopicState, context: RequestContext) -> None:
    """Raise the KafkaError for a topic that the client may not know, or not delete.

    As in Kafka, both rights are needed, and a client that may know the topic hears that it does not exist.
    """
    if wanted.name is not None:
        if not context.may(ResourceType.TOPIC, wanted.name, "know"):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if wanted.name in view.topics:
            context.check_topic(wanted.name)
    elif (topic := view.topics_by_id.get(wanted.topic_id)) is not None:
        if not context.may(ResourceType.TOPIC, topic.name, "know"):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        context.check_topic(topic.name)


def _topic_to_delete(view: ClusterView, wanted: DeleteTopicState) -> TopicView:
    if wanted.name is not None and wanted.topic_id != ZERO_UUID:
        raise InvalidRequest("name either a topic or its id, not both")
    if wanted.name is None:
        if wanted.topic_id == ZERO_UUID:
            raise InvalidRequest("neither a topic nor its id is given")
        topic = view.topics_by_id.get(wanted.topic_id)
        if topic is None:
            raise UnknownTopicId
        return topic
    topic = view.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition("this broker does not host this topic")
    return topic
