"""franz-go on its own: its admin client, and its errors. Records are in test_interchange and test_client_records."""

from __future__ import annotations

import pytest
from drivers import Record, Refused
from drivers.franz_go import FranzGo
from drivers.parameters import NewTopic

pytestmark = pytest.mark.foreign

_UNKNOWN_TOPIC_OR_PARTITION = 3
_MESSAGE_TOO_LARGE = 10


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


def test_unknown_topic_is_refused(franz_go: FranzGo, unused_name: str) -> None:
    with pytest.raises(Refused) as refused:
        franz_go.produce(unused_name, [Record(value=b"x")])
    assert refused.value.code == _UNKNOWN_TOPIC_OR_PARTITION


def test_message_over_the_limit_is_refused(franz_go: FranzGo, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    with pytest.raises(Refused) as refused:
        franz_go.produce(topic, [Record(value=b"x" * 10_001)])
    assert refused.value.code == _MESSAGE_TOO_LARGE
