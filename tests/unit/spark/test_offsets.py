"""Offsets of many partitions: their JSON, admission, splitting, and what is called lost."""

from __future__ import annotations

import random

import pytest

from ottla.model.types import TopicPartition
from ottla.spark.offsets import (
    EARLIEST,
    Bound,
    Cause,
    DataLoss,
    DataLost,
    Observed,
    OffsetRange,
    PartitionOffsets,
    admit,
    plan_ranges,
    split_ranges,
    vanished,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def observed(
    log_starts: dict[TopicPartition, int], former: dict[str, bytes] | None = None, ids: dict[str, bytes] | None = None
) -> Observed:
    counts: dict[str, int] = {}
    for tp in log_starts:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return Observed(counts, ids or dict.fromkeys(counts, b"now"), log_starts, former or {})


def test_json_is_compact_with_partitions_in_order_of_number() -> None:
    offsets = PartitionOffsets({TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3})
    assert str(offsets) == '{"a":{"0":3},"b":{"9":2,"10":1}}'


def test_json_of_sparks_connector_is_read_whatever_its_order() -> None:
    text = '{"t":{"11":100,"0":7},"a":{"1":-2}}'
    offsets = PartitionOffsets.from_json(text)
    assert offsets == {TopicPartition("t", 11): 100, T0: 7, TopicPartition("a", 1): -2}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "expected an object"),
        ('{"t":5}', "topic 't' needs an object"),
        ('{"t":{"x":5}}', "not a number"),
        ('{"t":{"0":"5"}}', "whole number"),
        ('{"t":{"0":true}}', "whole number"),
        ("{", "Expecting"),
    ],
)
def test_json_that_is_not_offsets_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PartitionOffsets.from_json(text)


def test_bound_for_each_partition_must_name_them_all() -> None:
    bound = Bound(each=PartitionOffsets({T0: 5, U0: 1}))
    with pytest.raises(ValueError, match="it lacks t-1 and u-0 is not among the partitions to read; -2 stands for"):
        bound.of([T0, T1], "startingOffsets")


def test_bound_for_all_is_given_to_every_partition() -> None:
    assert Bound(everywhere=EARLIEST).of([T0, U0], "startingOffsets") == {T0: EARLIEST, U0: EARLIEST}


# -- admission --------------------------------------------------------------------------------------------------------


def test_admission_takes_all_when_it_fits() -> None:
    latest = PartitionOffsets({T0: 10, T1: 5})
    assert admit({T0: 0, T1: 0}, latest, 15) == latest


def test_admission_shares_in_proportion_and_exactly() -> None:
    assert admit({T0: 0, T1: 100}, PartitionOffsets({T0: 900, T1: 400}), 100) == {T0: 75, T1: 125}


def test_admission_hands_out_what_rounding_left() -> None:
    latest = PartitionOffsets({TopicPartition("t", n): 1000 for n in range(3)})
    admitted = admit(dict.fromkeys(latest, 0), latest, 100)
    assert sorted(admitted.values()) == [33, 33, 34]


def test_admission_starves_no_small_partition() -> None:
    admitted = admit({T0: 0, T1: 0}, PartitionOffsets({T0: 1_000_000, T1: 1}), 10)
    assert admitted[T1] == 1


def test_admission_leaves_a_partition_that_went_back_where_it_is() -> None:
    assert admit({T0: 50, T1: 0}, PartitionOffsets({T0: 10, T1: 100}), 10) == {T0: 10, T1: 10}


def test_admission_always_ends_at_the_latest_offsets() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for _ in range(200):
        latest = PartitionOffsets(
            {TopicPartition("t", n): chance.randrange(1000) for n in range(chance.randrange(1, 6))}
        )
        position: PartitionOffsets = PartitionOffsets(dict.fromkeys(latest, 0))
        rows_max = chance.randrange(1, 300)
        rounds = 0
        while position != latest:
            step = admit(position, latest, rows_max)
            taken = sum(step.values()) - sum(position.values())
            assert 0 < taken <= max(rows_max, len(latest)), f"seed {seed}"
            position = step
            rounds += 1
        assert rounds <= sum(latest.values()) // rows_max + len(latest) + 1, f"seed {seed}"


# -- splitting --------------------------------------------------------------------------------------------------------


def test_ranges_without_limits_stay_one_per_partition() -> None:
    ranges = [OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 3, 9), OffsetRange("u", 0, 4, 4)]
    assert split_ranges(ranges) == [OffsetRange("t", 0, 3, 9), OffsetRange("t", 1, 0, 5)]


def test_large_partition_is_cut_to_reach_min_partitions() -> None:
    parts = split_ranges([OffsetRange("t", 0, 0, 1000), OffsetRange("t", 1, 0, 10)], min_partitions=4)
    assert [part.size for part in parts] == [333, 333, 334, 10]


def test_no_range_is_longer_than_max_records() -> None:
    parts = split_ranges([OffsetRange("t", 0, 7, 107)], max_records=30)
    assert [part.size for part in parts] == [25, 25, 25, 25]


def test_parts_cover_the_ranges_without_gap_or_overlap() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for _ in range(200):
        ranges = []
        for number in range(chance.randrange(1, 5)):
            start = chance.randrange(100)
            ranges.append(OffsetRange("t", number, start, start + chance.randrange(200)))
        parts = split_ranges(
            ranges, min_partitions=chance.choice([None, 1, 7, 30]), max_records=chance.choice([None, 1, 9, 1000])
        )
        offsets = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
        assert offsets == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)], f"seed {seed}"


# -- what is lost -----------------------------------------------------------------------------------------------------


def test_plan_reads_from_start_to_end() -> None:
    plan = plan_ranges({T0: 5, T1: 0}, {T0: 9, T1: 0}, observed({T0: 0, T1: 0}))
    assert (plan.ranges, plan.losses) == ([OffsetRange("t", 0, 5, 9)], [])


def test_new_partition_begins_at_earliest() -> None:
    plan = plan_ranges({T0: 5}, {T0: 5, T1: 3}, observed({T0: 0, T1: 0}))
    assert (plan.ranges, plan.losses) == ([OffsetRange("t", 1, 0, 3)], [])


def test_new_topic_whose_first_records_are_gone_is_no_loss() -> None:
    plan = plan_ranges({T0: 5}, {T0: 5, U0: 30}, observed({T0: 0, U0: 20}))
    assert (plan.ranges, plan.losses) == ([OffsetRange("u", 0, 20, 30)], [])


def test_new_partition_of_a_known_topic_that_lost_its_first_records_is_a_loss() -> None:
    plan = plan_ranges({T0: 5}, {T0: 5, T1: 30}, observed({T0: 0, T1: 20}))
    assert [loss.cause for loss in plan.losses] == [Cause.NEW_PARTITION_SHORTENED]
    assert plan.ranges == [OffsetRange("t", 1, 20, 30)]


def test_retention_that_overtook_the_reader_is_a_loss_that_names_everything() -> None:
    plan = plan_ranges({T0: 5}, {T0: 30}, observed({T0: 20}))
    assert plan.ranges == [OffsetRange("t", 0, 20, 30)]
    assert str(plan.losses[0]) == (
        "topic t, partition 0: offset 5 was next, the partition now holds offsets from 20 up to 30: "
        "retention, or a deletion of records, overtook the reader"
    )


def test_retention_that_removed_the_whole_batch_leaves_nothing_to_read() -> None:
    plan = plan_ranges({T0: 5}, {T0: 30}, observed({T0: 40}))
    assert (plan.ranges, [loss.cause for loss in plan.losses]) == ([], [Cause.RETENTION])


def test_topic_made_again_is_told_by_its_id_and_read_from_its_first_offset() -> None:
    plan = plan_ranges({T0: 5}, {T0: 30}, observed({T0: 0}, former={"t": b"before"}))
    assert (plan.ranges, [loss.cause for loss in plan.losses]) == ([OffsetRange("t", 0, 0, 30)], [Cause.RECREATED])


def test_log_that_ends_before_the_start_is_a_loss_and_is_not_read_twice() -> None:
    plan = plan_ranges({T0: 50}, {T0: 30}, observed({T0: 0}, former={"t": b"now"}))
    assert (plan.ranges, [loss.cause for loss in plan.losses]) == ([], [Cause.TRUNCATED])


def test_vanished_partitions_tell_deletion_shrinking_and_a_changed_subscription_apart() -> None:
    before = {T0: 1, T1: 2, U0: 3}
    now = observed({T0: 0})
    causes = {loss.topic_partition: loss.cause for loss in vanished(before, [], now)}
    assert causes == {T0: Cause.NOT_SUBSCRIBED, T1: Cause.PARTITION_MISSING, U0: Cause.TOPIC_DELETED}


def test_partition_that_vanished_after_the_batch_was_chosen_is_a_loss() -> None:
    plan = plan_ranges({T0: 5}, {T0: 9}, observed({}))
    assert (plan.ranges, [loss.cause for loss in plan.losses]) == ([], [Cause.TOPIC_DELETED])


def test_loss_as_an_error_names_the_option_that_lets_the_query_go_on() -> None:
    plan = plan_ranges({T0: 5}, {T0: 9}, observed({}))
    assert "topic t, partition 0: offset 5 was next: the topic does not exist" in str(DataLost(plan.losses))
    assert "failOnDataLoss" in str(DataLost(plan.losses))


def test_error_about_lost_records_is_one_line_however_many_partitions_there_are() -> None:
    loss = DataLoss(T0, Cause.TOPIC_DELETED, 5)
    text = str(DataLost([loss] * 100))
    assert "\n" not in text
    assert text.count("offset 5 was next") == 5 and "95 more partitions" in text
