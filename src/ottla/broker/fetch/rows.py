"""The rows of a Fetch reply: what is read from one partition. A hot module."""

from __future__ import annotations

from ottla.broker.fetch.follower_fetches import diverging
from ottla.broker.fetch.replica_selection import NO_REPLICA
from ottla.broker.fetch.sessions import FetchedPartition
from ottla.broker.partitions.partition import Partition
from ottla.log.file_region import FileRegion
from ottla.wire.leader_hints import LeaderHint


class FetchRow:
    """The row of one partition in a reply."""

    __slots__ = (
        "aborted", "at_end_of", "diverging", "error_code", "has_tags", "high_watermark", "is_throttled",
        "is_urgent", "last_stable_offset", "leader", "log_start_offset", "preferred_replica", "region", "wanted",
        "wants_sync",
    )  # fmt: skip

    def __init__(self, wanted: FetchedPartition, error_code: int = 0) -> None:
        self.wanted = wanted
        self.error_code = error_code
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        #: (producer id, first offset) of aborted transactions; None for read_uncommitted
        self.aborted: list[tuple[int, int]] | None = None
        self.region: FileRegion | None = None
        #: the partition, if the fetch offset is at the end of what this reader may read
        self.at_end_of: Partition | None = None
        #: epoch and end offset of the common history, if the log of the reader diverges from ours
        self.diverging: tuple[int, int] | None = None
        #: the replica that the consumer should read from instead
        self.preferred_replica = NO_REPLICA
        #: whether it must be sent although there is no error and there are no records
        self.is_urgent = False
        #: whether there are tagged fields behind the records; only then are the next two set, or ``diverging``
        self.has_tags = False
        #: for a follower: a writer waits until these records are synced
        self.wants_sync = False
        #: for a follower: the records count as those of a throttled replica
        self.is_throttled = False
        #: the leader, for a consumer that looks for it
        self.leader: LeaderHint | None = None

    def note_diverging(self, diverging: tuple[int, int] | None) -> None:
        """Let the row name the end of the common history, unless the log of the reader does not diverge."""
        self.diverging = diverging
        if diverging is not None:
            self.is_urgent = self.has_tags = True


def read_partition(
    partition: Partition, wanted: FetchedPartition, left: int, *, at_least_one: bool, read_committed: bool
) -> FetchRow:
    request = wanted.request
    log = partition.log
    read = FetchRow(wanted)
    if partition.high_watermark < partition.epoch_start_offset:
        return _read_from_new_leader(partition, read, left, at_least_one=at_least_one, read_committed=read_committed)
    read.high_watermark = partition.high_watermark
    read.last_stable_offset = partition.last_stable_offset
    read.log_start_offset = log.log_start_offset
    if request.last_fetched_epoch >= 0:
        read.note_diverging(diverging(partition, request))
        if read.diverging is not None:
            return read
    if read_committed:
        read.aborted = []
    size_bytes_max = min(request.size_bytes_max, left)
    if size_bytes_max <= 0 and not at_least_one:
        return read
    end_offset = read.last_stable_offset if read_committed else read.high_watermark
    read.region = log.read(request.fetch_offset, size_bytes_max, end_offset, at_least_one=at_least_one)
    if read.region is None:
        if request.fetch_offset >= end_offset:
            read.at_end_of = partition
    elif read_committed:
        read.aborted = log.aborted_within(request.fetch_offset, read.region, end_offset)
    return read


def _read_from_new_leader(
    partition: Partition, read: FetchRow, left: int, *, at_least_one: bool, read_committed: bool
) -> FetchRow:
    """Read for a consumer while this leader has not yet committed in its own epoch.

    Consumers of the earlier leader may know a higher high watermark. So they are sent none, which clients ignore: some
    would report the end of the partition too early. Records below the known one are committed and are sent; without
    enough in-sync replicas this may last long. A transaction that looks committed may not be: its marker can be above
    the high watermark, and the log forgets these markers at a restart. So read_committed consumers wait.
    """
    request, log = read.wanted.request, partition.log
    read.log_start_offset = log.log_start_offset
    read.note_diverging(diverging(partition, request))
    if read.diverging is not None:
        return read
    end_offset = log.log_start_offset if read_committed else partition.high_watermark
    if read_committed:
        read.aborted = []
    size_bytes_max = min(request.size_bytes_max, left)
    if size_bytes_max > 0 or at_least_one:
        read.region = log.read(request.fetch_offset, size_bytes_max, end_offset, at_least_one=at_least_one)
        if read.region is None:
            read.at_end_of = partition
    return read
