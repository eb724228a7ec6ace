"""`kafka-run-class`: run the command whose class has this name, as older scripts do.

kafka-run-class.sh kafka.tools.GetOffsetShell --bootstrap-server 127.0.0.1:9092 --topic hello
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.kafka import commands
from ottla.cli.kafka.tool import FAILED, print_error

_USAGE = "USAGE: kafka-run-class [-daemon] [-name servicename] [-loggc] classname [opts]"
#: commands by the names of their classes in old and new versions of Kafka, without packages
_CLASSES = {
    "AclCommand": "kafka-acls",
    "BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "ClientMetricsCommand": "kafka-client-metrics",
    "ClusterTool": "kafka-cluster",
    "ConfigCommand": "kafka-configs",
    "ConsoleConsumer": "kafka-console-consumer",
    "ConsoleProducer": "kafka-console-producer",
    "ConsumerGroupCommand": "kafka-consumer-groups",
    "ConsumerPerformance": "kafka-consumer-perf-test",
    "DelegationTokenCommand": "kafka-delegation-tokens",
    "DeleteRecordsCommand": "kafka-delete-records",
    "DumpLogSegments": "kafka-dump-log",
    "EndToEndLatency": "kafka-e2e-latency",
    "FeatureCommand": "kafka-features",
    "GetOffsetShell": "kafka-get-offsets",
    "GroupsCommand": "kafka-groups",
    "Kafka": "kafka-server-start",
    "LeaderElectionCommand": "kafka-leader-election",
    "LogDirsCommand": "kafka-log-dirs",
    "MetadataQuorumCommand": "kafka-metadata-quorum",
    "ProducerPerformance": "kafka-producer-perf-test",
    "ReassignPartitionsCommand": "kafka-reassign-partitions",
    "StorageTool": "kafka-storage",
    "TopicCommand": "kafka-topics",
    "TransactionsCommand": "kafka-transactions",
    "VerifiableConsumer": "kafka-verifiable-consumer",
    "VerifiableProducer": "kafka-verifiable-producer",
}


def main(words: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    rest = list(words)
    while rest and rest[0] in ("-daemon", "-loggc", "-name"):
        del rest[: 2 if rest[0] == "-name" else 1]
    if not rest:
        print_error(_USAGE)
        return FAILED
    package, _, name = rest[0].rpartition(".")
    command = _CLASSES.get(name) if package.startswith(("kafka", "org.apache.kafka")) else None
    if command is None:
        print_error(f"Error: Could not find or load main class {rest[0]}; it needs Java, or is not a command of Kafka")
        return FAILED
    return commands.run(command, rest[1:])
