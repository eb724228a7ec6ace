"""From nodes to a Declaration: each value on its own. `graph.py` and `checks.py` check what values mean together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

from ottla.pipeline import keys
from ottla.pipeline.declaration import (
    DEFAULT_BROKERS,
    PREVIOUS,
    TOMBSTONE_RETENTION_MS,
    VACUUM_RETAIN_MS,
    Compaction,
    Declaration,
    Flow,
    Input,
    OpenLineage,
    PartitionColumn,
    PythonStep,
    RegistrySchema,
    SideOutput,
    Sink,
    Source,
    SqlStep,
    Step,
    TableSink,
    TopicSink,
    Trigger,
    Vacuum,
    Watermark,
    default_checkpoints,
)
from ottla.pipeline.document import Node
from ottla.pipeline.duration import parse_duration_ms, parse_size_bytes
from ottla.pipeline.expectations import Expectation, OnViolation
from ottla.pipeline.fields import Fields, as_mapping
from ottla.pipeline.parameters import HIDDEN_VALUE
from ottla.pipeline.problems import Problems, suggestion
from ottla.pipeline.project import ReadFile
from ottla.pipeline.schema_reading import SchemaReader
from ottla.pipeline.zone_rules import DEFAULT_ZONES, may_decode, read_zones

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PARTITION = re.compile(r"(\w+)\s*\(\s*(\w+)\s*\)")
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_DEFAULT_TRIGGER = Trigger(kind="available-now")


class DeclarationReader:
    """Reads one declaration; `calls` are the functions that Python handed over, by flow."""

    def __init__(
        self, file: str, problems: Problems, read_file: ReadFile, calls: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self._file = file
        self._problems = problems
        self._schemas = SchemaReader(problems, read_file)
        self._calls = calls or {}
        self._zones = DEFAULT_ZONES
        #: of tables that do not say whether they take new columns
        self._merge_schema = False
        #: flows whose zone could not be read: problems that depend on the zone are not reported
        self.unzoned: set[str] = set()

    def read(self, root: Node) -> Declaration:
        fields = Fields(root, keys.PIPELINE, "the pipeline", self._problems)
        storage = fields.text("storage", "lake")
        self._zones = read_zones(fields, self._problems)
        self._merge_schema = fields.flag("merge_schema", False)
        sources = {name.text: self._source(name, node) for name, node in fields.named("sources")}
        flows = {name.text: self._flow(name, node) for name, node in fields.named("flows")}
        return Declaration(
            name=fields.name("name") or "",
            file=self._file,
            description=fields.text("description"),
            brokers=self._brokers(fields),
            properties=fields.properties("properties"),
            storage=storage,
            checkpoints=fields.text("checkpoints", default_checkpoints(storage)),
            trigger=self._trigger(fields) or _DEFAULT_TRIGGER,
            spark=fields.properties("spark"),
            openlineage=self._openlineage(fields),
            zones=self._zones,
            sources=sources,
            flows=flows,
        )

    def _openlineage(self, fields: Fields) -> OpenLineage | None:
        node = fields.node("openlineage")
        if node is None:
            return None
        inner = Fields(node, keys.OPENLINEAGE, "openlineage", self._problems)
        url = inner.text("url") or None
        if url is not None and not url.startswith(("http://", "https://", HIDDEN_VALUE)):
            # The value is not shown, because it may have a secret in it.
            inner.problem(inner.place_of("url"), "openlineage: 'url' is not an HTTP address", "write http://HOST:PORT")
        if url is not None:
            inner.refuse("file", "events go to a url or to a file", "remove one of them")
        return OpenLineage(
            url=url,
            endpoint=inner.text("endpoint") or None,
            api_key=inner.text("api_key") or None,
            file=inner.text("file") or None,
            namespace=inner.text("namespace") or None,
        )

    # -- sources ------------------------------------------------------------------------------------------------------

    def _source(self, name: Node, node: Node) -> Source:
        fields = Fields(node, keys.SOURCE, f"source {name.text!r}", self._problems)
        form = fields.choice("format", keys.FORMATS)
        registry = self._schemas.read_value_schema(fields, form, keys.LATEST) if fields.has("format") else None
        key_format = fields.choice("key_format", keys.KEY_FORMATS)
        columns = self._schemas.read_columns(fields, form) if fields.has("format") and registry is None else ()
        source = Source(
            name=name.text,
            topic=fields.topic("topic"),
            format=cast(Any, form),
            description=fields.text("description"),
            columns=columns,
            schema_file=fields.text("schema_file") or None,
            message=fields.text("message") or None,
            framing=self._schemas.read_framing(fields, form) if registry is None else None,
            registry=registry,
            key_format=cast(Any, key_format),
            key_registry=self._schemas.read_key_schema(fields, key_format, keys.LATEST),
            key_message=fields.text("key_message") or None,
            null_values=cast(Any, fields.choice("null_values", keys.NULL_VALUES)),
            starting_offsets=self._starting_offsets(fields),
            max_offsets_per_trigger=fields.count("max_offsets_per_trigger"),
            on_data_loss=cast(Any, fields.choice("on_data_loss", keys.ON_DATA_LOSS)),
            watermark=self._watermark(fields),
            place=name.place,
        )
        if form in ("bytes", "string"):
            fields.refuse("null_values", f"format {form} keeps values that are null", "remove it")
        if form != "protobuf":
            fields.refuse("message", "only Protobuf files have messages", "remove it")
        return source

    def _starting_offsets(self, fields: Fields) -> Any:
        node = fields.node("starting_offsets")
        if node is None:
            return "earliest"
        advice = "write earliest, latest, a time such as 2026-01-31T00:00:00Z, or 'partition: offset' lines"
        if node.kind == "mapping":
            offsets = {}
            for key, value in node.entries:
                if not (key.text.isdecimal() and value.kind == "number" and value.text.isdecimal()):
                    fields.problem(key.place, f"{fields.called}: {key.text}: {value.text} is not an offset", advice)
                else:
                    offsets[int(key.text)] = int(value.text)
            return offsets
        if node.text in ("earliest", "latest"):
            return node.text
        try:
            moment = datetime.fromisoformat(node.text)
        except ValueError:
            fields.problem(
                node.place, f"{fields.called}: {node.text or node.kind_name!r} is not a starting offset", advice
            )
            return "earliest"
        if moment.tzinfo is None:
            utc = f"{node.text}Z" if "T" in node.text else f"{moment.isoformat()}Z"
            fields.problem(node.place, f"{fields.called}: {node.text} has no time zone", f"write {utc} for UTC")
        return moment

    def _watermark(self, fields: Fields) -> Watermark | None:
        node = fields.node("watermark")
        if node is None:
            return None
        inner = Fields(node, keys.WATERMARK, f"{fields.called}: watermark", self._problems)
        return Watermark(column=inner.text("column"), delay_ms=inner.duration_ms("delay"), place=node.place)

    # -- flows --------------------------------------------------------------------------------------------------------

    def _flow(self, name: Node, node: Node) -> Flow:
        fields = Fields(node, keys.FLOW, f"flow {name.text!r}", self._problems)
        inputs = tuple(Input(name=word.text, place=word.place) for word in fields.words("from"))
        kind = fields.choice("kind", keys.FLOW_KINDS)
        append = fields.node("append_to")
        stored = kind != "view" and append is None
        sinks = tuple(self._sink(fields, item) for item in fields.items("to"))
        if not sinks and stored:
            sinks = (TableSink(name=name.text, merge_schema=self._merge_schema, place=name.place),)
        expectations = tuple(self._expectation(fields, item) for item in fields.items("expect"))
        if fields.text("zone") not in self._zones:
            self.unzoned.add(name.text)
        return Flow(
            name=name.text,
            zone=fields.choice("zone", tuple(self._zones)),
            inputs=inputs,
            description=fields.text("description"),
            kind=cast(Any, kind),
            steps=self._steps(fields, name.text, inputs),
            expectations=expectations,
            deduplicate=fields.columns("deduplicate"),
            watermark=self._watermark(fields),
            emit=cast(Any, fields.choice("emit", keys.EMITS)),
            sinks=sinks,
            append_to=Input(name=fields.text("append_to"), place=append.place) if append is not None else None,
            quarantine=self._side_output(fields, "quarantine") or self._default_quarantine(name, fields, expectations),
            late_rows=self._side_output(fields, "late_rows"),
            trigger=self._trigger(fields),
            version=fields.count("version") or 1,
            place=name.place,
        )

    def _steps(self, fields: Fields, flow: str, inputs: tuple[Input, ...]) -> tuple[Step, ...]:
        given = [key for key in ("sql", "python", "steps") if fields.has(key)]
        if len(given) > 1:
            what = f"{fields.called} has {' and '.join(map(repr, given))}"
            fields.problem(fields.place_of(given[1]), what, "keep one, or write both as steps")
        names = tuple(one.name for one in inputs)
        if "steps" not in given:
            step = self._step(fields, names, self._calls.get(flow))
            return (step,) if step is not None else ()
        steps: list[Step] = []
        seen = {name.lower() for name in names}
        for number, node in enumerate(fields.items("steps"), 1):
            inner = Fields(node, keys.STEP, f"{fields.called}: step {number}", self._problems)
            step = self._step(inner, names if number == 1 else (PREVIOUS,), None)
            if step is None and node.kind == "mapping":
                inner.problem(node.place, f"{inner.called} does nothing", "add sql: or python:")
            if step is not None and step.name is not None:
                if step.name.lower() in seen or step.name == PREVIOUS:
                    inner.problem(
                        inner.place_of("as"), f"{inner.called}: {step.name!r} is taken", "choose another name"
                    )
                seen.add(step.name.lower())
            if step is not None:
                steps.append(step)
        return tuple(steps)

    def _step(self, fields: Fields, default: tuple[str, ...], call: Callable[..., Any] | None) -> Step | None:
        is_step = fields.called.rpartition(": step ")[1] != ""
        name = fields.name("as") if is_step else None
        sql = fields.written("sql")
        if sql is not None:
            if is_step:
                fields.refuse("with", "'with' belongs to python; a query names its tables itself", "remove it")
                fields.refuse("python", "a step is either sql or python", "make two steps")
            return SqlStep(sql=sql, name=name)
        function = fields.text("python")
        if not function:
            return None
        node = fields.node("python")
        assert node is not None
        if call is None and not _FUNCTION.fullmatch(function):
            fields.problem(node.place, f"{fields.called}: {function!r} names no function", "write module:function")
        inputs = fields.columns("with") if is_step and fields.has("with") else default
        return PythonStep(function=function, inputs=inputs, name=name, call=call, place=node.place)

    def _expectation(self, fields: Fields, node: Node) -> Expectation:
        inner = Fields(node, keys.EXPECTATION, f"{fields.called}: expectation", self._problems)
        predicate = inner.written("that")
        return Expectation(
            name=inner.text("name"),
            predicate=predicate if predicate is not None else Node("text", node.place, text="true").as_text(),
            on_violation=cast(OnViolation, inner.choice("on_violation", keys.ON_VIOLATION)),
            place=node.place,
        )

    def _sink(self, fields: Fields, node: Node) -> Sink:
        given = as_mapping(node)
        if "topic" in given and "table" not in given:
            return self._topic_sink(fields, node)
        if "table" in given and "topic" in given:
            self._problems.add(
                node.place, f"{fields.called}: a sink is a table or a topic, not both", "make two sinks of it"
            )
            return TableSink(name=given["table"].text, place=node.place)
        if "table" not in given and node.kind == "mapping":
            what = f"{fields.called}: a sink has neither 'table' nor 'topic'"
            self._problems.add(node.place, what, "add table: NAME or topic: NAME")
            return TableSink(name="", place=node.place)
        inner = Fields(node, keys.TABLE_SINK, f"{fields.called}: table sink", self._problems)
        if not inner.has("keys"):
            for key in ("sequence_by", "delete_when", "history", "tombstone_retention"):
                inner.refuse(key, f"{key} belongs to a table with keys", "add keys: COLUMN, or remove it")
        elif not inner.has("delete_when"):
            inner.refuse("tombstone_retention", "without delete_when no row is deleted", "add delete_when:")
        return TableSink(
            name=inner.name("table") or "",
            format=cast(Any, inner.choice("format", keys.TABLE_FORMATS)),
            partition_by=tuple(self._partition_column(inner, word) for word in inner.words("partition_by")),
            merge_schema=inner.flag("merge_schema", self._merge_schema),
            keys=inner.columns("keys"),
            sequence_by=inner.columns("sequence_by"),
            delete_when=inner.written("delete_when"),
            history=inner.flag("history", False),
            tombstone_retention_ms=inner.duration_ms("tombstone_retention") or TOMBSTONE_RETENTION_MS,
            compact=self._compaction(inner),
            vacuum=self._vacuum(inner),
            place=node.place,
        )

    def _compaction(self, fields: Fields) -> Compaction | None:
        node = self._maintenance(fields, "compact")
        if node is None:
            return None
        inner = Fields(node, keys.COMPACTION, f"{fields.called}: compact", self._problems)
        size, size_bytes = inner.node("target_file_size"), None
        if size is not None:
            try:
                size_bytes = parse_size_bytes(size.text)
            except ValueError as error:
                inner.problem(size.place, f"{inner.called}: target_file_size: {error}", "write a number and a unit")
        return Compaction(every_ms=self._interval(inner) or _DAY_MS, target_file_size_bytes=size_bytes)

    def _vacuum(self, fields: Fields) -> Vacuum | None:
        node = self._maintenance(fields, "vacuum")
        if node is None:
            return None
        inner = Fields(node, keys.VACUUM, f"{fields.called}: vacuum", self._problems)
        retain_ms = inner.duration_ms("retain") if inner.has("retain") else VACUUM_RETAIN_MS
        if retain_ms < _HOUR_MS:
            what = f"{inner.called}: retain is shorter than an hour, the time that writes under way may need"
            inner.problem(inner.place_of("retain"), what, "write retain: 7d")
        return Vacuum(every_ms=self._interval(inner) or _DAY_MS, retain_ms=retain_ms)

    def _maintenance(self, fields: Fields, key: str) -> Node | None:
        if fields.text("format") == "parquet":
            fields.refuse(key, f"{key} belongs to Delta tables", "write format: delta, or remove it")
        return fields.node(key)

    def _interval(self, fields: Fields) -> int:
        interval_ms = fields.duration_ms("every")
        if fields.has("every") and interval_ms < _MINUTE_MS:
            fields.problem(fields.place_of("every"), f"{fields.called}: every is shorter than a minute", "write 1h")
        return interval_ms

    def _topic_sink(self, fields: Fields, node: Node) -> TopicSink:
        inner = Fields(node, keys.TOPIC_SINK, f"{fields.called}: topic sink", self._problems)
        form = inner.choice("format", keys.FORMATS)
        value = inner.columns("value")
        if form in ("bytes", "string") and len(value) != 1:
            what = f"{inner.called}: format {form} writes exactly one column"
            inner.problem(inner.place_of("value"), what, "add value: COLUMN, or write format: json")
        registry = self._schemas.read_value_schema(inner, form, None)
        key_format = inner.choice("key_format", keys.KEY_SCHEMA_FORMATS) if inner.has("key_format") else None
        key_registry = self._schemas.read_key_schema(inner, key_format, None)
        if registry is None:
            inner.refuse("schema", "a topic sink takes its schema from a file or a registry",
                         "write schema: {registry: SUBJECT}")  # fmt: skip
        self._schemas.check_sink(inner, form, registry)
        return TopicSink(
            topic=inner.topic("topic"),
            format=cast(Any, form),
            key=self._sink_key(inner, key_format, key_registry),
            key_format=cast(Any, key_format),
            key_registry=key_registry,
            key_message=inner.text("key_message") or None,
            value=value,
            schema_file=inner.text("schema_file") or None,
            message=inner.text("message") or None,
            schema_id=self._schemas.read_schema_id(inner, form) if registry is None else None,
            registry=registry,
            delivery=cast(Any, inner.choice("delivery", keys.DELIVERIES)),
            tombstone_when=inner.written("tombstone_when"),
            partitions=inner.count("partitions"),
            config=inner.properties("config"),
            place=node.place,
        )

    def _sink_key(
        self, fields: Fields, form: str | None, schema: RegistrySchema | None
    ) -> str | tuple[str, ...] | None:
        node = fields.node("key")
        if node is None:
            fields.refuse("key_format", "there is no key that could be encoded", "add key: COLUMN")
        if form == "protobuf" and schema is not None and schema.version is None:
            what = f"{fields.called}: the schema of Protobuf keys cannot be derived from columns"
            fields.problem(fields.place_of("key_schema"), what, "add version: latest to it")
        if node is None or node.kind != "list":
            return fields.text("key") or None
        if form is None:
            what = f"{fields.called}: a list of columns is a key with a schema"
            fields.problem(node.place, what, "write key: COLUMN, or add key_format: and key_schema:")
        return fields.columns("key")

    def _partition_column(self, fields: Fields, node: Node) -> PartitionColumn:
        call = _PARTITION.fullmatch(node.text.strip())
        if call is None:
            if not re.fullmatch(r"\w+", node.text.strip()):
                fields.problem(
                    node.place, f"{fields.called}: {node.text!r} is not a column", "write a column or day(column)"
                )
            return PartitionColumn(column=node.text.strip())
        part = call[1].lower()
        if part not in keys.PARTITION_PARTS:
            what = f"{fields.called}: tables are not partitioned by {part!r}"
            fields.problem(node.place, what, suggestion(part, keys.PARTITION_PARTS, none=""))
        return PartitionColumn(column=call[2], part=cast(Any, part))

    def _side_output(self, fields: Fields, key: str) -> SideOutput | None:
        node = fields.node(key)
        if node is None:
            return None
        inner = Fields(node, keys.SIDE_OUTPUT, f"{fields.called}: {key}", self._problems)
        if node.kind == "mapping" and inner.has("table") == inner.has("topic"):
            inner.problem(node.place, f"{inner.called} is one table or one topic", "write table: NAME or topic: NAME")
        table = inner.name("table")
        topic = inner.topic("topic") or None
        return SideOutput(table=table, topic=topic if table is None else None, place=node.place)

    def _default_quarantine(
        self, name: Node, fields: Fields, expectations: tuple[Expectation, ...]
    ) -> SideOutput | None:
        zone = fields.text("zone")
        decodes = zone in self._zones and may_decode(self._zones, zone)
        rejects = decodes or any(one.on_violation == "quarantine" for one in expectations)
        return SideOutput(table=f"{name.text}_quarantine", place=name.place) if rejects else None

    # -- both ---------------------------------------------------------------------------------------------------------

    def _trigger(self, fields: Fields) -> Trigger | None:
        text = fields.text("trigger").strip()
        node = fields.node("trigger")
        if node is None or not text:
            return None
        if text in keys.TRIGGERS:
            return Trigger(kind=cast(Any, text))
        words = text.split(maxsplit=1)
        advice = "write 'every 10s', 'every 5m' or the like"
        if words[0] == "every" and len(words) == 2:
            try:
                interval_ms = parse_duration_ms(words[1])
            except ValueError as error:
                fields.problem(node.place, f"{fields.called}: trigger: {error}", advice)
                return None
            if interval_ms == 0:
                fields.problem(node.place, f"{fields.called}: trigger: the interval is 0", "write as-fast-as-possible")
            return Trigger(kind="interval", interval_ms=interval_ms)
        if text in keys.REFUSED_TRIGGERS:
            what = f"{fields.called}: trigger {text!r} {keys.REFUSED_TRIGGERS[text]}"
            fields.problem(node.place, what, "write as-fast-as-possible")
            return None
        instead = advice if text[0].isdecimal() else suggestion(text, (*keys.TRIGGERS, "every 10s"), none="")
        fields.problem(node.place, f"{fields.called}: {text!r} is not a trigger", instead)
        return None

    def _brokers(self, fields: Fields) -> str:
        text = fields.text("brokers", DEFAULT_BROKERS)
        for one in text.split(","):
            host, colon, port = one.strip().rpartition(":")
            if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
                place = (fields.node("brokers") or Node("nothing", fields.place)).place
                fields.problem(
                    place, f"{one.strip()!r} is not the address of a broker", "write HOST:PORT, such as 127.0.0.1:9092"
                )
        return text
