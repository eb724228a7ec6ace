"""Spark Declarative Pipelines with our topics and tables: an exported pipeline, and the example of the documentation.

`make campaign NAME=sdp` runs all of it; `make test` only compares the exported text (tests/unit/pipeline).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import sdp_runs
from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable
from registry_process import RegistryProcess

from ottla.client.cluster import Cluster
from ottla.pipeline.load import load, parse
from ottla.pipeline.sdp.export import export
from ottla.pipeline.sdp.project import command, write_project
from ottla.schemas.data.framing import frame
from ottla.testing import BrokerProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.skipif("OTTLA_SDP" not in os.environ, reason="several runs of Spark: make campaign NAME=sdp"),
]

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sdp"
_SHOP = Path(__file__).resolve().parents[2] / "src/ottla/pipeline/templates/shop.yaml"

_PIPELINE = """
name: shop
brokers: {brokers}
storage: lake
spark: {{spark.sql.shuffle.partitions: "1"}}
sources:
  sales:
    topic: sales
    format: json
    schema: id BIGINT, who STRING, amount DECIMAL(10,2), at TIMESTAMP
    watermark: {{column: at, delay: 10m}}
flows:
  staged: {{zone: staging, from: sales}}
  trusted:
    zone: trusted
    from: staged
    expect: [{{name: paid, that: amount > 0, on_violation: quarantine}}]
    deduplicate: id
    to: [{{table: trusted}}, {{topic: sales.trusted, key: who}}]
  per_hour:
    zone: refined
    from: trusted
    sql: |
      SELECT window.start AS hour, who, sum(amount) AS total, lineage_range() AS _lineage
      FROM trusted GROUP BY window(at, '1 hour'), who
    to: [{{topic: sales.per-hour, key: who}}]
"""
_KEYED = """
name: keyed
brokers: {brokers}
storage: lake
properties: {{schema.registry.url: "{registry}"}}
spark: {{spark.sql.shuffle.partitions: "1"}}
sources:
  sales: {{topic: keyed, format: json, schema: n BIGINT, key_format: avro, key_schema: {{registry: keyed-key}}}}
flows:
  staged:
    zone: staging
    from: sales
    to:
      - {{table: staged}}
      - {{topic: keyed.same, key: _key, key_format: avro, key_schema: {{registry: keyed-key, version: latest}}}}
      - {{topic: keyed.made, key: [n], key_format: json, key_schema: {{registry: made-key, version: latest}}}}
"""
_FROM_LAKE = """
import os
from pyspark import pipelines as dp

@dp.table
def copied():
    return spark.readStream.format("ottla-table").load(os.path.abspath("lake/orders"))

@dp.materialized_view
def counted():
    return spark.read.format("ottla-table").load(os.path.abspath("lake/orders")).selectExpr("count(*) AS orders")
"""


def create(broker: BrokerProcess, *topics: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        for topic in topics:
            assert cluster.create_topic(topic, 2, {})


def send(broker: BrokerProcess, topic: str, values: Iterable[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, on_delivery=_raise)
        producer.poll(0)
    assert producer.flush(60) == 0


def _raise(error: Any, _message: Any) -> None:
    assert error is None, error


def records(broker: BrokerProcess, topic: str) -> list[Any]:
    """All committed records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    consumer.subscribe([topic])
    found, ended, deadline = [], set(), time.monotonic() + 60
    while len(ended) < 2:
        assert time.monotonic() < deadline, f"{topic} has no end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message)
    consumer.close()
    return found


def test_spark_accepts_all_queries_of_the_exported_shop(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    shutil.copy(_SHOP, file)
    declaration = load(str(file))
    write_project(declaration, export(declaration), str(tmp_path / "sdp"))
    # Spark reads no topic for this, so that no broker is needed.
    sdp_runs.run(tmp_path / "sdp", "127.0.0.1:1", ["dry-run"])


def test_exported_pipeline_decodes_and_encodes_keys(broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "keyed", "keyed.same", "keyed.made")
    with RegistryProcess(broker.bootstrap) as registry:
        key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
        made = {"type": "object", "properties": {"n": {"type": "integer"}}}
        schema_id = registry.register("keyed-key", json.dumps(key))
        made_id = registry.register("made-key", json.dumps(made), schemaType="JSON")
        text = _KEYED.format(brokers=broker.bootstrap, registry=registry.url)
        declaration = parse(text.encode(), str(tmp_path / "keyed.yaml"), lambda name: b"")
        write_project(declaration, export(declaration), str(tmp_path / "sdp"))
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for data, value in ((frame(schema_id, b"\x0e"), b'{"n": 1}'), (None, b'{"n": 2}'), (b"no frame", b'{"n": 3}')):
            producer.produce("keyed", value, data)
        assert producer.flush(60) == 0
        sdp_runs.run(tmp_path / "sdp", broker.bootstrap, command(declaration)[1:])
    same = {json.loads(record.value())["n"]: record.key() for record in records(broker, "keyed.same")}
    assert same == {1: frame(schema_id, b"\x0e"), 2: None}
    written = {record.key() for record in records(broker, "keyed.made")}
    assert written == {frame(made_id, b'{"n":1}'), frame(made_id, b'{"n":2}')}


def test_exported_pipeline_writes_the_rows_of_the_pipeline(broker: BrokerProcess, tmp_path: Path) -> None:
    text = _PIPELINE.format(brokers=broker.bootstrap)
    declaration = parse(text.encode(), str(tmp_path / "shop.yaml"), lambda name: b"")
    project = export(declaration)
    write_project(declaration, project, str(tmp_path / "sdp"))
    create(broker, "sales", "sales.trusted", "sales.per-hour")
    sales = [{"id": n % 90, "who": f"w{n % 3}", "amount": n - 5, "at": f"2026-01-01T{n // 10:02d}:00:00Z"}
             for n in range(100)]  # fmt: skip
    send(broker, "sales", [json.dumps(sale).encode() for sale in sales] + [b"not JSON"])
    sdp_runs.run(tmp_path / "sdp", broker.bootstrap, command(declaration)[1:])

    expected: dict[int, Any] = {}
    for sale in sales:
        if sale["amount"] > 0:
            expected.setdefault(sale["id"], sale)
    written = records(broker, "sales.trusted")
    values = [json.loads(message.value()) for message in written]
    # Of two sales with one id either may come first, because they are in different partitions.
    assert sorted(value["id"] for value in values) == sorted(expected)
    assert all(message.key() == value["who"].encode() for message, value in zip(written, values, strict=True))
    assert [name for name, _ in written[0].headers()] == ["_topic", "_partition", "_offset"]
    # Hours that end at least ten minutes before the latest sale, at 09:00, are final.
    hours = [json.loads(message.value()) for message in records(broker, "sales.per-hour")]
    assert sorted({hour["hour"][11:13] for hour in hours}) == [f"{hour:02d}" for hour in range(8)]
    assert table(tmp_path / "sdp", "staged_quarantine")["_cause"].to_pylist() == ["not JSON"]
    assert table(tmp_path / "sdp", "trusted_quarantine")["_cause"].to_pylist() == ["paid"] * 6


def table(directory: Path, name: str) -> Any:
    """A Parquet table of Spark's catalog."""
    import pyarrow.dataset

    files = sorted((directory / "spark-warehouse" / name).glob("*.parquet"))
    return pyarrow.dataset.dataset([str(file) for file in files], format="parquet").to_table()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example, with its checkpoints beside it."""
    directory = tmp_path / "example"
    shutil.copytree(_EXAMPLE, directory, ignore=shutil.ignore_patterns("lake", "metastore_db", "spark-warehouse"))
    specification = directory / "spark-pipeline.yml"
    text = specification.read_text()
    assert "file:///tmp/ottla-sdp" in text
    specification.write_text(text.replace("file:///tmp/ottla-sdp", f"file://{tmp_path}/state"))
    return directory


def orders(numbers: Iterable[int]) -> list[bytes]:
    return [json.dumps({"id": n, "country": "CZ" if n % 2 else "DE", "amount": n % 200}).encode() for n in numbers]


def test_documented_commands_work_as_written(broker: BrokerProcess, example: Path) -> None:
    script = "\n".join(line for line in sdp_runs.COMMANDS if not line.startswith("cd "))
    assert len(sdp_runs.COMMANDS) == len(script.splitlines()) + 1
    shell = subprocess.run(
        ["sh", "-ec", script], cwd=example, env=sdp_runs.environment(broker.bootstrap), capture_output=True, text=True,
        timeout=540,
    )  # fmt: skip
    assert shell.returncode == 0, shell.stdout[-3000:] + shell.stderr[-3000:]
    assert '{"id":1,"country":"CZ","amount":250.00}' in shell.stdout
    rows = DeltaTable(str(example / "lake/orders")).to_pyarrow_table(columns=["id", "country"]).to_pylist()
    assert sorted((row["id"], row["country"]) for row in rows) == [(1, "CZ"), (2, "DE")]
    revenue = table(example, "revenue").to_pylist()
    assert sorted((row["country"], row["orders"]) for row in revenue) == [("CZ", 1), ("DE", 1)]


def test_killed_run_is_continued_without_duplicates(broker: BrokerProcess, example: Path) -> None:
    create(broker, "orders", "orders.large")
    send(broker, "orders", orders(range(6000)))
    with sdp_runs.started(example, broker.bootstrap) as process:
        # In the middle of the sinks: the first commits are there, and the process ends without a word.
        wait_until(lambda: bool(list(example.parent.glob("state/_checkpoints/large_orders/*/*/commits/0"))), process)
        os.killpg(process.pid, signal.SIGKILL)
    sdp_runs.run(example, broker.bootstrap)
    check(broker, example, 6000)

    # A crash between the commit of the sink and Spark's own: the batch is repeated, its rows are not.
    commits = list(example.parent.glob("state/_checkpoints/*/write_*/*/commits/*[0-9]"))
    last = [max(files, key=lambda file: int(file.name)) for files in _by_directory(commits)]
    assert len(last) == 2
    for file in last:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    version = DeltaTable(str(example / "lake/orders")).version()
    # The Delta table exists now, so that a dataset can read it.
    (example / "transformations" / "lake.py").write_text(_FROM_LAKE)
    sdp_runs.run(example, broker.bootstrap)
    assert table(example, "copied").num_rows == table(example, "counted")["orders"].to_pylist()[0] == 6000
    check(broker, example, 6000)
    assert DeltaTable(str(example / "lake/orders")).version() == version

    send(broker, "orders", orders(range(6000, 6500)))
    sdp_runs.run(example, broker.bootstrap)
    check(broker, example, 6500)


def _by_directory(files: list[Path]) -> list[list[Path]]:
    return [[file for file in files if file.parent == parent] for parent in {file.parent for file in files}]


def wait_until(reached: Callable[[], bool], process: Any) -> None:
    while not reached():
        assert process.poll() is None, "the run has ended before it could be killed"
        time.sleep(0.05)


def check(broker: BrokerProcess, example: Path, count: int) -> None:
    """Every order is once in the Delta table, and every large one once in the topic."""
    ids = DeltaTable(str(example / "lake/orders")).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(count))
    written = [json.loads(message.value())["id"] for message in records(broker, "orders.large")]
    assert sorted(written) == [n for n in range(count) if n % 200 >= 100]
