"""What is measured, with which settings, and what Ottla has to reach; one table for both brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KB, MB = 1 << 10, 1 << 20
FETCH_BYTES = MB
CONSUME_LOG_BYTES = 512 * MB
E2E_RECORDS_PER_SECOND = 10_000
MANY_PARTITIONS = 1_000
TRANSACTION_RECORDS = 10_000
ABORT_EVERY = 10

Bound = Literal["ratio >=", "ratio <=", "ottla <="]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on Ottla's median of one metric: against Kafka's median (ratio), or on its own."""

    metric: str
    bound: Bound
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    title: str
    kind: Literal[
        "produce", "consume", "e2e", "client", "client-transactions", "footprint", "loaded", "transactions", "commit",
        "committed", "many",
    ]  # fmt: skip
    targets: tuple[Target, ...] = ()
    # What is sent. batch_bytes 0 means one record per request.
    record_bytes: int = 100
    batch_bytes: int = 0
    #: instead of batch_bytes
    batch_records: int = 1
    lz4: bool = False
    acks: int = 1
    #: the log is on disk before the answer: Ottla's default for acks=all, flush.messages=1 on Kafka
    fsync: bool = False
    # How it is sent.
    connections: int = 1
    depth: int = 1
    partitions: int = 1
    #: records per second of an end-to-end measurement
    rate: int = E2E_RECORDS_PER_SECOND
    #: 1: AddPartitionsToTxn and a fixed epoch (older clients); 2: implicit partitions, a new epoch each time (KIP-890)
    transaction_version: int = 2
    # What exists before a footprint is taken.
    existing_partitions: int = 0


def _faster(times: float) -> Target:
    return Target("records_per_second", "ratio >=", times)


def _batched(
    name: str,
    title: str,
    *,
    batch_bytes: int,
    record_bytes: int = 100,
    lz4: bool = False,
    acks: int = 1,
    fsync: bool = False,
) -> Scenario:
    large = batch_bytes >= MB
    # The disk bounds the throughput of 1 MB batches on both brokers, so CPU time per MB is the comparison that counts.
    disk_bound = (_faster(1.0), Target("cpu_us_per_mb", "ratio <=", 0.67))
    return Scenario(
        name=name,
        title=title,
        kind="produce",
        targets=disk_bound if large else (_faster(2.0),),
        record_bytes=record_bytes,
        batch_bytes=batch_bytes,
        lz4=lz4,
        acks=acks,
        fsync=fsync,
        connections=4,
        # Five times 1 MB in flight per connection would measure the socket buffers.
        depth=2 if large else 5,
        partitions=4,
    )


def _transactions(
    name: str, title: str, *, fsync: bool, record_bytes: int = 100, transaction_version: int = 2
) -> Scenario:
    return Scenario(
        name=name,
        title=f"10,000-record transactions, {title}, {'fsync' if fsync else 'page cache'}",
        kind="transactions",
        targets=(_faster(1.0), Target("cost_percent", "ottla <=", 15.0)),
        record_bytes=record_bytes,
        batch_bytes=16 * KB,
        acks=-1,
        fsync=fsync,
        connections=4,
        depth=5,
        partitions=4,
        transaction_version=transaction_version,
    )


def _commit(name: str, title: str, *, fsync: bool, batch_records: int = 1, partitions: int = 1) -> Scenario:
    return Scenario(
        name=name,
        title=f"{title}, {'fsync' if fsync else 'page cache'}",
        kind="commit",
        targets=(Target("commit_p50_ms", "ratio <=", 1.0), Target("commit_p99_ms", "ratio <=", 1.0)),
        batch_records=batch_records,
        acks=-1,
        fsync=fsync,
        partitions=partitions,
    )


def _client_transactions(name: str, *, fsync: bool) -> Scenario:
    return Scenario(
        name=name,
        title=f"confluent-kafka, 10,000-record transactions, {'fsync' if fsync else 'page cache'}",
        kind="client-transactions",
        targets=(_faster(2.0), Target("commit_p99_ms", "ratio <=", 0.5)),
        acks=-1,
        fsync=fsync,
        partitions=4,
    )


CPU_PER_RECORD = Target("us_per_request", "ottla <=", 15.0)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="footprint",
        title="fresh data directory",
        kind="footprint",
        targets=(
            Target("start_seconds", "ratio <=", 0.2),
            Target("idle_mb", "ratio <=", 0.2),
            Target("idle_cpu_percent", "ottla <=", 1.0),
        ),
    ),
    Scenario(
        name="footprint-1000-partitions",
        title="1,000 partitions",
        kind="footprint",
        existing_partitions=MANY_PARTITIONS,
        targets=(
            Target("start_seconds", "ratio <=", 0.2),
            Target("idle_mb", "ratio <=", 0.2),
            Target("idle_cpu_percent", "ottla <=", 1.0),
        ),
    ),
    _batched("produce-100b-16k", "produce 100 B records, 16 KB batches", batch_bytes=16 * KB),
    _batched("produce-1k-16k", "produce 1 KB records, 16 KB batches", batch_bytes=16 * KB, record_bytes=KB),
    _batched("produce-100b-16k-lz4", "produce 100 B records, 16 KB batches, lz4", batch_bytes=16 * KB, lz4=True),
    _batched(
        "produce-1k-16k-lz4",
        "produce 1 KB records, 16 KB batches, lz4",
        batch_bytes=16 * KB,
        record_bytes=KB,
        lz4=True,
    ),
    _batched("produce-100b-1m", "produce 100 B records, 1 MB batches", batch_bytes=MB),
    _batched("produce-1k-1m", "produce 1 KB records, 1 MB batches", batch_bytes=MB, record_bytes=KB),
    _batched("all-100b-16k", "acks=all, page cache, 100 B, 16 KB batches", batch_bytes=16 * KB, acks=-1),
    _batched("all-100b-1m", "acks=all, page cache, 100 B, 1 MB batches", batch_bytes=MB, acks=-1),
    _batched("fsync-100b-16k", "acks=all, fsync, 100 B, 16 KB batches", batch_bytes=16 * KB, acks=-1, fsync=True),
    _batched("fsync-100b-1m", "acks=all, fsync, 100 B, 1 MB batches", batch_bytes=MB, acks=-1, fsync=True),
    Scenario(
        name="single-100x1",
        title="single records, 100 connections",
        kind="produce",
        connections=100,
        targets=(_faster(1.5), CPU_PER_RECORD),
    ),
    Scenario(
        name="single-1x5",
        title="single records, 1 connection, 5 in flight",
        kind="produce",
        depth=5,
        targets=(_faster(3.0), CPU_PER_RECORD),
    ),
    Scenario(name="single-1x1", title="single records, 1 connection, 1 in flight", kind="produce"),
    Scenario(
        name="single-fsync-100x1",
        title="single records, 100 connections, acks=all, fsync",
        kind="produce",
        connections=100,
        acks=-1,
        fsync=True,
        targets=(_faster(8.0),),
    ),
    Scenario(
        name="single-fsync-100x1-16p",
        title="the same over 16 partitions",
        kind="produce",
        connections=100,
        partitions=16,
        acks=-1,
        fsync=True,
    ),
    Scenario(
        name="consume-1",
        title="consume, 1 MB fetches from page cache, 1 connection",
        kind="consume",
        batch_bytes=16 * KB,
        targets=(_faster(1.0),),
    ),
    Scenario(
        name="consume-4",
        title="consume, 1 MB fetches from page cache, 4 connections",
        kind="consume",
        batch_bytes=16 * KB,
        connections=4,
        partitions=4,
        targets=(_faster(1.2),),
    ),
    _transactions("txn-fsync-100b", "100 B", fsync=True),
    _transactions("txn-fsync-100b-v1", "100 B, version 1", fsync=True, transaction_version=1),
    _transactions("txn-fsync-1k", "1 KB", fsync=True, record_bytes=KB),
    _transactions("txn-all-100b", "100 B", fsync=False),
    _transactions("txn-all-1k", "1 KB", fsync=False, record_bytes=KB),
    _commit("txn-commit-1-fsync", "1-record transactions", fsync=True),
    _commit("txn-commit-102-fsync", "102 records over 3 partitions", fsync=True, batch_records=34, partitions=3),
    _commit("txn-commit-1", "1-record transactions", fsync=False),
    _commit("txn-commit-102", "102 records over 3 partitions", fsync=False, batch_records=34, partitions=3),
    Scenario(
        name="txn-consume",
        title="1 MB fetches of transactions, one in ten aborted",
        kind="committed",
        batch_bytes=16 * KB,
        targets=(_faster(1.0),),
    ),
    Scenario(
        name="client-produce",
        title="confluent-kafka producer in Python, 100 B records",
        kind="client",
        partitions=4,
    ),
    _client_transactions("client-txn", fsync=False),
    _client_transactions("client-txn-fsync", fsync=True),
    Scenario(
        name="e2e",
        title="end to end at 10,000 records/s, acks=1",
        kind="e2e",
        depth=5,
        targets=(Target("p99_ms", "ratio <=", 1.0),),
    ),
)

#: Filled from all the others while they run: the memory a broker holds after work.
LOADED = Scenario(name="loaded", title="after the work above", kind="loaded")


# ---- Clusters of three brokers: replication factor 3, min.insync.replicas=2, acks=all

CLUSTER_MANY_PARTITIONS = 3_000


def _replicated(
    name: str,
    title: str,
    *,
    fsync: bool,
    batch_bytes: int = 0,
    client: bool = False,
    connections: int = 6,
    depth: int = 5,
) -> Scenario:
    return Scenario(
        name=f"cluster-{name}{'-fsync' if fsync else ''}",
        title=f"{title}, {'fsync' if fsync else 'page cache'}",
        kind="client" if client else "produce",
        targets=() if client else (_faster(2.0),),
        batch_bytes=batch_bytes,
        acks=-1,
        fsync=fsync,
        connections=connections,
        depth=depth,
        partitions=6,
    )


def _replicated_rows(*, fsync: bool) -> tuple[Scenario, ...]:
    return (
        _replicated("16k", "100 B records, 16 KB batches", batch_bytes=16 * KB, fsync=fsync),
        _replicated("1m", "100 B records, 1 MB batches", batch_bytes=MB, depth=2, connections=3, fsync=fsync),
        _replicated("single", "single records, 100 connections", connections=100, depth=1, fsync=fsync),
        _replicated("client-16k", "librdkafka, 100 B, 16 KB batches", batch_bytes=16 * KB, client=True, fsync=fsync),
        _replicated("client-1m", "librdkafka, 100 B, 1 MB batches", batch_bytes=MB, client=True, fsync=fsync),
        _replicated("client-single", "librdkafka, batches of one record", client=True, fsync=fsync),
        Scenario(
            name=f"cluster-e2e{'-fsync' if fsync else ''}",
            title=f"end to end at 1,000 records/s, {'fsync' if fsync else 'page cache'}",
            kind="e2e",
            targets=(Target("p99_ms", "ratio <=", 0.5),),
            rate=1_000,
            depth=5,
            acks=-1,
            fsync=fsync,
        ),
    )


CLUSTER_SCENARIOS: tuple[Scenario, ...] = (
    *_replicated_rows(fsync=False),
    *_replicated_rows(fsync=True),
    Scenario(
        name="cluster-memory",
        title="after the work above",
        kind="loaded",
        targets=(Target("brokers_mb", "ratio <=", 0.2),),
    ),
    Scenario(
        name="cluster-many",
        title="3,000 partitions",
        kind="many",
        existing_partitions=CLUSTER_MANY_PARTITIONS,
        targets=(Target("brokers_mb", "ratio <=", 0.2), Target("failover_seconds", "ottla <=", 2.0)),
    ),
)


# ---- Spark: two engines on two brokers

#: contestants: engine, how it is set, broker
OURS_OTTLA, OURS_KAFKA = "ottla@ottla", "ottla@kafka"
TUNED_KAFKA, TUNED_OTTLA = "connector-tuned@kafka", "connector-tuned@ottla"
DEFAULT_KAFKA, DEFAULT_OTTLA = "connector@kafka", "connector@ottla"
CONTESTANTS = (OURS_OTTLA, OURS_KAFKA, TUNED_OTTLA, TUNED_KAFKA, DEFAULT_OTTLA, DEFAULT_KAFKA)

SPARK_PARTITIONS = 2
SPARK_RECORDS, SPARK_RECORDS_QUICK = 2_000_000, 200_000
SPARK_KEY_BYTES, SPARK_VALUE_BYTES = 9, 100
FLOOR_RECORDS_PER_SECOND = 100
FLOOR_SECONDS, FLOOR_SECONDS_QUICK = 6.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    """What a Spark process is asked to do in one measurement."""

    kind: Literal["read", "write", "copy", "floor"]
    columns: Literal["value", "key-value", "all"] = "all"
    #: of Ottla's sink; the connector's is always at least once
    delivery: Literal["exactly-once", "at-least-once"] = "at-least-once"
    #: with kafka.max.poll.records=10000, which only the connector's reading knows
    tuned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRow:
    """One line of the tables: the same work for both engines, as each does it."""

    name: str
    title: str
    scenario: str
    ours: SparkWork
    connector: SparkWork
    #: None: there is nothing to tune
    tuned: SparkWork | None = None
    #: Ottla's source on Ottla against the connector on Kafka
    target: Target | None = None

    def work_of(self, contestant: str) -> SparkWork | None:
        engine = contestant.partition("@")[0]
        return {"ottla": self.ours, "connector": self.connector, "connector-tuned": self.tuned}[engine]


def _spark_read(name: str, title: str, columns: Literal["value", "all"]) -> SparkRow:
    work = SparkWork(kind="read", columns=columns)
    return SparkRow(
        name=name,
        title=title,
        scenario="spark-read",
        ours=work,
        connector=work,
        tuned=SparkWork(kind="read", columns=columns, tuned=True),
        target=_faster(1.5),
    )


SPARK_SCENARIOS = {
    "spark-read": "Spark: a topic read in one batch",
    "spark-write": "Spark: rows written to a topic",
    "spark-copy": "Spark: topic to topic as a stream",
    "spark-floor": "Spark: the shortest micro-batch",
}
SPARK_ROWS: tuple[SparkRow, ...] = (
    _spark_read("spark-read-value", "batch read, value only", "value"),
    _spark_read("spark-read-all", "batch read, all columns", "all"),
    SparkRow(
        name="spark-write-exactly-once",
        title="write, Ottla's exactly once",
        scenario="spark-write",
        ours=SparkWork(kind="write", delivery="exactly-once"),
        connector=SparkWork(kind="write"),
    ),
    SparkRow(
        name="spark-write-at-least-once",
        title="write, all at least once",
        scenario="spark-write",
        ours=SparkWork(kind="write"),
        connector=SparkWork(kind="write"),
    ),
    SparkRow(
        name="spark-copy",
        title="topic to topic, AvailableNow, Ottla's exactly once",
        scenario="spark-copy",
        ours=SparkWork(kind="copy", columns="key-value", delivery="exactly-once"),
        connector=SparkWork(kind="copy", columns="key-value"),
        tuned=SparkWork(kind="copy", columns="key-value", tuned=True),
        target=_faster(2.0),
    ),
    SparkRow(
        name="spark-floor",
        title="micro-batch floor, 100 records/s to noop",
        scenario="spark-floor",
        ours=SparkWork(kind="floor"),
        connector=SparkWork(kind="floor"),
        target=Target("p50_ms", "ratio <=", 1.0),
    ),
)
