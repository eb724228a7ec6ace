"""Rates of a group, and when it will have caught up."""

from __future__ import annotations

import pytest

from ottla.lag.forecast import Forecast, Sample, Trend, forecast


def samples(*rows: tuple[float, int, int]) -> list[Sample]:
    """Seconds, committed offset, end."""
    return [Sample(int(at_s * 1000), committed, end) for at_s, committed, end in rows]


def test_a_group_that_gains_on_the_producers_catches_up() -> None:
    found = forecast(samples((0, 0, 1000), (10, 300, 1200), (20, 600, 1400)))
    assert (found.consumed_per_s, found.produced_per_s) == (30, 20)
    assert found.caught_up_in_s == pytest.approx(80)
    assert (found.trend, found.is_never) == (Trend.FALLING, False)


def test_a_group_that_is_as_fast_as_the_producers_never_catches_up() -> None:
    found = forecast(samples((0, 0, 1000), (10, 200, 1200)))
    assert (found.caught_up_in_s, found.is_never, found.trend) == (None, True, Trend.STEADY)


def test_a_group_that_falls_behind_never_catches_up() -> None:
    found = forecast(samples((0, 0, 1000), (10, 100, 1200)))
    assert (found.caught_up_in_s, found.is_never, found.trend) == (None, True, Trend.RISING)


def test_a_group_at_the_end_has_caught_up() -> None:
    assert forecast(samples((0, 0, 10), (10, 30, 30))).caught_up_in_s == 0
    assert forecast(samples((0, 30, 30))) == Forecast(trend=Trend.UNKNOWN, caught_up_in_s=0.0)


def test_one_sample_has_no_rate() -> None:
    assert forecast([]) == forecast(samples((0, 0, 10))) == Forecast(trend=Trend.UNKNOWN)


def test_samples_before_a_reset_do_not_count() -> None:
    found = forecast(samples((0, 900, 1000), (10, 0, 1000), (20, 100, 1000)))
    assert found.consumed_per_s == 10
    assert found.caught_up_in_s == pytest.approx(90)


def test_samples_before_the_topic_was_created_again_do_not_count() -> None:
    assert forecast(samples((0, 900, 1000), (10, 900, 5))).trend is Trend.UNKNOWN


def test_a_wait_of_more_than_a_year_is_never() -> None:
    assert forecast(samples((0, 0, 10**12), (10, 10, 10**12))).is_never


def test_a_clock_that_goes_back_starts_a_new_window() -> None:
    assert forecast(samples((10, 0, 10), (5, 5, 10), (15, 7, 10))).consumed_per_s == pytest.approx(0.2)
