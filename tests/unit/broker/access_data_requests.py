"""Requests for records, topics and groups, and how Kafka refuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.broker.access_rules import (
    ABSENT,
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTION,
    WRITE,
    Acl,
    Grant,
    Listing,
    Names,
    Rule,
    Shape,
    at,
    consumer_group_of,
    is_there,
    needs,
    since,
    topic_or_id,
)

from ottla.testing.raw import batch_of, fetch_from, fetch_request, produce_request
from ottla.wire import Message
from ottla.wire.messages import (
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_groups,
    describe_producers,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)

COMMITTED = "topics.partitions.error_code"

# -- records and topics -----------------------------------------------------------------------------------------------

_PRODUCED = "responses.partition_responses.error_code"
_BATCH = batch_of(b"value", timestamp=1)
_TRANSACTIONAL_BATCH = batch_of(b"value", timestamp=1, producer_id=1, producer_epoch=0, transactional=True)


def _produce(version: int, names: Names) -> Message:
    return produce_request((topic_or_id(version, 13, names), 0, _BATCH))


def _produce_in_transaction(version: int, names: Names) -> Message:
    return produce_request(
        (topic_or_id(version, 13, names), 0, _TRANSACTIONAL_BATCH), acks=-1, transactional_id=names.transaction
    )


def _fetch(version: int, names: Names) -> Message:
    return fetch_request({topic_or_id(version, 13, names): [fetch_from(0, 0)]}, max_wait=0)


def _fetch_as_replica(version: int, names: Names) -> Message:
    request: Any = _fetch(version, names)
    if version >= 15:
        request.replica_state = fetch.ReplicaState(replica_id=1, replica_epoch=1)
    else:
        request.replica_id = 1
    return request  # type: ignore[no-any-return]


def _list_offsets(version: int, names: Names) -> Message:
    rows = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return list_offsets.ListOffsetsRequest(topics=[list_offsets.ListOffsetsTopic(name=names.topic, partitions=rows)])


def _metadata(version: int, names: Names, *, creates: bool = False) -> Message:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=names.topic)], allow_auto_topic_creation=creates or version < 4
    )


def _metadata_by_id(version: int, names: Names) -> Message:
    row = metadata.MetadataRequestTopic(name=None, topic_id=names.topic_id)
    return metadata.MetadataRequest(topics=[row], allow_auto_topic_creation=False)


def _is_created_always(version: int, names: Names) -> bool:
    """Return whether the request would create the topic although it cannot say that it wants that."""
    return version < 4 and not is_there(version, names)


_MAY_CREATE = (Grant(CLUSTER, CREATE), Grant(TOPIC, CREATE))


def _would_create(version: int, names: Names, acls: Sequence[Acl]) -> bool:
    """Return whether Metadata creates the topic: the client may describe and create it, and it does not exist."""
    return (
        names.topic == ABSENT.topic
        and Grant(TOPIC, DESCRIBE).holds(acls, names)
        and any(grant.holds(acls, names) for grant in _MAY_CREATE)
    )


def _create_topics(version: int, names: Names) -> Message:
    topic = create_topics.CreatableTopic(name=names.topic, num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout=60_000, validate_only=True)


def _delete_topics(version: int, names: Names) -> Message:
    if version < 6:
        return delete_topics.DeleteTopicsRequest(topic_names=[names.topic], timeout=60_000)
    row = delete_topics.DeleteTopicState(name=names.topic)
    return delete_topics.DeleteTopicsRequest(topics=[row], timeout=60_000)


def _delete_topics_by_id(version: int, names: Names) -> Message:
    row = delete_topics.DeleteTopicState(name=None, topic_id=names.topic_id)
    return delete_topics.DeleteTopicsRequest(topics=[row], timeout=60_000)


def _delete_records(version: int, names: Names) -> Message:
    rows = [delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
    return delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=names.topic, partitions=rows)], timeout=60_000
    )


def _offset_for_leader_epoch(version: int, names: Names) -> Message:
    rows = [offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)]
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=names.topic, partitions=rows)
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _create_partitions(version: int, names: Names) -> Message:
    topic = create_partitions.CreatePartitionsTopic(name=names.topic, count=9, assignments=None)
    return create_partitions.CreatePartitionsRequest(topics=[topic], timeout=60_000, validate_only=True)


def _describe_producers(version: int, names: Names) -> Message:
    topic = describe_producers.TopicRequest(name=names.topic, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def _describe_topic_partitions(version: int, names: Names) -> Message:
    topic = describe_topic_partitions.TopicRequest(name=names.topic)
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[topic], cursor=None)


_LISTED_TOPIC = Listing(
    (Grant(TOPIC, DESCRIBE),), lambda reply, names: names.topic in [each.name for each in reply.topics], is_there
)

TOPIC_SHAPES = [
    Shape(0, _produce, (needs(TOPIC, WRITE, _PRODUCED, ids_from=13),), names=(TOPIC,)),
    Shape(
        0, _produce_in_transaction,
        (needs(TRANSACTION, WRITE, _PRODUCED), needs(TOPIC, WRITE, _PRODUCED, ids_from=13)),
        names=(TOPIC, TRANSACTION),
    ),
    Shape(1, _fetch, (needs(TOPIC, READ, "responses.partitions.error_code", ids_from=13),), names=(TOPIC,)),
    Shape(
        1, _fetch_as_replica,
        (Rule((Grant(CLUSTER, CLUSTER_ACTION),), 29, at("responses.partitions.error_code")),), names=(TOPIC,),
    ),
    Shape(2, _list_offsets, (needs(TOPIC, DESCRIBE, "topics.partitions.error_code"),), names=(TOPIC,)),
    Shape(
        3, _metadata,
        (
            needs(TOPIC, DESCRIBE, "topics.error_code"),
            Rule(_MAY_CREATE, 29, at("topics.error_code"), _is_created_always),
        ),
        names=(TOPIC,), skips=lambda version, names, acls: version < 4 and _would_create(version, names, acls),
    ),
    Shape(
        3, lambda version, names: _metadata(version, names, creates=True),
        (
            needs(TOPIC, DESCRIBE, "topics.error_code"),
            Rule(_MAY_CREATE, 29, at("topics.error_code"), lambda version, names: not is_there(0, names)),
        ),
        versions=lambda version: version >= 4, names=(TOPIC,), skips=_would_create,
    ),
    Shape(
        3, _metadata_by_id, (needs(TOPIC, DESCRIBE, "topics.error_code", ids_from=0),),
        versions=lambda version: version >= 12, names=(TOPIC,),
    ),
    Shape(
        3, lambda version, names: metadata.MetadataRequest(topics=None if version else []),
        listings=(_LISTED_TOPIC,),
    ),
    Shape(
        19, _create_topics,
        (
            Rule(_MAY_CREATE, 29, at("topics.error_code")),
            Rule(
                (Grant(TOPIC, DESCRIBE_CONFIGS),), 29, at("topics.topic_config_error_code"),
                lambda version, names: version >= 5 and not is_there(0, names),
            ),
        ),
        names=(TOPIC,),
    ),
    Shape(
        20, _delete_topics,
        (
            needs(TOPIC, DESCRIBE, "responses.error_code"),
            replace(needs(TOPIC, DELETE, "responses.error_code"), applies=is_there),
        ),
        names=(TOPIC,), changes_state=True,
    ),
    Shape(
        20, _delete_topics_by_id,
        (
            needs(TOPIC, DESCRIBE, "responses.error_code", ids_from=0),
            replace(needs(TOPIC, DELETE, "responses.error_code", ids_from=0), applies=is_there),
        ),
        names=(TOPIC,), versions=lambda version: version >= 6, changes_state=True,
    ),
    Shape(21, _delete_records, (needs(TOPIC, DELETE, "topics.partitions.error_code"),), names=(TOPIC,)),
    Shape(
        23, _offset_for_leader_epoch,
        (Rule((Grant(CLUSTER, CLUSTER_ACTION), Grant(TOPIC, DESCRIBE)), 29, at("topics.partitions.error_code")),),
        names=(TOPIC,),
    ),
    Shape(37, _create_partitions, (needs(TOPIC, ALTER, "results.error_code"),), names=(TOPIC,)),
    Shape(61, _describe_producers, (needs(TOPIC, READ, "topics.partitions.error_code"),), names=(TOPIC,)),
    Shape(75, _describe_topic_partitions, (needs(TOPIC, DESCRIBE, "topics.error_code"),), names=(TOPIC,)),
    Shape(
        75, lambda version, names: describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[], cursor=None),
        listings=(_LISTED_TOPIC,),
    ),
]  # fmt: skip


# -- groups -----------------------------------------------------------------------------------------------------------


def _offset_commit(version: int, names: Names) -> Message:
    row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata=None)
    named: dict[str, Any] = {"topic_id": names.topic_id} if version >= 10 else {"name": names.topic}
    return offset_commit.OffsetCommitRequest(
        group_id=names.group, generation_id_or_member_epoch=5, member_id="no-member",
        topics=[offset_commit.OffsetCommitRequestTopic(**named, partitions=[row])],
    )  # fmt: skip


def _offset_fetch(version: int, names: Names) -> Message:
    if version < 8:
        old = offset_fetch.OffsetFetchRequestTopic(name=names.topic, partition_indexes=[0])
        return offset_fetch.OffsetFetchRequest(group_id=names.group, topics=[old])
    named: dict[str, Any] = {"topic_id": names.topic_id} if version >= 10 else {"name": names.topic}
    topic = offset_fetch.OffsetFetchRequestTopics(**named, partition_indexes=[0])
    return offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=names.group, topics=[topic])]
    )


def _offset_fetch_all(version: int, names: Names) -> Message:
    if version < 8:
        return offset_fetch.OffsetFetchRequest(group_id=names.group, topics=None)
    return offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=names.group, topics=None)]
    )


def _has_committed(reply: Any, names: Names) -> bool:
    topics = [*reply.topics, *(topic for group in reply.groups for topic in group.topics)]
    return any(topic.name == names.topic or getattr(topic, "topic_id", b"") == names.topic_id for topic in topics)


def _find(key_type: int, key: Callable[[Names], str]) -> Callable[[int, Names], Message]:
    def make(version: int, names: Names) -> Message:
        if version < 4:
            return find_coordinator.FindCoordinatorRequest(key=key(names), key_type=key_type)
        return find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key(names)])

    return make


_FOUND = since(4, "error_code", "coordinators.error_code")


def _join_group(version: int, names: Names) -> Message:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    return join_group.JoinGroupRequest(
        group_id=names.group, member_id="no-member", session_timeout=30_000, rebalance_timeout=30_000,
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip


def _heartbeat(version: int, names: Names) -> Message:
    return heartbeat.HeartbeatRequest(group_id=names.group, generation_id=5, member_id="no-member")


def _leave_group(version: int, names: Names) -> Message:
    if version < 3:
        return leave_group.LeaveGroupRequest(group_id=names.group, member_id="no-member")
    return leave_group.LeaveGroupRequest(
        group_id=names.group, members=[leave_group.MemberIdentity(member_id="no-member")]
    )


def _sync_group(version: int, names: Names) -> Message:
    return sync_group.SyncGroupRequest(
        group_id=names.group, generation_id=5, member_id="no-member", protocol_type="consumer", protocol_name="range"
    )


def _offset_delete(version: int, names: Names) -> Message:
    row = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=names.topic, partitions=[row])
    return offset_delete.OffsetDeleteRequest(group_id=names.group, topics=[topic])


def _consumer_heartbeat(version: int, names: Names) -> Message:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=names.consumer_group, member_id="no-member", member_epoch=5, subscribed_topic_names=[names.topic]
    )


def _group_is_there(version: int, names: Names) -> bool:
    return names.group != ABSENT.group


_GROUP_READ = (needs(GROUP, READ, "error_code"),)
_FETCHED_GROUP = Rule(
    (Grant(GROUP, DESCRIBE),), 30,
    lambda version: ("groups.error_code",) if version >= 8 else ("error_code",) if version >= 2 else (COMMITTED,),
)  # fmt: skip

GROUP_SHAPES = [
    Shape(
        8, _offset_commit, (needs(GROUP, READ, COMMITTED), needs(TOPIC, READ, COMMITTED, ids_from=10)),
        names=(GROUP, TOPIC),
    ),
    Shape(
        9, _offset_fetch,
        (
            _FETCHED_GROUP,
            replace(
                needs(TOPIC, DESCRIBE, ids_from=10),
                paths=since(8, COMMITTED, "groups.topics.partitions.error_code"),
            ),
        ),
        names=(GROUP, TOPIC),
    ),
    Shape(
        9, _offset_fetch_all, (_FETCHED_GROUP,),
        (Listing((Grant(TOPIC, DESCRIBE),), _has_committed, lambda version, names: names.group != ABSENT.group),),
        versions=lambda version: version >= 2, names=(GROUP,),
    ),
    Shape(
        10, _find(0, lambda names: names.group), (Rule((Grant(GROUP, DESCRIBE),), 30, _FOUND),), names=(GROUP,),
    ),
    Shape(
        10, _find(1, lambda names: names.transaction), (Rule((Grant(TRANSACTION, DESCRIBE),), 53, _FOUND),),
        versions=lambda version: version >= 1, names=(TRANSACTION,),
    ),
    Shape(
        10, _find(2, lambda names: f"{names.group}:AAAAAAAAAAAAAAAAAAAAAA:0"),
        (Rule((Grant(CLUSTER, CLUSTER_ACTION),), 31, _FOUND),), versions=lambda version: version >= 6,
    ),
    Shape(11, _join_group, _GROUP_READ, names=(GROUP,)),
    Shape(12, _heartbeat, _GROUP_READ, names=(GROUP,)),
    Shape(13, _leave_group, _GROUP_READ, names=(GROUP,)),
    Shape(14, _sync_group, _GROUP_READ, names=(GROUP,)),
    Shape(
        15, lambda version, names: describe_groups.DescribeGroupsRequest(groups=[names.group]),
        (needs(GROUP, DESCRIBE, "groups.error_code"),), names=(GROUP,),
    ),
    Shape(
        16, lambda version, names: list_groups.ListGroupsRequest(),
        listings=(Listing(
            (Grant(CLUSTER, DESCRIBE), Grant(GROUP, DESCRIBE)),
            lambda reply, names: names.group in [each.group_id for each in reply.groups],
        ),),
    ),
    Shape(
        42, lambda version, names: delete_groups.DeleteGroupsRequest(groups_names=[names.group]),
        (needs(GROUP, DELETE, "results.error_code"),), names=(GROUP,), changes_state=True,
    ),
    Shape(
        47, _offset_delete,
        (needs(GROUP, DELETE, "error_code"), replace(needs(TOPIC, READ, COMMITTED), applies=_group_is_there)),
        names=(GROUP, TOPIC), changes_state=True,
    ),
    Shape(
        68, _consumer_heartbeat,
        (
            Rule((Grant(GROUP, READ, consumer_group_of),), 30, at("error_code")),
            needs(TOPIC, DESCRIBE, "error_code"),
        ),
        names=(GROUP, TOPIC),
    ),
    Shape(
        69, lambda version, names: consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=[names.consumer_group]
        ),
        (
            Rule((Grant(GROUP, DESCRIBE, consumer_group_of),), 30, at("groups.error_code")),
            Rule(
                (Grant(TOPIC, DESCRIBE),), 29, at("groups.error_code"),
                lambda version, names: names.consumer_group != ABSENT.consumer_group,
            ),
        ),
        names=(GROUP,),
    ),
]  # fmt: skip
