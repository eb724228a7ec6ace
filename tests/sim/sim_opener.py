"""Batches that are opened off the event loop: topics that need it, and an opener in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from ottla.broker.broker import Broker
from ottla.log.opening import InlineBudget, TooExpensive
from ottla.model.opening import OpeningRules, open_batch
from ottla.model.records import Bytes

#: settings of the topic by the kind of run. The lag keeps the cleaner away: all records of a run have the same key.
TOPICS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"},
    {"compression.type": "gzip"},
)
#: mean time for which a batch waits for the opener and is opened; some wait for a hundred times as long
_OPEN_S = 0.005
_SLOW = 0.05


class SimulatedOpener:
    """In place of ``Opener``: opens a batch in this process, after a virtual delay."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    async def open_batch(self, batch: Bytes, rules: OpeningRules, records: int) -> bytes | None:
        slower = 100.0 if self._rng.random() < _SLOW else 1.0
        await asyncio.sleep(self._rng.expovariate(1 / (_OPEN_S * slower)))
        return open_batch(batch, rules)

    def close(self) -> None:
        pass


class _NoBudget(InlineBudget):
    """The event loop opens no batch itself."""

    __slots__ = ()

    def run(self, task: Callable[[int], Any], *arguments: Any, **options: Any) -> Any:
        raise TooExpensive


def open_elsewhere(broker: Broker, rng: Random) -> None:
    """Let the opener open all batches that this broker must open."""
    broker.replicas.opener = SimulatedOpener(rng)  # type: ignore[assignment]
    broker.replicas.inline_budget = _NoBudget()
