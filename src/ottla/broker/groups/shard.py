"""GroupShard: all groups and offsets of one partition of ``__consumer_offsets``. Pure.

    handler(request, client, now) ──► Outcome           replay(record): the only writer of durable state

A group uses either the classic protocol (``classic.py``) or the consumer protocol (``consumer.py``); the types of its
records determine which. The shard looks up the group of a request, creates a group in the cases in which Kafka creates
one, converts groups between the two protocols, and answers requests for groups that do not exist. ``groups`` also holds
classic groups without a stored record: their first members are still joining. The shard deletes such a group when its
last member has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment, Producer, R, Ticket
from ottla.broker.groups.classic import ClassicGroup
from ottla.broker.groups.classic_members import ClassicMember
from ottla.broker.groups.consumer import ConsumerGroup, check_heartbeat
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.journal import Cause, CauseKind
from ottla.broker.groups.migration import can_upgrade, downgrade_records, should_downgrade, upgrade_records
from ottla.broker.groups.offsets import Offsets, existing_topics, refused_offsets
from ottla.broker.groups.records import (
    ConsumerGroupMemberMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.broker.groups.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    FetchedGroup,
    Join,
    JoinResult,
    LeaveResult,
    Leaving,
    OffsetCommit,
    OffsetFetch,
    OffsetResult,
    Sender,
    Sync,
    SyncResult,
)
from ottla.broker.groups.subscription import decode_assignment
from ottla.broker.groups.usage import Tally
from ottla.model.errors import ErrorCode, KafkaError, Refused, shortened
from ottla.wire import WireError

Group = ClassicGroup | ConsumerGroup


class GroupShard:
    """The groups and committed offsets of one partition of ``__consumer_offsets``."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        #: group id -> host of the client that created the group since the broker started
        self._creators: dict[str, str] = {}
        #: groups that a handler converted to the consumer protocol and whose records are not replayed yet; ``replay``
        #: uses the object from here, because it holds the soft state
        self._converted: dict[str, ConsumerGroup] = {}

    # -- durable --------------------------------------------------------------------------------------------------

    @property
    def expirables(self) -> dict[str, Group]:
        """Return the objects with a ``wake_at``, by group id."""
        return self.groups

    def replay(self, record: CoordinatorRecord, producer: Producer | None = None) -> None:
        """Apply one record of the log, at load and at run time alike. Applying a record twice has no further effect."""
        key, value = record
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if producer is not None and value is not None:
                self.offsets.replay_pending(producer.producer_id, key, value)
            else:
                self.offsets.replay(key, value)
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group, self._context)
            return
        group = self.groups.get(key.group)
        if isinstance(key, GroupMetadataKey):
            if value is None:
                if isinstance(group, ClassicGroup):
                    del self.groups[key.group]
                return
            assert isinstance(value, GroupMetadataValue)
            if not isinstance(group, ClassicGroup):
                group = self.groups[key.group] = ClassicGroup(key.group, self._context)
            group.replay(value)
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return  # a tombstone of a group that was deleted or converted to a classic group
            group = self._converted.pop(key.group, None) or ConsumerGroup(key.group, self._context)
            self.groups[key.group] = group
        group.replay(record)
        if group.is_deleted:
            del self.groups[key.group]

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a transaction marker: make the pending offsets of this producer visible, or discard them."""
        self.offsets.end_transaction(producer_id, commit=commit)

    def resume(self, now: Moment) -> None:
        """Rebuild the soft state after the whole log was replayed. Every member starts a new session."""
        for group in self.groups.values():
            group.resume(now)
        for group_id in self.offsets.by_group:
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, self._context)

    def follow_up_of(self, group_id: str, now: Moment, *, changed: bool) -> GroupOutcome[None] | None:
        """Clean up after an operation on a group. Return the records and replies of a downgrade, or None.

        ``changed`` says whether the operation replayed records.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            if group.is_disposable and group_id not in self.offsets.by_group:
                del self.groups[group_id]
        elif changed:
            self._converted.pop(group_id, None)
            if group is None:
                if group_id in self.offsets.by_group:
                    self.groups[group_id] = ClassicGroup(group_id, self._context)
            else:
                group.resume(now)
                if should_downgrade(group, self._context):
                    return self._downgrade(group, now)
        return None

    def durable(self) -> dict[str, object]:
        """Return the state that results from replayed records; two replays of one log return equal states."""
        state: dict[str, object] = {f"offsets of {group_id}": rows for group_id, rows in self.offsets.by_group.items()}
        state["offsets pending in transactions"] = self.offsets.pending()
        for group_id, group in self.groups.items():
            stored = group.stored if isinstance(group, ClassicGroup) else vars(group.stored)
            if stored is not None:
                state[group_id] = stored
        return state

    @staticmethod
    def changes_soft_state(records: Iterable[CoordinatorRecord]) -> bool:
        """Return whether the handler that made these records may also have changed the soft state of a group.

        A handler that makes only records of committed offsets changes no soft state.
        """
        return any(not isinstance(record.key, OffsetCommitKey) for record in records)

    def discard_soft_state(self, group_id: str, now: Moment) -> None:
        """Reset a group to its durable state because the records of a handler were not stored."""
        self._converted.pop(group_id, None)
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            stored = group.stored
            restored = ClassicGroup(group_id, self._context)
            if stored is not None:
                restored.replay(stored)
                restored.resume(now)
                self.groups[group_id] = restored
            elif group_id in self.offsets.by_group:
                self.groups[group_id] = restored
            else:
                del self.groups[group_id]

    # -- limits of client hosts -----------------------------------------------------------------------------------

    def count_usage(self, tally: Tally) -> None:
        """Add what the groups hold for each client host."""
        members, size_bytes = tally.members, tally.metadata_bytes
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member_id, pending in group.pending.items():
                    members[pending.client_host] += 1
                    size_bytes[pending.client_host] += len(member_id)
                for member in group.members.values():
                    members[member.client_host] += 1
                    size_bytes[member.client_host] += member.size_bytes
            else:
                for stored in group.members.values():
                    members[stored.client_host] += 1
                    size_bytes[stored.client_host] += stored_bytes(stored)
        self._creators = {group_id: host for group_id, host in self._creators.items() if group_id in self.groups}
        for group_id, host in self._creators.items():
            tally.groups[host] += 1
            size_bytes[host] += len(group_id)

    def _admit_group(self, group_id: str, client: Client, now: Moment) -> None:
        """Raise Refused if the client's host may not create this group. It may use any that exists."""
        if group_id and group_id not in self.groups:
            self._context.usage.admit_group(client.host, group_id, self._context.settings, now.monotonic_s)
            self._creators[group_id] = client.host

    def _admit_join(self, join: Join, now: Moment) -> None:
        """Raise Refused if the client's host may not have this member, or if its metadata is too large."""
        settings, usage, host = self._context.settings, self._context.usage, join.client.host
        size_bytes = join.size_bytes
        usage.check_size(size_bytes, settings)
        group = self.groups.get(join.group_id)
        known = group.members.get(join.member_id) if group is not None else None
        if known is not None:
            size_bytes -= known.size_bytes if isinstance(known, ClassicMember) else stored_bytes(known)
        elif not (isinstance(group, ClassicGroup) and join.member_id in group.pending):
            self._admit_group(join.group_id, join.client, now)
            usage.admit_member(host, settings, now.monotonic_s)
        if size_bytes > 0:
            usage.admit_bytes(host, size_bytes, settings, now.monotonic_s)

    def _admit_heartbeat(self, request: ConsumerHeartbeat, now: Moment) -> None:
        """Raise Refused if the client's host may not have this member. Only a heartbeat with epoch 0 adds one."""
        group = self.groups.get(request.group_id)
        if request.member_epoch == 0 and (group is None or request.member_id not in group.members):
            settings, usage, host = self._context.settings, self._context.usage, request.client.host
            size_bytes = request.size_bytes
            usage.check_size(size_bytes, settings)
            self._admit_group(request.group_id, request.client, now)
            usage.admit_member(host, settings, now.monotonic_s)
            usage.admit_bytes(host, size_bytes, settings, now.monotonic_s)

    # -- the classic protocol -------------------------------------------------------------------------------------

    def join_group(self, join: Join, ticket: Ticket, now: Moment) -> GroupOutcome[JoinResult]:
        """Handle JoinGroup. The request creates the group if it does not exist and the join is accepted."""
        if not join.group_id:
            return _done(JoinResult(error_code=ErrorCode.INVALID_GROUP_ID, member_id=join.member_id))
        try:
            self._admit_join(join, now)
        except Refused as refused:
            return _done(JoinResult(error_code=refused.code, member_id=join.member_id))
        group = self.groups.get(join.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            return group.join_classic(join, now)
        if isinstance(group, ClassicGroup):
            return group.join(join, ticket, now)
        tombstones = group.tombstones() if group is not None else []
        new_group = ClassicGroup(join.group_id, self._context)
        outcome = new_group.join(join, ticket, now)
        if not new_group.is_disposable:
            self.groups[join.group_id] = new_group
            outcome.records[:0] = tombstones
        return outcome

    def sync_group(self, sync: Sync, ticket: Ticket, now: Moment) -> GroupOutcome[SyncResult]:
        """Handle SyncGroup."""
        group = self.groups.get(sync.group_id)
        if not sync.group_id or group is None:
            return _done(SyncResult(_no_group(sync.group_id)))
        if isinstance(group, ConsumerGroup):
            return _done(group.sync_classic(sync, now))
        return group.sync(sync, ticket, now)

    def abandon(self, group_id: str, ticket: Ticket, now: Moment) -> GroupOutcome[None]:
        """Answer a parked JoinGroup or SyncGroup whose client has closed the connection."""
        group = self.groups.get(group_id)
        return group.abandon(ticket, now) if isinstance(group, ClassicGroup) else GroupOutcome()

    def heartbeat(self, group_id: str, sender: Sender, now: Moment) -> GroupOutcome[ErrorCode]:
        """Handle Heartbeat."""
        group = self.groups.get(group_id)
        if not group_id or group is None:
            return _done(_no_group(group_id))
        if isinstance(group, ConsumerGroup):
            return _done(group.heartbeat_classic(sender, now))
        return _done(group.heartbeat(sender, now))

    def leave_group(
        self, group_id: str, leaving: Sequence[Leaving], client: Client, now: Moment
    ) -> GroupOutcome[LeaveResult]:
        """Handle LeaveGroup."""
        group = self.groups.get(group_id)
        if not group_id:
            return _done(LeaveResult(ErrorCode.INVALID_GROUP_ID))
        if group is None:
            return _done(LeaveResult(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)))
        if isinstance(group, ConsumerGroup):
            return group.leave_classic(leaving, now)
        return group.leave(leaving, client, now, lambda member: self._is_behind(group_id, member))

    def _is_behind(self, group_id: str, member: ClassicMember) -> bool:
        """Return whether a partition of this member has records after its committed offset."""
        committed = self.offsets.by_group.get(group_id, {})
        try:
            assigned = decode_assignment(member.assignment).partitions
        except WireError:
            return False
        return any(
            (value := committed.get((topic, number))) is not None
            and (self._context.topics.end_offset(topic, number) or 0) > value.offset
            for topic, numbers in assigned
            for number in numbers
        )

    # -- the consumer protocol ------------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: ConsumerHeartbeat, now: Moment) -> GroupOutcome[ConsumerHeartbeatResult]:
        """Handle ConsumerGroupHeartbeat. A join creates the group, or converts the classic group of this id."""
        try:
            self._admit_heartbeat(request, now)
            group = self.groups.get(request.group_id)
            if isinstance(group, ConsumerGroup):
                return group.heartbeat(request, now)
            if request.member_epoch == 0:
                return self._join_as_consumer(request, group, now)
            check_heartbeat(request, self._context.settings.group_consumer_assignors)
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {shortened(request.group_id)} not found.")
        except KafkaError as error:
            return _done(ConsumerHeartbeatResult(error_code=error.code, error_message=str(error) or None))

    def _join_as_consumer(
        self, request: ConsumerHeartbeat, classic: ClassicGroup | None, now: Moment
    ) -> GroupOutcome[ConsumerHeartbeatResult]:
        """Handle the join of a group that has to be created or converted. Raise KafkaError if it cannot be."""
        group = ConsumerGroup(request.group_id, self._context)
        conversion: list[CoordinatorRecord] = []
        if classic is not None:
            conversion = self._conversion_records(classic, now)
            for record in conversion:
                if not isinstance(record.key, GroupMetadataKey):
                    group.replay(record)
            group.resume(now)
        outcome = group.heartbeat(request, now)
        outcome.records[:0] = conversion
        if classic is not None:
            outcome.replies.extend(classic.retire(ErrorCode.REBALANCE_IN_PROGRESS).replies)
        self._converted[request.group_id] = group
        return outcome

    def _conversion_records(self, group: ClassicGroup, now: Moment) -> list[CoordinatorRecord]:
        """Return the records that convert this group to the consumer protocol. Raise Refused if it cannot convert."""
        if not group.is_empty:
            can_upgrade(group, self._context)
            return upgrade_records(group, self._context, now)
        if group.stored is None:
            return []
        return [CoordinatorRecord(GroupMetadataKey(group.group_id), None)]

    def _downgrade(self, group: ConsumerGroup, now: Moment) -> GroupOutcome[None]:
        """Convert a group with only classic members to a classic group, which starts with a rebalance."""
        records = downgrade_records(group, now)
        stored = next(
            record.value for record in records
            if isinstance(record.key, GroupMetadataKey) and isinstance(record.value, GroupMetadataValue)
        )  # fmt: skip
        classic = ClassicGroup(group.group_id, self._context)
        classic.replay(stored)
        classic.resume(now, Cause(kind=CauseKind.PROTOCOL_CHANGED, detail="now classic"))
        self.groups[group.group_id] = classic
        return GroupOutcome(records=records, replies=group.retire(ErrorCode.REBALANCE_IN_PROGRESS).replies)

    # -- offsets --------------------------------------------------------------------------------------------------

    def commit_offsets(self, commit: OffsetCommit, now: Moment) -> GroupOutcome[list[OffsetResult]]:
        """Handle OffsetCommit and TxnOffsetCommit.

        Offsets of a transaction become visible when its commit marker is replayed.
        """
        existing, refused = existing_topics(commit.topics, self._context.topics)
        if not existing:
            return _done(refused)
        try:
            self._check_commit(commit, now)
        except KafkaError as error:
            code = error.code
            if commit.producer is not None and code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
                code = ErrorCode.ILLEGAL_GENERATION
            return _done(refused + refused_offsets(existing, code))
        records, results = self.offsets.commit(commit, existing, self._context, now)
        return GroupOutcome(records=records, result=refused + results, producer=commit.producer)

    def _check_commit(self, commit: OffsetCommit, now: Moment) -> None:
        """Raise KafkaError if the sender of this request may not commit offsets in the group."""
        group = self.groups.get(commit.group_id)
        is_transactional = commit.producer is not None
        if group is None:
            if commit.sender.generation < 0:  # by a consumer that assigns its own partitions, or by a tool
                self._admit_group(commit.group_id, commit.client, now)
                return
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND if commit.has_member_epoch else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ConsumerGroup):
            has_epoch = commit.has_member_epoch
            group.check_commit(commit.sender, has_epoch=has_epoch, transactional=is_transactional)
        else:
            group.check_commit(commit.sender, now, transactional=is_transactional)

    def fetch_offsets(self, request: OffsetFetch) -> FetchedGroup:
        """Return the committed offsets of a group. An unknown group has none, which is not an error."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and request.member_id is not None:
            try:
                group.check_fetch(request.member_id, request.member_epoch)
            except KafkaError as error:
                return FetchedGroup(error.code)
        return FetchedGroup(ErrorCode.NONE, self.offsets.fetch(request, self._context.topics))

    def delete_offsets(
        self, group_id: str, partitions: Mapping[str, Sequence[int]]
    ) -> GroupOutcome[ErrorCode | list[OffsetResult]]:
        """Handle OffsetDelete. The result has an error of the whole request, or a result for each partition."""
        group = self.groups.get(group_id)
        if not group_id:
            return GroupOutcome(result=ErrorCode.INVALID_GROUP_ID)
        records, results = self.offsets.delete(group_id, partitions, group, self._context.topics)
        if {each.error_code for each in results} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            return GroupOutcome(result=results)
        if group is None or group.state == "Dead":
            return GroupOutcome(result=ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != "consumer":
            return GroupOutcome(result=ErrorCode.NON_EMPTY_GROUP)
        return GroupOutcome(records=records, result=results)

    def delete_groups(self, group_ids: Sequence[str]) -> GroupOutcome[dict[str, ErrorCode]]:
        """Handle DeleteGroups for the groups of this shard. The result has an error code for each group."""
        outcome: GroupOutcome[dict[str, ErrorCode]] = GroupOutcome()
        outcome.result = codes = {}
        for group_id in group_ids:
            group = self.groups.get(group_id)
            code = ErrorCode.NONE
            if group is None or group.state == "Dead":
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                outcome.records.extend(self._deletion_records(group))
            codes[group_id] = code
        return outcome

    def _deletion_records(self, group: Group) -> list[CoordinatorRecord]:
        """Return the tombstones of all records and offsets of the group."""
        records = self.offsets.tombstones(group.group_id)
        if isinstance(group, ConsumerGroup):
            return records + group.tombstones()
        # A group that only has offsets has no group record. ``replay`` of its tombstone still removes the object.
        return [*records, CoordinatorRecord(GroupMetadataKey(group.group_id), None)]

    def expire_offsets(self, now: Moment) -> list[CoordinatorRecord]:
        """Return tombstones of offsets older than their retention, and of empty groups whose last offset expires."""
        minutes = self._context.settings.offsets_retention_minutes
        records: list[CoordinatorRecord] = []
        for group_id, group in self.groups.items():
            expired = self.offsets.expired(group_id, group, minutes, now)
            all_expired = len(expired) == len(self.offsets.by_group.get(group_id, ()))
            if all_expired and group.is_empty and not self.offsets.has_pending(group_id):
                records.extend(self._deletion_records(group))
            else:
                records.extend(expired)
        return records

    def topics_deleted(self, names: Iterable[str]) -> list[CoordinatorRecord]:
        """Return the tombstones of all offsets of these topics."""
        return self.offsets.without_topics(names)

    def after_load(self, now: Moment) -> GroupOutcome[None]:
        """Return the tombstones of offsets whose topics were deleted while no coordinator had this shard loaded."""
        names = {topic for committed in self.offsets.by_group.values() for topic, _ in committed}
        missing = [name for name in names if self._context.topics.partition_count(name) is None]
        return GroupOutcome(records=self.topics_deleted(missing))

    # -- describe -------------------------------------------------------------------------------------------------

    def list_groups(self, states: set[str], types: set[str]) -> list[Group]:
        """Return the groups in these states and of these types, both in lower case; an empty set matches all."""
        return [
            group
            for group in self.groups.values()
            if (not states or group.state.lower() in states) and (not types or group.group_type in types)
        ]

    def retire(self, error_code: ErrorCode) -> GroupOutcome[None]:
        """Answer all parked requests with this error code because this broker resigns as coordinator of the shard."""
        outcome: GroupOutcome[None] = GroupOutcome()
        for group in self.groups.values():
            outcome.replies.extend(group.retire(error_code).replies)
        return outcome


def _done(result: R) -> GroupOutcome[R]:
    """Return the outcome of a request that changes no record."""
    return GroupOutcome(result=result)


def _no_group(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def stored_bytes(member: ConsumerGroupMemberMetadataValue) -> int:
    """Return the bytes that a member of the consumer protocol has sent: names and metadata."""
    classic = member.classic_member_metadata
    protocols = classic.supported_protocols if classic is not None else ()
    names = len(member.client_id) + len(member.subscribed_topic_regex or "") + len(member.instance_id or "")
    return names + sum(map(len, member.subscribed_topic_names)) + sum(len(name) + len(data) for name, data in protocols)
