"""What a good file becomes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from small_pipeline import HEAD

from ottla.pipeline import load
from ottla.pipeline.declaration import (
    Declaration,
    Framing,
    PartitionColumn,
    PythonStep,
    SideOutput,
    SqlStep,
    TableSink,
    TopicSink,
    Trigger,
)
from ottla.pipeline.graph import Graph
from ottla.pipeline.problems import Place

Read = Callable[..., Declaration]
SHOP = Path(__file__).resolve().parents[3] / "src" / "ottla" / "pipeline" / "templates" / "shop.yaml"
SOMEWHERE = Place("elsewhere", 7)


def flow_of(read: Read, text: str) -> Any:
    return read(HEAD + textwrap.indent(textwrap.dedent(text), "  ")).flows["x"]


def test_the_shop_goes_through_all_zones() -> None:
    shop = load(str(SHOP))
    assert [flow.zone for flow in shop.flows.values()] == ["raw"] * 3 + ["staging"] * 3 + ["trusted"] * 3 + [
        "refined"
    ] * 3
    assert Graph(shop).sources_of("revenue_per_minute") == ("orders", "payments")


def test_the_shops_revenue_goes_to_a_table_by_day_and_to_a_topic() -> None:
    revenue = load(str(SHOP)).flows["revenue_per_minute"]
    by_day = (PartitionColumn(column="minute", part="day"),)
    assert revenue.sinks == (
        TableSink(name="revenue_per_minute", partition_by=by_day, place=SOMEWHERE),
        TopicSink(topic="shop.revenue-per-minute", key="currency", place=SOMEWHERE),
    )


def test_a_flow_without_to_is_a_delta_table_of_its_name(read: Read) -> None:
    flow = flow_of(read, "x: {zone: trusted, from: staged}")
    assert flow.sinks == (TableSink(name="x", format="delta", place=SOMEWHERE),)


def test_a_view_stores_nothing(read: Read) -> None:
    assert flow_of(read, "x: {zone: trusted, from: staged, kind: view}").sinks == ()


def test_staging_has_a_quarantine_without_asking(read: Read) -> None:
    assert read(HEAD).flows["staged"].quarantine == SideOutput(table="staged_quarantine", place=SOMEWHERE)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("once", Trigger(kind="once")),
        ("available-now", Trigger(kind="available-now")),
        ("as-fast-as-possible", Trigger(kind="as-fast-as-possible")),
        ("every 10s", Trigger(kind="interval", interval_ms=10_000)),
        ("every 2 minutes", Trigger(kind="interval", interval_ms=120_000)),
    ],
)
def test_triggers(read: Read, written: str, meant: Trigger) -> None:
    assert read(f"trigger: {written}\n{HEAD}").trigger == meant


def test_a_flows_own_trigger_goes_before_the_pipelines(read: Read) -> None:
    declaration = read(HEAD + "  x: {zone: trusted, from: staged, trigger: as-fast-as-possible}\n")
    assert str(declaration.trigger_of(declaration.flows["x"])) == "as-fast-as-possible"
    assert str(declaration.trigger_of(declaration.flows["staged"])) == "available-now"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("latest", "latest"),
        ("2026-01-31T00:00:00Z", datetime(2026, 1, 31, tzinfo=UTC)),
        ("{0: 5, 1: 7}", {0: 5, 1: 7}),
    ],
)
def test_starting_offsets(read: Read, written: str, meant: object) -> None:
    text = HEAD.replace("format: json", f"format: json\n    starting_offsets: {written}")
    assert read(text).sources["orders"].starting_offsets == meant


def test_a_schema_is_fields_or_ddl_and_both_are_the_same(read: Read) -> None:
    fields = read(HEAD).sources["orders"].columns
    start = HEAD.index("    schema:")
    ddl = (
        HEAD[:start]
        + "    schema: order_id STRING, amount DECIMAL(10,2), ordered_at TIMESTAMP\n"
        + HEAD[HEAD.index("    watermark") :]
    )
    assert read(ddl).sources["orders"].columns == fields


def test_nested_fields_are_structs_and_lists_are_arrays(read: Read) -> None:
    text = HEAD.replace("order_id: string", "order_id: string\n      lines: [{sku: string, count: int not null}]")
    columns = {column.name: column.type for column in read(text).sources["orders"].columns}
    assert columns["lines"] == "ARRAY<STRUCT<`sku`: STRING, `count`: INT NOT NULL>>"


def test_a_schema_file_is_read_beside_the_declaration(read: Read) -> None:
    start, end = HEAD.index("    schema:"), HEAD.index("    watermark")
    text = HEAD[:start] + "    schema_file: orders.ddl\n" + HEAD[end:]
    declaration = read(text, {"orders.ddl": b"order_id STRING,\n ordered_at TIMESTAMP"})
    assert [column.name for column in declaration.sources["orders"].columns] == ["order_id", "ordered_at"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("none", None),
        ("{confluent: [1, 7]}", Framing(schema_files={1: None, 7: None})),
        ("{confluent: any_id}", Framing(any_id=True)),
    ],
)
def test_framing_of_a_source_names_its_schema_ids(read: Read, written: str, meant: Framing | None) -> None:
    text = HEAD.replace("format: json", f"format: json\n    framing: {written}")
    assert read(text).sources["orders"].framing == meant


def test_framing_of_an_avro_source_has_a_schema_file_for_each_id(read: Read) -> None:
    start, end = HEAD.index("    schema:"), HEAD.index("    watermark")
    framing = "    schema_file: v2.avsc\n    framing: {confluent: {1: v1.avsc, 2: v2.avsc}}\n"
    schema = b'{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    text = HEAD[:start].replace("format: json", "format: avro") + framing + HEAD[end:]
    source = read(text, {"v1.avsc": schema, "v2.avsc": schema}).sources["orders"]
    assert source.framing == Framing(schema_files={1: "v1.avsc", 2: "v2.avsc"})


def test_framing_of_a_topic_sink_has_one_schema_id(read: Read) -> None:
    flow = flow_of(read, "x: {zone: trusted, from: staged, to: {topic: t, framing: confluent, schema_id: 7}}")
    assert flow.sinks == (TopicSink(topic="t", schema_id=7, place=SOMEWHERE),)


def test_steps_follow_each_other_and_have_names(read: Read) -> None:
    flow = flow_of(
        read,
        """\
        x:
          zone: trusted
          from: staged
          steps:
            - sql: SELECT * FROM staged
              as: first
            - python: shop.steps:clean
            - python: shop.steps:join
              with: [first, previous]
        """,
    )
    assert [type(step) for step in flow.steps] == [SqlStep, PythonStep, PythonStep]
    assert [step.inputs for step in flow.steps[1:]] == [("previous",), ("first", "previous")]


def test_a_python_function_gets_the_inputs_in_order(read: Read) -> None:
    flow = flow_of(read, "x: {zone: trusted, from: [staged], python: 'shop.steps:clean'}")
    assert flow.steps[0].inputs == ("staged",)


def test_sql_knows_where_its_characters_stand(read: Read) -> None:
    flow = flow_of(read, "x:\n  zone: trusted\n  from: staged\n  sql: |\n    SELECT *\n    FROM staged\n")
    sql = flow.steps[0].sql
    line = HEAD.count("\n") + 6
    assert sql.place_of(sql.text.index("staged")) == Place("p.yaml", line, 12)
    assert sql.place_at(2, 6) == Place("p.yaml", line, 12)


def test_where_something_was_written_makes_no_difference(read: Read) -> None:
    assert read(HEAD) == read("# a comment\n" + HEAD)


def test_keyed_table_has_an_order_deletes_and_history(read: Read) -> None:
    declared = """\
        x:
          zone: trusted
          from: staged
          to:
            table: t
            keys: order_id
            sequence_by: [ordered_at, amount]
            delete_when: amount < 0
            history: true
            tombstone_retention: 30d
        """
    table = flow_of(read, declared).table
    assert table is not None and str(table.delete_when and table.delete_when.text) == "amount < 0"
    assert (table.sequence_by, table.history) == (("ordered_at", "amount"), True)
    assert table.tombstone_retention_ms == 30 * 24 * 3600 * 1000
    default = flow_of(read, "x: {zone: trusted, from: staged, to: {table: t, keys: order_id}}\n").table
    assert default is not None
    assert (default.sequence_by, default.delete_when, default.history) == ((), None, False)
    assert default.tombstone_retention_ms == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ("", ()),
        (", history: true", ("valid_from", "valid_to", "is_current")),
        (", delete_when: amount < 0", ("_change_type",)),
        (", delete_when: amount < 0, history: true", ("valid_from", "valid_to", "is_current")),
    ],
)
def test_readers_of_a_keyed_table_get_its_own_columns(read: Read, options: str, added: tuple[str, ...]) -> None:
    flows = f"""\
        x: {{zone: trusted, from: staged, to: {{table: t, keys: order_id{options}}}}}
        y: {{zone: trusted, from: x, to: {{table: u, keys: order_id}}}}
        z: {{zone: trusted, from: y}}
        """
    graph = Graph(read(HEAD + textwrap.indent(textwrap.dedent(flows), "  ")))
    rows = graph.result_columns("x")
    assert rows is not None and graph.result_columns("y") == (*rows, *added)
    # A change of x is none of y, whose readers get no column that says so.
    assert graph.result_columns("z") == (*rows, *(name for name in added if name != "_change_type"))


def test_everything_a_sink_can_have(read: Read) -> None:
    flow = flow_of(
        read,
        """\
        x:
          zone: trusted
          from: staged
          late_rows: {topic: late}
          to:
            - {table: t, partition_by: [hour(ordered_at), order_id], merge_schema: true, keys: order_id}
            - {topic: out, key: order_id, value: [amount], delivery: at-least-once}
        """,
    )
    table, topic = flow.sinks
    assert (table.merge_schema, table.keys, [str(one) for one in table.partition_by]) == (
        True, ("order_id",), ["hour(ordered_at)", "order_id"],
    )  # fmt: skip
    assert (topic.key, topic.value, topic.delivery) == ("order_id", ("amount",), "at-least-once")
