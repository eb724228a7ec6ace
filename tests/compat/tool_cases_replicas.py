"""Scenarios of kafka-leader-election and kafka-reassign-partitions, on a cluster of three brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from tool_actions import records
from tool_scenarios import CLUSTER, Do, Place, Scenario, Step, file

from ottla.admin.client import AdminClient
from ottla.admin.cluster import ClusterAdmin

_WAIT_S = 60.0
#: log directories are those of the run
_DIRECTORIES = ((r"/[^\"' ]*/ottla-[^\"' ,]*", "{log_dir}"),)


def _moves(parts: Mapping[tuple[str, int], Sequence[int]]) -> str:
    rows = [{"topic": topic, "partition": number, "replicas": list(to)} for (topic, number), to in parts.items()]
    return json.dumps({"version": 1, "partitions": rows})


def _settled() -> Do:
    """Return a step that waits until no replica moves and all are in sync."""

    def wait(place: Place) -> None:
        with AdminClient(place.server, {}, timeout_s=_WAIT_S) as client:
            state = ClusterAdmin(client, _WAIT_S).wait_for(
                lambda state: not any(each.is_reassigned or each.is_under_replicated for each in state.partitions)
            )
        assert not any(each.is_reassigned or each.is_under_replicated for each in state.partitions)
        # Each broker hears of the change by itself.
        time.sleep(1)

    return Do(wait)


def _reassign(arguments: str, **more: str) -> Step:
    return Step("kafka-reassign-partitions", arguments, replace=_DIRECTORIES, **more)  # type: ignore[arg-type]


def _elect(arguments: str) -> Step:
    return Step("kafka-leader-election", arguments)


_TRACES = "Java's tool prints a stack trace on standard output"
_REASSIGN = Scenario(
    name="reassign",
    stage=CLUSTER,
    steps=[
        Step("kafka-topics", "{b} --create --topic mv-a --replica-assignment 1:2,2:3"),
        Step("kafka-topics", "{b} --create --topic mv-b --replica-assignment 3:1"),
        records("mv-a", 5),
        _settled(),
        file("move.json", _moves({("mv-a", 0): [2, 3], ("mv-b", 0): [1]})),
        file("back.json", _moves({("mv-a", 0): [1, 2]})),
        file("topics.json", json.dumps({"version": 1, "topics": [{"topic": "mv-a"}]})),
        file("missing.json", _moves({("nothing", 0): [1]})),
        file("unknown.json", _moves({("mv-a", 0): [9]})),
        file("partition.json", _moves({("mv-a", 7): [1]})),
        file("empty.json", _moves({})),
        file("no-replicas.json", _moves({("mv-a", 0): []})),
        file("twice.json", _moves({("mv-a", 0): [1, 1]})),
        file("broken.json", "{"),
        file("version.json", '{"version": 2}'),
        _reassign(""),
        _reassign("--version"),
        _reassign("{b} --list"),
        _reassign("{b} --verify --reassignment-json-file {dir}/move.json"),
        _reassign("{b} --verify --reassignment-json-file {dir}/missing.json --preserve-throttles"),
        _reassign("{b} --execute --reassignment-json-file {dir}/move.json --throttle 10000000"),
        _settled(),
        _reassign("{b} --verify --reassignment-json-file {dir}/move.json --preserve-throttles"),
        Step("kafka-configs", "{b} --describe --topic mv-a"),
        Step("kafka-configs", "{b} --describe --broker 2"),
        _reassign("{b} --verify --reassignment-json-file {dir}/move.json"),
        # The next command may ask a broker that has not heard of the change.
        _settled(),
        Step("kafka-configs", "{b} --describe --topic mv-a"),
        Step("kafka-configs", "{b} --describe --broker 2"),
        Step("kafka-topics", "{b} --describe --topic 'mv-.*'"),
        _reassign("{b} --execute --reassignment-json-file {dir}/back.json --disallow-replication-factor-change"),
        _settled(),
        _reassign("{b} --cancel --reassignment-json-file {dir}/back.json"),
        _reassign("{b} --cancel --reassignment-json-file {dir}/back.json --preserve-throttles"),
        _reassign("{b} --execute --reassignment-json-file {dir}/missing.json", differs=_TRACES),
        _reassign("{b} --execute --reassignment-json-file {dir}/unknown.json", differs=_TRACES),
        _reassign("{b} --execute --reassignment-json-file {dir}/partition.json", differs=_TRACES),
        _reassign("{b} --execute --reassignment-json-file {dir}/empty.json", differs=_TRACES),
        _reassign("{b} --generate --topics-to-move-json-file {dir}/topics.json --broker-list 1,1", differs=_TRACES),
        _reassign(
            "{b} --generate --topics-to-move-json-file {dir}/topics.json --broker-list 1,2,3",
            differs="the proposal is random",
        ),
        _reassign("{b} --generate --topics-to-move-json-file {dir}/topics.json"),
        _reassign("{b} --execute"),
        _reassign("{b} --list --throttle 5"),
        _reassign("{b} --list --verify"),
        _reassign("--list"),
        _reassign("--zookeeper {server} --list"),
    ],
)

_ELECTION = Scenario(
    name="leader-election",
    stage=CLUSTER,
    steps=[
        Step("kafka-topics", "{b} --create --topic el --replica-assignment 1:2,2:3,3:1"),
        _settled(),
        file("partitions.json", '{"partitions": [{"topic": "el", "partition": 0}, {"topic": "el", "partition": 1}]}'),
        file("twice.json", '{"partitions": [{"topic": "el", "partition": 0}, {"topic": "el", "partition": 0}]}'),
        file("nothing.json", "{}"),
        file("order.json", _moves({("el", 0): [2, 1]})),
        _elect(""),
        _elect("--version"),
        _elect("{b} --election-type preferred --topic el --partition 0"),
        _elect("{b} --election-type PREFERRED --path-to-json-file {dir}/partitions.json"),
        _elect("{b} --election-type preferred --all-topic-partitions"),
        _elect("{b} --election-type unclean --topic el --partition 0"),
        _elect("{b} --election-type preferred --topic nothing --partition 0"),
        _elect("{b} --election-type preferred --topic el --partition 9"),
        # The replicas stay, and their order changes: broker 2 is the preferred leader now.
        Step(
            "kafka-reassign-partitions", "{b} --execute --reassignment-json-file {dir}/order.json", replace=_DIRECTORIES
        ),
        _settled(),
        _elect("{b} --election-type preferred --topic el --partition 0"),
        Step("kafka-topics", "{b} --describe --topic el"),
        _elect("{b} --election-type preferred --path-to-json-file {dir}/twice.json"),
        _elect("{b} --election-type preferred --path-to-json-file {dir}/nothing.json"),
        _elect("{b} --election-type nonsense --all-topic-partitions"),
        _elect("{b} --election-type preferred"),
        _elect("{b} --election-type preferred --topic el"),
        _elect("{b} --election-type preferred --partition 1 --all-topic-partitions"),
        _elect("{b} --election-type preferred --topic el --partition 0 --all-topic-partitions"),
        _elect("{b} --all-topic-partitions"),
        file("client.properties", "client.id=me\n"),
        _elect("{b} --election-type preferred --topic el --partition 1 --admin.config {dir}/client.properties"),
        _elect("{b} --election-type preferred --topic el --partition 1 --command-config {dir}/client.properties"),
    ],
)

SCENARIOS = (_REASSIGN, _ELECTION)
