"""What a tool of Kafka is: a name, flags, and a function that returns an exit code.

`main` runs one: standard output and exit codes are those of Kafka's own tool. Standard error says the same in fewer
lines, without Java's stack traces.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ottla.cli.kafka.errors import ToolError, UsageError
from ottla.cli.kafka.options import HELP, VERSION, Flag, Options, help_text, parse
from ottla.model.errors import OttlaError

#: the version of Apache Kafka whose tools these follow, which `--version` prints
KAFKA_VERSION = "4.3.0"
OK, FAILED, INTERRUPTED = 0, 1, 130


def _report(error: ToolError) -> int:
    print_error(str(error))
    return FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A command of Kafka."""

    #: such as ``kafka-topics``
    name: str
    #: what it does, the first line of its help
    summary: str
    #: without --help and --version
    flags: tuple[Flag, ...]
    #: raises ToolError, or a `Failure` of our own clients
    run: Callable[[Options], int | None]
    #: reports an error that `run` or the flags caused, and returns the exit code
    failed: Callable[[ToolError], int] = field(default=_report)
    #: whether the tool prints its help if there are no arguments
    is_helped_without_arguments: bool = True


def main(tool: Tool, arguments: Sequence[str]) -> int:
    """Run a tool with the arguments behind its name, and return its exit code."""
    return guarded(lambda: _run(tool, arguments))


def guarded(run: Callable[[], int | None]) -> int:
    """Return the exit code of a tool. Report its errors; end quietly on Ctrl-C, and if its output is closed."""
    try:
        code = _reported(run) or OK
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has ended. The interpreter would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _reported(run: Callable[[], int | None]) -> int | None:
    try:
        return run()
    except BrokenPipeError:
        raise
    except ToolError as error:
        return _report(error)
    except (OttlaError, OSError, UnicodeError) as error:
        return _report(ToolError(_text(error)))


def _run(tool: Tool, arguments: Sequence[str]) -> int:
    flags = (*tool.flags, HELP, VERSION)
    try:
        options = parse(flags, arguments)
        if options.has("help") or (not arguments and tool.is_helped_without_arguments):
            raise UsageError(tool.summary)
        if options.has("version"):
            print_line(KAFKA_VERSION)
            return OK
        return tool.run(options) or OK
    except UsageError as error:
        sys.stdout.flush()
        print_error(f"{error}\n{help_text(flags)}")
        return FAILED
    except ToolError as error:
        return tool.failed(error)
    except (OttlaError, OSError, UnicodeError) as error:
        return tool.failed(ToolError(_text(error)))


def print_line(text: str = "") -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{text}\n")


def print_error(text: str) -> None:
    """Print lines on standard error, after what was printed on standard output."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        # As Java says it.
        return f"{error.filename} ({error.strerror})"
    return str(error)
