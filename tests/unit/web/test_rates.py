"""Buckets of tokens."""

from __future__ import annotations

import pytest

from ottla.edge.web import rates
from ottla.edge.web.rates import Rates


def test_key_may_use_its_burst_and_then_its_rate() -> None:
    now = 0.0
    limited = Rates(per_s=2.0, burst_s=2.0, now=lambda: now)
    assert [limited.take("a") for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert limited.take("b") == 0.0
    now = 0.5
    assert limited.take("a") == 0.0
    assert limited.take("a") == 0.5
    now = 100.0
    assert [limited.take("a") == 0.0 for _ in range(5)] == [True] * 4 + [False]


def test_debt_takes_longer() -> None:
    limited = Rates(per_s=10.0, now=lambda: 0.0)
    limited.spend("a", 31.0)
    assert limited.wait_s("a") == pytest.approx(2.2)


def test_number_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_KEYS_MAX", 3)
    limited = Rates(per_s=1.0, now=lambda: 0.0)
    for key in "abcd":
        limited.take(key)
    assert list(limited._buckets) == ["b", "c", "d"]
