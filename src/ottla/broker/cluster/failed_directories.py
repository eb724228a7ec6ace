"""Log directories that fail while the broker runs: the metadata store knows it before a log is created.

A partition whose log is in a failed directory may be moved to other brokers and come back. Its log is then created in
another directory, and its earlier folder stays. A start that finds both folders, or only the earlier one because the
other directory is missing, must know which one is the log. So the failure of a directory begins a new run of the other
ones (`incarnation`), as a start without the directory would:

1. Mark the logs of the directory as offline, with a number of the run that had them.
2. Write the number of the new run to the files of the other directories, beside the current one.
3. Write to the store that the new run uses the other directories, and that it cannot use the failed one.
4. Remove the older number from the files.

No log is created before step 3 is done (`LogStore.create` raises CreationDeferred). If the broker is killed before step
3, the failed directory has the logs of the current run, as the store says. If another directory fails before step 3,
the steps begin again with both: a directory that is not in the new run, and whose logs are not marked, would count as
one that was removed before that run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ottla.broker.cluster.incarnation import next_dirs, paths_by_id, run_number, write_runs
from ottla.broker.cluster.log_marks import write_marks
from ottla.broker.cluster.registration import Registration
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.unclean_marks import mark_offline
from ottla.broker.metadata.view import TopicView
from ottla.env.disk import NO_ROOM, Disk
from ottla.log.directories import LogDir
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

Fail = Callable[[LogDir, OSError], None]


class FailedDirectories:
    """Writes to the metadata store which log directories of this broker are offline."""

    def __init__(
        self, metadata: ClusterMetadata, *, disk: Disk, log_store: LogStore, registration: Registration
    ) -> None:
        self._metadata = metadata
        self._disk = disk
        self._log_store = log_store
        self._registration = registration
        #: what the metadata store has, after `begin`
        self._dirs = RegisteredDirs("", {})
        self._first_run = ""
        #: how many runs this process has begun
        self._runs = 0

    def begin(self, dirs: RegisteredDirs, used: Sequence[LogDir]) -> None:
        """The store has the directories of the first run of this process: those that are ``used``."""
        self._dirs, self._first_run, self._runs = dirs, dirs.run, 1
        for each in self._log_store.dirs:
            each.is_recorded = each not in used

    def run_of(self, of: Log) -> int:
        """Return a number of the last run that had this log if its whole directory is offline, else -1."""
        directory = self._log_store.dir_of(of)
        return run_number(self._dirs.last_runs.get(directory.directory_id, "")) if directory.offline else -1

    async def record(self, fail: Fail) -> None:
        """Write to the store which directories are offline. Raise KafkaError, StoreError, StartError or OSError.

        ``fail`` is called with a directory whose file cannot be written.
        """
        while (failed := self._log_store.unrecorded_dirs()) and self._log_store.usable_dirs():
            await self._mark_logs(failed)
            # An interrupted attempt may have written this number to the store, so the next one uses the same.
            run, used = f"{self._first_run}-{self._runs + 1}", self._log_store.usable_dirs()
            for each in used:
                self._write_runs(each, self._dirs.run, run, fail)
            if self._log_store.unrecorded_dirs() != failed:
                continue  # another one has failed meanwhile, and its logs must be marked first, too
            unusable = [*self._dirs.unusable, *(each.directory_id for each in failed)]
            dirs = next_dirs(self._dirs, paths_by_id(self._log_store, used), run, unusable)
            await self._registration.write_dirs(dirs)
            self._dirs, self._runs = dirs, self._runs + 1
            for each in failed:
                each.is_recorded = True
                log.error("the metadata store knows that a log directory is offline path=%s", each.path)
            for each in used:
                if not each.offline:
                    self._write_runs(each, run, "", fail)

    async def _mark_logs(self, failed: Sequence[LogDir]) -> None:
        """Mark the logs of these directories, as far as this broker is known to have the records of a partition."""
        own, store = self._metadata.broker_id, self._log_store
        runs: dict[str, dict[int, int]] = {}
        for name, its_log in ((name, each) for directory in failed for name, each in directory.logs.items()):
            runs.setdefault(name.topic, {})[name.partition] = self.run_of(its_log)

        def mark(topic: TopicView) -> TopicView | None:
            # A topic that was created again has other logs.
            ids = {number: store.topic_id_of(TopicPartition(topic.name, number)) for number in runs[topic.name]}
            return mark_offline(
                topic, own, {number: runs[topic.name][number] for number, its in ids.items() if its == topic.topic_id}
            )

        current = await load_view(self._metadata.store)
        await write_marks(self._metadata, current, list(runs), mark, watched=False)

    def _write_runs(self, directory: LogDir, current: str, next_run: str, fail: Fail) -> None:
        try:
            write_runs(self._disk, directory.path, directory.directory_id, current, next_run)
        except OSError as error:
            fail(directory, error)
            if not directory.offline and (next_run or error.errno not in NO_ROOM):
                raise
