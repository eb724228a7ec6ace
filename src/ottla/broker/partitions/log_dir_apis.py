"""AlterReplicaLogDirs: choose the log directory of a replica."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.log_moves import LogMoves
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.request import RequestContext
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


class LogDirApis(Component):
    """The APIs of log directories."""

    def __init__(self, *, metadata: ClusterMetadata, replicas: ReplicaManager, log_moves: LogMoves) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._log_moves = log_moves

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            34: ServedApi(1, 2, self.alter_replica_log_dirs),
        }

    async def stop(self) -> None:
        self._log_moves.stop()

    def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        """AlterReplicaLogDirs (34) v1-v2. v2 flexible. A replica that this broker lacks will be created there.

        The log of an existing replica is copied in the background (`log_moves.py`), while it is served.

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
                self._choose(name, path)
            except KafkaError as error:
                code = error.code
            row = AlterReplicaLogDirPartitionResult(partition_index=name.partition, error_code=code)
            topics.setdefault(name.topic, []).append(row)
        return AlterReplicaLogDirsResponse(
            results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows) for name, rows in topics.items()]
        )

    def _choose(self, name: TopicPartition, path: str) -> None:
        """Create a replica in a directory, or start to move it there. Raise the KafkaError that Kafka would."""
        if len(str(name)) > _NAME_MAX:
            raise InvalidTopic("the name of the topic is too long for the folder of a copy")
        store = self._replicas.store
        directory = store.dir_at(path)
        if directory is None:
            raise Refused(Code.LOG_DIR_NOT_FOUND, f"this broker has no log directory {path}")
        if directory.offline:
            raise StorageError(f"log directory {path} is offline")
        replica = self._replicas.find(name.topic, name.partition)
        if replica is None:
            topic = self._metadata.view.topics.get(name.topic)
            store.prefer(name, directory)
            if topic is None or not 0 <= name.partition < len(topic.partitions):
                raise UnknownTopicOrPartition(f"partition {name} does not exist")
            raise Refused(Code.REPLICA_NOT_AVAILABLE, f"this broker has no replica of {name} yet")
        if replica.offline:
            raise StorageError(f"partition {name} is offline")
        if store.dir_of(replica.log) is directory:
            self._log_moves.cancel(replica)
        else:
            self._log_moves.start(replica, directory)
