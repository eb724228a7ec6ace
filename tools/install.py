"""Creates a Python environment; installs Ottla and extras into it, and shows what pip does meanwhile.

    python tools/install.py --venv .venv            creates an environment
    .venv/bin/python tools/install.py spark,edge    installs into it

pip alone is either silent or prints a line for each of some dozen packages. This says before it starts how much will be
downloaded, then shows the current step and the time: in place on a terminal, elsewhere a line for each large download.
Ctrl-C ends pip and exits with code 130; the next call continues.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, NamedTuple

_INTERRUPTED = 130
_TICK_S = 0.5
#: downloads of at least this size have a line of their own where there is no terminal
_LARGE_BYTES = 10_000_000
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}


class Size(NamedTuple):
    """What extras take, measured with Python 3.11 on Linux without a cache of pip."""

    download_mb: int
    disk_mb: int


SIZES = {"spark,edge": Size(716, 1376), "dev": Size(760, 1530)}


class Progress:
    """Shows the current step of pip. Steps come from one thread, ticks from another."""

    def __init__(self, stream: IO[str], *, in_place: bool) -> None:
        self._stream = stream
        self._in_place = in_place
        self._began = time.monotonic()
        self._step = "Starting pip"
        self._lock = threading.Lock()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def read(self, line: str) -> None:
        """Take a line of pip's output."""
        step = describe_step(line)
        if step is None:
            return
        with self._lock:
            self._step = step
        if self._in_place:
            self.draw()
        elif download_bytes(line) >= _LARGE_BYTES or not line.lstrip().startswith("Downloading"):
            self._stream.write(f"{step}\n")
            self._stream.flush()

    def draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            self._stream.write(f"\r\x1b[K{f'[{self.elapsed_s:3.0f} s] {self._step}'[:width]}")
            self._stream.flush()

    def end(self) -> None:
        if self._in_place:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def describe_step(line: str) -> str | None:
    """Return what pip does, from a line of its output; None if the line is of no interest.

    >>> describe_step("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)")
    'Downloading pyspark-4.3.0.tar.gz (455.9 MB)'
    >>> describe_step("  Building wheel for pyspark (pyproject.toml): started")
    'Building wheel for pyspark'
    >>> describe_step("Installing collected packages: pytz, py4j")
    'Installing 2 packages'
    >>> describe_step("Requirement already satisfied: click")
    """
    text = line.strip()
    if text.startswith("Downloading "):
        return text
    if text.startswith("Installing collected packages:"):
        return f"Installing {text.count(',') + 1} packages"
    found = re.match(r"(Building wheel for \S+) .*started$", text)
    return found[1] if found else None


def download_bytes(line: str) -> float:
    """Return the size at the end of a line; 0 if there is none.

    >>> download_bytes("Downloading pyspark-4.3.0.tar.gz (455.9 MB)")
    455900000.0
    """
    found = re.search(r"\(([\d.]+) ([kMG]B)\)$", line.strip())
    return round(float(found[1]) * _UNITS[found[2]], 1) if found else 0.0


def install(extras: str, stream: IO[str]) -> int:
    """Run pip; return its exit code. Its error messages are printed if it fails."""
    size = SIZES[extras]
    stream.write(
        f"Installing Ottla with its extras {extras} into {sys.prefix}: about {size.download_mb} MB to download, "
        f"{size.disk_mb} MB on disk; pip's cache saves downloads.\n"
    )
    command = [
        sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-color", "--progress-bar", "off",
        "-e", f".[{extras}]",
    ]  # fmt: skip
    progress = Progress(stream, in_place=stream.isatty())
    ended = threading.Event()
    ticker = threading.Thread(target=_tick, args=(progress, ended), daemon=True)
    with tempfile.TemporaryFile("w+") as errors:
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        if stream.isatty():
            ticker.start()
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                progress.read(line)
            code = pip.wait()
        except KeyboardInterrupt:
            pip.terminate()
            pip.wait()
            code = _INTERRUPTED
        finally:
            ended.set()
            if ticker.is_alive():
                ticker.join()
            progress.end()
        if code == _INTERRUPTED:
            stream.write("The installation was stopped; the next call continues it.\n")
        elif code:
            errors.seek(0)
            stream.write(errors.read())
        else:
            stream.write(f"Installed after {progress.elapsed_s:.0f} s.\n")
    return code


def create_environment(path: str, stream: IO[str]) -> int:
    """Create a virtual environment; return an exit code. An incomplete one is deleted, because it has no pip."""
    stream.write(f"Creating the Python environment {path} ...\n")
    stream.flush()
    try:
        made = subprocess.run([sys.executable, "-m", "venv", path], capture_output=True, text=True)
    except KeyboardInterrupt:
        shutil.rmtree(path, ignore_errors=True)
        stream.write("The creation was stopped; the next call begins again.\n")
        return _INTERRUPTED
    if made.returncode:
        shutil.rmtree(path, ignore_errors=True)
        stream.write(f"{made.stdout}{made.stderr}")
        stream.write("python -m venv failed: install your system's python3-venv package\n")
    return made.returncode


def _tick(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(_TICK_S):
        progress.draw()


if __name__ == "__main__":
    try:
        if sys.argv[1] == "--venv":
            sys.exit(create_environment(sys.argv[2], sys.stdout))
        sys.exit(install(sys.argv[1], sys.stdout))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
