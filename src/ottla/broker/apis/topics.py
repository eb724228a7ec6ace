"""Creation, change and deletion of topics. The controller plans a change, the store commits it, a watch applies it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from ottla.broker.services import RequestContext, Services
from ottla.cluster.controller import (
    PARTITIONS_PER_CALL_MAX,
    NewTopic,
    check_topic_name,
    ops_create_topic,
    ops_delete_topic,
    ops_update_topic,
    plan_create_partitions,
    plan_create_topic,
)
from ottla.cluster.schema import DELETED_TOPICS
from ottla.cluster.store import NodeExists, NoNode, is_below
from ottla.cluster.view import INTERNAL_TOPICS, TopicView
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
from ottla.model.settings import InvalidSettings, TopicSettings, describe_topic, validate_topic_overrides
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

#: concurrent deletions can conflict in the deletions that they remove, once for each of them that is in flight
_DELETE_ATTEMPTS = 100


async def create_topics(
    services: Services, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
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
            created = plan_topic(services, topic)
            if not request.validate_only:
                await _create(services, created)
            results.append(_created(services, created, request.validate_only))
        except KafkaError as error:
            results.append(
                CreatableTopicResult(name=topic.name, error_code=error.code, error_message=str(error), configs=None)
            )
    answered = {result.name: result for result in results}
    return CreateTopicsResponse(topics=list(answered.values()))


def plan_topic(services: Services, wanted: CreatableTopic) -> TopicView:
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
    topic = NewTopic(
        name=wanted.name,
        partition_count=wanted.num_partitions,
        replication_factor=wanted.replication_factor,
        assignments={a.partition_index: a.broker_ids for a in wanted.assignments},
        config=config,
    )
    return _plan(services, topic)


def _plan(services: Services, topic: NewTopic) -> TopicView:
    planned = plan_create_topic(
        services.view, [services.broker_id], topic, topic_id=services.new_id(),
        default_partitions=services.settings.num_partitions,
        default_replication_factor=services.settings.default_replication_factor,
    )  # fmt: skip
    try:
        validate_topic_overrides(topic.config)
        TopicSettings.resolve(topic.config, services.settings)
    except InvalidSettings as error:
        raise InvalidConfig(str(error)) from None
    return planned


async def _create(services: Services, topic: TopicView) -> None:
    try:
        await services.store.multi(ops_create_topic(topic))
    except NodeExists:
        raise TopicAlreadyExists(f"topic {topic.name!r} already exists") from None


async def create_topic_by_default(services: Services, name: str) -> TopicView | None:
    """Create a topic with the broker's defaults and return it; return the existing one if there is one by now."""
    check_topic_name(name)
    if name in INTERNAL_TOPICS:  # the broker creates them itself, with their own settings
        return None
    planned = _plan(services, NewTopic(name=name, partition_count=-1, replication_factor=-1, assignments={}, config={}))
    try:
        await _create(services, planned)
    except TopicAlreadyExists:
        pass
    return services.view.topics.get(name)


def create_topic_in_background(services: Services, name: str) -> None:
    """Start auto-creation of a topic and return at once; a later Metadata request finds the topic."""
    if name in services.topics_being_created:
        return
    services.topics_being_created.add(name)

    async def create() -> None:
        try:
            await create_topic_by_default(services, name)
        except KafkaError as error:
            log.warning("topic could not be created automatically topic=%s error=%s", name, error)
        finally:
            services.topics_being_created.discard(name)

    services.tasks.start(create(), f"create topic {name}")


async def create_internal_topic(
    services: Services, name: str, *, partitions: int, replication_factor: int, config: dict[str, str]
) -> None:
    """Create an internal topic. The replication factor is limited by the number of brokers."""
    factor = min(replication_factor, len([services.broker_id]))
    wanted = NewTopic(
        name=name, partition_count=partitions, replication_factor=factor, assignments={}, config=config
    )  # fmt: skip
    try:
        await _create(services, _plan(services, wanted))
    except TopicAlreadyExists:
        pass


def _created(services: Services, topic: TopicView, validate_only: bool) -> CreatableTopicResult:
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
            for entry in describe_topic(topic.config, services.settings)
        ],
    )  # fmt: skip


async def delete_topics(
    services: Services, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """DeleteTopics (20) v1-v6. v5 error message. v6 by name or by id."""
    wanted = list(request.topics) or [DeleteTopicState(name=name) for name in request.topic_names]
    keys = Counter(topic.name if topic.name is not None else topic.topic_id for topic in wanted)
    results = []
    for each in {(each.name, each.topic_id): each for each in wanted}.values():
        result = DeletableTopicResult(name=each.name, topic_id=each.topic_id, error_message=None)
        try:
            if keys[each.name if each.name is not None else each.topic_id] > 1:
                raise InvalidRequest("the request names this topic more than once")
            if not services.settings.delete_topic_enable:
                if context.version < 3:
                    raise InvalidRequest("topic deletion is disabled; set delete.topic.enable=true")
                raise TopicDeletionDisabled("topic deletion is disabled; set delete.topic.enable=true")
            topic = _topic_to_delete(services, each)
            result.name, result.topic_id = topic.name, topic.topic_id
            await _delete(services, topic)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return DeleteTopicsResponse(responses=results)


async def _delete(services: Services, topic: TopicView) -> None:
    """Delete the topic and record its deletion. Raise UnknownTopicOrPartition if another request deleted it first."""
    for _ in range(_DELETE_ATTEMPTS):
        try:
            await services.store.multi(ops_delete_topic(services.view, topic, services.clock.wall_ms()))
            return
        except (NoNode, NodeExists) as conflict:
            if not is_below(DELETED_TOPICS, conflict.path):
                raise UnknownTopicOrPartition("another request has deleted this topic") from None
            # Another deletion changed the same recorded deletion; the view shows the change by now.
    raise Refused(ErrorCode.REQUEST_TIMED_OUT, "too many topics are being deleted at once; try again")


def _topic_to_delete(services: Services, wanted: DeleteTopicState) -> TopicView:
    if wanted.name is not None and wanted.topic_id != ZERO_UUID:
        raise InvalidRequest("name either a topic or its id, not both")
    if wanted.name is None:
        if wanted.topic_id == ZERO_UUID:
            raise InvalidRequest("neither a topic nor its id is given")
        topic = services.view.topics_by_id.get(wanted.topic_id)
        if topic is None:
            raise UnknownTopicId("no topic has this id")
        return topic
    topic = services.view.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition("this broker does not host this topic")
    return topic


async def create_partitions(
    services: Services, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """CreatePartitions (37) v0-v3."""
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    results: dict[str, CreatePartitionsTopicResult] = {}
    for wanted in request.topics:
        result = results[wanted.name] = CreatePartitionsTopicResult(name=wanted.name, error_message=None)
        try:
            if wanted.name in repeated:
                raise InvalidRequest("the request names this topic more than once")
            await _grow(services, wanted, request.validate_only)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
    return CreatePartitionsResponse(results=list(results.values()))


async def _grow(services: Services, wanted: CreatePartitionsTopic, validate_only: bool) -> None:
    topic = services.view.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition("this broker does not host this topic")
    if topic.internal:
        raise InvalidTopic("partitions of an internal topic cannot be changed")
    assignments: Sequence[Sequence[int]] | None = None
    if wanted.assignments is not None:
        assignments = [assignment.broker_ids for assignment in wanted.assignments]
    larger = plan_create_partitions(topic, [services.broker_id], wanted.count, assignments)
    if not validate_only:
        await services.store.multi(ops_update_topic(larger))


def describe_log_dirs(
    services: Services, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """DescribeLogDirs (35) v1-v5. Null asks for all. v3 top-level error. v4 total and usable bytes. v5 cordoned."""
    asked = None
    if request.topics is not None:
        asked = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    results = []
    for directory in services.replicas.store.dirs:
        if directory.offline:
            results.append(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path))
            continue
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for name, log in directory.logs.items():
            # A log that could not be opened has no known size. Kafka lists only replicas that are online, too.
            if log.failure is None and (asked is None or name in asked):
                partition = DescribeLogDirsPartition(partition_index=name.partition, partition_size=log.size_bytes)
                topics.setdefault(name.topic, []).append(partition)
        total, usable = services.replicas.disk_space(directory)
        results.append(
            DescribeLogDirsResult(
                log_dir=directory.path,
                topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
                total_bytes=total,
                usable_bytes=usable,
            )
        )
    return DescribeLogDirsResponse(results=results)
