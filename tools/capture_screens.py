"""Captures screens of `ottla demo` in a terminal of a given size, as text for docs/start/screens.

    make campaign NAME=screens    # 80 by 24 and 140 by 50; takes some minutes: it runs the demonstration twice

The demonstration runs in a pseudo terminal. A small terminal emulator keeps the text that a person would see. A screen
is captured when a moment is reached; after the last moment the demonstration receives Ctrl-C, and what it prints at
its end is captured too.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios
import time
from pathlib import Path

#: names of moments, and the text that is on the screen then
MOMENTS = {
    "Spark starts": r"starting Spark \.\.\. [4-9] s",
    "the first figure is final": r"the first figure is final",
    "the driver is killed": r"driver  process \d+, killed",
    "the new driver runs": r"the new driver writes rows",
    "the broker is killed": r"broker  process \d+, killed",
    "both run again": r"the pipeline writes rows again",
}
#: a frame of the screen is complete when the program has written nothing for this time
_FRAME_S = 0.05
_MOMENT_S_MAX = 300.0
_READ_BYTES = 65_536
_CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class Terminal:
    """The text of a terminal: lines that have scrolled away, and those on the screen. Knows what rich writes."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns = columns
        self.lines = lines
        self.scrolled: list[str] = []
        self._screen = [""]
        self._row = 0
        self._column = 0
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed_bytes(self, data: bytes) -> None:
        """Take output of a program. A character may be cut at the end of the data."""
        self.feed(self._decoder.decode(data))

    def feed(self, text: str) -> None:
        """Take output of a program. An escape sequence may be cut at the end of the text."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _CONTROL.match(text, at)
                if found is None:
                    self._rest = text[at:]
                    return
                self._control(found[1], found[2])
                at = found.end()
            else:
                self._put(text[at])
                at += 1

    def show(self) -> str:
        """Return the screen."""
        return "\n".join(line.rstrip() for line in self._screen).rstrip("\n")

    def show_all(self) -> str:
        """Return everything that was printed, also what has scrolled away."""
        return "\n".join(line.rstrip() for line in (*self.scrolled, *self._screen)).rstrip("\n")

    def _control(self, arguments: str, letter: str) -> None:
        number = int(arguments) if arguments.isdigit() else 1
        if letter == "A":
            self._row = max(self._row - number, 0)
        elif letter == "K":
            line = self._screen[self._row]
            self._screen[self._row] = "" if arguments == "2" else line[: self._column]

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self._column = 0
        elif sign == "\n":
            self._next_line()
        elif sign >= " ":
            if self._column >= self.columns:
                self._next_line()
                self._column = 0
            line = self._screen[self._row].ljust(self._column)
            self._screen[self._row] = line[: self._column] + sign + line[self._column + 1 :]
            self._column += 1

    def _next_line(self) -> None:
        self._row += 1
        if self._row == len(self._screen):
            self._screen.append("")
        if len(self._screen) > self.lines:
            self.scrolled.append(self._screen.pop(0))
            self._row -= 1


def capture(command: list[str], columns: int, lines: int) -> list[tuple[str, str]]:
    """Run a command in a terminal of this size; return the name and the text of each screen."""
    terminal = Terminal(columns, lines)
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    screens = []
    for name, pattern in MOMENTS.items():
        if not _read(master, terminal, pattern):
            os.kill(pid, signal.SIGINT)
            sys.exit(f"not reached: {name}\n{terminal.show_all()}")
        screens.append((name, terminal.show()))
    os.kill(pid, signal.SIGINT)
    _read(master, terminal, None)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = terminal.show_all()
    screens.append((f"Ctrl-C; the exit code is {code}", text[text.index("Stopping: ") :]))
    return screens


def _read(master: int, terminal: Terminal, pattern: str | None) -> bool:
    """Read until the pattern is on the screen; return False if it does not come. Without a pattern, read to the end."""
    deadline = time.monotonic() + _MOMENT_S_MAX
    while time.monotonic() < deadline:
        if select.select([master], [], [], _FRAME_S)[0]:
            try:
                data = os.read(master, _READ_BYTES)
            except OSError:
                # The program has ended, and with it the other side of the pseudo terminal.
                return pattern is None
            terminal.feed_bytes(data)
        elif pattern is not None and re.search(pattern, terminal.show()):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", metavar="COLUMNSxLINES", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ottla", default=".venv/bin/ottla")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for size in arguments.size:
        columns, lines = map(int, size.split("x"))
        data = Path("screens-data")
        shutil.rmtree(data, ignore_errors=True)
        screens = capture([arguments.ottla, "demo", "--data", str(data)], columns, lines)
        shutil.rmtree(data, ignore_errors=True)
        parts = [f"=== {name} ===\n\n{text}\n" for name, text in screens]
        size = f"{columns} columns and {lines} lines"
        heading = f"`ottla demo` in a terminal of {size}, written by `make campaign NAME=screens`.\n"
        (arguments.out / f"demo-{columns}x{lines}.txt").write_text("\n".join([heading, *parts]), encoding="utf-8")
        print(f"wrote {arguments.out / f'demo-{columns}x{lines}.txt'}")


if __name__ == "__main__":
    main()
