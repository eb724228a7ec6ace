"""Bugs of one broker that are planted because a certain check must find them; see ``sim_planted.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from typing import Any

import ottla.broker.cluster.topic_apis as topics_module
import ottla.broker.groups.offsets as group_offsets_module
import ottla.log.loading as loading_module
from ottla.broker.cluster.config_apis import ConfigApis
from ottla.broker.groups.classic_generation import ClassicGeneration
from ottla.broker.groups.offsets import Offsets
from ottla.broker.groups.records import OffsetCommitValue
from ottla.broker.groups.runtime import GroupRuntime
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.offset_apis import OffsetApis
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Writers
from ottla.broker.transactions.runtime import MarkerWriter
from ottla.broker.transactions.shard import TransactionShard
from ottla.log.log import Log
from ottla.log.producers import ProducerEntry, Producers
from ottla.log.refused import RefusedSequences
from ottla.log.segment import Segment
from ottla.model.errors import OutOfOrderSequence, StorageError
from ottla.model.records import Record, build_batch

Replace = Callable[[Any, str, Any], None]


# -- logs -------------------------------------------------------------------------------------------------------------


def syncs_do_nothing(replace: Replace) -> None:
    """A sync of a segment syncs the names in its folder, and none of its bytes."""

    def sync(self: Segment) -> None:
        self._disk.fsync_dir(self.directory)

    replace(Segment, "sync", sync)


def truncations_are_not_synced(replace: Replace) -> None:
    """The next batch is appended after a truncation that a power failure can undo."""
    truncate_to, sync = Log.truncate_to, Segment.sync
    is_truncating = []

    def truncate(self: Log, offset: int) -> None:
        is_truncating.append(self)
        try:
            truncate_to(self, offset)
        finally:
            is_truncating.pop()

    def sync_later(self: Segment) -> None:
        if not is_truncating:
            sync(self)

    replace(Log, "truncate_to", truncate)
    replace(Segment, "sync", sync_later)


def truncation_keeps_the_synced_end(replace: Replace) -> None:
    """A truncation does not lower the offset up to which the log is synced."""
    original = Log.truncate_to

    def truncate_to(self: Log, offset: int) -> None:
        synced = self.synced_end_offset
        original(self, offset)
        self.synced_end_offset = synced

    replace(Log, "truncate_to", truncate_to)


def batches_get_the_epoch_before(replace: Replace) -> None:
    """A leader writes the epoch before its own into some batches, after others have got the current one."""
    original = Log.append

    def append(self: Log, *args: Any, **options: Any) -> tuple[int, int]:
        epoch = self.leader_epoch
        self.leader_epoch = max(epoch - (self.log_end_offset % 8 == 7), 0)
        try:
            return original(self, *args, **options)
        finally:
            self.leader_epoch = epoch

    replace(Log, "append", append)


def leader_appends_records_of_its_own(replace: Replace) -> None:
    """A leader appends a record that no client has sent after every fortieth batch."""
    original = Log.append
    appended = dict[int, int]()

    def append(self: Log, *args: Any, **options: Any) -> tuple[int, int]:
        result = original(self, *args, **options)
        appended[id(self)] = appended.get(id(self), 0) + 1
        if appended[id(self)] % 40 == 0 and not self.name.topic.startswith("__"):
            batch = bytearray(build_batch([Record(timestamp=1000, key=None, value=b"leader")]))
            original(self, batch, memoryview(batch), 0, len(batch), 1000)
        return result

    replace(Log, "append", append)


def duplicates_are_appended(replace: Replace) -> None:
    """A batch that is a duplicate of an earlier one is appended again."""
    original = Producers.check

    def check(self: Producers, *args: Any, **options: Any) -> Any:
        entry, _ = original(self, *args, **options)
        return entry, None

    replace(Producers, "check", check)


def sequence_gaps_are_accepted(replace: Replace) -> None:
    """A batch is appended although the one before it was refused; one in thirteen is refused, as by a full disk."""
    original, append, note = Producers.check, Log.append, ProducerEntry.note
    calls = []

    def check(self: Producers, producer_id: int, *args: Any, **options: Any) -> Any:
        try:
            return original(self, producer_id, *args, **options)
        except OutOfOrderSequence:
            return self.get(producer_id), None

    def append_or_refuse(self: Log, *args: Any, **options: Any) -> tuple[int, int]:
        calls.append(None)
        if len(calls) % 13 == 0 and not self.name.topic.startswith("__"):
            raise StorageError("the disk is full")
        return append(self, *args, **options)

    def note_in_any_order(self: ProducerEntry, *args: Any) -> None:
        following = self.next_sequence
        note(self, *args)
        self.next_sequence = max(self.next_sequence, following)

    replace(Producers, "check", check)
    replace(ProducerEntry, "note", note_in_any_order)
    replace(RefusedSequences, "check", lambda self, *args, **options: None)
    replace(Log, "append", append_or_refuse)


def recovery_fails_with_a_traceback(replace: Replace) -> None:
    """Recovery divides by a number that is zero for some logs."""
    original = loading_module.open_log

    def open_log(*args: Any, **options: Any) -> Any:
        opened = original(*args, **options)
        assert 1 // (opened.log_end_offset % 9 + opened.log_start_offset + (opened.log_end_offset < 50)) >= 0
        return opened

    replace(loading_module, "open_log", open_log)


# -- readers ----------------------------------------------------------------------------------------------------------


def reads_begin_too_early(replace: Replace) -> None:
    """Fetch returns batches before the offset that was asked for."""
    original = Log.read

    def read(self: Log, offset: int, size_bytes_max: int, end_offset: int, *, at_least_one: bool) -> Any:
        is_client = size_bytes_max == 1 << 20 and not self.name.topic.startswith("__")
        if is_client and self.log_start_offset <= offset < end_offset:
            offset = max(offset - 4, self.log_start_offset)
        return original(self, offset, size_bytes_max, end_offset, at_least_one=at_least_one)

    replace(Log, "read", read)


def first_record_of_a_segment_is_not_readable(replace: Replace) -> None:
    """Fetch skips the first record of each segment but the first."""
    original = Log.read

    def read(self: Log, offset: int, size_bytes_max: int, end_offset: int, *, at_least_one: bool) -> Any:
        bases = [segment.base_offset for segment in self.segments[1:]]
        is_client = size_bytes_max < 1 << 30 and not self.name.topic.startswith("__")
        skipped = is_client and offset in bases and offset + 1 < end_offset
        return original(self, offset + skipped, size_bytes_max, end_offset, at_least_one=at_least_one)

    replace(Log, "read", read)


def deleted_records_are_returned(replace: Replace) -> None:
    """Fetch returns records before the log start as long as their segment is there."""
    original = Log.read

    def read(self: Log, offset: int, *args: Any, **options: Any) -> Any:
        start = self.log_start_offset
        self.log_start_offset = min(start, self.segments[0].base_offset)
        try:
            return original(self, offset, *args, **options)
        finally:
            self.log_start_offset = start

    replace(Log, "read", read)


def last_record_is_not_readable(replace: Replace) -> None:
    """Fetch and ListOffsets take the last record for the end of the log."""
    list_offset, read = OffsetApis._list_offset, Log.read

    async def list_offset_before(*args: Any) -> None:
        await list_offset(*args)
        args[-1].offset = max(args[-1].offset - 1, 0)

    def read_before(self: Log, offset: int, size_bytes_max: int, end_offset: int, *, at_least_one: bool) -> Any:
        is_client = size_bytes_max < 1 << 30 and not self.name.topic.startswith("__")
        return read(self, offset, size_bytes_max, end_offset - is_client, at_least_one=at_least_one)

    replace(OffsetApis, "_list_offset", list_offset_before)
    replace(Log, "read", read_before)


def writers_are_expected(replace: Replace) -> None:
    """The end of a partition raises an exception if no writer waits for it."""
    original = Writers.fail

    def fail(self: Writers, *args: Any) -> None:
        waiting = [writer.deadline for writers in self._waiting.values() for _, writer in writers]
        original(self, *args)
        assert min(waiting) >= 0

    replace(Writers, "fail", fail)


def deletions_do_nothing(replace: Replace) -> None:
    """DeleteRecords is answered with the log start, which does not move."""
    replace(ReplicaManager, "delete_records", lambda self, partition, offset: partition.log.log_start_offset)


# -- coordinators -----------------------------------------------------------------------------------------------------


def offset_records_round_the_commit_time(replace: Replace) -> None:
    """The record of a committed offset has the time in seconds, the coordinator has it in milliseconds."""
    original = GroupRuntime.encode

    def encode(self: GroupRuntime, record: Any) -> Any:
        if isinstance(record.value, OffsetCommitValue):
            seconds = record.value.commit_timestamp // 1000
            record = record._replace(value=changed(record.value, commit_timestamp=1000 * seconds))
        return original(self, record)

    replace(GroupRuntime, "encode", encode)


def members_get_the_first_assignment(replace: Replace) -> None:
    """Every member of a group gets the assignment of the first one."""
    original = ClassicGeneration.sync_result

    def sync_result(self: ClassicGeneration, member: Any) -> Any:
        return original(self, next(iter(self._members.by_id.values()), member))

    replace(ClassicGeneration, "sync_result", sync_result)


def committed_offset_is_one_too_high(replace: Replace) -> None:
    """OffsetFetch returns the offset after the committed one."""
    original = group_offsets_module._fetch_result

    def fetch_result(*args: Any) -> Any:
        row = original(*args)
        return row._replace(value=changed(row.value, offset=row.value.offset + 1)) if row.value is not None else row

    replace(group_offsets_module, "_fetch_result", fetch_result)


def offset_fetch_lacks_partitions(replace: Replace) -> None:
    """OffsetFetch has no row for a partition without a committed offset."""
    original = group_offsets_module._fetch_topic

    def fetch_topic(*args: Any) -> Any:
        topic = original(*args)
        return topic._replace(offsets=[row for row in topic.offsets if row.value is not None or row.error_code])

    replace(group_offsets_module, "_fetch_topic", fetch_topic)


def transactional_offsets_are_discarded(replace: Replace) -> None:
    """The commit of a transaction discards the offsets that belong to it."""
    original = Offsets.end_transaction

    def end_transaction(self: Offsets, producer_id: int, *, commit: bool) -> None:
        original(self, producer_id, commit=False)

    replace(Offsets, "end_transaction", end_transaction)


def _append_marker(replace: Replace, markers: Callable[[Partition, Any], Sequence[bool]]) -> None:
    """Append a marker for each result that ``markers`` returns."""
    original = MarkerWriter._append

    def append(self: MarkerWriter, partition: Partition, delivery: Any) -> int:
        end = 0
        for commit in markers(partition, delivery):
            end = original(self, partition, changed(delivery, commit=commit))
        return end

    replace(MarkerWriter, "_append", append)


def markers_are_written_twice(replace: Replace) -> None:
    """Each partition of a transaction gets its marker twice."""
    _append_marker(replace, lambda _, delivery: [delivery.commit, delivery.commit])


def markers_of_both_results_are_written(replace: Replace) -> None:
    """The marker of a transaction is followed by one with the other result."""
    _append_marker(replace, lambda _, delivery: [delivery.commit, not delivery.commit])


def last_partition_is_aborted(replace: Replace) -> None:
    """The last partition of a transaction that is committed gets the marker of an abort."""

    def markers(partition: Partition, delivery: Any) -> list[bool]:
        names = [name for name in delivery.partitions if not name.topic.startswith("__")]
        is_last = len(names) > 1 and names[-1] == partition.name
        return [delivery.commit and not is_last]

    _append_marker(replace, markers)


def init_producer_does_not_fence(replace: Replace) -> None:
    """InitProducerId returns the epoch of the producer that has the transactional id."""
    original = TransactionShard._init_outcome

    def init_outcome(self: TransactionShard, transactional_id: str, value: Any, last_epoch: int) -> Any:
        known = self.values.get(transactional_id)
        if known is not None and known.producer_id == value.producer_id:
            value = changed(value, producer_epoch=known.producer_epoch)
        return original(self, transactional_id, value, last_epoch)

    replace(TransactionShard, "_init_outcome", init_outcome)


# -- metadata ---------------------------------------------------------------------------------------------------------


def partitions_are_not_stored(replace: Replace) -> None:
    """CreatePartitions is answered without a change."""
    replace(topics_module, "ops_update_topic", lambda view, topic, change_id: [])


def config_is_not_stored(replace: Replace) -> None:
    """A change of a topic's settings is answered without a change."""
    replace(ConfigApis, "_alter_topic", lambda self, *args: [])


#: of one broker
CHECK_PLANTED = (
    syncs_do_nothing,
    batches_get_the_epoch_before,
    leader_appends_records_of_its_own,
    duplicates_are_appended,
    sequence_gaps_are_accepted,
    recovery_fails_with_a_traceback,
    reads_begin_too_early,
    first_record_of_a_segment_is_not_readable,
    deleted_records_are_returned,
    last_record_is_not_readable,
    deletions_do_nothing,
    writers_are_expected,
    offset_records_round_the_commit_time,
    members_get_the_first_assignment,
    committed_offset_is_one_too_high,
    offset_fetch_lacks_partitions,
    transactional_offsets_are_discarded,
    markers_are_written_twice,
    markers_of_both_results_are_written,
    last_partition_is_aborted,
    init_producer_does_not_fence,
    partitions_are_not_stored,
    config_is_not_stored,
)
#: of one log
LOG_PLANTED = (truncations_are_not_synced, truncation_keeps_the_synced_end)
