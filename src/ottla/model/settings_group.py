"""The settings that a consumer group can have of its own (KIP-848), bounded by settings of the broker.

A value comes from the first of: the group's own value, the broker setting `group.consumer.*` of the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

from ottla.model.setting_types import INT, InvalidSettings, Setting, SettingsSnapshot, at_least
from ottla.model.settings_broker import BrokerSettings


class GroupSettings(SettingsSnapshot):
    """The values of one group. Each row `consumer.X` belongs to the broker settings `group.consumer.[min.|max.]X`."""

    consumer_session_timeout_ms = Setting(
        "consumer.session.timeout.ms",
        INT,
        45_000,
        at_least(1),
        "Time without a heartbeat after which a member is removed.",
        dynamic=True,
    )
    consumer_heartbeat_interval_ms = Setting(
        "consumer.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        "Time between two heartbeats of a member.",
        dynamic=True,
    )
    consumer_assignment_interval_ms = Setting(
        "consumer.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        "Time between two assignments. Ottla assigns at once.",
        dynamic=True,
        used=False,
    )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerSettings) -> Self:
        """Return the group's values. A value outside the broker's bounds, which may have changed, is moved inside."""
        settings = cls()
        for row in GROUP_SETTINGS.values():
            value = broker.value_of(broker_name(row.name))
            if row.name in overrides:
                low, high = bounds_of(row.name, broker)
                value = min(max(row.parse(overrides[row.name]), low), high)
            vars(settings)[row.attribute] = value
        return settings


GROUP_SETTINGS = GroupSettings.rows()


def broker_name(name: str) -> str:
    """Return the broker setting whose value a group without its own value has."""
    return f"group.{name}"


def bound_names(name: str) -> tuple[str, str]:
    """Return the broker settings that bound a group setting."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"


def bounds_of(name: str, broker: BrokerSettings) -> tuple[int, int]:
    """Return the lowest and the highest value that the broker allows for a group setting."""
    low, high = bound_names(name)
    return broker.value_of(low), broker.value_of(high)


def check_group_overrides(overrides: Mapping[str, str], broker: BrokerSettings) -> None:
    """Raise InvalidSettings if a value is outside the bounds that the broker has now."""
    problems = list(_out_of_bounds(overrides, broker))
    if problems:
        raise InvalidSettings(problems)


def _out_of_bounds(overrides: Mapping[str, str], broker: BrokerSettings) -> Iterator[str]:
    for name, text in overrides.items():
        if name in GROUP_SETTINGS:
            low, high = bounds_of(name, broker)
            if not low <= GROUP_SETTINGS[name].parse(text) <= high:
                low_name, high_name = bound_names(name)
                yield f"{name} must be between {low} ({low_name}) and {high} ({high_name}), not {text.strip()}"
