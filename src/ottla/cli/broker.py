"""`ottla broker`: run one broker. Scripts rely on these flags and on the line that starts with `ready`."""

from __future__ import annotations

import sys

import click

from ottla.cli.connection import parse_pairs
from ottla.cli.options import log_format_option

DATA_DEFAULT = "./data"
LISTENER_DEFAULT = "PLAINTEXT://127.0.0.1:9092"


@click.command("broker")
@click.option("--data", metavar="DIR", type=click.Path(), help=f"Data directory.  [default: {DATA_DEFAULT}]")
@click.option(
    "--listener",
    "listeners",
    metavar="NAME://HOST:PORT",
    multiple=True,
    help=f"Address to listen on; port 0 chooses a free port. Repeatable.  [default: {LISTENER_DEFAULT}]",
)
@click.option("--id", "broker_id", metavar="N", type=click.IntRange(min=0), help="The broker's id.")
@click.option(
    "--config", "config_file", metavar="FILE", type=click.Path(), help="Read settings from server.properties."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics on this address.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Let listeners on other addresses than loopback accept clients without encryption and authentication.",
)
@log_format_option
@click.option(
    "-X",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="Set a broker setting, such as num.partitions. Repeatable.",
)
def command(
    *,
    data: str | None,
    listeners: tuple[str, ...],
    broker_id: int | None,
    config_file: str | None,
    metrics: str | None,
    insecure: bool,
    log_format: str | None,
    properties: dict[str, str],
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C.

    Prints a line that starts with `ready` when it accepts connections. -X takes precedence over the other options, and
    these over the file.
    """
    from ottla.broker.main import run_broker

    # The defaults are for a broker whose directories and listeners neither a file nor -X sets.
    if config_file is None:
        named = {"log.dir", "log.dirs"} & properties.keys()
        data = data if data is not None or named else DATA_DEFAULT
        listeners = listeners if listeners or "listeners" in properties else (LISTENER_DEFAULT,)
    if insecure:
        properties = {"allow.insecure.listeners": "true", **properties}
    if log_format is not None:
        properties = {"log.format": log_format, **properties}
    sys.exit(
        run_broker(
            properties=properties,
            config_file=config_file,
            data=data,
            listeners=listeners,
            broker_id=broker_id,
            metrics=metrics,
        )
    )
