"""Unit tests of flows, as they are declared in the files of a project: rows that a flow is given, rows that it makes.

The files are read here without Spark: types of columns are not known yet, so that values stay as they were written.
"""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.document import Node, read_document
from ottla.pipeline.fields import Fields
from ottla.pipeline.keys import Key, section
from ottla.pipeline.problems import Place, Problems, suggestion
from ottla.pipeline.project import FindFiles, ReadFile, is_inside

#: where the tests of a project are, relative to its top file
PATTERNS = ("tests/**/*.yaml", "tests/**/*.yml")
ROWS_MAX = 100_000
#: outputs of a flow whose rows a test may expect
OUTPUTS = ("rows", "quarantine")

TEST_FILE = section(
    "test file",
    "A file `tests/*.yaml` of a project. See [tests](../guides/pipelines.md#tests).",
    Key("tests", "list of tests", "Unit tests of flows.", required=True),
)

TEST = section(
    "test",
    "Rows that a flow is given, and the rows that it makes of them.",
    Key("name", "text", "Name of the test, unique in the project.", required=True),
    Key("description", "text", "For people."),
    Key("flow", "name", "The flow to test.", required=True),
    Key("parameters", "mapping", "Values of parameters for this test."),
    Key(
        "given",
        "mapping of inputs to rows",
        "Rows of the inputs: a list of mappings, or `{file: rows.csv}` (`.csv`, `.json`, `.jsonl`), relative to this "
        "file. An input that is not named has no rows.",
        required=True,
    ),
    Key("expect", "expected result", "What the flow makes of them.", required=True),
)

TEST_EXPECTATION = section(
    "expected result",
    "Rows in the form of `given`. Only columns that are named in a row are compared.",
    Key("rows", "rows", "Rows of the result; of a keyed table, its rows after the batch."),
    Key("quarantine", "rows", "Rejected rows: `_cause`, and columns of the record or the row."),
    Key("topics", "mapping of topics to rows", "Records of topic sinks: `_key`, `value`, and the fields of the value."),
    Key("ordered", "`true` or `false`", "Whether the order of rows matters.", default="`false`"),
    Key("failure", "text", "The flow fails, and this is a part of the message."),
)

#: in the order of the reference page
SECTIONS = (TEST_FILE, TEST, TEST_EXPECTATION)

Rows = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRows:
    """Rows of one output; `name` is `rows`, `quarantine` or `topic <name>`."""

    name: str
    rows: Rows
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTest:
    """One test: a flow, the rows of its inputs, and what it makes of them."""

    name: str
    flow: str
    parameters: Mapping[str, str]
    given: Mapping[str, Rows]
    expected: tuple[ExpectedRows, ...] = ()
    #: whether rows are expected in this order
    ordered: bool = False
    #: a part of the message that the flow fails with; None: it does not fail
    failure: str | None = None
    place: Place = field(compare=False)


class FlowTestReader:
    """Reads the tests of a project. Everything that is wrong is added to `problems`."""

    def __init__(self, top_file: str, problems: Problems, read_file: ReadFile, find_files: FindFiles) -> None:
        self._top = top_file
        self._problems = problems
        self._read_file = read_file
        self._find_files = find_files

    def read(self) -> tuple[FlowTest, ...]:
        """Return the tests of all files, in the order of their names and lines."""
        paths = sorted({path for pattern in PATTERNS for path in self._find_files(pattern)})
        found: list[FlowTest] = []
        for path in paths:
            name = os.path.join(os.path.dirname(self._top), path)
            root = read_document(self._read_file(path), name, self._problems)
            fields = Fields(root, TEST_FILE, "the file", self._problems)
            found += [self._test(node, path) for node in fields.items("tests")]
        seen: dict[str, FlowTest] = {}
        for test in found:
            first = seen.setdefault(test.name, test)
            if first is not test and test.name:
                what = f"test {test.name!r} is declared twice, first in {first.place.seen_from(test.place)}"
                self._problems.add(test.place, what, "rename one")
        return tuple(found)

    def _test(self, node: Node, path: str) -> FlowTest:
        fields = Fields(node, TEST, "a test", self._problems)
        name = fields.text("name")
        given = {key.text: self._rows(value, f"given {key.text!r}", path) for key, value in _entries(fields, "given")}
        expect = fields.node("expect") or Node("mapping", node.place)
        outcome = Fields(expect, TEST_EXPECTATION, f"test {name!r}: expect", self._problems)
        outputs = [(key, rows) for key in OUTPUTS if (rows := outcome.node(key)) is not None]
        outputs += [(f"topic {key.text}", rows) for key, rows in _entries(outcome, "topics")]
        expected = tuple(
            ExpectedRows(name=key, rows=self._rows(rows, f"expected {key}", path), place=rows.place)
            for key, rows in outputs
        )
        failure = outcome.text("failure") or None
        if fields.has("expect") and not expected and failure is None:
            outcome.problem(
                expect.place, f"test {name!r} expects nothing", "add rows:, quarantine:, topics: or failure:"
            )
        if failure is not None and expected:
            what = f"test {name!r}: a flow that fails makes no rows"
            outcome.problem(outcome.place_of("failure"), what, "keep 'failure' or the rows")
        return FlowTest(
            name=name,
            flow=fields.text("flow"),
            parameters=fields.properties("parameters"),
            given=given,
            expected=expected,
            ordered=outcome.flag("ordered", False),
            failure=failure,
            place=node.place,
        )

    def _rows(self, node: Node, called: str, path: str) -> Rows:
        """Return rows that are a list of mappings, or in a file that the node names."""
        if node.kind == "mapping" and [key.text for key, _ in node.entries] == ["file"]:
            return self._rows_of_file(node.entries[0][1], called, path)
        if node.kind != "list":
            self._problems.add(node.place, f"{called} is {node.kind_name}", "write a list of rows, or {file: rows.csv}")
            return ()
        rows = []
        for item in node.items:
            if item.kind != "mapping":
                self._problems.add(item.place, f"{called}: a row is {item.kind_name}", "write '{column: value, ...}'")
            else:
                rows.append(plain_value(item))
        return tuple(rows)

    def _rows_of_file(self, node: Node, called: str, path: str) -> Rows:
        name = posixpath.normpath(posixpath.join(posixpath.dirname(path), node.text))
        if not is_inside(name):
            self._problems.add(node.place, f"{node.text!r} is not in the directory of the project", "move it there")
            return ()
        try:
            rows = read_rows(name, self._read_file(name))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._problems.add(node.place, f"{called}: {node.text} cannot be read: {reason}", "correct that")
            return ()
        return rows


def check_flow_tests(tests: Sequence[FlowTest], declaration: Declaration, problems: Problems) -> None:
    """Add a problem for each test of a flow that does not exist."""
    for test in tests:
        if test.flow and test.flow not in declaration.flows:
            what = f"test {test.name!r}: there is no flow {test.flow!r}"
            problems.add(test.place, what, suggestion(test.flow, declaration.flows, none="declare one"))


def read_rows(name: str, data: bytes) -> Rows:
    """Return the rows of a file: CSV with a header, a JSON list of objects, or JSON lines. Raise ValueError.

    An empty field of a CSV file is null.
    """
    text = data.decode("utf-8-sig")
    rows: list[Any]
    if name.endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has {'more' if None in row else 'fewer'} fields than line 1")
            rows.append({column: value or None for column, value in row.items()})
    elif name.endswith(".json"):
        rows = json.loads(text, parse_float=Decimal)
    elif name.endswith((".jsonl", ".ndjson")):
        rows = [json.loads(line, parse_float=Decimal) for line in text.split("\n") if line.strip()]
    else:
        raise ValueError("its name ends in none of .csv, .json, .jsonl, .ndjson")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it is not a list of objects")
    if len(rows) > ROWS_MAX:
        raise ValueError(f"it has more than {ROWS_MAX} rows")
    return tuple(rows)


def plain_value(node: Node) -> Any:
    """Return a node as a value of Python. Numbers with a point are decimals, so that no digit is lost."""
    if node.kind == "mapping":
        return {key.text: plain_value(value) for key, value in node.entries}
    if node.kind == "list":
        return [plain_value(item) for item in node.items]
    if node.kind == "flag":
        return node.is_true
    if node.kind == "nothing":
        return None
    return _number(node.text) if node.kind == "number" else node.text


def _number(text: str) -> Any:
    special = {".nan": "nan", ".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}.get(text.lower())
    if special is not None:
        return float(special)
    try:
        return int(text)
    except ValueError:
        try:
            return Decimal(text)
        except InvalidOperation:
            # Octal and hexadecimal numbers and the like: what they mean depends on the column.
            return text


def _entries(fields: Fields, key: str) -> Iterator[tuple[Node, Node]]:
    node = fields.node(key)
    if node is not None and node.kind != "mapping":
        fields.problem(node.place, f"{fields.called}: {key!r} is {node.kind_name}", "write 'name: rows' lines")
    yield from node.entries if node is not None and node.kind == "mapping" else ()
