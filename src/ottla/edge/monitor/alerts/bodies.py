"""What messages say, in the form of each channel. Pure.

Names come from the cluster: each client that may create a topic or a group chooses them. They are text in each channel:
control characters and characters that change the direction of the text are escapes, and nothing in a name is markup,
a link, a mention or a header.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any, Final

from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.rules import EmailSettings, Level
from ottla.edge.monitor.alerts.states import Alert, State
from ottla.model.figures import format_duration_ms
from ottla.model.printable import shown

#: alerts in one message; more are counted
ALERTS_MAX: Final = 50
_SLACK_ALERTS_MAX: Final = 20
_TEXT_MAX: Final = 1000
_TITLE_MAX: Final = 140
#: categories of Unicode: format characters (direction of text, invisible ones), separators of lines, surrogates
_HIDDEN: Final = frozenset({"Cf", "Zl", "Zp", "Cs"})
_ICONS: Final = {Level.INFO: "ℹ️", Level.WARNING: "⚠️", Level.CRITICAL: "🔴"}
_NEVER: Final = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who sends a message."""

    cluster: str
    #: of the console or the monitor; empty: no links
    url: str = ""


def plain(text: str, length_max: int = _TEXT_MAX) -> str:
    """Return a text as one line without characters that are invisible or change the direction of the text.

    >>> plain("a\\u202eb\\nc")
    'a\\\\u202eb\\\\x0ac'
    """
    if not text.isascii():
        text = "".join(f"\\u{ord(sign):04x}" if unicodedata.category(sign) in _HIDDEN else sign for sign in text)
    text = shown(text)
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def title(message: Message, origin: Origin) -> str:
    """Return one line about a message."""
    first = (message.opened or message.closed)[:1]
    about = first[0].text if len(message.opened or message.closed) == 1 else ", ".join(_rules(message))
    if message.opened:
        count = f"{len(message.opened)} open" if len(message.opened) > 1 else "open"
        again = " (reminder)" if message.is_reminder else ""
        return plain(f"[{message.level.word.upper()}] {origin.cluster}: {count}{again}: {about}", _TITLE_MAX)
    return plain(f"[CLOSED] {origin.cluster}: {about}", _TITLE_MAX)


def _rules(message: Message) -> list[str]:
    return list(dict.fromkeys(each.rule for each in message.opened or message.closed))


def webhook_body(message: Message, origin: Origin) -> bytes:
    """Return the body of a webhook of Prometheus' Alertmanager, version 4, so that its receivers work."""
    alerts = [*message.opened, *message.closed]
    rows = [_webhook_alert(each, origin, is_open=index < len(message.opened)) for index, each in enumerate(alerts)]
    group = {_alertmanager_name(label): text for label, text in message.group}
    document = {
        "version": "4",
        "groupKey": f"{origin.cluster}/{message.receiver.name}:{json.dumps(group)}",
        "truncatedAlerts": max(len(rows) - ALERTS_MAX, 0),
        "status": "firing" if message.opened else "resolved",
        "receiver": message.receiver.name,
        "groupLabels": group,
        "commonLabels": _shared([row["labels"] for row in rows]),
        "commonAnnotations": _shared([row["annotations"] for row in rows]),
        "externalURL": origin.url,
        "title": title(message, origin),
        "alerts": rows[:ALERTS_MAX],
    }
    return json.dumps(document).encode()


def _alertmanager_name(label: str) -> str:
    return "alertname" if label == "rule" else label


def _webhook_alert(alert: Alert, origin: Origin, *, is_open: bool) -> dict[str, Any]:
    labels = {_alertmanager_name(name): plain(text) for name, text in alert.all_labels().items()}
    annotations = {"summary": plain(alert.text)}
    if alert.advice:
        annotations["description"] = plain(alert.advice)
    if alert.names:
        annotations["names"] = _names(alert)
    return {
        "status": "firing" if is_open else "resolved",
        "labels": {**labels, "cluster": origin.cluster},
        "annotations": annotations,
        "startsAt": _moment(alert.opened_ms),
        "endsAt": _NEVER if is_open else _moment(alert.closed_ms),
        "generatorURL": origin.url,
        "fingerprint": alert.fingerprint,
    }


def _shared(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    first, *others = rows
    return {name: text for name, text in first.items() if all(row.get(name) == text for row in others)}


def _moment(time_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _names(alert: Alert) -> str:
    more = f" and {alert.count - len(alert.names)} more" if alert.count > len(alert.names) else ""
    return plain(", ".join(alert.names)) + more


def slack_body(message: Message, origin: Origin) -> bytes:
    """Return the body for an incoming webhook of Slack."""
    blocks: list[dict[str, Any]] = [_slack("header", f"{_icon(message)} {title(message, origin)}"[:150])]
    rows = [(each, True) for each in message.opened] + [(each, False) for each in message.closed]
    for alert, is_open in rows[:_SLACK_ALERTS_MAX]:
        lines = [f"{'open' if is_open else 'closed'}, {alert.rule}: {plain(alert.text)}"]
        lines += [f"→ {plain(alert.advice)}"] if alert.advice and is_open else []
        lines += [_names(alert)] if len(alert.names) > 1 else []
        blocks.append(_slack("section", "\n".join(lines)[:3000]))
    if len(rows) > _SLACK_ALERTS_MAX:
        blocks.append(_slack("section", f"and {len(rows) - _SLACK_ALERTS_MAX} more"))
    if origin.url:
        blocks.append(_slack("section", origin.url))
    # What notifications show. Slack reads markup, links and mentions in it: these three characters start all of them.
    text = title(message, origin).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text, "mrkdwn": False, "blocks": blocks}).encode()


def _icon(message: Message) -> str:
    return _ICONS[message.level] if message.opened else "✅"


def _slack(kind: str, text: str) -> dict[str, Any]:
    # plain_text has no markup, no links and no mentions, and without emoji no :names: of pictures.
    return {"type": kind, "text": {"type": "plain_text", "text": text, "emoji": False}}


def email_message(message: Message, origin: Origin, settings: EmailSettings, now_ms: int) -> EmailMessage:
    """Return a mail: text without HTML."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address("Ottla", addr_spec=settings.sender)
    mail["To"] = [Address(addr_spec=each) for each in settings.recipients]
    mail["Subject"] = title(message, origin)
    mail["Date"] = format_datetime(datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC))
    key = hashlib.sha256(repr((origin.cluster, message.key)).encode()).hexdigest()[:32]
    domain = settings.sender.partition("@")[2]
    mail["Message-ID"] = f"<{key}.{now_ms}@{domain}>"
    # Mail programs show the messages of a group as one thread.
    mail["References"] = f"<{key}@{domain}>"
    # So that out-of-office programs do not answer (RFC 3834).
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join(_email_lines(message, origin, now_ms)) + "\n")
    return mail


def _email_lines(message: Message, origin: Origin, now_ms: int) -> list[str]:
    lines = [f"Cluster {plain(origin.cluster)}", ""]
    rows = [(each, True) for each in message.opened] + [(each, False) for each in message.closed]
    for alert, is_open in rows[:ALERTS_MAX]:
        lines.append(f"{alert.level.word.upper() if is_open else 'CLOSED'}  {alert.rule}: {plain(alert.text)}")
        if alert.advice and is_open:
            lines.append(f"  What to do: {plain(alert.advice)}")
        if alert.names:
            lines.append(f"  {_names(alert)}")
        since = f"  since {_moment(alert.opened_ms)}"
        end_ms = now_ms if is_open or alert.state is not State.CLOSED else alert.closed_ms
        lines += [f"{since}, for {format_duration_ms(max(end_ms - alert.opened_ms, 0))}", ""]
    if len(rows) > ALERTS_MAX:
        lines += [f"and {len(rows) - ALERTS_MAX} more", ""]
    if origin.url:
        lines.append(origin.url)
    return lines
