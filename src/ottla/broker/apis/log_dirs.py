"""AlterReplicaLogDirs: choose the log directory of a replica."""

from __future__ import annotations

from ottla.broker.services import RequestContext, Services
from ottla.model.errors import ErrorCode as Code
from ottla.model.errors import (
    InvalidTopic,
    KafkaError,
    Refused,
    StorageError,
    UnknownTopicOrPartition,
)
from ottla.model.types import TopicPartition
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

#: the longest name of a partition to which a folder's name can add ".", 32 random characters and "-future"
_NAME_MAX = 255 - 40


def alter_replica_log_dirs(
    services: Services, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """AlterReplicaLogDirs (34) v1-v2. v2 flexible. A replica that this broker does not have yet will be created there.

    The log of an existing replica is copied in the background (`replica/log_moves.py`), while it is served.

    A partition that is named several times is answered once; the last mention counts, as in Kafka.
    """
    wanted = {
        TopicPartition(topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    is_allowed = context.may_cluster()
    for name, path in wanted.items():
        code = 0
        try:
            if not is_allowed:
                raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED)
            _choose(services, name, path)
        except KafkaError as error:
            code = error.code
        row = AlterReplicaLogDirPartitionResult(partition_index=name.partition, error_code=code)
        topics.setdefault(name.topic, []).append(row)
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows) for name, rows in topics.items()]
    )


def _choose(services: Services, name: TopicPartition, path: str) -> None:
    """Create a replica in a directory, or start to move it there. Raise the KafkaError, checking in Kafka's order."""
    if len(str(name)) > _NAME_MAX:
        raise InvalidTopic("the name of the topic is too long for the folder of a copy")
    store = services.replicas.store
    directory = store.dir_at(path)
    if directory is None:
        raise Refused(Code.LOG_DIR_NOT_FOUND, f"this broker has no log directory {path}")
    if directory.offline:
        raise StorageError(f"log directory {path} is offline")
    replica = services.replicas.find(name.topic, name.partition)
    if replica is None:
        topic = services.view.topics.get(name.topic)
        store.prefer(name, directory)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            raise UnknownTopicOrPartition(f"partition {name} does not exist")
        raise Refused(Code.REPLICA_NOT_AVAILABLE, f"this broker has no replica of {name} yet")
    if replica.offline:
        raise StorageError(f"partition {name} is offline")
    if store.dir_of(replica.log) is directory:
        services.log_moves.cancel(replica)
    else:
        services.log_moves.start(replica, directory)
