"""Options of format("ottla"): the names and meanings of Spark's Kafka connector, and what is refused."""

from __future__ import annotations

import pytest

from ottla.client.security import PROPERTIES as SECURITY_PROPERTIES
from ottla.model.types import TopicPartition
from ottla.spark.offsets import EARLIEST, LATEST, Bound
from ottla.spark.options import NoMatch, OptionError, ReadOptions

LEAST = {"kafka.bootstrap.servers": "a:9092,b:9092", "subscribe": "t"}
T0 = TopicPartition("t", 0)


def batch(**options: str) -> ReadOptions:
    return ReadOptions.parse({**LEAST, **options}, stream=False)


def stream(**options: str) -> ReadOptions:
    return ReadOptions.parse({**LEAST, **options}, stream=True)


def with_property(name: str, value: str) -> ReadOptions:
    return ReadOptions.parse({**LEAST, name: value}, stream=True)


def test_defaults_of_a_batch_are_those_of_sparks_connector() -> None:
    options = batch()
    assert (options.starting, options.ending) == (Bound(everywhere=EARLIEST), Bound(everywhere=LATEST))
    assert options.fail_on_data_loss and not options.include_headers and not options.read_committed
    assert (options.attempts, options.attempt_interval_s, options.max_trigger_delay_s) == (3, 1.0, 900.0)


def test_stream_begins_at_latest_unless_told() -> None:
    assert stream().starting == Bound(everywhere=LATEST)
    assert stream(startingOffsets="Earliest").starting == Bound(everywhere=EARLIEST)


def test_names_are_case_insensitive() -> None:
    options = ReadOptions.parse(
        {"KAFKA.BOOTSTRAP.SERVERS": "a:1", "SubScribe": "t", "MAXOFFSETSPERTRIGGER": "7"}, stream=True
    )
    assert (options.connection.bootstrap, options.max_offsets_per_trigger) == ("a:1", 7)


def test_every_option_of_the_connector_is_read() -> None:
    options = stream(
        startingOffsets='{"t":{"0":23,"1":-2}}', maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10",
        maxTriggerDelay="30s", minPartitions="8", maxRecordsPerPartition="5000", failOnDataLoss="false",
        includeHeaders="TRUE", groupIdPrefix="g", startingOffsetsByTimestampStrategy="latest",
        **{"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "20", "kafkaConsumer.pollTimeoutMs": "512"},
    )  # fmt: skip
    assert options.starting.each == {T0: 23, TopicPartition("t", 1): EARLIEST}
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger, options.max_trigger_delay_s) == (
        100,
        10,
        30,
    )
    assert (options.min_partitions, options.max_records_per_partition) == (8, 5000)
    assert (options.fail_on_data_loss, options.include_headers, options.group_prefix) == (False, True, "g")
    assert (options.attempts, options.attempt_interval_s, options.poll_timeout_s) == (5, 0.02, 0.512)
    assert options.no_match is NoMatch.LATEST


def test_kafka_properties_reach_the_connection_or_the_read() -> None:
    options = ReadOptions.parse(
        {
            **LEAST,
            "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.group.id": "mine",
            "kafka.isolation.level": "read_committed", "kafka.max.poll.records": "10000", "kafka.client.id": "c",
        },
        stream=True,
    )  # fmt: skip
    assert options.connection.properties == {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert (options.group, options.read_committed, options.connection.client_id) == ("mine", True, "c")


def test_timestamps_win_over_offsets_and_one_for_all_over_one_for_each() -> None:
    each = {"startingOffsetsByTimestamp": '{"t":{"0":1000}}', "startingOffsets": "earliest"}
    assert batch(**each).starting == Bound(by_timestamp=True, each=batch(**each).starting.each)
    assert batch(**each, startingTimestamp="5").starting == Bound(by_timestamp=True, everywhere=5)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "a:1"}, "exactly one of the options subscribe, .* none is"),
        ({**LEAST, "assign": "{}"}, "subscribe and assign are"),
        ({**LEAST, "subscribe": " , "}, "names no topic"),
        ({"kafka.bootstrap.servers": "a:1", "assign": '{"t":0}'}, 'looks like {"topic":'),
        ({"kafka.bootstrap.servers": "a:1", "assign": '{"t":["0"]}'}, 'looks like {"topic":'),
        ({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}, "not a regular expression"),
        ({**LEAST, "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({**LEAST, "kafka.isolation.levl": "x"}, "did you mean 'kafka.isolation.level'"),
        ({**LEAST, "kafka.isolation.level": "dirty"}, "read_committed or read_uncommitted"),
        ({**LEAST, "kafka.auto.offset.reset": "earliest"}, "set startingOffsets"),
        ({**LEAST, "kafka.enable.auto.commit": "true"}, "kafka.group.id"),
        ({**LEAST, "startingOffsets": "newest"}, "startingOffsets is not understood"),
        ({**LEAST, "startingOffsets": '{"t":{"0":-3}}'}, "the least is -2"),
        ({**LEAST, "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({**LEAST, "startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy"),
        ({**LEAST, "maxOffsetsPerTrigger": "0"}, "whole number above zero"),
        ({**LEAST, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "higher than"),
        ({**LEAST, "maxTriggerDelay": "soon"}, "a time such as"),
        ({**LEAST, "failOnDataLoss": "no"}, "true or false"),
        ({**LEAST, "endingOffsets": "latest"}, "a stream has no end"),
    ],
)
def test_wrong_stream_options_are_refused_with_what_would_be_right(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        ReadOptions.parse(options, stream=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "cannot be earliest"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'}, "is after the end"),
    ],
)
def test_batch_that_could_read_nothing_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        batch(**options)


def test_trigger_options_are_ignored_in_a_batch_and_said_to_be() -> None:
    assert batch(maxOffsetsPerTrigger="5").ignored == ("maxOffsetsPerTrigger",)


def test_plain_number_of_a_time_is_milliseconds() -> None:
    assert stream(maxTriggerDelay="1500").max_trigger_delay_s == 1.5


def test_pattern_matches_whole_names() -> None:
    options = ReadOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribePattern": "t[0-9]"}, stream=True)
    assert options.subscription.partitions({"t1": 1, "t10": 1, "xt1": 1}) == [TopicPartition("t1", 0)]


def test_assigned_partitions_that_do_not_exist_are_not_read() -> None:
    options = ReadOptions.parse({"kafka.bootstrap.servers": "a:1", "assign": '{"t":[0,5],"u":[0]}'}, stream=True)
    assert options.subscription.partitions({"t": 2}) == [T0]
    assert options.subscription.names == ("t", "u")


def test_every_security_property_of_the_client_is_passed_to_the_connection() -> None:
    given = {f"kafka.{name}": "x" for name in SECURITY_PROPERTIES}
    assert dict(ReadOptions.parse({**LEAST, **given}, stream=True).connection.properties) == dict.fromkeys(
        SECURITY_PROPERTIES, "x"
    )
