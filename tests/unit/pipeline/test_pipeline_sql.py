"""What is known of SQL without Spark: broken things, tables, columns, types."""

from __future__ import annotations

import random

import pytest

from ottla.pipeline.duration import format_duration, parse_duration_ms
from ottla.pipeline.lineage import expand_lineage
from ottla.pipeline.predicate import read_predicate
from ottla.pipeline.schema import BadType, parse_ddl, parse_type
from ottla.pipeline.sql import read_query


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM a", "a"),
        ("SELECT * FROM a, b c, d", "a b d"),
        ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN `c d` USING (x)", "a b c d"),
        ("SELECT * FROM (SELECT * FROM a) x JOIN (b JOIN c) ON true", "a b c"),
        ("WITH a AS (SELECT * FROM b), c (x, y) AS (SELECT 1, 2) SELECT * FROM a, c", "b"),
        ("FROM a |> WHERE x > 1", "a"),
        ("SELECT EXTRACT(year FROM t), trim(BOTH 'x' FROM s) FROM a", "a"),
        ("SELECT * FROM a WHERE x IS NOT DISTINCT FROM y", "a"),
        ("SELECT * FROM a WHERE x IN (SELECT y FROM b) AND EXISTS (SELECT 1 FROM c)", "a b c"),
        ("SELECT * FROM range(10), a", "a"),
        ("SELECT * FROM catalog.db.t JOIN a", "a"),
        ("SELECT k, v FROM a LATERAL VIEW explode(m) e AS k, v", "a"),
        ("SELECT * FROM a, LATERAL explode(a.m)", "a"),
        ("SELECT * FROM a JOIN LATERAL (SELECT * FROM b) ON true", "a b"),
        ("SELECT * FROM VALUES (1, 'x'), (2, 'y') AS t(n, s)", ""),
        ("SELECT * FROM a UNION ALL SELECT * FROM b ORDER BY x, y", "a b"),
        ("SELECT 'FROM x', \"JOIN y\" FROM a -- FROM z\n/* FROM /* nested */ q */", "a"),
        ("SELECT sum(x) OVER (PARTITION BY y ORDER BY z) FROM a GROUP BY x, y", "a"),
        (r"SELECT 'it\'s', 'it''s', r'\' FROM a;", "a"),
    ],
)  # fmt: skip
def test_tables_are_found(sql: str, tables: str) -> None:
    query = read_query(sql)
    assert query.flaws == ()
    assert " ".join(token.text for token in query.tables) == tables


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("", "there is no query"),
        ("-- only a comment", "there is no query"),
        ("SELECT (a]", "nothing was opened that ']' closes"),
        ("SELECT a) FROM b", "nothing was opened that ')' closes"),
        ("SELECT `a FROM b", "identifier in backticks does not end"),
        ("SELECT a /* FROM b", "this comment does not end"),
        ("SELECT a, , b FROM c", "nothing stands between ',' and ','"),
        ("SELECT ‘a’ FROM b", "is not SQL"),
    ],
)
def test_what_is_surely_broken_is_told(sql: str, what: str) -> None:
    assert what in read_query(sql).flaws[0].what


@pytest.mark.parametrize(
    ("sql", "drops"),
    [
        ("SELECT * FROM a", False),
        ("SELECT a.*, 1 FROM a", False),
        ("SELECT _topic, _partition, _offset FROM a", False),
        ("SELECT lineage_range(a) AS _lineage FROM a", False),
        ("SELECT count(*) FROM a", True),
        ("SELECT x * 2 AS y, _topic FROM a", True),
    ],
)
def test_a_query_that_drops_lineage_is_known(sql: str, drops: bool) -> None:
    assert read_query(sql).drops_lineage is drops


@pytest.mark.parametrize(
    ("predicate", "columns"),
    [
        ("amount > 0", "amount"),
        ("a is not null and not (b or c)", "a b c"),
        ("a BETWEEN 1 AND b + 2 OR c NOT BETWEEN 1 AND 2", "a b c"),
        ("a NOT IN (1, 2) AND b LIKE 'x%' ESCAPE '!' AND c RLIKE 'y'", "a b c"),
        ("CASE WHEN a > 1 THEN b ELSE c END = 'x'", "a b c"),
        ("cast(a AS decimal(10,2)) > 0 AND b::int = 1", "a b"),
        ("ordered_at > current_timestamp - INTERVAL 5 MINUTES", "ordered_at"),
        ("d >= DATE '2026-01-01' AND t < timestamp '2026-01-01'", "d t"),
        ("items[0].price > 1 AND m['k'] = X'1F'", "items m"),
        ("exists(items, i -> i.price > limit) AND aggregate(xs, 0, (a, x) -> a + x) > 1", "items limit xs"),
        ("a <=> NULL AND b IS DISTINCT FROM c", "a b c"),
        ("`odd name` = 1 AND coalesce(a, b, true)", "odd name a b"),
        ("extract(year FROM t) = 2026", ""),
        ("a % 2 = 0 AND -b < ~c", "a b c"),
        ("date > '2020' AND end > 1 AND order = 2 AND when = 3", "date end order when"),
        ("count(*) OVER () > 1", ""),
        ("a:['b'] = 1 AND c:d.e[0]::int = 2", "a c"),
        ("like = 'x' AND between > 1", "like between"),
        ("count(a.*) > 1 AND b.c > 2", "b"),
        ("to_json(struct(a x, b AS y, c)) = '{}'", "a b c"),
        ("trim(s) = substring(t, 1, 2) AND datediff(DAY, d, e) > 1 AND date_add(f, 1) > g", "s t d e f g"),
        ("substring(s FROM 2 FOR 3) = u AND timestampadd(MINUTE, 5, a) > b", "u a b"),
    ],
)
def test_predicates_are_read_with_their_columns(predicate: str, columns: str) -> None:
    read = read_predicate(predicate)
    assert read.flaws == ()
    assert " ".join(token.text for token in read.columns) == columns


@pytest.mark.parametrize(
    ("predicate", "what", "position"),
    [
        ("", "the predicate is empty", 0),
        ("> 0", "a value is missing at the beginning", 0),
        ("amount >", "a value is missing after '>'", 8),
        ("amount > > 0", "a value is missing after '>'", 9),
        ("amount 0", "no operator stands between 'amount' and '0'", 7),
        ("a AND", "a value is missing after 'AND'", 5),
        ("a && b", "&& is not an operator of SQL", 3),
        ("a IS", "NULL or TRUE or FALSE or UNKNOWN is missing", 4),
        ("a BETWEEN 1", "AND is missing after '1'", 11),
        ("a IN 1", "'(' is missing after 'IN'", 5),
        ("a IN ()", "a value is missing after '('", 6),
        ("a NOT 1", "is missing after 'NOT'", 6),
        ("(a > 1", "'(' is never closed", 0),
        ("a > 1;", "a predicate ends without ;", 5),
        ("CASE WHEN a THEN b", "END is missing", 18),
        ("SELECT a FROM b", "not a query", 7),
        ("a IN (SELECT b FROM c)", "a value", 0),
        ("f(a b)", "no operator stands between 'a' and 'b'", 4),
        ("a = 'x", "text in quotes does not end", 4),
    ],
)
def test_predicates_that_do_not_parse_are_told_where(predicate: str, what: str, position: int) -> None:
    flaws = read_predicate(predicate).flaws
    if predicate == "a IN (SELECT b FROM c)":
        assert flaws, "a subquery is no condition on a row"
        return
    assert what in flaws[0].what
    assert flaws[0].position == position


def test_no_text_breaks_the_readers() -> None:
    pieces = [
        "a",
        "(",
        ")",
        "'",
        "`",
        "FROM",
        "SELECT",
        "AND",
        "CASE",
        "->",
        "[",
        "]",
        ",",
        ".",
        "::",
        "1",
        "/*",
        "\\",
        "=",
        ";",
    ]
    chance = random.Random(5)
    for _ in range(3000):
        text = " ".join(chance.choices(pieces, k=chance.randrange(12)))
        read_query(text)
        read_predicate(text)
        expand_lineage(text)
        try:
            parse_ddl(text)
        except BadType:
            pass


def test_deep_nesting_is_left_to_spark() -> None:
    assert read_predicate("(" * 500 + "a" + ")" * 500).flaws == ()


def test_lineage_of_a_join_is_exact_and_in_order() -> None:
    expanded = expand_lineage("SELECT lineage(o, `p q`) AS _lineage FROM o")
    assert expanded == (
        "SELECT array(struct(o._topic AS topic, o._partition AS partition, o._offset AS first, o._offset AS last), "
        "struct(`p q`._topic AS topic, `p q`._partition AS partition, `p q`._offset AS first, `p q`._offset AS last))"
        " AS _lineage FROM o"
    )


def test_lineage_functions_in_text_and_comments_are_left_alone() -> None:
    sql = "SELECT 'lineage(o)' AS lineage -- lineage(o)\nFROM o"
    assert expand_lineage(sql) == sql


def test_lineage_of_an_aggregate_has_bounds_for_each_input() -> None:
    expanded = expand_lineage("SELECT lineage_range(a, b) FROM a")
    assert expanded.count("collect_set") == 2 and "min(b._offset) AS first" in expanded


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("long", "BIGINT"),
        ("decimal", "DECIMAL(10,0)"),
        ("Numeric(12, 2)", "DECIMAL(12,2)"),
        ("array<map<string,array<int>>>", "ARRAY<MAP<STRING, ARRAY<INT>>>"),
        ("struct<a: int, b string not null>", "STRUCT<`a`: INT, `b`: STRING NOT NULL>"),
        ("varchar(20)", "VARCHAR(20)"),
    ],
)
def test_types_are_spelt_as_spark_does(written: str, spelt: str) -> None:
    assert parse_type(written) == spelt


@pytest.mark.parametrize(
    ("ddl", "what", "instead"),
    [
        ("a strng", "'strng' is not a type", "write string"),
        ("a datetime", "'datetime' is not a type", "write timestamp"),
        ("a", "a type is missing before the end", "STRING"),
        ("a int b int", "'b' does not belong to 'a'", "commas"),
        ("a int, A int", "'A' occurs twice", "rename"),
        ("a int,", "a field is missing", "remove the comma"),
        ("a decimal(2,10)", "not sizes", "decimal(10,2)"),
        ("a array", "'<' is missing", "ARRAY<STRING>"),
        ("a int not", "NULL is missing", "NOT NULL"),
        ("a varchar", "needs a length", "varchar(20)"),
        ("a int!", "'!' does not belong", "remove it"),
    ],
)
def test_schemas_that_are_none_are_told(ddl: str, what: str, instead: str) -> None:
    with pytest.raises(BadType) as bad:
        parse_ddl(ddl)
    assert what in bad.value.what and instead in bad.value.instead


@pytest.mark.parametrize(
    ("text", "span_ms"), [("10s", 10_000), ("1h30m", 5_400_000), ("10 minutes", 600_000), ("1 day 2 h", 93_600_000)]
)
def test_durations_are_read_and_written(text: str, span_ms: int) -> None:
    assert parse_duration_ms(text) == span_ms
    assert parse_duration_ms(format_duration(span_ms)) == span_ms


@pytest.mark.parametrize("text", ["", "10", "s", "10x", "5s 1h", "1s1s", "-1s", "400d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|longer than a year"):
        parse_duration_ms(text)
