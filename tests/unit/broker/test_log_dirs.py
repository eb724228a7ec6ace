"""AlterReplicaLogDirs on a broker with two log directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata, make_view, partition, topic_changes
from tests.unit.broker.request_fixtures import request_context
from tests.unit.log.log_fixtures import batch
from tests.unit.partitions.test_log_moves import MoveFixture

from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.partitions.log_dir_apis import LogDirApis
from ottla.model.errors import ErrorCode
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest


class DirsFixture(MoveFixture):
    """Partition 0 is in the first of two log directories."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        view = make_view()
        view.apply(topic_changes("orders", [partition(1, (1, 2))] * 5))
        metadata = make_metadata(view)
        self.log_dirs = LogDirApis(metadata=metadata, replicas=self.manager, log_moves=self.moves)
        self.topics = TopicApis(
            metadata=metadata, replicas=self.manager, clock=UNUSED, log_moves=self.moves, tasks=UNUSED
        )  # fmt: skip
        self.context: Any = request_context(2)

    def move(self, path: Path | str, *numbers: int, topic: str = "orders") -> list[int]:
        rows = [AlterReplicaLogDirTopic(name=topic, partitions=numbers)]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=rows)])
        answer = self.log_dirs.alter_replica_log_dirs(request, self.context)
        return [row.error_code for each in answer.results for row in each.partitions]

    def described(self) -> dict[str, list[int]]:
        """Return the partitions in each log directory; -1 - N for a copy of partition N."""
        answer = self.topics.describe_log_dirs(DescribeLogDirsRequest(topics=None), self.context)
        return {
            result.log_dir: sorted(
                -1 - row.partition_index if row.is_future_key else row.partition_index
                for each in result.topics
                for row in each.partitions
            )
            for result in answer.results
        }


@pytest.fixture
def fixture(tmp_path: Path) -> DirsFixture:
    return DirsFixture(tmp_path)


def test_replica_that_does_not_exist_yet_is_created_in_the_chosen_directory(fixture: DirsFixture) -> None:
    first, second = fixture.paths
    assert fixture.move(second, 1, 2, 3) == [ErrorCode.REPLICA_NOT_AVAILABLE] * 3
    assert fixture.move(first, 2) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    for number in range(1, 4):
        fixture.add(number)
    assert fixture.described() == {str(first): [0, 2], str(second): [1, 3]}
    assert fixture.move(second, 1, 3) == [0, 0]


def test_directory_that_has_failed_meanwhile_is_not_used(fixture: DirsFixture) -> None:
    assert fixture.move(fixture.paths[1], 1) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    fixture.fixture.store.dirs[1].offline = True
    fixture.add(1)
    assert fixture.described()[str(fixture.paths[0])] == [0, 1]
    assert fixture.move(fixture.paths[1], 1) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_unknown_directories_and_partitions_are_rejected(fixture: DirsFixture) -> None:
    first, _ = fixture.paths
    fixture.write()
    assert fixture.move(first / "other", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert fixture.move("data0", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert fixture.move(first, 0, 3, 5) == [0, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fixture.move(first, 0, topic="unknown") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fixture.move(first, 0, topic="x" * 214) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    fixture.partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)
    assert fixture.move(first, 0) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_log_moves_and_its_copy_is_described(fixture: DirsFixture) -> None:
    first, second = fixture.paths
    fixture.prepare(6)
    assert fixture.move(second, 0) == [0]
    assert fixture.described() == {str(first): [0], str(second): []}
    fixture.step()
    assert fixture.described() == {str(first): [0], str(second): [-1]}
    answer = fixture.topics.describe_log_dirs(DescribeLogDirsRequest(topics=None), fixture.context)
    (row,) = answer.results[1].topics[0].partitions
    assert (row.offset_lag, row.partition_size) == (4, 2 * len(batch()))
    assert fixture.move(second, 0) == [0], "the same move goes on"
    fixture.run()
    assert fixture.described() == {str(first): [], str(second): [0]}
    assert fixture.bases() == list(range(6))


def test_move_to_the_directory_of_the_log_cancels_another_move(fixture: DirsFixture) -> None:
    first, second = fixture.paths
    fixture.prepare(6)
    assert fixture.move(second, 0) == [0]
    fixture.step()
    assert fixture.move(first, 0) == [0]
    fixture.run()
    assert fixture.described() == {str(first): [0], str(second): []}
