"""Clients that send a JoinGroup and close their connection: neither the connection nor the member stays."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.clauses.group_requests import become_stable, join
from tests.hostile.harness import Attacked, scaled

from ottla.testing.raw import RawClient
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

pytestmark = pytest.mark.broker

LONGEST_MS = 1_800_000
#: connections that are open at the same time; the broker must accept them before the system's backlog is full
TOGETHER = 40
WAIT_S = 30.0


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def members_of(client: RawClient, group: str) -> int:
    (found,) = client.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return len(found.members)


@pytest.mark.parametrize("end", ["closed", "reset"])
def test_parked_joins_of_closed_clients_keep_neither_descriptors_nor_members(end: str) -> None:
    with Attacked() as target, RawClient(target.bootstrap) as good:
        eventually(lambda: good.ask(FindCoordinatorRequest(key="g"), 0).error_code == 0)
        good.create_topic("one")
        become_stable(good, "g", session_timeout=LONGEST_MS)  # it must not expire during the attack
        target.measure()
        before = descriptors(target.process.pid)
        for _ in range(scaled(5, 250)):
            with ExitStack() as stack:
                for _ in range(TOGETHER):
                    bad = stack.enter_context(RawClient(target.bootstrap))
                    bad.send(join("g", session_timeout=LONGEST_MS, rebalance_timeout=LONGEST_MS), 3)
                    if end == "reset":
                        bad.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: descriptors(target.process.pid) <= before)
        eventually(lambda: members_of(good, "g") == 1)
        target.report().check()
