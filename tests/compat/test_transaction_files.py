"""Transactions on disk: Apache Kafka's kafka-dump-log reads markers, indexes and snapshots as its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from drivers.java import DUMP_LOG, JavaTools
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NOW
from tests.unit.log.txn_fixtures import Client

from ottla.env.disk import RealDisk
from ottla.log import compaction

pytestmark = pytest.mark.foreign

_COMPLAINTS = (
    "Mismatches in", "timestamp mismatch", "out of order", "not found", "isvalid: false", "invalid bytes", "Exception",
)  # fmt: skip
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def written(path: Path) -> CompactionFixture:
    """Three producers over several segments: committed, aborted, and one whose transaction is open."""
    disk: Any = RealDisk()
    fixture = CompactionFixture(path, compacted(segment_bytes=3000, max_message_bytes=3000), disk)
    clients = [Client(fixture.log, pid) for pid in (11, 12, 13)]
    for number in range(60):
        client = clients[number % 2]
        client.send(b"%d" % number * 20, key=b"key %d" % (number % 7), timestamp=NOW + number)
        if number % 3 == 2:
            client.abort(coordinator_epoch=number, now_ms=NOW + number)
        elif number % 5 == 4:
            client.commit(coordinator_epoch=number, now_ms=NOW + number)
    for client in clients[:2]:
        client.abort(coordinator_epoch=70, now_ms=NOW + 70)
    clients[2].send(b"open", timestamp=NOW + 80)
    fixture.log.write_pending()
    return fixture


def dump(java_tools: JavaTools, fixture: CompactionFixture) -> str:
    folder = Path(fixture.log.directory)
    files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    assert {file.suffix for file in files} == set(_SUFFIXES)
    done = java_tools.run_tool(DUMP_LOG, ["--files", ",".join(map(str, files)), "--deep-iteration", "--print-data-log"])
    said: str = done.stdout + done.stderr
    assert done.returncode == 0, said
    # An empty batch keeps the time of what was in it, in Kafka too, and the tool looks for it among the records.
    said = re.sub(r"Found timestamp mismatch .*\n +Index timestamp: \d+, log timestamp: -1\n", "", said)
    for complaint in _COMPLAINTS:
        assert complaint not in said, f"{complaint!r} in:\n{said[:3000]}"
    return said


def rows_of(said: str) -> list[tuple[int, ...]]:
    pattern = r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    return [tuple(map(int, row)) for row in re.findall(pattern, said)]


def test_kafka_reads_our_markers_indexes_and_snapshots(java_tools: JavaTools, tmp_path: Path) -> None:
    fixture = written(tmp_path)
    expected = [tuple(row) for segment in fixture.log.segments for row in segment.aborted]
    fixture.log.flush_files()
    said = dump(java_tools, fixture)
    assert rows_of(said) == expected
    assert len(expected) > 10
    assert "endTxnMarker: ABORT coordinatorEpoch: 2" in said
    assert "endTxnMarker: COMMIT coordinatorEpoch: 4" in said
    producers = dict(re.findall(r"^producerId: (\d+) (.*)$", said, re.MULTILINE))
    assert f"currentTxnFirstOffset: OptionalLong[{fixture.log.producers.open[13]}]" in producers["13"], producers
    assert "coordinatorEpoch: 70 currentTxnFirstOffset: OptionalLong.empty" in producers["12"], producers
    fixture.abandon()


def test_kafka_reads_what_compaction_leaves_of_transactions(
    java_tools: JavaTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PROCESS_BYTES_MIN", 0)
    fixture = written(tmp_path)
    fixture.roll()
    fixture.produce((b"end", b"end"))
    assert fixture.compact(NOW + 1000)
    rows = [tuple(row) for segment in fixture.log.segments for row in segment.aborted]
    fixture.log.flush_files()
    said = dump(java_tools, fixture)
    assert rows_of(said) == rows
    assert rows
    assert "isTransactional: true isControl: true" in said
    fixture.abandon()
