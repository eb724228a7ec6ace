"""kafka-broker-api-versions: the versions of each request that brokers understand, and the one that clients use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import check
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.client.protocol.metadata import Node
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.describe_cluster import DescribeClusterRequest

_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="A broker of the cluster. Required."),
    flag("command-config", metavar="FILE", help="Properties of the client."),
)
#: key -> name, and the oldest and newest version that the clients of Kafka 4.3 understand
_REQUESTS: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("Produce", 0, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 11),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 4),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 2),
    28: ("TxnOffsetCommit", 0, 5),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 5),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    38: ("CreateDelegationToken", 1, 3),
    39: ("RenewDelegationToken", 1, 2),
    40: ("ExpireDelegationToken", 1, 2),
    41: ("DescribeDelegationToken", 1, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    64: ("UnregisterBroker", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    71: ("GetTelemetrySubscriptions", 0, 0),
    72: ("PushTelemetry", 0, 0),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1),
    77: ("ShareGroupDescribe", 1, 1),
    78: ("ShareFetch", 1, 2),
    79: ("ShareAcknowledge", 1, 2),
    80: ("AddRaftVoter", 0, 1),
    81: ("RemoveRaftVoter", 0, 0),
    83: ("InitializeShareGroupState", 0, 0),
    84: ("ReadShareGroupState", 0, 0),
    85: ("WriteShareGroupState", 0, 1),
    86: ("DeleteShareGroupState", 0, 0),
    87: ("ReadShareGroupStateSummary", 0, 1),
    88: ("StreamsGroupHeartbeat", 0, 0),
    89: ("StreamsGroupDescribe", 0, 0),
    90: ("DescribeShareGroupOffsets", 0, 1),
    91: ("AlterShareGroupOffsets", 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0),
}


def _run(options: Options) -> None:
    options.require("bootstrap-server")
    properties = properties_of(options.value("command-config"))
    with connect(options.value("bootstrap-server"), properties, call="listNodes") as admin:
        racks = {row.broker_id: row.rack for row in admin.ask_any(DescribeClusterRequest()).brokers}
        for node in admin.brokers():
            ranges = _ranges(admin, node)
            where = f"{node.host}:{node.port} (id: {node.broker_id} rack: {racks.get(node.broker_id) or 'null'}"
            lines = ",\n\t".join(_line(key, ranges) for key in sorted({*_REQUESTS, *ranges}))
            print_line(f"{where} isFenced: false) -> (\n\t{lines}\n)")


def _ranges(admin: Admin, node: Node) -> dict[int, tuple[int, int]]:
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
    answer = admin.ask(node, request)
    check(answer.error_code)
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


def _line(key: int, ranges: Mapping[int, tuple[int, int]]) -> str:
    name, oldest, newest = _REQUESTS.get(key, ("UNKNOWN", 0, -1))
    if key not in ranges:
        return f"{name}({key}): UNSUPPORTED"
    low, high = ranges[key]
    text = f"{name}({key}): {low}" if low == high else f"{name}({key}): {low} to {high}"
    if key not in _REQUESTS:
        return text
    if newest < low:
        return f"{text} [unusable: node too new]"
    if high < oldest:
        return f"{text} [unusable: node too old]"
    return f"{text} [usable: {min(high, newest)}]"


TOOL = Tool(
    name="kafka-broker-api-versions",
    summary="Print the versions of requests that the brokers understand.",
    flags=_FLAGS,
    run=_run,
)
