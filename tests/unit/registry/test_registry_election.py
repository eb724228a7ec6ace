"""Which instance the group makes the leader, and what an instance does before the group has decided."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest

from ottla.client.errors import RemovedFromGroup
from ottla.client.membership import DescribedMember
from ottla.edge.registry import election as module
from ottla.edge.registry.election import Election, Instance, assign, client_id_of
from ottla.edge.registry.store import StoreSettings
from ottla.model.errors import ErrorCode


def members(*instances: Instance, leaders: tuple[int, ...] = ()) -> dict[str, bytes]:
    return {
        f"member-{number}": json.dumps(instance.as_json(is_leader=number in leaders)).encode()
        for number, instance in enumerate(instances)
    }


def elected(assignments: dict[str, bytes]) -> tuple[str | None, int]:
    (data,) = set(assignments.values())
    value = json.loads(data)
    return value["master"], value["error"]


A, B, C = (Instance("http", host, 8081) for host in "abc")


def test_smallest_address_leads_a_new_group() -> None:
    assert elected(assign(members(B, C, A))) == ("member-2", 0)


def test_present_leader_keeps_its_role() -> None:
    assert elected(assign(members(A, B, C, leaders=(1,)))) == ("member-1", 0)


def test_smallest_address_leads_if_two_claim_the_role() -> None:
    assert elected(assign(members(C, B, A, leaders=(0, 1)))) == ("member-2", 0)


def test_instance_that_is_not_eligible_does_not_lead() -> None:
    other = Instance("http", "a", 8081, is_eligible=False)
    assert elected(assign(members(other, B))) == ("member-1", 0)
    assert elected(assign(members(other))) == (None, 0)


def test_two_instances_with_one_address_are_reported() -> None:
    assert elected(assign(members(A, A)))[1] == 1


def test_identity_of_confluents_registry_is_understood() -> None:
    data = b'{"host":"x","port":8081,"master_eligibility":true,"scheme":"https","version":1,"leader":false}'
    assert elected(assign({"m": data})) == ("m", 0)
    assert Instance.parse(json.loads(data)).url == "https://x:8081"
    assert Instance("http", "::1", 1).url == "http://[::1]:1"


class Group:
    """A group in memory, as `Membership`, `members_of` and `remove_members` see it."""

    def __init__(self, **members: DescribedMember) -> None:
        self.members = dict(members)
        #: what the instance has done, in its order: the leaders it announced among it
        self.steps: list[Any] = []
        self.joins: list[Callable[[], bytes | None]] = []
        self.joined_with: list[dict[str, Any]] = []

    def members_of(self, cluster: object, group: str) -> dict[str, DescribedMember]:
        return dict(self.members)

    def remove_members(self, cluster: object, group: str, member_ids: Iterable[str], reason: str) -> None:
        for member_id in member_ids:
            del self.members[member_id]
            self.steps.append(f"removes {member_id}")

    def announce(self, leader: Instance | None) -> None:
        self.steps.append(leader)

    # As `Membership`

    def __call__(self, cluster: object, group: str, **options: Any) -> Group:
        return self

    def join(self, metadata: bytes, assign: object) -> bytes | None:
        self.steps.append("joins")
        self.joined_with.append(json.loads(metadata))
        return self.joins.pop(0)()

    def heartbeat(self) -> bool:
        return False

    def leave(self) -> None:
        pass


def described(instance: Instance, leader: Instance, *, client_id: str = "", hidden: bool = False) -> DescribedMember:
    """A member; ``hidden`` as during a rebalance."""
    metadata = b"" if hidden else json.dumps(instance.as_json(is_leader=instance == leader)).encode()
    assignment = json.dumps({"version": 1, "error": 0, "master": "m", "master_identity": leader.as_json()}).encode()
    return DescribedMember(client_id or client_id_of(instance.url), metadata, assignment)


def run(monkeypatch: pytest.MonkeyPatch, group: Group, own: Instance, *joins: Callable[[], bytes | None]) -> Election:
    """Let an instance take part until these joins were answered."""
    for name in ("members_of", "remove_members"):
        monkeypatch.setattr(module, name, getattr(group, name))
    monkeypatch.setattr(module, "Membership", group)
    monkeypatch.setattr(StoreSettings, "connect", lambda *arguments: nullcontext())
    election = Election(StoreSettings("127.0.0.1:1", {}), "g", own, group.announce)

    def end() -> None:
        election._is_stopped.set()

    group.joins = [*joins, end]
    election._run()
    return election


def test_restarted_leader_replaces_its_predecessor_and_leads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A), b=described(B, leader=A))
    run(monkeypatch, group, A)
    assert group.steps == ["removes a", A, "joins"]
    assert group.joined_with[0]["leader"] is True


def test_restarted_follower_follows_the_leader_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A), b=described(B, leader=A))
    run(monkeypatch, group, B)
    assert group.steps == ["removes b", A, "joins"]
    assert group.joined_with[0]["leader"] is False


def test_only_instance_leads_at_once_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A))
    run(monkeypatch, group, A)
    assert group.steps == ["removes a", A, "joins"]


def test_restarted_leader_does_not_lead_while_the_group_rebalances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another instance may have taken its place, and have caused the rebalance."""
    group = Group(a=described(A, leader=A, hidden=True), b=described(B, leader=A, hidden=True))
    run(monkeypatch, group, A)
    assert group.steps == ["removes a", "joins"]
    assert group.joined_with[0]["leader"] is False


def test_restarted_follower_follows_the_leader_while_the_group_rebalances(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A, hidden=True), b=described(B, leader=A, hidden=True))
    run(monkeypatch, group, B)
    assert group.steps == ["removes b", A, "joins"]


def test_predecessor_with_another_client_id_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=B, client_id="sr-1"), b=described(B, leader=B))
    run(monkeypatch, group, A)
    assert group.steps == ["removes a", B, "joins"]


def test_instance_that_may_not_lead_any_more_waits_for_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A))
    run(monkeypatch, group, Instance("http", "a", 8081, is_eligible=False))
    assert group.steps == ["removes a", "joins"]


def test_two_instances_with_one_address_do_not_remove_each_other_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removes the other once, when it starts. The one that was removed joins again beside it."""
    group = Group(other=described(A, leader=B), b=described(B, leader=B))

    def be_removed() -> bytes | None:
        group.members["other"] = described(A, leader=B)
        raise RemovedFromGroup(ErrorCode.UNKNOWN_MEMBER_ID, "group g")

    run(monkeypatch, group, A, be_removed)
    assert group.steps == ["removes other", B, "joins", None, B, "joins"]


def test_members_of_another_kind_of_group_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(x=DescribedMember("x", b"\0\1", b"\0"), y=DescribedMember("y", b'{"run": "r"}', b"[]"))
    run(monkeypatch, group, A)
    assert group.steps == ["joins"]


def test_successor_removes_the_instances_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=described(A, leader=A), b=described(B, leader=A), c=described(C, leader=A))
    election = run(monkeypatch, group, C)
    assert election.successor_of(A) == B
    assert election.successor_of(B) == C
    group.steps.clear()
    election.remove_ended()
    assert group.steps == ["removes a", "removes b"]
