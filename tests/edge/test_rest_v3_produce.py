"""Version 3 of the REST API: produce as a stream and in batches."""

from __future__ import annotations

import http.client
import json
import re
import socket
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from rest_process import RestClient, error_of

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker


def produce(rest: RestClient, topic: str, *records: Any) -> list[dict[str, Any]]:
    """Send records and return the lines of the answer."""
    body = "".join(each if isinstance(each, str) else json.dumps(each) for each in records)
    found = rest.request("POST", f"topics/{topic}/records", content=body)
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/json"
    return [json.loads(line) for line in found.text.splitlines()]


def read_all(broker: BrokerProcess, topic: str, count: int) -> list[Any]:
    """Return the messages of partition 0."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.consume(count, 60)
    finally:
        consumer.close()


def end_offset(rest: RestClient, topic: str) -> int:
    found: int = rest.get(f"topics/{topic}/partitions/0/offset").json()["latest_offset"]
    return found


def test_records_of_all_plain_formats_are_produced(rest: RestClient, rest_broker: BrokerProcess) -> None:
    rest.create_topic("v3-produce")
    lines = produce(
        rest, "v3-produce",
        {"partition_id": 0, "headers": [{"name": "h", "value": "AAE="}, {"name": "n", "value": None}],
         "key": {"type": "BINARY", "data": "Zm9vYmFy"}, "value": {"type": "JSON", "data": {"foo": "bär"}},
         "timestamp": "2021-02-05T19:14:42Z", "offset": 7},
        {"key": {"type": "string", "data": "k"}, "value": {"type": "STRING", "data": "My message"}},
        {"value": {"type": "JSON", "data": None}},
        {},
    )  # fmt: skip
    place = {"error_code": 200, "cluster_id": rest.cluster_id, "topic_name": "v3-produce", "partition_id": 0}
    assert lines[0] == {
        **place, "offset": 0, "timestamp": "2021-02-05T19:14:42Z", "key": {"type": "BINARY", "size": 6},
        "value": {"type": "JSON", "size": 14},
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", lines[1].pop("timestamp"))
    assert lines[1] == {
        **place,
        "offset": 1,
        "key": {"type": "STRING", "size": 1},
        "value": {"type": "STRING", "size": 10},
    }
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]
    assert "key" not in lines[2]
    assert lines[2]["value"] == {"type": "JSON", "size": 0}
    stored = read_all(rest_broker, "v3-produce", 4)
    assert [(each.key(), each.value()) for each in stored] == [
        (b"foobar", '{"foo":"bär"}'.encode()), (b"k", b"My message"), (None, None), (None, None),
    ]  # fmt: skip
    assert stored[0].headers() == [("h", b"\0\1"), ("n", None)]
    assert stored[0].timestamp()[1] == 1612552482000


def test_each_record_of_a_stream_has_its_own_error_code(rest: RestClient) -> None:
    rest.create_topic("v3-errors")
    good = {"value": {"type": "STRING", "data": "x"}}
    lines = produce(
        rest, "v3-errors", good, {"value": {"type": "BINARY", "data": "?"}}, {"partition_id": 9}, {"partition_id": -1},
        {"value": {"type": "NEW", "data": 1}}, {"key": 5}, {"timestamp": 5}, {"headers": [{"value": "AA=="}]},
        {"value": {"type": "AVRO", "schema": '"int"', "data": 1}}, {"value": {"data": 1}}, {"values": 1},
        {"value": {"type": "JSON"}}, {"value": {"type": "JSON", "data": 1, "format": "x"}},
        {"value": {"type": "AVRO", "data": 1}}, {"value": {"type": "AVRO", "schema_id": 1, "data": 1}},
        {"value": {"type": "JSON", "subject": "s", "data": 1}},
        {"value": {"type": "STRING", "schema_id": 1, "data": "a"}},
        {"value": {"subject": "s", "subject_name_strategy": "TOPIC_NAME", "data": 1}}, good,
    )  # fmt: skip
    assert [line["error_code"] for line in lines] == [
        200, 400, 40402, 40402, 400, 400, 400, 400, 422, 422, *[400] * 8, 200,
    ]  # fmt: skip
    assert [line["offset"] for line in lines if line["error_code"] == 200] == [0, 1]
    assert all(line["message"] for line in lines[1:-1])
    assert lines[8]["message"].startswith("Error: 42206 : Payload error. ")


def test_text_that_is_not_json_ends_the_stream_with_an_error(rest: RestClient) -> None:
    rest.create_topic("v3-broken")
    lines = produce(rest, "v3-broken", {"value": {"type": "JSON", "data": 1}}, "{oops}", {"value": None})
    assert [line["error_code"] for line in lines] == [200, 400]
    assert produce(rest, "v3-broken", "[1]")[0]["error_code"] == 400
    assert produce(rest, "v3-broken", '{"value": {"type": "JSON", "data":' + "[" * 200_000)[0]["error_code"] == 400
    assert produce(rest, "v3-broken", '{"value":{"type":"JSON","data":NaN}}')[0]["error_code"] == 400
    assert end_offset(rest, "v3-broken") == 1


def test_requests_without_records_or_topic_are_rejected(rest: RestClient) -> None:
    rest.create_topic("v3-empty")
    assert error_of(rest.post("topics/v3-empty/records")) == (422, 42206)
    assert error_of(rest.request("POST", "topics/v3-empty/records", content=b" \n")) == (422, 42206)
    assert error_of(rest.post("/v3/clusters/other/topics/v3-empty/records", {})) == (404, 404)
    (line,) = produce(rest, "none", {"value": {"type": "JSON", "data": 1}})
    assert line["error_code"] == 40403


def test_record_that_is_larger_than_the_topic_allows_is_rejected(rest: RestClient) -> None:
    rest.create_topic("v3-large", configs={"max.message.bytes": "2000"})
    large, small = ({"value": {"type": "STRING", "data": "x" * size}} for size in (3000, 10))
    assert [line["error_code"] for line in produce(rest, "v3-large", large, small)] == [413, 200]


def test_results_arrive_while_the_client_still_sends(rest: RestClient) -> None:
    rest.create_topic("v3-duplex")
    host = httpx.URL(rest.url)
    connection = http.client.HTTPConnection(host.host, host.port, timeout=60)
    try:
        connection.putrequest("POST", f"/v3/clusters/{rest.cluster_id}/topics/v3-duplex/records")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        answer: http.client.HTTPResponse | None = None
        for number in range(3):
            record = json.dumps({"value": {"type": "JSON", "data": number}}).encode()
            for piece in (record[:11], record[11:]):
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            if answer is None:
                # http.client refuses to read before the request ends, which HTTP allows.
                answer = http.client.HTTPResponse(connection.sock, method="POST")
                answer.begin()
                assert answer.status == 200
            assert json.loads(answer.readline())["offset"] == number
        connection.send(b"0\r\n\r\n")
        assert answer is not None
        assert answer.read() == b""
    finally:
        connection.close()


def test_client_may_send_all_records_before_it_reads(rest: RestClient) -> None:
    rest.create_topic("v3-many")
    lines = produce(rest, "v3-many", '{"value":{"type":"BINARY","data":"QUJD"}}\n' * 20_000)
    assert len(lines) == 20_000
    assert [line["offset"] for line in lines] == list(range(20_000))


# Batches


def test_batch_returns_successes_and_failures(rest: RestClient) -> None:
    rest.create_topic("v3-batch")
    found = rest.post("topics/v3-batch/records:batch", {"entries": [
        {"id": "a", "value": {"type": "STRING", "data": "first"}, "timestamp": "2021-02-05T19:14:42.5Z"},
        {"id": "b", "value": {"type": "BINARY", "data": 1}},
        {"id": "c", "partition_id": 0, "key": {"type": "JSON", "data": [1]}, "timestamp": "2021-02-05T19:14:43Z"},
    ]})  # fmt: skip
    assert found.status_code == 207
    place = {"cluster_id": rest.cluster_id, "topic_name": "v3-batch", "partition_id": 0}
    (failure,) = found.json()["failures"]
    assert (failure["id"], failure["error_code"], "base64" in failure["message"]) == ("b", 400, True)
    assert found.json()["successes"] == [
        {
            "id": "a",
            **place,
            "offset": 0,
            "timestamp": "2021-02-05T19:14:42.500Z",
            "value": {"type": "STRING", "size": 5},
        },
        {"id": "c", **place, "offset": 1, "timestamp": "2021-02-05T19:14:43Z", "key": {"type": "JSON", "size": 3}},
    ]
    unknown = rest.post("topics/none/records:batch", {"entries": [{"id": "a", "value": None}]})
    assert unknown.json()["failures"][0]["error_code"] == 40403


def test_invalid_batches_are_rejected_as_a_whole(rest: RestClient) -> None:
    rest.create_topic("v3-bad-batch")
    cases: list[tuple[Any, tuple[int, int]]] = [
        ({"entries": []}, (422, 42208)),
        ({"entries": [{"id": "a"}, {"id": "a"}]}, (422, 42208)),
        ({"entries": [{"id": str(n)} for n in range(11)]}, (422, 42208)),
        ({"entries": [{"id": ""}]}, (422, 42208)),
        ({"entries": [{"id": "x" * 81}]}, (422, 42208)),
        ({"entries": [{"id": 1}]}, (422, 42208)),
        ({"entries": [{"value": None}]}, (422, 42208)),
        ({"entries": {}}, (400, 400)),
        ({"entries": [{"id": "a b"}]}, (422, 42208)),
        ({"entries": [{"id": "a", "values": None}]}, (422, 422)),
        ({"records": []}, (422, 422)),
        ({}, (422, 42208)),
        ([], (400, 400)),
        (None, (422, 42208)),
    ]
    for body, expected in cases:
        assert error_of(rest.post("topics/v3-bad-batch/records:batch", body)) == expected, body
    assert end_offset(rest, "v3-bad-batch") == 0


def test_client_of_http_1_0_gets_no_chunks(rest: RestClient) -> None:
    rest.create_topic("v3-old-http")
    path = f"/v3/clusters/{rest.cluster_id}/topics/v3-old-http/records"
    host, _, port = rest.url.removeprefix("http://").partition(":")
    body = b'{}{"value":{"type":"STRING","data":"a"}}'
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(
            b"POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        found = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, text = found.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"content-length: %d" % len(text) in head.lower()
    assert [json.loads(line)["offset"] for line in text.splitlines()] == [0, 1]
