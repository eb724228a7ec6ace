"""`-o csv`: rows as RFC 4180, with the fields of the JSON output as columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

import pytest

from ottla.cli.csv_rows import csv_line, format_csv
from ottla.cli.output import CSV, CSV_SAFE, JSON, NAME, TABLE, Column, print_data, print_rows


def read(lines: Iterable[str]) -> list[list[str]]:
    return list(csv.reader(io.StringIO("".join(lines), newline=""), strict=True))


def test_line_ends_with_cr_and_lf() -> None:
    assert list(format_csv([{"a": 1}])) == ["a\r\n", "1\r\n"]


@pytest.mark.parametrize("value", ["plain", "a,b", 'say "x"', "two\nlines", "cr\rlf\r\n", " spaces ", "ä€😀", ";", "'"])
def test_text_is_read_back_unchanged(value: str) -> None:
    assert read([csv_line([value, "next"])]) == [[value, "next"]]


def test_null_differs_from_empty_text() -> None:
    assert csv_line([None, ""]) == ',""\r\n'


def test_numbers_and_truth_values_are_written_as_in_json() -> None:
    values = [0, -1, 1.5, 1e300, True, False]
    assert csv_line(values).strip().split(",") == [json.dumps(value) for value in values]


def test_list_items_are_joined_by_semicolons_that_items_cannot_forge() -> None:
    assert read([csv_line([[1, 2, 3], [], ["a;b", "c\\"]])]) == [["1;2;3", "", r"a\;b;c\\"]]


def test_list_of_objects_is_json() -> None:
    (line,) = read([csv_line([[{"a": 1}, {"b": [2]}]])])
    assert json.loads(line[0]) == [{"a": 1}, {"b": [2]}]


def test_nested_object_has_a_column_for_each_field_also_if_it_is_null_in_a_row() -> None:
    rows = [{"id": "a", "node": None}, {"id": "b", "node": {"host": "h", "at": {"port": 1}}}]
    assert read(format_csv(rows)) == [["id", "node.host", "node.at.port"], ["a", "", ""], ["b", "h", "1"]]


def test_field_whose_name_begins_that_of_another_one_keeps_its_column() -> None:
    assert read(format_csv([{"a": 1, "a.b": 2}])) == [["a", "a.b"], ["1", "2"]]


def test_header_is_there_without_rows_and_is_the_same_with_them() -> None:
    fields = ("topic_name", "is_internal")
    empty, one = (list(format_csv(rows, fields)) for rows in ([], [{"topic_name": "a", "is_internal": False}]))
    assert empty == one[:1] == ["topic_name,is_internal\r\n"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_formulas_are_data_unless_the_safe_form_is_wanted(start: str) -> None:
    text = f"{start}1+1"
    assert read([csv_line([text])]) == [[text]]
    assert read([csv_line([text], safe=True)]) == [[f"'{text}"]]


def test_safe_form_leaves_negative_numbers_and_guards_column_names_and_lists() -> None:
    assert read(format_csv([{"=x": -5, "list": ["=1", 2]}], safe=True)) == [["'=x", "list"], ["-5", "'=1;2"]]


def test_print_rows_uses_the_names_of_the_json_output(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic_name": "a", "count": 1}]
    print_rows(rows, [Column("NAME", "topic_name")], JSON)
    fields = list(json.loads(capsys.readouterr().out)[0])
    print_rows(rows, [Column("NAME", "topic_name")], CSV)
    assert read([capsys.readouterr().out]) == [fields, ["a", "1"]]


def test_print_data_prints_an_object_as_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_data({"healthy": True, "name": "=x"}, CSV_SAFE)
    assert read([capsys.readouterr().out]) == [["healthy", "name"], ["true", "'=x"]]


def test_topic_list_has_the_same_columns_with_and_without_topics(cluster: Any, ottla: Any) -> None:
    empty = ottla("topic", "list", "-o", CSV).stdout
    cluster.add_topic("orders", 3)
    filled = read([ottla("topic", "list", "-o", CSV).stdout])
    assert read([empty]) == filled[:1]
    assert filled[0] == list(json.loads(ottla("topic", "list", "-o", JSON).stdout)[0])
    assert filled[1:] == [["orders", "false", "3", "1"]]


def test_topic_describe_has_a_row_for_each_partition(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders", 2)
    header, *rows = read([ottla("topic", "describe", "orders", "-o", CSV).stdout])
    assert header[:3] == ["topic_name", "partition_id", "leader"]
    assert [row[:2] for row in rows] == [["orders", "0"], ["orders", "1"]]


def test_topic_describe_with_a_summary_only_has_a_row_for_each_topic(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders", 2)
    header, row = read([ottla("topic", "describe", "orders", "-s", "-o", CSV).stdout])
    assert dict(zip(header, row, strict=True))["partitions_count"] == "2"


def test_consume_prints_a_header_and_then_each_record(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("t")
    cluster.store("t", b'a,"b"\nc', b"=k")
    header, row = read([ottla("consume", "t", "-e", "-o", CSV).stdout])
    record = dict(zip(header, row, strict=True))
    assert (record["topic"], record["offset"], record["key"], record["payload"]) == ("t", "0", "=k", 'a,"b"\nc')


def test_consume_refuses_a_format_with_csv(cluster: Any, ottla: Any) -> None:
    result = ottla("consume", "t", "-f", "%s", "-o", CSV)
    assert (result.exit_code, "-f and CSV output cannot be combined" in result.stderr) == (2, True)


def test_produce_prints_a_row_for_each_stored_record(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("t")
    result = ottla("produce", "t", "-o", CSV, stdin="one\ntwo\n")
    header, *rows = read([result.stdout])
    assert header == ["topic", "partition", "offset", "ts", "key", "size"]
    assert [(row[0], row[2], row[5]) for row in rows] == [("t", "0", "3"), ("t", "1", "3")]


def test_every_command_with_a_table_has_csv() -> None:
    import click

    from ottla.cli.main import main

    def walk(command: click.Command) -> Iterable[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        names = command.list_commands(click.Context(command))
        inner = [command.get_command(click.Context(command), name) for name in names]
        return [each for one in inner if one is not None for each in walk(one)]

    lacking, seen = [], 0
    for command in walk(main):
        for option in command.params:
            choices = list(getattr(option.type, "choices", ()))
            if option.name == "output" and TABLE in choices:
                seen += 1
                lacking += [] if {CSV, CSV_SAFE} < set(choices) else [command.name]
                assert NAME not in choices or choices[-1] == NAME
    assert (lacking, seen > 50) == ([], True)
