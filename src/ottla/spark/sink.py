"""The writers of ``format("ottla")``: which methods Spark calls, and where.

Spark creates a stream writer for every batch in three kinds of processes: the planner, the tasks (``write``) and the
driver's committing process (``commit``, ``abort``). They exchange only options and commit messages. The committing
process lives longer than a batch, so it keeps its producers.

Exactly once: tasks stage batches, the driver commits them (``commit``). At least once: tasks produce.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.env.private_directory import NotPrivate, private_directory
from ottla.spark.checkpoint_files import synced_checkpoint
from ottla.spark.clusters import open_cluster
from ottla.spark.columns import RowsRefused, check_written_columns
from ottla.spark.commit import Checkpoint, CommitProtocol, CommitSettings, commit_once
from ottla.spark.options import Connection
from ottla.spark.source_offsets import read_earlier_offsets, read_source_offsets
from ottla.spark.spark_internals import stream_task
from ottla.spark.staging import (
    JOBS,
    Staged,
    StagingError,
    StagingWriter,
    delete_staged,
    inline_share,
    staging_file,
    sweep,
    this_host,
)
from ottla.spark.stored_files import is_local
from ottla.spark.write_options import Delivery, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.outgoing import Emit, Outgoing
    from ottla.spark.schema_columns import EncodedColumns

_STAGING = "ottla-staging"
#: a worker requests the number of partitions of a topic again after this time
_PARTITIONS_AGE_S_MAX = 30.0
#: a job that stages for longer than this has its files swept by others
_JOB_S_MAX = 3 * 86_400
_SWEEP_BATCHES = 64

_partition_counts: dict[tuple[str, str], tuple[int, float]] = {}
_sweep_again_at: dict[str, int] = {}
#: a protocol that was not used for so long is replaced by a new one, because brokers close idle connections
_PROTOCOL_AGE_S_MAX = 60.0
#: by bootstrap servers and name: the options that the protocol was made from, the protocol, and when it was last used
_protocols: dict[tuple[str, str], tuple[tuple[Connection, CommitSettings], CommitProtocol, float]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMessage(WriterCommitMessage):
    """The result of a task, for the driver."""

    staged: Staged
    #: of streams: the same in every run from one checkpoint
    query_id: str = ""
    run_id: str = ""


class TopicWriting:
    """What both writers have in common: tasks stage rows, or produce them if the delivery is at least once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        types = {each.name: each.dataType.simpleString() for each in schema.fields}
        check_written_columns(types, options.topic, encoded=[each.part for each in options.schemas])
        self.options = options
        self.driver_host = this_host()
        self.encoded = _encoded_columns(options, schema)

    def write_rows(self, rows: Iterator[pa.RecordBatch], owner: str, number: int) -> Staged:
        """Write the rows of a task; a file with staged rows belongs to this owner and has this number."""
        rows = rows if self.encoded is None else self.encoded.encode(rows)
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            _produce_rows(self.options, rows)
            return Staged()
        directory = staging_directory(self.options, self.driver_host)
        return _stage_rows(self.options, staging_file(directory, owner, number) if directory else None, rows)

    def checkpoint(self, step: str) -> None:
        """Called between the steps of a commit."""


class StreamWriter(TopicWriting, DataSourceStreamArrowWriter):
    """One micro-batch of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        task = stream_task(required=True)
        staged = self.write_rows(iterator, self._name(task.query_id), task.batch_id or 0)
        return StagedMessage(staged=staged, query_id=task.query_id, run_id=task.run_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch. Spark calls it on the driver when every task has succeeded."""
        staged = _staged(messages)
        if self.options.delivery is Delivery.AT_LEAST_ONCE or not any(task.rows for task in staged):
            return
        first = next(message for message in messages if isinstance(message, StagedMessage))
        source_offsets = read_source_offsets(self.options.checkpoint_location, batchId)
        protocol = _protocol(self.options, self._name(first.query_id), self.checkpoint)
        checkpoint = self.options.checkpoint_location
        assert checkpoint is not None, "read_source_offsets has raised without one"
        with synced_checkpoint(checkpoint, batchId):
            protocol.commit(
                batchId, staged, source_offsets=source_offsets, run_id=first.run_id,
                offsets_of=partial(read_earlier_offsets, checkpoint),
            )  # fmt: skip
        _maybe_sweep(self.options, protocol.name, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete staged files. Spark calls it on the driver when a task or ``commit`` has failed."""
        CommitProtocol.abort(_staged(messages))

    def _name(self, query_id: str) -> str:
        return f"{query_id}.{self.options.sink_name}" if self.options.sink_name else query_id


class BatchWriter(TopicWriting, DataSourceArrowWriter):
    """One job: all of its rows or none. Inside foreachBatch, with a name and a batch id, each batch once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise RowsRefused('a topic cannot be overwritten: write with mode("append")')
        super().__init__(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return StagedMessage(staged=self.write_rows(iterator, JOBS, int(time.time())))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return
        if self.options.sink_name is not None and self.options.batch_id is not None:
            protocol = _protocol(self.options, self.options.sink_name, self.checkpoint)
            protocol.commit(self.options.batch_id, staged, source_offsets=self.options.batch_digest)
        else:
            connect = partial(open_cluster, self.options.connection)
            commit_once(connect, staged, _settings(self.options), checkpoint=self.checkpoint)
        directory = staging_directory(self.options, this_host())
        if directory is not None:
            sweep(directory, JOBS, int(time.time()) - _JOB_S_MAX)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        delete_staged(_staged(messages))


def _encoded_columns(options: WriteOptions, schema: StructType) -> EncodedColumns | None:
    if not options.schemas:
        return None
    from ottla.spark.schema_columns import EncodedColumns

    return EncodedColumns.of(options.schemas, schema)


# -- tasks ----------------------------------------------------------------------------------------------------------


def _stage_rows(options: WriteOptions, file: str | None, rows: Iterator[pa.RecordBatch]) -> Staged:
    task = TaskContext.get()
    share = inline_share(task.partitionId() if task is not None else 0, options.inline_bytes_max)
    staging = StagingWriter(file, inline_bytes_max=share)
    try:
        _outgoing(options, staging.add).write(rows)
        return staging.finish()
    except BaseException:
        staging.discard()
        raise


def _produce_rows(options: WriteOptions, rows: Iterator[pa.RecordBatch]) -> None:
    with open_cluster(options.connection) as cluster, cluster.producer() as producer:
        _outgoing(options, lambda partition, batch, _: producer.send(partition, batch)).write(rows)
        producer.flush()


def _outgoing(options: WriteOptions, emit: Emit) -> Outgoing:
    # Only tasks need the encoder; processes that commit start faster without it.
    from ottla.spark.outgoing import Outgoing

    return Outgoing(
        topic=options.topic,
        partition_count=lambda topic: _partition_count(options, topic),
        codec=options.codec,
        batch_bytes_max=options.batch_bytes_max,
        now_ms=lambda: int(time.time() * 1000),
        emit=emit,
        # Tasks begin at different partitions; otherwise a small batch would use only the first one.
        sticky=random.randrange(1 << 16),
    )


def _partition_count(options: WriteOptions, topic: str) -> int:
    key, now = (options.connection.bootstrap, topic), time.monotonic()
    count, expires = _partition_counts.get(key, (0, 0.0))
    if now >= expires:
        with open_cluster(options.connection) as cluster:
            found = cluster.topics([topic]).get(topic)
        if found is None:
            raise RowsRefused(f"topic {topic} does not exist: create it, with `ottla topic create {topic}` for example")
        count = found.partitions
        _partition_counts[key] = (count, now + _PARTITIONS_AGE_S_MAX)
    return count


def staging_directory(options: WriteOptions, driver_host: str) -> str | None:
    """Return the staging directory of this process; None if it knows none that the driver can read as well."""
    if options.staging_directory is not None:
        return options.staging_directory
    location = options.checkpoint_location
    if location is not None and not is_local(location):
        return f"{location.rstrip('/')}/{_STAGING}"
    if this_host() != driver_host:
        return None
    if location is not None:
        return f"{location.rstrip('/')}/{_STAGING}"
    try:
        return str(private_directory(_STAGING))
    except NotPrivate as error:
        raise StagingError(f"{error}, or set option stagingDir") from None


# -- the driver -----------------------------------------------------------------------------------------------------


def _protocol(options: WriteOptions, name: str, checkpoint: Checkpoint) -> CommitProtocol:
    """Return the protocol of a name, a new one if its last batch was long ago or had other options.

    The committing process outlives a query, and that of a pipeline commits for all its flows. A query that is started
    again with a longer timeout, for example, must not get the protocol with the old one.
    """
    key, used, now = (options.connection.bootstrap, name), (options.connection, _settings(options)), time.monotonic()
    known = _protocols.get(key)
    if known is not None and (known[0] != used or now - known[2] > _PROTOCOL_AGE_S_MAX):
        known[1].close()
        known = None
    connect = partial(open_cluster, options.connection)
    protocol = known[1] if known else CommitProtocol(connect, name, used[1], checkpoint=checkpoint)
    _protocols[key] = (used, protocol, now)
    return protocol


def forget_protocol(name: str) -> None:
    """Close the protocol of a name, if this process has one: the next commit becomes the producer again.

    A caller that fences the producers of a name (`CommitProtocol.check`) also fences the one of its own process.
    """
    for key in [key for key in list(_protocols) if key[1] == name]:
        known = _protocols.pop(key, None)
        if known is not None:
            known[1].close()


def _maybe_sweep(options: WriteOptions, name: str, batch_id: int) -> None:
    """Delete files of failed tasks and killed drivers, at the first batch of a process and after each 64 batches."""
    directory = staging_directory(options, this_host())
    if directory is not None and batch_id >= _sweep_again_at.get(name, 0):
        sweep(directory, name, batch_id)
        _sweep_again_at[name] = batch_id + _SWEEP_BATCHES


def _settings(options: WriteOptions) -> CommitSettings:
    return CommitSettings(
        transaction_timeout_ms=options.transaction_timeout_ms, transaction_bytes_max=options.transaction_bytes_max
    )


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message.staged for message in messages if isinstance(message, StagedMessage)]
