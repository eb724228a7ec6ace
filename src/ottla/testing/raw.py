"""A client for tests that sends any request in any version, or any bytes, over one blocking socket.

    with RawClient(broker.bootstrap) as client:
        answer = client.ask(MetadataRequest(topics=None), 12)

Other clients negotiate versions and retry. This one does not, so that a test sees each reply of the broker.
``send_frame`` and ``send_bytes`` also send bytes that are not a valid request.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ottla.client.protocol.frames import SIZE, Sent, body_position, read_correlation_id, request_header
from ottla.model.records import Record, build_batch
from ottla.wire import ZERO_UUID, Message, decode, encode, response_class, response_header_version
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.schema import Array, Field

_TIMEOUT_S = 60.0
_RECEIVE_BYTES = 1 << 16


class Closed(Exception):
    """The broker closed or reset the connection instead of sending a reply."""


class RawClient:
    """One connection. Replies arrive in the order of the requests; ``ask`` sends a request and returns its reply."""

    def __init__(self, address: str, *, client_id: str | None = "raw", timeout_s: float = _TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and return its reply, of which every byte is decoded."""
        correlation_id = self.send(request, version)
        return self.receive(request.API_KEY, version, correlation_id)

    def send(self, request: Message, version: int) -> int:
        """Send a request without waiting. Return the correlation id that its reply must have."""
        self._correlation_id += 1
        self.send_frame(request_bytes(request, version, self._correlation_id, self.client_id))
        return self._correlation_id

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        """Return the next reply. Raise AssertionError if it is not the one to this request."""
        return read_answer(self.receive_frame(), api_key, version, correlation_id)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str | None] | None = None) -> bytes:
        """Create a topic and return its id."""
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        (made,) = self.ask(CreateTopicsRequest(topics=[topic], timeout=30_000), 7).topics
        assert made.error_code == 0, made
        return bytes(made.topic_id)

    # -- bytes ----------------------------------------------------------------------------------------------------

    def send_frame(self, payload: bytes) -> None:
        self.send_bytes(SIZE.pack(len(payload)) + payload)

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed("the broker closed the connection while it was written to") from None

    def receive_frame(self) -> bytes:
        """Return the next reply without its size. Raise Closed if the broker closes the connection."""
        (size,) = SIZE.unpack(self._receive_exactly(SIZE.size))
        return self._receive_exactly(size)

    def receive_until_closed(self) -> bytes:
        """Return all bytes that arrive before the broker closes the connection. Raise TimeoutError if it does not."""
        received = bytearray()
        while data := self._receive(_RECEIVE_BYTES):
            received += data
        return bytes(received)

    def answers_or_closes(self) -> bytes | None:
        """Return the next reply; None if the broker closes the connection. Raise TimeoutError if it does neither."""
        try:
            return self.receive_frame()
        except Closed:
            return None

    def _receive_exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            data = self._receive(size - len(received))
            if not data:
                raise Closed(f"the broker closed the connection after {len(received)} of {size} bytes")
            received += data
        return bytes(received)

    def _receive(self, size: int) -> bytes:
        try:
            return self.socket.recv(size)
        except ConnectionResetError:
            return b""


# -- requests -------------------------------------------------------------------------------------------------------

#: a topic by its name, or by its id in versions that use ids
Topic = str | bytes


def batch_of(*values: bytes, timestamp: int | None = None, **fields: Any) -> bytes:
    """Return a batch with these values, as a producer sends it; ``fields`` are arguments of ``build_batch``."""
    first = int(time.time() * 1000) if timestamp is None else timestamp
    records = [Record(timestamp=first + number, key=b"key", value=value) for number, value in enumerate(values)]
    return build_batch(records, **fields)


def produce_request(
    *batches: tuple[Topic, int, bytes | None],
    acks: int = 1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Return a request with one topic entry for each (topic, partition, batch), in this order."""
    topics = [
        TopicProduceData(**_named("name", topic), partition_data=[PartitionProduceData(index=number, records=batch)])
        for topic, number, batch in batches
    ]
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout=timeout_ms, topic_data=topics)


def fetch_from(partition: int, offset: int, **fields: Any) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, **{"partition_max_bytes": 1 << 20} | fields)


def fetch_request(
    topics: Mapping[Topic, Sequence[FetchPartition]],
    *,
    session: tuple[int, int] = (0, -1),
    forgotten: Mapping[Topic, Sequence[int]] | None = None,
    **fields: Any,
) -> FetchRequest:
    """Return a fetch that does not wait, unless ``max_wait`` is given."""
    session_id, session_epoch = session
    return FetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(**_named("topic", topic), partitions=rows) for topic, rows in topics.items()],
        forgotten_topics_data=[
            ForgottenTopic(**_named("topic", topic), partitions=numbers) for topic, numbers in (forgotten or {}).items()
        ],
        **{"min_bytes": 1, "max_bytes": 1 << 26} | fields,
    )


def _named(field: str, topic: Topic) -> dict[str, Any]:
    return {field: topic} if isinstance(topic, str) else {field: "", "topic_id": topic}


# -- messages -------------------------------------------------------------------------------------------------------


def request_bytes(request: Message, version: int, correlation_id: int, client_id: str | None = "raw") -> bytes:
    """Return a request with its header, without its size."""
    header = request_header(
        Sent(correlation_id, request.API_KEY, version), None if client_id is None else client_id.encode()
    )
    return header + encode(request, version)


def read_answer(frame: bytes, api_key: int, version: int, correlation_id: int) -> Any:
    """Return the reply in a frame. Raise AssertionError if it is of another request, or does not end with the frame."""
    found = read_correlation_id(frame)
    assert found == correlation_id, f"the reply to request {found} came, that to {correlation_id} was expected"
    start = body_position(frame, Sent(correlation_id, api_key, version))
    header_bytes = SIZE.size + (1 if response_header_version(api_key, version) else 0)
    assert start == header_bytes, "the header of the reply has tagged fields"
    answer, end = decode(response_class(api_key), version, frame, start)
    assert end == len(frame), f"{len(frame) - end} bytes follow the reply"
    return answer


def random_message(
    cls: type[Any], version: int, source: random.Random, strings: Sequence[str] = ("", "a"), ids: Sequence[bytes] = ()
) -> Any:
    """Return a message that can be encoded: strings and ids from those given, numbers from their whole range."""
    return _RandomMessages(version, source, strings, (ZERO_UUID, source.randbytes(16), *ids)).message(cls)


class _RandomMessages:
    def __init__(self, version: int, source: random.Random, strings: Sequence[str], ids: Sequence[bytes]) -> None:
        self._version = version
        self._source = source
        self._strings = strings
        self._ids = ids

    def message(self, cls: type[Any]) -> Any:
        return cls(**{field.name: self.value(field.type) for field in cls.FIELDS if self._is_there(field)})

    def _is_there(self, field: Field) -> bool:
        # A nullable field that is left out is null only if that is its default. Both are valid messages.
        version = self._version
        optional = field.is_tagged_in(version) or (field.is_nullable_in(version) and field.default is None)
        return field.is_in(version) and not (optional and self._source.random() < 0.3)

    def value(self, field_type: Any) -> Any:
        source = self._source
        if isinstance(field_type, Array):
            return [self.value(field_type.element) for _ in range(source.choice((0, 1, 1, 2, 9)))]
        if not isinstance(field_type, str):
            return self.message(field_type)
        if field_type == "string":
            return source.choice(self._strings)
        if field_type in ("bytes", "records"):
            return source.randbytes(source.choice((0, 1, 61, 200)))
        if field_type == "uuid":
            return source.choice(self._ids)
        if field_type == "bool":
            return source.random() < 0.5
        if field_type == "float64":
            return source.choice((0.0, -1.5, float("inf"), float("nan")))
        top = 1 << int(field_type.removeprefix("int")) - 1
        return source.choice((0, 0, 1, -1, -2, 2, 100, top - 1, -top, source.randrange(-top, top)))
