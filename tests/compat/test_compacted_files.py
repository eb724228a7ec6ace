"""Compacted segments on disk: Apache Kafka's kafka-dump-log reads them, with their indexes, as its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from drivers.java import DUMP_LOG, JavaTools
from tests.unit.log.compaction_fixtures import CompactionFixture, compacted
from tests.unit.log.log_fixtures import NOW

from ottla.env.disk import RealDisk
from ottla.log import compaction

pytestmark = pytest.mark.foreign

_COMPLAINTS = ("Mismatches in", "timestamp mismatch", "out of order", "not found", "isvalid: false", "invalid bytes")


def test_kafka_reads_what_compaction_left(
    java_tools: JavaTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PROCESS_BYTES_MIN", 0)
    disk: Any = RealDisk()
    fixture = CompactionFixture(tmp_path, compacted(segment_bytes=20_000), disk)
    sequence = 0
    for number in range(200):
        pairs = [(b"key %d" % (number * n % 97), b"%d" % number * 20 if n % 5 else None) for n in range(1, 8)]
        producer = (7, 0, sequence) if number % 3 else None
        sequence += len(pairs) if number % 3 else 0
        fixture.produce(*pairs, timestamp=NOW + number, codec=number % 5, producer=producer)
    # The producer's last sequence is in a batch of which nothing will be left.
    fixture.produce((b"key 1", b"last"), producer=(7, 0, sequence))
    fixture.produce((b"key 1", b"very last"))
    fixture.roll()
    fixture.produce((b"end", b"x"))
    assert fixture.compact()
    records = fixture.records()
    directory = Path(fixture.log.directory)
    fixture.fixture.stop()

    files = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    assert len([path for path in files if path.suffix == ".index"]) > 1
    options = ["--files", ",".join(map(str, files)), "--deep-iteration", "--print-data-log"]
    done = java_tools.run_tool(DUMP_LOG, options)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for complaint in _COMPLAINTS:
        assert complaint not in said, said[:3000]
    found = re.findall(r"^\| offset: (\d+) CreateTime: (\d+) .* payload: ?(.*)$", said, re.MULTILINE)
    tombstones = len(re.findall(r"^\| offset: \d+ .* valueSize: -1 ", said, re.MULTILINE))
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert offsets == [record.offset for record in records]
    times = [int(time) for time in re.findall(r"^\| offset: \d+ CreateTime: (\d+) ", said, re.MULTILINE)]
    assert times == [record.timestamp for record in records]
    assert [text for _, _, text in found] == [r.value.decode() for r in records if r.value is not None]
    assert tombstones == len([record for record in records if record.value is None]) > 0
    assert re.search(r"count: 0 .*producerId: 7 ", said), "the empty batch of the producer's last sequence"
    assert re.search(rf"deleteHorizonMs: OptionalLong\[{NOW + 86_400_000}\]", said)
