"""Messages in the console: pages, searches, live parts, files, single records, hostile content, transactions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from console_process import ConsoleClient, console_process
from edge_broker import Broker, edge_broker
from registry_process import RegistryProcess

from ottla.client.cluster import Cluster
from ottla.client.transactions import TransactionalProducer
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.schemas.data.codec import codec_for
from ottla.schemas.data.framing import frame
from ottla.testing.raw import RawClient, produce_request
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

ORDERS, HOSTILE, PAYMENTS, TRIMMED = "shop.orders.json", "hostile", "payments", "trimmed"
#: of the first record; each record of the orders is a second later
BEGIN_MS = 1_795_000_000_000
ORDER_COUNT = 120
SCRIPT = "<script>alert(1)</script>"
BIDI = "safe\u202egnp.exe"
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]})
BOMB = json.dumps({"type": "array", "items": "null"})
#: key, value and headers of each record of the hostile topic
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (SCRIPT.encode(), f'{{"x": "{SCRIPT}"}}'.encode(), [(SCRIPT, SCRIPT.encode())]),
    (BIDI.encode(), BIDI.encode(), [("a\u202eb", BIDI.encode())]),
    (b"\0nul", b"\0\0\0\0\0", [("n\0l", b"\0")]),
    (None, None, [("null", None)]),
    (b"", b"", []),
    (b"mib", b"x" * (1 << 20), []),
    (b"headers", b"v", [(f"h{n}", b"v") for n in range(10_000)]),
    (b"deep", b"[" * 50_000 + b"]" * 50_000, []),
    (b"nested", json.dumps({"a": [[[[{"b": "\ud800"}]]]]}).encode(), []),
    (b"\xff\xfe", b"\xff\xfe\x80", [("\udcff", b"\xff")]),
    (b"number", b"9" * 5000, []),
    (b"sse", b"a\r\n\r\nevent: rows\ndata: x\n\n", []),
    (b"=cmd()", b"=1+1", []),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker({"message.max.bytes": "4000000"}) as running:
        with Cluster(running.bootstrap) as cluster:
            fill(cluster)
        yield running


def fill(cluster: Cluster) -> None:
    cluster.create_topic(ORDERS, 2)
    for number in range(ORDER_COUNT):
        value = json.dumps({"id": number, "customer": {"id": number % 10}, "amount": number / 4}).encode()
        kind = b"refund" if number % 30 == 0 else b"sale"
        record = Record(timestamp=BEGIN_MS + number * 1000, key=b"c-%d" % (number % 10), value=value,
                        headers=[("type", kind)])  # fmt: skip
        cluster.produce(TopicPartition(ORDERS, number % 2), build_batch([record]))
    cluster.create_topic(HOSTILE, 1)
    for key, content, headers in RECORDS:
        record = Record(timestamp=BEGIN_MS, key=key, value=content, headers=headers)
        cluster.produce(TopicPartition(HOSTILE, 0), build_batch([record]))
    payments = TopicPartition(PAYMENTS, 0)
    cluster.create_topic(PAYMENTS, 1)
    with TransactionalProducer(cluster, "pay-7") as producer:
        producer.init()
        for is_committed in (True, False):
            producer.begin()
            word = b"kept" if is_committed else b"dropped"
            producer.send(payments, build_batch([Record(timestamp=BEGIN_MS, value=word)]))
            producer.commit() if is_committed else producer.abort()
    cluster.produce(payments, build_batch([Record(timestamp=BEGIN_MS, value=b"plain")]))
    cluster.commit("billing", {TopicPartition(ORDERS, 0): 31})
    cluster.commit("fraud", {TopicPartition(ORDERS, 0): 10})
    trimmed = TopicPartition(TRIMMED, 0)
    cluster.create_topic(TRIMMED, 1)
    for _ in range(10):
        cluster.produce(trimmed, build_batch([Record(timestamp=BEGIN_MS, value=b"v")]))
    rows = [DeleteRecordsPartition(partition_index=0, offset=4)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TRIMMED, partitions=rows)], timeout=30_000)
    cluster.ask_any(request)


@pytest.fixture(scope="module")
def registry(broker: Broker) -> Iterator[RegistryProcess]:
    with RegistryProcess(broker.bootstrap) as running:
        for subject, schema in ((f"{ORDERS}-value", AVRO), ("bomb", BOMB)):
            path = f"{running.url}/subjects/{subject}/versions"
            assert running.client.post(path, json={"schema": schema}).status_code == 200
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker, registry: RegistryProcess) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap, {}, "--registry", registry.url) as running:
        running.log_in()
        yield running


def topic_path(topic: str) -> str:
    return f"/c/main/topics/{topic.replace('.', '%2E')}"


def listed(console: ConsoleClient, topic: str, **query: object) -> dict[str, Any]:
    params = httpx.QueryParams({name.rstrip("_"): str(text) for name, text in query.items()})
    return console.json(f"{topic_path(topic)}/messages?{params}")


def ids(page: dict[str, Any]) -> list[int]:
    return [json.loads(row["value"]["text"])["id"] for row in page["records"]]


def record_page(console: ConsoleClient, topic: str, partition: int, offset: int) -> dict[str, Any]:
    return console.json(f"{topic_path(topic)}/p/{partition}/o/{offset}")


# -- pages and searches -----------------------------------------------------------------------------------------------


def test_newest_records_come_first_and_links_lead_through_all_of_them(console: ConsoleClient) -> None:
    page = listed(console, ORDERS, rows=50)
    found = ids(page)
    while page["next"]:
        page = console.json(page["next"])
        found += ids(page)
    assert found == list(reversed(range(ORDER_COUNT)))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"from_": "oldest", "rows": 3}, [0, 1, 2]),
        ({"from_": "offset", "start": 30, "partition": 1, "rows": 2}, [61, 63]),
        ({"from_": "time", "start": BEGIN_MS + 100_500, "rows": 3}, [101, 102, 103]),
        ({"q": "customer.id = 4 AND amount > 20"}, [114, 104, 94, 84]),
        ({"q": 'header.type = "refund"', "from_": "oldest"}, [0, 30, 60, 90]),
        ({"q": "key = c-7 partition = 1 offset < 20"}, [37, 27, 17, 7]),
        ({"q": "REFUND"}, [90, 60, 30, 0]),
        ({"q": 'timestamp >= "2026-11-18 11:08:20"', "rows": 2}, [119, 118]),
        ({"q": "nothing has this"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_records_are_found(console: ConsoleClient, query: dict[str, object], expected: list[int]) -> None:
    assert ids(listed(console, ORDERS, **query)) == expected


def test_page_says_what_was_searched(console: ConsoleClient) -> None:
    progress = listed(console, ORDERS, q="nothing has this")["progress"]
    assert (progress["scanned"], progress["matched"], progress["pause"]) == (ORDER_COUNT, 0, "end")
    rows = [(row["partition"], row["scanned"], row["position"], row["left"]) for row in progress["partitions"]]
    assert rows == [(0, 60, 0, 0), (1, 60, 0, 0)]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("q=a+%3D", "character 4"), ("partition=9", "has no partition 9"), ("from=never", "not one of"),
        ("from=time&start=soon", "is not a time"), ("from=offset&start=x", "not a whole number"), ("rows=0", "rows"),
        ("at=0.x", "begin the search again"), ("at=7.1", "begin the search again"), ("isolation=x", "not one of"),
        ("from=time", "is not a time"),
    ],
)  # fmt: skip
def test_query_that_cannot_be_read_says_why_and_keeps_the_form(console: ConsoleClient, query: str, text: str) -> None:
    for headers in ({"accept": "application/json"}, {"accept": "text/html"}):
        answer = console.http.get(f"{topic_path(ORDERS)}/messages?{query}", headers=headers)
        assert answer.status_code == 400 and text in answer.text


def test_unknown_topic_is_not_found(console: ConsoleClient) -> None:
    for path in ("messages", "p/0/o/0", "messages/file"):
        assert console.http.get(f"/c/main/topics/absent/{path}").status_code == 404


def test_offset_outside_of_the_log_gets_a_clear_answer(console: ConsoleClient) -> None:
    page = listed(console, TRIMMED, from_="offset", start=1)
    assert "offset 1 was deleted" in page["notes"][0] and "offsets 4 to 9" in page["notes"][0]
    assert [row["offset"] for row in page["records"]] == [4, 5, 6, 7, 8, 9]
    page = listed(console, TRIMMED, from_="offset", start=99)
    assert "not written yet" in page["notes"][0] and page["records"] == []


def test_page_without_a_script_has_the_form_the_rows_and_the_commands(console: ConsoleClient) -> None:
    text = console.http.get(f"{topic_path(ORDERS)}/messages?rows=5", headers={"accept": "text/html"}).text
    assert text.count('data-title="Place"') == 5 and 'rel="next"' in text
    assert f"ottla consume {ORDERS} -O -5 -e" in text and "kafka-console-consumer" in text


# -- live parts and files ---------------------------------------------------------------------------------------------


def events(console: ConsoleClient, path: str, enough: int) -> list[tuple[str, str]]:
    """Return the first events of a stream."""
    found: list[tuple[str, str]] = []
    with console.http.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        name, data = "", []
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data.append(line.removeprefix("data: "))
            elif not line and name:
                found.append((name, "\n".join(data)))
                name, data = "", []
                if len(found) >= enough:
                    break
    return found


def test_search_continues_as_events_with_progress_and_an_end(console: ConsoleClient) -> None:
    found = events(console, f"{topic_path(ORDERS)}/messages/search?q=refund&rows=50&at=0.60_1.60&scanned=5", 9)
    assert [name for name, _ in found] == ["rows+", "progress", "end"]
    assert found[0][1].count('data-title="Place"') == 4
    assert f"scanned <b>{ORDER_COUNT + 5}</b>" in found[1][1]


def test_tail_shows_new_records_and_escapes_them(console: ConsoleClient, broker: Broker) -> None:
    path = f"{topic_path('tail')}/messages/live"
    place = TopicPartition("tail", 0)
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("tail", 1)
        cluster.produce(place, build_batch([Record(value=b"before")]))
        with console.http.stream("GET", path) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if "live" in line)
            cluster.produce(place, build_batch([Record(value=SCRIPT.encode()), Record(value=b"two\r\n\r\nevent: x")]))
            text = ""
            while "two" not in text or "alert(1)" not in text:
                text += next(lines) + "\n"
    assert SCRIPT not in text
    assert "&lt;script&gt;" in text
    assert "before" not in text and "\nevent: x" not in text


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_records_are_downloaded_as_a_file(console: ConsoleClient, kind: str) -> None:
    answer = console.http.get(f"{topic_path(ORDERS)}/messages/file?as={kind}&from=oldest")
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    lines = answer.text.splitlines()
    if kind == "jsonl":
        rows = [json.loads(line) for line in lines]
        assert sorted(row["value"]["id"] for row in rows) == list(range(ORDER_COUNT))
        assert rows[0]["headers"] == [["type", "refund"]] and rows[0]["key"] == "c-0"
    else:
        assert len(lines) == ORDER_COUNT + 1 and lines[0].startswith("topic,partition,offset")


def test_files_of_hostile_records_are_complete(console: ConsoleClient) -> None:
    lines = console.http.get(f"{topic_path(HOSTILE)}/messages/file?as=jsonl&from=oldest").text.splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == len(RECORDS)
    assert rows[9]["value"] == {"hex": "fffe80"} and len(rows[6]["headers"]) == 10_000
    table = console.http.get(f"{topic_path(HOSTILE)}/messages/file?as=csv&from=oldest").text
    assert "'=cmd()" in table, "a spreadsheet must not run a cell"


# -- one record -------------------------------------------------------------------------------------------------------


def test_record_without_a_time_says_so(console: ConsoleClient, broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        client.create_topic("timeless", 1)
        client.ask(produce_request(("timeless", 0, build_batch([Record(value=b"v")])), acks=-1), 9)
    assert "no time" in console.http.get("/c/main/topics/timeless/messages").text
    assert "no time" in console.http.get("/c/main/topics/timeless/p/0/o/0").text


def test_record_has_a_permanent_page_with_all_of_it(console: ConsoleClient) -> None:
    page = record_page(console, ORDERS, 0, 30)
    record = page["record"]
    assert record["value"]["content"] == {"id": 60, "customer": {"id": 0}, "amount": 15.0}
    assert record["key"]["content"] == "c-0" and record["headers"][0]["value"] == "refund"
    assert record["timestamp_ms"] == BEGIN_MS + 60_000 and record["producer_id"] is None
    assert page["batch"]["is_checksum_right"] and page["batch"]["base_offset"] == 30
    for view, text in (("tree", "<details open>"), ("json", "&#34;customer&#34;: {"), ("raw", "&#34;id&#34;: 60"),
                       ("hex", "00000000  7b 22")):  # fmt: skip
        html = console.http.get(f"{topic_path(ORDERS)}/p/0/o/30?view={view}", headers={"accept": "text/html"}).text
        assert text in html, view


def test_value_and_key_are_downloaded_byte_by_byte(console: ConsoleClient) -> None:
    path = f"{topic_path(HOSTILE)}/p/0/o"
    answer = console.http.get(f"{path}/5/value")
    assert answer.content == b"x" * (1 << 20)
    assert (
        "attachment" in answer.headers["content-disposition"] and answer.headers["x-content-type-options"] == "nosniff"
    )
    assert console.http.get(f"{path}/9/value?part=key").content == b"\xff\xfe"
    assert console.http.get(f"{path}/3/value").status_code == 404


@pytest.mark.parametrize(
    ("topic", "offset", "text"),
    [(TRIMMED, 1, "begins at offset 4"), (TRIMMED, 99, "last offset is 9"), (PAYMENTS, 1, "commit, of producer"),
     (PAYMENTS, 3, "abort, of producer")],
)  # fmt: skip
def test_offset_without_a_record_says_what_is_there(console: ConsoleClient, topic: str, offset: int, text: str) -> None:
    for headers in ({"accept": "application/json"}, {"accept": "text/html"}):
        answer = console.http.get(f"{topic_path(topic)}/p/0/o/{offset}", headers=headers)
        assert answer.status_code == 404 and text in answer.text


@pytest.mark.parametrize("place", ["p/0/o/-1", "p/x/o/1", "p/0/o/99999999999999999999", "p/0/o/%D9%A1"])
def test_place_that_is_none_is_refused(console: ConsoleClient, place: str) -> None:
    assert console.http.get(f"{topic_path(ORDERS)}/{place}").status_code == 400


def test_page_says_which_groups_have_read_the_record(console: ConsoleClient) -> None:
    page = console.json(f"{topic_path(ORDERS)}/p/0/o/30/readers")
    rows = [(row["group"], row["has_read"], row["behind"]) for row in page["groups"]]
    assert rows == [("fraud", False, 21), ("billing", True, 0)]
    assert (
        "21 behind" in console.http.get(f"{topic_path(ORDERS)}/p/0/o/30/readers", headers={"accept": "text/html"}).text
    )


# -- transactions -----------------------------------------------------------------------------------------------------


def test_aborted_records_are_hidden_or_marked(console: ConsoleClient) -> None:
    page = listed(console, PAYMENTS)
    assert [row["value"]["text"] for row in page["records"]] == ["plain", "kept"]
    assert page["progress"]["hidden"] == 1
    page = listed(console, PAYMENTS, isolation="all")
    assert [(row["value"]["text"], row["transaction"]) for row in page["records"]] == [
        ("plain", ""), ("dropped", "aborted"), ("kept", "committed"),
    ]  # fmt: skip
    record = record_page(console, PAYMENTS, 0, 2)["record"]
    assert record["transaction"] == "aborted" and record["producer_id"] >= 0
    readers = console.json(f"{topic_path(PAYMENTS)}/p/0/o/2/readers?producer={record['producer_id']}")
    assert readers["transactional_ids"] == ["pay-7"]


def test_records_of_an_open_transaction_are_marked(console: ConsoleClient, broker: Broker) -> None:
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("open", 1)
        with TransactionalProducer(cluster, "pay-8") as producer:
            producer.init()
            producer.begin()
            producer.send(TopicPartition("open", 0), build_batch([Record(value=b"waits")]))
            producer.flush()
            assert listed(console, "open")["records"] == []
            page = listed(console, "open", isolation="all")
            assert [row["transaction"] for row in page["records"]] == ["open"]
            assert record_page(console, "open", 0, 0)["record"]["transaction"] == "open"
            producer.commit()


# -- schemas and hostile content --------------------------------------------------------------------------------------


def test_values_are_decoded_with_the_registry(
    console: ConsoleClient, broker: Broker, registry: RegistryProcess
) -> None:
    schema_id = registry.client.get(f"{registry.url}/subjects/{ORDERS}-value/versions/1").json()["id"]
    bomb_id = registry.client.get(f"{registry.url}/subjects/bomb/versions/1").json()["id"]
    values = [
        frame(schema_id, codec_for("AVRO", AVRO, {}).encode({"note": SCRIPT})), frame(schema_id, b"\xff"),
        frame(bomb_id, b"\xfe\xff\xff\xff\x0f\x00"), frame(99_999, b"rest"),
    ]  # fmt: skip
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("avro", 1)
        for value in values:
            cluster.produce(TopicPartition("avro", 0), build_batch([Record(value=value)]))
    rows = [row["value"] for row in listed(console, "avro", from_="oldest")["records"]]
    assert (rows[0]["kind"], rows[0]["schema_id"]) == ("avro", schema_id)
    texts = ("does not fit", "does not fit", "no schema")
    assert [text in row["problem"] for row, text in zip(rows[1:], texts, strict=True)] == [True] * 3
    assert [row["offset"] for row in listed(console, "avro", q='note contains "<script>"')["records"]] == [0]
    html = console.http.get("/c/main/topics/avro/p/0/o/0", headers={"accept": "text/html"}).text
    assert SCRIPT not in html and "Order" in html


def test_hostile_records_are_text_in_every_page(console: ConsoleClient) -> None:
    paths = [f"{topic_path(HOSTILE)}/messages?from=oldest", f"{topic_path(HOSTILE)}/messages?q={SCRIPT}"]
    paths += [
        f"{topic_path(HOSTILE)}/p/0/o/{offset}{view}"
        for offset in range(len(RECORDS))
        for view in ("", "?view=json", "?view=raw", "?view=hex")
    ]
    for path in paths:
        answer = console.http.get(path, headers={"accept": "text/html"})
        assert answer.status_code in (200, 400), (path, answer.text[:500])
        assert SCRIPT not in answer.text and "\u202e" not in answer.text and "\0" not in answer.text, path
        assert len(answer.content) < 2_000_000, "the page of a large record is limited"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert console.http.get(path, headers={"accept": "application/json"}).json()


def test_each_record_of_a_hostile_topic_has_its_row(console: ConsoleClient) -> None:
    rows = listed(console, HOSTILE, from_="oldest")["records"]
    assert [row["offset"] for row in rows] == list(range(len(RECORDS)))
    kinds = [row["value"]["kind"] for row in rows]
    assert kinds[:7] == ["json", "text", "binary", "null", "empty", "text", "text"]
    assert rows[6]["header_count"] == 10_000 and len(rows[6]["headers"]) <= 8
    assert rows[5]["size"] > 1 << 20 and len(rows[5]["value"]["text"]) < 1000


def test_names_of_topics_in_links_are_quoted(console: ConsoleClient) -> None:
    html = console.http.get(f"{topic_path(ORDERS)}/messages?rows=1", headers={"accept": "text/html"}).text
    assert re.search(r'href="/c/main/topics/shop%2Eorders%2Ejson/p/\d/o/\d+"', html)
    for name in (SCRIPT, "..", "a/b", "x" * 300, "\u202e", "a\nb"):
        path = f"/c/main/topics/{quote(name, safe='').replace('.', '%2E')}/messages"
        answer = console.http.get(path)
        assert answer.status_code == 404 and SCRIPT not in answer.text


# -- produce ----------------------------------------------------------------------------------------------------------


def test_record_is_produced_by_a_form_with_a_preview(console: ConsoleClient, broker: Broker) -> None:
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("made", 4)
    path = f"{topic_path('made')}/produce"
    form = {
        "key_format": "text",
        "key": "21",
        "value_format": "json",
        "value": '{"a":\r\n 1}',
        "headers": "type: refund",
    }
    assert "textarea" in console.http.get(path).text
    csrf = re.search(r'name="csrf" value="([^"]+)"', console.http.get(path).text)
    assert csrf is not None
    plan = console.http.post(path, data={**form, "csrf": csrf[1]}, headers={"accept": "application/json"}).json()
    # murmur2("21") is a known value of Java's producers.
    assert "partition 0, by its key" in plan["changes"][0]["to"] and plan["is_typed"] is False
    done = console.http.post(
        path, data={**form, "csrf": csrf[1], "confirm": "yes"}, headers={"accept": "application/json"}
    ).json()
    assert done == {"done": ["appended to partition 0 at offset 0"]}
    record = record_page(console, "made", 0, 0)["record"]
    assert record["value"]["content"] == {"a": 1} and record["headers"][0] == {
        "name": "type",
        "value": "refund",
        "size": 6,
    }
    changes = console.json("/c/main/changes")["changes"]
    assert isinstance(changes, list) and "Produce a record to made" in changes[0]["title"]


def test_value_that_does_not_fit_its_schema_is_not_produced(console: ConsoleClient) -> None:
    path = f"{topic_path(ORDERS)}/produce"
    page = console.json(path)
    assert page["subjects"]["value"]["type"] == "AVRO" and page["fields"]["value_format"] == "schema"  # type: ignore[index]
    csrf = re.search(r'name="csrf" value="([^"]+)"', console.http.get(path).text)
    assert csrf is not None
    form = {"key_format": "null", "value_format": "schema", "csrf": csrf[1], "confirm": "yes"}
    for value, text in (('{"note": 5}', "does not fit schema"), ("{", "not JSON")):
        answer = console.http.post(path, data={**form, "value": value})
        assert answer.status_code == 400 and text in answer.text
    answer = console.http.post(path, data={**form, "value": "x", "value_format": "text", "confirm": ""})
    assert "is sent without one" in answer.text
    answer = console.http.post(path, data={**form, "value": '{"note": "ok"}', "partition": "1"})
    assert answer.status_code == 303 and answer.headers["location"].endswith("/messages?partition=1")
    assert listed(console, ORDERS, rows=1, partition=1)["records"][0]["value"]["text"] == '{"note":"ok"}'


@pytest.mark.parametrize("offset", range(len(RECORDS)))
def test_record_is_produced_again_byte_by_byte(console: ConsoleClient, offset: int) -> None:
    path = f"{topic_path(HOSTILE)}/produce?copy=0.{offset}"
    fields = console.json(path)["fields"]
    assert isinstance(fields, dict)
    form = {**fields, "copy": f"0.{offset}"}
    assert console.act(f"{topic_path(HOSTILE)}/produce", **form).status_code == 303
    last = listed(console, HOSTILE, rows=1)["records"][0]["offset"]
    lines = console.http.get(f"{topic_path(HOSTILE)}/messages/file?as=jsonl&from=oldest").text.splitlines()
    first, again = json.loads(lines[offset]), json.loads(lines[last])
    assert [first[name] for name in ("key", "value", "headers")] == [
        again[name] for name in ("key", "value", "headers")
    ]


def test_people_without_the_role_do_not_produce(console: ConsoleClient) -> None:
    with console.browser() as viewer:
        path = f"{topic_path(ORDERS)}/produce"
        assert viewer.get(path).status_code == 303
        assert viewer.post(path, data={"value": "x", "confirm": "yes"}).status_code == 401
        assert "Produce…" not in viewer.get(f"{topic_path(ORDERS)}/messages").text
