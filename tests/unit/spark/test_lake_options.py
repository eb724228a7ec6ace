"""Options of tables."""

from __future__ import annotations

import pytest

from ottla.spark.options import OptionError
from ottla.spark.table_options import LATEST, TableFormat, TableReadOptions, TableWriteOptions


def test_defaults_of_writing() -> None:
    options = TableWriteOptions.parse({"path": "/lake/t/"}, stream=True)
    assert options.location.uri == "/lake/t"
    assert (options.format, options.compression, options.partition_by) == (TableFormat.DELTA, "zstd", ())


def test_path_may_be_a_file_address() -> None:
    assert TableReadOptions.parse({"path": "file:///lake/a%20b"}, stream=False).location.uri == "/lake/a b"


def test_address_of_an_object_store_stays_and_gets_its_options() -> None:
    location = TableReadOptions.parse({"path": "s3://b/t", "storage.aws_region": "eu"}, stream=False).location
    assert (location.uri, location.storage, location.local) == ("s3://b/t", {"aws_region": "eu"}, False)


def test_partition_columns_are_a_list() -> None:
    assert TableWriteOptions.parse({"path": "t", "partitionBy": "day, hour"}, stream=True).partition_by == (
        "day",
        "hour",
    )


def test_starting_version_is_a_number_or_latest() -> None:
    parse = TableReadOptions.parse
    assert parse({"path": "t", "startingVersion": "Latest"}, stream=True).starting_version == LATEST
    assert parse({"path": "t", "startingVersion": "3"}, stream=True).starting_version == 3
    assert parse({"path": "t"}, stream=True).starting_version is None


@pytest.mark.parametrize(
    ("options", "stream", "text"),
    [
        ({}, True, "path is missing"),
        ({"path": "t", "mergeShema": "true"}, True, "did you mean 'mergeSchema'"),
        ({"path": "t", "compression": "lzo"}, True, "compression is one of"),
        ({"path": "t", "tableFormat": "orc"}, True, "tableFormat"),
        ({"path": "t", "replaceWhere": "d = 1"}, False, "mode"),
        ({"path": "t", "replaceWhere": "d = 1"}, True, "mode"),
        ({"path": "t", "ottla.batch.id": "1"}, True, "a stream knows its batch"),
        ({"path": "t", "ottla.batch.id": "1"}, False, "together"),
        ({"path": "t", "compactEvery": "-1"}, True, "whole number"),
        ({"path": "t", "kafka.acks": "1"}, True, "no brokers"),
    ],
)
def test_wrong_options_of_writing_are_named(options: dict[str, str], stream: bool, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        TableWriteOptions.parse(options, stream=stream)


@pytest.mark.parametrize(
    ("options", "stream", "text"),
    [
        ({"path": "t", "versionAsOf": "1"}, True, "is for a batch read"),
        ({"path": "t", "maxFilesPerTrigger": "1"}, False, "is for a stream"),
        ({"path": "t", "versionAsOf": "1", "timestampAsOf": "2026-01-01"}, False, "choose one"),
        ({"path": "t", "startingVersion": "soon"}, True, "whole number"),
    ],
)
def test_wrong_options_of_reading_are_named(options: dict[str, str], stream: bool, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        TableReadOptions.parse(options, stream=stream)


def test_replace_where_is_for_overwrites() -> None:
    options = TableWriteOptions.parse({"path": "t", "replaceWhere": "d = 1"}, stream=False, overwrite=True)
    assert options.replace_where == "d = 1"
