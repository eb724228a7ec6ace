"""Requests for transactions and of administrators, and how Kafka refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.unit.broker.access_rules import (
    ABSENT,
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    OTHER_TOPIC,
    READ,
    TOPIC,
    TRANSACTION,
    WRITE,
    Grant,
    Listing,
    Names,
    Rule,
    Shape,
    at,
    needs,
    open_transaction_of,
    since,
)

from ottla.security.acls import Operation, ResourceType
from ottla.wire import Message
from ottla.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_log_dirs,
    describe_quorum,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_partition_reassignments,
    list_transactions,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)

COMMITTED = "topics.partitions.error_code"

# -- transactions -----------------------------------------------------------------------------------------------------


def _init_producer_id(version: int, names: Names) -> Message:
    return init_producer_id.InitProducerIdRequest(transactional_id=names.transaction, transaction_timeout=60_000)


def _add_partitions(version: int, names: Names) -> Message:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=names.topic, partitions=[0])]
    if version < 4:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=names.transaction, v3_and_below_producer_id=99,
            v3_and_below_producer_epoch=0, v3_and_below_topics=topics,
        )  # fmt: skip
    each = add_partitions_to_txn.AddPartitionsToTxnTransaction(
        transactional_id=names.transaction, producer_id=99, producer_epoch=0, topics=topics
    )
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[each])


def _txn_offset_commit(version: int, names: Names) -> Message:
    row = txn_offset_commit.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=None
    )
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=names.topic, partitions=[row])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=names.transaction, group_id=names.group, producer_id=99, producer_epoch=0, topics=[topic]
    )


def _write_txn_markers(version: int, names: Names) -> Message:
    topic = write_txn_markers.WritableTxnMarkerTopic(name=names.topic, partition_indexes=[0])
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=-1, producer_epoch=0, transaction_result=False, topics=[topic]
    )
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def _shows_topic_of_transaction(reply: Any, names: Names) -> bool:
    return any(topic.topic == names.topic for state in reply.transaction_states for topic in state.topics)


_SOME_TOPIC = Grant(TOPIC, WRITE, lambda names: [names.topic, ABSENT.topic, OTHER_TOPIC])
_ADDED = "results_by_topic_v3_and_below.results_by_partition.partition_error_code"

TRANSACTION_SHAPES = [
    Shape(22, _init_producer_id, (needs(TRANSACTION, WRITE, "error_code"),), names=(TRANSACTION,)),
    Shape(
        22, lambda version, names: init_producer_id.InitProducerIdRequest(transactional_id=None),
        (Rule((Grant(CLUSTER, Operation.IDEMPOTENT_WRITE), _SOME_TOPIC), 31, at("error_code")),),
    ),
    Shape(
        24, _add_partitions, (needs(TRANSACTION, WRITE, _ADDED), needs(TOPIC, WRITE, _ADDED)),
        versions=lambda version: version < 4, names=(TRANSACTION, TOPIC),
    ),
    Shape(
        24, _add_partitions, (needs(CLUSTER, CLUSTER_ACTION, "error_code"),), versions=lambda version: version >= 4,
        names=(TRANSACTION, TOPIC),
    ),
    Shape(
        25, lambda version, names: add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=names.transaction, producer_id=99, producer_epoch=0, group_id=names.group
        ),
        (needs(TRANSACTION, WRITE, "error_code"), needs(GROUP, READ, "error_code")), names=(TRANSACTION, GROUP),
    ),
    Shape(
        26, lambda version, names: end_txn.EndTxnRequest(
            transactional_id=names.transaction, producer_id=99, producer_epoch=0, committed=True
        ),
        (needs(TRANSACTION, WRITE, "error_code"),), names=(TRANSACTION,),
    ),
    Shape(
        27, _write_txn_markers,
        (Rule(
            (Grant(CLUSTER, ALTER), Grant(CLUSTER, CLUSTER_ACTION)), 31, at("markers.topics.partitions.error_code")
        ),),
        names=(TOPIC,),
    ),
    Shape(
        28, _txn_offset_commit,
        (needs(TRANSACTION, WRITE, COMMITTED), needs(GROUP, READ, COMMITTED), needs(TOPIC, READ, COMMITTED)),
        names=(TRANSACTION, GROUP, TOPIC),
    ),
    Shape(
        65, lambda version, names: describe_transactions.DescribeTransactionsRequest(
            transactional_ids=[names.open_transaction]
        ),
        (Rule((Grant(TRANSACTION, DESCRIBE, open_transaction_of),), 53, at("transaction_states.error_code")),),
        (Listing(
            (Grant(TOPIC, DESCRIBE),), _shows_topic_of_transaction,
            lambda version, names: names.open_transaction != ABSENT.open_transaction,
        ),),
        names=(TRANSACTION,),
    ),
    Shape(
        66, lambda version, names: list_transactions.ListTransactionsRequest(),
        listings=(Listing(
            (Grant(TRANSACTION, DESCRIBE, open_transaction_of),),
            lambda reply, names: names.open_transaction in [t.transactional_id for t in reply.transaction_states],
        ),),
    ),
]  # fmt: skip


# -- administration ---------------------------------------------------------------------------------------------------


def _acl_filter(cls: type[Any]) -> Any:
    return cls(
        resource_type_filter=TOPIC, resource_name_filter="no-acl", pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


def _create_acls(version: int, names: Names) -> Message:
    acl = create_acls.AclCreation(
        resource_type=TOPIC, resource_name="created", resource_pattern_type=3, principal="User:x", host="*",
        operation=READ, permission_type=3,
    )  # fmt: skip
    return create_acls.CreateAclsRequest(creations=[acl])


_CONFIG_NAMES: Mapping[int, Callable[[Names], str]] = {
    2: lambda names: names.topic, 4: lambda names: "0", 8: lambda names: "0", 16: lambda names: "m",
    32: lambda names: names.group,
}  # fmt: skip
_CONFIG_OWNERS = {2: TOPIC, 4: CLUSTER, 8: CLUSTER, 16: CLUSTER, 32: GROUP}


def _config_shapes(kind: int) -> Iterable[Shape]:
    """Yield the shapes of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs for one type of resource."""
    name, owner = _CONFIG_NAMES[kind], _CONFIG_OWNERS[kind]
    named = () if owner == CLUSTER else (owner,)

    def describe(version: int, names: Names) -> Message:
        row = describe_configs.DescribeConfigsResource(
            resource_type=kind, resource_name=name(names), configuration_keys=None
        )
        return describe_configs.DescribeConfigsRequest(resources=[row])

    def alter(version: int, names: Names) -> Message:
        row = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name(names), configs=[])
        return alter_configs.AlterConfigsRequest(resources=[row], validate_only=True)

    def change(version: int, names: Names) -> Message:
        row = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name(names), configs=[])
        return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[row], validate_only=True)

    yield Shape(32, describe, (needs(owner, DESCRIBE_CONFIGS, "results.error_code"),), names=named)
    if kind in (2, 4, 32):
        for api_key, make in ((33, alter), (44, change)):
            yield Shape(api_key, make, (needs(owner, ALTER_CONFIGS, "responses.error_code"),), names=named)


def _elect_leaders(version: int, names: Names) -> Message:
    topic = elect_leaders.TopicPartitions(topic=names.topic, partitions=[0])
    return elect_leaders.ElectLeadersRequest(topic_partitions=[topic], timeout=60_000)


def _reassign(version: int, names: Names) -> Message:
    row = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    topic = alter_partition_reassignments.ReassignableTopic(name=names.topic, partitions=[row])
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[topic], timeout=60_000)


def _alter_log_dirs(version: int, names: Names) -> Message:
    topic = alter_replica_log_dirs.AlterReplicaLogDirTopic(name=names.topic, partitions=[0])
    directory = alter_replica_log_dirs.AlterReplicaLogDir(path="/no/such/dir", topics=[topic])
    return alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[directory])


def _alter_quotas(version: int, names: Names) -> Message:
    entity = alter_client_quotas.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="x")
    entry = alter_client_quotas.AlterClientQuotasRequestEntryData(entity=[entity], ops=[])
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=True)


def _delete_credential(version: int, names: Names) -> Message:
    row = alter_user_scram_credentials.ScramCredentialDeletion(name="no-user", mechanism=1)
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions=[row])


def _describe_quorum(version: int, names: Names) -> Message:
    row = describe_quorum.DescribeQuorumRequestPartitionData(partition_index=0)
    topic = describe_quorum.DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[row])
    return describe_quorum.DescribeQuorumRequest(topics=[topic])


def _create_token(version: int, names: Names) -> Message:
    return create_delegation_token.CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=names.user.removeprefix("User:"), max_lifetime=-1
    )


def _cluster(operation: Operation, *paths: str) -> tuple[Rule, ...]:
    return (needs(CLUSTER, operation, *paths),)


ADMIN_SHAPES = [
    Shape(17, lambda version, names: sasl_handshake.SaslHandshakeRequest(mechanism="PLAIN")),
    Shape(18, lambda version, names: api_versions.ApiVersionsRequest(
        client_software_name="matrix", client_software_version="1"
    )),
    Shape(36, lambda version, names: sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"")),
    Shape(
        29, lambda version, names: _acl_filter(describe_acls.DescribeAclsRequest),  # type: ignore[no-any-return]
        _cluster(DESCRIBE, "error_code"),
    ),
    Shape(30, _create_acls, _cluster(ALTER, "results.error_code")),
    Shape(
        31, lambda version, names: delete_acls.DeleteAclsRequest(filters=[_acl_filter(delete_acls.DeleteAclsFilter)]),
        _cluster(ALTER, "filter_results.error_code"),
    ),
    *(shape for kind in _CONFIG_NAMES for shape in _config_shapes(kind)),
    Shape(34, _alter_log_dirs, _cluster(ALTER, "results.partitions.error_code"), names=(TOPIC,)),
    Shape(
        35, lambda version, names: describe_log_dirs.DescribeLogDirsRequest(topics=None),
        (Rule((Grant(CLUSTER, DESCRIBE),), 31, since(3, (), "error_code")),),
        (Listing((Grant(CLUSTER, DESCRIBE),), lambda reply, names: bool(reply.results)),),
    ),
    # The broker of these tests has no secret for tokens, so that requests that are allowed get another error.
    Shape(
        38, _create_token,
        (Rule(
            (Grant(ResourceType.USER, Operation.CREATE_TOKENS, lambda names: [names.user]),), 65, at("error_code"),
            applies=lambda version, names: version >= 3,
        ),),
    ),
    Shape(39, lambda version, names: renew_delegation_token.RenewDelegationTokenRequest(hmac=b"x")),
    Shape(40, lambda version, names: expire_delegation_token.ExpireDelegationTokenRequest(hmac=b"x")),
    Shape(41, lambda version, names: describe_delegation_token.DescribeDelegationTokenRequest(owners=None)),
    Shape(
        43, _elect_leaders,
        (Rule(
            (Grant(CLUSTER, ALTER),), 31,
            since(
                1, "replica_election_results.partition_result.error_code",
                ("error_code", "replica_election_results.partition_result.error_code"),
            ),
        ),),
        names=(TOPIC,),
    ),
    Shape(45, _reassign, _cluster(ALTER, "error_code", "responses.partitions.error_code"), names=(TOPIC,)),
    Shape(
        46, lambda version, names: list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None),
        _cluster(DESCRIBE, "error_code"),
    ),
    Shape(
        48, lambda version, names: describe_client_quotas.DescribeClientQuotasRequest(),
        _cluster(DESCRIBE_CONFIGS, "error_code"),
    ),
    Shape(49, _alter_quotas, _cluster(ALTER_CONFIGS, "entries.error_code")),
    Shape(
        50, lambda version, names: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None),
        _cluster(DESCRIBE, "error_code"),
    ),
    Shape(51, _delete_credential, _cluster(ALTER, "results.error_code")),
    Shape(55, _describe_quorum, _cluster(DESCRIBE, "error_code")),
    Shape(
        57, lambda version, names: update_features.UpdateFeaturesRequest(feature_updates=[]),
        _cluster(ALTER, "error_code"),
    ),
    Shape(60, lambda version, names: describe_cluster.DescribeClusterRequest()),
    Shape(
        64, lambda version, names: unregister_broker.UnregisterBrokerRequest(broker_id=99),
        _cluster(ALTER, "error_code"),
    ),
    Shape(
        74, lambda version, names: list_config_resources.ListConfigResourcesRequest(),
        _cluster(DESCRIBE_CONFIGS, "error_code"),
    ),
]  # fmt: skip
