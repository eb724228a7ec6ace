"""Decide where a batch is opened: on the event loop if that is cheap, otherwise in the opener's process.

To open a batch means to decompress it, check its records and, if the topic requires it, compress it with another codec.
A topic with `schema.validation` also requires that the schema registry knows the schema ids of the records. A batch
with ids that the broker has not asked about yet, or with invalid records, is not opened here either.

The client determines the number of records and their decompressed size, but all clients share the event loop. The event
loop therefore opens a batch only if the estimated cost is at most ``INLINE_US_MAX`` microseconds, and at most
``TURN_US_MAX`` for all batches of one turn. The estimate uses the header and a limit of the decompressed size. For any
other batch ``open_for`` raises ``NeedsOpening``; the caller lets `log/opener.py` open it and appends the result later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ottla.log.validation import batch_bytes_max
from ottla.model.batch import CODEC_BY_NAME, CODEC_MASK, BatchHeader
from ottla.model.compression import GZIP, LZ4, LZ4_LEVEL_DEFAULT, NONE, SNAPPY, ZSTD, ZSTD_LEVEL_DEFAULT
from ottla.model.errors import RecordsTooLarge
from ottla.model.opening import KEEP_CODEC, RECORDS_MAX, OpeningRules, open_batch
from ottla.model.records import INT64_MAX, INT64_MIN, Bytes
from ottla.model.schema_ids import Diverted, FoundSchemas, SchemaRef, SchemaRules, Source, divert, find_schemas
from ottla.model.settings import TopicSettings
from ottla.model.settings_registry import NO_VALIDATION, TOPIC_SUBJECT

T = TypeVar("T")

#: maximum estimated cost of a batch that is opened on the event loop
INLINE_US_MAX = 400.0
#: maximum estimated cost of all batches that are opened in one turn of the event loop
TURN_US_MAX = 4000.0

#: decompressed records may be this many times as large as max.message.bytes, within this limit
_INFLATE_MAX = 16
_INFLATE_BYTES_MAX = 64 << 20
#: typical ratio of decompressed to compressed size
_INFLATE_USUAL = 4
#: a limit of at least this many milliseconds counts as unlimited
_UNLIMITED_MS = 1 << 62

# Measured on one core of a virtual machine, with text.
_RECORD_US = 0.5
_SCHEMA_RECORD_US = 1.2
_DIVERT_RECORD_US = 20.0
_READ_BYTE_US = 0.003
_COMPRESS_BYTE_US = {KEEP_CODEC: 0.0, NONE: 0.0005, GZIP: 0.02, SNAPPY: 0.002, LZ4: 0.003, ZSTD: 0.03}
_COMPRESS_BYTE_US_AT_HIGH_LEVEL = {LZ4: 0.03, ZSTD: 0.2}


class Opening(NamedTuple):
    """How to open a batch before it can be appended."""

    #: None if only the schema ids of its records have to be checked
    rules: OpeningRules | None
    #: the settings from which the rules were derived; the result is valid while the log has these settings
    settings: TopicSettings


class NeedsOpening(Exception):
    """Not an error: opening the batch takes too long for the event loop. Open it elsewhere, then append the result."""

    def __init__(self, rules: OpeningRules | None, settings: TopicSettings) -> None:
        super().__init__("the batch has to be opened off the event loop")
        #: keep this object instead of the exception, because the traceback refers to the request's buffer
        self.opening = Opening(rules, settings)


class TooExpensive(Exception):
    """Not an error: the estimated cost of a task is too high for the event loop."""


class InlineBudget:
    """Microseconds that the current turn may still spend on opening batches; shared by all logs of a broker."""

    __slots__ = ("knows_schemas", "left_us", "valid_records")

    def __init__(self) -> None:
        self.left_us = TURN_US_MAX
        #: returns whether the schema registry is known to have all of these schemas
        self.knows_schemas: Callable[[Sequence[SchemaRef]], bool] = lambda schemas: False
        #: records that had known schema ids
        self.valid_records = 0

    def run(
        self,
        task: Callable[[int], T],
        batch: Bytes,
        header: BatchHeader,
        *,
        records_us: float,
        byte_us: float,
        bytes_max: int,
    ) -> T:
        """Return ``task(limit)`` if the estimated cost is low; the limit is one of decompressed bytes.

        Raise TooExpensive otherwise, also if the task raises RecordsTooLarge because of a limit below ``bytes_max``.
        """
        limit = int((min(INLINE_US_MAX, self.left_us) - records_us) / byte_us)
        if limit < len(batch):
            raise TooExpensive
        is_compressed = header.attributes & CODEC_MASK != NONE
        expected_bytes = min(len(batch) * _INFLATE_USUAL, limit) if is_compressed else len(batch)
        self.left_us -= records_us + expected_bytes * byte_us
        if not is_compressed or limit >= bytes_max:
            return task(bytes_max)
        try:
            return task(limit)
        except RecordsTooLarge:
            self.left_us -= (limit - expected_bytes) * byte_us
            raise TooExpensive from None


def is_plain(settings: TopicSettings) -> bool:
    """Return whether a batch is appended by its header alone: no record is checked, no byte after the prefix changes.

    The timestamp of the header is checked for every topic.
    """
    return (
        not settings.compact
        and not settings.log_append_time
        and settings.compression_type == "producer"
        and batch_bytes_max(settings.segment_bytes) >= settings.max_message_bytes
        and not limits_past(settings)
        and settings.schema_action == NO_VALIDATION
    )


def _inflate_bytes_max(settings: TopicSettings) -> int:
    """Return the maximum decompressed size of a client's batch."""
    return max(settings.max_message_bytes, min(settings.max_message_bytes * _INFLATE_MAX, _INFLATE_BYTES_MAX))


def limits_past(settings: TopicSettings) -> bool:
    """Return whether the topic rejects old records. Then the timestamp of each record must be checked."""
    return settings.message_timestamp_before_max_ms < _UNLIMITED_MS and not settings.log_append_time


def rules_for(settings: TopicSettings, header: BatchHeader, now_ms: int) -> OpeningRules | None:
    """Return the rules by which this batch must be opened; None if it need not be opened."""
    timestamp_min, timestamp_max = INT64_MIN, INT64_MAX
    if not settings.log_append_time:
        after_ms = settings.message_timestamp_after_max_ms
        if header.max_timestamp - now_ms > after_ms or (limits_past(settings) and after_ms < _UNLIMITED_MS):
            timestamp_max = now_ms + after_ms
        if limits_past(settings):
            timestamp_min = now_ms - settings.message_timestamp_before_max_ms
    codec = CODEC_BY_NAME.get(settings.compression_type, KEEP_CODEC)
    if codec == header.attributes & CODEC_MASK:
        codec = KEEP_CODEC
    rules = OpeningRules(
        requires_keys=settings.compact, timestamp_min=timestamp_min, timestamp_max=timestamp_max, codec=codec,
        level=_compression_level(settings), bytes_max=_inflate_bytes_max(settings), records_max=RECORDS_MAX,
    )  # fmt: skip
    return rules if rules.checks_records or codec != KEEP_CODEC else None


def _compression_level(settings: TopicSettings) -> int | None:
    name = settings.compression_type
    return int(settings.value_of(f"compression.{name}.level")) if name in ("gzip", "lz4", "zstd") else None


def schema_rules(topic: str, settings: TopicSettings) -> SchemaRules:
    """Return the rules for the schema ids of a batch."""
    has_subject = settings.schema_validation_subject == TOPIC_SUBJECT
    return SchemaRules(
        keys=settings.checks_keys, values=settings.checks_values,
        key_subject=f"{topic}-key" if has_subject else None, value_subject=f"{topic}-value" if has_subject else None,
        bytes_max=_inflate_bytes_max(settings), records_max=RECORDS_MAX,
    )  # fmt: skip


def open_for(
    topic: str, settings: TopicSettings, batch: Bytes, header: BatchHeader, *, now_ms: int, budget: InlineBudget
) -> bytes | None:
    """Return the batch as the topic stores it, None if it stays as it is. Raise InvalidRecord or NeedsOpening."""
    rules = rules_for(settings, header, now_ms)
    if settings.schema_action != NO_VALIDATION and not _has_known_schemas(topic, settings, batch, header, budget):
        raise NeedsOpening(rules, settings)
    return None if rules is None else open_inline(batch, header, rules, settings, budget)


def _has_known_schemas(
    topic: str, settings: TopicSettings, batch: Bytes, header: BatchHeader, budget: InlineBudget
) -> bool:
    """Return whether all records have known schema ids; False also if they cannot be checked on the event loop."""
    try:
        found = find_schemas_inline(batch, header, schema_rules(topic, settings), budget)
    except TooExpensive:
        return False
    if found.errors or not budget.knows_schemas(found.schemas):
        return False
    budget.valid_records += header.record_count
    return True


def find_schemas_inline(batch: Bytes, header: BatchHeader, rules: SchemaRules, budget: InlineBudget) -> FoundSchemas:
    """Return ``find_schemas(batch, rules)`` if the estimated cost is low. Raise TooExpensive if it is not."""
    return budget.run(
        lambda limit: find_schemas(batch, rules._replace(bytes_max=limit)), batch, header,
        records_us=header.record_count * _SCHEMA_RECORD_US, byte_us=_READ_BYTE_US, bytes_max=rules.bytes_max,
    )  # fmt: skip


def divert_inline(
    batch: Bytes, header: BatchHeader, rules: SchemaRules, source: Source, budget: InlineBudget
) -> Diverted:
    """Return ``divert(batch, rules, source)`` if the estimated cost is low. Raise TooExpensive if it is not."""
    return budget.run(
        lambda limit: divert(batch, rules._replace(bytes_max=limit), source), batch, header,
        records_us=header.record_count * _DIVERT_RECORD_US, byte_us=_READ_BYTE_US * 3, bytes_max=rules.bytes_max,
    )  # fmt: skip


def open_inline(
    batch: Bytes, header: BatchHeader, rules: OpeningRules, settings: TopicSettings, budget: InlineBudget
) -> bytes | None:
    """Return ``open_batch(batch, rules)`` if the estimated cost is low. Raise NeedsOpening if it is not."""
    if header.record_count > rules.records_max:
        return open_batch(batch, rules)  # raises an error because of the record count in the header
    try:
        return budget.run(
            lambda limit: open_batch(batch, rules._replace(bytes_max=limit)), batch, header,
            records_us=header.record_count * _RECORD_US if rules.checks_records else 0.0,
            byte_us=_READ_BYTE_US + _compress_byte_us(rules), bytes_max=rules.bytes_max,
        )  # fmt: skip
    except TooExpensive:
        raise NeedsOpening(rules, settings) from None


def _compress_byte_us(rules: OpeningRules) -> float:
    high = {LZ4: rules.level != LZ4_LEVEL_DEFAULT, ZSTD: (rules.level or 0) > ZSTD_LEVEL_DEFAULT}
    if high.get(rules.codec, False):
        return _COMPRESS_BYTE_US_AT_HIGH_LEVEL[rules.codec]
    return _COMPRESS_BYTE_US[rules.codec]
