"""Batches that are expensive to open (tiny records, decompression bombs, slow codecs) do not delay other clients."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest
from tests.hostile.harness import Attacked, scaled

from ottla.model.batch import CODECS
from ottla.model.records import Record, build_batch
from ottla.testing.raw import RawClient, produce_request
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = pytest.mark.broker

PRODUCE, VERSION = 0, 9
LZ4, ZSTD = CODECS.index("lz4"), CODECS.index("zstd")
REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE, INVALID_RECORD = 7, 10, 87


def tiny_records(count: int, key: bytes | None = b"k", codec: int = ZSTD) -> bytes:
    return build_batch([Record(timestamp=1_700_000_000_000, key=key)] * count, codec=codec)


def pipeline(client: RawClient, topic: str, batch: bytes, times: int) -> list[int]:
    """Send the same batch ``times`` times without waiting in between; return the error codes."""
    ids = [client.send(produce_request((topic, 0, batch)), VERSION) for _ in range(times)]
    answers = [client.receive(PRODUCE, VERSION, each) for each in ids]
    return [answer.responses[0].partition_responses[0].error_code for answer in answers]


def test_ten_pipelined_batches_of_tiny_records_to_a_compacted_topic() -> None:
    valid = tiny_records(scaled(50_000, 1_000_000))
    invalid = tiny_records(scaled(50_000, 1_000_000), key=None)
    with Attacked() as target, RawClient(target.bootstrap, timeout_s=90) as client:
        client.create_topic("compacted", config={"cleanup.policy": "compact"})
        target.measure()
        assert pipeline(client, "compacted", valid, 10) == [0] * 10
        assert pipeline(client, "compacted", invalid, 2) == [INVALID_RECORD] * 2
        target.report().check()


def test_batch_with_more_records_than_the_limit_is_refused_by_its_header() -> None:
    batch = tiny_records(1_000_001)
    with Attacked() as target, RawClient(target.bootstrap) as client:
        client.create_topic("compacted", config={"cleanup.policy": "compact"})
        target.measure()
        assert pipeline(client, "compacted", batch, 10) == [MESSAGE_TOO_LARGE] * 10
        target.report().check()


def test_batch_that_inflates_into_the_slowest_codec() -> None:
    words = [random.Random(7).randbytes(8) for _ in range(200)]
    source = random.Random(8)
    values = [b"".join(source.choices(words, k=1000)) for _ in range(scaled(40, 1400))]
    batch = build_batch([Record(key=b"k", value=value) for value in values], codec=LZ4)
    config = {"compression.type": "zstd", "compression.zstd.level": "22", "max.message.bytes": "16000000"}
    with Attacked() as target, RawClient(target.bootstrap, timeout_s=90) as client:
        client.create_topic("recompressed", config=config)
        target.measure()
        assert pipeline(client, "recompressed", batch, 3) == [0] * 3
        target.report().check()


def test_decompression_bombs_in_small_batches() -> None:
    bomb = build_batch([Record(key=b"k", value=bytes(100 << 20))], codec=ZSTD)
    with Attacked() as target, RawClient(target.bootstrap) as client:
        client.create_topic("compacted", config={"cleanup.policy": "compact"})
        target.measure()
        assert pipeline(client, "compacted", bomb, scaled(10, 200)) == [MESSAGE_TOO_LARGE] * scaled(10, 200)
        target.report().check()


def test_many_partitions_in_one_request() -> None:
    """Each batch alone is cheap enough for the event loop; all of them together are not."""
    partitions = scaled(50, 1000)
    batch = tiny_records(700)
    with Attacked() as target, RawClient(target.bootstrap, timeout_s=90) as client:
        client.create_topic("compacted", partitions=partitions, config={"cleanup.policy": "compact"})
        target.measure()
        answer = client.ask(produce_request(*[("compacted", number, batch) for number in range(partitions)]), VERSION)
        codes = [row.error_code for topic in answer.responses for row in topic.partition_responses]
        assert codes == [0] * partitions
        target.report().check()


def test_lookups_by_time_in_large_batches() -> None:
    batch = tiny_records(scaled(50_000, 1_200_000))
    with Attacked() as target, RawClient(target.bootstrap, timeout_s=90) as client:
        client.create_topic("plain", partitions=4)
        for number in range(4):
            client.ask(produce_request(("plain", number, batch)), VERSION)
        target.measure()
        wanted = [ListOffsetsPartition(partition_index=number, timestamp=stamp)
                  for number, stamp in enumerate((1_700_000_000_001, 1, -3, -3))]  # fmt: skip
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="plain", partitions=wanted)])
        with RawClient(target.bootstrap, timeout_s=90) as second:
            ids = [(each, each.send(request, 7)) for each in (client, second)]
            for each, number in ids:
                (topic,) = each.receive(2, 7, number).topics
                assert [row.error_code for row in topic.partitions] == [0] * 4
        target.report().check()


def test_many_connections_with_large_batches() -> None:
    """Batches beyond those that may wait are refused with an error that producers retry."""
    batch = tiny_records(scaled(5_000, 90_000), codec=0)
    connections = scaled(10, 30)
    with Attacked() as target, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.bootstrap, timeout_s=90)) for _ in range(connections)]
        clients[0].create_topic("compacted", config={"cleanup.policy": "compact"})
        target.measure()
        ids = [client.send(produce_request(("compacted", 0, batch)), VERSION) for client in clients]
        answers = [client.receive(PRODUCE, VERSION, each) for client, each in zip(clients, ids, strict=True)]
        codes = Counter(answer.responses[0].partition_responses[0].error_code for answer in answers)
        assert codes[0] >= min(connections, 10)
        assert set(codes) <= {0, REQUEST_TIMED_OUT}
        target.report().check()
