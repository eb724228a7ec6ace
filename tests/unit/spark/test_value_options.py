"""Options for values with schemas of a registry: names, defaults, and what excludes what."""

from __future__ import annotations

import pytest

from ottla.spark.named_tables import NamedTables
from ottla.spark.option_table import TOPIC_OPTIONS
from ottla.spark.options import OptionError, ReadOptions
from ottla.spark.registry_schemas import ENVIRONMENT, RegistrySettings
from ottla.spark.value_options import ValueOptions
from ottla.spark.write_options import WriteOptions

CLUSTER = {"kafka.bootstrap.servers": "a:1"}
AVRO = {"value.format": "avro", "schema.registry.url": "http://r:1"}


def read(**options: str) -> ValueOptions | None:
    return ReadOptions.parse({**CLUSTER, "subscribe": "orders", **options}, stream=False).values


def write(**options: str) -> ValueOptions | None:
    return WriteOptions.parse({**CLUSTER, "topic": "orders", **options}, stream=True).values


def test_values_stay_bytes_by_default() -> None:
    assert read() is None
    assert write(**{"value.format": "bytes"}) is None


def test_subject_is_that_of_the_topic_and_the_latest_version_is_read() -> None:
    expected = ValueOptions(
        schema_type="AVRO", registry=RegistrySettings("http://r:1"), subject="orders-value", version="latest",
        message=None, schema=None, auto_register=True, use_latest=False,
    )  # fmt: skip
    assert read(**AVRO) == write(**AVRO) == expected
    assert ValueOptions.of_reader({**CLUSTER, **AVRO, "Subscribe": "orders"}) == expected
    found = read(**AVRO, **{"Schema.Registry.Subject": "s", "schema.registry.version": "3"})
    assert found is not None and (found.subject, found.version) == ("s", "3")


def test_options_of_serializers_have_confluents_names() -> None:
    found = write(**AVRO, **{"auto.register.schemas": "false", "use.latest.version": "true"})
    assert found is not None and (found.auto_register, found.use_latest) == (False, True)
    found = write(**AVRO, **{"use.latest.version": "true"})
    assert found is not None and found.use_latest


def test_password_is_not_shown() -> None:
    found = ReadOptions.parse(
        {**CLUSTER, **AVRO, "subscribe": "t", "schema.registry.basic.auth.user.info": "ada:geheim"}, stream=True
    )
    assert found.values is not None and found.values.registry.properties == (("basic.auth.user.info", "ada:geheim"),)
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
        ({"schema.registry.url": "http://r:1"}, "schema.registry.url needs value.format"),
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
