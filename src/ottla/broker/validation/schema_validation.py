"""`schema.validation`: what happens to a batch whose records must have known schema ids.

    batch ──► find its schema ids ──► ask the registry ──► all known: append it as it is
                                             ├── some are not: reject it, divert these records to a dead-letter topic,
                                             │   or append it and log a warning
                                             └── no answer: REQUEST_TIMED_OUT, which producers retry; `warn` appends it

Most batches do not come here: if all ids are known, `log/opening.py` lets them pass on the event loop. The connection
of a batch that waits is muted, as for the opener, so that the batches of a producer keep their order.

Diverted records are in the dead-letter topic, as durable as ``acks`` asks for, before the rest of their batch is
appended. In the other order a failure in between would lose them, because producers take the acknowledgement of a later
batch for that of all earlier ones. Without an acknowledgement the producer sends the batch again, and the dead-letter
topic can get its records twice. The rest of the batch has the offsets and sequence numbers that it had, with gaps, as
after compaction. Records of a transaction are rejected instead, because the transaction may be aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from ottla.broker.metadata.schema_settings import dead_letter_topic
from ottla.broker.partitions.partition import Partition
from ottla.broker.validation.schema_lookup import RegistryUnavailable
from ottla.env.log_limit import LogLimit
from ottla.log.opener import Opener
from ottla.log.opening import TooExpensive, divert_inline, find_schemas_inline, schema_rules
from ottla.model.batch import TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, InvalidRecord, KafkaError, Refused
from ottla.model.records import Bytes
from ottla.model.schema_ids import Diverted, FoundSchemas, SchemaRef, SchemaRules, Source, invalid_records
from ottla.model.settings import TopicSettings
from ottla.model.settings_registry import DEAD_LETTER, WARN

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: how long a batch waits for the schema registry
_WAIT_S = 5.0
#: the same for `warn`, which appends the batch anyway
_WARN_WAIT_S = 1.0


class Lookups(Protocol):
    """Knows the schemas of the registry; raises RegistryUnavailable."""

    async def unknown_of(self, schemas: Iterable[SchemaRef], wait_s: float) -> tuple[SchemaRef, ...]: ...


class DeadLetterWriter(Protocol):
    """Writes to dead-letter topics."""

    def batch_bytes_max(self, topic: str) -> int: ...

    async def write(
        self, topic: str, source: Partition, batches: list[bytes], acks: int, begin_turn: Callable[[], None]
    ) -> None:
        """Append batches and return when they are as durable as ``acks`` asks for. Raise KafkaError."""


class SchemaValidation:
    """Validates batches of topics with `schema.validation`."""

    def __init__(self, opener: Opener, lookups: Lookups, dead_letters: DeadLetterWriter) -> None:
        self._opener = opener
        self._lookups = lookups
        self._dead_letters = dead_letters
        #: records by outcome; `log/opening.py` counts the valid ones of batches that pass on the event loop
        self.records = {"valid": 0, "rejected": 0, "dead_letter": 0, "warned": 0, "unchecked": 0}

    async def validate(
        self, batch: bytearray, partition: Partition, settings: TopicSettings, acks: int, begin_turn: Callable[[], None]
    ) -> bytes | bytearray:
        """Return the batch to append. Raise InvalidRecord, or the error for the reply if this cannot be said now.

        ``begin_turn`` begins a turn, at whose end what was appended is written.
        """
        count, action = read_header(batch).record_count, settings.schema_action
        rules = schema_rules(partition.name.topic, settings)
        found = await self._find(batch, partition, rules)
        try:
            unknown = await self._lookups.unknown_of(found.schemas, _WARN_WAIT_S if action == WARN else _WAIT_S)
        except RegistryUnavailable as error:
            self.records["unchecked"] += count
            if action == WARN:
                log.warning("records are not validated topic=%s error=%s", partition.name.topic, error)
                return batch
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, f"the records cannot be validated now: {error}") from None
        if unknown:
            rules = rules._replace(unknown=unknown)
            found = await self._find(batch, partition, rules)
        if not found.errors:
            self.records["valid"] += count
            return batch
        if action == WARN:
            self.records["warned"] += len(found.errors)
            _log_invalid("appended", partition, found)
            return batch
        if action == DEAD_LETTER and not read_header(batch).attributes & TRANSACTIONAL:
            return await self._divert(batch, partition, settings, found, rules, acks=acks, begin_turn=begin_turn)
        self.records["rejected"] += len(found.errors)
        _log_invalid("rejected", partition, found)
        raise invalid_records(found.errors)

    async def _find(self, batch: Bytes, partition: Partition, rules: SchemaRules) -> FoundSchemas:
        header = read_header(batch)
        try:
            return find_schemas_inline(batch, header, rules, partition.log.inline_budget)
        except TooExpensive:
            return await self._opener.find_schemas(batch, rules, header.record_count)

    async def _split(self, batch: Bytes, partition: Partition, rules: SchemaRules, source: Source) -> Diverted:
        header = read_header(batch)
        try:
            return divert_inline(batch, header, rules, source, partition.log.inline_budget)
        except TooExpensive:
            return await self._opener.divert(batch, rules, source, header.record_count)

    async def _divert(
        self,
        batch: Bytes,
        partition: Partition,
        settings: TopicSettings,
        found: FoundSchemas,
        rules: SchemaRules,
        *,
        acks: int,
        begin_turn: Callable[[], None],
    ) -> bytes | bytearray:
        if _is_duplicate(batch, partition):
            return bytearray(batch)  # its records are where they belong; the log answers with their offsets
        topic, name = dead_letter_topic(partition.name.topic, settings), partition.name
        try:
            source = Source(
                name.topic, name.partition, partition.log.log_end_offset, self._dead_letters.batch_bytes_max(topic)
            )
            diverted = await self._split(batch, partition, rules, source)
            await self._dead_letters.write(topic, partition, diverted.batches, acks, begin_turn)
        except KafkaError as error:
            if error.code in _PASSING:
                text = f"invalid records cannot be appended to the dead-letter topic {topic} now: {error}"
                raise Refused(ErrorCode.REQUEST_TIMED_OUT, text) from None
            self.records["rejected"] += len(found.errors)
            _log_invalid("rejected", partition, found)
            invalid = invalid_records(found.errors)
            text = f"{invalid}; the dead-letter topic {topic} does not take it: {error}"
            raise InvalidRecord(text, record_errors=invalid.record_errors) from None
        self.records["dead_letter"] += diverted.record_count
        _log_invalid("diverted", partition, found)
        self.records["valid"] += read_header(diverted.kept).record_count
        return diverted.kept


#: errors of a write to the dead-letter topic after which the next attempt may succeed
_PASSING = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_CONTROLLER,
})  # fmt: skip


def _log_invalid(treatment: str, partition: Partition, found: FoundSchemas) -> None:
    """Log the first of the invalid records, because not all clients show the reasons in a reply."""
    index, reason = found.errors[0]
    log.warning(
        "invalid records are %s partition=%s count=%d index=%d reason=%s",
        treatment, partition.name, len(found.errors), index, reason,
    )  # fmt: skip


def _is_duplicate(batch: Bytes, partition: Partition) -> bool:
    """Return whether the log has this batch of an idempotent producer. Raise KafkaError if it does not expect it."""
    header = read_header(batch)
    if header.producer_id < 0:
        return False
    _, repeated = partition.log.producers.check(
        header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
    )
    return repeated is not None
