"""Hostile requests to each operation of the REST proxy get an error 4xx and change nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from typing import Any

import pytest
from rest_process import RestClient

from campaign.processes import wait_until

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
    if found.status_code == 200 and path.endswith("/partitions/-/reassignment"):
        assert found.json()["data"] == [], detail
    elif found.status_code == 200 and path.endswith("/records"):
        assert all(json.loads(line)["error_code"] >= 400 for line in found.text.splitlines()), detail
    elif found.status_code == 207:
        assert found.json().get("successes", []) == [], detail
    else:
        assert 400 <= found.status_code < 500, detail
        assert found.json()["message"], detail


def test_hostile_bodies_are_client_errors(rest: RestClient) -> None:
    rest.create_topic("h-topic")
    for method, path, _ in operations(rest):
        # An instance can be created without a body, and POST / reads none.
        if method in ("POST", "PUT", "PATCH") and path not in ("/", "/consumers/{group}"):
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
                if name == "value" and isinstance(value, (str, int, float)):
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


# -- clients that are slow, or vanish ---------------------------------------------------------------------------------


def connect(rest: RestClient) -> socket.socket:
    host, port = rest.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def vanish(client: socket.socket) -> None:
    """Close a connection as a killed client does: with a reset, in the middle of whatever it was doing."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    client.settimeout(60)
    found = b""
    while wanted not in found:
        piece = client.recv(65_536)
        assert piece, found
        found += piece
    return found


def half_a_head(rest: RestClient, client: socket.socket) -> None:
    client.sendall(b"POST /topics/vanish HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-")


def half_a_body(rest: RestClient, client: socket.socket) -> None:
    head = b"POST /topics/vanish HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/vnd.kafka.json.v2+json\r\n"
    client.sendall(head + b"content-length: 1000000\r\n\r\n" + b'{"records":[' + b" " * 100_000)


def half_a_stream_of_records(rest: RestClient, client: socket.socket) -> None:
    path = f"/v3/clusters/{rest.cluster_id}/topics/vanish/records".encode()
    head = b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" % path
    client.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
    client.sendall(chunk(b'{"value":{"type":"JSON","data":1}}{"value":{"ty'))
    read_until(client, b'"offset"')


def events(rest: RestClient, client: socket.socket) -> None:
    path = f"/v3/clusters/{rest.cluster_id}/topics/vanish/records?offset=earliest&follow=true".encode()
    client.sendall(b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n" % path)
    read_until(client, b"data: ")


def answer_that_is_not_read(rest: RestClient, client: socket.socket) -> None:
    for _ in range(10):
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")


CLIENTS = (half_a_head, half_a_body, half_a_stream_of_records, events, answer_that_is_not_read)


def open_files(rest: RestClient) -> int:
    return len(os.listdir(f"/proc/{rest.pid}/fd"))


def metric(rest: RestClient, name: str) -> float:
    rows = [line for line in rest.http.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in rows)


def test_vanished_clients_leave_nothing_behind(rest: RestClient) -> None:
    """Connections, Kafka consumers and requests in progress are gone when their clients are."""
    rest.create_topic("vanish")
    rest.post("topics/vanish/records", {"value": {"type": "JSON", "data": 0}})

    def vanish_in_all_ways(count: int) -> None:
        clients = [(connect(rest), behave) for behave in CLIENTS for _ in range(count)]
        for client, behave in clients:
            behave(rest, client)
        for client, _ in clients:
            vanish(client)
        wait_until(lambda: metric(rest, "ottla_http_requests_in_flight") <= 1, "requests of vanished clients")

    vanish_in_all_ways(1)  # opens the connections to the broker that stay
    # Kafka clients may open a connection again meanwhile; a leak of one kind would be four files.
    usual = open_files(rest) + 3
    vanish_in_all_ways(4)
    wait_until(lambda: open_files(rest) <= usual, f"{open_files(rest)} open files, {usual} before")
    assert rest.get("topics/vanish").status_code == 200


def test_vanished_client_ends_the_wait_for_its_records(rest: RestClient) -> None:
    """The next GET of the same instance need not wait for the end of the first one."""
    rest.create_topic("vanish-poll")
    options = {"format": "json", "consumer.request.timeout.ms": 600_000, "auto.offset.reset": "earliest"}
    made = rest.post("/consumers/vanish-poll", options).json()["instance_id"]
    path = f"/consumers/vanish-poll/instances/{made}"
    rest.post(f"{path}/assignments", {"partitions": [{"topic": "vanish-poll", "partition": 0}]})
    client = connect(rest)
    client.sendall(f"GET {path}/records HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    wait_until(lambda: metric(rest, "ottla_http_requests_in_flight") >= 2, "the first GET")
    vanish(client)
    found = rest.http.get(f"{path}/records?timeout=1", headers={"accept": "application/vnd.kafka.json.v2+json"})
    assert (found.status_code, found.json()) == (200, [])
    rest.delete(path)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def test_hostile_host_headers_are_client_errors(rest: RestClient) -> None:
    """The host of a request is part of the links in its answer."""
    path = f"/v3/clusters/{rest.cluster_id}"
    for host in (b"[", b"]:1", b"a:b:c", b"::1", b"a b", b"\xff\xfe", b"a/b?c#d", b"@", b"a@b:99999", b"", b"x" * 5000):
        with connect(rest) as client:
            client.sendall(b"GET %s HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % (path.encode(), host))
            line = read_until(client, b"\r\n").partition(b"\r\n")[0]
            assert line.split()[1] in (b"200", b"400", b"403"), (host, line)


def test_queries_out_of_range_are_client_errors(rest: RestClient) -> None:
    rest.create_topic("h-query")
    for query in ("partition=2147483648", "offset=9223372036854775808", "offset=-1", "limit=0", "limit=-1", "limit=1e9",
                  "max_bytes=" + "9" * 5000, "timeout=-1", "follow=maybe", "format=x", "timestamp=x", "end_offset=1_0",
                  "timestamp=99999999999999999999", "end_timestamp=-1", "offset=%D9%A1"):  # fmt: skip
        found = rest.get(f"topics/h-query/records?{query}")
        assert found.status_code == 400, (query[:50], found.text[:200])
