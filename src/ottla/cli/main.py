"""The root command `ottla`: its subcommands, and how each of them ends.

Each subcommand is the `command` of a module that is imported when it is used.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import ottla
from ottla.admin.failure import FAILED, INTERRUPTED, USAGE, Failure
from ottla.cli import interrupts
from ottla.cli.failure import show
from ottla.model.errors import OttlaError
from ottla.model.extras import extra_of, missing

#: set by the scripts of `ottla completion`
_COMPLETION = "_OTTLA_COMPLETE"
_NAMES = (
    "acl",
    "alerts",
    "broker",
    "cert",
    "cluster",
    "completion",
    "config",
    "console",
    "consume",
    "demo",
    "doctor",
    "group",
    "kafka",
    "log",
    "monitor",
    "offsets",
    "perf",
    "pipeline",
    "produce",
    "profile",
    "quota",
    "registry",
    "rest",
    "schema",
    "security",
    "spark",
    "topic",
    "txn",
    "up",
    "user",
    "zookeeper",
)
#: subcommands whose module has another name
_MODULES = {"cluster": "cluster_commands", "kafka": "kafka.command"}


class CommandLine(click.Group):
    """A group that imports a command when it is used, and prints each failure as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_NAMES, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is not None or cmd_name not in _NAMES:
            return known
        module = importlib.import_module(f"ottla.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any
    ) -> NoReturn:
        if _COMPLETION in os.environ:
            importlib.import_module("ottla.cli.completion")
        try:
            with interrupts.handled():
                self._run(args, prog_name, *rest, **extra)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None

    def _run(self, args: Sequence[str] | None, prog_name: str | None, *rest: Any, **extra: Any) -> NoReturn:
        """Run a command and raise SystemExit with its exit code."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name, *rest, **extra)
        except click.UsageError as error:
            _report_misuse(error)
            raise SystemExit(USAGE) from None
        except click.ClickException as error:
            error.show()
            raise SystemExit(error.exit_code) from None
        except Failure as error:
            show(error)
            raise SystemExit(error.exit_code) from None
        except click.Abort:
            raise SystemExit(INTERRUPTED) from None
        except (OSError, OttlaError) as error:
            if interrupts.caused(error):
                raise SystemExit(INTERRUPTED) from None
            text = _describe_os_error(error) if isinstance(error, OSError) else str(error)
            click.echo(f"error: {text}", err=True)
            raise SystemExit(FAILED) from None
        except ModuleNotFoundError as error:
            wanted = extra_of(error.name)
            if wanted is None:
                raise
            click.echo(f"error: {missing(str(error.name), wanted)}", err=True)
            raise SystemExit(FAILED) from None
        except Exception as error:
            # Libraries turn KeyboardInterrupt into errors of their own. Every other exception is a bug: show it.
            if interrupts.caused(error):
                raise SystemExit(INTERRUPTED) from None
            raise
        raise SystemExit(code if isinstance(code, int) else 0)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(cls=CommandLine, context_settings=_CONTEXT)
@click.version_option(ottla.__version__, "-V", "--version", prog_name="ottla", message="%(prog)s %(version)s")
def main() -> None:
    """An event-streaming broker that speaks the Apache Kafka protocol, and tools for any Kafka cluster.

    Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 not reachable or not healthy in time, 130 interrupted.
    """


@main.command("version")
def version() -> None:
    """Print the versions of Ottla, Python and librdkafka."""
    from ottla.cli.records import client_version

    click.echo(f"ottla {ottla.__version__}")
    click.echo(f"python {platform.python_version()}")
    click.echo(f"librdkafka {client_version()}")


def _report_misuse(error: click.UsageError) -> None:
    # A group without a subcommand prints its help.
    if type(error).__name__ == "NoArgsIsHelpError" or error.ctx is None:
        error.show()
        return
    message = error.format_message().rstrip(".")
    click.echo(f"error: {message}; see '{error.ctx.command_path} --help'", err=True)


def _describe_os_error(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename is not None else ""
    return f"{name}{error.strerror or error}"
