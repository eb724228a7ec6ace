"""What is wrong with a bad file: where, what, and what to write instead."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.resources import files

import pytest
from small_pipeline import HEAD, NEXT_LINE

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.problems import nearest

Problems = Callable[..., list[str]]


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_a_good_file_has_no_problems(problems: Problems) -> None:
    assert problems(HEAD) == []


def test_all_problems_are_told_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    found = problems("nam: shop\nstorage: 5\nsources: []\nflows: {x: {zone: raw, from: y}}\n")
    assert [line.split(": ")[0] for line in found] == ["p.yaml:1:1", "p.yaml:2:10", "p.yaml:3:10", "p.yaml:4:30"]


@pytest.mark.parametrize(
    ("old", "new", "place", "what", "instead"),
    [
        ("format: json", "fromat: json", "6:5", "unknown key 'fromat'", "write format"),
        ("storage: lake", "storage:", "2:9", "'storage' is empty", "write text"),
        ("name: shop", "name: my shop", "1:7", "'my shop' is not a name", "write my_shop"),
        ("name: shop\n", "", "1:1", "the pipeline has no 'name'", "add 'name:'"),
        ("format: json", "format: jsno", "6:13", "format 'jsno' is not known", "write json"),
        ("format: json", "format: xml", "6:13", "format 'xml' is not known", "write one of json, avro"),
        ("topic: shop.orders", "topic: shop orders", "5:12", "'shop orders' is not the name of a topic", "use letters"),
        ("    topic: shop.orders\n", "", "5:5", "source 'orders' has no 'topic'", "add 'topic:'"),
        ("delay: 10m", "delay: 10", "11:44", "'10' is not a duration", "write a unit, such as 10s or 10m"),
        ("delay: 10m", "delay: 10 parsecs", "11:44", "'10 parsecs' is not a duration", "write 10s, 5m"),
        ("order_id: string", "order_id: strin", "8:17", "'strin' is not a type", "write string"),
        ("order_id: string", "order_id: uuid", "8:17", "'uuid' is not a type", "write string"),
        ("order_id: string", "_id: string", "8:7", "names with _ in front are Ottla's own", "name it id"),
        ("column: ordered_at", "column: orderd_at", "11:16", "'orderd_at' is not in the schema", "write ordered_at"),
        ("column: ordered_at", "column: amount", "11:16", "is of type DECIMAL(10,2)", "write ordered_at"),
        ("zone: staging", "zone: stagin", "13:18", "zone 'stagin' is not known", "write staging"),
        ("zone: staging", "zone: bronze", "13:18", "zone 'bronze' is not known", "write raw"),
        ("from: orders", "from: order", "13:33", "reads 'order', which is neither a source nor a flow", "write orders"),
        ("from: orders", "from: shop.orders", "13:33", "'shop.orders', which is neither", "write its source, orders"),
        ("staged: {", "st-aged: {", "13:3", "'st-aged' is not a name", "write st_aged"),
        ("name: shop", "name: shop\ntrigger: hourly", "2:10", "'hourly' is not a trigger", "write one of once"),
        ("name: shop", "name: shop\ntrigger: 10s", "2:10", "'10s' is not a trigger", "write 'every 10s'"),
        ("name: shop", "name: shop\ntrigger: continuous", "2:10", "is Spark's continuous processing", "write as-fast"),
        ("name: shop", "name: shop\ntrigger: real-time", "2:10", "is Spark's real-time mode", "write as-fast-as-poss"),
        ("name: shop", "name: shop\ntrigger: every 0s", "2:10", "the interval is 0", "write as-fast-as-possible"),
        ("name: shop", "name: shop\ntrigger: every hour", "2:10", "'hour' is not a duration", "write 'every 10s'"),
        ("name: shop", "name: shop\nbrokers: localhost", "2:10", "is not the address of a broker", "HOST:PORT"),
        ("format: json", "format: json\n    starting_offsets: early", "7:23", "not a starting offset", "earliest"),
        ("format: json", "format: json\n    starting_offsets: 2026-01-31", "7:23", "no time zone", "2026-01-31T00"),
        ("format: json", "format: json\n    schema_file: x.ddl", "7:5", "both 'schema' and 'schema_file'", "keep one"),
        ("format: json", "format: json\n    max_offsets_per_trigger: 0", "7:30", "is '0'", "a whole number above 0"),
        ("format: json", "format: avro", "7:5", "format avro needs its own schema language", "schema_file: file.avsc"),
        ("format: json", "format: string", "7:5", "format string has no schema", "remove it"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_its_place(
    problems: Problems, old: str, new: str, place: str, what: str, instead: str
) -> None:
    assert old in HEAD
    found = [line for line in problems(HEAD.replace(old, new)) if line.startswith(f"p.yaml:{place}: ")]
    assert any(what in line and instead in line.partition("; ")[2] for line in found), problems(HEAD.replace(old, new))


def test_a_misspelt_required_key_is_told_once(problems: Problems) -> None:
    assert (
        only(problems(HEAD.replace("topic:", "topc:")))
        == "p.yaml:5:5: source 'orders': unknown key 'topc'; write topic"
    )


def test_a_cycle_is_drawn_in_the_direction_of_rows(with_flows: Problems) -> None:
    found = with_flows(
        """\
        a: {zone: trusted, from: c}
        b: {zone: trusted, from: a}
        c: {zone: trusted, from: b}
        """
    )
    assert only(found).startswith(f"p.yaml:{NEXT_LINE}:28: rows would go around in a cycle: a -> b -> c -> a; ")


def test_what_stands_behind_a_cycle_is_not_blamed(with_flows: Problems) -> None:
    found = with_flows("z: {zone: trusted, from: a}\na: {zone: trusted, from: b}\nb: {zone: trusted, from: a}\n")
    assert "cycle: " in only(found) and "z" not in only(found).partition("cycle: ")[2].split(";")[0]


def test_long_chains_and_many_ways_are_no_burden(read: Callable[..., Declaration]) -> None:
    """Walks over the graph are neither recursive nor repeated: a ladder has 2^n ways up."""
    rungs = [
        f"  {side}{n}: {{zone: trusted, from: [l{n - 1}, r{n - 1}], sql: SELECT * FROM l{n - 1} JOIN r{n - 1}}}"
        for n in range(1, 40)
        for side in "lr"
    ]
    feet = ["  l0: {zone: trusted, from: staged}", "  r0: {zone: trusted, from: staged}"]
    chain = [
        "  c0: {zone: trusted, from: staged}",
        *(f"  c{n}: {{zone: trusted, from: c{n - 1}}}" for n in range(1, 1050)),
    ]
    declaration = read(HEAD + "\n".join([*feet, *rungs, *chain]))
    assert Graph(declaration).order[-1] == "c1049"


def test_a_flow_that_reads_itself_is_a_cycle(with_flows: Problems) -> None:
    assert "a -> a" in only(with_flows("a: {zone: trusted, from: a}\n"))


def test_writing_the_topic_one_stands_on_is_a_cycle(with_flows: Problems) -> None:
    found = with_flows("x: {zone: trusted, from: staged, to: {topic: shop.orders}}\n")
    assert "orders -> x -> topic shop.orders -> orders" in only(found)


@pytest.mark.parametrize(
    ("flow", "what", "instead"),
    [
        ("{zone: trusted, from: orders}", "reads the source 'orders'", "decode it in a flow of zone staging"),
        ("{zone: refined, from: staged}", "reads 'staged' of zone staging", "put a flow of zone trusted in between"),
        ("{zone: raw, from: staged}", "reads 'staged' of zone staging", "raw keeps what a source gave"),
        ("{zone: raw, from: orders, deduplicate: order_id}", "has 'deduplicate'", "raw keeps bytes as received"),
        ("{zone: staging, from: [orders, staged]}", "decodes 'orders' and reads other inputs", "add sql: or python:"),
        ("{zone: staging, from: orders, kind: view}", "of kind view", "what is rejected must be stored"),
        ("{zone: staging, from: staged, deduplicate: order_id}", "has 'deduplicate'", "zone trusted"),
        ("{zone: trusted, from: staged, deduplicate: orderid}", "names 'orderid'", "write order_id"),
        ("{zone: trusted, from: staged, kind: view, to: {table: t}}", "is a view and has 'to'", "kind: table"),
        ("{zone: trusted, from: staged, to: {tabel: t}}", "neither 'table' nor 'topic'", "add table: NAME"),
        ("{zone: trusted, from: staged, to: {table: t, topic: u}}", "not both", "make two sinks"),
        ("{zone: trusted, from: staged, to: {table: t, partition_by: week(ordered_at)}}", "by 'week'", "write"),
        ("{zone: trusted, from: staged, to: {table: t, partition_by: day(orderd_at)}}", "'orderd_at'", "ordered_at"),
        ("{zone: trusted, from: staged, to: {topic: t, key: id}}", "key names 'id'", "write"),
        ("{zone: trusted, from: staged, to: {topic: t, format: string}}", "exactly one column", "add value: COLUMN"),
        ("{zone: trusted, from: staged, to: {topic: t, format: avro}}", "has no schema", "add schema_file"),
        ("{zone: trusted, from: staged, to: {topic: t, framing: confluent}}", "has no schema id", "add schema_id:"),
        ("{zone: trusted, from: staged, to: {topic: t, schema_id: 7}}", "with framing: confluent only", "add it"),
        ("{zone: trusted, from: staged, to: {topic: t, framing: confluent, schema_id: -1}}", "'-1' is no", "from 0 to"),
        (
            "{zone: trusted, from: staged, to: {topic: t, format: string, value: order_id, framing: confluent}}",
            "format string has no schema",
            "remove it",
        ),
        ("{zone: trusted, from: staged, to: {table: t, format: parquet, keys: order_id}}", "Parquet", "format: delta"),
        ("{zone: trusted, from: staged, emit: changes}", "changes to a table without keys", "add keys:"),
        ("{zone: trusted, from: staged, to: {table: t, sequence_by: amount}}", "a table with keys", "add keys: COLUMN"),
        ("{zone: trusted, from: staged, to: {table: t, history: true}}", "a table with keys", "add keys: COLUMN"),
        ("{zone: trusted, from: staged, to: {table: t, keys: order_id, sequence_by: amuont}}", "'amuont'", "amount"),
        (
            "{zone: trusted, from: staged, to: {table: t, keys: order_id, delete_when: amuont < 0}}",
            "'amuont'",
            "amount",
        ),
        (
            "{zone: trusted, from: staged, to: {table: t, keys: order_id, delete_when: amount <}}",
            "delete_when does not parse",
            "write a column",
        ),
        (
            "{zone: trusted, from: staged, to: {table: t, keys: order_id, tombstone_retention: 1d}}",
            "no row is deleted",
            "add delete_when:",
        ),
        (
            "{zone: trusted, from: staged, emit: changes, to: {table: t, keys: order_id, history: true}}",
            "no position of a record",
            "add sequence_by: COLUMN",
        ),
        ("{zone: trusted, from: staged, append_to: nope}", "'nope', which is not a flow", "declare that flow first"),
        ("{zone: trusted, from: staged, append_to: staged}", "of zone trusted appends to 'staged'", "zone: staging"),
        ("{zone: trusted, from: staged, quarantine: {}}", "one table or one topic", "write table: NAME"),
        ("{zone: trusted, from: staged, python: steps.py}", "'steps.py' names no function", "module:function"),
        ("{zone: trusted, from: staged, version: one}", "'version' is 'one'", "a whole number"),
        ("{zone: trusted, from: 7}", "'from' is '7'", "put it in quotes"),
        ("{zone: trusted, from: [staged, staged]}", "in 'from' twice", "remove one"),
        ("[zone, trusted]", "flow 'x' is a list", "write a mapping with the keys zone, from"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(with_flows: Problems, flow: str, what: str, instead: str) -> None:
    found = with_flows(f"x: {flow}\n")
    assert any(what in line and instead in line.partition("; ")[2] for line in found), found


def test_inputs_without_a_step_need_one(with_flows: Problems) -> None:
    found = with_flows(
        "a: {zone: trusted, from: staged}\nx: {zone: refined, from: [a, b]}\nb: {zone: trusted, from: staged}"
    )
    assert "reads 2 inputs and does not say what to do with them; add sql: or python:" in only(found)


def test_a_name_is_taken_whatever_its_capitals(with_flows: Problems) -> None:
    found = with_flows("Orders: {zone: trusted, from: staged}\n")
    assert "'Orders' is also the name of the source in line 4; rename one" in only(found)


def test_two_flows_of_one_name_are_told_with_the_first_ones_line(with_flows: Problems) -> None:
    found = with_flows("staged: {zone: staging, from: orders}\n")
    assert only(found) == (
        f"p.yaml:{NEXT_LINE}:3: 'staged' is written twice, first in line {NEXT_LINE - 1}; remove one or rename it"
    )


def test_two_flows_with_one_table_are_told_of_append(with_flows: Problems) -> None:
    found = with_flows("a: {zone: trusted, from: staged}\nb: {zone: trusted, from: staged, to: {table: a}}\n")
    assert "the table 'a' is already written by flow 'a'; rename it, or write append_to: a" in only(found)


def test_a_flow_may_append_to_anothers_table(with_flows: Problems) -> None:
    assert with_flows("a: {zone: trusted, from: staged}\nb: {zone: trusted, from: staged, append_to: a}\n") == []


def test_a_flow_that_is_only_a_topic_cannot_be_read(with_flows: Problems) -> None:
    found = with_flows("a: {zone: trusted, from: staged, to: {topic: t}}\nb: {zone: refined, from: a}\n")
    assert "written to a topic only; add '- table: a' to its 'to'" in only(found)


def test_a_source_that_nobody_reads_is_told(problems: Problems) -> None:
    text = HEAD.replace("flows:", "  idle: {topic: t, format: bytes}\nflows:")
    assert "source 'idle' is read by no flow" in only(problems(text))


def test_duplicates_cannot_be_dropped_without_a_watermark(problems: Problems) -> None:
    start, end = HEAD.index("    watermark"), HEAD.index("flows:")
    found = problems(HEAD[:start] + HEAD[end:] + "  x: {zone: trusted, from: staged, deduplicate: order_id}\n")
    assert "remember every row for ever; add watermark: to the source" in only(found)


def test_an_aggregate_without_a_watermark_is_never_final(problems: Problems) -> None:
    start, end = HEAD.index("    watermark"), HEAD.index("flows:")
    sql = "SELECT count(*) AS n, lineage_range() AS _lineage FROM staged GROUP BY 1"
    found = problems(HEAD[:start] + HEAD[end:] + f"  x: {{zone: trusted, from: staged, sql: '{sql}'}}\n")
    assert "so nothing is ever final" in only(found) and "or write emit: changes" in only(found)


def test_session_windows_do_not_emit_changes(with_flows: Problems) -> None:
    found = with_flows(
        """\
        x:
          zone: trusted
          from: staged
          emit: changes
          to: {topic: t, key: n}
          sql: |
            SELECT count(*) AS n, lineage_range() AS _lineage
            FROM staged GROUP BY session_window(ordered_at, '5 minutes')
        """
    )
    assert "session windows, which Spark gives once only; write emit: final" in only(found)


def test_an_expectation_that_does_not_parse_is_told_where(with_flows: Problems) -> None:
    found = with_flows(
        """\
        x:
          zone: trusted
          from: staged
          expect:
            - name: paid
              that: amount >
        """
    )
    told = "the expectation 'paid' does not parse: a value is missing after '>'; write a column or a value there"
    assert only(found) == f"p.yaml:{NEXT_LINE + 5}:23: {told}"


def test_an_expectation_knows_the_columns_of_a_schema(with_flows: Problems) -> None:
    found = with_flows("x: {zone: trusted, from: staged, expect: {name: paid, that: amuont > 0 AND _offset >= 0}}\n")
    assert "asks for 'amuont', which is not a column of the rows; write amount" in only(found)


def test_behind_a_query_columns_are_not_guessed(with_flows: Problems) -> None:
    flow = """\
        x:
          zone: trusted
          from: staged
          sql: SELECT amount * 2 AS twice, _topic, _partition, _offset FROM staged
          expect: {name: paid, that: twice > 0}
        """
    assert with_flows(flow) == []


@pytest.mark.parametrize(
    ("sql", "place", "what", "instead"),
    [
        ("SELECT * FROM stagd", (4, 19), "'stagd', which is none of its inputs", "write staged"),
        ("SELECT * FROM orders", (4, 19), "'orders', which is not in its 'from'", "add orders to 'from'"),
        ("SELECT * FROM previous", (4, 19), "there is no step before", "read a name from 'from'"),
        ("SELECT count(* FROM staged", (4, 17), "'(' is never closed", "close it with ')'"),
        ("SELECT 'a FROM staged", (4, 12), "text in quotes does not end", "close it with '"),
        ("SELECT * FROM staged WHERE", (4, 26), "the query ends after 'WHERE'", "finish it"),
        ("DELETE FROM staged", (4, 5), "none begins with 'DELETE'", "begin with SELECT"),
        ("SELECT * FROM staged; DROP TABLE x", (4, 25), "a second statement", "a step of its own"),
        ("SELECT amount FROM staged", (3, 8), "cannot be traced", "select _topic, _partition, _offset"),
        ("SELECT lineage(1) AS _lineage FROM staged", (4, 12), "takes names of tables", "lineage(orders)"),
    ],
)  # fmt: skip
def test_sql_that_is_surely_wrong_is_refused(
    with_flows: Problems, sql: str, place: tuple[int, int], what: str, instead: str
) -> None:
    found = with_flows(f"x:\n  zone: trusted\n  from: staged\n  sql: |\n    {sql}\n")
    line, column = place
    wanted = f"p.yaml:{NEXT_LINE + line}:{column + 2}: "
    assert any(one.startswith(wanted) and what in one and instead in one.partition("; ")[2] for one in found), found


def test_an_input_that_no_step_reads_is_told(with_flows: Problems) -> None:
    found = with_flows(
        """\
        a: {zone: trusted, from: staged}
        x: {zone: trusted, from: [staged, a], sql: SELECT * FROM staged}
        """
    )
    assert "names 'a' in 'from' and never reads it" in only(found)


def test_a_flow_without_a_zone_gives_one_problem(with_flows: Problems) -> None:
    assert "has no 'zone'" in only(with_flows("x: {from: staged, expect: {name: n, that: amount > 0}}\n"))


def test_a_schema_file_that_is_not_there_is_told(problems: Problems) -> None:
    text = HEAD.replace("format: json", "format: avro\n    schema_file: nope.avsc")
    text = text[: text.index("    schema:\n")] + text[text.index("    watermark") :]
    assert "nope.avsc cannot be read: No such file or directory" in only(problems(text))
    assert "an Avro schema of a topic is a record" in only(problems(text, {"nope.avsc": b'"string"'}))


@pytest.mark.parametrize(
    ("framing", "column", "what", "instead"),
    [
        ("confluent", 14, "which schema ids are known", "write framing: {confluent: [1, 2]}"),
        ("{confluent: []}", 14, "which schema ids are known", "or {confluent: any_id}"),
        ("{confluent: any}", 14, "which schema ids are known", "or {confluent: any_id}"),
        ("{confluent: [x]}", 27, "'x' is not a schema id", "from 0 to 2147483647"),
        ("{confluent: [2147483648]}", 27, "'2147483648' is not a schema id", "from 0 to 2147483647"),
        ("{confluent: [1, 01]}", 30, "'01' is not a schema id, or occurs twice", "each id once"),
        ("{confluent: {1: a.ddl}}", 30, "format json needs no schema for an id", "write framing: {confluent: [1]}"),
    ],
)
def test_framing_without_usable_schema_ids_is_refused(
    problems: Problems, framing: str, column: int, what: str, instead: str
) -> None:
    found = only(problems(HEAD.replace("format: json", f"format: json\n    framing: {framing}")))
    assert found.startswith(f"p.yaml:7:{column}: source 'orders': ") and what in found
    assert instead in found.partition("; ")[2]


def test_framing_of_a_format_without_a_schema_is_refused(problems: Problems) -> None:
    text = HEAD.replace("format: json", "format: bytes\n    framing: {confluent: any_id}")
    assert any("'orders': format bytes is not decoded by a schema" in line for line in problems(text))


def test_schema_file_of_a_schema_id_is_checked_as_that_of_the_source(problems: Problems) -> None:
    text = HEAD.replace("format: json", "format: avro\n    schema_file: a.avsc\n    framing: {confluent: {3: b.avsc}}")
    text = text[: text.index("    schema:\n")] + text[text.index("    watermark") :]
    good = {"a.avsc": b'{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'}
    assert "p.yaml:8:30: source 'orders': b.avsc cannot be read" in only(problems(text, good))
    assert "an Avro schema of a topic is a record" in only(problems(text, {**good, "b.avsc": b'"string"'}))
    assert "not a schema of format avro; name a file that ends in .avsc" in only(
        problems(text.replace("b.avsc", "b.x"), good)
    )


def test_nearest_does_not_guess_wildly() -> None:
    assert nearest("deduplicte", ["deduplicate", "to"]) == "deduplicate"
    assert nearest("x", ["deduplicate", "to"]) is None


def test_no_mutation_of_a_file_breaks_the_checks(problems: Problems) -> None:
    """Whatever is wrong, the answer is a list of problems, each on a line that exists."""
    shop = (files("ottla.pipeline") / "templates" / "shop.yaml").read_text().splitlines()
    words = ["orders", "[]", "{}", "raw", "null", "7", "true", "from", "zone", "- x", "previous", "''", "paid_orders"]
    chance = random.Random(23)
    for _ in range(60):
        lines = list(shop)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(lines))
            key, colon, _ = lines[at].partition(":")
            lines[at] = chance.choice(["", f"{key}{colon} {chance.choice(words)}", lines[chance.randrange(len(lines))]])
        for told in problems("\n".join(lines)):
            assert 1 <= int(told.split(":")[1]) <= len(lines) + 1
