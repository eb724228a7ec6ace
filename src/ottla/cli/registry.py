"""`ottla registry`: run an instance of the schema registry."""

from __future__ import annotations

import sys

import click

from ottla.cli.service_options import service_options


@click.command("registry")
@service_options("http://127.0.0.1:8081")
def command(texts: dict[str, str]) -> None:
    """Run the schema registry in the foreground until SIGTERM or Ctrl-C.

    Prints a line that starts with `ready` when it answers requests, and a warning on standard error if the cluster does
    not answer; it tries again for some seconds and then ends with exit code 1. Schemas are kept in the topic _schemas
    of the cluster. Several instances with the same group elect a leader, which makes all changes.
    """
    from ottla.edge.registry.main import run

    sys.exit(run(texts))
