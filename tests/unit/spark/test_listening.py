"""Progress as Spark writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from ottla.spark.spark_internals import read_progress

_ID = "6f1a3f0e-9d5c-4d0e-8f39-1c1f6b6a2f11"


def progress_text(**more: Any) -> str:
    source = {"description": "d", "startOffset": None, "endOffset": {"t": {"0": 5}}, "latestOffset": None}
    document = {
        "id": _ID, "runId": _ID, "timestamp": "2026-01-05T08:00:00.000Z", "batchId": 0, "batchDuration": 3,
        "numInputRows": 5, "stateOperators": [], "sink": {"description": "s", "numOutputRows": -1},
        "sources": [{**source, "numInputRows": 5, "processedRowsPerSecond": 7.0}],
    }  # fmt: skip
    return json.dumps({**document, **more})


def test_the_first_progress_of_a_query_has_no_rates_and_no_start() -> None:
    progress = read_progress(progress_text())
    (source,) = progress.sources
    assert (progress.name, progress.inputRowsPerSecond, progress.eventTime) == (None, 0.0, {})
    assert (source.startOffset, source.latestOffset, source.inputRowsPerSecond) == (None, None, 0.0)


def test_offsets_are_the_text_that_a_source_reads() -> None:
    (source,) = read_progress(progress_text(name="orders")).sources
    assert json.loads(source.endOffset) == {"t": {"0": 5}}


def test_the_watermark_is_told() -> None:
    mark = {"watermark": "2026-01-05T08:10:00.000Z"}
    assert read_progress(progress_text(eventTime=mark)).eventTime == mark
