"""A span for each batch of a flow, for `ottla pipeline run --traces`.

The driver does not see the records, so a batch is a trace of its own. Its attributes have the offsets that it has read:
a record with a trace of its own is found by topic, partition and offset.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from ottla.env.tracing import Spans
from ottla.spark.offsets import PartitionOffsets
from ottla.spark.progress import offsets_of

#: partitions whose offsets are named
_PARTITIONS_MAX: Final = 20


class BatchTraces:
    """Makes spans of the progress that Spark reports after each batch. Called from one thread."""

    def __init__(self, spans: Spans, pipeline: str) -> None:
        self._spans = spans
        self._pipeline = pipeline

    def note(self, flow: str, progress: Any) -> None:
        """A batch has ended. A batch without rows is no span."""
        if not progress.numInputRows or not self._spans.wants(None):
            return
        began = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).astimezone(UTC)
        began_ns = int(began.timestamp() * 1000) * 1_000_000
        phases = dict(progress.durationMs or {})
        took_ms = int(phases.get("triggerExecution", sum(phases.values())))
        attributes: dict[str, str | int | float | bool] = {
            "ottla.pipeline": self._pipeline,
            "ottla.flow": flow,
            "ottla.batch": int(progress.batchId),
            "ottla.rows": int(progress.numInputRows),
        }
        attributes |= {f"ottla.{name}.ms": int(value) for name, value in phases.items()}
        if text := _ranges(progress.sources):
            attributes["ottla.offsets"] = text
        self._spans.begin(f"batch {flow}", began_ns, attributes).end(began_ns + took_ms * 1_000_000)


def _ranges(sources: Any) -> str:
    """Return the offsets that a batch has read, such as `orders-0: 5 to 9`, the last one not included."""
    starts, ends = PartitionOffsets(), PartitionOffsets()
    for source in sources:
        starts.update(offsets_of(source.description, source.startOffset))
        ends.update(offsets_of(source.description, source.endOffset))
    moved = [(name, starts.get(name, 0), end) for name, end in ends.items() if end != starts.get(name, 0)]
    words = [f"{name}: {start} to {end}" for name, start, end in moved[:_PARTITIONS_MAX]]
    return ", ".join(words) + (f" and {len(moved) - len(words)} more" if len(moved) > len(words) else "")
