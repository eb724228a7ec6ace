"""franz-go on its own: its admin client, its groups and errors. Records: test_interchange and test_client_records."""

from __future__ import annotations

import pytest
from drivers import Record, Refused
from drivers.franz_go import FranzGo
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_UNKNOWN_TOPIC_OR_PARTITION = 3
_MESSAGE_TOO_LARGE = 10
_SHARED = {
    "partitions of each member": [2, 2],
    "records of each partition": {"0": 5, "1": 5, "2": 5, "3": 5},
    "listed": "Stable",
    "deleted with members": 68,
    # One was set back to 2, one was deleted.
    "offsets": {"0": 2, "2": 5, "3": 5},
    "deleted again": 69,
}


def test_admin_client_walks_through_the_life_of_a_topic(franz_go: FranzGo, unused_name: str) -> None:
    assert franz_go.administer(unused_name) == {
        "created again": 36,
        # earliest, latest, newest timestamp, first at or after 1.5 seconds
        "offsets": [0, 5, 4, 2],
        "max.message.bytes": "54321",
        "retention.ms": "1000000",
        "low watermark": 3,
        "partitions": 4,
        "deleted again": _UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_client_infers_the_last_version_of_kafka_with_zookeeper(franz_go: FranzGo) -> None:
    """It tells versions apart by all APIs. Those of share groups and of telemetry, which Kafka 4 has, are absent."""
    assert franz_go.version() == "at least v3.9"


def test_classic_group_is_shared_described_and_deleted(franz_go: FranzGo, unused_name: str, group: str) -> None:
    assert franz_go.share(unused_name, group, "classic") == {
        **_SHARED,
        "described": ["Stable", "cooperative-sticky", 2, "consumer"],
        "lag": 0,
        "lag afterwards": ["Empty", 3],
    }


def test_group_of_the_newer_protocol_is_shared_described_and_deleted(
    franz_go: FranzGo, quick_broker: BrokerProcess, unused_name: str, group: str
) -> None:
    found = franz_go.at(quick_broker.bootstrap).share(unused_name, group, "consumer")
    assert found == {**_SHARED, "described": ["Stable", "uniform", 2, True]}


def test_unknown_topic_is_refused(franz_go: FranzGo, unused_name: str) -> None:
    with pytest.raises(Refused) as refused:
        franz_go.produce(unused_name, [Record(value=b"x")])
    assert refused.value.code == _UNKNOWN_TOPIC_OR_PARTITION


def test_message_over_the_limit_is_refused(franz_go: FranzGo, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    with pytest.raises(Refused) as refused:
        franz_go.produce(topic, [Record(value=b"x" * 10_001)])
    assert refused.value.code == _MESSAGE_TOO_LARGE
