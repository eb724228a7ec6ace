"""The tabs of a topic besides messages and partitions: groups, settings, schemas, producers, ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from ottla.admin import acls
from ottla.admin.acls import Acl
from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.admin.logs import describe_producers
from ottla.admin.topic_state import ConfigValue, TopicState
from ottla.client.registry import RegistryError, RegistryUnreachable
from ottla.edge.console.cluster_map import ClusterMap, cluster_map, topic_state
from ottla.edge.console.pages import PageRequest, Route, View
from ottla.edge.console.topic_tabs import topic_tabs
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.settings_topic import TopicSettings
from ottla.security.acls import Operation, PatternType, Permission, ResourceType

_AGE_S: Final = 1.0
_ROWS_MAX: Final = 1000
_OWN_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"
_SIDES: Final = ("value", "key")
_SUBJECT_NOT_FOUND: Final = 40401


def topic_detail_routes() -> Sequence[Route]:
    """Return the routes of these tabs."""
    return [
        Route("topics/{topic}/groups", show_groups, summary="Show the groups that read a topic."),
        Route("topics/{topic}/configs", show_configs, summary="Show the settings of a topic."),
        Route("topics/{topic}/schema", show_schema, summary="Show the schemas of a topic."),
        Route("topics/{topic}/producers", show_producers, summary="Show the active producers of a topic."),
        Route("topics/{topic}/acls", show_acls, summary="Show the ACLs that are about a topic."),
    ]


# -- groups ------------------------------------------------------------------------------------------------------------


async def show_groups(page: PageRequest) -> View:
    topic = (await topic_state(page)).name
    state = await page.console.watch(page.cluster).first()
    groups = state.reading.groups if state.reading else {}
    rows = await asyncio.to_thread(group_rows, topic, groups, state.lag_in_time)
    data = {
        "topic": topic, "groups": rows[:_ROWS_MAX], "total": len(rows), "is_reading": state.reading is None,
        "problem": state.problem, "problems": list(state.reading.problems) if state.reading else [],
        "read_at_ms": state.reading.read_at_ms if state.reading else None,
    }  # fmt: skip
    return View(
        "topics/groups.html", topic, data, tabs=topic_tabs(page, topic, "groups"),
        commands=("ottla group list", "kafka-consumer-groups --describe --all-groups"),
    )  # fmt: skip


def group_rows(topic: str, groups: Mapping[str, GroupLag], in_time: Mapping[str, GroupLag]) -> list[dict[str, Any]]:
    """Return the groups that read a topic, the one that is furthest behind first."""
    rows = []
    for group in groups.values():
        own = [each for name, each in group.partitions.items() if name.topic == topic]
        if not own:
            continue
        lags = [each.lag for each in own if each.lag is not None]
        rows.append({
            "group": group.group_id, "state": group.state, "lag": sum(lags) if lags else None,
            "members": len({each.member.member_id for each in own if each.member is not None}),
            "partitions": len(own), "committed_partitions": sum(each.committed is not None for each in own),
            "time_lag_ms": _time_lag(topic, in_time.get(group.group_id)),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (-(row["time_lag_ms"] or 0), -(row["lag"] or 0), row["group"]))


def _time_lag(topic: str, group: GroupLag | None) -> int | None:
    partitions: Mapping[Any, PartitionLag] = group.partitions if group else {}
    known = [
        each.time_lag_ms for name, each in partitions.items() if name.topic == topic and each.time_lag_ms is not None
    ]
    return max(known, default=None)


# -- settings ----------------------------------------------------------------------------------------------------------


async def show_configs(page: PageRequest) -> View:
    topic = page.params["topic"]
    read = partial(_describe_config, topic=topic)
    found = await page.read(("configs", topic), read, age_s=_AGE_S)
    known = TopicSettings.rows()
    rows = [config_row(each, _OWN_SOURCE) | {"help": _help(known, each.name)} for each in found]
    rows.sort(key=lambda row: (not row["is_own"], row["name"]))
    return View(
        "topics/configs.html", topic, {"topic": topic, "configs": rows}, tabs=topic_tabs(page, topic, "configs"),
        commands=(
            f"ottla topic describe {topic} --configs",
            f"kafka-configs --describe --entity-type topics --entity-name {topic} --all",
        ),
    )  # fmt: skip


def _describe_config(client: AdminClient, topic: str) -> list[ConfigValue]:
    return client.describe_config("topic", topic)


def _help(known: Mapping[str, Any], name: str) -> str:
    row = known.get(name)
    return row.documentation if row is not None else ""


def config_row(each: ConfigValue, own_source: str) -> dict[str, Any]:
    """Return a setting as values of JSON, with the value that it has without one of its own."""
    inherited = next((one for one in each.synonyms if one.source != own_source), None)
    return {
        "name": each.name, "value": each.value, "source": each.source, "is_own": each.source == own_source,
        "default": inherited.value if inherited else None, "default_source": inherited.source if inherited else None,
        "is_read_only": each.is_read_only, "is_sensitive": each.is_sensitive,
    }  # fmt: skip


# -- schemas -----------------------------------------------------------------------------------------------------------


async def show_schema(page: PageRequest) -> View:
    topic = (await topic_state(page)).name
    subjects, problem = [], ""
    try:
        found = await asyncio.gather(*(_latest(page, f"{topic}-{side}") for side in _SIDES))
        subjects = [each for each in found if each is not None]
    except (RegistryError, RegistryUnreachable) as error:
        problem = str(error)
    if page.console.registry is None:
        problem = "this console has no schema registry; start it with --registry URL"
    data = {"topic": topic, "subjects": subjects, "problem": problem}
    return View(
        "topics/schema.html", topic, data, tabs=topic_tabs(page, topic, "schema"),
        commands=(f"ottla schema get {topic}-value",),
    )  # fmt: skip


async def _latest(page: PageRequest, subject: str) -> dict[str, Any] | None:
    """Return the last version of a subject; None if there is no such subject, or no registry."""
    if page.console.registry is None:
        return None
    path = f"/subjects/{quote(subject, safe='')}/versions/latest"
    try:
        found = await page.console.registry.ask(page.caller.identity, "GET", path)
    except RegistryError as error:
        if error.code == _SUBJECT_NOT_FOUND:
            return None
        raise
    return {
        "subject": subject, "version": found["version"], "id": found["id"],
        "type": found.get("schemaType", "AVRO"), "schema": found["schema"],
    }  # fmt: skip


# -- producers ---------------------------------------------------------------------------------------------------------


async def show_producers(page: PageRequest) -> View:
    known, topic = await asyncio.gather(cluster_map(page), topic_state(page))
    problem = ""
    try:
        read = partial(_read_producers, known=known, topic=topic)
        rows, problems = await page.read(("producers", topic.name), read, age_s=_AGE_S)
    except Failure as failure:
        rows, problems, problem = [], [], failure.message
    data = {
        "topic": topic.name, "producers": rows[:_ROWS_MAX], "total": len(rows), "problems": problems,
        "problem": problem,
    }  # fmt: skip
    return View(
        "topics/producers.html", topic.name, data, tabs=topic_tabs(page, topic.name, "producers"),
        commands=(
            f"ottla txn hanging --topic {topic.name}",
            f"kafka-transactions describe-producers --topic {topic.name} --partition 0",
        ),
    )  # fmt: skip


def _read_producers(
    client: AdminClient, known: ClusterMap, topic: TopicState
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the producers of a topic, those with an open transaction first, then the newest."""
    leaders = {
        each.name: known.brokers[each.leader]
        for each in topic.partitions
        if each.leader is not None and each.leader in known.brokers
    }
    found, problems = describe_producers(client, leaders)
    found.sort(key=lambda each: (each.transaction_start is None, -(each.last_timestamp or 0), each.name))
    rows = [
        {
            "partition": each.name.partition, "producer_id": each.producer_id, "producer_epoch": each.producer_epoch,
            "last_sequence": each.last_sequence, "last_timestamp": each.last_timestamp,
            "transaction_start": each.transaction_start,
        }
        for each in found
    ]  # fmt: skip
    return rows, problems


# -- ACLs --------------------------------------------------------------------------------------------------------------


async def show_acls(page: PageRequest) -> View:
    topic = page.params["topic"]
    matching = Acl(ResourceType.TOPIC, topic, PatternType.MATCH, None, None, Operation.ANY, Permission.ANY)
    rows: list[dict[str, Any]] = []
    problem = ""
    try:
        found = await page.read(("acls of", topic), partial(acls.describe, filters=[matching]), age_s=_AGE_S)
        rows = sorted((each.row() for each in found), key=lambda row: [str(value) for value in row.values()])
    except Failure as failure:
        problem = failure.message
    data = {"topic": topic, "acls": rows[:_ROWS_MAX], "total": len(rows), "problem": problem}
    return View(
        "topics/acls.html", topic, data, tabs=topic_tabs(page, topic, "acls"),
        commands=(f"ottla acl list --topic {topic}", f"kafka-acls --list --topic {topic}"),
    )  # fmt: skip
