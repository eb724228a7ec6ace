"""The checker finds what is planted, and is silent where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from campaign.checker import check
from campaign.history import Anomalies, History, Place, Reader, Send

P = Place("t", 0)


def sent(*outcomes: int | str | None, producer: str = "a", history: History | None = None) -> History:
    """Sends ``a0``, ``a1``...: acknowledged at an offset, "refused", or None for an unknown outcome."""
    history = history or History()
    for number, outcome in enumerate(outcomes):
        send = history.send(producer, P, f"{producer}{number}")
        if isinstance(outcome, int):
            send.acknowledged(outcome)
        elif outcome == "refused":
            send.refused()
    return history


def reader(*records: str | tuple[int, str], start: int = 0) -> Reader:
    """A reader that got these values from the start offset on; a pair says an offset of its own."""
    made = Reader("reader", {P: start})
    for offset, record in enumerate(records, start):
        made.read(P, *(record if isinstance(record, tuple) else (offset, record)))
    return made


def found(history: History, *final: str | tuple[int, str], tail: Reader | None = None) -> Anomalies:
    history.final = reader(*final)
    if tail is not None:
        history.tails.append(tail)
    return check(history)


def test_a_log_that_holds_what_was_acknowledged_is_fine() -> None:
    assert found(sent(0, 1, 2), "a0", "a1", "a2", tail=reader("a1", start=1)) == {}


def test_an_unknown_outcome_is_fine_whether_the_record_is_there_or_not() -> None:
    assert found(sent(0, None, None, 2), "a0", "a2", "a3") == {}


def test_a_refused_record_that_is_not_there_is_fine() -> None:
    assert found(sent(0, "refused", 1), "a0", "a2") == {}


def test_producers_may_interleave() -> None:
    assert found(sent(1, 3, producer="b", history=sent(0, 2)), "a0", "b0", "a1", "b1") == {}


PLANTED: list[tuple[str, Callable[[], Anomalies]]] = [
    ("lost-write", lambda: found(sent(0, 1, None), "a0", "a2")),
    ("unseen", lambda: found(sent(0, 1), "a0")),
    ("unseen", lambda: found(sent(0, None), "a0", tail=reader("a0", "a1"))),
    ("duplicate", lambda: found(sent(0, 1), "a0", "a1", "a1")),
    ("duplicate", lambda: found(sent(0, None), "a0", "a1", "a1")),
    ("inconsistent-offsets", lambda: found(sent(0, None, None), "a0", "a2", tail=reader("a0", "a1"))),
    ("inconsistent-offsets", lambda: found(sent(0, 0), "a0", "a1")),
    ("inconsistent-offsets", lambda: found(sent(1, None), "a0", "a1")),
    ("phantom", lambda: found(sent(0), "a0", "nobody's")),
    ("refused-read", lambda: found(sent(0, "refused"), "a0", "a1")),
    ("nonmonotonic-send", lambda: found(sent(1, 0), "a1", "a0")),
    ("poll-skip", lambda: found(sent(0, 1, 2), "a0", "a1", "a2", tail=reader("a0", (2, "a2")))),
    ("poll-skip", lambda: found(sent(0, 1), (1, "a1"))),
    ("nonmonotonic-poll", lambda: found(sent(0, 1), "a0", "a1", tail=reader("a0", "a1", (0, "a0")))),
]


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_planted_anomaly_is_found(name: str, planted: Callable[[], Anomalies]) -> None:
    assert name in planted()


def test_records_of_another_partition_prove_nothing() -> None:
    history = sent(0)
    elsewhere = Send("a", Place("t", 1), "a1")
    elsewhere.acknowledged(0)
    history.sends.append(elsewhere)
    assert found(history, "a0") == {"unseen": [f"{elsewhere.place} a1: was at offset 0"]}
