"""Columns of a query, as far as they are certain without Spark."""

from __future__ import annotations

import pytest

from ottla.pipeline.sdp.columns import lineage_of_query, selects


@pytest.mark.parametrize(
    ("sql", "has"),
    [
        ("SELECT a.at, b FROM x", True),
        ("SELECT max(at) AS at FROM x", True),
        ("SELECT * FROM x", True),
        ("WITH y AS (SELECT at FROM x) SELECT y.* FROM y", True),
        ("SELECT at FROM x UNION ALL SELECT b FROM y", True),
        ("SELECT b * at FROM x", False),
        ("SELECT max(at) FROM x", False),
        ("SELECT b FROM (SELECT at, b FROM x)", False),
        ("SELECT count(*) AS n FROM x", False),
        ("SELECT * EXCEPT (at) FROM x", False),
    ],
)
def test_columns_of_a_query_are_found_where_they_are_certain(sql: str, has: bool) -> None:
    assert selects(sql, "at") is has


def test_lineage_of_a_query_is_that_of_its_columns() -> None:
    assert lineage_of_query("SELECT lineage(o) AS _lineage FROM o", "record") == "lineage"
    assert lineage_of_query("SELECT _topic, _partition, _offset FROM o", "") == "record"
    assert lineage_of_query("SELECT o.*, 1 AS one FROM o", "record") == "record"
    assert lineage_of_query("SELECT a FROM o", "record") == ""
