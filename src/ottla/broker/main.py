"""Runs a broker: reads its settings, handles signals, returns the exit code of the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.env.collector import FreezeSurvivors
from ottla.env.disk import restrict_new_files
from ottla.env.process import (
    END_WITH_STDIN,
    log_to_stderr,
    notify_service_manager,
    raise_open_files_limit,
    read_settings_file,
)
from ottla.env.watchdog import LoopWatchdog
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings, InvalidSettings, parse_properties

OK, FAILED, USAGE = 0, 1, 2


def run_broker(
    *,
    properties: Mapping[str, str],
    config_file: str | None,
    data: str | None,
    listeners: Sequence[str],
    broker_id: int | None,
    metrics: str | None,
) -> int:
    """Run a broker until SIGTERM or SIGINT. Return the exit code of the process."""
    if not __debug__:
        return _complain("python -O switches off checks that keep data safe; start without it", USAGE)
    try:
        settings = gather_settings(
            properties, config_file=config_file, data=data, listeners=listeners, broker_id=broker_id, metrics=metrics
        )
    except (InvalidSettings, OSError, ValueError) as error:
        return _complain(str(error), USAGE)
    log_to_stderr(settings.log_level, settings.log_format)
    for name in settings.ignored:
        logging.getLogger(__name__).warning("setting has no effect here name=%s", name)
    restrict_new_files()
    raise_open_files_limit()
    FreezeSurvivors().install()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


def gather_settings(
    properties: Mapping[str, str],
    *,
    config_file: str | None = None,
    data: str | None = None,
    listeners: Sequence[str] = (),
    broker_id: int | None = None,
    metrics: str | None = None,
) -> BrokerSettings:
    """Return the settings of the file, overridden by options, overridden by ``-X``."""
    merged: dict[str, str] = {}
    if config_file is not None:
        merged |= parse_properties(read_settings_file(config_file))
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


async def _serve(settings: BrokerSettings) -> int:
    loop = asyncio.get_running_loop()
    try:
        broker = Broker(settings, system_environment(settings, loop))
    except StartError as error:
        return _complain(str(error), FAILED)
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
    # Not before: opening many logs takes longer than a stall.
    watchdog = LoopWatchdog(loop)
    broker.metrics.watch(watchdog)
    watchdog.start()
    reason = await broker.ended
    notify_service_manager("STOPPING=1")
    watchdog.stop()
    await broker.stop()
    if reason is not None:
        return _complain(reason, FAILED)
    return OK


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"ottla broker: {text}\n")
    return code
