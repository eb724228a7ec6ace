"""Groups in the console: the list, the pages of a group, and the plans that change it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker

from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

GROUPS = "/c/main/groups"
HOSTILE = "<script>alert('g')</script>\"&/.json"
ORDERS = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker() as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[AdminClient]:
    """Return a client of a cluster with 60 records in each of three partitions, and groups without members."""
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as made:
        made.create_topics(["orders"], 3, 1, {}, dry_run=False)
        made.await_topics(["orders"])
        now_ms = int(time.time() * 1000)
        for place in ORDERS:
            records = [Record(timestamp=now_ms - 60_000 + 1000 * n, value=b"%d" % n) for n in range(60)]
            made.append_batch(place, build_batch(records))
        made.commit_offsets("behind", dict.fromkeys(ORDERS, 5))
        made.commit_offsets("caught-up", dict.fromkeys(ORDERS, 60))
        made.commit_offsets(HOSTILE, {ORDERS[0]: 59})
        for number in range(55):
            made.commit_offsets(f"many-{number:02}", {ORDERS[0]: 60 - number})
        yield made


@pytest.fixture(scope="module")
def console(broker: Broker, client: AdminClient) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        running.log_in()
        yield running


@pytest.fixture
def members(broker: Broker, client: AdminClient) -> Iterator[None]:
    """Run a consumer of the group `running` for the time of a test."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "running", "client.id": "app-1",
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    while len(consumer.assignment()) < len(ORDERS):
        consumer.poll(0.1)
    yield
    consumer.close()


def path_of(group: str) -> str:
    from ottla.edge.console.rendering import url

    return url("c", "main", "groups", group)


def rows(console: ConsoleClient, query: str = "") -> dict[str, dict[str, Any]]:
    found = console.json(f"{GROUPS}?{query}")["groups"]
    assert isinstance(found, list)
    return {row["group"]: row for row in found}


def test_list_has_lag_in_records_and_in_time_with_the_worst_group_first(console: ConsoleClient) -> None:
    found = rows(console, "sort=group")
    assert (found["behind"]["lag"], found["caught-up"]["lag"]) == (165, 0)
    assert found["caught-up"]["time_lag_ms"] == 0
    assert found["behind"]["kind"] == "simple" and found["behind"]["members"] == 0
    until = time.monotonic() + 60
    while next(iter(rows(console))) != "behind":  # the records of the others are newer
        assert time.monotonic() < until
    assert rows(console)["behind"]["time_lag_ms"] >= 50_000


def test_list_is_filtered_sorted_and_paged_by_its_query(console: ConsoleClient) -> None:
    page = console.json(f"{GROUPS}?q=many-&sort=group")
    assert (page["matched"], len(page["groups"])) == (55, 50)  # type: ignore[arg-type]
    assert list(rows(console, "q=many-&sort=group&start=50")) == [f"many-{number}" for number in range(50, 55)]
    # The order by lag is known from the first reading of all groups on.
    until = time.monotonic() + 60
    while next(iter(rows(console, "q=many-&sort=lag&order=desc"))) != "many-54":
        assert time.monotonic() < until
    assert console.http.get(f"{GROUPS}?sort=nothing").status_code == 400


def test_cells_that_are_loaded_after_the_page_are_those_of_its_rows(console: ConsoleClient) -> None:
    text = console.http.get(f"{GROUPS}?q=behind").text
    (cells_path,) = re.findall(r'data-cells="([^"]+)"', text)
    cells = console.json(cells_path.replace("&amp;", "&"))["cells"]
    assert list(cells) == ["behind"] and cells["behind"]["lag"]["text"] == "165"  # type: ignore[call-overload]


def test_offsets_of_a_group_show_lag_by_partition(console: ConsoleClient) -> None:
    page = console.json(path_of("behind"))
    row = page["offsets"][0]  # type: ignore[index]
    assert (row["committed"], row["log_end"], row["lag"], row["member"]) == (5, 60, 55, None)
    assert page["lag"] == 165 and page["group_state"] == "Empty"
    text = console.http.get(path_of("behind")).text
    assert "kafka-consumer-groups --describe --group behind" in text


def test_members_show_their_assignment(console: ConsoleClient, members: None) -> None:
    (row,) = console.json(f"{GROUPS}/running/members")["members"]  # type: ignore[misc]
    assert (row["client_id"], row["partitions_total"], row["assignment"]) == ("app-1", 3, ["orders: 0–2"])


def test_group_without_members_says_why_it_is_behind(console: ConsoleClient) -> None:
    page = console.json(f"{GROUPS}/behind/why")
    assert any("no members, and 165 records wait" in each["text"] for each in page["reasons"])  # type: ignore[attr-defined]
    assert console.http.get(f"{GROUPS}/caught-up/why").text.count("Nothing is wrong") == 1


def test_rebalance_is_shown_with_its_cause(console: ConsoleClient, members: None) -> None:
    page = console.json(f"{GROUPS}/running/why")
    if page["has_journal"]:  # only Ottla brokers write one
        assert page["rebalances"][0]["causes"][0]["kind"] == "joined"  # type: ignore[index]
    else:
        assert "keeps no journal of rebalances" in console.http.get(f"{GROUPS}/running/why").text


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"to": "latest"}, [60, 60, 60]),
        ({"to": "earliest"}, [0, 0, 0]),
        ({"to": "offset", "value": "1000", "topic": "orders", "partitions": "1"}, [10, 60, 10]),
        ({"to": "shift", "value": "-5", "topic": "orders", "partitions": "0, 2"}, [5, 10, 5]),
        ({"to": "duration", "value": "30s"}, None),
    ],
)
def test_reset_moves_offsets_after_a_preview(
    console: ConsoleClient, client: AdminClient, form: dict[str, str], expected: list[int] | None
) -> None:
    client.commit_offsets("moved", dict.fromkeys(ORDERS, 10))
    answer = console.act(f"{GROUPS}/moved/reset", **form)
    assert answer.status_code == 303 and answer.headers["location"] == path_of("moved")
    committed = list(client.committed_offsets("moved").values())
    if expected is None:
        assert all(20 <= offset <= 60 for offset in committed)
    else:
        assert committed == expected


def test_preview_of_a_reset_shows_old_new_and_difference_and_changes_nothing(
    console: ConsoleClient, client: AdminClient
) -> None:
    client.commit_offsets("moved", dict.fromkeys(ORDERS, 10))
    token = csrf_of(console.http.get(f"{GROUPS}/moved/reset").text)
    text = console.http.post(f"{GROUPS}/moved/reset", data={"to": "latest", "csrf": token}).text
    assert "+50: records are skipped" in text and "Type <strong>moved</strong>" in text
    assert "ottla group reset moved --all-topics --to-latest --execute" in text
    wrong = console.http.post(f"{GROUPS}/moved/reset", data={"to": "latest", "csrf": token, "confirm": "other"})
    assert wrong.status_code == 400
    assert set(client.committed_offsets("moved").values()) == {10}


def test_group_with_members_refuses_a_reset_and_its_deletion(console: ConsoleClient, members: None) -> None:
    token = csrf_of(console.http.get(f"{GROUPS}/running/reset").text)
    for action in ("reset", "delete"):
        answer = console.http.post(f"{GROUPS}/running/{action}", data={"to": "latest", "csrf": token})
        assert answer.status_code == 409 and "app-1 at" in answer.text and "stop" in answer.text


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"to": "offset"}, "value"),
        ({"to": "offset", "value": "-3"}, "value"),
        ({"to": "time", "value": "yesterday"}, "is not a time"),
        ({"to": "duration", "value": "long"}, "is not a duration"),
        ({"to": "sideways"}, "to"),
        ({"to": "latest", "partitions": "1"}, "choose the topic"),
        ({"to": "latest", "topic": "orders", "partitions": "5-1"}, "partitions"),
    ],
)
def test_wrong_reset_is_refused_with_its_field(console: ConsoleClient, form: dict[str, str], problem: str) -> None:
    token = csrf_of(console.http.get(f"{GROUPS}/behind/reset").text)
    answer = console.http.post(f"{GROUPS}/behind/reset", data={**form, "csrf": token})
    assert answer.status_code == 400 and problem in answer.text


def test_visitor_sees_groups_and_changes_none(console: ConsoleClient) -> None:
    with console.browser() as visitor:
        assert visitor.get(f"{GROUPS}/behind/reset").status_code == 200
        assert visitor.post(f"{GROUPS}/behind/reset", data={"to": "latest"}).status_code in (401, 403)
        assert visitor.get(f"{GROUPS}/behind/delete").headers["location"].startswith("/login")


def test_commits_and_the_group_are_deleted_after_a_preview(console: ConsoleClient, client: AdminClient) -> None:
    client.create_topics(["other"], 1, 1, {}, dry_run=False)
    client.await_topics(["other"])
    client.commit_offsets("old", {ORDERS[0]: 1, TopicPartition("other", 0): 0})
    assert console.act(f"{GROUPS}/old/delete-offsets", topic="other").status_code == 303
    assert list(client.committed_offsets("old")) == [ORDERS[0]]
    assert console.act(f"{GROUPS}/old/delete").status_code == 303
    assert client.committed_offsets("old") == {}
    assert console.http.get(f"{GROUPS}/old").status_code == 404


def test_member_is_removed_by_an_administrator(console: ConsoleClient, members: None) -> None:
    (row,) = console.json(f"{GROUPS}/running/members")["members"]  # type: ignore[misc]
    assert console.act(f"{GROUPS}/running/remove-members", member_id=row["member_id"]).status_code == 303
    titles = [each["title"] for each in console.json("/c/main/changes")["changes"]]  # type: ignore[attr-defined]
    assert "Remove 1 member of running" in titles


def test_hostile_name_of_a_group_is_text_on_every_page(console: ConsoleClient) -> None:
    path = path_of(HOSTILE)
    for tab in ("", "/members", "/why", "/reset"):
        page = console.http.get(f"{path}{tab}")
        assert page.status_code == 200 and "<script>alert" not in page.text, tab
    listed = console.http.get(f"{GROUPS}?q=alert").text
    assert "<script>alert" not in listed and "&lt;script&gt;" in listed
    assert console.json(f"{path}/why")["group"] == HOSTILE


def test_unknown_group_is_not_found(console: ConsoleClient) -> None:
    answer = console.http.get(f"{GROUPS}/nobody")
    assert answer.status_code == 404 and "does not exist" in answer.text


def test_live_page_sends_the_offsets_again(console: ConsoleClient) -> None:
    with httpx.stream("GET", f"{console.url}{GROUPS}/behind/live", timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                assert line == "event: offsets"
                break
