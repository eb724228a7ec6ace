"""Sends batches to the leaders of their partitions.

A `ProduceStream` keeps several requests in flight to each broker. Every batch has a producer id and a sequence number,
so that a broker appends it once and in order, also if its request is repeated. After a retriable error, the stream
recovers:

    1 receive the replies that are on their way  2 wait  3 ask for the leaders  4 send all unacknowledged batches again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ottla.client.connection import BrokerConnection
from ottla.client.errors import FENCING_CODES, BrokerError, ClientError, ConnectionLost, Fenced
from ottla.client.protocol.metadata import Node
from ottla.client.retrying import ATTEMPT_S_MAX, Retry
from ottla.model.batch import (
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    SEQUENCES,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import ZERO_UUID
from ottla.wire.frame import Buffer
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.primitives import write_uvarint

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

PRODUCE_KEY: Final = 0
VERSIONS_ALL: Final = (3, 13)
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13
#: a broker remembers the last five batches of a producer: with more in flight it could not detect duplicates
IN_FLIGHT_MAX: Final = 5
#: a request is sent when its batches are this large together
REQUEST_BYTES: Final = 1 << 20
#: later versions of InitProducerId are for two-phase commits
INIT_PRODUCER_ID_MAX: Final = 5

_DUPLICATE_SEQUENCE_NUMBER: Final = 46
#: errors which mean that the leader, or the topic, has changed
_MOVED_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_ACKS_TIMEOUT: Final = Struct(">hi")
_CRC: Final = Struct(">I")
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_POSITION: Final = 43
_ATTRIBUTES_LOW_POSITION: Final = 22


class Producer(NamedTuple):
    """A producer id and its epoch. Brokers accept records of the newest epoch only."""

    id: int
    epoch: int


class _Batch:
    """A batch that no broker has acknowledged."""

    __slots__ = ("data", "tp")

    def __init__(self, tp: TopicPartition, data: bytearray) -> None:
        self.tp = tp
        self.data = data


class _Lane:
    """The batches and requests for one broker."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        #: the batches of the next request, at most one of each partition
        self.gathered: dict[TopicPartition, _Batch] = {}
        self.gathered_bytes = 0
        self.requests: deque[_Request] = deque()


class _Request(NamedTuple):
    """A request in flight: its batches by topic, as the reply names it, and partition."""

    batches: dict[tuple[str | bytes, int], _Batch]


def new_producer_id(cluster: Cluster) -> Producer:
    """Return an id for a producer without transactions."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout=0)

    def attempt(deadline: float) -> Producer:
        answer = cluster.ask_any(request, deadline=deadline)
        if answer.error_code:
            raise BrokerError(answer.error_code, "producer id")
        return Producer(answer.producer_id, answer.producer_epoch)

    return cluster.retry("producer id", attempt)


class ProduceStream:
    """Appends batches, each once and in the order of its partition. A context manager that flushes if no error occurs.

    After an exception the stream cannot be used any more. Batches that were not acknowledged may be in the log or not.
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: Producer,
        *,
        transactional_id: str | None = None,
        versions: tuple[int, int] = VERSIONS_ALL,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._transactional_id = transactional_id
        self._versions = versions
        self._sequences: dict[TopicPartition, int] = {}
        #: partitions that have acknowledged a batch of this producer id, so that their leaders know its sequences
        self._known_in: set[TopicPartition] = set()
        self._lanes: dict[Node, _Lane] = {}
        #: batches by partition, in the order of their sequence numbers
        self._unacknowledged: dict[TopicPartition, deque[_Batch]] = {}
        self._broken: ClientError | None = None

    def close(self) -> None:
        for lane in self._lanes.values():
            self._cluster.give_back(lane.connection)
        self._lanes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    @property
    def is_broken(self) -> bool:
        return self._broken is not None

    def continue_as(self, producer: Producer) -> None:
        """Send further batches as this producer. All batches must be acknowledged; a new producer counts from 0."""
        assert not self._unacknowledged, "batches of the old producer are under way"
        if producer.id != self._producer.id:
            self._known_in.clear()
        if producer != self._producer:
            self._producer = producer
            self._sequences.clear()

    def send(self, tp: TopicPartition, batch: bytes | bytearray) -> None:
        """Queue one batch. A bytearray is changed in place; the caller must not change it before `flush` returns."""
        if self._broken is not None:
            raise self._broken
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        self._sign(tp, data)
        pending = _Batch(tp, data)
        self._unacknowledged.setdefault(tp, deque()).append(pending)
        self._guarded(lambda retry: self._enqueue(pending, retry))

    def flush(self) -> None:
        """Wait until every batch is acknowledged."""
        if self._broken is not None:
            raise self._broken
        self._guarded(self._send_and_receive_all)

    def _sign(self, tp: TopicPartition, data: bytearray) -> None:
        header = check_batch(data)
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = (sequence + header.last_offset_delta + 1) % SEQUENCES
        _PRODUCER.pack_into(data, _PRODUCER_POSITION, self._producer.id, self._producer.epoch, sequence)
        if self._transactional_id is not None:
            data[_ATTRIBUTES_LOW_POSITION] |= TRANSACTIONAL
        _CRC.pack_into(data, CRC_POSITION, checksum(data))

    # Sending

    def _guarded(self, work: Callable[[Retry], None]) -> None:
        retry = Retry("records", self._cluster.timeout_s, ended=self._cluster.ended)
        try:
            try:
                work(retry)
            except ClientError as error:
                self._recover(error, retry)
        except ClientError as error:
            self._broken = error
            raise

    def _recover(self, error: ClientError, retry: Retry) -> None:
        while True:
            if not error.retriable:
                raise error
            left = self._count()
            self._take_answers(retry)
            if self._count() < left:
                retry.progress()
            retry.pause_or_raise(error)
            try:
                for pending in [pending for queue in self._unacknowledged.values() for pending in queue]:
                    self._enqueue(pending, retry)
                self._send_and_receive_all(retry)
                return
            except ClientError as again:
                error = again

    def _count(self) -> int:
        return sum(map(len, self._unacknowledged.values()))

    def _take_answers(self, retry: Retry) -> None:
        """Receive the replies to all requests in flight. Drop the batches of the next request: all are sent again."""
        for node, lane in list(self._lanes.items()):
            lane.gathered = {}
            lane.gathered_bytes = 0
            while lane.requests and lane.connection.is_open:
                try:
                    self._receive(lane, retry)
                except ClientError as error:
                    if not error.retriable:
                        raise
            if not lane.connection.is_open:
                self._cluster.give_back(lane.connection)
                del self._lanes[node]
                for tp in self._unacknowledged:
                    self._cluster.forget(tp.topic)

    def _enqueue(self, pending: _Batch, retry: Retry) -> None:
        lane = self._lane(pending.tp, retry)
        if pending.tp not in self._known_in and pending is not self._unacknowledged[pending.tp][0]:
            # A broker accepts any first sequence of a producer that it does not know. If it refused the first batch
            # and became the leader before the second one arrived, it would take the second one for the first.
            self._send_and_receive_all(retry)
        if pending.tp in lane.gathered or lane.gathered_bytes + len(pending.data) > REQUEST_BYTES:
            self._send_gathered(lane, retry)
        lane.gathered[pending.tp] = pending
        lane.gathered_bytes += len(pending.data)

    def _lane(self, tp: TopicPartition, retry: Retry) -> _Lane:
        node = self._cluster.leader(tp, retry.attempt_deadline()).node
        lane = self._lanes.get(node)
        if lane is None:
            lane = self._lanes[node] = _Lane(self._cluster.borrow(node, retry.attempt_deadline()))
        return lane

    def _send_and_receive_all(self, retry: Retry) -> None:
        for lane in list(self._lanes.values()):
            self._send_gathered(lane, retry)
        for lane in list(self._lanes.values()):
            while lane.requests:
                self._receive(lane, retry)

    def _send_gathered(self, lane: _Lane, retry: Retry) -> None:
        while len(lane.requests) >= IN_FLIGHT_MAX:
            self._receive(lane, retry)
        batches, lane.gathered, lane.gathered_bytes = lane.gathered, {}, 0
        if not batches:
            return
        deadline = retry.attempt_deadline()
        ids = {tp.topic: self._cluster.leader(tp, deadline).topic_id for tp in batches}
        version = _version(lane.connection, self._versions, ids)
        rows = {tp: batch.data for tp, batch in batches.items()}
        timeout_ms = _ack_timeout_ms(self._cluster)
        body = produce_body(version, ids, rows, transactional_id=self._transactional_id, timeout_ms=timeout_ms)
        lane.connection.send_pieces(PRODUCE_KEY, version, body, deadline)
        lane.requests.append(_Request({_topic_key(version, tp, ids): batch for tp, batch in batches.items()}))

    # Answers

    def _receive(self, lane: _Lane, retry: Retry) -> None:
        """Receive one reply. Raise the error of a batch that must be sent again."""
        answer: ProduceResponse = lane.connection.receive(retry.attempt_deadline())
        batches = lane.requests.popleft().batches
        failure: ClientError | None = None
        for topic in answer.responses:
            for row in topic.partition_responses:
                pending = batches.pop((topic.name or bytes(topic.topic_id), row.index), None)
                if pending is not None:
                    failure = self._judge(pending, row.error_code, row.error_message) or failure
        if batches and failure is None:
            failure = ConnectionLost(str(lane.connection.node), "an answer leaves out partitions")
        if failure is not None:
            raise failure
        retry.progress()

    def _judge(self, pending: _Batch, code: int, text: str | None) -> ClientError | None:
        """Return None if the batch is appended, the error if it must be sent again. Raise errors that do not pass."""
        queue = self._unacknowledged[pending.tp]
        if code in (0, _DUPLICATE_SEQUENCE_NUMBER):
            self._known_in.add(pending.tp)
            queue.remove(pending)
            if not queue:
                del self._unacknowledged[pending.tp]
            return None
        subject = f"records for {pending.tp}"
        if code in FENCING_CODES:
            raise Fenced(code, self._transactional_id or subject)
        if code in _MOVED_CODES:
            self._cluster.forget(pending.tp.topic)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue[0] is not pending:
            return _BehindFailure(code, subject, text)
        error = BrokerError(code, subject, text)
        if error.retriable:
            return error
        raise error


class _BehindFailure(BrokerError):
    """A batch is out of order because one before it has failed; it succeeds when that one is sent again."""

    retriable = True


def check_batch(data: Buffer) -> BatchHeader:
    """Return the header of a batch. Raise ValueError if the data is not exactly one batch."""
    if len(data) < HEADER_BYTES or (header := read_header(data)).magic != MAGIC:
        raise ValueError("not a record batch of Kafka's format 2")
    if header.length + LENGTH_END != len(data):
        raise ValueError(f"one batch at a time: the first has {header.length + LENGTH_END} of {len(data)} bytes")
    return header


def produce_once(
    cluster: Cluster, tp: TopicPartition, batch: Buffer, *, acks: int, transactional_id: str | None, deadline: float
) -> int:
    """Append a batch in one attempt. Return its first offset, or -1 for acks=0."""
    leader = cluster.leader(tp, deadline)
    connection = cluster.borrow(leader.node, deadline)
    ids = {tp.topic: leader.topic_id}
    try:
        version = _version(connection, VERSIONS_ALL, ids)
        body = produce_body(
            version, ids, {tp: batch}, acks=acks, transactional_id=transactional_id, timeout_ms=_ack_timeout_ms(cluster)
        )
        connection.send_pieces(PRODUCE_KEY, version, body, deadline)
        if acks == 0:
            # There is no reply to acks=0, and a connection with a request in flight cannot be used again.
            connection.close()
            return -1
        answer: ProduceResponse = connection.receive(deadline)
    except ConnectionLost:
        cluster.forget(tp.topic)
        raise
    finally:
        cluster.give_back(connection)
    for topic in answer.responses:
        for row in topic.partition_responses:
            if row.error_code in _MOVED_CODES:
                cluster.forget(tp.topic)
            if row.error_code:
                raise BrokerError(row.error_code, f"records for {tp}", row.error_message)
            return row.base_offset
    raise ConnectionLost(str(leader.node), "an answer without the partition")


def _version(connection: BrokerConnection, versions: tuple[int, int], ids: Mapping[str, bytes]) -> int:
    lowest, highest = versions
    if ZERO_UUID in ids.values():
        highest = min(highest, TOPIC_IDS_FROM - 1)
    return connection.version_of(PRODUCE_KEY, lowest, highest)


def _ack_timeout_ms(cluster: Cluster) -> int:
    # The broker times out before this client does, and reports it.
    return max(int(min(cluster.timeout_s / 2, ATTEMPT_S_MAX) * 800), 100)


def _topic_key(version: int, tp: TopicPartition, ids: Mapping[str, bytes]) -> tuple[str | bytes, int]:
    return (ids[tp.topic] if version >= TOPIC_IDS_FROM else tp.topic), tp.partition


def produce_body(
    version: int,
    ids: Mapping[str, bytes],
    batches: Mapping[TopicPartition, Buffer],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int,
) -> list[Buffer]:
    """Return a Produce request without its header, as pieces. The batches among them are not copied."""
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    topics: dict[str, list[TopicPartition]] = {}
    for tp in batches:
        topics.setdefault(tp.topic, []).append(tp)
    pieces: list[Buffer] = []
    head = _text(transactional_id, flexible) + _ACKS_TIMEOUT.pack(acks, timeout_ms) + _count(len(topics), flexible)
    for topic, rows in topics.items():
        head += ids[topic] if version >= TOPIC_IDS_FROM else _text(topic, flexible)
        head += _count(len(rows), flexible)
        for tp in rows:
            batch = batches[tp]
            pieces += (head + _INT32.pack(tp.partition) + _count(len(batch), flexible), batch)
            head = tags
        head += tags
    pieces.append(head + tags)
    return pieces


def _text(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (write_uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data


def _count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else _INT32.pack(count)
