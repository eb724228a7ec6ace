"""The connections of a simulated client, and the records that it reads and writes.

A client knows the addresses of all brokers. It asks any of them for the leaders of partitions (Metadata) and for the
coordinators of groups and transactions (FindCoordinator), and keeps what it learned until a reply or a lost connection
shows that it is out of date. As in real clients, metadata with an older leader epoch than the known one is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sim_host import PORT
from sim_network import ClientStream

from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, TRANSACTIONAL, checksum, read_header
from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch, iterate_records
from ottla.testing.history import Place
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire import Message
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from sim_world import World

GROUP, TRANSACTION = 0, 1
#: a request without a reply after this time is lost; the client closes the connection
_REQUEST_TIMEOUT_S = 4.0

#: errors after which a client sends the same request again
RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
#: errors after which a client rediscovers the coordinator
NOT_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
#: errors of a partition after which a client learns its leader again
NOT_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Lost(Exception):
    """No reply came, so the client does not know whether the request had an effect."""


class DamagedBatch(Exception):
    """The broker returned a batch with a wrong checksum."""


class Client:
    """A client on a host of its own, with one connection at a time to each broker."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = Random(f"{world.seed}/{name}")
        self._streams: dict[int, ClientStream] = {}
        self._correlation_id = 0
        #: how many connections were made
        self.connects = 0

        # What the client knows of the cluster
        #: the broker that it asks what any broker can answer
        self._contact = self.rng.choice(list(world.hosts))
        #: broker and leader epoch of the leader of each partition
        self._leaders: dict[Place, tuple[int, int]] = {}
        #: the highest leader epoch of each partition that this client has seen
        self._epochs_seen: dict[Place, int] = {}
        #: broker of the coordinator by kind and key
        self._coordinators: dict[tuple[int, str], int] = {}

    # -- requests -------------------------------------------------------------------------------------------------

    async def ask(self, request: Message, version: int, *, broker: int | None = None) -> Any:
        """Send a request to a broker, by default to any, and return its reply. Raise Lost."""
        (reply,) = await self.ask_all([request], version, broker=broker)
        return reply

    async def ask_all(self, requests: Sequence[Message], version: int, *, broker: int | None = None) -> list[Any]:
        """Send requests without waiting in between, and return their replies. Raise Lost if any of them has none."""
        if broker is None:
            broker = self._contact
        try:
            return await self._ask_all(requests, version, broker)
        except Lost:
            self._lost(broker)
            raise

    async def _ask_all(self, requests: Sequence[Message], version: int, broker: int) -> list[Any]:
        stream = await self._stream(broker)
        waiting = []
        for request in requests:
            self._correlation_id += 1
            frame = request_bytes(request, version, self._correlation_id, self.name)
            self.world.trace(f"{self.name} asks {broker}: {self._correlation_id} {_name(request)}")
            waiting.append((request.API_KEY, self._correlation_id, stream.request(frame)))
        replies = []
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                for api_key, correlation_id, future in waiting:
                    frame = await future
                    self.world.trace(f"{self.name} gets {correlation_id}, {len(frame)} bytes, {crc32(frame):08x}")
                    replies.append(read_answer(frame, api_key, version, correlation_id))
        except (TimeoutError, OSError) as error:
            stream.close()
            self._streams.pop(broker, None)
            self.world.trace(f"{self.name} lost its connection to {broker}")
            raise Lost(f"{type(error).__name__}: {error}") from None
        return replies

    async def _stream(self, broker: int) -> ClientStream:
        stream = self._streams.get(broker)
        if stream is not None and not stream.is_lost:
            return stream
        try:
            stream = await self.world.network.connect(self.name, f"broker-{broker}", PORT)
        except OSError as error:
            raise Lost(str(error)) from None
        self.connects += 1
        self._streams[broker] = stream
        return stream

    def _lost(self, broker: int) -> None:
        """A broker did not answer: ask another one where its partitions and coordinators are now."""
        if broker == self._contact:
            others = [number for number in self.world.hosts if number != broker]
            self._contact = self.rng.choice(others) if others else broker
        self._leaders = {place: known for place, known in self._leaders.items() if known[0] != broker}
        self._coordinators = {key: known for key, known in self._coordinators.items() if known != broker}

    # -- leaders --------------------------------------------------------------------------------------------------

    async def leader_of(self, place: Place) -> tuple[int, int]:
        """Return broker and leader epoch of the leader of a partition. Raise Lost if none is known."""
        if place not in self._leaders:
            await self._learn_leaders(place.topic)
        if place not in self._leaders:
            self._try_another_contact()
            raise Lost(f"{place} has no leader")
        return self._leaders[place]

    async def _learn_leaders(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        reply = await self.ask(request, 9)
        for row in reply.topics[0].partitions:
            place = Place(topic, row.partition_index)
            if row.leader_epoch < self._epochs_seen.get(place, -1):
                continue  # the broker has not learned of the newer leader yet
            self._epochs_seen[place] = row.leader_epoch
            self._leaders.pop(place, None)
            if not row.error_code and row.leader_id in self.world.hosts:
                self._leaders[place] = row.leader_id, row.leader_epoch

    def forget_leader(self, place: Place) -> None:
        """A reply says that the known leader does not lead the partition any more."""
        if self._leaders.pop(place, None) is not None:
            self._try_another_contact()

    def _try_another_contact(self) -> None:
        """The metadata of this broker may be old: ask another one next time."""
        self._contact = self.rng.choice(list(self.world.hosts))

    async def ask_leader(self, place: Place, request: Message, version: int) -> Any:
        """Send a request to the leader of a partition. Raise Lost without a reply or a known leader."""
        broker, _ = await self.leader_of(place)
        return await self.ask(request, version, broker=broker)

    # -- coordinators ---------------------------------------------------------------------------------------------

    async def ask_coordinator(self, kind: int, key: str, request: Message, version: int) -> Any:
        """Send a request to the coordinator of a group or a transactional id. Raise Lost if it is not known."""
        broker = self._coordinators.get((kind, key))
        if broker is None:
            broker = await self._learn_coordinator(kind, key)
        return await self.ask(request, version, broker=broker)

    async def _learn_coordinator(self, kind: int, key: str) -> int:
        reply = await self.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
        (found,) = reply.coordinators
        if found.error_code or found.node_id not in self.world.hosts:
            self._try_another_contact()
            raise Lost(f"the coordinator of {key} is not available")
        self._coordinators[kind, key] = found.node_id
        return int(found.node_id)

    def known_coordinator(self, kind: int, key: str) -> int | None:
        """Return the broker that this client takes for the coordinator; None if it knows none."""
        return self._coordinators.get((kind, key))

    def forget_coordinator(self, kind: int, key: str) -> None:
        """A reply says that the known broker is not the coordinator any more."""
        if self._coordinators.pop((kind, key), None) is not None:
            self._try_another_contact()

    async def find_coordinator(self, key: str, kind: int) -> None:
        """Wait until the coordinator of a key is available."""
        while True:
            try:
                await self._learn_coordinator(kind, key)
                return
            except Lost:
                await self.pause(0.1)

    # -- topics -----------------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, config: Mapping[str, str] | None = None, *, partitions: int = 1, timeout_ms: int = 3000
    ) -> None:
        """Send CreateTopics until the topic exists."""
        rows = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, configs=rows)
        topic.replication_factor = self.world.replication_factor
        while True:
            try:
                (made,) = (await self.ask(CreateTopicsRequest(topics=[topic], timeout=timeout_ms), 7)).topics
                if made.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return
            except Lost:
                pass
            await self.pause(0.1)

    async def delete_topic(self, name: str) -> None:
        """Send DeleteTopics until the topic does not exist."""
        state = DeleteTopicState(name=name)
        while True:
            try:
                (row,) = (await self.ask(DeleteTopicsRequest(topics=[state], timeout=3000), 6)).responses
                if row.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    return
            except Lost:
                pass
            await self.pause(0.1)

    # -- time -------------------------------------------------------------------------------------------------------

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))

    @property
    def is_over(self) -> bool:
        """Whether the client must start no new work."""
        return self.world.is_over


def _name(request: Message) -> str:
    return type(request).__name__.removesuffix("Request")


def batch(values: Sequence[str], timestamp: int, **fields: Any) -> bytes:
    """Return a batch with these values; some are padded, so that batches have different sizes."""
    records = [Record(timestamp=timestamp, key=b"k", value=_padded(value)) for value in values]
    return build_batch(records, **fields)


def _padded(value: str) -> bytes:
    """Return one value in four with up to three kilobytes more, which are several sectors of a disk."""
    data = value.encode()
    number = crc32(data)
    return data if number & 3 else data + b"." * (number % 3000)


def batches(data: bytes) -> Iterator[tuple[Any, bytes]]:
    """Yield the header and the bytes of each complete batch."""
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        if position + header.size_bytes > len(data):
            return
        yield header, data[position : position + header.size_bytes]
        position += header.size_bytes


def committed_records(
    data: bytes, aborted: Sequence[tuple[int, int]], position: int
) -> tuple[list[tuple[int, str]], int, int]:
    """Return the committed records from ``position`` on, the next position, and the epoch of the last batch.

    A broker returns whole batches, so the first one may begin before ``position``. The records of a batch that ends
    before it are returned too: they show that the reader went back.

    ``aborted`` has the producer ids of aborted transactions with their first offsets, as Fetch returns them.
    """
    waiting = sorted(aborted, key=lambda each: each[1])
    open_aborted: set[int] = set()
    records: list[tuple[int, str]] = []
    epoch = -1
    for header, content in batches(data):
        if checksum(content) != header.crc:
            raise DamagedBatch(f"offset {header.base_offset}: the checksum does not match")
        while waiting and waiting[0][1] <= header.last_offset:
            open_aborted.add(waiting.pop(0)[0])
        epoch = header.leader_epoch
        if header.attributes & CONTROL:
            marker = read_marker(content)
            if marker is not None and not marker.commit:
                open_aborted.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in open_aborted):
            for record in iterate_records(content):
                if record.offset >= position or header.next_offset <= position:
                    records.append((record.offset, (record.value or b"").rstrip(b".").decode()))
        position = max(position, header.next_offset)
    return records, position, epoch
