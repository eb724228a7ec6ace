"""Every option of ``format("ottla")`` and ``format("ottla-table")``: name, value, default, use and meaning. Pure.

``options``, ``write_options`` and ``table_options`` take the names that they accept from here, and
tools/generate_spark_docs.py writes the tables of docs/reference/spark.md. The defaults are checked by a test: an option
that is set to its default must have the same effect as no option.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto


class Use(Flag):
    """The kinds of queries in which an option has an effect."""

    READ_BATCH = auto()
    READ_STREAM = auto()
    WRITE_BATCH = auto()
    WRITE_STREAM = auto()
    READ = READ_BATCH | READ_STREAM
    WRITE = WRITE_BATCH | WRITE_STREAM


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``default`` is a value that has the effect of no value; empty if there is no such value."""

    name: str
    value: str
    default: str
    use: Use
    meaning: str
    #: how the page shows the default, where ``default`` is not readable or differs between kinds of queries
    shown_default: str = ""


_TOPICS = "JSON of offsets"
_TIMESTAMPS = "JSON of timestamps"
_NUMBER = "number > 0"
_TIME = "duration"
_FLAG = "true, false"

#: which batch is written, for both formats
_BATCH_OPTIONS = (
    Option(
        "ottla.batch.id", "number", "", Use.WRITE_BATCH,
        "In `foreachBatch`: the batch id. A repeated batch is written once.",
    ),
    Option(
        "ottla.batch.digest", "text", "", Use.WRITE_BATCH,
        "In `foreachBatch`: a digest of the input of the batch. A batch with the same id and another digest is "
        "refused.",
    ),
)  # fmt: skip

_REGISTRY = "schema.registry."
#: keys and values with schemas of a schema registry; the names are those of Confluent's clients where they have one
_SCHEMA_OPTIONS = (
    Option(
        "value.format", "`bytes`, `avro`, `json`, `protobuf`", "bytes", Use.READ | Use.WRITE,
        "Other than `bytes`: values have Confluent's framing and a schema of the registry. Reading adds two columns: "
        "`decoded`, a struct in the schema of the reader, and `_cause`, why a value cannot be decoded. Writing encodes "
        "the column `value`, which must be a struct.",
    ),
    Option(
        "key.format", "`bytes`, `avro`, `json`, `protobuf`", "bytes", Use.READ | Use.WRITE,
        "The same for keys. Reading adds the columns `decoded_key`, which is null for a record without a key, and "
        "`_key_cause`. Writing encodes the column `key`, of any type that the schema allows.",
    ),
    Option(
        f"{_REGISTRY}url", "URL, ...", "", Use.READ | Use.WRITE,
        "The schema registry. Several instances are separated by commas.",
        shown_default="the variable `OTTLA_REGISTRY`",
    ),
    Option(
        f"{_REGISTRY}subject", "subject", "", Use.READ | Use.WRITE,
        "The subject of the schema that values have in the rows.",
        shown_default="TOPIC`-value`",
    ),
    Option(
        f"{_REGISTRY}version", "`latest`, number", "latest", Use.READ,
        "The version of the subject that rows have. `latest` is looked up once, when the DataFrame is made.",
    ),
    Option(
        "key.subject", "subject", "", Use.READ | Use.WRITE,
        "The subject of the schema that keys have in the rows.",
        shown_default="TOPIC`-key`",
    ),
    Option("key.version", "`latest`, number", "latest", Use.READ, "The version of the subject of keys."),
    Option(
        "value.message", "name", "", Use.READ | Use.WRITE,
        "Protobuf: the full name of the message.",
        shown_default="the first message of the schema",
    ),
    Option(
        "key.message", "name", "", Use.READ | Use.WRITE,
        "The same for keys.",
        shown_default="the first message of the schema",
    ),
    Option(
        "value.schema", "text", "", Use.WRITE,
        "The schema to write with. It is registered under the subject.",
        shown_default="derived from the column `value` (Avro, JSON)",
    ),
    Option(
        "key.schema", "text", "", Use.WRITE,
        "The same for keys.",
        shown_default="derived from the column `key` (Avro, JSON)",
    ),
    Option(
        "auto.register.schemas", _FLAG, "true", Use.WRITE,
        "With `false`, the schemas of values and keys must be registered already.",
    ),
    Option(
        "use.latest.version", _FLAG, "false", Use.WRITE,
        "Write with the latest versions of the subjects, and register nothing.",
    ),
    Option(
        f"{_REGISTRY}basic.auth.user.info", "user:password", "", Use.READ | Use.WRITE,
        "Log in to the registry with a password.",
    ),
    Option(
        f"{_REGISTRY}basic.auth.credentials.source", "`USER_INFO`", "USER_INFO", Use.READ | Use.WRITE,
        "Where the password comes from: the option above.",
    ),
    Option(f"{_REGISTRY}bearer.auth.token", "text", "", Use.READ | Use.WRITE, "Log in to the registry with a token."),
    Option(
        f"{_REGISTRY}ssl.ca.location", "file", "", Use.READ | Use.WRITE,
        "Certificates that sign that of the registry, in PEM. Driver and tasks must have the file.",
        shown_default="those of the system",
    ),
    Option(
        f"{_REGISTRY}ssl.certificate.location", "file", "", Use.READ | Use.WRITE,
        "The client's own certificate, in PEM.",
    ),
    Option(f"{_REGISTRY}ssl.key.location", "file", "", Use.READ | Use.WRITE, "The key of this certificate."),
    Option(f"{_REGISTRY}ssl.key.password", "text", "", Use.READ | Use.WRITE, "The password of this key."),
)  # fmt: skip

#: ``format("ottla")``
TOPIC_OPTIONS = (
    Option(
        "subscribe", "topics", "", Use.READ,
        "The topics to read, with commas between them. Exactly one of `subscribe`, `subscribePattern` and `assign` "
        "must be set.",
    ),
    Option(
        "subscribePattern", "regular expression", "", Use.READ,
        "Read all topics whose whole name matches. A stream also reads matching topics that are created later.",
    ),
    Option("assign", "JSON of partitions", "", Use.READ, 'Read these partitions only: `{"clicks":[0,1]}`.'),
    Option(
        "startingOffsets", f"`earliest`, `latest`, {_TOPICS}", "", Use.READ,
        "Where to start. A stream uses it when it has no checkpoint yet; later the checkpoint decides. JSON names "
        'every partition: `{"clicks":{"0":23,"1":-2}}`, with -2 for earliest and -1 for latest. A batch cannot start '
        "at `latest`.",
        shown_default="batch: `earliest`; stream: `latest`",
    ),
    Option(
        "startingTimestamp", "milliseconds since 1970", "", Use.READ,
        "Start in every partition at the first record with this timestamp or a later one. Overrides the two options "
        "above and below.",
    ),
    Option(
        "startingOffsetsByTimestamp", _TIMESTAMPS, "", Use.READ,
        'The same with a timestamp for each partition: `{"clicks":{"0":1767225600000}}`. Overrides '
        "`startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", "`error`, `latest`", "error", Use.READ,
        "If a partition has no record that is new enough: fail, or start at its end.",
    ),
    Option(
        "endingOffsets", f"`latest`, {_TOPICS}", "latest", Use.READ_BATCH,
        "Where a batch ends: the first offset that is not read. -1 stands for latest.",
    ),
    Option(
        "endingTimestamp", "milliseconds since 1970", "", Use.READ_BATCH,
        "End in every partition before the first record with this timestamp or a later one; without such a record, "
        "at its end.",
    ),
    Option(
        "endingOffsetsByTimestamp", _TIMESTAMPS, "", Use.READ_BATCH,
        "The same with a timestamp for each partition.",
    ),
    Option(
        "maxOffsetsPerTrigger", _NUMBER, "", Use.READ_STREAM,
        "The largest number of offsets in a micro-batch, divided among partitions by what waits in them. Every "
        "partition with records advances by at least one. `Trigger.Once` ignores it.",
        shown_default="no limit",
    ),
    Option(
        "minOffsetsPerTrigger", _NUMBER, "", Use.READ_STREAM,
        "Wait until so many offsets are available, at most for `maxTriggerDelay`. Not used by `availableNow`.",
    ),
    Option(
        "maxTriggerDelay", _TIME, "15m", Use.READ_STREAM,
        "How long `minOffsetsPerTrigger` may delay a micro-batch.",
    ),
    Option(
        "minPartitions", _NUMBER, "", Use.READ,
        "Divide large ranges of offsets so that there are about this many tasks. A stream with this option or "
        "`maxRecordsPerPartition` never reads small batches in the planning process.",
        shown_default="one task per topic partition",
    ),
    Option(
        "maxRecordsPerPartition", _NUMBER, "", Use.READ,
        "Divide ranges that have more offsets than this.",
        shown_default="no limit",
    ),
    Option(
        "failOnDataLoss", _FLAG, "true", Use.READ,
        "Fail if records were deleted before they were read: by retention, with their topic, or because the log ends "
        "before the checkpoint. With `false`, a warning names the lost offsets and the query continues.",
    ),
    Option(
        "includeHeaders", _FLAG, "false", Use.READ | Use.WRITE,
        "Read the column `headers`. A writer writes a column `headers` in any case.",
    ),
    Option(
        "groupIdPrefix", "text", "", Use.READ,
        "Accepted and without effect: no consumer group is used for reading. `ottla.spark.progress.publish_progress` "
        "takes it as the first part of group names.",
    ),
    Option(
        "fetchOffset.numRetries", _NUMBER, "3", Use.READ,
        "How often the driver requests offsets before missing records count as lost.",
    ),
    Option("fetchOffset.retryIntervalMs", _TIME, "1s", Use.READ, "The time between two such requests."),
    Option(
        "kafkaConsumer.pollTimeoutMs", _TIME, "120s", Use.READ,
        "How long a task tries to fetch records, brokers that restart included.",
    ),
    Option(
        "topic", "topic", "", Use.WRITE,
        "Write all rows to this topic. Without it every row must have a column `topic`. The topic must exist.",
    ),
    Option(
        "ottla.delivery", "`exactly-once`, `at-least-once`", "exactly-once", Use.WRITE,
        "At least once is faster: tasks send rows directly, without a transaction, and a repeated task or batch "
        "writes its rows again.",
    ),
    Option(
        "ottla.sink.name", "text", "", Use.WRITE,
        "Distinguishes two sinks that one query writes to. In `foreachBatch`, together with `ottla.batch.id`, the "
        "name under which batches are remembered: unique in the cluster, and the same after a restart.",
    ),
    *_BATCH_OPTIONS,
    *_SCHEMA_OPTIONS,
    Option(
        "stagingDir", "directory", "", Use.WRITE,
        "Where tasks store rows until the driver sends them. Tasks and driver must see the same files: a mounted "
        "path, `s3://`, `hdfs://`.",
        shown_default="`ottla-staging` in the checkpoint; for a batch, in the driver's temporary directory",
    ),
    Option(
        "ottla.inline.bytes.max", _NUMBER, str(4 << 20), Use.WRITE,
        "A task with at most so many bytes passes them to the driver without a file. Task n of a job passes at most "
        "32 MiB / n, so that the messages of many tasks together stay below `spark.driver.maxResultSize`.",
        shown_default="4 MiB",
    ),
    Option(
        "ottla.transaction.bytes.max", _NUMBER, str(4 << 30), Use.WRITE,
        "The largest micro-batch or job. A larger one is refused before anything is written.",
        shown_default="4 GiB",
    ),
)  # fmt: skip

#: properties of Kafka clients with an effect here, under ``kafka.``; security properties are described in the page
KAFKA_PROPERTIES = (
    Option(
        "bootstrap.servers", "host:port, ...", "", Use.READ | Use.WRITE,
        "The brokers to connect to first.",
        shown_default="**required**",
    ),
    Option(
        "client.id", "text", "ottla-spark", Use.READ | Use.WRITE,
        "The name of the client in the logs and quotas of brokers.",
    ),
    Option(
        "default.api.timeout.ms", _NUMBER, "60000", Use.READ | Use.WRITE,
        "How long requests of the driver, and all requests of writers, are retried.",
    ),
    Option(
        "group.id", "group", "", Use.READ,
        "Commit the end of each micro-batch to this consumer group, so that tools show its lag. Nothing is read from "
        "the group.",
    ),
    Option(
        "isolation.level", "`read_uncommitted`, `read_committed`", "read_uncommitted", Use.READ,
        "With `read_committed`, records of open and aborted transactions are not read. Use it for topics that are "
        "written exactly once.",
    ),
    Option(
        "max.partition.fetch.bytes", _NUMBER, str(2 << 20), Use.READ,
        "The size of a fetch response.",
        shown_default="2 MiB",
    ),
    Option(
        "fetch.max.wait.ms", _NUMBER, "500", Use.READ,
        "How long a broker waits for records before it answers a task.",
    ),
    Option(
        "compression.type", "`none`, `gzip`, `snappy`, `lz4`, `zstd`", "none", Use.WRITE,
        "The codec of written batches.",
    ),
    Option("max.request.size", _NUMBER, str(1 << 20), Use.WRITE, "The largest record batch.", shown_default="1 MiB"),
    Option(
        "transaction.timeout.ms", _NUMBER, "300000", Use.WRITE,
        "The broker aborts a transaction after this time. It must cover the time in which one micro-batch is sent.",
    ),
)  # fmt: skip

#: ``format("ottla-table")``
TABLE_OPTIONS = (
    Option(
        "path", "directory or address", "", Use.READ | Use.WRITE,
        "The table. `load(path)`, `save(path)` and `start(path)` set it.",
        shown_default="**required**",
    ),
    Option(
        "storage.*", "text", "", Use.READ | Use.WRITE,
        "Settings of an object store, with the names of the package deltalake: `storage.aws_region` and so on.",
    ),
    Option("versionAsOf", "number", "", Use.READ_BATCH, "Read this version of the table.", shown_default="the newest"),
    Option("timestampAsOf", "ISO 8601", "", Use.READ_BATCH, "Read the version of this time: `2026-01-31T12:00:00Z`."),
    Option(
        "startingVersion", "number, `latest`", "", Use.READ_STREAM,
        "The first commit to read. `latest`: only commits after the start of the query.",
        shown_default="all rows of the table, then new ones",
    ),
    Option(
        "maxFilesPerTrigger", _NUMBER, "", Use.READ_STREAM,
        "The largest number of files in a micro-batch.",
        shown_default="no limit",
    ),
    Option(
        "maxRowsPerTrigger", _NUMBER, "", Use.READ_STREAM,
        "The largest number of rows in a micro-batch, in whole files, at least one file.",
        shown_default="no limit",
    ),
    Option(
        "readChangeFeed", _FLAG, "false", Use.READ_STREAM,
        "Of a keyed table of a pipeline, read the rows that changed. The column `_change_type` is `insert`, "
        "`update_postimage` or `delete`.",
    ),
    Option(
        "ignoreChanges", _FLAG, "false", Use.READ_STREAM,
        "After an overwrite or a delete, continue, and read the files that it added.",
    ),
    Option(
        "skipChangeCommits", _FLAG, "false", Use.READ_STREAM,
        "After an overwrite or a delete, continue, and read nothing of that commit.",
    ),
    Option(
        "failOnDataLoss", _FLAG, "true", Use.READ,
        "Fail if commits that a stream has not read yet were deleted from the log of the table.",
    ),
    Option(
        "splitBytes", _NUMBER, str(64 << 20), Use.READ,
        "About so many bytes are read by one task.",
        shown_default="64 MiB",
    ),
    Option(
        "pinnedByCheckpoint", "directory", "", Use.READ_BATCH,
        "For a table that a stream joins: the `checkpointLocation` of the stream. All attempts of a micro-batch then "
        "read the same version.",
    ),
    Option(
        "pinnedTables", "JSON list of paths", "", Use.READ_BATCH,
        "With `pinnedByCheckpoint`: all tables that the stream joins.",
        shown_default="this table",
    ),
    Option(
        "tableFormat", "`delta`, `parquet`", "delta", Use.WRITE,
        "`parquet` writes plain files into a directory, at least once.",
    ),
    Option(
        "partitionBy", "columns", "", Use.WRITE,
        "Partition columns, with commas between them. Only the first write of a table needs it.",
    ),
    Option("mergeSchema", _FLAG, "false", Use.WRITE, "Add new columns of the rows to the table."),
    Option(
        "overwriteSchema", _FLAG, "false", Use.WRITE_BATCH,
        'With `mode("overwrite")`: the table gets the schema of the rows.',
    ),
    Option(
        "replaceWhere", "predicate", "", Use.WRITE_BATCH,
        "With `mode(\"overwrite\")`: replace these partitions only: `day >= '2026-01-01' AND country = 'DE'`.",
    ),
    Option(
        "targetFileSize", _NUMBER, str(128 << 20), Use.WRITE,
        "About so many bytes are in a file.",
        shown_default="128 MiB",
    ),
    Option("compression", "`zstd`, `snappy`, `gzip`, `none`", "zstd", Use.WRITE, "The codec of the Parquet files."),
    Option(
        "compactEvery", "number", "100", Use.WRITE,
        "Combine small files after so many micro-batches (also those of `foreachBatch` with `ottla.batch.id`); 0 "
        "means never.",
    ),
    Option(
        "vacuumHours", "number", "", Use.WRITE,
        "With `compactEvery`: delete files that have not been part of the table for so many hours.",
        shown_default="never",
    ),
    Option(
        "ottla.sink.name", "text", "", Use.WRITE,
        "Distinguishes two sinks that one query writes to. In `foreachBatch`, together with `ottla.batch.id`, the "
        "name under which batches are remembered.",
    ),
    *_BATCH_OPTIONS,
)  # fmt: skip


def names(options: Iterable[Option], use: Use) -> tuple[str, ...]:
    """Return the names of the options that have an effect in one of these uses.

    >>> names(TOPIC_OPTIONS, Use.READ_BATCH)[-4:]
    ('groupIdPrefix', 'fetchOffset.numRetries', 'fetchOffset.retryIntervalMs', 'kafkaConsumer.pollTimeoutMs')
    """
    return tuple(option.name for option in options if option.use & use and not option.name.endswith("*"))


def names_only(options: Iterable[Option], use: Use) -> tuple[str, ...]:
    """Return the names of the options that have an effect in these uses and in no other."""
    return tuple(option.name for option in options if not option.use & ~use)
