"""The names of Kafka's commands, and the module of each; a module is imported when its name is used.

A module has a `TOOL`, or a function `main(arguments)` that returns the exit code if its flags have other rules.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """A row of the table."""

    #: in the package `ottla.cli.kafka`
    module: str
    #: what it does, in a few words
    help: str


COMMANDS = {
    "kafka-acls": Command("acls", "List, add and remove ACLs."),
    "kafka-configs": Command("configs", "Describe and change settings of topics, brokers, clients, users and groups."),
    "kafka-console-consumer": Command("console_consumer", "Print records of topics."),
    "kafka-console-producer": Command("console_producer", "Send lines of standard input as records."),
    "kafka-consumer-groups": Command("consumer_groups", "List, describe and delete groups, and reset their offsets."),
    "kafka-delete-records": Command("delete_records", "Delete the records of partitions before an offset."),
    "kafka-get-offsets": Command("get_offsets", "Print offsets at the start, at the end or at a time."),
    "kafka-leader-election": Command("leader_election", "Elect the leaders of partitions."),
    "kafka-reassign-partitions": Command("reassign", "Move replicas to other brokers."),
    "kafka-groups": Command("groups", "List groups of all types."),
    "kafka-broker-api-versions": Command("broker_versions", "Print the versions of requests that brokers understand."),
    "kafka-client-metrics": Command("client_metrics", "Manage which metrics clients send to brokers."),
    "kafka-cluster": Command("cluster", "Print the id of a cluster and its brokers, and unregister brokers."),
    "kafka-consumer-perf-test": Command("consumer_perf", "Read records, and measure the throughput."),
    "kafka-delegation-tokens": Command("delegation_tokens", "Create, renew, expire and describe delegation tokens."),
    "kafka-dump-log": Command("dump_log", "Print segments, indexes and snapshots of a log."),
    "kafka-e2e-latency": Command("e2e_latency", "Measure the time from sending a record to reading it."),
    "kafka-features": Command("features", "Print and change the levels of features."),
    "kafka-log-dirs": Command("log_dirs", "Print log directories and the sizes of partitions."),
    "kafka-metadata-quorum": Command("metadata_quorum", "Print the state of the controllers."),
    "kafka-transactions": Command("transactions", "List, describe and abort transactions."),
    "kafka-producer-perf-test": Command("producer_perf", "Send records, and measure throughput and latencies."),
    "kafka-run-class": Command("run_class", "Run the command whose class has this name, as older scripts do."),
    "kafka-server-start": Command("server_start", "Run a broker with a server.properties of Kafka."),
    "kafka-server-stop": Command("server_stop", "Stop the brokers that kafka-server-start has started."),
    "kafka-storage": Command("storage", "Look at log directories, and prepare them."),
    "kafka-streams-application-reset": Command("streams_reset", "Let an application of Kafka Streams start again."),
    "kafka-verifiable-consumer": Command("verifiable_consumer", "Read records, and print events as JSON."),
    "kafka-verifiable-producer": Command("verifiable_producer", "Send numbers, and print events as JSON."),
    "kafka-topics": Command("topics", "Create, delete, describe and change topics."),
    "zookeeper-server-start": Command("zookeeper_start", "Run a ZooKeeper server with zookeeper.properties."),
    "zookeeper-server-stop": Command("zookeeper_stop", "Stop the servers that zookeeper-server-start has started."),
    "zookeeper-shell": Command("zookeeper_shell", "Look at the nodes of ZooKeeper."),
}  # fmt: skip

_PREFIX = "kafka-"
_SUFFIX = ".sh"


def find(name: str) -> str | None:
    """Return the full name of a command, which may be written with .sh and without kafka-; None if there is none."""
    plain = name.removesuffix(_SUFFIX)
    return next((each for each in (plain, _PREFIX + plain) if each in COMMANDS), None)


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    module = importlib.import_module(f"ottla.cli.kafka.{COMMANDS[name].module}")
    if hasattr(module, "TOOL"):
        from ottla.cli.kafka.tool import main

        return main(module.TOOL, arguments)
    return int(module.main(arguments))
