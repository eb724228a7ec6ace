"""Decide where a batch is opened: on the event loop if that is cheap, otherwise in the opener's process.

To open a batch means to decompress it, check its records and, if the topic requires it, compress it with another codec.
The client determines the number of records and their decompressed size, but all clients share the event loop. The event
loop therefore opens a batch only if the estimated cost is at most ``INLINE_US_MAX`` microseconds, and at most
``TURN_US_MAX`` for all batches of one turn. The estimate uses the header and a limit of the decompressed size. For any
other batch ``open_inline`` raises ``NeedsOpening``; the caller lets `log/opener.py` open it and appends the result
later.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.batch import CODEC_BY_NAME, CODEC_MASK, BatchHeader
from ottla.model.compression import GZIP, LZ4, LZ4_LEVEL_DEFAULT, NONE, SNAPPY, ZSTD, ZSTD_LEVEL_DEFAULT
from ottla.model.errors import RecordsTooLarge
from ottla.model.opening import KEEP_CODEC, RECORDS_MAX, OpeningRules, open_batch
from ottla.model.records import INT64_MAX, INT64_MIN, Bytes
from ottla.model.settings import TopicSettings

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
_READ_BYTE_US = 0.003
_COMPRESS_BYTE_US = {KEEP_CODEC: 0.0, NONE: 0.0005, GZIP: 0.02, SNAPPY: 0.002, LZ4: 0.003, ZSTD: 0.03}
_COMPRESS_BYTE_US_AT_HIGH_LEVEL = {LZ4: 0.03, ZSTD: 0.2}


class Opening(NamedTuple):
    """How to open a batch before it can be appended."""

    rules: OpeningRules
    #: the settings from which the rules were derived; the result is valid while the log has these settings
    settings: TopicSettings


class NeedsOpening(Exception):
    """Not an error: opening the batch on the event loop is too expensive. Open it elsewhere, then append the result."""

    def __init__(self, rules: OpeningRules, settings: TopicSettings) -> None:
        super().__init__("the batch has to be opened off the event loop")
        #: keep this object instead of the exception, because the traceback refers to the request's buffer
        self.opening = Opening(rules, settings)


class InlineBudget:
    """Microseconds that the current turn may still spend on opening batches; shared by all logs of a broker."""

    __slots__ = ("left_us",)

    def __init__(self) -> None:
        self.left_us = TURN_US_MAX


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


def open_inline(
    batch: Bytes, header: BatchHeader, rules: OpeningRules, settings: TopicSettings, budget: InlineBudget
) -> bytes | None:
    """Return ``open_batch(batch, rules)`` if the estimated cost is low. Raise NeedsOpening if it is not."""
    if header.record_count > rules.records_max:
        return open_batch(batch, rules)  # raises an error because of the record count in the header
    byte_us = _READ_BYTE_US + _compress_byte_us(rules)
    records_us = header.record_count * _RECORD_US if rules.checks_records else 0.0
    bytes_max = int((min(INLINE_US_MAX, budget.left_us) - records_us) / byte_us)
    if bytes_max < len(batch):
        raise NeedsOpening(rules, settings)
    is_compressed = header.attributes & CODEC_MASK != NONE
    expected_bytes = min(len(batch) * _INFLATE_USUAL, bytes_max) if is_compressed else len(batch)
    budget.left_us -= records_us + expected_bytes * byte_us
    if not is_compressed or bytes_max >= rules.bytes_max:
        return open_batch(batch, rules)
    try:
        return open_batch(batch, rules._replace(bytes_max=bytes_max))
    except RecordsTooLarge:
        budget.left_us -= (bytes_max - expected_bytes) * byte_us
        raise NeedsOpening(rules, settings) from None


def _compress_byte_us(rules: OpeningRules) -> float:
    high = {LZ4: rules.level != LZ4_LEVEL_DEFAULT, ZSTD: (rules.level or 0) > ZSTD_LEVEL_DEFAULT}
    if high.get(rules.codec, False):
        return _COMPRESS_BYTE_US_AT_HIGH_LEVEL[rules.codec]
    return _COMPRESS_BYTE_US[rules.codec]
