"""A cluster in memory, and a client of it that waits for nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster
from token_cluster import TokenCluster

from ottla.client.cluster import Cluster


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(socket, "create_connection", cluster.connect)
    return cluster


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only when the thread of the test sleeps. Threads that other tests left have the real time."""
    now = [1000.0]
    tester = threading.get_ident()
    real_monotonic, real_sleep = time.monotonic, time.sleep

    def monotonic() -> float:
        return now[0] if threading.get_ident() == tester else real_monotonic()

    def sleep(seconds: float) -> None:
        if threading.get_ident() != tester:
            return real_sleep(seconds)
        now[0] += seconds
        return None

    monkeypatch.setattr(time, "monotonic", monotonic)
    monkeypatch.setattr(time, "sleep", sleep)
    return now


@pytest.fixture
def cluster(fake: FakeCluster, clock: list[float]) -> Iterator[Cluster]:
    with Cluster("fake:9001,fake:9002", timeout_s=30.0) as opened:
        yield opened


@pytest.fixture
def fake_tokens(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> TokenCluster:
    cluster = TokenCluster()
    monkeypatch.setattr(socket, "create_connection", cluster.connect)
    return cluster


@pytest.fixture
def token_client(fake_tokens: TokenCluster) -> Iterator[Cluster]:
    with Cluster("fake:9001,fake:9002", timeout_s=30.0) as opened:
        yield opened
