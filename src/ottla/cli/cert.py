"""`ottla cert`: the certificates of brokers and clients that the authority of `ottla security init` signs."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.cli.security import AUTHORITY_DAYS, DAYS_DEFAULT

_COLUMNS = (
    Column("FILE", "file"), Column("NAME", "name"), Column("KIND", "kind"), Column("HOSTS", "hosts"),
    Column("ISSUER", "issuer"), Column("EXPIRES", "expires"), Column("DAYS", "days"),
)  # fmt: skip
_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_data_option = click.option(
    "--data", metavar="DIR", required=True, type=_DIRECTORY, help="Directory of 'ottla security init'."
)
_authority_key_option = click.option(
    "--ca-key", "authority_key", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Key of the authority, if it was moved to a safe place.  [default: DIR/tls/ca.key]",
)  # fmt: skip
_days_option = click.option(
    "--days", metavar="N", type=click.IntRange(1, AUTHORITY_DAYS), default=DAYS_DEFAULT, show_default=True,
    help="How long the certificate is valid.",
)  # fmt: skip


@click.group("cert")
def command() -> None:
    """Show, issue and renew certificates."""


@command.command("show")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--data", metavar="DIR", type=_DIRECTORY, help="Show the certificates of 'ottla security init'.")
@output_option(TABLE, JSON, YAML)
def show(files: tuple[Path, ...], data: Path | None, output: str) -> None:
    """Print the names, the issuer and the expiry of certificates in PEM files. Keys are not shown."""
    found = [*files, *(sorted((data / "tls").glob("*.pem")) if data is not None else [])]
    if not found:
        raise click.UsageError("name a FILE, or a directory with --data")
    print_rows(list(_rows(found)), _COLUMNS, output)


@command.command("issue")
@click.argument("name", metavar="NAME")
@_data_option
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="Host name or address of a broker. Repeatable.")
@click.option("--broker", "for_broker", is_flag=True, help="For a broker; otherwise it is for a client.")
@_authority_key_option
@_days_option
def issue(
    *, name: str, data: Path, hosts: tuple[str, ...], for_broker: bool, authority_key: Path | None, days: int
) -> None:
    """Create DIR/tls/NAME.pem with a new key and a certificate. A client with it is User:NAME on the listener SSL.

    The certificate of a broker needs the names by which clients reach it, each with --host.
    """
    from ottla.cli.security_files import check_name, load_authority, write_new
    from ottla.security.authority import issue as issue_certificate

    if for_broker and not hosts:
        raise click.UsageError("--broker needs the names by which clients reach the broker, each with --host")
    path = data / "tls" / f"{name}.pem"
    check_name(name)
    pair = issue_certificate(
        load_authority(data, authority_key), name, hosts=hosts, for_broker=for_broker, now=_now(), days=days
    )
    write_new(path, pair.key + pair.certificates, 0o600)
    click.echo(f"created {path}, valid until {(_now() + datetime.timedelta(days=days)):%Y-%m-%d}")


@command.command("renew")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_data_option
@_authority_key_option
@_days_option
def renew(names: tuple[str, ...], data: Path, authority_key: Path | None, days: int) -> None:
    """Replace the key and the certificate in DIR/tls/NAME.pem by new ones with the same names.

    A running broker notices the new file within a few seconds and uses it for new connections.
    """
    from ottla.cli.security_files import load_authority, write_new
    from ottla.security.authority import describe
    from ottla.security.authority import issue as issue_certificate
    from ottla.security.errors import SecurityConfigError

    for name in names:
        path = data / "tls" / f"{name}.pem"
        if not path.exists() or name == "ca":
            raise NotFound(f"{path} is not a certificate that can be renewed; see 'ottla cert show --data {data}'")
        try:
            old = describe(path.read_bytes())[0]
            pair = issue_certificate(
                load_authority(data, authority_key), old.name, hosts=old.hosts, for_broker=old.is_for_brokers,
                now=_now(), days=days,
            )  # fmt: skip
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)
            write_new(new, pair.key + pair.certificates, 0o600)
        except SecurityConfigError as error:
            raise Failure(f"{path}: {error}") from None
        os.replace(new, path)
        click.echo(f"renewed {path}, valid until {(_now() + datetime.timedelta(days=days)):%Y-%m-%d}")


def _rows(files: list[Path]) -> Iterator[dict[str, Any]]:
    from ottla.security.authority import describe
    from ottla.security.errors import SecurityConfigError

    for path in files:
        try:
            certificates = describe(path.read_bytes())
        except (SecurityConfigError, OSError) as error:
            raise Failure(f"{path}: {error}") from None
        for each in certificates:
            kind = "authority" if each.is_authority else "broker" if each.is_for_brokers else "client"
            yield {
                "file": str(path), "name": each.name, "kind": kind, "hosts": list(each.hosts), "issuer": each.issuer,
                "begins": each.not_before.isoformat(), "expires": each.not_after.isoformat(),
                "days": (each.not_after - _now()).days, "serial": each.serial,
            }  # fmt: skip


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
