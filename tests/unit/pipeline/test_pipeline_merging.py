"""Keyed tables: which columns order the rows of a key, and which columns readers get."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

import pytest
from small_pipeline import HEAD

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.sql.types import DataType, DecimalType, StructType

from ottla.pipeline.declaration import Declaration, Flow
from ottla.pipeline.graph import sequence_of
from ottla.pipeline.inputs import stored_schema
from ottla.pipeline.merging import MergeRefused

Read = Callable[..., Declaration]
_RESULT = {"order_id": "string", "amount": DecimalType(10, 2), "_offset": "long", "_timestamp": "timestamp"}
_POSITION = ("_timestamp", "_offset", "_partition", "_topic")


def flow_of(read: Read, sink: str, more: str = "") -> Flow:
    text = f"x: {{zone: trusted, from: staged{more}, to: {{table: t, keys: order_id{sink}}}}}\n"
    return read(HEAD + textwrap.indent(text, "  ")).flows["x"]


def columns_of(kinds: Mapping[str, str | DataType]) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, kind)
    return schema


def sequence(flow: Flow, *columns: str) -> tuple[str, ...]:
    assert flow.table is not None
    return sequence_of(flow.table, columns, emits_changes=flow.emit == "changes")


def test_position_of_the_record_orders_rows_and_breaks_ties_of_sequence_by(read: Read) -> None:
    columns = ("order_id", "amount", "_topic", "_partition", "_offset", "_timestamp")
    assert sequence(flow_of(read, ""), *columns) == _POSITION
    assert sequence(flow_of(read, ", sequence_by: amount"), *columns) == ("amount", *_POSITION)
    explicit = flow_of(read, ", sequence_by: [_timestamp, amount]")
    assert sequence(explicit, *columns) == ("_timestamp", "amount", *_POSITION[1:])


def test_later_batch_decides_about_changes_and_rows_without_a_position(read: Read) -> None:
    assert sequence(flow_of(read, ""), "order_id", "_lineage") == ()
    assert sequence(flow_of(read, "", ", emit: changes"), "order_id", *_POSITION) == ()
    by_amount = flow_of(read, ", sequence_by: amount", ", emit: changes")
    assert sequence(by_amount, "order_id", *_POSITION) == ("amount",)


def test_validity_of_a_version_has_the_type_of_its_sequence(read: Read) -> None:
    result = columns_of(_RESULT)
    found = stored_schema(flow_of(read, ", history: true, sequence_by: amount"), result)
    assert found.names == [*result.names, "valid_from", "valid_to", "is_current"]
    kinds = [found[name].dataType.simpleString() for name in ("valid_from", "valid_to", "is_current")]
    assert kinds == ["decimal(10,2)", "decimal(10,2)", "boolean"]
    with pytest.raises(MergeRefused, match="add sequence_by"):
        stored_schema(flow_of(read, ", history: true"), columns_of({"order_id": "string", "_lineage": "string"}))


def test_change_of_an_input_is_no_column_of_a_keyed_table(read: Read) -> None:
    result = columns_of({**_RESULT, "_change_type": "string"})
    assert stored_schema(flow_of(read, ""), result).names == result.names[:-1]
    assert stored_schema(flow_of(read, ", delete_when: amount < 0"), result).names == result.names
