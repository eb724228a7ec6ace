"""`ottla demo`: a shop, a broker and a pipeline, to look at."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from ottla.cli.failure import FAILED, INTERRUPTED, Failure

_PACKAGES = ("pyspark", "pyarrow", "deltalake")


@click.command("demo")
@click.option(
    "--events",
    metavar="N",
    type=click.IntRange(min=100),
    help="Send so many, compare what comes out with what was sent, and end.  [default: go on until Ctrl-C]",
)
@click.option(
    "--rate",
    metavar="R",
    type=click.FloatRange(min=0.1),
    help="Events a second.  [default: 100, with --events as many as possible]",
)
@click.option("--seed", metavar="S", type=int, default=1, show_default=True, help="The same number, the same events.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where records and tables are kept.  [default: a new directory, removed in the end]",
)
@click.option("--keep", is_flag=True, help="Do not remove the new directory, and say where it is.")
@click.option(
    "--listener",
    metavar="NAME://HOST:PORT",
    default="PLAINTEXT://127.0.0.1:0",
    help="Where the broker listens.  [default: a free port on 127.0.0.1]",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve the broker's Prometheus metrics there.")
@click.option("--master", help="Where Spark runs: local[*], spark://..., yarn, k8s://...  [default: local[*]]")
def command(
    events: int | None, rate: float | None, seed: int, data: Path | None, keep: bool, listener: str,
    metrics: str | None, master: str | None,
) -> None:  # fmt: skip
    """Show a shop: a broker, events on it, and the pipeline of 'ottla pipeline init' on Spark.

    Orders, payments and clicks are sent as real ones are: some malformed, some late, some twice. The pipeline makes
    revenue per minute of them. With --events everything is checked: each good event counted once, and the revenue of
    each minute the same as the shop's own. The exit code is 1 if a figure is wrong.
    """
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise Failure(f"the package {package} is missing; install it with: pip install 'ottla[spark]'")
    from ottla.demo.run import Options, Stopped, run
    from ottla.model.errors import OttlaError

    options = Options(
        events=events, rate=rate, seed=seed, data=data, keep=keep, listener=listener, metrics=metrics, master=master
    )
    try:
        sys.exit(0 if run(options) else FAILED)
    except Stopped:
        sys.exit(INTERRUPTED)
    except OttlaError as error:
        raise Failure(str(error)) from None
