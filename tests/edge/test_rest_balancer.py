"""REST proxies behind a load balancer that sends each request to the next one, whatever it is about."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from rest_process import RestClient, error_of, rest_process

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

JSON = "application/vnd.kafka.json.v2+json"
WAIT_S = 60
NEW = {"format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}


@contextmanager
def round_robin(targets: list[str]) -> Iterator[httpx.Client]:
    """Return a client of a load balancer that sends request N to target N modulo their number."""
    turns = itertools.cycle(targets)
    forward = httpx.Client(timeout=WAIT_S)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            # The host stays that of the balancer, as it does with a balancer of TCP connections.
            found = forward.request(self.command, f"{next(turns)}{self.path}", content=body, headers=dict(self.headers))
            self.send_response(found.status_code)
            self.send_header("content-type", found.headers.get("content-type", ""))
            if found.status_code != 204:
                self.send_header("content-length", str(len(found.content)))
            self.end_headers()
            self.wfile.write(found.content)

        do_GET = do_POST = do_DELETE = pass_on

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        with forward, httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=WAIT_S) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def proxies(rest_broker: BrokerProcess) -> Iterator[list[RestClient]]:
    options = ("-Xhost.name=127.0.0.1",)
    with (
        rest_process(rest_broker.bootstrap, *options, "-Xid=a") as one,
        rest_process(rest_broker.bootstrap, *options, "-Xid=b") as other,
    ):
        yield [one, other]


@pytest.fixture(scope="module")
def balancer(proxies: list[RestClient]) -> Iterator[httpx.Client]:
    with round_robin([each.url for each in proxies]) as client:
        yield client


def create_consumer(client: httpx.Client, group: str) -> str:
    """Return the base_uri of a new consumer instance."""
    made = client.post(f"/consumers/{group}", json=NEW)
    assert made.status_code == 200, made.text
    base: str = made.json()["base_uri"]
    assert base.endswith(f"/consumers/{group}/instances/{made.json()['instance_id']}")
    return base


def owner_of(base: str) -> str:
    return base.partition("/consumers/")[0]


def read_values(base: str, count: int) -> list[Any]:
    values: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < deadline:
        found = httpx.get(f"{base}/records?timeout=500", headers={"accept": JSON}, timeout=WAIT_S)
        assert found.status_code == 200, found.text
        values += [each["value"] for each in found.json()]
    return values


def wait_for_partitions(base: str, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(httpx.get(f"{base}/assignments").json()["partitions"]) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_base_uri_names_the_proxy_that_owns_the_consumer(
    proxies: list[RestClient], balancer: httpx.Client, rest: RestClient
) -> None:
    rest.create_topic("lb-own")
    # Each request goes to the next proxy, so each proxy owns one.
    bases = [create_consumer(balancer, "lb-own") for _ in proxies]
    assert {owner_of(base) for base in bases} == {each.url for each in proxies}
    assert all(str(balancer.base_url).rstrip("/") != owner_of(base) for base in bases)

    base = bases[0]
    assert httpx.post(f"{base}/assignments", json={"partitions": [{"topic": "lb-own", "partition": 0}]}).is_success
    sent = balancer.post("/topics/lb-own", json={"records": [{"value": 1}]}, headers={"content-type": JSON})
    assert sent.status_code == 200, sent.text
    assert read_values(base, 1) == [1]
    assert httpx.post(f"{base}/offsets").status_code == 200

    # The balancer finds the owner with every second request. The other proxy says where the requests belong.
    path = base.removeprefix(owner_of(base))
    found = [balancer.get(f"{path}/assignments") for _ in proxies]
    assert sorted(each.status_code for each in found) == [200, 404]
    (refused,) = (each for each in found if each.status_code == 404)
    assert error_of(refused) == (404, 40403)
    assert refused.json()["message"].startswith("Consumer instance not found.")
    assert "base_uri" in refused.json()["message"]
    for each in bases:
        assert httpx.delete(each).status_code == 204


def test_any_proxy_produces_reads_and_administers(balancer: httpx.Client) -> None:
    cluster = f"/v3/clusters/{balancer.get('/v3/clusters').json()['data'][0]['cluster_id']}"
    for number in range(2):
        # The proxy that did not create the topic gets the first record for it.
        made = balancer.post(f"{cluster}/topics", json={"topic_name": f"lb-{number}", "partitions_count": 1})
        assert made.status_code == 201, made.text
        topic = f"{cluster}/topics/lb-{number}"
        record = {"value": {"type": "JSON", "data": number}}
        produced = [balancer.post(f"{topic}/records", json=record).json() for _ in range(4)]
        assert [each.get("offset") for each in produced] == [0, 1, 2, 3], produced
        lines = [balancer.get(f"{topic}/records").text.splitlines() for _ in range(2)]
        assert [len(each) for each in lines] == [4, 4]
        assert balancer.delete(topic).status_code == 204
        assert error_of(balancer.get(topic)) == (404, 40403)


def test_consumers_of_one_group_on_two_proxies_share_the_partitions(
    rest_broker: BrokerProcess, proxies: list[RestClient], rest: RestClient
) -> None:
    rest.create_topic("lb-group", partitions=2)
    subscription = {"topics": ["lb-group"]}
    with rest_process(rest_broker.bootstrap, "-Xhost.name=127.0.0.1") as ending:
        stays = create_consumer(proxies[0].http, "lb-group")
        leaves = create_consumer(ending.http, "lb-group")
        for base in (stays, leaves):
            assert httpx.post(f"{base}/subscription", json=subscription).status_code == 204
        for base in (stays, leaves):
            wait_for_partitions(base, 1)
        ending.terminate()
        # A proxy that stops lets its consumers leave their groups.
        wait_for_partitions(stays, 2)
    assert httpx.delete(stays).status_code == 204
