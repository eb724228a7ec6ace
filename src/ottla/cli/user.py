"""`ottla user`: list, add and remove users with SCRAM credentials."""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

import click

from ottla.admin.failure import Failure
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.output import JSON, NAME, TABLE, YAML, Column, output_option, print_rows
from ottla.security.salts import ITERATIONS_MIN
from ottla.security.scram import ITERATIONS_MAX, Mechanism

_COLUMNS = (Column("USER", "user"), Column("MECHANISM", "mechanism"), Column("ITERATIONS", "iterations"))
_MECHANISMS = {each.title: each for each in Mechanism}
_ITERATIONS_DEFAULT = 8192
_PASSWORD_BYTES_MAX = 1024
_FORMATS = (TABLE, JSON, YAML, NAME)

_mechanism_option = click.option(
    "--mechanism",
    "titles",
    type=click.Choice(list(_MECHANISMS), case_sensitive=False),
    multiple=True,
    help="A SCRAM mechanism. Repeatable.",
)
_password_file_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the password from the first line of a file that only you can read; - is standard input.",
)


@click.group("user")
def command() -> None:
    """Manage users who log in with SCRAM, and users of HTTP services."""


@command.command("list")
@click.argument("names", metavar="[USER]...", nargs=-1)
@connection_options
@output_option(*_FORMATS)
def list_users(names: tuple[str, ...], connection: ClusterOptions, output: str) -> None:
    """List users and their mechanisms: all, or the given ones. Passwords and keys are never shown."""
    from ottla.admin.users import describe
    from ottla.cli.cluster import ClusterClient

    with ClusterClient(connection) as client:
        found = describe(client, list(dict.fromkeys(names)))
    if output == NAME:
        print_rows([{"user": user} for user in found], (), output, "user")
        return
    rows = [
        {"user": user, "mechanism": mechanism.title, "iterations": iterations}
        for user, credentials in found.items()
        for mechanism, iterations in credentials.items()
    ]
    print_rows(rows, _COLUMNS, output)


@command.command("add")
@click.argument("name", metavar="USER")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=_ITERATIONS_DEFAULT,
    show_default=True,
    help="How often the password is hashed.",
)
@_password_file_option
@connection_options
def add(
    name: str, titles: tuple[str, ...], iterations: int, password_file: str | None, connection: ClusterOptions
) -> None:
    """Add a user, or change the password of one.

    Prompts for the password on a terminal, and reads it from standard input otherwise. There is no option for it,
    because other users of the machine can see the options of a command. The cluster gets keys that are derived from
    the password, not the password.

    Without --mechanism the user can log in with SCRAM-SHA-256 and with SCRAM-SHA-512.
    """
    from ottla.admin.users import credentials_of, upsert
    from ottla.cli.cluster import ClusterClient

    mechanisms = [_MECHANISMS[title] for title in titles] or list(Mechanism)
    credentials = credentials_of(_password(password_file), mechanisms, iterations)
    with ClusterClient(connection) as client:
        upsert(client, name, credentials)


@command.command("remove")
@click.argument("names", metavar="USER...", nargs=-1, required=True)
@_mechanism_option
@connection_options
def remove(names: tuple[str, ...], titles: tuple[str, ...], connection: ClusterOptions) -> None:
    """Remove users, or only their credentials for --mechanism. Open connections stay open."""
    from ottla.admin.users import delete, describe
    from ottla.cli.cluster import ClusterClient

    wanted = [_MECHANISMS[title] for title in titles]
    users = list(dict.fromkeys(names))
    with ClusterClient(connection) as client:
        found: dict[str, Any] = dict.fromkeys(users, wanted) if wanted else describe(client, users)
        delete(client, {user: list(found[user]) for user in users})


@command.command("hash")
@click.argument("name", metavar="USER")
@_password_file_option
@click.option(
    "--file",
    "users_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Add the line to this file, or replace the one of the same user. Only you can read the file.",
)
def print_hash(name: str, password_file: str | None, users_file: str | None) -> None:
    """Print a line for `authentication.users.file` of an HTTP service: a user and the hash of a password.

    Prompts for the password on a terminal, and reads it from standard input otherwise. `ottla registry` and `ottla
    rest` read a changed file without a restart. Users of the cluster itself are added with `ottla user add`.
    """
    from ottla.security.password_hashes import SALT_BYTES, hash_password, user_line

    line = user_line(name, hash_password(_password(password_file), os.urandom(SALT_BYTES)))
    if users_file is None:
        click.echo(line)
    else:
        _replace_line(users_file, name, line)


def _replace_line(path: str, name: str, line: str) -> None:
    """Write a line to a file of users. A reader sees the old file or the new one."""
    lines = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            lines = [each for each in file.read().splitlines() if each.partition(":")[0] != name]
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, line, ""]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _password(path: str | None) -> bytes:
    """Return the password. Raise Failure if there is none, or if other users can read its file."""
    if path is None and sys.stdin.isatty():
        text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        text = _first_line(path)
    password = text.encode()
    if not password:
        raise Failure("the password is empty; type it, or give a file with --password-file")
    if len(password) > _PASSWORD_BYTES_MAX:
        raise Failure(f"the password is longer than {_PASSWORD_BYTES_MAX} bytes; choose a shorter one")
    return password


def _first_line(path: str | None) -> str:
    if path in (None, "-"):
        return sys.stdin.readline().rstrip("\r\n")
    with open(path, encoding="utf-8") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Failure(f"{path} can be read by other users; run 'chmod 600 {path}'")
        return file.readline().rstrip("\r\n")
