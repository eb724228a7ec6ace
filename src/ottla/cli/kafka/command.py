"""`ottla kafka`: the commands of Apache Kafka, and `ottla kafka install`, which writes scripts with their names."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ottla.cli.kafka import commands
from ottla.cli.kafka.install import install

#: nothing of a command's arguments is an option of `ottla`
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


class KafkaCommands(click.Group):
    """The table of commands as a group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*commands.COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = commands.find(cmd_name)
        return super().get_command(ctx, cmd_name) if name is None else _command(name)


def _command(name: str) -> click.Command:
    def run(arguments: tuple[str, ...]) -> None:
        sys.exit(commands.run(name, arguments))

    parameter = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
    text = f"{commands.COMMANDS[name].help} See 'ottla kafka {name} --help' for its flags."
    return click.Command(name, callback=run, params=[parameter], help=text, context_settings=_PASSED_ON)


@click.group("kafka", cls=KafkaCommands)
def command() -> None:
    """The commands of Apache Kafka, with its flags, output and exit codes.

    Names may be written with .sh and without kafka-. See docs/reference/kafka-commands.md for what differs.
    """


@command.command("install")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files that are not scripts of this command.")
def install_command(directory: Path, force: bool) -> None:
    """Write a script for each command into a directory, such as kafka-topics and kafka-topics.sh.

    Put the directory in front of PATH, and scripts that call Kafka's commands run without Java.
    """
    count = install(directory, force=force)
    click.echo(f"{count} scripts in {directory}")
    click.echo(f'use them with: export PATH="{directory.resolve()}:$PATH"')
