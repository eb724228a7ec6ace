"""`ottla produce -s` and `ottla consume -s` against a registry, and with the serializers of confluent-kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_samples import OBJECT, OLDER, ORDER, USER, confluent_serde, stored
from registry_process import RegistryProcess

from ottla.cli.main import main
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

WAIT_S = 60
Ottla = Callable[..., Result]


@pytest.fixture(scope="module")
def registry(rest_broker: BrokerProcess) -> Iterator[RegistryProcess]:
    with RegistryProcess(rest_broker.bootstrap) as running:
        yield running


@pytest.fixture
def ottla(rest_broker: BrokerProcess, registry: RegistryProcess) -> Ottla:
    """Return a function that runs a command with both services; the words are its arguments."""

    def run(*words: str, lines: str | None = None) -> Result:
        options = ["-b", rest_broker.bootstrap]
        if words[0] in ("produce", "consume"):
            options += ["--registry", registry.url]
        if words[0] == "produce":
            options += ["-X", "enable.idempotence=false"]  # saves half a second
        return CliRunner().invoke(main, [*words, *options], prog_name="ottla", input=lines)

    return run


def create(ottla: Ottla, topic: str) -> None:
    assert ottla("topic", "create", topic, "-p", "1").exit_code == 0


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def send(broker: BrokerProcess, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.parametrize(
    ("form", "serde", "text", "value", "bad"),
    [
        ("avro", "avro", USER, {"name": "ä", "age": None}, {"name": 5}),
        ("json", "jsonschema", OBJECT, {"a": [1.5]}, {"a": 5}),
        ("protobuf", "protobuf", ORDER, {"id": 7, "note": "x"}, {"id": "x"}),
    ],
    ids=["avro", "json", "protobuf"],
)
def test_records_are_produced_and_consumed_as_lines_of_json(
    ottla: Ottla, rest_broker: BrokerProcess, registry: RegistryProcess, tmp_path: Path,
    form: str, serde: str, text: str, value: Any, bad: Any,
) -> None:  # fmt: skip
    pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")
    from confluent_kafka.schema_registry import SchemaRegistryClient

    topic = f"c-{form}"
    create(ottla, topic)
    file = write(tmp_path, "schema", text)
    line = json.dumps(value, ensure_ascii=False)
    made = ottla("produce", topic, "-s", form, "--schema", file, lines=f"{line}\n{json.dumps(bad)}\nno JSON\n")
    assert made.exit_code == 1
    assert "1 record to" in made.stderr
    assert "2 records were not stored; the first: record 2: the value does not fit schema" in made.stderr
    # The schema is registered now, so that its subject is enough.
    assert ottla("produce", topic, "-s", form, lines=f"{line}\n").exit_code == 0
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize, deserialize = confluent_serde(serde, text, client, topic)
        (message,) = stored(rest_broker, topic)
        assert deserialize(message.value()) == value
        send(rest_broker, topic, serialize(value))
    read = ottla("consume", topic, "-s", form, "-e")
    assert read.exit_code == 0, read.stderr
    assert [json.loads(each) for each in read.stdout.splitlines()] == [value] * 3
    envelope = json.loads(ottla("consume", topic, "-s", form, "-n", "1", "-o", "json").stdout)
    schema_id = int.from_bytes(message.value()[1:5])
    assert (envelope["payload"], envelope["value_schema_id"], envelope["offset"]) == (value, schema_id, 0)


def test_each_record_is_decoded_with_the_schema_that_wrote_it(ottla: Ottla, tmp_path: Path) -> None:
    create(ottla, "c-evolved")
    older, newer = write(tmp_path, "older", OLDER), write(tmp_path, "newer", USER)
    assert ottla("produce", "c-evolved", "-s", "avro", "--schema", older, lines='{"name":"a"}\n').exit_code == 0
    assert ottla("produce", "c-evolved", "-s", "avro", "--schema", newer, lines='{"name":"b"}\n').exit_code == 0
    first = json.loads(ottla("consume", "c-evolved", "-s", "avro", "-J", "-n", "1").stdout)["value_schema_id"]
    chosen = ottla("produce", "c-evolved", "-s", "avro", "--schema-id", str(first), lines='{"name":"c"}\n')
    assert chosen.exit_code == 0, chosen.stderr
    lines = ottla("consume", "c-evolved", "-s", "avro", "-e").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"name": "a"}, {"name": "b", "age": None}, {"name": "c"}]


def test_keys_have_a_schema_of_their_own_and_null_stays_null(ottla: Ottla, tmp_path: Path) -> None:
    create(ottla, "c-keys")
    words = ("-s", "key=avro", "--key-schema", write(tmp_path, "key", '"long"'), "--key-subject", "c-ids")
    words += ("-s", "json", "--schema", write(tmp_path, "value", OBJECT))
    made = ottla("produce", "c-keys", *words, "-K", ":", "-Z", lines='1:{"a":[]}\n2:\n')
    assert made.exit_code == 0, made.stderr
    read = ottla("consume", "c-keys", "-s", "key=avro", "-s", "value=json", "-e", "-Z", "-f", "%k %s\\n")
    assert read.stdout == '1 {"a":[]}\n2 NULL\n'
    rows = [json.loads(line) for line in ottla("consume", "c-keys", "-s", "key=avro", "-e", "-J").stdout.splitlines()]
    assert [(row["key"], "key_schema_id" in row) for row in rows] == [(1, True), (2, True)]


def test_bad_records_end_the_command_or_are_skipped(ottla: Ottla, rest_broker: BrokerProcess, tmp_path: Path) -> None:
    create(ottla, "c-bad")
    file = write(tmp_path, "schema", '"string"')
    assert ottla("produce", "c-bad", "-s", "avro", "--schema", file, lines='"first"\n').exit_code == 0
    (message,) = stored(rest_broker, "c-bad")
    framed = message.value()[:5]
    send(rest_broker, "c-bad", b"plain", b"\0\0\0\xff\xff\x00", framed + b"\x08ab", framed + b"\x02z")
    failed = ottla("consume", "c-bad", "-s", "avro", "-e")
    assert (failed.exit_code, failed.stdout) == (1, '"first"\n')
    assert "c-bad, partition 0, offset 1: the value does not begin with a schema id" in failed.stderr
    assert "--skip-bad" in failed.stderr
    skipped = ottla("consume", "c-bad", "-s", "avro", "-e", "--skip-bad")
    assert (skipped.exit_code, skipped.stdout) == (0, '"first"\n"z"\n')
    reasons = [line.partition("offset ")[2] for line in skipped.stderr.splitlines()]
    assert [reason[:1] for reason in reasons] == ["1", "2", "3"]
    assert "the registry has no schema 65535" in reasons[1]
    assert "the bytes end" in reasons[2]
    other = ottla("consume", "c-bad", "-s", "protobuf", "-e")
    assert (other.exit_code, other.stdout) == (1, "")
    assert "is AVRO, not PROTOBUF: use -s avro" in other.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("-s", "xml"), 2, "formats are avro, json, protobuf"),
        (("-s", "avro", "-s", "json"), 2, "two formats"),
        (("--schema-id", "1"), 2, "needs -s FORMAT"),
        (("-s", "avro", "--key-subject", "s"), 2, "needs -s key=FORMAT"),
        (("-s", "avro", "--schema-id", "1", "--subject", "s"), 2, "cannot be combined"),
        (("-s", "avro"), 3, "ottla schema register c-usage-value FILE"),
        (("-s", "avro", "--schema-id", "99999"), 3, "has no schema 99999"),
        (("-s", "avro", "--subject", "c-usage-json"), 2, "use -s json"),
    ],
)
def test_wrong_choice_of_a_schema_says_what_to_do(
    ottla: Ottla, registry: RegistryProcess, words: tuple[str, ...], code: int, text: str
) -> None:
    body = {"schema": OBJECT, "schemaType": "JSON"}
    registry.client.post(f"{registry.url}/subjects/c-usage-json/versions", json=body).raise_for_status()
    ottla("topic", "create", "c-usage", "-p", "1")
    result = ottla("produce", "c-usage", *words, lines="")
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr


def test_registry_that_does_not_answer_is_named(rest_broker: BrokerProcess, ottla: Ottla) -> None:
    create(ottla, "c-silent")
    words = ["produce", "c-silent", "-s", "avro", "-b", rest_broker.bootstrap, "-r", "http://127.0.0.1:1"]
    result = CliRunner().invoke(main, words, prog_name="ottla", input="")
    assert result.exit_code == 4
    assert "ottla registry" in result.stderr
