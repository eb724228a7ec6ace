"""Alerts of all clusters of a monitor: takes readings, keeps the state in files, sends messages.

The file of rules is read again when it changes. A file with a problem changes nothing: the rules before it stay in
force, and `/alerts` and the log say what is wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ottla.edge.monitor.alerts.bodies import Origin, plain
from ottla.edge.monitor.alerts.delivery import Delivery, Outgoing, wall_clock_ms
from ottla.edge.monitor.alerts.engine import AlertEngine, BadState
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.observing import observe
from ottla.edge.monitor.alerts.rules import Rules
from ottla.edge.monitor.alerts.rules_file import DEFAULT, BadRules, load
from ottla.edge.monitor.alerts.state_file import StateFile
from ottla.edge.monitor.alerts.states import GAP_MS_MAX, Alert, Key, State
from ottla.edge.monitor.reading import ClusterReading
from ottla.env.metrics import Page, label_text
from ottla.env.tasks import Tasks
from ottla.model.errors import StartError
from ottla.model.printable import shown

log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
#: alerts of one reading that the log names
_LOGGED_MAX: Final = 20
#: times the interval of readings; a longer time without one says nothing about the time between
_GAP_INTERVALS: Final = 5


@dataclass(slots=True)
class ClusterAlerts:
    """The alerts of one cluster."""

    name: str
    engine: AlertEngine
    file: StateFile
    #: the last reading, until it is applied
    reading: ClusterReading | None = None
    #: what is in the file
    saved: bytes = b""
    #: the state may differ from that in the file
    is_changed: bool = True
    #: why the file could not be written; empty if it could
    problem: str = ""


class AlertService:
    """Used on the event loop; `run` is a task for as long as the monitor runs."""

    def __init__(
        self,
        path: str,
        clusters: Mapping[str, str],
        folder: Path,
        *,
        interval_s: float,
        now_ms: Callable[[], int] = wall_clock_ms,
        tasks: Tasks,
        delivery: Delivery | None = None,
    ) -> None:
        """Read the rules and the stored state. ``clusters`` has the bootstrap servers of each cluster by its name.

        Raise StartError if the rules cannot be used, or if the state cannot be stored.
        """
        self._path = path
        self._now_ms = now_ms
        self._delivery = delivery or Delivery(tasks, now_ms=now_ms)
        self._version = _version(path)
        try:
            self._rules = load(path)
        except BadRules as error:
            raise StartError(f"alerts.file: {error}") from None
        #: why the rules of the file are not those in force; empty if they are
        self._problem = ""
        self._wake = asyncio.Event()
        self._gap_ms = max(GAP_MS_MAX, int(interval_s * 1000) * _GAP_INTERVALS)
        self._clusters = {name: self._begin(name, servers, folder) for name, servers in clusters.items()}

    def _begin(self, name: str, servers: str, folder: Path) -> ClusterAlerts:
        # The name of a cluster is often `main`, and another monitor of this user may have another cluster.
        digest = hashlib.sha256(servers.encode()).hexdigest()[:8]
        cluster = ClusterAlerts(
            name, AlertEngine(self._rules), StateFile(folder / f"alerts-{quote(name, safe='')[:100]}-{digest}.json")
        )
        cluster.engine.alerts.gap_ms = self._gap_ms
        try:
            cluster.file.prepare()
            data = cluster.file.read()
        except OSError as error:
            raise StartError(
                f"the state of alerts cannot be stored in {shown(str(cluster.file.path))}: {error.strerror or error}; "
                "choose a directory with -X data.dir=DIR"
            ) from None
        if data is not None:
            try:
                cluster.engine.restore(data)
                cluster.saved = data
            except BadState as error:
                aside = cluster.file.set_aside()
                log.warning("state of alerts cannot be used and begins anew file=%s reason=%s", aside, error)
        return cluster

    def offer(self, reading: ClusterReading) -> None:
        """Take a reading. It is applied soon; one that follows sooner takes its place."""
        self._clusters[reading.cluster].reading = reading
        self._wake.set()

    async def run(self) -> None:
        """Apply readings and send messages for as long as the monitor runs."""
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), _EVERY_S)
            except TimeoutError:
                pass
            self._wake.clear()
            await self.step()

    async def step(self) -> None:
        """Apply the readings that have arrived, and send what is due to receivers that are free."""
        await self._reload()
        outgoing: list[Outgoing] = []
        for cluster in self._clusters.values():
            reading, cluster.reading = cluster.reading, None
            now_ms = self._now_ms()
            if reading is not None and reading.number:
                before = {each.key: each for each in cluster.engine.alerts.open()}
                cluster.engine.observe(observe(reading, now_ms))
                _log_changes(cluster, before)
                cluster.is_changed = True
            origin = Origin(cluster=cluster.name, url=self._rules.external_url)
            accepted = partial(self._accepted, cluster)
            outgoing += [
                Outgoing(message=each, origin=origin, accepted=accepted) for each in cluster.engine.due(now_ms)
            ]
            await self._save(cluster)
        self._delivery.offer(outgoing)

    def _accepted(self, cluster: ClusterAlerts, message: Message) -> None:
        cluster.engine.accepted(message, self._now_ms())
        cluster.is_changed = True
        self._wake.set()

    async def _reload(self) -> None:
        version = await asyncio.to_thread(_version, self._path)
        if version == self._version:
            return
        self._version = version
        try:
            rules = await asyncio.to_thread(load, self._path)
        except BadRules as error:
            self._problem = str(error)
            log.error("rules of alerts cannot be used and those before stay in force %s", error)
            return
        self._problem = ""
        self._use(rules)
        log.info("rules of alerts were read again file=%s rules=%d", self._path, len(rules.rules))

    def _use(self, rules: Rules) -> None:
        self._rules = rules
        for cluster in self._clusters.values():
            cluster.engine.use(rules)
            cluster.is_changed = True
        self._delivery.retry_now()

    async def _save(self, cluster: ClusterAlerts) -> None:
        if not cluster.is_changed:
            return
        cluster.is_changed = False
        data = cluster.engine.dump()
        if data == cluster.saved:
            return
        try:
            await asyncio.to_thread(cluster.file.write, data)
        except OSError as error:
            text = f"{shown(str(cluster.file.path))}: {error.strerror or error}"
            if text != cluster.problem:
                log.error("state of alerts cannot be stored: after a restart messages may be sent twice %s", text)
            cluster.problem, cluster.is_changed = text, True
        else:
            cluster.saved, cluster.problem = data, ""

    def view(self) -> dict[str, Any]:
        """Return what `/alerts` shows."""
        now_ms = self._now_ms()
        problems = [self._problem, *(each.problem for each in self._clusters.values())]
        return {
            "file": self._path,
            "problems": [each for each in problems if each],
            "receivers": [
                {"type": each.kind.value, **self._delivery.view(each.name)} for each in self._rules.receivers
            ],
            "clusters": [{"cluster": each.name, **each.engine.view(now_ms)} for each in self._clusters.values()],
        }

    def fill(self, page: Page) -> None:
        """Write the metrics of alerts."""
        for cluster in self._clusters.values():
            counts = {(rule.name, state): 0 for rule in self._rules.rules for state in (State.OPEN, State.PENDING)}
            for alert in cluster.engine.alerts.by_key.values():
                if (alert.rule, alert.state) in counts:
                    counts[alert.rule, alert.state] += 1
            for (rule, state), count in counts.items():
                labels = label_text(cluster=cluster.name, rule=rule, state=state.value)
                page.gauge("ottla_alerts", "Alerts of a rule.", count, labels)
        for receiver in self._rules.receivers:
            state_of = self._delivery.state_of(receiver.name)
            for outcome, number in (("accepted", state_of.accepted), ("failed", state_of.failed)):
                labels = label_text(receiver=receiver.name, outcome=outcome)
                page.counter("ottla_alert_messages", "Attempts to send a message to a receiver.", number, labels)
        page.gauge("ottla_alert_rules_valid", "1 if the file of rules is in force.", int(not self._problem))

    def close(self) -> None:
        """End the threads that send."""
        self._delivery.close()


def _log_changes(cluster: ClusterAlerts, before: Mapping[Key, Alert]) -> None:
    after = {each.key: each for each in cluster.engine.alerts.open()}
    opened = [each for key, each in after.items() if key not in before]
    closed = [each for key, each in before.items() if key not in after]
    for word, alerts in (("opened", opened), ("closed", closed)):
        for alert in alerts[:_LOGGED_MAX]:
            log.warning(
                "alert %s cluster=%s rule=%s severity=%s text=%s",
                word, cluster.name, alert.rule, alert.level.word, plain(alert.text),
            )  # fmt: skip
        if len(alerts) > _LOGGED_MAX:
            log.warning("more alerts %s cluster=%s number=%d", word, cluster.name, len(alerts) - _LOGGED_MAX)


def _version(path: str) -> tuple[int, ...]:
    """Return what changes with the contents of the file."""
    if path == DEFAULT:
        return ()
    try:
        found = os.stat(path)
    except OSError:
        return (0,)
    return found.st_mtime_ns, found.st_size, found.st_ino
