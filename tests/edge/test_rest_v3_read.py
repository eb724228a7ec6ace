"""Reading the records of a topic as a stream."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from rest_process import RestClient, error_of, rest_process

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

WAIT_S = 60


def fill(rest: RestClient, topic: str, *records: dict[str, Any]) -> None:
    found = rest.request("POST", f"topics/{topic}/records", content="".join(map(json.dumps, records)))
    assert all(json.loads(line)["error_code"] == 200 for line in found.text.splitlines()), found.text


def value(data: Any, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"partition_id": partition, "value": {"type": "JSON", "data": data}, **more}


def read(rest: RestClient, topic: str, query: str = "") -> list[Any]:
    found = rest.get(f"topics/{topic}/records?{query}")
    assert (found.status_code, found.headers["content-type"]) == (200, "application/x-ndjson"), found.text
    return [json.loads(line) for line in found.text.splitlines()]


def numbers(rest: RestClient, topic: str, query: str = "") -> list[Any]:
    return [each["value"]["data"] for each in read(rest, topic, query)]


@pytest.fixture(scope="module")
def years(rest: RestClient) -> str:
    """A topic with the records 0 to 4 of the years 2020 to 2024."""
    rest.create_topic("r-years")
    fill(rest, "r-years", *(value(n, timestamp=f"{2020 + n}-01-01T00:00:00Z") for n in range(5)))
    return "r-years"


def test_records_have_the_fields_of_a_request_to_produce_them(rest: RestClient) -> None:
    rest.create_topic("r-fields")
    rest.create_topic("r-copy")
    fill(
        rest, "r-fields",
        {"key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"a": "ä\n"}},
         "timestamp": "2021-02-05T19:14:42Z",
         "headers": [{"name": "h", "value": "AAE="}, {"name": "n", "value": None}]},
        {"key": {"type": "BINARY", "data": "/w=="}, "timestamp": "2021-02-05T19:14:42Z"},
    )  # fmt: skip
    found = read(rest, "r-fields")
    assert found == [
        {"partition_id": 0, "offset": 0, "timestamp": "2021-02-05T19:14:42Z",
         "headers": [{"name": "h", "value": "AAE="}, {"name": "n", "value": None}],
         "key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"a": "ä\n"}}},
        {"partition_id": 0, "offset": 1, "timestamp": "2021-02-05T19:14:42Z", "key": {"type": "BINARY", "data": "/w=="},
         "value": None},
    ]  # fmt: skip
    fill(rest, "r-copy", *found)
    assert read(rest, "r-copy") == found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("offset=3", [3, 4]),
        ("offset=latest", []),
        ("offset=99", []),
        ("offset=earliest&limit=2", [0, 1]),
        ("offset=1&end_offset=3", [1, 2]),
        ("timestamp=2022-06-01T00:00:00Z", [3, 4]),
        ("timestamp=2022-06-01T02:00:00%2B02:00", [3, 4]),
        ("timestamp=1640995200000", [2, 3, 4]),
        ("timestamp=2021-01-01T00:00:00Z&end_timestamp=2023-01-01T00:00:00Z", [1, 2]),
        ("timestamp=2030-01-01T00:00:00Z", []),
        ("max_bytes=2", [0, 1]),
        ("partition=0&format=json", [0, 1, 2, 3, 4]),
        ("follow=true&offset=3&limit=2", [3, 4]),
        ("follow=true&offset=0&timeout=0", []),
    ],
)
def test_range_is_read(rest: RestClient, years: str, query: str, expected: list[int]) -> None:
    assert numbers(rest, years, query) == expected


def test_all_partitions_are_read(rest: RestClient) -> None:
    rest.create_topic("r-parts", 3)
    fill(rest, "r-parts", *(value(n, n % 3) for n in range(30)))
    assert sorted(numbers(rest, "r-parts")) == list(range(30))
    assert numbers(rest, "r-parts", "partition=1") == list(range(1, 30, 3))


def test_format_can_be_chosen(rest: RestClient, years: str) -> None:
    assert read(rest, years, "limit=1&format=string")[0]["value"] == {"type": "STRING", "data": "0"}
    assert read(rest, years, "limit=1&format=binary")[0]["value"] == {"type": "BINARY", "data": "MA=="}
    rest.create_topic("r-bytes")
    fill(rest, "r-bytes", value(1), {"value": {"type": "BINARY", "data": "/w=="}})
    lines = read(rest, "r-bytes", "format=json")
    assert lines[-1]["error_code"] == 42203


def test_invalid_requests_to_read_are_rejected(rest: RestClient, years: str) -> None:
    for query in (
        "offset=-1", "offset=x", "limit=0", "limit=x", "timestamp=noon", "offset=1&timestamp=5", "format=xml",
        "partition=x", "follow=perhaps", "timeout=-1",
    ):  # fmt: skip
        assert error_of(rest.get(f"topics/{years}/records?{query}")) == (400, 400), query
    assert error_of(rest.get("topics/none/records")) == (404, 40403)
    assert error_of(rest.get(f"topics/{years}/records?partition=7")) == (404, 40402)
    assert error_of(rest.get(f"/v3/clusters/other/topics/{years}/records")) == (404, 404)


def test_stream_follows_a_topic_as_events_and_resumes(rest: RestClient) -> None:
    rest.create_topic("r-events")
    fill(rest, "r-events", value("old"))
    headers = {"accept": "text/event-stream"}
    path = f"/v3/clusters/{rest.cluster_id}/topics/r-events/records"
    with rest.http.stream("GET", f"{path}?follow=true", headers=headers) as found:
        assert found.headers["content-type"].startswith("text/event-stream")
        lines = found.iter_lines()
        fill(rest, "r-events", value("new"))
        assert next(lines) == "id: 0:2"
        assert json.loads(next(lines).removeprefix("data: "))["value"]["data"] == "new"
        assert next(lines) == ""
    fill(rest, "r-events", value("missed"))
    resumed = {**headers, "last-event-id": "0:2"}
    with rest.http.stream("GET", f"{path}?follow=true", headers=resumed) as found:
        lines = found.iter_lines()
        assert next(lines) == "id: 0:3"
        assert json.loads(next(lines).removeprefix("data: "))["value"]["data"] == "missed"
    assert error_of(rest.get(path, headers={**headers, "last-event-id": "x"})) == (400, 400)


def test_vanished_client_releases_its_stream(rest_broker: BrokerProcess) -> None:
    with rest_process(rest_broker.bootstrap, "-Xread.streams.max=1") as rest:
        rest.find_cluster()
        rest.create_topic("r-vanished")
        path = f"/v3/clusters/{rest.cluster_id}/topics/r-vanished/records?follow=true"
        with rest.http.stream("GET", path) as found:
            assert found.status_code == 200
            assert error_of(rest.get(path)) == (503, 50301)
        deadline = time.monotonic() + WAIT_S
        while rest.get("topics/r-vanished/records").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_streams_end_when_the_proxy_stops(rest_broker: BrokerProcess, rest: RestClient) -> None:
    rest.create_topic("r-stop")
    with rest_process(rest_broker.bootstrap) as other:
        other.find_cluster()
        path = f"/v3/clusters/{other.cluster_id}/topics/r-stop/records?follow=true"
        with other.http.stream("GET", path) as found:
            assert found.status_code == 200
            other.terminate()
            assert list(found.iter_lines()) == []
