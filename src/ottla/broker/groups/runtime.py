"""The runtime of the group coordinator: the shards of ``__consumer_offsets``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.broker.coordinators.outcome import Moment, Outcome, R, Ticket
from ottla.broker.coordinators.pending_reply import PendingReply, Refusal
from ottla.broker.coordinators.request_order import RequestOrder
from ottla.broker.coordinators.runtime import ShardRuntime
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import Rebalance
from ottla.broker.groups.records import CoordinatorRecord, decode_record, encode_record
from ottla.broker.groups.shard import GroupShard
from ottla.broker.partitions.partition import Partition
from ottla.model.errors import KafkaError
from ottla.wire import Message

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSETS_ORDER_MAX = 10_000


class GroupRuntime(ShardRuntime[GroupShard]):
    """All groups that this broker coordinates."""

    topic = OFFSETS_TOPIC

    context: GroupContext

    def __init__(self, *, on_rebalance: Callable[[Rebalance], None], **parts: Any) -> None:
        super().__init__(**parts)
        #: called for each completed rebalance
        self._on_rebalance = on_rebalance
        #: the latest TxnOffsetCommit of clients before KIP-890, by transactional id and group
        self.offsets_order: RequestOrder[tuple[str, str]] = RequestOrder(_OFFSETS_ORDER_MAX)

    def make_shard(self, partition: Partition) -> GroupShard:
        return GroupShard(self.context)

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        return decode_record(key, value)

    def on_appended(self, outcome: Outcome[Any]) -> None:
        if isinstance(outcome, GroupOutcome):
            for rebalance in outcome.rebalances:
                self._on_rebalance(rebalance)

    def run_parkable(
        self,
        group_id: str,
        operate: Callable[[GroupShard, Ticket, Moment], Outcome[R]],
        build: Callable[[R], Message],
        refuse: Refusal,
    ) -> Message | PendingReply:
        """Run an operation whose request may be parked. If the client disconnects, the parked request is completed."""
        ticket = PendingReply(build, refuse)
        try:
            hosted = self._host_of(group_id)
        except KafkaError as error:
            return refuse(error.code)
        reply = self._answer(hosted, [group_id], lambda shard, now: operate(shard, ticket, now), ticket)
        if isinstance(reply, PendingReply):
            reply.abandon = partial(self._abandon, group_id, reply)
        return reply

    def _abandon(self, group_id: str, ticket: PendingReply) -> None:
        """Complete a parked request whose client has closed the connection."""
        if ticket.done():
            return
        try:
            hosted = self._host_of(group_id)
        except KafkaError:
            return  # the unloaded shard has completed all parked requests
        self._run(hosted, [group_id], lambda shard, now: shard.abandon(group_id, ticket, now))

    def marker_written(self, partition: Partition, producer_id: int, *, commit: bool, end_offset: int) -> None:
        """Apply a marker that is in the log of this partition to its shard, if the shard is loaded."""
        hosted = self._shards.get(partition.name.partition)
        if hosted is not None and hosted.partition is partition and hosted.loaded:
            hosted.shard.end_transaction(producer_id, commit=commit)
            hosted.end_offset = end_offset

    def marker_lost(self, partition: Partition) -> None:
        """Load the shard of this partition again: it has applied a marker whose write failed."""
        hosted = self._shards.get(partition.name.partition)
        if hosted is not None and hosted.partition is partition:
            self.reload(hosted)

    @property
    def partitions_at_creation(self) -> int:
        return self.context.settings.offsets_topic_num_partitions

    @property
    def compression_codec(self) -> int:
        return self.context.settings.offsets_topic_compression_codec

    def expire_offsets(self) -> None:
        """Append tombstones for the committed offsets whose retention time is over."""
        self.perform_everywhere(lambda shard, now: shard.expire_offsets(now), _group_of)

    def topics_deleted(self, names: list[str]) -> None:
        """Append tombstones for the committed offsets of deleted topics."""
        self.perform_everywhere(lambda shard, _: shard.topics_deleted(names), _group_of)


def _group_of(record: CoordinatorRecord) -> str:
    return record.key.group
