"""What confluent-kafka has no call for, over `ottla.client`: one request, one answer, any broker.

Verbs import this file when they run, never before, as they do with `ottla.cli.cluster`. Whatever goes wrong leaves here
as a `Failure` with its exit code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from ottla.cli import interrupts
from ottla.cli.connection import Connection, split_addresses
from ottla.cli.failure import Failure, NotFound, NotHealthy
from ottla.cli.output import escape_controls
from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, ClientError, ClusterUnreachable, ConnectionLost, Unreachable, code_name
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.client.security import PROPERTIES
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_CLIENT_ID = "ottla-cli"
_AGAIN_S = 0.1
#: from here on a question about a topic does not create it
_METADATA_MIN = 4

#: codes that pass: the cluster is just deciding who is responsible, or that one is not ready yet
_PASSING = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
#: what a broker without this person's permission says; Ottla itself sends only one of them
_FORBIDDEN = {29: "topic", 30: "group", 31: "cluster", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transaction"}

_T = TypeVar("_T")


class TryAgain(NotHealthy):
    """The answer is no for now: asked again in a moment, it may be another."""


class WireClient:
    """Connections to the brokers of one cluster; each is opened when it is first asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._protocol = "PLAINTEXT"
        split_addresses(connection.bootstrap)
        # The other properties are librdkafka's own business.
        properties = {
            name: value
            for name, value in connection.properties.items()
            if name in PROPERTIES or name.startswith(("security.", "ssl.", "sasl."))
        }
        with self._failures():
            self._cluster = Cluster(
                connection.bootstrap, properties, client_id=_CLIENT_ID, timeout_s=connection.timeout_s
            )
        self._protocol = self._cluster.security.protocol

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Asking

    def ask(self, node: Node, request: Message, version_min: int = 0) -> Any:
        """The answer of this broker, in the newest version that both sides know and that is not below the least."""
        with self._failures():
            return interrupts.run_interruptibly(lambda: self._cluster.ask(node, request, version_min=version_min))

    def ask_any(self, request: Message, version_min: int = 0) -> Any:
        with self._failures():
            return interrupts.run_interruptibly(lambda: self._cluster.ask_any(request, version_min=version_min))

    def until_settled(self, question: Callable[[], _T]) -> _T:
        """Ask again while the answer is `TryAgain`, for as long as the person is willing to wait."""
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                return question()
            except TryAgain:
                if time.monotonic() + _AGAIN_S >= deadline:
                    raise
            time.sleep(_AGAIN_S)

    # Where things are

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers and topics: those named, which must exist, or all."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        metadata: MetadataResponse = self.ask_any(request, _METADATA_MIN)
        for topic in metadata.topics:
            # Among all topics one may be just going; only somebody who named it must hear of that.
            if named is not None:
                check(topic.error_code, f"topic {shown(topic.name or '')}")
        return metadata

    def brokers(self) -> list[Node]:
        return sorted(nodes_of(self.metadata([])).values())

    def coordinators(self, kind: CoordinatorType, keys: Iterable[str]) -> dict[str, Node]:
        """The broker that coordinates each of these groups or transactions."""
        with self._failures():
            deadline = time.monotonic() + self._connection.timeout_s
            return interrupts.run_interruptibly(lambda: self._cluster.coordinators(kind, keys, deadline))

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return log start offset and high watermark of these partitions, as far as they exist."""
        wanted = set(partitions)

        def ask() -> dict[TopicPartition, tuple[int, int]]:
            topics = self._cluster.topics({tp.topic for tp in wanted})
            existing = [tp for tp in wanted if tp.topic in topics and tp.partition < topics[tp.topic].partitions]
            starts, ends = (
                self._cluster.list_offsets(dict.fromkeys(existing, time_ms), isolation=Isolation.READ_UNCOMMITTED)
                for time_ms in (EARLIEST, LATEST)
            )
            return {tp: (starts[tp].offset, ends[tp].offset) for tp in existing}

        with self._failures():
            return interrupts.run_interruptibly(ask)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """What goes wrong in the client leaves as a line that says what to do at a terminal."""
        try:
            yield
        except ClusterUnreachable as error:
            _fail_unreachable(self._connection.bootstrap, error.reason)
        except Unreachable as error:
            raise NotHealthy(f"{shown(error.where)} cannot be reached ({error.reason}); see 'ottla doctor'") from None
        except ConnectionLost as error:
            raise NotHealthy(
                f"{shown(error.where)} accepts connections but gives no Kafka answer ({shown(error.reason)}); check "
                f"the port, and that its listener is {self._protocol}, or run 'ottla doctor'"
            ) from None
        except BrokerError as error:
            raise failure_of(error.code, shown(error.subject), error.text) from None
        except ClientError as error:
            raise Failure(shown(str(error))) from None
        except ValueError as error:
            raise Failure(f"invalid request: {shown(str(error))}") from None


def nodes_of(metadata: MetadataResponse) -> dict[int, Node]:
    return {row.node_id: Node(row.node_id, row.host, row.port) for row in metadata.brokers}


def check(code: int, subject: str, text: str | None = None) -> None:
    """Raise what an error code means for `subject`; 0 is no error."""
    if code:
        raise failure_of(code, subject, text)


def failure_of(code: int, subject: str, text: str | None = None) -> Failure:
    """An error code as a line that says what to do, with the broker's own text where it sent one."""
    name = code_name(code)
    said = f"{name}, {shown(text)}" if text else name
    if code in _PASSING:
        return TryAgain(f"{subject}: {said}; try again in a moment, or see 'ottla doctor'")
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFound(f"{subject} does not exist; see 'ottla topic list'")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla group list'")
    if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return NotFound(f"{subject} does not exist; see 'ottla txn list'")
    if code == ErrorCode.REQUEST_TIMED_OUT:
        return NotHealthy(f"{subject}: {said}; see 'ottla doctor'")
    if code in _FORBIDDEN:
        return Failure(f"{subject}: the cluster does not allow this client to do that ({_FORBIDDEN[code]} permission)")
    return Failure(f"{subject}: {said}")


def shown(name: str) -> str:
    """A name or text from the cluster may hold anything, terminal commands included; text stays text."""
    return escape_controls(name, keep="")


def _fail_unreachable(bootstrap: str, reason: str) -> NoReturn:
    # The words are those of the other client; loading it is slow, which somebody who waited for nothing can bear.
    from ottla.cli.cluster import unreachable

    raise unreachable(bootstrap, reason) from None
