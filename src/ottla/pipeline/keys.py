"""Every key of a declaration, in one table. The reader, its error messages and the reference page are based on it.

The keys of declared tests are in `flow_tests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ZONES = ("raw", "staging", "trusted", "refined")
FORMATS = ("json", "avro", "protobuf", "bytes", "string")
TABLE_FORMATS = ("delta", "parquet")
FLOW_KINDS = ("table", "view", "materialized_view")
ZONE_CONTENTS = ("fields", "bytes")
#: keys of flows that a zone may require or forbid; `topic` is a topic in `to`
ZONE_FLOW_KEYS = (
    "description", "sql", "python", "expect", "deduplicate", "watermark", "late_rows", "append_to", "trigger", "topic",
)  # fmt: skip
ON_VIOLATION = ("warn", "drop", "quarantine", "fail")
TRIGGERS = ("once", "available-now", "as-fast-as-possible")
#: names of Spark's modes that pipelines do not have, and what a pipeline runs instead
REFUSED_TRIGGERS = {
    "continuous": "is Spark's continuous processing, which pipelines do not use",
    "real-time": "is Spark's real-time mode, which supports neither Python data sources nor foreachBatch",
}
EMITS = ("final", "changes")
FRAMINGS = ("none", "confluent")
#: instead of schema ids: decode every id with the schema of the source
ANY_ID = "any_id"
SCHEMA_ID_MAX = 2**31 - 1
LATEST = "latest"
#: formats with schemas, which keys have in a registry only
KEY_SCHEMA_FORMATS = ("avro", "json", "protobuf")
KEY_FORMATS = ("bytes", "string", *KEY_SCHEMA_FORMATS)
ON_DATA_LOSS = ("fail", "continue")
NULL_VALUES = ("reject", "keep")
DELIVERIES = ("exactly-once", "at-least-once")
PARAMETER_TYPES = ("string", "int", "bigint", "decimal", "double", "boolean", "date", "timestamp")
#: settings of the pipeline that an environment may replace
ENVIRONMENT_SETTINGS = ("name", "brokers", "properties", "storage", "checkpoints", "trigger", "spark")
#: the parts of time that a table can be partitioned by
PARTITION_PARTS = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its possible values, its meaning, and its default."""

    name: str
    #: what is written there, in words
    value: str
    meaning: str
    required: bool = False
    default: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in the file. `title` is what people call it."""

    title: str
    meaning: str
    keys: Mapping[str, Key]


def section(title: str, meaning: str, *keys: Key) -> Section:
    """Return the section with these keys."""
    return Section(title, meaning, {key.name: key for key in keys})


def _one_of(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words[:-1]) + f" or `{words[-1]}`"


PIPELINE = section(
    "pipeline",
    "The file itself.",
    Key("name", "name", "Names the consumer groups, the checkpoints and the transactional ids.", required=True),
    Key("description", "text", "For people."),
    Key(
        "brokers", "HOST:PORT, ...", "Bootstrap servers: Ottla or any other Kafka cluster.", default="`127.0.0.1:9092`"
    ),
    Key(
        "properties",
        "mapping",
        "Client properties, such as `security.protocol`, and those of the schema registry: `schema.registry.url` "
        "(without it, the variable `OTTLA_REGISTRY`), `schema.registry.basic.auth.user.info`, "
        "`schema.registry.bearer.auth.token`, `schema.registry.ssl.*`.",
    ),
    Key(
        "storage",
        "path or URL",
        "Directory of the tables, one subdirectory per zone. Relative to the file.",
        required=True,
    ),
    Key(
        "checkpoints",
        "path or URL",
        "Directory of the progress and state of flows. Needs storage as durable as that of the tables.",
        default="`_checkpoints` under `storage`",
    ),
    Key(
        "trigger",
        "trigger",
        "When flows run: `once` (one batch, then end), `available-now` (all existing records, in several "
        "batches, then end), `every 10s` (one batch every ten seconds), `as-fast-as-possible` "
        '(the next batch starts when the previous one has ended, as Spark\'s `processingTime="0 seconds"` does).',
        default="`available-now`",
    ),
    Key("spark", "mapping", "Spark settings, such as `spark.sql.shuffle.partitions`."),
    Key(
        "merge_schema",
        "`true` or `false`",
        "Add new columns of flows to their tables. A table sink can have another value.",
        default="`false`",
    ),
    Key(
        "openlineage",
        "OpenLineage",
        "Where OpenLineage events of runs go. See [OpenLineage](../operate/pipelines.md#openlineage).",
        default="the variables `OPENLINEAGE_URL` and `OPENLINEAGE_CONFIG`, else nowhere",
    ),
    Key(
        "zones",
        "mapping of names to zones",
        "Own zones in place of the four, in the order of rows. See [own zones](../guides/pipelines.md#own-zones).",
        default="`raw`, `staging`, `trusted`, `refined`",
    ),
    Key(
        "include",
        "pattern or list of patterns",
        "Further files with `sources` and `flows`, such as `flows/*.yaml`. Relative to the file, inside its directory.",
    ),
    Key(
        "parameters",
        "mapping of names to parameters",
        "Values that differ from run to run or between environments, used as `${name}`. See "
        "[parameters](../guides/pipelines.md#parameters-and-environments).",
    ),
    Key(
        "environments",
        "mapping of names to environments",
        "Where and with which values the pipeline runs, such as `dev` and `prod`; `--env` chooses one.",
    ),
    Key("sources", "mapping of names to sources", "Topics that are read.", required=True),
    Key("flows", "mapping of names to flows", "Tables and views that are computed from them.", required=True),
)

PARAMETER = section(
    "parameter",
    "A value that is used as `${name}`.",
    Key("type", _one_of(PARAMETER_TYPES), "Type of the value.", default="`string`"),
    Key("default", "value", "Value if a command and the environment give none. Without it the value is required."),
    Key("description", "text", "For people."),
    Key(
        "secret",
        "`true` or `false`",
        "Never shown. Only used in `properties`, `spark` and `openlineage`, and set by a command or a variable.",
        default="`false`",
    ),
)

ENVIRONMENT = section(
    "environment",
    "Values of parameters, and settings that replace those of the pipeline; `properties` and `spark` add to them.",
    Key("description", "text", "For people."),
    Key("default", "`true` or `false`", "Use this environment if a command names none.", default="`false`"),
    Key("parameters", "mapping", "Values of parameters."),
    *(
        Key(each.name, each.value, "As in the pipeline.")
        for each in PIPELINE.keys.values()
        if each.name in ENVIRONMENT_SETTINGS
    ),
)

OPENLINEAGE = section(
    "OpenLineage",
    "Events of runs for a lineage backend such as Marquez. Give `url` or `file`.",
    Key("url", "URL", "Address of the backend, such as `http://marquez:5000`.", default="`OPENLINEAGE_URL`"),
    Key("endpoint", "path", "Path of the events under `url`.", default="`api/v1/lineage`"),
    Key("api_key", "text", "Sent as a bearer token. Use a secret parameter.", default="`OPENLINEAGE_API_KEY`"),
    Key("file", "path", "Append events to this file, one per line. Relative to the pipeline's file."),
    Key("namespace", "text", "Namespace of the jobs.", default="`OPENLINEAGE_NAMESPACE`, else `ottla`"),
)

ZONE = section(
    "zone",
    "A label of flows and the rules for them. A zone without rules is written `name: {}`.",
    Key("description", "text", "For people."),
    Key(
        "content",
        _one_of(ZONE_CONTENTS),
        "`bytes`: flows store records as received, without steps and expectations. `fields`: flows have typed columns; "
        "a flow that reads a source, or a flow of a zone with content `bytes`, decodes the records.",
        default="`fields`",
    ),
    Key(
        "reads_from",
        "name or list of names",
        "Zones that flows of this zone may read, and `sources` for topics. Later zones cannot be read.",
        default="this zone and the one before it; `sources` in the first zone",
    ),
    Key("kinds", "kind or list of kinds", "Kinds that flows may have.", default="all"),
    Key(
        "requires",
        "key or list of keys",
        f"Keys that every flow must have: {', '.join(f'`{key}`' for key in ZONE_FLOW_KEYS)}. `topic` is a topic in "
        "`to`.",
    ),
    Key("forbids", "key or list of keys", "Keys that no flow may have, of the same list."),
)

INCLUDED = section(
    "included file",
    "A file that `include` names. Paths in it are relative to it.",
    Key("sources", "mapping of names to sources", "As in the pipeline; names are unique in all files together."),
    Key("flows", "mapping of names to flows", "As in the pipeline; names are unique in all files together."),
)

SOURCE = section(
    "source",
    "A topic and the encoding of its values.",
    Key("topic", "topic", "Name of the topic.", required=True),
    Key("description", "text", "For people."),
    Key("format", _one_of(FORMATS), "Encoding of the values.", required=True),
    Key(
        "schema",
        "fields, DDL or a registry schema",
        "The fields of a JSON value: a mapping of names to Spark SQL types, or one text such "
        "as `id BIGINT, amount DECIMAL(10,2)`. Names that begin with `_` are reserved for Ottla. "
        "`{registry: SUBJECT}`: the schemas of the values, of any of the three formats, are in the "
        "[schema registry](#schemas-in-a-schema-registry).",
    ),
    Key(
        "schema_file",
        "path",
        "A file with the schema, relative to this one: `.avsc` for Avro, `.proto` or `.desc` for "
        "Protobuf, `.ddl` for JSON. A `.proto` file needs the extra `protobuf`, and may import files beside it; a "
        "`.desc` file is what `protoc --include_imports --descriptor_set_out` writes.",
    ),
    Key("message", "name", "Message type in a Protobuf file; required if it has several."),
    Key(
        "framing",
        "`none` or `confluent:` with schema ids",
        "`confluent`: each value starts with five bytes that contain its schema id (Protobuf: and with message "
        "indexes). `confluent: {1: v1.avsc, 2: v2.avsc}` has the schema of each id; values are resolved to the schema "
        "of the source. `confluent: [1, 2]`: values with these ids were written with the schema of the source; JSON "
        "needs no more. Other ids go to quarantine. `confluent: any_id` decodes every id with the schema of the "
        "source, which is wrong as soon as producers use a second schema.",
        default="`none`",
    ),
    Key(
        "key_format",
        _one_of(KEY_FORMATS),
        "Encoding of the keys, which decides about the type of the column `_key`. `avro`, `json` and `protobuf` need "
        "`key_schema`: `_key` is then a struct, or of the primitive type of the schema.",
        default="`bytes`",
    ),
    Key(
        "key_schema",
        "registry schema",
        "The schemas of the keys in the [schema registry](#keys-with-a-schema). Records whose key cannot be decoded go "
        "to quarantine.",
    ),
    Key("key_message", "name", "Message type in the Protobuf schema of the keys.", default="the first message"),
    Key(
        "null_values",
        _one_of(NULL_VALUES),
        "Records without a value (tombstones): `reject` sends them to quarantine, `keep` converts them to rows with "
        "their `_key` and null fields.",
        default="`reject`",
    ),
    Key(
        "starting_offsets",
        "`earliest`, `latest`, a time, or a mapping",
        "Start of the first run; later runs continue from the "
        "checkpoint. A time is ISO 8601 with a time zone; a mapping maps partitions to offsets.",
        default="`earliest`",
    ),
    Key("max_offsets_per_trigger", "number", "Maximum number of records per batch."),
    Key(
        "on_data_loss",
        _one_of(ON_DATA_LOSS),
        "What to do if records were deleted before they were read.",
        default="`fail`",
    ),
    Key("watermark", "watermark", "Event time and the allowed lateness of records."),
)

REGISTRY_SCHEMA = section(
    "registry schema",
    "Values or keys with Confluent's framing whose schemas are in a [schema registry](#schemas-in-a-schema-registry).",
    Key("registry", "subject", "The subject of the schema, such as `orders-value`.", required=True),
    Key(
        "version",
        "`latest` or number",
        "The version that rows have, fetched when a run starts. A topic sink with a version writes with it and "
        "registers nothing.",
        default="`latest`; a topic sink registers its schema",
    ),
    Key(
        "register",
        "`true` or `false`",
        "Topic sinks: with `false`, the schema must be registered already.",
        default="`true`",
    ),
)

WATERMARK = section(
    "watermark",
    "Event time. Windows stay open, and deduplication remembers rows, until `delay` after the latest time seen.",
    Key(
        "column",
        "column",
        "Column with the event time, of type timestamp. `_timestamp` is the timestamp of the record.",
        required=True,
    ),
    Key("delay", "duration", "Allowed lateness: rows may be this much older than the latest time seen.", required=True),
)

FLOW = section(
    "flow",
    "One table or view and its computation. Other flows read it by its name.",
    Key(
        "zone",
        _one_of(ZONES),
        "Zone of the result, of the four or of `zones`. A flow reads its own zone or the one before it.",
        required=True,
    ),
    Key("description", "text", "For people."),
    Key(
        "from",
        "name or list of names",
        "Sources and flows to read. Only raw and staging flows may read a source.",
        required=True,
    ),
    Key(
        "kind",
        _one_of(FLOW_KINDS),
        "`table`: rows are appended as they arrive. `view`: not stored, computed by its readers. `materialized_view`: "
        "recomputed completely at each trigger; other flows read it as a static table.",
        default="`table`",
    ),
    Key("sql", "query", "One query over the names in `from`. Shorthand for a single step."),
    Key("sql_file", "path", "A file with the query, in the directory of the pipeline. Relative to this file."),
    Key(
        "python",
        "`module:function`",
        "One function of DataFrames, in the order of `from`. Shorthand for a single step.",
    ),
    Key("steps", "list of steps", "Several queries and functions, in order."),
    Key(
        "expect",
        "list of expectations",
        "Conditions on every row of the result. Not allowed in raw, which keeps all records.",
    ),
    Key(
        "deduplicate",
        "column or list of columns",
        "Drop rows whose values in these columns occurred before within the watermark. Only in trusted.",
    ),
    Key("watermark", "watermark", "Event time of the result, if it differs from that of the input."),
    Key(
        "emit",
        _one_of(EMITS),
        "Aggregates: `final` emits each window once, when the watermark has passed its end; `changes` emits "
        "every change immediately.",
        default="`final`",
    ),
    Key("to", "sink or list of sinks", "Destination of the rows.", default="a Delta table of the flow's name"),
    Key("append_to", "name of a flow", "Append the rows to the table of that flow instead of an own table."),
    Key(
        "quarantine",
        "side output",
        "Destination of rejected rows (dead-letter queue), with the bytes of the record and `_cause`.",
        default="a Delta table `<flow>_quarantine`",
    ),
    Key(
        "late_rows",
        "side output",
        "Destination of rows that are older than the watermark. Without it they are counted and dropped.",
    ),
    Key("trigger", "trigger", "Trigger of this flow; overrides that of the pipeline."),
    Key(
        "version",
        "number",
        "Part of the name of the checkpoint. Raise it to start without state after an incompatible change.",
        default="`1`",
    ),
)

STEP = section(
    "step",
    "Either `sql` or `python`. The next step reads the result as `previous`.",
    Key("sql", "query", "A query over the names in `from`, the results of earlier steps, and `previous`."),
    Key("sql_file", "path", "A file with the query, as in a flow."),
    Key("python", "`module:function`", "A function that takes DataFrames and returns one."),
    Key(
        "with",
        "name or list of names",
        "Arguments of the function.",
        default="`from` in the first step, then `previous`",
    ),
    Key("as", "name", "A name for the result, for later steps."),
)

EXPECTATION = section(
    "expectation",
    "A condition on a row. A row violates it if it is false or NULL.",
    Key("name", "text", "Name of the expectation in metrics and causes.", required=True),
    Key("that", "SQL predicate", "Condition on columns of the result.", required=True),
    Key(
        "on_violation",
        _one_of(ON_VIOLATION),
        "Count the violation, drop the row, send the row to quarantine with its cause, or stop the flow.",
        default="`warn`",
    ),
)

TABLE_SINK = section(
    "table sink",
    "A table in the lake: `storage`/zone/table.",
    Key("table", "name", "The table.", required=True),
    Key(
        "format",
        _one_of(TABLE_FORMATS),
        "Delta supports exactly-once writes and merges; Parquet does not, and is for temporary data.",
        default="`delta`",
    ),
    Key(
        "partition_by",
        "column or list of columns",
        f"Columns, or parts of an event time: {', '.join(f'`{part}(column)`' for part in PARTITION_PARTS)}.",
    ),
    Key(
        "merge_schema",
        "`true` or `false`",
        "Add new columns of the flow to the table.",
        default="that of the pipeline, `false`",
    ),
    Key(
        "keys",
        "column or list of columns",
        "A row replaces the row with the same values in these columns (a keyed table). Required with `emit: changes`. "
        "See [keyed tables](#keyed-tables).",
    ),
    Key(
        "sequence_by",
        "column or list of columns",
        "Keyed tables: of rows with one key the one with the largest values in these columns stays, in whichever order "
        "and batches they arrive.",
        default="the position of the record (`_timestamp`, `_offset`); the later batch for rows without one and with "
        "`emit: changes`",
    ),
    Key("delete_when", "SQL predicate", "Keyed tables: a row for which it is true deletes the row with its key."),
    Key(
        "history",
        "`true` or `false`",
        "Keyed tables: keep all versions of a key (SCD type 2), with the columns `valid_from`, `valid_to` and "
        "`is_current`.",
        default="`false`",
    ),
    Key(
        "tombstone_retention",
        "duration",
        "Keyed tables: how long a delete is remembered, so that an older record does not bring the key back. Tables "
        "with `history` remember deletes forever.",
        default="`7d`",
    ),
    Key("compact", "compaction", "Put small files together, at intervals."),
    Key("vacuum", "vacuum", "Delete files of old versions, at intervals."),
)

COMPACTION = section(
    "compaction",
    "Puts small files of a Delta table together while the pipeline runs (Delta's OPTIMIZE). No row changes, and flows "
    "that read the table do not get its rows again. See [maintenance](../operate/pipelines.md#maintenance-of-tables).",
    Key("every", "duration", "How often.", required=True),
    Key("target_file_size", "size", "Size of the files, such as `128MB`.", default="that of Delta, 100 MB"),
)

VACUUM = section(
    "vacuum",
    "Deletes files of a Delta table that only old versions have, while the pipeline runs.",
    Key("every", "duration", "How often.", default="`1d`"),
    Key(
        "retain",
        "duration",
        "How long files stay after they were replaced; at least one hour, and longer while a flow needs them.",
        default="`7d`",
    ),
)

TOPIC_SINK = section(
    "topic sink",
    "A topic. Headers contain the lineage.",
    Key("topic", "topic", "Name of the topic.", required=True),
    Key("format", _one_of(FORMATS), "Encoding of the values.", default="`json`"),
    Key(
        "key",
        "column or list of columns",
        "Column with the record key, which selects the partition. With `key_format`, a list of columns becomes one "
        "record.",
    ),
    Key(
        "key_format",
        _one_of(KEY_SCHEMA_FORMATS),
        "Write keys with the framing and a schema of the registry.",
        default="bytes as they are, other types as text",
    ),
    Key(
        "key_schema",
        "registry schema",
        "The subject of the [keys](#keys-with-a-schema). Without `version` the schema is derived from the columns "
        "(Avro, JSON) and registered.",
    ),
    Key("key_message", "name", "Message type in the Protobuf schema of the keys.", default="the first message"),
    Key(
        "value",
        "column or list of columns",
        "Columns of the value; exactly one column for `bytes` and `string`.",
        default="every column that does not begin with `_`",
    ),
    Key("schema_file", "path", "Schema of the values, for Avro and Protobuf."),
    Key(
        "schema",
        "registry schema",
        "Write with the framing and a schema of the [schema registry](#schemas-in-a-schema-registry): that of "
        "`schema_file`, which is registered; without a file, for Avro and JSON, one derived from the columns.",
    ),
    Key("message", "name", "Message type in a Protobuf file."),
    Key(
        "framing",
        _one_of(FRAMINGS),
        "`confluent`: each value starts with a zero byte and `schema_id` in four bytes, and for Protobuf with the "
        "message indexes.",
        default="`none`",
    ),
    Key("schema_id", "number", "The schema id that is written with `framing: confluent`."),
    Key(
        "delivery",
        _one_of(DELIVERIES),
        "`exactly-once` writes each batch in one transaction.",
        default="`exactly-once`",
    ),
    Key(
        "tombstone_when",
        "SQL predicate",
        "Condition on columns of the result. Rows for which it is true are written without a value (tombstones), which "
        "deletes the key from a compacted topic. Needs `key`.",
    ),
    Key(
        "partitions",
        "number",
        "Number of partitions, if the topic has to be created.",
        default="the default of the brokers",
    ),
    Key(
        "config",
        "mapping",
        "Topic settings, if the topic has to be created, such as `cleanup.policy: compact`.",
        default="the defaults of the brokers",
    ),
)

SIDE_OUTPUT = section(
    "side output",
    "Either a table or a topic.",
    Key("table", "name", "A Delta table under `storage`/quarantine or `storage`/late."),
    Key("topic", "topic", "A topic, with the row as JSON and the cause in the header `_cause`."),
)

#: in the order of the reference page, on which those of `flow_tests` follow
SECTIONS = (
    PIPELINE,
    INCLUDED,
    PARAMETER,
    ENVIRONMENT,
    OPENLINEAGE,
    ZONE,
    SOURCE,
    REGISTRY_SCHEMA,
    WATERMARK,
    FLOW,
    STEP,
    EXPECTATION,
    TABLE_SINK,
    COMPACTION,
    VACUUM,
    TOPIC_SINK,
    SIDE_OUTPUT,
)
