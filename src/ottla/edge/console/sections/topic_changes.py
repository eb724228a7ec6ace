"""What changes topics: create, settings, more partitions, deletion of records, deletion."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.admin.logs import delete_records
from ottla.admin.topic_state import ConfigValue
from ottla.edge.console import formats
from ottla.edge.console.cluster_map import cluster_map, topic_state
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, View, action
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.edge.console.topic_figures import settings_text, topic_settings
from ottla.edge.console.topic_tabs import topic_tabs
from ottla.model.settings_topic import TopicSettings
from ottla.model.types import TopicPartition

_PARTITIONS_MAX: Final = 100_000
_SETTINGS_MAX: Final = 200
_NAME_CHARACTERS_MAX: Final = 249
#: rows of a plan; a plan with more has one row for the rest
CHANGES_MAX: Final = 500
_UNTIL: Final = ("now", "time", "offset")
_OWN_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"
#: settings whose smaller values delete records
_RETENTIONS: Final = ("retention.ms", "retention.bytes")


def topic_change_routes() -> Sequence[Route]:
    """Return the routes of the actions on topics."""
    editor, admin = Role.EDITOR, Role.ADMIN
    return [
        Route("create-topic", create_form, plan=create, role=editor, summary="Create a topic."),
        Route("topics/{topic}/edit-config", config_form, plan=set_config, role=editor, summary="Change a setting."),
        Route("topics/{topic}/add-partitions", partitions_form, plan=add_partitions, role=editor,
              summary="Add partitions to a topic."),
        Route("topics/{topic}/empty", empty_form, plan=empty, role=admin, summary="Delete records of a topic."),
        action("topics/{topic}/delete", delete, admin, "Delete a topic."),
    ]  # fmt: skip


# -- create ------------------------------------------------------------------------------------------------------------


async def create_form(page: PageRequest) -> View:
    known = await cluster_map(page)
    data = {"brokers": len(known.brokers)}
    return View("topics/create.html", "Create a topic", data, commands=("ottla topic create --help",))


async def create(page: PageRequest) -> Plan:
    name = page.form.get("name", "").strip()
    if not 1 <= len(name) <= _NAME_CHARACTERS_MAX:
        raise BadInput(f"name: give a name with 1 to {_NAME_CHARACTERS_MAX} characters")
    partitions = page.number("partitions", -1, low=1, high=_PARTITIONS_MAX)
    replicas = page.number("replication_factor", -1, low=1, high=1000)
    settings = _settings_of(page.form.get("settings", ""))
    make = partial(_create, name=name, partitions=partitions, replicas=replicas, settings=settings)
    await page.run(partial(make, dry_run=True))
    shown = [
        Change("partitions", None, str(partitions) if partitions > 0 else "as many as the brokers' num.partitions"),
        Change("replicas", None, str(replicas) if replicas > 0 else "the brokers' default.replication.factor"),
        *(Change(key, None, value) for key, value in settings.items()),
    ]
    words = [shlex.quote(name)]
    words += ["--partitions", str(partitions)] if partitions > 0 else []
    words += ["--replication-factor", str(replicas)] if replicas > 0 else []
    words += [word for key, value in settings.items() for word in ("--config", shlex.quote(f"{key}={value}"))]
    return Plan(
        title=f"Create topic {name}", changes=shown,
        warnings=["One replica: a disk that fails takes the records with it."] if replicas == 1 else [],
        commands=(f"ottla topic create {' '.join(words)}", f"kafka-topics --create --topic {' '.join(words)}"),
        apply=partial(make, dry_run=False),
        then=_path(name),
    )  # fmt: skip


def _create(
    client: AdminClient, name: str, partitions: int, replicas: int, settings: Mapping[str, str], *, dry_run: bool
) -> Sequence[str]:
    (outcome,) = client.create_topics([name], partitions, replicas, settings, dry_run=dry_run)
    if outcome.failure is not None:
        raise outcome.failure
    if not dry_run:
        client.await_topics([name])
    return [f"created topic {name}"]


def _settings_of(text: str) -> dict[str, str]:
    """Return the settings of a form, one NAME=VALUE in each line. Raise BadInput."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, sign, value = line.partition("=")
        if not sign or not key.strip():
            raise BadInput(f"settings: {line[:80]!r} is not NAME=VALUE")
        found[key.strip()] = value.strip()
    if len(found) > _SETTINGS_MAX:
        raise BadInput(f"settings: give at most {_SETTINGS_MAX}")
    return found


# -- settings ----------------------------------------------------------------------------------------------------------


async def config_form(page: PageRequest) -> View:
    topic = page.params["topic"]
    name = page.query.get("name", "")
    found = await page.run(partial(_setting, topic=topic, name=name))
    row = TopicSettings.rows().get(name)
    data = {
        "topic": topic, "name": name, "value": found.value or "", "is_own": found.source == _OWN_SOURCE,
        "help": row.documentation if row is not None else "", "is_sensitive": found.is_sensitive,
        "allowed": row.check.allowed if row is not None else "",
    }  # fmt: skip
    return View(
        "topics/edit_config.html", f"{name} of {topic}", data, tabs=topic_tabs(page, topic, "configs"),
        commands=_config_commands(topic, name, "VALUE"),
    )  # fmt: skip


async def set_config(page: PageRequest) -> Plan:
    topic = page.params["topic"]
    name = page.form.get("name", "").strip()
    removes = page.choice("then", ["set", "reset"]) == "reset"
    value = None if removes else page.form.get("value", "").strip()
    before = await page.run(partial(_setting, topic=topic, name=name))
    change = partial(_alter, topic=topic, name=name, value=value)
    await page.run(partial(change, dry_run=True))
    after = _inherited(before) if removes else value
    old = "(hidden)" if before.is_sensitive else before.value
    is_same = old == value and before.source == _OWN_SOURCE if not removes else before.source != _OWN_SOURCE
    word = "Reset" if removes else "Set"
    return Plan(
        title=f"{word} {name} of {topic}",
        changes=[] if is_same else [Change(name, old, after if not before.is_sensitive else "(hidden)")],
        warnings=_config_warnings(name, before.value, after), commands=_config_commands(topic, name, value),
        apply=partial(change, dry_run=False), then=f"{_path(topic)}/configs",
    )  # fmt: skip


def _setting(client: AdminClient, topic: str, name: str) -> ConfigValue:
    found = next((each for each in client.describe_config("topic", topic) if each.name == name), None)
    if found is None:
        raise BadInput(f"name: topic {topic} has no setting {name[:80]!r}")
    return found


def _alter(client: AdminClient, topic: str, name: str, value: str | None, *, dry_run: bool) -> Sequence[str]:
    values = {} if value is None else {name: value}
    client.alter_config("topic", topic, values, [name] if value is None else [], dry_run=dry_run)
    return [f"{name} of {topic}: {'reset' if value is None else 'set'}"]


def _inherited(before: ConfigValue) -> str | None:
    """Return the value without an own one. Brokers do not report a default that they have in another unit."""
    return next((each.value for each in before.synonyms if each.source != _OWN_SOURCE), "the brokers' default")


def _config_warnings(name: str, before: str | None, after: str | None) -> list[str]:
    if name in _RETENTIONS and _limit(after) < _limit(before):
        return ["Records beyond the new limit are deleted soon, and do not come back."]
    if name == "cleanup.policy" and "delete" in (after or "") and "delete" not in (before or ""):
        return ["Records older than retention.ms are deleted soon, and do not come back."]
    if name == "cleanup.policy" and "compact" in (after or "") and "compact" not in (before or ""):
        return ["Of each key only the last record is kept, and records without a key are refused from now on."]
    if name == "unclean.leader.election.enable" and after == "true":
        return ["A replica without all committed records may become leader: records can be lost."]
    return []


def _limit(text: str | None) -> float:
    """Return a limit as a number; none, or -1, is no limit."""
    try:
        value = int(text or "-1")
    except ValueError:
        return float("inf")
    return value if value >= 0 else float("inf")


def _config_commands(topic: str, name: str, value: str | None) -> tuple[str, ...]:
    pair = shlex.quote(f"{name}={value}")
    entity = f"--entity-type topics --entity-name {topic}"
    if value is None:
        return (
            f"ottla topic alter {topic} --delete-config {name}",
            f"kafka-configs --alter {entity} --delete-config {name}",
        )
    return f"ottla topic alter {topic} --config {pair}", f"kafka-configs --alter {entity} --add-config {pair}"


# -- partitions --------------------------------------------------------------------------------------------------------


async def partitions_form(page: PageRequest) -> View:
    topic = await topic_state(page)
    data = {"topic": topic.name, "partitions": len(topic.partitions)}
    return View(
        "topics/add_partitions.html", f"Add partitions to {topic.name}", data,
        tabs=topic_tabs(page, topic.name, "partitions"), commands=_partition_commands(topic.name, "N"),
    )  # fmt: skip


async def add_partitions(page: PageRequest) -> Plan:
    topic = await topic_state(page)
    before = len(topic.partitions)
    total = page.number("total", before + 1, low=1, high=_PARTITIONS_MAX)
    if total <= before:
        raise BadInput(f"total: the topic has {before} partitions already; give a larger number")
    await page.run(lambda client: client.create_partitions(topic.name, total, dry_run=True))
    return Plan(
        title=f"Add {total - before} partitions to {topic.name}",
        changes=[Change("partitions", str(before), str(total))],
        warnings=[
            "Records with the same key go to another partition from now on, so that their order is kept only within "
            "the old and the new records. Partitions cannot be removed."
        ],
        commands=_partition_commands(topic.name, str(total)), then=f"{_path(topic.name)}/partitions",
        apply=partial(_add_partitions, topic=topic.name, total=total),
    )  # fmt: skip


def _add_partitions(client: AdminClient, topic: str, total: int) -> Sequence[str]:
    client.create_partitions(topic, total, dry_run=False)
    client.await_topics([topic])
    return [f"topic {topic} has {total} partitions"]


def _partition_commands(topic: str, total: str) -> tuple[str, ...]:
    return (
        f"ottla topic alter {topic} --partitions {total}",
        f"kafka-topics --alter --topic {topic} --partitions {total}",
    )


# -- records -----------------------------------------------------------------------------------------------------------


async def empty_form(page: PageRequest) -> View:
    topic = await topic_state(page)
    data = {"topic": topic.name, "partitions": len(topic.partitions)}
    return View(
        "topics/empty.html", f"Delete records of {topic.name}", data,
        tabs=topic_tabs(page, topic.name, "partitions"), extra={"until": _UNTIL},
        commands=("kafka-delete-records --offset-json-file FILE",),
    )  # fmt: skip


async def empty(page: PageRequest) -> Plan:
    topic = await topic_state(page)
    chosen = page.number("partition", -1, high=_PARTITIONS_MAX)
    names = [each.name for each in topic.partitions if chosen in (-1, each.name.partition)]
    if not names:
        raise BadInput(f"partition: topic {topic.name} has no partition {chosen}")
    settings = (await topic_settings(page, [topic.name])).get(topic.name, {})
    if "delete" not in settings.get("cleanup.policy", "delete"):
        raise BadInput(
            f"topic {topic.name} is compacted, and records of such a topic are deleted by tombstones only; set "
            "cleanup.policy to delete first"
        )
    ranges, targets = await page.run(partial(_targets, names=names, until=_until(page)))
    moved = {name: to for name, to in targets.items() if to > ranges[name][0]}
    count = sum(to - ranges[name][0] for name, to in moved.items())
    return Plan(
        title=f"Delete {formats.count(count)} records of {topic.name}",
        changes=limited([
            Change(f"partition {name.partition}: log start", str(ranges[name][0]), str(to))
            for name, to in sorted(moved.items())
        ]),
        warnings=["The records do not come back.", *_readers_behind(page, moved)], confirm=topic.name,
        commands=("kafka-delete-records --offset-json-file FILE",),
        apply=partial(_delete_records, targets=moved), then=f"{_path(topic.name)}/partitions",
    )  # fmt: skip


def _until(page: PageRequest) -> tuple[str, int]:
    """Return up to where records are deleted: to the end, to a time in ms, or to an offset."""
    kind = page.choice("until", _UNTIL)
    if kind == "time":
        return kind, _time_ms(page)
    return kind, page.number("offset", 0) if kind == "offset" else 0


def _time_ms(page: PageRequest) -> int:
    """Return the time of a form: milliseconds since 1970, or a date and a time in UTC. Raise BadInput."""
    text = page.form.get("time", "").strip()
    try:
        return (
            int(text) if text.isdecimal() else int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
        )
    except (ValueError, OverflowError):
        raise BadInput(f"time: {text[:40]!r} is not a time such as 2026-11-18T14:00, in UTC") from None


def _targets(
    client: AdminClient, names: Sequence[TopicPartition], until: tuple[str, int]
) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, int]]:
    """Return log start and end of the partitions, and the offset before which records are deleted."""
    kind, value = until
    ranges = client.log_ranges(names)
    if kind == "time":
        found = client.find_offsets(ranges, value)
        return ranges, {
            name: end if found[name].offset is None else min(found[name].offset or 0, end)
            for name, (_, end) in ranges.items()
        }
    if kind == "offset":
        return ranges, {name: min(value, end) for name, (_, end) in ranges.items()}
    return ranges, {name: end for name, (_, end) in ranges.items()}


def _readers_behind(page: PageRequest, moved: Mapping[TopicPartition, int]) -> list[str]:
    """Return the groups that have not read all records that are deleted, as far as they are known."""
    reading = page.console.watch(page.cluster).state.reading
    found = []
    for group in reading.groups.values() if reading else ():
        unread = sum(
            max(to - each.committed, 0)
            for name, to in moved.items()
            if (each := group.partitions.get(name)) is not None and each.committed is not None
        )
        if unread:
            found.append(f"Group {group.group_id} has not read {formats.count(unread)} of them.")
    return found[:20]


def _delete_records(client: AdminClient, targets: Mapping[TopicPartition, int]) -> Sequence[str]:
    starts, failures = delete_records(client, targets)
    if failures:
        first = next(iter(failures.values()))
        raise Failure(f"{len(failures)} of {len(targets)} partitions keep their records: {first.message}")
    return [f"{name}: the log starts at {start}" for name, start in sorted(starts.items())][:CHANGES_MAX]


# -- delete ------------------------------------------------------------------------------------------------------------


async def delete(page: PageRequest) -> Plan:
    topic = await topic_state(page)
    led = [each.name for each in topic.partitions if each.leader is not None]
    ranges = await page.run(lambda client: client.log_ranges(led))
    records = sum(end - start for start, end in ranges.values())
    settings = (await topic_settings(page, [topic.name])).get(topic.name, {})
    reading = page.console.watch(page.cluster).state.reading
    readers = [
        each.group_id
        for each in (reading.groups.values() if reading else ())
        if any(name.topic == topic.name for name in each.partitions)
    ]
    warnings = ["All records are deleted, and do not come back."]
    if readers:
        more = f" and {len(readers) - 5} more" if len(readers) > 5 else ""
        warnings.append(f"Groups read it: {', '.join(sorted(readers)[:5])}{more}.")
    if topic.internal:
        warnings.append("It is an internal topic: the cluster needs it for groups, transactions or its own state.")
    before = (
        f"{len(topic.partitions)} partitions, {topic.replication_factor} replicas, {formats.count(records)} records, "
        f"{settings_text(settings)}"
    )
    return Plan(
        title=f"Delete topic {topic.name}", changes=[Change(f"topic {topic.name}", before, None)], warnings=warnings,
        confirm=topic.name, apply=partial(_delete, topic=topic.name), then="topics",
        commands=(f"ottla topic delete {topic.name}", f"kafka-topics --delete --topic {topic.name}"),
    )  # fmt: skip


def _delete(client: AdminClient, topic: str) -> Sequence[str]:
    (outcome,) = client.delete_topics([topic])
    if outcome.failure is not None:
        raise outcome.failure
    return [f"deleted topic {topic}"]


# -- parts -------------------------------------------------------------------------------------------------------------


def limited(changes: Sequence[Change]) -> list[Change]:
    """Return the first changes of a large plan, and a row that counts the others."""
    if len(changes) <= CHANGES_MAX:
        return list(changes)
    rest = len(changes) - CHANGES_MAX
    return [*changes[:CHANGES_MAX], Change(f"and {rest} more", "…", "…")]


def _path(topic: str) -> str:
    return url("topics", topic).removeprefix("/")
