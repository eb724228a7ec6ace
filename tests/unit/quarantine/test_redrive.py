"""Quarantined records: causes and rows of tables, the guard against loops, and what is sent again."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deltalake")
sys.path.insert(0, str(Path(__file__).parents[2]))

from ottla.model.records import Record, iterate_records
from ottla.model.types import TopicPartition
from ottla.quarantine import redrive
from ottla.quarantine.rows import CannotEdit, edited, json_text, replay_count, row_of
from ottla.quarantine.tables import NoTables, find_tables, read_causes, read_row, read_rows
from quarantine_tables import rejected, replays, write_quarantine

ORDERS = TopicPartition("orders", 0)
MARKS = TopicPartition(redrive.TOPIC, 0)


class FakeClient:
    """A cluster in memory."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[Record]] = defaultdict(list)
        self.known = {"orders": 1}

    def topics(self) -> Mapping[str, Any]:
        return {name: SimpleNamespace(partitions=[None] * count) for name, count in self.known.items()}

    def log_ranges(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {place: (0, len(self.logs[place])) for place in places}

    def read_records(self, place: TopicPartition, start: int, end: int) -> list[Record]:
        return self.logs[place][start:end]

    def create_topics(self, names: list[str], partitions: int, *_: object, dry_run: bool) -> list[Any]:
        self.known |= dict.fromkeys(names, partitions)
        return [SimpleNamespace(failure=None)]

    def await_topics(self, names: list[str]) -> None:
        pass

    def append_batch(self, place: TopicPartition, batch: bytes) -> int:
        self.logs[place] += iterate_records(batch)
        return len(self.logs[place])


def plan_of(client: FakeClient, rows: Iterable[Mapping[str, Any]], **more: Any) -> redrive.RedrivePlan:
    return redrive.make_plan(client, map(row_of, rows), **more)  # type: ignore[arg-type]


def carry_out(client: FakeClient, plan: redrive.RedrivePlan) -> dict[TopicPartition, int]:
    return redrive.carry_out(client, plan)  # type: ignore[arg-type]


def test_causes_and_rows_of_a_table_are_read(tmp_path: Path) -> None:
    cause = 'it\'s "odd"; DROP TABLE x --\\'
    path = write_quarantine(tmp_path, "orders_quarantine", [rejected(1), rejected(2), rejected(3, cause)])
    assert find_tables([str(tmp_path), str(tmp_path), "s3://bucket/x"]) == {
        "orders_quarantine": path, "orders_quarantine~2": path,
    }  # fmt: skip
    assert [(each.text, each.count, each.last_ms) for each in read_causes(path)] == [
        ("bad date", 2, 1_700_000_002_000), (cause, 1, 1_700_000_003_000),
    ]  # fmt: skip
    assert [each.offset for each in read_rows(path, "bad date", newest=True, count_max=10)] == [2, 1]
    assert [each.offset for each in read_rows(path, cause, newest=False, count_max=10)] == [3]
    found = read_row(path, "orders", 0, 2)
    assert found is not None and (found.id, found.value) == ("orders/0/2", b'{"id": 2}')
    assert read_row(path, "orders' OR '1'='1", 0, 2) is None


def test_rows_without_a_cause_are_a_cause_of_their_own(tmp_path: Path) -> None:
    path = write_quarantine(tmp_path, "t", [rejected(1, _cause=None)])
    assert [each.text for each in read_causes(path)] == [""]
    assert len(list(read_rows(path, "", newest=True, count_max=10))) == 1


def test_damaged_table_says_so(tmp_path: Path) -> None:
    (tmp_path / "quarantine" / "t" / "_delta_log").mkdir(parents=True)
    with pytest.raises(NoTables, match="t cannot be read"):
        read_causes(find_tables([str(tmp_path)])["t"])


def test_records_are_sent_with_key_value_headers_and_a_count() -> None:
    client = FakeClient()
    headers = [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}]
    plan = plan_of(client, [rejected(4, headers=headers)])
    assert client.logs[ORDERS] == []
    assert carry_out(client, plan) == {ORDERS: 1}
    (record,) = client.logs[ORDERS]
    assert (record.key, record.value) == (b"k4", b'{"id": 4}')
    assert record.headers == [
        ("trace", b"1"), ("trace", None), ("ottla.replay.count", b"1"), ("ottla.replay.of", b"orders/0/4"),
    ]  # fmt: skip


def test_row_is_sent_once_however_often_it_is_asked_for() -> None:
    client, rows = FakeClient(), [rejected(1), rejected(1), rejected(2)]
    plan = plan_of(client, rows)
    assert carry_out(client, plan) == {ORDERS: 2} and plan.left_out == {redrive.SENT: 1}
    again = plan_of(client, rows)
    assert not again.records and again.left_out == {redrive.SENT: 3}
    marks = [json.loads(each.value or b"") for each in client.logs[MARKS]]
    assert [each["cause"] for each in marks] == ["bad date", "bad date"]


def test_record_that_fails_again_is_sent_three_times_at_most() -> None:
    client, offset, headers = FakeClient(), 0, []
    for _ in range(3):
        carry_out(client, plan_of(client, [rejected(offset, headers=headers)]))
        sent = client.logs[ORDERS][-1]
        headers, offset = [{"key": name, "value": value} for name, value in sent.headers], offset + 1
    plan = plan_of(client, [rejected(offset, headers=headers)])
    assert not plan.records and plan.left_out == {redrive.LOOPING: 1}


@pytest.mark.parametrize("count", [3, 99, "many", -1, "9" * 40])
def test_count_that_is_too_high_or_no_number_is_not_sent(count: object) -> None:
    assert plan_of(FakeClient(), [rejected(1, headers=replays(count))]).left_out == {redrive.LOOPING: 1}


def test_decoded_row_is_sent_as_its_topic_has_it() -> None:
    client = FakeClient()
    client.logs[ORDERS] = [Record(offset=0, key=b"k", value=b"raw", headers=[("h", b"1")])]
    rows = [rejected(at, value=None, key=None, row='{"id": 1}') for at in (0, 5)]
    plan = plan_of(client, rows)
    assert [record.value for _, record in plan.records] == [b"raw"] and plan.left_out == {redrive.LOST: 1}


def test_rows_without_a_place_and_of_deleted_topics_are_left_out() -> None:
    rows = [rejected(1, _topic=None), rejected(2, _topic="gone"), rejected(3, _partition=7)]
    plan = plan_of(FakeClient(), rows)
    assert plan.left_out == {redrive.COMPUTED: 1, redrive.LOST: 2} and not plan.records


def test_plan_takes_a_limited_number_of_records_in_batches_of_limited_size() -> None:
    client = FakeClient()
    plan = plan_of(client, [rejected(at, value=b"x" * 200_000) for at in range(9)], count_max=7)
    assert plan.has_more and carry_out(client, plan) == {ORDERS: 7}
    assert len(client.logs[MARKS]) == 7


def test_edited_value_takes_the_place_of_the_records_own() -> None:
    client = FakeClient()
    carry_out(client, plan_of(client, [rejected(1)], value=edited('{"id":\n 7}')))
    assert client.logs[ORDERS][0].value == b'{"id":7}'
    assert json_text(b'{"a":1}') == '{\n  "a": 1\n}' and json_text(b"\xff") is None and json_text(None) is None


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "1" * (2 << 20)])
def test_edited_value_must_be_json_of_limited_size(text: str) -> None:
    with pytest.raises(CannotEdit):
        edited(text)


def test_count_of_a_record_without_the_header_is_zero() -> None:
    assert replay_count([("other", b"5")]) == 0 and replay_count([("ottla.replay.count", b"2")]) == 2
