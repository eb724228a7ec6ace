"""Version 2 of the REST API: consumer instances."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from rest_process import RestClient, error_of, rest_process

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
WAIT_S = 60


class Consumer:
    """A consumer instance."""

    def __init__(self, rest: RestClient, group: str, **options: Any) -> None:
        options = {"format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false", **options}
        made = rest.post(f"/consumers/{group}", options)
        assert made.status_code == 200, made.text
        self.rest = rest
        self.name = made.json()["instance_id"]
        self.path = f"/consumers/{group}/instances/{self.name}"
        assert made.json()["base_uri"] == f"{rest.url}{self.path}"

    def post(self, suffix: str, body: Any = None) -> httpx.Response:
        return self.rest.post(f"{self.path}{suffix}", body)

    def get(self, suffix: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.rest.request("GET", f"{self.path}{suffix}", json=body, **more)

    def read(self, accept: str = JSON) -> list[Any]:
        found = self.get("/records?timeout=500", headers={"accept": accept})
        assert (found.status_code, found.headers["content-type"]) == (200, accept), found.text
        records: list[Any] = found.json()
        return records

    def read_values(self, count: int) -> list[Any]:
        values: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(values) < count and time.monotonic() < deadline:
            values += [each["value"] for each in self.read()]
        return values

    def wait_for_partitions(self, count: int) -> None:
        """Wait for an assignment without a request for records."""
        deadline = time.monotonic() + WAIT_S
        while len(self.get("/assignments").json()["partitions"]) != count:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def delete(self) -> None:
        assert self.rest.delete(self.path).status_code in (204, 404)


@contextmanager
def consumer(rest: RestClient, group: str, **options: Any) -> Iterator[Consumer]:
    made = Consumer(rest, group, **options)
    try:
        yield made
    finally:
        made.delete()


def fill(rest: RestClient, topic: str, *values: Any, partition: int = 0) -> None:
    body = {"records": [{"value": value, "partition": partition} for value in values]}
    assert rest.post(f"/topics/{topic}", body, headers={"content-type": JSON}).status_code == 200


def place(topic: str, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, **more}


def test_subscribed_instance_reads_and_commits(rest: RestClient) -> None:
    rest.create_topic("c-life")
    fill(rest, "c-life", {"n": 1}, {"n": 2})
    with consumer(rest, "c-life-group", name="first") as one:
        assert one.name == "first"
        done = one.post("/subscription", {"topics": ["c-life"]})
        assert (done.status_code, done.content) == (204, b"")
        assert one.get("/subscription").json() == {"topics": ["c-life"]}
        assert one.read_values(2) == [{"n": 1}, {"n": 2}]
        assert one.get("/offsets", {"partitions": [place("c-life")]}).json() == {"offsets": []}
        committed = one.post("/offsets")
        assert (committed.status_code, committed.json()) == (200, [])
        expected = place("c-life", offset=2, metadata="")
        assert one.get("/offsets", {"partitions": [place("c-life")]}).json() == {"offsets": [expected]}
    with consumer(rest, "c-life-group") as other:
        fill(rest, "c-life", {"n": 3})
        other.post("/subscription", {"topics": ["c-life"]})
        assert other.read_values(1) == [{"n": 3}]
        found = other.post("/offsets", {"offsets": [place("c-life", offset=0, metadata="note")]})
        assert found.status_code == 200
        # The offset of the last record that was read; the position of the group is behind it.
        expected = place("c-life", offset=1, metadata="note")
        assert other.get("/offsets", {"partitions": [place("c-life")]}).json() == {"offsets": [expected]}
        assert error_of(other.get("/offsets")) == (404, 40402)


def test_records_have_the_format_of_the_instance(rest: RestClient) -> None:
    rest.create_topic("c-formats")
    fill(rest, "c-formats", {"a": "b"})
    with consumer(rest, "c-formats", format="binary") as one:
        one.post("/assignments", {"partitions": [place("c-formats")]})
        records: list[Any] = []
        while not records:
            records = one.read(BINARY)
        value = base64.b64encode(b'{"a":"b"}').decode()
        assert records == [{"topic": "c-formats", "key": None, "value": value, "partition": 0, "offset": 0}]
        assert one.get("/records?timeout=10", headers={"accept": V2}).headers["content-type"] == V2
        for accept in (JSON, "application/vnd.kafka.avro.v2+json"):
            assert error_of(one.get("/records", headers={"accept": accept})) == (406, 40601)
        assert error_of(one.get("/records", headers={"accept": "text/plain"})) == (406, 406)
    with consumer(rest, "c-formats") as other:
        assert error_of(other.get("/records", headers={"accept": BINARY})) == (406, 40601)
        assert other.get("/records?timeout=10", headers={"accept": "*/*"}).headers["content-type"] == JSON


def test_record_that_is_not_json_is_an_error_until_it_is_skipped(rest: RestClient) -> None:
    rest.create_topic("c-poison")
    fill(rest, "c-poison", 1)
    body = {"records": [{"value": "/w=="}]}
    assert rest.post("/topics/c-poison", body, headers={"content-type": BINARY}).status_code == 200
    fill(rest, "c-poison", 3)
    with consumer(rest, "c-poison") as one:
        one.post("/assignments", {"partitions": [place("c-poison")]})
        assert one.read_values(1) == [1]
        for _ in range(2):
            refused = one.get("/records?timeout=500", headers={"accept": JSON})
            assert error_of(refused) == (422, 42203)
            assert "c-poison-0 at offset 1" in refused.json()["message"]
        assert one.post("/positions", {"offsets": [place("c-poison", offset=2)]}).status_code == 204
        assert one.read_values(1) == [3]


def test_positions_are_set_by_offset_time_beginning_and_end(rest: RestClient) -> None:
    rest.create_topic("c-seek")
    for number, moment in enumerate(("2021-01-01T00:00:00Z", "2022-01-01T00:00:00Z", "2023-01-01T00:00:00Z")):
        body = {"value": {"type": "JSON", "data": number}, "timestamp": moment}
        assert rest.post("topics/c-seek/records", body).json()["error_code"] == 200
    with consumer(rest, "c-seek") as one:
        partitions = {"partitions": [place("c-seek")]}
        assert one.post("/assignments", partitions).status_code == 204
        assert one.get("/assignments").json() == partitions
        assert one.read_values(3) == [0, 1, 2]
        assert one.post("/positions", {"offsets": [place("c-seek", offset=1)]}).status_code == 204
        assert one.read_values(2) == [1, 2]
        done = one.post("/positions", {"timestamps": [place("c-seek", timestamp="2022-06-01T00:00:00Z")]})
        assert done.status_code == 204
        assert one.read_values(1) == [2]
        assert one.post("/positions/beginning", partitions).status_code == 204
        assert one.read_values(3) == [0, 1, 2]
        assert one.post("/positions/beginning", partitions).status_code == 204
        assert one.post("/positions/end", partitions).status_code == 204
        fill(rest, "c-seek", "new")
        assert one.read_values(1) == ["new"]
        one.post("/positions", {"timestamps": [place("c-seek", timestamp="2100-01-01T00:00:00Z")]})
        fill(rest, "c-seek", "newer")
        assert one.read_values(1) == ["newer"]
        other = {"partitions": [place("c-seek", 1)]}
        assert error_of(one.post("/positions/beginning", other)) == (409, 40903)
        assert error_of(one.post("/positions", {"offsets": [place("c-seek", 1, offset=1)]})) == (409, 40903)


def test_subscription_assignment_and_pattern_exclude_each_other(rest: RestClient) -> None:
    rest.create_topic("c-state-1")
    rest.create_topic("c-state-2")
    assignment = {"partitions": [place("c-state-1")]}
    with consumer(rest, "c-state") as one:
        assert one.get("/subscription").json() == {"topics": []}
        assert one.post("/subscription", {"topic_pattern": "c-state-.*"}).status_code == 204
        assert one.get("/subscription").json() == {"topics": ["c-state-1", "c-state-2"]}
        one.wait_for_partitions(2)
        assert error_of(one.post("/assignments", assignment)) == (409, 40903)
        assert error_of(one.post("/subscription", {"topics": ["c-state-1"]})) == (409, 40903)
        assert rest.delete(f"{one.path}/subscription").status_code == 204
        assert one.get("/subscription").json() == {"topics": []}
        assert one.post("/assignments", assignment).status_code == 204
        assert error_of(one.post("/subscription", {"topics": ["c-state-1"]})) == (409, 40903)


def test_rebalance_does_not_wait_for_another_members_request(rest: RestClient) -> None:
    rest.create_topic("c-balance", 2)
    with consumer(rest, "c-balance") as one, consumer(rest, "c-balance") as other:
        one.post("/subscription", {"topics": ["c-balance"]})
        one.wait_for_partitions(2)
        other.post("/subscription", {"topics": ["c-balance"]})
        # No member asks for records.
        other.wait_for_partitions(1)
        one.wait_for_partitions(1)
        fill(rest, "c-balance", "x")
        fill(rest, "c-balance", "y", partition=1)
        other.delete()
        one.wait_for_partitions(2)
        assert sorted(one.read_values(2)) == ["x", "y"]


def test_answer_ends_at_max_bytes_and_has_at_least_one_record(rest: RestClient) -> None:
    rest.create_topic("c-bytes")
    fill(rest, "c-bytes", *["x" * 98] * 5)
    with consumer(rest, "c-bytes") as one:
        one.post("/assignments", {"partitions": [place("c-bytes")]})
        deadline = time.monotonic() + WAIT_S
        counts: list[int] = []
        while sum(counts) < 5 and time.monotonic() < deadline:
            limit = 250 if not counts else 1
            found = one.get(f"/records?max_bytes={limit}", headers={"accept": JSON}).json()
            counts += [len(found)] if found else []
        assert counts == [2, 1, 1, 1]


def test_auto_commit_covers_only_records_that_the_client_got(rest: RestClient) -> None:
    rest.create_topic("c-auto")
    fill(rest, "c-auto", *range(4))
    one = Consumer(rest, "c-auto", **{"auto.commit.enable": "true"})
    one.post("/subscription", {"topics": ["c-auto"]})
    values: list[Any] = []
    while not values:
        values = [each["value"] for each in one.get("/records?max_bytes=2", headers={"accept": JSON}).json()]
    assert values == [0, 1]
    one.delete()
    with consumer(rest, "c-auto") as other:
        found = other.get("/offsets", {"partitions": [place("c-auto")]}).json()["offsets"]
        assert [each["offset"] for each in found] == [2]


def test_instances_are_created_with_valid_options_only(rest: RestClient) -> None:
    cases: list[tuple[Any, tuple[int, int]]] = [
        ({"format": "xml"}, (422, 422)),
        ({"auto.offset.reset": "middle"}, (422, 42204)),
        ({"auto.commit.enable": "perhaps"}, (422, 42204)),
        ({"fetch.min.bytes": 10_000_001}, (422, 40001)),
        ({"fetch.min.bytes": -2}, (422, 40001)),
        ({"fetch.min.bytes": "many"}, (400, 400)),
        ({"consumer.request.timeout.ms": -1}, (422, 40001)),
        ({"consumer.request.timeout.ms": "-1"}, (422, 40001)),
        ({"format": "avro"}, (422, 42204)),
        ({"name": 5}, (400, 400)),
        ({"name": "x" * 300}, (422, 42204)),
        ([], (400, 400)),
    ]
    for body, expected in cases:
        assert error_of(rest.post("/consumers/c-options", body)) == expected, body
    # Digits in a string are a number, as for Confluent's proxy.
    texts = {"name": "texts", "fetch.min.bytes": "1", "consumer.request.timeout.ms": "50"}
    assert rest.post("/consumers/c-options", texts).status_code == 200
    assert rest.get("/consumers/c-options/instances/texts/records").json() == []
    assert rest.delete("/consumers/c-options/instances/texts").status_code == 204
    empty = rest.post("/consumers/c-options")
    assert empty.status_code == 200
    name = empty.json()["instance_id"]
    assert name.startswith("rest-consumer-")
    assert error_of(rest.post("/consumers/c-options", {"name": name})) == (409, 40902)
    assert rest.post("/consumers/c-other", {"name": name}).status_code == 200
    for group in ("c-options", "c-other"):
        deleted = rest.delete(f"/consumers/{group}/instances/{name}")
        assert (deleted.status_code, deleted.content) == (204, b"")


def test_unknown_instances_are_not_found(rest: RestClient) -> None:
    base = "/consumers/c-none/instances/none"
    partitions = {"partitions": [place("t")]}
    assert error_of(rest.delete(base)) == (404, 40403)
    assert error_of(rest.delete(f"{base}/subscription")) == (404, 40403)
    for path in ("/subscription", "/assignments", "/records", "/offsets"):
        found = rest.get(f"{base}{path}")
        assert error_of(found) == (404, 40403), path
        assert found.headers["content-type"] == (BINARY if path == "/records" else V2)
    for path in ("/subscription", "/assignments", "/positions", "/positions/beginning", "/positions/end", "/offsets"):
        assert error_of(rest.post(f"{base}{path}", partitions)) == (404, 40403), path


def test_invalid_bodies_are_rejected(rest: RestClient) -> None:
    with consumer(rest, "c-bodies") as one:
        cases: list[tuple[str, Any, tuple[int, int]]] = [
            ("/subscription", {}, (422, 422)),
            ("/subscription", {"topics": ["a"], "topic_pattern": "b"}, (409, 40903)),
            ("/subscription", {"topic": "a"}, (422, 422)),
            ("/subscription", {"topics": "a"}, (400, 400)),
            ("/subscription", {"topics": [1]}, (400, 400)),
            ("/subscription", {"topics": ["^a"]}, (422, 422)),
            ("/subscription", {"topic_pattern": "("}, (422, 422)),
            ("/subscription", None, (422, 42206)),
            ("/assignments", {}, (422, 422)),
            ("/assignments", {"partitions": [{"topic": "a"}]}, (422, 422)),
            ("/assignments", {"partitions": [place("a", -1)]}, (400, 400)),
            ("/assignments", {"partitions": [place("a", 1 << 40)]}, (400, 400)),
            ("/positions", {}, (422, 422)),
            ("/positions", {"offsets": [place("a", offset=-5)]}, (400, 400)),
            ("/positions", {"offsets": [place("a", offset=1 << 70)]}, (400, 400)),
            ("/positions", {"timestamps": [place("a", timestamp="noon")]}, (400, 400)),
            ("/positions/end", {"partitions": {}}, (400, 400)),
            ("/offsets", {"offsets": [place("a")]}, (422, 422)),
            ("/offsets", [1], (400, 400)),
        ]
        for path, body, expected in cases:
            assert error_of(one.post(path, body)) == expected, (path, body)
        for query in ("timeout=x", "max_bytes=-5", "timeout=99999999999999999999"):
            assert error_of(one.get(f"/records?{query}", headers={"accept": JSON})) == (400, 400)
        assert one.get("/assignments").json() == {"partitions": []}


def test_instances_expire_and_have_limits(rest_broker: BrokerProcess) -> None:
    options = (
        "-Xconsumer.instance.timeout.ms=1000", "-Xconsumer.instances.per.group.max=2", "-Xconsumer.instances.max=3",
        "-Xhost.name=rest-1", "-Xid=one",
    )  # fmt: skip
    with rest_process(rest_broker.bootstrap, *options) as rest:
        made = [rest.post("/consumers/c-limits") for _ in range(2)]
        path = f"/consumers/c-limits/instances/{made[0].json()['instance_id']}"
        assert "rest-consumer-one-" in path
        assert made[0].json()["base_uri"] == f"http://rest-1:{httpx.URL(rest.url).port}{path}"
        assert error_of(rest.post("/consumers/c-limits")) == (429, 42903)
        assert rest.post("/consumers/c-limits-2").status_code == 200
        assert error_of(rest.post("/consumers/c-limits-3")) == (503, 50301)
        deadline = time.monotonic() + WAIT_S
        while rest.post("/consumers/c-limits-3").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert error_of(rest.get(f"{path}/assignments")) == (404, 40403)
