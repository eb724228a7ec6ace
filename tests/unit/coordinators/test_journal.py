"""Entries of the rebalance journal as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.journal import (
    CAUSES_MAX,
    DETAIL_CHARACTERS_MAX,
    Cause,
    CauseKind,
    Rebalance,
    journal_key,
)

REBALANCE = Rebalance(
    group_id="orders",
    group_type="classic",
    generation=7,
    started_ms=1_700_000_000_000,
    duration_ms=12,
    members_before=2,
    members_after=1,
    causes=(
        Cause(
            kind=CauseKind.SESSION_TIMEOUT,
            member_id="c-1",
            client_id="c",
            client_host="/10.0.0.1",
            group_instance_id="i",
            detail="größer als 45 s",
        ),
    ),
    causes_left_out=3,
)
ENTRY = (
    '{"groupId":"orders","groupType":"classic","generation":7,"startedMs":1700000000000,"durationMs":12,'
    '"membersBefore":2,"membersAfter":1,"causes":[{"kind":"session timeout","memberId":"c-1","clientId":"c",'
    '"clientHost":"/10.0.0.1","groupInstanceId":"i","detail":"größer als 45 s"}],"causesLeftOut":3}'
)


def test_entry_is_json_that_people_can_read() -> None:
    assert REBALANCE.to_json().decode() == ENTRY


def test_entry_is_read_whatever_the_order_of_its_fields() -> None:
    turned = dict(reversed(json.loads(ENTRY).items()))
    assert Rebalance.from_json(json.dumps(turned, indent=2).encode()) == REBALANCE


def test_long_detail_is_cut() -> None:
    cause = Cause(kind=CauseKind.LEFT, detail="ü" * (DETAIL_CHARACTERS_MAX + 1))
    read = Rebalance.from_json(changed_rebalance(causes=(cause,)).to_json())
    assert read.causes[0].detail == "ü" * 500


def changed_rebalance(**fields: Any) -> Rebalance:
    values = {name: getattr(REBALANCE, name) for name in Rebalance.__dataclass_fields__}
    return Rebalance(**values | fields)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(ENTRY) | fields).encode()


def changed_cause(**fields: Any) -> bytes:
    (cause,) = json.loads(ENTRY)["causes"]
    return changed(causes=[cause | fields])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        ENTRY.encode("utf-16"),
        ENTRY.encode()[:-1],
        b"[" * 100_000,
        changed(more=1),
        changed(groupId=None),
        changed(groupType="share"),
        changed(generation=True),
        changed(generation=7.0),
        changed(generation="7"),
        changed(causes=None),
        changed(causes=[None]),
        changed(causes=json.loads(ENTRY)["causes"] * (CAUSES_MAX + 1)),
        changed_cause(kind="bad luck"),
        changed_cause(kind=None),
        changed_cause(memberId=1),
        changed_cause(detail="x" * (DETAIL_CHARACTERS_MAX + 1)),
        changed_cause(more=""),
        changed_cause(clientId="\ud800"),
    ],
    ids=lambda data: repr(data[:30]),
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Rebalance.from_json(data)


@pytest.mark.parametrize("name", list(json.loads(ENTRY)))
def test_entry_without_one_of_its_fields_is_refused(name: str) -> None:
    entry = json.loads(ENTRY)
    del entry[name]
    with pytest.raises(ValueError, match="needs an object with the fields"):
        Rebalance.from_json(json.dumps(entry).encode())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
integers = st.integers(-1, 1 << 62)
causes = st.builds(
    Cause,
    kind=st.sampled_from(CauseKind),
    member_id=texts,
    client_id=texts,
    client_host=texts,
    group_instance_id=st.none() | texts,
    detail=texts,
)
rebalances = st.builds(
    Rebalance,
    group_id=texts,
    group_type=st.sampled_from(["classic", "consumer"]),
    generation=integers,
    started_ms=integers,
    duration_ms=integers,
    members_before=integers,
    members_after=integers,
    causes=st.lists(causes, max_size=CAUSES_MAX).map(tuple),
    causes_left_out=integers,
)


@given(rebalances)
def test_what_is_written_is_read_back(rebalance: Rebalance) -> None:
    assert Rebalance.from_json(rebalance.to_json()) == rebalance


def test_key_names_the_group_and_one_of_twenty_places() -> None:
    assert journal_key("größe/1", 7) == "größe/1/7".encode()
    assert journal_key("g", 19) == b"g/19"
    assert journal_key("g", 20) == b"g/0"
    assert journal_key("g", 47) == journal_key("g", 7)
