"""The commit protocol on a fake cluster: its token topic, and leaders that show an older or a different log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from token_cluster import NAME, TOKENS, TokenCluster, staged

from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError
from ottla.model.records import Record, build_batch, iterate_records
from ottla.spark.commit import CommitProtocol, CommitSettings
from ottla.spark.commit_errors import CommitError, DriverFenced
from ottla.spark.tokens import TOKEN_PARTITIONS, TOKEN_TOPIC, require_token_topic


def protocol(do: Callable[[], None] = lambda: None, *, at: str = "claimed") -> CommitProtocol:
    """Return a driver that calls ``do`` at a step."""

    def checkpoint(step: str) -> None:
        if step == at:
            do()

    return CommitProtocol(
        lambda: Cluster("fake:9001,fake:9002", timeout_s=30.0), NAME, CommitSettings(), checkpoint=checkpoint
    )


def commit_batches(count: int) -> None:
    with protocol() as driver:
        for batch_id in range(count):
            driver.commit(batch_id, staged())


# -- claims ---------------------------------------------------------------------------------------------------------


def test_process_writes_one_claim_and_then_a_token_per_batch(fake_tokens: TokenCluster) -> None:
    commit_batches(3)
    commit_batches(0)
    assert fake_tokens.keys() == [b"\xffclaim:query", b"query", b"query", b"query"]


def test_claims_of_a_name_have_one_key_and_different_ids(fake_tokens: TokenCluster) -> None:
    for _ in range(2):
        with protocol() as driver:
            driver.commit(0, staged())
    claims = [
        record for batch in fake_tokens.log for record in iterate_records(batch) if record.key == b"\xffclaim:query"
    ]
    assert len({record.value for record in claims}) == len(claims) == 2
    assert fake_tokens.rows_written == 1


def test_leader_whose_high_watermark_lags_is_read_again_until_it_shows_the_claim(fake_tokens: TokenCluster) -> None:
    commit_batches(1)
    older_ends = [fake_tokens.log[:0], fake_tokens.log[:1], fake_tokens.log[:2], fake_tokens.log[:3]]

    def show_older_end(broker_id: int, request: Any) -> Any:
        fake_tokens.shown = {1: older_ends.pop()} if older_ends else {}
        return fake_tokens._ListOffsets(broker_id, request, 0)

    def lag() -> None:
        # Each attempt asks for the start and for the end of the log.
        fake_tokens.plan("ListOffsets", *[None, show_older_end] * (len(older_ends) + 1))

    with protocol(lag) as driver:
        assert driver.commit(0, staged()).again
    assert not older_ends
    assert fake_tokens.rows_written == 1


def test_deposed_leader_with_a_longer_log_is_not_believed(fake_tokens: TokenCluster) -> None:
    commit_batches(1)
    stranger = [build_batch([Record(timestamp=0, key=b"stranger", value=b"{}")])] * 9
    fake_tokens.shown[2] = [offset.to_bytes(8, "big") + batch[8:] for offset, batch in enumerate(stranger)]

    def name_the_deposed_leader() -> None:
        fake_tokens.leaders[TOKENS] = 2
        fake_tokens.plan("ListOffsets", 6)
        # Broker 2 answers the first question about the leader; the next ones have the truth.
        fake_tokens.plan("Metadata", None, name_the_leader)

    def name_the_leader(broker_id: int, request: Any) -> Any:
        fake_tokens.leaders[TOKENS] = 1
        return fake_tokens._Metadata(broker_id, request, 0)

    with protocol(name_the_deposed_leader) as driver:
        assert driver.commit(0, staged()).again
    assert {broker_id for broker_id, api, _, _ in fake_tokens.asked if api == "Fetch"} == {1, 2}
    assert fake_tokens.rows_written == 1


def test_claim_that_no_leader_shows_ends_with_the_timeout(fake_tokens: TokenCluster, clock: list[float]) -> None:
    commit_batches(1)
    older = list(fake_tokens.log)
    with (
        protocol(lambda: fake_tokens.shown.update({1: older})) as driver,
        pytest.raises(CommitError, match="does not show the claim of query") as raised,
    ):
        driver.commit(0, staged())
    assert "ottla topic describe __spark_commits" in str(raised.value)
    assert f"the log ends at {len(older)}" in str(raised.value)
    assert clock[0] > 1029
    assert fake_tokens.rows_written == 1
    fake_tokens.shown.clear()
    with protocol() as driver:
        assert driver.commit(0, staged()).again


def test_claim_that_is_not_acknowledged_stops_the_commit(fake_tokens: TokenCluster) -> None:
    with protocol(lambda: fake_tokens.plan("Produce", 29), at="fenced others") as driver, pytest.raises(BrokerError):
        driver.commit(0, staged())
    assert fake_tokens.rows_written == 0


def test_driver_that_was_fenced_after_its_claim_writes_nothing(fake_tokens: TokenCluster) -> None:
    with (
        protocol(lambda: fake_tokens.plan("Produce", 47), at="read token") as driver,
        pytest.raises(DriverFenced, match="another driver"),
    ):
        driver.commit(0, staged())
    assert fake_tokens.rows_written == 0


# -- the token topic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("brokers", "factor", "in_sync_min"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")])
def test_token_topic_is_created_with_explicit_settings(
    fake_tokens: TokenCluster, token_client: Cluster, brokers: int, factor: int, in_sync_min: str
) -> None:
    fake_tokens.brokers = brokers
    require_token_topic(token_client, "tokens")
    (topic,) = fake_tokens.created
    assert (topic.num_partitions, topic.replication_factor) == (TOKEN_PARTITIONS, factor)
    assert {config.name: config.value for config in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": in_sync_min,
        "segment.bytes": str(16 << 20),
    }


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact", "", None])
def test_token_topic_that_would_lose_tokens_is_rejected(
    fake_tokens: TokenCluster, token_client: Cluster, policy: Any
) -> None:
    fake_tokens.policy = policy
    with pytest.raises(CommitError, match=r"ottla topic alter __spark_commits --config cleanup\.policy=compact"):
        require_token_topic(token_client, TOKEN_TOPIC)


def test_compacted_token_topic_is_accepted(fake_tokens: TokenCluster, token_client: Cluster) -> None:
    require_token_topic(token_client, TOKEN_TOPIC)
    assert not fake_tokens.created


def test_token_topic_that_another_driver_created_at_the_same_time_is_checked(
    fake_tokens: TokenCluster, token_client: Cluster
) -> None:
    fake_tokens.policy = "delete"
    fake_tokens.plan("CreateTopics", 36)
    with pytest.raises(CommitError, match=r"cleanup\.policy=delete"):
        require_token_topic(token_client, "tokens")


def test_client_that_may_not_read_the_settings_of_the_topic_gets_advice(
    fake_tokens: TokenCluster, token_client: Cluster
) -> None:
    fake_tokens.describe_error = 29
    with pytest.raises(CommitError, match="allow DescribeConfigs on __spark_commits"):
        require_token_topic(token_client, TOKEN_TOPIC)
