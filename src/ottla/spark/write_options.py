"""Options of writing with ``format("ottla")``, which ``option_table`` describes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from ottla.model.batch import CODEC_BY_NAME
from ottla.spark.option_table import TOPIC_OPTIONS, Use, names
from ottla.spark.options import Connection, OptionError, Options
from ottla.spark.schema_options import SchemaOptions, parse_schema_options

_NAMES = names(TOPIC_OPTIONS, Use.WRITE)
_TRANSACTION_TIMEOUT = "transaction.timeout.ms"
_INLINE_BYTES_MAX = 4 << 20
_TRANSACTION_BYTES_MAX = 4 << 30
#: Java's default for a request, a little below the brokers' default for a batch
_BATCH_BYTES_MAX = 1 << 20
#: long enough for the largest batch; only an abandoned query makes readers wait for it
_TRANSACTION_TIMEOUT_MS = 300_000


class Delivery(Enum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of a write."""

    connection: Connection
    topic: str | None
    delivery: Delivery
    codec: int
    batch_bytes_max: int
    #: as given by ``stagingDir``
    staging_directory: str | None
    inline_bytes_max: int
    transaction_bytes_max: int
    transaction_timeout_ms: int
    checkpoint_location: str | None
    sink_name: str | None
    batch_id: int | None
    batch_digest: str | None
    #: of keys and of values; a part without them is bytes or text
    schemas: tuple[SchemaOptions, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> Self:
        """Return the checked options of a write. Raise OptionError for the first wrong one."""
        others = {name: value for name, value in options.items() if name.lower() != f"kafka.{_TRANSACTION_TIMEOUT}"}
        _refuse_transactional_id(others)
        given = Options(others, _NAMES)
        for name, value in options.items():
            if name not in others:
                given.properties[_TRANSACTION_TIMEOUT] = str(value)
        sink_name, batch_id = given.batch(stream=stream)
        return cls(
            connection=given.connection(),
            topic=given.text("topic") or None,
            delivery=given.choice("ottla.delivery", Delivery, Delivery.EXACTLY_ONCE),
            codec=_codec(given.properties.get("compression.type", "none")),
            batch_bytes_max=given.property_number("max.request.size", _BATCH_BYTES_MAX),
            staging_directory=given.text("stagingDir") or None,
            inline_bytes_max=given.positive("ottla.inline.bytes.max") or _INLINE_BYTES_MAX,
            transaction_bytes_max=given.positive("ottla.transaction.bytes.max") or _TRANSACTION_BYTES_MAX,
            transaction_timeout_ms=given.property_number(_TRANSACTION_TIMEOUT, _TRANSACTION_TIMEOUT_MS),
            checkpoint_location=given.text("checkpointLocation") or None,
            sink_name=sink_name,
            batch_id=batch_id,
            batch_digest=given.text("ottla.batch.digest") or None,
            schemas=parse_schema_options(given, given.text("topic") or None),
        )


def _refuse_transactional_id(options: Mapping[str, str]) -> None:
    if "kafka.transactional.id" in {name.lower() for name in options}:
        raise OptionError(
            "the option 'kafka.transactional.id' is not supported: the id is made of the query's id, which belongs to "
            "its checkpoint; leave it out"
        )


def _codec(text: str) -> int:
    codec = CODEC_BY_NAME.get(text.strip().lower())
    if codec is None:
        raise OptionError(f"the option kafka.compression.type is one of {', '.join(CODEC_BY_NAME)}, not {text!r}")
    return codec
