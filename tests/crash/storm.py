"""A storm of produces: several clients, topics, sizes and codecs at once, while something else is done to the broker.

Every client keeps retrying until its records are acknowledged, however often the broker goes away, so an error that
reaches it is a finding. Draws come from a seed. What was sent and read goes into a history for the checker.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaign.history import History, Outcome, Place, Reader, Send

with warnings.catch_warnings():
    # It reads its message schemas with a function that Python wants to drop; warnings are errors here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.net.inet import KafkaNetSocket

#: a client gives up on a record after this: far beyond what any campaign takes the broker away for
GIVE_UP_MS = 240_000
SETTLE_S_MAX = 240.0
_OUTSTANDING_MAX = 400
_PARTITIONS = 3
_FILLER = random.Random(0).randbytes(1 << 18) + b"the compressible half " * 12_000

#: name -> topic settings; segments are small, so that every life of the broker rolls many
TOPICS: Mapping[str, Mapping[str, str]] = {
    "rolls": {"segment.bytes": "262144", "index.interval.bytes": "512"},
    "large": {"segment.bytes": "2097152"},
    "changed": {"segment.bytes": "524288", "compression.type": "lz4", "message.timestamp.type": "LogAppendTime"},
}
#: takes nothing that is larger; one client keeps asking
REFUSING_TOPIC = "refuses"
_REFUSING = {"max.message.bytes": "2000", "segment.bytes": "16384"}


def places(topics: Iterable[str]) -> list[Place]:
    return [Place(topic, number) for topic in topics for number in range(_PARTITIONS)]


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]], timeout_s: float = 30) -> None:
    """Make topics; one that is there already is fine. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 10_000})
    wanted = [NewTopic(name, _PARTITIONS, 1, config=dict(config)) for name, config in topics.items()]
    for future in admin.create_topics(wanted, request_timeout=timeout_s).values():
        try:
            future.result(timeout_s + 10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


# -- values ---------------------------------------------------------------------------------------------------------


def value_of(name: str, size: int) -> bytes:
    """A value of about ``size`` bytes that says its name, and of which every byte can be checked."""
    return f"{name} {size}|".encode() + _filler(name, size)


def name_of(value: bytes) -> str:
    """The name of a value; one that was damaged has a name that nobody sent."""
    head, _, body = value.partition(b"|")
    name, _, size = head.decode(errors="replace").rpartition(" ")
    if size.isdigit() and body == _filler(name, int(size)):
        return name
    return f"damaged value of {len(value)} bytes that begins with {value[:40]!r}"


def _filler(name: str, size: int) -> bytes:
    start = sum(name.encode()) * 977 % (len(_FILLER) - size)
    return _FILLER[start : start + size]


def draw_size(rng: random.Random, largest: int) -> int:
    """Mostly small, now and then a batch of its own that is written uncopied."""
    pick = rng.random()
    if pick < 0.90:
        return rng.randint(0, 400)
    if pick < 0.985:
        return rng.randint(1000, 8000)
    return rng.randint(min(33_000, largest), largest)


_LARGEST = {"rolls": 90_000, "large": 400_000, "changed": 60_000}


# -- producers ------------------------------------------------------------------------------------------------------


class _Client(Protocol):
    """A producer of one library."""

    def send(self, place: Place, value: bytes, send: Send) -> None: ...
    def poll(self, seconds: float) -> None: ...
    def finish(self) -> None:
        """Wait until every record is settled."""


class Storm:
    """Producers and one tailing reader, each in a thread, from ``with`` to ``finish``."""

    def __init__(
        self, bootstrap: str, seed: int, *, topics: Mapping[str, Mapping[str, str]] = TOPICS, confluent: int = 3,
        others: bool = True, tail: bool = True, refusals: bool = True, refused_acks: str = "1",
        batch_bytes: int = 131_072,
    ) -> None:  # fmt: skip
        self.bootstrap = bootstrap
        self.history = History()
        #: what reached a client that should have gone on retrying
        self.errors: list[str] = []
        self.gap_s_max = 0.0
        self._topics = topics
        self._refusals = refusals
        #: what the client asks for that is sometimes refused; the others ask for "all"
        self._refused_acks = refused_acks
        self._batch_bytes = batch_bytes
        self._last_ack = time.monotonic()
        self._stopping = threading.Event()
        self._tail_stopping = threading.Event()
        self._rng = random.Random(seed)
        self._threads = [self._producer(number) for number in range(confluent)]
        if others:
            self._threads += [self._thread(self._produce, "aiokafka", lambda: _Aiokafka(self))]
            self._threads += [self._thread(self._produce, "kafka-python", lambda: _KafkaPython(self))]
        if refusals:
            self._threads.append(self._thread(self._ask_for_refusals, "refused"))
        self._tail = self._thread(self._read_tail, "tail") if tail else None

    def _producer(self, number: int) -> threading.Thread:
        settings = {
            "linger.ms": self._rng.choice([0, 2, 20]),
            "batch.num.messages": self._rng.choice([1, 40, 10000]),
            "batch.size": self._batch_bytes,
            "compression.type": self._rng.choice(["none", "gzip", "snappy", "lz4", "zstd"]),
            "max.in.flight": self._rng.choice([1, 5]),
        }
        return self._thread(self._produce, f"confluent-{number}", lambda: _Confluent(self, settings))

    def _thread(self, target: Callable[..., None], name: str, *arguments: Any) -> threading.Thread:
        seed = self._rng.getrandbits(32)
        return threading.Thread(target=self._guard, args=(target, name, seed, *arguments), name=name, daemon=True)

    def _guard(self, target: Callable[..., None], name: str, seed: int, *arguments: Any) -> None:
        try:
            target(name, random.Random(seed), *arguments)
        except Exception as error:
            self.errors.append(f"{name}: {error!r}")

    def __enter__(self) -> Storm:
        """Topics are made, and the producers started."""
        create_topics(self.bootstrap, {**self._topics, **({REFUSING_TOPIC: _REFUSING} if self._refusals else {})})
        for thread in [*self._threads, *([self._tail] if self._tail else [])]:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._tail_stopping.set()

    def await_acks(self) -> None:
        """Wait until every producer has been given one."""
        deadline = time.monotonic() + SETTLE_S_MAX
        names = {thread.name for thread in self._threads}
        while names - {send.producer for send in self.history.sends if send.outcome is Outcome.ACKNOWLEDGED}:
            assert time.monotonic() < deadline and not self.errors, f"no acknowledgements: {self.errors[:3]}"
            time.sleep(0.05)

    def settle(self) -> None:
        """End the storm: every producer waits until its records are settled, then the tail reader stops."""
        self._stopping.set()
        deadline = time.monotonic() + SETTLE_S_MAX
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                self.errors.append(f"{thread.name} still waits for acknowledgements after {SETTLE_S_MAX:.0f} s")
        self._tail_stopping.set()
        if self._tail is not None:
            self._tail.join(30)

    def finish(self, *others: Place) -> History:
        """Settle, then read everything back, with what others wrote beside the storm."""
        self.settle()
        topics = [*self._topics, *([REFUSING_TOPIC] if self._refusals else [])]
        self.history.final = read_all(self.bootstrap, [*places(topics), *others])
        return self.history

    # -- what the clients call ------------------------------------------------------------------------------------

    def on_acknowledged(self, send: Send, offset: int) -> None:
        send.acknowledged(offset)
        now = time.monotonic()
        self.gap_s_max = max(self.gap_s_max, now - self._last_ack)
        self._last_ack = now

    def on_error(self, send: Send, error: object) -> None:
        self.errors.append(f"{send.producer} {send.value}: {error}")

    # -- threads --------------------------------------------------------------------------------------------------

    def _produce(self, name: str, rng: random.Random, connect: Callable[[], _Client]) -> None:
        client = connect()
        everywhere = places(self._topics)
        outstanding: list[Send] = []
        number = 0
        while not self._stopping.is_set():
            for _ in range(rng.randint(1, 50)):
                place = rng.choice(everywhere)
                value = f"{name}.{number}"
                send = self.history.send(name, place, value)
                client.send(place, value_of(value, draw_size(rng, _LARGEST.get(place.topic, 5000))), send)
                outstanding.append(send)
                number += 1
            client.poll(rng.uniform(0.001, 0.04))
            while len(outstanding) > _OUTSTANDING_MAX and not self._stopping.is_set():
                outstanding = [each for each in outstanding if each.outcome is Outcome.UNKNOWN]
                client.poll(0.02)
        client.finish()

    def _ask_for_refusals(self, name: str, rng: random.Random) -> None:
        """One attempt per record, so that an answer about it is about nothing else."""
        settings = {"enable.idempotence": False, "retries": 0, "acks": self._refused_acks, "compression.type": "none"}
        client = _Confluent(self, settings)
        number = 0
        while not self._stopping.is_set():
            value = f"{name}.{number}"
            send = self.history.send(name, Place(REFUSING_TOPIC, number % _PARTITIONS), value)
            client.send(send.place, value_of(value, rng.choice([10, 10, 5000])), send)
            number += 1
            client.poll(rng.uniform(0.001, 0.05))
            if number % 50 == 0:
                client.finish()
        client.finish()

    def _read_tail(self, name: str, rng: random.Random) -> None:
        everywhere = places(self._topics)
        reader = Reader(name, dict.fromkeys(everywhere, 0))
        self.history.tails.append(reader)
        with closing(_consumer(self.bootstrap, everywhere)) as consumer:
            while not self._tail_stopping.is_set():
                for message in consumer.consume(500, timeout=0.1):
                    error = message.error()
                    if error is None:
                        _note(reader, message)
                    elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                        self.errors.append(f"{name}: {error}")


class _Confluent:
    """librdkafka; idempotent unless the settings say otherwise."""

    _REFUSALS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)

    def __init__(self, storm: Storm, settings: Mapping[str, Any]) -> None:
        self._storm = storm
        self._idempotent = settings.get("enable.idempotence", True)
        self._producer = Producer({
            "bootstrap.servers": storm.bootstrap, "enable.idempotence": True, "acks": "all",
            "message.timeout.ms": GIVE_UP_MS, "message.max.bytes": 2_000_000, "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 10_000,
            "topic.metadata.refresh.interval.ms": 5000, "log_level": 0, "error_cb": self._on_client_error, **settings,
        })  # fmt: skip

    def send(self, place: Place, value: bytes, send: Send) -> None:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._storm.on_acknowledged(send, message.offset() or 0)
            elif not self._idempotent and error.code() in self._REFUSALS:
                send.refused()
            elif self._idempotent:
                self._storm.on_error(send, error)

        self._producer.produce(place.topic, value, partition=place.partition, on_delivery=on_delivery)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def finish(self) -> None:
        if left := self._producer.flush(SETTLE_S_MAX):
            self._storm.errors.append(f"confluent: {left} records were never settled")

    def _on_client_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._storm.errors.append(f"confluent: fatal: {error}")


class _ClosingSocket(socket.socket):
    """kafka-python drops sockets of refused connections unclosed, of which Python warns at any later time."""

    def __del__(self) -> None:
        self.close()


KafkaNetSocket.socket = lambda _, *arguments: _ClosingSocket(*arguments)


class _KafkaPython:
    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._producer = KafkaProducer(
            bootstrap_servers=storm.bootstrap, enable_idempotence=True, acks="all", delivery_timeout_ms=GIVE_UP_MS,
            request_timeout_ms=10_000, max_block_ms=GIVE_UP_MS, max_request_size=2_000_000, linger_ms=2,
            retry_backoff_ms=50, reconnect_backoff_ms=20, reconnect_backoff_max_ms=200, compression_type="gzip",
        )  # fmt: skip

    def send(self, place: Place, value: bytes, send: Send) -> None:
        future = self._producer.send(place.topic, value, partition=place.partition)
        future.add_callback(lambda metadata: self._storm.on_acknowledged(send, metadata.offset))
        future.add_errback(lambda error: self._storm.on_error(send, repr(error)))

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)

    def finish(self) -> None:
        self._producer.flush(timeout=SETTLE_S_MAX)
        self._producer.close()


class _Aiokafka:
    """aiokafka wants an event loop of its own; calls here run it for a while."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._runner = asyncio.Runner()
        self._futures: set[asyncio.Future[Any]] = set()
        self._runner.run(self._connect())

    async def _connect(self) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._storm.bootstrap, enable_idempotence=True, acks="all", linger_ms=2,
            request_timeout_ms=GIVE_UP_MS, max_request_size=2_000_000, retry_backoff_ms=50,
        )  # fmt: skip
        await self._producer.start()

    def send(self, place: Place, value: bytes, send: Send) -> None:
        self._runner.run(self._send(place, value, send))

    async def _send(self, place: Place, value: bytes, send: Send) -> None:
        future = await self._producer.send(place.topic, value, partition=place.partition)
        self._futures.add(future)
        future.add_done_callback(lambda done: self._settled(send, done))

    def _settled(self, send: Send, done: asyncio.Future[Any]) -> None:
        self._futures.discard(done)
        if (error := done.exception()) is not None:
            self._storm.on_error(send, repr(error))
        else:
            self._storm.on_acknowledged(send, done.result().offset)

    def poll(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def finish(self) -> None:
        self._runner.run(self._finish())
        self._runner.close()

    async def _finish(self) -> None:
        if self._futures:
            await asyncio.wait(list(self._futures), timeout=SETTLE_S_MAX)
        await self._producer.stop()


# -- readers --------------------------------------------------------------------------------------------------------


def read_all(bootstrap: str, everywhere: Iterable[Place]) -> Reader:
    """Everything from the first offset to the end of each partition, checksums checked."""
    everywhere = list(everywhere)
    reader = Reader("final", dict.fromkeys(everywhere, 0))
    with closing(_consumer(bootstrap, everywhere)) as consumer:
        ends = {place: consumer.get_watermark_offsets(TopicPartition(*place), 30)[1] for place in everywhere}
        unread = {place for place, end in ends.items() if end}
        deadline = time.monotonic() + SETTLE_S_MAX
        while unread:
            assert time.monotonic() < deadline, f"could not read {unread} to the end"
            for message in consumer.consume(1000, timeout=0.5):
                if (error := message.error()) is not None:
                    if error.retriable() or error.code() == KafkaError._TRANSPORT:
                        continue
                    raise KafkaException(error)
                place = _note(reader, message)
                if (message.offset() or 0) + 1 >= ends[place]:
                    unread.discard(place)
    return reader


def _consumer(bootstrap: str, everywhere: Iterable[Place]) -> Consumer:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "never-joined", "enable.auto.commit": False, "check.crcs": True,
        "auto.offset.reset": "error", "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
        "fetch.wait.max.ms": 100, "fetch.error.backoff.ms": 50, "log_level": 0,
    })  # fmt: skip
    consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in everywhere])
    return consumer


def _note(reader: Reader, message: Message) -> Place:
    place = Place(message.topic() or "", message.partition() or 0)
    reader.read(place, message.offset() or 0, name_of(message.value() or b""))
    return place
