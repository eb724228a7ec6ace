"""Decides which messages are due. Pure.

For each receiver and group of alerts, the last message that the receiver accepted is compared with what is true now.
Nothing else is queued, so that a receiver that does not answer for a day gets one message about the present state
afterwards, and the work is bounded by the number of alerts. After a failure or a restart a message is due again: a
receiver may get a message twice, and never misses one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.edge.monitor.alerts.rules import Grouping, Level, Receiver, Rules
from ottla.edge.monitor.alerts.states import Alert, Alerts

Group = tuple[tuple[str, str], ...]
GroupKey = tuple[str, Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """News of a group of alerts, for one receiver."""

    receiver: Receiver
    #: the labels that the alerts of the group share
    group: Group
    #: the worst first
    opened: tuple[Alert, ...]
    closed: tuple[Alert, ...]
    #: nothing has changed since the last message
    is_reminder: bool = False

    @property
    def key(self) -> GroupKey:
        return self.receiver.name, self.group

    @property
    def level(self) -> Level:
        return max((each.level for each in self.opened or self.closed), default=Level.INFO)


@dataclass(slots=True)
class Reported:
    """What a receiver knows about a group."""

    #: fingerprints of open alerts, with their severities
    alerts: dict[str, Level] = field(default_factory=dict)
    #: when it accepted the last message; 0 if it did not yet
    sent_ms: int = 0
    #: since when a message is due; None while there is none
    due_since_ms: int | None = None


@dataclass(slots=True)
class Groups:
    """What all receivers know."""

    reported: dict[GroupKey, Reported] = field(default_factory=dict)

    def due(self, rules: Rules, alerts: Alerts, now_ms: int) -> Iterator[Message]:
        """Yield the messages to send now."""
        by_fingerprint = {each.fingerprint: each for each in alerts.by_key.values()}
        notify = {rule.name: rule.notify for rule in rules.rules}
        for receiver in rules.receivers:
            chosen = [each for each in alerts.open() if _concerns(receiver, each, notify.get(each.rule, frozenset()))]
            groups = _grouped(chosen, rules.grouping.by)
            known = {key[1] for key in self.reported if key[0] == receiver.name}
            for group in sorted({*groups, *known}):
                reported = self.reported.setdefault((receiver.name, group), Reported())
                reported.sent_ms = min(reported.sent_ms, now_ms)  # the clock may have been set back
                opened = [
                    each
                    for each in groups.get(group, ())
                    if each.fingerprint in reported.alerts or not is_silenced(rules, each.all_labels(), now_ms)
                ]
                message = _due_message(receiver, group, reported, opened, by_fingerprint)
                if message is None:
                    reported.due_since_ms = None
                    if reported.alerts and _is_reminder_due(rules, reported, opened, now_ms):
                        yield _message(receiver, group, opened, (), is_reminder=True)
                elif _may_send(reported, rules.grouping, now_ms):
                    yield message
                if not reported.alerts and reported.due_since_ms is None:
                    del self.reported[receiver.name, group]

    def accepted(self, message: Message, now_ms: int) -> None:
        """The receiver has accepted a message."""
        reported = self.reported.setdefault(message.key, Reported())
        reported.alerts = {each.fingerprint: each.level for each in message.opened}
        reported.sent_ms, reported.due_since_ms = now_ms, None
        if not reported.alerts:
            del self.reported[message.key]

    def forget_receivers(self, names: Iterable[str]) -> None:
        """Forget what the receivers know that are not in the file any more."""
        known = set(names)
        for key in [key for key in self.reported if key[0] not in known]:
            del self.reported[key]

    def needed(self) -> Mapping[str, object]:
        """Return the fingerprints of alerts that receivers believe to be open."""
        return {fingerprint: None for reported in self.reported.values() for fingerprint in reported.alerts}


def is_silenced(rules: Rules, labels: Mapping[str, str], now_ms: int) -> bool:
    """Return whether a silence of the file matches an alert now."""
    return any(each.holds(labels, now_ms) for each in rules.silences)


def _concerns(receiver: Receiver, alert: Alert, notify: frozenset[str]) -> bool:
    is_named = not notify or receiver.name in notify
    return is_named and alert.level >= receiver.level_min and receiver.match.match(alert.all_labels())


def _grouped(alerts: Iterable[Alert], by: Sequence[str]) -> dict[Group, list[Alert]]:
    found: dict[Group, list[Alert]] = {}
    for alert in alerts:
        labels = alert.all_labels()
        found.setdefault(tuple((label, labels.get(label, "")) for label in by), []).append(alert)
    return found


def _due_message(
    receiver: Receiver, group: Group, reported: Reported, opened: Sequence[Alert], by_fingerprint: Mapping[str, Alert]
) -> Message | None:
    """Return a message about what has changed since the last one; None if there is nothing to say."""
    now_open = {each.fingerprint: each.level for each in opened}
    ended = [fingerprint for fingerprint in reported.alerts if fingerprint not in now_open]
    if not receiver.send_closed:
        for fingerprint in ended:
            del reported.alerts[fingerprint]
        ended = []
    # A severity that falls is no reason for a message.
    is_worse = any(level > reported.alerts.get(fingerprint, -1) for fingerprint, level in now_open.items())
    if not is_worse and not ended:
        return None
    closed = [by_fingerprint[fingerprint] for fingerprint in ended if fingerprint in by_fingerprint]
    return _message(receiver, group, opened, closed)


def _may_send(reported: Reported, grouping: Grouping, now_ms: int) -> bool:
    """Return whether a message about a change is not too early."""
    if reported.due_since_ms is None or reported.due_since_ms > now_ms:
        reported.due_since_ms = now_ms
    if reported.alerts:
        return now_ms - reported.sent_ms >= grouping.interval_ms
    return now_ms - reported.due_since_ms >= grouping.wait_ms


def _is_reminder_due(rules: Rules, reported: Reported, opened: Iterable[Alert], now_ms: int) -> bool:
    is_time = now_ms - reported.sent_ms >= rules.grouping.repeat_ms
    return is_time and any(not is_silenced(rules, each.all_labels(), now_ms) for each in opened)


def _message(
    receiver: Receiver, group: Group, opened: Iterable[Alert], closed: Iterable[Alert], *, is_reminder: bool = False
) -> Message:
    def order(alert: Alert) -> tuple[int, int, str]:
        return -alert.level, alert.opened_ms, alert.fingerprint

    # Copies, because the next observation changes the alerts while the message is sent.
    return Message(
        receiver=receiver,
        group=group,
        opened=tuple(replace(each) for each in sorted(opened, key=order)),
        closed=tuple(replace(each) for each in sorted(closed, key=order)),
        is_reminder=is_reminder,
    )
