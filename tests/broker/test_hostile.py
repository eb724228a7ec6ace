"""Clients that are broken, absurd or malicious get Kafka's answer or a closed connection, and nobody else notices.

After every test the broker is alive, has logged no traceback and serves a good client at once.
"""

from __future__ import annotations

import os
import random
import re
import resource
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.raw import (
    Closed,
    RawClient,
    batch_of,
    fetch_from,
    fetch_request,
    produce_request,
    request_bytes,
)
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

pytestmark = pytest.mark.broker

MIB = 1 << 20
FOREVER_MS = 2**31 - 1
METRICS = {"metrics.listener": "HTTP://127.0.0.1:0"}
API_VERSIONS = ApiVersionsRequest()


@pytest.fixture(scope="module")
def shared_target() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=METRICS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("good")
        yield broker


@pytest.fixture
def target(shared_target: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that many bad clients meet, one after another."""
    yield shared_target
    expect_healthy(shared_target)


@pytest.fixture(scope="module")
def shared_impatient_target() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=METRICS | {"connections.max.idle.ms": "1000"}) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("good")
        yield broker


@pytest.fixture
def impatient_target(shared_impatient_target: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that ends connections which are silent for a second."""
    yield shared_impatient_target
    expect_healthy(shared_impatient_target)


StartTarget = Callable[..., BrokerProcess]


@pytest.fixture
def start_target() -> Iterator[StartTarget]:
    """Starts a broker with settings of its own: ``start_target(**{"max.connections": "5"})``."""
    with ExitStack() as stack:
        started: list[BrokerProcess] = []

        def start(**settings: str) -> BrokerProcess:
            broker = stack.enter_context(BrokerProcess.start(settings=METRICS | settings))
            started.append(broker)
            with RawClient(broker.bootstrap) as client:
                client.create_topic("good")
            return broker

        yield start
        for broker in started:
            expect_healthy(broker)


def expect_healthy(broker: BrokerProcess) -> None:
    assert broker.running
    assert "Traceback" not in broker.errors()
    expect_served(broker)


def expect_served(broker: BrokerProcess) -> None:
    """A good client writes, reads back what it wrote, and waits for none of it."""
    with RawClient(broker.bootstrap) as client:
        expect_serves(client)


def expect_serves(client: RawClient) -> None:
    (topic,) = client.ask(produce_request(("good", 0, batch_of(b"value"))), 9).responses
    (row,) = topic.partition_responses
    assert row.error_code == 0
    (topic,) = client.ask(fetch_request({"good": [fetch_from(0, row.base_offset)]}), 11).responses
    assert topic.partitions[0].records.endswith(b"value\0")


def rss_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status.read())[0]) * 1024


def metric(broker: BrokerProcess, name: str) -> float:
    url = broker.ready_line.rpartition("metrics=")[2]
    with urllib.request.urlopen(url, timeout=60) as page:
        found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


# -- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 100 * MIB + 1, 2**31 - 1])
def test_frame_of_impossible_size_closes_the_connection(target: BrokerProcess, size: int) -> None:
    with RawClient(target.bootstrap) as client:
        client.send_bytes(struct.pack(">i", size) + b"x" * 20)
        assert client.receive_until_closed() == b""


def test_frame_may_be_as_large_as_the_setting_and_not_a_byte_larger(start_target: StartTarget) -> None:
    broker = start_target(**{"socket.request.max.bytes": "10000"})
    request = produce_request(("good", 0, b""))
    free_bytes = 10_000 - len(request_bytes(request, 8, 1))
    with RawClient(broker.bootstrap) as client:
        (topic,) = client.ask(produce_request(("good", 0, b"x" * free_bytes)), 8).responses
        assert topic.partition_responses[0].error_code == 2
        client.send(produce_request(("good", 0, b"x" * (free_bytes + 1))), 8)
        assert client.receive_until_closed() == b""


def test_garbage_closes_the_connection(target: BrokerProcess) -> None:
    source = random.Random(7)
    for _ in range(100):
        with RawClient(target.bootstrap) as client:
            try:
                client.send_bytes(source.randbytes(source.choice((1, 3, 4, 5, 30, 300, 3000))))
                client.socket.shutdown(socket.SHUT_WR)
            except (Closed, OSError):
                continue
            assert client.receive_until_closed() == b""


def test_tls_hello_closes_the_connection(target: BrokerProcess) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    with RawClient(target.bootstrap) as client:
        client.send_bytes(outgoing.read())
        assert client.receive_until_closed() == b""


def test_http_request_closes_the_connection(target: BrokerProcess) -> None:
    with RawClient(target.bootstrap) as client:
        client.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.receive_until_closed() == b""


@pytest.mark.parametrize("request_class", ["produce", "metadata"])
def test_frame_may_be_split_at_every_byte(target: BrokerProcess, request_class: str) -> None:
    request: Any = produce_request(("good", 0, batch_of(b"value"))) if request_class == "produce" else MetadataRequest()
    version = 9
    frame = request_bytes(request, version, 5)
    raw = struct.pack(">i", len(frame)) + frame
    with RawClient(target.bootstrap) as client, RawClient(target.bootstrap) as other:
        for cut in range(1, len(raw)):
            client.send_bytes(raw[:cut])
            other.ask(API_VERSIONS, 0)  # by now the broker has seen the first part by itself
            client.send_bytes(raw[cut:])
            client.receive(request.API_KEY, version, 5)


def test_frame_may_arrive_byte_by_byte_among_others(target: BrokerProcess) -> None:
    frame = request_bytes(produce_request(("good", 0, batch_of(b"value"))), 9, 5)
    raw = (struct.pack(">i", len(frame)) + frame) * 2
    with RawClient(target.bootstrap) as client, RawClient(target.bootstrap) as other:
        for byte in raw:
            client.send_bytes(bytes([byte]))
            other.ask(API_VERSIONS, 0)
        client.receive(0, 9, 5)
        client.receive(0, 9, 5)


def test_claimed_bytes_that_do_not_come_cost_no_memory(target: BrokerProcess) -> None:
    before = rss_bytes(target)
    header = request_bytes(produce_request(("good", 0, batch_of(b"value"))), 9, 1)[:30]
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(RawClient(target.bootstrap))
            client.send_bytes(struct.pack(">i", 100 * MIB) + header)
        expect_served(target)
        assert rss_bytes(target) - before < 64 * MIB


def test_large_frames_that_come_slowly_cost_what_came(target: BrokerProcess) -> None:
    before = rss_bytes(target)
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(RawClient(target.bootstrap))
            client.send_bytes(struct.pack(">i", 100 * MIB) + b"\0\0\0\x09" + bytes(MIB))
        expect_served(target)
        assert rss_bytes(target) - before < 100 * MIB
    eventually(lambda: rss_bytes(target) - before < 16 * MIB)


def test_request_of_nothing_but_names_is_refused(target: BrokerProcess) -> None:
    """Kafka takes a hundred megabytes of them apart; here everybody else would wait for that."""
    frame = request_bytes(MetadataRequest(topics=[]), 9, 1) + bytes(9 * MIB)
    with RawClient(target.bootstrap) as client:
        try:
            client.send_frame(frame)
        except Closed:
            return
        assert client.receive_until_closed() == b""


# -- requests -------------------------------------------------------------------------------------------------------


def test_unknown_api_or_version_closes_the_connection(target: BrokerProcess) -> None:
    odd = [(key, version) for key in (-1, -32768, 4, 5, 6, 7, 8, 93, 999, 32767) for version in (0, 1)]
    odd += [(key, version) for key in (0, 1, 2, 3, 19, 60, 75) for version in (-1, -32768, 99, 32767)]
    for api_key, version in [*odd, (0, 2), (1, 3), (1, 18), (2, 0)]:
        with RawClient(target.bootstrap) as client:
            client.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + bytes(50))
            assert client.receive_until_closed() == b"", (api_key, version)


def test_wrong_checksum_is_answered_and_the_connection_goes_on(target: BrokerProcess) -> None:
    batch = bytearray(batch_of(b"value"))
    batch[-2] ^= 1
    with RawClient(target.bootstrap) as client:
        (topic,) = client.ask(produce_request(("good", 0, bytes(batch))), 9).responses
        assert topic.partition_responses[0].error_code == 2
        expect_serves(client)


@pytest.mark.parametrize("claimed", [10**6, 10**8, 2**31 - 1, -2, -(2**31)])
def test_array_that_claims_too_much_closes_the_connection(target: BrokerProcess, claimed: int) -> None:
    before = rss_bytes(target)
    array = struct.pack(">i", claimed)
    # Metadata, CreateTopics, ListOffsets, DescribeConfigs, Produce and Fetch, up to the first array of each.
    for start in (
        struct.pack(">hhih", 3, 1, 1, -1),
        struct.pack(">hhih", 19, 4, 1, -1),
        struct.pack(">hhihi", 2, 1, 1, -1, -1),
        struct.pack(">hhih", 32, 1, 1, -1),
        struct.pack(">hhihhhi", 0, 8, 1, -1, -1, 1, 1000),
        struct.pack(">hhihiiiib", 1, 4, 1, -1, -1, 0, 1, 1, 0),
    ):
        with RawClient(target.bootstrap) as client:
            client.send_frame(start + array + bytes(20))
            assert client.receive_until_closed() == b""
    assert rss_bytes(target) - before < 16 * MIB


def test_ten_thousand_unknown_tags_are_skipped(target: BrokerProcess) -> None:
    tags = b"\x90\x4e" + b"".join(b"\x05\x03abc" for _ in range(10_000))
    frame = request_bytes(API_VERSIONS, 0, 1, None)
    with RawClient(target.bootstrap) as client:
        client.send_frame(struct.pack(">hhih", 60, 0, 1, -1) + tags + b"\0\0")
        client.receive(60, 0, 1)
        client.send_frame(frame)
        client.receive(18, 0, 1)


def test_tags_that_claim_too_much_close_the_connection(target: BrokerProcess) -> None:
    for tags in (b"\xff\xff\xff\xff\x0f", b"\x01\x00\xff\xff\xff\xff\x0f", b"\xff" * 40, b"\x02\x00\x01a"):
        with RawClient(target.bootstrap) as client:
            client.send_frame(struct.pack(">hhih", 60, 0, 1, -1) + tags + b"\0")
            assert client.receive_until_closed() == b""


def test_good_request_before_a_bad_one_is_answered(target: BrokerProcess) -> None:
    good = request_bytes(produce_request(("good", 0, batch_of(b"value"))), 9, 1)
    bad = struct.pack(">hhih", 999, 0, 2, -1)
    with RawClient(target.bootstrap) as client:
        client.send_bytes(struct.pack(">i", len(good)) + good + struct.pack(">i", len(bad)) + bad)
        client.receive(0, 9, 1)
        assert client.receive_until_closed() == b""


def test_what_a_client_calls_itself_never_makes_a_line_of_the_log(target: BrokerProcess) -> None:
    evil = "id\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\u2028\0"
    with RawClient(target.bootstrap, client_id=evil) as client:
        for name in (evil, "x" * 30_000):
            (topic,) = client.ask(CreateTopicsRequest(topics=[CreatableTopic(name=name)]), 4).topics
            assert topic.error_code == 17
            client.ask(produce_request((name, 0, b"")), 8)
        client.send_frame(request_bytes(MetadataRequest(topics=[]), 1, 1, evil)[:-4])
        assert client.receive_until_closed() == b""
    log = target.errors()
    assert "forged" not in re.sub(r"\\n.*", "", log)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2028]", log)


def test_large_request_is_answered_when_nothing_else_happens(target: BrokerProcess) -> None:
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(8_000)]
    with RawClient(target.bootstrap) as client:
        asked = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        assert len(request_bytes(asked, 9, 1)) > 64 << 10
        assert len(client.ask(asked, 9).topics) == len(names)


# -- connections ----------------------------------------------------------------------------------------------------


def test_client_that_closed_its_side_still_gets_its_answers(target: BrokerProcess) -> None:
    with RawClient(target.bootstrap) as client:
        first = client.send(produce_request(("good", 0, batch_of(b"value")), acks=-1), 9)
        second = client.send(MetadataRequest(topics=[]), 9)
        client.socket.shutdown(socket.SHUT_WR)
        client.receive(0, 9, first)
        client.receive(3, 9, second)
        assert client.receive_until_closed() == b""


def test_client_that_closed_its_side_and_waits_for_nothing_is_closed(target: BrokerProcess) -> None:
    with RawClient(target.bootstrap) as client:
        client.ask(API_VERSIONS, 0)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive_until_closed() == b""


@pytest.mark.parametrize("ending", ["closed", "reset"])
def test_client_that_dies_with_several_fetches_behind_one_another_leaves_nothing_behind(
    target: BrokerProcess, ending: str
) -> None:
    with RawClient(target.bootstrap) as client:
        request = fetch_request({"good": [fetch_from(0, end_offset(client))]}, max_wait=FOREVER_MS)
        for _ in range(5):
            client.send(request, 11)
        eventually(lambda: metric(target, "ottla_fetches_parked") == 1)
        if ending == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: metric(target, "ottla_fetches_parked") == 0)


@pytest.mark.parametrize("ending", ["closed", "reset"])
def test_clients_that_die_while_parked_leave_nothing_behind(target: BrokerProcess, ending: str) -> None:
    clients = [RawClient(target.bootstrap) for _ in range(100)]
    for client in clients:
        client.send(fetch_request({"good": [fetch_from(0, end_offset(client))]}, max_wait=FOREVER_MS), 11)
    eventually(lambda: metric(target, "ottla_fetches_parked") == 100)
    for client in clients:
        if ending == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    eventually(lambda: metric(target, "ottla_fetches_parked") == 0)
    eventually(lambda: metric(target, "ottla_connections") == 0)


def end_offset(client: RawClient) -> int:
    (topic,) = client.ask(fetch_request({"good": [fetch_from(0, 0)]}), 11).responses
    return int(topic.partitions[0].high_watermark)


def test_two_thousand_connections_opened_and_closed_leave_nothing_behind(target: BrokerProcess) -> None:
    host, _, port = target.bootstrap.partition(":")
    before = rss_bytes(target)
    for _ in range(50):
        # No more at once than the system holds for a broker that is not quick enough to accept them.
        with ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            # Who is answered was accepted last. A connection that finds the queue full is tried again a second later.
            expect_served(target)
    eventually(lambda: metric(target, "ottla_connections") == 0)
    assert rss_bytes(target) - before < 16 * MIB


@pytest.mark.parametrize("setting", ["max.connections", "max.connections.per.ip"])
def test_connection_beyond_the_limit_is_closed_until_there_is_room(start_target: StartTarget, setting: str) -> None:
    broker = start_target(**{setting: "5"})
    eventually(lambda: metric(broker, "ottla_connections") == 0)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(5)]
        for client in clients:
            client.ask(API_VERSIONS, 0)
        with RawClient(broker.bootstrap) as sixth:
            assert sixth.receive_until_closed() == b""
        expect_serves(clients[0])
        clients[4].close()
        eventually(lambda: metric(broker, "ottla_connections") == 4)
        expect_served(broker)
    eventually(lambda: metric(broker, "ottla_connections") == 0)


def test_lack_of_file_descriptors_passes(start_target: StartTarget) -> None:
    """The newest clients are shed, those that are there are served, and afterwards everything is as before."""
    broker = start_target()
    with RawClient(broker.bootstrap) as old:
        old.create_topic("unwritten", 20)
        expect_serves(old)
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        in_use = len(os.listdir(f"/proc/{broker.pid}/fd"))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (in_use + 4, before[1]))
        host, _, port = broker.bootstrap.partition(":")
        with ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            expect_serves(old)
            # What needs a new file is refused with an error that clients retry: no storage, or not in time.
            assert codes_of_unwritten(old) <= {0, 7, 56}
        eventually(lambda: connections_of(broker) == 1)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        expect_served(broker)
        assert codes_of_unwritten(old) == {0}


def connections_of(broker: BrokerProcess) -> float | None:
    """Return the metric; None while the port of the metrics has no descriptor for the connection of this request."""
    try:
        return metric(broker, "ottla_connections")
    except OSError:
        return None


def codes_of_unwritten(client: RawClient) -> set[int]:
    rows = [("unwritten", number, batch_of(b"value")) for number in range(20)]
    answer = client.ask(produce_request(*rows, acks=-1, timeout_ms=1500), 9)
    return {topic.partition_responses[0].error_code for topic in answer.responses}


# -- time -----------------------------------------------------------------------------------------------------------


def test_idle_connection_is_closed(impatient_target: BrokerProcess) -> None:
    with RawClient(impatient_target.bootstrap) as client:
        client.ask(API_VERSIONS, 0)
        assert client.receive_until_closed() == b""


def test_client_that_never_finishes_a_request_is_closed(impatient_target: BrokerProcess) -> None:
    with RawClient(impatient_target.bootstrap) as client:
        client.send_bytes(struct.pack(">i", 1000))
        for _ in range(10_000):
            try:
                client.send_bytes(b"x")
            except Closed:
                break
            time.sleep(0.05)
        else:
            pytest.fail("it may go on for ever")


def test_producer_that_asks_for_no_acknowledgement_is_not_idle(impatient_target: BrokerProcess) -> None:
    """Its requests keep the connection open. A busy machine may pause for so long that it is idle: then try again."""
    request = produce_request(("good", 0, batch_of(b"value")), acks=0)
    for _ in range(20):
        with RawClient(impatient_target.bootstrap) as client:
            began = last = time.monotonic()
            longest_pause_s = 0.0
            try:
                while last - began < 2.5:
                    client.send(request, 9)
                    time.sleep(0.1)
                    now = time.monotonic()
                    longest_pause_s, last = max(longest_pause_s, now - last), now
                expect_serves(client)
                return
            except Closed:
                assert longest_pause_s > 0.5, "the connection was closed although it was in use"
    pytest.fail("no attempt was without a long pause")


def test_client_that_waits_for_an_answer_is_not_idle(impatient_target: BrokerProcess) -> None:
    with RawClient(impatient_target.bootstrap) as client:
        client.create_topic("quiet")
        started = time.monotonic()
        client.ask(fetch_request({"quiet": [fetch_from(0, 0)]}, max_wait=2500), 11)
        assert time.monotonic() - started >= 2.5


# -- readers that do not read ---------------------------------------------------------------------------------------


def fill(broker: BrokerProcess, topic: str, partitions: int, batches: int) -> None:
    """Batches of 60 kB, each of which a reply holds in memory; together they are more than a socket takes."""
    with RawClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions)
        batch = batch_of(bytes(60_000))
        for _ in range(batches):
            rows = [(topic, number, batch) for number in range(partitions)]
            answer = client.ask(produce_request(*rows), 9)
            assert all(row.error_code == 0 for entry in answer.responses for row in entry.partition_responses)


@pytest.mark.parametrize(("partitions", "batches"), [(1, 300), (60, 2)])
def test_clients_that_never_read_their_answers_cost_little_memory(
    target: BrokerProcess, partitions: int, batches: int
) -> None:
    topic = f"large-{partitions}"
    fill(target, topic, partitions, batches)
    before = rss_bytes(target)
    rows = [fetch_from(number, 0, partition_max_bytes=64_000) for number in range(partitions)]
    request = fetch_request({topic: rows})
    frame = request_bytes(request, 11, 1)
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(RawClient(target.bootstrap))
            client.socket.setblocking(False)
            try:
                client.socket.send((struct.pack(">i", len(frame)) + frame) * 400)
            except BlockingIOError:
                pass
            expect_served(target)
        assert rss_bytes(target) - before < 64 * MIB


def test_client_that_never_reads_is_closed_when_it_is_idle(impatient_target: BrokerProcess) -> None:
    fill(impatient_target, "large", 1, 300)
    request = fetch_request({"large": [fetch_from(0, 0, partition_max_bytes=50 * MIB)]})
    with RawClient(impatient_target.bootstrap) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(request, 11)
        eventually(lambda: metric(impatient_target, "ottla_connections") == 0)
