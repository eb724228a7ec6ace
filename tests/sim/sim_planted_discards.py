"""Planted bugs: something still refers to a partition that this broker no longer serves."""

from __future__ import annotations

from sim_planted_cluster import Replace

from ottla.broker.coordinators.runtime import ShardRuntime
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.storage import Storage
from ottla.broker.transactions.checks import TransactionChecks
from ottla.log.directories import LogDir
from ottla.log.store import LogStore


def fetchers_keep_removed_partitions(replace: Replace) -> None:
    """The fetchers go on to copy a partition that was removed."""
    replace(ReplicaFetchers, "discard", _keep)


def unsynced_followers_are_kept(replace: Replace) -> None:
    """The fetchers keep a removed partition whose records they have not synced."""
    replace(ReplicaFetchers, "discard", lambda self, partition: self.unfollow(partition))


def incomplete_isr_of_removed_partitions_is_kept(replace: Replace) -> None:
    """A removed partition whose ISR lacks a replica is still looked at, ten times a second."""
    original = ReplicaManager._discard

    def discard(self: ReplicaManager, partition: Partition) -> None:
        was_unsettled = partition in self._unsettled
        original(self, partition)
        if was_unsettled:
            self._unsettled[partition] = None

    replace(ReplicaManager, "_discard", discard)


def waiting_writers_of_removed_partitions_are_kept(replace: Replace) -> None:
    """The group commit keeps a removed partition that requests waited for."""
    replace(GroupCommit, "discard", _keep)


def offline_partitions_are_kept(replace: Replace) -> None:
    """A partition that was offline when it was removed is still counted and reported."""
    replace(Storage, "discard", _keep)


def logs_of_removed_partitions_are_kept(replace: Replace) -> None:
    """The log of a partition that was removed stays in the log store."""
    replace(LogStore, "delete", lambda self, name, unique: None)


def directories_keep_removed_logs(replace: Replace) -> None:
    """A log directory keeps the offsets of a log that was deleted."""
    replace(LogDir, "forget", lambda self, name: self.logs.pop(name, None))


def verdicts_about_removed_partitions_are_kept(replace: Replace) -> None:
    """The verdict of a coordinator about a removed partition stays until the end of the request that asked for it."""
    replace(TransactionChecks, "discard", _keep)


def shards_of_removed_partitions_are_kept(replace: Replace) -> None:
    """A coordinator keeps the shard of a partition that was removed."""
    replace(ShardRuntime, "discard", _keep)


def fetches_of_removed_partitions_wait(replace: Replace) -> None:
    """The fetches that wait for a removed partition wait until their time is over."""
    replace(Partition, "leave", lambda self, error_code: self.writers.fail(error_code))


def _keep(self: object, partition: Partition) -> None:
    pass


DISCARDS_PLANTED = (
    fetchers_keep_removed_partitions,
    unsynced_followers_are_kept,
    incomplete_isr_of_removed_partitions_is_kept,
    waiting_writers_of_removed_partitions_are_kept,
    offline_partitions_are_kept,
    logs_of_removed_partitions_are_kept,
    directories_keep_removed_logs,
    verdicts_about_removed_partitions_are_kept,
    shards_of_removed_partitions_are_kept,
    fetches_of_removed_partitions_wait,
)
