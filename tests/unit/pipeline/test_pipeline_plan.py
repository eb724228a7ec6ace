"""What running needs and can be said without a session: where things lie, what is made again, what a failure means."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration, PartitionColumn, Trigger
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout, partition_name
from ottla.pipeline.lineage import expand

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

_FLOWS = """\
  trusted: {zone: trusted, from: staged}
  more: {zone: trusted, from: staged, append_to: trusted}
  answer: {zone: refined, from: trusted, kind: materialized_view, sql: SELECT * FROM trusted}
"""


@pytest.fixture
def declaration(read: Callable[..., Declaration]) -> Declaration:
    return read(HEAD + _FLOWS)


def test_tables_lie_by_zone_and_checkpoints_by_flow_and_version(declaration: Declaration, tmp_path: Path) -> None:
    moved = replace(declaration, file=str(tmp_path / "p.yaml"), storage="lake", checkpoints="s3://bucket/progress/")
    layout = Layout.of(moved)
    assert layout.table("raw", "orders") == f"{tmp_path}/lake/raw/orders"
    second = replace(moved.flows["trusted"], version=2)
    assert layout.checkpoint(second) == f"s3://bucket/progress/{moved.name}/trusted-v2"
    assert layout.scratch("x").table("raw", "t").startswith(f"{tmp_path}/lake/_backfill/x/")


def test_part_of_a_time_is_a_column_of_its_own() -> None:
    assert partition_name(PartitionColumn(column="at", part="day")) == "_day_at"
    assert partition_name(PartitionColumn(column="country")) == "country"


def test_position_in_an_expanded_query_leads_back_to_the_one_written() -> None:
    written = "SELECT lineage(a, b) AS _lineage, lineage_union() AS x, wrong FROM a"
    query = expand(written)
    assert query.written_at(query.text.index("wrong")) == written.index("wrong")
    assert query.written_at(query.text.index("_topic")) == written.index("lineage(")
    assert query.written_at(query.text.index("flatten")) == written.index("lineage_union")
    assert query.written_at(3) == 3


def test_triggers_are_read_as_in_a_declaration() -> None:
    assert [str(Trigger.parse(text)) for text in ("once", "as-fast-as-possible", "every 90s")] == [
        "once", "as-fast-as-possible", "every 1m30s",
    ]  # fmt: skip
    for text in ("often", "every", "every now and then"):
        with pytest.raises(ValueError):
            Trigger.parse(text)
    for text in ("continuous", "real-time"):
        with pytest.raises(ValueError, match="write as-fast-as-possible"):
            Trigger.parse(text)


def test_backfill_makes_again_what_is_named_and_all_that_stands_on_it(declaration: Declaration) -> None:
    from ottla.pipeline.backfill import BackfillRefused, choose

    graph = Graph(declaration)
    assert choose(graph, ["answer"]) == {"answer"}
    # Two flows share the table, so that one of them alone cannot be made again.
    assert choose(graph, ["more"]) == {"more", "trusted", "answer"}
    assert choose(graph, []) == {"staged", "trusted", "more", "answer"}
    with pytest.raises(BackfillRefused, match="no flow 'nope'"):
        choose(graph, ["nope"])


def test_failure_is_told_in_one_line() -> None:
    from ottla.pipeline.failures import describe_failure, is_final
    from ottla.pipeline.plan import EXPECTATION_FAILED

    trace = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "ottla.spark.table_log.CommitsDeleted: version 3 is no longer in its log\n"
        " SQLSTATE: XXKST\n=== Streaming Query ==="
    )
    assert describe_failure(RuntimeError(trace)) == "version 3 is no longer in its log"
    assert describe_failure(RuntimeError("[X] Query terminated with exception: away SQLSTATE")) == "away SQLSTATE"
    java = "An error occurred while calling o1.save.\n: org.apache.X: [NOT_FOUND] gone\n\tat org.apache.Y"
    assert describe_failure(RuntimeError(java)) == "org.apache.X: [NOT_FOUND] gone"
    stopped = RuntimeError(f"[USER_RAISED_EXCEPTION] {EXPECTATION_FAILED}: paid t 0 7 SQLSTATE: P0001\n at x")
    assert describe_failure(stopped) == f"{EXPECTATION_FAILED}: paid t 0 7"
    assert is_final(stopped) and not is_final(RuntimeError(trace))


def test_every_error_of_ottla_is_shown_as_its_message() -> None:
    """Whatever the class is called: Spark passes on the text of the exception, not the exception."""
    import importlib
    import pkgutil

    from ottla.model.errors import OttlaError
    from ottla.pipeline.failures import describe_failure

    for package in ("client", "spark", "pipeline"):
        for module in pkgutil.iter_modules(importlib.import_module(f"ottla.{package}").__path__, f"ottla.{package}."):
            importlib.import_module(module.name)
    errors = [OttlaError]
    for error in errors:
        errors += error.__subclasses__()
    assert len(errors) > 30
    for error in errors:
        if not error.__module__.startswith("ottla."):  # a test has errors of its own
            continue
        trace = (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] "
            "Failed when Python streaming data source performs latestOffset: Traceback (most recent call last):\n"
            f'  File "x.py", line 1, in f\n{error.__module__}.{error.__qualname__}: topic orders was deleted\n'
            "\tat org.apache.spark.X\n SQLSTATE: 38000\n=== Streaming Query ==="
        )
        assert describe_failure(RuntimeError(trace)) == "topic orders was deleted"


def test_packages_travel_in_one_file(tmp_path: Path) -> None:
    from ottla.pipeline.run import zip_packages

    with zipfile.ZipFile(zip_packages(str(tmp_path))) as packages:
        names = packages.namelist()
    assert {"ottla/spark/source.py", "pyspark_ottla/__init__.py", "pyspark_ottla_table/__init__.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)


_ORDER_1 = b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}'
_ORDER_2 = (
    b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, '
    b'{"name": "note", "type": "string", "default": "none"}]}'
)
_FRAMED = """\
name: shop
storage: lake
sources:
  orders:
    topic: orders
    format: avro
    schema_file: v2.avsc
    framing: {confluent: {1: v1.avsc, 2: v2.avsc}}
flows:
  staged: {zone: staging, from: orders}
  old:
    zone: trusted
    from: staged
    to: {topic: o1, format: avro, schema_file: v1.avsc, framing: confluent, schema_id: 1}
  new:
    zone: trusted
    from: staged
    to: {topic: o2, format: avro, schema_file: v2.avsc, framing: confluent, schema_id: 2}
  text: {zone: trusted, from: staged, to: {topic: o3, framing: confluent, schema_id: 3}}
"""


def test_declared_framing_is_written_by_sinks_and_resolved_by_sources(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.pipeline import load
    from ottla.pipeline.declaration import TopicSink
    from ottla.pipeline.values import sink_format, source_format
    from ottla.spark.avro import AvroDecoder, AvroEncoder
    from ottla.spark.formats import Avro, Json

    for name, text in (("p.yaml", _FRAMED.encode()), ("v1.avsc", _ORDER_1), ("v2.avsc", _ORDER_2)):
        (tmp_path / name).write_bytes(text)
    shop = load(str(tmp_path / "p.yaml"))
    written = []
    for flow, row in (("old", {"id": 1}), ("new", {"id": 2, "note": "x"})):
        [sink] = shop.flows[flow].sinks
        assert isinstance(sink, TopicSink)
        format = sink_format(sink, shop, StructType())
        assert isinstance(format, Avro)
        written += AvroEncoder(format.schemas.latest(), schema_id=format.schema_id).encode(pa.array([row])).to_pylist()
    assert [value[:5] for value in written] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]
    read = source_format(shop.sources["orders"], shop)
    assert isinstance(read, Avro)
    rows, causes = AvroDecoder(read.schemas, framed=read.framed).decode(pa.array([*written, b"\0\0\0\0\3\2"]))
    assert rows.to_pylist() == [{"id": 1, "note": "none"}, {"id": 2, "note": "x"}, None]
    assert causes == [None, None, "unknown schema id: 3"]
    [sink] = shop.flows["text"].sinks
    assert isinstance(sink, TopicSink) and sink_format(sink, shop, StructType()) == Json("", schema_id=3)
