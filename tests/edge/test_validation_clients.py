"""`schema.validation` with clients and registries as users have them: serializers, retries, gaps in the log."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from registry_process import RegistryProcess
from registry_stand_in import RegistryStandIn, registry_stand_in

from ottla.model.records import Record, build_batch
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, produce_request
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
INVALID_RECORD = 87
WAIT_S = 60
_NUMBERS = itertools.count()


class GatedRegistry(RegistryStandIn):
    """A registry that does not answer while a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def answer(self, method: str, segments: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.set()
        self.open.wait(WAIT_S)
        return super().answer(method, segments, body)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as started:
        yield started


@pytest.fixture(scope="module")
def registry(broker: BrokerProcess) -> Iterator[RegistryProcess]:
    with RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture
def gated(broker: BrokerProcess) -> Iterator[GatedRegistry]:
    """The broker asks this registry, which knows the id 1."""
    with registry_stand_in(GatedRegistry()) as (running, url):
        assert isinstance(running, GatedRegistry)
        running.add("any", SCHEMA)
        use_registry(broker, url)
        yield running
        running.open.set()


def use_registry(broker: BrokerProcess, url: str) -> None:
    config = AlterableConfig(name="schema.registry.url", config_operation=0, value=url)
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    with RawClient(broker.bootstrap) as client:
        (row,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert row.error_code == 0, row.error_message


def create(broker: BrokerProcess, validation: str, subject: str = "any") -> str:
    topic = f"{validation}-{next(_NUMBERS)}"
    with RawClient(broker.bootstrap) as client:
        client.create_topic(topic, config={"schema.validation": validation, "schema.validation.subject": subject})
    return topic


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + data


def send_with_librdkafka(broker: BrokerProcess, topic: str, values: list[bytes], **settings: Any) -> list[str | None]:
    """Send the values in one batch; return the error of each."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, **settings})
    errors: dict[bytes, str | None] = {}

    def note(error: Any, message: Message) -> None:
        errors[message.value() or b""] = None if error is None else error.name()

    for value in values:
        producer.produce(topic, value, b"key", on_delivery=note)
    assert producer.flush(WAIT_S) == 0
    return [errors[value] for value in values]


def read_with_librdkafka(broker: BrokerProcess, topic: str) -> tuple[list[tuple[int, bytes | None]], int]:
    """Return offsets and values, and the position at the end of the partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[tuple[int, bytes | None]] = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error() is not None:
            end = message.offset()
            consumer.close()
            return found, end
        found.append((message.offset(), message.value()))


def read_with_aiokafka(broker: BrokerProcess, topic: str) -> tuple[list[tuple[int, bytes | None]], int]:
    async def read() -> tuple[list[tuple[int, bytes | None]], int]:
        partition = TopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
        await consumer.start()
        try:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            found: list[tuple[int, bytes | None]] = []
            async with asyncio.timeout(WAIT_S):
                while await consumer.position(partition) < end:
                    rows = await consumer.getmany(partition, timeout_ms=100)
                    found += [(row.offset, row.value) for row in rows.get(partition, [])]
            return found, await consumer.position(partition)
        finally:
            await consumer.stop()

    return asyncio.run(read())


# -- a real registry ------------------------------------------------------------------------------------------------


def test_records_of_serializers_are_accepted_and_others_rejected(
    broker: BrokerProcess, registry: RegistryProcess
) -> None:
    use_registry(broker, registry.url)
    topic = create(broker, "reject")
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        value = AvroSerializer(client, SCHEMA)({"id": 1}, context)
    assert value is not None
    assert send_with_librdkafka(broker, topic, [value], **{"enable.idempotence": True}) == [None]
    assert send_with_librdkafka(broker, topic, [b"{}"], **{"enable.idempotence": True}) == ["INVALID_RECORD"]
    unknown = framed(4711, b"x")
    assert send_with_librdkafka(broker, topic, [unknown]) == ["INVALID_RECORD"]
    assert read_with_librdkafka(broker, topic) == ([(0, value)], 1)


@pytest.mark.parametrize("subject", ["any", "topic"])
def test_guid_in_a_header_is_looked_up(broker: BrokerProcess, registry: RegistryProcess, subject: str) -> None:
    use_registry(broker, registry.url)
    topic = create(broker, "reject", subject)
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext(topic, MessageField.VALUE, headers)
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, SCHEMA, conf={"schema.id.serializer": header_schema_id_serializer})
        value = serializer({"id": 1}, context)
    assert value is not None and len(value) < 5
    (name, guid), *_ = headers
    codes = send_raw(broker, topic, *(Record(value=value, headers=[(name, data)]) for data in (guid, other_guid(guid))))
    assert codes == [0, INVALID_RECORD]


def other_guid(guid: bytes) -> bytes:
    return guid[:-1] + bytes([guid[-1] ^ 1])


def send_raw(broker: BrokerProcess, topic: str, *records: Record) -> list[int]:
    """Send each record in a batch of its own; return the error codes."""
    codes = []
    with RawClient(broker.bootstrap) as raw:
        for record in records:
            (answer,) = raw.ask(produce_request((topic, 0, build_batch([record]))), 9).responses
            codes.append(answer.partition_responses[0].error_code)
    return codes


def test_subject_of_the_topic_can_be_required(broker: BrokerProcess, registry: RegistryProcess) -> None:
    use_registry(broker, registry.url)
    topic = create(broker, "reject", "topic")
    own = registry.register(f"{topic}-value", '{"type": "fixed", "name": "F", "size": 1}')
    other = registry.register("other-value", '{"type": "fixed", "name": "F", "size": 2}')
    codes = send_raw(broker, topic, *(Record(value=framed(each, b"x")) for each in (own, other, 4711)))
    assert codes == [0, INVALID_RECORD, INVALID_RECORD]


# -- a registry that does not answer --------------------------------------------------------------------------------


def send_with_confluent(broker: BrokerProcess, topic: str, values: list[bytes]) -> None:
    assert send_with_librdkafka(broker, topic, values, **{"enable.idempotence": True}) == [None] * len(values)


def send_with_aiokafka(broker: BrokerProcess, topic: str, values: list[bytes]) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            await asyncio.gather(*[await producer.send(topic, value) for value in values])

    asyncio.run(send())


@pytest.mark.parametrize("send", [send_with_confluent, send_with_aiokafka])
def test_producers_retry_until_the_registry_answers(broker: BrokerProcess, gated: GatedRegistry, send: Any) -> None:
    topic = create(broker, "reject")
    gated.is_down = True
    gated.asked.clear()
    values = [framed(1, b"%d" % number) for number in range(5)]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            send(broker, topic, values)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert gated.asked.wait(WAIT_S)
    gated.is_down = False
    thread.join(WAIT_S)
    assert not thread.is_alive() and not failures, failures
    assert read_with_librdkafka(broker, topic) == (list(enumerate(values)), 5)


def test_batch_does_not_overtake_one_that_waits_for_the_registry(broker: BrokerProcess, gated: GatedRegistry) -> None:
    topic = create(broker, "reject")
    tombstone = build_batch([Record(timestamp=1, key=b"k")])  # valid without a question
    with RawClient(broker.bootstrap) as client:
        gated.open.clear()
        gated.asked.clear()
        first = client.send(produce_request((topic, 0, build_batch([Record(timestamp=1, value=framed(1, b""))]))), 9)
        second = client.send(produce_request((topic, 0, tombstone)), 9)
        assert gated.asked.wait(WAIT_S)
        gated.open.set()
        answers = [client.receive(0, 9, correlation_id) for correlation_id in (first, second)]
    rows = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 1)]


# -- dead letters ---------------------------------------------------------------------------------------------------


def test_consumers_read_over_the_gaps(broker: BrokerProcess, gated: GatedRegistry) -> None:
    topic = create(broker, "dlq")
    settings = {"enable.idempotence": True, "compression.type": "lz4"}
    good = [framed(1, b"%d" % number) for number in range(6)]
    first = [good[0], b"bad-0", good[1], b"bad-1"]
    rounds = [first, [b"bad-2", b"bad-3"], [good[2], good[3]], [b"bad-4", good[4]], [good[5], b"bad-5"]]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, **settings})
    failed: list[Any] = []
    for values in rounds:
        for value in values:
            producer.produce(topic, value, b"key", on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(WAIT_S) == 0
    assert failed == []
    wanted = [
        (offset, value)
        for offset, value in enumerate(itertools.chain.from_iterable(rounds))
        if not value.startswith(b"bad")
    ]
    dead = [value for value in itertools.chain.from_iterable(rounds) if value.startswith(b"bad")]
    assert read_with_librdkafka(broker, topic) == (wanted, 12)
    assert read_with_aiokafka(broker, topic) == (wanted, 12)
    assert [value for _, value in read_with_librdkafka(broker, f"{topic}-dlq")[0]] == dead


def test_invalid_records_of_a_transaction_are_rejected(broker: BrokerProcess, gated: GatedRegistry) -> None:
    topic = create(broker, "dlq")
    errors: list[str | None] = []

    def note(error: Any, message: Message) -> None:
        errors.append(None if error is None else error.name())

    for value in (b"bad", framed(1, b"good")):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, value, on_delivery=note)
        assert producer.flush(WAIT_S) == 0
        if value == b"bad":
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    assert errors == ["INVALID_RECORD", None]
    assert [value for _, value in read_with_librdkafka(broker, topic)[0]] == [framed(1, b"good")]
