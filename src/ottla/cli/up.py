"""`ottla up`: run a cluster on this machine. Scripts rely on the line that starts with `ready`."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from ottla.admin.failure import Failure
from ottla.cli.connection import load_properties, parse_pairs
from ottla.cli.options import log_format_option
from ottla.cli.output import TEXT, abandon_stdout
from ottla.cli.service_options import missing_message, missing_package
from ottla.env.disk import DIRECTORY_MODE, FILE_MODE

PORT_DEFAULT = 9092
REGISTRY_PORT_DEFAULT = 8081
REST_PORT_DEFAULT = 8082
CONSOLE_PORT_DEFAULT = 8080
DATA_DEFAULT = "./data"
BROKERS_MAX = 16
_PORT_MAX = (1 << 16) - 1
#: the file with the id of the broker that owns a data directory
_META = "meta.properties"
_LOCK = ".up.lock"
#: how long processes of an earlier command that was killed may need to end
_LOCK_S_MAX = 15.0
_LOCK_POLL_S = 0.1
#: settings that each broker gets from this command
_OWN_SETTINGS = {
    "broker.id", "node.id", "listeners", "advertised.listeners", "log.dir", "log.dirs", "zookeeper.connect",
    "metrics.listener",
}  # fmt: skip


@click.command("up")
@click.option(
    "--brokers", metavar="N", type=click.IntRange(1, BROKERS_MAX), default=1, show_default=True,
    help="Number of brokers; the ids of several are 1 to N.",
)  # fmt: skip
@click.option(
    "--data", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), default=DATA_DEFAULT, show_default=True,
    help="Data directory.",
)  # fmt: skip
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, _PORT_MAX), default=PORT_DEFAULT, show_default=True,
    help="Port of the first broker, the others have the next ones; 0 chooses free ports.",
)  # fmt: skip
@click.option(
    "--registry-port", metavar="PORT", type=click.IntRange(0, _PORT_MAX),
    help=f"Port of the schema registry; 0 chooses a free port.  [default: {REGISTRY_PORT_DEFAULT}; 0 with --port 0]",
)  # fmt: skip
@click.option(
    "--rest-port", metavar="PORT", type=click.IntRange(0, _PORT_MAX),
    help=f"Port of the REST proxy; 0 chooses a free port.  [default: {REST_PORT_DEFAULT}; 0 with --port 0]",
)  # fmt: skip
@click.option(
    "--console-port", metavar="PORT", type=click.IntRange(0, _PORT_MAX),
    help=f"Port of the console; 0 chooses a free port.  [default: {CONSOLE_PORT_DEFAULT}; 0 with --port 0]",
)  # fmt: skip
@click.option(
    "--monitor-port", metavar="PORT", type=click.IntRange(0, _PORT_MAX),
    help="Run a monitor at this port; 0 chooses a free port.",
)  # fmt: skip
@click.option("--no-registry", is_flag=True, help="Run no schema registry.")
@click.option("--no-rest", is_flag=True, help="Run no REST proxy.")
@click.option("--no-console", is_flag=True, help="Run no console.")
@log_format_option
@click.option(
    "-X", "properties", metavar="KEY=VALUE", multiple=True, callback=parse_pairs,
    help="Set a setting of all brokers, such as num.partitions. Repeatable.",
)  # fmt: skip
def command(
    *,
    brokers: int,
    data: Path,
    port: int,
    registry_port: int | None,
    rest_port: int | None,
    console_port: int | None,
    monitor_port: int | None,
    no_registry: bool,
    no_rest: bool,
    no_console: bool,
    log_format: str | None,
    properties: dict[str, str],
) -> None:
    """Run a cluster on this machine until SIGTERM or Ctrl-C.

    Starts ZooKeeper, the brokers, the schema registry, the REST proxy and the console, each as a process of its own, on
    127.0.0.1. Prints a line that starts with `ready`, with the addresses for clients, when all brokers know each other
    and the services answer. A process that ends is started again; the wait before that doubles while its starts fail.
    Brokers ask the registry for topics with `schema.validation`. DIR/broker-N.pid has the process id of broker N, and
    DIR/broker-N its data; DIR/registry.pid, DIR/rest.pid and DIR/console.pid have those of the services. The services
    stop first and ZooKeeper last; a second Ctrl-C kills all processes. --monitor-port runs `ottla monitor`, too.

    One broker needs no ZooKeeper, and DIR is its data directory, as with `ottla broker`. More brokers need the extra
    `spark`, which installs ZooKeeper and a Java runtime for it. The services need the extra `edge` and are left out
    without it.

    The logs of all processes are on standard error, with the name of the process in front, or with --log-format json
    as its field `process`.
    """
    from ottla.cli.local_cluster import Plan, run_until_signal

    _check_settings(properties)
    if port and port + brokers - 1 > _PORT_MAX:
        raise click.UsageError(f"--port {port} leaves no ports for {brokers} brokers; the last port is {_PORT_MAX}")
    _check_data(data, brokers)
    services = [
        Service("registry", "schema registry", REGISTRY_PORT_DEFAULT, registry_port, no_registry),
        Service("rest", "REST proxy", REST_PORT_DEFAULT, rest_port, no_rest),
        Service("console", "console", CONSOLE_PORT_DEFAULT, console_port, no_console),
        Service("monitor", "monitor", 0, monitor_port, monitor_port is None, is_extra=True),
    ]
    _leave_out_uninstalled(services)
    with ExitStack() as stack:
        try:
            data.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            lock = _lock(data)
        except OSError as error:
            raise Failure(
                f"{data} cannot be written ({error.strerror}); choose another directory with --data"
            ) from None
        stack.callback(os.close, lock)
        numbers = range(1, brokers + 1) if brokers > 1 else [_single_id(data)]
        ports = {number: _reserve(stack, port and port + index) for index, number in enumerate(numbers)}
        zookeeper_port = _reserve(stack, 0) if brokers > 1 else 0
        registry, rest, console, monitor = (
            0 if service.is_left_out else _reserve(stack, service.port(port), service.port_remedy)
            for service in services
        )
        plan = Plan(
            data=data, ports=ports, zookeeper_port=zookeeper_port, registry_port=registry, rest_port=rest,
            console_port=console, monitor_port=monitor, settings=properties, log_format=log_format or TEXT,
            inherited=[lock],
        )  # fmt: skip
        run_until_signal(plan, _print)


@dataclass(slots=True)
class Service:
    """The options of one HTTP service."""

    #: of its command
    name: str
    title: str
    default: int
    chosen: int | None
    is_left_out: bool
    #: runs only if a port is chosen
    is_extra: bool = False

    def port(self, broker_port: int) -> int:
        """Return the port, 0 for a free one: that is also the default if the brokers have free ports."""
        if self.chosen is not None:
            return self.chosen
        return self.default if broker_port else 0

    @property
    def port_remedy(self) -> str:
        way = f"--{self.name}-port" if self.is_extra else f"--{self.name}-port, or leave it out with --no-{self.name}"
        return f"choose another for the {self.title} with {way}"


def _leave_out_uninstalled(services: Sequence[Service]) -> None:
    """Leave out all services if their packages are not installed. Raise Failure if a port was chosen for one."""
    wanted = [service for service in services if not service.is_left_out]
    missing = missing_package() if wanted else None
    if missing is None:
        return
    if any(service.chosen is not None for service in wanted):
        raise Failure(missing_message(missing))
    *others, last = (service.title for service in wanted)
    titles = f"{', '.join(others)} and {last}" if others else last
    _print(f"without {titles}: {missing_message(missing)}")
    for service in wanted:
        service.is_left_out = True


def _print(line: str) -> None:
    """Print a line. The cluster continues without output if the program that reads it has ended."""
    try:
        click.echo(line)
    except BrokenPipeError:
        abandon_stdout()


def _check_settings(properties: dict[str, str]) -> None:
    """Raise UsageError for a setting that is different for each broker."""
    for name in properties:
        if name in _OWN_SETTINGS:
            raise click.UsageError(f"-X {name} cannot be the same for all brokers: 'ottla up' sets it for each broker")


def _check_data(data: Path, brokers: int) -> None:
    """Raise Failure if the directory has the data of another kind of cluster, or of more brokers."""
    if brokers > 1 and (data / _META).exists():
        raise Failure(
            f"{data} has the data of a single broker, which cannot become a cluster; choose another directory with "
            "--data, or start it with --brokers 1"
        )
    last = max(
        (int(path.name.removeprefix("broker-")) for path in data.glob("broker-*") if _is_broker(path)), default=0
    )
    if last > brokers:
        raise Failure(f"{data} has the data of {last} brokers; start them with --brokers {last}")


def _single_id(data: Path) -> int:
    """Return the id of the broker whose data directory this is, or that which `ottla broker` gives a new one."""
    meta = load_properties(str(data / _META)) if (data / _META).exists() else {}
    number = meta.get("broker.id", meta.get("node.id", ""))
    return int(number) if number.isdigit() else 0


def _is_broker(path: Path) -> bool:
    return path.is_dir() and path.name.removeprefix("broker-").isdigit()


def _lock(data: Path) -> int:
    """Return a file descriptor with a lock on the directory. Raise Failure if another command uses it.

    The processes inherit it: after this command was killed, the lock lasts until they have ended.
    """
    lock = os.open(data / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    deadline = time.monotonic() + _LOCK_S_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                raise Failure(
                    f"another 'ottla up' uses {data}; stop it, or choose another directory with --data"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _reserve(stack: ExitStack, port: int, remedy: str = "choose others with --port") -> int:
    """Return this port, or a free one for 0. It stays reserved until the stack is closed. Raise Failure if in use."""
    from ottla.cli.local_cluster import HOST, reserve_port

    try:
        reserved = stack.enter_context(reserve_port(port))
    except OSError as error:
        raise Failure(
            f"cannot listen on {HOST}:{port} ({error.strerror}); stop the program that uses the port, or {remedy}"
        ) from None
    found: int = reserved.getsockname()[1]
    return found
