"""The records of ``__transaction_state`` as bytes. The literals are what Apache Kafka 4.3 writes for the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import kafka_server
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.transactions.records import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionRecord,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.wire import WireError

KEY = TransactionLogKey("x")
KEY_BYTES = bytes.fromhex("0000 0001 78")
EMPTY = TransactionLogValue(
    producer_id=9, producer_epoch=2, timeout_ms=60_000, state=TransactionState.EMPTY, last_update_ms=1000
)
ONGOING = replace(
    EMPTY,
    state=TransactionState.ONGOING,
    partitions=(TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)),
    start_ms=900,
)
COMMITTED = replace(EMPTY, state=TransactionState.COMPLETE_COMMIT, start_ms=900)
OVERFLOWED = replace(
    ONGOING,
    state=TransactionState.PREPARE_COMMIT,
    producer_epoch=32767,
    previous_producer_id=8,
    next_producer_id=10,
    client_transaction_version=2,
)
START = "0000000000000009 0002 0000ea60"
TIMES = "00000000000003e8 0000000000000384"
WRITTEN = {
    "empty": (EMPTY, f"0000 {START} 00 ffffffff 00000000000003e8 ffffffffffffffff"),
    "ongoing": (
        ONGOING,
        f"0000 {START} 01 00000002 0001 74 00000002 00000000 00000002 0001 75 00000001 00000001 {TIMES}",
    ),
    "complete": (COMMITTED, f"0000 {START} 04 00000000 {TIMES}"),
    "version 2": (
        OVERFLOWED,
        "0001 0000000000000009 7fff 0000ea60 02 03 02 74 03 00000000 00000002 00 02 75 02 00000001 00 "
        f"{TIMES} 03 00 08 0000000000000008 01 08 000000000000000a 02 02 0002",
    ),
}
#: what Kafka's dump tool says of them
DUMPED = {
    "empty": {"transactionStatus": 0, "transactionPartitions": None, "transactionStartTimestampMs": -1},
    "ongoing": {
        "transactionStatus": 1,
        "transactionPartitions": [{"topic": "t", "partitionIds": [0, 2]}, {"topic": "u", "partitionIds": [1]}],
    },
    "complete": {"transactionStatus": 4, "transactionPartitions": []},
    "version 2": {
        "transactionStatus": 2,
        "producerEpoch": 32767,
        "transactionPartitions": [{"topic": "t", "partitionIds": [0, 2]}, {"topic": "u", "partitionIds": [1]}],
        "previousProducerId": 8,
        "nextProducerId": 10,
        "clientTransactionVersion": 2,
    },
}

shorts, ints, longs = st.integers(-1, 32767), st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
values = st.builds(
    TransactionLogValue,
    producer_id=longs,
    producer_epoch=shorts,
    timeout_ms=ints,
    state=st.sampled_from(sorted(set(TransactionState) - {TransactionState.EMPTY})),
    partitions=st.sets(st.builds(TopicPartition, st.text(max_size=5), ints), max_size=6).map(
        lambda s: tuple(sorted(s))
    ),
    last_update_ms=longs,
    start_ms=longs,
    previous_producer_id=longs,
    next_producer_id=longs,
    client_transaction_version=st.integers(0, 2),
    next_producer_epoch=shorts,
)


@pytest.mark.parametrize(("value", "expected"), WRITTEN.values(), ids=list(WRITTEN))
def test_value_is_written_as_kafka_does(value: TransactionLogValue, expected: str) -> None:
    assert encode_transaction(TransactionRecord(KEY, value)) == (KEY_BYTES, bytes.fromhex(expected))


@pytest.mark.parametrize(("value", "written"), WRITTEN.values(), ids=list(WRITTEN))
def test_value_of_kafka_is_read(value: TransactionLogValue, written: str) -> None:
    assert decode_transaction(KEY_BYTES, bytes.fromhex(written)) == TransactionRecord(KEY, value)


@given(values, st.text(max_size=20))
def test_what_is_written_is_read(value: TransactionLogValue, transactional_id: str) -> None:
    record = TransactionRecord(TransactionLogKey(transactional_id), value)
    assert decode_transaction(*encode_transaction(record)) == record


def test_tombstone_has_no_value() -> None:
    record = TransactionRecord(KEY, None)
    assert encode_transaction(record) == (KEY_BYTES, None)
    assert decode_transaction(KEY_BYTES, None) == record


def test_epoch_of_the_next_producer_is_read_and_kept() -> None:
    """Tagged field 3, of later versions of Kafka."""
    value = replace(OVERFLOWED, next_producer_epoch=1)
    assert decode_transaction(*encode_transaction(TransactionRecord(KEY, value))) == TransactionRecord(KEY, value)


def test_unknown_tag_is_skipped() -> None:
    written = bytes.fromhex(WRITTEN["version 2"][1].replace(" 03 00 08 ", " 04 00 08 ") + "09 01 ff")
    assert decode_transaction(KEY_BYTES, written) == TransactionRecord(KEY, OVERFLOWED)


def test_key_of_an_unknown_version_is_passed_over() -> None:
    assert decode_transaction(bytes.fromhex("0001 0001 78"), None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x00", None),
        (bytes.fromhex("0000 0002 78"), None),
        (bytes.fromhex("0000 ffff"), None),
        (bytes.fromhex("0000 0001 ff"), None),
        (KEY_BYTES, b""),
        (KEY_BYTES, bytes.fromhex("0002")),
        (KEY_BYTES, bytes.fromhex(WRITTEN["empty"][1])[:-1]),
        (KEY_BYTES, bytes.fromhex(WRITTEN["empty"][1].replace(" 00 ffffffff", " 08 ffffffff"))),
    ],
)
def test_damage_is_noticed(key: bytes, value: bytes | None) -> None:
    with pytest.raises(WireError):
        decode_transaction(key, value)


@pytest.mark.parametrize(
    "record",
    [
        TransactionRecord(TransactionLogKey("x" * 32768), None),
        TransactionRecord(KEY, replace(EMPTY, producer_epoch=32768)),
    ],
    ids=["id", "epoch"],
)
def test_what_does_not_fit_is_refused(record: TransactionRecord) -> None:
    with pytest.raises(ValueError, match=r"fit|cannot encode"):
        encode_transaction(record)


@pytest.mark.foreign
def test_kafka_reads_the_same_in_our_records(tmp_path: Path) -> None:
    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        pytest.skip(problem)
    pairs = [encode_transaction(TransactionRecord(KEY, value)) for value, _ in WRITTEN.values()]
    segment = tmp_path / "00000000000000000000.log"
    rows = [Record(timestamp=1000, key=key, value=value) for key, value in [*pairs, (KEY_BYTES, None)]]
    segment.write_bytes(build_batch(rows))
    kafka = kafka_server.ApacheKafka()
    try:
        arguments = ["--files", str(segment), "--transaction-log-decoder"]
        done = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", arguments)
    finally:
        kafka.stop()
    assert done.returncode == 0, done.stderr
    found = re.findall(r" key: (\S.*?) payload: (.*)$", done.stdout, re.MULTILINE)
    assert {json.loads(key)["data"]["transactionalId"] for key, _ in found} == {"x"}
    assert [value == "<DELETE>" for _, value in found] == [False] * len(pairs) + [True]
    common = {"producerId": 9, "producerEpoch": 2, "transactionTimeoutMs": 60_000, "transactionStartTimestampMs": 900}
    for (name, expected), (_, text) in zip(DUMPED.items(), found, strict=False):
        value = json.loads(text)
        assert value["version"] == ("1" if name == "version 2" else "0")
        wanted = {**common, "transactionLastUpdateTimestampMs": 1000, **expected}
        assert {field: value["data"][field] for field in wanted} == wanted
