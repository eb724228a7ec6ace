"""Which instance the group makes the leader: pure."""

from __future__ import annotations

import json

from ottla.registry.election import Instance, assign


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
