"""A cluster in memory, and a client of it that waits for nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster

from ottla.client import retrying
from ottla.client.cluster import Cluster


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(socket, "create_connection", cluster.connect)
    return cluster


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only when somebody sleeps."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retrying.time, "sleep", sleep)
    return now


@pytest.fixture
def cluster(fake: FakeCluster, clock: list[float]) -> Iterator[Cluster]:
    with Cluster("fake:9001,fake:9002", timeout_s=30.0) as opened:
        yield opened
