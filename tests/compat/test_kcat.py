"""kcat on its own: metadata, queries, ways to say where to start, and its balanced consumer."""

from __future__ import annotations

import json

import pytest
from drivers import Record, Refused
from drivers.confluent import Confluent
from drivers.kcat import Kcat
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_T0_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(confluent: Confluent, new_topic: NewTopic) -> str:
    """Ten records, a second apart."""
    name = new_topic(partitions=2)
    confluent.produce(name, [Record(value=b"%d" % n, timestamp_ms=_T0_MS + n * 1000) for n in range(10)])
    return name


def test_metadata_lists_broker_and_partitions(kcat: Kcat, topic: str, ottla_broker: BrokerProcess) -> None:
    found = json.loads(kcat.run("-L", "-t", topic, "-J"))
    assert [broker["name"] for broker in found["brokers"]] == [ottla_broker.bootstrap]
    assert [partition["partition"] for partition in found["topics"][0]["partitions"]] == [0, 1]


def test_metadata_of_everything_has_the_topic(kcat: Kcat, topic: str) -> None:
    assert topic in {each["topic"] for each in json.loads(kcat.run("-L", "-J"))["topics"]}


def test_query_finds_the_offset_of_a_moment(kcat: Kcat, topic: str) -> None:
    out = kcat.run("-Q", "-t", f"{topic}:0:{_T0_MS + 3500}")
    assert out.split() == [topic, "[0]", "offset", "4"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", "0123456789"), ("-3", "789"), ("end", ""), ("6", "6789"), (f"s@{_T0_MS + 7500}", "89")],
)
def test_consumer_starts_where_it_is_told_and_ends_at_the_end(
    kcat: Kcat, topic: str, start: str, expected: str
) -> None:
    assert kcat.run("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", "-f", "%s") == expected


def test_all_partitions_are_read_without_naming_one(kcat: Kcat, topic: str) -> None:
    assert kcat.run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%s") == "0123456789"


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_balanced_consumer_commits_and_goes_on(
    kcat: Kcat, confluent: Confluent, new_topic: NewTopic, group: str, assignor: str
) -> None:
    topic = new_topic(partitions=2)
    for partition in range(2):
        confluent.produce(topic, [Record(value=b"%d" % n) for n in range(3)], partition=partition)
    settings = "-X", "auto.offset.reset=earliest", "-X", f"partition.assignment.strategy={assignor}"
    consumer = "-G", group, topic, *settings, "-e", "-q", "-f", "%p:%o:%s "
    assert sorted(kcat.run(*consumer).split()) == [f"{partition}:{n}:{n}" for partition in range(2) for n in range(3)]
    confluent.produce(topic, [Record(value=b"later")], partition=1)
    assert kcat.run(*consumer).split() == ["1:3:later"]


def test_lines_of_standard_input_become_records(kcat: Kcat, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    kcat.run("-P", "-t", topic, "-K", ":", stdin="".join(f"key{n}:value{n}\n" for n in range(100)))
    out = kcat.run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s\n")
    assert sorted(out.splitlines()) == sorted(f"key{n}:value{n}" for n in range(100))


def test_message_over_the_limit_is_refused(kcat: Kcat, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    with pytest.raises(Refused, match="Message size too large"):
        kcat.produce(topic, [Record(value=b"x" * 10_001)])
