"""`make campaign NAME=prometheus`: a real Prometheus reads a broker and the monitor, and evaluates what deploy/ has.

Each expression of the dashboards and rules must be accepted, and give series where there is something to show. Then the
broker is killed, and the alerts about that must fire, with the durations of the rules shortened to a second.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from monitor_process import monitor_process

from campaign.report import CannotRun, Report
from ottla.admin.client import AdminClient
from ottla.client.errors import ClientError
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.process import BrokerProcess

_DEPLOY = Path(__file__).parents[2] / "deploy"
_ORDERS = TopicPartition("orders", 0)
_WAIT_S = 120
#: nothing of these happens here: no pipeline, no fault, one broker
_QUIET = re.compile(
    r"ottla_pipeline_|ottla_replication_lag|ottla_monitor_findings|ottla_alerts.* > 0|caught_up_seconds"
)
#: alerts that fire when the only broker is killed
_EXPECTED = {"OttlaDown", "OttlaClusterNotRead"}


def run(report: Report, *, seconds: float) -> None:
    """Run Prometheus with the files of deploy/."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        raise CannotRun("Prometheus is not installed: apt-get install prometheus")
    rules = _DEPLOY / "prometheus" / "alerts.yml"
    done = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True)
    if done.returncode:
        report.problem(f"promtool: {done.stdout}{done.stderr}")
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess.start(settings={"metrics.listener": "HTTP://127.0.0.1:0"}) as broker,
    ):
        metrics = broker.ready_line.split("metrics=")[1].split("/")[2]
        settings = {
            "alerts.file": "default",
            "data.dir": folder,
            "interval.seconds": "1",
            "health.interval.seconds": "5",
        }
        with (
            monitor_process(broker.bootstrap, settings) as monitor,
            _prometheus(
                Path(folder), {"ottla-broker": metrics, "ottla-monitor": monitor.base_url.netloc.decode()}
            ) as prometheus,
        ):
            with _traffic(broker.bootstrap):
                time.sleep(seconds)
                _check_expressions(report, prometheus)
            _check_rules(report, prometheus, expected=set())
            broker.kill()
            _await_alerts(report, prometheus)


@contextmanager
def _prometheus(folder: Path, targets: dict[str, str]) -> Iterator[httpx.Client]:
    """Run Prometheus with the files of deploy/, other addresses, and short durations."""
    config = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job["static_configs"][0]["targets"] = [targets[job["job_name"]]] if job["job_name"] in targets else []
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (_DEPLOY / "prometheus" / "alerts.yml").read_text()
    (folder / "alerts.yml").write_text(re.sub(r"for: \d+[smh]", "for: 1s", rules))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open(folder / "prometheus.log", "w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _await_ready(client, process, folder / "prometheus.log")
                yield client
        finally:
            process.terminate()
            process.wait(60)


def _await_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise CannotRun(f"Prometheus does not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)


@contextmanager
def _traffic(bootstrap: str) -> Iterator[None]:
    """Append records all the time, and commit behind the end."""
    stopped = threading.Event()

    def work() -> None:
        with AdminClient(bootstrap, {}, timeout_s=60) as client:
            client.cluster.create_topic("orders", 1, {"retention.ms": "-1"})
            sent = 0
            while not stopped.wait(0.1):
                record = Record(timestamp=int(time.time() * 1000), key=None, value=b"v")
                client.cluster.produce(_ORDERS, build_batch([record] * 10))
                sent += 10
                client.cluster.commit("billing", {_ORDERS: sent // 2})

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except ClientError as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        assert not failures, failures


def _expressions() -> Iterator[tuple[str, str]]:
    for file in sorted((_DEPLOY / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                # What Grafana puts in place of a variable with the choice "All".
                yield f"{file.stem}: {panel['title']}", re.sub(r"\$\w+", ".*", target["expr"])


def _check_expressions(report: Report, prometheus: httpx.Client) -> None:
    rows = list(_expressions())
    with_series = 0
    for where, text in rows:
        answer = prometheus.get("/api/v1/query", params={"query": text}).json()
        if answer["status"] != "success":
            report.problem(f"{where}: {text}: {answer['error']}")
        elif answer["data"]["result"]:
            with_series += 1
        elif not _QUIET.search(text):
            report.problem(f"{where}: {text} gives no series")
    report.figure(f"{len(rows)} expressions of dashboards accepted, {with_series} of them with series")


def _alerts(prometheus: httpx.Client) -> dict[str, dict[str, Any]]:
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    return {rule["name"]: rule for group in groups for rule in group["rules"]}


def _firing(rules: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, rule in rules.items() if rule["state"] == "firing"}


def _check_rules(report: Report, prometheus: httpx.Client, *, expected: set[str]) -> None:
    rules = _alerts(prometheus)
    for name, rule in rules.items():
        if rule["health"] != "ok":
            report.problem(f"rule {name} is {rule['health']}: {rule.get('lastError', '')}")
    # A group that consumes half of what arrives never catches up.
    unexpected = _firing(rules) - expected - {"OttlaGroupNeverCatchesUp"}
    if unexpected:
        report.problem(f"alerts fire in a healthy cluster: {', '.join(sorted(unexpected))}")
    report.figure(f"{len(rules)} rules evaluated")


def _await_alerts(report: Report, prometheus: httpx.Client) -> None:
    """Wait until the alerts fire, and compare their texts with their templates."""
    began = time.monotonic()
    while not (firing := _firing(_alerts(prometheus))) >= _EXPECTED:
        if time.monotonic() - began > _WAIT_S:
            report.problem(f"alerts do not fire after a kill: {', '.join(sorted(_EXPECTED - firing))}")
            return
        time.sleep(0.5)
    texts = [alert["annotations"]["summary"] for rule in _alerts(prometheus).values() for alert in rule["alerts"]]
    report.problems_found(f"text with an empty label: {text}" for text in texts if "<no value>" in text)
    for text in sorted(set(texts)):
        report.say(f"  {text}")
    report.figure(
        f"alerts fire {time.monotonic() - began:.0f} s after the broker is killed: {', '.join(sorted(firing))}"
    )
