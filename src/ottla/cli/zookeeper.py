"""`ottla zookeeper`: run a ZooKeeper server or a member of an ensemble. Scripts rely on the line `ready ...`."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import interrupts
from ottla.cli.options import Parsed

if TYPE_CHECKING:
    from ottla.cli.zookeeper_server import Server, ServerProcess

LISTEN_DEFAULT = "127.0.0.1:2181"


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or ":" in host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError(f"{text} is not of the form HOST:PORT")
    return host, int(port)


@click.command("zookeeper")
@click.option("--data", metavar="DIR", required=True, type=click.Path(file_okay=False), help="Data directory.")
@click.option(
    "--listen", "address", metavar="HOST:PORT", type=Parsed("address", _parse_address), default=LISTEN_DEFAULT,
    show_default=True, help="Address for brokers; port 0 chooses a free port.",
)  # fmt: skip
@click.option("--id", "number", metavar="N", type=click.IntRange(1, 255), help="Number of this member of the ensemble.")
@click.option(
    "--ensemble", metavar="N=HOST:PORT:PORT,...", multiple=True,
    help="All members, each with the ports for followers and for elections. Repeatable.",
)  # fmt: skip
@click.option(
    "--keystore", metavar="FILE", type=click.Path(dir_okay=False),
    help="Serve over TLS only: file with the key and certificate of this server, as PEM.",
)  # fmt: skip
@click.option(
    "--truststore", metavar="FILE", type=click.Path(dir_okay=False),
    help="With --keystore: file with the certificates of the authorities of clients, as PEM.",
)  # fmt: skip
@click.option(
    "--client-auth", type=click.Choice(["required", "none"]), default="required", show_default=True,
    help="With --keystore: whether clients need a certificate.",
)  # fmt: skip
def command(
    *,
    data: str,
    address: tuple[str, int],
    number: int | None,
    ensemble: tuple[str, ...],
    keystore: str | None,
    truststore: str | None,
    client_auth: str,
) -> None:
    """Run a ZooKeeper server in the foreground until SIGTERM or Ctrl-C.

    Prints a line that starts with `ready` when it serves; a member of an ensemble serves when the majority of the
    members run. Needs the extra `spark`, which installs ZooKeeper and a Java runtime for it (Java 17 or newer of
    JAVA_HOME or PATH comes first). Brokers join with `-X zookeeper.connect=HOST:PORT` and need no Java. Nodes are on
    disk before a change is acknowledged.

    With --keystore and --truststore brokers connect over TLS (`zookeeper.ssl.client.enable=true`). The connections
    between the members of an ensemble are not encrypted.
    """
    from ottla.cli.zookeeper_server import Server, ServerTls

    if (keystore is None) != (truststore is None):
        raise click.UsageError("TLS needs both --keystore and --truststore")
    tls = None
    if keystore is not None and truststore is not None:
        tls = ServerTls(keystore=Path(keystore), truststore=Path(truststore), is_mutual=client_auth == "required")
    host, port = address
    members = _parse_members(number, ensemble)
    serve(
        Server(data=Path(data), host=host, port=port or _free_port(host), number=number or 0, ensemble=members, tls=tls)
    )


def serve(server: Server) -> None:
    """Run a server until SIGTERM or SIGINT. Print a line that starts with `ready` when it serves.

    Raise ZooKeeperFailed if it cannot start, or ends.
    """
    from ottla.cli.zookeeper_server import ServerProcess

    stop, changed = threading.Event(), threading.Event()

    def set_stop(*_: Any) -> None:
        stop.set()
        changed.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, set_stop)
    signal.signal(signal.SIGCHLD, lambda *_: changed.set())
    interrupts.end_with_stdin()
    process = ServerProcess(server)
    try:
        _serve(process, stop, changed)
    finally:
        process.stop()


def _serve(process: ServerProcess, stop: threading.Event, changed: threading.Event) -> None:
    """Print `ready` when the server serves. Return when `stop` is set, raise ZooKeeperFailed if the server ends.

    `changed` is set by the signals that stop this process or report the end of the server.
    """
    server = process.server
    for mode in process.poll_mode():
        if stop.is_set():
            return
        if mode is not None:
            click.echo(f"ready {server.host}:{server.port} mode={mode} data={server.data}")
            break
    while not stop.is_set():
        process.check_running()
        changed.wait()
        changed.clear()


def _parse_members(number: int | None, ensemble: tuple[str, ...]) -> dict[int, str]:
    from ottla.cli.zookeeper_server import parse_ensemble

    if (number is None) != (not ensemble):
        raise click.UsageError("a member of an ensemble needs both --id and --ensemble")
    if number is None:
        return {}
    try:
        members = parse_ensemble(ensemble)
    except ValueError as problem:
        raise click.UsageError(f"--ensemble: {problem}") from None
    if number not in members:
        raise click.UsageError(f"--ensemble has no member {number}, which --id names; add it to --ensemble")
    return members


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
