"""Traces of a record's way through a broker: with spans that are kept in memory, and sent to a receiver over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.broker.partitions import record_traces
from ottla.env.tracing import Context
from ottla.model.records import Record, build_batch
from ottla.model.settings import BrokerSettings
from ottla.testing import BrokerProcess
from ottla.testing.process import BrokerFailed
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request

pytestmark = pytest.mark.broker

DEADLINE_S = 60.0
PARENT = Context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
TRACEPARENT = f"00-{PARENT.trace_id:032x}-{PARENT.span_id:016x}-01".encode()


@dataclass
class KeptSpan:
    name: str
    attributes: Mapping[str, object]
    context: Context
    parent: Context | None
    start_ns: int
    end_ns: int = 0
    error: str = ""

    def end(self, at_ns: int, error: str = "") -> None:
        assert not self.end_ns, "ended twice"
        self.end_ns, self.error = at_ns, error


@dataclass
class KeptSpans:
    """Spans in memory. Requests with a sampled parent are traced."""

    found: list[KeptSpan] = field(default_factory=list)
    is_closed: bool = False

    def wants(self, parent: Context | None) -> bool:
        return parent is not None and parent.is_sampled

    def begin(self, name: str, at_ns: int, attributes: Mapping[str, object], parent: Context | None = None) -> KeptSpan:
        trace_id = parent.trace_id if parent is not None else 1
        span = KeptSpan(name, attributes, Context(trace_id, len(self.found) + 1), parent, at_ns)
        self.found.append(span)
        return span

    def close(self) -> None:
        self.is_closed = True


@contextlib.contextmanager
def running(directory: Path, spans: KeptSpans) -> Iterator[str]:
    """Run a broker in a thread. Yield its address."""
    settings = BrokerSettings.parse({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})
    started, loops = threading.Event(), []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        environment = replace(system_environment(settings, loop, freeze=lambda: None), spans=spans)
        broker = Broker(settings, environment)
        await broker.start()
        loops.append((loop, broker))
        started.set()
        await broker.ended
        await broker.stop()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(lambda: asyncio.run(run()))
        assert started.wait(DEADLINE_S)
        ((loop, broker),) = loops
        try:
            yield f"127.0.0.1:{broker.endpoints[0].port}"
        finally:
            loop.call_soon_threadsafe(broker.request_stop)
            done.result(DEADLINE_S)


def traced_batch(value: bytes = b"v", *, compression: int = 0) -> bytes:
    record = Record(timestamp=int(time.time() * 1000), key=b"k", value=value, headers=[("traceparent", TRACEPARENT)])
    return build_batch([record], codec=compression)


def produce(client: RawClient, batch: bytes, *, acks: int = -1, topic: str = "orders") -> None:
    answer = client.ask(produce_request((topic, 0, batch), acks=acks), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_way_of_a_record_is_one_trace_that_its_producer_began(tmp_path: Path) -> None:
    spans = KeptSpans()
    with running(tmp_path, spans) as address, RawClient(address, client_id="shop") as client:
        client.create_topic("orders")
        produce(client, batch_of(b"not traced"))
        assert spans.found == []
        produce(client, traced_batch())
        answer = client.ask(fetch_request({"orders": [fetch_from(0, 0)]}), 11)
        assert answer.responses[0].partitions[0].records
        # A reply that ends before the batch, and one that begins behind it.
        client.ask(fetch_request({"orders": [fetch_from(0, 0, partition_max_bytes=1)]}), 11)
        client.ask(fetch_request({"orders": [fetch_from(0, 2)]}), 11)
    produced, appended, replicated, fetched = spans.found
    names = ["produce orders", "append orders", "replicate orders", "fetch orders"]
    assert [span.name for span in spans.found] == names
    assert produced.parent == PARENT
    assert {span.parent for span in (appended, replicated, fetched)} == {produced.context}
    assert produced.attributes["messaging.kafka.offset"] == fetched.attributes["messaging.kafka.offset"] == 1
    assert produced.attributes["messaging.client.id"] == fetched.attributes["messaging.client.id"] == "shop"
    assert produced.start_ns == appended.start_ns <= appended.end_ns == replicated.start_ns <= replicated.end_ns
    assert replicated.end_ns <= produced.end_ns and produced.start_ns <= fetched.end_ns
    assert abs(produced.start_ns - time.time_ns()) < 600e9
    assert spans.is_closed


def test_batches_of_all_kinds_are_traced_and_their_bytes_stay(tmp_path: Path) -> None:
    spans = KeptSpans()
    with running(tmp_path, spans) as address, RawClient(address) as client:
        client.create_topic("orders")
        for codec in range(5):
            produce(client, traced_batch(b"x" * 500, compression=codec), acks=1)
        client.send(produce_request(("orders", 0, traced_batch()), acks=0), 9)
        produce(client, traced_batch(b"last"))
        answer = client.ask(fetch_request({"orders": [fetch_from(0, 0)]}), 11)
        stored = bytes(answer.responses[0].partitions[0].records)
    produced = [span for span in spans.found if span.name == "produce orders"]
    assert [span.attributes["messaging.kafka.offset"] for span in produced] == list(range(7))
    assert all(span.end_ns and not span.error for span in spans.found)
    assert stored.count(b"traceparent") >= 3
    assert sum(span.name == "fetch orders" for span in spans.found) == 7


def test_work_for_the_compressed_batches_of_a_request_is_bounded(tmp_path: Path) -> None:
    spans = KeptSpans()
    zeros = traced_batch(bytes(900_000), compression=1)
    # One that is too large to be searched, and many that each become a megabyte.
    noise = random.Random(1).randbytes(100_000)
    with running(tmp_path, spans) as address, RawClient(address) as client:
        client.create_topic("orders", partitions=200)
        batches = [("orders", number, zeros) for number in range(200)]
        answer = client.ask(produce_request(*batches, acks=1), 9)
        assert all(not row.error_code for each in answer.responses for row in each.partition_responses)
        assert sum(span.name == "produce orders" for span in spans.found) == 64
        spans.found.clear()
        produce(client, traced_batch(noise, compression=1))
        produce(client, traced_batch(noise))
        produce(client, traced_batch(bytes(2_000_000), compression=1))
    assert [span.name for span in spans.found if "produce" in span.name] == ["produce orders"]


def test_number_of_batches_that_are_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_traces, "BATCHES_MAX", 3)
    monkeypatch.setattr(record_traces, "FETCHES_MAX", 2)
    spans = KeptSpans()
    with running(tmp_path, spans) as address, RawClient(address) as client:
        for topic in ("orders", "payments"):
            client.create_topic(topic)
        for number in range(5):
            produce(client, traced_batch())
            if number == 3:
                produce(client, traced_batch(), topic="payments")
        for _ in range(4):
            client.ask(fetch_request({"orders": [fetch_from(0, 0)], "payments": [fetch_from(0, 0)]}), 11)
            # Bytes from within the first batch on have the others, too.
            client.ask(fetch_request({"orders": [fetch_from(0, 4)]}), 11)
    fetched = [span for span in spans.found if span.name.startswith("fetch")]
    offsets = Counter((span.name, span.attributes["messaging.kafka.offset"]) for span in fetched)
    assert offsets == {("fetch orders", 3): 2, ("fetch orders", 4): 2, ("fetch payments", 0): 2}


def test_refused_batches_and_broken_requests_leave_no_span(tmp_path: Path) -> None:
    spans = KeptSpans()
    with running(tmp_path, spans) as address, RawClient(address) as client:
        client.create_topic("orders")
        damaged, unknown_codec, no_gzip = (bytearray(traced_batch(compression=codec)) for codec in (0, 1, 1))
        damaged[-1] ^= 1
        unknown_codec[22] |= 7
        no_gzip[70:] = bytes(len(no_gzip) - 70)
        bad = [("orders", bytes(each)) for each in (damaged, unknown_codec, no_gzip, damaged[:61], b"")]
        for topic, batch in (*bad, ("missing", traced_batch())):
            answer = client.ask(produce_request((topic, 0, batch), acks=-1), 9)
            assert answer.responses[0].partition_responses[0].error_code
    assert spans.found == []


# -- over HTTP --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """Run a receiver of OTLP. Yield its address and the list of the spans that it gets."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="install '.[otel]'"
    )
    found: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            request = service.ExportTraceServiceRequest.FromString(body)
            for each in request.resource_spans:
                names = {row.key: row.value.string_value for row in each.resource.attributes}
                found.extend((names, span) for scope in each.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", found
        finally:
            server.shutdown()
            thread.join()


def test_broker_exports_its_spans_and_flushes_them_when_it_stops(tmp_path: Path) -> None:
    with receiver() as (endpoint, found):
        settings = {"traces.endpoint": endpoint, "traces.sample.ratio": "0", "broker.id": "7"}
        with BrokerProcess.start(tmp_path, settings) as broker:
            with RawClient(broker.bootstrap, client_id="\x00\x1b[2Jshop" + "x" * 1000) as client:
                client.create_topic("orders")
                produce(client, batch_of(b"not traced"))
                produce(client, traced_batch())
                client.ask(fetch_request({"orders": [fetch_from(0, 0)]}), 11)
            assert broker.stop() == 0
            assert "Traceback" not in broker.errors()
    names = sorted(span.name for _, span in found)
    assert names == ["append orders", "fetch orders", "produce orders", "replicate orders"]
    assert {span.trace_id.hex() for _, span in found} == {f"{PARENT.trace_id:032x}"}
    ((resource, produced),) = [(names, span) for names, span in found if span.name == "produce orders"]
    assert produced.parent_span_id.hex() == f"{PARENT.span_id:016x}"
    assert (resource["service.name"], resource["service.instance.id"]) == ("ottla-broker", "7")


def test_broker_works_and_stops_without_its_receiver(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="install '.[otel]'")
    settings = {"traces.endpoint": "http://127.0.0.1:1", "traces.sample.ratio": "1", "traces.per.second.max": "1000"}
    with BrokerProcess.start(tmp_path, settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("orders")
            for _ in range(50):
                produce(client, batch_of(b"v"))
        assert broker.stop() == 0


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    with contextlib.suppress(ModuleNotFoundError):
        import opentelemetry.sdk

        pytest.skip(f"the extra is installed: {opentelemetry.sdk.__name__}")
    with pytest.raises(BrokerFailed, match=r"traces.endpoint: the package opentelemetry.* is missing.*\[otel\]"):
        BrokerProcess.start(tmp_path, {"traces.endpoint": "http://127.0.0.1:1"})
