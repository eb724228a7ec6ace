"""Spark's source and sink, and its own Kafka connector, over SASL_SSL with the settings of `ottla security init`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.secure import SecureBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path_factory.mktemp("secured") / "data")
    try:
        admin = AdminClient(broker.with_password())
        for created in admin.create_topics([NewTopic(name, 2, 1) for name in ("ottla", "kafka")]).values():
            created.result(60)
        yield broker
    finally:
        broker.close()


def write_and_read(spark: SparkSession, name: str, options: dict[str, str]) -> None:
    rows = spark.range(20).selectExpr("cast(id as string) as value").coalesce(1)
    rows.write.format(name).options(**options).option("topic", name).mode("append").save()
    read = spark.read.format(name).options(**options).option("subscribe", name).load()
    assert sorted(int(row.value) for row in read.selectExpr("cast(value as string) as value").collect()) == [*range(20)]


def test_source_and_sink_work_over_sasl_ssl(spark: SparkSession, secured: SecureBroker) -> None:
    write_and_read(spark, "ottla", secured.spark_options())


def test_jvm_connector_works_over_sasl_ssl(spark: SparkSession, secured: SecureBroker, kafka_connector: str) -> None:
    write_and_read(spark, kafka_connector, secured.spark_options())
