"""What all groups of this broker share, and the outcome of an operation on a group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ottla.broker.coordinators.outcome import CoordinatorContext, Outcome, R
from ottla.broker.groups.journal import Rebalance
from ottla.broker.groups.records import CoordinatorRecord
from ottla.broker.groups.usage import HostUsage
from ottla.model.settings import GroupSettings


@dataclass(slots=True, kw_only=True)
class GroupContext(CoordinatorContext):
    """Dependencies shared by all groups of this broker."""

    #: returns a new UUID as text, for member ids
    new_uuid: Callable[[], str]
    #: group -> settings that override the broker's settings; changes at run time
    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    usage: HostUsage = field(default_factory=HostUsage)

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of a group of the consumer protocol."""
        if overrides := self.overrides.get(group_id):
            return GroupSettings.resolve(overrides, self.settings).consumer_session_timeout_ms
        return self.settings.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval of a group of the consumer protocol."""
        if overrides := self.overrides.get(group_id):
            return GroupSettings.resolve(overrides, self.settings).consumer_heartbeat_interval_ms
        return self.settings.group_consumer_heartbeat_interval_ms


@dataclass(slots=True)
class GroupOutcome(Outcome[R]):
    """What an operation on a group decided."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    #: rebalances that the operation completes, for the journal that explains rebalances
    rebalances: list[Rebalance] = field(default_factory=list)
