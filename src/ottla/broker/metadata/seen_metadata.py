"""Whether the metadata store has lost changes that this broker has seen: it was restored from an older backup.

The store would then name in-sync replicas that are none, and a replica without acknowledged records could be elected.
A later leader epoch on disk shows this too, but the ISR can change without one. So each broker keeps in a file how
often the partitions of each topic had changed when it last looked, and compares that at its start. The file is written
with the checkpoints and at a clean stop: a loss of changes that are younger than the last checkpoint is not noticed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping

from ottla.broker.metadata.store import Changed, MetadataStore, Node
from ottla.broker.metadata.view import ClusterView
from ottla.env.disk import Disk, read_derived_file
from ottla.env.tasks import Threads
from ottla.model.errors import StartError
from ottla.model.types import topic_id_text

log = logging.getLogger(__name__)

FILE_NAME = "seen-metadata.json"
#: a server of the ensemble may lag; reads are repeated for this time before the store counts as restored
_LAG_S = 30.0
_RETRY_S = 1.0


class SeenMetadata:
    """The file in the first data directory of a broker."""

    def __init__(self, disk: Disk, directory: str, *, is_used: bool = True) -> None:
        """``is_used`` is False if the store is a file of this broker: then there is nothing to compare."""
        self._disk = disk
        self._is_used = is_used
        self.path = os.path.join(directory, FILE_NAME)
        self._written: dict[str, int] = {}
        self._is_writing = False

    async def load(self, store: MetadataStore, monotonic: Callable[[], float]) -> dict[str, Node]:
        """Return all nodes of the store. Raise StartError if they are older than what this broker has seen."""
        seen = self._read() if self._is_used else {}
        deadline = monotonic() + _LAG_S
        while True:
            nodes = await store.load("/")
            if not seen:
                return nodes
            view = ClusterView()
            view.apply([Changed(path, node) for path, node in nodes.items()])
            topic = _lost_changes(seen, view)
            if topic is None:
                return nodes
            if monotonic() >= deadline:
                raise StartError(
                    f"ZooKeeper has lost changes of topic {topic} that this broker has seen: it was restored from an "
                    "older backup, and a replica without acknowledged records could lead. Restore ZooKeeper from a "
                    f"newer backup; or, to accept that records may be lost, delete {self.path} on every broker"
                )
            log.warning("the metadata store is older than what this broker has seen, waiting topic=%s", topic)
            await asyncio.sleep(_RETRY_S)

    def write(self, view: ClusterView, threads: Threads) -> None:
        """Write and sync the file in a thread, unless nothing has changed."""
        changes = _changes_of(view) if self._is_used else {}
        if changes == self._written or self._is_writing:
            return
        self._is_writing = True
        data = json.dumps({"version": 1, "changes": changes}).encode()

        def done(error: OSError | None) -> None:
            self._is_writing = False
            if error is None:
                self._written = changes
            else:
                log.error("what was seen of the metadata could not be written path=%s error=%s", self.path, error)

        threads.submit(lambda: self._disk.write_file(self.path, data, sync=True), done)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(read_derived_file(self._disk, self.path) or b"{}").get("changes", {})
            return {str(topic): int(changes) for topic, changes in found.items()}
        except (ValueError, AttributeError, TypeError):
            log.warning("ignoring a damaged file path=%s", self.path)
            return {}


def _changes_of(view: ClusterView) -> dict[str, int]:
    """Return how often the partitions of each topic have changed, by topic id: a deleted topic may be created again."""
    return {
        topic_id_text(topic.topic_id): sum(partition.partition_epoch for partition in topic.partitions)
        for topic in view.topics.values()
    }


def _lost_changes(seen: Mapping[str, int], view: ClusterView) -> str | None:
    """Return the name of a topic that had changed more often before."""
    for topic in view.topics.values():
        if sum(partition.partition_epoch for partition in topic.partitions) < seen.get(
            topic_id_text(topic.topic_id), 0
        ):
            return topic.name
    return None
