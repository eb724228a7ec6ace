"""The settings of brokers, topics and groups: all that other packages need of them.

text of a file --parse_properties--> texts --BrokerSettings.parse--> BrokerSettings
a topic's overrides + BrokerSettings --TopicSettings.resolve--> TopicSettings
DescribeConfigs         describe_topic, describe_broker, describe_broker_defaults
(Incremental)AlterConfigs   apply_incremental, then resolve or with_dynamic on the result
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.model.errors import InvalidConfig, InvalidRequest
from ottla.model.setting_types import LIST, PROBLEMS_MAX, STRING, InvalidSettings, Setting, format_value, unknown_name
from ottla.model.settings_broker import BROKER_SETTINGS, BrokerSettings
from ottla.model.settings_foreign import dynamic_refusal_of, is_secret
from ottla.model.settings_group import GROUP_SETTINGS, GroupSettings, broker_name, check_group_overrides
from ottla.model.settings_security import check_listener_text, is_listener_setting, listener_row
from ottla.model.settings_topic import TOPIC_SETTINGS, TopicSettings, min_insync_replicas, validate_topic_overrides

__all__ = [
    "BROKER_SETTINGS",
    "GROUP_SETTINGS",
    "TOPIC_SETTINGS",
    "AlterOp",
    "BrokerSettings",
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "GroupSettings",
    "InvalidSettings",
    "Setting",
    "TopicSettings",
    "apply_incremental",
    "check_group_overrides",
    "describe_broker",
    "describe_broker_defaults",
    "describe_group",
    "describe_topic",
    "min_insync_replicas",
    "parse_properties",
    "unknown_settings",
    "validate_topic_overrides",
]


# Properties files


def parse_properties(text: str) -> dict[str, str]:
    """Return the names and texts of a Java properties file. If a name occurs twice, the last text counts."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        # The name ends at the first separator that is not escaped by a backslash; one "=" or ":" may follow it.
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None, "every part of the pattern may be empty"
        properties[_unescape(match[1], number)] = _unescape(match[2], number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first physical line: continuations joined, comments and blanks omitted."""
    parts: list[str] = []
    first = 0
    lines = re.split(r"\r\n|\r|\n", text)
    for number, natural in enumerate(lines, start=1):
        line = natural.lstrip(" \t\f")
        if not parts:
            first = number
            if not line or line[0] in "#!":
                continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 and number < len(lines):
            parts.append(line[:-1])
            continue
        yield first, "".join([*parts, line])
        parts.clear()


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str, line: int) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise InvalidSettings([f"line {line}: \\u must be followed by four hexadecimal digits"])
        return _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", replace, text, flags=re.DOTALL)


# DescribeConfigs

#: the number of Kafka's ConfigType UNKNOWN
_UNKNOWN_TYPE = 0


class ConfigSource(IntEnum):
    """The source of a value, with its number in DescribeConfigs. Of sources 1 to 5 the smallest wins."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting in an answer of DescribeConfigs. The first of `synonyms` is the effective one."""

    name: str
    value: str | None
    type_id: int
    source_id: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerSettings, replication_factor: int = 1
) -> list[ConfigEntry]:
    """Return every topic setting, because Connect, Streams and tools that compare topics expect all of them."""
    settings = TopicSettings.resolve(overrides, broker, replication_factor)
    entries = []
    for row in TOPIC_SETTINGS.values():
        value = format_value(settings.value_of(row.name))
        names = [synonym.name for synonym in row.synonyms]
        synonyms = _broker_synonyms(names, broker)
        if all(synonym.source_id == ConfigSource.DEFAULT for synonym in synonyms):
            # As in Kafka: a default in another unit, such as that of log.retention.hours, is not shown.
            found = [synonym.name for synonym in synonyms]
            synonyms = synonyms[found.index(names[0]) :] if names and names[0] in found else ()
        if row.name in overrides:
            synonyms = (ConfigSynonym(row.name, value, ConfigSource.TOPIC), *synonyms)
        entries.append(_entry(row, value, synonyms))
    return entries


def describe_group(overrides: Mapping[str, str], broker: BrokerSettings) -> list[ConfigEntry]:
    """Return every setting of a group, whether the group exists or not."""
    settings = GroupSettings.resolve(overrides, broker)
    entries = []
    for row in GROUP_SETTINGS.values():
        value = format_value(settings.value_of(row.name))
        synonyms = _broker_synonyms([broker_name(row.name)], broker)
        if row.name in overrides:
            synonyms = (ConfigSynonym(row.name, value, ConfigSource.GROUP), *synonyms)
        entries.append(_entry(row, value, synonyms))
    return entries


def describe_broker(settings: BrokerSettings) -> list[ConfigEntry]:
    """Return every setting of this broker, and settings of Kafka that it was started with and ignores."""
    entries = []
    for row in BROKER_SETTINGS.values():
        value = format_value(settings.value_of(row.name))
        entries.append(_entry(row, value, _broker_synonyms([row.name], settings)))
        for alias in row.aliases:
            static = (ConfigSynonym(alias, value, ConfigSource.STATIC_BROKER),) if row.name in settings.explicit else ()
            entries.append(replace(_entry(row, value, static), name=alias))
    for name, text in settings.listener_overrides.texts.items():
        if (known := listener_row(name)) is not None:
            synonyms = _broker_synonyms([name, known.name], settings)
            entries.append(replace(_entry(known, text.strip(), synonyms), name=name))
    entries += [_ignored_entry(name, text.strip()) for name, text in settings.ignored.items()]
    unknown = unknown_settings({**settings.dynamic_defaults, **settings.dynamic_own})
    return entries + [_unknown_entry(name, _broker_synonyms([name], settings)) for name in unknown]


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Return those of the names of dynamic broker settings that have no row, and so no effect."""
    return [name for name in names if name not in BROKER_SETTINGS and not is_listener_setting(name)]


def _unknown_entry(name: str, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    """Return an entry as Kafka shows a setting that it does not know: without its value, which may be a secret."""
    return ConfigEntry(
        name=name,
        value=None,
        type_id=_UNKNOWN_TYPE,
        source_id=synonyms[0].source_id,
        read_only=True,
        sensitive=True,
        synonyms=tuple(synonym._replace(value=None) for synonym in synonyms),
        documentation="",
    )


def _ignored_entry(name: str, text: str) -> ConfigEntry:
    """Return an entry as Kafka shows a value that was set at start."""
    value = None if is_secret(name) else text
    return ConfigEntry(
        name=name,
        value=value,
        type_id=STRING.id,
        source_id=ConfigSource.STATIC_BROKER,
        read_only=True,
        sensitive=is_secret(name),
        synonyms=(ConfigSynonym(name, value, ConfigSource.STATIC_BROKER),),
        documentation="A setting of Kafka without effect in Ottla.",
    )


def describe_broker_defaults(settings: BrokerSettings) -> list[ConfigEntry]:
    """Return the dynamic defaults of the cluster, which a broker resource with an empty name stands for."""
    entries = []
    for name, text in settings.dynamic_defaults.items():
        synonym = ConfigSynonym(name, text.strip(), ConfigSource.DYNAMIC_DEFAULT_BROKER)
        row = listener_row(name) if is_listener_setting(name) else BROKER_SETTINGS.get(name)
        if row is None:
            entries.append(_unknown_entry(name, (synonym,)))
        else:
            entries.append(replace(_entry(row, synonym.value, (synonym,)), name=name))
    return entries


def _broker_synonyms(names: Iterable[str], settings: BrokerSettings) -> tuple[ConfigSynonym, ...]:
    names = list(names)
    layers = (
        (settings.dynamic_own, ConfigSource.DYNAMIC_BROKER),
        (settings.dynamic_defaults, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ({**settings.explicit, **settings.listener_overrides.static}, ConfigSource.STATIC_BROKER),
    )
    synonyms = [
        ConfigSynonym(name, layer[name].strip(), source) for layer, source in layers for name in names if name in layer
    ]
    for name in names:
        if name in BROKER_SETTINGS and (default := format_value(BROKER_SETTINGS[name].default)) is not None:
            synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT))
    return tuple(synonyms)


def _entry(row: Setting[Any], value: str | None, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    if row.sensitive:
        value = None
        synonyms = tuple(synonym._replace(value=None) for synonym in synonyms)
    return ConfigEntry(
        name=row.name,
        value=value,
        type_id=row.type.id,
        source_id=synonyms[0].source_id if synonyms else ConfigSource.DEFAULT,
        read_only=not row.dynamic,
        sensitive=row.sensitive,
        synonyms=synonyms,
        documentation=row.documentation,
    )


# AlterConfigs


class AlterOp(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def apply_incremental(
    current: Mapping[str, str],
    ops: Iterable[tuple[str, int, str | None]],
    table: Mapping[str, Setting[Any]],
) -> dict[str, str]:
    """Return `current` after `ops` of (name, operation, text); the table has the rows of the resource type.

    For AlterConfigs `current` is empty and all operations are SET. Raise InvalidRequest if the request is malformed,
    InvalidSettings (INVALID_CONFIG) if a name or a value is not allowed. Settings that contradict each other are
    detected when the result is resolved.
    """
    ops = list(ops)
    counts = Counter(name for name, _, _ in ops)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise InvalidRequest(f"each setting may be altered once per request; given twice: {', '.join(twice)}")
    changed = dict(current)
    problems: list[str] = []
    for name, operation, text in ops:
        try:
            _apply(changed, name, operation, text, table)
        except ValueError as error:
            problems.append(str(error))
        if len(problems) == PROBLEMS_MAX:
            break
    if problems:
        raise InvalidSettings(problems)
    return changed


def _apply(
    changed: dict[str, str], name: str, operation: int, text: str | None, table: Mapping[str, Setting[Any]]
) -> None:
    if operation not in AlterOp.__members__.values():
        raise InvalidRequest(f"operation {operation} on {name} is unknown; use 0 to 3")
    if operation == AlterOp.DELETE:
        # Unknown names can be deleted, because a newer version may have stored them.
        changed.pop(name, None)
        return
    if text is None:
        raise InvalidRequest(f"{name} has no value; use operation 1 (delete) to go back to the default")
    row = table.get(name)
    if table is BROKER_SETTINGS and is_listener_setting(name):
        row = listener_row(name)
        if row is not None and row.dynamic:
            check_listener_text(name, row, text)
        else:
            row = None
    if row is None and table is BROKER_SETTINGS and (refusal := dynamic_refusal_of(name)):
        raise InvalidRequest(refusal)
    if row is None:
        if table is not BROKER_SETTINGS:
            raise ValueError(unknown_name(name, table))
        if operation != AlterOp.SET:
            raise InvalidConfig(unknown_name(name, table))
        # Kafka stores it, because plug-ins of the broker may read it; kafkajs's test suite sets such a name. Ottla has
        # none and shows no value, which may be a secret, so it does not store it either.
        changed[name] = ""
        return
    if not row.dynamic:
        raise InvalidRequest(f"{name} cannot change while the broker runs; set it at start instead")
    if operation != AlterOp.SET:
        text = _append_or_subtract(row, changed.get(name), operation, text)
    row.parse(text)
    changed[name] = text


def _append_or_subtract(row: Setting[Any], current: str | None, operation: int, text: str) -> str:
    if row.type is not LIST:
        raise ValueError(f"{row.name} is not a list; only lists support append and subtract")
    items: tuple[str, ...] = row.parse_type(current) if current is not None else row.default or ()
    given = row.parse_type(text)
    if operation == AlterOp.APPEND:
        return ",".join(dict.fromkeys((*items, *given)))
    return ",".join(item for item in items if item not in given)
