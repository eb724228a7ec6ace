"""SQL over the tables of a pipeline, and `ottla pipeline sql`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from ottla.cli.main import main
from ottla.pipeline import load
from ottla.pipeline.query import QueryFailed, run_query, tables_of

_SHOP = Path(__file__).resolve().parents[3] / "src" / "ottla" / "pipeline" / "templates" / "shop.yaml"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a shop whose table with the revenue has three rows, and a table of its quarantine one."""
    file = tmp_path / "shop.yaml"
    file.write_text(_SHOP.read_text())
    rows = [
        {"minute": datetime(2026, 1, 5, 8, minute, tzinfo=UTC), "currency": "EUR", "revenue": Decimal("12.50")}
        for minute in range(3)
    ]
    lake = tmp_path / "shop-lake"
    write_deltalake(lake / "refined" / "revenue_per_minute", pa.Table.from_pylist(rows))
    write_deltalake(lake / "quarantine" / "orders_staged_quarantine", pa.Table.from_pylist([{"_cause": "not JSON"}]))
    return file


def sql(file: Path, query: str, *options: str) -> Any:
    return CliRunner().invoke(main, ["pipeline", "sql", str(file), query, *options])


def test_query_is_exact_to_the_cent(shop: Path) -> None:
    result = run_query(load(str(shop)), "SELECT currency, sum(revenue) AS total FROM revenue_per_minute GROUP BY 1", 10)
    assert result == (["currency", "total"], [{"currency": "EUR", "total": Decimal("37.50")}], False)


def test_quarantine_can_be_queried(shop: Path) -> None:
    result = run_query(load(str(shop)), "SELECT _cause FROM orders_staged_quarantine", 10)
    assert result.rows == [{"_cause": "not JSON"}]


def test_result_is_bounded_and_says_so(shop: Path) -> None:
    assert run_query(load(str(shop)), "SELECT * FROM revenue_per_minute", 2).has_more
    result = sql(shop, "SELECT minute FROM revenue_per_minute ORDER BY minute", "--limit", "2")
    assert result.output.count("2026-01-05") == 2
    assert "--limit prints more than 2" in result.stderr


def test_wrong_query_is_one_sentence_with_the_names_of_the_tables(shop: Path) -> None:
    with pytest.raises(
        QueryFailed, match=r"^the query failed: .*nothing.*; tables: orders_staged_.*, revenue_per_minute$"
    ):
        run_query(load(str(shop)), "SELECT * FROM nothing", 10)
    with pytest.raises(QueryFailed, match=r"the query failed: .*selec"):
        run_query(load(str(shop)), "selec", 10)


def test_pipeline_that_never_ran_has_no_tables(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(_SHOP.read_text())
    with pytest.raises(QueryFailed, match="tables: none yet: run the pipeline first"):
        run_query(load(str(tmp_path / "shop.yaml")), "SELECT * FROM orders", 10)


def test_tables_have_the_names_of_the_file(shop: Path) -> None:
    names = [name for name, _ in tables_of(load(str(shop)))]
    assert {"orders_raw", "orders", "revenue_per_minute", "orders_staged_quarantine"} <= set(names)
    assert "orders_trusted" not in names, "this flow writes the table orders"


def test_programs_get_json(shop: Path) -> None:
    result = sql(shop, "SELECT minute, revenue FROM revenue_per_minute ORDER BY minute LIMIT 1", "-o", "json")
    assert json.loads(result.stdout) == [{"minute": "2026-01-05 08:00:00+00:00", "revenue": "12.50"}]
