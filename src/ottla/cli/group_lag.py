"""The lag of a group for `ottla group describe`: the same figures that the monitor and the console show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.model.printable import shown

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient
    from ottla.lag.first_records import ReadLimits
    from ottla.lag.reading import LagReader
    from ottla.lag.types import PartitionLag

_BYTES_MAX = 256 << 20


def measure_lag(cluster: ClusterClient, group_id: str, *, time_limit_s: float | None) -> list[PartitionLag]:
    """Return the lag of every partition of the topics in which the group has commits or assigned partitions.

    Partitions without a commit are included, because none of their records may have been read. Without `time_limit_s`
    no time lag is read.
    """
    from ottla.lag.first_records import ReadLimits

    limits = (
        ReadLimits(bytes_max=_BYTES_MAX)
        if time_limit_s is None
        else ReadLimits(time_s=time_limit_s, bytes_max=_BYTES_MAX)
    )
    snapshot = lag_reader(cluster, limits).read([group_id], with_time=time_limit_s is not None)
    lag = snapshot.groups.get(group_id)
    if lag is None:
        return []
    for problem in lag.problems:
        advice = "; raise --timeout" if " within " in problem else ""
        click.echo(f"warning: {shown(problem)}{advice}", err=True)
    return list(lag.partitions.values())


def lag_reader(cluster: ClusterClient, limits: ReadLimits) -> LagReader:
    from ottla.lag.reading import LagReader

    return LagReader(cluster, limits=limits)
