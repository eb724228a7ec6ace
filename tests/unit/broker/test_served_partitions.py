"""Which logs a broker has when its start ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.cluster_fixtures import OWN_ID, UNUSED, make_metadata, make_view, partition, topic_changes
from tests.unit.log.log_fixtures import NOW, batch
from tests.unit.log.store_fixtures import spec
from tests.unit.partitions.test_replica_manager import ManagerFixture

from ottla.broker.partitions.served_partitions import ServedPartitions
from ottla.model.types import TopicPartition

OTHER_ID = OWN_ID + 1


def test_logs_of_partitions_removed_during_the_start_are_closed_and_their_folders_stay(tmp_path: Path) -> None:
    """The start opens the logs first and watches the metadata later."""
    fixture = ManagerFixture(tmp_path)
    names = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("deleted", 0)]
    for name in names:
        log = fixture.manager.store.log_of(spec(name))
        data = bytearray(batch(1))
        log.append(data, memoryview(data), 0, len(data), NOW)
        log.write_pending()
    view = make_view()
    view.apply(topic_changes("orders", [partition(OTHER_ID, (OWN_ID, OTHER_ID)), partition(OTHER_ID, (OTHER_ID,))]))
    served = ServedPartitions(
        metadata=make_metadata(view), replicas=fixture.manager, new_name=lambda: "unique", announce=UNUSED,
        is_lease_over=UNUSED,
    )  # fmt: skip
    asyncio.run(served.start())
    fixture.threads.run()
    assert list(fixture.manager.store.logs) == [names[0]]
    folders = set(fixture.disk.listdir(str(fixture.paths[0])))
    assert folders >= {"deleted-0", "orders-0", "orders-1"}
