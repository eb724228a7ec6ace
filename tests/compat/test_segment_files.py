"""Files on disk: Apache Kafka's kafka-dump-log reads ours without complaint, and `ottla log dump` reads Kafka's."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import kafka_server
from drivers import CODECS, DEADLINE_S, Record
from drivers.aio import Aiokafka
from drivers.confluent import Confluent
from drivers.java import DUMP_LOG, JavaTools

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_T0_MS = 1_700_000_000_000
_SEGMENT_BYTES = 1 << 20
_ROUNDS = 6
_BATCH_RECORDS = 40
_IDEMPOTENT = ("none", "zstd")
#: what DumpLogSegments says when an index does not fit its log, or a log is not whole
_COMPLAINTS = (
    "Mismatches in",
    "Found timestamp mismatch",
    "Found out of order timestamp",
    "indexed offsets are not found",
    "isvalid: false",
    "invalid bytes",
    "Exception",
    "ERROR",
)


def write_everything(bootstrap: str, *topics: str) -> int:
    """Writes batches in every compression, some of idempotent producers. Returns the number of records in a topic."""
    confluent, aiokafka = Confluent(bootstrap), Aiokafka(bootstrap)
    producers = {
        codec: confluent.producer({"compression.type": codec, "enable.idempotence": codec in _IDEMPOTENT})
        for codec in CODECS
    }
    for topic in topics:
        source = random.Random(topic)
        for number in range(_ROUNDS):
            for codec, producer in producers.items():
                records = [_record(source, codec, number) for _ in range(_BATCH_RECORDS)]
                if codec == "lz4":
                    # librdkafka does not believe that a broker without groups knows lz4.
                    aiokafka.produce(topic, records, codec=codec, idempotent=True)
                    continue
                for record in records:
                    headers = list(record.headers)
                    assert record.timestamp_ms is not None
                    producer.produce(topic, record.value, record.key, 0, timestamp=record.timestamp_ms, headers=headers)
                assert not producer.flush(DEADLINE_S)
    return _ROUNDS * _BATCH_RECORDS * len(CODECS)


def _record(source: random.Random, codec: str, number: int) -> Record:
    return Record(
        value=source.randbytes(1500).hex().encode(),
        key=b"%d" % source.randrange(100),
        headers=(("codec", codec.encode()), ("null", None)),
        timestamp_ms=_T0_MS + number * 1000 + source.randrange(500),
    )


def create_topics(bootstrap: str, **configs: dict[str, str]) -> None:
    confluent = Confluent(bootstrap)
    for topic, config in configs.items():
        confluent.create_topic(topic, config={"segment.bytes": str(_SEGMENT_BYTES), **config})


# -- Kafka reads our files ---------------------------------------------------------------------------------------------


class Stopped:
    """Directories of partitions that a stopped broker left, and how many records are in each."""

    def __init__(self, data: Path, counts: dict[str, int]) -> None:
        self.data = data
        self.counts = counts

    def files(self, topic: str, *suffixes: str) -> list[Path]:
        directory = self.data / f"{topic}-0"
        return sorted(path for path in directory.iterdir() if path.suffix in suffixes)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """One topic written in one go, one by the broker's clock, one with a crash and a recovery in between."""
    data = tmp_path_factory.mktemp("data")
    with BrokerProcess.start(data) as broker:
        by_clock = {"message.timestamp.type": "LogAppendTime", "index.interval.bytes": "1"}
        create_topics(broker.bootstrap, plain={}, stamped=by_clock, crashed={})
        count = write_everything(broker.bootstrap, "plain", "stamped", "crashed")
        broker.kill()
        broker.launch()
        more = write_everything(broker.bootstrap, "crashed")
        assert broker.stop() == 0
    return Stopped(data, {"plain": count, "stamped": count, "crashed": count + more})


def dump(java_tools: JavaTools, files: list[Path], *options: str) -> str:
    assert files
    arguments = ["--files", ",".join(map(str, files)), *options]
    done = java_tools.run_tool(DUMP_LOG, arguments)
    said: str = done.stdout + done.stderr
    assert done.returncode == 0, said
    for complaint in _COMPLAINTS:
        assert complaint not in said, f"{complaint!r} in:\n{said[:2000]}"
    # It holds every segment but the first for one that begins in the wrong place, Kafka's own too.
    assert {before for before, _ in re.findall(r"^  (-?\d+) is followed by (\d+)$", said, re.MULTILINE)} <= {"-1"}
    return said


@pytest.mark.parametrize("topic", ["plain", "stamped", "crashed"])
def test_kafka_reads_our_segments_indexes_and_snapshots(java_tools: JavaTools, stopped: Stopped, topic: str) -> None:
    """The tool holds each index against its log by itself, and complains."""
    assert len(stopped.files(topic, ".log")) > 2
    files = stopped.files(topic, ".log", ".index", ".timeindex", ".snapshot")
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".snapshot"}
    said = dump(java_tools, files, "--deep-iteration", "--print-data-log")
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert offsets == list(range(stopped.counts[topic]))
    assert set(re.findall(r"compresscodec: (\w+)", said)) == set(CODECS)
    assert len(re.findall(r"^offset: \d+ position: \d+$", said, re.MULTILINE)) > 10
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", said, re.MULTILINE)) > 2
    assert re.search(r"^producerId: \d+ producerEpoch: 0 ", said, re.MULTILINE)


def test_kafka_passes_our_indexes_in_its_sanity_check(java_tools: JavaTools, stopped: Stopped) -> None:
    files = stopped.files("plain", ".index", ".timeindex")
    said = dump(java_tools, files, "--index-sanity-check")
    assert said.count("passed sanity check") == len(files)


# -- we read Kafka's files ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written_by_kafka() -> Iterator[tuple[Path, int]]:
    """The directory of a partition that Apache Kafka wrote before it was stopped, and its number of records."""
    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        pytest.skip(problem)
    kafka = kafka_server.ApacheKafka()
    try:
        kafka.start()
        try:
            create_topics(kafka.bootstrap, plain={})
        except TimeoutError:
            pytest.skip("Apache Kafka did not make a topic in time")
        count = write_everything(kafka.bootstrap, "plain")
        kafka.halt()
        yield kafka.data_directory / "plain-0", count
    finally:
        kafka.stop()


def test_ottla_reads_every_record_of_kafkas_segments(written_by_kafka: tuple[Path, int]) -> None:
    directory, count = written_by_kafka
    lines = ottla_log_dump(directory, "--deep")
    offsets = [line["offset"] for line in lines if line["kind"] == "record"]
    assert offsets == list(range(count))
    assert not [line for line in lines if line["kind"] == "problem"]


def test_ottla_reads_all_of_kafkas_files(written_by_kafka: tuple[Path, int]) -> None:
    directory, _ = written_by_kafka
    kinds = Counter(Path(line["file"]).suffix or Path(line["file"]).name for line in ottla_log_dump(directory))
    assert {".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"} <= set(kinds)


def test_both_tools_see_the_same_batches(java_tools: JavaTools, written_by_kafka: tuple[Path, int]) -> None:
    directory, _ = written_by_kafka
    segments = sorted(directory.glob("*.log"))
    theirs = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) ", dump(java_tools, segments), re.MULTILINE)
    ours = [line for line in ottla_log_dump(*segments) if line["kind"] == "batch"]
    assert [[int(number) for number in row] for row in theirs] == [
        [line["baseOffset"], line["lastOffset"], line["count"]] for line in ours
    ]


def ottla_log_dump(*arguments: str | Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ottla", "log", "dump", *map(str, arguments), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
