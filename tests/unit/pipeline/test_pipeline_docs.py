"""The reference says which keys the code reads, and the examples of all pages about pipelines are valid."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import generate_pipeline_docs
import ottla.pipeline
from ottla.pipeline import flow_tests
from ottla.pipeline.flow_tests import FlowTestReader, check_flow_tests
from ottla.pipeline.keys import SECTIONS
from ottla.pipeline.load import find_beside, load, parse, read_beside
from ottla.pipeline.problems import Problems

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs" / kind / "pipelines.md" for kind in ("guides", "operate", "reference")]
PURE = ("checks", "declaration", "decorators", "document", "duration", "environments", "expectations", "fields",
        "graph", "keys", "lineage", "load", "parameters", "predicate", "problems", "project", "reading",
        "row_comparison", "graph_mermaid", "schema", "sql", "openlineage", "sql_shape", "table_fit",
        "column_lineage")  # fmt: skip


def test_the_tables_of_keys_are_current() -> None:
    assert generate_pipeline_docs.main(["--check"]) == 0


def test_every_key_is_read_somewhere() -> None:
    """A key in the table that no reader asks for would be accepted and mean nothing."""
    files = ("reading", "schema_reading", "zone_rules", "project", "environments", "flow_tests")
    code = "".join((ROOT / "src" / "ottla" / "pipeline" / f"{name}.py").read_text() for name in files)
    code = re.sub(r'Key\(\s*"\w+"', "", code)
    for section in (*SECTIONS, *flow_tests.SECTIONS):
        for key in section.keys:
            assert f'"{key}"' in code, f"{section.title}: {key}"


def blocks() -> list[str]:
    return [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)]


def examples() -> list[str]:
    return [block for block in blocks() if block.startswith("name:")]


def test_whole_files_in_the_pages_are_valid() -> None:
    assert examples()
    for text in examples():
        parse(text.encode(), "pipelines.md", lambda name: b"")


def test_tests_in_the_page_are_for_the_project_in_the_page(tmp_path: Path) -> None:
    """The names in the example of a test are those of the project that the section before it shows."""
    (project,) = [text for text in examples() if "environments:" in text]
    (declared,) = [text for text in blocks() if text.startswith("tests:")]
    (tmp_path / "tests").mkdir()
    (tmp_path / "pipeline.yaml").write_text(project)
    (tmp_path / "tests" / "orders.yaml").write_text(declared)
    top, problems = str(tmp_path / "pipeline.yaml"), Problems()
    tests = FlowTestReader(top, problems, read_beside(top), find_beside(top)).read()
    declaration = load(top)
    check_flow_tests(tests, declaration, problems)
    assert not list(problems)
    expectations = {one.name for test in tests for one in declaration.flows[test.flow].expectations}
    causes = re.findall(r"_cause: ([^,}]+)", declared)
    assert causes and set(causes) <= expectations


@pytest.mark.parametrize("name", PURE)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert name in [module.name for module in pkgutil.iter_modules(ottla.pipeline.__path__)]
    assert doctest.testmod(importlib.import_module(f"ottla.pipeline.{name}")).failed == 0
