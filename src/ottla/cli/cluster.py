"""The command line's one door to a cluster, and the only importer of confluent-kafka.

Verbs import this file when they run, never before: the client library is what makes a command slow to start.
Every error of the client leaves here as a `Failure` with its exit code.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import click
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    libversion,
)
from confluent_kafka import (
    KafkaError as KafkaError,
)
from confluent_kafka import (
    Message as Message,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from ottla.cli import interrupts, outages
from ottla.cli.connection import Connection, split_addresses
from ottla.cli.default_config import DefaultConfig
from ottla.cli.failure import Failure, NotFound, NotHealthy
from ottla.cli.group_state import GroupListing, GroupMember, GroupState
from ottla.cli.output import escape_controls

#: a connection attempt to one address gives up after this, whatever --timeout allows for the whole
_CONNECT_S_MAX = 3.0
_AWAIT_S = 0.05
#: limit for the metadata that explain why another request was not completed
_EXPLAIN_S_MAX = 5.0
#: longest call into librdkafka during which Ctrl-C is deferred
_CALL_S_MAX = 0.1
#: librdkafka writes its own log lines to stderr; a command line says things once, in its own words
_LOG_LEVEL_QUIET = "2"

_NOT_FOUND = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_PARTITION_NOT_FOUND = {KafkaError._UNKNOWN_PARTITION}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
}
_GROUP_ACTIVE = {KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID}
_COORDINATOR_AWAY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
#: what a client without the rights may not use
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster, or to write to the topic",
}
_UNSUPPORTED = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}

Scope = Literal["topic", "broker"]
Delivered = Callable[[KafkaError | None, Message], None]


class PartitionName(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A broker as the metadata names it."""

    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Who holds a partition."""

    partition: int
    #: None while there is no leader
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as the metadata describes it."""

    name: str
    topic_id: str | None
    internal: bool
    partitions: tuple[PartitionState, ...]

    @property
    def has_leaders(self) -> bool:
        return all(partition.leader is not None for partition in self.partitions)

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFound:
    """The answer to one offset lookup; None where the cluster knows none."""

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One setting of a topic or broker, with where its value comes from."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigValue, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one name among several."""

    name: str
    failure: Failure | None


def client_version() -> str:
    return str(libversion()[0])


def connect(connection: Connection) -> Cluster:
    """Open a cluster. Fails at once, and with the reason, when no bootstrap server accepts a connection."""
    if failure := _refused(connection):
        raise failure
    return Cluster(connection)


def _refused(connection: Connection) -> NotHealthy | None:
    """Return the failure of a cluster none of whose bootstrap servers accepts a connection; None if one does."""
    if "test.mock.num.brokers" in connection.properties:
        return None
    addresses = split_addresses(connection.bootstrap)
    refusals = {refusal(host, port, connection.timeout_s) for host, port in addresses}
    return None if None in refusals else unreachable(connection.bootstrap, "; ".join(sorted(map(str, refusals))))


def refusal(host: str, port: int, timeout_s: float) -> str | None:
    """Why nobody can connect to this address; None when somebody can."""
    try:
        # The name may have to be looked up, which Ctrl-C does not interrupt.
        interrupts.run_interruptibly(
            lambda: socket.create_connection((host, port), timeout=min(timeout_s, _CONNECT_S_MAX)).close()
        )
    except socket.gaierror as error:
        return f"{host} has no address: {error.strerror}"
    except TimeoutError:
        return "no answer to the connection attempt"
    except OSError as error:
        return str(error.strerror or error).lower()
    return None


def unreachable(bootstrap: str, reason: str) -> NotHealthy:
    return NotHealthy(
        f"no broker reachable at {bootstrap} ({reason}); start one with 'ottla broker', "
        "or name another with -b HOST:PORT"
    )


class Cluster:
    """A Kafka cluster, Ottla's or any other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: what librdkafka said about its connections, the only place where the cause of a timeout is named
        self._complaints: list[str] = []
        with self._failures("client"):
            self._admin = AdminClient(self._configuration(error_cb=self._on_complaint))

    # Metadata

    def check_broker(self, broker_id: int) -> None:
        """Raise `NotFound` if this broker is not in the cluster: requests to it would wait for it."""
        known = [node.broker_id for node in self.brokers()]
        if broker_id not in known:
            raise outages.unknown_broker(broker_id, known)

    def brokers(self) -> list[BrokerNode]:
        metadata = self._metadata()
        nodes = [BrokerNode(broker_id=b.id, host=b.host, port=b.port) for b in metadata.brokers.values()]
        return sorted(nodes, key=lambda node: node.broker_id)

    def topics(self, timeout_s: float | None = None) -> dict[str, TopicState]:
        """Every topic. Asking for all creates none, which asking for one by name could."""
        topics = {}
        for name, topic in sorted(self._metadata(timeout_s).topics.items()):
            partitions = [
                _partition_state(p.id, p.leader, p.replicas, p.isrs)
                for p in sorted(topic.partitions.values(), key=lambda p: p.id)
            ]
            # Metadata as the client shows it lacks the flag; the names are Kafka's convention.
            internal = name.startswith("__")
            topics[name] = TopicState(name=name, topic_id=None, internal=internal, partitions=tuple(partitions))
        return topics

    def topic(self, name: str) -> TopicState:
        found = self.topics().get(name)
        if found is None:
            raise _no_such_topic(name)
        return found

    def await_topics(self, names: Collection[str]) -> None:
        """Wait until the brokers tell clients of these topics: creating one ends before that on some."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            known = self.topics()
            missing = [name for name in names if name not in known or not known[name].has_leaders]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise NotHealthy(f"topic {missing[0]} was created but has no leader yet; see 'ottla topic describe'")
            time.sleep(_AWAIT_S)

    def describe_topics(self, names: Sequence[str]) -> list[TopicState]:
        with self._failures("topics"):
            futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout_s)
        states = []
        for name in names:
            with self._failures(f"topic {name}", topic=name):
                described = futures[name].result()
            partitions = [
                _partition_state(
                    p.id, p.leader.id if p.leader else -1, [n.id for n in p.replicas], [n.id for n in p.isr]
                )
                for p in sorted(described.partitions, key=lambda p: int(p.id))
            ]
            states.append(
                TopicState(
                    name=name,
                    topic_id=_url_safe(str(described.topic_id)),
                    internal=bool(described.is_internal),
                    partitions=tuple(partitions),
                )
            )
        return states

    def _metadata(self, timeout_s: float | None = None) -> Any:
        """Return brokers and topics. Raise NotHealthy if no broker answers within the time, or within --timeout."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return interrupts.run_interruptibly(lambda: self._admin.list_topics(timeout=limit_s))
        except KafkaException as exception:
            error = exception.args[0]
            raise self._silent(limit_s) if error.code() in _UNREACHABLE else failure_of(error, "metadata") from None

    # Offsets

    def find_offsets(
        self,
        partitions: Iterable[PartitionName],
        at: Literal["earliest", "latest", "max-timestamp"] | int,
        *,
        committed: bool = False,
    ) -> dict[PartitionName, OffsetFound]:
        """The offset of each partition at its start, its end, its newest timestamp, or a time in ms."""
        spec = OffsetSpec.for_timestamp(at) if isinstance(at, int) else _OFFSET_SPECS[at]
        asked = {TopicPartition(*name): spec for name in partitions}
        if not asked:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        with self._failures("offsets"):
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout_s)
        found = {}
        for partition, future in futures.items():
            with self._failures(f"{partition.topic}-{partition.partition}", topic=partition.topic):
                answer = future.result()
            found[PartitionName(partition.topic, partition.partition)] = OffsetFound(
                offset=_none_if_negative(answer.offset),
                timestamp=_none_if_negative(answer.timestamp),
                leader_epoch=_none_if_negative(answer.leader_epoch),
            )
        return dict(sorted(found.items()))

    # Groups

    def groups(self) -> tuple[list[GroupListing], list[Failure]]:
        """Return the consumer groups that were found, and why others may be missing.

        Groups of other kinds, as those of Kafka Connect, are not among them.
        """
        before = self.topics()
        with self._failures("groups"):
            found = self._admin.list_consumer_groups(request_timeout=self._timeout_s).result()
        # No broker reports the groups of a partition without a leader, and a leader may be lost or elected meanwhile.
        offline = outages.without_leader_at(outages.GROUPS_TOPIC, before, self.topics())
        failures: list[Failure] = [outages.incomplete_list("groups", outages.GROUPS_TOPIC, offline)] if offline else []
        failures += [failure_of(error.args[0], "the list is not complete") for error in found.errors]
        listings = [
            GroupListing(
                group_id=group.group_id,
                is_simple=group.is_simple_consumer_group,
                state=_group_state_name(group.state),
                group_type=group.type.name.lower(),
            )
            for group in found.valid
        ]
        return sorted(listings, key=lambda listing: listing.group_id), failures

    def describe_groups(self, names: Sequence[str]) -> list[GroupState]:
        """These groups; one that nobody knows is described too, and does not `exists`."""
        with self._failures("groups"):
            futures = self._admin.describe_consumer_groups(list(names), request_timeout=self._timeout_s)
        states = []
        for name in names:
            with self._failures(_group_subject(name), group=name):
                states.append(_group_state(futures[name].result()))
        return states

    def committed_offsets(self, group: str) -> dict[PartitionName, int]:
        """The committed offset of each partition that has one."""
        with self._failures(_group_subject(group), group=group):
            asked = [ConsumerGroupTopicPartitions(group)]
            futures = self._admin.list_consumer_group_offsets(asked, request_timeout=self._timeout_s)
            answered = futures[group].result().topic_partitions
        committed = {}
        for partition in answered:
            if partition.error is not None:
                raise failure_of(partition.error, f"{partition.topic}-{partition.partition}", partition.topic)
            if partition.offset >= 0:
                committed[PartitionName(partition.topic, partition.partition)] = partition.offset
        return dict(sorted(committed.items()))

    def commit_offsets(self, group: str, offsets: Mapping[PartitionName, int]) -> dict[PartitionName, Failure]:
        """Commit on behalf of a group without members; returns the partitions that were refused."""
        partitions = [TopicPartition(*name, offset) for name, offset in offsets.items()]
        subject = _group_subject(group)
        with self._failures(subject, group=group):
            asked = [ConsumerGroupTopicPartitions(group, partitions)]
            futures = self._admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout_s)
            answered = futures[group].result().topic_partitions
        return {
            PartitionName(one.topic, one.partition): failure_of(
                one.error, subject if one.error.code() in _GROUP_ACTIVE else f"{one.topic}-{one.partition}", one.topic
            )
            for one in answered
            if one.error is not None
        }

    def delete_groups(self, names: Sequence[str]) -> list[Outcome]:
        with self._failures("delete groups"):
            futures = self._admin.delete_consumer_groups(list(names), request_timeout=self._timeout_s)
        return [self._outcome(name, futures[name], _group_subject(name), group=name) for name in names]

    # Changes

    def create_topics(
        self,
        names: Sequence[str],
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> list[Outcome]:
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config))
            for name in names
        ]
        with self._failures("create topics"):
            futures = self._admin.create_topics(topics, validate_only=dry_run, **self._admin_timeouts)
        return [self._outcome(name, futures[name], f"topic {name}", topic=name) for name in names]

    def delete_topics(self, names: Sequence[str]) -> list[Outcome]:
        with self._failures("delete topics"):
            futures = self._admin.delete_topics(list(names), **self._admin_timeouts)
        return [self._outcome(name, futures[name], f"topic {name}", topic=name) for name in names]

    def create_partitions(self, name: str, total: int, *, dry_run: bool) -> None:
        with self._failures(f"topic {name}", topic=name):
            futures = self._admin.create_partitions(
                [NewPartitions(name, total)], validate_only=dry_run, **self._admin_timeouts
            )
            futures[name].result()

    def _outcome(
        self, name: str, future: Any, subject: str, topic: str | None = None, group: str | None = None
    ) -> Outcome:
        try:
            with self._failures(subject, topic, group):
                future.result()
        except Failure as failure:
            return Outcome(name=name, failure=failure)
        return Outcome(name=name, failure=None)

    # Configuration

    def describe_config(self, scope: Scope, name: str) -> list[ConfigValue]:
        resource = ConfigResource(_RESOURCE_TYPES[scope], name)
        with self._failures(f"{scope} {name}", topic=name if scope == "topic" else None):
            future = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
            entries = future.result()
        return [_config_value(entry) for _, entry in sorted(entries.items())]

    def alter_config(
        self, scope: Scope, name: str, values: Mapping[str, str], deleted: Iterable[str], *, dry_run: bool
    ) -> None:
        """Set and delete settings in one request, so that all of them change or none."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
        ]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in deleted]
        resource = ConfigResource(_RESOURCE_TYPES[scope], name, incremental_configs=entries)
        with self._failures(f"{scope} {name}", topic=name if scope == "topic" else None):
            futures = self._admin.incremental_alter_configs(
                [resource], validate_only=dry_run, request_timeout=self._timeout_s
            )
            futures[resource].result()

    def describe_broker_defaults(self) -> list[ConfigValue]:
        found = self._default_config().describe()
        return [
            ConfigValue(
                name=entry.name,
                value=entry.value,
                source=ConfigSource(entry.source).name,
                is_default=False,
                is_read_only=entry.is_read_only,
                is_sensitive=entry.is_sensitive,
            )
            for entry in sorted(found)
        ]

    def alter_broker_defaults(self, values: Mapping[str, str], deleted: Iterable[str], *, dry_run: bool) -> None:
        self._default_config().alter(values, deleted, dry_run=dry_run)

    def _default_config(self) -> DefaultConfig:
        protocol = self._connection.properties.get("security.protocol", "plaintext")
        if protocol.lower() != "plaintext":
            raise Failure("--broker-defaults works over PLAINTEXT only; name each broker with --broker ID")
        node = self.brokers()[0]
        return DefaultConfig(node.host, node.port, self._timeout_s)

    # Records

    def writer(self, properties: Mapping[str, str | int | float | bool]) -> Writer:
        """A producer with these properties; the user's own -X ones win."""
        with self._failures("producer"):
            configuration = self._configuration(error_cb=self._on_outage)
            return Writer(Producer({**configuration, **_unless_set(properties, self._connection)}))

    def reader(self, properties: Mapping[str, str | int | float | bool]) -> Reader:
        """A consumer outside any group, with these properties; the user's own -X ones win."""
        fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}
        defaults = {"group.id": "ottla-cli", "auto.offset.reset": "earliest", **properties}
        configuration = self._configuration(error_cb=self._on_outage)
        with self._failures("consumer"):
            return Reader(Consumer({**configuration, **_unless_set(defaults, self._connection), **fixed}))

    # Private

    @property
    def _timeout_s(self) -> float:
        return self._connection.timeout_s

    @property
    def _admin_timeouts(self) -> dict[str, float]:
        # The broker gives up first, so that its own words reach us instead of a bare timeout.
        return {"request_timeout": self._timeout_s, "operation_timeout": max(self._timeout_s * 0.9, 0.1)}

    def _configuration(self, **extra: Any) -> dict[str, Any]:
        properties = self._connection.properties
        quiet = {} if {"log_level", "debug"} & properties.keys() else {"log_level": _LOG_LEVEL_QUIET}
        bootstrap = {"bootstrap.servers": self._connection.bootstrap}
        return {"client.id": "ottla-cli", **quiet, **properties, **bootstrap, **extra}

    def _on_complaint(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaints.append(error.str())

    def _on_outage(self, error: KafkaError) -> None:
        # The client goes on trying for as long as it is asked to; the person should know why nothing happens.
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            click.echo(f"warning: lost the connection to {self._connection.bootstrap}, retrying", err=True)

    def _silent(self, limit_s: float) -> NotHealthy:
        """Return the failure of a cluster that answers no request within the limit."""
        if failure := _refused(self._connection):
            return failure
        with interrupts.deferred():
            self._admin.poll(0)
        cause = self._complaints[-1] if self._complaints else f"none within {limit_s:g} s"
        return NotHealthy(
            f"{self._connection.bootstrap} accepts connections but gives no Kafka answer ({cause}); "
            "check the port and -X security.protocol, or run 'ottla doctor'"
        )

    def _explain(self, subject: str, group: str | None) -> Failure:
        """Return why a request was not completed in time. Raise NotHealthy if the cluster answers no request at all."""
        topics = self.topics(min(self._timeout_s, _EXPLAIN_S_MAX))
        if group is not None:
            return outages.coordinator_away(subject, group, topics)
        return outages.not_completed(subject, self._timeout_s, self._complaints[-1] if self._complaints else None)

    @contextmanager
    def _failures(self, subject: str, topic: str | None = None, group: str | None = None) -> Iterator[None]:
        """Raise errors of the client as `Failure`; `topic` and `group` are what the request is about."""
        try:
            yield
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() in _UNREACHABLE or (group is not None and error.code() in _COORDINATOR_AWAY):
                raise self._explain(subject, group) from None
            raise failure_of(error, subject, topic) from None
        except (ValueError, TypeError) as error:
            # The client checks arguments itself, as how many partitions a new topic may have.
            raise Failure(f"{subject}: {error}") from None


class Writer:
    """A producer whose queue never overflows: `send` waits for room."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: called while `send` waits for room
        self.while_full: Callable[[], None] = lambda: None

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """Queue a record. Raises `Failure` when the client itself refuses it, as too large for one."""
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=on_delivery,
                    timestamp=timestamp,
                    headers=headers,
                )
            except BufferError:
                self.poll(0.1)
                self.while_full()
                continue
            except KafkaException as exception:
                raise failure_of(exception.args[0], topic, topic) from None
            return

    def warm_up(self, topic: str, timeout_s: float) -> None:
        """Learn where the topic is, so that the first record does not pay for it."""
        try:
            interrupts.run_interruptibly(lambda: self._producer.list_topics(topic, timeout_s))
        except KafkaException as exception:
            raise failure_of(exception.args[0], topic, topic) from None

    def poll(self, timeout_s: float) -> None:
        """Run the callbacks of records that were delivered or have failed. Waits at most 0.1 s for the first."""
        with interrupts.deferred(), _fatal_errors():
            self._producer.poll(min(timeout_s, _CALL_S_MAX))

    def flush(self, timeout_s: float) -> int:
        """Wait at most 0.1 s for the records that were not acknowledged yet, and return how many are left."""
        with interrupts.deferred(), _fatal_errors():
            return self._producer.flush(min(timeout_s, _CALL_S_MAX))


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Raise an error after which a producer cannot go on as `Failure`."""
    try:
        yield
    except KafkaException as exception:
        raise failure_of(exception.args[0], "the producer stops") from None


class Reader:
    """A consumer that reads assigned partitions and tells records from ends."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def assign(self, starts: Mapping[PartitionName, int]) -> None:
        self._consumer.assign([TopicPartition(*name, offset) for name, offset in starts.items()])

    def read(self, count_max: int, timeout_s: float) -> tuple[list[Message], dict[PartitionName, int]]:
        """Records that are there now, and the partitions at their end with the next offset of each.

        Waits for the first record only, so that a slow stream is passed on at once and a fast one in bulk.
        """
        with interrupts.deferred():
            first = self._consumer.poll(min(timeout_s, _CALL_S_MAX))
            if first is None:
                return [], {}
            messages = [first, *self._consumer.consume(count_max - 1, 0)] if count_max > 1 else [first]
        ends = {}
        has_errors = False
        for message in messages:
            error = message.error()
            if error is None:
                continue
            has_errors = True
            if _concerns_group(message):
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                subject = f"{message.topic()}-{message.partition()}" if message.topic() else "the cluster"
                raise failure_of(error, subject, message.topic())
            ends[PartitionName(str(message.topic()), _known(message.partition()))] = _known(message.offset())
        return ([message for message in messages if message.error() is None] if has_errors else messages), ends

    def pause(self, name: PartitionName) -> None:
        self._consumer.pause([TopicPartition(*name)])

    def close(self) -> None:
        self._consumer.close()


def failure_of(error: KafkaError, subject: str, topic: str | None = None) -> Failure:
    """A client error as a line that says what to do."""
    code, text = error.code(), error.str()
    if code in _NOT_FOUND and topic is not None:
        return _no_such_topic(topic)
    if code in _NOT_FOUND or code in _PARTITION_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla topic describe'")
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return Failure(f"{subject} already exists; pass --if-not-exists if that is fine")
    if code == KafkaError.GROUP_ID_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla group list'")
    if code in _GROUP_ACTIVE:
        return Failure(f"{subject} has active members; stop its consumers, then try again")
    if code in _COORDINATOR_AWAY:
        return NotHealthy(f"{subject}: {text}; try again in a moment")
    if code in _UNREACHABLE:
        return NotHealthy(f"{subject}: {text}; see 'ottla doctor'")
    if code == KafkaError.LEADER_NOT_AVAILABLE:
        return outages.no_leader(subject)
    if code in _REFUSED:
        return Failure(f"the broker refused this client: {text}; set security.* and sasl.* with -X")
    if code in _FORBIDDEN:
        what = _FORBIDDEN[code]
        return Failure(f"{subject}: {text}; the user needs an ACL for the {what}: 'ottla acl add --help' shows how")
    if code in _UNSUPPORTED:
        return Failure(f"the broker cannot do this: {text}")
    if code == KafkaError._INVALID_ARG and "configuration property" in text:
        raise click.UsageError(f"{text} (from -X or --command-config)", click.get_current_context())
    return Failure(f"{subject}: {text}")


_OFFSET_SPECS = {
    "earliest": OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
    "latest": OffsetSpec.latest(),  # type: ignore[no-untyped-call]
    "max-timestamp": OffsetSpec.max_timestamp(),  # type: ignore[no-untyped-call]
}
#: in Kafka's own words; the client has none for the states that only groups of type consumer know
_GROUP_STATES = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
_RESOURCE_TYPES = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER}


def _no_such_topic(name: str) -> NotFound:
    return NotFound(f"topic {name} does not exist; see 'ottla topic list', or 'ottla topic create {name}'")


def _partition_state(partition: int, leader: int, replicas: Sequence[int], isr: Sequence[int]) -> PartitionState:
    return PartitionState(
        partition=partition, leader=_none_if_negative(leader), replicas=tuple(replicas), isr=tuple(isr)
    )


def _group_subject(name: str) -> str:
    return f"group {escape_controls(name, keep='')}"


def _group_state(described: Any) -> GroupState:
    node = described.coordinator
    members = [
        GroupMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id or None,
            client_id=member.client_id,
            host=member.host,
            partitions=tuple(sorted(PartitionName(p.topic, p.partition) for p in member.assignment.topic_partitions)),
        )
        for member in described.members
    ]
    return GroupState(
        group_id=described.group_id,
        is_simple=described.is_simple_consumer_group,
        state=_group_state_name(described.state),
        group_type=described.type.name.lower(),
        assignor=described.partition_assignor or None,
        coordinator=BrokerNode(broker_id=node.id, host=node.host, port=node.port),
        members=tuple(sorted(members, key=lambda member: (member.client_id, member.member_id))),
    )


def _group_state_name(state: ConsumerGroupState) -> str:
    return _GROUP_STATES.get(state, "Unknown")


def _url_safe(topic_id: str) -> str:
    # Kafka prints ids in the alphabet that is safe in URLs, the client in the other.
    return topic_id.replace("+", "-").replace("/", "_")


def _config_value(entry: ConfigEntry) -> ConfigValue:
    # The client keeps one synonym per name, so a name that is set in two places shows the weaker one only.
    synonyms = sorted((entry.synonyms or {}).values(), key=lambda synonym: ConfigSource(synonym.source).value)
    return ConfigValue(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(entry.source).name,
        is_default=bool(entry.is_default),
        is_read_only=bool(entry.is_read_only),
        is_sensitive=bool(entry.is_sensitive),
        synonyms=tuple(_config_value(synonym) for synonym in synonyms),
    )


def _unless_set(defaults: Mapping[str, Any], connection: Connection) -> dict[str, Any]:
    return {key: value for key, value in defaults.items() if key not in connection.properties}


def _none_if_negative(number: int | None) -> int | None:
    return None if number is None or number < 0 else number


def _concerns_group(message: Message) -> bool:
    """Return whether this is an error of the consumer's group, which a reader of assigned partitions does not use.

    librdkafka wants a group.id and looks for its coordinator, also if it reads without a group.
    """
    error = message.error()
    codes = {KafkaError.GROUP_AUTHORIZATION_FAILED, *_COORDINATOR_AWAY}
    return error is not None and message.topic() is None and error.code() in codes


def _known(number: int | None) -> int:
    assert number is not None, "an end of partition names its partition and offset"
    return number
