"""The export to Spark Declarative Pipelines: which definitions a declaration becomes, and which notes."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_pipeline import HEAD

from ottla.pipeline import load
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.sdp.export import Project, export
from ottla.pipeline.sdp.project import command, project_files
from ottla.spark.formats import Json
from ottla.spark.wire_format import SchemasById

_ROOT = Path(__file__).resolve().parents[3]
_PATTERNS = ("examples/operators/*.yaml", "examples/**/pipeline.yaml", "src/ottla/pipeline/templates/*.yaml")
_DECLARATIONS = sorted(file for pattern in _PATTERNS for file in _ROOT.glob(pattern))
_TRUSTED = """
trusted:
  zone: trusted
  from: staged
  expect:
    - {name: paid, that: amount > 0, on_violation: quarantine}
    - {name: has an id, that: order_id IS NOT NULL, on_violation: drop}
  deduplicate: order_id
"""


#: from flows of a declaration to their project and its definitions
Convert = Callable[..., tuple[Project, dict[str, str]]]


@pytest.fixture
def convert(read: Callable[..., Declaration]) -> Convert:
    """Export these flows, which may read the source `orders` and the staging flow `staged`."""

    def convert_flows(flows: str) -> tuple[Project, dict[str, str]]:
        project = export(read(HEAD + textwrap.indent(textwrap.dedent(flows), "  ")))
        return project, definitions(project)

    return convert_flows


def definitions(project: Project) -> dict[str, str]:
    """The text of each definition of a project, by its name."""
    (text,) = project.files.values()
    found = {}
    for part in text.split("\n\n\n")[1:]:
        match = re.search(r"^def (\w+)\(\)|create_sink\(\"(\w+)\"", part, re.M)
        assert match is not None, part
        found[match[1] or match[2]] = part.rstrip()
    return found


def notes(project: Project) -> list[str]:
    return [note.summary for note in project.notes]


@pytest.mark.parametrize("file", _DECLARATIONS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_exported_python_is_valid_and_reads_only_datasets_that_it_defines(file: Path) -> None:
    project = export(load(str(file)))
    (text,) = project.files.values()
    ast.parse(text)
    defined = set(definitions(project))
    assert len(defined) == text.count("\n@dp.") + text.count("\ndp.create_sink(")
    read = set(re.findall(r"\.table\(\"(\w+)\"\)|STREAM\((\w+)\)", text))
    targets = set(re.findall(r"target=\"(\w+)\"", text))
    assert {one or two for one, two in read} | targets <= defined


def test_a_source_is_a_view_and_decoding_splits_records_into_table_and_quarantine(
    convert: Convert,
) -> None:
    project, defined = convert("")
    assert list(defined) == ["orders", "staged_decoded", "staged", "staged_quarantine"]
    assert '"subscribe": "shop.orders"' in defined["orders"]
    assert defined["staged"] == textwrap.dedent(
        """\
        @dp.table
        def staged():
            return spark.sql("SELECT * EXCEPT (__cause, __record) FROM STREAM(staged_decoded) WHERE __cause IS NULL")"""
    )
    assert "WHERE __cause IS NOT NULL" in defined["staged_quarantine"]
    assert notes(project) == []


def test_expectations_and_deduplication_become_filters_and_operators(
    convert: Convert,
) -> None:
    project, defined = convert(_TRUSTED)
    assert defined["trusted"] == textwrap.dedent(
        """\
        @dp.table
        def trusted():
            rows = spark.sql("SELECT * FROM STREAM(staged) WATERMARK ordered_at DELAY OF INTERVAL 600000 MILLISECONDS")
            rows = rows.where("coalesce((amount > 0), false)")
            rows = rows.where("coalesce((order_id IS NOT NULL), false)")
            return rows.dropDuplicatesWithinWatermark(["order_id"])"""
    )
    # A row that violates both is in quarantine, as in a pipeline.
    assert 'rows.where("NOT (coalesce((amount > 0), false))")' in defined["trusted_quarantine"]
    assert notes(project) == [
        "changed: flow 'trusted': columns of the quarantine; rejected rows have their own columns instead of JSON in "
        "'row'"
    ]


def test_watermark_of_a_flow_takes_the_place_of_the_one_of_its_input(
    convert: Convert,
) -> None:
    _, defined = convert("""
        first:
          zone: trusted
          from: staged
          deduplicate: order_id
          watermark: {column: _timestamp, delay: 1m}
    """)
    assert "FROM STREAM(staged) WATERMARK _timestamp DELAY OF INTERVAL 60000 MILLISECONDS" in defined["first"]


def test_result_of_steps_is_stored_before_it_is_split_into_table_and_quarantine(
    convert: Convert,
) -> None:
    _, defined = convert("""
        first:
          zone: trusted
          from: staged
          steps:
            - {sql: SELECT * FROM staged WHERE amount > 1, as: some}
            - sql: SELECT some.*, 1 AS one FROM some
          expect: [{name: paid, that: amount > 2, on_violation: quarantine}]
    """)
    assert defined["first_step_1"].startswith("@dp.temporary_view")
    assert "  some AS (SELECT * FROM STREAM(first_step_1))" in defined["first_result"]
    assert defined["first_result"].startswith("@dp.table")
    assert 'readStream.table("first_result")' in defined["first"]
    assert 'readStream.table("first_result")' in defined["first_quarantine"]


def test_query_that_begins_with_with_keeps_its_own_names(
    convert: Convert,
) -> None:
    _, defined = convert("""
        first:
          zone: trusted
          from: staged
          sql: WITH x AS (SELECT * FROM staged) SELECT * FROM x
    """)
    assert "  staged AS (SELECT * FROM STREAM(staged) WATERMARK" in defined["first"]
    assert "SELECT * FROM (\nWITH x AS (SELECT * FROM staged) SELECT * FROM x\n)" in defined["first"]


def test_topic_is_a_sink_with_key_value_and_headers(convert: Convert) -> None:
    project, defined = convert("""
        first:
          zone: trusted
          from: staged
          to:
            - table: first
            - {topic: shop.out, key: order_id, tombstone_when: amount IS NULL, delivery: at-least-once, partitions: 3}
    """)
    sink = '{**CLUSTER, "topic": "shop.out", "ottla.delivery": "at-least-once"}'
    assert defined["first_to_shop_out"] == f'dp.create_sink("first_to_shop_out", "ottla", {sink})'
    writes = defined["write_first_to_shop_out"]
    assert writes.startswith('@dp.append_flow(target="first_to_shop_out")')
    value = "CASE WHEN NOT coalesce((amount IS NULL), false) THEN to_json(struct(order_id, amount, ordered_at)) END"
    assert f'"{value} AS value"' in writes
    assert '"CAST(order_id AS STRING) AS key"' in writes
    assert "named_struct('key', '_offset', 'value', CAST(CAST(_offset AS STRING) AS BINARY))" in writes
    assert [topic.topic for topic in project.topics] == ["shop.out"]


def test_flow_that_appends_is_a_part_of_the_query_of_its_table(
    convert: Convert,
) -> None:
    _, defined = convert("""
        more: {zone: trusted, from: staged, append_to: first, sql: SELECT * FROM staged WHERE amount > 5}
        first: {zone: trusted, from: staged}
    """)
    assert defined["more"].startswith("@dp.temporary_view")
    assert 'rows.unionByName(spark.readStream.table("more"))' in defined["first"]


def test_keyed_table_is_a_view_of_the_newest_rows(convert: Convert) -> None:
    project, defined = convert("""
        now:
          zone: trusted
          from: staged
          to: {table: now, keys: order_id, sequence_by: ordered_at, delete_when: amount IS NULL}
        history:
          zone: trusted
          from: staged
          to: {table: history, keys: order_id, sequence_by: ordered_at, history: true}
    """)
    assert defined["now_rows"].startswith("@dp.table\n")
    order = "ordered_at DESC, _timestamp DESC, _offset DESC, _partition DESC, _topic DESC"
    assert f"row_number() OVER (PARTITION BY order_id ORDER BY {order}) AS __rank FROM now_rows" in defined["now"]
    assert "WHERE __rank = 1 AND NOT coalesce((amount IS NULL), false)" in defined["now"]
    assert "ordered_at AS valid_from, lead(ordered_at) OVER versions AS valid_to" in defined["history"]
    assert [note.left_out for note in project.notes] == [False, False]


@pytest.mark.parametrize(
    ("flows", "note"),
    [
        (
            """
            first: {zone: trusted, from: staged, to: {table: first, keys: order_id}}
            second: {zone: refined, from: first}
            """,
            "not exported: flow 'second'; it reads the changes of the keyed table 'first', and a materialized view has "
            "no change feed",
        ),
        (
            """
            first: {zone: trusted, from: staged}
            second:
              zone: refined
              from: first
              emit: changes
              sql: SELECT order_id, count(*) AS n, lineage_range() AS _lineage FROM first GROUP BY order_id
              to: {topic: out, key: order_id}
            """,
            "not exported: flow 'second'; it writes each change of a result to a topic, and streams of SDP have no "
            "update mode",
        ),
        (
            """
            first:
              zone: trusted
              from: staged
              sql: SELECT order_id, lineage() AS _lineage FROM staged
              to: {table: first, keys: order_id}
            """,
            "not exported: flow 'first'; its keyed table has no sequence, and SDP does not keep the order of batches; "
            "add sequence_by",
        ),
        (
            "first: {zone: trusted, from: staged, deduplicate: order_id, late_rows: {table: late}}",
            "not exported: flow 'first': late rows in table late; SDP has no output for rows that Spark drops; they "
            "are dropped",
        ),
        (
            "first: {zone: trusted, from: staged, expect: [{name: paid, that: amount > 0}]}",
            "changed: flow 'first': the expectation 'paid'; SDP counts no violations; the rows are written as before",
        ),
        (
            "first: {zone: trusted, from: staged, to: {table: first, partition_by: day(ordered_at)}}",
            "changed: flow 'first': partition_by of the table 'first'; SDP does not partition the files of streaming "
            "tables",
        ),
        (
            "first: {zone: trusted, from: staged, trigger: every 10s}",
            "changed: flow 'first': trigger every 10s; each run of SDP reads the existing records and ends; schedule "
            "the runs",
        ),
    ],
)
def test_note_names_the_part_and_the_reason(convert: Convert, flows: str, note: str) -> None:
    project, defined = convert(flows)
    assert notes(project)[-1] == note
    assert all(one.place.file == "p.yaml" and one.place.line > 13 for one in project.notes)
    left_out = {match[1] for one in notes(project) if (match := re.match(r"not exported: flow '(\w+)';", one))}
    assert not left_out & set(defined)


def test_flow_behind_one_that_is_not_exported_is_not_exported(
    convert: Convert,
) -> None:
    project, defined = convert("""
        first: {zone: trusted, from: staged, to: {table: first, keys: order_id}}
        second: {zone: refined, from: first}
        third: {zone: refined, from: second}
    """)
    assert notes(project)[-1] == "not exported: flow 'third'; it reads 'second', which is not exported"
    assert "third" not in defined


def test_changes_of_a_keyed_result_become_a_materialized_view(
    convert: Convert,
) -> None:
    project, defined = convert("""
        trusted: {zone: trusted, from: staged}
        totals:
          zone: refined
          from: trusted
          emit: changes
          sql: SELECT order_id, sum(amount) AS total, lineage_range() AS _lineage FROM trusted GROUP BY order_id
          to: {table: totals, keys: order_id}
    """)
    assert defined["totals"].startswith("@dp.materialized_view")
    assert "FROM trusted GROUP BY" in defined["totals"] and "STREAM" not in defined["totals"]
    assert [note.left_out for note in project.notes] == [False]


def test_names_in_use_are_not_used_twice(convert: Convert) -> None:
    _, defined = convert("""
        staged_quarantine: {zone: trusted, from: staged}
        class: {zone: trusted, from: staged}
        formats: {zone: trusted, from: staged}
    """)
    assert 'readStream.table("staged")' in defined["staged_quarantine"]
    assert "__cause IS NOT NULL" in defined["staged_quarantine_2"]
    assert defined["class_rows"].startswith('@dp.table(name="class")')
    assert defined["formats_rows"].startswith('@dp.table(name="formats")')


def test_schema_files_of_one_name_are_copied_under_two(read: Callable[..., Declaration]) -> None:
    schema = b'{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    text = """
        name: two
        storage: lake
        sources:
          a: {topic: a, format: avro, schema_file: a/r.avsc}
          b: {topic: b, format: avro, schema_file: b/r.avsc}
        flows:
          a_staged: {zone: staging, from: a}
          b_staged: {zone: staging, from: b}
    """
    project = export(read(text, {"a/r.avsc": schema, "b/r.avsc": schema}))
    assert project.copies == {"schemas/r.avsc": "a/r.avsc", "schemas/2_r.avsc": "b/r.avsc"}
    (module,) = project.files.values()
    assert 'B_FORMAT = formats.Avro(read_schema(str(ROOT / "schemas/2_r.avsc")))' in module


def test_framing_is_a_part_of_the_format(read: Callable[..., Declaration], tmp_path: Path) -> None:
    schema = b'{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    text = """
        name: framed
        storage: lake
        sources:
          a: {topic: a, format: avro, schema_file: r.avsc, framing: {confluent: {7: old.avsc, 8: r.avsc}}}
          b: {topic: b, format: json, schema: id BIGINT, framing: {confluent: any_id}}
        flows:
          a_staged: {zone: staging, from: a}
          b_staged: {zone: staging, from: b, to: [{topic: out, framing: confluent, schema_id: 9}]}
    """
    project = export(read(text, {"r.avsc": schema, "old.avsc": schema}))
    (module,) = project.files.values()
    (tmp_path / "schemas").mkdir()
    for path in project.copies:
        (tmp_path / path).write_bytes(schema)
    lines = [line for line in module.splitlines() if line.startswith("from ottla") or "_FORMAT = " in line]
    made: dict[str, Any] = {"ROOT": tmp_path}
    exec("\n".join(lines), made)  # noqa: S102
    assert made["A_FORMAT"].framed
    assert made["A_FORMAT"].schemas == SchemasById({7: schema.decode(), 8: schema.decode()}, reader=schema.decode())
    assert made["B_FORMAT"] == Json("`id` BIGINT", framed=True, any_id=True)
    assert made["B_STAGED_TO_OUT_FORMAT"] == Json("", schema_id=9)
    assert 'formats.encode(rows, B_STAGED_TO_OUT_FORMAT, columns=["id"], into="__value")' in module
    assert notes(project) == []


def test_secrets_stay_out_of_the_project(read: Callable[..., Declaration]) -> None:
    text = HEAD.replace(
        "storage: lake",
        "storage: lake\nproperties: {sasl.username: me, sasl.password: hidden, ssl.key.pem: hidden}\nbrokers: a:1,b:2",
    )
    declaration = read(text)
    project = export(declaration)
    files = project_files(declaration, project)
    assert not any("hidden" in text for text in files.values())
    (module,) = project.files.values()
    assert '"kafka.sasl.password": os.environ["OTTLA_SASL_PASSWORD"],' in module
    assert '"kafka.sasl.username": "me",' in module
    assert notes(project) == [
        "changed: the value of sasl.password; the project reads it from OTTLA_SASL_PASSWORD",
        "changed: the value of ssl.key.pem; the project reads it from OTTLA_SSL_KEY_PEM",
    ]


def test_value_that_a_secret_parameter_hides_is_read_from_the_environment(read: Callable[..., Declaration]) -> None:
    declaration = replace(read(HEAD), properties={"client.rack": "zone-***"})
    (module,) = export(declaration).files.values()
    assert '"kafka.client.rack": os.environ["OTTLA_CLIENT_RACK"],' in module


def test_specification_has_runtime_settings_and_the_command_the_others(read: Callable[..., Declaration]) -> None:
    settings = "spark: {spark.sql.shuffle.partitions: '7', spark.driver.memory: 2g}"
    declaration = read(HEAD.replace("storage: lake", f"storage: lake\n{settings}"))
    files = project_files(declaration, export(declaration))
    specification = files["spark-pipeline.yml"]
    assert '  spark.sql.shuffle.partitions: "7"\n' in specification and "driver" not in specification
    assert re.search(r'^storage: "file:///.+/lake/_checkpoints/shop/sdp"$', specification, re.M)
    assert command(declaration)[-2:] == ["--conf", "spark.driver.memory=2g"]
