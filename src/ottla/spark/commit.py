"""Exactly once into topics: the driver's side, without Spark.

Tasks only encode record batches (``staging``) and have no effect on a topic. The driver sends the batches of a whole
micro-batch together with a token in ONE transaction. The token names the batch. So the topic holds both the rows and
the token, or neither, and a driver that replays the batch knows from the token which of the two is the case.

    1  return if there is nothing to send
    2  become the only producer of this name: InitProducerId fences older drivers and ends their transactions
    3  write a claim, acknowledged by all in-sync replicas
    4  read the token, up to the claim (``tokens`` says why)
    5  if the batch was committed before: check that it is the same batch, and return
    6  send every staged batch
    7  send the token
    8  EndTxn: the only decision
    9  keep the token, delete staging files

Steps 2 to 4 belong to the first batch of a process. A crash before 8 leaves an open transaction, which step 2 of the
next attempt aborts. After a crash after 8 the next attempt finds the token in step 5. If the answer to 8 is lost, the
request is sent again; if the process dies instead, step 4 of the next attempt finds the outcome. ``abort`` deletes
files and nothing else: Spark also calls it after a ``commit`` that raised, whose transaction may be committed already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self
from uuid import uuid4

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError, Fenced
from ottla.client.transactions import TransactionalProducer
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.spark.commit_errors import (
    BatchTooLarge,
    CheckpointMismatch,
    CommitError,
    DriverFenced,
    TransactionTimedOut,
)
from ottla.spark.source_offsets import DIGEST_HINT, offsets_digest
from ottla.spark.staging import Staged, delete_staged, read_batches
from ottla.spark.tokens import (
    TOKEN_TOPIC,
    Token,
    read_token,
    require_token_topic,
    token_batch,
    token_partition,
    write_claim,
)

TRANSACTIONAL_ID_PREFIX = "spark."

#: how many batches before the last one a token contains
_EARLIER_MAX = 15
_ADVICE_FOR_LATER_BATCHES = (
    "The checkpoint fixes the source offsets of this batch, so maxOffsetsPerTrigger makes only later batches smaller: "
    "set it in addition. To give this batch up, start with a new checkpointLocation and with startingOffsets after it"
)

Checkpoint = Callable[[str], None]


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


class CommitProtocol:
    """Commits the batches of one name until another driver takes over. Keeps its connection between batches."""

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
        self._token_partition = TopicPartition(self._settings.token_topic, token_partition(name))
        self._cluster: Cluster | None = None
        self._producer: TransactionalProducer | None = None
        #: the last batch that this process has committed or found committed
        self._last_batch_id: int | None = None
        #: the last token that this process has read or written, and the offset up to which it has read the log
        self._token: Token | None = None
        self._scanned_offset = 0

    def close(self) -> None:
        """Close the connections. The next commit starts again at step 2."""
        producer, self._producer = self._producer, None
        cluster, self._cluster = self._cluster, None
        if producer is not None:
            producer.close()
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- the protocol -----------------------------------------------------------------------------------------------

    def commit(
        self,
        batch_id: int,
        staged: Sequence[Staged],
        *,
        source_offsets: str | None = None,
        run_id: str = "",
        offsets_of: Callable[[int], str | None] = lambda batch_id: None,
    ) -> Committed:
        """Return when the rows of this batch are in their topics, once. Raise CommitError if this call failed.

        ``offsets_of`` returns the source offsets of an earlier batch in the checkpoint, None if they are not known.
        """
        rows, size_bytes = sum(task.rows for task in staged), sum(task.size_bytes for task in staged)
        digest = offsets_digest(source_offsets) if source_offsets is not None else None
        # 1. A batch without rows has no effect, so a replay needs no check.
        if not rows:
            if self._follows(batch_id):
                self._last_batch_id = batch_id
            return Committed(batch_id, 0, 0)
        try:
            # Later batches of a process know the token, because the process wrote it. If a driver has several
            # processes, any of them may get the next batch: one that missed a batch starts again at step 2.
            self._checkpoint("start")
            if self._producer is None or not self._follows(batch_id):
                self._become_producer()
            assert self._producer is not None
            # 5. An earlier attempt committed the batch before it crashed.
            self._check_history(batch_id, run_id, offsets_of)
            if self._is_committed(batch_id, digest, rows):
                self._checkpoint("found committed")
                self._last_batch_id = batch_id
                delete_staged(staged)
                return Committed(batch_id, rows, size_bytes, again=True)
            self._check_size(batch_id, size_bytes)
        except BaseException:
            self.close()
            raise
        token = self._next_token(batch_id, rows, run_id, digest)
        # 6. to 8.
        _transact(
            self._producer,
            staged,
            (self._token_partition, token_batch(self.name, token)),
            self._settings,
            self._checkpoint,
            failed=self.close,
            what=f"batch {batch_id} of {self.name}",
        )
        # 9. The batch is committed; a failure from here on does not change that.
        self._token, self._last_batch_id = token, batch_id
        delete_staged(staged)
        self._checkpoint("end")
        return Committed(batch_id, rows, size_bytes)

    def check(self, batch_id: int, source_offsets: str | None) -> None:
        """Fence older drivers. Raise CheckpointMismatch if this batch is committed with other input, or a later one."""
        try:
            self._become_producer()
            self._is_committed(batch_id, offsets_digest(source_offsets) if source_offsets is not None else None)
        finally:
            self.close()

    @staticmethod
    def abort(staged: Sequence[Staged]) -> None:
        """Remove the files. Never ends a transaction: one that looks failed from here may have been committed."""
        delete_staged(staged)

    @property
    def token(self) -> Token | None:
        """The last committed batch, as far as this process has looked."""
        return self._token

    # -- steps ------------------------------------------------------------------------------------------------------

    def _check_size(self, batch_id: int, size_bytes: int) -> None:
        """Raise BatchTooLarge if the batch does not fit into one transaction."""
        if size_bytes > self._settings.transaction_bytes_max:
            raise BatchTooLarge(
                f"batch {batch_id} of {self.name} has {size_bytes:,} bytes, one transaction may have "
                f"{self._settings.transaction_bytes_max:,}. Nothing was written. Set option "
                f"ottla.transaction.bytes.max to at least {size_bytes}, or ottla.delivery=at-least-once, and start "
                f"again. {_ADVICE_FOR_LATER_BATCHES}"
            )

    def _follows(self, batch_id: int) -> bool:
        return self._last_batch_id is not None and batch_id == self._last_batch_id + 1

    def _become_producer(self) -> None:
        self.close()
        self._cluster = cluster = self._connect()
        require_token_topic(cluster, self._settings.token_topic)
        timeout_ms = self._settings.transaction_timeout_ms
        self._producer = TransactionalProducer(cluster, TRANSACTIONAL_ID_PREFIX + self.name, timeout_ms)
        # 2. When this returns, older drivers can write no more, and their transactions have ended.
        _init(self._producer, timeout_ms)
        self._checkpoint("fenced others")
        # 3.
        claim = write_claim(cluster, self._token_partition, self.name)
        self._checkpoint("claimed")
        # 4.
        self._token, self._scanned_offset = read_token(
            cluster, self._token_partition, self.name, claim, start=self._scanned_offset, known=self._token
        )
        self._checkpoint("read token")

    def _is_committed(self, batch_id: int, digest: str | None, rows: int | None = None) -> bool:
        """Return whether the topic has this batch. Raise CheckpointMismatch if it has another one in its place.

        Spark replays the last batch and no other; anything else is a checkpoint from another time. Without digests the
        last batch is taken for the same one only if it has as many rows.
        """
        token = self._token
        if token is None or token.batch_id < batch_id:
            return False
        remembered, committed_digest = token.digest_of(batch_id)
        if remembered and digest is not None and committed_digest is not None:
            same = digest == committed_digest
        elif digest is not None:
            # A batch of an earlier release, or the first one that is written with ottla.batch.digest.
            same = batch_id == token.batch_id
        else:
            same = batch_id == token.batch_id and committed_digest is None and rows in (None, token.rows)
        if same:
            return True
        raise self._mismatch(token, batch_id, DIGEST_HINT if digest is None else "")

    def _check_history(self, batch_id: int, run_id: str, offsets_of: Callable[[int], str | None]) -> None:
        """Raise CheckpointMismatch if the checkpoint has another batch in place of the last committed one.

        The batches between both had no rows and were not compared. If the last committed batch is another one in the
        checkpoint, one of them may have taken its number, and this batch may have rows that are committed already. The
        checkpoint does not change during one run of a query.
        """
        token = self._token
        if token is None or token.batch_id >= batch_id or token.offsets is None or token.run_id == run_id != "":
            return
        planned = offsets_of(token.batch_id)
        if planned is not None and offsets_digest(planned) != token.offsets:
            raise self._mismatch(token, token.batch_id, "")

    def _mismatch(self, token: Token, batch_id: int, hint: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"the topic already holds batches up to {token.batch_id} of {self.name}, and batch {batch_id} of the "
            f"checkpoint is not the one that was committed: it covers other source offsets, {hint}or is too old to "
            "tell. The checkpoint was restored from an older copy, or another run continues from it. Nothing was "
            "written. Use the newest checkpoint; or start with a new checkpointLocation and startingOffsets of your "
            "choice, which writes everything from there once more"
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
    """Write all rows of a job that is never replayed, or none: a transaction without a token."""
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
    """Do steps 6 to 8. After an exception, abort the transaction if EndTxn was not sent, and call ``failed``."""
    began = time.monotonic()
    deciding = False
    try:
        producer.begin()
        # 6. In the order of the tasks, so that rows of one task keep their order.
        for task in staged:
            for partition, batch in read_batches(task):
                producer.send(partition, batch)
                checkpoint("sending")
        checkpoint("sent")
        # 7. The token is the last batch of the transaction. All batches must be in the log before the decision.
        if token is not None:
            producer.send(*token)
        producer.flush()
        checkpoint("sent token")
        # 8. If this request or its answer is lost, only the log has the outcome.
        deciding = True
        producer.commit()
        checkpoint("decided")
    except BaseException as error:
        if not deciding and not isinstance(error, Fenced):
            # EndTxn was not sent, so an abort is safe, and readers need not wait for the transaction to time out.
            with suppress(ClientError, OSError):
                producer.abort()
        failed()
        if isinstance(error, BrokerError) and (isinstance(error, Fenced) or error.code == ErrorCode.INVALID_TXN_STATE):
            advice = _ADVICE_FOR_LATER_BATCHES if token is not None else "Or write the job in several parts"
            elapsed_s = time.monotonic() - began
            raise _explain_taken(error, what, elapsed_s, settings.transaction_timeout_ms, advice) from error
        raise


def _explain_taken(error: BrokerError, what: str, elapsed_s: float, timeout_ms: int, advice: str) -> CommitError:
    """Return the error for a transaction that another driver has fenced, or that the broker has ended."""
    if isinstance(error, Fenced) and error.outcome_unknown:
        return DriverFenced(
            f"another driver has taken over while {what} was being committed. Whether it is in the topic is known to "
            "that driver, and to this query when it is started again; stop one of the two"
        )
    if elapsed_s * 1000 >= timeout_ms:
        return TransactionTimedOut(
            f"{what} took {elapsed_s:.1f} s to send, and the broker aborts a transaction after {timeout_ms / 1000:g} "
            "s. Nothing of it is visible. Raise option kafka.transaction.timeout.ms, at most to the broker's "
            f"transaction.max.timeout.ms, and start again. {advice}"
        )
    return DriverFenced(
        f"another driver has taken over while {what} was being written; this one wrote nothing. Two runs share one "
        "checkpoint: stop one of them. If none is left, start the query again"
    )
