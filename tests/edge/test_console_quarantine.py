"""Quarantine of pipelines in the console and on the command line: causes, samples, edit, and sending again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
sys.path.insert(0, str(Path(__file__).parents[1]))

from click.testing import CliRunner
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker

from ottla.admin.client import AdminClient
from ottla.cli.main import main
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from quarantine_tables import rejected, replays, write_quarantine

QUARANTINE = "/c/main/quarantine"
TABLE = f"{QUARANTINE}/orders_staging_quarantine"
HOSTILE = "<script>alert('q')</script>"
ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def client() -> Iterator[AdminClient]:
    with edge_broker() as broker, AdminClient(_bootstrap(broker), {}, timeout_s=60) as made:
        made.create_topics(["orders"], 1, 1, {}, dry_run=False)
        made.await_topics(["orders"])
        made.append_batch(ORDERS, build_batch([Record(value=b'{"id": %d}' % at) for at in range(10)]))
        yield made


def _bootstrap(broker: Broker) -> str:
    return broker.bootstrap


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    rows = [rejected(at, "missing field amount") for at in range(5)]
    rows += [rejected(5, "bad date"), rejected(6, "bad date", headers=replays(3)), rejected(7, HOSTILE, value=b"\xff")]
    write_quarantine(folder, "orders_staging_quarantine", rows)
    return folder


@pytest.fixture(scope="module")
def console(client: AdminClient, lake: Path) -> Iterator[ConsoleClient]:
    with console_process(client.bootstrap, {"pipeline.status.urls": str(lake)}) as running:
        running.log_in()
        yield running


def records(client: AdminClient) -> list[Record]:
    start, end = client.log_ranges([ORDERS])[ORDERS]
    return client.read_records(ORDERS, start, end)[10:]


def test_causes_are_shown_with_counts_and_samples(console: ConsoleClient) -> None:
    (table,) = console.json(QUARANTINE)["tables"]  # type: ignore[misc]
    assert (table["table"], table["rows"], table["causes"]) == ("orders_staging_quarantine", 8, 3)
    page = console.json(f"{TABLE}?cause=missing field amount")
    causes = [(row["cause"], row["rows"]) for row in page["causes"]]  # type: ignore[attr-defined]
    assert causes[0] == ("missing field amount", 5)
    assert [row["offset"] for row in page["samples"]] == [4, 3, 2, 1, 0]  # type: ignore[attr-defined]


def test_hostile_cause_and_bytes_are_text(console: ConsoleClient) -> None:
    for path in (QUARANTINE, TABLE, f"{TABLE}?cause={HOSTILE}", f"{TABLE}/row?id=orders/0/7"):
        page = console.http.get(path)
        assert page.status_code == 200 and "<script>alert" not in page.text, path
    assert console.json(f"{TABLE}/row?id=orders/0/7")["value"] == "ff"


def test_records_of_a_cause_are_sent_once_after_a_preview(console: ConsoleClient, client: AdminClient) -> None:
    form = {"cause": "missing field amount"}
    token = csrf_of(console.http.get(TABLE).text)
    preview = console.http.post(f"{TABLE}/redrive", data={**form, "csrf": token})
    assert "5 records appended" in preview.text and "Type <strong>orders_staging_quarantine" in preview.text
    assert records(client) == []
    assert console.act(f"{TABLE}/redrive", **form).status_code == 303
    sent = records(client)
    assert [each.value for each in sent] == [b'{"id": %d}' % at for at in range(5)]
    assert all(("ottla.replay.count", b"1") in each.headers for each in sent)
    again = console.http.post(f"{TABLE}/redrive", data={**form, "csrf": token})
    assert "5 rows are left out: sent already" in again.text and "Nothing would change" in again.text
    assert all(row["is_sent"] for row in console.json(f"{TABLE}?cause=missing field amount")["samples"])  # type: ignore[attr-defined]


def test_loop_guard_leaves_out_a_record_that_was_sent_three_times(console: ConsoleClient) -> None:
    token = csrf_of(console.http.get(TABLE).text)
    preview = console.http.post(f"{TABLE}/redrive", data={"cause": "bad date", "csrf": token})
    assert "1 record appended" in preview.text and "1 rows are left out: sent too often" in preview.text


def test_record_is_edited_as_json_and_sent(console: ConsoleClient, client: AdminClient) -> None:
    before = len(records(client))
    token = csrf_of(console.http.get(TABLE).text)
    wrong = console.http.post(f"{TABLE}/redrive", data={"id": "orders/0/5", "value": "{", "csrf": token})
    assert wrong.status_code == 400 and "no JSON" in wrong.text
    assert console.act(f"{TABLE}/redrive", id="orders/0/5", value='{"id": 5, "amount": 1}').status_code == 303
    assert [each.value for each in records(client)[before:]] == [b'{"id":5,"amount":1}']


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{QUARANTINE}/nothing", 404), (f"{QUARANTINE}/..%2F..%2Fetc", 404), (f"{TABLE}/row?id=orders/0/99", 404),
        (f"{TABLE}/row?id=orders", 400), (f"{TABLE}/row?id=orders/x/1", 400), (f"{TABLE}/redrive", 303),
    ],
)  # fmt: skip
def test_wrong_names_and_visitors_are_refused(console: ConsoleClient, path: str, status: int) -> None:
    with console.browser() as visitor:
        assert visitor.get(path).status_code == status


def test_command_line_counts_causes_and_sends_records(client: AdminClient, lake: Path) -> None:
    write_quarantine(lake, "payments_quarantine", [rejected(8, "no amount"), rejected(9, "no amount")])
    file = lake / "shop.yaml"
    file.write_text(
        f"name: shop\nbrokers: {client.bootstrap}\nstorage: {lake}\n"
        "sources:\n  orders: {topic: orders, format: bytes}\nflows:\n  orders_raw: {zone: raw, from: orders}\n"
    )
    counted = CliRunner().invoke(main, ["pipeline", "quarantine", str(file), "-o", "json"])
    assert counted.exit_code == 0, counted.output
    rows: list[dict[str, Any]] = json.loads(counted.stdout)
    assert {"table": "payments_quarantine", "rows": 2, "cause": "no amount", "newest_ms": 1_700_000_009_000} in rows
    words = ["pipeline", "redrive", str(file), "--table", "payments_quarantine", "--cause", "no amount"]
    before = len(records(client))
    dry = CliRunner().invoke(main, [*words, "--dry-run"])
    assert dry.exit_code == 0 and "nothing was sent" in dry.stderr and len(records(client)) == before
    done = CliRunner().invoke(main, [*words, "--yes", "-o", "json"])
    assert json.loads(done.stdout) == [{"topic_name": "orders", "partition_id": 0, "records": 2, "sent": True}]
    assert len(records(client)) == before + 2
    again = CliRunner().invoke(main, [*words, "--yes"])
    assert again.exit_code == 3 and "2 rows left out: sent already" in again.stderr
