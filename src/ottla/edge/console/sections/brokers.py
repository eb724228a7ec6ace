"""The brokers: leaders, replicas, disks, settings, and what their metrics pages say. Elections and moves start here."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla import __version__
from ottla.admin import outages
from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.admin.logs import DirectoryState, describe_directories
from ottla.admin.topic_state import ConfigValue, PartitionState
from ottla.client.protocol.metadata import Node
from ottla.edge.console import formats
from ottla.edge.console.broker_metrics import BrokerFigures, BrokerMetrics
from ottla.edge.console.cluster_map import BrokerLoad, ClusterMap, cluster_map
from ottla.edge.console.console import Console
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, Tab, View
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.edge.console.sections.moves import move_routes
from ottla.edge.console.sections.topic_details import config_row
from ottla.model.errors import StartError
from ottla.model.settings_broker import BrokerSettings
from ottla.model.types import TopicPartition
from ottla.wire.messages.api_versions import ApiVersionsRequest

_AGE_S: Final = 5.0
#: the release of a broker changes with a restart
_RELEASE_AGE_S: Final = 60.0
_ROWS: Final = 100
#: a broker that takes longer reports no release
_ANSWER_S_MAX: Final = 3.0
_LARGEST: Final = 20
_OWN_SOURCE: Final = "DYNAMIC_BROKER_CONFIG"
_TABS: Final = (
    ("Partitions", "partitions"), ("Disks", "disks"), ("Configs", "configs"), ("Requests", "requests"),
)  # fmt: skip
#: the lowest level of metadata.version of each release
_RELEASES: Final = (
    (7, "3.3"), (8, "3.4"), (9, "3.5"), (12, "3.6"), (15, "3.7"), (20, "3.8"), (21, "3.9"), (22, "4.0"), (26, "4.1"),
    (28, "4.2"), (30, "4.3"), (31, "4.4"),
)  # fmt: skip


class Brokers:
    """The section of the brokers."""

    key, title, path, letter = "brokers", "Brokers", "brokers", "b"

    def __init__(self) -> None:
        self._metrics = BrokerMetrics(())

    def is_available(self, console: Console) -> bool:
        try:
            self._metrics = BrokerMetrics(console.settings.broker_metrics_urls)
        except ValueError as error:
            raise StartError(str(error)) from None
        return True

    def routes(self) -> Sequence[Route]:
        own = "brokers/{broker}"
        return [
            Route("brokers", self.list, summary="List the brokers."),
            Route("broker-cells", self.cells, summary="Get disks, rates and releases of the brokers."),
            Route(own, self.show_partitions, summary="Show a broker."),
            Route(f"{own}/partitions", self.show_partitions, summary="Show the replicas of a broker."),
            Route(f"{own}/disks", self.show_disks, summary="Show the log directories of a broker."),
            Route(f"{own}/configs", self.show_configs, summary="Show the settings of a broker."),
            Route(f"{own}/requests", self.show_requests, summary="Show rates and latencies of a broker."),
            Route(f"{own}/edit-config", config_form, plan=set_config, role=Role.ADMIN, summary="Change a setting."),
            *move_routes(),
        ]

    # -- the list -----------------------------------------------------------------------------------------------------

    async def list(self, page: PageRequest) -> View:
        known = await cluster_map(page)
        rows = broker_rows(known)
        data: dict[str, Any] = {
            "brokers": rows, "controller": known.controller_id, "cluster_id": known.cluster_id,
            "not_preferred": sum(row["leaders"] != row["preferred_leaders"] for row in rows),
            "has_metrics": self._has_metrics(page), "cells": {}, "figures": {}, "problems": [],
        }  # fmt: skip
        if page.choice("full", ["", "yes"]) or "format" in page.query:
            data |= await self._figures(page, known)
        return View(
            "brokers/list.html", "Brokers", data, commands=("ottla cluster brokers", "kafka-broker-api-versions"),
            state="offline" if any(row["state"] == "offline" for row in rows) else "",
            extra={"is_full": bool(data["cells"])},
        )  # fmt: skip

    async def cells(self, page: PageRequest) -> View:
        return View("topics/cells.html", "Brokers", await self._figures(page, await cluster_map(page)))

    def _has_metrics(self, page: PageRequest) -> bool:
        return self._metrics.is_configured and page.cluster is page.console.clusters.first

    async def _figures(self, page: PageRequest, known: ClusterMap) -> dict[str, Any]:
        """Return disks, releases and rates of the brokers, and the reasons why some are missing."""
        nodes = list(known.brokers.values())
        try:
            (directories, problems), releases = await asyncio.gather(
                page.read("disks", partial(describe_directories, nodes=nodes, partitions=()), age_s=_AGE_S),
                page.read("releases", partial(_releases, nodes=nodes), age_s=_RELEASE_AGE_S),
            )
        except Failure as failure:
            return {"figures": {}, "cells": {}, "problems": [failure.message]}
        rates: Mapping[int, BrokerFigures] = {}
        if self._has_metrics(page):
            wanted = [number for number in known.brokers if self._metrics.knows(number)]
            found = await asyncio.gather(*(asyncio.to_thread(self._metrics.figures, number) for number in wanted))
            rates = dict(zip(wanted, found, strict=True))
            problems = problems + [each.problem for each in found if each.problem]
        figures = {
            str(number): _figures_of(number, directories, releases, rates.get(number, BrokerFigures()))
            for number in known.brokers
        }
        return {"figures": figures, "cells": {name: _cells(row) for name, row in figures.items()}, "problems": problems}

    # -- a broker -----------------------------------------------------------------------------------------------------

    async def show_partitions(self, page: PageRequest) -> View:
        number, known = await _broker(page)
        found = sorted(
            await asyncio.to_thread(known.partitions_on, number),
            key=lambda each: (number in each.isr, each.leader != number, each.name),
        )
        start = page.number("start", 0, high=max(len(found), 1))
        shown = found[start : start + _ROWS]
        node = known.brokers.get(number)
        sizes, problems = await _sizes(page, node, [each.name for each in shown]) if node else ({}, [])
        rows = [_replica_row(each, number) | {"size_bytes": sizes.get(each.name)} for each in shown]
        data = {
            "broker": number, "partitions": rows, "total": len(found), "start": start, "problems": problems,
            "host": node.host if node else None, "port": node.port if node else None, "rack": known.racks.get(number),
            "is_controller": number == known.controller_id, "runs": node is not None,
        }  # fmt: skip
        return self._view(page, number, known, "partitions", data, page_rows=_ROWS)

    async def show_disks(self, page: PageRequest) -> View:
        number, known = await _broker(page)
        directories: list[DirectoryState] = []
        problems = [] if number in known.brokers else [f"broker {number} does not run"]
        if not problems:
            read = partial(describe_directories, nodes=[known.brokers[number]])
            directories, problems = await page.read(("disks of", number), read, age_s=_AGE_S)
        logs = [
            {"topic": name.topic, "partition": name.partition, "size_bytes": log.size_bytes, "path": each.path,
             "lag": log.lag, "is_future": log.is_future}
            for each in directories
            for name, log in each.logs.items()
        ]  # fmt: skip
        logs.sort(key=lambda row: (-row["size_bytes"], row["topic"], row["partition"]))  # type: ignore[operator]
        data = {
            "broker": number, "problems": problems, "largest": logs[:_LARGEST], "logs_total": len(logs),
            "directories": [_directory_row(each) for each in directories],
        }  # fmt: skip
        return self._view(page, number, known, "disks", data)

    async def show_configs(self, page: PageRequest) -> View:
        number, known = await _broker(page)
        rows: list[dict[str, Any]] = []
        problem = "" if number in known.brokers else f"broker {number} does not run"
        if not problem:
            found = await page.read(("broker configs", number), partial(_describe, number=number), age_s=1.0)
            table = BrokerSettings.rows()
            rows = [
                config_row(each, _OWN_SOURCE) | {"help": table[each.name].documentation if each.name in table else ""}
                for each in found
            ]
            rows.sort(key=lambda row: (not row["is_own"], row["source"] == "DEFAULT_CONFIG", row["name"]))
        data = {"broker": number, "configs": rows, "problem": problem}
        return self._view(page, number, known, "configs", data)

    async def show_requests(self, page: PageRequest) -> View:
        number, known = await _broker(page)
        reason = ""
        if page.cluster is not page.console.clusters.first:
            reason = "broker.metrics.urls is about the brokers of the first cluster"
        elif not self._metrics.knows(number):
            reason = (
                f"the Kafka protocol has no rates and latencies of requests; start the broker with --metrics HOST:PORT "
                f"and this console with -X broker.metrics.urls={number}=http://HOST:PORT/metrics"
            )
        figures = BrokerFigures() if reason else await asyncio.to_thread(self._metrics.figures, number)
        data = {
            "broker": number, "reason": reason, "problem": figures.problem,
            "bytes_in_per_s": figures.bytes_in_per_s, "bytes_out_per_s": figures.bytes_out_per_s,
            "p99_ms": figures.p99_ms, "connections": figures.connections, "plain": dict(figures.plain),
            "apis": [{"api": each.api, "per_s": each.per_s, "p99_ms": each.p99_ms} for each in figures.apis],
        }  # fmt: skip
        return self._view(page, number, known, "requests", data)

    def _view(
        self, page: PageRequest, number: int, known: ClusterMap, tab: str, data: Mapping[str, Any], **extra: Any
    ) -> View:
        load = known.loads.get(number, BrokerLoad())
        return View(
            f"brokers/{tab}.html", f"Broker {number}", data, state=_state_of(number, known, load), extra=extra,
            tabs=[
                Tab(title=title, href=url("c", page.cluster.name, "brokers", number, key), is_open=key == tab)
                for title, key in _TABS
            ],
            commands=(
                f"ottla config describe --broker {number}" if tab == "configs" else "ottla cluster brokers",
                f"kafka-configs --describe --all --entity-type brokers --entity-name {number}" if tab == "configs" else
                f"kafka-log-dirs --describe --broker-list {number}",
            ),
        )  # fmt: skip


# -- rows --------------------------------------------------------------------------------------------------------------


def broker_rows(known: ClusterMap) -> list[dict[str, Any]]:
    """Return all brokers, also those that have replicas and do not run: these first, then those that are behind."""
    running = [load for number, load in known.loads.items() if number in known.brokers]
    average = sum(load.replicas for load in running) / len(running) if running else 0.0
    rows = []
    for number, load in known.loads.items():
        node = known.brokers.get(number)
        rows.append({
            "id": number, "state": _state_of(number, known, load), "host": node.host if node else None,
            "port": node.port if node else None, "rack": known.racks.get(number),
            "is_controller": number == known.controller_id, "leaders": load.leaders,
            "preferred_leaders": load.preferred, "replicas": load.replicas, "behind": load.behind,
            "skew": load.replicas / average - 1 if average and node else None,
        })  # fmt: skip
    return sorted(rows, key=lambda row: (("offline", "behind", "ok").index(row["state"]), row["id"]))


def _state_of(number: int, known: ClusterMap, load: BrokerLoad) -> str:
    return "offline" if number not in known.brokers else "behind" if load.behind else "ok"


def _figures_of(
    number: int, directories: Sequence[DirectoryState], releases: Mapping[int, str], rates: BrokerFigures
) -> dict[str, Any]:
    own = [each for each in directories if each.broker_id == number]
    total = sum(each.total_bytes for each in own if each.total_bytes is not None)
    usable = sum(each.usable_bytes for each in own if each.usable_bytes is not None)
    return {
        "disk_total_bytes": total or None, "disk_used_bytes": total - usable if total else None,
        "failed_directories": sum(bool(each.problem) for each in own), "release": releases.get(number),
        "bytes_in_per_s": rates.bytes_in_per_s, "bytes_out_per_s": rates.bytes_out_per_s, "p99_ms": rates.p99_ms,
        "connections": rates.connections,
    }  # fmt: skip


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    disk = "not reported"
    if row["disk_total_bytes"]:
        share = row["disk_used_bytes"] / row["disk_total_bytes"]
        disk = f"{formats.size(row['disk_used_bytes'])} of {formats.size(row['disk_total_bytes'])}, {share:.0%}"
    if row["failed_directories"]:
        disk += f"; {row['failed_directories']} directories failed"
    return {
        "disk": disk, "release": row["release"] or "not reported",
        "in": _rate(row["bytes_in_per_s"]), "out": _rate(row["bytes_out_per_s"]),
        "p99": "under 1 ms" if (row["p99_ms"] or 1) < 1 else formats.duration(row["p99_ms"]),
    }  # fmt: skip


def _rate(value: float | None) -> str:
    return formats.UNKNOWN if value is None else f"{formats.size(value)}/s"


def _replica_row(each: PartitionState, number: int) -> dict[str, Any]:
    return {
        "topic": each.name.topic, "partition": each.name.partition, "is_leader": each.leader == number,
        "is_preferred": each.preferred == number, "is_in_sync": number in each.isr, "leader": each.leader,
        "state": "offline" if each.leader is None else "ok" if number in each.isr else "behind",
    }  # fmt: skip


def _directory_row(each: DirectoryState) -> dict[str, Any]:
    used = None
    if each.total_bytes and each.usable_bytes is not None:
        used = each.total_bytes - each.usable_bytes
    return {
        "path": each.path, "problem": each.problem, "total_bytes": each.total_bytes, "used_bytes": used,
        "size_bytes": each.size_bytes, "logs": len(each.logs),
    }  # fmt: skip


# -- readings ----------------------------------------------------------------------------------------------------------


async def _broker(page: PageRequest) -> tuple[int, ClusterMap]:
    """Return the broker that the path names. Raise BadInput or NotFound."""
    text, known = page.params["broker"], await cluster_map(page)
    if not text.isdecimal() or len(text) > 10:
        raise BadInput(f"broker: {text[:20]!r} is not the id of a broker")
    if int(text) not in known.loads:
        raise outages.unknown_broker(int(text), known.brokers)
    return int(text), known


async def _sizes(
    page: PageRequest, node: Node, names: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[str]]:
    try:
        read = partial(describe_directories, nodes=[node], partitions=names)
        directories, problems = await page.read(("sizes at", node.broker_id, tuple(names)), read, age_s=_AGE_S)
    except Failure as failure:
        return {}, [failure.message]
    return {
        name: log.size_bytes for each in directories for name, log in each.logs.items() if not log.is_future
    }, problems


def _releases(client: AdminClient, nodes: Sequence[Node]) -> dict[int, str]:
    """Return the release of Kafka whose protocol each broker speaks, as far as it says so."""
    found = {}
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
    for node in nodes:
        try:
            answer = client.ask(node, request, timeout_s=min(client.timeout_s, _ANSWER_S_MAX))
        except Failure:
            continue
        level = next((row.max_version for row in answer.supported_features if row.name == "metadata.version"), 0)
        release = next((name for least, name in reversed(_RELEASES) if level >= least), None)
        if release is not None:
            found[node.broker_id] = f"as Kafka {release}"
    return found


def _describe(client: AdminClient, number: int) -> list[ConfigValue]:
    client.check_broker(number)
    return client.describe_config("broker", str(number))


# -- settings ----------------------------------------------------------------------------------------------------------


async def config_form(page: PageRequest) -> View:
    number, _ = await _broker(page)
    name = page.query.get("name", "")
    found = await page.run(partial(_setting, number=number, name=name))
    row = BrokerSettings.rows().get(name)
    data = {
        "broker": number, "name": name, "value": found.value or "", "is_own": found.source == _OWN_SOURCE,
        "help": row.documentation if row is not None else "", "is_sensitive": found.is_sensitive,
        "allowed": row.check.allowed if row is not None else "",
    }  # fmt: skip
    return View(
        "topics/edit_config.html", f"{name} of broker {number}", data, commands=_config_commands(number, name, "VALUE")
    )


async def set_config(page: PageRequest) -> Plan:
    number, _ = await _broker(page)
    name = page.form.get("name", "").strip()
    value = None if page.choice("then", ["set", "reset"]) == "reset" else page.form.get("value", "").strip()
    before = await page.run(partial(_setting, number=number, name=name))
    if before.is_read_only:
        raise BadInput(f"name: {name} can only be changed in the file of the broker, before it starts")
    change = partial(_alter, number=number, name=name, value=value)
    await page.run(partial(change, dry_run=True))
    after = value
    if value is None:
        after = next((each.value for each in before.synonyms if each.source != _OWN_SOURCE), "the default")
    old, new = ("(hidden)", "(hidden)") if before.is_sensitive else (before.value, after)
    is_own = before.source == _OWN_SOURCE
    is_same = not is_own if value is None else is_own and before.value == value and not before.is_sensitive
    return Plan(
        title=f"{'Reset' if value is None else 'Set'} {name} of broker {number}",
        changes=[] if is_same else [Change(name, old, new)],
        warnings=["The other brokers keep their values."], confirm=f"broker {number}",
        commands=_config_commands(number, name, "VALUE" if before.is_sensitive else value),
        apply=partial(change, dry_run=False), then=f"brokers/{number}/configs",
    )  # fmt: skip


def _setting(client: AdminClient, number: int, name: str) -> ConfigValue:
    found = next((each for each in client.describe_config("broker", str(number)) if each.name == name), None)
    if found is None:
        raise BadInput(f"name: broker {number} has no setting {name[:80]!r}")
    return found


def _alter(client: AdminClient, number: int, name: str, value: str | None, *, dry_run: bool) -> Sequence[str]:
    values = {} if value is None else {name: value}
    client.alter_config("broker", str(number), values, [name] if value is None else [], dry_run=dry_run)
    return [f"{name} of broker {number}: {'reset' if value is None else 'set'}"]


def _config_commands(number: int, name: str, value: str | None) -> tuple[str, ...]:
    entity = f"--entity-type brokers --entity-name {number}"
    if value is None:
        return (
            f"ottla config unset --broker {number} {name}",
            f"kafka-configs --alter {entity} --delete-config {name}",
        )
    pair = shlex.quote(f"{name}={value}")
    return f"ottla config set --broker {number} {pair}", f"kafka-configs --alter {entity} --add-config {pair}"
