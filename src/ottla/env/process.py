"""What the processes of Ottla do at their start: read their settings file, log to stderr, tell systemd their state."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from ottla.env.log_limit import LogLimit

#: forms of a log: a line of text, or a JSON object, for each event
TEXT: Final = "text"
JSON: Final = "json"

#: in the environment: stop when the standard input is closed, which happens when the process that started this one ends
END_WITH_STDIN = "OTTLA_END_WITH_STDIN"


def read_settings_file(path: str) -> str:
    """Return the text of a settings file. Raise ValueError with what to do if it cannot be read."""
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError:
        remedy = "check the path after --config, or leave --config out to start with the default settings"
        raise ValueError(f"settings file {path} does not exist; {remedy}") from None
    except OSError as error:
        raise ValueError(f"settings file {path} cannot be read: {error.strerror}; check --config") from None
    except UnicodeDecodeError:
        raise ValueError(f"settings file {path} is not UTF-8 text; check --config") from None


def log_to_stderr(level: str, form: str = TEXT) -> None:
    """Log one line for each event, and the exceptions that end threads with their tracebacks.

    ``form`` is TEXT or JSON; with JSON a traceback is part of the line, too.

    Warnings and errors of each kind are limited per minute, because whatever is tried again may fail each time. The
    event loop logs failures that no code took. Their number is limited, because a client may cause them.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == JSON:
        # Imported only for those who want it.
        from ottla.env.json_log import JsonFormatter

        handler.setFormatter(JsonFormatter())
        sys.excepthook = _log_uncaught
    else:
        handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.addFilter(LogLimit(from_level=logging.WARNING))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    loop = logging.getLogger("asyncio")
    if not any(isinstance(each, LogLimit) for each in loop.filters):
        loop.addFilter(LogLimit())
    threading.excepthook = _log_failed_thread


def _log_failed_thread(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "unknown"
    if failure.exc_value is not None:
        logging.getLogger(__name__).error("thread failed name=%s", name, exc_info=failure.exc_value)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("process failed error=%s", kind.__name__, exc_info=(kind, error, trace))


class _OneLine(logging.Formatter):
    """Formats a log event as one line; control characters, which clients may send in names, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.exc_info or ("\n" not in text and text.isprintable()):
            return text
        return text.encode("unicode_escape").decode("ascii")


def raise_open_files_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit: each partition and each client takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int:
    """Return how many file descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def notify_service_manager(state: str) -> None:
    """Tell systemd the state of a service of `Type=notify`. Do nothing without NOTIFY_SOCKET in the environment."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ stands for the zero byte of an abstract socket.
    target = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), target)
    except OSError as error:
        logging.getLogger(__name__).warning("service manager was not notified state=%s error=%s", state, error)
