"""The checker of transactional histories finds what is planted, and is silent where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.testing.history import Anomalies, History, Outcome, Place, Recorder, check, read_events

P = Place("t", 0)
Q = Place("t", 1)
GROUP = "group"


class Story:
    """A recorder with the shortest words: producers a, b and c share one transactional id."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.txns: dict[str, str] = {}

    def init(self, producer: str, transactional_id: str = "id") -> Story:
        self.recorder.init(producer, transactional_id)
        self.recorder.initialized(producer)
        return self

    def begin(self, txn: str, *sends: tuple[Place, int | Outcome, str], producer: str = "a") -> Story:
        """A transaction with its sends, each acknowledged at an offset or not."""
        self.txns[txn] = self.recorder.begin(producer)
        for place, offset, value in sends:
            self.recorder.send(self.txns[txn], place, value)
            if isinstance(offset, Outcome):
                self.recorder.sent(self.txns[txn], value, outcome=offset)
            else:
                self.recorder.sent(self.txns[txn], value, offset=offset)
        return self

    def offset(self, txn: str, offset: int) -> Story:
        self.recorder.offsets(self.txns[txn], GROUP, P, offset)
        return self

    def commit(self, txn: str, outcome: Outcome = Outcome.OK) -> Story:
        self.recorder.end(self.txns[txn], commit=True)
        self.recorder.ended(self.txns[txn], outcome)
        return self

    def abort(self, txn: str, outcome: Outcome = Outcome.OK) -> Story:
        self.recorder.end(self.txns[txn], commit=False)
        self.recorder.ended(self.txns[txn], outcome)
        return self

    def read(self, place: Place, *records: tuple[int, str], reader: str = "tail", txn: str = "") -> Story:
        self.recorder.read(reader, place, records, self.txns.get(txn))
        return self

    def found(self, *final: tuple[int, str], other: tuple[tuple[int, str], ...] = ()) -> Anomalies:
        """What is found when this is what stands in the partitions P and Q at the end."""
        self.recorder.read("final", P, final)
        self.recorder.read("final", Q, other)
        self.recorder.final("final")
        return check(History.of(self.recorder.events))


def story() -> Story:
    return Story().init("a")


# -- silence --------------------------------------------------------------------------------------------------------


def test_committed_transactions_with_gaps_for_markers_are_fine() -> None:
    told = story().begin("x", (P, 0, "x0"), (Q, 0, "x1")).commit("x").read(P, (0, "x0"))
    told.begin("y", (P, 2, "y0")).commit("y").read(P, (2, "y0"))
    assert told.found((0, "x0"), (2, "y0"), other=((0, "x1"),)) == {}


def test_an_aborted_transaction_that_nobody_sees_is_fine() -> None:
    assert story().begin("x", (P, 0, "x0")).abort("x").found() == {}


def test_an_unknown_outcome_is_fine_with_all_of_it_or_with_nothing() -> None:
    for final, other in (((), ()), (((0, "x0"),), ((0, "x1"),))):
        told = story().begin("x", (P, 0, "x0"), (Q, 0, "x1")).commit("x", Outcome.UNKNOWN)
        assert told.found(*final, other=other) == {}


def test_a_transaction_that_was_never_ended_and_is_not_there_is_fine() -> None:
    assert story().begin("x", (P, 0, "x0")).found() == {}


def test_transactions_of_two_producers_may_interleave() -> None:
    told = story().init("b", "another").begin("x", (P, 0, "x0"), (P, 2, "x1"))
    told.begin("y", (P, 1, "y0"), (P, 3, "y1"), producer="b").commit("x").commit("y")
    assert told.found((0, "x0"), (1, "y0"), (2, "x1"), (3, "y1")) == {}


def test_a_commit_that_was_under_way_when_the_producer_was_fenced_may_be_there() -> None:
    told = story().begin("x", (P, 0, "x0")).commit("x", Outcome.UNKNOWN).init("b")
    told.begin("y", (P, 2, "y0"), producer="b").commit("y")
    assert told.found((0, "x0"), (2, "y0")) == {}


def test_an_offset_that_was_committed_with_the_last_visible_transaction_is_fine() -> None:
    told = story().begin("x", (P, 0, "x0")).offset("x", 7).commit("x")
    told.begin("y", (P, 2, "y0")).offset("y", 8).abort("y")
    told.recorder.committed(GROUP, P, 7)
    assert told.found((0, "x0")) == {}


def test_a_reader_may_begin_anywhere_and_again() -> None:
    told = story().begin("x", (P, 0, "x0"), (P, 1, "x1")).commit("x")
    told.recorder.assigned("tail", P, 1)
    told.read(P, (1, "x1"))
    told.recorder.assigned("tail", P, 0)
    assert told.read(P, (0, "x0"), (1, "x1")).found((0, "x0"), (1, "x1")) == {}


# -- planted --------------------------------------------------------------------------------------------------------


def two_committed() -> Story:
    return story().begin("x", (P, 0, "x0")).commit("x").begin("y", (P, 2, "y0")).commit("y")


def fenced() -> Story:
    """A transaction of a producer that somebody else fences."""
    return story().begin("x", (P, 0, "x0")).init("b")


def group_offset(found_at_end: int, *outcomes: Outcome) -> Anomalies:
    told = story()
    for number, outcome in enumerate(outcomes):
        told.begin(f"x{number}", (P, number * 2, f"x{number}")).offset(f"x{number}", number).commit(
            f"x{number}", outcome
        )
    told.recorder.committed(GROUP, P, found_at_end)
    return told.found(*((2 * n, f"x{n}") for n, outcome in enumerate(outcomes) if outcome is Outcome.OK))


def hanging() -> Anomalies:
    told = two_committed()
    told.recorder.log_end(P, 3, 4)
    return told.found((0, "x0"), (2, "y0"))


def cycle() -> Anomalies:
    told = story().init("b", "another").begin("x", (P, 0, "x0")).begin("y", (Q, 0, "y0"), producer="b")
    told.commit("x").commit("y").read(Q, (0, "y0"), reader="rx", txn="x").read(P, (0, "x0"), reader="ry", txn="y")
    return told.found((0, "x0"), other=((0, "y0"),))


PLANTED: list[tuple[str, Callable[[], Anomalies]]] = [
    ("inconsistent-offsets", lambda: two_committed().read(P, (0, "y0")).found((0, "x0"), (2, "y0"))),
    ("inconsistent-offsets", lambda: story().begin("x", (P, 0, "x0"), (P, 0, "x1")).abort("x").found()),
    ("duplicate", lambda: two_committed().found((0, "x0"), (2, "y0"), (4, "y0"))),
    ("duplicate", lambda: two_committed().found((0, "x0"), (3, "y0"))),
    ("lost-write", lambda: two_committed().found((2, "y0"))),
    ("lost-write", lambda: story().begin("x", (P, Outcome.UNKNOWN, "x0")).commit("x").found()),
    (
        "lost-write",
        lambda: (
            two_committed()
            .begin("z", (P, 1, "z0"))
            .commit("z", Outcome.UNKNOWN)
            .read(P, (1, "z0"))
            .found((0, "x0"), (2, "y0"))
        ),
    ),
    ("unseen", lambda: two_committed().found((0, "x0"))),
    ("torn-transaction", lambda: story().begin("x", (P, 0, "x0"), (Q, 0, "x1")).commit("x").found((0, "x0"))),
    (
        "torn-transaction",
        lambda: story().begin("x", (P, 0, "x0"), (Q, 0, "x1")).commit("x", Outcome.UNKNOWN).found((0, "x0")),
    ),
    (
        "torn-transaction",
        lambda: story().begin("x", (P, 0, "x0"), (P, 1, "x1")).commit("x", Outcome.UNKNOWN).found((1, "x1")),
    ),
    ("torn-offsets", lambda: group_offset(0, Outcome.OK, Outcome.OK)),
    ("torn-offsets", lambda: group_offset(1, Outcome.OK, Outcome.UNKNOWN)),
    ("torn-offsets", lambda: group_offset(-1, Outcome.OK)),
    ("torn-offsets", lambda: group_offset(0, Outcome.UNKNOWN)),
    ("aborted-read", lambda: story().begin("x", (P, 0, "x0")).abort("x").found((0, "x0"))),
    ("aborted-read", lambda: story().begin("x", (P, 0, "x0")).abort("x").read(P, (0, "x0")).found()),
    ("aborted-read", lambda: story().begin("x", (P, 0, "x0")).abort("x", Outcome.UNKNOWN).found((0, "x0"))),
    (
        "aborted-read",
        lambda: story().begin("x", (P, 0, "x0")).commit("x", Outcome.FAILED).abort("x").found((0, "x0")),
    ),
    ("aborted-read", lambda: story().begin("x", (P, Outcome.FAILED, "x0")).commit("x").found((0, "x0"))),
    ("open-read", lambda: story().begin("x", (P, 0, "x0")).read(P, (0, "x0")).commit("x").found((0, "x0"))),
    ("open-read", lambda: story().begin("x", (P, 0, "x0")).found((0, "x0"))),
    ("phantom", lambda: two_committed().found((0, "x0"), (2, "y0"), (4, "nobody's"))),
    ("phantom", lambda: two_committed().read(Q, (0, "x0")).found((0, "x0"), (2, "y0"))),
    (
        "nonmonotonic-send",
        lambda: story().begin("x", (P, 1, "x0"), (P, 0, "x1")).commit("x").found((0, "x1"), (1, "x0")),
    ),
    ("nonmonotonic-poll", lambda: two_committed().read(P, (2, "y0"), (0, "x0")).found((0, "x0"), (2, "y0"))),
    ("poll-skip", lambda: two_committed().read(P, (2, "y0")).found((0, "x0"), (2, "y0"))),
    (
        "poll-skip",
        lambda: (
            two_committed()
            .begin("z", (P, 4, "z0"))
            .commit("z")
            .read(P, (0, "x0"))
            .read(P, (4, "z0"))
            .found((0, "x0"), (2, "y0"), (4, "z0"))
        ),
    ),
    ("zombie-commit", lambda: fenced().commit("x", Outcome.UNKNOWN).found((0, "x0"))),
    ("zombie-commit", lambda: fenced().commit("x").found()),
    (
        "zombie-write",
        lambda: (
            story()
            .begin("x", (P, 4, "x0"))
            .commit("x", Outcome.UNKNOWN)
            .init("b")
            .begin("y", (P, 2, "y0"), producer="b")
            .commit("y")
            .found((2, "y0"), (4, "x0"))
        ),
    ),
    ("precommitted-read", lambda: two_committed().read(P, (0, "x0"), txn="x").found((0, "x0"), (2, "y0"))),
    ("cycle", cycle),
    ("hanging-transaction", hanging),
]


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_planted_anomaly_is_found(name: str, planted: Callable[[], Anomalies]) -> None:
    assert name in planted()


def test_every_anomaly_that_the_checker_knows_is_planted() -> None:
    text = Path(check.__code__.co_filename).read_text()
    documented = text.split("may never be seen:\n\n")[1].split("\n\n")[0]
    assert {line.split()[0] for line in documented.splitlines()} == {name for name, _ in PLANTED}


# -- files ----------------------------------------------------------------------------------------------------------


def test_a_recorder_with_a_file_tells_the_same_story(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "events.jsonl")
    recorder.init("a", "id")
    recorder.initialized("a")
    txn = recorder.begin("a")
    recorder.send(txn, P, "x0")
    recorder.end(txn, commit=False)
    recorder.ended(txn, Outcome.OK)
    recorder.read("final", P, [(0, "x0")])
    recorder.final("final")
    recorder.close()
    assert list(check(History.of(read_events(tmp_path / "events.jsonl")))) == ["aborted-read"]


def test_a_line_that_a_kill_has_cut_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "init", "t": 1.0, "producer": "a", "transactional_id": "id"}\n{"event": "ini')
    assert [event["event"] for event in read_events(path)] == ["init"]
