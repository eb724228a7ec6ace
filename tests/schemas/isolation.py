"""Runs a function in a child process, so that a crash of a library in C does not end the campaign."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


class Crashed(Exception):
    """The child process has ended without a result."""


def in_child(work: Callable[[], _T]) -> _T:
    """Return what `work` returns. Raise AssertionError with the text of its error, and Crashed if the child crashes."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, sender))
    child.start()
    sender.close()
    try:
        is_result, value = receiver.recv()
    except EOFError:
        child.join()
        raise Crashed(f"exit code {child.exitcode}") from None
    finally:
        receiver.close()
    child.join()
    if not is_result:
        raise AssertionError(value)
    return cast(_T, value)


def _run(work: Callable[[], Any], sender: Connection) -> None:
    try:
        result = (True, work())
    except Exception as error:
        result = (False, f"{type(error).__name__}: {error}")
    sender.send(result)
    sender.close()
