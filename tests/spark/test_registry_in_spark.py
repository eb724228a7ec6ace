"""A pipeline and `format("ottla")` with schemas of `ottla registry`, between confluent-kafka's serializers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_samples import FIRST, SECOND, context_of, message_class
from random_topic import consume
from registry_process import RegistryProcess
from shop_pipeline import produce, produce_records, rows

from ottla.pipeline import load
from ottla.pipeline.backfill import Backfill
from ottla.pipeline.flow_runs import Restarts
from ottla.pipeline.problems import BadDeclaration
from ottla.pipeline.run import Supervisor
from ottla.pipeline.start_plan import plan_start
from ottla.pipeline.testing import run_flow
from ottla.schemas.data.framing import frame
from ottla.spark.columns import HEADERS_TYPE
from ottla.spark.formats import decode_part, make_decoder, registry_format
from ottla.spark.header_ids import find_header_ids
from ottla.spark.registry_schemas import (
    PinnedSchema,
    RegistrySchemas,
    RegistrySettings,
    close_registries,
    pin_schema,
)
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

pytestmark = pytest.mark.spark

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def registry(broker: BrokerProcess) -> Iterator[RegistryProcess]:
    with RegistryProcess(broker.bootstrap) as running:
        yield running
    close_registries()


@pytest.fixture(scope="module")
def client(registry: RegistryProcess) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture
def orders(broker: BrokerProcess, client: SchemaRegistryClient, topics: Callable[..., str]) -> tuple[str, int]:
    """A topic with values of two versions, and three that cannot be decoded; and the id of the first version."""
    topic = topics(1)
    context = context_of(topic)
    old = AvroSerializer(client, json.dumps(FIRST))({"id": 1, "customer": "Ada", "old": 7}, context)
    new = AvroSerializer(client, json.dumps(SECOND))({"id": 2**40, "buyer": "Bob", "currency": "USD"}, context)
    assert old is not None and new is not None
    produce(broker.bootstrap, topic, old, new, frame(12345, b"x"), b"no frame", old[:6])
    return topic, int.from_bytes(old[1:5], "big")


KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
#: a later version of the same
WIDER_KEY = {
    "type": "record", "name": "Key",
    "fields": [
        {"name": "order_id", "type": "long", "aliases": ["id"]}, {"name": "shop", "type": "string", "default": ""},
    ],
}  # fmt: skip


@pytest.fixture
def changes(broker: BrokerProcess, client: SchemaRegistryClient, topics: Callable[..., str]) -> str:
    """A topic with keys of two versions, none, and two that cannot be decoded.

    The fourth and the fifth have no value. The schema ids of the last are in headers.
    """
    topic = topics(1)
    context = context_of(topic, "key")
    old = AvroSerializer(client, json.dumps(KEY))({"id": 1}, context)
    new = AvroSerializer(client, json.dumps(WIDER_KEY))({"order_id": 2**40, "shop": "a"}, context)
    value = AvroSerializer(client, json.dumps(SECOND))({"id": 5, "buyer": "Bob", "currency": "USD"}, context_of(topic))
    records = [(old, value), (new, value), (None, value), (new, None), (frame(12345, b"x"), None), (b"no frame", value)]
    produce_records(broker.bootstrap, topic, *records)
    in_headers = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, bytes]] = []
    third = AvroSerializer(client, json.dumps(WIDER_KEY), conf=in_headers)(
        {"order_id": 3, "shop": "h"}, context_of(topic, "key", headers)
    )
    value = AvroSerializer(client, json.dumps(SECOND), conf=in_headers)(
        {"id": 0, "buyer": "Cleo", "currency": "CZK"}, context_of(topic, "value", headers)
    )
    assert [name for name, _ in headers] == ["__key_schema_id", "__value_schema_id"]
    produce_records(broker.bootstrap, topic, (third, value), headers=headers)
    return topic


@pytest.mark.parametrize("conf", [{}, {"schema.id.serializer": header_schema_id_serializer}], ids=["framed", "headers"])
@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_keys_of_all_serializers_are_decoded(
    registry: RegistryProcess, client: SchemaRegistryClient, form: str, conf: dict[str, Any]
) -> None:
    headers: list[tuple[str, bytes]] = []
    topic = f"keys-{form}{len(conf)}"
    context, message = context_of(topic, "key", headers), message_class("keys", "id")
    make = {
        "avro": lambda: AvroSerializer(client, '"long"', conf=conf)(7, context),
        "json": lambda: JSONSerializer('{"title": "Key", "type": "integer"}', client, conf=conf)(7, context),
        "protobuf": lambda: ProtobufSerializer(message, client, {"use.deprecated.format": False, **conf})(
            message(id=7), context
        ),
    }
    key, settings = make[form](), RegistrySettings(registry.url)
    format = registry_format(settings, pin_schema(settings, f"{topic}-key"))
    ids = find_header_ids(pa.array([[{"key": name, "value": value} for name, value in headers]], HEADERS_TYPE), "key")
    assert (ids is not None) == bool(conf)
    decoded, causes = decode_part(make_decoder(format), format, pa.array([key]), ids, "key")
    assert (decoded.to_pylist(), causes) == ([{"id": 7}] if form == "protobuf" else [7], [None])


def values_of(broker: BrokerProcess, topic: str) -> list[bytes]:
    return [record.value or b"" for record in consume(broker.bootstrap, topic, 1, committed=True)]


def test_pipeline_resolves_every_id_to_the_reader_and_writes_with_the_registry(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: RegistryProcess,
    client: SchemaRegistryClient,
    orders: tuple[str, int],
    tmp_path: Path,
) -> None:
    topic, first_id = orders
    file = tmp_path / "shop.yaml"
    file.write_text(
        textwrap.dedent(f"""
        name: registry_{topic.replace("-", "_")}
        brokers: {broker.bootstrap}
        properties: {{schema.registry.url: "{registry.url}"}}
        storage: lake
        sources:
          orders: {{topic: {topic}, format: avro, schema: {{registry: {topic}-value}}}}
        flows:
          staged:
            zone: staging
            from: orders
            to:
              - {{table: staged, merge_schema: true}}
              - {{topic: {topic}.out, format: avro, key: id, partitions: 1, schema: {{registry: {topic}.out-value}}}}
              - {{topic: {topic}.json, format: json, partitions: 1, schema: {{registry: {topic}.json-value}}}}
        """)
    )
    status = Supervisor(load(str(file)), spark, restarts=Restarts(attempts_max=1)).run()
    assert [flow.error for flow in status.flows if flow.error] == []
    expected: list[dict[str, Any]] = [
        {"id": 1, "buyer": "Ada", "currency": "EUR"}, {"id": 2**40, "buyer": "Bob", "currency": "USD"},
    ]  # fmt: skip
    staged = rows(tmp_path, "staging/staged")
    assert [{name: row[name] for name in ("id", "buyer", "currency")} for row in staged] == expected
    causes = [str(row["_cause"]) for row in rows(tmp_path, "quarantine/staged_quarantine")]
    assert causes[:2] == ["unknown schema id: 12345", "bad magic: the first byte is 110, not 0"]
    assert causes[2].startswith(f"truncated: schema id {first_id}") and len(causes) == 3

    read_avro = AvroDeserializer(client)
    context = context_of(f"{topic}.out")
    assert [read_avro(value, context) for value in values_of(broker, f"{topic}.out")] == expected
    latest = client.get_latest_version(f"{topic}.json-value").schema
    read_json = JSONDeserializer(latest, schema_registry_client=client)
    assert [read_json(value, context) for value in values_of(broker, f"{topic}.json")] == expected
    # A test of the flow decodes and encodes given rows, and registers nothing.
    eve = {"id": 5, "buyer": "Eve", "currency": "EUR"}
    tested = run_flow(load(str(file)), "staged", {"orders": [eve]}, spark=spark)
    tested.assert_rows([eve])
    for out in (f"{topic}.out", f"{topic}.json"):
        tested.assert_topic(out, [eve])
        assert client.get_versions(f"{out}-value") == [1]
    # A new version is taken by the next run, which `plan` says.
    more = {**SECOND, "fields": [*SECOND["fields"], {"name": "note", "type": "string", "default": ""}]}
    registry.register(f"{topic}-value", json.dumps(more))
    [decision] = plan_start(load(str(file))).decisions
    assert decision.plan == "keeps state"
    assert f"the schema of source orders is version 3 of {topic}-value, before version 2 of" in str(decision.reasons)


def test_pipeline_decodes_keys_and_writes_keys_with_the_registry(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: RegistryProcess,
    client: SchemaRegistryClient,
    changes: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        textwrap.dedent(f"""
        name: keys_{changes.replace("-", "_")}
        brokers: {broker.bootstrap}
        properties: {{schema.registry.url: "{registry.url}"}}
        storage: lake
        sources:
          changes:
            topic: {changes}
            format: avro
            schema: {{registry: {changes}-value}}
            null_values: keep
            key_format: avro
            key_schema: {{registry: {changes}-key}}
        flows:
          staged:
            zone: staging
            from: changes
            to:
              - table: staged
              - topic: {changes}.same
                partitions: 1
                key: _key
                key_format: avro
                key_schema: {{registry: {changes}.same-key}}
              - topic: {changes}.made
                partitions: 1
                key: [buyer, id]
                key_format: json
                key_schema: {{registry: {changes}.made-key}}
          trusted:
            zone: trusted
            from: staged
            sql: SELECT _key.order_id AS order_id, * FROM staged WHERE _key IS NOT NULL
            expect: [{{name: order is new, that: _key.order_id > 1, on_violation: quarantine}}]
            to: {{topic: {changes}.ids, partitions: 1, key: order_id, key_format: avro,
                  key_schema: {{registry: {changes}.ids-key}}}}
        """)
    )
    declaration = load(str(file))
    status = Supervisor(declaration, spark, restarts=Restarts(attempts_max=1)).run()
    assert [flow.error for flow in status.flows if flow.error] == []
    first, second, third = {"order_id": 1, "shop": ""}, {"order_id": 2**40, "shop": "a"}, {"order_id": 3, "shop": "h"}
    staged, bad = rows(tmp_path, "staging/staged"), rows(tmp_path, "quarantine/staged_quarantine")
    assert [(row["_key"], row["id"]) for row in staged] == [
        (first, 5), (second, 5), (None, 5), (second, None), (third, 0),
    ]  # fmt: skip
    assert [row["_cause"] for row in bad] == [
        "key: unknown schema id: 12345", "key: bad magic: the first byte is 110, not 0",
    ]  # fmt: skip
    assert [row["key"] for row in bad] == [frame(12345, b"x"), b"no frame"]
    [refused] = rows(tmp_path, "quarantine/trusted_quarantine")
    assert (refused["_cause"], json.loads(refused["key"])) == ("order is new", first)

    read_key = AvroDeserializer(client)
    for name, expected in (("same", [first, second, None, second, third]), ("ids", [2**40, 2**40, 3])):
        topic = f"{changes}.{name}"
        written = consume(broker.bootstrap, topic, 1, committed=True)
        assert [read_key(record.key, context_of(topic, "key")) for record in written] == expected
    read_json = JSONDeserializer(client.get_latest_version(f"{changes}.made-key").schema, schema_registry_client=client)
    made = consume(broker.bootstrap, f"{changes}.made", 1, committed=True)
    assert [read_json(record.key, context_of(f"{changes}.made", "key")) for record in made] == [
        *[{"buyer": "Bob", "id": 5}] * 3, {}, {"buyer": "Cleo", "id": 0},
    ]  # fmt: skip

    # A backfill decodes keys in the same way.
    Backfill(declaration, spark, flows=["staged"], origin="log").run()
    assert rows(tmp_path, "staging/staged") == staged
    assert rows(tmp_path, "quarantine/staged_quarantine") == bad
    # A test of the flow encodes and decodes given keys, and registers nothing.
    key, eve = {"order_id": 9, "shop": "b"}, {"id": 6, "buyer": "Eve", "currency": "EUR"}
    given = [{**eve, "_key": key}, {**eve, "_key": {"base64": "AAA="}}]
    tested = run_flow(declaration, "staged", {"changes": given}, spark=spark)
    tested.assert_rows([{"id": 6, "_key": key}])
    tested.assert_quarantine([{"_cause": "key: truncated: 2 bytes are too few for a schema id"}])
    tested.assert_topic(f"{changes}.same", [{"_key": key, "id": 6}])
    assert client.get_versions(f"{changes}.same-key") == [1]
    # A key that its schema does not fit is found before a batch is run, and so is a struct without a format.
    text = file.read_text()
    other = {"key: [buyer, id]": "key: id", "key_format: json": "key_format: avro", ".made-key}": "-key, version: 2}"}
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if ".same-key" in line)
    without = {"".join(lines[at - 1 : at + 1]): ""}
    for edits, what in (
        (other, r"the key of topic .*\.made': the schema has struct<order_id:bigint,shop:string>, not bigint"),
        (without, r"the key of topic .*\.same' is a struct and has no format"),
    ):
        edited = text
        for old, new in edits.items():
            assert old in edited
            edited = edited.replace(old, new)
        file.write_text(edited)
        with pytest.raises(BadDeclaration, match=what):
            Supervisor(load(str(file)), spark)


def test_ids_of_a_context_are_found_in_their_context(registry: RegistryProcess) -> None:
    subject, old = ":.sales:orders-value", {**FIRST, "doc": "only in this context"}
    first = registry.register(subject, json.dumps(old))
    registry.register(subject, json.dumps(SECOND))
    settings = RegistrySettings(registry.url)
    schemas = RegistrySchemas(settings, pin_schema(settings, subject))
    assert json.loads(schemas.find(first) or "") == old
    assert json.loads(schemas.latest()) == SECOND
    outside = RegistrySchemas(settings, PinnedSchema("orders", 99, "AVRO", json.dumps(SECOND)))
    assert outside.find(first) != schemas.find(first)
    guid = registry.client.get(f"{registry.url}/subjects/{subject}/versions/1").json()["guid"]
    assert (schemas.find_guid(guid), outside.find_guid(guid)) == (first, None)


def test_source_and_sink_decode_and_encode_with_the_registry(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: RegistryProcess,
    client: SchemaRegistryClient,
    orders: tuple[str, int],
    topics: Callable[..., str],
    checkpoint: str,
) -> None:
    source, _ = orders
    options = {
        "kafka.bootstrap.servers": broker.bootstrap, "schema.registry.url": registry.url, "value.format": "avro",
        "schema.registry.basic.auth.user.info": f"ada:{PASSWORD}",
    }  # fmt: skip
    found = spark.read.format("ottla").options(**options, subscribe=source).load()
    assert found.columns[-2:] == ["decoded", "_cause"]
    # The version of the reader schema is in the metadata of a column, which everybody sees.
    assert "ottla.schema.version" in found.schema.json() and PASSWORD not in found.schema.json()
    read = found.orderBy("offset").collect()
    assert [row.decoded and row.decoded.asDict() for row in read] == [
        {"id": 1, "buyer": "Ada", "currency": "EUR"}, {"id": 2**40, "buyer": "Bob", "currency": "USD"},
        None, None, None,
    ]  # fmt: skip
    assert [row._cause and row._cause.partition(":")[0] for row in read] == [
        None, None, "unknown schema id", "bad magic", "truncated",
    ]  # fmt: skip

    copy, summary = topics(1), topics(1)
    stream = spark.readStream.format("ottla").options(**options, subscribe=source, startingOffsets="earliest").load()
    buyers = stream.where("_cause IS NULL").selectExpr(
        "CAST(decoded.id AS STRING) AS key", "struct(decoded.id, decoded.buyer AS name, array(1, 2) AS marks) AS value"
    )
    writer = buyers.writeStream.format("ottla").options(**options, topic=copy, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    read_avro = AvroDeserializer(client)
    context = context_of(copy)
    assert [read_avro(value, context) for value in values_of(broker, copy)] == [
        {"id": 1, "name": "Ada", "marks": [1, 2]}, {"id": 2**40, "name": "Bob", "marks": [1, 2]},
    ]  # fmt: skip
    assert client.get_versions(f"{copy}-value") == [1]

    # Without registration, rows are written with the latest version: columns are cast, and may be left out.
    schema_id = registry.register(f"{summary}-value", json.dumps(SECOND))
    latest = {**options, "topic": summary, "auto.register.schemas": "false", "use.latest.version": "true"}
    eve = spark.sql("SELECT struct('Eve' AS buyer, 3 AS id) AS value")
    eve.write.format("ottla").options(**latest).mode("append").save()
    [value] = values_of(broker, summary)
    assert int.from_bytes(value[1:5], "big") == schema_id
    assert read_avro(value, context) == {"id": 3, "buyer": "Eve", "currency": "EUR"}


def test_source_and_sink_decode_and_encode_keys(
    spark: SparkSession,
    broker: BrokerProcess,
    registry: RegistryProcess,
    client: SchemaRegistryClient,
    changes: str,
    topics: Callable[..., str],
    checkpoint: str,
) -> None:
    options = {
        "kafka.bootstrap.servers": broker.bootstrap, "schema.registry.url": registry.url, "key.format": "avro",
        "value.format": "avro",
    }  # fmt: skip
    found = spark.read.format("ottla").options(**options, subscribe=changes).load()
    assert found.columns[-4:] == ["decoded", "_cause", "decoded_key", "_key_cause"]
    read = found.orderBy("offset").collect()
    first, second, third = {"order_id": 1, "shop": ""}, {"order_id": 2**40, "shop": "a"}, {"order_id": 3, "shop": "h"}
    keys = [row.decoded_key and row.decoded_key.asDict() for row in read]
    assert keys == [first, second, None, second, None, None, third]
    assert [row._key_cause for row in read] == [
        None, None, None, None, "unknown schema id: 12345", "bad magic: the first byte is 110, not 0", None,
    ]  # fmt: skip
    assert [row._cause for row in read] == [None, None, None, "null value", "null value", None, None]
    assert read[-1].decoded.asDict() == {"id": 0, "buyer": "Cleo", "currency": "CZK"}

    copy, numbers = topics(1), topics(1)
    stream = spark.readStream.format("ottla").options(**options, subscribe=changes, startingOffsets="earliest").load()
    good = stream.where("_key_cause IS NULL").selectExpr("decoded_key AS key", "decoded AS value")
    writer = good.writeStream.format("ottla").options(**options, topic=copy, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    written = consume(broker.bootstrap, copy, 1, committed=True)
    read_key = AvroDeserializer(client)
    assert [read_key(record.key, context_of(copy, "key")) for record in written] == [
        first, second, None, second, third,
    ]  # fmt: skip
    assert written[3].value is None

    # Keys alone, of a primitive type; values stay text.
    only = {**{name: each for name, each in options.items() if name != "value.format"}, "topic": numbers}
    spark.sql("SELECT 7L AS key, 'x' AS value").write.format("ottla").options(**only).mode("append").save()
    [record] = consume(broker.bootstrap, numbers, 1, committed=True)
    assert (read_key(record.key, context_of(numbers, "key")), record.value) == (7, b"x")
    assert client.get_latest_version(f"{numbers}-key").schema.schema_str == '"long"'
    subscribed = {**{name: each for name, each in only.items() if name != "topic"}, "subscribe": numbers}
    reader = spark.read.format("ottla").options(**subscribed).schema("decoded_key bigint")
    assert [row.decoded_key for row in reader.load().collect()] == [7]
