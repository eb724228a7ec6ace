"""The process that decodes batches does not outlive its broker, and a transaction does not notice it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from ottla.model.records import Record, build_batch
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, produce_request

pytestmark = pytest.mark.broker

COMPACTED = {"cleanup.policy": "compact"}
LARGE = build_batch([Record(timestamp=1_700_000_000_000, key=b"k")] * 100_000, codec=4)


def children(pid: int) -> set[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for thread in threads for child in (thread / "children").read_text().split()}


def has_no_records(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_opener_ends_with_its_broker_in_the_middle_of_a_job(kill: bool) -> None:
    with BrokerProcess.start() as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("compacted", config=COMPACTED)
        assert not children(broker.pid)
        client.ask(produce_request(("compacted", 0, LARGE)), 9)
        (opener,) = children(broker.pid)
        client.send(produce_request(("compacted", 0, LARGE)), 9)
        if kill:
            broker.kill()
        else:
            broker.stop()
        deadline = time.monotonic() + 60
        while not has_no_records(opener):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "Traceback" not in broker.errors()


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_transaction_with_batches_for_the_opener(ottla_broker: BrokerProcess, commit: bool) -> None:
    topic = f"opener-transaction-{commit}"
    with RawClient(ottla_broker.bootstrap) as client:
        client.create_topic(topic, 2, COMPACTED)
    address = {"bootstrap.servers": ottla_broker.bootstrap}
    producer = Producer({**address, "transactional.id": topic, "linger.ms": 50, "batch.num.messages": 5000})
    producer.init_transactions(30)
    for count, keep in ((3000, commit), (10, True)):
        producer.begin_transaction()
        for number in range(2 * count):
            producer.produce(topic, b"%d" % number, b"%d" % number, number % 2)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if keep else producer.abort_transaction(30)
    consumer = Consumer({**address, "group.id": topic, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    consumer.subscribe([topic])
    seen, ends = 0, 0
    while ends < 2:
        message = consumer.poll(30)
        assert message is not None
        ends, seen = ends + bool(message.error()), seen + (not message.error())
    consumer.close()
    assert seen == (6020 if commit else 20)
