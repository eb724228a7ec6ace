"""kafka-dump-log; the outputs have the form of those that Kafka 4.3's own tool prints for the same files."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ottla.broker.groups import records as groups
from ottla.broker.transactions import records as transactions
from ottla.cli.kafka.dump_log import TOOL
from ottla.cli.kafka.tool import main
from ottla.log.producers import Producers
from ottla.model.batch import read_header
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

SEGMENT = "00000000000000000010.log"


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(path: Path, *flags: str) -> tuple[int, str, str]:
        code = main(TOOL, ["--files", str(path), *flags])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def segment(directory: Path, *records: Record, **rest: Any) -> Path:
    path = directory / SEGMENT
    path.write_bytes(build_batch(list(records), base_offset=10, leader_epoch=4, **rest))
    return path


def test_batches_and_records(dump: Any, tmp_path: Path) -> None:
    path = segment(
        tmp_path,
        Record(timestamp=1000, key=b"k\xff", value=None, headers=[("h1", b"a"), ("h2", None)]),
        Record(timestamp=1001, key=None, value=b"two"),
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
    )
    code, output, _ = dump(path, "--print-data-log")
    title, start, batch, *records = output.splitlines()
    assert (code, title, start) == (0, f"Dumping {path}", "Log starting offset: 10")
    crc = int.from_bytes(path.read_bytes()[17:21])
    assert batch == (
        "baseOffset: 10 lastOffset: 11 count: 2 baseSequence: 5 lastSequence: 6 producerId: 7 producerEpoch: 1 "
        "partitionLeaderEpoch: 4 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: 1001 size: {path.stat().st_size} magic: 2 compresscodec: none crc: {crc} "
        "isvalid: true"
    )
    assert records == [
        "| offset: 10 CreateTime: 1000 keySize: 2 valueSize: -1 sequence: 5 headerKeys: [h1,h2] key: k\ufffd",
        "| offset: 11 CreateTime: 1001 keySize: -1 valueSize: 3 sequence: 6 headerKeys: [] payload: two",
    ]
    assert dump(path, "--print-data-log", "--skip-record-metadata")[1].splitlines()[3:] == [
        "| key: k\ufffd",
        "| payload: two",
    ]
    assert len(dump(path)[1].splitlines()) == 3


def test_markers_of_transactions(dump: Any, tmp_path: Path) -> None:
    marker = Record(timestamp=1, key=pack(">hh", 0, 1), value=pack(">hi", 0, 3))
    path = segment(tmp_path, marker, producer_id=7, producer_epoch=1, control=True, transactional=True)
    assert dump(path, "--deep-iteration")[1].splitlines()[-1] == (
        "| offset: 10 CreateTime: 1 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: COMMIT "
        "coordinatorEpoch: 3"
    )


def test_bytes_that_are_no_batch_are_counted(dump: Any, tmp_path: Path) -> None:
    path = segment(tmp_path, Record(timestamp=1, key=None, value=b"x"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1])
    code, output, errors = dump(path)
    assert (code, output.splitlines()[-1]) == (0, f"Found {len(whole) - 1} invalid bytes at the end of {SEGMENT}")
    assert "incomplete" in errors
    assert len(dump(path, "--max-bytes", str(len(whole) - 1))[1].splitlines()) == 2


def test_numbers_are_decoded(dump: Any, tmp_path: Path) -> None:
    path = segment(tmp_path, Record(timestamp=1, key=pack(">i", -3), value=pack(">q", 1 << 40)))
    flags = ("--key-decoder-class", "kafka.IntegerDecoder", "--value-decoder-class", "LongDecoder")
    assert dump(path, *flags)[1].splitlines()[-1].endswith(f"key: -3 payload: {1 << 40}")
    code, _, errors = dump(path, "--value-decoder-class", "com.example.Mine")
    assert code == 1
    assert "com.example.Mine" in errors


def test_offsets_of_groups_are_decoded(dump: Any, tmp_path: Path) -> None:
    record = groups.CoordinatorRecord(
        groups.OffsetCommitKey("g", "t", 1), groups.OffsetCommitValue(offset=5, leader_epoch=0, commit_timestamp=9)
    )
    pairs = [groups.encode_record(record), groups.encode_record(record._replace(value=None))]
    path = segment(tmp_path, *[Record(timestamp=1, key=key, value=value) for key, value in pairs])
    key = 'key: {"type":"1","data":{"group":"g","topic":"t","partition":1}}'
    value = '{"version":"3","data":{"offset":5,"leaderEpoch":0,"metadata":"","commitTimestamp":9}}'
    lines = dump(path, "--offsets-decoder")[1].splitlines()[-2:]
    assert [line.partition("headerKeys: [] ")[2] for line in lines] == [
        f"{key} payload: {value}",
        f"{key} payload: <DELETE>",
    ]


def test_transactional_ids_are_decoded(dump: Any, tmp_path: Path) -> None:
    value = transactions.TransactionLogValue(
        producer_id=5, producer_epoch=1, timeout_ms=60000, state=transactions.TransactionState.PREPARE_COMMIT,
        partitions=(TopicPartition("d", 0),), last_update_ms=2, start_ms=1, client_transaction_version=2,
    )  # fmt: skip
    key = transactions.TransactionLogKey("pd")
    encoded = transactions.encode_transaction(transactions.TransactionRecord(key, value))
    path = segment(tmp_path, Record(timestamp=1, key=encoded[0], value=encoded[1]))
    assert dump(path, "--transaction-log-decoder")[1].splitlines()[-1].partition("headerKeys: [] ")[2] == (
        'key: {"type":"0","data":{"transactionalId":"pd"}} payload: {"version":"1","data":{"producerId":5,'
        '"producerEpoch":1,"transactionTimeoutMs":60000,"transactionStatus":2,"transactionPartitions":'
        '[{"topic":"d","partitionIds":[0]}],"transactionLastUpdateTimestampMs":2,"transactionStartTimestampMs":1,'
        '"clientTransactionVersion":2}}'
    )


def test_damaged_records_of_groups_are_marked(dump: Any, tmp_path: Path) -> None:
    path = segment(tmp_path, Record(timestamp=1, key=b"\0\1\0\5g", value=b"x"))
    assert dump(path, "--offsets-decoder")[1].splitlines()[-1].endswith("key: <DAMAGED> payload: <DAMAGED>")


def test_indexes(dump: Any, tmp_path: Path) -> None:
    segment(tmp_path, Record(timestamp=1, key=None, value=b"x"))
    path = tmp_path / SEGMENT.replace(".log", ".index")
    with open(tmp_path / SEGMENT, "ab") as file:
        file.write(build_batch([Record(timestamp=1, key=None, value=b"y")], base_offset=11))
    position = path.with_suffix(".log").stat().st_size // 2
    path.write_bytes(pack(">II", 1, position))
    assert dump(path)[:2] == (0, f"Dumping {path}\noffset: 11 position: {position}\n")
    assert dump(path, "--index-sanity-check")[1] == f"Dumping {path}\n{path} passed sanity check.\n"
    path.write_bytes(pack(">II", 7, 0))
    code, output, errors = dump(path, "--verify-index-only")
    assert (code, output) == (0, f"Dumping {path}\n")
    assert errors.startswith(f"Mismatches in :{path}\n")
    path.write_bytes(b"")
    assert dump(path)[1] == f"Dumping {path}\n{path} is empty.\n"


def test_snapshots_of_producers(dump: Any, tmp_path: Path) -> None:
    batch = build_batch(
        [Record(timestamp=n, key=None, value=b"x") for n in (1, 2)],
        base_offset=5, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True,
    )  # fmt: skip
    producers = Producers()
    producers.replay(read_header(batch), batch)
    path = tmp_path / "00000000000000000012.snapshot"
    path.write_bytes(producers.to_snapshot())
    assert dump(path)[1].splitlines()[1:] == [
        "producerId: 7 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[5] lastTimestamp: 2 "
        "firstSequence: 3 lastSequence: 4 lastOffset: 6 offsetDelta: 1 timestamp: 2"
    ]


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "meta.properties"])
def test_other_files_are_ignored(dump: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert dump(path) == (0, f"Dumping {path}\n", f"Ignoring unknown file {path}\n")
