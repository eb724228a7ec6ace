"""What librdkafka's consumers make of a host that has as many members as it may have."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient

pytestmark = pytest.mark.client

SETTINGS = {"group.max.members.per.ip": "1", "group.initial.rebalance.delay.ms": "0"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_over_the_limit_is_told_and_the_first_one_goes_on(protocol: str) -> None:
    with BrokerProcess.start(settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("one")

        def consumer(group: str) -> Consumer:
            settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
            made = Consumer(settings)
            made.subscribe(["one"])
            return made

        first = consumer("a")
        while not first.assignment():
            message = first.poll(0.1)
            assert message is None or message.error() is None
        second = consumer("b")
        try:
            while (message := second.poll(0.1)) is None:
                assert not second.assignment()
            error = message.error()
            # The consumer protocol's client stops; the classic one reports it and tries again once a second.
            code = KafkaError._FATAL if protocol == "consumer" else KafkaError.GROUP_MAX_SIZE_REACHED
            assert error is not None and error.code() == code
            assert "maximum size" in error.str()
            assert first.assignment()
        finally:
            first.close()
            second.close()
