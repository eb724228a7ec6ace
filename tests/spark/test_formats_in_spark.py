"""Formats in Spark: what is decoded, what is rejected and why, and bytes that others can read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn

import pytest

from ottla.spark.formats import Avro, Format, Json, Protobuf, accepted, decode, encode, rejected
from ottla.spark.wire_format import OneSchema, SchemaRefused, SchemasById, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {
                "name": "price",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            },
        ],
    }
)
_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event {
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
  map<string, string> tags = 3;
  uint64 price = 4;
}
"""
_AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def causes(spark: SparkSession, values: list[bytes | None], format: Format) -> list[str | None]:
    rows = spark.createDataFrame([(number, value) for number, value in enumerate(values)], "n int, value binary")
    return [row._cause for row in decode(rows, format).orderBy("n").collect()]


def test_json_is_decoded_and_rejects_say_why(spark: SparkSession) -> None:
    values = [
        b'{"id": 1, "tags": ["a"], "more": true}',
        b"{}",
        None,
        b"",
        b"null",
        b"{broken",
        b'{"id": "no number"}',
        b"[1]",
        b"17",
        b'{"id": 2}',
        b"\xff\xfe",
    ]
    rows = spark.createDataFrame([(number, value) for number, value in enumerate(values)], "n int, value binary")
    decoded = decode(rows, Json("id bigint, tags array<string>"))
    assert decoded.columns == ["n", "value", "decoded", "_cause"]
    found = decoded.orderBy("n").collect()
    assert [row._cause for row in found] == [
        None,
        None,
        "null value",
        "not JSON",
        "null value",
        "not JSON",
        "type mismatch",
        "type mismatch",
        "type mismatch",
        None,
        "not JSON",
    ]
    assert [row.decoded and row.decoded.id for row in found] == [1, None, *[None] * 7, 2, None]
    assert accepted(decoded).count() == 3
    bad = rejected(decoded)
    assert bad.columns == ["n", "value", "_cause"]
    assert sorted(row.n for row in bad.where("value is not null").collect()) == [3, 4, 5, 6, 7, 8, 10]


def test_json_is_decoded_without_analysis_by_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a declarative pipeline, what a function reads cannot be analysed before the function has returned."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("this asks Spark for an analysis")

    rows = spark.createDataFrame([(b'{"id": 1, "b": {"c": 2}}',), (b"{",)], "value binary")
    monkeypatch.setattr(StructType, "fromDDL", refuse)
    monkeypatch.setattr(type(rows), "drop", refuse)
    for owner in (DataFrame, type(rows)):
        monkeypatch.setattr(owner, "schema", property(refuse))
    found = decode(rows, Json("`id` BIGINT NOT NULL, b STRUCT<c: INT>"))
    monkeypatch.undo()
    assert found.columns == ["value", "decoded", "_cause"]
    assert [(row.decoded and row.decoded.asDict(True), row._cause) for row in found.collect()] == [
        ({"id": 1, "b": {"c": 2}}, None),
        (None, "not JSON"),
    ]


def test_framed_json_has_an_id(spark: SparkSession) -> None:
    values = [frame(7, b'{"id": 1}'), frame(8, b'{"id": 1}'), b'{"id": 1}', b"\0\0", frame(7, b"{"), b""]
    assert causes(spark, list(values), Json("id bigint", framed=True, ids=(7,))) == [
        None,
        "unknown schema id: 8",
        "bad magic: the first byte is 123, not 0",
        "truncated: 2 bytes are too few for a schema id",
        "not JSON: schema id 7",
        "truncated: 0 bytes are too few for a schema id",
    ]
    with pytest.raises(SchemaRefused, match="no schema id is known"):
        Json("id bigint", framed=True)


def test_rows_survive_every_format(spark: SparkSession) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is missing: pip install '.[protobuf]'")
    rows = spark.createDataFrame(
        [(1, _AT, {"a": "b"}, Decimal("12.00"))], "id bigint, at timestamp, tags map<string,string>, price decimal(9,2)"
    )
    formats: list[Format] = [
        Json(rows.schema, framed=True, ids=(5,), schema_id=5),
        Avro(SchemasById({5: _AVRO}), framed=True, schema_id=5),
        Protobuf(SchemasById({5: _PROTO}), framed=True, schema_id=5),
    ]
    for format in formats:
        written = encode(rows, format, columns=["id", "at", "tags", "price"]).select("value")
        [found] = decode(written, format).collect()
        assert bytes(found.value[:5]) == b"\0\0\0\0\5"
        assert found._cause is None
        decoded = found.decoded
        assert (decoded.id, decoded.tags, decoded.price) == (1, {"a": "b"}, Decimal(12))
        assert decoded["at"].astimezone(UTC) == _AT


@pytest.mark.parametrize("format", [Json("id bigint"), Avro(OneSchema(_AVRO))], ids=["json", "avro"])
def test_filter_on_the_cause_does_not_decode_twice(
    spark: SparkSession, format: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted(decode(spark.createDataFrame([(b"{}",)], "value binary"), format)).explain()
    plan = capsys.readouterr().out
    assert plan.count("from_json(") + plan.count("decode_values(") == 1


def test_avro_and_protobuf_rejects_say_why(spark: SparkSession) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is missing: pip install '.[protobuf]'")
    avro = Avro(SchemasById({5: _AVRO}), framed=True)
    found = causes(spark, [None, b"{}", frame(6, b""), frame(5, b"\2")], avro)
    assert [cause and cause.split(":")[0] for cause in found] == [
        "null value",
        "bad magic",
        "unknown schema id",
        "truncated",
    ]
    [cause] = causes(spark, [frame(5, b"", (3,))], Protobuf(SchemasById({5: _PROTO}), "Event", framed=True))
    assert cause == "type mismatch: schema id 5: message indexes [3] are not those of Event"


def test_column_that_a_schema_does_not_have_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SchemaRefused, match="no field other"):
        encode(spark.sql("select 1L as id, 2 as other"), Avro(OneSchema(_AVRO)))
