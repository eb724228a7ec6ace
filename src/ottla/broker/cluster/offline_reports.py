"""Reports logs and log directories that went offline to the metadata store, so that others lead their partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ottla.broker.cluster.failed_directories import FailedDirectories
from ottla.broker.cluster.log_marks import write_marks
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import StoreError
from ottla.broker.metadata.unclean_marks import mark_offline, must_mark_offline
from ottla.broker.metadata.view import TopicView
from ottla.broker.partitions.manager import ReplicaManager
from ottla.env.tasks import Tasks
from ottla.log.store import LogStore
from ottla.model.errors import KafkaError, StartError

log = logging.getLogger(__name__)

#: between two attempts to report failed log directories; each reads the whole metadata
_RECORD_S = 2.0


class OfflineReports:
    """Makes one report of logs and one of directories at a time, and repeats those that failed."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        log_store: LogStore,
        failed_dirs: FailedDirectories,
        tasks: Tasks,
        monotonic: Callable[[], float],
        is_alone: bool,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._log_store = log_store
        self._failed_dirs = failed_dirs
        self._tasks = tasks
        self._monotonic = monotonic
        self._is_alone = is_alone
        self._is_reporting = self._is_recording = False
        self._record_due = 0.0

    def report_logs(self) -> None:
        """Write into the metadata store that logs are offline, so that others lead their partitions."""
        own = self._metadata.broker_id
        if not self._replicas.storage.offline or self._is_reporting or self._is_alone:
            return
        runs: dict[str, dict[int, int]] = {}
        for partition in self._replicas.storage.offline:
            name, number = partition.name
            topic, run = self._metadata.view.topics.get(name), self._failed_dirs.run_of(partition.log)
            if topic is not None and must_mark_offline(topic.partitions[number], own, run):
                runs.setdefault(name, {})[number] = run
        if runs:
            self._is_reporting = True
            self._tasks.start(self._mark_offline(runs), "report logs that are offline")

    async def _mark_offline(self, runs: Mapping[str, Mapping[int, int]]) -> None:
        own = self._metadata.broker_id
        ids = {name: self._metadata.view.topics[name].topic_id for name in runs}

        def mark(topic: TopicView) -> TopicView | None:
            is_same = ids[topic.name] == topic.topic_id  # otherwise the topic was created again, with another log
            return mark_offline(topic, own, runs[topic.name]) if is_same else None

        try:
            await write_marks(self._metadata, self._metadata.view, list(runs), mark, watched=True)
        except (KafkaError, StoreError) as error:
            log.warning("logs that are offline cannot be reported now error=%s", error)
        finally:
            self._is_reporting = False

    def report_directories(self) -> None:
        """Write into the metadata store that log directories are offline, so that logs may be created."""
        store = self._log_store
        if not store.records_failures or not store.unrecorded_dirs() or self._is_recording:
            return
        if self._monotonic() >= self._record_due:
            self._is_recording = True
            self._tasks.start(self._record(), "report log directories that are offline")

    async def _record(self) -> None:
        try:
            await self._failed_dirs.record(self._replicas.storage.fail_dir)
        except (KafkaError, StoreError, StartError, OSError) as error:
            log.warning("log directories that are offline cannot be reported now error=%s", error)
            self._record_due = self._monotonic() + _RECORD_S
        finally:
            self._is_recording = False
