"""Orders of a topic, as a streaming table of Spark, and from there to another topic and to a Delta table."""

import os

from pyspark import pipelines as dp

# spark-pipelines defines the name `spark` in this file.
CLUSTER = {"kafka.bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP_SERVER", "127.0.0.1:9092")}
FIELDS = "id BIGINT, country STRING, amount DECIMAL(10, 2)"


@dp.table(comment="Orders that could be decoded")
def orders():
    options = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"}
    records = spark.readStream.format("ottla").options(**CLUSTER, **options).load()  # noqa: F821
    rows = records.selectExpr(f"from_json(CAST(value AS STRING), '{FIELDS}') AS fields", "timestamp AS ordered_at")
    return rows.selectExpr("fields.*", "ordered_at").where("id IS NOT NULL")


dp.create_sink("large_orders", "ottla", {**CLUSTER, "topic": "orders.large"})


@dp.append_flow(target="large_orders")
def write_large_orders():
    rows = spark.readStream.table("orders").where("amount >= 100")  # noqa: F821
    return rows.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(id, country, amount)) AS value")


dp.create_sink("orders_in_the_lake", "ottla-table", {"path": os.path.abspath("lake/orders"), "partitionBy": "country"})


@dp.append_flow(target="orders_in_the_lake")
def write_orders_to_the_lake():
    return spark.readStream.table("orders")  # noqa: F821
