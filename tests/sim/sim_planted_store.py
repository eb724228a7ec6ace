"""Bugs of a cluster that are planted because a certain check must find them; see ``sim_planted.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from struct import pack_into, unpack_from
from typing import Any

from crc32c import crc32c

import ottla.broker.cluster.controller as election_module
import ottla.broker.cluster.isr_changes as isr_changes_module
import ottla.broker.metadata.leadership as leadership_module
import ottla.broker.metadata.unclean_marks as unclean_marks_module
import ottla.log.loading as loading_module
import ottla.log.replication as replication_module
import ottla.log.truncation as truncation_module
from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.lease_check import LeaseCheck
from ottla.broker.metadata.leadership import ops_elect
from ottla.broker.metadata.nodes import CONTROLLER, CONTROLLER_EPOCH, controller_epoch_json
from ottla.broker.metadata.store import Check, Create, Delete
from ottla.broker.metadata.view import NO_LEADER, PartitionView
from ottla.broker.partitions.follower_logs import FollowerLogs
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.log.folders import Owner
from ottla.log.log import Log
from ottla.log.truncation import Truncation
from ottla.model.batch import CRC_FROM, PREFIX_BYTES, read_header
from ottla.model.types import TopicPartition

Replace = Callable[[Any, str, Any], None]


# -- the metadata store -----------------------------------------------------------------------------------------------


def elections_keep_the_epoch(replace: Replace) -> None:
    """The leader epoch does not rise when another broker leads."""
    original = leadership_module._lead

    def lead(partition: PartitionView, *args: Any) -> PartitionView:
        elected = original(partition, *args)
        is_new = NO_LEADER not in (partition.leader, elected.leader) and partition.leader != elected.leader
        return changed(elected, leader_epoch=partition.leader_epoch) if is_new else elected

    replace(leadership_module, "_lead", lead)


def new_leader_is_not_in_the_isr(replace: Replace) -> None:
    """A broker that is elected is removed from the ISR."""
    original = leadership_module._lead

    def lead(partition: PartitionView, leader: int, isr: tuple[int, ...], min_isr: int) -> PartitionView:
        others = tuple(each for each in isr if each != leader)
        return original(partition, leader, others if others and leader != partition.leader else isr, min_isr)

    replace(leadership_module, "_lead", lead)


def last_replica_leaves_the_isr(replace: Replace) -> None:
    """A broker whose stop was not clean leaves an ISR that has no other member, too."""
    original = unclean_marks_module._marked

    def marked(partition: PartitionView, end: Any) -> PartitionView:
        after = original(partition, end)
        return changed(after, isr=()) if partition.isr == (end.broker,) else after

    replace(unclean_marks_module, "_marked", marked)


def isr_changes_keep_the_partition_epoch(replace: Replace) -> None:
    """The partition epoch does not rise when the leader changes its ISR."""
    original = isr_changes_module.change_isr

    def change_isr(topic: Any, number: int, **options: Any) -> PartitionView:
        partition = original(topic, number, **options)
        return changed(partition, partition_epoch=topic.partitions[number].partition_epoch)

    replace(isr_changes_module, "change_isr", change_isr)


def controller_epoch_begins_anew(replace: Replace) -> None:
    """A controller that resigns deletes its epoch and creates it again."""

    async def resign(self: Controller) -> None:
        if self.is_active:
            epoch = Create(CONTROLLER_EPOCH, controller_epoch_json(self._id))
            fence = Check(CONTROLLER_EPOCH, self.epoch)
            await self._store.multi([fence, Delete(CONTROLLER), Delete(CONTROLLER_EPOCH), epoch])

    replace(Controller, "resign", resign)


def elections_without_controller_fence(replace: Replace) -> None:
    """The elections of a broker that is not the controller any more are applied."""
    replace(election_module, "ops_elect", lambda view, topics, epoch=None: ops_elect(view, topics))


def controller_ignores_changed_topics(replace: Replace) -> None:
    """The controller decides when brokers have changed, and every ten seconds, but not when topics have."""
    original = Controller.wake
    replace(Controller, "wake", lambda self, topics=None: original(self, None if topics is None else ()))


def new_leader_truncates_to_its_high_watermark(replace: Replace) -> None:
    """A new leader removes the records behind its own high watermark, which may be old."""
    original = Partition._become_leader

    def become_leader(self: Partition) -> None:
        if not self.log.pending and self.log.failure is None and not self.log.deleted:
            self.log.truncate_to(max(self.high_watermark, self.log.log_start_offset))
        original(self)

    replace(Partition, "_become_leader", become_leader)


# -- roles ------------------------------------------------------------------------------------------------------------


def old_leader_goes_on_in_the_new_epoch(replace: Replace) -> None:
    """A leader that learns of its successor goes on to lead if it is still in sync."""
    original = Partition.apply_state

    def apply_state(self: Partition, state: Any, now: float = 0.0) -> bool:
        if self.role is Role.LEADER and state.leader != NO_LEADER and self.broker_id in state.isr:
            state = changed(state, leader=self.broker_id)
        return original(self, state, now)

    replace(Partition, "apply_state", apply_state)


def suspended_leader_forgets_its_epoch(replace: Replace) -> None:
    """A leader that stops to lead without the store goes back to the epoch before."""
    original = Partition.suspend

    def suspend(self: Partition) -> None:
        original(self)
        self.leader_epoch -= 1

    replace(Partition, "suspend", suspend)


def lease_is_not_checked(replace: Replace) -> None:
    """A broker that cannot reach the metadata store goes on as if it had its lease."""
    replace(LeaseCheck, "check", lambda self, now: None)


# -- replicas ---------------------------------------------------------------------------------------------------------


def high_watermark_of_the_leader_alone(replace: Replace) -> None:
    """The high watermark is the end of the leader's log. Acknowledgements wait for the followers nevertheless."""
    durable = Partition.durable_offset.fget
    assert durable is not None

    def update(self: Partition) -> None:
        if len(self.isr) >= self.min_in_sync and self.log.written_end_offset > self.high_watermark:
            self.advance_high_watermark(self.log.written_end_offset)

    def durable_offset(self: Partition) -> int:
        ends = [self.followers[each].end_offset for each in self.isr if each in self.followers]
        return min(durable(self), *ends) if ends else durable(self)

    replace(Partition, "update_high_watermark", update)
    replace(Partition, "durable_offset", property(durable_offset))


def follower_takes_any_high_watermark(replace: Replace) -> None:
    """The high watermark of a follower is that of its leader, also if the follower has fewer records."""

    def follow(self: Partition, high_watermark: int) -> None:
        self.leader_high_watermark = high_watermark
        if high_watermark > self.high_watermark:
            self.advance_high_watermark(high_watermark)

    replace(Partition, "follow_high_watermark", follow)


def follower_notes_the_last_epoch_only(replace: Replace) -> None:
    """A follower that gets batches of several new leader epochs with one fetch notes only the last epoch."""
    original = replication_module._check

    def check(records: memoryview, end_offset: int, known: Any, leader_epoch: int) -> Any:
        checked = original(records, end_offset, known, leader_epoch)
        if checked.epochs is None:
            return checked
        last = known.copy()
        last.assign(checked.epochs.epochs[-1], checked.epochs.starts[-1])
        return checked._replace(epochs=last)

    replace(replication_module, "_check", check)


def truncation_moves_the_log_start(replace: Replace) -> None:
    """After a truncation the log starts with its first segment, although records of the segment were deleted."""
    original = truncation_module.begin

    def begin(planned: Truncation) -> None:
        original(planned)
        of = planned.log
        of.log_start_offset = min(of.log_start_offset, of.segments[0].base_offset)

    replace(truncation_module, "begin", begin)


def follower_changes_sealed_batches(replace: Replace) -> None:
    """A follower changes a timestamp in the first batch of a segment some time after it was sealed."""
    original = FollowerLogs.write
    done = dict[int, None]()

    def write(self: FollowerLogs, partition: Partition) -> None:
        original(self, partition)
        segments = partition.log.segments
        if len(segments) > 3 and not partition.name.topic.startswith("__") and id(segments[0]) not in done:
            done[id(segments[0])] = None
            file, disk = segments[0].file, partition.log.disk
            header = read_header(disk.pread(file.fd, 61, 0))
            batch = bytearray(disk.pread(file.fd, header.size_bytes, 0))
            pack_into(">q", batch, 27, header.base_timestamp - 1)
            pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
            disk.pwrite(file.fd, bytes(batch), 0)

    replace(FollowerLogs, "write", write)


def followers_ignore_the_log_start(replace: Replace) -> None:
    """A follower does not move its log start to that of the leader."""
    replace(FollowerLogs, "follow_log_start", lambda self, partition, offset: None)


def appends_skip_an_offset(replace: Replace) -> None:
    """One append in twenty leaves an offset out."""
    original = Log.append

    def append(self: Log, *args: Any, **options: Any) -> tuple[int, int]:
        if self.log_end_offset % 20 == 19 and not self.pending and not self.name.topic.startswith("__"):
            self.on_gap(self, self.log_end_offset)
            self.log_end_offset += 1
            self.written_end_offset += 1
        return original(self, *args, **options)

    replace(Log, "append", append)


def batches_get_another_sequence_number(replace: Replace) -> None:
    """The stored batch has another sequence number than the one that the producer state has."""
    original = Log.append

    def append(self: Log, buffer: Any, view: memoryview, start: int, end: int, *args: Any, **options: Any) -> Any:
        base, size = self.log_end_offset, len(self.pending)
        result = original(self, buffer, view, start, end, *args, **options)
        is_stored = len(self.pending) == size + 2 and self.log_end_offset > base
        if is_stored and base % 30 == 29 and not self.name.topic.startswith("__"):
            batch = bytearray(self.pending[-1])
            (sequence,) = unpack_from(">i", batch, 53 - PREFIX_BYTES)
            if sequence >= 0:
                pack_into(">i", batch, 53 - PREFIX_BYTES, sequence + 1000)
                pack_into(">I", batch, 17 - PREFIX_BYTES, crc32c(memoryview(batch)[CRC_FROM - PREFIX_BYTES :]))
                self.pending[-1] = bytes(batch)
        return result

    replace(Log, "append", append)


def follower_log_starts_are_not_awaited(replace: Replace) -> None:
    """DeleteRecords is answered when the leader has moved its log start; followers move theirs later."""
    replace(Partition, "low_watermark", property(lambda self: self.log.log_start_offset))


# -- topics with the name of a deleted one ----------------------------------------------------------------------------


def folder_of_an_earlier_topic_is_used(replace: Replace) -> None:
    """A start uses the folder of a partition without a look at its topic id."""
    replace(loading_module, "check_topic_id", lambda disk, path, folder, spec: Owner.TOPIC)


def followers_of_an_earlier_topic_count(replace: Replace) -> None:
    """A leader adds what followers had reported of an earlier topic with the same name to what they have now."""
    remove, note_follower = ReplicaManager.remove, Partition.note_follower
    ends: dict[tuple[int, TopicPartition, int], int] = {}

    def remove_and_keep(self: ReplicaManager, partition: Partition, unique: str) -> None:
        for number, follower in partition.followers.items():
            ends[id(partition.log.disk), partition.name, number] = follower.end_offset
        remove(self, partition, unique)

    def note(self: Partition, broker_id: int, end_offset: int, synced_end_offset: int, **options: Any) -> None:
        earlier = ends.get((id(self.log.disk), self.name, broker_id), 0)
        note_follower(self, broker_id, end_offset + earlier, synced_end_offset + earlier, **options)

    replace(ReplicaManager, "remove", remove_and_keep)
    replace(Partition, "note_follower", note)


#: bugs that seeds of this profile find
TOPIC_NAMES_PLANTED = (folder_of_an_earlier_topic_is_used, followers_of_an_earlier_topic_count)

STORE_PLANTED = (
    elections_keep_the_epoch,
    new_leader_is_not_in_the_isr,
    last_replica_leaves_the_isr,
    isr_changes_keep_the_partition_epoch,
    controller_epoch_begins_anew,
    elections_without_controller_fence,
    controller_ignores_changed_topics,
    new_leader_truncates_to_its_high_watermark,
    old_leader_goes_on_in_the_new_epoch,
    suspended_leader_forgets_its_epoch,
    lease_is_not_checked,
    high_watermark_of_the_leader_alone,
    follower_takes_any_high_watermark,
    follower_notes_the_last_epoch_only,
    truncation_moves_the_log_start,
    follower_changes_sealed_batches,
    followers_ignore_the_log_start,
    appends_skip_an_offset,
    batches_get_another_sequence_number,
    follower_log_starts_are_not_awaited,
    *TOPIC_NAMES_PLANTED,
)
