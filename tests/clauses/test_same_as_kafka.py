"""The same odd requests to Ottla and to Apache Kafka: the same error codes, offsets and bytes come back.

Where Ottla answers otherwise on purpose the case is not here but in the clause tests, with its reason.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks import kafka_server
from benchmarks.kafka_server import ApacheKafka
from tests.clauses import cluster_requests
from tests.clauses.consumer_scripts import CONSUMER_SCRIPTS
from tests.clauses.group_requests import fetch
from tests.clauses.group_scripts import SCRIPTS, Script, Wire

from ottla.model.batch import checksum
from ottla.model.records import Record, build_batch
from ottla.testing import BrokerProcess
from ottla.testing.raw import Closed, RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire import ZERO_UUID, Message, Struct
from ottla.wire.messages import alter_configs, incremental_alter_configs
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.api_versions import ApiVersionsRequest
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
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

pytestmark = pytest.mark.foreign

#: what an answer says about the request; all else is the broker's own affair, or a text for people
COMPARED = {
    "error_code", "index", "partition_index", "partition", "name", "topic", "topic_name", "offset", "timestamp",
    "leader_epoch", "end_offset", "epoch", "high_watermark", "last_stable_offset", "low_watermark",
    "preferred_read_replica", "num_partitions", "replication_factor", "resource_type", "batch_index",
    "topic_authorized_operations", "cluster_authorized_operations", "partition_id", "feature",
}  # fmt: skip


LEFT_OUT = {
    "brokers", "configs", "api_keys", "aborted_transactions", "replica_nodes", "isr_nodes", "eligible_leader_replicas",
    "last_known_elr", "offline_replicas", "node_endpoints",
}  # fmt: skip


#: one shard, so that all groups of a script meet; nobody is waited for; targets are computed at once, as Ottla does
GROUP_SETTINGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
KAFKA_SETTINGS = {"group.consumer.assignment.interval.ms": "0"}


HOUR_MS = 3_600_000
RECENT = {"message.timestamp.before.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(HOUR_MS)}


class Side:
    """One of the two brokers, with topics of the same names and contents."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ids: dict[str, bytes] = {}
        with RawClient(address) as client:
            self.broker_id = int(client.ask(MetadataRequest(topics=[]), 12).controller_id)
            self.log_dir = str(client.ask(DescribeLogDirsRequest(topics=[]), 4).results[0].log_dir)
            for name, partitions, config in (
                ("one", 1, {}), ("three", 3, {}), ("empty", 1, {}), ("compacted", 1, {"cleanup.policy": "compact"}),
                ("small", 1, {"max.message.bytes": "200"}),
                ("segment", 1, {"segment.bytes": "1048576", "max.message.bytes": "4000000"}),
                ("opened", 1, {"segment.bytes": "1048576", "max.message.bytes": "4000000",
                               "compression.type": "uncompressed"}),
                ("opened-small", 1, {"max.message.bytes": "100000", "compression.type": "uncompressed"}),
                ("gzip", 1, {"segment.bytes": "1048576", "compression.type": "gzip"}),
                ("recent", 1, RECENT),
                ("recent-compacted", 1, {"cleanup.policy": "compact", **RECENT}),
            ):  # fmt: skip
                self.ids[name] = client.create_topic(name, partitions, config)
            for timestamp in (1000, 3000, 2000):
                self._write(client, "one", 0, timestamp)
            for partition in (0, 1):
                self._write(client, "three", partition, 1000)
            self._await_coordinator(client)

    def _write(self, client: RawClient, topic: str, partition: int, timestamp: int) -> None:
        request = produce_request((topic, partition, batch_of(b"a", b"b", timestamp=timestamp)))
        deadline = time.monotonic() + 60
        while client.ask(request, 9).responses[0].partition_responses[0].error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _await_coordinator(self, client: RawClient) -> None:
        """Its topic is made when somebody asks for it."""
        deadline = time.monotonic() + 60
        while (
            client.ask(FindCoordinatorRequest(key="any"), 0).error_code
            or client.ask(fetch("any", None, 7), 7).error_code
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def play(self, script: Script) -> list[tuple[str, Any]]:
        wire = Wire(self.address, self.ids, script.__name__)
        try:
            script(wire)
        finally:
            wire.close()
        return wire.transcript

    def ask(self, request: Message, version: int) -> Any:
        with RawClient(self.address) as client:
            try:
                return digest(client.ask(request, version))
            except Closed:
                return "closed"


def digest(value: Any) -> Any:
    """What is compared, in an order of its own: Kafka answers from hash maps, and may name a topic twice."""
    if isinstance(value, Struct):
        found = {}
        for field in type(value).FIELDS:
            inner = getattr(value, field.name)
            if field.name == "records":
                found["records"] = len(inner or b"")
            elif field.name in COMPARED and not isinstance(inner, Struct):
                found[field.name] = inner or 0
            elif isinstance(inner, Struct | list | tuple) and field.name not in LEFT_OUT:
                found[field.name] = digest(inner)
        return found
    rows: list[Any] = []
    for each in map(digest, value):
        partitions = each.pop("partitions", None) if isinstance(each, dict) else None
        rows += [each] if not partitions else [{**each, "row": row} for row in partitions]
    return sorted(rows, key=repr)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    if (reason := kafka_server.fetch() or kafka_server.available()) is not None:
        pytest.skip(reason)
    kafka = ApacheKafka(settings=GROUP_SETTINGS | KAFKA_SETTINGS)
    try:
        kafka.start()
        with BrokerProcess.start(settings=GROUP_SETTINGS) as broker:
            yield Side(broker.bootstrap), Side(kafka.bootstrap)
            assert "Traceback" not in broker.errors()
    finally:
        kafka.stop()


Ask = Callable[[Side], Message]
Case = tuple[str, Ask, tuple[int, ...]]


def patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    changed[17:21] = checksum(changed).to_bytes(4, "big")
    return bytes(changed)


def produces() -> Iterator[Case]:
    good = batch_of(b"v")
    versions = (3, 5, 7, 8, 9, 12)
    for name, records in {
        "nothing": b"", "half": good[:30], "cut": good[:-1], "two": good + good, "noise": b"\xab" * 200,
        "checksum": good[:-1] + bytes([good[-1] ^ 1]), "length": patched(good, 8, ">i", 10),
        "long": patched(good, 8, ">i", len(good)), "magic 0": patched(good, 16, ">b", 0),
        "magic 1": patched(good, 16, ">b", 1), "magic 3": patched(good, 16, ">b", 3),
        "base offset": patched(good, 0, ">q", 5), "no records": patched(good, 57, ">i", 0),
        "count": patched(good, 57, ">i", 2), "delta": patched(good, 23, ">i", 5),
        "control": batch_of(b"v", control=True),
        "sequence": batch_of(b"v", producer_id=5, producer_epoch=0, base_sequence=-1),
    }.items():  # fmt: skip
        yield f"produce {name}", lambda _, r=records: produce_request(("one", 0, r)), versions
    yield "produce zstd", lambda _: produce_request(("three", 2, batch_of(b"v" * 99, codec=4))), (3, 6, 7, 9)
    yield "produce acks", lambda _: produce_request(("one", 0, good), acks=2), versions
    yield "produce unknown", lambda _: produce_request(("nowhere", 0, good), ("one", 9, good)), versions
    yield "produce unknown id", lambda _: produce_request((b"\7" * 16, 0, good), (ZERO_UUID, 0, good)), (13,)
    yield "produce by id", lambda side: produce_request((side.ids["one"], 9, good)), (13,)
    yield "produce nothing", lambda _: produce_request(), versions
    yield "produce large", lambda _: produce_request(("small", 0, batch_of(bytes(300)))), versions
    yield from invalid_records()


def invalid_records() -> Iterator[Case]:
    """KIP-467: which records of a batch are named, and the code of the batch."""
    now = int(time.time() * 1000)
    valid, keyless = Record(timestamp=now, key=b"k"), Record(timestamp=now)
    old, future = Record(timestamp=now - 2 * HOUR_MS, key=b"k"), Record(timestamp=now + 2 * HOUR_MS, key=b"k")
    ancient, untimed = Record(timestamp=5), Record(timestamp=-1, key=b"k")
    batches = {
        "one keyless": ("compacted", [valid, keyless, valid]),
        "keyless": ("compacted", [keyless, valid, keyless, keyless]),
        "many keyless": ("compacted", [valid, keyless] * 2000),
        "future": ("one", [valid, future, valid, future]),
        "future and keyless": ("compacted", [keyless, future, valid]),
        "old": ("recent", [valid, old, future]),
        "old first": ("recent", [old, untimed, valid]),
        "old and keyless": ("recent-compacted", [ancient, old, valid, keyless]),
    }
    for name, (topic, records) in batches.items():
        for codec in (0, 4):
            batch = build_batch(records, codec=codec)
            ask = lambda _, t=topic, b=batch: produce_request((t, 0, b), ("three", 0, batch_of(b"v")))  # noqa: E731
            yield f"produce {name}, codec {codec}", ask, (7, 8, 9, 12)


def large_produces() -> Iterator[Case]:
    """Batches larger than max.message.bytes or segment.bytes, as sent or as recompressed by the broker."""
    zeros = bytes(1_500_000)
    noise = random.Random(1).randbytes(1_200_000)
    for name, topic, batch in (
        ("segment", "segment", batch_of(noise)), ("compressed", "segment", batch_of(zeros, codec=1)),
        ("both", "segment", batch_of(noise * 4)), ("two", "segment", batch_of(noise[:600_000]) * 2),
        ("opened", "opened", batch_of(zeros, codec=1)), ("opened small", "opened-small", batch_of(zeros, codec=1)),
        ("gzip", "gzip", batch_of(zeros)), ("gzip fits", "gzip", batch_of(zeros[:900_000])),
        ("checksum", "small", batch_of(noise)[:-1] + b"\0"),
    ):  # fmt: skip
        yield f"produce large {name}", lambda _, t=topic, b=batch: produce_request((t, 0, b)), (9,)
    # An idempotent producer: too large, next sequence, too large, gap, the missing sequence, the same again twice.
    for step, (value, sequence) in enumerate(
        ((noise, 0), (b"a", 1), (noise, 2), (b"a", 3), (b"a", 2), (b"a", 2), (noise, 2))
    ):
        batch = batch_of(value, producer_id=77, producer_epoch=0, base_sequence=sequence)
        yield f"produce large sequence {step}", lambda _, b=batch: produce_request(("segment", 0, b)), (9,)


def fetches() -> Iterator[Case]:
    versions = (4, 5, 7, 9, 11, 12)
    for offset in (0, 2, 3, 6, 7, -1):
        yield f"fetch {offset}", lambda _, o=offset: fetch_request({"one": [fetch_from(0, o)]}), versions
    for limit in (0, 1, 10**6):
        rows = [fetch_from(number, 0, partition_max_bytes=limit) for number in (2, 1, 0)]
        yield f"fetch max {limit}", lambda _, r=rows: fetch_request({"three": r, "one": [fetch_from(0, 0)]}), versions
        yield f"fetch all {limit}", lambda _, m=limit: fetch_request({"one": [fetch_from(0, 0)]}, max_bytes=m), versions
    unknown = {"nowhere": [fetch_from(0, 0)], "one": [fetch_from(7, 0), fetch_from(0, 6)]}
    yield "fetch unknown", lambda _: fetch_request(unknown), versions
    yield "fetch twice", lambda _: fetch_request({"one": [fetch_from(0, 0), fetch_from(0, 4)]}), versions
    yield "fetch none", lambda _: fetch_request({}, max_wait=30_000), versions
    for epoch in (-1, 0, 1, 9):
        rows = [fetch_from(0, 0, current_leader_epoch=epoch)]
        yield f"fetch epoch {epoch}", lambda _, r=rows: fetch_request({"one": r}), (9, 11, 12)
    for topic, offset, epoch in (("one", 3, 0), ("one", 9, 0), ("one", 3, 5), ("empty", 0, 0), ("one", 6, 0)):
        rows = [fetch_from(0, offset, last_fetched_epoch=epoch)]
        yield f"fetch last {topic} {offset} {epoch}", lambda _, t=topic, r=rows: fetch_request({t: r}), (12,)
    yield "fetch by id", lambda side: fetch_request({side.ids["one"]: [fetch_from(0, 0), fetch_from(4, 0)]}), (13, 17)
    yield "fetch id", lambda _: fetch_request({b"\7" * 16: [fetch_from(0, 0)], ZERO_UUID: [fetch_from(0, 0)]}), (13, 17)
    for session in ((123, 1), (0, 1), (123, -1), (-1, 1)):
        yield f"fetch session {session}", lambda _, s=session: fetch_request({}, session=s), (7, 12, 13)


def offsets() -> Iterator[Case]:
    versions = tuple(range(1, 12))
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 1000, 1001, 1002, 2500, 3001, 3002, 2**62):
        yield f"offset {timestamp}", lambda _, t=timestamp: list_offsets("one", t), versions
    for timestamp in (-1, -2, -3, 0):
        yield f"offset empty {timestamp}", lambda _, t=timestamp: list_offsets("empty", t), (4, 7, 10)
    yield "offset unknown", lambda _: list_offsets("nowhere", -1), versions
    yield "offset epoch", lambda _: list_offsets("one", -1, current_leader_epoch=5), versions
    for topic in ("one", "empty", "nowhere"):
        for epoch in (0, 1, 5, -1, 2**31 - 1):
            yield f"epoch {topic} {epoch}", lambda _, t=topic, e=epoch: epoch_end(t, e), (2, 3, 4)
    yield "epoch current", lambda _: epoch_end("one", 0, current_leader_epoch=3), (2, 3, 4)
    for topic, offset in (("one", 1), ("one", 0), ("one", 99), ("one", -2), ("nowhere", 0), ("compacted", 0)):
        yield f"delete {topic} {offset}", lambda _, t=topic, o=offset: delete_records(t, o), (0, 1, 2)


def list_offsets(topic: str, timestamp: int, **fields: Any) -> Message:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])], timeout=5000
    )


def epoch_end(topic: str, epoch: int, **fields: Any) -> Message:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, **fields)
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def delete_records(topic: str, offset: int) -> Message:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout=5000)


def metadata() -> Iterator[Case]:
    versions = (0, 1, 4, 9, 10, 12, 13)
    illegal = ["one", "", ".", "..", "a b", "x" * 250, "ž"]
    topics = [MetadataRequestTopic(name=name) for name in illegal]
    yield "metadata names", lambda _: MetadataRequest(topics=topics), versions
    unknown = [MetadataRequestTopic(name="nowhere"), MetadataRequestTopic(name="one")] * 2
    yield "metadata unknown", lambda _: MetadataRequest(topics=unknown, allow_auto_topic_creation=False), (4, 9, 13)
    for name in ("one", "id"):
        yield (
            f"metadata {name}",
            lambda side, n=name: MetadataRequest(
                topics=[MetadataRequestTopic(name=None, topic_id=side.ids.get(n, b"\7" * 16))]
            ),
            (10, 11, 12, 13),
        )
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    yield "metadata allowed", lambda _: MetadataRequest(topics=[MetadataRequestTopic(name="one")], **asked), (8, 10)
    for kind in (1, 2, 3):
        yield f"cluster {kind}", lambda _, k=kind: DescribeClusterRequest(endpoint_type=k), (1, 2)
    for limit, cursor in ((2000, None), (1, None), (2, ("three", 1)), (0, None), (9, ("three", -1)), (9, ("zzz", 0)),
                          (9, ("aaa", 0))):  # fmt: skip
        yield f"partitions {limit} {cursor}", lambda _, li=limit, c=cursor: partitions_of(li, c), (0,)
    for name in ("", "a b", "-a"):
        yield (
            f"software {name}",
            lambda _, n=name: ApiVersionsRequest(client_software_name=n, client_software_version="1"),
            (3, 4),
        )


def partitions_of(limit: int, cursor: tuple[str, int] | None) -> Message:
    place = cursor and DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [TopicRequest(name=name) for name in ("one", "three", "nowhere")]
    return DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=place or None)


def admin() -> Iterator[Case]:
    for number, (partitions, factor) in enumerate([(-1, -1), (0, 1), (-2, 1), (1, 0), (1, 2), (2, 1), (10_001, 1)]):
        topic = CreatableTopic(name=f"new-{number}", num_partitions=partitions, replication_factor=factor)
        yield f"create {partitions} {factor}", lambda _, t=topic: create(t), (2, 4, 5, 7)
    for config in ({"nope": "1"}, {"retention.ms": "abc"}, {"retention.ms": None}, {"cleanup.policy": "bad"}):
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in config.items()]
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, configs=configs)
        yield f"create {config}", lambda _, t=topic: create(t), (2, 7)
    names = ["one", "", ".", "a b", "x" * 250, "twice", "twice", "three"]
    named = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    yield "create names", lambda _: create(*named), (2, 7)
    for assignments in ([(0, 0), (2, 0)], [(1, 0)], [(0, 98)], [(0, 0), (0, 0)], [(-1, 0)]):
        yield f"create {assignments}", lambda side, a=assignments: create(
            CreatableTopic(
                name="new", num_partitions=-1, replication_factor=-1,
                assignments=[
                    CreatableReplicaAssignment(partition_index=n, broker_ids=[side.broker_id + away]) for n, away in a
                ],
            )
        ), (2, 7)  # fmt: skip
    for count, lists in ((3, None), (1, None), (0, None), (5, None), (4, [[98]]), (4, [[]]), (5, [[0]])):
        yield f"grow {count} {lists}", lambda side, c=count, li=lists: grow(side, c, li), (0, 3)
    for state in ((None, ZERO_UUID), (None, b"\7" * 16), ("nowhere", ZERO_UUID), ("a b", ZERO_UUID)):
        topics = [DeleteTopicState(name=state[0], topic_id=state[1])]
        yield f"delete {state[0]}", lambda _, t=topics: DeleteTopicsRequest(topics=t, timeout=5000), (6,)
    yield (
        "delete both",
        lambda side: DeleteTopicsRequest(topics=[DeleteTopicState(name="one", topic_id=side.ids["one"])], timeout=5000),
        (6,),
    )
    yield "delete twice", lambda _: DeleteTopicsRequest(topic_names=["one", "one"], timeout=5000), (1, 5)
    for wanted in ([("one", [0, 5])], [("nowhere", [0])], []):
        rows = [DescribableLogDirTopic(topic=name, partitions=numbers) for name, numbers in wanted]
        yield f"dirs {wanted}", lambda _, r=rows: DescribeLogDirsRequest(topics=r), (1, 4, 5)
    for path in (None, "/nowhere", "relative", ""):
        for topic, numbers in (
            ("one", [0]),
            ("three", [0, 2, 3, -1]),
            ("nowhere", [0]),
            ("", [0]),
            ("one", []),
            ("x" * 213, [0]),
            ("x" * 214, [0]),
        ):
            yield (
                f"move {topic} {numbers} to {path}",
                lambda side, p=path, t=topic, n=numbers: move(side, p, t, n),
                (1, 2),
            )


def create(*topics: CreatableTopic) -> Message:
    return CreateTopicsRequest(topics=topics, timeout=5000, validate_only=True)


def move(side: Side, path: str | None, topic: str, numbers: list[int]) -> Message:
    """Move partitions to a log directory, None for the one that the broker has."""
    rows = [AlterReplicaLogDirTopic(name=topic, partitions=numbers)]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path or side.log_dir, topics=rows)])


def grow(side: Side, count: int, lists: list[list[int]] | None) -> Message:
    assignments = None if lists is None else [
        CreatePartitionsAssignment(broker_ids=[side.broker_id + away for away in ids]) for ids in lists
    ]  # fmt: skip
    topics = [CreatePartitionsTopic(name="three", count=count, assignments=assignments)]
    return CreatePartitionsRequest(topics=topics, timeout=5000, validate_only=True)


def configs() -> Iterator[Case]:
    for kind, name in ((2, "one"), (2, "nowhere"), (2, "a b"), (4, "77"), (4, "abc"), (0, "x"), (3, "x"), (64, "x"),
                       (32, "g"), (32, "")):  # fmt: skip
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        yield f"describe {kind} {name}", lambda _, r=resource: DescribeConfigsRequest(resources=[r]), (1, 4)
    one, null = [(2, "one")], None
    for changes, resources in (
        ([("retention.ms", 0, "5000")], one), ([("retention.ms", 1, null)], one), ([("retention.ms", 2, "1")], one),
        ([("cleanup.policy", 2, "compact")], one), ([("cleanup.policy", 2, "bad")], one),
        ([("cleanup.policy", 3, "compact")], one), ([("retention.ms", 0, null)], one),
        ([("retention.ms", 0, "abc")], one), ([("nope", 0, "1")], one), ([("nope", 1, null)], one),
        ([("retention.ms", 0, "1")] * 2, one), ([("retention.ms", 0, "1")], [(2, "nowhere")]),
        ([("retention.ms", 0, "1")], [(2, "a b")]), ([("retention.ms", 0, "1")], one * 2),
        *(([(name, 0, value)], [(32, "g")]) for name, value in (
            ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "1"),
            ("consumer.session.timeout.ms", "99999"), ("consumer.heartbeat.interval.ms", "1"),
            ("consumer.heartbeat.interval.ms", null), ("consumer.assignment.interval.ms", "20000"),
            ("consumer.session.timeout.ms", "abc"), ("nope", "1"),
        )),
        ([("consumer.session.timeout.ms", 0, "50000")], [(32, "")]), ([("nope", 1, null)], [(32, "g")]),
        ([("consumer.session.timeout.ms", 2, "50000")], [(32, "g")]),
        ([("max.connections", 0, "1")], [(4, "77")]), ([("x", 0, "1")], [(0, "x")]), ([("x", 0, "1")], [(64, "x")]),
    ):  # fmt: skip
        yield f"alter {changes} {resources}", lambda _, c=changes, r=resources: increment(c, r), (0, 1)
    for config, resource in (
        ({"retention.ms": "1"}, (2, "one")), ({"retention.ms": null}, (2, "one")), ({"nope": "1"}, (2, "one")),
        ({}, (2, "nowhere")), ({}, (2, "a b")), ({}, (4, "77")), ({}, (3, "x")),
    ):  # fmt: skip
        yield f"replace {config} {resource}", lambda _, c=config, r=resource: replace(c, r), (0, 2)
    for kinds in ([99], [2, 99], [0], [-1], [16]):
        yield f"resources {kinds}", lambda _, k=kinds: ListConfigResourcesRequest(resource_types=k), (1,)


def increment(changes: Any, resources: Any) -> Message:
    rows = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        for kind, name in resources
    ]  # fmt: skip
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=rows, validate_only=True)


def replace(config: Any, resource: Any) -> Message:
    row = alter_configs.AlterConfigsResource(
        resource_type=resource[0],
        resource_name=resource[1],
        configs=[alter_configs.AlterableConfig(name=name, value=value) for name, value in config.items()],
    )
    return alter_configs.AlterConfigsRequest(resources=[row], validate_only=True)


def cluster() -> Iterator[Case]:
    for name, request, versions in cluster_requests.requests():
        yield name, lambda _, r=request: r, versions


@pytest.mark.parametrize("cases", [produces, large_produces, fetches, offsets, metadata, admin, configs, cluster])
def test_odd_requests_are_answered_like_kafka_answers_them(
    sides: tuple[Side, Side], cases: Callable[[], Iterator[Case]]
) -> None:
    ours, theirs = sides
    differing = []
    for name, request, versions in cases():
        for version in versions:
            mine, kafkas = ours.ask(request(ours), version), theirs.ask(request(theirs), version)
            if mine != kafkas:
                differing.append(f"{name} v{version}\n    Ottla {mine}\n    Kafka {kafkas}")
    assert not differing, "\n".join(differing)


@pytest.mark.parametrize("script", [*SCRIPTS, *CONSUMER_SCRIPTS], ids=lambda script: script.__name__)
def test_group_requests_are_answered_like_kafka_answers_them(sides: tuple[Side, Side], script: Script) -> None:
    mine, kafkas = (side.play(script) for side in sides)
    differing = [
        f"{label}\n    Ottla {answer}\n    Kafka {other}"
        for (label, answer), (_, other) in zip(mine, kafkas, strict=False)
        if answer != other
    ]
    assert not differing, "\n".join(differing)
    assert len(mine) == len(kafkas)
