"""Objects that survive a long garbage collection are not visited again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ottla.env import collector
from ottla.env.collector import FreezeSurvivors, collect_less_often, freeze_objects


@pytest.fixture
def installed() -> Iterator[FreezeSurvivors]:
    callback = FreezeSurvivors()
    gc.unfreeze()
    callback.install()
    yield callback
    gc.callbacks.remove(callback)
    # As it was: the modules of all tests are frozen.
    freeze_objects()


@pytest.mark.usefixtures("installed")
def test_survivors_of_a_long_collection_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LONG_S", 0.0)
    kept = [[number] for number in range(1000)]
    gc.collect()
    assert gc.get_freeze_count() >= len(kept)


@pytest.mark.usefixtures("installed")
def test_short_and_partial_collections_freeze_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LONG_S", 3600.0)
    gc.collect()
    monkeypatch.setattr(collector, "LONG_S", 0.0)
    gc.collect(1)
    assert gc.get_freeze_count() == 0


def test_collections_start_later() -> None:
    before = gc.get_threshold()
    gc.unfreeze()
    try:
        collect_less_often()
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
