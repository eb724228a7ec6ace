"""The text of the metrics page: Prometheus can read it, it has a limit, and filling it lets other work run."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.env.metrics import SLICE_S, Histogram, Page, in_slices, label_text


def text_of(page: Page) -> str:
    return b"".join(page.pieces()).decode()


def series_of(page: Page) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text_of(page))
        for sample in family.samples
    }


def test_counters_gauges_and_labels_are_read_back() -> None:
    page = Page(100)
    page.counter("requests", "Requests.", 3, label_text(api="Fetch"))
    page.gauge("size", "Size.", 2.5)
    found = series_of(page)
    assert found["requests_total", (("api", "Fetch"),)] == 3
    assert found["size", ()] == 2.5
    assert "# TYPE requests_total counter\n" in text_of(page)


def test_histogram_is_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.002, 40.0):
        histogram.observe(seconds)
    page = Page(100)
    page.histogram("took", "Time.", histogram, label_text(api="Fetch"))
    found = series_of(page)
    assert found["took_bucket", (("api", "Fetch"), ("le", "0.0001"))] == 1
    assert found["took_bucket", (("api", "Fetch"), ("le", "30.0"))] == 2
    assert found["took_bucket", (("api", "Fetch"), ("le", "+Inf"))] == 3
    assert found["took_count", (("api", "Fetch"),)] == 3
    assert found["took_sum", (("api", "Fetch"),)] == pytest.approx(40.0021)


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "new\nline", "\\n", "ümlaut,}{", ""])
def test_any_text_can_be_a_label(name: str) -> None:
    page = Page(10)
    page.gauge("lag", "Lag.", 1, label_text(group=name, topic="t"))
    assert series_of(page)["lag", (("group", name), ("topic", "t"))] == 1


def test_value_that_is_not_known_is_nan() -> None:
    page = Page(10)
    page.gauge("age", "Age.", float("nan"))
    assert math.isnan(series_of(page)["age", ()])


def test_series_of_one_name_stand_together() -> None:
    page = Page(100)
    for number in range(3):
        page.gauge("a", "A.", number, label_text(n=number))
        page.gauge("b", "B.", number, label_text(n=number))
    names = [line.partition("{")[0] for line in text_of(page).splitlines() if "{" in line]
    assert names == ["a"] * 3 + ["b"] * 3


def test_full_page_counts_the_series_that_it_leaves_out() -> None:
    page = Page(10)
    for number in range(25):
        page.gauge("lag", "Lag.", number, label_text(group=number))
    assert page.is_full
    found = series_of(page)
    assert sum(name == "lag" for name, _ in found) == 10
    assert found["ottla_metrics_series_left_out", ()] == 15


def test_histogram_that_does_not_fit_is_left_out_as_a_whole() -> None:
    page = Page(10)
    page.histogram("took", "Time.", Histogram())
    found = series_of(page)
    assert not [name for name, _ in found if name.startswith("took")]
    assert found["ottla_metrics_series_left_out", ()] == 20


def test_long_page_comes_in_pieces() -> None:
    page = Page(10_000)
    for number in range(10_000):
        page.gauge("lag", "Lag.", number, label_text(group=number))
    pieces = page.pieces()
    assert len(pieces) >= 10
    assert len(series_of(page)) == 10_001


def test_other_work_runs_between_slices() -> None:
    async def scenario() -> int:
        turns = 0
        done = False

        async def count_turns() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        def steps() -> Iterator[None]:
            for _ in range(5):
                until = time.monotonic() + 1.5 * SLICE_S
                while time.monotonic() < until:
                    pass
                yield

        counting = asyncio.create_task(count_turns())
        await in_slices(steps())
        done = True
        await counting
        return turns

    assert asyncio.run(scenario()) >= 5
