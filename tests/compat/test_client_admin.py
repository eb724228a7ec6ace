"""Topics, settings and the cluster, managed through each client; and the errors by which they learn what was wrong."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType
from confluent_kafka.admin import NewTopic as ConfluentTopic
from drivers import DEADLINE_S, Record, Refused
from drivers.confluent import Confluent
from drivers.kafka_python import KafkaAdminClient, KafkaPython
from drivers.parameters import NewTopic, every_python_client

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

_OFFSET_OUT_OF_RANGE = 1
_UNKNOWN_TOPIC_OR_PARTITION = 3
_INVALID_TOPIC = 17
_TOPIC_ALREADY_EXISTS = 36
_INVALID_PARTITIONS = 37
_INVALID_REPLICATION_FACTOR = 38
_INVALID_CONFIG = 40
_UNKNOWN_TOPIC_ID = 100


# -- topics ------------------------------------------------------------------------------------------------------------


@every_python_client
def test_topic_lives_from_creation_to_deletion(client: Any, unused_name: str) -> None:
    client.create_topic(unused_name, partitions=3)
    assert unused_name in client.list_topics()
    leader = client.controller()
    assert client.partition_leaders(unused_name) == {0: leader, 1: leader, 2: leader}
    client.delete_topic(unused_name)
    assert unused_name not in client.list_topics()


@every_python_client
def test_topic_of_the_same_name_starts_empty_after_deletion(client: Any, unused_name: str) -> None:
    client.create_topic(unused_name)
    client.produce(unused_name, [Record(value=b"old")])
    client.delete_topic(unused_name)
    client.create_topic(unused_name)
    assert client.watermarks(unused_name, 0) == (0, 0)
    client.produce(unused_name, [Record(value=b"new")])
    assert [each.record.value for each in client.consume(unused_name, 1)] == [b"new"]


@every_python_client
def test_topic_with_the_longest_name_is_deleted_and_created_again(client: Any, unused_name: str) -> None:
    name = unused_name.ljust(249, "x")
    for value in (b"old", b"new"):
        client.create_topic(name)
        client.produce(name, [Record(value=value)])
        assert [each.record.value for each in client.consume(name, 1)] == [value]
        client.delete_topic(name)


@every_python_client
def test_partitions_are_added(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    client.create_partitions(topic, 5)
    assert set(client.partition_leaders(topic)) == {0, 1, 2, 3, 4}
    client.produce(topic, [Record(value=b"in the new one")], partition=4)
    assert client.watermarks(topic, 4) == (0, 1)


@every_python_client
def test_existing_topic_cannot_be_created(client: Any, new_topic: NewTopic) -> None:
    assert _code_of(client.create_topic, new_topic()) == _TOPIC_ALREADY_EXISTS


@every_python_client
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"partitions": 0}, _INVALID_PARTITIONS),
        ({"replication_factor": 0}, _INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 3}, _INVALID_REPLICATION_FACTOR),
        ({"config": {"retention.ms": "soon"}}, _INVALID_CONFIG),
        ({"config": {"no.such.setting": "1"}}, _INVALID_CONFIG),
        ({"config": {"cleanup.policy": "burn"}}, _INVALID_CONFIG),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_impossible_topic_is_refused(client: Any, unused_name: str, options: dict[str, Any], code: int) -> None:
    if isinstance(client, Confluent) and (options.get("partitions") == 0 or options.get("replication_factor") == 0):
        pytest.skip("librdkafka refuses this before the broker is asked")
    assert _code_of(client.create_topic, unused_name, **options) == code
    assert unused_name not in client.list_topics()


@every_python_client
@pytest.mark.parametrize("name", ["with space", "a/b", "..", "x" * 250])
def test_illegal_topic_name_is_refused(client: Any, name: str) -> None:
    assert _code_of(client.create_topic, name) == _INVALID_TOPIC


@every_python_client
def test_unknown_topic_cannot_be_deleted_or_grown(client: Any, unused_name: str) -> None:
    assert _code_of(client.delete_topic, unused_name) == _UNKNOWN_TOPIC_OR_PARTITION
    assert _code_of(client.create_partitions, unused_name, 2) == _UNKNOWN_TOPIC_OR_PARTITION


@every_python_client
@pytest.mark.parametrize("total", [1, 2, 3])
def test_partitions_cannot_become_fewer(client: Any, new_topic: NewTopic, total: int) -> None:
    assert _code_of(client.create_partitions, new_topic(partitions=3), total) == _INVALID_PARTITIONS


def test_creation_can_be_tried_without_effect(confluent: Confluent, unused_name: str) -> None:
    (future,) = confluent.admin.create_topics([ConfluentTopic(unused_name, 3)], validate_only=True).values()
    future.result(DEADLINE_S)
    assert unused_name not in confluent.list_topics()


def test_broker_defaults_decide_when_nothing_is_asked_for(kafka_python: KafkaPython, unused_name: str) -> None:
    kafka_python.create_topic(unused_name, partitions=-1, replication_factor=-1)
    assert len(kafka_python.partition_leaders(unused_name)) == 1


def test_metadata_creates_a_topic_that_is_produced_to(confluent: Confluent, unused_name: str) -> None:
    confluent.produce(unused_name, [Record(value=b"first")])
    assert unused_name in confluent.list_topics()


def test_topic_is_found_and_deleted_by_id(kafka_python: KafkaPython, new_topic: NewTopic) -> None:
    topic = new_topic()
    with kafka_python.admin() as admin:
        topic_id = uuid.UUID(admin.describe_topics([topic])[0]["topic_id"])
        assert admin.describe_topics([topic_id])[0]["name"] == topic
        admin.delete_topics([topic_id])
        assert admin.describe_topics([topic_id])[0]["error_code"] == _UNKNOWN_TOPIC_ID


def test_topic_description_has_id_leader_replicas_and_isr(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    (future,) = confluent.admin.describe_topics(TopicCollection([topic])).values()
    found = future.result(DEADLINE_S)
    broker = confluent.controller()
    assert str(found.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    for partition in found.partitions:
        assert partition.leader.id == broker
        assert [node.id for node in partition.replicas] == [node.id for node in partition.isr] == [broker]


def test_unknown_topic_cannot_be_described(confluent: Confluent, unused_name: str) -> None:
    (future,) = confluent.admin.describe_topics(TopicCollection([unused_name])).values()
    with pytest.raises(KafkaException) as raised:
        future.result(DEADLINE_S)
    assert raised.value.args[0].code() == _UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_are_described_page_by_page(kafka_python: KafkaPython, new_topic: NewTopic) -> None:
    topics = sorted(new_topic(partitions=5) for _ in range(2))
    seen: list[tuple[str, int]] = []
    cursor = None
    with kafka_python.admin() as admin:
        for _ in range(10):
            page = admin.describe_topic_partitions(topics, response_partition_limit=3, cursor=cursor)
            seen += [(topic["name"], p["partition_index"]) for topic in page["topics"] for p in topic["partitions"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert seen == [(topic, number) for topic in topics for number in range(5)]


# -- settings ----------------------------------------------------------------------------------------------------------


@every_python_client
def test_topic_setting_is_changed_and_described(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"retention.ms": "1000000"})
    client.set_topic_config(topic, "max.message.bytes", "54321")
    found = client.topic_config(topic)
    assert found["max.message.bytes"] == "54321"
    # Without incremental changes whatever is not named again falls back to its default.
    assert found["retention.ms"] == ("1000000" if client.incremental else "604800000")
    assert found["cleanup.policy"] == "delete"


@every_python_client
def test_changed_setting_holds_for_the_next_record(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(value=b"x" * 5000)])
    client.set_topic_config(topic, "max.message.bytes", "4000")
    assert _code_of(client.produce, topic, [Record(value=b"x" * 5000)]) == 10


@every_python_client
@pytest.mark.parametrize(("name", "value"), [("retention.ms", "soon"), ("no.such.setting", "1")])
def test_impossible_topic_setting_is_refused(client: Any, new_topic: NewTopic, name: str, value: str) -> None:
    assert _code_of(client.set_topic_config, new_topic(), name, value) == _INVALID_CONFIG


@every_python_client
def test_settings_of_an_unknown_topic_cannot_be_changed(client: Any, unused_name: str) -> None:
    assert _code_of(client.set_topic_config, unused_name, "retention.ms", "1") == _UNKNOWN_TOPIC_OR_PARTITION


@every_python_client
def test_broker_describes_its_own_settings(client: Any) -> None:
    found = client.broker_config(client.controller())
    assert found["log.retention.hours"] == "168"
    assert found["message.max.bytes"] == "1048588"


def test_lists_are_appended_to_and_subtracted_from(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(config={"cleanup.policy": "delete"})
    for operation, expected in ((AlterConfigOpType.APPEND, "delete,compact"), (AlterConfigOpType.SUBTRACT, "compact")):
        value = "compact" if operation is AlterConfigOpType.APPEND else "delete"
        _alter(confluent, topic, ConfigEntry("cleanup.policy", value, incremental_operation=operation))
        assert confluent.topic_config(topic)["cleanup.policy"] == expected
    _alter(confluent, topic, ConfigEntry("cleanup.policy", None, incremental_operation=AlterConfigOpType.DELETE))
    assert confluent.topic_config(topic)["cleanup.policy"] == "delete"


def test_source_of_a_setting_tells_who_set_it(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(config={"retention.ms": "5000"})
    (future,) = confluent.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found = future.result(DEADLINE_S)
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
    assert not found["retention.ms"].is_default
    assert not found["retention.ms"].is_read_only


def test_dynamic_broker_setting_is_changed_and_taken_back(confluent: Confluent) -> None:
    broker = confluent.controller()
    name, value = "log.retention.ms", "7200000"

    def alter(entry: ConfigEntry) -> None:
        resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
        (future,) = confluent.admin.incremental_alter_configs([resource]).values()
        future.result(DEADLINE_S)

    before = confluent.broker_config(broker)[name]
    alter(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    assert confluent.broker_config(broker)[name] == value
    alter(ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))
    assert confluent.broker_config(broker)[name] == before


def test_config_resources_are_listed(kafka_python: KafkaPython, new_topic: NewTopic) -> None:
    topic = new_topic()
    with kafka_python.admin() as admin:
        assert topic in admin.list_config_resources(["TOPIC"])["topic"]


# -- records, cluster --------------------------------------------------------------------------------------------------


@every_python_client
def test_deleted_records_are_gone(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(value=b"%d" % n) for n in range(10)])
    assert client.delete_records(topic, 0, 6) == 6
    assert [each.record.value for each in client.consume(topic, 4, offset=6)] == [b"6", b"7", b"8", b"9"]
    assert client.delete_records(topic, 0, -1) == 10
    assert client.watermarks(topic, 0) == (10, 10)


@every_python_client
def test_records_behind_the_end_cannot_be_deleted(client: Any, new_topic: NewTopic) -> None:
    assert _code_of(client.delete_records, new_topic(), 0, 1) == _OFFSET_OUT_OF_RANGE


@every_python_client
def test_cluster_is_described(client: Any, ottla_broker: BrokerProcess) -> None:
    assert client.brokers() == {client.controller(): ("127.0.0.1", ottla_broker.port)}


def test_log_directories_tell_sizes(
    kafka_python: KafkaPython, new_topic: NewTopic, ottla_broker: BrokerProcess
) -> None:
    topic = new_topic()
    kafka_python.produce(topic, [Record(value=b"x" * 1000)])
    with kafka_python.admin() as admin:
        answer = admin.describe_log_dirs()
    text = repr(answer)
    assert ottla_broker.data in text
    assert topic in text


def _alter(confluent: Confluent, topic: str, entry: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = confluent.admin.incremental_alter_configs([resource]).values()
    future.result(DEADLINE_S)


def _code_of(call: Any, *arguments: Any, **options: Any) -> int:
    with pytest.raises(Refused) as refused:
        call(*arguments, **options)
    return refused.value.code


def test_kafka_python_takes_the_broker_for_kafka_4_3(ottla_broker: BrokerProcess) -> None:
    """It infers the version from the newest version of some APIs."""
    with closing(KafkaAdminClient(bootstrap_servers=ottla_broker.bootstrap)) as admin:
        assert admin._manager.broker_version == (4, 3)
