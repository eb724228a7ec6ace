"""A cluster that lives in a dictionary, and a way to run commands against it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, Message

from ottla.admin.error_codes import failure_of
from ottla.admin.failure import Failure
from ottla.admin.topic_state import ConfigValue, OffsetFound, Outcome, PartitionState, TopicState
from ottla.cli import cluster as cluster_module
from ottla.cli.main import main
from ottla.client.protocol.metadata import Node
from ottla.model.records import Record
from ottla.model.types import TopicPartition


class FakeReader:
    """Hands out stored records of the assigned partitions, then their ends, then nothing more."""

    def __init__(self, records: Mapping[TopicPartition, list[Message]], properties: Mapping[str, Any]) -> None:
        self._records = records
        self.properties = properties
        self.paused: list[TopicPartition] = []
        self.closed = False
        self.starts: dict[TopicPartition, int] = {}
        self.reads = 0

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self.starts = dict(starts)

    def read(self, count_max: int, timeout_s: float) -> tuple[list[Message], dict[TopicPartition, int]]:
        self.reads += 1
        assert self.reads < 10, "nobody noticed that there is nothing more to read"
        found = []
        for name, start in self.starts.items():
            found += [m for m in self._records[name] if (m.offset() or 0) >= start]
            self.starts[name] = len(self._records[name])
        return found, dict(self.starts)

    def pause(self, name: TopicPartition) -> None:
        self.paused.append(name)

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class FakeWriter:
    """Stores what is sent, or fails it with `error`."""

    def __init__(self, cluster: FakeCluster, properties: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._undelivered: list[Callable[[], None]] = []
        self.properties = properties
        self.sent: list[dict[str, Any]] = []
        self.while_full: Callable[[], None] = lambda: None

    def send(self, topic: str, value: bytes | None, key: bytes | None = None, **rest: Any) -> None:
        if value is not None and len(value) > self._cluster.record_bytes_max:
            raise Failure("record is too large")
        on_delivery = rest.pop("on_delivery", None)
        self.sent.append({"topic": topic, "value": value, "key": key, **rest})
        partition = max(rest.get("partition", -1), 0)
        error = KafkaError(self._cluster.refusal_code, "not enough") if self._cluster.refuses else None
        message = self._cluster.store(topic, value, key, partition=partition) if error is None else Message(topic=topic)
        if on_delivery is not None:
            self._undelivered.append(lambda: on_delivery(error, message))

    def warm_up(self, topic: str, timeout_s: float) -> None:
        pass

    def poll(self, timeout_s: float) -> None:
        while self._undelivered:
            self._undelivered.pop(0)()

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return 0


class FakeCluster:
    """What `ottla.cli.cluster.ClusterClient` does, in memory."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.records: dict[TopicPartition, list[Message]] = defaultdict(list)
        self.config: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        self.changes: list[tuple[Any, ...]] = []
        self.awaited: list[str] = []
        #: partitions without a leader
        self.offline: set[TopicPartition] = set()
        self.out_of_sync: set[TopicPartition] = set()
        self.refuses = False
        self.refusal_code: int = KafkaError.NOT_ENOUGH_REPLICAS
        self.record_bytes_max = 1_000_000
        self.readers: list[FakeReader] = []
        self.writers: list[FakeWriter] = []

    def add_topic(self, name: str, partitions: int = 1) -> None:
        self.known[name] = partitions

    def store(
        self, topic: str, value: bytes | None, key: bytes | None = None, *, partition: int = 0, time_ms: int = 1000,
        headers: list[tuple[str, Any]] | None = None,
    ) -> Message:  # fmt: skip
        records = self.records[TopicPartition(topic, partition)]
        message = Message(
            topic=topic, partition=partition, offset=len(records), key=key, value=value, headers=headers,
            timestamp=(1, time_ms), latency=0.004,
        )  # fmt: skip
        records.append(message)
        return message

    def brokers(self) -> list[Node]:
        return [Node(broker_id=1, host="127.0.0.1", port=9092)]

    def check_broker(self, broker_id: int) -> None:
        cluster_module.ClusterClient.check_broker(self, broker_id)  # type: ignore[arg-type]

    def topics(self, timeout_s: float | None = None) -> dict[str, TopicState]:
        return {name: self._state(name) for name in sorted(self.known)}

    def topic(self, name: str) -> TopicState:
        if name not in self.known:
            raise failure_of(KafkaError.UNKNOWN_TOPIC_OR_PART, name, topic=name)
        return self._state(name)

    def describe_topics(self, names: Sequence[str]) -> list[TopicState]:
        return [self.topic(name) for name in names]

    def find_offsets(
        self, partitions: Iterable[TopicPartition], at: str | int, *, committed: bool = False
    ) -> dict[TopicPartition, OffsetFound]:
        return {name: OffsetFound(offset=self._find(name, at), timestamp=None, leader_epoch=3) for name in partitions}

    def read_records(self, name: TopicPartition, start: int, end: int, *, committed: bool = True) -> list[Record]:
        return [
            Record(offset=message.offset() or 0, key=_bytes(message.key()), value=_bytes(message.value()))
            for message in self.records[name][start:end]
        ]

    def create_topics(
        self,
        names: Sequence[str],
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> list[Outcome]:
        outcomes = []
        for name in names:
            exists = failure_of(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {name}", topic=name)
            failure = exists if name in self.known else None
            outcomes.append(Outcome(name=name, failure=failure))
        self.changes.append(("create", list(names), partitions, replication_factor, dict(config), dry_run))
        return outcomes

    def await_topics(self, names: Sequence[str]) -> None:
        self.awaited = list(names)

    def delete_topics(self, names: Sequence[str]) -> list[Outcome]:
        self.changes.append(("delete", list(names)))
        return [Outcome(name=name, failure=None) for name in names]

    def create_partitions(self, name: str, total: int, *, dry_run: bool) -> None:
        self.changes.append(("partitions", name, total, dry_run))

    def describe_config(self, scope: str, name: str) -> list[ConfigValue]:
        default = ConfigValue(
            name="log.retention.ms", value="9", source="DEFAULT_CONFIG", is_default=True, is_read_only=False,
            is_sensitive=False,
        )  # fmt: skip
        return [
            ConfigValue(
                name="cleanup.policy", value="delete", source="DEFAULT_CONFIG", is_default=True, is_read_only=False,
                is_sensitive=False,
            ),
            ConfigValue(
                name="retention.ms", value="5", source="DYNAMIC_TOPIC_CONFIG", is_default=False, is_read_only=False,
                is_sensitive=False, synonyms=(default,),
            ),
        ]  # fmt: skip

    def alter_config(
        self, scope: str, name: str, values: Mapping[str, str], deleted: Iterable[str], *, dry_run: bool
    ) -> None:
        self.changes.append(("config", scope, name, dict(values), list(deleted), dry_run))

    def writer(self, properties: Mapping[str, Any]) -> FakeWriter:
        self.writers.append(FakeWriter(self, properties))
        return self.writers[-1]

    def reader(self, properties: Mapping[str, Any]) -> FakeReader:
        self.readers.append(FakeReader(self.records, properties))
        return self.readers[-1]

    def _state(self, name: str) -> TopicState:
        partitions = tuple(
            PartitionState(
                name=TopicPartition(name, number),
                leader=None if TopicPartition(name, number) in self.offline else 1,
                replicas=(1,),
                isr=() if TopicPartition(name, number) in self.out_of_sync else (1,),
            )
            for number in range(self.known[name])
        )
        return TopicState(name=name, topic_id="AAAA", internal=name.startswith("__"), partitions=partitions)

    def _find(self, name: TopicPartition, at: str | int) -> int | None:
        records = self.records[name]
        if at == "earliest":
            return 0
        if isinstance(at, int):
            return next((m.offset() for m in records if m.timestamp()[1] >= at), None)
        return len(records)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster that every command finds, whatever address it is given."""
    fake = FakeCluster()
    monkeypatch.setattr(cluster_module, "connect", lambda connection: fake)
    return fake


@pytest.fixture
def ottla(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line with these words."""
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)

    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, words, input=stdin, prog_name="ottla")

    return run


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
