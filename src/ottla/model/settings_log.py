"""The broker's settings of the log: durability, segments, retention, records and the cleaner."""

from ottla.model.setting_types import (
    ANY,
    BOOL,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
    SettingsSnapshot,
    at_least,
    between,
    list_of,
    one_of,
    or_else,
)

TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
COMPRESSION_TYPES = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = list_of("compact", "delete")
GZIP_LEVELS = or_else(between(1, 9), -1, "zlib's default")
LZ4_LEVELS = between(1, 17)
ZSTD_LEVELS = between(-131072, 22)
RETENTION = or_else(at_least(1), -1, "no limit")


class LogSettings(SettingsSnapshot):
    """The log's part of the broker's table."""

    # Durability

    log_flush_acks_all = Setting(
        "log.flush.acks.all",
        BOOL,
        True,
        ANY,
        "Ottla only. True: acks=all is answered after the records are on disk (fdatasync, shared by many "
        "requests). False: Kafka's behaviour, answered from the page cache.",
        dynamic=True,
    )
    sync_threads = Setting(
        "sync.threads",
        INT,
        16,
        between(1, 64),
        "Ottla only. Files that may be synced to disk at the same time.",
    )
    log_flush_interval_messages = Setting(
        "log.flush.interval.messages",
        LONG,
        LONG_MAX,
        at_least(1),
        "Sync a partition after this many records, independent of acks.",
        dynamic=True,
    )
    log_flush_interval_ms = Setting(
        "log.flush.interval.ms",
        LONG,
        None,
        at_least(0),
        "Sync a partition when its oldest unsynced record is this old. Not set: `log.flush.scheduler.interval.ms`.",
        dynamic=True,
    )
    log_flush_scheduler_interval_ms = Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        at_least(0),
        "How often to check which partitions must be synced by `log.flush.interval.ms`.",
    )
    log_flush_offset_checkpoint_interval_ms = Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        at_least(0),
        "How often recovery points are written to the checkpoint file; recovery after a crash starts there.",
    )
    log_flush_start_offset_checkpoint_interval_ms = Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        at_least(0),
        "How often log start offsets are written to the checkpoint file.",
    )

    # Segments and retention

    log_segment_bytes = Setting(
        "log.segment.bytes",
        INT,
        1_073_741_824,
        at_least(14),
        "Largest segment file.",
        dynamic=True,
    )
    log_roll_ms = Setting(
        "log.roll.ms",
        LONG,
        None,
        at_least(1),
        "Age at which a segment is rolled. Not set: `log.roll.hours`.",
        dynamic=True,
    )
    log_roll_hours = Setting("log.roll.hours", INT, 168, at_least(1), "As `log.roll.ms`, in hours.")
    log_roll_jitter_ms = Setting(
        "log.roll.jitter.ms",
        LONG,
        None,
        at_least(0),
        "Maximum random reduction of `log.roll.ms`, so that partitions do not roll at the same time. "
        "Not set: `log.roll.jitter.hours`.",
        dynamic=True,
    )
    log_roll_jitter_hours = Setting("log.roll.jitter.hours", INT, 0, at_least(0), "As `log.roll.jitter.ms`, in hours.")
    log_retention_ms = Setting(
        "log.retention.ms",
        LONG,
        None,
        RETENTION,
        "Age at which segments may be deleted. Not set: `log.retention.minutes`.",
        dynamic=True,
    )
    log_retention_minutes = Setting(
        "log.retention.minutes",
        INT,
        None,
        RETENTION,
        "As `log.retention.ms`, in minutes. Not set: `log.retention.hours`.",
    )
    log_retention_hours = Setting("log.retention.hours", INT, 168, RETENTION, "As `log.retention.ms`, in hours.")
    log_retention_bytes = Setting(
        "log.retention.bytes",
        LONG,
        -1,
        ANY,
        "Size of a partition above which its oldest segments may be deleted; -1: no limit.",
        dynamic=True,
    )
    log_retention_check_interval_ms = Setting(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        at_least(1),
        "How often segments are checked for deletion.",
    )
    log_segment_delete_delay_ms = Setting(
        "log.segment.delete.delay.ms",
        LONG,
        60_000,
        at_least(0),
        "Time between a segment's removal from the log and the deletion of its file.",
        dynamic=True,
    )
    log_cleanup_policy = Setting(
        "log.cleanup.policy",
        LIST,
        ("delete",),
        CLEANUP_POLICIES,
        "Treatment of old segments: `delete` by age and size, `compact` to the last value per key, both, or neither.",
        dynamic=True,
    )
    log_index_size_max_bytes = Setting(
        "log.index.size.max.bytes", INT, 10_485_760, at_least(4), "Largest index file.", dynamic=True
    )
    log_index_interval_bytes = Setting(
        "log.index.interval.bytes",
        INT,
        4096,
        at_least(0),
        "Bytes of records between two entries of an index.",
        dynamic=True,
    )
    log_preallocate = Setting(
        "log.preallocate", BOOL, False, ANY, "Reserve a segment's full size when it is created.", dynamic=True
    )

    # Records

    message_max_bytes = Setting(
        "message.max.bytes",
        INT,
        1_048_588,
        at_least(0),
        "Largest record batch, after compression.",
        dynamic=True,
    )
    log_message_timestamp_type = Setting(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        TIMESTAMP_TYPES,
        "Timestamp of a record: that of the producer (CreateTime) or of the broker (LogAppendTime).",
        dynamic=True,
    )
    log_message_timestamp_before_max_ms = Setting(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        at_least(0),
        "A record with a timestamp further in the past is refused (CreateTime only).",
        dynamic=True,
    )
    log_message_timestamp_after_max_ms = Setting(
        "log.message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        at_least(0),
        "A record with a timestamp further in the future is refused (CreateTime only).",
        dynamic=True,
    )
    compression_type = Setting(
        "compression.type",
        STRING,
        "producer",
        COMPRESSION_TYPES,
        "Compression of stored batches; `producer` keeps the compression of the producer.",
        dynamic=True,
    )
    compression_gzip_level = Setting(
        "compression.gzip.level", INT, -1, GZIP_LEVELS, "Level when `compression.type` is gzip.", dynamic=True
    )
    compression_lz4_level = Setting(
        "compression.lz4.level", INT, 9, LZ4_LEVELS, "Level when `compression.type` is lz4.", dynamic=True
    )
    compression_zstd_level = Setting(
        "compression.zstd.level", INT, 3, ZSTD_LEVELS, "Level when `compression.type` is zstd.", dynamic=True
    )
    producer_id_expiration_ms = Setting(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        at_least(1),
        "Time without a batch after which a partition expires the sequence numbers of an idempotent producer.",
        dynamic=True,
    )
    producer_id_max_count = Setting(
        "producer.id.max.count",
        INT,
        150_000,
        at_least(1000),
        "Ottla's own. Most idempotent producers, counted once per partition, whose sequence numbers this broker keeps. "
        "With more, those that have been idle longest expire early, in the partitions that have most of them.",
        dynamic=True,
    )

    # Log cleaner

    log_cleaner_enable = Setting("log.cleaner.enable", BOOL, True, ANY, "Run compaction.")
    log_cleaner_threads = Setting(
        "log.cleaner.threads", INT, 1, at_least(0), "Partitions compacted at once.", dynamic=True, used=False
    )
    log_cleaner_dedupe_buffer_size = Setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        at_least(1_048_576),
        "Memory for the keys of the partition being compacted.",
        dynamic=True,
    )
    log_cleaner_io_buffer_size = Setting(
        "log.cleaner.io.buffer.size",
        INT,
        524_288,
        at_least(0),
        "Bytes read at once by compaction.",
        dynamic=True,
    )
    log_cleaner_io_buffer_load_factor = Setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        between(0, 1),
        "Maximum load factor of the memory for keys.",
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second = Setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        at_least(0),
        "Maximum bytes that compaction reads and writes per second.",
        dynamic=True,
        used=False,
    )
    log_cleaner_backoff_ms = Setting(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        at_least(0),
        "Pause when there is nothing to compact.",
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio = Setting(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        between(0, 1),
        "Minimum share of a log that was appended since its last compaction before it is compacted again.",
        dynamic=True,
    )
    log_cleaner_delete_retention_ms = Setting(
        "log.cleaner.delete.retention.ms",
        LONG,
        86_400_000,
        at_least(0),
        "Time that tombstones (records without a value) stay readable after compaction.",
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms = Setting(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        at_least(0),
        "Minimum age at which compaction may remove a record.",
        dynamic=True,
    )
    log_cleaner_max_compaction_lag_ms = Setting(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        at_least(1),
        "Maximum age of a record that is not compacted yet, independent of the ratio.",
        dynamic=True,
    )
