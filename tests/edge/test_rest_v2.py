"""Version 2 of the REST API: topics, brokers, produce."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from rest_process import RestClient, error_of

pytestmark = pytest.mark.broker

V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"


def produce(rest: RestClient, path: str, body: Any, media_type: str = JSON) -> httpx.Response:
    return rest.post(path, body, headers={"content-type": media_type})


def error_v2(found: httpx.Response) -> tuple[int, int]:
    assert found.headers["content-type"] == V2
    return error_of(found)


def test_topics_partitions_and_brokers_are_described(rest: RestClient) -> None:
    rest.create_topic("v2-topic", 2, {"retention.ms": "77"})
    partitions = [
        {"partition": n, "leader": 0, "replicas": [{"broker": 0, "leader": True, "in_sync": True}]} for n in (0, 1)
    ]
    names = rest.get("/topics")
    assert (names.status_code, names.headers["content-type"]) == (200, V2)
    assert "v2-topic" in names.json()
    topic = rest.get("/topics/v2-topic").json()
    assert (topic["name"], topic["partitions"], topic["configs"]["retention.ms"]) == ("v2-topic", partitions, "77")
    assert rest.get("/topics/v2-topic/partitions").json() == partitions
    assert rest.get("/topics/v2-topic/partitions/1").json() == partitions[1]
    assert rest.get("/topics/v2-topic/partitions/1/offsets").json() == {"beginning_offset": 0, "end_offset": 0}
    assert rest.get("/brokers").json() == {"brokers": [0]}


def test_unknown_topics_and_partitions_are_not_found(rest: RestClient) -> None:
    rest.create_topic("v2-known")
    record = {"records": [{"value": 1}]}
    assert error_v2(rest.get("/topics/none")) == (404, 40403)
    for path in (
        "/topics/none/partitions",
        "/topics/none/partitions/0",
        "/topics/none/partitions/0/offsets",
    ):
        assert error_v2(rest.get(path)) == (404, 40401), path
    for path in ("/topics/v2-known/partitions/5", "/topics/v2-known/partitions/5/offsets"):
        assert error_v2(rest.get(path)) == (404, 40402), path
    assert error_v2(produce(rest, "/topics/none", record)) == (404, 40401)
    assert error_v2(produce(rest, "/topics/v2-known/partitions/5", record)) == (404, 40402)
    assert error_v2(produce(rest, "/topics/v2-known", {"records": [{"value": 1}, {"value": 1, "partition": 7}]})) == (
        404, 40402,
    )  # fmt: skip
    assert error_v2(rest.get("/topics/v2-known/partitions/x")) == (404, 404)
    assert rest.get("/topics/v2-known/partitions/0/offsets").json()["end_offset"] == 0


@pytest.mark.parametrize(("media_type", "value"), [(JSON, {"a": 1}), (BINARY, "QUJD"), (V2, "QUJD")])
def test_records_are_produced(rest: RestClient, media_type: str, value: Any) -> None:
    name = rest.create_topic(f"v2-produce-{len(media_type)}", 2)
    found = produce(rest, f"/topics/{name}", {"records": [
        {"key": value, "value": value, "partition": 1}, {"value": None, "partition": 1}, {"partition": 0},
    ]}, media_type)  # fmt: skip
    assert (found.status_code, found.headers["content-type"]) == (200, V2)
    rows = [(1, 0), (1, 1), (0, 0)]
    assert found.json() == {
        "offsets": [{"partition": p, "offset": o, "error_code": None, "error": None} for p, o in rows],
        "key_schema_id": None, "value_schema_id": None,
    }  # fmt: skip
    one = produce(rest, f"/topics/{name}/partitions/1", {"records": [{"value": value}]}, media_type)
    assert one.json()["offsets"] == [{"partition": 1, "offset": 2, "error_code": None, "error": None}]


def test_keys_are_partitioned_as_by_javas_clients(rest: RestClient) -> None:
    rest.create_topic("v2-keys", 10)
    found = produce(rest, "/topics/v2-keys", {"records": [{"key": key, "value": 1} for key in ("a", "b", "c")]})
    # murmur2 of '"a"', '"b"', '"c"', modulo 10
    expected = [murmur2(f'"{key}"'.encode()) % 10 for key in ("a", "b", "c")]
    assert [row["partition"] for row in found.json()["offsets"]] == expected


def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key."""
    mask = 0xFFFFFFFF
    value = 0x9747B28C ^ len(data)
    for start in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[start : start + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ k >> 24) * 0x5BD1E995 & mask
        value = value * 0x5BD1E995 & mask ^ k
    rest = data[len(data) & ~3 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & mask
    value = (value ^ value >> 13) * 0x5BD1E995 & mask
    return (value ^ value >> 15) & 0x7FFFFFFF


def test_invalid_requests_to_produce_change_nothing(rest: RestClient) -> None:
    rest.create_topic("v2-invalid", configs={"max.message.bytes": "2000"})
    good = {"value": "QUJD"}
    cases: list[tuple[Any, str, tuple[int, int]]] = [
        ({"records": [good, {"value": "?"}]}, BINARY, (400, 400)),
        ({"records": [good, {"value": 5}]}, BINARY, (400, 400)),
        ({"records": [good, {"key": {}, "value": None}]}, V2, (400, 400)),
        ({"records": [good, 5]}, BINARY, (400, 400)),
        ({"records": [good, {"partition": -1}]}, BINARY, (400, 400)),
        ({"records": [good, {"partition": "0"}]}, BINARY, (400, 400)),
        ({"records": [good, {"value": "x" * 3000}]}, JSON, (413, 413)),
        ({"records": []}, JSON, (422, 422)),
        ({}, JSON, (422, 422)),
        (None, JSON, (422, 42206)),
        ([], JSON, (400, 400)),
        ({"records": [good]}, "text/plain", (415, 415)),
        ({"records": [good]}, "application/x-www-form-urlencoded", (415, 415)),
        ({"records": [good]}, "application/vnd.kafka.avro.v2+json", (422, 42202)),
        ({"records": [{"key": 1}], "value_schema": "{}"}, "application/vnd.kafka.avro.v2+json", (422, 42201)),
    ]
    for body, media_type, expected in cases:
        assert error_v2(produce(rest, "/topics/v2-invalid", body, media_type)) == expected, body
    for text in (
        b"{",
        b'{"records":[{"value":NaN}]}',
        b'{"records":' + b"[" * 200_000,
        b'{"records":[{"value":1e999}]}',
    ):
        found = rest.request("POST", "/topics/v2-invalid", content=text, headers={"content-type": JSON})
        assert error_v2(found) == (400, 400)
    assert rest.get("/topics/v2-invalid/partitions/0/offsets").json()["end_offset"] == 0


def test_root_tells_that_version_2_is_served(rest: RestClient) -> None:
    found = rest.get("/")
    assert (found.status_code, found.headers["content-type"], found.json()) == (200, V2, {})
    refused = rest.http.post("/", content="", headers={"content-type": "text/plain", "accept": V2})
    assert (error_v2(refused), refused.json()["message"][:31]) == ((415, 415), "HTTP 415 Unsupported Media Type")


def test_answers_have_the_media_type_that_the_client_accepts(rest: RestClient) -> None:
    for accept, media_type in (
        ("*/*", V2), ("application/*", V2), (V2, V2), ("application/json", "application/json"),
        (f"{JSON}, {V2};q=0.5, */*;q=0.1", V2),
    ):  # fmt: skip
        assert rest.get("/brokers", headers={"accept": accept}).headers["content-type"] == media_type, accept
        assert rest.get("/topics/none", headers={"accept": accept}).headers["content-type"] == media_type, accept
    for accept in ("text/plain", "application/octet-stream", "application/vnd.kafka+foo", "foo/*", "*/baz"):
        for path in ("/brokers", "/", "/v3/clusters", "topics", "topics/none/records"):
            assert error_of(rest.get(path, headers={"accept": accept})) == (406, 406), (path, accept)


def test_media_types_of_version_1_are_accepted(rest: RestClient) -> None:
    """The tests of Karapace send them, and old clients that are still in the package registries."""
    rest.create_topic("v2-old-types")
    body = {"records": [{"value": "Zm9v"}]}
    for media_type in ("v1", "binary.v1", "binary", ""):
        name = f"application/vnd.kafka{media_type and '.'}{media_type}+json"
        headers = {"content-type": name, "accept": "application/vnd.kafka.v1+json"}
        found = rest.post("/topics/v2-old-types", body, headers=headers)
        assert (found.status_code, found.headers["content-type"]) == (200, V2), name
    for media_type in (
        "application/vnd.kafka.v3+json", "application/vnd.kafka.binary.v1+foo", "application/vnd.kafka.avro.v0+json",
        "application/vnd.kafka.json+avro", "application/vnd.kafka", "application/vnd.kafka+binary", "bar/baz",
    ):  # fmt: skip
        assert error_v2(produce(rest, "/topics/v2-old-types", body, media_type)) == (
            415,
            415,
        )
    assert rest.get("/brokers", headers={"accept": "application/vnd.kafka+json"}).headers["content-type"] == V2


def test_misspelled_fields_are_rejected(rest: RestClient) -> None:
    rest.create_topic("v2-fields")
    for body in ({"foo": 1, "records": [{"value": 1}]}, {"records": [{"valur": 1}]}):
        found = produce(rest, "/topics/v2-fields", body)
        assert (error_v2(found), found.json()["message"][:20]) == ((422, 422), "Unrecognized field: ")
    assert rest.get("/topics/v2-fields/partitions/0/offsets").json()["end_offset"] == 0


def test_charset_of_a_body_is_obeyed(rest: RestClient) -> None:
    rest.create_topic("v2-charset")
    body = json.dumps({"records": [{"value": "\u00e9"}]}, ensure_ascii=False)
    line = json.dumps({"value": {"type": "STRING", "data": "\u00e9"}}, ensure_ascii=False)
    for charset in ("utf-8", "ISO-8859-1", '"UTF-8"'):
        text = charset.strip('"')
        for path, content, media_type in (
            ("/topics/v2-charset", body, JSON), ("topics/v2-charset/records", line, "application/json"),
        ):  # fmt: skip
            headers = {"content-type": f"{media_type}; charset={charset}"}
            assert rest.request("POST", path, content=content.encode(text), headers=headers).status_code == 200
    for path, media_type in (("/topics/v2-charset", JSON), ("topics/v2-charset/records", "application/json")):
        headers = {"content-type": f"{media_type}; charset=DEADBEEF"}
        assert error_of(rest.request("POST", path, content=b"{}", headers=headers)) == (400, 400)
    values = [json.loads(line)["value"]["data"] for line in rest.get("topics/v2-charset/records").text.splitlines()]
    assert values == ["\u00e9"] * 6


def test_options_lists_the_methods_of_a_path(rest: RestClient) -> None:
    for path, methods in (("/topics/none", "GET, HEAD, OPTIONS, POST"), ("/v3/clusters/", "GET, HEAD, OPTIONS")):
        found = rest.http.options(path)
        assert (found.status_code, found.headers["allow"], found.content) == (200, methods, b"")
    assert rest.http.options("/v3/nothing").status_code == 404


def test_compressed_bodies_are_refused(rest: RestClient) -> None:
    rest.create_topic("v2-gzip")
    body = gzip.compress(json.dumps({"records": [{"value": 1}]}).encode())
    for path, media_type in (("/topics/v2-gzip", JSON), ("topics/v2-gzip/records", "application/json")):
        headers = {"content-type": media_type, "content-encoding": "gzip"}
        assert error_of(rest.request("POST", path, content=body, headers=headers)) == (415, 415)
