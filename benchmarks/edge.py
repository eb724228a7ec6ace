"""How many requests per second the schema registry and the REST proxy answer, their memory and their start.

    python -m benchmarks.edge [--rounds 3] [--seconds 4] [--only WORD] [--write]

One broker, one registry and one proxy, each a process with the settings that ship; the load generator is a process of
its own (`http_load.py`). Prints a table; --write puts it into docs/reference/performance.md. A service answers
all requests in one thread: a service that is 100 % busy is the limit of its figure, otherwise it is the broker or the
generator.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.http_load import Load, in_own_process, read_records, request_bytes, send_requests, stream_records
from benchmarks.maven import ROOT, SCRATCH
from benchmarks.ottla_server import START_SECONDS_MAX, Ottla, ottla_command
from benchmarks.processes import cpu_seconds, proportional_mb, wait_until
from benchmarks.report import splice

_BEGIN, _END = "<!-- bench:edge:begin -->", "<!-- bench:edge:end -->"
_CONNECTIONS = 16
_SCHEMAS = 1000
_STARTS = 5
_V2_JSON = "application/vnd.kafka.json.v2+json"
_READ_RECORDS = 200_000
#: distinguishes the schemas of measurements; a registry knows those of all earlier ones
_runs = itertools.count(1)


class Service(Ottla):
    """`ottla registry` or `ottla rest`."""

    def __init__(self, name: str, bootstrap: str, *, parent: Path) -> None:
        self.name = name
        super().__init__(parent=parent)
        self._cluster = bootstrap
        self.start_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when the service has printed that it accepts requests, and says that it is healthy."""
        began = time.monotonic()
        super().start()
        while not _is_healthy(self.url):
            self.check_alive()
            wait_until(began + START_SECONDS_MAX, f"starting {self.name}")
        self.start_s = time.monotonic() - began

    def launch(self) -> None:
        self._log_path.unlink(missing_ok=True)
        self._spawn([ottla_command() or "ottla", self.name, "--bootstrap", self._cluster, "--listen", self.url])


def _is_healthy(url: str) -> bool:
    """Return whether a service can do its work: a registry needs a leader."""
    try:
        return bool(ask(f"{url}/health"))
    except urllib.error.HTTPError:
        return False


class Row(NamedTuple):
    """One line of the table."""

    title: str
    #: what is counted, and how many of them one request has
    unit: str
    per_request: int
    service: str
    #: runs one measurement
    measure: Callable[[float], Load]


class Sample(NamedTuple):
    """One measurement."""

    rate: float
    p50_ms: float
    p99_ms: float
    #: CPU of the service per request or record, and how busy service and generator were
    cpu_us: float
    busy: float
    generator_busy: float


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


# -- requests: these functions run in the process of the generator ------------------------------------------------


def schema(number: int) -> str:
    """Return an Avro record of ordinary size: ten fields, of which the name of one is different in each schema."""
    fields: list[dict[str, Any]] = [
        {"name": f"field_{index}", "type": ["null", "string"], "default": None, "doc": "One of the fields of an order."}
        for index in range(9)
    ]
    fields.append({"name": f"amount_{number:09d}", "type": "long"})
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop.orders", "fields": fields})


def schema_body(number: int) -> bytes:
    return json.dumps({"schema": schema(number)}).encode()


def by_id(ids: list[int]) -> Iterator[bytes]:
    return itertools.cycle([request_bytes("GET", f"/schemas/ids/{each}") for each in ids])


def latest(count: int) -> Iterator[bytes]:
    return itertools.cycle([request_bytes("GET", f"/subjects/subject-{each}/versions/latest") for each in range(count)])


def by_schema(count: int, suffix: str) -> Iterator[bytes]:
    """Look up, or register again, a schema that the registry knows."""
    return itertools.cycle(
        [request_bytes("POST", f"/subjects/subject-{each}{suffix}", schema_body(each)) for each in range(count)]
    )


def new_schemas(run: int) -> Iterator[bytes]:
    for number in itertools.count(run * 1_000_000):
        yield request_bytes("POST", f"/subjects/new-{number}/versions", schema_body(number))


def batches_v2(topic: str, count: int) -> Iterator[bytes]:
    record = {"value": "x" * 100}
    body = json.dumps({"records": [record] * count}).encode()
    return itertools.repeat(request_bytes("POST", f"/topics/{topic}", body, _V2_JSON))


def batches_v3(path: str, count: int) -> Iterator[bytes]:
    record = {"value": {"type": "STRING", "data": "x" * 100}}
    body = json.dumps({"entries": [{"id": str(number), **record} for number in range(count)]}).encode()
    return itertools.repeat(request_bytes("POST", f"{path}:batch", body))


# -- measurements -------------------------------------------------------------------------------------------------


def registry_rows(registry: Service) -> list[Row]:
    port, ids = registry.port, []
    for number in range(_SCHEMAS):
        ids.append(ask(f"{registry.url}/subjects/subject-{number}/versions", {"schema": schema(number)})["id"])

    def load(requests: Any, seconds: float) -> Load:
        return in_own_process(partial(send_requests, port, requests, _CONNECTIONS, seconds))

    def rows() -> Iterator[tuple[str, Callable[[float], Load]]]:
        yield "find a schema by id", lambda seconds: load(partial(by_id, ids), seconds)
        yield "get the latest version of a subject", lambda seconds: load(partial(latest, _SCHEMAS), seconds)
        yield "find the id of a schema", lambda seconds: load(partial(by_schema, _SCHEMAS, ""), seconds)
        yield "register a schema that exists", lambda seconds: load(partial(by_schema, _SCHEMAS, "/versions"), seconds)
        yield "register a new schema", lambda seconds: load(partial(new_schemas, next(_runs)), seconds)

    return [Row(title, "requests", 1, "registry", measure) for title, measure in rows()]


def rest_rows(rest: Service) -> list[Row]:
    port = rest.port
    cluster = ask(f"{rest.url}/v3/clusters")["data"][0]["cluster_id"]
    topics = f"/v3/clusters/{cluster}/topics"
    for topic in ("load", "read"):
        ask(f"{rest.url}{topics}", {"topic_name": topic, "partitions_count": 1})
    path = f"{topics}/load/records"
    record = json.dumps({"value": {"type": "STRING", "data": "x" * 100}}).encode()
    fill = send_requests(port, partial(batches_v2, "read", 1000), 1, 0.0)
    while fill.answered < _READ_RECORDS // 1000:
        more = send_requests(port, partial(batches_v2, "read", 1000), 1, 1.0)
        fill = fill._replace(answered=fill.answered + more.answered)

    def load(requests: Any, seconds: float, connections: int = 8) -> Load:
        return in_own_process(partial(send_requests, port, requests, connections, seconds))

    def read(seconds: float) -> Load:
        return in_own_process(partial(read_records, port, f"{topics}/read/records?limit={_READ_RECORDS}&timeout=60000"
                                                          "&max_bytes=1000000000"))  # fmt: skip

    return [
        Row("produce, version 2, 100 records per request", "records", 100, "rest",
            lambda seconds: load(partial(batches_v2, "load", 100), seconds)),
        Row("produce, version 2, one record per request", "records", 1, "rest",
            lambda seconds: load(partial(batches_v2, "load", 1), seconds, 64)),
        Row("produce, version 3, a batch of 10 records", "records", 10, "rest",
            lambda seconds: load(partial(batches_v3, path, 10), seconds)),
        Row("produce, version 3, a stream on one connection", "records", 1, "rest",
            lambda seconds: in_own_process(partial(stream_records, port, path, record, seconds))),
        Row("read records as a stream of lines", "records", 1, "rest", read),
    ]  # fmt: skip


def measure(row: Row, pid: int, seconds: float) -> Sample:
    used, began = cpu_seconds(pid), time.monotonic()
    found = row.measure(seconds)
    used, took = cpu_seconds(pid) - used, time.monotonic() - began
    count = found.answered * row.per_request
    # The service works while the generator does; its time before and after is that of starting the process.
    return Sample(
        count / found.seconds, found.p50_ms, found.p99_ms, 1e6 * used / found.answered, used / min(found.seconds, took),
        found.cpu_s / found.seconds,
    )  # fmt: skip


def starts(service: Service) -> tuple[float, float]:
    """Return the median time of some starts, in seconds, and the proportional memory after one, in MB."""
    times = []
    for _ in range(_STARTS):
        service.halt()
        service.start()
        times.append(service.start_s)
    return statistics.median(times), proportional_mb(service.pid)


def render(samples: dict[Row, list[Sample]], facts: dict[str, tuple[float, float, float]], rounds: str) -> str:
    """Return the tables. ``facts`` are start, memory after the start and memory after the load, by service."""
    today, version = datetime.date.today().isoformat(), importlib.metadata.version("ottla")
    lines = [
        f"Ottla {version}, {today}; one process of each service, one broker with the settings that ship "
        f"(`acks=all` with fsync), values of 100 B, Avro schemas of 1.2 KB, {_CONNECTIONS} connections to the registry "
        f"and 8 to the proxy (64 for single records); median of {rounds}.",
        "",
        "| work | per second | p50 / p99 ms | CPU of the service per request | service busy | generator busy |",
        "|---|---|---|---|---|---|",
    ]
    for row, found in samples.items():
        rate, p50, p99, cpu_us, busy, generator = (statistics.median(values) for values in zip(*found, strict=True))
        latency = f"{p50:.2f} / {p99:.2f}" if p50 else "–"
        lines.append(
            f"| {row.service}: {row.title} | {rate:,.0f} {row.unit} | {latency} | {cpu_us:,.0f} µs | {busy:.0%} | "
            f"{generator:.0%} |"
        )
    lines += ["", "| service | start until the first answer | memory after the start | memory after the load |"]
    lines += ["|---|---|---|---|"]
    for name, (start_s, idle_mb, loaded_mb) in facts.items():
        lines.append(f"| {name} | {start_s:.2f} s | {idle_mb:.0f} MB | {loaded_mb:.0f} MB |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="", help="measure only the rows whose name has this word")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    SCRATCH.mkdir(exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-", dir=SCRATCH)))
        broker = Ottla(parent=directory)
        stack.callback(broker.stop)
        broker.start()
        services = {name: Service(name, broker.bootstrap, parent=directory) for name in ("registry", "rest")}
        for service in services.values():
            stack.callback(service.stop)
            service.start()
        idle = {name: starts(service) for name, service in services.items()}
        rows = [*registry_rows(services["registry"]), *rest_rows(services["rest"])]
        rows = [row for row in rows if options.only in f"{row.service}: {row.title}"]
        samples: dict[Row, list[Sample]] = {row: [] for row in rows}
        for number in range(options.rounds + 1):
            for row in rows:
                # The first round warms up.
                sample = measure(row, services[row.service].pid, options.seconds if number else 1.0)
                print(f"round {number} {row.service}: {row.title}: {sample.rate:,.0f}/s", flush=True)
                if number:
                    samples[row].append(sample)
        facts = {name: (*idle[name], proportional_mb(service.pid)) for name, service in services.items()}
    table = render(samples, facts, f"{options.rounds} rounds of {options.seconds:g} s")
    print(f"\n{table}")
    if options.write:
        page = ROOT / "docs" / "reference" / "performance.md"
        page.write_text(splice(page.read_text(), table, _BEGIN, _END))
    return 0


if __name__ == "__main__":
    sys.exit(main())
