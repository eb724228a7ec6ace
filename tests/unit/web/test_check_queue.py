"""The order of checks of credentials, and which of them lose their place."""

from __future__ import annotations

from ottla.edge.web.check_queue import _TRUSTED_MAX, _TRUSTED_S, CheckQueue, Sender, TrustedSenders


def drain(queue: CheckQueue[str]) -> list[str]:
    found = []
    while (check := queue.take()) is not None:
        found.append(check)
    assert len(queue) == 0
    return found


def test_addresses_take_turns() -> None:
    queue: CheckQueue[str] = CheckQueue(10)
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        assert queue.add(name, name[0], is_trusted=False) is None
    assert drain(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_trusted_checks_come_first() -> None:
    queue: CheckQueue[str] = CheckQueue(10)
    for name in ("a1", "a2", "b1"):
        queue.add(name, name[0], is_trusted=name == "a2")
    assert drain(queue) == ["a2", "a1", "b1"]


def test_address_with_the_most_checks_loses_its_latest() -> None:
    queue: CheckQueue[str] = CheckQueue(4)
    for name in ("a1", "a2", "a3", "b1"):
        assert queue.add(name, name[0], is_trusted=False) is None
    assert queue.add("b2", "b", is_trusted=False) == "a3"
    assert queue.add("c1", "c", is_trusted=False) == "b2"
    assert queue.add("a3", "a", is_trusted=False) == "a3"
    assert drain(queue) == ["a1", "b1", "c1", "a2"]


def test_trusted_check_does_not_lose_its_place_to_others() -> None:
    queue: CheckQueue[str] = CheckQueue(2)
    for name in ("a1", "a2"):
        queue.add(name, "a", is_trusted=True)
    assert queue.add("b1", "b", is_trusted=False) == "b1"
    assert queue.add("a3", "a", is_trusted=True) == "a3"


def test_trust_ends_and_is_limited() -> None:
    now = [0.0]
    trusted = TrustedSenders(lambda: now[0])
    trusted.add(Sender("a", ""))
    assert Sender("a", "") not in trusted
    trusted.add(Sender("a", "ann"))
    assert Sender("a", "ann") in trusted and Sender("b", "ann") not in trusted
    now[0] += _TRUSTED_S
    assert Sender("a", "ann") not in trusted
    for number in range(_TRUSTED_MAX + 1):
        trusted.add(Sender("a", str(number)))
    assert Sender("a", "0") not in trusted and Sender("a", "1") in trusted
