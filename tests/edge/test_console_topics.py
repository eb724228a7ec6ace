"""Topics in the console: the list, a topic's pages, and what changes topics."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker

from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.raw import RawClient, produce_request

TOPICS = "/c/main/topics"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker({"auto.create.topics.enable": "false"}) as running:
        with RawClient(running.bootstrap) as client:
            for number in range(60):
                client.create_topic(f"paged-{number:02}", 1)
            client.create_topic("a.json", 3)
            client.create_topic("compacted", 1, {"cleanup.policy": "compact"})
            batch = build_batch(
                [Record(value=b"x" * 100) for _ in range(10)], producer_id=7, producer_epoch=0, base_sequence=0
            )
            client.ask(produce_request(("a.json", 1, batch), acks=-1), 9)
            client.create_topic("__hidden", 1)
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        yield running


@pytest.fixture
def admin(console: ConsoleClient) -> Iterator[httpx.Client]:
    with console.browser() as browser:
        yield console.log_in(browser)


def names(found: dict[str, object]) -> list[str]:
    rows = found["topics"]
    assert isinstance(rows, list)
    return [row["name"] for row in rows]


def test_list_has_pages_a_search_an_order_and_a_switch_for_internal_topics(console: ConsoleClient) -> None:
    first = console.json(TOPICS)
    assert len(names(first)) == 50 and first["matched"] == 62
    assert names(console.json(f"{TOPICS}?start=50"))[-1] == "paged-59"
    assert names(console.json(f"{TOPICS}?q=PAGED-1"))[:2] == ["paged-10", "paged-11"]
    assert names(console.json(f"{TOPICS}?q=hidden")) == []
    assert names(console.json(f"{TOPICS}?q=hidden&internal=yes")) == ["__hidden"]
    assert names(console.json(f"{TOPICS}?sort=partitions&order=desc"))[0] == "a.json"
    assert names(console.json(f"{TOPICS}?state=care")) == []
    text = console.http.get(TOPICS).text
    assert "next" in text and "start=50" in text


def test_wrong_query_is_refused_and_an_unknown_topic_is_not_found(console: ConsoleClient) -> None:
    assert console.http.get(f"{TOPICS}?sort=colour").status_code == 400
    assert console.http.get(f"{TOPICS}?start=-1").status_code == 400
    assert console.http.get(f"{TOPICS}/none").status_code == 404


def test_topic_whose_name_ends_like_the_json_form_has_a_page_and_a_json_form(console: ConsoleClient) -> None:
    page = console.http.get(f"{TOPICS}/a%2Ejson", headers={"accept": "text/html"})
    assert "<h1>a.json</h1>" in page.text
    found = console.json(f"{TOPICS}/a%2Ejson/partitions")
    assert found["topic"] == "a.json" and len(found["partitions"]) == 3  # type: ignore[arg-type]


def test_sizes_settings_and_groups_of_a_page_are_read_after_its_rows(console: ConsoleClient) -> None:
    query = "?q=a.json"
    assert console.json(f"{TOPICS}{query}")["figures"] == {}
    found = console.json(f"/c/main/topic-cells{query}")
    row = found["figures"]["a.json"]  # type: ignore[index]
    assert row["size_bytes"] > 1000 and row["settings"]["cleanup.policy"] == "delete"
    assert found["cells"]["a.json"]["settings"].startswith("delete 7 d")  # type: ignore[index]
    page = console.http.get(f"{TOPICS}{query}").text
    assert 'data-cells="/c/main/topic-cells.json?q=a.json"' in page and "full=yes" in page
    assert "delete 7 d" in console.http.get(f"{TOPICS}{query}&full=yes").text
    assert names(console.json(f"{TOPICS}?sort=size&order=desc"))[0] == "a.json"
    assert names(console.json(f"{TOPICS}?cleanup=compact")) == ["compacted"]


def test_partitions_have_offsets_and_sizes(console: ConsoleClient) -> None:
    found = console.json(f"{TOPICS}/a%2Ejson/partitions?full=yes")
    assert found["figures"]["1"]["log_end_offset"] == 10  # type: ignore[index]
    assert console.json(f"{TOPICS}/a%2Ejson/partition-cells")["cells"]["1"]["records"] == "10"  # type: ignore[index]


def test_producers_of_a_topic_are_shown(console: ConsoleClient) -> None:
    (row,) = console.json(f"{TOPICS}/a%2Ejson/producers")["producers"]  # type: ignore[misc]
    assert (row["producer_id"], row["partition"], row["transaction_start"]) == (7, 1, None)


@pytest.mark.parametrize("tab", ["groups", "configs", "producers", "acls", "partitions"])
def test_each_tab_opens_and_has_a_json_form(console: ConsoleClient, tab: str) -> None:
    page = console.http.get(f"{TOPICS}/a%2Ejson/{tab}")
    assert page.status_code == 200 and 'aria-current="page"' in page.text and "Copy as CLI" in page.text
    assert console.json(f"{TOPICS}/a%2Ejson/{tab}")["topic"] == "a.json"
    assert "/schema" not in page.text.partition("<main")[2], "there is no registry"


def test_topic_is_created_altered_emptied_and_deleted(console: ConsoleClient, admin: httpx.Client) -> None:
    form = {"name": "made", "partitions": "2", "settings": "retention.ms=3600000\nmax.message.bytes=2000"}
    assert console.act("/c/main/create-topic", admin, **form).headers["location"] == "/c/main/topics/made"
    assert len(console.json(f"{TOPICS}/made")["partitions"]) == 2  # type: ignore[arg-type]

    path = f"{TOPICS}/made/edit-config"
    assert "3600000" in admin.get(f"{path}?name=retention.ms").text
    token = csrf_of(admin.get("/c/main/changes").text)
    preview = admin.post(path, data={"name": "retention.ms", "value": "1000", "csrf": token})
    assert "3600000" in preview.text and "deleted soon" in preview.text
    assert console.act(path, admin, name="retention.ms", value="7200000").status_code == 303
    assert console.act(path, admin, name="max.message.bytes", then="reset").status_code == 303
    rows = {row["name"]: row for row in console.json(f"{TOPICS}/made/configs")["configs"]}  # type: ignore[attr-defined]
    assert rows["retention.ms"]["value"] == "7200000" and rows["retention.ms"]["is_own"]
    assert not rows["max.message.bytes"]["is_own"]

    assert console.act(f"{TOPICS}/made/add-partitions", admin, total="3").status_code == 303
    assert len(console.json(f"{TOPICS}/made")["partitions"]) == 3  # type: ignore[arg-type]

    assert console.act(f"{TOPICS}/made/delete", admin).status_code == 303
    assert console.http.get(f"{TOPICS}/made").status_code == 404
    titles = [row["title"] for row in console.json("/c/main/changes")["changes"]]  # type: ignore[attr-defined]
    assert titles[0] == "Delete topic made" and "Create topic made" in titles


def test_records_are_deleted_after_the_name_is_typed(
    broker: Broker, console: ConsoleClient, admin: httpx.Client
) -> None:
    assert console.act("/c/main/create-topic", admin, name="full", partitions="1").status_code == 303
    with RawClient(broker.bootstrap) as client:
        client.ask(produce_request(("full", 0, build_batch([Record(value=b"x")] * 10)), acks=-1), 9)
    path = f"{TOPICS}/full/empty"
    token = csrf_of(admin.get(path).text)
    preview = admin.post(path, data={"until": "offset", "offset": "4", "csrf": token})
    assert "Delete 4 records of full" in preview.text
    assert console.act(path, admin, until="offset", offset="4").status_code == 303
    figures = console.json(f"{TOPICS}/full/partitions?full=yes")["figures"]
    assert figures["0"]["log_start_offset"] == 4  # type: ignore[index]
    assert console.act(path, admin).status_code == 303
    figures = console.json(f"{TOPICS}/full/partitions?full=yes")["figures"]
    assert figures["0"]["log_start_offset"] == 10  # type: ignore[index]


def test_records_of_a_compacted_topic_are_not_deleted(console: ConsoleClient, admin: httpx.Client) -> None:
    path = f"{TOPICS}/compacted/empty"
    answer = admin.post(path, data={"csrf": csrf_of(admin.get(path).text)})
    assert answer.status_code == 400 and "tombstones" in answer.text


@pytest.mark.parametrize(
    ("path", "form", "problem"),
    [
        ("create-topic", {"name": ""}, "name"),
        ("create-topic", {"name": "a b"}, "a b"),
        ("create-topic", {"name": "x", "partitions": "0"}, "partitions"),
        ("create-topic", {"name": "x", "settings": "colour"}, "NAME=VALUE"),
        ("create-topic", {"name": "x", "settings": "colour=red"}, "colour"),
        ("topics/compacted/edit-config", {"name": "colour", "value": "red"}, "no setting"),
        ("topics/compacted/edit-config", {"name": "retention.ms", "value": "soon"}, "retention.ms"),
        ("topics/compacted/add-partitions", {"total": "1"}, "larger"),
        ("topics/a%2Ejson/empty", {"until": "time", "time": "noon"}, "time"),
        ("topics/a%2Ejson/empty", {"partition": "9"}, "partition"),
    ],
)
def test_wrong_form_is_refused_with_its_field(
    console: ConsoleClient, admin: httpx.Client, path: str, form: dict[str, str], problem: str
) -> None:
    answer = admin.post(f"/c/main/{path}", data={**form, "csrf": csrf_of(admin.get("/c/main/changes").text)})
    assert answer.status_code in (400, 409) and problem in answer.text


def test_people_without_a_login_change_nothing(console: ConsoleClient) -> None:
    for path in ("create-topic", "topics/a%2Ejson/delete", "topics/a%2Ejson/empty", "topics/a%2Ejson/edit-config"):
        assert console.http.post(f"/c/main/{path}", data={"confirm": "a.json"}).status_code == 401
    assert "a.json" in names(console.json(f"{TOPICS}?q=a.json"))


def test_palette_finds_topics_brokers_and_actions_and_is_bounded(console: ConsoleClient, admin: httpx.Client) -> None:
    def hits(text: str, browser: httpx.Client) -> list[tuple[str, str]]:
        answer = browser.get("/c/main/find.json", params={"q": text})
        assert answer.status_code == 200, answer.text
        return [(row["kind"], row["title"]) for row in answer.json()["found"]]

    assert hits("A.JSON", admin)[0] == ("topic", "a.json")
    assert len(hits("paged", admin)) == 8
    assert ("broker", hits("broker 0", admin)[0][1]) == hits("broker 0", admin)[0]
    assert ("do", "Create a topic") in hits("create", admin)
    assert ("do", "Create a topic") not in hits("create", console.http), "people without a login may not"
    assert hits("", admin) == [] and hits("x" * 3000, admin) == []
    page = admin.get("/c/main/find", params={"q": "a.json"}).text
    assert 'href="/c/main/topics/a%2Ejson"' in page
    hostile = "<script>alert(1)</script>"
    assert hostile not in admin.get("/c/main/find", params={"q": hostile}).text


def test_groups_of_a_topic_have_their_lag_and_hostile_ids_are_text(broker: Broker, console: ConsoleClient) -> None:
    hostile = "<script>alert('g')</script>"
    with AdminClient(broker.bootstrap, {}, timeout_s=30) as client:
        for group, offset in ((hostile, 3), ("reader", 10)):
            client.commit_offsets(group, {TopicPartition("a.json", 1): offset})
    deadline = time.monotonic() + 60
    while len(rows := console.json(f"{TOPICS}/a%2Ejson/groups")["groups"]) < 2:  # type: ignore[arg-type]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert [(row["group"], row["lag"]) for row in rows] == [(hostile, 7), ("reader", 0)]  # type: ignore[attr-defined]
    page = console.http.get(f"{TOPICS}/a%2Ejson/groups").text
    assert hostile not in page and "&lt;script&gt;" in page
    cells = console.json("/c/main/topic-cells?q=a.json")["cells"]
    assert cells["a.json"]["groups"] == "2" and cells["a.json"]["lag"].startswith("7")  # type: ignore[index]
    found = console.http.get("/c/main/find", params={"q": "<script>"}).text
    assert hostile not in found and "&lt;script&gt;" in found
