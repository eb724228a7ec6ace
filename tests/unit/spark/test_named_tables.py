"""Tables of Spark's catalog by name: the schema carries their options, and nothing that must not be there."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from ottla.spark.lake import TABLES as LAKE_TABLES
from ottla.spark.named_tables import NamedTables
from ottla.spark.option_table import Use
from ottla.spark.options import OptionError
from ottla.spark.source import TABLES, OttlaDataSource, declared_columns

CLUSTER = {"kafka.bootstrap.servers": "a:9092"}


def create(options: dict[str, str], **properties: str) -> dict[str, str]:
    """Return what Spark passes to `DataSource.schema` for CREATE TABLE ... USING ottla OPTIONS (...)."""
    prefixed = {f"option.{name}": value for name, value in options.items()}
    return {**options, **prefixed, "provider": "ottla", "owner": "root", **properties}


def created(**options: str) -> StructType:
    """Return the schema that Spark stores, after the way through its JSON."""
    schema = OttlaDataSource(create(CLUSTER | options)).schema()
    return StructType.fromJson(schema.jsonValue())


def test_table_has_the_options_of_its_creation() -> None:
    schema = created(subscribe="clicks", topic="clicks", startingOffsets="earliest")
    assert schema.fieldNames() == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    read = {**CLUSTER, "subscribe": "clicks", "startingoffsets": "earliest"}
    assert TABLES.merged({}, schema, Use.READ_BATCH) == read
    assert TABLES.merged({}, schema, Use.WRITE_BATCH) == {**CLUSTER, "topic": "clicks"}


def test_properties_of_the_table_are_not_options() -> None:
    found = TABLES.creation_options(create({**CLUSTER, "subscribe": "t"}, team="shop", comment="Clicks"))
    assert found == {**CLUSTER, "subscribe": "t"}


def test_headers_are_a_column_of_a_table_that_includes_them() -> None:
    assert created(subscribe="t", includeHeaders="true").fieldNames()[-1] == "headers"
    assert OttlaDataSource({"subscribe": "t", "INCLUDEHEADERS": "True"}).schema().fieldNames()[-1] == "headers"


def test_option_of_a_query_overrides_that_of_the_table() -> None:
    schema = created(subscribe="t", startingOffsets="earliest")
    merged = TABLES.merged({"startingOffsets": '{"t":{"0":5}}'}, schema, Use.READ_BATCH)
    assert merged == {**CLUSTER, "subscribe": "t", "startingoffsets": '{"t":{"0":5}}'}


def test_query_that_names_a_cluster_uses_no_option_of_the_table_that_its_rows_come_from() -> None:
    schema = created(subscribe="t", topic="t")
    other = {"kafka.bootstrap.servers": "b:9092", "topic": "u"}
    assert TABLES.merged(other, schema, Use.WRITE_BATCH) == other


def test_streaming_write_does_not_use_the_options_of_the_table_that_it_reads() -> None:
    with pytest.raises(OptionError, match=r"writeStream.toTable\(\) does not use them"):
        TABLES.merged({"checkpointLocation": "/c"}, created(subscribe="t", topic="t"), Use.WRITE_STREAM)
    with pytest.raises(OptionError, match=r"the option kafka\.bootstrap\.servers is missing"):
        OttlaDataSource({}).streamWriter(created(subscribe="t", topic="t"), False)


def test_option_for_batches_does_not_hinder_a_stream_of_the_table() -> None:
    schema = created(subscribe="t", endingOffsets="latest", maxOffsetsPerTrigger="5")
    assert TABLES.merged({}, schema, Use.READ_STREAM) == {**CLUSTER, "subscribe": "t", "maxoffsetspertrigger": "5"}
    assert TABLES.merged({}, schema, Use.READ_BATCH) == {**CLUSTER, "subscribe": "t", "endingoffsets": "latest"}


def test_table_of_another_format_has_no_options_for_this_one() -> None:
    with pytest.raises(OptionError, match="the option path is missing"):
        LAKE_TABLES.merged({}, created(subscribe="t"), Use.READ_BATCH)


def test_table_without_stored_options_says_how_to_create_it() -> None:
    with pytest.raises(OptionError, match="without a list of columns"):
        TABLES.merged({}, StructType().add("value", "binary"), Use.READ_BATCH)


@pytest.mark.parametrize("name", ["kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.key.password"])
def test_password_is_not_stored(name: str) -> None:
    with pytest.raises(OptionError, match=f"would store the option {name}"):
        TABLES.creation_options(create({**CLUSTER, "subscribe": "t", name: "x"}))


def test_unknown_option_is_refused_when_the_table_is_created() -> None:
    with pytest.raises(OptionError, match="unknown option 'subscrib', did you mean 'subscribe'"):
        created(subscrib="t")


def test_location_and_storage_are_options_of_a_lake_table() -> None:
    options = {"provider": "ottla-table", "option.storage.aws_region": "eu", "location": "s3://b/t", "owner": "root"}
    found = LAKE_TABLES.creation_options(options)
    assert found == {"storage.aws_region": "eu", "path": "s3://b/t"}
    schema = LAKE_TABLES.with_options(StructType().add("id", "long"), found)
    assert LAKE_TABLES.merged({"mergeSchema": "true"}, schema, Use.WRITE_BATCH) == {**found, "mergeschema": "true"}


def test_read_without_a_table_has_no_creation_options() -> None:
    assert TABLES.creation_options({**CLUSTER, "subscribe": "t"}) is None
    assert NamedTables("x", (), identity="path", prefixes=()).creation_options({"provider": "ottla"}) is None


def test_columns_with_metadata_are_declared_to_spark_with_it() -> None:
    assert declared_columns(OttlaDataSource(CLUSTER).schema()) is None
    declared = declared_columns(created(subscribe="t"))
    assert (
        declared is not None and b"ottla.options" in declared.field("timestampType").metadata[b"SPARK::metadata::json"]
    )
