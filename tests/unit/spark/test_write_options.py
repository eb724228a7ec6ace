"""Options of a write: Spark's names, refused when they would not do what they say."""

from __future__ import annotations

import pytest

from ottla.spark.options import OptionError
from ottla.spark.write_options import Delivery, WriteOptions

BOOTSTRAP = {"kafka.bootstrap.servers": "localhost:9092"}


def _parse(*, stream: bool = True, **options: str) -> WriteOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return WriteOptions.parse({**BOOTSTRAP, **given}, stream=stream)


def test_delivery_is_exactly_once_unless_asked_otherwise() -> None:
    assert _parse().delivery is Delivery.EXACTLY_ONCE
    assert _parse(stream=False).delivery is Delivery.EXACTLY_ONCE
    assert _parse(ottla__delivery="at-least-once").delivery is Delivery.AT_LEAST_ONCE


def test_names_have_no_case() -> None:
    options = _parse(STAGINGDIR="/x", checkpointlocation="/c", Topic="t")
    assert (options.staging_directory, options.checkpoint_location, options.topic) == ("/x", "/c", "t")


def test_kafka_properties_that_matter_are_honoured() -> None:
    options = WriteOptions.parse(
        {**BOOTSTRAP, "kafka.compression.type": "ZSTD", "kafka.max.request.size": "5000",
         "kafka.transaction.timeout.ms": "1234", "kafka.linger.ms": "5"},
        stream=True,
    )  # fmt: skip
    assert (options.codec, options.batch_bytes_max, options.transaction_timeout_ms) == (4, 5000, 1234)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topik": "t"}, "did you mean 'topic'"),
        ({"ottla.delivery": "twice"}, "ottla.delivery"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type"),
        ({"kafka.transactional.id": "mine"}, "made of the query's id"),
        ({"kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms"),
        ({"ottla.batch.id": "3"}, "foreachBatch"),
        ({"ottla.transaction.bytes.max": "0"}, "ottla.transaction.bytes.max"),
    ],
)
def test_wrong_option_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        WriteOptions.parse({**BOOTSTRAP, **options}, stream=True)


def test_batch_write_is_named_wholly_or_not_at_all() -> None:
    options = _parse(stream=False, ottla__sink__name="s", ottla__batch__id="12")
    assert (options.sink_name, options.batch_id) == ("s", 12)
    with pytest.raises(OptionError, match="together"):
        _parse(stream=False, ottla__batch__id="12")
    with pytest.raises(OptionError, match="together"):
        _parse(stream=False, ottla__sink__name="s")
