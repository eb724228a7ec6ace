"""A topic's settings: the table, and the snapshot of values that the topic's partitions work with.

A value comes from the first of: the topic's own override, the broker settings named as the row's synonyms,
the row's default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Self

from ottla.model.setting_types import (
    ANY,
    BOOL,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    PROBLEMS_MAX,
    STRING,
    Check,
    InvalidSettings,
    Setting,
    SettingsSnapshot,
    T,
    at_least,
    between,
    list_of,
    unknown_name,
)
from ottla.model.settings_broker import NO_SETTINGS, BrokerSettings
from ottla.model.settings_log import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    GZIP_LEVELS,
    LZ4_LEVELS,
    TIMESTAMP_TYPES,
    ZSTD_LEVELS,
)
from ottla.model.settings_registry import ANY_SUBJECT, NO_VALIDATION, REJECT, VALIDATION_SUBJECTS, VALIDATIONS

MINUTE_MS = 60_000
HOUR_MS = 3_600_000

THROTTLED_REPLICAS = Check(
    "PARTITION:BROKER pairs joined by commas, or *",
    lambda pairs: (
        pairs == ("*",)
        or all(left.isdigit() and right.isdigit() for left, _, right in (pair.partition(":") for pair in pairs))
    ),
)
_MIN_INSYNC = "min.insync.replicas"
NO_REMOTE_STORAGE = Check("false, as Ottla has no remote storage", lambda enabled: not enabled)


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that gives a topic setting its default; `factor` turns its unit into the topic's."""

    name: str
    factor: int = 1

    def convert(self, value: object) -> object:
        if self.factor == 1:
            return value
        assert isinstance(value, int)
        # Kafka reads any negative number of hours or minutes as "no limit".
        return value * self.factor if value >= 0 else -1


@dataclass(frozen=True, slots=True)
class TopicSetting(Setting[T]):
    """A row of the topic table. All of them may change while the topic lives."""

    dynamic: bool = True
    #: the broker settings that give the default; the first one that has a value wins
    synonyms: tuple[Synonym, ...] = ()


def _from(*names: str) -> tuple[Synonym, ...]:
    return tuple(Synonym(name) for name in names)


class TopicSettings(SettingsSnapshot):
    """The values one topic works with. Made by `resolve`; reading one is a plain attribute access."""

    # Cleanup

    cleanup_policy = TopicSetting(
        "cleanup.policy",
        LIST,
        ("delete",),
        CLEANUP_POLICIES,
        "Treatment of old segments: `delete` by age and size, `compact` to the last value per key, both, or neither.",
        synonyms=_from("log.cleanup.policy"),
    )
    retention_ms = TopicSetting(
        "retention.ms",
        LONG,
        604_800_000,
        at_least(-1),
        "Age at which segments may be deleted; -1: never.",
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    )
    retention_bytes = TopicSetting(
        "retention.bytes",
        LONG,
        -1,
        ANY,
        "Size of a partition above which its oldest segments may be deleted; -1: no limit.",
        synonyms=_from("log.retention.bytes"),
    )
    file_delete_delay_ms = TopicSetting(
        "file.delete.delay.ms",
        LONG,
        60_000,
        at_least(0),
        "Time between a segment's removal from the log and the deletion of its file.",
        synonyms=_from("log.segment.delete.delay.ms"),
    )
    delete_retention_ms = TopicSetting(
        "delete.retention.ms",
        LONG,
        86_400_000,
        at_least(0),
        "Time that tombstones (records without a value) stay readable after compaction.",
        synonyms=_from("log.cleaner.delete.retention.ms"),
    )
    min_cleanable_dirty_ratio = TopicSetting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        between(0, 1),
        "Minimum share of a log that was appended since its last compaction before it is compacted again.",
        synonyms=_from("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms = TopicSetting(
        "min.compaction.lag.ms",
        LONG,
        0,
        at_least(0),
        "Minimum age at which compaction may remove a record.",
        synonyms=_from("log.cleaner.min.compaction.lag.ms"),
    )
    max_compaction_lag_ms = TopicSetting(
        "max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        at_least(1),
        "Maximum age of a record that is not compacted yet, independent of the ratio.",
        synonyms=_from("log.cleaner.max.compaction.lag.ms"),
    )

    # Segments

    segment_bytes = TopicSetting(
        "segment.bytes",
        INT,
        1_073_741_824,
        at_least(14),
        "Largest segment file. A larger batch is refused. Kafka 4 asks for 1 MiB at least. Ottla takes smaller values "
        "and stores a batch of up to 1 MiB that is larger in a segment of its own.",
        synonyms=_from("log.segment.bytes"),
    )
    segment_ms = TopicSetting(
        "segment.ms",
        LONG,
        604_800_000,
        at_least(1),
        "Age at which a segment is rolled.",
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    )
    segment_jitter_ms = TopicSetting(
        "segment.jitter.ms",
        LONG,
        0,
        at_least(0),
        "Maximum random reduction of `segment.ms`, so that partitions do not roll at the same time.",
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_index_bytes = TopicSetting(
        "segment.index.bytes",
        INT,
        10_485_760,
        at_least(4),
        "Largest index file.",
        synonyms=_from("log.index.size.max.bytes"),
    )
    index_interval_bytes = TopicSetting(
        "index.interval.bytes",
        INT,
        4096,
        at_least(0),
        "Bytes of records between two entries of an index.",
        synonyms=_from("log.index.interval.bytes"),
    )
    preallocate = TopicSetting(
        "preallocate",
        BOOL,
        False,
        ANY,
        "Reserve a segment's full size when it is created.",
        synonyms=_from("log.preallocate"),
    )

    # Durability

    flush_acks_all = TopicSetting(
        "flush.acks.all",
        BOOL,
        True,
        ANY,
        "Ottla only. True: acks=all is answered after the records are on disk (fdatasync, shared by many "
        "requests). False: Kafka's behaviour, answered from the page cache.",
        synonyms=_from("log.flush.acks.all"),
    )
    flush_messages = TopicSetting(
        "flush.messages",
        LONG,
        LONG_MAX,
        at_least(1),
        "Sync a partition after this many records, independent of acks.",
        synonyms=_from("log.flush.interval.messages"),
    )
    flush_ms = TopicSetting(
        "flush.ms",
        LONG,
        LONG_MAX,
        at_least(0),
        "Sync a partition when its oldest unsynced record is this old.",
        synonyms=_from("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    min_insync_replicas = TopicSetting(
        "min.insync.replicas",
        INT,
        1,
        at_least(1),
        "Replicas that must hold a record before acks=all is answered. Not set: 2 with three or more replicas, else 1.",
        synonyms=_from("min.insync.replicas"),
    )
    unclean_leader_election_enable = TopicSetting(
        "unclean.leader.election.enable",
        BOOL,
        False,
        ANY,
        "Allow a replica that is not in sync to become leader if no other is left; records are lost.",
        synonyms=_from("unclean.leader.election.enable"),
        used=False,
    )

    # Records

    max_message_bytes = TopicSetting(
        "max.message.bytes",
        INT,
        1_048_588,
        at_least(0),
        "Largest record batch, after compression.",
        synonyms=_from("message.max.bytes"),
    )
    message_timestamp_type = TopicSetting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        TIMESTAMP_TYPES,
        "Timestamp of a record: that of the producer (CreateTime) or of the broker (LogAppendTime).",
        synonyms=_from("log.message.timestamp.type"),
    )
    message_timestamp_before_max_ms = TopicSetting(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        at_least(0),
        "A record with a timestamp further in the past is refused (CreateTime only).",
        synonyms=_from("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_after_max_ms = TopicSetting(
        "message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        at_least(0),
        "A record with a timestamp further in the future is refused (CreateTime only).",
        synonyms=_from("log.message.timestamp.after.max.ms"),
    )
    compression_type = TopicSetting(
        "compression.type",
        STRING,
        "producer",
        COMPRESSION_TYPES,
        "Compression of stored batches; `producer` keeps the compression of the producer.",
        synonyms=_from("compression.type"),
    )
    compression_gzip_level = TopicSetting(
        "compression.gzip.level",
        INT,
        -1,
        GZIP_LEVELS,
        "Level when `compression.type` is gzip.",
        synonyms=_from("compression.gzip.level"),
    )
    compression_lz4_level = TopicSetting(
        "compression.lz4.level",
        INT,
        9,
        LZ4_LEVELS,
        "Level when `compression.type` is lz4.",
        synonyms=_from("compression.lz4.level"),
    )
    compression_zstd_level = TopicSetting(
        "compression.zstd.level",
        INT,
        3,
        ZSTD_LEVELS,
        "Level when `compression.type` is zstd.",
        synonyms=_from("compression.zstd.level"),
    )

    # Schemas

    schema_validation = TopicSetting(
        "schema.validation",
        STRING,
        NO_VALIDATION,
        VALIDATIONS,
        "Ottla only. Treatment of records whose schema id the schema registry does not know: `reject` the batch, "
        "append them to a dead-letter topic instead (`dlq`), or append them and `warn` in the log. `none`: no record "
        "is checked. Needs the broker setting `schema.registry.url`.",
    )
    schema_validation_parts = TopicSetting(
        "schema.validation.parts",
        LIST,
        ("value",),
        list_of("key", "value"),
        "Ottla only. Parts of a record that must have a schema id: `value`, `key` or both. A null has none.",
    )
    schema_validation_subject = TopicSetting(
        "schema.validation.subject",
        STRING,
        ANY_SUBJECT,
        VALIDATION_SUBJECTS,
        "Ottla only. `topic`: the schema must be registered under the subject `<topic>-value`, that of a key under "
        "`<topic>-key`. `any`: the subject does not matter.",
    )
    schema_validation_dlq_topic = TopicSetting(
        "schema.validation.dlq.topic",
        STRING,
        "",
        ANY,
        "Ottla only. Dead-letter topic for `schema.validation=dlq`. Empty: the name of the topic and `-dlq`.",
    )
    confluent_value_schema_validation = TopicSetting(
        "confluent.value.schema.validation",
        BOOL,
        False,
        ANY,
        "Confluent's name: true means `schema.validation=reject` for values, unless `schema.validation` is set.",
    )
    confluent_key_schema_validation = TopicSetting(
        "confluent.key.schema.validation",
        BOOL,
        False,
        ANY,
        "Confluent's name: true means `schema.validation=reject` for keys, unless `schema.validation` is set.",
    )

    # Replication throttles and remote storage: known to Kafka's tools, which read and write them

    leader_replication_throttled_replicas = TopicSetting(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        THROTTLED_REPLICAS,
        "Replicas that, as leaders, send to followers that are not in sync at `leader.replication.throttled.rate`.",
    )
    follower_replication_throttled_replicas = TopicSetting(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        THROTTLED_REPLICAS,
        "Replicas that fetch at `follower.replication.throttled.rate` while they are not in sync.",
    )
    remote_storage_enable = TopicSetting(
        "remote.storage.enable",
        BOOL,
        False,
        NO_REMOTE_STORAGE,
        "Tiered storage, which Ottla does not have.",
        used=False,
    )
    remote_log_copy_disable = TopicSetting(
        "remote.log.copy.disable", BOOL, False, ANY, "Stop copying to remote storage.", used=False
    )
    remote_log_delete_on_disable = TopicSetting(
        "remote.log.delete.on.disable",
        BOOL,
        False,
        ANY,
        "Delete remote data with remote storage.",
        used=False,
    )
    local_retention_ms = TopicSetting(
        "local.retention.ms",
        LONG,
        -2,
        at_least(-2),
        "Age at which segments in remote storage leave the local disk; -2: `retention.ms`.",
        synonyms=_from("log.local.retention.ms"),
        used=False,
    )
    local_retention_bytes = TopicSetting(
        "local.retention.bytes",
        LONG,
        -2,
        at_least(-2),
        "Local size of a partition in remote storage; -2: `retention.bytes`.",
        synonyms=_from("log.local.retention.bytes"),
        used=False,
    )

    # Derived

    #: `cleanup.policy` as the two questions that are asked of it
    compact: bool
    delete: bool
    #: the broker dates the records
    log_append_time: bool
    #: one of `VALIDATIONS`, and the parts of a record that it is about; Confluent's settings are taken into account
    schema_action: str
    checks_keys: bool
    checks_values: bool

    def __init__(self, *, overrides: Mapping[str, str], broker: BrokerSettings, replication_factor: int = 1) -> None:
        problems = list(islice(_problems_of_overrides(overrides), PROBLEMS_MAX))
        if not problems:
            for row in TOPIC_SETTINGS.values():
                own = overrides.get(row.name)
                value = row.parse(own) if own is not None else _default_from_broker(row, broker)
                vars(self)[row.attribute] = value
            problems = list(self._conflicts())
        if problems:
            raise InvalidSettings(problems)
        vars(self).update(
            min_insync_replicas=min_insync_replicas(overrides, broker, replication_factor),
            compact="compact" in self.cleanup_policy,
            delete="delete" in self.cleanup_policy,
            log_append_time=self.message_timestamp_type == "LogAppendTime",
            **self._schema_checks(),
        )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: BrokerSettings, replication_factor: int = 1) -> Self:
        """Return the settings of a topic with these overrides and this many replicas. Raise InvalidSettings."""
        return cls(overrides=overrides, broker=broker, replication_factor=replication_factor)

    @classmethod
    def defaults(cls) -> Self:
        """A topic without overrides on a broker without settings."""
        return cls(overrides=NO_SETTINGS, broker=BrokerSettings())

    def _schema_checks(self) -> dict[str, object]:
        action, parts = self.schema_validation, self.schema_validation_parts
        if action == NO_VALIDATION:
            given = (("key", self.confluent_key_schema_validation), ("value", self.confluent_value_schema_validation))
            parts = tuple(part for part, is_checked in given if is_checked)
        if not parts:
            return {"schema_action": NO_VALIDATION, "checks_keys": False, "checks_values": False}
        action = REJECT if action == NO_VALIDATION else action
        return {"schema_action": action, "checks_keys": "key" in parts, "checks_values": "value" in parts}

    def _conflicts(self) -> Iterator[str]:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            yield (
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )


TOPIC_SETTINGS: Mapping[str, TopicSetting[Any]] = MappingProxyType(
    {name: row for name, row in TopicSettings.rows().items() if isinstance(row, TopicSetting)}
)


def _default_from_broker(row: TopicSetting[Any], broker: BrokerSettings) -> object:
    for synonym in row.synonyms:
        value = broker.value_of(synonym.name)
        if value is not None:
            return synonym.convert(value)
    return row.default


def min_insync_replicas(overrides: Mapping[str, str], broker: BrokerSettings, replication_factor: int) -> int:
    """Return ``min.insync.replicas`` of a topic whose settings are valid.

    Without a setting of the topic or of the broker, it is 2 for topics with three or more replicas, so that a record
    which is acknowledged with acks=all survives the loss of a broker. Kafka's default is 1.
    """
    own = overrides.get(_MIN_INSYNC)
    if own is not None:
        return TopicSettings.min_insync_replicas.parse(own)
    if broker.is_set(_MIN_INSYNC):
        return broker.min_insync_replicas
    return 2 if replication_factor >= 3 else 1


def validate_topic_overrides(overrides: Mapping[str, str | None]) -> None:
    """Raise InvalidSettings with a line for each unknown name, missing value, bad value and contradiction."""
    problems = list(islice(_problems_of_overrides(overrides), PROBLEMS_MAX))
    if problems:
        raise InvalidSettings(problems)
    given = {name: text for name, text in overrides.items() if text is not None}
    TopicSettings.resolve(given, BrokerSettings())


def _problems_of_overrides(overrides: Mapping[str, str | None]) -> Iterator[str]:
    for name, text in overrides.items():
        row = TOPIC_SETTINGS.get(name)
        if row is None:
            yield unknown_name(name, TOPIC_SETTINGS)
        elif text is None:
            yield f"{name} has no value; leave it out to use the broker's default"
        else:
            try:
                row.parse(text)
            except ValueError as error:
                yield str(error)
