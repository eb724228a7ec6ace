"""The checker of transactional histories finds what is planted, and is silent where nothing is wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.testing.history import Anomalies, Event, History, Outcome, Place, Recorder, check, read_events

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


class RightBroker:
    """Keeps every promise: producers in random transactions, readers behind them, fencing, commits without answers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._recorder = Recorder()
        #: by partition what stands at each offset: a value, or None for a marker
        self._logs: dict[Place, list[str | None]] = {P: [], Q: []}
        self._committed: set[str] = set()
        self._position = {P: 0, Q: 0}
        self._lives = itertools.count()

    def events(self) -> list[Event]:
        producers = [self._init(name) for name in ("a", "b")]
        for number in range(60):
            index = self._rng.randrange(2)
            if self._rng.random() < 0.2:
                producers[index] = self._init("ab"[index])
            self._transact(producers[index], number)
            self._read("tail", self._position)
        self._read("final", {P: 0, Q: 0})
        self._recorder.final("final")
        for place, log in self._logs.items():
            self._recorder.log_end(place, len(log), len(log))
        return self._recorder.events

    def _init(self, transactional_id: str) -> str:
        name = f"{transactional_id}{next(self._lives)}"
        self._recorder.init(name, transactional_id)
        self._recorder.initialized(name)
        return name

    def _transact(self, producer: str, number: int) -> None:
        txn = self._recorder.begin(producer)
        written: list[tuple[Place, str]] = []
        for place in self._rng.choices((P, Q), k=self._rng.randint(1, 4)):
            value = f"{number}.{len(written)}"
            self._recorder.send(txn, place, value)
            offset = len(self._logs[place])
            self._logs[place].append(value)
            written.append((place, value))
            outcome = self._rng.choice((Outcome.OK, Outcome.UNKNOWN))
            self._recorder.sent(txn, value, offset=offset if outcome is Outcome.OK else None, outcome=outcome)
        asked = self._rng.choice((True, True, False, None))
        if asked is None:
            return self._mark(written, commit=False)
        self._recorder.end(txn, commit=asked)
        if self._rng.random() < 0.3:
            self._mark(written, commit=asked and self._rng.random() < 0.5)
            return self._recorder.ended(txn, Outcome.UNKNOWN)
        self._mark(written, commit=asked)
        return self._recorder.ended(txn, Outcome.OK)

    def _mark(self, written: list[tuple[Place, str]], *, commit: bool) -> None:
        if commit:
            self._committed.update(value for _, value in written)
        for place in {place for place, _ in written}:
            self._logs[place].append(None)

    def _read(self, reader: str, position: dict[Place, int]) -> None:
        for place, log in self._logs.items():
            behind = [(offset, log[offset]) for offset in range(position[place], len(log))]
            records = [(offset, value) for offset, value in behind if value is not None and value in self._committed]
            self._recorder.read(reader, place, records)
            position[place] = len(log)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_found_in_what_a_right_broker_does(seed: int) -> None:
    assert check(History.of(RightBroker(seed).events())) == {}


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


def taken_back() -> Anomalies:
    """A record that one reader was given is not there for the next."""
    told = two_committed().begin("z", (P, 1, "z0")).commit("z", Outcome.UNKNOWN).read(P, (1, "z0"))
    return told.found((0, "x0"), (2, "y0"))


#: all that is found in a history, by the one thing that is wrong with it


def deleted(offset: int) -> Story:
    """Two committed records, at offsets 0 and 2, and an answered DeleteRecords."""
    told = two_committed()
    told.recorder.delete(P, offset)
    told.recorder.deleted(P, offset)
    return told


def read_after_deletion() -> Anomalies:
    """A reader that knows of the deletion when it asks gets a deleted record; the log is right at the end."""
    told = deleted(1)
    told.recorder.note("read", reader="late", place=P, records=[(0, "x0")], txn=None, log_start=1)
    return told.found((2, "y0"))


PLANTED: list[tuple[str, Callable[[], Anomalies]]] = [
    ("inconsistent-offsets duplicate", lambda: two_committed().read(P, (0, "y0")).found((0, "x0"), (2, "y0"))),
    ("inconsistent-offsets", lambda: story().begin("x", (P, 0, "x0"), (P, 0, "x1")).abort("x").found()),
    ("duplicate", lambda: two_committed().found((0, "x0"), (2, "y0"), (4, "y0"))),
    ("duplicate", lambda: two_committed().found((0, "x0"), (3, "y0"))),
    ("lost-write", lambda: two_committed().found((2, "y0"))),
    ("lost-write", lambda: story().begin("x", (P, Outcome.UNKNOWN, "x0")).commit("x").found()),
    ("lost-write poll-skip torn-transaction", taken_back),
    ("unseen", lambda: two_committed().found((0, "x0"))),
    ("torn-transaction unseen", lambda: story().begin("x", (P, 0, "x0"), (Q, 0, "x1")).commit("x").found((0, "x0"))),
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
    (
        "aborted-read torn-transaction unseen",
        lambda: story().begin("x", (P, 0, "x0")).abort("x").read(P, (0, "x0")).found(),
    ),
    ("aborted-read", lambda: story().begin("x", (P, 0, "x0")).abort("x", Outcome.UNKNOWN).found((0, "x0"))),
    (
        "aborted-read",
        lambda: story().begin("x", (P, 0, "x0")).commit("x", Outcome.FAILED).abort("x").found((0, "x0")),
    ),
    ("aborted-read", lambda: story().begin("x", (P, Outcome.FAILED, "x0")).commit("x").found((0, "x0"))),
    ("open-read", lambda: story().begin("x", (P, 0, "x0")).read(P, (0, "x0")).commit("x").found((0, "x0"))),
    ("open-read", lambda: story().begin("x", (P, 0, "x0")).found((0, "x0"))),
    ("phantom", lambda: two_committed().found((0, "x0"), (2, "y0"), (4, "nobody's"))),
    ("phantom duplicate", lambda: two_committed().read(Q, (0, "x0")).found((0, "x0"), (2, "y0"))),
    (
        "nonmonotonic-send",
        lambda: story().begin("x", (P, 1, "x0"), (P, 0, "x1")).commit("x").found((0, "x1"), (1, "x0")),
    ),
    ("nonmonotonic-poll", lambda: two_committed().read(P, (0, "x0"), (0, "x0")).found((0, "x0"), (2, "y0"))),
    ("nonmonotonic-poll poll-skip", lambda: two_committed().read(P, (2, "y0"), (0, "x0")).found((0, "x0"), (2, "y0"))),
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
    ("zombie-commit unseen", lambda: fenced().commit("x").found()),
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
    ("deleted-read", lambda: deleted(2).found((0, "x0"), (2, "y0"))),
    ("deleted-read", read_after_deletion),
]


@pytest.mark.parametrize("answered", [True, False])
def test_records_may_be_missing_when_their_deletion_was_asked_for(answered: bool) -> None:
    told = deleted(2) if answered else two_committed()
    told.recorder.delete(P, 2)
    told.begin("z", (P, Outcome.UNKNOWN, "z0")).offset("z", 7).commit("z", Outcome.UNKNOWN)
    told.recorder.committed(GROUP, P, 7)
    assert told.found((2, "y0")) == {}


def test_record_behind_the_deleted_ones_must_be_there() -> None:
    assert set(deleted(2).found()) == {"unseen"}


@pytest.mark.parametrize(("names", "planted"), PLANTED)
def test_what_is_planted_is_found_and_nothing_else(names: str, planted: Callable[[], Anomalies]) -> None:
    assert set(planted()) == set(names.split())


def test_every_anomaly_that_the_checker_knows_is_planted_alone() -> None:
    text = Path(check.__code__.co_filename).read_text()
    documented = text.split("finds these anomalies:\n\n")[1].split("\n\n")[0]
    assert {line.split()[0] for line in documented.splitlines()} == {names for names, _ in PLANTED if " " not in names}


# -- what producers are told ------------------------------------------------------------------------------------------


def test_an_error_of_a_send_says_nothing_of_its_earlier_attempts() -> None:
    told = story().begin("x")
    for value, result in (("x0", 7), ("x1", "timed out")):
        told.recorder.send(told.txns["x"], P, value)
        told.recorder.result(told.txns["x"], value, result)
    sends = History.of(told.recorder.events).sends
    assert [(send.outcome, send.offset) for send in sends.values()] == [(Outcome.OK, 7), (Outcome.UNKNOWN, None)]


def test_the_fate_of_a_transaction_is_what_its_producer_was_told() -> None:
    told = story().begin("v").begin("w").begin("x").begin("y").begin("z")
    told.commit("w").abort("x").commit("y", Outcome.UNKNOWN).abort("z", Outcome.UNKNOWN)
    fates = [txn.fate for txn in History.of(told.recorder.events).transactions.values()]
    assert fates == ["left open", "committed", "aborted", "commit unknown", "abort unknown"]


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
