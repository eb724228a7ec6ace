"""Records were lost while the broker was stopped: clients pass the gap, and Apache Kafka's tool shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import Record
from drivers.aio import Aiokafka
from drivers.confluent import Confluent
from drivers.java import DUMP_LOG, JavaTools
from drivers.kafka_python import KafkaPython
from drivers.kcat import Kcat

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_TOPIC = "cut"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that finds its first and its last segment without their last batches: some of 40 records are missing."""
    with BrokerProcess.start(tmp_path_factory.mktemp("data")) as started:
        confluent = Confluent(started.bootstrap)
        confluent.create_topic(_TOPIC, config={"segment.bytes": "1000"})
        for number in range(20):
            confluent.produce(_TOPIC, [Record(value=b"%d" % (2 * number + n)) for n in range(2)])
        assert started.stop() == 0
        files = sorted((Path(started.data) / f"{_TOPIC}-0").glob("*.log"))
        for file in (files[0], files[-1]):
            content = file.read_bytes()
            file.write_bytes(content[:-5])
        started.launch()
        assert started.errors().count("records are missing") == 2
        yield started


def lost_records(broker: BrokerProcess) -> list[range]:
    """Return the offsets that the broker reported as missing: those of two batches, with one or two records each."""
    spans = re.findall(r"first_missing_offset=(\d+) next_offset=(\d+)", broker.errors())
    return [range(int(first), int(following)) for first, following in spans]


def left_values(broker: BrokerProcess) -> list[bytes]:
    """Return the values of the other records; a record's value is its offset."""
    missing = lost_records(broker)
    return [b"%d" % offset for offset in range(40) if not any(offset in gap for gap in missing)]


@pytest.mark.parametrize("client", [Confluent, Aiokafka, KafkaPython])
def test_client_reads_on_behind_the_gap(broker: BrokerProcess, client: type) -> None:
    first, last = lost_records(broker)
    assert last.stop == 40
    driver = client(broker.bootstrap)
    left = left_values(broker)
    assert [received.record.value for received in driver.consume(_TOPIC, len(left))] == left
    behind = driver.consume(_TOPIC, 1, offset=first.start)
    assert [received.record.value for received in behind] == [b"%d" % first.stop]


def test_kcat_ends_at_a_gap_that_is_the_end(broker: BrokerProcess) -> None:
    values = Kcat(broker.bootstrap).run("-C", "-t", _TOPIC, "-o", "beginning", "-e", "-q", "-f", "%s ").split()
    assert [value.encode() for value in values] == left_values(broker)


def test_java_consumer_reads_on_and_kafka_dump_log_shows_the_gap(broker: BrokerProcess, java_tools: JavaTools) -> None:
    left = left_values(broker)
    assert len(java_tools.at(broker.bootstrap).consume(_TOPIC, len(left))) == len(left)
    files = sorted((Path(broker.data) / f"{_TOPIC}-0").glob("*.log"))
    done = java_tools.run_tool(DUMP_LOG, ["--files", ",".join(map(str, files)), "--deep-iteration"])
    assert done.returncode == 0
    shown = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: 0 .*isvalid: true", done.stdout)
    assert [range(int(first), int(last) + 1) for first, last in shown] == lost_records(broker)


def test_new_records_stand_behind_the_gap(broker: BrokerProcess) -> None:
    confluent = Confluent(broker.bootstrap)
    confluent.produce(_TOPIC, [Record(value=b"new")])
    assert [(each.offset, each.record.value) for each in confluent.consume(_TOPIC, 1, offset=39)] == [(40, b"new")]
