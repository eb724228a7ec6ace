"""The APIs that a broker serves, without a broker that runs."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from ottla.broker.broker import Broker
from ottla.broker.component import ServedApi
from ottla.broker.dispatch import table_of
from ottla.broker.environment import system_environment
from ottla.model.settings import BrokerSettings


@cache
def served_apis() -> dict[int, ServedApi]:
    """Return the table of a broker that was started and stopped, by API key."""

    async def run() -> dict[int, ServedApi]:
        with tempfile.TemporaryDirectory() as directory:
            settings = BrokerSettings.parse({"log.dirs": directory, "listeners": "PLAINTEXT://127.0.0.1:0"})
            broker = Broker(settings, system_environment(settings, asyncio.get_running_loop(), freeze=lambda: None))
            await broker.start()
            try:
                return table_of(broker.components)
            finally:
                await broker.stop()

    # In a thread of its own, because the caller may be a coroutine: a thread can run only one event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
