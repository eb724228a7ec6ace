"""Hostile requests to each operation of the REST proxy get an error 4xx and change nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from rest_process import RestClient

pytestmark = pytest.mark.broker

#: texts that are not JSON, or JSON that no operation takes
BODIES = (
    b"", b"null", b"[]", b"1", b'"a"', b"{", b"\xff\xfe", b"NaN", b'{"a":NaN}', b"[" * 100_000, b'{"a":' * 100_000,
    b'{"data":' + b"9" * 5000 + b"}",
)  # fmt: skip
#: values for each field that an operation knows
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**31,
    2**63,
    10**30,
    1.5,
    1e308,
    "",
    "\x00",
    "\ud800",
    "x" * 40_000,
    [],
    [[]],
    {},
    [1],
)
SEGMENTS = (
    "%00",
    "..%2F..",
    "%F0%9F%98%80",
    "x" * 3000,
    "x" * 40_000,
    "%ff",
    "-1",
    "99999999999999999999",
    "a%20b",
    "%25",
)


def operations(rest: RestClient) -> list[tuple[str, str, dict[str, Any]]]:
    paths = rest.http.get("/openapi.json").json()["paths"]
    return [(method.upper(), path, row) for path, rows in paths.items() for method, row in rows.items()]


def fill_in(rest: RestClient, path: str, **segments: str) -> str:
    """Return a path with values for its variable segments."""
    usual = {
        "cluster_id": rest.cluster_id, "topic_name": "h-topic", "partition_id": "0", "broker_id": "0",
        "name": "retention.ms", "group": "h-group", "instance": "none",
    }  # fmt: skip
    return re.sub(r"\{(\w+)\}", lambda m: segments.get(m[1], usual.get(m[1], "none")), path)


def send(rest: RestClient, method: str, path: str, body: bytes | None = None) -> None:
    """Send a request; its answer must be an error of the client, or one of a stream whose lines are errors."""
    headers = {"content-type": "application/json" if path.startswith("/v3") else "application/vnd.kafka.json.v2+json"}
    found = rest.http.request(method, path, content=body, headers=headers)
    detail = (method, path[:200], (body or b"")[:100], found.status_code, found.text[:300])
    if found.status_code == 200 and path.endswith("/records"):
        assert all(json.loads(line)["error_code"] >= 400 for line in found.text.splitlines()), detail
    elif found.status_code == 207:
        assert found.json().get("successes", []) == [], detail
    else:
        assert 400 <= found.status_code < 500, detail
        assert found.json()["message"], detail


def test_hostile_bodies_are_client_errors(rest: RestClient) -> None:
    rest.create_topic("h-topic")
    for method, path, _ in operations(rest):
        if method in ("POST", "PUT", "PATCH") and path != "/consumers/{group}":
            for body in BODIES:
                send(rest, method, fill_in(rest, path), body)
    assert rest.get("topics/h-topic/partitions/0/offset").json()["latest_offset"] == 0
    assert rest.get("topics/h-topic").json()["partitions_count"] == 1


def test_values_of_wrong_types_are_client_errors(rest: RestClient) -> None:
    """Each field of each body has each value; all other fields are missing."""
    for method, path, row in operations(rest):
        schema = next(iter(row.get("requestBody", {}).get("content", {}).values()), {}).get("schema", {})
        # Fields that may have any value are not hostile, and records without a value are valid.
        if path.endswith("/records") or path == "/consumers/{group}":
            continue
        for name in schema.get("properties", {}):
            for value in VALUES:
                if (name, value) in (("value", None), ("offsets", None), ("offsets", []), ("data", [])):
                    continue
                if name == "value" and isinstance(value, str):
                    continue
                send(rest, method, fill_in(rest, path, topic_name="h-none"), json.dumps({name: value}).encode())


def test_hostile_paths_are_client_errors(rest: RestClient) -> None:
    for method, path, _ in operations(rest):
        for name in re.findall(r"\{(\w+)\}", path):
            if method == "POST" and name == "group":
                continue
            for segment in SEGMENTS:
                body = b"{}" if method in ("POST", "PUT", "PATCH") else None
                send(rest, method, fill_in(rest, path, **{"topic_name": "h-none", name: segment}), body)


def test_names_that_are_longer_than_kafkas_protocol_allows_are_client_errors(rest: RestClient) -> None:
    long = "x" * 40_000
    acl = {
        "resource_type": "TOPIC", "resource_name": "t", "pattern_type": "LITERAL", "principal": "User:bob",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    base = f"/v3/clusters/{rest.cluster_id}"
    for name in ("resource_name", "principal", "host"):
        send(rest, "POST", f"{base}/acls", json.dumps({**acl, name: long}).encode())
    change = {"data": [{"topic_name": long, "configs": [{"name": long, "value": "1"}]}]}
    send(rest, "POST", f"{base}/topics/-/configs:alter", json.dumps(change).encode())
    configs = {"topic_name": "h-long", "configs": [{"name": long, "value": "1"}]}
    send(rest, "POST", f"{base}/topics", json.dumps(configs).encode())
    made = rest.post("/consumers/h-long", {"format": "json"}).json()["instance_id"]
    path = f"/consumers/h-long/instances/{made}"
    place = {"topic": long, "partition": 0}
    for suffix, body in (
        ("/offsets", {"offsets": [{**place, "offset": 1}]}),
        ("/offsets", {"offsets": [{"topic": "h-topic", "partition": 0, "offset": 1, "metadata": long}]}),
        ("/positions/end", {"partitions": [place]}),
        ("/positions", {"timestamps": [{**place, "timestamp": "2021-01-01T00:00:00Z"}]}),
        ("/assignments", {"partitions": [place]}),
        ("/subscription", {"topics": [long]}),
        ("/subscription", {"topic_pattern": long}),
    ):
        send(rest, "POST", f"{path}{suffix}", json.dumps(body).encode())
    rest.delete(path)
