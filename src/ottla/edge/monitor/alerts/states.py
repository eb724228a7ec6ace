"""Opens and closes alerts. Pure: the time is that of the observations.

              true             true for `for`            false for `keep`
    (none) ─────────► PENDING ─────────────────► OPEN ────────────────────► CLOSED
                         │ false                  ▲                            │ true: PENDING again
                         ▼                        └─ true: it stays open       │ an hour later
                       (none)                                                  ▼
                                                                             (none)

An alert whose value is not known stays as it is. An alert that opened often within an hour is *flapping*: it closes
only when its condition was false for a quarter of an hour. Time in which the monitor did not run counts for nothing.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.edge.monitor.alerts.conditions import Hit, Labels, Outcome, evaluate
from ottla.edge.monitor.alerts.rules import MINUTE_MS, Level, Rule
from ottla.edge.monitor.alerts.values import Observation

#: alerts that are kept; more are counted and not opened
ALERTS_MAX: Final = 2000
#: openings within FLAP_WINDOW_MS after which an alert is flapping
FLAPS_MAX: Final = 3
FLAP_WINDOW_MS: Final = 60 * MINUTE_MS
#: a flapping alert closes when its condition was false for so long
FLAP_KEEP_MS: Final = 15 * MINUTE_MS
#: a closed alert is remembered for so long, to recognise flapping
CLOSED_KEEP_MS: Final = FLAP_WINDOW_MS
#: two observations that are further apart say nothing about the time between them
GAP_MS_MAX: Final = 5 * MINUTE_MS

Key = tuple[str, Labels]


class State(enum.StrEnum):
    PENDING = "pending"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True, kw_only=True)
class Alert:
    """One alert: a rule and labels."""

    rule: str
    labels: Labels
    state: State
    level: Level
    text: str
    advice: str = ""
    names: tuple[str, ...] = ()
    count: int = 1
    #: when the condition became true, for PENDING
    since_ms: int
    opened_ms: int = 0
    closed_ms: int = 0
    #: since when the condition of an open alert is false; None while it is true
    quiet_since_ms: int | None = None
    #: the condition could not be compared at the last observation
    is_unknown: bool = False
    #: when it opened, within the last FLAP_WINDOW_MS; at most FLAPS_MAX + 1 moments
    openings_ms: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        return self.rule, self.labels

    @property
    def is_flapping(self) -> bool:
        return len(self.openings_ms) > FLAPS_MAX

    @property
    def fingerprint(self) -> str:
        """Return a short text that stands for the rule and the labels."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()[:16]

    def all_labels(self) -> dict[str, str]:
        """Return the labels with those that every alert has."""
        return {**dict(self.labels), "rule": self.rule, "severity": self.level.word}


@dataclass(slots=True)
class Alerts:
    """All alerts of a cluster. Each belongs to a rule that exists, or is closed."""

    by_key: dict[Key, Alert] = field(default_factory=dict)
    #: the time of the last observation; 0 before the first
    observed_ms: int = 0
    #: alerts that the last observation could not open, because there were ALERTS_MAX
    left_out: int = 0
    #: see GAP_MS_MAX; longer for a monitor that reads seldom
    gap_ms: int = GAP_MS_MAX

    def observe(self, rules: Sequence[Rule], seen: Observation) -> None:
        """Apply an observation to all alerts. An observation that is older than the last one changes nothing."""
        if seen.at_ms < self.observed_ms:
            # The clock was set back: do not wait until it has caught up.
            if self.observed_ms - seen.at_ms < self.gap_ms:
                return
            self._forget_times(seen.at_ms)
        elif self.observed_ms and seen.at_ms - self.observed_ms > self.gap_ms:
            self._skip_gap(seen.at_ms)
        self.observed_ms = seen.at_ms
        self.left_out = 0
        by_rule: dict[str, list[Alert]] = {}
        for alert in self.by_key.values():
            by_rule.setdefault(alert.rule, []).append(alert)
        for rule in rules:
            self._apply(rule, evaluate(rule, seen), by_rule.pop(rule.name, []), seen.at_ms)
        for alert in (each for alerts in by_rule.values() for each in alerts):
            self._end(alert, seen.at_ms)

    def open(self) -> Iterator[Alert]:
        """Yield the open alerts."""
        return (each for each in self.by_key.values() if each.state is State.OPEN)

    def forget_closed(self, needed: Mapping[str, object]) -> None:
        """Delete alerts that were closed an hour ago, except those whose fingerprint a message still has to name."""
        for key, alert in list(self.by_key.items()):
            is_old = self.observed_ms - alert.closed_ms >= CLOSED_KEEP_MS
            if alert.state is State.CLOSED and is_old and alert.fingerprint not in needed:
                del self.by_key[key]

    def _apply(self, rule: Rule, outcome: Outcome, alerts: Sequence[Alert], now_ms: int) -> None:
        hits = {hit.labels: hit for hit in outcome.hits}
        for alert in alerts:
            is_unchecked = bool(outcome.unknown_checks) and dict(alert.labels).get("check") in outcome.unknown_checks
            alert.is_unknown = outcome.is_unknown or is_unchecked or alert.labels in outcome.unknown
            if alert.is_unknown:
                # The time in which nothing was known must not count as time in which the condition was true, or false.
                alert.since_ms = now_ms if alert.state is State.PENDING else alert.since_ms
                alert.quiet_since_ms = None
            elif alert.labels not in hits:
                self._is_false(rule, alert, now_ms)
        for hit in hits.values():
            self._is_true(rule, hit, now_ms)

    def _is_true(self, rule: Rule, hit: Hit, now_ms: int) -> None:
        alert = self.by_key.get((rule.name, hit.labels))
        if alert is None:
            # Once there was no room, the other alerts of this observation are not compared with all closed ones again.
            if len(self.by_key) >= ALERTS_MAX and (self.left_out or not self._make_room()):
                self.left_out += 1
                return
            alert = Alert(
                rule=rule.name, labels=hit.labels, state=State.PENDING, level=hit.level, text=hit.text, since_ms=now_ms
            )
            self.by_key[alert.key] = alert
        elif alert.state is State.CLOSED:
            alert.state, alert.since_ms = State.PENDING, now_ms
        alert.level, alert.text, alert.advice = hit.level, hit.text, hit.advice
        alert.names, alert.count, alert.quiet_since_ms = hit.names, hit.count, None
        if alert.state is State.PENDING and now_ms - alert.since_ms >= rule.for_ms:
            recent = [at for at in alert.openings_ms if 0 <= now_ms - at < FLAP_WINDOW_MS]
            alert.openings_ms = (*recent, now_ms)[-FLAPS_MAX - 1 :]
            alert.state, alert.opened_ms, alert.closed_ms = State.OPEN, now_ms, 0

    def _is_false(self, rule: Rule, alert: Alert, now_ms: int) -> None:
        if alert.state is State.PENDING:
            # One that was open within the last hour is kept, because it may be flapping.
            if alert.closed_ms:
                alert.state = State.CLOSED
            else:
                del self.by_key[alert.key]
        elif alert.state is State.OPEN:
            if alert.quiet_since_ms is None:
                alert.quiet_since_ms = now_ms
            keep_ms = max(rule.keep_ms, FLAP_KEEP_MS) if alert.is_flapping else rule.keep_ms
            if now_ms - alert.quiet_since_ms >= keep_ms:
                alert.state, alert.closed_ms, alert.quiet_since_ms = State.CLOSED, now_ms, None

    def _end(self, alert: Alert, now_ms: int) -> None:
        """End an alert whose rule was removed from the file."""
        if alert.state is State.OPEN:
            alert.state, alert.closed_ms, alert.quiet_since_ms = State.CLOSED, now_ms, None
        elif alert.state is State.PENDING:
            del self.by_key[alert.key]

    def _make_room(self) -> bool:
        """Delete the alert that was closed first; return whether there was one."""
        closed = [each for each in self.by_key.values() if each.state is State.CLOSED]
        if not closed:
            return False
        del self.by_key[min(closed, key=lambda each: each.closed_ms).key]
        return True

    def _skip_gap(self, now_ms: int) -> None:
        """Take no account of a time without observations: an alert that was pending before it starts to wait again."""
        for alert in self.by_key.values():
            if alert.state is State.PENDING:
                alert.since_ms = now_ms
            alert.quiet_since_ms = None

    def _forget_times(self, now_ms: int) -> None:
        """Replace times that are in the future by now."""
        self._skip_gap(now_ms)
        for alert in self.by_key.values():
            alert.opened_ms, alert.closed_ms = min(alert.opened_ms, now_ms), min(alert.closed_ms, now_ms)
            alert.openings_ms = tuple(at for at in alert.openings_ms if at <= now_ms)
