"""Requests that name a topic that the client may use and one that it may not use: only the second one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from tests.served_apis import served_apis
from tests.unit.broker.access_rules import ABSENT, CLUSTER, CLUSTER_NAME, TOPIC, Acl, Names, Shape
from tests.unit.broker.memory_broker import MemoryBroker
from tests.unit.broker.test_access_matrix import SHAPES, Matrix, _names_of, codes_in

from ottla.security.acls import Permission
from ottla.testing.raw import read_answer
from ottla.wire.messages import offset_commit, offset_fetch
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

REFUSED = 29
SECOND = "t-second"
_CODES = {29, 30, 31, 53}
_TOPIC_FIELDS = ("name", "topic", "topic_name", "resource_name", "topic_id")
#: ConsumerGroupHeartbeat has one error for all topics
_WHOLE = {68}


def merged(first: Any, second: Any) -> Any:
    """Return a request with the topics of both."""
    for field in type(first).FIELDS:
        ours, others = getattr(first, field.name), getattr(second, field.name)
        if not isinstance(ours, list) or ours == others:
            continue
        is_topic = any(getattr(ours[0], each, None) != getattr(others[0], each, None) for each in _TOPIC_FIELDS)
        if is_topic or isinstance(ours[0], str):
            setattr(first, field.name, [*ours, *others])
        else:
            merged(ours[0], others[0])  # for example a group with topics
    return first


def rows_of(reply: Any, keys: set[str | bytes]) -> Iterator[Any]:
    """Yield the parts of a reply that are about a topic."""
    for field in type(reply).FIELDS:
        value = getattr(reply, field.name)
        for element in value if isinstance(value, list | tuple) else [value]:
            if hasattr(type(element), "FIELDS"):
                if any(getattr(element, each, None) in keys for each in _TOPIC_FIELDS):
                    yield element
                else:
                    yield from rows_of(element, keys)


def rights(shape: Shape, names: Names) -> tuple[Acl, ...]:
    """Return the ACLs of a client that may use everything but the second topic."""
    acls = []
    for rule in shape.rules:
        grant = next((each for each in rule.grants if each.resource == TOPIC), rule.grants[0])
        if grant.resource == TOPIC:
            of_grant = [names.topic]
        elif grant.resource == CLUSTER:
            of_grant = [CLUSTER_NAME]
        else:
            of_grant = _names_of(names, grant.resource)
        acls += [Acl(grant.resource, name, grant.operation, Permission.ALLOW) for name in of_grant]
    return tuple(acls)


async def _faults(data: Path) -> tuple[int, list[str]]:
    cases, faults = 0, []
    async with MemoryBroker(data) as broker:
        matrix = Matrix(broker)
        await matrix.create_resources()
        topic = CreatableTopic(name=SECOND, num_partitions=1, replication_factor=1)
        (made,) = (await broker.root.decoded(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)).topics
        for shape in SHAPES:
            api = served_apis()[shape.api_key]
            is_about_topics = any(grant.resource == TOPIC for rule in shape.rules for grant in rule.grants)
            if TOPIC not in shape.names or not is_about_topics or shape.api_key in _WHOLE:
                continue
            matrix._put_acls(["User:a"], [rights(shape, matrix.names)])
            client = broker.connect("User:a")
            for version in filter(shape.versions, range(api.version_min, api.version_max + 1)):
                if shape.changes_state:
                    await matrix._restore()
                names = matrix.names
                second = names._replace(topic=SECOND, topic_id=bytes(made.topic_id))
                request = merged(shape.make(version, names), shape.make(version, second))
                reply = read_answer(await client.ask(request, version), shape.api_key, version, 7)
                cases += 1
                found = [
                    {code for row in rows_of(reply, {each.topic, each.topic_id}) for _, code in codes_in(row)}
                    for each in (names, second)
                ]
                if found[0] & _CODES or not found[0] or REFUSED not in found[1]:
                    faults.append(f"API {shape.api_key} v{version}: {found}")
    return cases, faults


def test_only_the_topic_that_the_client_may_not_use_is_refused(tmp_path: Path) -> None:
    cases, faults = uvloop.run(_faults(tmp_path))
    assert not faults, faults
    assert cases >= 100


async def _commit_and_fetch(data: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    async with MemoryBroker(data) as broker:
        matrix = Matrix(broker)
        await matrix.create_resources()
        group = matrix.names.group
        shape = next(each for each in SHAPES if each.api_key == offset_commit.OffsetCommitRequest.API_KEY)
        matrix._put_acls(["User:a"], [rights(shape, matrix.names)])
        client = broker.connect("User:a")
        row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
        names = [matrix.names.topic, ABSENT.topic]
        topics = [offset_commit.OffsetCommitRequestTopic(name=name, partitions=[row]) for name in names]
        committed = await client.decoded(
            offset_commit.OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
            ), 8,
        )  # fmt: skip
        wanted = [offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in names]
        fetched = await client.decoded(offset_fetch.OffsetFetchRequest(group_id=group, topics=wanted), 7)
        return (
            [(topic.name, topic.partitions[0].error_code) for topic in committed.topics],
            [(topic.name, topic.partitions[0].committed_offset) for topic in fetched.topics],
        )


def test_offsets_of_topics_that_the_client_may_read_are_committed_beside_refused_ones(tmp_path: Path) -> None:
    committed, fetched = uvloop.run(_commit_and_fetch(tmp_path))
    assert sorted(committed) == [(ABSENT.topic, REFUSED), ("t-exists", 0)]
    assert sorted(fetched) == [(ABSENT.topic, -1), ("t-exists", 7)]
