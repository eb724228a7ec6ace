"""The schemas of a registry in the console: versions, differences, tests of new schemas, settings, deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker
from registry_process import RegistryProcess

SCHEMAS = "/c/main/schemas"
HOSTILE = "<script>alert(1)</script>&\"'-value"


def record(*fields: str) -> str:
    rows = [{"name": name, "type": "string", "default": ""} for name in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": rows})


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker({}) as running:
        yield running


@pytest.fixture(scope="module")
def registry(broker: Broker) -> Iterator[RegistryProcess]:
    with RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker, registry: RegistryProcess) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap, None, "--registry", registry.url) as running:
        yield running


@pytest.fixture
def admin(console: ConsoleClient) -> Iterator[httpx.Client]:
    with console.browser() as browser:
        yield console.log_in(browser)


def register(registry: RegistryProcess, subject: str, schema: str) -> None:
    path = httpx.URL(registry.url).copy_with(path=f"/subjects/{subject}/versions")
    answer = registry.client.post(path, json={"schema": schema})
    assert answer.status_code == 200, answer.text


def shown(console: ConsoleClient, subject: str, **query: Any) -> dict[str, Any]:
    return console.json(f"{SCHEMAS}/{subject}?{httpx.QueryParams(query)}")


def test_page_of_a_subject_shows_what_its_newest_version_changes(
    console: ConsoleClient, registry: RegistryProcess
) -> None:
    register(registry, "orders-value", record("id"))
    register(registry, "orders-value", record("id", "note"))
    page = shown(console, "orders-value")
    assert (page["versions"], page["version"], page["before"]) == ([1, 2], 2, 1)
    added = [new for kind, old, new in page["difference"] if kind == "added"]
    assert any('"name": "note"' in line for line in added)
    assert "<ins" in console.http.get(f"{SCHEMAS}/orders-value").text
    assert shown(console, "orders-value", version=1, before=1)["difference"] == []
    (row,) = [each for each in console.json(SCHEMAS)["subjects"] if each["subject"] == "orders-value"]  # type: ignore[attr-defined]
    assert (row["versions"], row["topic"], row["type"]) == (2, "orders", "AVRO")


def test_new_schema_is_tested_before_it_is_registered(
    console: ConsoleClient, registry: RegistryProcess, admin: httpx.Client
) -> None:
    register(registry, "clicks-value", record("page"))
    path = f"{SCHEMAS}/clicks-value/test"
    broken = '{"type": "record", "name": "Order", "fields": [{"name": "must", "type": "int"}]}'
    token = csrf_of(admin.get(path).text)
    preview = admin.post(path, data={"schema": broken, "type": "AVRO", "csrf": token})
    assert preview.status_code == 200 and "not compatible" in preview.text
    assert shown(console, "clicks-value")["versions"] == [1]
    assert console.act(path, admin, schema=record("page", "user"), type="AVRO").status_code == 303
    assert shown(console, "clicks-value")["versions"] == [1, 2]
    refused = console.act(path, admin, schema=broken, type="AVRO")
    assert refused.status_code == 409 and "incompatible" in refused.text.lower()
    assert shown(console, "clicks-value")["versions"] == [1, 2]


def test_first_version_of_a_new_subject_is_registered(console: ConsoleClient, admin: httpx.Client) -> None:
    assert console.act(f"{SCHEMAS}/new-value/test", admin, schema=record("a"), type="AVRO").status_code == 303
    assert shown(console, "new-value")["versions"] == [1]


def test_compatibility_and_mode_are_set_and_inherited_again(
    console: ConsoleClient, registry: RegistryProcess, admin: httpx.Client
) -> None:
    register(registry, "config-value", record("id"))
    assert (shown(console, "config-value")["compatibility"], shown(console, "config-value")["mode"]) == (
        "inherited",
    ) * 2
    path = f"{SCHEMAS}/config-value/config"
    assert console.act(path, admin, compatibility="FULL").status_code == 303
    assert console.act(path, admin, mode="READONLY").status_code == 303
    assert (shown(console, "config-value")["compatibility"], shown(console, "config-value")["mode"]) == (
        "FULL",
        "READONLY",
    )
    assert console.act(path, admin, mode="inherited").status_code == 303
    assert console.act(path, admin, compatibility="inherited").status_code == 303
    assert shown(console, "config-value")["compatibility"] == "inherited"


def test_version_and_subject_are_deleted_after_the_name_was_typed(
    console: ConsoleClient, registry: RegistryProcess, admin: httpx.Client
) -> None:
    register(registry, "gone-value", record("id"))
    register(registry, "gone-value", record("id", "more"))
    path = f"{SCHEMAS}/gone-value/delete"
    assert console.act(path, admin, version="1").status_code == 303
    assert shown(console, "gone-value")["versions"] == [2]
    assert console.act(path, admin).status_code == 303
    assert console.http.get(f"{SCHEMAS}/gone-value", headers={"accept": "text/html"}).status_code == 404


def test_subject_with_a_hostile_name_is_text(console: ConsoleClient, admin: httpx.Client) -> None:
    quoted = str(httpx.URL(path=f"/{HOSTILE}")).removeprefix("/").replace("/", "%2F").replace("&", "%26")
    assert console.act(f"{SCHEMAS}/{quoted}/test", admin, schema=record("a"), type="AVRO").status_code == 303
    for path in (SCHEMAS, f"{SCHEMAS}/{quoted}", f"{SCHEMAS}/{quoted}/test"):
        text = admin.get(path).text
        assert "<script>alert" not in text and "&lt;script&gt;" in text


def test_registry_that_does_not_answer_is_named(broker: Broker) -> None:
    with console_process(broker.bootstrap, None, "--registry", "http://127.0.0.1:1") as console:
        answer = console.http.get(SCHEMAS, headers={"accept": "text/html"})
        assert answer.status_code == 503 and "127.0.0.1:1" in answer.text
        assert "Weather" in console.http.get("/c/main").text


def test_console_without_a_registry_has_no_schemas(broker: Broker) -> None:
    with console_process(broker.bootstrap) as console:
        assert ">Schemas<" not in console.http.get("/c/main").text
        assert console.http.get(SCHEMAS).status_code == 404
