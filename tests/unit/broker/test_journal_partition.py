"""In which partition a broker of a cluster notes the rebalances of its groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.coordination.rebalance_journal import journal_partition
from ottla.broker.partitions.partition import Role
from ottla.model.errors import NotLeaderOrFollower


def replicas(*roles: Role) -> Any:
    return {number: SimpleNamespace(number=number, role=role) for number, role in enumerate(roles)}


def test_rebalances_are_noted_in_a_partition_that_this_broker_leads() -> None:
    partitions = replicas(Role.FOLLOWER, Role.LEADER, Role.OFFLINE, Role.LEADER, Role.FOLLOWER)
    used: Any = [journal_partition(partitions, f"group-{number}") for number in range(20)]
    assert {each.number for each in used} == {1, 3}
    assert journal_partition(partitions, "g") is journal_partition(partitions, "g")


def test_broker_that_leads_no_partition_notes_nothing() -> None:
    with pytest.raises(NotLeaderOrFollower):
        journal_partition(replicas(Role.FOLLOWER, Role.OFFLINE), "g")
