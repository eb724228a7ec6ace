"""Runs a broker: reads its settings, handles signals, returns the exit code of the process."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.broker.broker import Broker
from ottla.env.collector import FreezeSurvivors
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings, InvalidSettings, parse_properties

OK, FAILED, USAGE = 0, 1, 2
END_WITH_STDIN = "OTTLA_END_WITH_STDIN"


def run_broker(
    *, properties: Mapping[str, str], config_file: str | None, data: str | None, listeners: Sequence[str],
    broker_id: int | None, metrics: str | None,
) -> int:  # fmt: skip
    """Run a broker until SIGTERM or SIGINT. Return the exit code of the process."""
    if not __debug__:
        return _complain("python -O switches off checks that keep data safe; start without it", USAGE)
    try:
        settings = gather_settings(properties, config_file, data, listeners, broker_id, metrics)
    except (InvalidSettings, OSError, ValueError) as error:
        return _complain(str(error), USAGE)
    _log_to_stderr(settings.log_level)
    for name in settings.ignored:
        logging.getLogger(__name__).warning("setting has no effect here name=%s", name)
    _raise_open_files_limit()
    FreezeSurvivors().install()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


def gather_settings(
    properties: Mapping[str, str], config_file: str | None, data: str | None, listeners: Sequence[str],
    broker_id: int | None, metrics: str | None,
) -> BrokerSettings:  # fmt: skip
    """Return the settings of the file, overridden by options, overridden by ``-X``."""
    merged: dict[str, str] = {}
    if config_file is not None:
        merged |= parse_properties(_read_config(config_file))
    if data is not None:
        merged["log.dirs"] = data
    if listeners:
        merged["listeners"] = ",".join(listeners)
    if broker_id is not None:
        merged.pop("node.id", None)
        merged["broker.id"] = str(broker_id)
    if metrics is not None:
        merged["metrics.listener"] = metrics if "://" in metrics else f"HTTP://{metrics}"
    merged |= properties
    return BrokerSettings.parse(merged)


def _read_config(path: str) -> str:
    """Return the text of a settings file. Raise ValueError with what to do if it cannot be read."""
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError:
        remedy = "check the path after --config, or leave --config out to start with the default settings"
        raise ValueError(f"settings file {path} does not exist; {remedy}") from None
    except OSError as error:
        raise ValueError(f"settings file {path} cannot be read: {error.strerror}; check --config") from None
    except UnicodeDecodeError:
        raise ValueError(f"settings file {path} is not UTF-8 text; check --config") from None


async def _serve(settings: BrokerSettings) -> int:
    loop = asyncio.get_running_loop()
    broker = Broker(settings, loop=loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.request_stop)
    if os.environ.get(END_WITH_STDIN):
        # For tests: stop when the process that started this broker has ended, which closes the other end.
        loop.add_reader(sys.stdin.fileno(), broker.request_stop)
    try:
        await broker.start()
    except StartError as error:
        await broker.abandon()
        return _complain(str(error), FAILED)
    where = ",".join(str(endpoint) for endpoint in broker.endpoints)
    metrics = ""
    if (endpoint := settings.metrics_endpoint) is not None:
        metrics = f" metrics=http://{endpoint.host}:{broker.metrics_port}/metrics"
    sys.stdout.write(f"ready {where} id={settings.broker_id} data={','.join(settings.data_dirs)}{metrics}\n")
    sys.stdout.flush()
    notify_service_manager("READY=1")
    reason = await broker.ended
    notify_service_manager("STOPPING=1")
    await broker.stop()
    if reason is not None:
        return _complain(reason, FAILED)
    return OK


def notify_service_manager(state: str) -> None:
    """Tell systemd the state of a service of `Type=notify`. Do nothing without NOTIFY_SOCKET in the environment."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ stands for the zero byte of an abstract socket.
    target = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), target)
    except OSError as error:
        logging.getLogger(__name__).warning("service manager was not notified state=%s error=%s", state, error)


class _OneLine(logging.Formatter):
    """Formats a log event as one line; control characters, which clients may send in names, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.exc_info or ("\n" not in text and text.isprintable()):
            return text
        return text.encode("unicode_escape").decode("ascii")


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit: each partition and each client takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"ottla broker: {text}\n")
    return code
