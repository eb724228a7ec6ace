"""The spans of batches, from the progress that Spark reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.env.tracing import Context
from ottla.model.settings_traces import is_endpoint_url
from ottla.pipeline.traces import BatchTraces


class Spans:
    """Keeps spans as name, attributes, start and end."""

    def __init__(self) -> None:
        self.found: list[list[Any]] = []

    def wants(self, parent: Context | None) -> bool:
        return True

    def begin(self, name: str, at_ns: int, attributes: Mapping[str, Any], parent: Context | None = None) -> Any:
        row = [name, dict(attributes), at_ns]
        self.found.append(row)
        return SimpleNamespace(context=Context(1, 2), end=lambda at_ns, error="": row.append(at_ns))

    def close(self) -> None:
        """Do nothing."""


def source(start: str | None, end: str | None, description: str = "PythonMicroBatchStream") -> SimpleNamespace:
    return SimpleNamespace(description=description, startOffset=start, endOffset=end)


def progress(*sources: SimpleNamespace, rows: int = 7) -> SimpleNamespace:
    return SimpleNamespace(
        numInputRows=rows, batchId=3, timestamp="2026-11-19T10:00:00.250Z", sources=sources,
        durationMs={"triggerExecution": 1500, "addBatch": 1200, "queryPlanning": 90},
    )  # fmt: skip


def test_batch_is_a_span_with_the_offsets_that_it_has_read() -> None:
    spans = Spans()
    read = source('{"orders":{"0":5,"1":2}}', '{"orders":{"0":9,"1":2,"2":3}}')
    BatchTraces(spans, "shop").note("bronze", progress(read, source("0", "1", "DeltaSource")))
    ((name, attributes, began_ns, ended_ns),) = spans.found
    assert name == "batch bronze"
    assert began_ns == 1_795_082_400_250_000_000 and ended_ns - began_ns == 1_500_000_000
    assert attributes["ottla.offsets"] == "orders-0: 5 to 9, orders-2: 0 to 3"
    assert (attributes["ottla.pipeline"], attributes["ottla.flow"]) == ("shop", "bronze")
    assert (attributes["ottla.batch"], attributes["ottla.rows"], attributes["ottla.addBatch.ms"]) == (3, 7, 1200)


def test_first_batch_has_no_start_offsets() -> None:
    spans = Spans()
    BatchTraces(spans, "shop").note("bronze", progress(source(None, '{"orders":{"0":9}}')))
    assert spans.found[0][1]["ottla.offsets"] == "orders-0: 0 to 9"


def test_batch_without_rows_is_no_span() -> None:
    spans = Spans()
    BatchTraces(spans, "shop").note("bronze", progress(rows=0))
    assert spans.found == []


def test_number_of_named_partitions_is_bounded() -> None:
    spans = Spans()
    ends = ",".join(f'"{number}":1' for number in range(1000))
    BatchTraces(spans, "shop").note("bronze", progress(source(None, f'{{"orders":{{{ends}}}}}')))
    assert spans.found[0][1]["ottla.offsets"].endswith(" and 980 more")


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("http://127.0.0.1:4318", True), ("https://collector.example/otlp", True), ("localhost:4318", False),
        ("file:///etc/passwd", False), ("http://user:secret@host", False), ("http://host:99999", False), ("", False),
    ],
)  # fmt: skip
def test_endpoint_is_an_address_of_http_without_credentials(text: str, is_valid: bool) -> None:
    assert is_endpoint_url(text) is is_valid
