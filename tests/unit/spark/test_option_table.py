"""The table of options says what the code does: its defaults, and in which queries an option may be set."""

from __future__ import annotations

from dataclasses import replace

import pytest

import generate_spark_docs
from ottla.spark.option_table import KAFKA_PROPERTIES, TABLE_OPTIONS, TOPIC_OPTIONS, Option, Use
from ottla.spark.options import OptionError, ReadOptions
from ottla.spark.table_options import TableReadOptions, TableWriteOptions
from ottla.spark.write_options import WriteOptions

Parsed = ReadOptions | WriteOptions | TableReadOptions | TableWriteOptions

USES = (Use.READ_BATCH, Use.READ_STREAM, Use.WRITE_BATCH, Use.WRITE_STREAM)
PROPERTIES = tuple(replace(option, name=f"kafka.{option.name}") for option in KAFKA_PROPERTIES)


def parse_topic(use: Use, **options: str) -> Parsed:
    stream = use in Use.READ_STREAM | Use.WRITE_STREAM
    if use in Use.READ:
        return ReadOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **options}, stream=stream)
    return WriteOptions.parse({"kafka.bootstrap.servers": "a:1", "topic": "t", **options}, stream=stream)


def parse_table(use: Use, **options: str) -> Parsed:
    stream = use in Use.READ_STREAM | Use.WRITE_STREAM
    if use in Use.READ:
        return TableReadOptions.parse({"path": "/t", **options}, stream=stream)
    return TableWriteOptions.parse({"path": "/t", **options}, stream=stream, overwrite=not stream)


def with_default(options: tuple[Option, ...]) -> list[Option]:
    return [option for option in options if option.default]


@pytest.mark.parametrize("option", with_default(TOPIC_OPTIONS + PROPERTIES), ids=lambda option: option.name)
def test_documented_default_of_a_topic_option_is_the_default(option: Option) -> None:
    for use in USES:
        if option.use & use:
            assert parse_topic(use, **{option.name: option.default}) == parse_topic(use)


@pytest.mark.parametrize("option", with_default(TABLE_OPTIONS), ids=lambda option: option.name)
def test_documented_default_of_a_table_option_is_the_default(option: Option) -> None:
    for use in USES:
        if option.use & use:
            assert parse_table(use, **{option.name: option.default}) == parse_table(use)


def test_tables_of_the_reference_page_are_current() -> None:
    assert generate_spark_docs.main(["--check"]) == 0


def test_option_for_one_kind_of_read_is_refused_or_reported_as_ignored_in_the_other() -> None:
    for option in TOPIC_OPTIONS:
        if option.use == Use.READ_BATCH:
            with pytest.raises(OptionError, match=f"the option {option.name} is for batch reads"):
                parse_topic(Use.READ_STREAM, **{option.name: "latest"})
        if option.use == Use.READ_STREAM:
            ignored = parse_topic(Use.READ_BATCH, **{option.name: "5"})
            assert isinstance(ignored, ReadOptions) and ignored.ignored == (option.name,)
    for option in TABLE_OPTIONS:
        if option.use in (Use.READ_BATCH, Use.READ_STREAM):
            other = Use.READ_STREAM if option.use == Use.READ_BATCH else Use.READ_BATCH
            with pytest.raises(OptionError, match=f"the option {option.name} is for"):
                parse_table(other, **{option.name: "1"})


def test_option_for_writing_is_unknown_to_a_reader_and_the_reverse() -> None:
    for option in TOPIC_OPTIONS:
        if not option.use & Use.READ:
            with pytest.raises(OptionError, match="unknown option"):
                parse_topic(Use.READ_BATCH, **{option.name: "1"})
        if not option.use & Use.WRITE:
            with pytest.raises(OptionError, match="unknown option"):
                parse_topic(Use.WRITE_BATCH, **{option.name: "1"})
