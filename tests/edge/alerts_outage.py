"""Kill the brokers of a cluster one by one and start them again: which alerts the receivers of a monitor get.

    make campaign NAME=alerts

The rules are those of Ottla with durations of a second. A webhook, which refuses its first messages, a mail server and
Slack's incoming webhook are servers of this process. In the end each alert that a receiver knows must have closed.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from alert_receivers import MailReceiver, WebReceiver, answer, mail_receiver, web_receiver
from monitor_process import monitor_process

from campaign.report import Report
from ottla.admin.client import AdminClient
from ottla.client.errors import ClientError
from ottla.edge.monitor.alerts.rules_file import default_text
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import ClusterProcess

_WAIT_S = 120.0
_REFUSED = 3
_RECEIVERS = """
[[receiver]]
name = "hook"
url = "{hook}"
[[receiver]]
name = "chat"
type = "slack"
url = "{chat}"
[[receiver]]
name = "mail"
type = "email"
smtp = "127.0.0.1:{port}"
tls = "none"
from = "ottla@shop.example"
to = "ana@shop.example"
"""


def run(report: Report, *, seconds: float) -> None:
    """Run a cluster, its monitor and the receivers."""
    refused = [answer(503)] * _REFUSED + [answer(200)]
    with (
        tempfile.TemporaryDirectory() as folder,
        web_receiver(*refused) as hook,
        web_receiver() as chat,
        mail_receiver() as mail,
        ClusterProcess.start(brokers=3) as cluster,
    ):
        file = Path(folder, "alerts.toml")
        file.write_text(_rules() + _RECEIVERS.format(hook=hook.url, chat=chat.url, port=mail.port))
        _fill(cluster)
        settings = {
            "alerts.file": str(file), "data.dir": folder, "interval.seconds": "1", "health.interval.seconds": "1"
        }  # fmt: skip
        with monitor_process(cluster.bootstrap, settings) as monitor:
            _Outage(report, cluster, monitor, hook).run(seconds)
        _check_end(report, hook, chat, mail)


def _rules() -> str:
    """Return the rules of Ottla with short durations."""
    text = re.sub(r'(?m)^(for|wait|interval) = "\w+"', r'\1 = "1s"', default_text())
    return re.sub(r'(?m)^keep = "\w+"\n', "", text).replace("[[rule]]", '[[rule]]\nkeep = "2s"')


def _fill(cluster: ClusterProcess) -> None:
    orders = TopicPartition("orders", 0)
    with AdminClient(cluster.bootstrap, {}, timeout_s=60) as client:
        client.cluster.create_topic("orders", 3, {"min.insync.replicas": "2"}, replication_factor=3)
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                client.cluster.produce(orders, build_batch([Record(timestamp=1, key=None, value=b"v")]))
                client.cluster.commit("billing", {orders: 1})
                return
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


class _Outage:
    def __init__(self, report: Report, cluster: ClusterProcess, monitor: httpx.Client, hook: WebReceiver) -> None:
        self._report = report
        self._cluster = cluster
        self._monitor = monitor
        self._hook = hook

    def run(self, seconds: float) -> None:
        time.sleep(seconds)
        if found := self._open():
            self._report.problem(f"alerts in a healthy cluster: {', '.join(sorted(found))}")
        first, *others = sorted(self._cluster.brokers)
        self._kill(others[-1], {"broker-down", "under-replicated"})
        self._kill(others[0], {"under-min-isr"})
        self._kill(first, {"cluster-not-read"})
        threads = [threading.Thread(target=each.launch) for each in self._cluster.brokers.values()]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        began = time.monotonic()
        self._await(lambda: not self._open() and not _known(self._hook), "all alerts close after the restart")
        self._report.figure(f"all alerts closed {time.monotonic() - began:.1f} s after the restart")

    def _kill(self, number: int, rules: set[str]) -> None:
        """Kill a broker and wait until the webhook knows these alerts."""
        self._cluster.brokers[number].kill()
        began = time.monotonic()
        self._await(lambda: rules <= set(_known(self._hook).values()), f"the webhook gets {', '.join(sorted(rules))}")
        self._report.figure(
            f"{', '.join(sorted(rules))} at the webhook {time.monotonic() - began:.1f} s after a broker was killed"
        )

    def _await(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not is_true():
            if time.monotonic() > deadline:
                self._report.problem(f"{what}: not within {_WAIT_S:.0f} s; open are {', '.join(sorted(self._open()))}")
                return
            time.sleep(0.1)

    def _open(self) -> set[str]:
        (cluster,) = self._monitor.get("/alerts").json()["clusters"]
        return {row["rule"] for row in cluster["alerts"] if row["state"] == "open"}


def _known(hook: WebReceiver) -> dict[str, str]:
    """Return the alerts that a webhook believes to be open, from the messages that it has accepted."""
    found: dict[str, str] = {}
    for _, _, body in hook.requests[_REFUSED:]:
        for alert in _alerts(body):
            if alert["status"] == "firing":
                found[alert["fingerprint"]] = alert["labels"]["alertname"]
            else:
                found.pop(alert["fingerprint"], None)
    return found


def _alerts(body: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(body)["alerts"]
    return found


def _check_end(report: Report, hook: WebReceiver, chat: WebReceiver, mail: MailReceiver) -> None:
    if len(hook.requests) <= _REFUSED:
        report.problem("the webhook has accepted nothing")
    summaries = {
        f"{alert['labels']['severity']} {alert['labels']['alertname']}: {alert['annotations']['summary']}"
        for _, _, body in hook.requests
        for alert in _alerts(body)
    }
    for text in sorted(summaries):
        report.say(f"  {text}")
    if not chat.requests or not mail.mails:
        report.problem(f"{len(chat.requests)} messages to Slack, {len(mail.mails)} mails")
    sent = f"{len(hook.requests)} webhooks, {_REFUSED} of them refused, {len(chat.requests)} to Slack"
    report.figure(f"{sent}, {len(mail.mails)} mails")
