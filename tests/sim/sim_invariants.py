"""Invariants of a broker's state, checked while it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sim_host import BrokerHost

from ottla.testing.history import Place

if TYPE_CHECKING:
    from sim_world import World

_SAMPLE_S = 0.02


class Invariants:
    """Samples the partitions of all running brokers."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: by broker and partition: epoch, log start, last stable offset, high watermark at the last sample
        self._last: dict[tuple[int, str], tuple[int, int, int, int]] = {}

    def forget(self, host: BrokerHost) -> None:
        """The process ended: a new one may start with lower values."""
        self._last = {key: value for key, value in self._last.items() if key[0] != host.broker_id}

    async def watch(self) -> None:
        while True:
            for host in self._world.hosts.values():
                if host.is_ready and host.broker is not None:
                    for partition in host.broker.replicas.all():
                        self._check(host, partition)
            await asyncio.sleep(_SAMPLE_S)

    def _check(self, host: BrokerHost, partition: Any) -> None:
        log, name = partition.log, str(partition.name)
        if partition.offline:
            return
        stable, high_watermark = partition.last_stable_offset, partition.high_watermark
        values = partition.leader_epoch, log.log_start_offset, stable, high_watermark
        before = self._last.get((host.broker_id, name))
        if before is not None:
            for what, old, new in zip(
                ("epoch", "log-start", "stable-offset", "high-watermark"), before, values, strict=True
            ):
                if new < old:
                    self._say(f"{what}-moved-back", f"{name}: from {old} to {new}")
        self._last[host.broker_id, name] = values
        if not log.log_start_offset <= stable <= high_watermark <= log.written_end_offset <= log.log_end_offset:
            line = f"{name}: start {log.log_start_offset}, stable {stable}, high watermark {high_watermark}"
            self._say("offsets-out-of-order", f"{line}, written {log.written_end_offset}, end {log.log_end_offset}")
        if log.synced_end_offset > log.written_end_offset:
            self._say("synced-not-written", f"{name}: {log.synced_end_offset} of {log.written_end_offset}")

    def acknowledged(self, place: Place, offset: int) -> None:
        """The record of an acknowledgement of acks=all must be synced, if the broker that sent it still runs."""
        for host in self._world.hosts.values():
            if host.is_ready and host.broker is not None:
                partition = host.broker.replicas.find(place.topic, place.partition)
                if partition is not None and partition.log.synced_end_offset <= offset < partition.log.log_end_offset:
                    self._say("acknowledged-unsynced", f"{place}: {offset}, synced {partition.log.synced_end_offset}")

    def at_end(self) -> None:
        for host in self._world.hosts.values():
            if host.broker is not None and host.broker._coordination is not None:
                coordination = host.broker._coordination
                mismatches = coordination.runtime.mismatches + coordination.transactions.mismatches
                if mismatches:
                    self._say("replay-differs", f"{host.name}: {mismatches} shards differ from a replay of their log")

    def _say(self, name: str, line: str) -> None:
        self._world.violation(name, line)
