"""Kafka's commands about a cluster, its brokers and its features; outputs were recorded from Kafka 4.3's own tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka_admin import FakeAdmin, connected

from ottla.cli.kafka import (
    broker_versions,
    client_metrics,
    cluster,
    delegation_tokens,
    features,
    log_dirs,
    metadata_quorum,
    releases,
)
from ottla.cli.kafka.tool import Tool
from ottla.cli.kafka.tool import main as run_tool
from ottla.client.protocol.metadata import Node
from ottla.model.errors import ErrorCode
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenResponse
from ottla.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from ottla.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenResponse,
)
from ottla.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    ReplicaState,
)
from ottla.wire.messages.describe_quorum import Node as QuorumNode
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenResponse
from ottla.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.messages.list_config_resources import ConfigResource, ListConfigResourcesResponse
from ottla.wire.messages.unregister_broker import UnregisterBrokerResponse
from ottla.wire.messages.update_features import UpdatableFeatureResult, UpdateFeaturesResponse

_SERVER = ("--bootstrap-server", "127.0.0.1:9092")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns its exit code and what it printed."""

    def call(module: Any, *words: str, admin: FakeAdmin | None = None) -> tuple[int, str, str]:
        with connected(monkeypatch, module, admin or FakeAdmin()):
            tool = getattr(module, "TOOL", None)
            code = run_tool(tool, words) if isinstance(tool, Tool) else module.main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


# -- kafka-cluster ----------------------------------------------------------------------------------------------------


def test_cluster_id(run: Run) -> None:
    assert run(cluster, "cluster-id", *_SERVER) == (0, "Cluster ID: RSkj6C1QN6o7n2j7HpD-qw\n", "")


def test_deprecated_config_flag_is_reported_on_standard_output(run: Run, tmp_path: Any) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=x\n")
    code, output, _ = run(cluster, "cluster-id", *_SERVER, "--config", str(path))
    assert (code, output.splitlines()[0]) == (
        0,
        "Option --config has been deprecated and will be removed in a future version. Use --command-config instead.",
    )


def test_endpoints_of_brokers(run: Run) -> None:
    row = DescribeClusterBroker(broker_id=0, host="127.0.0.1", port=19492, rack=None)
    found = run(cluster, "list-endpoints", *_SERVER, admin=FakeAdmin(DescribeClusterResponse(brokers=[row])))
    assert found == (
        0,
        "ID         HOST      PORT       RACK       STATE      ENDPOINT_TYPE  \n"
        "0          127.0.0.1 19492      null       unfenced   broker         \n",
        "",
    )


def test_a_broker_is_unregistered(run: Run) -> None:
    admin = FakeAdmin(UnregisterBrokerResponse())
    assert run(cluster, "unregister", *_SERVER, "--id", "4", admin=admin)[:2] == (
        0,
        "Broker 4 is no longer registered.\n",
    )
    assert admin.requests[-1].broker_id == 4
    refusal = UnregisterBrokerResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message="no broker 77")
    assert run(cluster, "unregister", *_SERVER, "--id", "77", admin=FakeAdmin(refusal)) == (1, "", "no broker 77\n")


def test_controllers_cannot_be_named(run: Run) -> None:
    code, _, errors = run(cluster, "cluster-id", "--bootstrap-controller", "h:1")
    assert code == 1
    assert "--bootstrap-server" in errors


# -- kafka-log-dirs ---------------------------------------------------------------------------------------------------


def _log_dirs() -> DescribeLogDirsResponse:
    topics = [
        DescribeLogDirsTopic(
            name=name,
            partitions=[DescribeLogDirsPartition(partition_index=index, partition_size=7) for index in (1, 0)],
        )
        for name in ("t", "other")
    ]
    lost = DescribeLogDirsResult(log_dir="/lost", error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="/data", topics=topics), lost])


def test_log_directories_are_one_line_of_json(run: Run) -> None:
    found = run(log_dirs, *_SERVER, "--describe", "--topic-list", "t", admin=FakeAdmin(_log_dirs()))
    assert found == (
        0,
        "Querying brokers for log directories information\n"
        "Received log directory information from brokers 0\n"
        '{"brokers":[{"broker":0,"logDirs":[{"partitions":[{"partition":"t-1","size":7,"offsetLag":0,"isFuture":false},'
        '{"partition":"t-0","size":7,"offsetLag":0,"isFuture":false}],"error":null,"logDir":"/data"},'
        '{"partitions":[],"error":"org.apache.kafka.common.errors.KafkaStorageException","logDir":"/lost"}]}],'
        '"version":1}\n',
        "",
    )


@pytest.mark.parametrize(
    ("brokers", "text"),
    [
        ("0,9", "ERROR: The given brokers do not exist from --broker-list: 9. Current existent brokers: 0,1\n"),
        ("x", 'For input string: "x"\n'),
    ],
)
def test_brokers_that_do_not_exist_are_reported(run: Run, brokers: str, text: str) -> None:
    admin = FakeAdmin(_log_dirs(), brokers=[Node(0, "h", 1), Node(1, "h", 2)])
    assert run(log_dirs, *_SERVER, "--describe", "--broker-list", brokers, admin=admin) == (1, "", text)


# -- kafka-broker-api-versions ----------------------------------------------------------------------------------------


def test_versions_of_requests_are_compared_with_those_of_clients(run: Run) -> None:
    ranges = {0: (0, 13), 1: (0, 2), 46: (0, 0), 3: (90, 91), 999: (0, 1)}
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()]
    admin = FakeAdmin(ApiVersionsResponse(api_keys=keys), DescribeClusterResponse())
    code, output, _ = run(broker_versions, *_SERVER, admin=admin)
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "127.0.0.1:9092 (id: 0 rack: null isFenced: false) -> ("
    assert lines[-1] == ")"
    assert {
        "\tProduce(0): 0 to 13 [usable: 13],",
        "\tFetch(1): 0 to 2 [unusable: node too old],",
        "\tMetadata(3): 90 to 91 [unusable: node too new],",
        "\tListPartitionReassignments(46): 0 [usable: 0],",
        "\tShareFetch(78): UNSUPPORTED,",
        "\tUNKNOWN(999): 0 to 1",
    } <= set(lines)


# -- kafka-features ---------------------------------------------------------------------------------------------------


def test_features_are_described(run: Run) -> None:
    reply = ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(name="metadata.version", min_version=7, max_version=30),
            SupportedFeatureKey(name="group.version", max_version=1),
        ],
        finalized_features=[FinalizedFeatureKey(name="metadata.version", max_version_level=30)],
        finalized_features_epoch=24,
    )
    assert run(features, *_SERVER, "describe", admin=FakeAdmin(reply))[:2] == (
        0,
        "Feature: group.version                             SupportedMinVersion: 0                "
        "SupportedMaxVersion: 1                FinalizedVersionLevel: 0                Epoch: 24\n"
        "Feature: metadata.version                          SupportedMinVersion: 3.3-IV3          "
        "SupportedMaxVersion: 4.3-IV0          FinalizedVersionLevel: 4.3-IV0          Epoch: 24\n",
    )


def test_features_are_changed(run: Run) -> None:
    admin = FakeAdmin(UpdateFeaturesResponse())
    found = run(features, *_SERVER, "downgrade", "--feature", "group.version=0", "--dry-run", admin=admin)
    assert found == (0, "group.version can be downgraded to 0.\n", "")
    request = admin.requests[-1]
    assert (request.validate_only, request.feature_updates[0].upgrade_type) == (True, 2)


@pytest.mark.parametrize("is_newer", [True, False])
def test_refused_changes_of_features_are_counted(run: Run, is_newer: bool) -> None:
    code = ErrorCode.INVALID_UPDATE_VERSION
    if is_newer:
        reply = UpdateFeaturesResponse(error_code=code, error_message="no")
    else:
        rows = [UpdatableFeatureResult(feature=name, error_code=code, error_message="no") for name in ("a", "b")]
        reply = UpdateFeaturesResponse(results=rows)
    found = run(features, *_SERVER, "upgrade", "--feature", "b=1", "--feature", "a=2", admin=FakeAdmin(reply))
    assert found == (
        1,
        "Could not upgrade a to 2. no\nCould not upgrade b to 1. no\n",
        "2 out of 2 operation(s) failed.\n",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("upgrade",), "You must specify at least one feature to upgrade"),
        (("upgrade", "--feature", "a"), "Can't parse feature=level string a: equals sign not found."),
        (("upgrade", "--feature", "a=x"), "Can't parse feature=level string a=x: unable to parse x as a short."),
        (("upgrade", "--feature", "a=1", "--feature", "a=2"), "Feature a was specified more than once."),
        (
            ("upgrade", "--release-version", "4.3", "--metadata", "4.3"),
            "Can not specify `release-version` with other feature flags.",
        ),
        (("feature-dependencies", "--feature", "foo=1"), "Unknown feature: foo"),
        (("feature-dependencies", "--feature", "group.version=7"), "No feature:group.version with feature level 7"),
        (("feature-dependencies", "--feature", "metadata.version=70"), "Unknown metadata.version 70"),
    ],
)
def test_wrong_features_are_reported(run: Run, words: tuple[str, ...], text: str) -> None:
    assert run(features, *_SERVER, *words) == (1, "", f"{text}\n")


@pytest.mark.parametrize(
    ("version", "levels"),
    [
        ("3.3-IV3", (7, 0, 0, 0, 0, 0, 0)),
        ("3.9", (21, 1, 0, 0, 0, 0, 0)),
        ("4.0", (25, 1, 2, 1, 0, 0, 0)),
        ("4.1", (27, 1, 2, 1, 1, 0, 0)),
        ("4.2-IV1", (29, 1, 2, 1, 1, 1, 1)),
        ("4.3-IV0", (30, 1, 2, 1, 1, 1, 1)),
    ],
)
def test_levels_of_features_in_a_release(version: str, levels: tuple[int, ...]) -> None:
    lines = releases.mapping(version)
    assert lines[0] == f"metadata.version={levels[0]} ({version})"
    assert tuple(int(line.rpartition("=")[2]) for line in lines[1:]) == levels[1:]


def test_dependencies_of_features(run: Run) -> None:
    flags = ("--feature", "eligible.leader.replicas.version=1", "--feature", "metadata.version=7")
    assert run(features, "feature-dependencies", *flags)[:2] == (
        0,
        "eligible.leader.replicas.version=1 requires:\n    metadata.version=23 (4.0-IV1)\n"
        "metadata.version=7 (3.3-IV3) has no dependencies.\n",
    )
    assert run(features, "version-mapping", "--release-version", "2.2")[0] == 1


# -- kafka-metadata-quorum --------------------------------------------------------------------------------------------


def _quorum() -> FakeAdmin:
    row = DescribeQuorumResponsePartitionData(
        leader_id=0, leader_epoch=1, high_watermark=5, current_voters=[ReplicaState(replica_id=0, log_end_offset=5)]
    )
    nodes = [QuorumNode(node_id=0, listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=19492)])]
    return FakeAdmin(
        DescribeQuorumResponse(
            topics=[DescribeQuorumResponseTopicData(topic_name="__cluster_metadata", partitions=[row])], nodes=nodes
        )
    )


def test_status_of_the_quorum(run: Run) -> None:
    assert run(metadata_quorum, *_SERVER, "describe", "--status", admin=_quorum())[:2] == (
        0,
        "ClusterId:              RSkj6C1QN6o7n2j7HpD-qw\n"
        "LeaderId:               0\n"
        "LeaderEpoch:            1\n"
        "HighWatermark:          5\n"
        "MaxFollowerLag:         0\n"
        "MaxFollowerLagTimeMs:   0\n"
        'CurrentVoters:          [{"id": 0, "endpoints": ["PLAINTEXT://127.0.0.1:19492"]}]\n'
        "CurrentObservers:       []\n",
    )


def test_replication_of_the_quorum(run: Run) -> None:
    assert run(metadata_quorum, *_SERVER, "describe", "--replication", admin=_quorum())[:2] == (
        0,
        "NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus\t\n"
        "0     \tAAAAAAAAAAAAAAAAAAAAAA\t5           \t0  \t-1                \t-1                   \tLeader\t\n",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("describe",), "One of --status or --replication must be specified with describe sub-command"),
        (
            ("describe", "--status", "--replication"),
            "Only one of --status or --replication should be specified with describe sub-command",
        ),
        (
            ("add-controller",),
            "You must supply the configuration file of the controller you are adding when using add-controller.",
        ),
        (
            ("remove-controller", "-i", "1", "-d", "foo"),
            "Failed to parse --controller-directory-id: Input string `foo` decoded as 2 bytes, which is not equal to "
            "the expected 16 bytes of a base64-encoded UUID",
        ),
    ],
)
def test_wrong_flags_of_the_quorum(run: Run, words: tuple[str, ...], text: str) -> None:
    assert run(metadata_quorum, *_SERVER, *words) == (1, "", f"{text}\n")


# -- kafka-delegation-tokens ------------------------------------------------------------------------------------------

_TITLES = (
    "TOKENID         HMAC                           OWNER           REQUESTER       RENEWERS                  ISSUEDATE"
    "       EXPIRYDATE      MAXDATE        \n"
)
_ROW = "abc             YWJj                           User:alice      User:alice      [User:bob]                "


@pytest.fixture
def login(tmp_path: Any) -> tuple[str, str]:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=PLAINTEXT\n")
    return "--command-config", str(path)


def test_tokens_are_created(run: Run, login: tuple[str, str]) -> None:
    admin = FakeAdmin(
        CreateDelegationTokenResponse(
            principal_type="User", principal_name="alice", token_requester_principal_type="User",
            token_requester_principal_name="alice", token_id="abc", hmac=b"abc",
        )
    )  # fmt: skip
    flags = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    code, output, _ = run(delegation_tokens, *_SERVER, *login, *flags, admin=admin)
    assert code == 0
    assert output.startswith(
        "Calling create token operation with renewers :[User:bob] , max-life-time-period :-1\n"
        f"Created delegation token with tokenId : abc\n\n{_TITLES}\n{_ROW}"
    )
    assert (admin.requests[-1].max_lifetime, admin.requests[-1].owner_principal_name) == (-1, None)


def test_tokens_are_described_and_expired(run: Run, login: tuple[str, str]) -> None:
    token = DescribedDelegationToken(
        principal_type="User", principal_name="alice", token_requester_principal_type="User",
        token_requester_principal_name="alice", token_id="abc", hmac=b"abc",
        renewers=[DescribedDelegationTokenRenewer(principal_type="User", principal_name="bob")],
    )  # fmt: skip
    admin = FakeAdmin(DescribeDelegationTokenResponse(tokens=[token]), ExpireDelegationTokenResponse())
    _, output, _ = run(
        delegation_tokens, *_SERVER, *login, "--describe", "--owner-principal", "User:alice", admin=admin
    )
    assert output.startswith(
        f"Calling describe token operation for owners: [User:alice]\nTotal number of tokens : 1\n{_TITLES}\n{_ROW}"
    )
    flags = ("--expire", "--hmac", "YWJj", "--expiry-time-period", "-1")
    code, output, _ = run(delegation_tokens, *_SERVER, *login, *flags, admin=admin)
    assert (code, admin.requests[-1].hmac) == (0, b"abc")
    assert output.startswith(
        "Calling expire token operation with hmac :YWJj , expire-time-period :-1\n"
        "Completed expire operation. New expiry date : "
    )


# -- kafka-client-metrics ---------------------------------------------------------------------------------------------


def test_settings_of_client_metrics(run: Run) -> None:
    config = DescribeConfigsResourceResult(name="interval.ms", value="1000")
    admin = FakeAdmin(
        ListConfigResourcesResponse(config_resources=[ConfigResource(resource_name="x", resource_type=16)]),
        DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[config])]),
        IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse()]),
    )
    metrics = (client_metrics, *_SERVER)
    assert run(*metrics, "--list", admin=admin)[1] == "x\n"
    assert run(*metrics, "--describe", admin=admin)[1] == "Client metrics configs for x are:\n  interval.ms=1000\n"
    assert run(*metrics, "--alter", "--name", "y", "--interval", "", "--match", "a=b", admin=admin)[1] == (
        "Altered client metrics config for y.\n"
    )
    changes = admin.requests[-1].resources[0].configs
    assert [(each.name, each.config_operation) for each in changes] == [("interval.ms", 1), ("match", 0)]
    assert run(*metrics, "--delete", "--name", "x", admin=admin)[1] == "Deleted client metrics config for x.\n"
