"""Scenarios of kafka-groups and kafka-consumer-groups."""

from __future__ import annotations

from tool_actions import committed, member, records
from tool_scenarios import Scenario, Step


def _groups(arguments: str) -> Step:
    return Step("kafka-groups", arguments, unordered=True)


_GROUPS = Scenario(
    name="groups",
    is_alone=True,
    steps=[
        _groups("{b} --list"),
        Step("kafka-topics", "{b} --create --topic orders --partitions 2"),
        records("orders", 5),
        committed("simple", "orders", {0: 3}),
        member("classic", "orders"),
        member("a-group-with-a-long-name-that-widens-the-table", "orders", protocol="consumer"),
        _groups("{b} --list"),
        _groups("{b} --list --consumer"),
        _groups("{b} --list --share"),
        _groups("{b} --list --streams"),
        _groups("{b} --list --group-type classic"),
        _groups("{b} --list --group-type Consumer"),
        _groups("{b} --list --group-type nonsense"),
        _groups("{b} --list --protocol consumer"),
        _groups("{b} --list --protocol '' --group-type classic"),
        _groups("{b} --list --consumer --share"),
        _groups("{b}"),
        _groups("--list"),
        _groups(""),
        _groups("--version"),
    ],
)

SCENARIOS = (_GROUPS,)
