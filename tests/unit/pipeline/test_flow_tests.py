"""The test files of a project: what is read from them, and what is wrong with them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatch

import pytest

from ottla.pipeline.document import read_document
from ottla.pipeline.flow_tests import FlowTest, FlowTestReader, plain_value, read_rows
from ottla.pipeline.problems import Problems

_TEST = """\
tests:
  - name: one
    flow: big
    parameters: {least: 5}
    given:
      staged:
        - {a: 1, b: 1.50, c: null}
      other: {file: rows.csv}
    expect:
      rows: [{a: 1}]
      quarantine: []
      topics: {out: [{_key: a}]}
      ordered: true
"""


def read(files: Mapping[str, str]) -> tuple[tuple[FlowTest, ...], list[str]]:
    def read_file(name: str) -> bytes:
        if name not in files:
            raise FileNotFoundError(2, "No such file or directory", name)
        return textwrap.dedent(files[name]).encode()

    def find_files(pattern: str) -> list[str]:
        return sorted(name for name in files if fnmatch(name, pattern.replace("**/", "*")))

    problems = Problems()
    tests = FlowTestReader("shop/pipeline.yaml", problems, read_file, find_files).read()
    return tests, [str(problem) for problem in problems]


def test_tests_have_a_flow_given_rows_and_expected_rows() -> None:
    (test,), problems = read({"tests/a.yaml": _TEST, "tests/rows.csv": "x,y\n1,\n"})
    assert problems == []
    assert (test.name, test.flow, test.parameters, test.ordered) == ("one", "big", {"least": "5"}, True)
    assert test.given == {"staged": ({"a": 1, "b": Decimal("1.50"), "c": None},), "other": ({"x": "1", "y": None},)}
    assert [(each.name, each.rows) for each in test.expected] == [
        ("rows", ({"a": 1},)), ("quarantine", ()), ("topic out", ({"_key": "a"},)),
    ]  # fmt: skip
    assert str(test.place) == "shop/tests/a.yaml:2:5"


def test_tests_of_all_files_are_read_in_the_order_of_names() -> None:
    one = _TEST.replace("      other: {file: rows.csv}\n", "")
    tests, problems = read({"tests/b.yaml": one, "tests/sub/a.yml": one.replace("one", "two"), "other.yaml": "x"})
    assert ([test.name for test in tests], problems) == (["one", "two"], [])
    _, problems = read({"tests/a.yaml": one, "tests/b.yaml": one})
    assert problems == [
        "shop/tests/b.yaml:2:5: test 'one' is declared twice, first in shop/tests/a.yaml, line 2; rename one"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("flow: big", "flw: big", "a test: unknown key 'flw'; write flow"),
        ("flow: big", "description: x", "a test has no 'flow'"),
        ("rows: [{a: 1}]", "rows: {a: 1}", "expected rows is a mapping of keys to values; write a list of rows"),
        ("rows: [{a: 1}]", "rows: [1]", "expected rows: a row is a number; write '{column: value, ...}'"),
        ("topics: {out: [{_key: a}]}", "topics: [out]", "'topics' is a list; write 'name: rows' lines"),
        ("rows: [{a: 1}]", "failure: x", "a flow that fails makes no rows"),
        ("      rows: [{a: 1}]\n      quarantine: []\n      topics: {out: [{_key: a}]}\n", "",
         "test 'one' expects nothing"),
        ("file: rows.csv", "file: none.csv", "none.csv cannot be read: No such file or directory"),
        ("file: rows.csv", "file: ../../rows.csv", "is not in the directory of the project"),
        ("file: rows.csv", "file: rows.txt", "its name ends in none of .csv, .json"),
    ],
)  # fmt: skip
def test_problem_of_a_test_file_has_its_place(old: str, new: str, expected: str) -> None:
    assert old in _TEST
    files = {"tests/a.yaml": _TEST.replace(old, new), "tests/rows.csv": "x,y\n1,\n", "tests/rows.txt": ""}
    _, problems = read(files)
    assert any(expected in problem and problem.startswith("shop/tests/a.yaml:") for problem in problems)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.csv", 'x,y\n1,"a,\nb"\n,\n', ({"x": "1", "y": "a,\nb"}, {"x": None, "y": None})),
        ("a.json", '[{"x": 1.50, "y": [null]}]', ({"x": Decimal("1.50"), "y": [None]},)),
        ("a.jsonl", '{"x": 1}\n\n{"x": 2}\n', ({"x": 1}, {"x": 2})),
    ],
)
def test_rows_are_read_from_files(name: str, data: str, expected: tuple[object, ...]) -> None:
    assert read_rows(name, data.encode()) == expected


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.csv", "x,y\n1\n", "line 2 has fewer fields than line 1"),
        ("a.csv", "x\n1,2\n", "line 2 has more fields than line 1"),
        ("a.json", '{"x": 1}', "not a list of objects"),
        ("a.json", "[1]", "not a list of objects"),
        ("a.json", "[", "Expecting value"),
    ],
)
def test_file_of_rows_that_is_wrong_is_refused(name: str, data: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_rows(name, data.encode())


def test_values_are_read_as_they_were_written() -> None:
    text = "[1, 1.10, 010, 1e3, .inf, true, null, 2026-01-31, text, {a: [x]}]"
    assert plain_value(read_document(text.encode(), "x", Problems())) == [
        1, Decimal("1.10"), 10, "1e3", math.inf, True, None, "2026-01-31", "text", {"a": ["x"]},
    ]  # fmt: skip
