"""Reads a cluster again and again while somebody looks at it: rates, lag, and what is wrong.

A page tells the watch that it is open (`look`). Without a page for a minute nothing is read. A reading that takes long
is repeated less often, so that the console takes at most a fifth of the time of one thread, also with 10,000 topics.

    every 2 s    the ends of all logs and the commits of all groups: rates and lag
    every 10 s   also the time lag, the settings, the disks, and the checks of `ottla.health`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.admin.client import AdminClient
from ottla.edge.console.clusters import ClusterAccess
from ottla.edge.console.history import History
from ottla.health.evaluation import evaluate
from ottla.health.findings import Finding
from ottla.health.picture import PictureOptions, read_picture
from ottla.health.types import ClusterPicture
from ottla.lag.observed import ObservedGroups
from ottla.lag.reading import LagReader
from ottla.lag.types import GroupLag, LagSnapshot
from ottla.model.errors import OttlaError

_EVERY_S: Final = 2.0
_PICTURE_EVERY_S: Final = 10.0
#: a reading takes at most this share of the time
_SHARE_MAX: Final = 0.2
#: nothing is read if no page was open for this long
_IDLE_S: Final = 60.0
_FIRST_S_MAX: Final = 0.8
#: certificates change seldom, and each costs a connection
_CERTIFICATES_EVERY: Final = 30


@dataclass(slots=True)
class WatchState:
    """What is known of a cluster."""

    history: History = field(default_factory=History)
    reading: LagSnapshot | None = None
    #: the last readings of each group
    groups: ObservedGroups = field(default_factory=ObservedGroups)
    picture: ClusterPicture | None = None
    #: the lag in time, of the last reading that had it
    lag_in_time: Mapping[str, GroupLag] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    #: why the last reading failed; empty if it did not
    problem: str = ""
    #: how many readings there were
    number: int = 0


class ClusterWatch:
    """The watch of one cluster. Used on the event loop; `run` is a task for as long as the console runs."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self.state = WatchState()
        self._looked_at = -_IDLE_S
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._pictures = 0
        self._picture_due = 0.0

    def look(self) -> None:
        """A page shows the state of this cluster."""
        self._looked_at = time.monotonic()
        self._wanted.set()

    async def first(self) -> WatchState:
        """Return the state; wait a short time for the first reading, so that a page is not empty."""
        self.look()
        if not self.state.number:
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), _FIRST_S_MAX)
            except TimeoutError:
                pass
        return self.state

    async def changes(self) -> AsyncIterator[WatchState]:
        """Yield the state after each reading, for as long as the caller iterates."""
        while True:
            self.look()
            await self._changed.wait()
            yield self.state

    async def run(self) -> None:
        """Read the cluster while somebody looks at it."""
        while True:
            if time.monotonic() - self._looked_at > _IDLE_S:
                self._wanted.clear()
                await self._wanted.wait()
            began = time.monotonic()
            await self._read()
            self._report()
            seconds = time.monotonic() - began
            await asyncio.sleep(max(_EVERY_S - seconds, seconds / _SHARE_MAX - seconds, 0.1))

    async def _read(self) -> None:
        state = self.state
        try:
            if time.monotonic() >= self._picture_due:
                began = time.monotonic()
                before, has_certificates = state.picture, self._pictures % _CERTIFICATES_EVERY == 0
                self._pictures += 1
                options = PictureOptions(certificates=has_certificates)
                reading, picture = await self._cluster.run(lambda client: _read_picture(client, before, options))
                state.picture, state.lag_in_time = picture, reading.groups
                state.findings = evaluate(picture)
                self._picture_due = began + max(_PICTURE_EVERY_S, (time.monotonic() - began) / _SHARE_MAX)
            else:
                reading = await self._cluster.run(_read_ends)
            state.reading, state.problem = reading, ""
            state.history.add(reading)
            state.groups.add(reading)
        except OttlaError as error:
            state.problem = str(error)

    def _report(self) -> None:
        self.state.number += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _read_ends(client: AdminClient) -> LagSnapshot:
    return LagReader(client).read(with_time=False, all_topics=True)


def _read_picture(
    client: AdminClient, before: ClusterPicture | None, options: PictureOptions
) -> tuple[LagSnapshot, ClusterPicture]:
    reading = LagReader(client).read(all_topics=True)
    return reading, read_picture(client, options=options, lag=reading.groups, before=before)
