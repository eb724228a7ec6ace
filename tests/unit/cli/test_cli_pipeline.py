"""`ottla pipeline init`, `validate` and `explain`."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.model import extras
from ottla.pipeline import checks
from ottla.pipeline.problems import Place, Problem


@pytest.fixture
def shop(ottla: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh shop.yaml in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert ottla("pipeline", "init").exit_code == 0
    return tmp_path / "shop.yaml"


def test_init_writes_a_file_that_is_valid(ottla: Any, shop: Path) -> None:
    result = ottla("pipeline", "validate", shop.name)
    assert (result.exit_code, result.output) == (0, "shop.yaml: ok, 3 sources, 12 flows\n")


def test_init_does_not_overwrite_without_being_told(ottla: Any, shop: Path) -> None:
    shop.write_text("mine")
    result = ottla("pipeline", "init")
    assert (result.exit_code, shop.read_text()) == (1, "mine")
    assert "add --force" in result.stderr
    assert ottla("pipeline", "init", "--force").exit_code == 0
    assert shop.read_text() != "mine"


def test_init_calls_the_file_by_its_name(ottla: Any, shop: Path) -> None:
    ottla("pipeline", "init", "mine.yaml")
    assert "ottla pipeline explain mine.yaml" in shop.with_name("mine.yaml").read_text()


def test_validate_tells_all_problems_and_fails(ottla: Any, shop: Path) -> None:
    shop.write_text(shop.read_text().replace("zone: trusted", "zone: trustd").replace("format: json", "format: jsno"))
    result = ottla("pipeline", "validate", shop.name)
    assert result.exit_code == 1
    assert result.stdout.count("write json") == 3
    assert result.stdout.count("write trusted") == 3
    assert result.stdout.splitlines()[0] == "shop.yaml:20:13: source 'orders': format 'jsno' is not known; write json"
    assert result.stderr.startswith("error: 6 problems found; ")


def test_problems_can_be_read_by_programs(ottla: Any, shop: Path) -> None:
    shop.write_text(shop.read_text().replace("name: shop", "nam: shop"))
    result = ottla("pipeline", "validate", shop.name, "-o", "json")
    assert json.loads(result.stdout) == [
        {
            "file": "shop.yaml",
            "problems": [
                {
                    "file": "shop.yaml", "line": 11, "column": 1,
                    "what": "the pipeline: unknown key 'nam'", "instead": "write name",
                }
            ],
        }
    ]  # fmt: skip


def test_what_a_file_says_cannot_steer_a_terminal(ottla: Any, shop: Path) -> None:
    shop.write_text('"\\e[2J": 1\n')
    assert "\x1b" not in ottla("pipeline", "validate", shop.name).output


def test_a_file_that_is_not_there_is_not_found(ottla: Any, shop: Path) -> None:
    for verb in ("validate", "explain"):
        result = ottla("pipeline", verb, "nope.yaml")
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1)


def test_deep_asks_spark_about_a_file_that_is_otherwise_good(
    ottla: Any, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def analyse(declaration: Any) -> list[Problem]:
        asked.append(declaration.name)
        return [Problem(Place("shop.yaml", 107, 7), "no column amuont", "write amount")]

    monkeypatch.setattr(checks, "DEEP_CHECK", "analysis_of_the_test:analyse")
    module = type("Module", (), {"analyse": staticmethod(analyse)})
    monkeypatch.setitem(__import__("sys").modules, "analysis_of_the_test", module)
    result = ottla("pipeline", "validate", shop.name, "--deep")
    assert (asked, result.exit_code) == (["shop"], 1)
    assert result.stdout == "shop.yaml:107:7: no column amuont; write amount\n"


def test_deep_without_spark_says_what_to_install(ottla: Any, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DEEP_CHECK", "no_such_module_of_spark:analyse")
    result = ottla("pipeline", "validate", shop.name, "--deep")
    remedy = extras.missing("no_such_module_of_spark", extras.SPARK)
    assert (result.exit_code, result.stderr) == (1, f"error: the deep check needs Spark: {remedy}\n")


_PROGRAM = """
from decimal import Decimal
from pathlib import Path
from ottla.pipeline import Pipeline

Path("executed").touch()
code = Pipeline("code", storage="lake")
code.source("lines", topic="lines", format="string")
code.flow("lines_raw", zone="raw", from_="lines")
"""


@pytest.mark.parametrize("verb", ["validate", "explain"])
def test_python_file_is_executed_only_if_that_is_allowed(ottla: Any, shop: Path, verb: str) -> None:
    file, executed = shop.with_name("code_pipeline.py"), shop.with_name("executed")
    file.write_text(_PROGRAM)
    result = ottla("pipeline", verb, file.name)
    assert (result.exit_code, result.stdout, executed.exists()) == (1, "", False)
    assert result.stderr == (
        "error: code_pipeline.py is a Python program that would be executed; add --allow-code if you trust it\n"
    )
    result = ottla("pipeline", verb, file.name, "--allow-code")
    assert (result.exit_code, executed.exists()) == (0, True)


def test_deep_executes_python_steps_only_if_that_is_allowed(
    ottla: Any, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = type("Module", (), {"analyse": staticmethod(lambda declaration: [])})
    monkeypatch.setattr(checks, "DEEP_CHECK", "analysis_of_the_test:analyse")
    monkeypatch.setitem(__import__("sys").modules, "analysis_of_the_test", module)
    flow = "  cleaned: {zone: trusted, from: orders_staged, python: 'shop_steps:clean', to: {table: cleaned}}\n"
    shop.write_text(shop.read_text() + flow)
    line = shop.read_text().count("\n")
    result = ottla("pipeline", "validate", shop.name, "--deep")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: shop.yaml:{line}:")
    assert "--deep would execute the Python step shop_steps:clean; add --allow-code" in result.stderr
    assert ottla("pipeline", "validate", shop.name).exit_code == 0
    assert ottla("pipeline", "validate", shop.name, "--deep", "--allow-code").exit_code == 0


def test_explain_draws_flows_by_zone(ottla: Any, shop: Path) -> None:
    text = ottla("pipeline", "explain", shop.name).output
    zones = [text.index(f" {zone}\n") for zone in ("sources", "raw", "staging", "trusted", "refined")]
    assert zones == sorted(zones)
    assert "revenue_per_minute <- paid_orders" in text
    assert "-> topic shop.revenue-per-minute (json, key currency, exactly-once)" in text
    assert "expects amount is positive: amount > 0, else quarantine" in text


def test_explain_says_how_a_topic_is_made_and_what_becomes_a_tombstone(ottla: Any, shop: Path) -> None:
    sink = "      - topic: shop.revenue-per-minute\n"
    more = "partitions: 2", "config: {cleanup.policy: compact}", "tombstone_when: revenue = 0"
    text = shop.read_text()
    assert sink in text
    shop.write_text(text.replace(sink, sink + "".join(f"        {line}\n" for line in more)))
    drawn = ottla("pipeline", "explain", shop.name).output
    assert "no value where revenue = 0, exactly-once; made with 2 partitions, cleanup.policy=compact)" in drawn


def test_explain_shows_subjects_and_keys_with_a_schema(ottla: Any, shop: Path) -> None:
    shop.write_text(
        "name: x\nstorage: lake\nsources:\n"
        "  a: {topic: t, format: avro, schema: {registry: t-value}, key_format: json, key_schema: {registry: t-key}}\n"
        "flows:\n"
        "  b: {zone: staging, from: a, to: {topic: u, key: [c, d], key_format: avro, key_schema: {registry: s}}}\n"
    )
    drawn = ottla("pipeline", "explain", shop.name).output
    assert "a <- topic t (avro: subject t-value; key json: subject t-key)" in drawn
    assert "-> topic u (json, key c, d as avro, exactly-once)" in drawn
    [flow] = json.loads(ottla("pipeline", "explain", shop.name, "-o", "json").stdout)["flows"]
    assert [(sink["key"], sink["key_format"], sink["key_subject"]) for sink in flow["to"]] == [
        (["c", "d"], "avro", "s")
    ]


def test_explain_gives_programs_the_whole_graph(ottla: Any, shop: Path) -> None:
    picture = json.loads(ottla("pipeline", "explain", shop.name, "-o", "json").stdout)
    flows = {flow["name"]: flow for flow in picture["flows"]}
    assert flows["paid_orders"]["from"] == ["orders_trusted", "payments_trusted"]
    assert flows["paid_orders"]["topics"] == ["shop.orders", "shop.payments"]
    assert flows["orders_staged"]["read_by"] == ["orders_trusted"]
    assert flows["orders_trusted"]["watermark"] == "ordered_at, 10m"


def test_explain_refuses_a_bad_file(ottla: Any, shop: Path) -> None:
    shop.write_text("name: x\n")
    result = ottla("pipeline", "explain", shop.name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: shop.yaml has 3 problems; " in result.stderr


def test_commands_take_the_directory_of_a_project(ottla: Any, shop: Path) -> None:
    project = shop.parent / "project"
    project.mkdir()
    result = ottla("pipeline", "validate", "project")
    assert (result.exit_code, "project/pipeline.yaml does not exist" in result.stderr) == (3, True)
    head, marker, flows = shop.read_text().partition("flows:")
    (project / "pipeline.yaml").write_text(f"{head}include: flows.yaml\n")
    (project / "flows.yaml").write_text(marker + flows)
    result = ottla("pipeline", "validate", "project")
    assert (result.exit_code, result.output) == (0, "project: ok, 3 sources, 12 flows\n")
    assert ottla("pipeline", "explain", "project", "-o", "json").output == (
        ottla("pipeline", "explain", "shop.yaml", "-o", "json").output
    )


def test_directory_with_a_python_file_is_not_executed_without_permission(ottla: Any, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise AssertionError('executed')\n")
    result = ottla("pipeline", "validate", str(tmp_path))
    assert (result.exit_code, "add --allow-code" in result.stderr) == (1, True)


def test_graph_writes_mermaid_to_the_output_or_to_a_file(ottla: Any, shop: Path) -> None:
    printed = ottla("pipeline", "graph", shop.name)
    assert printed.exit_code == 0 and "flowchart LR" in printed.stdout
    written = ottla("pipeline", "graph", shop.name, "--format", "mermaid", "--out", "shop.mmd")
    assert (written.exit_code, written.stdout) == (0, "Wrote shop.mmd.\n")
    assert shop.with_name("shop.mmd").read_text(encoding="utf-8") == printed.stdout
    refused = ottla("pipeline", "graph", shop.name, "--out", "none/shop.mmd")
    assert refused.exit_code == 1 and "cannot be written: no such file or directory" in refused.stderr


_PROJECT = """\
name: shop_${env}
storage: lake/${env}
parameters:
  least: {type: decimal, default: 5}
  token: {secret: true}
environments:
  dev: {default: true}
  prod: {parameters: {least: 7}}
properties: {sasl.password: "${token}"}
spark: {spark.hadoop.fs.s3a.secret.key: "${token}"}
sources:
  orders: {topic: orders, format: json, schema: "amount DECIMAL(10,2)"}
flows:
  staged: {zone: staging, from: orders}
  big: {zone: trusted, from: staged, sql: "SELECT * FROM staged WHERE amount > ${least}"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two environments, a parameter and a secret, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(_PROJECT)
    return tmp_path


def test_explain_shows_the_environment_and_the_values_of_parameters(ottla: Any, project: Path) -> None:
    shown = json.loads(ottla("pipeline", "explain", ".", "--env", "prod", "-o", "json").stdout)
    assert (shown["environment"], shown["parameters"]["least"], shown["storage"]) == ("prod", "7", "lake/prod")
    assert "amount > 7BD" in shown["flows"][1]["steps"][0]["sql"]
    text = ottla("pipeline", "explain", ".", "--param", "least=9").stdout
    assert "environment dev" in text and "least = 9" in text


@pytest.mark.parametrize("verb", [("explain",), ("explain", "-o", "json"), ("validate", "-o", "json"), ("graph",)])
def test_secrets_are_not_shown(
    ottla: Any, project: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setenv("OTTLA_PARAM_TOKEN", "hunter2")
    result = ottla("pipeline", *verb, ".")
    assert (result.exit_code, "hunter2" in result.output) == (0, False)


def test_values_that_do_not_fit_are_refused_with_what_exists(ottla: Any, project: Path) -> None:
    result = ottla("pipeline", "validate", ".", "--param", "lest=1")
    assert (result.exit_code, "--param lest: there is no such parameter; write least" in result.stdout) == (1, True)
    result = ottla("pipeline", "explain", ".", "--env", "test")
    assert "there is no environment 'test' (--env); write one of dev, prod" in result.stderr
    assert ottla("pipeline", "explain", ".", "--param", "least").exit_code == 2
    assert ottla("pipeline", "explain", ".", "--param", "least=1", "--param", "least=2").exit_code == 2


def test_run_needs_secrets_and_status_does_not(ottla: Any, project: Path) -> None:
    result = ottla("pipeline", "run", ".")
    assert result.exit_code == 1
    assert "the secret 'token' has no value; set OTTLA_PARAM_TOKEN" in result.stderr
    assert "has never run here" in ottla("pipeline", "status", ".", "--env", "prod").stderr


_TESTS = """\
tests:
  - {name: first test, flow: big, given: {staged: []}, expect: {rows: []}}
  - {name: second test, flow: staged, given: {orders: []}, expect: {rows: []}}
"""


@pytest.fixture
def tested(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two tests, the second of which fails. Spark is not started."""
    from ottla.cli import pipeline_test
    from ottla.pipeline.row_comparison import compare_rows
    from ottla.pipeline.testing import TestResult

    def run(path: str, choice: object, declaration: object, tests: Any) -> Any:
        for test in tests:
            rows = [{"order": "a", "amount": Decimal("1.50")}] if test.name.startswith("second") else []
            yield TestResult(test=test, seconds=0.25, comparisons={"rows": compare_rows([], rows)})

    monkeypatch.setattr(pipeline_test, "_run", run)
    (project / "tests").mkdir()
    (project / "tests" / "big.yaml").write_text(_TESTS)
    return project


def test_failed_test_shows_its_rows_and_the_exit_code_is_1(ottla: Any, tested: Path) -> None:
    result = ottla("pipeline", "test", ".")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ok      big: first test  (0.2 s)",
        "FAILED  staged: second test  (0.2 s)",
        "        ./tests/big.yaml, line 3",
        "        rows: 0 expected, 1 received, 0 of them equal",
        "                        order  amount",
        "          + unexpected  a      1.50",
        "1 passed, 1 failed",
    ]
    assert "1 of 2 tests failed" in result.stderr


def test_results_of_tests_can_be_read_by_programs(ottla: Any, tested: Path) -> None:
    first, second = json.loads(ottla("pipeline", "test", ".", "-o", "json").stdout)
    assert (first["name"], first["passed"], second["passed"], second["line"]) == ("first test", True, False, 3)
    assert second["outputs"]["rows"]["unexpected"] == [{"order": "a", "amount": "1.50"}]


@pytest.mark.parametrize("pattern", ["first test", "big", "first*"])
def test_tests_are_selected_by_name_flow_and_pattern(ottla: Any, tested: Path, pattern: str) -> None:
    result = ottla("pipeline", "test", ".", "--select", pattern)
    assert (result.exit_code, "1 passed, 0 failed" in result.stdout) == (0, True)


def test_selection_without_tests_and_a_project_without_tests_are_refused(ottla: Any, tested: Path) -> None:
    result = ottla("pipeline", "test", ".", "--select", "third*")
    assert (result.exit_code, "there are first test, second test" in result.stderr) == (3, True)
    (tested / "tests" / "big.yaml").unlink()
    result = ottla("pipeline", "test", ".")
    assert (result.exit_code, "there are no tests in tests" in result.stderr) == (3, True)


def test_test_of_an_unknown_flow_is_refused_before_spark_starts(ottla: Any, tested: Path) -> None:
    (tested / "tests" / "big.yaml").write_text(_TESTS.replace("flow: big", "flow: bigg"))
    result = ottla("pipeline", "test", ".")
    assert (result.exit_code, "there is no flow 'bigg'; write big" in result.stderr) == (1, True)
