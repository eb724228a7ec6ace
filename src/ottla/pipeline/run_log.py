"""The log file of a run, so that the terminal shows the view and nothing else.

It receives what Java, Spark and the Python processes that Spark starts print, the records of Python's loggers, and
Python's warnings. The file of the run before is kept with the suffix `.1`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ottla.env.private_directory import private_directory
from ottla.pipeline.layout import Layout

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STDOUT, _STDERR = 1, 2


def log_path(layout: Layout) -> Path:
    """Return the path of the log: beside the status file, or in a temporary directory if the storage is not local.

    Raise NotPrivate if another user has that temporary directory.
    """
    if "://" in layout.status:
        return private_directory("ottla-logs") / f"{layout.pipeline}.log"
    return Path(layout.status) / f"{layout.pipeline}.log"


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Begin a new log file, and write the records of Python's loggers to it until the block ends.

    Raise OSError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.1"))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    root, own = logging.getLogger(), logging.getLogger("ottla")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        own.setLevel(level)
        root.removeHandler(handler)
        handler.close()


@contextmanager
def children_write_to(path: Path) -> Iterator[None]:
    """Let processes that are started inside the block write standard output and standard error to this file.

    PySpark starts Java without a way to say where its output goes: Java inherits the file descriptors of this process.
    They are replaced in the block and restored after it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    saved = {number: os.dup(number) for number in (_STDOUT, _STDERR)}
    try:
        for number in saved:
            os.dup2(target, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(target)
