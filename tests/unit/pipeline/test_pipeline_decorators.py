"""Pipelines declared in Python: the same declaration, and problems with the line of the call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_pipeline import HEAD

from ottla.pipeline import BadDeclaration, Declaration, Pipeline, load

SCHEMA = {"order_id": "string", "amount": "decimal(10,2)", "ordered_at": "timestamp"}


def no_files(name: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", name)


def shop(**keys: Any) -> Pipeline:
    made = Pipeline("shop", storage="lake", **keys)
    watermark = {"column": "ordered_at", "delay": "10m"}
    made.source("orders", topic="shop.orders", format="json", schema=SCHEMA, watermark=watermark)
    made.flow("staged", zone="staging", from_="orders")
    return made


def test_python_and_yaml_declare_the_same(read: Callable[..., Declaration]) -> None:
    made = shop(trigger="every 10s")
    made.flow("x", zone="trusted", from_="staged", sql="SELECT * FROM staged", deduplicate=["order_id"])
    text = "  x: {zone: trusted, from: staged, sql: SELECT * FROM staged, deduplicate: order_id}\n"
    assert made.declaration(no_files) == read("trigger: every 10s\n" + HEAD + text)


def test_a_function_reads_what_its_parameters_are_called() -> None:
    made = shop()

    @made.table(zone="trusted", expect=[{"name": "paid", "that": "amount > 0", "on_violation": "drop"}])
    def clean(staged: Any) -> Any:
        return staged

    flow = made.declaration(no_files).flows["clean"]
    assert (flow.input_names, flow.kind, flow.expectations[0].on_violation) == (("staged",), "table", "drop")
    step: Any = flow.steps[0]
    assert step.call is clean and step.function.endswith("clean")


def test_the_other_kinds_have_their_decorators() -> None:
    made = shop()

    @made.table(zone="trusted", name="clean")
    def make_clean(staged: Any) -> Any:
        return staged

    @made.append_flow(target="clean", zone="trusted")
    def more(staged: Any) -> Any:
        return staged

    @made.temporary_view(zone="refined")
    def seen(clean: Any) -> Any:
        return clean

    @made.materialized_view(zone="refined")
    def totals(clean: Any) -> Any:
        return clean

    flows = made.declaration(no_files).flows
    assert [(flow.name, flow.kind) for flow in flows.values()][1:] == [
        ("clean", "table"), ("more", "table"), ("seen", "view"), ("totals", "materialized_view"),
    ]  # fmt: skip
    assert flows["more"].append_to is not None and flows["more"].append_to.name == "clean"


def test_problems_have_the_line_of_the_call(tmp_path: Path) -> None:
    file = tmp_path / "shop_bad.py"
    file.write_text(
        "from ottla.pipeline import Pipeline\n"
        "shop = Pipeline('shop', storage='lake')\n"
        "shop.source('orders', topic='o', format='jsn')\n"
        "shop.flow('staged', zone='staging', from_='orderz')\n"
        "shop.flow('staged', zone='staging', from_='orders')\n"
    )
    with pytest.raises(BadDeclaration) as refused:
        load(str(file))
    lines = {problem.place.line: problem.what for problem in refused.value.problems}
    assert "'jsn' is not known" in lines[3] or "read by no flow" in lines[3]
    assert "'orderz'" in lines[4]
    assert "declared twice, first in line 4" in lines[5]


def test_a_python_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "shop_good.py"
    file.write_text(
        "from ottla.pipeline import Pipeline\n"
        "shop = Pipeline('shop', storage='lake')\n"
        "shop.source('orders', topic='o', format='bytes')\n"
        "shop.flow('kept', zone='raw', from_='orders')\n"
    )
    assert list(load(str(file)).flows) == ["kept"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "the file makes no pipelines"),
        ("def (", ":1:5: this is not Python: "),
        ("import no_such_module_anywhere\n", "a module cannot be imported: No module named 'no_such_module_anywhere'"),
        ("from ottla.pipeline import Pipeline\na = Pipeline('a')\nb = Pipeline('b')\n", "the file makes 2 pipelines"),
    ],
)
def test_a_python_file_without_one_pipeline_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "shop_none.py"
    file.write_text(text)
    with pytest.raises(BadDeclaration) as refused:
        load(str(file))
    assert told in str(refused.value)


def test_a_python_file_must_not_hide_a_module(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text("")
    with pytest.raises(BadDeclaration, match="a module 'json' already; rename the file"):
        load(str(file))
