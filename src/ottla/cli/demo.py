"""`ottla demo`: a demonstration with a shop, a broker and a pipeline."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from ottla.admin.failure import FAILED, INTERRUPTED, Failure
from ottla.model import extras

_PACKAGES = ("pyspark", "pyarrow", "deltalake")


@click.command("demo")
@click.option(
    "--events",
    metavar="N",
    type=click.IntRange(min=100),
    help="Send N events, compare the results with them, and end.  [default: run until Ctrl-C]",
)
@click.option(
    "--rate",
    metavar="R",
    type=click.FloatRange(min=0.1),
    help="Events per second.  [default: 100; with --events as many as possible]",
)
@click.option(
    "--seed",
    metavar="S",
    type=int,
    default=1,
    show_default=True,
    help="Seed of the random events; the same seed gives the same events.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for records and tables.  [default: a new directory, removed at the end]",
)
@click.option("--keep", is_flag=True, help="Keep the new directory and print its path.")
@click.option(
    "--kills/--no-kills",
    default=True,
    show_default=True,
    help="Kill the driver of the pipeline and the broker with SIGKILL, once each, and start them again.",
)
@click.option(
    "--listener",
    metavar="NAME://HOST:PORT",
    default="PLAINTEXT://127.0.0.1:0",
    help="Address of the broker.  [default: a free port on 127.0.0.1]",
)
@click.option("--insecure", is_flag=True, help="Let LISTENER be another address than loopback, as with 'ottla broker'.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve the broker's Prometheus metrics on this address.")
@click.option(
    "--console",
    metavar="URL",
    default="http://127.0.0.1:8080",
    help="Where the console listens; another port if that one is in use.  [default: http://127.0.0.1:8080]",
)
@click.option("--no-console", is_flag=True, help="Run no console.")
@click.option("--master", help="Where Spark runs: local[*], spark://..., yarn, k8s://...  [default: local[*]]")
def command(
    *,
    events: int | None,
    rate: float | None,
    seed: int,
    data: Path | None,
    keep: bool,
    kills: bool,
    listener: str,
    insecure: bool,
    metrics: str | None,
    console: str,
    no_console: bool,
    master: str | None,
) -> None:
    """Run a demonstration: a broker, a shop, a pipeline on Spark, and the console with all of them.

    The shop sends orders, payments and clicks; some are malformed, some late, some duplicated. The pipeline of
    'ottla pipeline init' computes the revenue per minute, and each final figure is compared with the shop's. On the
    way the driver of the pipeline and then the broker are killed with SIGKILL and started again. With --events all
    results are checked: each valid event is counted once, to the cent. The exit code is 1 if a figure is wrong.
    """
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise Failure(extras.missing(package, extras.SPARK))

    from ottla.demo.processes import Stopped
    from ottla.demo.run import Options, run
    from ottla.demo.web_console import is_installed

    options = Options(
        events=events,
        rate=rate,
        seed=seed,
        data=data,
        keep=keep,
        kills=kills,
        listener=listener,
        insecure=insecure,
        metrics=metrics,
        console=None if no_console or not is_installed() else console,
        master=master,
    )
    try:
        sys.exit(0 if run(options) else FAILED)
    except Stopped:
        sys.exit(INTERRUPTED)
