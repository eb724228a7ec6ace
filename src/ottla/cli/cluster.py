"""The client of a cluster that commands use.

Commands import this file when they run. It uses `ottla.admin`; only producers and consumers come from librdkafka, see
`cli/records.py`. Every error is raised as a `Failure` with its exit code.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.admin.client import AdminClient, PropertyFailure, is_client_property
from ottla.admin.error_codes import unreachable
from ottla.admin.failure import NotHealthy
from ottla.cli import interrupts
from ottla.cli.connection import ClusterOptions, split_addresses
from ottla.cli.watch import kept_client

if TYPE_CHECKING:
    from ottla.cli.records import Properties, Reader, Writer

_CLIENT_ID = "ottla-cli"
#: limit for a connection to one address; --timeout is the limit for all of them
_CONNECT_S_MAX = 3.0

_T = TypeVar("_T")


def connect(connection: ClusterOptions) -> ClusterClient:
    """Return a client of the cluster, which is closed when the command ends. The rounds of --watch share it.

    Raise NotHealthy at once, with the reason, if no bootstrap server accepts a connection. Raise UsageError if a
    property of the client is not valid.
    """
    kept = kept_client(connection, lambda: _open(connection))
    if kept is not None:
        return kept
    client = _open(connection)
    if (ctx := click.get_current_context(silent=True)) is not None:
        ctx.call_on_close(client.close)
    return client


@contextmanager
def opened_client(connection: ClusterOptions) -> Iterator[ClusterClient]:
    """Open a client, and close it at the end of the block. The rounds of --watch share it."""
    kept = kept_client(connection, lambda: ClusterClient(connection))
    if kept is not None:
        yield kept
        return
    with ClusterClient(connection) as client:
        yield client


def _open(connection: ClusterOptions) -> ClusterClient:
    if failure := _refused(connection):
        raise failure
    if any(not is_client_property(name) for name in connection.properties):
        from ottla.cli.records import check_properties

        check_properties(connection)
    try:
        return ClusterClient(connection)
    except PropertyFailure as refused:
        raise click.UsageError(f"{refused.message} (from -X, --command-config or a profile)") from None


def _refused(connection: ClusterOptions) -> NotHealthy | None:
    """Return a failure if no bootstrap server accepts a connection, else None."""
    addresses = split_addresses(connection.bootstrap)
    refusals = {refusal(host, port, connection.timeout_s) for host, port in addresses}
    return None if None in refusals else unreachable(connection.bootstrap, "; ".join(sorted(map(str, refusals))))


def refusal(host: str, port: int, timeout_s: float) -> str | None:
    """Return why a connection to this address fails; None if it succeeds."""
    try:
        # The name may have to be looked up, which Ctrl-C does not interrupt.
        interrupts.run_interruptibly(
            lambda: socket.create_connection((host, port), timeout=min(timeout_s, _CONNECT_S_MAX)).close()
        )
    except socket.gaierror as error:
        return f"{host} has no address: {error.strerror}"
    except TimeoutError:
        return "no answer to the connection attempt"
    except OSError as error:
        return str(error.strerror or error).lower()
    except (ValueError, OverflowError) as error:  # no host can have this name, or no listener this port
        return str(error)
    return None


class ClusterClient(AdminClient):
    """The client of one command: Ctrl-C ends its requests, and it opens producers and consumers."""

    def __init__(self, connection: ClusterOptions) -> None:
        split_addresses(connection.bootstrap)
        super().__init__(
            connection.bootstrap, connection.properties, timeout_s=connection.timeout_s, client_id=_CLIENT_ID
        )
        self._connection = connection

    def writer(self, properties: Properties) -> Writer:
        """Return a producer with these properties. Properties that the user has set with -X take precedence."""
        from ottla.cli.records import open_writer

        return open_writer(self._connection, properties)

    def reader(self, properties: Properties) -> Reader:
        """Return a consumer without a group. Properties that the user has set with -X take precedence."""
        from ottla.cli.records import open_reader

        return open_reader(self._connection, properties)

    def _run(self, function: Callable[[], _T]) -> _T:
        return interrupts.run_interruptibly(function)
