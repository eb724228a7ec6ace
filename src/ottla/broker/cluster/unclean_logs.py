"""The logs that may lack records when a run begins, because the last one did not stop cleanly, and their marks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from ottla.broker.cluster.incarnation import Comparison, run_number
from ottla.broker.cluster.log_marks import write_marks
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.unclean_marks import mark_unclean
from ottla.broker.metadata.view import LOG_LOST, LOG_OFFLINE, LogEnd, PartitionView, TopicView
from ottla.log.directories import DirContent
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)


class UncleanLogs:
    """Compares the logs with the last run, and marks those that may lack records in the metadata."""

    def __init__(self, metadata: ClusterMetadata, log_store: LogStore, *, is_alone: bool) -> None:
        """``is_alone``: there is no other broker that could have more records."""
        self._metadata = metadata
        self._log_store = log_store
        self._is_alone = is_alone
        #: numbers of the last run, and of the one that had the logs in directories that cannot be used
        self._last_run = self._unusable_run = -1

    async def mark(self, last: RegisteredDirs | None, compared: Comparison) -> None:
        """Mark the logs that may lack records of the last run.

        ``last`` has the log directories of the last run, and ``compared`` is their comparison with the present ones.
        """
        if last is not None:
            self._last_run = run_number(last.run)
            runs = {run_number(last.last_runs[each]) for each in compared.missing}
            self._unusable_run = runs.pop() if len(runs) == 1 else self._last_run
        if unclean := self._unclean_ends(compared, is_first_run=last is None):
            await self._write(unclean, {name for name in unclean if self._was_never_stored(name, last)})

    def _unclean_ends(self, compared: Comparison, *, is_first_run: bool) -> dict[TopicPartition, LogEnd]:
        """Return the ends of the logs that may lack records of the last run."""
        store = self._log_store
        lost = set(store.created if compared.missing else store.lost)
        # A broker without others keeps older copies: they are what an administrator has restored.
        if not self._is_alone and DirContent.UNKNOWN in compared.contents.values():
            lost |= {name for name, its_log in store.logs.items() if self._may_be_older(name, its_log)}
            if compared.older:
                lost |= store.created
        return {
            name: _log_end(self._metadata.broker_id, its_log, is_lost=its_log.lost_synced or name in lost)
            for name, its_log in store.logs.items()
            if name in lost or not self._is_clean(name, is_first_run)
        }

    def _was_never_stored(self, name: TopicPartition, last: RegisteredDirs | None) -> bool:
        """Return whether a log that counts as lost had no synced records.

        It can only have been in directories that have been absent since the run of its mark. All of them are back, and
        none has a trace of it.
        """
        lost = self._state_of(name).lost_end(self._metadata.broker_id)
        if lost is None or lost.last_epoch == -1 or last is None:
            return False
        absent = {each for each, run in last.last_runs.items() if run_number(run) == lost.last_epoch}
        back = [each for each in self._log_store.usable_dirs() if each.directory_id in absent]
        return bool(absent) and len(back) == len(absent) and all(
            each.content is not DirContent.UNKNOWN and name not in each.known_names for each in back
        )  # fmt: skip

    def _may_be_older(self, name: TopicPartition, its_log: Log) -> bool:
        """Return whether the directory of a log is not known to have its last version."""
        directory = self._log_store.dir_of(its_log)
        last_run = self._state_of(name).last_run_of(self._metadata.broker_id)
        return directory.content is DirContent.UNKNOWN and not directory.run == last_run != -1

    def _state_of(self, name: TopicPartition) -> PartitionView:
        return self._metadata.view.topics[name.topic].partitions[name.partition]

    def _content_of(self, its_log: Log) -> DirContent:
        return self._log_store.dir_of(its_log).content

    def _is_clean(self, name: TopicPartition, is_first_run: bool) -> bool:
        """Return whether a log is as it was, and as the metadata say, when this broker stopped cleanly."""
        store, own = self._log_store, self._metadata.broker_id
        its_log = store.logs[name]
        if self._state_of(name).last_run_of(own) is not None:
            return False  # what the log contains now must be written
        if self._is_alone:
            return True  # there is no other replica that could have more records
        if its_log.lost_synced or its_log.failure is not None:
            return False
        if self._content_of(its_log) in (DirContent.RETURNED, DirContent.AWAITED):
            return False
        if name in store.created:
            # A power failure may have taken the folder with the log, in any of the directories.
            return is_first_run or all(
                each.has_clean_stop for each in store.dirs if each.content is not DirContent.UNKNOWN
            )  # fmt: skip
        return str(name) in store.dir_of(its_log).clean_folders

    async def _write(self, unclean: Mapping[TopicPartition, LogEnd], never_stored: Collection[TopicPartition]) -> None:
        """Write the ends of logs into the partitions whose committed records this broker was known to have."""
        own = self._metadata.broker_id
        ends: dict[str, dict[int, LogEnd | None]] = {}
        runs: dict[str, dict[int, int]] = {}
        for name, its_log in self._log_store.logs.items():
            end, directory = unclean.get(name), self._log_store.dir_of(its_log)
            if directory.offline and end is not None and end.end_offset == LOG_OFFLINE:
                end = end._replace(last_epoch=self._unusable_run)
            ends.setdefault(name.topic, {})[name.partition] = end
            if name not in self._log_store.created and not directory.offline:
                runs.setdefault(name.topic, {})[name.partition] = directory.run
        _report_unclean(unclean)
        lost_synced = {name for name, its_log in self._log_store.logs.items() if its_log.lost_synced}
        destroyed = _numbers_by_topic(lost_synced | self._log_store.lost)
        never = _numbers_by_topic(never_stored)
        opened = {name: topic.topic_id for name, topic in self._metadata.view.topics.items()}

        def mark(topic: TopicView) -> TopicView | None:
            if opened[topic.name] != topic.topic_id:
                return mark_unclean(topic, own, {})  # the topic was created again since the logs were opened
            return mark_unclean(
                topic, own, ends[topic.name], runs=runs.get(topic.name, {}), last_run=self._last_run,
                destroyed=destroyed.get(topic.name, ()), never_stored=never.get(topic.name, ()),
            )  # fmt: skip

        current = await load_view(self._metadata.store)
        names = [name for name in current.topics if name in ends]
        await write_marks(self._metadata, current, names, mark, watched=False)


def _numbers_by_topic(names: Iterable[TopicPartition]) -> dict[str, set[int]]:
    """Return the numbers of partitions by their topics."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        numbers.setdefault(name.topic, set()).add(name.partition)
    return numbers


def _log_end(broker_id: int, of: Log, *, is_lost: bool) -> LogEnd:
    if is_lost:
        return LogEnd(broker_id, -1, LOG_LOST)
    if of.failure is not None:
        return LogEnd(broker_id, -1, LOG_OFFLINE)
    return LogEnd(broker_id, of.epochs.epoch_at(of.log_end_offset - 1), of.log_end_offset)


def _report_unclean(unclean: Mapping[TopicPartition, LogEnd]) -> None:
    """Log which logs may lack records, why, and what to do."""
    lost = [str(name) for name, end in unclean.items() if end.end_offset == LOG_LOST]
    shorter = [str(name) for name, end in unclean.items() if end.end_offset >= 0]
    if shorter:
        log.warning(
            "the broker or a log directory was not stopped cleanly, so logs may lack their last records. Other "
            "replicas lead these partitions until this one has copied what it lacks. Do nothing unless "
            "'ottla cluster status' still shows partitions without a leader: then start the other brokers "
            "partitions=%d first=%s", len(shorter), min(shorter),
        )  # fmt: skip
    if lost:
        log.error(
            "logs are lost: their folders or their log directory are missing, damaged or an older copy. They are "
            "copied from other replicas, and do not lead before. If 'ottla cluster status' shows partitions without a "
            "leader, stop this broker, put the directory back and start it again, or start the other brokers "
            "partitions=%d first=%s", len(lost), min(lost),
        )  # fmt: skip
