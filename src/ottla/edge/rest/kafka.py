"""The Kafka side of the proxy: producers, consumers and admin requests, for each identity its own.

Threads and the event loop meet here. Admin requests are blocking functions of an `ottla.client.Cluster`; they run in
a pool of threads, each with a Cluster of its own. Each producer has a thread that takes its delivery reports and hands
them to the event loop, many at a time.

This is the only file of the proxy that imports confluent-kafka.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.security import PROPERTIES
from ottla.edge.rest.errors import AUTHENTICATION_FAILED, KafkaRefusal
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError
from ottla.edge.web.authentication import Identity as Identity
from ottla.env.tasks import keep_thread
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer as Consumer

_THREADS_MAX: Final = 64
_CLIENT_ID: Final = "ottla-rest"
_POLL_S: Final = 0.25
#: idle connections for admin requests that one identity keeps
_CLUSTERS_IDLE_MAX: Final = 8
_CLOSE_S_MAX: Final = 5.0
#: librdkafka's code for a client that was closed
_DESTROYED: Final = -197
#: size of full batches; a larger record is a batch of its own
BATCH_BYTES: Final = 1_000_000
_PRODUCER: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    # A client of the proxy waits for the acknowledgement, so a long wait for a full batch costs more than it saves.
    "linger.ms": "2",
    # The partitioner of Java's clients: a key has the same partition, however it is produced.
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": "30000",
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "65536",
    # Topics are looked up before records are sent, so an unknown topic was deleted in the meantime.
    "topic.metadata.propagation.max.ms": "2000",
    "message.max.bytes": "1000000000",
}
#: what a consumer reads ahead. With this small queue librdkafka's default would pause for a second when it is full
READ_AHEAD: Final = {"queued.max.messages.kbytes": "4096", "fetch.queue.backoff.ms": "10"}
_COMMON: Final = {"log_level": "0", "socket.keepalive.enable": "true"}

_P = ParamSpec("_P")
_T = TypeVar("_T")


#: acts towards the cluster with the proxy's own credentials
SERVICE: Final = Identity()


class Owner:
    """The user of a client that outlives a request, with the latest token that the user has sent."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def is_same_user(self, other: Identity) -> bool:
        """Return whether a request is that of the owner; its token may be a newer one."""
        own = self.identity
        return other == own or bool(own.token and other.token and own.name == other.name)

    def renew(self, other: Identity) -> None:
        """Use the token of a newer request of the owner if it expires later."""
        if (other.expires_ms or 0) > (self.identity.expires_ms or 0):
            self.identity = other


def check_expiry(identity: Identity) -> None:
    """Raise HttpError 401 (40101) if the token of the user has expired since the request began."""
    if identity.is_expired:
        raise HttpError(401, AUTHENTICATION_FAILED, "the token has expired; send a request with a new one")


class Arrival:
    """Lets a coroutine wait until something was reported to it."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def report(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class Delivery:
    """One record that was sent: the outcome is valid once `is_done`."""

    __slots__ = ("arrival", "error", "is_done", "offset", "partition", "timestamp_ms")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.is_done = False
        self.error: KafkaRefusal | None = None
        self.partition = -1
        self.offset = -1
        self.timestamp_ms = -1


class RecordProducer:
    """An idempotent producer whose delivery reports arrive in the event loop."""

    def __init__(self, config: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        from confluent_kafka import Producer

        with refusals("producer"):
            self._producer = Producer(dict(config))
        self._loop = loop
        #: reports that the thread has taken and the event loop has not
        self._reported: list[Delivery] = []
        #: no more records are taken
        self._is_ending = False
        self._is_closing = False
        #: an idempotent producer with a fatal error sends no more
        self.is_broken = False
        self._room = asyncio.Event()
        self._thread = keep_thread(self._run, "rest-producer")
        self._thread.start()

    async def send(
        self,
        arrival: Arrival,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        timestamp_ms: int = 0,
    ) -> Delivery:
        """Hand a record to librdkafka and return its delivery; wait while the queue is full (back-pressure)."""
        from confluent_kafka import KafkaException

        while True:
            delivery = Delivery(arrival)
            if self._is_ending:
                return self._refused(delivery, KafkaRefusal(_DESTROYED, topic, "the producer was closed"))
            try:
                self._producer.produce(
                    topic, value, key, -1 if partition is None else partition,
                    functools.partial(self._report, delivery), timestamp=timestamp_ms, headers=headers or None,
                )  # fmt: skip
            except BufferError:
                self._room.clear()
                await self._room.wait()
            except KafkaException as error:
                self.is_broken = self.is_broken or error.args[0].fatal()
                return self._refused(delivery, _refusal(error.args[0], topic))
            else:
                return delivery

    @staticmethod
    def _refused(delivery: Delivery, error: KafkaRefusal) -> Delivery:
        delivery.error = error
        delivery.is_done = True
        delivery.arrival.report()
        return delivery

    def _report(self, delivery: Delivery, error: Any, message: Any) -> None:
        # Runs in the thread.
        delivery.partition = message.partition()
        if error is not None:
            delivery.error = _refusal(error, message.topic())
            self.is_broken = self.is_broken or error.fatal()
        else:
            delivery.offset = message.offset()
            delivery.timestamp_ms = message.timestamp()[1]
        self._reported.append(delivery)

    def _run(self) -> None:
        while not self._is_closing:
            self._producer.poll(_POLL_S)
            self._hand_over()

    def _hand_over(self) -> None:
        if self._reported:
            reported, self._reported = self._reported, []
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._pass_on, reported)

    def _pass_on(self, reported: list[Delivery]) -> None:
        for delivery in reported:
            delivery.is_done = True
        for arrival in {delivery.arrival for delivery in reported}:
            arrival.report()
        self._room.set()

    def close(self) -> None:
        """Wait a few seconds until all records are acknowledged. Blocks: call it in a thread."""
        self._is_ending = True
        self._producer.flush(_CLOSE_S_MAX)
        self._is_closing = True
        self._thread.join()
        self._hand_over()


def _refusal(error: Any, subject: str) -> KafkaRefusal:
    return KafkaRefusal(error.code(), subject, error.str())


@contextmanager
def refusals(subject: str) -> Iterator[None]:
    """Raise errors of librdkafka as KafkaRefusal."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise _refusal(error.args[0], subject) from None


def kafka_partition(tp: TopicPartition, offset: int = -1001, metadata: str | None = None) -> Any:
    """Return the object of confluent-kafka for a partition; without an offset, its committed or default position."""
    from confluent_kafka import TopicPartition as KafkaPartition

    return KafkaPartition(tp.topic, tp.partition, offset, metadata or "")


class _Clients:
    """The clients of one identity."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        #: by batch size
        self.producers: dict[int, RecordProducer] = {}
        self.users = 0
        self.used_at = time.monotonic()
        self.is_closed = False


class Kafka:
    """Clients for each identity: created when they are needed, closed when they are idle or too many."""

    def __init__(self, settings: RestSettings) -> None:
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._clients: OrderedDict[Identity, _Clients] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS_MAX, "rest-kafka")
        self._closing: set[asyncio.Future[None]] = set()
        self._cluster_id: str | None = None
        #: set at the stop: threads that wait for the cluster end
        self._ended = threading.Event()

    # Requests in threads

    async def call(
        self, identity: Identity, function: Callable[Concatenate[Cluster, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a blocking function with a Cluster of this identity in a thread, and return its result."""
        clients = self._open(identity)
        clients.users += 1
        try:
            cluster = clients.clusters.pop() if clients.clusters else self._make_cluster(identity)
            try:
                found = await self.run(functools.partial(function, cluster, *args, **kwargs))
            except asyncio.CancelledError:
                # The thread still uses the cluster, so that no other call may have it.
                raise
            except BaseException:
                self._keep(clients, cluster)
                raise
            self._keep(clients, cluster)
            return found
        finally:
            clients.users -= 1
            clients.used_at = time.monotonic()

    async def run(self, function: Callable[[], _T]) -> _T:
        """Run a blocking function in a thread."""
        return await self._loop.run_in_executor(self._threads, function)

    async def cluster_id(self, identity: Identity) -> str:
        """Return the id of the cluster, which never changes. The identity asks for it if it is not known yet."""
        if self._cluster_id is None:
            self._cluster_id = await self.call(identity, Cluster.cluster_id)
        return self._cluster_id

    def _make_cluster(self, identity: Identity) -> Cluster:
        understood = {
            name: value for name, value in self._properties(identity).items()
            if name in PROPERTIES or name.startswith(("security.", "ssl.", "sasl."))
        }  # fmt: skip
        return Cluster(
            self.settings.bootstrap_servers, understood, client_id=_CLIENT_ID, token=identity.token,
            timeout_s=self.settings.client_timeout_ms / 1000, ended=self._ended,
        )  # fmt: skip

    def _properties(self, identity: Identity) -> dict[str, str]:
        """Return the properties of a client of this user. With a token, the login of the proxy is left out."""
        own = self.settings.client
        if identity.token:
            own = {name: value for name, value in own.items() if not name.startswith("sasl.")}
        return {**own, **dict(identity.properties)}

    def _keep(self, clients: _Clients, cluster: Cluster) -> None:
        if clients.is_closed or len(clients.clusters) >= _CLUSTERS_IDLE_MAX:
            cluster.close()
        else:
            clients.clusters.append(cluster)

    # Producers and consumers

    def producer(self, identity: Identity, batch_bytes_max: int) -> RecordProducer:
        """Return a producer of this identity. Raise KafkaRefusal if its properties are not valid.

        A broker refuses a batch as a whole if it is larger than the topic allows. Topics with smaller batches than
        librdkafka's default have a producer of their own, so that no record is refused because of others.
        """
        clients = self._open(identity)
        size = BATCH_BYTES
        while size > max(batch_bytes_max, 1):
            size //= 2
        producer = clients.producers.get(size)
        if producer is not None and producer.is_broken:
            self.close_later(clients.producers.pop(size).close)
            producer = None
        if producer is None:
            own = self._config(Owner(identity))
            config = {**_PRODUCER, **own, **self.settings.producer, "batch.size": str(size)}
            producer = clients.producers[size] = RecordProducer(config, self._loop)
        return producer

    def consumer(self, owner: Owner, properties: Mapping[str, str]) -> Consumer:
        """Return a new consumer. Raise KafkaRefusal if a property is not valid. The caller closes it, in a thread."""
        from confluent_kafka import Consumer

        with refusals("consumer"):
            return Consumer({**self._config(owner), **self.settings.consumer, **properties})

    def _config(self, owner: Owner) -> dict[str, Any]:
        config: dict[str, Any] = {
            **_COMMON, "client.id": _CLIENT_ID, **self._properties(owner.identity),
            "bootstrap.servers": self.settings.bootstrap_servers,
        }  # fmt: skip
        if owner.identity.token:
            config |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": functools.partial(_current_token, owner)}
        return config

    # Life

    def _open(self, identity: Identity) -> _Clients:
        """Return the clients of an identity. Raise HttpError 401 if its token has expired."""
        check_expiry(identity)
        clients = self._clients.get(identity)
        if clients is None:
            clients = self._clients[identity] = _Clients()
            self._close_surplus()
        self._clients.move_to_end(identity)
        clients.used_at = time.monotonic()
        return clients

    def _close_surplus(self) -> None:
        surplus = len(self._clients) - self.settings.identities_max
        for identity in [each for each, clients in self._clients.items() if not clients.users][: max(surplus, 0)]:
            self._close_clients(self._clients.pop(identity))

    def close_idle(self) -> None:
        """Close the clients of identities without a request for `identity.idle.ms`, and those of expired tokens.

        Called every second. Requests in progress that use a token which has expired get an error.
        """
        limit = time.monotonic() - self.settings.identity_idle_ms / 1000
        for identity, clients in list(self._clients.items()):
            if identity.is_expired or (not clients.users and clients.used_at < limit):
                self._close_clients(self._clients.pop(identity))

    def _close_clients(self, clients: _Clients) -> None:
        clients.is_closed = True
        for cluster in clients.clusters:
            cluster.close()
        for producer in clients.producers.values():
            self.close_later(producer.close)

    def close_later(self, close: Callable[[], None]) -> None:
        """Close a client in a thread. `close` of this object waits for it."""
        closing = self._loop.run_in_executor(self._threads, close)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all clients. Producers have a few seconds for their records; no request is retried."""
        self._ended.set()
        for clients in self._clients.values():
            self._close_clients(clients)
        self._clients.clear()
        if self._closing:
            await asyncio.wait(set(self._closing))
        self._threads.shutdown(wait=False, cancel_futures=True)


def _current_token(owner: Owner, config: str) -> tuple[str, float]:
    """Return the token of a client and when it expires. librdkafka asks before the last one expires."""
    identity = owner.identity
    assert identity.expires_ms is not None
    return identity.token, identity.expires_ms / 1000
