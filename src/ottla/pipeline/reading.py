"""From nodes to a Declaration: each value for itself. What things mean together is in graph.py and checks.py."""

from __future__ import annotations

import json
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
    Framing,
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
from ottla.pipeline.schema import BadType, Column, parse_ddl, parse_type
from ottla.pipeline.zone_rules import DEFAULT_ZONES, may_decode, read_zones

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PARTITION = re.compile(r"(\w+)\s*\(\s*(\w+)\s*\)")
_SCHEMA_FILES = {"json": (".ddl",), "avro": (".avsc",), "protobuf": (".proto", ".desc")}
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_DEFAULT_TRIGGER = Trigger(kind="available-now")


class DeclarationReader:
    """Reads one declaration; `calls` are the functions that Python handed over, by flow."""

    def __init__(
        self, file: str, problems: Problems, read_file: ReadFile, calls: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self._file = file
        self._problems = problems
        self._read_file = read_file
        self._calls = calls or {}
        self._zones = DEFAULT_ZONES
        #: of tables that do not say whether they take new columns
        self._merge_schema = False
        #: flows whose zone could not be read; what depends on it is not worth saying
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
            inner.problem(inner.place_of("url"), "openlineage: 'url' is no address of HTTP", "write http://HOST:PORT")
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
        registry = self._registry_schema(fields, form, keys.LATEST) if fields.has("format") else None
        key_format = fields.choice("key_format", keys.KEY_FORMATS)
        columns = self._schema(fields, form) if fields.has("format") and registry is None else ()
        source = Source(
            name=name.text,
            topic=fields.topic("topic"),
            format=cast(Any, form),
            description=fields.text("description"),
            columns=columns,
            schema_file=fields.text("schema_file") or None,
            message=fields.text("message") or None,
            framing=self._framing(fields, form) if registry is None else None,
            registry=registry,
            key_format=cast(Any, key_format),
            key_registry=self._key_schema(fields, key_format, keys.LATEST),
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

    def _registry_schema(self, fields: Fields, form: str, default: str | None) -> RegistrySchema | None:
        """Return the schema of a registry under `schema`; None if there is something else. `default` is the version."""
        node = fields.node("schema")
        if node is None or not _is_registry_schema(node, form):
            return None
        if form in ("bytes", "string"):
            fields.refuse("schema", f"format {form} has no schema", "remove it, or choose another format")
        for key in ("framing", "schema_id"):
            if fields.has(key):
                what = "values with a schema of a registry have Confluent's framing and their schema id"
                fields.refuse(key, what, "remove it")
        return self._subject(node, f"{fields.called}: schema", default)

    def _key_schema(self, fields: Fields, form: str | None, default: str | None) -> RegistrySchema | None:
        """Return the schema of the keys; None if they have none. `default` is the version."""
        if form != "protobuf":
            fields.refuse("key_message", "only keys of format protobuf have messages", "remove it")
        if form not in keys.KEY_SCHEMA_FORMATS:
            advice = f"add key_format: {' or '.join(keys.KEY_SCHEMA_FORMATS)}, or remove it"
            fields.refuse("key_schema", "keys have a schema only with a format", advice)
            return None
        node = fields.node("key_schema")
        if node is None:
            what = f"{fields.called}: key_format {form} needs the schema of the keys"
            fields.problem(fields.place_of("key_format"), what, "add key_schema: {registry: SUBJECT}")
            return None
        return self._subject(node, f"{fields.called}: key_schema", default)

    def _subject(self, node: Node, called: str, default: str | None) -> RegistrySchema:
        inner = Fields(node, keys.REGISTRY_SCHEMA, called, self._problems)
        version = inner.node("version")
        chosen = version.text if version is not None else default
        if version is not None and version.text != keys.LATEST and inner.count("version") is None:
            chosen = keys.LATEST
        if default is not None or version is not None:
            inner.refuse("register", "only a topic sink without a version registers its schema", "remove it")
        return RegistrySchema(subject=inner.text("registry"), version=chosen, register=inner.flag("register", True))

    def _schema(self, fields: Fields, form: str) -> tuple[Column, ...]:
        if form in ("bytes", "string"):
            advice = f"remove it: a value of format {form} is one column, 'value'"
            fields.refuse("schema", f"format {form} has no schema", advice)
            fields.refuse("schema_file", f"format {form} has no schema", advice)
            return (Column("value", "BINARY" if form == "bytes" else "STRING"),)
        if fields.has("schema") and fields.has("schema_file"):
            fields.problem(
                fields.place_of("schema_file"), f"{fields.called} has both 'schema' and 'schema_file'", "keep one"
            )
        if form in ("avro", "protobuf"):
            suffix = _SCHEMA_FILES[form][0]
            instead = f"write schema_file: file{suffix}, or schema: {{registry: SUBJECT}}"
            fields.refuse("schema", f"format {form} needs its own schema language", instead)
            if not fields.has("schema_file") and not fields.has("schema"):
                fields.problem(fields.place, f"{fields.called} has no schema", f"add schema_file: file{suffix}")
        elif not fields.has("schema_file") and not fields.has("schema"):
            fields.problem(
                fields.place,
                f"{fields.called} has no schema",
                "add schema: with one 'field: type' per line, or schema_file",
            )
        if fields.has("schema_file"):
            return self._schema_of_file(fields, form)
        node = fields.node("schema") if form == "json" else None
        return self._inline_schema(fields, node) if node is not None else ()

    def _inline_schema(self, fields: Fields, node: Node) -> tuple[Column, ...]:
        columns: list[Column] = []
        if node.kind == "text":
            try:
                columns = list(parse_ddl(node.text))
            except BadType as bad:
                fields.problem(node.as_text().place_of(bad.position), f"{fields.called}: {bad.what}", bad.instead)
        elif node.kind == "mapping":
            for name, value in node.entries:
                spelt = self._field_type(fields, name.text, value)
                if any(name.text.lower() == column.name.lower() for column in columns):
                    fields.problem(name.place, f"{fields.called}: the field {name.text!r} is there twice", "rename one")
                columns.append(Column(name.text, spelt.removesuffix(" NOT NULL"), not spelt.endswith(" NOT NULL")))
                if name.text.startswith("_"):
                    advice = f"name it {name.text.lstrip('_') or 'value'}"
                    fields.problem(name.place, f"{fields.called}: names with _ in front are Ottla's own", advice)
        else:
            fields.problem(
                node.place, f"{fields.called}: 'schema' is {node.kind_name}", "write one 'field: type' per line"
            )
        return tuple(columns)

    def _field_type(self, fields: Fields, name: str, node: Node) -> str:
        """Types nest as YAML does: a mapping is a STRUCT, a list of one is an ARRAY."""
        if node.kind == "mapping":
            inner = ", ".join(f"`{key}`: {self._field_type(fields, key, one)}" for key, one in as_mapping(node).items())
            return f"STRUCT<{inner}>"
        if node.kind == "list" and len(node.items) == 1:
            return f"ARRAY<{self._field_type(fields, name, node.items[0])}>"
        if node.kind == "nothing" and name.endswith(")"):
            # The second half of a type that braces have cut in two; the problem is in the list already.
            return "STRING"
        if node.kind == "text":
            bare = re.sub(r"\s+not\s+null\s*$", "", node.text, flags=re.IGNORECASE)
            try:
                return parse_type(bare) + (" NOT NULL" if bare != node.text else "")
            except BadType as bad:
                cut = bare.count("(") > bare.count(")") or bare.count("<") > bare.count(">")
                instead = "between braces put it in quotes, or write one field per line" if cut else bad.instead
                place = node.as_text().place_of(bad.position)
                fields.problem(place, f"{fields.called}: field {name!r}: {bad.what}", instead)
                return "STRING"
        fields.problem(
            node.place, f"{fields.called}: field {name!r} is {node.kind_name}", "write a type, such as string"
        )
        return "STRING"

    def _schema_of_file(self, fields: Fields, form: str) -> tuple[Column, ...]:
        node = fields.node("schema_file")
        if node is None or node.kind != "text":
            fields.text("schema_file")
            return ()
        return self._read_schema_file(fields, node, form)

    def _read_schema_file(self, fields: Fields, node: Node, form: str) -> tuple[Column, ...]:
        """Return the columns in a schema file, as far as they are known here. Add a problem if it is no schema."""
        suffixes = _SCHEMA_FILES[form]
        if not node.text.endswith(suffixes):
            advice = f"name a file that ends in {' or '.join(suffixes)}"
            fields.problem(node.place, f"{fields.called}: {node.text!r} is no schema of format {form}", advice)
            return ()
        try:
            data = self._read_file(node.text)
        except OSError as error:
            what = f"{fields.called}: {node.text} cannot be read: {error.strerror or error}"
            fields.problem(node.place, what, "name a file relative to this one")
            return ()
        return self._columns_in_file(fields, node, form, data)

    def _columns_in_file(self, fields: Fields, node: Node, form: str, data: bytes) -> tuple[Column, ...]:
        try:
            if form == "json":
                return parse_ddl(data.decode())
            if form == "avro":
                schema = json.loads(data)
                if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
                    raise ValueError("an Avro schema of a topic is a record with fields")
        except BadType as bad:
            fields.problem(node.place, f"{fields.called}: {node.text}: {bad.what}", bad.instead)
        except ValueError as error:
            fields.problem(node.place, f"{fields.called}: {node.text}: {error}", "correct that file")
        # What Avro and Protobuf become in Spark is for those who decode them to say.
        return ()

    def _framing(self, fields: Fields, form: str) -> Framing | None:
        """Return the schema ids of a source, or None if its values have no framing."""
        node = fields.node("framing")
        if node is None or (node.kind == "text" and node.text == "none"):
            return None
        if form in ("bytes", "string"):
            fields.refuse("framing", f"format {form} is not decoded by a schema", "remove it, or choose another format")
            return None
        ids = as_mapping(node).get("confluent") if node.kind == "mapping" and len(node.entries) == 1 else None
        if ids is not None and ids.kind == "text" and ids.text == keys.ANY_ID:
            return Framing(any_id=True)
        known = self._schema_ids(fields, ids, form) if ids is not None and ids.kind in ("mapping", "list") else {}
        if known is not None and not known:
            what = f"{fields.called}: framing does not say which schema ids are known"
            suffix = _SCHEMA_FILES[form][0]
            files = "[1, 2]" if form == "json" else f"{{1: v1{suffix}, 2: v2{suffix}}}"
            fields.problem(node.place, what, f"write framing: {{confluent: {files}}}, or {{confluent: {keys.ANY_ID}}}")
        return Framing(schema_files=known or {})

    def _schema_ids(self, fields: Fields, node: Node, form: str) -> dict[int, str | None] | None:
        """Return a schema file for each id, None for an id in a list. Return None after a problem."""
        entries = node.entries if node.kind == "mapping" else tuple((item, None) for item in node.items)
        known: dict[int, str | None] = {}
        sound = True
        for key, file in entries:
            if not _is_schema_id(key) or int(key.text) in known:
                what = f"{fields.called}: framing: {key.text or key.kind_name!r} is no schema id, or is there twice"
                fields.problem(key.place, what, f"write each id once, a number from 0 to {keys.SCHEMA_ID_MAX}")
                sound = False
                continue
            known[int(key.text)] = file.text if file is not None else None
            if file is not None and form == "json":
                what = (
                    f"{fields.called}: framing: format json needs no schema for an id, because values name their fields"
                )
                fields.problem(file.place, what, f"write framing: {{confluent: [{key.text}]}}")
            elif file is not None and file.kind != "text":
                what = f"{fields.called}: framing: the schema of id {key.text} is {file.kind_name}"
                fields.problem(file.place, what, f"name a file that ends in {' or '.join(_SCHEMA_FILES[form])}")
            elif file is not None:
                self._read_schema_file(fields, file, form)
        return known if sound else None

    def _written_schema_id(self, fields: Fields, form: str) -> int | None:
        """Return the schema id that a sink writes, or None if it writes no framing."""
        framed = fields.choice("framing", keys.FRAMINGS) == "confluent"
        node = fields.node("schema_id")
        if not framed:
            fields.refuse("schema_id", "a schema id is written with framing: confluent only", "add it, or remove this")
            return None
        if form in ("bytes", "string"):
            fields.refuse("framing", f"format {form} has no schema", "remove it, or choose another format")
            return None
        advice = f"add schema_id: with the id that the registry gave the schema, from 0 to {keys.SCHEMA_ID_MAX}"
        if node is None:
            fields.problem(fields.place_of("framing"), f"{fields.called}: framing has no schema id", advice)
            return None
        if not _is_schema_id(node):
            fields.problem(node.place, f"{fields.called}: {node.text or node.kind_name!r} is no schema id", advice)
            return None
        return int(node.text)

    def _starting_offsets(self, fields: Fields) -> Any:
        node = fields.node("starting_offsets")
        if node is None:
            return "earliest"
        advice = "write earliest, latest, a time such as 2026-01-31T00:00:00Z, or 'partition: offset' lines"
        if node.kind == "mapping":
            offsets = {}
            for key, value in node.entries:
                if not (key.text.isdecimal() and value.kind == "number" and value.text.isdecimal()):
                    fields.problem(key.place, f"{fields.called}: {key.text}: {value.text} is no offset", advice)
                else:
                    offsets[int(key.text)] = int(value.text)
            return offsets
        if node.text in ("earliest", "latest"):
            return node.text
        try:
            moment = datetime.fromisoformat(node.text)
        except ValueError:
            fields.problem(
                node.place, f"{fields.called}: {node.text or node.kind_name!r} is no starting offset", advice
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
        registry = self._registry_schema(inner, form, None)
        key_format = inner.choice("key_format", keys.KEY_SCHEMA_FORMATS) if inner.has("key_format") else None
        key_registry = self._key_schema(inner, key_format, None)
        if registry is None:
            inner.refuse("schema", "a topic sink takes its schema from a file or a registry",
                         "write schema: {registry: SUBJECT}")  # fmt: skip
        self._check_sink_schema(inner, form, registry)
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
            schema_id=self._written_schema_id(inner, form) if registry is None else None,
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

    def _check_sink_schema(self, fields: Fields, form: str, registry: RegistrySchema | None) -> None:
        if form not in ("avro", "protobuf"):
            fields.refuse("schema_file", f"format {form} is written without a schema file", "remove it")
            return
        if registry is not None and registry.version is not None:
            fields.refuse("schema_file", "the schema is that of a version of the registry", "remove it, or the version")
        elif fields.has("schema_file"):
            self._schema_of_file(fields, form)
            if registry is not None and fields.text("schema_file").endswith(".desc"):
                what = f"{fields.called}: a registry takes texts"
                fields.problem(fields.place_of("schema_file"), what, "name a file that ends in .proto")
        elif registry is None or form == "protobuf":
            suffix = _SCHEMA_FILES[form][0]
            more = ", or version: latest to the schema" if registry is not None else ""
            fields.problem(fields.place, f"{fields.called} has no schema", f"add schema_file: file{suffix}{more}")

    def _partition_column(self, fields: Fields, node: Node) -> PartitionColumn:
        call = _PARTITION.fullmatch(node.text.strip())
        if call is None:
            if not re.fullmatch(r"\w+", node.text.strip()):
                fields.problem(
                    node.place, f"{fields.called}: {node.text!r} is no column", "write a column or day(column)"
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
        fields.problem(node.place, f"{fields.called}: {text!r} is no trigger", instead)
        return None

    def _brokers(self, fields: Fields) -> str:
        text = fields.text("brokers", DEFAULT_BROKERS)
        for one in text.split(","):
            host, colon, port = one.strip().rpartition(":")
            if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
                place = (fields.node("brokers") or Node("nothing", fields.place)).place
                fields.problem(
                    place, f"{one.strip()!r} is no broker's address", "write HOST:PORT, such as 127.0.0.1:9092"
                )
        return text


def _is_registry_schema(node: Node, form: str) -> bool:
    """Return whether a mapping names a subject. A JSON value may also have a field of the name `registry`."""
    subject = as_mapping(node).get("registry") if node.kind == "mapping" else None
    if subject is None or form != "json":
        return subject is not None
    try:
        parse_type(subject.text)
    except BadType:
        return subject.kind == "text" and {key.text for key, _ in node.entries} <= keys.REGISTRY_SCHEMA.keys.keys()
    return False


def _is_schema_id(node: Node) -> bool:
    """Return whether a node is a schema id. Keys of mappings are text, also if they are numbers."""
    is_number = node.kind in ("number", "text") and re.fullmatch(r"[0-9]{1,10}", node.text, re.ASCII) is not None
    return is_number and int(node.text) <= keys.SCHEMA_ID_MAX
