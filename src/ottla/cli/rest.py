"""`ottla rest`: the REST proxy."""

from __future__ import annotations

import click

from ottla.cli.profiles import chosen
from ottla.cli.service_options import service_options


@click.command("rest")
@service_options("http://127.0.0.1:8082")
@click.option("--registry", metavar="URL", help="URL of the schema registry.")
def command(texts: dict[str, str], registry: str | None) -> None:
    """Run a REST proxy: produce, consume and administer over HTTP.

    It serves versions 2 and 3 of Confluent's REST API, and works with Apache Kafka, too. GET /docs lists all
    operations. It prints a line that starts with "ready" when it accepts requests, and a warning on standard error
    if the cluster does not answer; GET /health reports whether it does.
    """
    from ottla.edge.rest.service import run

    if registry is not None:
        texts.setdefault("schema.registry.url", registry)
    choice = chosen()
    if choice is not None and choice.profile.registry and "schema.registry.url" not in texts:
        texts["schema.registry.url"] = choice.profile.registry
        for name, text in choice.profile.registry_properties.items():
            texts.setdefault(f"schema.registry.{name}", text)
    raise SystemExit(run(texts))
