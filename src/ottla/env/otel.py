"""Exports spans with OpenTelemetry, over OTLP and HTTP. The only file that imports its packages (extra `otel`).

A thread of the SDK sends the spans. Its queue is bounded: while the endpoint is slow or away, spans are dropped, and
nothing else waits. `close` sends what is queued, for at most some seconds. Headers and certificates for the endpoint
are taken from OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import random
import time
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

import ottla
from ottla.env.tracing import Attributes, Context, Sampling, Span

#: spans that wait to be sent; further ones are dropped
QUEUE_MAX: Final = 2048
_BATCH_MAX: Final = 512
_DELAY_MS: Final = 1000
_SEND_S_MAX: Final = 5.0
_FLUSH_MS_MAX: Final = 5000
#: characters of an attribute: names come from clients
_TEXT_MAX: Final = 512
_PATH: Final = "/v1/traces"


class OtelSpans:
    """Begins and exports spans of one process."""

    def __init__(
        self, endpoint: str, *, service: str, instance: str, ratio: float = 1.0, per_second_max: int = 1_000_000
    ) -> None:
        """``endpoint`` is the address of a collector, such as http://127.0.0.1:4318."""
        resource = Resource.create(
            {"service.name": service, "service.instance.id": instance, "service.version": ottla.__version__}
        )
        # Requests are chosen before there is a span, so that one that is not traced costs nothing more.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        address = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(
            address if address.endswith(_PATH) else f"{address}{_PATH}",
            timeout=_SEND_S_MAX,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter, max_queue_size=QUEUE_MAX, schedule_delay_millis=_DELAY_MS,
                max_export_batch_size=_BATCH_MAX, export_timeout_millis=_SEND_S_MAX * 1000,
            )
        )  # fmt: skip
        self._tracer = self._provider.get_tracer("ottla", ottla.__version__)
        sampling = Sampling(ratio, per_second_max, random=random.random, monotonic=time.monotonic)
        self.wants = sampling.wants

    def begin(self, name: str, at_ns: int, attributes: Attributes, parent: Context | None = None) -> Span:
        return _Span(self._tracer, name, at_ns, attributes, parent)

    def close(self) -> None:
        self._provider.force_flush(_FLUSH_MS_MAX)
        self._provider.shutdown()


class _Span:
    """A span of the SDK."""

    __slots__ = ("_span",)

    def __init__(self, tracer: Tracer, name: str, at_ns: int, attributes: Attributes, parent: Context | None) -> None:
        around = None
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
            context = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
            around = set_span_in_context(NonRecordingSpan(context))
        self._span: OtelSpan = tracer.start_span(
            _plain(name), context=around, kind=SpanKind.SERVER, start_time=at_ns,
            attributes={key: _plain(value) if isinstance(value, str) else value for key, value in attributes.items()},
        )  # fmt: skip

    @property
    def context(self) -> Context:
        context = self._span.get_span_context()
        return Context(context.trace_id, context.span_id)

    def end(self, at_ns: int, error: str = "") -> None:
        if error:
            self._span.set_status(Status(StatusCode.ERROR, _plain(error)))
        self._span.end(at_ns)


def _plain(text: str) -> str:
    """Return a text that Protobuf can store, of limited length."""
    return text[:_TEXT_MAX].encode(errors="replace").decode()
