"""`ottla cluster`: show a cluster, elect leaders and move replicas. `cluster.py` is the client of all commands."""

from __future__ import annotations

import click

from ottla.cli import cluster_moves, cluster_status


@click.group("cluster")
def command() -> None:
    """Show a cluster, elect leaders and move replicas."""


for _verb in (
    cluster_status.status,
    cluster_status.brokers,
    cluster_status.elect,
    cluster_moves.reassign,
    cluster_moves.balance,
    cluster_moves.add,
    cluster_moves.decommission,
):
    command.add_command(_verb)
