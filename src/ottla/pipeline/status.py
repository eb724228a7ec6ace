"""The status of a running pipeline: a file in its storage, and metrics in Prometheus' text format.

The file `storage/_status/PIPELINE.json` is replaced as a whole every few seconds. `ottla pipeline stop` writes
`PIPELINE.stop` beside it, with the id of the run: that works for any storage, from any machine.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from ottla.env.metrics import Page, label_text
from ottla.model.http_host import is_refused
from ottla.pipeline.layout import Layout

State = Literal["waiting", "running", "restarting", "done", "failed", "stopped"]

#: a run that has not written its status for this time is shown as not running
SILENCE_S_MAX = 30.0
#: of a page of metrics; a thousand flows have fewer
_SERIES_MAX = 20_000
#: where `ottla pipeline run --metrics` serves the status
STATUS_PATH = "/status"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True, kw_only=True)
class FlowStatus:
    """The status of one flow. Counts are of this run."""

    name: str
    zone: str
    kind: str
    trigger: str
    state: State = "waiting"
    batch: int | None = None
    rows_in: int = 0
    rows: int = 0
    quarantined: int = 0
    dropped: int = 0
    #: rows behind the watermark: written to `late_rows`, or dropped by an operator that counts rows
    late: int = 0
    #: groups dropped by aggregations that late rows had been added to, counted once per batch and task. Spark adds up
    #: the rows of a task before it compares them with the watermark, so that the number of rows is not known: it is at
    #: least this
    late_groups: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    rows_per_second: float = 0.0
    #: records of topics plus commits of tables that were not read yet; renewed between batches, None before the first
    lag: int | None = None
    watermark: str | None = None
    restarts: int = 0
    error: str | None = None

    @property
    def late_text(self) -> str:
        """Return late rows and groups for people, such as `12`, `98 groups` or `12 + 98 groups`."""
        groups = f"{self.late_groups:,} group{'s' if self.late_groups > 1 else ''}" if self.late_groups else ""
        return " + ".join(filter(None, (f"{self.late:,}" if self.late or not groups else "", groups)))


@dataclass(slots=True, kw_only=True)
class NodeStatus:
    """A source or a flow, for a drawing of the pipeline: what it reads, and the topics that it reads or writes."""

    name: str
    #: source, or the kind of the flow
    kind: str
    zone: str
    inputs: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """A whole run."""

    pipeline: str
    file: str
    run: str
    pid: int
    host: str
    master: str
    started_ms: int
    updated_ms: int = 0
    state: Literal["running", "stopping", "ended"] = "running"
    flows: list[FlowStatus] = field(default_factory=list)
    #: of the whole declaration, in an order in which each follows what it reads; empty in older files
    nodes: list[NodeStatus] = field(default_factory=list)

    @classmethod
    def begin(cls, pipeline: str, file: str, master: str, run: str | None = None) -> Self:
        """Return the status of a run that starts now in this process; without `run` it gets a new id."""
        now_ms = int(time.time() * 1000)
        here = socket.gethostname()
        return cls(
            pipeline=pipeline, file=file, run=run or uuid.uuid4().hex, pid=os.getpid(), host=here, master=master,
            started_ms=now_ms, updated_ms=now_ms,
        )  # fmt: skip

    def alive(self, now_ms: int) -> bool:
        """Return whether the run has not ended and has written its status within the last 30 s.

        This is for people to see. Which run may write is decided by the cluster (`ownership`): a process id says
        nothing, because the next container on the same host has the same ids.
        """
        return self.state != "ended" and now_ms - self.updated_ms < SILENCE_S_MAX * 1000

    @property
    def failed(self) -> list[FlowStatus]:
        return [flow for flow in self.flows if flow.state == "failed"]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        flows = [FlowStatus(**flow) for flow in document["flows"]]
        nodes = [NodeStatus(**node) for node in document.get("nodes", ())]
        return cls(**{**document, "flows": flows, "nodes": nodes})


class StatusFiles:
    """The files of one pipeline's status, wherever its storage is."""

    def __init__(self, layout: Layout) -> None:
        self._directory = layout.status
        self._name = layout.pipeline

    def write(self, status: RunStatus) -> None:
        self._put(f"{self._name}.json", json.dumps(status.as_json(), indent=1).encode())

    def read(self) -> RunStatus | None:
        """Return the last status; None if there is none."""
        data = self._get(f"{self._name}.json")
        return RunStatus.from_json(json.loads(data)) if data is not None else None

    def belongs_to_another(self, run: str) -> bool:
        """Return whether the last status was written by another run; False if it cannot be read."""
        try:
            written = self.read()
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return written is not None and written.run != run

    def ask_to_stop(self, run: str) -> None:
        self._put(f"{self._name}.stop", run.encode())

    def asked_to_stop(self, run: str) -> bool:
        return self._get(f"{self._name}.stop") == run.encode()

    def _put(self, name: str, data: bytes) -> None:
        if "://" in self._directory:
            with self._object_store().open_output_stream(name) as stream:
                stream.write(data)
            return
        os.makedirs(self._directory, exist_ok=True)
        # Readers see the old file or the new one, never a part.
        draft = os.path.join(self._directory, f".{name}.{os.getpid()}")
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, os.path.join(self._directory, name))

    def _get(self, name: str) -> bytes | None:
        try:
            if "://" in self._directory:
                with self._object_store().open_input_stream(name) as stream:
                    return bytes(stream.read())
            with open(os.path.join(self._directory, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _object_store(self) -> Any:
        # The status on a local disk can be read without the packages of the lake.
        from ottla.spark.table_location import TableLocation

        return TableLocation.at(self._directory).files()


def format_metrics(status: RunStatus) -> str:
    """Return the metrics of all flows in Prometheus' text format."""
    page = Page(_SERIES_MAX)
    for flow in status.flows:
        labels = label_text(pipeline=status.pipeline, flow=flow.name, zone=flow.zone)
        for name, text, count in (
            ("rows_read", "Rows read by a flow in this run", flow.rows_in),
            ("rows", "Rows of a flow's result in this run", flow.rows),
            ("rows_quarantined", "Rows put in quarantine", flow.quarantined),
            ("rows_dropped", "Rows dropped by expectations", flow.dropped),
            ("rows_late", "Rows behind the watermark, without those of aggregations that have no late_rows", flow.late),
            (
                "groups_late",
                "Groups of rows behind the watermark that aggregations without late_rows dropped",
                flow.late_groups,
            ),
            ("restarts", "How often a flow was started again", flow.restarts),
        ):
            page.counter(f"ottla_pipeline_{name}", text, count, labels)
        if flow.lag is not None:
            text = "Records of topics plus commits of tables not read yet"
            page.gauge("ottla_pipeline_lag", text, flow.lag, labels)
        is_up = int(flow.state in ("running", "done"))
        page.gauge("ottla_pipeline_up", "1 while a flow runs or has done its work", is_up, labels)
        for expectation, count in flow.violations.items():
            both = f"{labels},{label_text(expectation=expectation)}"
            page.counter("ottla_pipeline_violations", "Rows that violate an expectation", count, both)
    return b"".join(page.pieces()).decode()


class MetricsServer:
    """Answers GET /status with the status of a run as JSON, and any other GET with its metrics, in a thread.

    Before there is a run, the answer is 503.

    A server on loopback refuses requests that name another host: see `model/http_host.py`.
    """

    def __init__(self, host: str, port: int) -> None:
        """Listen at once, so that an address in use is known before Spark starts. Raise OSError if it is."""
        #: of the run; None before it starts
        self.status: RunStatus | None = None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = owner._answer(self.path, self.headers.get_all("Host", []))
                self.send_response(code)
                is_json = code == 200 and self.path == STATUS_PATH
                self.send_header("Content-Type", "application/json" if is_json else _PROMETHEUS)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: a scrape is no news."""

        self._host = host
        self._server = _Http((host, port), Handler)

    def _answer(self, path: str, hosts: list[str]) -> tuple[int, bytes]:
        """Return the status code and the body of the answer to a request for a path with these Host headers."""
        status = self.status
        if is_refused(hosts, bound_address=str(self._server.server_address[0]), listening_host=self._host):
            return 403, b"the host of the request is not that of this server\n"
        if status is None:
            return 503, b"# the run has not started yet\n"
        if path == STATUS_PATH:
            return 200, json.dumps(status.as_json()).encode()
        return 200, format_metrics(status).encode()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="pipeline-metrics", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Http(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `PORT` or `HOST:PORT`; the host is 127.0.0.1 if none is given. Raise ValueError.

    >>> parse_address("9404"), parse_address("0.0.0.0:9404"), parse_address("[::]:9404")
    (('127.0.0.1', 9404), ('0.0.0.0', 9404), ('::', 9404))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text!r} is not an address: write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
