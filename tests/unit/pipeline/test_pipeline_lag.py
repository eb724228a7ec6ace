"""Lag between batches: end offsets are renewed while a flow is idle."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ottla.client.cluster import OffsetAt
from ottla.client.errors import ClusterUnreachable
from ottla.model.types import TopicPartition
from ottla.pipeline.lag import EndOffsets, merge_offsets

_A0, _A1, _B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
_WAIT_S_MAX = 60.0


class Topics:
    """Stands for `Cluster`: topic `a` has news, topic `b` cannot be asked."""

    def __init__(self) -> None:
        self.rounds = threading.Semaphore(0)
        self.is_closed = threading.Event()

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation: Any) -> dict[TopicPartition, OffsetAt]:
        if _B0 in wanted:
            self.rounds.release()
            raise ClusterUnreachable("b:1", "connection refused")
        return {tp: OffsetAt(100, -1) for tp in wanted}

    def close(self) -> None:
        self.is_closed.set()


def test_lag_grows_while_no_batch_runs_and_an_unknown_topic_does_not_hinder_others() -> None:
    topics = Topics()
    with EndOffsets(lambda: topics, every_s=0.0) as ends:  # type: ignore[arg-type, return-value]
        # As a batch reports it: everything there was has been read.
        ends.note({_A0: 40, _A1: 50, _B0: 7})
        for _ in range(2):
            assert topics.rounds.acquire(timeout=_WAIT_S_MAX)
        assert ends.lag({_A0: 40, _A1: 50, _B0: 7}) == 60 + 50
        assert ends.lag({_B0: 5}) == 2
        assert ends.lag({_A0: 120}) == 0, "a batch may have read beyond the ends that were asked for before"
        assert ends.lag({}) == 0
    assert topics.is_closed.wait(_WAIT_S_MAX)


def test_partition_that_two_sources_of_a_query_read_counts_once_from_the_smaller_offset() -> None:
    assert merge_offsets([{_A0: 5, _A1: 6}, {_A0: 3}, {}]) == {_A0: 3, _A1: 6}
