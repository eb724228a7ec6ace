"""Exactly once into topics: the driver's side, without Spark.

Tasks only encode record batches (``staging``) and touch nothing. The driver sends the batches of a whole micro-batch
together with a token in ONE transaction; the token says which batch it was. So either the rows and the token are
there, or neither is, and whoever replays the batch finds out by the token.

    1  nothing to send: done             2  become the only producer of this name: InitProducerId fences older drivers
    3  read the token, after 2           4  the batch was committed before: check that it is the same one, done
    5  send every staged batch           6  send the token
    7  EndTxn: the only decision         8  remember the token, remove staging files

A crash before 7 leaves an open transaction, which step 2 of the next attempt aborts. A crash after 7 is noticed in
step 4. When the answer to 7 is lost, the same question is asked again; when the process dies instead, step 3 of the
next attempt knows. ``abort`` removes files and nothing else: Spark also calls it after a ``commit`` that raised, whose
transaction may have been decided already.

Tokens live in a compacted topic under the name of the query and sink. Its partitions are shared with other queries,
whose open transactions hold back the last stable offset; so the token is not read with read_committed, which would hide
a committed token behind a stranger's open transaction. After step 2 every transaction of this name has its marker in
the log, and the markers decide.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self
from uuid import uuid4

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, ClientError, Fenced
from ottla.client.fetching import PartitionReader
from ottla.client.transactions import TransactionalProducer
from ottla.model.batch import CONTROL, HEADER_BYTES, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.types import TopicPartition
from ottla.spark.source_offsets import offsets_digest
from ottla.spark.staging import Staged, delete_staged, read_batches

TOKEN_TOPIC = "__spark_commits"
#: a name's partition must never change, so it depends on this number and not on what the topic has
TOKEN_PARTITIONS = 8
TOKEN_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
TRANSACTIONAL_ID_PREFIX = "spark."

#: how many batches before the last a token remembers
_EARLIER_MAX = 15
_SCHEMA_VERSION = 1
_COMMIT_MARKER = 1
_READ_WAIT_MS = 100

Checkpoint = Callable[[str], None]


class CommitError(Exception):
    """The batch was not committed by this call; the text says what to do."""


class DriverFenced(CommitError):
    """Another driver has become the producer of this name."""


class TransactionTimedOut(CommitError):
    """The broker gave up on the transaction before it was complete."""


class BatchTooLarge(CommitError):
    """More bytes than one transaction may have."""


class CheckpointMismatch(CommitError):
    """The topic holds this batch, but it was made of other input."""


class Committed(NamedTuple):
    """What became of a batch."""

    batch_id: int
    rows: int
    size_bytes: int
    #: an earlier attempt had committed it
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    token_topic: str = TOKEN_TOPIC
    #: must cover the time in which the largest batch is sent
    transaction_timeout_ms: int = 300_000
    transaction_bytes_max: int = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The last committed batch of a name, and what a few before it were made of."""

    batch_id: int
    rows: int
    run_id: str = ""
    #: digest of the source offsets behind the batch; None when they were not known
    offsets: str | None = None
    earlier: tuple[tuple[int, str | None], ...] = ()

    def digest_of(self, batch_id: int) -> tuple[bool, str | None]:
        """Whether this batch is remembered, and its digest."""
        for known_id, digest in ((self.batch_id, self.offsets), *self.earlier):
            if known_id == batch_id:
                return True, digest
        return False, None

    def to_json(self) -> bytes:
        fields = {
            "schemaVer": _SCHEMA_VERSION, "batch": self.batch_id, "rows": self.rows, "runId": self.run_id,
            "offsets": self.offsets, "earlier": self.earlier,
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Token:
        fields = json.loads(data)
        if fields["schemaVer"] > _SCHEMA_VERSION:
            raise CommitError(
                f"the token of this query has schema version {fields['schemaVer']}, this release of ottla knows "
                f"{_SCHEMA_VERSION}: run the query with the release that wrote it, or a newer one"
            )
        return cls(
            batch_id=fields["batch"],
            rows=fields["rows"],
            run_id=fields["runId"],
            offsets=fields["offsets"],
            earlier=tuple((batch_id, digest) for batch_id, digest in fields["earlier"]),
        )


class CommitProtocol:
    """The only committing party of one name, as long as nobody else claims it. Keeps its connection between batches."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        name: str,
        settings: CommitSettings | None = None,
        *,
        checkpoint: Checkpoint = lambda step: None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._settings = settings or CommitSettings()
        #: called by name between the steps
        self._checkpoint = checkpoint
        self._token_partition = TopicPartition(self._settings.token_topic, _token_partition(name))
        self._cluster: Cluster | None = None
        self._producer: TransactionalProducer | None = None
        #: the last batch that this process saw through
        self._last_batch_id: int | None = None
        #: the newest that is known to be committed, and the offset up to which the log was searched for it
        self._token: Token | None = None
        self._scanned_offset = 0

    def close(self) -> None:
        """Let go of the producer; the next commit becomes it again."""
        producer, self._producer = self._producer, None
        cluster, self._cluster = self._cluster, None
        if producer is not None:
            producer.close()
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- the protocol -----------------------------------------------------------------------------------------------

    def commit(
        self, batch_id: int, staged: Sequence[Staged], *, source_offsets: str | None = None, run_id: str = ""
    ) -> Committed:
        """Make the rows of this batch part of their topics, once. Returns only when that is so."""
        rows, size_bytes = sum(task.rows for task in staged), sum(task.size_bytes for task in staged)
        digest = offsets_digest(source_offsets) if source_offsets is not None else None
        # 1. A batch without rows has no effect, so it may be replayed as often as anybody likes.
        if not rows:
            if self._follows(batch_id):
                self._last_batch_id = batch_id
            return Committed(batch_id, 0, 0)
        self._guard_size(batch_id, size_bytes)
        try:
            # 2. and 3. belong to the first batch of a process: later ones know the token, for they wrote it. Of
            # several processes of one driver any may get the next batch: one that missed a batch begins anew.
            self._checkpoint("start")
            if self._producer is None or not self._follows(batch_id):
                self._become_producer()
            assert self._producer is not None
            # 4. An earlier attempt was faster than its crash.
            if self._is_committed(batch_id, digest):
                self._checkpoint("found committed")
                self._last_batch_id = batch_id
                delete_staged(staged)
                return Committed(batch_id, rows, size_bytes, again=True)
        except BaseException:
            self.close()
            raise
        token = self._next_token(batch_id, rows, run_id, digest)
        # 5. to 7.
        _transact(
            self._producer,
            staged,
            (self._token_partition, _token_batch(self.name, token)),
            self._settings,
            self._checkpoint,
            failed=self.close,
            what=f"batch {batch_id} of {self.name}",
        )
        # 8. From here on nothing can fail that matters.
        self._token, self._last_batch_id = token, batch_id
        delete_staged(staged)
        self._checkpoint("end")
        return Committed(batch_id, rows, size_bytes)

    @staticmethod
    def abort(staged: Sequence[Staged]) -> None:
        """Remove the files. Never ends a transaction: one that looks failed from here may have been committed."""
        delete_staged(staged)

    @property
    def token(self) -> Token | None:
        """The last committed batch, as far as this process has looked."""
        return self._token

    # -- steps ------------------------------------------------------------------------------------------------------

    def _guard_size(self, batch_id: int, size_bytes: int) -> None:
        if size_bytes > self._settings.transaction_bytes_max:
            raise BatchTooLarge(
                f"batch {batch_id} of {self.name} has {size_bytes:,} bytes, one transaction may have "
                f"{self._settings.transaction_bytes_max:,}: read less per batch (maxOffsetsPerTrigger), raise "
                "ottla.transaction.bytes.max, or write with ottla.delivery=at-least-once"
            )

    def _follows(self, batch_id: int) -> bool:
        return self._last_batch_id is not None and batch_id == self._last_batch_id + 1

    def _become_producer(self) -> None:
        self.close()
        self._cluster = cluster = self._connect()
        _require_token_topic(cluster, self._settings.token_topic)
        timeout_ms = self._settings.transaction_timeout_ms
        self._producer = TransactionalProducer(cluster, TRANSACTIONAL_ID_PREFIX + self.name, timeout_ms)
        # 2. Older drivers can write no more, and whatever they left open is decided when this returns.
        _init(self._producer, timeout_ms)
        self._checkpoint("fenced others")
        # 3.
        self._token, self._scanned_offset = read_token(
            cluster, self._token_partition, self.name, start=self._scanned_offset, known=self._token
        )
        self._checkpoint("read token")

    def _is_committed(self, batch_id: int, digest: str | None) -> bool:
        """Spark replays the last batch and no other; anything else is a checkpoint from another time."""
        token = self._token
        if token is None or token.batch_id < batch_id:
            return False
        remembered, committed_digest = token.digest_of(batch_id)
        if remembered and digest is not None and committed_digest is not None:
            same = digest == committed_digest
        else:
            same = batch_id == token.batch_id
        if same:
            return True
        raise CheckpointMismatch(
            f"the topic already holds batches up to {token.batch_id} of {self.name}, and batch {batch_id} of the "
            "checkpoint is not the one that was committed: it covers other source offsets, or is too old to tell. The "
            "checkpoint was restored from an older copy, or another run goes on from it. Nothing was written. Use the "
            "newest checkpoint; or start with a new checkpointLocation and startingOffsets of your choice, which "
            "writes everything from there once more"
        )

    def _next_token(self, batch_id: int, rows: int, run_id: str, digest: str | None) -> Token:
        earlier: tuple[tuple[int, str | None], ...] = ()
        if self._token is not None:
            earlier = ((self._token.batch_id, self._token.offsets), *self._token.earlier)[:_EARLIER_MAX]
        return Token(batch_id=batch_id, rows=rows, run_id=run_id, offsets=digest, earlier=earlier)


def commit_once(
    connect: Callable[[], Cluster],
    staged: Sequence[Staged],
    settings: CommitSettings | None = None,
    *,
    checkpoint: Checkpoint = lambda step: None,
) -> Committed:
    """All rows of a job that nobody will replay, or none: a transaction without a token."""
    settings = settings or CommitSettings()
    rows, size_bytes = sum(task.rows for task in staged), sum(task.size_bytes for task in staged)
    if not rows:
        return Committed(-1, 0, 0)
    if size_bytes > settings.transaction_bytes_max:
        raise BatchTooLarge(
            f"the job has {size_bytes:,} bytes, one transaction may have {settings.transaction_bytes_max:,}: write in "
            "parts, raise ottla.transaction.bytes.max, or write with ottla.delivery=at-least-once"
        )
    timeout_ms = settings.transaction_timeout_ms
    transactional_id = f"{TRANSACTIONAL_ID_PREFIX}job.{uuid4()}"
    with connect() as cluster, TransactionalProducer(cluster, transactional_id, timeout_ms) as producer:
        _init(producer, timeout_ms)
        _transact(producer, staged, None, settings, checkpoint, failed=lambda: None, what="the job")
    delete_staged(staged)
    return Committed(-1, rows, size_bytes)


def _init(producer: TransactionalProducer, timeout_ms: int) -> None:
    try:
        producer.init()
    except BrokerError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise CommitError(
            f"the broker does not allow transactions of {timeout_ms} ms: lower option kafka.transaction.timeout.ms, or "
            "raise the broker's transaction.max.timeout.ms"
        ) from error


def _transact(
    producer: TransactionalProducer,
    staged: Sequence[Staged],
    token: tuple[TopicPartition, bytearray] | None,
    settings: CommitSettings,
    checkpoint: Checkpoint,
    *,
    failed: Callable[[], None],
    what: str,
) -> None:
    """Steps 5 to 7. On the way out by an exception ``failed`` is called, after an abort where one is no guess."""
    began = time.monotonic()
    deciding = False
    try:
        producer.begin()
        # 5. In the order of the tasks, so that rows of one task keep their order.
        for task in staged:
            for partition, batch in read_batches(task):
                producer.send(partition, batch)
                checkpoint("sending")
        checkpoint("sent")
        # 6. The token is the last of the transaction, and everything must be in the log before the decision.
        if token is not None:
            producer.send(*token)
        producer.flush()
        checkpoint("sent token")
        # 7. Whatever happens to this request or its answer, from here on only the log knows the outcome.
        deciding = True
        producer.commit()
        checkpoint("decided")
    except BaseException as error:
        if not deciding and not isinstance(error, Fenced):
            # EndTxn was never sent, so this is no guess: readers need not wait for the transaction to time out.
            with suppress(ClientError, OSError):
                producer.abort()
        failed()
        if isinstance(error, BrokerError) and (isinstance(error, Fenced) or error.code == ErrorCode.INVALID_TXN_STATE):
            raise _explain_taken(error, what, time.monotonic() - began, settings.transaction_timeout_ms) from error
        raise


def _explain_taken(error: BrokerError, what: str, elapsed_s: float, timeout_ms: int) -> CommitError:
    """The transaction is no longer ours: another driver began, or the broker ended it."""
    if isinstance(error, Fenced) and error.outcome_unknown:
        return DriverFenced(
            f"another driver has taken over while {what} was being committed. Whether it is in the topic is known to "
            "that driver, and to this query when it is started again; stop one of the two"
        )
    if elapsed_s * 1000 >= timeout_ms:
        return TransactionTimedOut(
            f"{what} took {elapsed_s:.1f} s to send, and the broker ends transactions after {timeout_ms / 1000:g} s. "
            "Nothing of it is visible. Raise option kafka.transaction.timeout.ms, or read less per batch "
            "(maxOffsetsPerTrigger), and start again"
        )
    return DriverFenced(
        f"another driver has taken over while {what} was being written; this one wrote nothing. Two runs share one "
        "checkpoint: stop one of them. If none is left, start the query again"
    )


# -- tokens ---------------------------------------------------------------------------------------------------------


def read_token(
    cluster: Cluster, partition: TopicPartition, name: str, *, start: int = 0, known: Token | None = None
) -> tuple[Token | None, int]:
    """The last token of a name all of whose transactions have ended, and the end of the log.

    ``known`` was the last one when the log ended at ``start``.
    """
    first = cluster.list_offsets({partition: EARLIEST}, isolation=Isolation.READ_UNCOMMITTED)[partition].offset
    end = cluster.list_offsets({partition: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[partition].offset
    if not first <= start <= end:
        start, known = first, None
    scan = _TokenScan(name)
    if start < end:
        with PartitionReader(
            cluster, partition, start, end, isolation=Isolation.READ_UNCOMMITTED, wait_ms=_READ_WAIT_MS
        ) as reader:
            for fetched in reader:
                scan.feed(fetched.data, end)
    if scan.undecided:
        raise CommitError(
            f"{partition} has a token of {name} in a transaction that nobody has ended, after its producer was fenced: "
            "look at it with `ottla txn list`, and start again when it is over"
        )
    return (Token.from_json(scan.value) if scan.value is not None else known), end


class _TokenScan:
    """The tokens of one name in the order of the log. A marker decides what its producer wrote before it."""

    def __init__(self, name: str) -> None:
        self.value: bytes | None = None
        self.undecided: dict[int, bytes | None] = {}
        self._key = name.encode()

    def feed(self, data: memoryview, end: int) -> None:
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            next_position = position + header.size_bytes
            if next_position > len(data) or header.base_offset >= end:
                return
            batch = bytes(data[position:next_position])
            position = next_position
            if header.attributes & CONTROL:
                self._decide(header.producer_id, batch)
            elif self._key in batch:
                self._note(header.producer_id, bool(header.attributes & TRANSACTIONAL), batch)

    def _note(self, producer_id: int, transactional: bool, batch: bytes) -> None:
        for record in iterate_records(batch):
            if record.key != self._key:
                continue
            if transactional:
                self.undecided[producer_id] = record.value
            else:
                self.value = record.value

    def _decide(self, producer_id: int, marker: bytes) -> None:
        if producer_id not in self.undecided:
            return
        value = self.undecided.pop(producer_id)
        for record in iterate_records(marker):
            assert record.key is not None
            # The key of a marker: version, then 0 for abort and 1 for commit, each in two bytes.
            if int.from_bytes(record.key[2:4]) == _COMMIT_MARKER:
                self.value = value


def _require_token_topic(cluster: Cluster, topic: str) -> None:
    found = cluster.topics([topic]).get(topic)
    if found is None:
        cluster.create_topic(topic, TOKEN_PARTITIONS, TOKEN_CONFIG)
    elif found.partitions < TOKEN_PARTITIONS:
        raise CommitError(
            f"topic {topic} has {found.partitions} partitions, tokens need {TOKEN_PARTITIONS}: add partitions, with "
            f"`ottla topic alter {topic} --partitions {TOKEN_PARTITIONS}` for example"
        )


def _token_partition(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % TOKEN_PARTITIONS


def _token_batch(name: str, token: Token) -> bytearray:
    timestamp_ms = int(time.time() * 1000)
    return bytearray(build_batch([Record(timestamp=timestamp_ms, key=name.encode(), value=token.to_json())]))
