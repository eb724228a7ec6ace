"""Ctrl-C (SIGINT) for every command: one handler, and two ways to call libraries that do not expect it.

`handled` installs a handler that raises KeyboardInterrupt in the main thread, as Python's own does.
`deferred` is for short calls that run Python callbacks from C: confluent-kafka loses an exception that is raised in a
callback and then fails with SystemError. Inside `deferred` the handler only notes the signal; KeyboardInterrupt is
raised when the block ends.
`run_interruptibly` is for calls that may block for seconds in C, where Python cannot run a signal handler.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _State:
    """What the handler knows. Signals are a property of the process, so there is one of these."""

    depth = 0
    is_pending = False
    #: whether SIGINT arrived while the current command ran
    arrived = False


@contextmanager
def handled() -> Iterator[None]:
    """Handle SIGINT until the block ends.

    A process that was started with SIGINT ignored, as shells start background jobs, keeps ignoring it.
    """
    _State.arrived = _State.is_pending = False
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with_stdin() -> None:
    """Send SIGTERM to this process when its standard input is closed, if the environment asks for it.

    For demonstrations and tests: so a command stops when the process that started it has ended.
    """
    if not os.environ.get("OTTLA_END_WITH_STDIN"):
        return

    def wait() -> None:
        # Not through sys.stdin, whose lock this thread would still hold when the interpreter ends.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def caused(error: BaseException) -> bool:
    """Return whether Ctrl-C is the cause of this exception.

    PySpark installs a handler of its own and libraries wrap KeyboardInterrupt, so the chain of causes counts too.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return _State.arrived


@contextmanager
def not_logged() -> Iterator[None]:
    """Drop records of the root logger whose exception is KeyboardInterrupt: Py4J logs one before it raises it."""
    import logging

    def is_other(record: logging.LogRecord) -> bool:
        return not record.exc_info or not isinstance(record.exc_info[1], KeyboardInterrupt)

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


@contextmanager
def deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if SIGINT arrives inside it. The block must be short."""
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
        if _State.is_pending and not _State.depth:
            _State.is_pending = False
            raise KeyboardInterrupt


def run_interruptibly(function: Callable[[], _T]) -> _T:
    """Return what `function` returns or raise what it raises; Ctrl-C raises KeyboardInterrupt without waiting for it.

    The function runs in a daemon thread. After Ctrl-C its result is dropped.
    """
    call = _Call(function)
    threading.Thread(target=call.run, name="interruptible", daemon=True).start()
    call.ended.wait()
    if call.error is not None:
        raise call.error
    return call.results[0]


class _Call(Generic[_T]):
    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self.ended = threading.Event()
        self.results: list[_T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error
        finally:
            self.ended.set()


def _on_sigint(number: int, frame: FrameType | None) -> None:
    _State.arrived = True
    if _State.depth:
        _State.is_pending = True
    else:
        raise KeyboardInterrupt
