"""Clients that are asked for a smoke test only: to join a group, read, commit, leave, and find their place again."""

from __future__ import annotations

from typing import Any

import pytest
from drivers import Record
from drivers.confluent import Confluent
from drivers.parameters import NewTopic

pytestmark = pytest.mark.foreign


@pytest.mark.parametrize("client", ["sarama", "segmentio"], indirect=True)
def test_member_goes_on_where_the_last_one_committed(
    client: Any, confluent: Confluent, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(partitions=2)
    for partition, codec in enumerate(("zstd", "snappy")):
        confluent.produce(topic, [Record(value=b"%d" % n) for n in range(3)], partition=partition, codec=codec)
    first = client.consume(topic, group, 6)
    assert sorted(first) == [(partition, n, str(n)) for partition in range(2) for n in range(3)]
    confluent.produce(topic, [Record(value=b"later")], partition=1)
    assert client.consume(topic, group, 1) == [(1, 3, "later")]
