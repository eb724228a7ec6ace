"""`schema.validation` at the wire: a real broker, and a registry that a test fills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata, make_view, partition, topic_changes
from tests.unit.broker.memory_broker import MemoryBroker, MemoryTransport

from ottla.broker.metadata.schema_settings import new_dead_letter_topic
from ottla.broker.validation.dead_letters import DeadLetters
from ottla.broker.validation.schema_lookup import SchemaLookups
from ottla.client.async_connections import PeerUnreachable
from ottla.client.registry import RegistryUnreachable
from ottla.log.checkpoints import CLEAN_STOP
from ottla.model.batch import read_header
from ottla.model.errors import ErrorCode, KafkaError, NotLeaderOrFollower
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.types import TopicPartition
from ottla.testing.raw import fetch_from, fetch_request, produce_request
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

NOW = 1_700_000_000_000
URL = {"schema.registry.url": "http://127.0.0.1:1"}
NO_ID = "the value does not begin with a schema id"
UNKNOWN_9 = "the schema registry has no schema with id 9"
GOOD = b"\0\0\0\0\1good"
NINE = b"\0\0\0\0\x09nine"
TIMED_OUT, OUT_OF_ORDER, INVALID_CONFIG, INVALID_REQUEST, INVALID_RECORD = 7, 45, 40, 42, 87


class Registry:
    """In place of the client of a registry."""

    def __init__(self) -> None:
        self.ids = {1}
        self.asked = 0
        self.failure: Exception | None = None

    def knows(self, schema_id: int, subject: str | None) -> bool:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return schema_id in self.ids and subject in (None, "t-value")

    def close(self) -> None:
        pass


def batch(*values: bytes | None, sequence: int = -1, codec: int = 0, key: bytes | None = b"k") -> bytes:
    producer = (5, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    records = [Record(timestamp=NOW, key=key, value=value) for value in values]
    return build_batch(
        records, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )


class Fixture:
    """A broker whose topic ``t`` has one partition and the validation that a test asks for."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.registry = Registry()
        (self.lookups,) = (each for each in broker.broker.components if isinstance(each, SchemaLookups))
        self.lookups._connect = lambda _: self.registry  # type: ignore[assignment, return-value]
        self.root = broker.root

    async def create(
        self, name: str, config: dict[str, str], partitions: int = 1, client: MemoryTransport | None = None
    ) -> Any:
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        request = CreateTopicsRequest(topics=[topic], timeout=1000)
        return (await (client or self.root).decoded(request, 7)).topics[0]

    async def alter(
        self, name: str, config: dict[str, str], kind: int = 2, client: MemoryTransport | None = None
    ) -> tuple[int, str | None]:
        rows = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in config.items()]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
        answer = await (client or self.root).decoded(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        return answer.responses[0].error_code, answer.responses[0].error_message

    async def produce(self, data: bytes, *, version: int = 9, acks: int = -1, topic: str = "t") -> Any:
        answer = await self.root.decoded(produce_request((topic, 0, data), acks=acks), version)
        return answer.responses[0].partition_responses[0]

    async def read(self, topic: str = "t") -> list[Record]:
        """Return all records of partition 0."""
        answer = await self.root.decoded(fetch_request({topic: [fetch_from(0, 0)]}), 11)
        data, records = answer.responses[0].partitions[0].records or b"", list[Record]()
        while data:
            size = read_header(data).size_bytes
            records += iterate_records(data[:size])
            data = data[size:]
        return records

    async def values(self, topic: str = "t") -> list[tuple[int, bytes | None]]:
        return [(record.offset, record.value) for record in await self.read(topic)]

    @property
    def outcomes(self) -> dict[str, int]:
        assert self.broker.broker.parts is not None
        return {
            name: count for name, count in self.broker.broker.parts.produce._opened._schemas.records.items() if count
        }


def run(
    path: Path, script: Callable[[Fixture], Awaitable[None]], action: str | None = None,
    settings: dict[str, str] | None = None, **config: str,
) -> None:  # fmt: skip
    async def main() -> None:
        async with MemoryBroker(path, URL if settings is None else settings) as broker, asyncio.timeout(60):
            fixture = Fixture(broker)
            if action is not None:
                texts = {name.replace("_", "."): value for name, value in config.items()}
                created = await fixture.create("t", {"schema.validation": action, **texts})
                assert created.error_code == 0, created.error_message
            await script(fixture)

    asyncio.run(main())


def errors_of(result: Any) -> list[tuple[int, str]]:
    return [(each.batch_index, each.batch_index_error_message) for each in result.record_errors]


# -- reject and warn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["none", "gzip", "zstd"])
def test_reject_names_the_invalid_records_and_appends_nothing(tmp_path: Path, codec: int) -> None:
    async def script(fixture: Fixture) -> None:
        result = await fixture.produce(batch(GOOD, NINE, None, b"json", codec=codec))
        assert (result.error_code, result.base_offset) == (INVALID_RECORD, -1)
        assert errors_of(result) == [(1, UNKNOWN_9), (3, NO_ID)]
        assert result.error_message == f"record 1 and 1 others of the batch cannot be stored: {UNKNOWN_9}"
        assert (await fixture.produce(batch(b"json"), version=7)).error_code == INVALID_RECORD
        assert (await fixture.produce(batch(GOOD, None))).base_offset == 0
        assert await fixture.values() == [(0, GOOD), (1, None)]
        assert fixture.outcomes == {"rejected": 3}

    run(tmp_path, script, "reject")


def test_known_ids_are_asked_about_once(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        for offset in range(5):
            assert (await fixture.produce(batch(GOOD))).base_offset == offset
        assert fixture.registry.asked == 1

    run(tmp_path, script, "reject")


def test_id_that_is_registered_later_becomes_valid(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(NINE))).error_code == INVALID_RECORD
        fixture.registry.ids.add(9)
        fixture.lookups._unknown.clear()
        assert (await fixture.produce(batch(NINE))).error_code == 0

    run(tmp_path, script, "reject")


def test_confluents_settings_reject_keys_and_values(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.create("t", {"confluent.key.schema.validation": "true"})).error_code == 0
        result = await fixture.produce(batch(b"json"))
        assert errors_of(result) == [(0, "the key does not begin with a schema id")]
        assert await fixture.alter("t", {"confluent.value.schema.validation": "true"}) == (0, None)
        result = await fixture.produce(batch(b"json", key=GOOD))
        assert errors_of(result) == [(0, NO_ID)]
        assert (await fixture.produce(batch(GOOD, key=GOOD))).error_code == 0

    run(tmp_path, script)


def test_schema_of_another_subject_is_unknown_if_the_topic_says_so(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(GOOD))).error_code == 0
        assert fixture.registry.asked == 1
        assert (await fixture.produce(batch(GOOD))).error_code == 0
        assert fixture.registry.asked == 1
        config = {"schema.validation": "reject", "schema.validation.subject": "topic"}
        await fixture.create("other", config)
        result = await fixture.produce(batch(GOOD), topic="other")
        reason = "the schema registry has no schema with id 1 under subject other-value"
        assert (result.error_code, errors_of(result)) == (INVALID_RECORD, [(0, reason)])

    run(tmp_path, script, "reject", schema_validation_subject="topic")


def test_warn_appends_invalid_records_and_logs_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(GOOD, NINE))).error_code == 0
        assert await fixture.values() == [(0, GOOD), (1, NINE)]
        assert fixture.outcomes == {"warned": 1}
        assert f"invalid records are appended partition=t-0 count=1 index=1 reason={UNKNOWN_9}" in caplog.text

    run(tmp_path, script, "warn")


def test_validation_that_is_switched_off_costs_nothing(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(b"json"))).error_code == INVALID_RECORD
        assert await fixture.alter("t", {"schema.validation": "none"}) == (0, None)
        assert (await fixture.produce(batch(b"json"))).error_code == 0
        partition = fixture.broker.broker.replicas.find("t", 0)
        assert partition is not None and partition.log._plain

    run(tmp_path, script, "reject")


# -- a registry that does not answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["reject", "dlq"])
def test_batch_is_retried_while_the_registry_does_not_answer(tmp_path: Path, action: str) -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.failure = RegistryUnreachable("no registry")
        result = await fixture.produce(batch(GOOD, sequence=0))
        assert result.error_code == TIMED_OUT
        assert result.error_message == "the records cannot be validated now: no registry"
        fixture.registry.failure, fixture.lookups._down_until = None, 0.0
        # A later batch of the same producer must not be appended before the first one.
        assert (await fixture.produce(batch(GOOD, sequence=1))).error_code == OUT_OF_ORDER
        assert (await fixture.produce(batch(GOOD, sequence=0))).base_offset == 0
        assert (await fixture.produce(batch(GOOD, sequence=1))).base_offset == 1
        assert fixture.outcomes["unchecked"] == 1

    run(tmp_path, script, action)


def test_warn_appends_while_the_registry_does_not_answer(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.failure = RegistryUnreachable("no registry")
        assert (await fixture.produce(batch(GOOD))).error_code == 0
        assert fixture.outcomes == {"unchecked": 1}

    run(tmp_path, script, "warn")


def test_known_ids_need_no_registry(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(GOOD))).error_code == 0
        fixture.registry.failure = RegistryUnreachable("no registry")
        assert (await fixture.produce(batch(GOOD))).error_code == 0
        assert (await fixture.produce(batch(NINE))).error_code == TIMED_OUT

    run(tmp_path, script, "reject")


# -- dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
def test_invalid_records_go_to_the_dead_letter_topic(tmp_path: Path, acks: int) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(GOOD), acks=acks)).base_offset == 0
        result = await fixture.produce(batch(NINE, GOOD, b"json"), acks=acks)
        assert (result.error_code, result.base_offset) == (0, 1)
        assert (await fixture.produce(batch(GOOD), acks=acks)).base_offset == 4
        assert await fixture.values() == [(0, GOOD), (2, GOOD), (4, GOOD)]
        dead = await fixture.read("t-dlq")
        assert [(each.timestamp, each.key, each.value) for each in dead] == [(NOW, b"k", NINE), (NOW, b"k", b"json")]
        assert [dict(each.headers) for each in dead] == [
            {"_cause": UNKNOWN_9.encode(), "_topic": b"t", "_partition": b"0", "_offset_min": b"1"},
            {"_cause": NO_ID.encode(), "_topic": b"t", "_partition": b"0", "_offset_min": b"3"},
        ]
        assert fixture.outcomes == {"valid": 2, "dead_letter": 2}

    run(tmp_path, script, "dlq")


def test_sequence_numbers_continue_after_diverted_records(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        first, second = batch(GOOD, NINE, sequence=0), batch(NINE, b"x", sequence=2)
        assert (await fixture.produce(first)).base_offset == 0
        assert (await fixture.produce(second)).base_offset == 2  # an empty batch
        assert (await fixture.produce(batch(GOOD, sequence=4))).base_offset == 4
        assert (await fixture.produce(batch(NINE, sequence=9))).error_code == OUT_OF_ORDER
        # Retries are answered with the offsets of the first attempt, and divert nothing again.
        assert (await fixture.produce(first)).base_offset == 0
        assert (await fixture.produce(second)).base_offset == 2
        assert await fixture.values() == [(0, GOOD), (4, GOOD)]
        assert [record.value for record in await fixture.read("t-dlq")] == [NINE, NINE, b"x"]

    run(tmp_path, script, "dlq")


def test_log_with_diverted_records_is_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fill(fixture: Fixture) -> None:
        for sequence in (0, 2, 4):
            assert (await fixture.produce(batch(GOOD, NINE, sequence=sequence))).error_code == 0
        assert (await fixture.produce(batch(NINE, NINE, sequence=6))).error_code == 0

    async def check(fixture: Fixture) -> None:
        assert await fixture.values() == [(0, GOOD), (2, GOOD), (4, GOOD)]
        assert (await fixture.produce(batch(GOOD, sequence=8))).base_offset == 8

    run(tmp_path, fill, "dlq")
    for path in (
        tmp_path / "recovery-point-offset-checkpoint",
        tmp_path / CLEAN_STOP,
        *tmp_path.glob("t-0/*.snapshot"),
    ):
        path.unlink()
    run(tmp_path, check)
    assert "the last stop was not clean" in caplog.text


def test_timestamps_of_diverted_records_are_not_found(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        late = build_batch([Record(timestamp=NOW + 10, value=NINE)])
        mixed = build_batch([Record(timestamp=NOW + 20, value=NINE), Record(timestamp=NOW, value=GOOD)])
        for data in (late, mixed, late):
            assert (await fixture.produce(data)).error_code == 0
        found = []
        for timestamp in (NOW, NOW + 1, -3):
            row = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[row])])
            (topic,) = (await fixture.root.decoded(request, 7)).topics
            found.append((topic.partitions[0].error_code, topic.partitions[0].offset, topic.partitions[0].timestamp))
        assert found == [(0, 2, NOW), (0, -1, -1), (0, 2, NOW)]

    run(tmp_path, script, "dlq")


def test_batch_without_acknowledgement_is_diverted_too(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        fixture.root.begin(produce_request(("t", 0, batch(NINE, GOOD)), acks=0), 9)
        other = fixture.broker.connect("User:root")
        fixture.root = other
        while not (found := await fixture.values()):
            await asyncio.sleep(0.001)
        assert found == [(1, GOOD)]
        assert [value for _, value in await fixture.values("t-dlq")] == [NINE]

    run(tmp_path, script, "dlq")


@pytest.mark.parametrize("action", ["reject", "dlq"])
def test_large_batches_are_validated_in_another_process(tmp_path: Path, action: str) -> None:
    async def script(fixture: Fixture) -> None:
        result = await fixture.produce(batch(*[GOOD] * 3000, NINE, *[GOOD] * 3000, codec=1))
        assert fixture.broker.broker.replicas.opener.opened >= 2
        if action == "reject":
            assert (result.error_code, errors_of(result)) == (INVALID_RECORD, [(3000, UNKNOWN_9)])
        else:
            assert result.error_code == 0
            offsets = [offset for offset, _ in await fixture.values()]
            assert offsets == [offset for offset in range(6001) if offset != 3000]
            assert [value for _, value in await fixture.values("t-dlq")] == [NINE]

    run(tmp_path, script, action)


def test_dead_letter_topic_may_have_a_codec_and_partitions_of_its_own(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        await fixture.create("dead", {"compression.type": "zstd"}, partitions=3)
        assert (await fixture.produce(batch(NINE))).error_code == 0
        assert [value for _, value in await fixture.values("dead")] == [NINE]

    run(tmp_path, script, "dlq", schema_validation_dlq_topic="dead")


def test_missing_dead_letter_topic_makes_the_producer_retry(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        result = await fixture.produce(batch(NINE, GOOD))
        assert result.error_code == TIMED_OUT
        assert "dead-letter topic t-dlq now: the topic does not exist; create it" in result.error_message
        assert await fixture.values() == []
        await fixture.create("t-dlq", {})
        assert (await fixture.produce(batch(NINE, GOOD))).error_code == 0

    run(tmp_path, script, "dlq", {**URL, "auto.create.topics.enable": "false"})


def test_batch_is_rejected_if_the_dead_letter_topic_refuses_its_records(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        await fixture.create("t-dlq", {"cleanup.policy": "compact"})
        result = await fixture.produce(batch(GOOD, NINE, key=None))
        assert (result.error_code, errors_of(result)) == (INVALID_RECORD, [(1, UNKNOWN_9)])
        assert "the dead-letter topic t-dlq does not take it: " in result.error_message
        assert await fixture.values() == []
        assert await fixture.alter("t-dlq", {"cleanup.policy": "delete", "schema.validation": "reject"}) == (0, None)
        result = await fixture.produce(batch(GOOD, NINE))
        assert result.error_message.endswith("it has schema.validation itself")
        assert await fixture.alter("t-dlq", {"max.message.bytes": "100", "schema.validation": "none"}) == (0, None)
        result = await fixture.produce(batch(GOOD, NINE))
        assert (result.error_code, errors_of(result)) == (INVALID_RECORD, [(1, UNKNOWN_9)])

    run(tmp_path, script, "dlq")


class Peer:
    """In place of the connections to other brokers."""

    def __init__(self, leader: int | None = 7) -> None:
        self.leader = leader
        self.code, self.text = 0, None
        self.requests: list[Any] = []
        self.failure: Exception | None = None

    def leader_of(self, name: TopicPartition) -> int | None:
        return self.leader

    async def produce(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        self.requests.append((broker_id, request))
        if self.failure is not None:
            raise self.failure
        row = PartitionProduceResponse(index=1, error_code=self.code, error_message=self.text)
        return ProduceResponse(responses=[TopicProduceResponse(name="dead", partition_responses=[row])])


def write_remotely(peer: Peer, acks: int = -1) -> None:
    def leader_of(topic: bytes, number: int) -> Any:
        raise NotLeaderOrFollower("")

    view = make_view()
    view.apply(topic_changes("dead", [partition(2, (2,))] * 3))
    replicas: Any = SimpleNamespace(leader_of=leader_of)
    letters = DeadLetters(
        metadata=make_metadata(view), replicas=replicas, topics=UNUSED, peers=peer, loop=UNUSED, clock=UNUSED
    )  # fmt: skip
    source: Any = SimpleNamespace(name=TopicPartition("t", 4))
    asyncio.run(letters.write("dead", source, [b"one", b"two"], acks, lambda: None))


def test_dead_letters_are_sent_to_the_broker_that_leads_their_partition() -> None:
    peer = Peer()
    write_remotely(peer, acks=0)
    assert [
        (broker, request.acks, request.topic_data[0].name, row.index, row.records)
        for broker, request in peer.requests
        for row in request.topic_data[0].partition_data
    ] == [(7, 1, "dead", 1, b"one"), (7, 1, "dead", 1, b"two")]


def test_failures_of_the_other_broker_are_reported() -> None:
    refusing, lost = Peer(), Peer()
    refusing.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    lost.failure = PeerUnreachable("lost")
    for peer, code in ((refusing, refusing.code), (lost, TIMED_OUT), (Peer(None), ErrorCode.LEADER_NOT_AVAILABLE)):
        with pytest.raises(KafkaError) as raised:
            write_remotely(peer)
        assert raised.value.code == code
        assert len(peer.requests) <= 1


# -- settings -------------------------------------------------------------------------------------------------------


def test_validation_needs_a_registry(tmp_path: Path) -> None:
    async def script(fixture: Fixture) -> None:
        created = await fixture.create("t", {"schema.validation": "warn"})
        assert created.error_code == INVALID_CONFIG
        assert "set schema.registry.url of the brokers first" in created.error_message
        await fixture.create("t", {})
        code, text = await fixture.alter("t", {"schema.validation": "reject"})
        assert code == INVALID_CONFIG and text is not None and "schema.registry.url" in text
        assert await fixture.alter("", URL, kind=4) == (0, None)
        assert await fixture.alter("t", {"schema.validation": "reject"}) == (0, None)
        assert (await fixture.produce(batch(b"json"))).error_code == INVALID_RECORD

    run(tmp_path, script, settings={})


@pytest.mark.parametrize("name", ["", "0"], ids=["cluster", "broker"])
def test_password_of_the_file_does_not_follow_an_address_that_is_set_at_run_time(tmp_path: Path, name: str) -> None:
    async def script(fixture: Fixture) -> None:
        code, text = await fixture.alter(name, {"schema.registry.url": "http://127.0.0.1:9"}, kind=4)
        assert (code, text) == (INVALID_REQUEST, text)
        assert text is not None and "schema.registry.basic.auth.user.info of that file is not sent" in text
        assert "secret" not in text
        # One of the addresses in the file is allowed.
        assert await fixture.alter(name, {"schema.registry.url": "http://127.0.0.1:2"}, kind=4) == (0, None)
        assert await fixture.alter(name, {"log.retention.ms": "1000"}, kind=4) == (0, None)

    file = {
        "schema.registry.url": "http://127.0.0.1:1,http://127.0.0.1:2",
        "schema.registry.basic.auth.user.info": "ann:secret",
    }
    run(tmp_path, script, settings=file)


def test_broker_that_has_lost_its_registry_starts_and_makes_producers_retry(tmp_path: Path) -> None:
    async def fill(fixture: Fixture) -> None:
        assert (await fixture.produce(batch(GOOD))).error_code == 0

    async def check(fixture: Fixture) -> None:
        assert await fixture.values() == [(0, GOOD)]
        result = await fixture.produce(batch(GOOD))
        assert result.error_code == TIMED_OUT
        assert result.error_message.endswith("the broker setting schema.registry.url is empty")

    run(tmp_path, fill, "reject")
    run(tmp_path, check, settings={})


@pytest.mark.parametrize(
    "config",
    [
        {"schema.validation": "yes"},
        {"schema.validation": "dlq", "schema.validation.dlq.topic": "t"},
        {"schema.validation": "dlq", "schema.validation.dlq.topic": "__consumer_offsets"},
        {"schema.validation": "dlq", "schema.validation.dlq.topic": "no/topic"},
        {"schema.validation": "reject", "schema.validation.parts": "header"},
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, config: dict[str, str]) -> None:
    async def script(fixture: Fixture) -> None:
        assert (await fixture.create("t", config)).error_code == INVALID_CONFIG

    run(tmp_path, script)


def test_client_chooses_only_dead_letter_topics_that_it_may_write(tmp_path: Path) -> None:
    topic, alter_configs, write, create = 2, 11, 4, 5

    async def script(fixture: Fixture) -> None:
        assert (await fixture.create("t", {})).error_code == 0
        rules = [("t", alter_configs), ("t-dlq", write), ("new", create)]
        request = CreateAclsRequest(creations=[
            AclCreation(resource_type=topic, resource_name=name, resource_pattern_type=3, principal="User:alice",
                        host="*", operation=operation, permission_type=3)
            for name, operation in rules
        ])  # fmt: skip
        assert [row.error_code for row in (await fixture.root.decoded(request, 3)).results] == [0, 0, 0]
        alice = fixture.broker.connect("User:alice")
        chosen = {"schema.validation": "dlq", "schema.validation.dlq.topic": "secret"}
        code, _ = await fixture.alter("t", chosen, client=alice)
        assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await fixture.create("new", chosen, client=alice)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await fixture.alter("t", {"schema.validation": "dlq"}, client=alice) == (0, None)

    run(tmp_path, script)


def test_unrelated_changes_choose_no_dead_letter_topic() -> None:
    dead = {"schema.validation": "dlq"}
    assert new_dead_letter_topic("t", {}, dead) == "t-dlq"
    assert new_dead_letter_topic("t", dead, {**dead, "retention.ms": "1"}) is None
    assert new_dead_letter_topic("t", dead, {**dead, "schema.validation.dlq.topic": "x"}) == "x"
    assert new_dead_letter_topic("t", dead, {"schema.validation": "reject"}) is None
