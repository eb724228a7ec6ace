"""Each page of the console in chromium: light and dark, on a desktop and on a phone; keys, the palette, live parts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from console_process import ConsoleClient, console_process
from edge_broker import Broker, edge_broker
from page_check import DESKTOP, IS_COMPLETE, PHONE, OpenPage, Scheme, opened
from registry_process import RegistryProcess

from ottla.admin.client import AdminClient
from ottla.client.cluster import Cluster
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.raw import RawClient, produce_request

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOPIC = "shop.orders"
#: name of the picture -> path below /c/main
PAGES = {
    "weather": "",
    "brokers": "/brokers",
    "broker-disks": "/brokers/0/disks",
    "broker-configs": "/brokers/0/configs",
    "moves": "/moves",
    "find": "/find?q=shop",
    "topics": "/topics",
    "topic-groups": f"/topics/{TOPIC}/groups",
    "topic-producers": f"/topics/{TOPIC}/producers",
    "topic": f"/topics/{TOPIC}/partitions",
    "groups": "/groups",
    "group": "/groups/shop-reader",
    "group-why": "/groups/shop-reader/why",
    "group-reset": "/groups/shop-reader/reset",
    "transactions": "/transactions",
    "messages": f"/topics/{TOPIC}/messages?q=id+%3E+40&rows=20",
    "record": f"/topics/{TOPIC}/p/0/o/7",
    "readers": f"/topics/{TOPIC}/p/0/o/7/readers",
    "schemas": "/schemas",
    "schema": f"/schemas/{TOPIC}-value",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/shop",
    "quarantine": "/quarantine/orders_quarantine?cause=bad+date",
    "quarantined": "/quarantine/orders_quarantine/row?id=orders/0/1",
    "access": "/access",
    "users": "/access/users",
    "quotas": "/access/quotas",
    "changes": "/changes",
}


#: colour scheme and width in which all pages are opened
VARIANTS = [("light", DESKTOP), ("dark", PHONE), *([("light", PHONE), ("dark", DESKTOP)] if IS_COMPLETE else [])]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    with edge_broker(settings) as running:
        with RawClient(running.bootstrap) as client:
            client.create_topic(TOPIC, 2)
            now_ms = int(time.time() * 1000)
            records = [
                Record(
                    timestamp=now_ms - 1000 * (100 - n), key=b"c-%d" % n,
                    value=json.dumps({"id": n, "amount": 19.9}).encode(), headers=[("type", b"order")],
                )
                for n in range(100)
            ]  # fmt: skip
            place = TopicPartition(TOPIC, 0)
            batch = build_batch(records)
            client.ask(produce_request((place.topic, place.partition, batch), acks=-1), 9)
        with AdminClient(running.bootstrap, {}, timeout_s=60) as admin:
            admin.commit_offsets("shop-reader", {TopicPartition(TOPIC, 0): 10})
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    lake = tmp_path_factory.mktemp("lake")
    write_pipeline(lake)
    with RegistryProcess(broker.bootstrap) as registry:
        for fields in ([], [{"name": "note", "type": "string", "default": ""}]):
            schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, *fields]})
            path = f"{registry.url}/subjects/{TOPIC}-value/versions"
            assert registry.client.post(path, json={"schema": schema}).status_code == 200
        settings = {"pipeline.status.urls": str(lake), "search.bytes.max": str(1 << 20)}
        with console_process(broker.bootstrap, settings, "--registry", registry.url) as running:
            running.log_in()
            running.act("/c/main/access/users/set", user="ana", password="x", mechanism="both")
            row = {
                "principal": "User:ana",
                "resource_type": "TOPIC",
                "resource_name": "shop",
                "pattern_type": "PREFIXED",
            }
            running.act("/c/main/access/acls/add", **row, operation="READ", permission="ALLOW", host="*")
            yield running


def write_pipeline(lake: Path) -> None:
    """Write the status of a pipeline and a quarantine table as `ottla pipeline run` does."""
    from ottla.pipeline.status import FlowStatus, NodeStatus, RunStatus
    from quarantine_tables import rejected, write_quarantine

    status = RunStatus.begin("shop", "shop.yaml", "local[*]")
    status.nodes = [NodeStatus(name="orders", kind="source", zone="sources", topics=[TOPIC])]
    for number, zone in enumerate(("raw", "staging", "trusted", "refined")):
        name, before = f"orders_{zone}", status.nodes[-1].name
        status.nodes.append(NodeStatus(name=name, kind="table", zone=zone, inputs=[before]))
        state = "failed" if number == 3 else "running"
        error = "column amount is missing" if number == 3 else None
        status.flows.append(
            FlowStatus(name=name, zone=zone, kind="table", trigger="every 2s", state=state, rows=10_000, error=error)  # type: ignore[arg-type]
        )
    rows = [rejected(1, "bad date"), rejected(2, "bad date", value=b"\xff" * 90), rejected(3, "missing field amount")]
    write_quarantine(lake, "orders_quarantine", rows)
    folder = lake / "_status"
    folder.mkdir(parents=True)
    (folder / "shop.json").write_text(json.dumps(status.as_json()))


@pytest.mark.parametrize(("scheme", "width"), VARIANTS)
def test_pages_open_without_errors_fit_the_screen_and_use_no_other_host(
    chromium: Browser, console: ConsoleClient, scheme: Scheme, width: int
) -> None:
    problems: list[str] = []
    with opened(chromium, console.url, scheme=scheme, width=width) as page:
        for name, path in PAGES.items():
            page.open(f"/c/main{path}")
            problems += page.check(f"{name}-{scheme}-{width}")
    assert problems == []


def test_pages_can_be_read_without_scripts(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url, java_script_enabled=False) as page:
        for name, path in PAGES.items():
            page.open(f"/c/main{path}")
            assert page.page.locator("main").inner_text().strip(), name
        assert page.problems == []


def test_keys_open_sections_and_the_palette(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as page:
        page.open("/c/main")
        page.page.keyboard.press("g")
        page.page.keyboard.press("h")
        page.page.wait_for_url("**/c/main/changes")
        page.page.keyboard.press("?")
        assert page.page.locator("dialog.help").is_visible()
        page.page.keyboard.press("Escape")
        page.page.keyboard.press("/")
        page.page.keyboard.type("acce")
        page.page.locator(".palette li a", has_text="Access").wait_for()
        page.page.keyboard.press("Enter")
        page.page.wait_for_url("**/c/main/access")


def test_login_change_with_preview_and_logout(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as opened_page:
        page = opened_page.page
        opened_page.open("/login")
        page.fill("input[name=name]", console.name)
        page.fill("input[name=password]", console.password)
        page.click("main button")
        opened_page.open("/c/main/access/users")
        page.fill("input[name=user]:not([type=hidden])", "bob")
        page.fill("input[name=password]", "secret")
        page.click("text=Preview")
        page.locator("table.changes").wait_for()
        page.click("button.danger")
        page.wait_for_url("**/access/users")
        assert page.locator("tbody").inner_text().count("bob") == 1
        page.locator("tr", has_text="bob").locator("button").click()
        page.fill("input[name=confirm]", "alice")
        page.click("button.danger")
        assert "Nothing was changed" in page.locator("main").inner_text()
        page.fill("input[name=confirm]", "bob")
        page.click("button.danger")
        page.wait_for_url("**/access/users")
        assert "bob" not in page.locator("main table").inner_text()
        page.click("text=log out")
        page.locator("text=log in").wait_for()


def test_topic_is_created_and_deleted_after_its_name_is_typed(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as opened_page:
        page = opened_page.page
        opened_page.open("/login")
        page.fill("input[name=name]", console.name)
        page.fill("input[name=password]", console.password)
        page.click("main button")
        opened_page.open("/c/main/topics")
        page.click("text=Create…")
        page.fill("input[name=name]", "made-here")
        page.fill("input[name=partitions]", "2")
        page.click("text=Preview")
        page.click("button.danger")
        page.wait_for_url("**/topics/made-here")
        page.locator("[data-cell=end]", has_text="0").first.wait_for()
        page.click("text=Delete…")
        page.fill("input[name=confirm]", "made-there")
        page.click("button.danger")
        assert "Nothing was changed" in page.locator("main").inner_text()
        page.fill("input[name=confirm]", "made-here")
        page.click("button.danger")
        page.wait_for_url("**/c/main/topics")
        assert "made-here" not in page.locator("main").inner_text()


def test_first_page_is_renewed_while_it_is_open(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as page:
        page.open("/c/main")
        before = page.page.locator("#weather time").first.get_attribute("datetime")
        page.page.wait_for_function(
            "before => document.querySelector('#weather time')?.getAttribute('datetime') !== before", arg=before
        )
        assert page.check("weather-live") == []


def log_in(page: OpenPage, console: ConsoleClient) -> None:
    page.open("/login")
    page.page.fill("input[name=name]", console.name)
    page.page.fill("input[name=password]", console.password)
    page.page.click("main button")
    page.page.wait_for_url("**/c/main")


def test_search_of_messages_pauses_at_its_budget_and_continues_by_its_link(
    chromium: Browser, console: ConsoleClient, broker: Broker
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("sparse", 1)
        for number in range(4):
            values = [json.dumps({"id": number * 500 + n, "pad": "x" * 1000}).encode() for n in range(500)]
            cluster.produce(TopicPartition("sparse", 0), build_batch([Record(value=value) for value in values]))
    with opened(chromium, console.url) as opened_page:
        page = opened_page.page
        opened_page.open("/c/main/topics/sparse/messages?from=oldest")
        page.fill("input[name=q]", "id = 1900")
        page.click("text=Search")
        page.locator("#progress", has_text="read enough bytes").wait_for()
        assert page.locator("#rows tr").count() == 0
        page.click("text=continue from here")
        page.locator("#rows a", has_text="0/1900").click()
        page.wait_for_url("**/p/0/o/1900")
        page.locator(".tree .number", has_text="1900").wait_for()
        page.locator("#readers", has_text="No group has a committed offset").wait_for()
        page.click("nav.views >> text=hex")
        assert "00000000" in page.locator("pre.hex").inner_text()
        assert opened_page.check("record-hex") == []


def test_search_that_goes_on_adds_its_rows_at_the_end_and_stops(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as opened_page:
        page = opened_page.page
        opened_page.open(f"/c/main/topics/{TOPIC}/messages?from=oldest&rows=2&partition=0")
        # As if the first rows had taken longer than a page may take.
        page.evaluate(
            """url => { const part = document.getElementById('progress');
            part.dataset.live = url; part.dataset.once = ''; startLive(part); }""",
            f"/c/main/topics/{TOPIC}/messages/search?from=oldest&partition=0&at=0.2&rows=3&q=id+%3C+5&scanned=2&matched=2",
        )
        page.wait_for_function("() => document.getElementById('progress').dataset.running === 'no'")
        assert page.locator("#rows tr td:nth-child(2)").all_inner_texts() == ["0/0", "0/1", "0/2", "0/3", "0/4"]
        assert opened_page.check("search-ended") == []


@pytest.mark.skipif(not IS_COMPLETE, reason="a search that is long enough to be stopped: make campaign NAME=browser")
def test_search_is_stopped_and_resumed_without_missing_a_record(
    chromium: Browser, console: ConsoleClient, broker: Broker
) -> None:
    values = [b'{"id": %d, "pad": "%s"}' % (number, b"x" * 100) for number in range(3000)]
    batch, match = (build_batch([Record(value=value) for value in each]) for each in (values, [b'{"id": 777777}']))
    with Cluster(broker.bootstrap) as cluster, opened(chromium, console.url) as opened_page:
        cluster.create_topic("long", 2)
        for number in range(300):
            if number % 30 == 0:
                cluster.produce(TopicPartition("long", number // 30 % 2), match)
            cluster.produce(TopicPartition("long", number % 2), batch)
        page = opened_page.page
        opened_page.open("/c/main/topics/long/messages?q=id+%3D+777777")
        found = 0
        for _ in range(1000):
            page.keyboard.press("s")
            found += page.locator("#rows tr").count()
            link = page.locator("#progress a.next")
            if not link.count():
                break
            link.click()
            page.wait_for_load_state()
        assert found == 10
        assert opened_page.check("search-stopped") == []


def test_new_messages_arrive_live_until_it_is_stopped(
    chromium: Browser, console: ConsoleClient, broker: Broker
) -> None:
    place = TopicPartition("live", 0)
    with Cluster(broker.bootstrap) as cluster, opened(chromium, console.url) as opened_page:
        cluster.create_topic(place.topic, 1)
        page = opened_page.page
        opened_page.open("/c/main/topics/live/messages")
        page.keyboard.press("l")
        page.locator("#progress", has_text="live").wait_for()
        cluster.produce(place, build_batch([Record(value=b"<b>first</b>"), Record(value=b"second")]))
        page.locator("#rows tr", has_text="<b>first</b>").wait_for()
        assert page.locator("#rows td:nth-child(4)").all_inner_texts() == ["second", "<b>first</b>"]
        cluster.produce(place, build_batch([Record(value=b"v%d" % n) for n in range(300)]))
        page.locator("#rows tr", has_text="v299").wait_for()
        assert page.locator("#rows tr").count() <= 200
        page.locator("#progress", has_text="left out").wait_for()
        page.keyboard.press("s")
        assert page.locator("#progress").get_attribute("data-running") == "no"
        cluster.produce(place, build_batch([Record(value=b"late")]))
        page.reload()
        page.locator("#rows tr", has_text="late").wait_for()
        assert opened_page.check("messages-live") == []


def test_record_is_produced_and_produced_again_in_the_browser(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as opened_page:
        page = opened_page.page
        log_in(opened_page, console)
        opened_page.open(f"/c/main/topics/{TOPIC}/messages")
        page.click("text=Produce…")
        page.fill("textarea[name=key]", "c-7")
        page.fill("textarea[name=value]", '{"id": 4711, "note": "made"}')
        page.fill("textarea[name=headers]", "type: refund")
        assert opened_page.check("produce") == []
        page.click("text=Preview")
        assert "AVRO with schema id" in page.locator("table.changes").inner_text()
        page.click("button.danger")
        page.locator("#rows tr", has_text="4711").first.locator("a").click()
        page.click("text=Produce again…")
        assert page.input_value("textarea[name=headers]") == "type: refund"
        page.select_option("select[name=value_format]", "same")
        page.click("text=Preview")
        page.click("button.danger")
        page.wait_for_url("**/messages?partition=*")
        assert page.locator("#rows tr", has_text="4711").count() == 2
        assert opened_page.problems == []
