"""`ottla monitor`: lag and health of clusters, for Prometheus and for clients of Burrow and Remora."""

from __future__ import annotations

import click

from ottla.cli.service_options import service_options


@click.command("monitor")
@service_options("http://127.0.0.1:8000")
@click.option("--alerts", metavar="FILE", help="Open alerts by the rules of a file; 'default' is the file of Ottla.")
def command(texts: dict[str, str], alerts: str | None) -> None:
    """Run the monitor: lag of all groups in records and in seconds, verdicts, and the health of the cluster.

    It has the HTTP routes of Burrow and Remora, and at /metrics the metrics of Burrow, Kafka Lag Exporter, KMinion and
    kafka_exporter. It works with Apache Kafka, too. It prints a line that starts with "ready" when it answers.
    """
    from ottla.edge.monitor.service import run

    if alerts is not None:
        texts.setdefault("alerts.file", alerts)
    raise SystemExit(run(texts))
