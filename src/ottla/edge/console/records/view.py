"""One record with its place, as searches, rows and pages use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.edge.console.records.decoding import Decoder, LazyPart
from ottla.model.batch import LOG_APPEND_TIME, BatchHeader
from ottla.model.records import Record

#: a record of no transaction, of a committed, an aborted, or one that has not ended yet
PLAIN, COMMITTED, ABORTED, OPEN = "", "committed", "aborted", "open"
_KEY_SCHEMA: Final = "__key_schema_id"
_VALUE_SCHEMA: Final = "__value_schema_id"


class RecordView:
    """A record. Its key and value are decoded when they are first used; the `Subject` of `expression.py`."""

    __slots__ = (
        "_texts",
        "batch",
        "headers_raw",
        "key",
        "offset",
        "partition",
        "record",
        "state",
        "timestamp",
        "value",
    )

    def __init__(self, partition: int, batch: BatchHeader, record: Record, *, state: str, decoder: Decoder) -> None:
        self.partition = partition
        self.batch = batch
        self.record = record
        #: of its transaction
        self.state = state
        self.offset = record.offset
        self.timestamp = record.timestamp
        self.headers_raw = record.headers
        by_name = dict(record.headers) if record.headers else {}
        self.key = LazyPart(record.key, by_name.get(_KEY_SCHEMA), decoder)
        self.value = LazyPart(record.value, by_name.get(_VALUE_SCHEMA), decoder)
        self._texts: list[tuple[str, str | None]] | None = None

    @property
    def headers(self) -> Sequence[tuple[str, str | None]]:
        """The headers as texts."""
        if self._texts is None:
            self._texts = [
                (name, None if value is None else value.decode("utf-8", "backslashreplace"))
                for name, value in self.record.headers
            ]
        return self._texts

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        record = self.record
        headers = sum(
            len(name.encode("utf-8", "surrogateescape")) + len(value or b"") for name, value in record.headers
        )
        return len(record.key or b"") + len(record.value or b"") + headers

    @property
    def has_append_time(self) -> bool:
        """Whether the timestamp is the time when the broker appended the record; else its producer has set it."""
        return bool(self.batch.attributes & LOG_APPEND_TIME)
