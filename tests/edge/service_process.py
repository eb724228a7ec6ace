"""Starts `hello_service.py` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("hello_service.py")


def command(*settings: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *settings]


@contextmanager
def hello_service(
    *settings: str, listen: str = "http://127.0.0.1:0", wrapper: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Return the process and the URL of a service that accepts requests. `wrapper` is a command that starts it."""
    process = subprocess.Popen(
        [*wrapper, *command(f"listeners={listen}", *settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise AssertionError(f"{line}{process.communicate(timeout=60)}")
            yield process, line.split()[1]
        finally:
            process.kill()
