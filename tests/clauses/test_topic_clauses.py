"""CreateTopics, DeleteTopics, CreatePartitions and DescribeLogDirs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire import ZERO_UUID
from ottla.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.metadata import MetadataRequest

ILLEGAL = ["", ".", "..", "a b", "a/b", "ž", "x" * 250, "a\n", "x" * 32_767]
numbers = itertools.count()

every_create = pytest.mark.parametrize("version", range(2, 8))
every_delete = pytest.mark.parametrize("version", range(1, 7))
every_grow = pytest.mark.parametrize("version", range(4))


def fresh() -> str:
    return f"made-{next(numbers)}"


def wanted(
    name: str, partitions: int = 1, factor: int = 1, *, config: Mapping[str, str | None] | None = None,
    assignments: Sequence[tuple[int, list[int]]] = (),
) -> CreatableTopic:  # fmt: skip
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()],
    )


def create(client: RawClient, version: int, *topics: CreatableTopic, validate_only: bool = False) -> Any:
    return client.ask(CreateTopicsRequest(topics=topics, timeout=10_000, validate_only=validate_only), version).topics


def code_of(client: RawClient, version: int, topic: CreatableTopic) -> int:
    (found,) = create(client, version, topic)
    assert (found.error_code != 0) == (found.error_message is not None)
    return int(found.error_code)


def all_topics(client: RawClient) -> dict[str, Any]:
    return {topic.name: topic for topic in client.ask(MetadataRequest(topics=None), 12).topics}


def broker_id(client: RawClient) -> int:
    return int(client.ask(MetadataRequest(topics=[]), 12).controller_id)


# -- CreateTopics ---------------------------------------------------------------------------------------------------


@every_create
def test_topic_is_made_and_described(client: RawClient, version: int) -> None:
    name = fresh()
    (made,) = create(client, version, wanted(name, 3, config={"retention.ms": "5000"}))
    assert (made.name, made.error_code, made.error_message) == (name, 0, None)
    known = all_topics(client)[name]
    assert len(known.partitions) == 3
    assert made.topic_id == (known.topic_id if version >= 7 else ZERO_UUID)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        configs = {config.name: (config.value, config.config_source) for config in made.configs}
        assert configs["retention.ms"] == ("5000", 1)
        assert configs["cleanup.policy"] == ("delete", 5)


@every_create
def test_minus_one_means_the_default(client: RawClient, version: int) -> None:
    name = fresh()
    assert code_of(client, version, wanted(name, -1, -1)) == 0
    assert len(all_topics(client)[name].partitions) == 1


@every_create
def test_impossible_numbers_are_refused(client: RawClient, version: int) -> None:
    for partitions, factor, code in ((0, 1, 37), (-2, 1, 37), (1, 0, 38), (1, -2, 38), (1, 2, 38), (1, 32767, 38)):
        assert code_of(client, version, wanted(fresh(), partitions, factor)) == code


@every_create
def test_one_call_may_not_make_very_many_partitions(client: RawClient, version: int) -> None:
    for count in (10_001, 2**31 - 1):
        assert code_of(client, version, wanted(fresh(), count)) == 44
    together = create(client, version, wanted(fresh(), 6000), wanted(fresh(), 6000), validate_only=True)
    assert [topic.error_code for topic in together] == [44, 44]


@every_create
def test_topic_that_exists_is_not_made_again(client: RawClient, topic: Any, version: int) -> None:
    assert code_of(client, version, wanted(topic.name)) == 36
    assert all_topics(client)[topic.name].topic_id == topic.id


@every_create
def test_illegal_name_is_an_invalid_topic(client: RawClient, version: int) -> None:
    found = create(client, version, *(wanted(name) for name in ILLEGAL))
    assert {topic.name: topic.error_code for topic in found} == dict.fromkeys(ILLEGAL, 17)


def test_name_may_have_249_characters(client: RawClient) -> None:
    assert code_of(client, 7, wanted(fresh().ljust(249, "x"))) == 0


@every_create
def test_names_that_differ_in_dots_and_underscores_only_collide(client: RawClient, version: int) -> None:
    name = fresh()
    assert code_of(client, version, wanted(f"{name}_a.b")) == 0
    for alike in (f"{name}.a.b", f"{name}_a_b", f"{name}.a_b"):
        assert code_of(client, version, wanted(alike)) == 17


@every_create
def test_config_must_exist_and_make_sense(client: RawClient, version: int) -> None:
    for config in ({"nope": "1"}, {"retention.ms": "abc"}, {"retention.ms": None}, {"segment.bytes": "1"},
                   {"cleanup.policy": "bad"}, {"x" * 32_767: "1"}, {"retention.ms": "x" * 32_767}):  # fmt: skip
        name = fresh()
        assert code_of(client, version, wanted(name, config=config)) == 40
        assert name not in all_topics(client)


def test_very_many_unknown_configs_are_refused_with_a_readable_text(client: RawClient) -> None:
    (found,) = create(client, 7, wanted(fresh(), config={f"retention.ms.{n}": "1" for n in range(5000)}))
    assert found.error_code == 40
    assert len(found.error_message) < 3000


@every_create
def test_topic_that_is_named_twice_is_an_invalid_request(client: RawClient, version: int) -> None:
    name, other = fresh(), fresh()
    found = {t.name: t.error_code for t in create(client, version, wanted(name), wanted(other), wanted(name))}
    assert found == {name: 42, other: 0}
    assert name not in all_topics(client)


@every_create
def test_validation_makes_nothing(client: RawClient, topic: Any, version: int) -> None:
    name = fresh()
    found = create(client, version, wanted(name, 2), wanted(topic.name), validate_only=True)
    assert {t.name: t.error_code for t in found} == {name: 0, topic.name: 36}
    assert name not in all_topics(client)


@every_create
def test_replicas_may_be_assigned_by_hand(client: RawClient, version: int) -> None:
    here, name = broker_id(client), fresh()
    assert code_of(client, version, wanted(name, -1, -1, assignments=[(0, [here]), (1, [here])])) == 0
    assert len(all_topics(client)[name].partitions) == 2


@every_create
def test_assignment_that_cannot_be_is_refused(client: RawClient, version: int) -> None:
    here = broker_id(client)
    assignments: list[tuple[int, list[int]]]
    for assignments in (
        [(0, [here]), (2, [here])], [(1, [here])], [(-1, [here])], [(0, [])], [(0, [here, here])], [(0, [99])],
        [(0, [here]), (1, [])], [(0, [here]), (0, [here])],
    ):  # fmt: skip
        assert code_of(client, version, wanted(fresh(), -1, -1, assignments=assignments)) == 39
    for partitions, factor in ((1, 1), (1, -1), (-1, 1)):
        assert code_of(client, version, wanted(fresh(), partitions, factor, assignments=[(0, [here])])) == 42


# -- DeleteTopics ---------------------------------------------------------------------------------------------------


def delete(client: RawClient, version: int, *topics: tuple[str | None, bytes]) -> list[tuple[str | None, int]]:
    states = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics]
    names = [name or "" for name, _ in topics]
    answer = client.ask(DeleteTopicsRequest(topics=states, topic_names=names, timeout=10_000), version)
    return [(found.name, found.error_code) for found in answer.responses]


@every_delete
def test_topic_is_deleted_by_name(client: RawClient, topic: Any, version: int) -> None:
    assert delete(client, version, (topic.name, ZERO_UUID)) == [(topic.name, 0)]
    assert topic.name not in all_topics(client)
    assert delete(client, version, (topic.name, ZERO_UUID)) == [(topic.name, 3)]


def test_topic_is_deleted_by_id(client: RawClient, topic: Any) -> None:
    assert delete(client, 6, (None, topic.id)) == [(topic.name, 0)]
    assert delete(client, 6, (None, topic.id)) == [(None, 100)]


def test_name_and_id_together_or_neither_are_an_invalid_request(client: RawClient, topic: Any) -> None:
    assert delete(client, 6, (topic.name, topic.id)) == [(topic.name, 42)]
    assert delete(client, 6, (None, ZERO_UUID)) == [(None, 42)]
    assert topic.name in all_topics(client)


@every_delete
def test_topic_that_is_deleted_twice_at_once_is_an_invalid_request(client: RawClient, topic: Any, version: int) -> None:
    assert delete(client, version, *[(topic.name, ZERO_UUID)] * 2) == [(topic.name, 42)]
    assert topic.name in all_topics(client)


@every_delete
def test_unknown_and_illegal_names_are_unknown(client: RawClient, version: int) -> None:
    for name in ("clause-nowhere", "a b", "x" * 300):
        assert delete(client, version, (name, ZERO_UUID)) == [(name, 3)]


def test_topic_that_is_made_again_is_another(client: RawClient, topic: Any) -> None:
    delete(client, 6, (topic.name, ZERO_UUID))
    client.create_topic(topic.name)
    assert all_topics(client)[topic.name].topic_id != topic.id
    (found,) = client.ask(produce_request((topic.id, 0, batch_of(b"v"))), 13).responses
    assert found.partition_responses[0].error_code == 100


def test_broker_may_forbid_deletion(start_ottla_broker: Any) -> None:
    broker = start_ottla_broker(settings={"delete.topic.enable": "false"})
    with RawClient(broker.bootstrap) as client:
        client.create_topic("kept")
        codes = [delete(client, version, ("kept", ZERO_UUID))[0][1] for version in range(1, 7)]
    assert codes == [42, 42, 73, 73, 73, 73]


# -- CreatePartitions -----------------------------------------------------------------------------------------------


def grow(
    client: RawClient, version: int, *topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False
) -> dict[str, int]:
    rows = [
        CreatePartitionsTopic(
            name=name, count=count,
            assignments=None if lists is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in lists],
        )
        for name, count, lists in topics
    ]  # fmt: skip
    request = CreatePartitionsRequest(topics=rows, timeout=10_000, validate_only=validate_only)
    return {found.name: found.error_code for found in client.ask(request, version).results}


@every_grow
def test_topic_gets_more_partitions_which_can_be_written(client: RawClient, topic: Any, version: int) -> None:
    assert grow(client, version, (topic.name, 3, None)) == {topic.name: 0}
    assert grow(client, version, (topic.name, 4, [[broker_id(client)]])) == {topic.name: 0}
    assert len(all_topics(client)[topic.name].partitions) == 4
    (found,) = client.ask(produce_request((topic.name, 3, batch_of(b"v"))), 9).responses
    assert found.partition_responses[0].error_code == 0


@every_grow
def test_number_of_partitions_can_only_grow(client: RawClient, topic: Any, version: int) -> None:
    for count in (1, 0, -1):
        assert grow(client, version, (topic.name, count, None)) == {topic.name: 37}


@every_grow
def test_growth_that_cannot_be_is_refused(client: RawClient, topic: Any, version: int) -> None:
    here = broker_id(client)
    lists: list[list[int]]
    for lists in ([[here], [here]], [[]], [[here, here]], [[99]], [[here, 99]]):
        assert grow(client, version, (topic.name, 2, lists)) == {topic.name: 39}
    assert grow(client, version, ("clause-nowhere", 2, None)) == {"clause-nowhere": 3}
    assert grow(client, version, (topic.name, 2, None), (topic.name, 3, None)) == {topic.name: 42}
    assert grow(client, version, (topic.name, 20_000, None)) == {topic.name: 44}
    assert len(all_topics(client)[topic.name].partitions) == 1


@every_grow
def test_validation_of_growth_changes_nothing(client: RawClient, topic: Any, version: int) -> None:
    assert grow(client, version, (topic.name, 5, None), validate_only=True) == {topic.name: 0}
    assert len(all_topics(client)[topic.name].partitions) == 1


# -- DescribeLogDirs ------------------------------------------------------------------------------------------------


def log_dirs(client: RawClient, version: int, topics: list[tuple[str, list[int]]] | None) -> Any:
    rows = None if topics is None else [DescribableLogDirTopic(topic=t, partitions=numbers) for t, numbers in topics]
    answer = client.ask(DescribeLogDirsRequest(topics=rows), version)
    assert answer.error_code == 0
    (found,) = answer.results
    assert found.error_code == 0
    if version >= 4:
        assert found.total_bytes >= found.usable_bytes > 0
    return {topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in found.topics}


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directory_tells_sizes(client: RawClient, new_topic: Any, version: int) -> None:
    topic = new_topic(partitions=2)
    batch = batch_of(b"value")
    client.ask(produce_request((topic.name, 1, batch)), 9)
    assert log_dirs(client, version, [(topic.name, [0, 1, 1, 7])]) == {topic.name: {0: 0, 1: len(batch)}}
    assert log_dirs(client, version, None)[topic.name] == {0: 0, 1: len(batch)}


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directory_names_nothing_that_was_not_asked_for(client: RawClient, topic: Any, version: int) -> None:
    assert log_dirs(client, version, []) == {}
    assert log_dirs(client, version, [("clause-nowhere", [0])]) == {}
