"""The checks of the campaigns with real processes find what they must find. Nothing here starts a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_store import PartitionState, Sample, check_refilled_before_it_leads
from streams_checks import check_copies, check_counts, check_state

from campaign.checker import Commit, check, check_commits, check_replicas
from campaign.workload import Ack, Load, Seen, history_of

TOPIC = "events"


def seen(*lines: str) -> Seen:
    """Return what a producer and the final reader have printed."""
    made = Seen()
    for line in lines:
        made.add("final" if line.startswith("read") else "p", line)
    return made


WRITTEN = ("acknowledged 0 0 0 1.0", "acknowledged 0 1 1 1.1", "sent 0 3")


@pytest.mark.parametrize(
    ("read", "anomalies"),
    [
        (["read 0 0 p.0.0", "read 0 1 p.0.1"], set()),
        (["read 0 0 p.0.0", "read 0 1 p.0.1", "read 0 2 p.0.2"], set()),
        (["read 0 0 p.0.0"], {"unseen"}),
        (["read 0 0 p.0.0", "read 0 1 p.0.2"], {"inconsistent-offsets", "lost-write"}),
        (["read 0 0 p.0.0", "read 0 1 p.0.1", "read 0 2 p.0.1"], {"duplicate"}),
        (["read 0 0 p.0.1", "read 0 1 p.0.0"], {"inconsistent-offsets", "duplicate", "nonmonotonic-send"}),
        (["read 0 0 p.0.0", "read 0 1 p.0.1", "read 0 2 other.0.0"], {"phantom"}),
    ],
    ids=["whole", "unknown-outcome-is-there", "end-lost", "replaced", "twice", "order", "phantom"],
)
def test_history_of_the_printed_lines_shows_anomalies(read: list[str], anomalies: set[str]) -> None:
    assert set(check(history_of(seen(*WRITTEN, *read), TOPIC, 1))) == anomalies


def test_record_that_was_acknowledged_without_an_offset_must_be_there() -> None:
    lines = ("acknowledged 0 0 -1 1.0", "acknowledged 0 1 -1 1.0", "acknowledged 0 2 2 1.1", "sent 0 3")
    read = [f"read 0 {number} p.0.{number}" for number in range(3)]
    assert check(history_of(seen(*lines, *read), TOPIC, 1)) == {}
    assert set(check(history_of(seen(*lines, read[0], "read 0 1 p.0.2"), TOPIC, 1))) >= {"lost-write"}


def test_committed_offset_that_goes_back_is_reported() -> None:
    commits = [Commit(0, 10, 1.0), Commit(1, 50, 1.0), Commit(0, 20, 3.0)]
    assert check_commits(commits, [Commit(0, 10, 2.0), Commit(0, 20, 4.0), Commit(1, 50, 4.0)]) == []
    # The request was sent before the commit was answered: both offsets are right.
    assert check_commits(commits, [Commit(0, 10, 2.9)]) == []
    assert check_commits(commits, [Commit(0, 10, 3.1)]) == ["the committed offset of partition 0 went back: 20 to 10"]
    assert len(check_commits([], [Commit(0, 10, 1.0), Commit(0, 9, 2.0)])) == 1


def batch(offset: int, body: bytes) -> bytes:
    return offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body


def test_replicas_may_differ_above_the_high_watermark_only(tmp_path: Path) -> None:
    logs = {
        1: [batch(0, b"aa"), batch(3, b"bbbb")],
        2: [batch(0, b"aa") + batch(3, b"bbbb") + batch(5, b"not committed")],
    }
    for broker, segments in logs.items():
        directory = tmp_path / str(broker) / f"{TOPIC}-0"
        directory.mkdir(parents=True)
        for number, data in enumerate(segments):
            (directory / f"{number:020}.log").write_bytes(data)
    directories = {broker: tmp_path / str(broker) for broker in logs}
    assert check_replicas(directories, TOPIC, {0: 5}) == []
    assert len(check_replicas(directories, TOPIC, {0: 6})) == 1
    assert len(check_replicas({**directories, 3: tmp_path / "3"}, TOPIC, {0: 5})) == 1


def test_longest_gap_is_that_of_one_partition_around_an_event() -> None:
    load = Load("unused:1", TOPIC, partitions=2, clients=[])
    load.seen.acks[0] = [Ack(time, "a") for time in (1.0, 9.0, 10.0, 10.5)]
    load.seen.acks[1] = [Ack(10.0, "a"), Ack(10.2, "b"), Ack(11.0, "a")]
    assert load.longest_gap(9.5, 11.0) == 1.0
    assert load.longest_gap(10.0, 11.0, client="a") == 1.0
    assert load.longest_gap(10.1, 11.0, client="b") == pytest.approx(0.9)
    # Partition 0 has no acknowledgement after 10.5.
    assert load.longest_gap(10.1, 13.0) == 2.5


def test_broker_that_leads_with_a_lost_log_is_reported() -> None:
    def samples(*states: PartitionState) -> list[Sample]:
        return [Sample(float(number), [state]) for number, state in enumerate(states)]

    led_by_2 = PartitionState(2, 5, [2, 3])
    rejoined, elected = PartitionState(2, 5, [2, 3, 1]), PartitionState(1, 6, [2, 3, 1])
    assert check_refilled_before_it_leads(samples(led_by_2, rejoined, elected), 1) == []
    assert len(check_refilled_before_it_leads(samples(elected), 1)) == 1
    assert len(check_refilled_before_it_leads(samples(rejoined, elected), 1)) == 1


SENT = ["a 0", "b 1", "a 2"]


@pytest.mark.parametrize(
    ("copied", "problems"), [(SENT, 0), (["a 0", "a 2"], 1), ([*SENT, "b 1"], 1), ([*SENT, "c 3"], 1)]
)
def test_missing_and_additional_copies_of_streams_are_reported(copied: list[str], problems: int) -> None:
    assert len(check_copies(SENT, copied)) == problems


@pytest.mark.parametrize(
    ("counts", "problems"),
    [
        ({"a": [1, 2], "b": [1]}, 0),
        ({"a": [1, 2]}, 1),
        ({"a": [1, 2, 2], "b": [1]}, 1),
        ({"a": [2, 1], "b": [1]}, 1),
        ({"a": [1, 3], "b": []}, 2),
        ({"a": [1, 2], "b": [1], "c": [1]}, 1),
    ],
)
def test_counts_of_streams_that_are_not_in_order_are_reported(counts: dict[str, list[int]], problems: int) -> None:
    assert len(check_counts(SENT, counts)) == problems


def test_state_of_streams_that_is_not_the_last_count_is_reported() -> None:
    assert check_state(SENT, {"a": 2, "b": 1}) == []
    assert len(check_state(SENT, {"a": 1, "b": 1})) == 1
    assert len(check_state(SENT, {"a": 2})) == 1
