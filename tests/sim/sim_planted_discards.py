"""Planted bugs: something still refers to a partition that this broker no longer serves."""

from __future__ import annotations

from sim_planted_cluster import Replace

from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.storage import Storage


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


def _keep(self: object, partition: Partition) -> None:
    pass


DISCARDS_PLANTED = (
    fetchers_keep_removed_partitions,
    unsynced_followers_are_kept,
    incomplete_isr_of_removed_partitions_is_kept,
    waiting_writers_of_removed_partitions_are_kept,
    offline_partitions_are_kept,
)
