"""Every key a declaration may have: one table, by which files are read, mistakes explained and the reference made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ZONES = ("raw", "staging", "trusted", "refined")
FORMATS = ("json", "avro", "protobuf", "bytes", "string")
TABLE_FORMATS = ("delta", "parquet")
FLOW_KINDS = ("table", "view", "materialized_view")
ON_VIOLATION = ("warn", "drop", "quarantine", "fail")
TRIGGERS = ("once", "available-now", "continuous")
EMITS = ("final", "changes")
FRAMINGS = ("none", "confluent")
KEY_FORMATS = ("bytes", "string")
ON_DATA_LOSS = ("fail", "continue")
NULL_VALUES = ("reject", "keep")
DELIVERIES = ("exactly-once", "at-least-once")
#: the parts of time that a table can be partitioned by
PARTITION_PARTS = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class Key:
    """One key: what may stand under it, what it means, and what holds without it."""

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


def _section(title: str, meaning: str, *keys: Key) -> Section:
    return Section(title, meaning, {key.name: key for key in keys})


def _one_of(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words[:-1]) + f" or `{words[-1]}`"


PIPELINE = _section(
    "pipeline",
    "The file itself.",
    Key("name", "name", "Names the consumer groups, the checkpoints and the transactional ids.", required=True),
    Key("description", "text", "For people."),
    Key(
        "brokers",
        "HOST:PORT, ...",
        "Brokers to ask first; Ottla or any other that speaks Kafka's protocol.",
        default="`127.0.0.1:9092`",
    ),
    Key(
        "properties",
        "mapping",
        "Client properties, such as `security.protocol`.",
    ),
    Key("storage", "path or URL", "Where tables lie, one directory per zone. Relative to the file.", required=True),
    Key(
        "checkpoints",
        "path or URL",
        "Where flows keep their progress and state. As safe as the tables themselves.",
        default="`_checkpoints` under `storage`",
    ),
    Key(
        "trigger",
        "trigger",
        "When flows run: `once` (one batch, then end), `available-now` (everything there is, in several "
        "batches, then end), `every 10s` (a batch each ten seconds), `continuous` (batch after batch).",
        default="`available-now`",
    ),
    Key("spark", "mapping", "Spark's own settings, such as `spark.sql.shuffle.partitions`."),
    Key("sources", "mapping of names to sources", "Topics that are read.", required=True),
    Key("flows", "mapping of names to flows", "What is made of them.", required=True),
)

SOURCE = _section(
    "source",
    "A topic, and how to read its values.",
    Key("topic", "topic", "The topic's name in the cluster.", required=True),
    Key("description", "text", "For people."),
    Key("format", _one_of(FORMATS), "How values are encoded.", required=True),
    Key(
        "schema",
        "fields or DDL",
        "The fields of a JSON value: a mapping of names to Spark SQL types, or one text such "
        "as `id BIGINT, amount DECIMAL(10,2)`. Names that begin with `_` are Ottla's own.",
    ),
    Key(
        "schema_file",
        "path",
        "A file with the schema, relative to this one: `.avsc` for Avro, `.proto` or `.desc` for "
        "Protobuf, `.ddl` for JSON.",
    ),
    Key("message", "name", "Which message of a Protobuf file; needed if it has several."),
    Key("framing", _one_of(FRAMINGS), "`confluent`: five bytes before each value name its schema.", default="`none`"),
    Key("key_format", _one_of(KEY_FORMATS), "What the column `_key` becomes.", default="`bytes`"),
    Key(
        "null_values",
        _one_of(NULL_VALUES),
        "Records without a value, which delete a key from a compacted topic: `reject` puts them in quarantine, `keep` "
        "makes rows of them whose fields are null, with their `_key`.",
        default="`reject`",
    ),
    Key(
        "starting_offsets",
        "`earliest`, `latest`, a time, or a mapping",
        "Where the first run begins; later ones go on where "
        "the last ended. A time is ISO 8601 with its zone; a mapping is of partitions to offsets.",
        default="`earliest`",
    ),
    Key("max_offsets_per_trigger", "number", "Read at most so many records in a batch."),
    Key("on_data_loss", _one_of(ON_DATA_LOSS), "When records are gone before they were read.", default="`fail`"),
    Key("watermark", "watermark", "How late a record may be, by its own time."),
)

WATERMARK = _section(
    "watermark",
    "Event time: windows stay open and duplicates are remembered for `delay` behind the latest time seen.",
    Key(
        "column",
        "column",
        "The time at which the thing happened; of type timestamp. `_timestamp` is the record's own.",
        required=True,
    ),
    Key("delay", "duration", "How much later than the latest a row may come.", required=True),
)

FLOW = _section(
    "flow",
    "One table or view, and how its rows are made. Its name is the name that other flows read it by.",
    Key(
        "zone",
        _one_of(ZONES),
        "Which zone the result belongs to. A flow reads its own zone or the one before.",
        required=True,
    ),
    Key("description", "text", "For people."),
    Key(
        "from",
        "name or list of names",
        "Sources and flows that are read. A source is read by raw and staging only.",
        required=True,
    ),
    Key(
        "kind",
        _one_of(FLOW_KINDS),
        "`table`: rows are added as they come. `view`: nothing is stored, readers compute it. "
        "`materialized_view`: computed as a whole at each trigger, and read by others as a table that does not stream.",
        default="`table`",
    ),
    Key("sql", "query", "One query over the names in `from`. Short for a single step."),
    Key("python", "`module:function`", "One function of DataFrames, in the order of `from`. Short for a single step."),
    Key("steps", "list of steps", "Several of both, one after the other."),
    Key(
        "expect",
        "list of expectations",
        "What must hold for every row of the result. Not in raw, which keeps everything.",
    ),
    Key(
        "deduplicate",
        "column or list of columns",
        "Drop rows whose values in these columns were seen within the watermark. Trusted only.",
    ),
    Key("watermark", "watermark", "Event time of the result, where it is not that of the input."),
    Key(
        "emit",
        _one_of(EMITS),
        "Aggregates: `final` gives each window once, when the watermark has passed; `changes` gives "
        "every change at once.",
        default="`final`",
    ),
    Key("to", "sink or list of sinks", "Where rows go.", default="a Delta table of the flow's name"),
    Key("append_to", "name of a flow", "Add the rows to that flow's table instead of having one."),
    Key(
        "quarantine",
        "side output",
        "Where rejected rows go, with the record's bytes and `_cause`.",
        default="a Delta table `<flow>_quarantine`",
    ),
    Key(
        "late_rows",
        "side output",
        "Where rows go that came behind the watermark. Without it they are counted and dropped.",
    ),
    Key("trigger", "trigger", "As for the pipeline, for this flow alone."),
    Key(
        "version",
        "number",
        "Part of the checkpoint's name. Raise it to begin anew after a change that state does not survive.",
        default="`1`",
    ),
)

STEP = _section(
    "step",
    "Either `sql` or `python`. The result is `previous` to the next step.",
    Key("sql", "query", "Over the names in `from`, results of steps before, and `previous`."),
    Key("python", "`module:function`", "Gets DataFrames and returns one."),
    Key(
        "with", "name or list of names", "What the function gets.", default="`from` in the first step, then `previous`"
    ),
    Key("as", "name", "A name for the result, for later steps."),
)

EXPECTATION = _section(
    "expectation",
    "A condition on a row. A row for which it is not true, or unknown, violates it.",
    Key("name", "text", "How it is called in metrics and causes.", required=True),
    Key("that", "SQL predicate", "On columns of the flow's result.", required=True),
    Key(
        "on_violation",
        _one_of(ON_VIOLATION),
        "Count it, drop the row, put the row aside with its cause, or stop the flow.",
        default="`warn`",
    ),
)

TABLE_SINK = _section(
    "table sink",
    "A table in the lake: `storage`/zone/table.",
    Key("table", "name", "The table.", required=True),
    Key(
        "format",
        _one_of(TABLE_FORMATS),
        "Delta is exactly once and can merge; Parquet is for scratch.",
        default="`delta`",
    ),
    Key(
        "partition_by",
        "column or list of columns",
        f"Columns, or parts of an event time: {', '.join(f'`{part}(column)`' for part in PARTITION_PARTS)}.",
    ),
    Key("merge_schema", "`true` or `false`", "Add columns to the table when the flow has new ones.", default="`false`"),
    Key(
        "keys",
        "column or list of columns",
        "Rows with the same values here replace each other. Needed with `emit: changes`.",
    ),
)

TOPIC_SINK = _section(
    "topic sink",
    "A topic. Lineage goes along in the headers.",
    Key("topic", "topic", "The topic's name in the cluster.", required=True),
    Key("format", _one_of(FORMATS), "How values are encoded.", default="`json`"),
    Key("key", "column", "What becomes the record's key, and so chooses the partition."),
    Key(
        "value",
        "column or list of columns",
        "What goes into the value; exactly one column for `bytes` and `string`.",
        default="every column that does not begin with `_`",
    ),
    Key("schema_file", "path", "The schema to write with, for Avro and Protobuf."),
    Key("message", "name", "Which message of a Protobuf file."),
    Key("framing", _one_of(FRAMINGS), "As for sources.", default="`none`"),
    Key(
        "delivery",
        _one_of(DELIVERIES),
        "`exactly-once` writes each batch in one transaction.",
        default="`exactly-once`",
    ),
    Key(
        "tombstone_when",
        "SQL predicate",
        "On columns of the flow's result. Rows for which it is true are written without a value: in a compacted topic "
        "that deletes the key. Needs `key`.",
    ),
    Key("partitions", "number", "Of the topic, if it has to be made.", default="as the brokers have it"),
    Key(
        "config",
        "mapping",
        "The topic's own settings, if it has to be made, such as `cleanup.policy: compact`.",
        default="as the brokers have it",
    ),
)

SIDE_OUTPUT = _section(
    "side output",
    "Either a table or a topic.",
    Key("table", "name", "A Delta table under `storage`/quarantine or `storage`/late."),
    Key("topic", "topic", "A topic; the row as JSON, the cause in the header `_cause`."),
)

#: in the order of the reference page
SECTIONS = (PIPELINE, SOURCE, WATERMARK, FLOW, STEP, EXPECTATION, TABLE_SINK, TOPIC_SINK, SIDE_OUTPUT)
