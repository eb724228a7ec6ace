"""Starts `ottla monitor` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx


@contextmanager
def monitor_process(bootstrap: str, settings: Mapping[str, str] | None = None) -> Iterator[httpx.Client]:
    """Run a monitor until the end of the block. Return a client of it."""
    command = [
        sys.executable, "-m", "ottla", "monitor", "-b", bootstrap, "--listen", "http://127.0.0.1:0",
        *(f"-X{name}={value}" for name, value in (settings or {}).items()),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), line
            with httpx.Client(base_url=line.split()[1], timeout=120) as client:
                yield client
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
