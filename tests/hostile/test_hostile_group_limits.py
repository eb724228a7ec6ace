"""Attacks on the memory of the group coordinator: large metadata, many members, many member ids, many groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack

import pytest
from tests.clauses.group_requests import commit, join
from tests.hostile.harness import MIB, Attacked, scaled

from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.list_groups import ListGroupsRequest

pytestmark = pytest.mark.broker

LONGEST_MS = 1_800_000
FULL, VIOLATION, ID_REQUIRED = 81, 44, 79
IN_FLIGHT = 100


def prepare(target: Attacked, client: RawClient) -> None:
    client.create_topic("one")
    assert client.ask(FindCoordinatorRequest(key="any"), 1).error_code == 0
    target.measure()


def codes_of(client: RawClient, requests: Iterable[JoinGroupRequest], version: int) -> Counter[int]:
    """Send requests that are answered at once, many at a time."""
    codes: Counter[int] = Counter()
    sent: list[int] = []
    for request in requests:
        sent.append(client.send(request, version))
        if len(sent) == IN_FLIGHT:
            codes.update(client.receive(11, version, number).error_code for number in sent)
            sent.clear()
    codes.update(client.receive(11, version, number).error_code for number in sent)
    return codes


def test_join_with_large_metadata_is_refused() -> None:
    large = {"range": b"m" * (3 * MIB // 2)}
    with Attacked() as target, RawClient(target.bootstrap) as client:
        prepare(target, client)
        for number in range(scaled(5, 50)):
            answer = client.ask(join(f"g{number}", "", large, session_timeout=LONGEST_MS), 3)
            assert answer.error_code == VIOLATION
        target.report().check()


def test_metadata_of_one_host_is_bounded_over_all_its_members() -> None:
    """Static members keep their place, and their metadata, when their connection is closed."""
    metadata = {"range": b"m" * (MIB // 2)}
    settings = {"group.max.metadata.bytes.per.ip": str(scaled(8, 32) * MIB)}
    with Attacked(settings) as target, RawClient(target.bootstrap) as client, ExitStack() as stack:
        prepare(target, client)
        members = scaled(15, 63)
        for number in range(members):
            member = stack.enter_context(RawClient(target.bootstrap))
            waits = {"session_timeout": LONGEST_MS, "rebalance_timeout": LONGEST_MS}
            member.send(join(f"g{number}", "", metadata, group_instance_id=f"i{number}", **waits), 5)
        while len(client.ask(ListGroupsRequest(), 4).groups) < members:
            pass  # each join is on a connection of its own
        refused = join("other", "", metadata, group_instance_id="other", session_timeout=LONGEST_MS)
        assert client.ask(refused, 5).error_code == VIOLATION
        target.report().check()


def test_member_ids_of_one_host_are_bounded() -> None:
    ids_max = scaled(500, 10_000)
    settings = {"group.max.members.per.ip": str(ids_max)}
    with Attacked(settings) as target, RawClient(target.bootstrap, client_id="c" * 2000) as client:
        prepare(target, client)
        attempts = (join(f"g{number % 7}", session_timeout=LONGEST_MS) for number in range(2 * ids_max))
        codes = codes_of(client, attempts, 4)
        assert set(codes) == {ID_REQUIRED, FULL}
        assert codes[ID_REQUIRED] <= ids_max
        target.report().check()


def test_groups_of_one_host_are_bounded() -> None:
    groups_max = scaled(300, 20_000)
    settings = {"group.max.groups.per.ip": str(groups_max)}
    with Attacked(settings) as target, RawClient(target.bootstrap) as client:
        prepare(target, client)
        codes: Counter[int] = Counter()
        for start in range(0, 2 * groups_max, IN_FLIGHT):
            sent = [client.send(commit(f"g{n}", {("one", 0): 5}), 8) for n in range(start, start + IN_FLIGHT)]
            for number in sent:
                (topic,) = client.receive(8, 8, number).topics
                codes[topic.partitions[0].error_code] += 1
        assert set(codes) == {0, VIOLATION}
        assert codes[0] <= groups_max
        target.report().check()
