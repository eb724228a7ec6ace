"""`ottla log dump`, on files written by the log itself and on damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from crc32c import crc32c

from ottla.log.producers import Producers
from ottla.model.batch import CRC_POSITION
from ottla.model.records import Record, build_batch

SEGMENT = "00000000000000000010"


def batch(base_offset: int, *values: bytes, **rest: Any) -> bytes:
    records = [Record(timestamp=1000 + n, key=b"k", value=value) for n, value in enumerate(values)]
    return build_batch(records, base_offset=base_offset, leader_epoch=4, **rest)


FIRST = batch(10, b"one", b"two", producer_id=7, producer_epoch=1, base_sequence=5)
SECOND = batch(12, b"three", codec=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0"
    path.mkdir()
    return path


@pytest.fixture
def dump(ottla: Any) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Run the dump; returns the exit code and what it printed as JSON."""

    def run(path: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
        result = ottla("log", "dump", str(path), "-o", "json", *words)
        return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_a_batch_shows_the_fields_of_its_header(folder: Path, dump: Any) -> None:
    path = folder / f"{SEGMENT}.log"
    path.write_bytes(FIRST + SECOND)
    code, (first, second) = dump(path)
    expected = {
        "file": str(path), "kind": "batch", "baseOffset": 10, "lastOffset": 11, "count": 2, "baseSequence": 5,
        "lastSequence": 6, "producerId": 7, "producerEpoch": 1, "partitionLeaderEpoch": 4, "isTransactional": False,
        "isControl": False, "position": 0, "CreateTime": 1001, "size": len(FIRST), "magic": 2,
        "compresscodec": "none", "crc": int.from_bytes(FIRST[CRC_POSITION : CRC_POSITION + 4]), "isvalid": True,
    }  # fmt: skip
    assert (code, first) == (0, expected)
    assert (second["position"], second["compresscodec"], second["lastSequence"]) == (len(FIRST), "gzip", -1)


def test_text_output_has_kafkas_words(folder: Path, ottla: Any) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST)
    output = ottla("log", "dump", str(folder)).stdout
    assert output.startswith(f"Dumping {folder}/{SEGMENT}.log\nbaseOffset: 10 lastOffset: 11 count: 2 ")
    assert output.endswith(" isvalid: true\n")


def test_deep_shows_records_without_their_data(folder: Path, dump: Any) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST)
    _, (_, record, _) = dump(folder, "--deep")
    assert record | {"file": ""} == {
        "file": "", "kind": "record", "offset": 10, "CreateTime": 1000, "keySize": 1, "valueSize": 3, "sequence": 5,
        "headerKeys": [],
    }  # fmt: skip


@pytest.mark.parametrize("flag", ["--records", "--print-data"])
def test_records_come_with_key_and_payload(folder: Path, dump: Any, flag: str) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST + SECOND)
    _, entries = dump(folder, flag)
    payloads = [entry["payload"] for entry in entries if entry["kind"] == "record"]
    assert payloads == ["one", "two", "three"]


def test_data_in_text_output_stays_on_its_line(folder: Path, ottla: Any) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(batch(10, b"a\nb\x1b\xff"))
    last = ottla("log", "dump", str(folder), "--records").stdout.splitlines()[-1]
    assert last.startswith("| offset: 10 ")
    assert last.endswith(r"payload: a\x0ab\x1b\xff")


def test_a_control_record_tells_commit_from_abort(folder: Path, dump: Any) -> None:
    marker = Record(timestamp=1, key=pack(">hh", 0, 1), value=pack(">hi", 0, 9))
    (folder / f"{SEGMENT}.log").write_bytes(build_batch([marker], base_offset=10, control=True, transactional=True))
    _, (header, record) = dump(folder, "--records")
    assert (header["isControl"], record["endTxnMarker"]) == (True, "COMMIT")


def test_a_flipped_bit_is_reported_and_the_next_batch_is_still_read(folder: Path, dump: Any) -> None:
    damaged = bytearray(FIRST)
    damaged[-1] ^= 1
    (folder / f"{SEGMENT}.log").write_bytes(bytes(damaged) + SECOND)
    code, (first, problem, second) = dump(folder)
    assert code == 1
    assert (first["isvalid"], problem["kind"], problem["position"]) == (False, "problem", 0)
    assert "checksum" in problem["reason"] and second["isvalid"]


@pytest.mark.parametrize("left", [1, 30, 61, 70])
def test_a_truncated_batch_is_reported_with_its_position(folder: Path, dump: Any, left: int) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST + SECOND[:left])
    code, (_, problem) = dump(folder)
    assert (code, problem["position"]) == (1, len(FIRST))
    assert "incomplete" in problem["reason"]


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff" * 100, pack(">qi", 12, 3) + b"\2" * 80])
def test_what_is_no_batch_is_reported_with_its_position(folder: Path, dump: Any, tail: bytes) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST + tail)
    code, (_, problem) = dump(folder)
    assert (code, problem["kind"], problem["position"]) == (1, "problem", len(FIRST))


def test_offsets_that_go_back_are_reported(folder: Path, dump: Any) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(SECOND + FIRST)
    code, entries = dump(folder)
    assert (code, entries[-1]["kind"]) == (1, "problem")


def test_records_that_cannot_be_opened_are_reported(folder: Path, dump: Any) -> None:
    broken = bytearray(SECOND)
    broken[70:] = b"x" * (len(broken) - 70)
    broken[CRC_POSITION : CRC_POSITION + 4] = int(crc32c(bytes(broken[21:]))).to_bytes(4, "big")
    (folder / f"{SEGMENT}.log").write_bytes(bytes(broken))
    assert dump(folder)[0] == 0
    assert dump(folder, "--deep")[0] == 1


def test_an_offset_index_is_compared_with_its_segment(folder: Path, dump: Any) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST + SECOND)
    index = folder / f"{SEGMENT}.index"
    index.write_bytes(pack(">II", 2, len(FIRST)) + bytes(800))
    assert dump(index) == (0, [{"file": str(index), "kind": "index", "offset": 12, "position": len(FIRST)}])
    index.write_bytes(pack(">II", 1, len(FIRST)))
    assert dump(index)[0] == 1


def test_a_time_index_shows_times_and_offsets(folder: Path, dump: Any) -> None:
    path = folder / f"{SEGMENT}.timeindex"
    path.write_bytes(pack(">qI", 1001, 1) + pack(">qI", 2000, 256) + bytes(1200))
    _, entries = dump(path)
    assert [(entry["timestamp"], entry["offset"]) for entry in entries] == [(1001, 11), (2000, 266)]


def test_a_transaction_index_shows_aborted_transactions(folder: Path, dump: Any) -> None:
    path = folder / f"{SEGMENT}.txnindex"
    path.write_bytes(pack(">hqqqq", 0, 7, 10, 12, 13) + b"x")
    code, (entry, problem) = dump(path)
    assert (entry["producerId"], entry["firstOffset"], entry["lastStableOffset"]) == (7, 10, 13)
    assert (code, problem["position"]) == (1, 34)


def test_a_snapshot_shows_producers(folder: Path, dump: Any) -> None:
    producers = Producers()
    for number in range(3):
        producers.note(7, 1, number, 0, base_offset=10 + number, timestamp=1000)
    path = folder / f"{SEGMENT}.snapshot"
    path.write_bytes(producers.to_snapshot())
    code, (entry,) = dump(path)
    assert (code, entry["producerId"], entry["lastSequence"], entry["lastOffset"]) == (0, 7, 2, 12)


def test_a_damaged_snapshot_is_reported(folder: Path, dump: Any) -> None:
    path = folder / f"{SEGMENT}.snapshot"
    path.write_bytes(Producers().to_snapshot()[:-1] + b"x")
    assert dump(path)[0] == 1


def test_checkpoints_show_their_lines(folder: Path, dump: Any) -> None:
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n4 10\n")
    (folder / "replication-offset-checkpoint").write_text("0\n1\n7 0 12\n")
    code, entries = dump(folder)
    fields = [{key: value for key, value in entry.items() if key not in ("file", "kind")} for entry in entries]
    assert code == 0
    assert fields == [
        {"epoch": 0, "startOffset": 0},
        {"epoch": 4, "startOffset": 10},
        {"topic": "7", "partition": 0, "offset": 12},
    ]


@pytest.mark.parametrize("text", ["", "0\n", "1\n0\n", "0\n2\n0 0\n", "0\n1\nzero 0\n", "0\nmany\n"])
def test_a_damaged_checkpoint_is_reported(folder: Path, dump: Any, text: str) -> None:
    (folder / "leader-epoch-checkpoint").write_text(text)
    assert dump(folder)[0] == 1


def test_a_data_directory_is_read_through_and_other_files_are_passed_over(
    tmp_path: Path, folder: Path, dump: Any
) -> None:
    (folder / f"{SEGMENT}.log").write_bytes(FIRST)
    (folder / f"{SEGMENT}.log.deleted").write_bytes(FIRST)
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=abc\n")
    (tmp_path / "notes.txt").write_text("hello")
    code, entries = dump(tmp_path)
    assert (code, [entry["kind"] for entry in entries]) == (0, ["properties", "batch", "batch"])


def test_a_path_with_nothing_to_read_says_what_to_name(tmp_path: Path, ottla: Any) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        result = ottla("log", "dump", str(path))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
