"""Clients of the cluster that the options of a query name, and those that a Python worker keeps between its tasks.

A worker runs one task after another. With a client of its own, each task would connect, log in and read the metadata
of whole topics again, which costs more than reading a small range.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.spark.options import Connection

#: a client that was not used for so long is replaced by a new one, because brokers close idle connections
_IDLE_S_MAX: Final = 60.0
#: clients that a worker keeps, for tasks of several queries
_KEPT_MAX: Final = 4


class _Kept(NamedTuple):
    #: a forked process must not use the connections of its parent
    process: int
    connection: Connection
    timeout_s: float
    cluster: Cluster
    used_at: float


_kept: list[_Kept] = []


def open_cluster(connection: Connection, *, timeout_s: float | None = None) -> Cluster:
    """Return a new client. `timeout_s` takes precedence over the timeout of the options."""
    return Cluster(
        connection.bootstrap,
        connection.properties,
        client_id=connection.client_id,
        timeout_s=timeout_s or connection.timeout_s,
    )


@contextmanager
def lend_cluster(connection: Connection, timeout_s: float) -> Iterator[Cluster]:
    """Lend a client to one task, the one of an earlier task if there is any. Close it if the task fails."""
    cluster = _take(connection, timeout_s) or open_cluster(connection, timeout_s=timeout_s)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _kept.append(_Kept(os.getpid(), connection, timeout_s, cluster, time.monotonic()))
    while len(_kept) > _KEPT_MAX:
        _kept.pop(0).cluster.close()


def close_kept() -> None:
    """Close the clients that no task uses."""
    while _kept:
        _kept.pop().cluster.close()


def _take(connection: Connection, timeout_s: float) -> Cluster | None:
    oldest = time.monotonic() - _IDLE_S_MAX
    for each in [each for each in _kept if each.used_at < oldest or each.process != os.getpid()]:
        _kept.remove(each)
        if each.process == os.getpid():
            each.cluster.close()
    for each in _kept:
        if (each.connection, each.timeout_s) == (connection, timeout_s):
            _kept.remove(each)
            return each.cluster
    return None
