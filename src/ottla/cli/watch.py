"""`--watch [SECONDS]` of commands that print a state: they run again and again until Ctrl-C.

On a terminal each round replaces the one before it. Otherwise the rounds follow each other: JSON documents, YAML
documents with `---` between them, or blocks with an empty line between them. The failure of a round is shown and the
next round runs. Clients stay open between rounds; after a failure they are opened again. Ctrl-C ends the command with
the exit code of the last round.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any, Protocol, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from ottla.admin.failure import FAILED, INTERRUPTED, Failure
from ottla.cli import interrupts
from ottla.cli.failure import show
from ottla.cli.options import Parsed
from ottla.cli.output import JSON, YAML, abandon_stdout
from ottla.model.errors import OttlaError

_FLAG = "--watch"
_INTERVAL_S_DEFAULT = "2"
_INTERVAL_S_MIN = 0.1
_INTERVAL_S_MAX = 86_400
_KEPT = "ottla.watch"

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
#: a line that is too long must not take two lines of the screen
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class _Client(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Client)


class _WatchOption(click.Option):
    """The word behind it may be the name of an object, so the shell completes names."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        for parameter in ctx.command.params:
            if isinstance(parameter, click.Argument) and (parameter.nargs == -1 or not ctx.params.get(parameter.name)):
                return parameter.shell_complete(ctx, incomplete)
        return []


class WatchCommand(click.Command):
    """A command with --watch, which runs the callback once for each round."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(
            _WatchOption(
                [_FLAG],
                is_flag=False,
                flag_value=_INTERVAL_S_DEFAULT,
                metavar="[SECONDS]",
                type=Parsed("interval", parse_interval_s),
                help=f"Print again every SECONDS, {_INTERVAL_S_DEFAULT} if no number is given, until Ctrl-C.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_interval(args))

    def invoke(self, ctx: click.Context) -> Any:
        interval_s = ctx.params.pop("watch")
        if interval_s is None:
            return super().invoke(ctx)
        kept = ctx.meta[_KEPT] = _Kept()
        try:
            return _watch(lambda: super(WatchCommand, self).invoke(ctx), _display(ctx, interval_s), interval_s, kept)
        finally:
            kept.close()


def parse_interval_s(text: str) -> float:
    """Return the seconds between rounds. Raise ValueError."""
    try:
        interval_s = float(text)
    except ValueError:
        interval_s = 0.0
    # Not a number is not in the range either.
    if not _INTERVAL_S_MIN <= interval_s <= _INTERVAL_S_MAX:
        raise ValueError(f"{text!r} is not a number of seconds from {_INTERVAL_S_MIN} to {_INTERVAL_S_MAX}")
    return interval_s


def with_interval(args: list[str]) -> list[str]:
    """Return the arguments with an interval after --watch, where an argument that is not a number follows.

    >>> with_interval(["--watch", "orders"]), with_interval(["--watch", "5"]), with_interval(["--", "--watch"])
    (['--watch=2', 'orders'], ['--watch', '5'], ['--', '--watch'])
    """
    end = args.index("--") if "--" in args else len(args)
    found = []
    for number, word in enumerate(args):
        following = args[number + 1] if number + 1 < len(args) else ""
        is_alone = word == _FLAG and number < end and not _is_number(following)
        found.append(f"{_FLAG}={_INTERVAL_S_DEFAULT}" if is_alone else word)
    return found


def kept_client(key: object, open_client: Callable[[], _C]) -> _C | None:
    """Return the client with this key that stays open between the rounds of the command, or None without --watch."""
    context = click.get_current_context(silent=True)
    kept: _Kept | None = context.meta.get(_KEPT) if context is not None else None
    return None if kept is None else cast("_C", kept.get(key, open_client))


class _Kept:
    """The clients that stay open between rounds. A command has one or two."""

    def __init__(self) -> None:
        self._clients: list[tuple[object, _Client]] = []

    def get(self, key: object, open_client: Callable[[], _Client]) -> _Client:
        for known, client in self._clients:
            if known == key:
                return client
        client = open_client()
        self._clients.append((key, client))
        return client

    def close(self) -> None:
        while self._clients:
            self._clients.pop()[1].close()


class Display(Protocol):
    """Shows the output of rounds."""

    #: whether the standard error of a round is shown with its output
    has_errors: bool

    def show(self, output: str, errors: str) -> None: ...

    def end(self) -> None: ...


class Screen:
    """A terminal. A round that failed without output shows its error below the output of the last good round."""

    has_errors = True

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = ""
        # What is on the screen stays readable above it.
        sys.stdout.write("\n" * (shutil.get_terminal_size().lines - 1))

    def show(self, output: str, errors: str) -> None:
        self._last = output or self._last
        size = shutil.get_terminal_size()
        title = f"{self._title} ({time.strftime('%H:%M:%S')}); Ctrl-C ends"
        lines = [title, "", *errors.splitlines(), *self._last.splitlines()]
        sys.stdout.write(frame(lines, size.columns, size.lines))
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.write("\n")


def frame(lines: list[str], columns: int, rows: int) -> str:
    """Return what replaces the contents of a terminal by these lines, without clearing it first.

    Lines that have no room are counted in the last row. A line with colours is cut by the terminal.
    """
    if len(lines) > rows:
        lines = [*lines[: rows - 1], f"and {len(lines) - rows + 1} more lines"]
    cut = [line if "\x1b" in line else line[:columns] for line in lines]
    text = "\n".join(f"{line}{_CLEAR_LINE}" for line in cut)
    return f"{_NO_WRAP}{_HOME}{text}{_CLEAR_BELOW}{_WRAP}"


class Stream:
    """Standard output that is not a terminal."""

    has_errors = False

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._is_first = True

    def show(self, output: str, errors: str) -> None:
        if output:
            sys.stdout.write(output if self._is_first else self._separator + output)
            sys.stdout.flush()
            self._is_first = False

    def end(self) -> None:
        pass


def _display(ctx: click.Context, interval_s: float) -> Display:
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return Screen(f"every {interval_s:g} s: {ctx.command_path}")
    return Stream({JSON: "", YAML: "---\n"}.get(str(ctx.params.get("output")), "\n"))


def _watch(run: Callable[[], object], display: Display, interval_s: float, kept: _Kept) -> int:
    """Run rounds until Ctrl-C, or until the process that reads the output has ended. Return the exit code."""
    code = INTERRUPTED
    try:
        while True:
            output, errors, found = run_round(run, with_errors=display.has_errors, on_failure=kept.close)
            code = found
            display.show(output, errors)
            pause(interval_s)
    except KeyboardInterrupt:
        display.end()
        return code
    except BrokenPipeError:
        abandon_stdout()
        return 0


def run_round(run: Callable[[], object], *, with_errors: bool, on_failure: Callable[[], None]) -> tuple[str, str, int]:
    """Return the output of one round, its standard error if it is wanted, and its exit code.

    `on_failure` is called if the round could not be done. A bad state, such as a cluster that is not healthy, has an
    exit code too, and is no failure.
    """
    output, errors = _Captured(sys.stdout), _Captured(sys.stderr)
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(output))
        if with_errors and sys.stderr.isatty():
            stack.enter_context(redirect_stderr(errors))
        code = _exit_code(run, on_failure)
    return output.getvalue(), errors.getvalue(), code


def pause(interval_s: float) -> None:
    """Wait for the next round."""
    time.sleep(interval_s)


class _Captured(io.StringIO):
    """Text that is printed later: commands ask whether it will be on a terminal."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self._real = real

    def isatty(self) -> bool:
        return bool(self._real.isatty())


def _exit_code(run: Callable[[], object], on_failure: Callable[[], None]) -> int:
    try:
        run()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILED if ended.code else 0
    except (OSError, OttlaError) as error:
        if interrupts.caused(error):
            raise KeyboardInterrupt from error
        on_failure()
        show(error if isinstance(error, Failure) else Failure(str(error)))
        return error.exit_code if isinstance(error, Failure) else FAILED
    return 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
