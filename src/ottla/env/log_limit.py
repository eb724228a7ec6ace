"""A limit for messages that clients or retries cause, so that neither can fill the log."""

from __future__ import annotations

import logging

#: messages of one kind that are logged in a minute; a kind is the text before arguments are filled in
PER_MINUTE_MAX = 100
#: kinds that are counted in a minute; further ones count as one
_KINDS_MAX = 1_000
#: the event loop puts what differs into the text, but behind its first line
_KIND_CHARS_MAX = 200
_OTHER_KINDS = "messages of further kinds"


class LogLimit(logging.Filter):
    """Limits messages of the level ``from_level`` and above. A critical message is always logged.

    It admits a bounded number of messages of each kind per minute. The next one tells how many were left out.

    log = logging.getLogger(__name__)
    log.addFilter(LogLimit())
    """

    def __init__(self, per_minute_max: int = PER_MINUTE_MAX, *, from_level: int = logging.NOTSET) -> None:
        super().__init__()
        self._from_level = from_level
        self._per_minute_max = per_minute_max
        self._minute = -1
        #: messages of this minute by kind, logged or not
        self._counts: dict[str, int] = {}
        #: messages of earlier minutes that were left out and not reported yet
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a message."""
        if not self._from_level <= record.levelno < logging.CRITICAL:
            return True
        minute, text = int(record.created // 60), str(record.msg)
        if minute != self._minute:
            self._begin(minute)
        kind = text.partition("\n")[0][:_KIND_CHARS_MAX]
        if kind not in self._counts and len(self._counts) >= _KINDS_MAX:
            kind = _OTHER_KINDS
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > self._per_minute_max:
            return False
        if (left_out := self._left_out.pop(kind, 0)) > 0:
            record.msg = f"{text} (earlier ones that were not logged: {left_out})"
        return True

    def _begin(self, minute: int) -> None:
        for kind, count in self._counts.items():
            if count > self._per_minute_max:
                self._left_out[kind] = self._left_out.get(kind, 0) + count - self._per_minute_max
        self._minute = minute
        self._counts.clear()
        while len(self._left_out) > _KINDS_MAX:
            del self._left_out[next(iter(self._left_out))]
