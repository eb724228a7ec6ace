"""Parts of a pipeline that a project for Spark Declarative Pipelines (SDP) lacks, or has in another form. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.pipeline.declaration import Declaration, Flow, PythonStep, TableSink, TopicSink
from ottla.pipeline.problems import Place
from ottla.pipeline.sdp.formats import is_secret, variable_of


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """A part of a declaration that the project has not, or has in another form."""

    place: Place
    #: whether rows or outputs are missing from the project
    left_out: bool
    what: str
    why: str

    @property
    def summary(self) -> str:
        return f"{'not exported' if self.left_out else 'changed'}: {self.what}; {self.why}"

    def __str__(self) -> str:
        return f"{self.place}: {self.summary}"


def left_out(place: Place, what: str, why: str) -> Note:
    return Note(place, True, what, why)


def changed(place: Place, what: str, why: str) -> Note:
    return Note(place, False, what, why)


def flow_notes(flow: Flow, all_rows: str) -> Iterator[Note]:
    """Yield the notes about one flow; `all_rows` is the streaming table with all rows of a keyed table."""
    called = f"flow {flow.name!r}"
    if flow.late_rows is not None:
        why = "SDP has no output for rows that Spark drops; they are dropped"
        yield left_out(flow.late_rows.place, f"{called}: late rows in {flow.late_rows}", why)
    for one in flow.expectations:
        if one.on_violation == "warn":
            why = "SDP counts no violations; the rows are written as before"
            yield changed(one.place, f"{called}: the expectation {one.name!r}", why)
    if flow.emit == "changes" and flow.kind == "table":
        why = "it becomes a materialized view of the whole input, because SDP has no update mode"
        yield changed(flow.place, f"{called}: emit: changes", why)
        for topic in flow.topics:
            what = f"{called}: the topic {topic.topic!r}"
            yield left_out(topic.place, what, "streams of SDP have no update mode")
    elif flow.table is not None and flow.table.keys and flow.kind == "table":
        why = f"all rows are kept in {all_rows!r}, and each run computes the view of the newest rows completely"
        yield changed(flow.table.place, f"{called}: the keyed table", why)
    for sink in flow.sinks:
        if isinstance(sink, TableSink) and sink.partition_by:
            why = "SDP does not partition the files of streaming tables"
            yield changed(sink.place, f"{called}: partition_by of the table {sink.name!r}", why)
        if isinstance(sink, TableSink) and (sink.compact is not None or sink.vacuum is not None):
            what = f"{called}: compact and vacuum of the table {sink.name!r}"
            yield changed(sink.place, what, "SDP does not maintain its Parquet tables")
    if flow.quarantine is not None and any(one.on_violation == "quarantine" for one in flow.expectations):
        why = "rejected rows have their own columns instead of JSON in 'row'"
        yield changed(flow.quarantine.place, f"{called}: columns of the quarantine", why)
    if flow.trigger is not None:
        yield from _trigger_notes(flow.place, called, str(flow.trigger))
    for step in flow.steps:
        if isinstance(step, PythonStep):
            why = "it must work with Spark Connect, without asking for columns or types"
            yield changed(step.place, f"{called}: the function {step.function}", why)


def pipeline_notes(declaration: Declaration) -> Iterator[Note]:
    """Yield the notes about the settings of a pipeline."""
    place = Place(declaration.file)
    yield from _trigger_notes(place, "the pipeline", str(declaration.trigger))
    if declaration.openlineage is not None:
        yield left_out(place, "OpenLineage events", "SDP sends none")
    for name, value in declaration.properties.items():
        if is_secret(name, value):
            yield changed(place, f"the value of {name}", f"the project reads it from {variable_of(name)}")


def why_topic_is_left_out(sink: TopicSink, names: tuple[str, ...]) -> str | None:
    """Return why records of a sink cannot be encoded; None if they can. `names` are the known columns of its values."""
    is_plain_json = sink.format == "json" and sink.schema_id is None and sink.registry is None
    if sink.registry is not None and sink.registry.version is None and sink.schema_file is None:
        return (
            "its schema is derived from types that are not known without Spark; add 'schema_file' or 'version: latest'"
        )
    if sink.key_registry is not None and sink.key_registry.version is None:
        return (
            "the schema of its keys is derived from types that are not known without Spark; add 'version: latest' to "
            "'key_schema'"
        )
    if not names and not is_plain_json:
        return "the columns of its values are not known without Spark; list them in 'value'"
    return None


def _trigger_notes(place: Place, called: str, trigger: str) -> Iterator[Note]:
    if trigger != "available-now":
        why = "each run of SDP reads the existing records and ends; schedule the runs"
        yield changed(place, f"{called}: trigger {trigger}", why)
