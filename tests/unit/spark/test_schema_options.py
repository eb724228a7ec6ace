"""Options for keys and values with schemas of a registry: names, defaults, and what excludes what."""

from __future__ import annotations

import pytest

from ottla.spark.named_tables import NamedTables
from ottla.spark.option_table import TOPIC_OPTIONS
from ottla.spark.options import OptionError, ReadOptions
from ottla.spark.registry_schemas import ENVIRONMENT, RegistrySettings
from ottla.spark.schema_options import SchemaOptions, schema_options_of_reader
from ottla.spark.write_options import WriteOptions

CLUSTER = {"kafka.bootstrap.servers": "a:1"}
AVRO = {"value.format": "avro", "schema.registry.url": "http://r:1"}


def read(**options: str) -> tuple[SchemaOptions, ...]:
    return ReadOptions.parse({**CLUSTER, "subscribe": "orders", **options}, stream=False).schemas


def write(**options: str) -> tuple[SchemaOptions, ...]:
    return WriteOptions.parse({**CLUSTER, "topic": "orders", **options}, stream=True).schemas


def test_keys_and_values_stay_bytes_by_default() -> None:
    assert read() == write(**{"value.format": "bytes", "key.format": "bytes"}) == ()


def test_subject_is_that_of_the_topic_and_the_latest_version_is_read() -> None:
    expected = SchemaOptions(
        part="value", schema_type="AVRO", registry=RegistrySettings("http://r:1"), subject="orders-value",
        version="latest", message=None, schema=None, auto_register=True, use_latest=False,
    )  # fmt: skip
    assert read(**AVRO) == write(**AVRO) == (expected,)
    assert schema_options_of_reader({**CLUSTER, **AVRO, "Subscribe": "orders"}) == (expected,)
    [found] = read(**AVRO, **{"Schema.Registry.Subject": "s", "schema.registry.version": "3"})
    assert (found.subject, found.version) == ("s", "3")


def test_keys_have_options_of_their_own_and_share_the_registry() -> None:
    [value, key] = read(**AVRO, **{"key.format": "json"})
    assert (value.part, value.subject, value.schema_type) == ("value", "orders-value", "AVRO")
    assert (key.part, key.subject, key.version, key.schema_type) == ("key", "orders-key", "latest", "JSON")
    assert key.registry == value.registry
    only = {"key.format": "protobuf", "key.subject": "s", "key.version": "2", "key.message": "a.K"}
    [key] = schema_options_of_reader({**CLUSTER, "subscribe": "a,b", "schema.registry.url": "http://r:1", **only})
    assert (key.part, key.subject, key.version, key.message) == ("key", "s", "2", "a.K")
    [key] = write(**{"key.format": "avro", "key.schema": '"long"', "schema.registry.url": "http://r:1"})
    assert (key.subject, key.schema, key.auto_register) == ("orders-key", '"long"', True)


def test_options_of_serializers_have_confluents_names() -> None:
    [found] = write(**AVRO, **{"auto.register.schemas": "false", "use.latest.version": "true"})
    assert (found.auto_register, found.use_latest) == (False, True)
    [found] = write(**AVRO, **{"use.latest.version": "true"})
    assert found.use_latest


def test_password_is_not_shown() -> None:
    found = ReadOptions.parse(
        {**CLUSTER, **AVRO, "subscribe": "t", "schema.registry.basic.auth.user.info": "ada:geheim"}, stream=True
    )
    assert found.schemas[0].registry.properties == (("basic.auth.user.info", "ada:geheim"),)
    assert "geheim" not in repr(found)


def test_create_table_refuses_to_store_a_password() -> None:
    tables = NamedTables("ottla", TOPIC_OPTIONS, identity="kafka.bootstrap.servers", prefixes=("kafka.",))
    given = {"provider": "ottla", "option.schema.registry.basic.auth.user.info": "ada:geheim"}
    with pytest.raises(OptionError, match=r"would store the option schema\.registry\.basic"):
        tables.creation_options(given)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"value.format": "xml"}, "value.format is one of bytes, avro, json, protobuf, not 'xml'"),
        ({"schema.registry.url": "http://r:1"}, "schema.registry.url needs value.format or key.format"),
        ({"key.format": "text"}, "key.format is one of bytes, avro, json, protobuf, not 'text'"),
        ({**AVRO, "key.subject": "s"}, "key.subject needs key.format"),
        ({**AVRO, "key.format": "avro", "key.version": "x"}, "key.version is latest or a number above zero"),
        ({**AVRO, "schema.registry.version": "0"}, "latest or a number above zero"),
        ({**AVRO, "schema.registry.url": "r:1"}, "not the address of a schema registry"),
        ({**AVRO, "subscribe": "a,b"}, "several topics have no subject in common"),
        ({**AVRO, "schema.registry.basic.auth.user.info": "ada"}, "must be USER:PASSWORD"),
    ],
)
def test_wrong_option_of_a_reader_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        read(**options)


def test_wrong_option_of_a_writer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="exclude each other"):
        write(**AVRO, **{"auto.register.schemas": "true", "use.latest.version": "true"})
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(OptionError, match=r"set schema\.registry\.url, or OTTLA_REGISTRY"):
        write(**{"value.format": "json"})
