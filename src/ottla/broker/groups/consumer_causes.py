"""The causes of rebalances in a group of the consumer protocol, and the ongoing rebalance.

All of it is soft state: it is lost when the coordinator moves.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.coordinators.outcome import Moment, Topics
from ottla.broker.groups.journal import Cause, CauseKind, OngoingRebalance, Rebalance, listed, subscription_changes
from ottla.broker.groups.records import ConsumerGroupMemberMetadataValue


class RebalanceWatch:
    """The ongoing rebalance: from a new group epoch until all members have reached it or the next epoch starts."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._ongoing: OngoingRebalance | None = None

    @property
    def is_rebalancing(self) -> bool:
        return self._ongoing is not None

    def begin(self, generation: int, members: tuple[int, int], causes: Iterable[Cause], now: Moment) -> list[Rebalance]:
        """Start the rebalance of a new group epoch. Return the rebalance of the previous epoch if it is not finished.

        ``members`` is the number of members before and after.
        """
        unfinished = []
        # An ongoing rebalance with the same epoch was never stored: it continues with the same epoch.
        if self._ongoing is not None and self._ongoing.generation < generation:
            unfinished = self.finish(members[0], now)
        if self._ongoing is None:
            self._ongoing = OngoingRebalance(generation=generation, started=now, members_before=members[0])
        for cause in causes:
            self._ongoing.add(cause)
        return unfinished

    def finish(self, members_after: int, now: Moment) -> list[Rebalance]:
        """End the ongoing rebalance. Return it in a list, which is empty if there is none."""
        ongoing, self._ongoing = self._ongoing, None
        if ongoing is None:
            return []
        return [ongoing.finished(self._group_id, "consumer", ongoing.generation, members_after, now)]


class TopicsSeen:
    """The ids and partition counts of the subscribed topics at the last call of ``remember``."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes | None, int | None]] | None = None

    def remember(self, names: Iterable[str], topics: Topics) -> None:
        self._seen = {name: (topics.topic_id(name), topics.partition_count(name)) for name in names}

    def change(self, topics: Topics) -> str:
        """Return a text about the changed topics; empty if none changed or ``remember`` was never called."""
        changes = []
        for name, (topic_id, count) in sorted((self._seen or {}).items()):
            id_now, count_now = topics.topic_id(name), topics.partition_count(name)
            if count is None and count_now is not None:
                changes.append(f"{name} was created with {count_now} partitions")
            elif count is not None and count_now is None:
                changes.append(f"{name} was deleted")
            elif topic_id != id_now:
                changes.append(f"{name} was deleted and created again with {count_now} partitions")
            elif count != count_now:
                changes.append(f"{name} went from {count} to {count_now} partitions")
        return listed(changes)


def cause_of(kind: CauseKind, member_id: str, member: ConsumerGroupMemberMetadataValue, detail: str = "") -> Cause:
    """Return a cause with the properties of the member."""
    return Cause(
        kind=kind,
        member_id=member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        group_instance_id=member.instance_id,
        detail=detail,
    )


def subscription_change(old: ConsumerGroupMemberMetadataValue, new: ConsumerGroupMemberMetadataValue) -> str:
    """Return a text about the changes of a member's subscription; empty if it did not change."""
    before, after = set(old.subscribed_topic_names), set(new.subscribed_topic_names)
    changes = subscription_changes(before, after)
    if (old.subscribed_topic_regex or "") != (new.subscribed_topic_regex or ""):
        changes.append(f"regular expression is now {new.subscribed_topic_regex!r}")
    return listed(changes)
