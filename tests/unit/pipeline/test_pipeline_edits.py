"""Which edits of a flow keep its checkpoint: the decision, the record of a flow, and the command that shows both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.edits import Decision, decide
from ottla.pipeline.flow_record import FILE, Checkpoint, FlowRecorder, describe, read_checkpoint
from ottla.pipeline.graph import Graph
from ottla.pipeline.load import load
from ottla.pipeline.problems import StartRefused
from ottla.pipeline.sql_shape import shape_of
from ottla.pipeline.start_plan import plan_start
from ottla.pipeline.table_fit import json_type, table_problem

_SHOP = """\
name: shop
storage: lake
sources:
  clicks:
    topic: shop.clicks
    format: json
    schema: {page: string, user: string, amount: int, clicked_at: timestamp}
    watermark: {column: clicked_at, delay: 1m}
  more: {topic: shop.more, format: json, schema: {page: string, user: string, amount: int, clicked_at: timestamp}}
flows:
  staged: {zone: staging, from: clicks}
  more_staged: {zone: staging, from: more}
  stored: {zone: raw, from: clicks}
  per_minute:
    zone: staging
    from: stored
    sql: SELECT count(*) AS n, lineage_range() AS _lineage FROM stored GROUP BY window(clicked_at, '1 minute')
  trusted:
    zone: trusted
    from: staged
    deduplicate: [user]
    expect: [{name: paid, that: amount > 0, on_violation: drop}]
  plain: {zone: trusted, from: staged, sql: SELECT * FROM staged WHERE amount > 1}
  wide: {zone: trusted, kind: view, from: staged, sql: "SELECT *, upper(page) AS p FROM staged"}
  counted:
    zone: refined
    from: trusted
    sql: |
      SELECT window.start AS minute, page, count(*) AS n, lineage_range() AS _lineage
      FROM trusted WHERE amount > 0 GROUP BY window(clicked_at, '1 minute'), page
    to: [{table: counted, partition_by: day(minute)}, {topic: shop.counts, key: page}]
  over_view:
    zone: refined
    from: wide
    sql: >-
      SELECT p, count(*) AS n, lineage_range() AS _lineage FROM wide GROUP BY window(clicked_at, '1 minute'), p
  in_steps:
    zone: refined
    from: trusted
    steps:
      - sql: >-
          SELECT page, count(*) AS n, sum(amount) AS s, lineage_range() AS _lineage FROM trusted
          GROUP BY window(clicked_at, '1 minute'), page
      - sql: SELECT page, n, s, _lineage FROM previous WHERE n > 1
  united:
    zone: refined
    from: [trusted, plain]
    sql: SELECT * FROM trusted UNION ALL SELECT * FROM plain
"""
_SAVED = ("stateStoreSave",)
_DEDUPE = ("dedupeWithinWatermark",)
_JOIN = ("symmetricHashJoin",)

Edited = Callable[..., Decision]


@pytest.fixture
def edited(read: Callable[..., Declaration]) -> Edited:
    """Return the decision for a flow after replacing a text of the file by another."""

    def decide_on(flow: str, old: str, new: str, operators: tuple[str, ...] = (), **settings: Any) -> Decision:
        assert old in _SHOP
        graphs = [Graph(read(text)) for text in (_SHOP, _SHOP.replace(old, new))]
        before, now = (describe(graph, graph.declaration.flows[flow]) for graph in graphs)
        checkpoint = Checkpoint(path="c", exists=True, record=before, operators=operators, partitions=2)
        return decide(now, checkpoint, **settings)

    return decide_on


@pytest.mark.parametrize(
    ("flow", "old", "new", "operators", "reason"),
    [
        # Spark accepts these and continues with wrong results (measured with PySpark 4.3).
        (
            "counted",
            "'1 minute'), page",
            "'2 minutes'), page",
            _SAVED,
            "GROUP BY is window ( clicked_at , '2 minutes' ) , page, before",
        ),
        ("counted", ", '1 minute'), page\n", ", '1 minute', '30 seconds'), page\n", _SAVED, "GROUP BY is"),
        (
            "counted",
            "SELECT window.start AS minute, page,",
            "SELECT window.start AS minute, user AS page,",
            _SAVED,
            "aggregates are user as page",
        ),
        ("counted", "count(*) AS n", "max(amount) AS n", _SAVED, "aggregates are max ( amount )"),
        (
            "over_view",
            "upper(page)",
            "lower(page)",
            _SAVED,
            "columns of the SELECT changed: an operator with state reads them",
        ),
        (
            "trusted",
            "[user]",
            "[page]",
            _DEDUPE,
            "deduplicate is page, before user: the state has the keys of the old one",
        ),
        (
            "trusted",
            "column: clicked_at",
            "column: _timestamp",
            _DEDUPE,
            "the watermark of staged is _timestamp, 1m, before clicked_at, 1m",
        ),
        (
            "counted",
            "FROM trusted WHERE",
            "FROM (SELECT * FROM trusted) WHERE",
            _SAVED,
            "FROM is ( select * from trusted ), before trusted",
        ),
        # Spark refuses these.
        ("in_steps", "page, n, s, _lin", "page, n, _lin", _SAVED, "columns of the SELECT changed: an operator with"),
        ("counted", "'1 minute'), page", "'1 minute'), page, user", _SAVED, "GROUP BY is"),
        (
            "counted",
            "count(*) AS n",
            "count(*) AS n, sum(amount) AS s",
            _SAVED,
            "aggregates are count ( * ), sum ( amount )",
        ),
        ("trusted", "[user]", "[user, page]", _DEDUPE, "deduplicate is user, page, before user"),
        ("trusted", "    deduplicate: [user]\n", "", _DEDUPE, "deduplicate is nothing, before user"),
        (
            "trusted",
            "    expect: [{name: paid, that: amount > 0, on_violation: drop}]\n",
            "",
            _DEDUPE,
            "expect was removed: the query reads its input another number of times",
        ),
        (
            "plain",
            "zone: trusted, from: staged, sql",
            "zone: trusted, from: staged, deduplicate: user, sql",
            (),
            "deduplicate is user, before nothing",
        ),
        (
            "plain",
            "SELECT * FROM staged WHERE",
            "SELECT DISTINCT * FROM staged WHERE",
            (),
            "the query now has DISTINCT",
        ),
        (
            "staged",
            "topic: shop.clicks",
            "topic: shop.visits",
            (),
            "reads topic shop.visits, before topic shop.clicks: the offsets of the checkpoint",
        ),
        (
            "plain",
            "from: staged, sql: SELECT * FROM staged",
            "from: more_staged, sql: SELECT * FROM more_staged",
            (),
            "reads table staging/more_staged",
        ),
        (
            "united",
            "trusted UNION ALL SELECT * FROM plain",
            "plain UNION ALL SELECT * FROM trusted",
            (),
            "reads table trusted/plain, table trusted/trusted, before",
        ),
        # The state has values of the column.
        (
            "counted",
            "timestamp}\n    water",
            "timestamp_ntz}\n    water",
            _SAVED,
            "clicked_at of trusted is TIMESTAMP_NTZ, before TIMESTAMP: the state has values of it",
        ),
        (
            "per_minute",
            "timestamp}\n    water",
            "timestamp_ntz}\n    water",
            _SAVED,
            "clicked_at of stored is TIMESTAMP_NTZ, before TIMESTAMP: the state has values of it",
        ),
        # A join stores whole rows.
        (
            "counted",
            "page, count(*)",
            "page, user, count(*)",
            _JOIN,
            "the query changed: the state of the join has the columns of the old one",
        ),
        ("counted", "WHERE amount > 0", "WHERE amount > 1", _JOIN, "the query changed"),
    ],
)
def test_edit_needs_a_new_checkpoint(
    edited: Edited, flow: str, old: str, new: str, operators: tuple[str, ...], reason: str
) -> None:
    decision = edited(flow, old, new, operators, backfill="ottla pipeline backfill shop.yaml")
    assert decision.plan == "needs a new checkpoint" and decision.refused
    assert any(reason in one for one in decision.reasons), decision.reasons
    assert "write 'version: 2' in the flow, then run 'ottla pipeline backfill shop.yaml" in decision.remedy


@pytest.mark.parametrize(
    ("flow", "old", "new", "operators", "reason"),
    [
        (
            "counted",
            "delay: 1m",
            "delay: 5m",
            _SAVED,
            "the watermark delay of trusted is 5m, before 1m: applies from the next batch on",
        ),
        (
            "counted",
            "WHERE amount > 0",
            "WHERE amount > 1",
            _SAVED,
            "the condition is amount > 1: applies from the next batch on; rows that are in",
        ),
        ("counted", "count(*) AS n", "count(*) AS clicks", _SAVED, "a part without influence on the state changed"),
        (
            "counted",
            "window.start AS minute, page",
            "window.end AS minute, page",
            _SAVED,
            "columns of the SELECT changed: applies from the next batch on",
        ),
        ("in_steps", "previous WHERE n > 1", "previous WHERE n > 2", _SAVED, "the condition is n > 2"),
        (
            "counted",
            "{topic: shop.counts, key: page}",
            "{topic: shop.numbers, key: page}",
            _SAVED,
            "the topic shop.numbers was added",
        ),
        (
            "counted",
            "table: counted",
            "table: numbers",
            _SAVED,
            "the table is refined/numbers: it gets rows from the next batch on; a backfill fills it",
        ),
        (
            "counted",
            "timestamp}\n    water",
            "timestamp, x: int}\n    water",
            _SAVED,
            "column x of trusted was added: rows have it from the next batch on",
        ),
        ("trusted", "amount > 0, on_v", "amount > 1, on_v", _DEDUPE, "expectation 'paid' changed"),
        (
            "plain",
            "WHERE amount > 1",
            "WHERE page IS NOT NULL",
            (),
            "the query changed: applies from the next batch on",
        ),
        (
            "staged",
            "    topic: shop.clicks\n",
            "    topic: shop.clicks\n    starting_offsets: latest\n",
            (),
            "starting_offsets of source clicks changed: ignored, the checkpoint continues where it ended",
        ),
        (
            "staged",
            "    topic: shop.clicks\n",
            "    topic: shop.clicks\n    null_values: keep\n",
            (),
            "null_values of source clicks changed",
        ),
    ],
)
def test_edit_keeps_the_checkpoint(
    edited: Edited, flow: str, old: str, new: str, operators: tuple[str, ...], reason: str
) -> None:
    decision = edited(flow, old, new, operators)
    assert decision.plan == "keeps state" and not decision.refused
    assert any(reason in one for one in decision.reasons), decision.reasons


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("count(*) AS n", "COUNT( * )   AS n"),
        ("    zone: refined", "    zone: refined  # a comment"),
        ("  counted:\n", "  counted:\n    description: Clicks.\n    trigger: every 5s\n"),
    ],
)
def test_format_and_descriptions_change_nothing_or_nothing_of_the_state(edited: Edited, old: str, new: str) -> None:
    decision = edited("counted", old, new, _SAVED)
    assert not decision.refused
    assert decision.reasons in ((), ("a part without influence on the state changed: applies from the next batch on",))


def test_number_of_partitions_is_fixed_by_the_checkpoint(edited: Edited) -> None:
    decision = edited("counted", "name: shop", "name: shop", _SAVED, partitions=4)
    assert decision.reasons == (
        "spark.sql.shuffle.partitions is 4: ignored, the checkpoint continues with 2 partitions",
    )
    assert edited("counted", "name: shop", "name: shop", _SAVED, partitions=2).plan == "unchanged"
    assert edited("plain", "name: shop", "name: shop", (), partitions=4).plan == "unchanged"


def test_checkpoint_of_an_earlier_release_is_used_and_said_to_have_no_record(read: Callable[..., Declaration]) -> None:
    graph = Graph(read(_SHOP))
    record = describe(graph, graph.declaration.flows["counted"])
    assert decide(record, Checkpoint(path="c", exists=True)).plan == "not recorded"
    new = decide(record, Checkpoint(path="c"))
    assert new.plan == "new" and "reads table trusted/trusted from the beginning" in new.reasons[0]


def test_parts_of_a_query_that_state_depends_on() -> None:
    shape = shape_of(
        "SELECT upper(a) AS k, b, date_trunc('day', b) AS d, sum(x) AS s FROM t JOIN u ON t.i = u.i "
        "WHERE a IN (1, 2) AND b IS DISTINCT FROM 3 GROUP BY k, b HAVING s > 3"
    )
    assert shape.reads == ("t", "u") and shape.group == "k , b"
    assert shape.aggregates == ("upper ( a ) as k", "sum ( x )")
    assert shape.items == ("b", "date_trunc ( 'day' , b ) as d")
    assert shape.filters == "a in ( 1 , 2 ) and b is distinct from 3 and s > 3"
    for opaque in ("WITH x AS (SELECT * FROM t) SELECT * FROM x", "SELECT a FROM t UNION SELECT a FROM u"):
        assert shape_of(opaque).tables and not shape_of(opaque).items
    by_number = shape_of("SELECT a, count(*) FROM t GROUP BY 1")
    assert by_number.aggregates == ("a", "count ( * )") and by_number.items == ()


def _write_checkpoint(directory: Path, *, operator: str | None = "stateStoreSave") -> None:
    """Write the files of a checkpoint that are read, as Spark 4.3 writes them."""
    (directory / "offsets").mkdir(parents=True)
    conf = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}})
    (directory / "offsets" / "0").write_text(f"v1\n{conf}\n{{}}")
    if operator is not None:
        (directory / "state" / "0" / "_metadata").mkdir(parents=True)
        info = json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": operator}, "stateStoreInfo": []})
        (directory / "state" / "0" / "_metadata" / "metadata").write_text(f"v1\n{info}")


def test_record_is_written_once_in_a_run_and_read_back(tmp_path: Path, read: Callable[..., Declaration]) -> None:
    graph = Graph(read(_SHOP))
    record = describe(graph, graph.declaration.flows["counted"])
    _write_checkpoint(tmp_path)
    assert read_checkpoint(str(tmp_path)).record is None
    recorder = FlowRecorder(str(tmp_path), record)
    recorder.write_once()
    found = read_checkpoint(str(tmp_path))
    assert found == Checkpoint(
        path=str(tmp_path), exists=True, record=record, operators=_SAVED, partitions=2, has_unfinished_batch=True
    )
    (tmp_path / FILE).unlink()
    recorder.write_once()
    assert not (tmp_path / FILE).exists() and list(tmp_path.glob(".*")) == []
    (tmp_path / FILE).write_text("{damaged")
    assert read_checkpoint(str(tmp_path)).record is None
    assert read_checkpoint(str(tmp_path / "none")) == Checkpoint(path=str(tmp_path / "none"))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A pipeline that has run: each flow has a checkpoint with its record."""
    file = tmp_path / "shop.yaml"
    file.write_text(_SHOP)
    declaration = load(str(file))
    graph = Graph(declaration)
    for flow in declaration.flows.values():
        if flow.kind == "table":
            checkpoint = tmp_path / "lake" / "_checkpoints" / "shop" / f"{flow.name}-v1"
            _write_checkpoint(checkpoint, operator="stateStoreSave" if flow.name == "counted" else None)
            FlowRecorder(str(checkpoint), describe(graph, flow)).write_once()
    return file


def test_run_is_refused_by_the_decisions_that_plan_shows(shop: Path) -> None:
    assert {one.plan for one in plan_start(load(str(shop))).decisions} == {"unchanged"}
    shop.write_text(_SHOP.replace("'1 minute'), page", "'2 minutes'), page").replace("plain", "simple"))
    plan = plan_start(load(str(shop)))
    assert {one.flow: one.plan for one in plan.decisions} == {
        "staged": "unchanged", "more_staged": "unchanged", "trusted": "unchanged", "simple": "new",
        "counted": "needs a new checkpoint", "over_view": "unchanged", "united": "needs a new checkpoint",
        "in_steps": "needs a new checkpoint", "stored": "unchanged", "per_minute": "unchanged",
    }  # fmt: skip
    assert plan.removed == ("plain",)
    with pytest.raises(StartRefused, match="flow counted needs a new checkpoint: GROUP BY is") as refused:
        plan.check()
    assert len(refused.value.refused) == 3
    plan.check(keep=("counted", "united", "in_steps"))


def test_rows_that_a_table_does_not_take_are_found_before_the_start(shop: Path, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    fields = [("page", "string"), ("amount", "integer"), ("clicked_at", "timestamp"), ("_topic", "string")]
    declaration = load(str(shop))
    _create = {"type": "struct", "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields
    ]}  # fmt: skip
    from ottla.spark.table_commit import to_delta

    DeltaTable.create(str(tmp_path / "lake" / "staging" / "staged"), to_delta(_create))
    (decision, *_) = plan_start(declaration).decisions
    assert decision.plan == "table refuses"
    assert decision.reasons == (
        "staging/staged: the table has no column user: write merge_schema: true to add it, or drop it from the rows",
    )
    with pytest.raises(StartRefused):
        plan_start(declaration).check(keep=("staged",))


def test_plan_says_that_only_run_compares_the_columns_of_a_query_with_its_table(shop: Path, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    from ottla.spark.table_commit import to_delta

    columns = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
    DeltaTable.create(str(tmp_path / "lake" / "trusted" / "plain"), to_delta(columns))
    shop.write_text(_SHOP.replace("amount > 1}", "amount > 2}"))
    decisions = {one.flow: one for one in plan_start(load(str(shop))).decisions}
    assert decisions["plain"].plan == "keeps state"
    assert decisions["plain"].reasons[-1].startswith("only Spark knows its columns: run compares them with the table")


@pytest.mark.parametrize(
    ("columns", "sink", "problem"),
    [
        ({"id": "BIGINT", "tags": "ARRAY<STRUCT<`a`: DECIMAL(9,2)>>"}, "{table: t}", None),
        ({"id": "INT"}, "{table: t}", None),
        (None, "{table: t}", None),
        ({"id": "STRING"}, "{table: t}", "the column id of the table is long, that of the rows is string"),
        ({"id": "BIGINT", "new": "INT"}, "{table: t}", "the table has no column new: write merge_schema: true to add"),
        ({"id": "BIGINT", "new": "INT"}, "{table: t, merge_schema: true}", None),
        ({"id": "BIGINT"}, "{table: t, partition_by: page}", "the table is partitioned by nothing, not by page"),
        (
            {"id": "BIGINT"},
            "{table: t, keys: page, history: true, sequence_by: amount}",
            "history is true, and the table was",
        ),
    ],
)
def test_table_takes_added_columns_only_if_allowed_and_no_other_type(
    read: Callable[..., Declaration], columns: dict[str, str] | None, sink: str, problem: str | None
) -> None:
    text = _SHOP.replace(
        "  staged: {zone: staging, from: clicks}", f"  staged: {{zone: staging, from: clicks, to: {sink}}}"
    )
    table = read(text).flows["staged"].table
    assert table is not None
    there = [("id", "BIGINT"), ("tags", "ARRAY<STRUCT<`a`: DECIMAL(10,2)>>")]
    fields = [{"name": name, "type": json_type(kind), "nullable": True, "metadata": {}} for name, kind in there]
    found = table_problem(table, columns, {"type": "struct", "fields": fields}, [])
    assert (found is None) if problem is None else (found or "").startswith(problem), found


def test_record_of_a_framed_source_has_its_schema_ids(edited: Edited) -> None:
    framed = "schema: {page: string, user: string, amount: int, clicked_at: timestamp}\n    framing: {confluent: [7]}\n"
    plain = "schema: {page: string, user: string, amount: int, clicked_at: timestamp}\n"
    assert any("framing" in reason for reason in edited("staged", plain, framed).reasons)
