"""A pipeline at work: every zone exact, bad rows aside with their causes, failures kept apart, the past made again."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from deltalake import DeltaTable
from random_topic import consume
from shop_pipeline import NOON, order, produce, rows, write_shop

from ottla.client.cluster import Cluster
from ottla.model.types import TopicPartition
from ottla.pipeline import Pipeline, load, merging
from ottla.pipeline.analysis import analyse
from ottla.pipeline.backfill import Backfill, Range
from ottla.pipeline.flow_record import read_checkpoint
from ottla.pipeline.flow_runs import Restarts
from ottla.pipeline.layout import Layout
from ottla.pipeline.load import read_beside
from ottla.pipeline.run import Supervisor
from ottla.pipeline.start_plan import plan_start
from ottla.pipeline.status import FlowStatus, RunStatus, StatusFiles
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_FIRST = (
    order("o1", 0),
    order("o2", 0.5),
    order("o1", 0),
    b"{no json",
    b"\xff\xfe\x00",
    None,
    order("o3", 1, amount="much"),
    order(None, 1),
    order("o4", 1, amount=-1),
    order("o5", 1, amount=99),
    order("o6", 2, currency="XXX"),
    order("o7", 30, currency="CZK"),
)
_SECOND = (
    order("late", 5),
    order("o7", 30, currency="CZK"),
    order("o8", 31),
    order("o9", 60, amount=2000),
)


@dataclass
class Shop:
    directory: Path
    topic: str
    brokers: str
    first: RunStatus
    second: RunStatus

    def rows(self, table: str) -> list[dict[str, object]]:
        return rows(self.directory, table)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop that has run twice, with records in between."""
    directory, topic = tmp_path_factory.mktemp("shop"), "pipeline-orders"
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic(topic, 2, {})
    file = write_shop(directory, broker.bootstrap, topic)
    file.write_text(f"{file.read_text()}openlineage: {{file: lineage.jsonl}}\n")
    declaration = load(str(file))
    produce(broker.bootstrap, topic, *_FIRST)
    first = Supervisor(declaration, spark).run()
    produce(broker.bootstrap, topic, *_SECOND)
    second = Supervisor(declaration, spark).run()
    return Shop(directory, topic, broker.bootstrap, first, second)


def flow(status: RunStatus, name: str) -> FlowStatus:
    return next(one for one in status.flows if one.name == name)


def test_every_zone_has_exactly_its_rows_after_two_runs(shop: Shop) -> None:
    assert [row["value"] for row in shop.rows("raw/orders_raw")] == [*_FIRST, *_SECOND]
    assert [row["order_id"] for row in shop.rows("staging/orders_staged")] == [
        "o1", "o2", "o1", None, "o4", "o5", "o6", "o7", "late", "o7", "o8", "o9",
    ]  # fmt: skip
    trusted = shop.rows("trusted/orders")
    assert [row["order_id"] for row in trusted] == ["o1", "o2", "o6", "o7", "o8", "o9"]
    assert [row["_offset"] for row in trusted] == [0, 1, 10, 11, 14, 15]
    assert {row["_day_ordered_at"] for row in trusted} == {NOON.date()}
    assert {one.name: one.restarts for one in shop.second.flows if one.restarts} == {}
    counts = {one.name: (one.rows_in, one.rows) for one in shop.first.flows}
    assert counts["orders_raw"] == (12, 12)
    assert counts["orders_staged"] == (12, 8)
    assert counts["orders_trusted"] == (8, 4)


def test_windows_are_there_once_each_when_they_are_final_with_the_records_they_come_from(shop: Shop) -> None:
    found = {(row["minute"], row["currency"]): row for row in shop.rows("refined/revenue")}
    assert {key: row["revenue"] for key, row in found.items()} == {
        (NOON, "EUR"): Decimal("20.00"),
        (NOON + timedelta(minutes=2), "XXX"): Decimal("10.00"),
        (NOON + timedelta(minutes=30), "CZK"): Decimal("10.00"),
        (NOON + timedelta(minutes=31), "EUR"): Decimal("10.00"),
    }
    assert found[NOON, "EUR"]["_lineage"] == [{"topic": shop.topic, "partition": 0, "first": 0, "last": 1}]
    records = consume(shop.brokers, f"{shop.topic}.revenue", 1, committed=True)
    assert sorted(json.loads(record.value or b"")["revenue"] for record in records) == [10.0, 10.0, 10.0, 20.0]
    headers = dict(records[0].headers)
    assert json.loads(headers["_lineage"] or b"")[0]["topic"] == shop.topic


def test_what_cannot_be_decoded_or_is_not_right_lies_in_quarantine_with_its_cause(shop: Shop) -> None:
    undecoded = shop.rows("quarantine/orders_staged_quarantine")
    assert [(row["_offset"], row["value"]) for row in undecoded] == [
        (3, b"{no json"), (4, b"\xff\xfe\x00"), (5, None), (6, _FIRST[6]),
    ]  # fmt: skip
    assert [row["_cause"] for row in undecoded] == ["not JSON", "not JSON", "null value", "type mismatch"]
    assert {(row["_topic"], row["_partition"], row["key"]) for row in undecoded} == {(shop.topic, 0, b"k")}
    wrong = shop.rows("quarantine/orders_trusted_quarantine")
    assert [(row["_offset"], row["_cause"]) for row in wrong] == [
        (7, "order has an id"),
        (8, "amount is positive"),
    ]
    assert json.loads(str(wrong[1]["row"]))["order_id"] == "o4"
    trusted = flow(shop.first, "orders_trusted")
    assert (trusted.quarantined, trusted.dropped) == (2, 1)
    assert trusted.violations == {
        "order has an id": 1, "amount is positive": 1, "order is not free": 1, "currency is known": 1,
    }  # fmt: skip


def test_late_rows_go_to_their_topic_and_nowhere_else(shop: Shop) -> None:
    late = consume(shop.brokers, f"{shop.topic}.late", 1, committed=True)
    assert [json.loads(record.value or b"")["order_id"] for record in late] == ["late"]
    assert dict(late[0].headers)["_offset"] == b"12"
    assert (flow(shop.first, "orders_trusted").late, flow(shop.second, "orders_trusted").late) == (0, 1)


def test_flow_that_an_expectation_stops_harms_no_other(shop: Shop) -> None:
    strict = flow(shop.second, "strict")
    assert (strict.state, strict.restarts) == ("failed", 0)
    assert "nothing is dear" in str(strict.error) and f"{shop.topic} 0 15" in str(strict.error)
    assert {one.state for one in shop.second.flows if one is not strict} == {"done"}
    # Nothing of the batch was written.
    assert len(shop.rows("trusted/strict")) == 8


def test_status_of_the_last_run_stays(shop: Shop) -> None:
    layout = Layout.of(load(str(shop.directory / "shop.yaml")))
    status = StatusFiles(layout).read()
    assert status is not None and status.state == "ended"
    assert flow(status, "orders_raw").rows == 4


def test_plan_knows_which_flows_and_operators_wrote_the_checkpoints(shop: Shop) -> None:
    file = shop.directory / "shop.yaml"
    declaration = load(str(file))
    layout = Layout.of(declaration)
    assert {one.plan for one in plan_start(declaration).decisions} == {"unchanged"}
    operators = {
        name: read_checkpoint(layout.checkpoint(declaration.flows[name])).operators for name in declaration.flows
    }
    assert operators["revenue"] == ("stateStoreSave",)
    assert operators["orders_trusted"] == ("dedupeWithinWatermark",)
    assert operators["orders_staged"] == ()
    edited = shop.directory / "edited.yaml"
    edited.write_text(file.read_text().replace("'1 minute'", "'5 minutes'").replace("amount > 0", "amount > 1"))
    plans = {one.flow: one.plan for one in plan_start(load(str(edited))).decisions}
    assert (plans["revenue"], plans["orders_trusted"]) == ("needs a new checkpoint", "keeps state")


def test_events_of_openlineage_tell_what_each_flow_has_read_and_written(shop: Shop) -> None:
    runs = {str(UUID(one.run)) for one in (shop.first, shop.second)}
    written = map(json.loads, (shop.directory / "lineage.jsonl").read_text().splitlines())
    events = [one for one in written if one["run"]["facets"].get("parent", one)["run"]["runId"] in runs]
    kinds = Counter((event["job"]["name"], event["eventType"]) for event in events)
    for name in ("shop.orders_raw", "shop.orders_staged", "shop.orders_trusted", "shop.revenue"):
        # A flow that was restarted has a FAIL and one more START.
        assert kinds[name, "COMPLETE"] == 2 and kinds[name, "START"] == 2 + kinds[name, "FAIL"]
    assert kinds["shop.strict", "FAIL"] >= 1 and (kinds["shop", "START"], kinds["shop", "FAIL"]) == (2, 1)
    last = [event for event in events if event["job"]["name"] == "shop.revenue"][-1]
    assert [one["name"] for one in last["inputs"]] == [str(shop.directory / "lake" / "trusted" / "orders")]
    table, topic = last["outputs"]
    assert (topic["namespace"], topic["name"]) == (f"kafka://{shop.brokers}", f"{shop.topic}.revenue")
    assert {"name": "revenue", "type": "decimal(20,2)"} in table["facets"]["schema"]["fields"]
    assert "revenue" in table["facets"]["columnLineage"]["fields"]
    assert last["eventType"] == "COMPLETE" and "rowCount" in table["outputFacets"]["outputStatistics"]


def test_progress_is_that_of_a_consumer_group(shop: Shop, cluster: Cluster) -> None:
    partition = TopicPartition(shop.topic, 0)
    assert cluster.committed("shop-orders_raw", [partition]) == {partition: 16}


def test_backfill_makes_what_the_stream_has_made_and_takes_late_rows_in(shop: Shop, spark: SparkSession) -> None:
    declaration = load(str(shop.directory / "shop.yaml"))
    tables = ("staging/orders_staged", "quarantine/orders_staged_quarantine", "quarantine/orders_trusted_quarantine")
    before = {table: shop.rows(table) for table in tables}
    trusted, revenue = shop.rows("trusted/orders"), shop.rows("refined/revenue")
    job = Backfill(declaration, spark, flows=["orders_staged"], origin="log")
    done = job.run()
    assert {one.table: one.rows for one in done} == {
        "orders_staged": 12, "orders_staged_quarantine": 4, "orders": 7, "orders_trusted_quarantine": 2, "revenue": 5,
    }  # fmt: skip
    assert job.left_out == {"strict"}
    assert {table: shop.rows(table) for table in tables} == before
    after = shop.rows("trusted/orders")
    assert [row for row in after if row["order_id"] != "late"] == trusted
    assert [row["_offset"] for row in after if row["order_id"] == "late"] == [12]
    late_window = [row for row in shop.rows("refined/revenue") if row not in revenue]
    assert [(row["minute"], row["revenue"]) for row in late_window] == [(NOON + timedelta(minutes=5), Decimal("10.00"))]
    assert len(shop.rows("raw/orders_raw")) == 16


def test_backfill_of_a_range_replaces_the_rows_in_it_and_no_others(shop: Shop, spark: SparkSession) -> None:
    DeltaTable(str(shop.directory / "lake/refined/revenue")).update(updates={"revenue": "0"})
    middle = NOON + timedelta(minutes=30)
    (done,) = Backfill(load(str(shop.directory / "shop.yaml")), spark, range=Range(middle), flows=["revenue"]).run()
    assert (done.rows, done.partitions) == (2, 1)
    revenue = {row["minute"]: row["revenue"] for row in shop.rows("refined/revenue")}
    assert {minute: amount for minute, amount in revenue.items() if amount} == {
        middle: Decimal("10.00"), middle + timedelta(minutes=1): Decimal("10.00"),
    }  # fmt: skip
    assert len(revenue) == 5


def test_flow_that_fails_is_started_again_and_a_run_goes_on_until_it_is_asked_to_end(
    spark: SparkSession, topic: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    live = Pipeline("live", storage=str(tmp_path / "lake"), brokers=broker.bootstrap, trigger="as-fast-as-possible")
    live.source("words", topic=topic, format="string")
    live.flow("staged", zone="staging", from_="words")
    failures: list[bool] = []

    @live.table(zone="trusted")
    def shaky(staged: DataFrame) -> DataFrame:
        if failures and failures.pop():
            raise ConnectionError("try me again")
        return staged

    count = "SELECT value, count(*) AS n, lineage_range() AS _lineage FROM shaky GROUP BY value"
    keyed = {"table": "counted", "keys": "value"}
    live.flow("counted", zone="refined", from_="shaky", sql=count, emit="changes", to=keyed)
    often = "SELECT * FROM counted WHERE n > 1"
    live.flow("often", zone="refined", from_="counted", kind="materialized_view", sql=often)
    declaration = live.declaration(read_beside(__file__))
    files = StatusFiles(Layout.of(declaration))
    more = [b"one"]

    def go_on(status: RunStatus) -> None:
        if flow(status, "counted").rows == 2 and more:
            produce(broker.bootstrap, topic, more.pop())
        if rows(tmp_path, "refined/often"):
            files.ask_to_stop(status.run)

    produce(broker.bootstrap, topic, b"one", b"two")
    supervisor = Supervisor(declaration, spark, restarts=Restarts(first_s=0.1), show=go_on)
    failures.append(True)
    status = supervisor.run()
    assert [one.state for one in status.flows] == ["stopped"] * 4
    assert flow(status, "shaky").restarts == 1
    assert "try me again" in str(flow(status, "shaky").error)
    assert [row["value"] for row in rows(tmp_path, "trusted/shaky")] == ["one", "two", "one"]
    counted = rows(tmp_path, "refined/counted")
    assert [(row["value"], row["n"]) for row in counted] == [("one", 2), ("two", 1)]
    assert [(row["value"], row["_lineage"][0]["last"]) for row in rows(tmp_path, "refined/often")] == [("one", 2)]
    assert not spark.streams.active


KEYED = """
name: keyed
brokers: {brokers}
storage: ./lake
sources:
  records:
    topic: {topic}
    format: json
    schema: {{id: string, version: int, tags: [string], gone: boolean}}
    max_offsets_per_trigger: 4
flows:
  accounts:
    zone: staging
    from: records
    to: {{table: accounts, keys: id, sequence_by: version, delete_when: gone}}
  versions:
    zone: staging
    from: records
    to: {{table: versions, keys: id, sequence_by: version, delete_when: gone, history: true}}
  changes: {{zone: trusted, from: accounts}}
  current: {{zone: trusted, kind: materialized_view, from: accounts}}
"""


def test_keyed_tables_keep_the_newest_row_and_their_readers_get_changes_only(
    spark: SparkSession, topic: str, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*records: tuple[str, int, bool]) -> None:
        values = [{"id": key, "version": version, "tags": [key], "gone": gone} for key, version, gone in records]
        produce(broker.bootstrap, topic, *(json.dumps(value).encode() for value in values))

    file = tmp_path / "keyed.yaml"
    file.write_text(KEYED.format(brokers=broker.bootstrap, topic=topic))
    declaration = load(str(file))
    send(("a", 1, False), ("b", 5, False), ("c", 1, False))
    assert {one.state for one in Supervisor(declaration, spark).run().flows} == {"done"}
    # The driver has died after the commit of the table: Spark repeats the batch.
    (tmp_path / "lake/_checkpoints/keyed/accounts-v1/commits/0").unlink()
    # The next batches search for the files that have their keys, as they do in large tables.
    monkeypatch.setattr(merging, "SMALL_BYTES", 0)
    send(("a", 2, False), ("b", 4, False), ("c", 3, True), ("d", 1, False))
    # Another batch: a record that is older than the delete of its key.
    send(("c", 2, False))
    assert {one.state for one in Supervisor(declaration, spark).run().flows} == {"done"}
    accounts = DeltaTable(str(tmp_path / "lake/staging/accounts")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["version"], row["tags"]) for row in accounts) == [
        ("a", 2, ["a"]), ("b", 5, ["b"]), ("d", 1, ["d"]),
    ]  # fmt: skip
    changes = DeltaTable(str(tmp_path / "lake/trusted/changes")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["version"], row["_change_type"]) for row in changes) == [
        ("a", 1, "insert"), ("a", 2, "update_postimage"), ("b", 5, "insert"), ("c", 1, "delete"), ("c", 1, "insert"),
        ("d", 1, "insert"),
    ]  # fmt: skip
    current = DeltaTable(str(tmp_path / "lake/trusted/current")).to_pyarrow_table().to_pylist()
    # A materialized view reads the table, not its changes: the row with the deleted key c is not there.
    assert sorted((row["id"], row["version"], row["_change_type"]) for row in current) == [
        ("a", 2, "insert"), ("b", 5, "insert"), ("d", 1, "insert"),
    ]  # fmt: skip
    versions = DeltaTable(str(tmp_path / "lake/staging/versions")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["valid_from"], row["valid_to"] or 0, row["is_current"]) for row in versions) == [
        ("a", 1, 2, False), ("a", 2, 0, True), ("b", 4, 5, False), ("b", 5, 0, True), ("c", 1, 2, False),
        ("c", 2, 3, False), ("d", 1, 0, True),
    ]  # fmt: skip


def test_spark_finds_what_is_wrong_with_queries_and_says_where(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        textwrap.dedent("""\
            name: bad
            storage: lake
            sources:
              orders:
                topic: t
                format: json
                schema: "order_id STRING, amount DECIMAL(10,2), at TIMESTAMP"
                watermark: {column: at, delay: 10m}
            flows:
              staged: {zone: staging, from: orders}
              trusted:
                zone: trusted
                from: staged
                expect: [{name: e, that: "length(amont) > 1"}]
                sql: SELECT *, length(order_id) AS amont FROM staged
              typo:
                zone: refined
                from: trusted
                sql: |
                  SELECT lineage(t) AS _lineage,
                         amuont
                  FROM trusted t
              behind: {zone: refined, from: typo}
              types:
                zone: refined
                from: trusted
                sql: |
                  SELECT *
                  FROM trusted
                  WHERE date_add(at, array(1)) IS NOT NULL
              never:
                zone: refined
                from: trusted
                sql: |
                  SELECT order_id, count(*) AS n, lineage_range() AS _lineage FROM trusted GROUP BY order_id
              expects: {zone: refined, from: trusted, expect: [{name: e, that: "nosuch(amount) > 1"}]}
            """)
    )
    problems = [str(problem).removeprefix(f"{tmp_path}/") for problem in analyse(load(str(file)), spark)]
    assert [problem.partition(": ")[0] for problem in problems] == [
        "bad.yaml:21:14",
        "bad.yaml:30:13",
        "bad.yaml:34:10",
        "bad.yaml:36:68",
    ]
    assert "`amuont` cannot be resolved" in problems[0] and "write one of amont, amount" in problems[0]
    assert "date_add(at, array(1))" in problems[1]
    assert "watermark" in problems[2]
    assert "nosuch" in problems[3]
