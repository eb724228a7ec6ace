"""Every example of docs/guides/operators.md, as it is: records in, one run, exactly these records out."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from random_topic import Row, consume

from ottla.client.cluster import Cluster
from ottla.pipeline import Pipeline, load
from ottla.pipeline.analysis import analyse
from ottla.pipeline.declaration import Declaration, Flow, TopicSink
from ottla.pipeline.exactly_once import read_watermark
from ottla.pipeline.graph import Graph
from ottla.pipeline.load import read_beside
from ottla.pipeline.plan import Planner, Work
from ottla.pipeline.run import Supervisor
from ottla.pipeline.status import RunStatus
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "operators"
_PAGE = _EXAMPLES.parents[1] / "docs" / "guides" / "operators.md"

Record = tuple[bytes | None, Any]


def order(order_id: str, customer: str, country: str, amount: int, time: str) -> Record:
    fields = {"order_id": order_id, "customer": customer, "country": country, "amount": amount, "ordered_at": at(time)}
    return f"order {order_id}".encode(), fields


def at(time: str) -> str:
    return f"2026-01-01T{time}.000Z"


_ORDERS = (
    order("o1", "anna", "CZ", 250, "12:00:10"),
    order("o2", "hana", "SK", 20, "12:00:40"),
    order("o3", "anna", "CZ", 100, "12:01:30"),
    order("o2", "hana", "SK", 20, "12:00:40"),
    order("o4", "ivan", "DE", 70, "12:09:00"),
)
#: by topic, what is there before the first run
_FIRST: dict[str, tuple[Record, ...]] = {
    "orders": (*_ORDERS[:3], (b"\xff", b"no order"), *_ORDERS[3:]),
    "reviews": ((None, b"Works WELL"), (None, b"well")),
    "web-sales": ((None, {"order_id": "w1", "amount": 5}),),
    "counter-sales": ((None, {"receipt": 7, "amount": 6, "cashier": "eva"}),),
    "clicks": tuple(
        (None, {"visitor": visitor, "page": "/", "clicked_at": at(time)})
        for visitor, time in (
            ("v1", "12:00:00"), ("v2", "12:01:00"), ("v1", "12:03:00"), ("v1", "12:20:00"), ("v3", "12:40:00"),
        )
    ),
    "invoices": tuple(
        (None, {"invoice": invoice, "amount": 100, "sent_at": at(time)})
        for invoice, time in (("i1", "12:00:00"), ("i2", "12:01:00"), ("i3", "12:02:00"), ("i9", "13:00:00"))
    ),
    "payments": tuple(
        (None, {"invoice": invoice, "method": method, "paid_at": at(time)})
        for invoice, method, time in (("i1", "card", "12:05:00"), ("i3", "cash", "12:20:00"), ("x", "", "13:00:00"))
    ),
    "customers": (
        (b"c1", {"name": "Anna", "city": "Brno"}),
        (b"c2", {"name": "Boris", "city": "Praha"}),
        (b"c3", {"name": "Cyril", "city": "Praha"}),
        (b"c1", {"name": "Anna", "city": "Olomouc"}),
        (b"c2", None),
    ),
    "purchases": tuple((None, {"purchase": f"p{n}", "customer": f"c{n}"}) for n in (1, 2, 3)),
    "transfers": tuple((None, {"account": name, "amount": n}) for name, n in (("a", 50), ("b", 20), ("a", -10))),
    "readings": tuple(
        (sensor.encode(), {"sensor": sensor, "degrees": degrees, "read_at": at(time)})
        for sensor, degrees, time in (("s1", 20, "12:01:00"), ("s1", 22, "12:09:59"), ("s2", 5, "12:31:00"))
    ),
}  # fmt: skip
#: what comes between the first run and the second, which only examples with these topics have
_SECOND: dict[str, tuple[Record, ...]] = {
    "transfers": ((None, {"account": "b", "amount": -20}), (None, {"account": "c", "amount": 5})),
    "readings": (
        # The watermark is at 12:30 now.
        (b"s1", {"sensor": "s1", "degrees": 99, "read_at": at("12:05:00")}),
        (b"s2", {"sensor": "s2", "degrees": 98, "read_at": at("12:29:59")}),
        (b"s1", {"sensor": "s1", "degrees": 11, "read_at": at("12:30:00")}),
        (b"s2", {"sensor": "s2", "degrees": 7, "read_at": at("12:30:30")}),
        (None, {"sensor": None, "degrees": 97, "read_at": at("12:05:00")}),
        (b"s3", {"sensor": "s3", "degrees": 1, "read_at": at("13:00:00")}),
    ),
}


@dataclass
class Ran:
    brokers: str
    statuses: list[RunStatus]
    #: by topic, in the order of partitions and offsets
    written: dict[str, list[Row]]

    def values(self, topic: str) -> list[Any]:
        return [json.loads(record.value or b"null") for record in self.written[topic]]

    def keyed(self, topic: str) -> list[tuple[str, Any]]:
        """Keys and values in an order that is the same every time."""
        found = ((record.key or b"", json.loads(record.value or b"null")) for record in self.written[topic])
        return sorted(((key.decode(), value) for key, value in found), key=str)


@pytest.fixture(scope="module")
def ran(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All examples have run, as one pipeline: a supervisor for each would cost more than what it runs."""
    examples = [load(str(file)) for file in _EXAMPLES.glob("*.yaml")]
    together = unite(examples, broker, str(tmp_path_factory.mktemp("operators")))
    again = [flow.name for flow in together.flows.values() if set(topics_of(together, flow)) & _SECOND.keys()]
    write(broker, _FIRST)
    statuses = [Supervisor(together, spark).run()]
    write(broker, _SECOND)
    statuses.append(Supervisor(together, spark, flows=again).run())
    written = {
        sink.topic: sink.partitions or 1
        for flow in together.flows.values()
        for sink in flow.sinks
        if isinstance(sink, TopicSink)
    } | {"readings.late": 1}
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda topic: consume(broker.bootstrap, topic, written[topic], committed=True), written)
        return Ran(broker.bootstrap, statuses, dict(zip(written, found, strict=True)))


def unite(examples: list[Declaration], broker: BrokerProcess, storage: str) -> Declaration:
    """All flows and sources of the examples, which have no name in common but that of the source `orders`."""
    flows = [flow for example in examples for flow in example.flows.values()]
    assert len({flow.name for flow in flows}) == len(flows)
    # Some examples need the watermark of a source, and to the others it makes no difference.
    sources = sorted(
        (one for example in examples for one in example.sources.values()), key=lambda one: bool(one.watermark)
    )
    return replace(
        examples[0], name="operators", brokers=broker.bootstrap, storage=storage, checkpoints=f"{storage}/_checkpoints",
        sources={one.name: one for one in sources}, flows={flow.name: flow for flow in flows},
    )  # fmt: skip


def topics_of(declaration: Declaration, flow: Flow) -> list[str]:
    return [declaration.sources[name].topic for name in flow.input_names if name in declaration.sources]


def write(broker: BrokerProcess, records: dict[str, tuple[Record, ...]]) -> None:
    with Cluster(broker.bootstrap) as cluster:
        for topic in records:
            cluster.create_topic(topic, 1, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for topic, those in records.items():
        for key, value in those:
            data = json.dumps(value).encode() if isinstance(value, dict) else value
            producer.produce(topic, key=key, value=data, partition=0)
    assert producer.flush(30) == 0


def orders(*numbers: int) -> list[Any]:
    return [_ORDERS[number][1] for number in numbers]


def test_every_example_ran_to_its_end_and_is_on_the_page(ran: Ran) -> None:
    assert [(flow.name, flow.error) for status in ran.statuses for flow in status.flows if flow.state != "done"] == []
    page = _PAGE.read_text(encoding="utf-8")
    assert [file.name for file in _EXAMPLES.iterdir() if file.is_file() and f"operators/{file.name})" not in page] == []


def test_filter_lets_records_through_with_their_keys(ran: Ran) -> None:
    found = ran.written["orders.large"]
    assert [record.key for record in found] == [b"order o1", b"order o3"]
    assert ran.values("orders.large") == orders(0, 2)


def test_map_makes_one_record_of_each(ran: Ran) -> None:
    assert ran.keyed("orders.amounts") == [
        ("anna", {"label": "CZ-o1", "euros": 2.5}),
        ("anna", {"label": "CZ-o3", "euros": 1.0}),
        ("hana", {"label": "SK-o2", "euros": 0.2}),
        ("hana", {"label": "SK-o2", "euros": 0.2}),
        ("ivan", {"label": "DE-o4", "euros": 0.7}),
    ]


def test_flat_map_makes_several_records_of_one_and_says_of_which(ran: Ran) -> None:
    found = [(record.key, record.value, dict(record.headers)["_offset"]) for record in ran.written["reviews.words"]]
    assert found == [(b"works", b"works", b"0"), (b"well", b"well", b"0"), (b"well", b"well", b"1")]


def test_branches_share_the_records_among_them(ran: Ran) -> None:
    assert ran.values("orders.at-home") == orders(0, 2)
    assert ran.values("orders.abroad") == orders(1, 3, 4)


def test_merge_brings_two_topics_into_one(ran: Ran) -> None:
    assert ran.keyed("sales") == [
        ("7", {"place": "counter", "sale": "7", "amount": 6}),
        ("w1", {"place": "web", "sale": "w1", "amount": 5}),
    ]


def test_repartition_puts_records_where_producers_would_put_their_new_key(ran: Ran, cluster: Cluster) -> None:
    assert cluster.topics(["orders.by-customer"])["orders.by-customer"].partitions == 3
    found = ran.written["orders.by-customer"]
    assert {(record.key, record.partition) for record in found} == {(b"anna", 1), (b"hana", 0), (b"ivan", 2)}
    assert sorted(json.loads(record.value or b"")["order_id"] for record in found) == ["o1", "o2", "o2", "o3", "o4"]


def test_tumbling_windows_are_given_once_when_the_watermark_has_passed(ran: Ran) -> None:
    assert ran.keyed("orders.revenue-per-minute") == [
        ("CZ", {"minute": at("12:00:00"), "country": "CZ", "revenue": 250}),
        ("CZ", {"minute": at("12:01:00"), "country": "CZ", "revenue": 100}),
        ("SK", {"minute": at("12:00:00"), "country": "SK", "revenue": 40}),
    ]


def test_hopping_windows_overlap(ran: Ran) -> None:
    assert sorted(ran.values("orders.revenue-of-two-minutes"), key=str) == [
        {"since": at("11:59:00"), "until": at("12:01:00"), "revenue": 290},
        {"since": at("12:00:00"), "until": at("12:02:00"), "revenue": 390},
        {"since": at("12:01:00"), "until": at("12:03:00"), "revenue": 100},
    ]


def test_session_ends_when_nothing_has_come_for_the_gap(ran: Ran) -> None:
    assert ran.keyed("visits") == [
        ("v1", {"visitor": "v1", "since": at("12:00:00"), "until": at("12:08:00"), "pages": 2}),
        ("v1", {"visitor": "v1", "since": at("12:20:00"), "until": at("12:25:00"), "pages": 1}),
        ("v2", {"visitor": "v2", "since": at("12:01:00"), "until": at("12:06:00"), "pages": 1}),
    ]


def test_streams_are_joined_within_their_time_and_what_is_left_over_comes_alone(ran: Ran) -> None:
    assert ran.keyed("invoices.paid") == [
        ("i1", {"invoice": "i1", "amount": 100, "method": "card"}),
        ("i2", {"invoice": "i2", "amount": 100}),
        ("i3", {"invoice": "i3", "amount": 100}),
    ]


def test_records_are_joined_with_the_newest_of_a_table_and_not_with_what_was_deleted(ran: Ran) -> None:
    assert ran.keyed("purchases.named") == [
        ("c1", {"purchase": "p1", "customer": "c1", "name": "Anna", "city": "Olomouc"}),
        ("c3", {"purchase": "p3", "customer": "c3", "name": "Cyril", "city": "Praha"}),
    ]


def test_duplicate_comes_through_once(ran: Ran) -> None:
    assert [value for _, value in ran.keyed("orders.once")] == orders(0, 1, 2, 4)


def test_changelog_has_each_change_and_a_tombstone_where_the_key_is_gone(ran: Ran) -> None:
    assert ran.keyed("balances") == [
        ("a", {"account": "a", "balance": 40, "transfers": 2}),
        ("b", None),
        ("b", {"account": "b", "balance": 20, "transfers": 1}),
        ("c", {"account": "c", "balance": 5, "transfers": 1}),
    ]
    assert [record.value for record in ran.written["balances"] if record.key == b"b"][-1] is None
    resource, admin = ConfigResource(ResourceType.TOPIC, "balances"), AdminClient({"bootstrap.servers": ran.brokers})
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"


def test_exactly_the_records_that_are_in_no_window_go_to_the_side_topic(ran: Ran) -> None:
    def window(start: str, end: str) -> dict[str, str]:
        return {"start": at(start), "end": at(end)}

    late = ran.keyed("readings.late")
    assert [(key, value["degrees"], value["window"]) for key, value in late] == [
        ("s1", 99, window("12:00:00", "12:10:00")),
        ("s2", 98, window("12:20:00", "12:30:00")),
    ]
    assert [dict(record.headers)["_offset"] for record in ran.written["readings.late"]] == [b"3", b"4"]
    assert ran.keyed("readings.warmest") == [
        ("s1", {"since": at("12:00:00"), "sensor": "s1", "degrees": 22}),
        ("s1", {"since": at("12:30:00"), "sensor": "s1", "degrees": 11}),
        ("s2", {"since": at("12:30:00"), "sensor": "s2", "degrees": 7}),
    ]
    assert [flow.late for status in ran.statuses for flow in status.flows if flow.name == "warmest"] == [0, 2]


# -- what late means --------------------------------------------------------------------------------------------------

_DELAY_S = 60
_BATCHES = 5
_SENSORS = ("s1", "s2", "off")
_COLUMNS = "sensor STRING, time TIMESTAMP, _topic STRING, _partition INT, _offset BIGINT"
_LATE_QUERIES = {
    "hopping": "SELECT unix_seconds(window.start) AS since, count(*) AS n, lineage_range() AS _lineage FROM readings "
    "GROUP BY window(time, '2 minutes', '1 minute')",
    "sessions": "SELECT sensor, count(*) AS n, lineage_range() AS _lineage FROM readings "
    "WHERE sensor <> 'off' GROUP BY session_window(time, '30 seconds'), sensor",
    "joined": "SELECT r._offset AS reading, a._offset AS answer, lineage(r, a) AS _lineage "
    "FROM readings r JOIN answers a ON a.sensor = r.sensor AND a.time BETWEEN r.time AND r.time + INTERVAL 1 MINUTE",
}


class Reading(NamedTuple):
    batch: int
    offset: int
    sensor: str
    time: int


@dataclass
class Late:
    """What three queries have made of random readings, and which rows were late to them."""

    readings: list[Reading]
    answers: list[Reading]
    results: dict[str, list[Any]]
    #: topic, offset, and the end of the window if there is one
    late: dict[str, list[tuple[str, int, int | None]]]

    def watermark(self, batch: int, *streams: list[Reading]) -> int:
        """The watermark that operators go by in a batch: it knows of all batches but the one before, and of itself."""
        latest = [max([one.time for one in stream if one.batch < batch - 1], default=0) for stream in streams]
        return min(latest) - _DELAY_S


@pytest.fixture(scope="module")
def late(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Late:
    directory = tmp_path_factory.mktemp("late")
    chance = random.Random(7)
    streams = {name: write_readings(directory / name, name, chance) for name in ("readings", "answers")}
    pipeline = Pipeline("late", storage=str(directory / "lake"))
    for name in streams:
        fields, mark = {"sensor": "string", "time": "timestamp"}, {"column": "time", "delay": f"{_DELAY_S}s"}
        pipeline.source(f"{name}_topic", topic=name, format="json", schema=fields, watermark=mark)
        pipeline.flow(name, zone="staging", from_=f"{name}_topic")
    for name, sql in _LATE_QUERIES.items():
        reads = list(streams) if name == "joined" else ["readings"]
        side = {"table": f"{name}_late"}
        pipeline.flow(name, zone="trusted", from_=reads, sql=sql, late_rows=side)
    graph = Graph(pipeline.declaration(read_beside(__file__)))

    def read(name: str) -> DataFrame:
        return spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory / name))

    found = Late(streams["readings"], streams["answers"], {name: [] for name in _LATE_QUERIES}, {})
    found.late = {name: [] for name in _LATE_QUERIES}
    queries = []
    for name in _LATE_QUERIES:
        work = Planner(spark, graph, read).work(graph.declaration.flows[name])
        queries.append(start(work, name, str(directory / f"{name}-checkpoint"), found))
    for query in queries:
        query.awaitTermination()
    return found


def write_readings(directory: Path, topic: str, chance: random.Random) -> list[Reading]:
    """A file for each batch, which Spark reads in the order of their times; the last row is far behind all others."""
    directory.mkdir()
    readings: list[Reading] = []
    for batch in range(_BATCHES):
        those = [
            Reading(batch, len(readings) + n, chance.choice(_SENSORS), 6000 + batch * 150 - chance.randrange(400))
            for n in range(40)
        ]
        if batch == _BATCHES - 1:
            those.append(Reading(batch, len(readings) + 40, "end", 1_000_000))
        readings += those
        rows = (
            {"sensor": one.sensor, "time": f"{datetime.fromtimestamp(one.time, UTC):%Y-%m-%dT%H:%M:%SZ}",
             "_topic": topic, "_partition": 0, "_offset": one.offset}
            for one in those
        )  # fmt: skip
        file = directory / f"{batch}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return readings


def start(work: Work, name: str, checkpoint: str, found: Late) -> StreamingQuery:
    from pyspark.sql import functions as F

    end = {"hopping": "window", "sessions": "session_window"}.get(name)
    end_s = f"unix_seconds(__late.row.{end}.end)" if end else "CAST(NULL AS BIGINT)"

    def write(rows: DataFrame, number: int) -> None:
        kept = rows.persist()
        found.results[name] += kept.where("__late IS NULL").select(*work.columns).collect()
        mark = read_watermark(checkpoint, number - 1)
        if mark is not None:
            behind = kept.where(F.col("__late.at") <= F.lit(mark))
            found.late[name] += map(
                tuple, behind.selectExpr("__late.row._topic", "__late.row._offset", end_s).collect()
            )
        kept.unpersist()

    stream = work.rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return stream.trigger(availableNow=True).start()


def test_windows_and_late_rows_are_together_all_rows_of_each_window(late: Late) -> None:
    expected = Counter((one.time // 60 + hop) * 60 for one in late.readings[:-1] for hop in (-1, 0))
    counted = Counter({row["since"]: row["n"] for row in late.results["hopping"]})
    missed = Counter((end or 0) - 120 for _, _, end in late.late["hopping"])
    assert missed and counted + missed == expected


def test_row_is_late_to_a_window_that_has_ended_by_the_watermark_and_to_no_other(late: Late) -> None:
    expected = [
        ("readings", one.offset, end)
        for one in late.readings
        for end in ((one.time // 60 + hop) * 60 for hop in (1, 2))
        if end <= late.watermark(one.batch, late.readings)
    ]
    assert sorted(late.late["hopping"]) == sorted(expected)


def test_row_is_late_to_a_session_when_the_gap_behind_it_is_over(late: Late) -> None:
    there = [one for one in late.readings if one.sensor != "off"]
    expected = [one for one in there if one.time + 30 <= late.watermark(one.batch, late.readings)]
    assert expected and sorted(late.late["sessions"]) == [("readings", one.offset, one.time + 30) for one in expected]
    assert sum(row["n"] for row in late.results["sessions"]) == len(there) - len(expected) - 1


def test_row_is_late_to_a_join_when_its_time_is_behind_and_all_others_are_joined(late: Late) -> None:
    def in_time(stream: list[Reading]) -> list[Reading]:
        return [one for one in stream if one.time > late.watermark(one.batch, late.readings, late.answers)]

    readings, answers = in_time(late.readings), in_time(late.answers)
    gone = [("readings", one) for one in late.readings if one not in readings]
    gone += [("answers", one) for one in late.answers if one not in answers]
    assert gone and sorted(late.late["joined"]) == sorted((topic, one.offset, None) for topic, one in gone)
    pairs = [
        (r.offset, a.offset) for r in readings for a in answers if r.sensor == a.sensor and 0 <= a.time - r.time <= 60
    ]
    assert sorted((row["reading"], row["answer"]) for row in late.results["joined"]) == sorted(pairs)


def test_late_rows_of_a_flow_that_drops_none_are_refused_where_they_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: p\nstorage: lake\nsources:\n  s:\n    topic: s\n    format: json\n    schema: {at: timestamp}\n"
        "    watermark: {column: at, delay: 1m}\nflows:\n  f:\n    zone: staging\n    from: s\n"
        "    sql: SELECT * FROM s WHERE at IS NOT NULL\n    late_rows: {topic: late}\n"
    )
    (problem,) = analyse(load(str(file)), spark)
    assert str(problem).startswith(f"{file}:14:16: flow 'f' has 'late_rows', and none of its steps drops late rows")
