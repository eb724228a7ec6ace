"""Every served API in every version, asked for anything: a live broker answers or closes, and stays well.

A request is made at random from the message's own fields, so that it is valid as bytes and absurd as a wish. Then its
bytes are damaged. The client closes its side after each, so that nothing has to wait. Seeds are fixed; a failure names
the bytes that caused it.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
import struct
from collections.abc import Iterator

import pytest

from ottla.model.batch import checksum
from ottla.testing import BrokerProcess
from ottla.testing.raw import (
    Closed,
    RawClient,
    batch_of,
    fetch_from,
    fetch_request,
    produce_request,
    random_message,
    read_answer,
    request_bytes,
)
from ottla.wire import APIS, Message, request_class
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.broker

MIB = 1 << 20
#: `OTTLA_FUZZ_ROUNDS=100 pytest tests/broker/test_fuzz.py` looks longer, with other seeds in every round
ROUNDS = int(os.environ.get("OTTLA_FUZZ_ROUNDS", "1"))
VALID, DAMAGED = 8, 24
#: names that exist and do not, that are settings and values, that are too long or no ASCII
STRINGS = (
    "", "fuzz", "fuzz", "other", "retention.ms", "cleanup.policy", "compact", "1", "-1", "a b", "..", "ž\n\0",
    "x" * 32_767,
)  # fmt: skip
#: damage that hits lengths hardest
BYTES = (0, 1, 0x7F, 0x80, 0xFF)

numbers = itertools.count()
#: the id of the topic that exists, as long as no request has deleted it
topic_ids: list[bytes] = []


@pytest.fixture(scope="module")
def victim() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as broker:
        with RawClient(broker.bootstrap) as client:
            topic_ids.append(client.create_topic("fuzz", 3))
            assert client.ask(FindCoordinatorRequest(key="fuzz"), 0).error_code == 0
            assert client.ask(ListGroupsRequest(), 0).error_code == 0
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.errors()


def served(broker: BrokerProcess) -> list[tuple[int, int]]:
    """Every API and version that the broker says it serves; Produce below v3 is advertised for old clients only."""
    with RawClient(broker.bootstrap) as client:
        rows = client.ask(ApiVersionsRequest(), 0).api_keys
    return [
        (row.api_key, version)
        for row in rows
        for version in range(max(row.min_version, APIS[row.api_key].versions[0]), row.max_version + 1)
    ]


def test_valid_request_is_answered_however_absurd_it_is(victim: BrokerProcess) -> None:
    for api_key, version in served(victim):
        source = random.Random(f"valid {api_key} {version}")
        for _ in range(VALID * ROUNDS):
            request = random_request(api_key, version, source)
            frame = request_bytes(request, version, 77)
            received = say(victim, frame)
            if isinstance(request, ProduceRequest) and request.acks == 0:
                assert received == b""
                continue
            assert received, f"closed: {APIS[api_key].name} v{version} {frame.hex()}"
            (size,) = struct.unpack_from(">i", received)
            assert size == len(received) - 4
            read_answer(received[4:], api_key, version, 77)
    expect_well(victim)


def test_damaged_request_is_answered_or_closed(victim: BrokerProcess) -> None:
    before = rss_bytes(victim)
    for api_key, version in served(victim):
        source = random.Random(f"damaged {api_key} {version}")
        for _ in range(DAMAGED * ROUNDS):
            frame = damaged(request_bytes(random_request(api_key, version, source), version, 77), source)
            received = say(victim, frame)
            if received:
                (size,) = struct.unpack_from(">i", received)
                assert size == len(received) - 4, frame.hex()
    expect_well(victim)
    assert rss_bytes(victim) - before < 64 * MIB


def test_any_bytes_behind_any_header_are_answered_or_closed(victim: BrokerProcess) -> None:
    source = random.Random("noise")
    for api_key, version in served(victim) * 3:
        header = struct.pack(">hhih", api_key, version, 77, -1)
        say(victim, header + source.randbytes(source.choice((0, 1, 2, 7, 40, 400))))
    expect_well(victim)


def test_frames_that_lie_about_their_size_are_answered_or_closed(victim: BrokerProcess) -> None:
    for api_key, version in served(victim):
        source = random.Random(f"size {api_key} {version}")
        frame = request_bytes(random_request(api_key, version, source), version, 77)
        for size in (len(frame) - 1, len(frame) // 2, len(frame) + 1, 8, 9):
            say(victim, frame, size)
    expect_well(victim)


def random_request(api_key: int, version: int, source: random.Random) -> Message:
    message = random_message(request_class(api_key), version, source, STRINGS, topic_ids)
    assert isinstance(message, Message)
    if isinstance(message, ProduceRequest):
        for topic in message.topic_data:
            for partition in topic.partition_data:
                partition.records = source.choice((partition.records, random_batch(source)))
    if source.random() < 0.5:
        let_in(message)
    return message


def let_in(message: Message) -> None:
    """Chance alone makes no member of a group. A group of its own, so that nobody is waited for."""
    if isinstance(message, JoinGroupRequest):
        message.group_id, message.member_id, message.session_timeout = f"group-{next(numbers)}", "", 6000
    elif isinstance(message, ConsumerGroupHeartbeatRequest):
        message.member_id, message.member_epoch, message.rebalance_timeout = f"member-{next(numbers)}", 0, 6000
        message.server_assignor, message.topic_partitions = None, ()
        message.subscribed_topic_names = message.subscribed_topic_names or ["fuzz"]


def random_batch(source: random.Random) -> bytes:
    """A batch whose checksum is right, and little else may be: what it leaves in the log, others must live with."""
    timestamp = source.choice((0, 1, -1, -5, 10**12, 2**62))
    batch = bytearray(
        batch_of(*(b"v" * source.randrange(300) for _ in range(source.randint(1, 3))), timestamp=timestamp)
    )
    for _ in range(source.choice((0, 0, 1, 3))):
        batch[source.randrange(61, len(batch))] = source.choice((*BYTES, source.randrange(256)))
    if source.random() < 0.3:
        batch[22] = source.randrange(256)  # codec and timestamp type among others
    batch[17:21] = checksum(batch).to_bytes(4, "big")
    return bytes(batch)


def damaged(frame: bytes, source: random.Random) -> bytes:
    """The frame with some bytes changed behind its API key and version, cut, or with something put in."""
    out = bytearray(frame)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(8, len(out))
        match source.randrange(5):
            case 0 | 1:
                out[place] = source.choice((*BYTES, source.randrange(256)))
            case 2:
                out[place : place + 4] = source.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\x0f\x42\x40"))
            case 3:
                out[place:place] = source.randbytes(source.randint(1, 8))
            case 4:
                del out[max(place, 9) :]
                out += b"\0"
    return bytes(out)


def say(broker: BrokerProcess, frame: bytes, size: int | None = None) -> bytes:
    """Send one frame and nothing more; what the broker says before it closes."""
    with RawClient(broker.bootstrap) as client:
        try:
            client.send_bytes(struct.pack(">i", len(frame) if size is None else size) + frame)
            client.socket.shutdown(socket.SHUT_WR)
        except (Closed, OSError):
            return b""
        try:
            return client.receive_until_closed()
        except TimeoutError:
            pytest.fail(f"neither answered nor closed: {frame.hex()}")


def expect_well(broker: BrokerProcess) -> None:
    assert broker.running
    log = broker.errors()
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:4000]
    topic = f"well-{next(numbers)}"
    with RawClient(broker.bootstrap) as client:
        client.create_topic(topic)
        (made,) = client.ask(produce_request((topic, 0, batch_of(b"value"))), 9).responses
        assert made.partition_responses[0].error_code == 0
        (found,) = client.ask(fetch_request({topic: [fetch_from(0, 0)]}), 11).responses
        assert found.partitions[0].records.endswith(b"value\0")


def rss_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status.read())[0]) * 1024
