"""Log events as JSON, one object per line, for programs that collect logs.

    {"time": "2026-11-19T21:56:37.120Z", "level": "WARNING", "logger": "ottla.broker.main",
     "message": "setting has no effect here name=x", "fields": {"name": "x"}}

Messages of Ottla are a text with `name=value` pairs, so the fields are read from the text before its arguments are
filled in: a value that a client chose, whatever is in it, is never taken for another field. Everything but ASCII is
escaped, also control characters, so an event is one line, and no terminal that shows it obeys it.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, Final

#: a conversion of the % operator, with the name before it if it is `name=%s`
_CONVERSION: Final = re.compile(
    r"(?:(?P<name>[A-Za-z_][\w.]*)=)?"
    r"%(?P<key>\([^)]*\))?[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?P<kind>[a-zA-Z%])"
)
#: characters of one text: a longer one is cut, so that a line has a bound
_TEXT_MAX: Final = 100_000


class JsonFormatter(logging.Formatter):
    """Formats a log event as a JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit: an event is never lost
            message = str(record.msg)
        event: dict[str, Any] = {
            "time": _format_time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(message),
            "fields": fields_of(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps(event)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values of the `name=%s` pairs of a message."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return {}
    names = _names(record.msg)
    if len(names) != len(record.args):
        return {}
    return {name: _plain(value) for name, value in zip(names, record.args, strict=True) if name}


@functools.lru_cache(maxsize=1024)
def _names(template: str) -> tuple[str, ...]:
    """Return the name of each argument, "" for one without."""
    found = [match for match in _CONVERSION.finditer(template) if match["kind"] != "%"]
    if any(match["key"] or "*" in match[0] for match in found):
        return ()
    return tuple(match["name"] or "" for match in found)


def _plain(value: object) -> Any:
    """Return a value as JSON has it: numbers, texts, true, false and null; of other objects their text."""
    if value is None or isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)} characters)"


def _format_time(created_s: float) -> str:
    time = datetime.datetime.fromtimestamp(created_s, datetime.UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"


def with_process(line: str, process: str, now_s: float) -> str:
    """Return a line that a process printed, as an event that names the process.

    >>> with_process('{"time": "2026-11-19T21:56:37.120Z"}', "broker 1", 0.0)
    '{"process": "broker 1", "time": "2026-11-19T21:56:37.120Z"}'
    """
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, Mapping):
        event = {
            "time": _format_time(now_s), "level": "WARNING", "logger": "stderr",
            "message": _cut(line.rstrip("\n")), "fields": {},
        }  # fmt: skip
    return json.dumps({"process": process, **event})
