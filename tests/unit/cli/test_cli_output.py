"""Tables for people, structures for programs."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from ottla.cli.output import Column, format_table, print_rows
from ottla.model.printable import escape_controls

COLUMNS = (Column("NAME", "name"), Column("COUNT", "count"), Column("OK", "ok"))
ROWS = [{"name": "a", "count": 5, "ok": True}, {"name": "longer", "count": 1234, "ok": False}]


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    assert format_table(COLUMNS, ROWS).split("\n") == [
        "NAME    COUNT  OK",
        "a           5  yes",
        "longer   1234  no",
    ]


def test_an_empty_table_still_has_its_headings() -> None:
    assert format_table(COLUMNS, []) == "NAME  COUNT  OK"


def test_nothing_is_a_dash_and_a_list_has_commas() -> None:
    table = format_table(COLUMNS, [{"name": [1, 2], "count": None, "ok": []}])
    assert re.split(r"\s+", table.split("\n")[1]) == ["1,2", "-", "-"]


def test_no_value_breaks_its_line() -> None:
    assert format_table((Column("V", "v"),), [{"v": "a\nb\x1b"}]).split("\n") == ["V", r"a\x0ab\x1b"]


def test_json_and_yaml_hold_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "json", "name")
    assert json.loads(capsys.readouterr().out) == ROWS
    print_rows(ROWS, COLUMNS, "yaml", "name")
    assert yaml.safe_load(capsys.readouterr().out) == ROWS


def test_name_prints_one_name_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "name", "name")
    assert capsys.readouterr().out == "a\nlonger\n"


def test_escaping_leaves_text_with_odd_spaces_alone() -> None:
    assert escape_controls("a\u00a0b\u2028c") == "a\u00a0b\u2028c"
