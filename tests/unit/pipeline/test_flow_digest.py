"""A batch is identified by everything that it was made of, and all outputs are asked before the first is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.load import load

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

_FLOWS = """\
  big: {zone: trusted, from: staged, kind: view, sql: SELECT * FROM staged WHERE amount > 10}
  priced:
    zone: refined
    from: big
    expect:
      - {name: cheap, that: amount < 1000, on_violation: quarantine}
"""


def digest(declaration: Declaration, flow: str = "priced") -> str:
    from ottla.pipeline.flow_digest import flow_digest

    return flow_digest(Graph(declaration), declaration.flows[flow])


def test_digest_of_a_flow_does_not_depend_on_comments_descriptions_and_triggers(
    read: Callable[..., Declaration],
) -> None:
    text = HEAD + _FLOWS
    same = text.replace("  priced:\n", "  # a comment\n  priced:\n    trigger: once\n    description: Other words.\n")
    assert digest(read(text)) == digest(read(same))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount < 1000", "amount < 1001"),
        ("on_violation: quarantine", "on_violation: drop"),
        ("WHERE amount > 10", "WHERE amount > 11"),
    ],
    ids=["predicate", "violation", "query-of-a-view"],
)
def test_digest_of_a_flow_changes_with_what_it_computes(read: Callable[..., Declaration], old: str, new: str) -> None:
    text = HEAD + _FLOWS
    assert old in text
    assert digest(read(text)) != digest(read(text.replace(old, new)))


def test_digest_of_a_flow_changes_with_the_schema_by_which_it_decodes_stored_records(
    read: Callable[..., Declaration],
) -> None:
    text = HEAD.replace("from: orders}", "from: stored}") + "  stored: {zone: raw, from: orders}\n" + _FLOWS
    changed = text.replace("order_id: string", "order_id: int")
    assert digest(read(text), "staged") != digest(read(changed), "staged")
    assert digest(read(text), "priced") == digest(read(changed), "priced")


def test_digest_of_a_flow_changes_with_the_content_of_the_schema_of_a_schema_id(tmp_path: Path) -> None:
    fields = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "%s"}]}'
    (tmp_path / "reader.avsc").write_text(fields % "string")
    file = tmp_path / "shop.yaml"
    file.write_text(
        "name: shop\nstorage: lake\nsources:\n"
        "  orders: {topic: shop.orders, format: avro, schema_file: reader.avsc, framing: {confluent: {7: old.avsc}}}\n"
        "flows:\n  staged: {zone: staging, from: orders}\n"
    )
    found = set()
    for kind in ("string", "bytes"):
        (tmp_path / "old.avsc").write_text(fields % kind)
        found.add(digest(load(str(file)), "staged"))
    assert len(found) == 2


def test_batch_that_one_output_has_from_other_input_is_refused_before_anything_is_written(
    read: Callable[..., Declaration], tmp_path: Path
) -> None:
    from deltalake import write_deltalake
    from pyspark.sql import DataFrame

    from ottla.pipeline.plan import Work
    from ottla.pipeline.zones import Batch, FlowWriter
    from ottla.spark.table_commit import BatchMismatch, TableBatch, properties_of

    declaration = replace(read(HEAD + _FLOWS), file=str(tmp_path / "p.yaml"))
    flow, layout = declaration.flows["priced"], Layout.of(declaration)
    assert flow.quarantine is not None and flow.quarantine.table is not None
    work = Work(rows=cast(DataFrame, None), columns=("amount",))
    writer = FlowWriter(declaration, layout, flow, work)
    batch = Batch("query.priced", 7, digest="planned")
    writer.check_outputs(batch)  # no output exists
    write_deltalake(
        layout.table("quarantine", flow.quarantine.table), pa.table({"row": ["{}"]}),
        commit_properties=properties_of(TableBatch("query.priced.quarantine", 7, "planned")),
    )  # fmt: skip
    writer.check_outputs(batch)
    with pytest.raises(BatchMismatch, match="the query was changed after the batch was written in part"):
        writer.check_outputs(replace(batch, digest="planned again"))
    with pytest.raises(BatchMismatch, match="batches up to 7"):
        writer.check_outputs(replace(batch, number=6))
    writer.check_outputs(replace(batch, number=8, digest="the next one"))
