"""librdkafka aborts a transaction whose records were stored although the answer to them was lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from reading import create_topic, read_to_end

from campaign.processes import wait_until
from ottla.testing import BrokerProcess
from ottla.testing.proxy import PRODUCE, Fault, FaultProxy, Faults

pytestmark = [pytest.mark.broker, pytest.mark.client]

_CALL_S_MAX = 60.0


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    """A proxy in front of a broker that advertises the address of the proxy."""
    with FaultProxy() as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        with BrokerProcess.start(settings=settings) as broker:
            proxy.target = broker.bootstrap
            yield proxy
            assert "Traceback" not in broker.errors()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_record_is_lost_when_librdkafka_reuses_sequence_numbers_after_an_abort(
    proxy: FaultProxy, count: int
) -> None:
    """The aborted transaction has two records. The next one reuses their sequence numbers for ``count`` records.

    Kafka 4.3 acknowledges two records as duplicates and loses them; with another number its answer is fatal for the
    producer. Here the transaction fails, and the producer commits the next one.
    """
    (place,) = create_topic(proxy.address, f"reused-{count}", 1)
    producer = Producer({
        "bootstrap.servers": proxy.address, "transactional.id": place.topic, "linger.ms": 50, "log_level": 0,
        "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
    })  # fmt: skip
    producer.init_transactions(_CALL_S_MAX)
    _transact(producer, place.topic, [b"committed"])
    proxy.happened.clear()
    proxy.faults = Faults(apis={PRODUCE}, rate=1.0, kinds=(Fault.LOSE_ANSWER,))
    producer.begin_transaction()
    for value in (b"aborted", b"aborted too"):
        producer.produce(place.topic, value, partition=0)
    wait_until(lambda: bool(proxy.happened), "the answer is lost", _CALL_S_MAX)
    _abort(producer)
    proxy.faults = None
    failed = [b"failed %d" % number for number in range(count)]
    with pytest.raises(KafkaException) as raised:
        _transact(producer, place.topic, failed)
    error = raised.value.args[0]
    assert error.txn_requires_abort() and not error.fatal(), error
    _abort(producer)
    again = [b"again %d" % number for number in range(count)]
    _transact(producer, place.topic, again)
    found = [value for _, value in read_to_end(proxy.address, [place])[place]]
    assert found == [b"committed", *again]


def _transact(producer: Producer, topic: str, values: list[bytes]) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(_CALL_S_MAX)


def _abort(producer: Producer) -> None:
    """Abort; while it waits for answers that are lost, librdkafka wants to be asked again."""
    while True:
        try:
            producer.abort_transaction(1.0)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            producer.poll(0)
