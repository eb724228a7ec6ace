"""The client of a cluster: topics, offsets, groups, settings, and any other request.

Every error is raised as a `Failure`. Not thread safe. The methods that send requests about groups import them, because
most commands are about something else and run for a few milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar

from ottla.admin import config_requests, outages
from ottla.admin.config_requests import Change, Scope
from ottla.admin.error_codes import GROUP_ACTIVE, TryAgain, check, failure_of, no_such_topic, unreachable
from ottla.admin.failure import Failure, NotHealthy
from ottla.admin.topic_state import ConfigValue, OffsetFound, Outcome, PartitionState, TopicState
from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation, only_row
from ottla.client.connection import VERSION_MAX
from ottla.client.errors import (
    BrokerError,
    ClientError,
    ClusterUnreachable,
    ConnectionLost,
    PropertyRefused,
    TimedOut,
    Unreachable,
)
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.client.security import PROPERTIES
from ottla.model.errors import ErrorCode
from ottla.model.printable import shown
from ottla.model.types import TopicPartition, topic_id_text
from ottla.wire import Message as Request
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.metadata import MetadataResponse

if TYPE_CHECKING:
    from ottla.model.records import Record

if TYPE_CHECKING:
    from ottla.admin.group_state import GroupListing, GroupMember, GroupState

_CLIENT_ID = "ottla-admin"
#: pause before a retry
_RETRY_S = 0.1
_AWAIT_S = 0.05
#: limit for a metadata request that finds the reason why another request was not completed
_EXPLAIN_S_MAX = 5.0
#: the first version of CreateTopics in which -1 stands for the defaults of the broker
_CREATE_TOPICS_MIN = 4
#: later versions of DeleteTopics have another field for the names
_DELETE_TOPICS_MAX = 5
_MOMENTS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": -3}

_T = TypeVar("_T")


def is_client_property(name: str) -> bool:
    """Return whether `ottla.client` uses this property. Only librdkafka uses the others."""
    return name in PROPERTIES or name.startswith(("security.", "ssl.", "sasl."))


class PropertyFailure(Failure):
    """A property of the client is not valid."""


class AdminClient:
    """A Kafka cluster, Ottla's or any other. Connections are opened when they are first needed."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str],
        *,
        timeout_s: float,
        client_id: str = _CLIENT_ID,
        token: str = "",
        ended: threading.Event | None = None,
    ) -> None:
        """``token`` is that of a user, for a login by OAUTHBEARER. When ``ended`` is set, nothing is retried."""
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._protocol = "PLAINTEXT"
        with self._failures():
            self.cluster = Cluster(
                bootstrap,
                {name: value for name, value in properties.items() if is_client_property(name)},
                client_id=properties.get("client.id", client_id),
                timeout_s=timeout_s,
                token=token,
                ended=ended,
            )
        self._protocol = self.cluster.security.protocol

    def close(self) -> None:
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Requests

    def ask(self, node: Node, request: Request, version_min: int = 0, *, timeout_s: float | None = None) -> Any:
        """Return the reply of this broker, in the newest version from `version_min` on that both sides know."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self._call(lambda: self.cluster.ask(node, request, deadline=deadline, version_min=version_min))

    def ask_any(self, request: Request, version_min: int = 0) -> Any:
        """Return the reply of any broker that can be reached."""
        return self._call(lambda: self.cluster.ask_any(request, version_min=version_min))

    def ask_controller(
        self, subject: str, request: Request, version_min: int = 0, *, version_max: int = VERSION_MAX
    ) -> Any:
        """Send a request to the controller. Find the controller again if another broker has become it."""

        def attempt(deadline: float) -> Any:
            node = self.cluster.controller(deadline)
            answer = self.cluster.ask(
                node, request, deadline=deadline, version_min=version_min, version_max=version_max
            )
            rows = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
            if any(row.error_code == ErrorCode.NOT_CONTROLLER for row in rows):
                self.cluster.forget_controller()
                raise BrokerError(ErrorCode.NOT_CONTROLLER, subject)
            return answer

        return self._call(lambda: self.cluster.retry(subject, attempt), subject)

    def call(self, function: Callable[[Cluster], _T], subject: str = "") -> _T:
        """Return what a function of several requests returns. `subject` is what it is about, for error messages."""
        return self._call(lambda: function(self.cluster), subject)

    def retry_transient(self, request: Callable[[], _T]) -> _T:
        """Return what `request` returns. Repeat it while it raises TryAgain, for up to --timeout."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return request()
            except TryAgain:
                if time.monotonic() + _RETRY_S >= deadline:
                    raise
            time.sleep(_RETRY_S)

    # Metadata

    def metadata(self, topics: Iterable[str] | None = None, *, timeout_s: float | None = None) -> MetadataResponse:
        """Return brokers and topics: all, or those named. Raise NotFound if a named one does not exist."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        named = None if topics is None else list(topics)
        answer = self._call(lambda: self.cluster.metadata(named, time.monotonic() + limit_s))
        for topic in answer.topics:
            # In a list of all topics, one that is being deleted is not an error.
            if named is not None:
                check(topic.error_code, f"topic {shown(topic.name or '')}")
        return answer

    def brokers(self) -> list[Node]:
        return sorted(nodes_of(self.metadata([])).values())

    def check_broker(self, broker_id: int) -> None:
        """Raise `NotFound` if this broker is not in the cluster: requests to it would wait for it."""
        known = [node.broker_id for node in self.brokers()]
        if broker_id not in known:
            raise outages.unknown_broker(broker_id, known)

    def coordinators(self, kind: CoordinatorType, keys: Iterable[str]) -> dict[str, Node]:
        """Return the coordinator of each of these groups or transactional ids."""
        return self._call(lambda: self.cluster.coordinators(kind, keys, time.monotonic() + self.timeout_s))

    # Topics

    def topics(self, timeout_s: float | None = None) -> dict[str, TopicState]:
        """Return all topics by name."""
        rows = sorted(self.metadata(timeout_s=timeout_s).topics, key=lambda row: row.name or "")
        # By convention, and not by the flag of the broker: names that start with two underscores are internal.
        return {row.name or "": topic_state_of(row, internal=(row.name or "").startswith("__")) for row in rows}

    def topic(self, name: str) -> TopicState:
        """Return a topic. Raise NotFound."""
        found = self.topics().get(name)
        if found is None:
            raise no_such_topic(name)
        return found

    def describe_topics(self, names: Sequence[str]) -> list[TopicState]:
        """Return these topics. Raise NotFound."""
        rows = {row.name: row for row in self._call(lambda: self._named(names)).topics}
        for name in names:
            check(rows[name].error_code, f"topic {name}", topic=name)
        return [topic_state_of(rows[name], internal=rows[name].is_internal) for name in names]

    def _named(self, names: Sequence[str]) -> MetadataResponse:
        return self.cluster.metadata(names, time.monotonic() + self.timeout_s)

    def await_topics(self, names: Collection[str]) -> None:
        """Wait until the metadata has leaders for these topics: some brokers complete CreateTopics before that."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            known = self.topics()
            missing = [name for name in names if name not in known or not known[name].has_leaders]
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise NotHealthy(f"topic {missing[0]} was created but has no leader yet; see 'ottla topic describe'")
            time.sleep(_AWAIT_S)

    def create_topics(
        self,
        names: Sequence[str],
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        *,
        dry_run: bool,
    ) -> list[Outcome]:
        """Create topics with the same partitions, replicas and settings; -1 stands for the default of the brokers."""
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, configs=configs)
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics, timeout=self._broker_timeout_ms, validate_only=dry_run)
        rows = self.ask_controller("create topics", request, _CREATE_TOPICS_MIN).topics
        return _outcomes(names, {row.name: (row.error_code, row.error_message) for row in rows})

    def delete_topics(self, names: Sequence[str]) -> list[Outcome]:
        request = DeleteTopicsRequest(topic_names=list(names), timeout=self._broker_timeout_ms)
        rows = self.ask_controller("delete topics", request, version_max=_DELETE_TOPICS_MAX).responses
        return _outcomes(names, {row.name: (row.error_code, row.error_message) for row in rows})

    def create_partitions(self, name: str, total: int, *, dry_run: bool) -> None:
        topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout=self._broker_timeout_ms, validate_only=dry_run)
        row = self._only_row(self.ask_controller(f"topic {name}", request).results)
        check(row.error_code, f"topic {name}", row.error_message, topic=name)

    # Offsets

    def find_offsets(
        self,
        partitions: Iterable[TopicPartition],
        at: Literal["earliest", "latest", "max-timestamp"] | int,
        *,
        committed: bool = False,
    ) -> dict[TopicPartition, OffsetFound]:
        """Return the offset of each partition at its start, its end, its newest timestamp, or a time in ms."""
        wanted = dict.fromkeys(partitions, at if isinstance(at, int) else _MOMENTS[at])
        if not wanted:
            return {}
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        # A single partition is named in error messages.
        subject = str(next(iter(wanted))) if len(wanted) == 1 else "offsets"
        rows = self._call(lambda: self.cluster.list_offset_rows(wanted, isolation=isolation), subject)
        return {
            name: OffsetFound(
                offset=_none_if_negative(row.offset),
                timestamp=_none_if_negative(row.timestamp),
                leader_epoch=_none_if_negative(row.leader_epoch),
            )
            for name, row in sorted(rows.items())
        }

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark of these partitions, as far as they exist."""
        wanted = set(partitions)

        def ask() -> dict[TopicPartition, tuple[int, int]]:
            topics = self.cluster.topics({tp.topic for tp in wanted})
            existing = [tp for tp in wanted if tp.topic in topics and tp.partition < topics[tp.topic].partitions]
            starts, ends = (
                self.cluster.list_offsets(dict.fromkeys(existing, time_ms), isolation=Isolation.READ_UNCOMMITTED)
                for time_ms in (EARLIEST, LATEST)
            )
            return {tp: (starts[tp].offset, ends[tp].offset) for tp in existing}

        return self._call(ask)

    # Records

    def append_batch(self, name: TopicPartition, batch: bytes) -> int:
        """Append a batch, wait until all in-sync replicas have it, and return its first offset."""
        return self._call(lambda: self.cluster.produce(name, batch), str(name))

    def read_values(self, name: TopicPartition, start: int, end: int) -> list[bytes | None]:
        """Return the values of the committed records from one offset up to, not including, another one."""
        return [record.value for record in self.read_records(name, start, end)]

    def read_records(self, name: TopicPartition, start: int, end: int, *, committed: bool = True) -> list[Record]:
        """Return the records from one offset up to, not including, another one; all of them or the committed ones."""
        # Most commands read no records, and the codecs take longer to import than such a command runs.
        from ottla.client.batches import data_batches
        from ottla.client.fetching import PartitionReader
        from ottla.model.records import iterate_records

        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED

        def read() -> list[Record]:
            aborted: dict[int, int] = {}
            found: list[Record] = []
            with PartitionReader(self.cluster, name, start, end, isolation=isolation) as reader:
                for fetched in reader:
                    for _, batch in data_batches(fetched, aborted):
                        found += [each for each in iterate_records(batch) if start <= each.offset < end]
            return found

        return self._call(read, str(name))

    # Groups

    def groups(self, *, of_all_kinds: bool = False) -> tuple[list[GroupListing], list[Failure]]:
        """Return the consumer groups, and the reasons why the list may not be complete.

        With `of_all_kinds`, groups of other kinds, such as share groups and those of Kafka Connect, are among them.
        """
        from ottla.admin import group_requests

        before = self._topic_of_groups()
        found: dict[str, GroupListing] = {}
        refused: list[Failure] = []
        for node in self.brokers():
            try:
                answer = self.ask(node, ListGroupsRequest())
                check(answer.error_code, "the list is not complete")
            except Failure as failure:
                refused.append(failure)
                continue
            listings = map(group_requests.listing, answer.groups)
            found |= {each.group_id: each for each in listings if of_all_kinds or each.is_of_consumers}
        # No broker reports the groups of a partition without a leader, and a leader may be lost or elected meanwhile.
        offline = outages.without_leader_at(outages.GROUPS_TOPIC, before, self._topic_of_groups())
        failures: list[Failure] = [outages.incomplete_list("groups", outages.GROUPS_TOPIC, offline)] if offline else []
        return [found[name] for name in sorted(found)], failures + refused

    def _topic_of_groups(self) -> dict[str, TopicState]:
        """Return the topic of groups by its name, if it exists. All topics would be many more."""
        rows = self._call(lambda: self._named([outages.GROUPS_TOPIC])).topics
        return {row.name or "": topic_state_of(row, internal=True) for row in rows if not row.error_code}

    def describe_groups(self, names: Sequence[str]) -> list[GroupState]:
        """Return a state for each name, with `exists` false if there is no such group."""
        from ottla.admin import group_requests

        return [self._at_coordinator(name, group_requests.describe) for name in names]

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition that has one."""
        from ottla.admin import group_requests

        return self._at_coordinator(group, group_requests.committed)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Failure]:
        """Commit offsets of a group without members. Return the failures of the partitions that were refused."""
        from ottla.admin import group_requests

        codes = self._at_coordinator(group, lambda cluster, name: group_requests.commit(cluster, name, offsets))
        return {name: _offset_failure(code, group, name) for name, code in codes.items()}

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Failure]:
        """Delete committed offsets of a group. Return the failures of the partitions that were refused."""
        from ottla.admin import group_requests

        codes = self._at_coordinator(
            group, lambda cluster, name: group_requests.delete_offsets(cluster, name, partitions)
        )
        return {name: _offset_failure(code, group, name) for name, code in codes.items()}

    def remove_members(self, group: str, members: Sequence[GroupMember]) -> dict[str, Failure]:
        """Remove members of a group. Return the failures of those that were refused, by member id."""
        from ottla.admin import group_requests

        codes = self._at_coordinator(group, lambda cluster, name: group_requests.remove_members(cluster, name, members))
        return {
            member_id: failure_of(code, f"member {shown(member_id)} of group {shown(group)}")
            for member_id, code in codes.items()
        }

    def delete_groups(self, names: Sequence[str]) -> list[Outcome]:
        from ottla.admin import group_requests

        outcomes = []
        for name in names:
            failure = None
            try:
                self._at_coordinator(name, group_requests.delete)
            except Failure as raised:
                failure = raised
            outcomes.append(Outcome(name=name, failure=failure))
        return outcomes

    def _at_coordinator(self, group: str, request: Callable[[Cluster, str], _T]) -> _T:
        return self._call(lambda: request(self.cluster, group), f"group {shown(group)}", group=group)

    # Settings

    def describe_config(self, scope: Scope, name: str) -> list[ConfigValue]:
        """Return the settings of a topic or a broker; an empty name stands for the settings that all brokers share."""
        request = config_requests.describe_request(scope, [name], with_sources=True)
        row = self._only_row(self._ask_owner(scope, name, request, config_requests.SOURCES_MIN).results)
        config_requests.check_row(scope, row)
        return config_requests.values_of(row)

    def topic_values(self, topics: Iterable[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the values of these settings by topic and name. A deleted topic, or an empty value, is absent."""
        found = {}
        for names in config_requests.parts(sorted(set(topics))):
            for row in self.ask_any(config_requests.describe_request("topic", names, keys)).results:
                if not row.error_code:
                    found[row.resource_name] = {entry.name: entry.value for entry in row.configs if entry.value}
        return found

    def alter_config(
        self, scope: Scope, name: str, values: Mapping[str, str], deleted: Iterable[str], *, dry_run: bool = False
    ) -> None:
        """Set and delete settings in one request, so that all of them change or none."""
        changes: list[Change] = [*values.items(), *((key, None) for key in deleted)]
        self.alter_configs(scope, {name: changes}, dry_run=dry_run)

    def alter_configs(
        self, scope: Scope, changes: Mapping[str, Iterable[Change]], *, dry_run: bool = False, subject: str = ""
    ) -> None:
        """Change settings of topics, or of one broker. Errors begin with `subject`."""
        for names in config_requests.parts(list(changes)):
            request = config_requests.alter_request(scope, {name: changes[name] for name in names}, dry_run=dry_run)
            rows = self._ask_owner(scope, names[0], request).responses
            for row in rows if len(names) > 1 else [self._only_row(rows)]:
                config_requests.check_row(scope, row, subject)

    def _ask_owner(self, scope: Scope, name: str, request: Request, version_min: int = 0) -> Any:
        """Ask the broker whose settings are meant; any broker for those of topics and of all brokers."""
        if scope == "broker" and name:
            node = next(node for node in self.brokers() if node.broker_id == int(name))
            return self.ask(node, request, version_min)
        return self.ask_any(request, version_min)

    # Private

    @property
    def _broker_timeout_ms(self) -> int:
        # The broker gives up first, so that its error is reported and not a timeout of this client.
        return int(max(self.timeout_s * 0.9, 0.1) * 1000)

    def _call(self, function: Callable[[], _T], subject: str = "", *, group: str | None = None) -> _T:
        with self._failures(subject, group):
            return self._run(function)

    def _run(self, function: Callable[[], _T]) -> _T:
        """Return what a blocking function returns. A command replaces this, so that Ctrl-C does not wait for it."""
        return function()

    def _only_row(self, rows: Sequence[Any]) -> Any:
        """Return the row of a reply to a request about one object. Raise NotHealthy if there are none or several."""
        with self._failures():
            return only_row(rows, f"the cluster at {self.bootstrap}")

    @contextmanager
    def _failures(self, subject: str = "", group: str | None = None) -> Iterator[None]:
        """Raise errors of the client as `Failure`. `subject` and `group` are what the request is about."""
        try:
            yield
        except ClusterUnreachable as error:
            raise unreachable(self.bootstrap, error.reason) from None
        except (Unreachable, ConnectionLost, TimedOut) as error:
            self._fail_without_answer(error, subject, group)
        except BrokerError as error:
            raise failure_of(error.code, subject or shown(error.subject), error.text) from None
        except PropertyRefused as error:
            raise PropertyFailure(shown(str(error))) from None
        except ClientError as error:
            raise Failure(shown(str(error))) from None
        except ValueError as error:
            raise Failure(f"invalid request: {shown(str(error))}") from None

    def _fail_without_answer(
        self, error: Unreachable | ConnectionLost | TimedOut, subject: str, group: str | None
    ) -> NoReturn:
        """Raise why a request was not completed. With a subject, look in the metadata for the cause."""
        if subject:
            # Raises NotHealthy if the cluster answers no request at all.
            topics = self.topics(min(self.timeout_s, _EXPLAIN_S_MAX))
            if group is not None:
                raise outages.coordinator_unavailable(subject, group, topics) from None
            cause = error.__cause__ if isinstance(error, TimedOut) else None
            if isinstance(cause, BrokerError):
                raise failure_of(cause.code, shown(cause.subject), cause.text) from None
            raise outages.not_completed(subject, self.timeout_s, shown(str(error))) from None
        if isinstance(error, Unreachable):
            raise NotHealthy(f"{shown(error.where)} cannot be reached ({error.reason}); see 'ottla doctor'") from None
        if isinstance(error, ConnectionLost):
            raise NotHealthy(
                f"{shown(error.where)} accepts connections but gives no Kafka answer ({shown(error.reason)}); check "
                f"the port, and that its listener is {self._protocol} (-X security.protocol), or run 'ottla doctor'"
            ) from None
        raise NotHealthy(shown(str(error))) from None


def nodes_of(metadata: MetadataResponse) -> dict[int, Node]:
    return {row.node_id: Node(row.node_id, row.host, row.port) for row in metadata.brokers}


def topic_state_of(row: Any, *, internal: bool) -> TopicState:
    partitions = [
        PartitionState(
            name=TopicPartition(row.name or "", each.partition_index),
            leader=_none_if_negative(each.leader_id),
            replicas=tuple(each.replica_nodes),
            isr=tuple(each.isr_nodes),
        )
        for each in sorted(row.partitions, key=lambda each: each.partition_index)
    ]
    return TopicState(
        name=row.name or "",
        topic_id=topic_id_text(bytes(row.topic_id)),
        internal=internal,
        partitions=tuple(partitions),
    )


def _outcomes(names: Sequence[str], errors: Mapping[str, tuple[int, str | None]]) -> list[Outcome]:
    """Return the outcome of each topic, from its error code and text."""
    outcomes = []
    for name in names:
        code, text = errors.get(name, (ErrorCode.UNKNOWN_SERVER_ERROR, "the broker did not answer for this topic"))
        failure = failure_of(code, f"topic {name}", text, topic=name) if code else None
        outcomes.append(Outcome(name=name, failure=failure))
    return outcomes


def _offset_failure(code: int, group: str, name: TopicPartition) -> Failure:
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return Failure(
            f"{shown(str(name))}: consumers of group {shown(group)} are subscribed to the topic; stop them, then try "
            f"again, 'ottla group describe {shown(group)} --members' shows them"
        )
    return failure_of(code, f"group {shown(group)}" if code in GROUP_ACTIVE else shown(str(name)), topic=name.topic)


def _none_if_negative(number: int) -> int | None:
    return None if number < 0 else number
