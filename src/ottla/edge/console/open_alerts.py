"""Reads the open alerts of `ottla monitor` for the first page. Everything in the answer is checked here."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.security.web_documents import DocumentError, Limits, request_document

#: a page waits for the monitor at most this long
_TOTAL_S: Final = 1.5
_ANSWER_BYTES_MAX: Final = 8 << 20
_SEVERITIES: Final = ("critical", "warning", "info")
_TEXT_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlerts:
    """The open alerts of one cluster, the worst first."""

    rows: tuple[dict[str, Any], ...] = ()
    #: why they are not known; empty if they are
    problem: str = ""


def read_alerts(url: str, cluster: str) -> OpenAlerts:
    """Return the open alerts of the cluster with this name at a monitor. Blocks."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return OpenAlerts(problem="monitor.url must begin with http://HOST or https://HOST")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    limits = Limits(_ANSWER_BYTES_MAX, connect_s=_TOTAL_S, read_s=_TOTAL_S, total_s=_TOTAL_S)
    path = parts._replace(path=f"{parts.path.rstrip('/')}/alerts", query="", fragment="")
    try:
        return parse(json.loads(request_document(path, limits, tls=tls, headers={})), cluster)
    except DocumentError as error:
        hint = "; start it with --alerts default" if error.status == 404 else ""
        return OpenAlerts(problem=f"{error}{hint}")
    except ValueError:
        return OpenAlerts(problem="its answer has no alerts")


def parse(document: Any, cluster: str) -> OpenAlerts:
    """Return the open alerts of an answer. Raise ValueError if it is none of a monitor."""
    try:
        found = next((each for each in document["clusters"] if each["cluster"] == cluster), None)
        if found is None:
            return OpenAlerts(problem="it reads no cluster with this name (cluster.name)")
        rows = [_row(each) for each in found["alerts"] if each["state"] == "open" and not each["is_silenced"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the document has no alerts ({error!r})") from None
    return OpenAlerts(rows=tuple(sorted(rows, key=lambda row: _SEVERITIES.index(row["severity"]))))


def _row(each: Any) -> dict[str, Any]:
    severity = str(each["severity"])
    if severity not in _SEVERITIES:
        raise KeyError("severity")
    return {
        "rule": str(each["rule"])[:_TEXT_MAX], "severity": severity, "since_ms": int(each["since_ms"]),
        "text": str(each["text"])[:_TEXT_MAX], "advice": str(each["advice"])[:_TEXT_MAX],
    }  # fmt: skip
