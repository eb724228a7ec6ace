"""Each page of the console in chromium: light and dark, on a desktop and on a phone; keys, the palette, live parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from console_process import ConsoleClient, console_process
from edge_broker import Broker, edge_broker
from page_check import DESKTOP, IS_COMPLETE, PHONE, Scheme, opened
from registry_process import RegistryProcess

from ottla.admin.client import AdminClient
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
    "schemas": "/schemas",
    "schema": f"/schemas/{TOPIC}-value",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/shop",
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
            records = [
                Record(key=b"c-%d" % n, value=json.dumps({"id": n, "amount": 19.9}).encode()) for n in range(100)
            ]
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
        settings = {"pipeline.status.urls": str(lake)}
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
    """Write the status of a pipeline as `ottla pipeline run` does."""
    from ottla.pipeline.status import FlowStatus, NodeStatus, RunStatus

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


def test_first_page_is_renewed_while_it_is_open(chromium: Browser, console: ConsoleClient) -> None:
    with opened(chromium, console.url) as page:
        page.open("/c/main")
        before = page.page.locator("#weather time").first.get_attribute("datetime")
        page.page.wait_for_function(
            "before => document.querySelector('#weather time')?.getAttribute('datetime') !== before", arg=before
        )
        assert page.check("weather-live") == []
