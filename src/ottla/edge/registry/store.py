"""The topic `_schemas`: one thread reads it, one appends to it. The results go to the event loop.

The leader appends in transactions with one transactional id for all instances. Its first transaction fences every
earlier leader: a process that was paused while another one took over cannot append any more, so no id can name two
schemas. A transaction also makes all records of one change visible at once. Readers use `read_committed`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ottla.client.batches import data_batches
from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, ClientError, Fenced, OffsetOutOfRange, OutcomeUnknown, TimedOut
from ottla.client.fetching import Fetched, PartitionReader
from ottla.client.transactions import TransactionalProducer
from ottla.edge.registry.records import Record
from ottla.env.tasks import keep_thread
from ottla.model.errors import ErrorCode, StartError
from ottla.model.records import Record as LogRecord
from ottla.model.records import build_batch, iterate_records
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

TOPIC_DEFAULT: Final = "_schemas"
#: replicas of a new topic, if the cluster has that many brokers
REPLICATION_FACTOR_DEFAULT: Final = 3
_NO_END: Final = 2**63 - 1
_PAUSE_S: Final = 0.5
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
#: how long one request to the cluster is retried
TIMEOUT_S: Final = 15.0
CLIENT_ID: Final = "ottla-registry"


class Applied(NamedTuple):
    """A record that was read."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp_ms: int


class StoreSettings(NamedTuple):
    """Where the topic is, and how to reach it."""

    bootstrap: str
    properties: Mapping[str, str]
    topic: str = TOPIC_DEFAULT
    replication_factor: int = REPLICATION_FACTOR_DEFAULT
    #: when it is set, requests to the cluster are not tried again
    ended: threading.Event | None = None

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def connect(self, timeout_s: float = TIMEOUT_S, client_id: str = CLIENT_ID) -> Cluster:
        return Cluster(self.bootstrap, self.properties, client_id=client_id, timeout_s=timeout_s, ended=self.ended)

    def offset(self, cluster: Cluster, at: int, isolation: Isolation = Isolation.READ_COMMITTED) -> int:
        """Return the first offset of the topic (EARLIEST), or its end (LATEST)."""
        return cluster.list_offsets({self.partition: at}, isolation=isolation)[self.partition].offset


def prepare_topic(settings: StoreSettings, setting: str = "kafkastore.topic") -> None:
    """Create the topic if it does not exist. Raise StartError if it cannot be the topic of a registry.

    ``setting`` is the name of the setting that names the topic.
    """
    with settings.connect() as cluster:
        replicas = min(settings.replication_factor, len(cluster.brokers()))
        known = cluster.topics([settings.topic]).get(settings.topic)
        if known is None:
            cluster.create_topic(settings.topic, 1, {"cleanup.policy": "compact"}, replication_factor=replicas)
            known = cluster.topics([settings.topic])[settings.topic]
        if known.partitions != 1:
            raise StartError(
                f"the topic {settings.topic} has {known.partitions} partitions; a registry needs one: name another "
                f"topic with {setting}"
            )
        policy = cluster.topic_config(settings.topic, ["cleanup.policy"]).get("cleanup.policy")
        if policy is not None and "compact" not in policy:
            raise StartError(
                f"the topic {settings.topic} has cleanup.policy={policy}, which deletes what is needed; set it to "
                f"compact: ottla topic config {settings.topic} cleanup.policy=compact"
            )


class Reader:
    """Reads the topic from its beginning, for as long as the process lives, in a thread of its own."""

    def __init__(
        self, settings: StoreSettings, deliver: Callable[[list[Applied], int], None], failed: Callable[[str], None]
    ) -> None:
        """`deliver` gets the records and the offset up to which everything was read. Both are called in the thread."""
        self._settings = settings
        self._deliver, self._failed = deliver, failed
        self._is_stopped = threading.Event()
        #: offset of the next record; -1 before the first
        self._position = -1
        #: producers whose transaction is known to be aborted
        self._aborted: dict[int, int] = {}
        self._thread = keep_thread(self._run, "registry-reader")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread with its next answer from the cluster. Does not wait: it holds nothing that must be saved."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                with self._settings.connect() as cluster:
                    if self._position < 0:
                        self._position = self._settings.offset(cluster, EARLIEST)
                        self._deliver([], self._position)
                    reader = PartitionReader(
                        cluster, self._settings.partition, self._position, _NO_END, isolation=Isolation.READ_COMMITTED
                    )
                    with reader:
                        while not self._is_stopped.is_set():
                            records = records_of(next(reader), self._position, self._aborted)
                            self._position = reader.position
                            self._deliver(records, self._position)
            except TimedOut:
                continue
            except OffsetOutOfRange as error:
                self._failed(f"the topic was truncated or deleted: {error}; start the registry again")
                return
            except ClientError as error:
                log.warning("reading %s: %s", self._settings.topic, error)
                self._is_stopped.wait(_PAUSE_S)


def records_of(fetched: Fetched, position: int, aborted: dict[int, int]) -> list[Applied]:
    """Return the records at or after `position` of committed transactions and of no transaction."""
    records: list[Applied] = []
    for _, batch in data_batches(fetched, aborted):
        for record in iterate_records(batch):
            if record.offset >= position and record.key is not None:
                records.append(Applied(bytes(record.key), _bytes(record.value), record.offset, record.timestamp))
    return records


def _bytes(value: bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def read_up_to(settings: StoreSettings, start: int, end: int | None = None) -> tuple[list[Applied], int]:
    """Return committed records of the topic from an offset on, and the offset that follows them.

    With `end`, return the next few megabytes before it; without it, everything. Offsets that the topic does not have
    any more are left out. Blocks.
    """
    with settings.connect() as cluster:
        position, records = max(start, settings.offset(cluster, EARLIEST)), list[Applied]()
        last = settings.offset(cluster, LATEST) if end is None else end
        aborted: dict[int, int] = {}
        isolation = Isolation.READ_COMMITTED
        with PartitionReader(cluster, settings.partition, position, last, isolation=isolation) as reader:
            for fetched in reader:
                records += [row for row in records_of(fetched, position, aborted) if row.offset < last]
                # The broker sends what it has, also behind the end.
                position = min(reader.position, last)
                if end is not None:
                    break
        return records, position


class LeadershipLost(Exception):
    """Another instance has become the leader. Nothing was appended."""


class WriteUncertain(Exception):
    """It is not known whether the records were appended."""


class TooLarge(Exception):
    """The records are larger than the topic allows. Nothing was appended."""


class Writer:
    """Appends to the topic as the leader. Its calls run in one thread, one after another."""

    def __init__(self, settings: StoreSettings, transactional_id: str) -> None:
        self._settings = settings
        self._transactional_id = transactional_id
        self._thread = ThreadPoolExecutor(1, "registry-writer")
        self._cluster: Cluster | None = None
        self._producer: TransactionalProducer | None = None

    async def become_leader(self) -> int:
        """Fence every earlier leader. Return the end of the topic: read up to it before the first decision."""
        return await self._call(self._fence)

    async def append(self, batches: Mapping[str, Sequence[Record]]) -> int:
        """Append the records of each topic in one transaction.

        Return an offset of the topic of the schemas: the change is applied when it was read up to there.

        Raise LeadershipLost if another instance has fenced this one, TooLarge if the topic does not allow records of
        this size, and WriteUncertain if the outcome is not known. After each of them, call
        `become_leader` before the next append.
        """
        return await self._call(lambda: self._append(batches))

    def close(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    async def _call(self, work: Callable[[], int]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _fence(self) -> int:
        self._close()
        self._cluster = self._settings.connect()
        self._producer = TransactionalProducer(self._cluster, self._transactional_id)
        self._producer.init()
        return self._end()

    def _append(self, batches: Mapping[str, Sequence[Record]]) -> int:
        assert self._producer is not None
        now_ms = int(time.time() * 1000)
        try:
            self._producer.begin()
            for topic, records in batches.items():
                rows = [LogRecord(timestamp=now_ms, key=row.key, value=row.value) for row in records]
                self._producer.send(TopicPartition(topic, 0), bytearray(build_batch(rows)))
            self._producer.commit()
            return self._end()
        except Fenced as error:
            self._close()
            if error.outcome_unknown:
                raise WriteUncertain(str(error)) from error
            raise LeadershipLost(str(error)) from error
        except OutcomeUnknown as error:
            self._close()
            raise WriteUncertain(str(error)) from error
        except ClientError as error:
            self._abort()
            if isinstance(error, BrokerError) and error.code in _TOO_LARGE:
                raise TooLarge(str(error)) from error
            raise WriteUncertain(str(error)) from error

    def _abort(self) -> None:
        try:
            if self._producer is not None:
                self._producer.abort()
        except ClientError as error:
            log.warning("a transaction could not be aborted; the next leader does it: %s", error)
        self._close()

    def _end(self) -> int:
        """Return the end of the topic, open transactions included: a reader gets there when they have ended."""
        assert self._cluster is not None
        return self._settings.offset(self._cluster, LATEST, Isolation.READ_UNCOMMITTED)

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
