"""The harness of this directory notices what it is there to notice."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
from tests.hostile.bystander import Bystander
from tests.hostile.harness import GROWTH_BYTES_MAX, MIB, Attacked, Report

from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire.messages.metadata import MetadataRequest

GOOD = Report(
    rounds=1, requests=3, worst_ms=1.0, worst_api="Fetch", worst_cpu_ms=0.0, growth_bytes=0, alive=True, log=""
)


class FakeClient:
    def ask(self, request: Any, version: int) -> None:
        pass


@pytest.mark.broker
def test_bystander_and_memory_are_measured_during_an_attack() -> None:
    with Attacked() as target:
        with RawClient(target.bootstrap) as client:
            client.create_topic("filled")
            for _ in range(10):
                client.ask(produce_request(("filled", 0, batch_of(b"x" * 900_000))), 9)
        report = target.report()
        report.check()
        assert report.requests == 3 * report.rounds
        assert report.worst_ms > 0
        target.measure()
        assert target.report().growth_bytes < 10 * MIB


def test_bystander_keeps_its_worst_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = Bystander(FakeClient(), os.getpid())
    for took_s in (0.001, 0.25, 0.002):
        times = iter([10.0, 10.0 + took_s])
        monkeypatch.setattr("tests.hostile.bystander.time.monotonic", lambda times=times: next(times))
        bystander.timed(f"took {took_s}", MetadataRequest(topics=[]), 9)
    assert (bystander.requests, bystander.worst_api) == (3, "took 0.25")
    assert bystander.worst_ms == pytest.approx(250)


def test_check_rejects_what_a_busy_machine_cannot_explain() -> None:
    GOOD.check()
    for change in ({"alive": False}, {"log": "Traceback"}, {"rounds": 0}, {"growth_bytes": GROWTH_BYTES_MAX}):
        with pytest.raises(AssertionError):
            dataclasses.replace(GOOD, **change).check()


def test_latency_counts_only_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = dataclasses.replace(GOOD, worst_ms=250.0)
    monkeypatch.setattr("tests.hostile.harness.STRICT", False)
    slow.check()
    monkeypatch.setattr("tests.hostile.harness.STRICT", True)
    with pytest.raises(AssertionError, match="Fetch took 250 ms"):
        slow.check()
