"""`ottla security`: create the files of a secure broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ottla.admin.failure import Failure
from ottla.cli.output import JSON, TEXT, output_option, print_data

DAYS_DEFAULT = 365
AUTHORITY_DAYS = 3650


@click.group("security")
def command() -> None:
    """Create certificates, an admin user and the settings of a secure broker."""


@command.command("init")
@click.option(
    "--data", metavar="DIR", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of the broker; the files are created in it.",
)  # fmt: skip
@click.option(
    "--host", "hosts", metavar="NAME", multiple=True,
    help="Name or address by which clients reach the broker; it then listens on all addresses. Repeatable; the first "
    "one is advertised.",
)  # fmt: skip
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65534), default=9092, show_default=True,
    help="Port for clients with a password (SASL_SSL); the next port is for clients with a certificate (SSL).",
)  # fmt: skip
@click.option(
    "--admin", metavar="NAME", default="admin", show_default=True, help="Name of the super user, who may do everything."
)
@click.option(
    "--days", metavar="N", type=click.IntRange(1, AUTHORITY_DAYS), default=DAYS_DEFAULT, show_default=True,
    help="How long the certificates are valid; that of the authority is for ten years.",
)  # fmt: skip
@output_option(TEXT, JSON, default=TEXT)
def init(*, data: Path, hosts: tuple[str, ...], port: int, admin: str, days: int, output: str) -> None:
    """Create a certificate authority, certificates, an admin user and a server.properties, and print client settings.

    The broker of `ottla broker --config DIR/server.properties` encrypts all connections, requires a password
    (SCRAM-SHA-512) or a certificate, and lets users do what ACLs allow. The admin user gets a random password, which
    is only in DIR/client.properties and in the printed settings. No file is overwritten. The broker must not run.
    DIR/tls/ca.key signs further certificates: keep a copy of it in a safe place.
    """
    from ottla.cli.security_clients import TITLES
    from ottla.cli.security_files import NEW_FILES, create

    existing = [str(data / name) for name in NEW_FILES if (data / name).exists()]
    if existing:
        raise Failure(f"{', '.join(existing)} exists and is not overwritten; choose another directory with --data")
    made = create(data.absolute(), hosts=hosts, port=port, admin=admin, days=days)
    if output == JSON:
        print_data({"files": made.files, "clients": made.clients}, output)
        return
    for path, purpose in made.files.items():
        click.echo(f"{path}\n    {purpose}")
    for client, settings in made.clients.items():
        click.echo(f"\n{TITLES[client]}:\n\n{_indent(settings)}")
    click.echo(f"\nStart the broker:\n\n    ottla broker --config {made.config}")
    click.echo(f"\nTry it:\n\n    ottla topic list --command-config {made.client_config}")


def _indent(settings: Any) -> str:
    lines = (
        [f"{name}={text}" for name, text in settings.items()] if isinstance(settings, dict) else settings.split("\n")
    )
    return "\n".join(f"    {line}".rstrip() for line in lines)
