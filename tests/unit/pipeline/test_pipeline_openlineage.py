"""OpenLineage events: valid by the official schemas, complete for each flow, and harmless to the pipeline."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from json_schema import Schemas

from ottla.pipeline.column_lineage import column_lineage
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.openlineage import Event, EventBuilder, Observer, datasets_of, table_dataset
from ottla.pipeline.openlineage_transport import BadConfiguration, Sender, Target, send_once, target_of
from ottla.pipeline.status import FlowStatus, RunStatus

_SPEC = Schemas(Path(__file__).parent / "openlineage_spec")
_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_SHOP = """\
name: shop
description: A shop.
brokers: b1:9092,b2:9092
storage: s3://bucket/lake
trigger: every 5s
sources:
  orders:
    topic: shop.orders
    format: json
    schema: {id: string, amount: "decimal(10,2)"}
    watermark: {column: _timestamp, delay: 1m}
flows:
  raw: {zone: raw, from: orders}
  staged: {zone: staging, from: raw, description: Orders with types.}
  paid: {zone: trusted, kind: view, from: staged}
  kept: {zone: trusted, from: paid}
  sums:
    zone: refined
    from: kept
    sql: SELECT id, sum(amount) AS total, lineage_range() AS _lineage FROM kept GROUP BY window(_timestamp, '1m'), id
    to: [{topic: shop.sums, key: id}, {table: sums}]
    late_rows: {table: late_sums}
"""


def validate(event: Event) -> None:
    """Check an event, and each facet of it by the schema that it names."""
    assert _SPEC.problems(event, _EVENT) == []
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    facets = [one for holder in holders for one in holder.get("facets", {}).values()]
    facets += [one for output in event["outputs"] for one in output.get("outputFacets", {}).values()]
    for facet in facets:
        assert _SPEC.problems(facet, facet["_schemaURL"]) == []


@pytest.fixture
def graph(read: Callable[..., Declaration]) -> Graph:
    return Graph(read(_SHOP))


@pytest.fixture
def builder(graph: Graph) -> EventBuilder:
    kept = [("id", "string"), ("amount", "decimal(10,2)"), ("_timestamp", "timestamp")]
    schemas = {"sums": [("id", "string"), ("total", "decimal(20,2)")], "kept": kept}
    layout = Layout.of(graph.declaration)
    return EventBuilder(
        graph, layout, namespace="test", schemas=schemas, engine_version="4.3.0", own_version="0.1.0"
    )  # fmt: skip


class Watched:
    """A run whose status changes, and the events of it."""

    def __init__(self, builder: EventBuilder) -> None:
        self.events: list[Event] = []
        self.now = 0.0
        self.flow = FlowStatus(name="sums", zone="refined", kind="table", trigger="every 5s")
        self.status = RunStatus.begin("shop", "shop.yaml", "local", uuid.uuid4().hex)
        self.status.flows = [self.flow]
        self._observer = Observer(builder, self.events.append, clock=lambda: self.now)

    def see(self, **changes: Any) -> list[str]:
        """Change the flow, look at the status, and return the kinds and jobs of the new events."""
        for name, value in changes.items():
            setattr(self.flow, name, value)
        before = len(self.events)
        self._observer.observe(self.status)
        new = self.events[before:]
        for event in new:
            validate(event)
        return [f"{event['eventType']} {event['job']['name']}" for event in new]


def test_flow_that_runs_fails_runs_again_and_ends_has_a_run_for_each_start(builder: EventBuilder) -> None:
    watched = Watched(builder)
    assert watched.see() == ["START shop"]
    assert watched.see(state="running") == ["START shop.sums"]
    assert watched.see(rows=10) == []
    watched.now = 61
    assert watched.see() == ["RUNNING shop.sums"]
    assert watched.see(state="restarting", restarts=1, error="the disk is full") == ["FAIL shop.sums"]
    assert watched.see() == []
    assert watched.see(state="running", rows=10) == ["START shop.sums"]
    # Failed and started again between two looks.
    assert watched.see(restarts=2, rows=15) == ["FAIL shop.sums", "START shop.sums"]
    watched.status.state = "ended"
    assert watched.see(state="done", rows=18) == ["COMPLETE shop.sums", "COMPLETE shop"]
    assert watched.see() == []
    runs = [event["run"]["runId"] for event in watched.events if event["job"]["name"] == "shop.sums"]
    assert [runs.index(run) for run in runs] == [0, 0, 0, 3, 3, 5, 5]
    last = watched.events[-2]
    assert [one.get("outputFacets", {}).get("outputStatistics", {}).get("rowCount") for one in last["outputs"]] == [
        3,
        3,
        None,
    ]
    parent = last["run"]["facets"]["parent"]
    assert parent["run"]["runId"] == watched.events[0]["run"]["runId"] and parent["job"]["name"] == "shop"
    failed = watched.events[3]["run"]["facets"]["errorMessage"]
    assert failed["message"] == "the disk is full"


def test_failed_flow_makes_the_run_of_the_pipeline_fail(builder: EventBuilder) -> None:
    watched = Watched(builder)
    watched.status.state = "ended"
    assert watched.see(state="failed", error="no") == [
        "START shop", "START shop.sums", "FAIL shop.sums", "FAIL shop",
    ]  # fmt: skip
    assert watched.events[-1]["run"]["facets"]["errorMessage"]["message"] == "sums: no"


def test_event_names_topics_and_tables_by_the_rules_of_openlineage(builder: EventBuilder) -> None:
    event = builder.flow_event("START", "sums", str(uuid.uuid4()), str(uuid.uuid4()))
    validate(event)
    assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [("s3://bucket", "lake/trusted/kept")]
    assert [(one["namespace"], one["name"]) for one in event["outputs"]] == [
        ("s3://bucket", "lake/refined/sums"),
        ("kafka://b1:9092", "shop.sums"),
        ("s3://bucket", "lake/late/late_sums"),
    ]
    fields = event["outputs"][0]["facets"]["schema"]["fields"]
    assert fields == [{"name": "id", "type": "string"}, {"name": "total", "type": "decimal(20,2)"}]
    facets = event["job"]["facets"]
    assert facets["jobType"]["processingType"] == "STREAMING" and facets["sql"]["query"].startswith("SELECT id")
    staged = builder.flow_event("START", "staged", str(uuid.uuid4()), str(uuid.uuid4()))
    assert staged["job"]["facets"]["documentation"]["description"] == "Orders with types."
    assert table_dataset("hdfs://name:8020/lake/t").name == "/lake/t"


def test_columns_that_a_flow_passes_on_are_in_the_column_lineage(graph: Graph, builder: EventBuilder) -> None:
    layout = Layout.of(graph.declaration)
    flows = graph.declaration.flows
    assert datasets_of(graph, layout, flows["raw"]).same_columns["_offset"] == "offset"
    staged = datasets_of(graph, layout, flows["staged"])
    assert (staged.same_columns["id"], staged.same_columns["_key"], staged.same_columns["_offset"]) == (
        "value", "key", "_offset",
    )  # fmt: skip
    assert datasets_of(graph, layout, flows["sums"]).same_columns == {}
    kept = builder.flow_event("COMPLETE", "kept", str(uuid.uuid4()), str(uuid.uuid4()))
    validate(kept)
    fields = kept["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert fields["amount"]["inputFields"] == [
        {
            "namespace": "s3://bucket", "name": "lake/staging/staged", "field": "amount",
            "transformations": [{"type": "DIRECT", "subtype": "IDENTITY"}],
        }
    ]  # fmt: skip


def test_columns_of_a_query_have_their_origin_in_the_column_lineage(builder: EventBuilder) -> None:
    event = builder.flow_event("COMPLETE", "sums", str(uuid.uuid4()), str(uuid.uuid4()))
    validate(event)
    fields = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    origins = {
        name: [(one["field"], one["transformations"][0]["subtype"]) for one in field["inputFields"]]
        for name, field in fields.items()
    }
    assert origins == {"id": [("id", "IDENTITY")], "total": [("amount", "AGGREGATION")]}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT amount*2 AS X FROM orders", {"X": "TRANSFORMATION orders.amount"}),
        ("SELECT * FROM payments", {"order_id": "IDENTITY payments.order_id", "at": "IDENTITY payments.at"}),
        ("SELECT p.* FROM orders o JOIN payments p ON o.id = p.order_id",
         {"order_id": "IDENTITY payments.order_id", "at": "IDENTITY payments.at"}),
        ("SELECT o.id, at, o.amount + p.at AS s FROM orders AS o JOIN payments p ON o.id = p.order_id",
         {"id": "IDENTITY orders.id", "s": "TRANSFORMATION orders.amount payments.at"}),
        ("SELECT window.start AS minute, count(*) AS n, max(`amount`) AS m FROM orders GROUP BY window(at, '1m')",
         {"m": "AGGREGATION orders.amount"}),
        ("SELECT CASE WHEN amount IS NULL THEN 'x' ELSE id END AS k, unknown FROM orders",
         {"k": "TRANSFORMATION orders.amount orders.id"}),
        ("SELECT id FROM (SELECT * FROM orders)", {}),
        ("SELECT id FROM orders UNION ALL SELECT order_id FROM payments", {}),
        ("WITH x AS (SELECT * FROM orders) SELECT id FROM x", {}),
        ("SELECT upper(id) FROM orders", {}),
    ],
)  # fmt: skip
def test_column_lineage_says_only_what_is_certain(sql: str, expected: dict[str, str]) -> None:
    inputs = {"orders": ["id", "amount", "at"], "payments": ["order_id", "at"]}
    found = column_lineage(sql, inputs)
    described = {
        name: " ".join([one.kind, *(f"{c.table}.{c.column}" for c in one.columns)]) for name, one in found.items()
    }
    assert described == expected


# -- sending ----------------------------------------------------------------------------------------------------------


class Backend(ThreadingHTTPServer):
    """A lineage backend that answers with `code`."""

    def __init__(self) -> None:
        self.code = 201
        self.received: list[tuple[str, str | None, Any]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.received.append((self.path, self.headers["Authorization"], body))
                self.send_response(owner.code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def backend() -> Iterator[Backend]:
    server = Backend()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_events_reach_a_backend_in_order(backend: Backend) -> None:
    sender = Sender(Target(url=f"{backend.url}/api/v1/lineage", api_key="secret"))
    for number in range(20):
        sender.emit({"number": number})
    sender.close()
    assert [body["number"] for _, _, body in backend.received] == list(range(20))
    assert backend.received[0][:2] == ("/api/v1/lineage", "Bearer secret")


def test_events_are_appended_to_a_file(tmp_path: Path) -> None:
    for number in range(2):
        sender = Sender(Target(file=str(tmp_path / "events" / "lineage.jsonl")))
        sender.emit({"number": number})
        sender.close()
    lines = (tmp_path / "events" / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"number": 0}, {"number": 1}]


def test_backend_that_refuses_is_warned_about_once_and_again_after_it_was_back(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.code = 422
    sender = Sender(Target(url=backend.url.replace("http://", "http://user:password@")), send=_without_user)
    with caplog.at_level(logging.WARNING, "ottla.pipeline"):
        for number in range(3):
            sender.emit({"number": number})
        sender.close()
    assert sender.dropped == 3 and len(backend.received) == 3
    (record,) = caplog.records
    assert "OpenLineage events are not sent to http://127.0.0.1" in record.message and "password" not in record.message


def _without_user(target: Target, data: bytes) -> None:
    send_once(Target(url=(target.url or "").replace("user:password@", "")), data)


def test_queue_of_a_backend_that_does_not_answer_is_bounded_and_nothing_waits(caplog: pytest.LogCaptureFixture) -> None:
    release, entered = threading.Event(), threading.Event()

    def hang(target: Target, data: bytes) -> None:
        entered.set()
        release.wait()

    sender = Sender(Target(url="http://127.0.0.1:1"), queue_max=5, send=hang)
    sender.emit({})
    assert entered.wait(60)
    for _ in range(20):
        sender.emit({})
    assert sender.dropped == 15 and len(caplog.records) == 1
    release.set()
    sender.close()


@pytest.mark.parametrize(
    ("section", "variables", "target"),
    [
        ("", {}, None),
        ("", {"OPENLINEAGE_URL": "http://a:5000/"}, Target(url="http://a:5000/api/v1/lineage")),
        (
            "openlineage: {namespace: mine}",
            {"OPENLINEAGE_URL": "http://a", "OPENLINEAGE_API_KEY": "k", "OPENLINEAGE_ENDPOINT": "/x"},
            Target(url="http://a/x", api_key="k", namespace="mine"),
        ),
        (
            "openlineage: {url: 'https://b', endpoint: in, api_key: own}",
            {"OPENLINEAGE_URL": "http://a", "OPENLINEAGE_NAMESPACE": "n"},
            Target(url="https://b/in", api_key="own", namespace="n"),
        ),
        ("openlineage: {file: /tmp/x.jsonl}", {"OPENLINEAGE_URL": "http://a"}, Target(file="/tmp/x.jsonl")),
        ("openlineage: {url: 'http://a'}", {"OPENLINEAGE_DISABLED": "true"}, None),
    ],
)
def test_target_comes_from_the_declaration_then_from_the_environment(
    read: Callable[..., Declaration], section: str, variables: dict[str, str], target: Target | None
) -> None:
    assert target_of(read(f"{_SHOP}{section}\n"), variables) == target


def test_configuration_file_of_openlineage_is_read(read: Callable[..., Declaration], tmp_path: Path) -> None:
    file = tmp_path / "openlineage.yml"
    variables = {"OPENLINEAGE_CONFIG": str(file)}
    file.write_text("transport:\n  type: http\n  url: http://a:5000\n  auth: {type: api_key, apiKey: k}\n")
    assert target_of(read(_SHOP), variables) == Target(url="http://a:5000/api/v1/lineage", api_key="k")
    file.write_text("transport: {type: file, log_file_path: /tmp/events}\n")
    assert target_of(read(_SHOP), variables) == Target(file="/tmp/events")
    for text, why in {"transport: {type: kafka}": "only http and file", "x: 1": "has no 'transport'"}.items():
        file.write_text(text)
        with pytest.raises(BadConfiguration, match=why):
            target_of(read(_SHOP), variables)
    file.unlink()
    with pytest.raises(BadConfiguration, match="No such file"):
        target_of(read(_SHOP), variables)


def test_wrong_settings_are_reported(problems: Callable[..., list[str]]) -> None:
    (found,) = problems(f"{_SHOP}openlineage: {{url: marquez}}\n")
    assert "'url' is not an HTTP address; write http://HOST:PORT" in found
    (found,) = problems(f"{_SHOP}openlineage: {{url: 'http://a', file: b}}\n")
    assert "events go to a url or to a file" in found
