"""`ottla console`: web pages of a cluster."""

from __future__ import annotations

import click

from ottla.cli.service_options import service_options


@click.command("console")
@service_options("http://127.0.0.1:8080")
@click.option("--registry", metavar="URL", help="URL of the schema registry.")
@click.option("--connect", metavar="URL", help="URL of a Kafka Connect worker.")
def command(texts: dict[str, str], registry: str | None, connect: str | None) -> None:
    """Run the console: web pages that show a cluster and change it.

    It works with Apache Kafka, too. It prints a line that starts with "ready" when it answers. Everybody on this
    machine may read; changes need a login. The first start makes a user and prints the password once.
    """
    from ottla.edge.console.service import run

    if registry is not None:
        texts.setdefault("schema.registry.url", registry)
    if connect is not None:
        texts.setdefault("connect.url", connect)
    raise SystemExit(run(texts))
