"""Options that are changed between two batches take effect although the committing process lives on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from token_cluster import TokenCluster, staged

from ottla.spark import sink
from ottla.spark.commit_errors import BatchTooLarge, TransactionTimedOut
from ottla.spark.write_options import WriteOptions

NAME = "query"
SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(autouse=True)
def no_protocols(fake_tokens: TokenCluster) -> Iterator[None]:
    """A process that has committed no batch."""
    sink._protocols.clear()
    yield
    for _, protocol, _ in sink._protocols.values():
        protocol.close()
    sink._protocols.clear()


def commit(batch_id: int, **changed: str) -> None:
    """Commit one batch as a foreachBatch function does, with these options."""
    options = {
        "kafka.bootstrap.servers": "fake:9001", "topic": "t", "ottla.sink.name": NAME, "ottla.batch.id": str(batch_id),
        **{name.replace("_", "."): value for name, value in changed.items()},
    }  # fmt: skip
    writer = sink.BatchWriter(WriteOptions.parse(options, stream=False), SCHEMA, overwrite=False)
    writer.commit([sink.StagedMessage(staged=task) for task in staged()])


def timeouts(fake: TokenCluster) -> list[int]:
    return [request.transaction_timeout for request in fake.requests("InitProducerId")]


def test_same_options_keep_the_producer(fake_tokens: TokenCluster) -> None:
    for batch_id in range(3):
        commit(batch_id, kafka_transaction_timeout_ms="1000")
    assert timeouts(fake_tokens) == [1000]
    assert fake_tokens.rows_written == 3


def test_longer_transaction_timeout_is_used_by_the_next_commit(fake_tokens: TokenCluster) -> None:
    commit(0, kafka_transaction_timeout_ms="1000")
    commit(1, kafka_transaction_timeout_ms="2000")
    commit(2, kafka_transaction_timeout_ms="2000")
    assert timeouts(fake_tokens) == [1000, 2000]
    assert fake_tokens.rows_written == 3
    assert len(sink._protocols) == 1


def test_producer_that_was_idle_for_long_is_made_anew(
    fake_tokens: TokenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have closed its connection."""
    commit(0)
    monkeypatch.setattr(sink, "_PROTOCOL_AGE_S_MAX", -1.0)
    commit(1)
    assert len(timeouts(fake_tokens)) == 2
    assert fake_tokens.rows_written == 2


def test_forgotten_producer_is_made_anew(fake_tokens: TokenCluster) -> None:
    """A check of the driver has fenced it."""
    commit(0)
    sink.forget_protocol("other")
    commit(1)
    sink.forget_protocol(NAME)
    commit(2)
    assert len(timeouts(fake_tokens)) == 2
    assert fake_tokens.rows_written == 3


def test_changed_connection_property_is_used_by_the_next_commit(fake_tokens: TokenCluster) -> None:
    commit(0)
    commit(1, kafka_client_id="other")
    assert len(timeouts(fake_tokens)) == 2


def test_batch_that_was_too_large_is_committed_with_the_limit_that_the_error_names(fake_tokens: TokenCluster) -> None:
    with pytest.raises(BatchTooLarge) as raised:
        commit(0, ottla_transaction_bytes_max="10")
    size_bytes = sum(task.size_bytes for task in staged())
    assert f"ottla.transaction.bytes.max to at least {size_bytes}" in str(raised.value)
    assert "maxOffsetsPerTrigger makes only later batches smaller" in str(raised.value)
    assert fake_tokens.rows_written == 0
    commit(0, ottla_transaction_bytes_max=str(size_bytes))
    assert fake_tokens.rows_written == 1


def test_limit_is_not_applied_to_a_batch_that_is_committed_already(fake_tokens: TokenCluster) -> None:
    commit(0)
    sink._protocols.clear()
    commit(0, ottla_transaction_bytes_max="10")
    assert fake_tokens.rows_written == 1


def test_transaction_that_timed_out_is_committed_with_a_longer_timeout(
    fake_tokens: TokenCluster, clock: list[float]
) -> None:
    def end_transaction(broker_id: int, request: object) -> object:
        clock[0] += 2.0
        return fake_tokens._Produce(broker_id, request, 47)

    # The first Produce request is the claim.
    fake_tokens.plan("Produce", None, end_transaction)
    with pytest.raises(TransactionTimedOut) as raised:
        commit(0, kafka_transaction_timeout_ms="1000")
    assert "Raise option kafka.transaction.timeout.ms" in str(raised.value)
    assert "The checkpoint fixes the source offsets of this batch" in str(raised.value)
    assert fake_tokens.rows_written == 0
    commit(0, kafka_transaction_timeout_ms="9000")
    assert fake_tokens.rows_written == 1
