"""The input of a campaign: records that are produced while the broker runs, each acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from ottla.client.cluster import Cluster
from ottla.model.types import TopicPartition
from ottla.spark.encode import encode

PARTITIONS = 3
_BATCH_BYTES_MAX = 100_000


def produce(bootstrap: str, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes]) -> None:
    """Produce records, one after the other to the next partition; return when all are acknowledged."""
    now_ms = int(time.time() * 1000)
    with Cluster(bootstrap) as cluster, cluster.producer() as producer:
        for partition in range(PARTITIONS):
            batches = encode(
                pa.array(keys[partition::PARTITIONS], pa.binary()),
                pa.array(values[partition::PARTITIONS], pa.binary()),
                None, None, codec=0, batch_bytes_max=_BATCH_BYTES_MAX, now_ms=now_ms,
            )  # fmt: skip
            for batch in batches:
                producer.send(TopicPartition(topic, partition), batch.data)
