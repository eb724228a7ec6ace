"""A declared pipeline as frozen values, which the reader has checked.

They are the same for a YAML file and for Python with decorators, except for `place`, which says where something was
written and takes no part in comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from ottla.pipeline.document import Text
from ottla.pipeline.duration import format_duration, parse_duration_ms
from ottla.pipeline.expectations import Expectation
from ottla.pipeline.keys import REFUSED_TRIGGERS, TRIGGERS
from ottla.pipeline.problems import Place
from ottla.pipeline.schema import Column
from ottla.pipeline.zone_rules import DEFAULT_ZONES, Zones

if TYPE_CHECKING:
    from ottla.spark.registry_schemas import PinnedSchema

Format = Literal["json", "avro", "protobuf", "bytes", "string"]

DEFAULT_BROKERS = "127.0.0.1:9092"
TOMBSTONE_RETENTION_MS = 7 * 24 * 3600 * 1000
#: as Delta does
VACUUM_RETAIN_MS = 7 * 24 * 3600 * 1000
#: the name of the result of the step before, in a step
PREVIOUS = "previous"
#: directories of tables for rows that are not part of a result
QUARANTINE = "quarantine"
LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a flow runs a batch. `interval_ms` is for the kind `interval` only."""

    kind: Literal["once", "available-now", "interval", "as-fast-as-possible"]
    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the trigger that `text` stands for in a declaration. Raise ValueError if it is not a trigger.

        >>> str(Trigger.parse("every 90 seconds"))
        'every 1m30s'
        """
        text = text.strip()
        word, _, span = text.partition(" ")
        if word == "every" and span:
            return cls(kind="interval", interval_ms=parse_duration_ms(span))
        if text in TRIGGERS:
            return cls(kind=text)  # type: ignore[arg-type]
        if text in REFUSED_TRIGGERS:
            raise ValueError(f"{text!r} {REFUSED_TRIGGERS[text]}: write as-fast-as-possible")
        raise ValueError(f"{text!r} is not a trigger: write {', '.join(TRIGGERS)} or 'every 10s'")

    @property
    def ends(self) -> bool:
        """Whether the run ends when it has read all records that existed at its start."""
        return self.kind in ("once", "available-now")

    def __str__(self) -> str:
        return f"every {format_duration(self.interval_ms)}" if self.kind == "interval" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How late rows may be, by the time in this column."""

    column: str
    delay_ms: int
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return f"{self.column}, {format_duration(self.delay_ms)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Confluent's framing of the values of a source: which schema ids are known. All others go to quarantine."""

    #: the file with the schema of each id; None: values with this id were written with the schema of the source
    schema_files: Mapping[int, str | None] = field(default_factory=dict)
    #: every id is accepted, and decoded with the schema of the source
    any_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySchema:
    """The schema of a source or topic sink in a schema registry. Values, or keys, have Confluent's framing."""

    subject: str
    #: `latest` or a number; None: a sink that registers or looks up its own schema
    version: str | None = None
    #: of sinks without a version: whether the schema may be registered
    register: bool = True
    #: the version that this run uses; None until `pin_schemas` has fetched it
    pinned: PinnedSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topic that is read."""

    name: str
    topic: str
    format: Format
    description: str = ""
    #: the fields of a value where they are known without opening the schema file; else empty
    columns: tuple[Column, ...] = ()
    #: relative to the declaration's directory
    schema_file: str | None = None
    message: str | None = None
    #: None: values have no framing
    framing: Framing | None = None
    #: None: the schema is in the declaration or in a file
    registry: RegistrySchema | None = None
    key_format: Literal["bytes", "string", "avro", "json", "protobuf"] = "bytes"
    #: the schema of the keys; set if and only if they have a format with schemas
    key_registry: RegistrySchema | None = None
    key_message: str | None = None
    #: of the column `_key`, if the keys have a schema; None until `pin_schemas` has fetched it
    key_type: str | None = None
    #: what becomes of records without a value: rejected like any that cannot be decoded, or rows whose fields are null
    null_values: Literal["reject", "keep"] = "reject"
    #: a word, a moment, or offsets by partition
    starting_offsets: Literal["earliest", "latest"] | datetime | Mapping[int, int] = "earliest"
    max_offsets_per_trigger: int | None = None
    on_data_loss: Literal["fail", "continue"] = "fail"
    watermark: Watermark | None = None
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    """A query over the flow's inputs, named results before it, and `previous`."""

    sql: Text
    name: str | None = None

    @property
    def place(self) -> Place:
        return self.sql.place


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """A function of DataFrames. `function` is `module:function`; `call` is the function if Python declared it."""

    function: str
    inputs: tuple[str, ...]
    name: str | None = None
    call: Callable[..., Any] | None = field(default=None, compare=False)
    place: Place = field(compare=False)


Step = SqlStep | PythonStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """A column that a table is partitioned by, or a part of the time in it."""

    column: str
    part: Literal["year", "month", "day", "hour"] | None = None

    def __str__(self) -> str:
        return f"{self.part}({self.column})" if self.part else self.column


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """How often small files of a table are put together while the pipeline runs, and the size of the result."""

    every_ms: int
    target_file_size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum:
    """How often files of old versions are deleted while the pipeline runs, and how long they are retained."""

    every_ms: int
    retain_ms: int = VACUUM_RETAIN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """A table of the lake, at storage/zone/name. With keys, rows replace each other; the last four belong to that."""

    name: str
    format: Literal["delta", "parquet"] = "delta"
    partition_by: tuple[PartitionColumn, ...] = ()
    merge_schema: bool = False
    keys: tuple[str, ...] = ()
    #: the row with the largest values in these columns stays; empty: the position of its record decides
    sequence_by: tuple[str, ...] = ()
    #: rows for which it is true delete the row with their key
    delete_when: Text | None = None
    #: whether all versions of a key are kept, with the times of their validity
    history: bool = False
    #: how long a deleted key is remembered
    tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS
    #: neither changes what a flow computes
    compact: Compaction | None = field(default=None, compare=False)
    vacuum: Vacuum | None = field(default=None, compare=False)
    place: Place = field(compare=False)

    @property
    def feeds_deletes(self) -> bool:
        """Whether streams that read the table receive deleted rows, and a column that says so."""
        return self.delete_when is not None and not self.history


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A topic that is written. An empty `value` stands for every column that does not begin with `_`."""

    topic: str
    format: Format = "json"
    #: one column as it is, or several that make up a record
    key: str | tuple[str, ...] | None = None
    #: set together with `key_registry`; None: bytes are written as they are, and other types as text
    key_format: Literal["avro", "json", "protobuf"] | None = None
    key_registry: RegistrySchema | None = None
    key_message: str | None = None
    value: tuple[str, ...] = ()
    schema_file: str | None = None
    message: str | None = None
    #: values are written in Confluent's framing with this id; None: without framing
    schema_id: int | None = None
    #: values are written in Confluent's framing with the id of a schema in a registry
    registry: RegistrySchema | None = None
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    #: rows for which it is true become records without a value
    tombstone_when: Text | None = None
    #: of the topic, if it has to be made; None: as many as the brokers give it
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    place: Place = field(compare=False)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key or ()

    @property
    def compacted(self) -> bool:
        """Whether the topic is made to keep the newest record of each key."""
        return "compact" in (one.strip() for one in self.config.get("cleanup.policy", "").split(","))


Sink = TableSink | TopicSink


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutput:
    """Where rows go that are not part of the result: exactly one of the two is set."""

    table: str | None = None
    topic: str | None = None
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return f"table {self.table}" if self.table else f"topic {self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A name in `from`, and where it is written."""

    name: str
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One table or view, and how its rows are computed."""

    name: str
    #: one of `Declaration.zones`
    zone: str
    inputs: tuple[Input, ...]
    description: str = ""
    kind: Literal["table", "view", "materialized_view"] = "table"
    steps: tuple[Step, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    deduplicate: tuple[str, ...] = ()
    watermark: Watermark | None = None
    emit: Literal["final", "changes"] = "final"
    #: empty for views and for flows that append to another's table
    sinks: tuple[Sink, ...] = ()
    append_to: Input | None = None
    #: set where rows can be rejected: in staging, and where an expectation quarantines
    quarantine: SideOutput | None = None
    late_rows: SideOutput | None = None
    trigger: Trigger | None = None
    version: int = 1
    place: Place = field(compare=False)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.inputs)

    @property
    def table(self) -> TableSink | None:
        """The table that other flows read."""
        return next((sink for sink in self.sinks if isinstance(sink, TableSink)), None)

    @property
    def topics(self) -> tuple[TopicSink, ...]:
        return tuple(sink for sink in self.sinks if isinstance(sink, TopicSink))

    @property
    def target(self) -> str:
        """The name of the flow whose table receives the rows: this flow, or the one that it appends to."""
        return self.append_to.name if self.append_to is not None else self.name

    @property
    def side_outputs(self) -> tuple[tuple[str, SideOutput], ...]:
        """The outputs of rejected and late rows, each with the directory of its table."""
        sides = ((QUARANTINE, self.quarantine), (LATE, self.late_rows))
        return tuple((directory, side) for directory, side in sides if side is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineage:
    """Where OpenLineage events go. What is None is taken from the environment of the process."""

    url: str | None = None
    endpoint: str | None = None
    api_key: str | None = field(default=None, repr=False)
    file: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A whole pipeline. Relative paths in it are relative to the directory of `file`."""

    name: str
    file: str = field(compare=False)
    #: the environment that was chosen; empty if the pipeline has none
    environment: str = ""
    #: values of the parameters, for output: those of secrets are hidden
    parameters: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    brokers: str = DEFAULT_BROKERS
    properties: Mapping[str, str] = field(default_factory=dict)
    storage: str
    checkpoints: str
    trigger: Trigger
    spark: Mapping[str, str] = field(default_factory=dict)
    openlineage: OpenLineage | None = field(default=None, compare=False)
    #: in the order of rows
    zones: Zones = field(default_factory=lambda: DEFAULT_ZONES)
    sources: Mapping[str, Source]
    flows: Mapping[str, Flow]

    @property
    def topic_sinks(self) -> tuple[TopicSink, ...]:
        return tuple(sink for flow in self.flows.values() for sink in flow.topics)

    @property
    def needs_registry(self) -> bool:
        """Whether schemas have to be fetched from a registry before the pipeline can be planned (`pin_schemas`)."""
        topics: list[Source | TopicSink] = [*self.sources.values(), *self.topic_sinks]
        schemas = (schema for each in topics for schema in (each.registry, each.key_registry))
        return any(each is not None and each.version is not None and each.pinned is None for each in schemas)

    def trigger_of(self, flow: Flow) -> Trigger:
        return flow.trigger or self.trigger


def default_checkpoints(storage: str) -> str:
    """Return the directory of checkpoints of a pipeline that names none."""
    return f"{storage.rstrip('/')}/_checkpoints"
