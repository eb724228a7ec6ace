"""`ottla pipeline test`: unit tests of flows, with rows in and rows out."""

from __future__ import annotations

import fnmatch
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli import interrupts
from ottla.cli.output import JSON, TEXT, YAML, output_option, print_data
from ottla.cli.pipeline_project import Choice, environment_options, report
from ottla.cli.pipeline_run import starting_spark
from ottla.cli.stages import in_place
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline import Declaration
    from ottla.pipeline.flow_tests import FlowTest
    from ottla.pipeline.row_comparison import Comparison
    from ottla.pipeline.testing import TestResult


@click.command("test")
@click.argument("path", metavar="PATH", type=click.Path())
@environment_options
@click.option(
    "--select", multiple=True, metavar="NAME",
    help="Only tests with this name, of this flow or in this file; * stands for any text. Can be repeated.",
)  # fmt: skip
@output_option(TEXT, JSON, YAML, default=TEXT)
def test(path: str, choice: Choice, select: tuple[str, ...], output: str) -> None:
    """Run the unit tests of a pipeline: rows in, rows out, on Spark in this process, without a broker.

    The tests are in the files tests/*.yaml beside the pipeline. A test that fails shows the rows that are missing,
    unexpected or different, and the exit code is 1. Python steps are executed. Schemas of sources that are in a schema
    registry are fetched; nothing is registered.
    """
    declaration = choice.load_or_report(path)
    tests = _select(_read_tests(declaration), select)
    if declaration.needs_registry:
        declaration = choice.load_pinned(path, continues=False)
    results = []
    for result in _run(path, choice, declaration, tests):
        results.append(result)
        if output == TEXT:
            _show(result)
    if output != TEXT:
        print_data([_fields(result) for result in results], output)
    failed = sum(not result.passed for result in results)
    counts = f"{len(results) - failed} passed, {failed} failed"
    if output == TEXT:
        click.echo(counts)
    if failed:
        raise Failure(f"{failed} of {len(results)} tests failed; the rows that differ are shown above")


def _read_tests(declaration: Declaration) -> tuple[FlowTest, ...]:
    from ottla.pipeline import BadDeclaration
    from ottla.pipeline.flow_tests import PATTERNS, FlowTestReader, check_flow_tests
    from ottla.pipeline.load import find_beside, read_beside
    from ottla.pipeline.problems import Problems

    file = declaration.file
    problems = Problems()
    try:
        tests = FlowTestReader(file, problems, read_beside(file), find_beside(file)).read()
        check_flow_tests(tests, declaration, problems)
        problems.refuse_if_any()
    except BadDeclaration as bad:
        raise report(bad) from None
    if not tests:
        directory = Path(file).parent / PATTERNS[0].partition("/")[0]
        raise NotFound(f"there are no tests in {directory}; docs/guides/pipelines.md shows how to write one")
    return tests


def _select(tests: Sequence[FlowTest], patterns: tuple[str, ...]) -> list[FlowTest]:
    def is_selected(test: FlowTest) -> bool:
        names = (test.name, test.flow, test.place.file, Path(test.place.file).name)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)

    selected = [test for test in tests if not patterns or is_selected(test)]
    if not selected:
        names = ", ".join(test.name for test in tests[:5]) + (", ..." if len(tests) > 5 else "")
        raise NotFound(f"no test is selected by {', '.join(patterns)}; there are {names}")
    return selected


def _run(path: str, choice: Choice, declaration: Declaration, tests: Sequence[FlowTest]) -> Iterator[TestResult]:
    """Yield the results of tests as they come. All tests use one session."""

    def declare(parameters: Mapping[str, str]) -> Declaration:
        if not parameters:
            return declaration
        chosen = replace(choice, parameters={**choice.parameters, **parameters})
        loaded = chosen.load(path)
        return chosen.load(path, needs_secrets=True) if loaded.needs_registry else loaded

    with ExitStack() as stack:
        stack.enter_context(interrupts.not_logged())
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-test-"))) / "spark.log"
        spark = _start_spark(declaration, log)
        stack.callback(spark.stop)
        from ottla.pipeline.testing import run_tests

        results = run_tests(tests, declare, spark)
        for number, test in enumerate(tests, 1):
            if sys.stderr.isatty():
                click.echo(in_place(f"{number} of {len(tests)}: {test.name}"), nl=False, err=True)
            yield next(results)


def _start_spark(declaration: Declaration, log: Path) -> SparkSession:
    with starting_spark(log):
        # What is missing is reported before modules that need it are imported.
        from ottla.spark.session import check_packages

        check_packages()
        from ottla.pipeline.testing import start_session

        return start_session(declaration.spark)


def _show(result: TestResult) -> None:
    if sys.stderr.isatty():
        click.echo(in_place(""), nl=False, err=True)
    word = "ok    " if result.passed else "FAILED"
    test = result.test
    click.echo(escape_controls(f"{word}  {test.flow}: {test.name}  ({result.seconds:.1f} s)", keep=""))
    if not result.passed:
        click.echo(escape_controls(f"        {test.place.file}, line {test.place.line}", keep=""))
        for line in result.lines:
            click.echo(escape_controls(f"        {line}", keep=""))


def _fields(result: TestResult) -> dict[str, Any]:
    test = result.test
    return {
        "name": test.name,
        "flow": test.flow,
        "file": test.place.file,
        "line": test.place.line,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "error": result.error,
        "outputs": {name: _comparison_fields(each) for name, each in result.comparisons.items()},
    }


def _comparison_fields(comparison: Comparison) -> dict[str, Any]:
    from ottla.pipeline.row_comparison import format_value

    def shown(row: Mapping[str, Any]) -> dict[str, Any]:
        plain = (str, int, float, bool, type(None))
        return {name: value if isinstance(value, plain) else format_value(value) for name, value in row.items()}

    return {
        "equal": comparison.equal,
        "different": [
            {"expected": shown(each.expected), "received": shown(each.received), "columns": list(each.columns)}
            for each in comparison.different
        ],
        "missing": [shown(row) for row in comparison.missing],
        "unexpected": [shown(row) for row in comparison.unexpected],
    }
