"""Topics in the console: the list, a topic's pages, and what changes topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_process import ConsoleClient, console_process
from edge_broker import Broker, edge_broker

from ottla.testing.raw import RawClient

TOPICS = "/c/main/topics"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker({"auto.create.topics.enable": "false"}) as running:
        with RawClient(running.bootstrap) as client:
            for number in range(60):
                client.create_topic(f"paged-{number:02}", 1)
            client.create_topic("a.json", 3)
            client.create_topic("__hidden", 1)
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        yield running


def names(found: dict[str, object]) -> list[str]:
    rows = found["topics"]
    assert isinstance(rows, list)
    return [row["name"] for row in rows]


def test_list_has_pages_a_search_an_order_and_a_switch_for_internal_topics(console: ConsoleClient) -> None:
    first = console.json(TOPICS)
    assert len(names(first)) == 50 and first["matched"] == 61
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
