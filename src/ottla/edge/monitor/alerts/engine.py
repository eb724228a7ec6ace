"""Alerts of one cluster: rules, open alerts, what receivers know. State survives a restart as a JSON document. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ottla.edge.monitor.alerts.grouping import Groups, Message, Reported, is_silenced
from ottla.edge.monitor.alerts.rules import Level, Rules
from ottla.edge.monitor.alerts.states import ALERTS_MAX, FLAPS_MAX, Alert, Alerts, State
from ottla.edge.monitor.alerts.values import Observation

_VERSION: Final = 1
_REPORTED_MAX: Final = 50_000


class BadState(ValueError):
    """A stored state cannot be used."""


class AlertEngine:
    """Used by one thread. Times are milliseconds since 1970."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.alerts = Alerts()
        self.groups = Groups()

    def use(self, rules: Rules) -> None:
        """Use other rules, because the file was changed. Alerts of rules that are still there stay open."""
        self.rules = rules
        self.groups.forget_receivers(each.name for each in rules.receivers)

    def observe(self, seen: Observation) -> None:
        """Apply an observation."""
        self.alerts.observe(self.rules.rules, seen)
        self.alerts.forget_closed(self.groups.needed())

    def due(self, now_ms: int) -> list[Message]:
        """Return the messages to send now; each is due until the receiver has accepted it."""
        return list(self.groups.due(self.rules, self.alerts, now_ms))

    def accepted(self, message: Message, now_ms: int) -> None:
        """A receiver has accepted a message."""
        if any(each.name == message.receiver.name for each in self.rules.receivers):
            self.groups.accepted(message, now_ms)

    def view(self, now_ms: int) -> dict[str, Any]:
        """Return what `/alerts` shows: open and pending alerts, the worst first."""
        alerts = [each for each in self.alerts.by_key.values() if each.state is not State.CLOSED]
        alerts.sort(key=lambda each: (each.state is State.PENDING, -each.level, each.opened_ms or each.since_ms))
        return {
            "observed_ms": self.alerts.observed_ms or None,
            "open": sum(each.state is State.OPEN for each in alerts),
            "left_out": self.alerts.left_out,
            "rules": len(self.rules.rules),
            "receivers": [each.name for each in self.rules.receivers],
            "alerts": [self._row(each, now_ms) for each in alerts],
        }

    def _row(self, alert: Alert, now_ms: int) -> dict[str, Any]:
        return {
            "rule": alert.rule,
            "state": alert.state.value,
            "severity": alert.level.word,
            "since_ms": alert.opened_ms if alert.state is State.OPEN else alert.since_ms,
            "text": alert.text,
            "advice": alert.advice,
            "labels": dict(alert.labels),
            "names": list(alert.names),
            "count": alert.count,
            "is_silenced": is_silenced(self.rules, alert.all_labels(), now_ms),
            "is_flapping": alert.is_flapping,
            "is_unknown": alert.is_unknown,
            "fingerprint": alert.fingerprint,
        }

    def dump(self) -> bytes:
        """Return the state as a document for a file."""
        reported = [
            {"receiver": key[0], "group": [list(pair) for pair in key[1]], "sent_ms": each.sent_ms,
             "alerts": {fingerprint: level.word for fingerprint, level in each.alerts.items()}}
            for key, each in self.groups.reported.items()
            if each.alerts
        ]  # fmt: skip
        document = {
            "version": _VERSION,
            # Without alerts it says nothing, and the document stays the same from reading to reading.
            "observed_ms": self.alerts.observed_ms if self.alerts.by_key else 0,
            "alerts": [_alert_row(each) for each in self.alerts.by_key.values()],
            "reported": reported,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def restore(self, data: bytes) -> None:
        """Take over a stored state. Raise BadState, and change nothing, if it is not one of `dump`."""
        try:
            document = json.loads(data)
            if not isinstance(document, dict) or document.get("version") != _VERSION:
                raise BadState("it is of another version")
            rows, reported_rows = document["alerts"], document["reported"]
            if len(rows) > ALERTS_MAX or len(reported_rows) > _REPORTED_MAX:
                raise BadState("it has too many alerts")
            alerts = [_alert(row) for row in rows]
            reported = dict(_reported(row) for row in reported_rows)
            observed_ms = int(document["observed_ms"])
        except BadState:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadState(f"it is not complete: {type(error).__name__}") from None
        self.alerts = Alerts({each.key: each for each in alerts}, observed_ms=observed_ms, gap_ms=self.alerts.gap_ms)
        self.groups = Groups(reported)
        self.groups.forget_receivers(each.name for each in self.rules.receivers)


_WORDS: Final = {each.word: each for each in Level}


def _alert_row(alert: Alert) -> dict[str, Any]:
    return {
        "rule": alert.rule, "labels": dict(alert.labels), "state": alert.state.value, "level": alert.level.word,
        "text": alert.text, "advice": alert.advice, "names": alert.names, "count": alert.count,
        "since_ms": alert.since_ms, "opened_ms": alert.opened_ms, "closed_ms": alert.closed_ms,
        "quiet_since_ms": alert.quiet_since_ms, "openings_ms": alert.openings_ms,
    }  # fmt: skip


def _alert(row: Mapping[str, Any]) -> Alert:
    quiet = row["quiet_since_ms"]
    return Alert(
        rule=str(row["rule"]),
        labels=tuple(sorted((str(name), str(text)) for name, text in row["labels"].items())),
        state=State(row["state"]),
        level=_WORDS[row["level"]],
        text=str(row["text"]),
        advice=str(row["advice"]),
        names=tuple(map(str, row["names"])),
        count=int(row["count"]),
        since_ms=int(row["since_ms"]),
        opened_ms=int(row["opened_ms"]),
        closed_ms=int(row["closed_ms"]),
        quiet_since_ms=None if quiet is None else int(quiet),
        openings_ms=tuple(map(int, row["openings_ms"]))[-FLAPS_MAX - 1 :],
    )


def _reported(row: Mapping[str, Any]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], Reported]:
    group = tuple((str(label), str(text)) for label, text in row["group"])
    alerts = {str(fingerprint): _WORDS[word] for fingerprint, word in row["alerts"].items()}
    return (str(row["receiver"]), group), Reported(alerts=alerts, sent_ms=int(row["sent_ms"]))
