"""The broker's settings of the group and transaction coordinators.

The internal topics have one replica by default, as one node can hold no more.
"""

from ottla.model.setting_types import (
    ANY,
    BOOL,
    INT,
    INT_MAX,
    LIST,
    LONG,
    SHORT,
    STRING,
    Setting,
    SettingsSnapshot,
    at_least,
    between,
    list_of,
    one_of,
)


class CoordinatorSettings(SettingsSnapshot):
    """The coordinators' part of the broker's table."""

    # Groups and offsets

    group_min_session_timeout_ms = Setting(
        "group.min.session.timeout.ms",
        INT,
        6000,
        at_least(1),
        "Shortest session timeout a member may ask for.",
    )
    group_max_session_timeout_ms = Setting(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        at_least(1),
        "Longest session timeout a member may ask for.",
    )
    group_initial_rebalance_delay_ms = Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        3000,
        at_least(0),
        "Time an empty group waits for more members before its first rebalance.",
    )
    group_max_size = Setting("group.max.size", INT, INT_MAX, at_least(1), "Most members of a group.")
    group_max_members_per_ip = Setting(
        "group.max.members.per.ip",
        INT,
        10_000,
        at_least(1),
        "Ottla's own. Most members, in all groups of this broker, from one address. Another one gets "
        "GROUP_MAX_SIZE_REACHED.",
        dynamic=True,
    )
    group_max_groups_per_ip = Setting(
        "group.max.groups.per.ip",
        INT,
        20_000,
        at_least(1),
        "Ottla's own. Most groups of this broker that clients from one address have created since its start. Another "
        "one gets POLICY_VIOLATION.",
        dynamic=True,
    )
    group_max_metadata_bytes_per_ip = Setting(
        "group.max.metadata.bytes.per.ip",
        INT,
        33_554_432,
        at_least(1),
        "Ottla's own. Most bytes of member metadata and group names from one address. Another member gets "
        "POLICY_VIOLATION.",
        dynamic=True,
    )
    group_member_max_metadata_bytes = Setting(
        "group.member.max.metadata.bytes",
        INT,
        1_048_576,
        at_least(1),
        "Ottla's own. Most bytes of metadata that a member joins with. A larger JoinGroup gets POLICY_VIOLATION.",
        dynamic=True,
    )
    group_consumer_session_timeout_ms = Setting(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        at_least(1),
        "Session timeout under the consumer protocol.",
    )
    group_consumer_min_session_timeout_ms = Setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        45_000,
        at_least(1),
        "Shortest session timeout of a group.",
    )
    group_consumer_max_session_timeout_ms = Setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        60_000,
        at_least(1),
        "Longest session timeout of a group.",
    )
    group_consumer_heartbeat_interval_ms = Setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        "Heartbeat interval under the consumer protocol.",
    )
    group_consumer_min_heartbeat_interval_ms = Setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        "Shortest heartbeat interval of a group.",
    )
    group_consumer_max_heartbeat_interval_ms = Setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15_000,
        at_least(1),
        "Longest heartbeat interval of a group.",
    )
    group_consumer_min_assignment_interval_ms = Setting(
        "group.consumer.min.assignment.interval.ms",
        INT,
        0,
        at_least(0),
        "Shortest assignment interval of a group.",
    )
    group_consumer_max_assignment_interval_ms = Setting(
        "group.consumer.max.assignment.interval.ms",
        INT,
        15_000,
        at_least(0),
        "Longest assignment interval of a group.",
    )
    group_consumer_max_size = Setting(
        "group.consumer.max.size",
        INT,
        INT_MAX,
        at_least(1),
        "Maximum number of members under the consumer protocol.",
    )
    group_consumer_assignors = Setting(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        list_of("uniform", "range"),
        "Assignors of the consumer protocol, the first is the default.",
    )
    group_consumer_migration_policy = Setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        "Allowed migrations of groups between the classic and the consumer protocol.",
    )
    offsets_topic_num_partitions = Setting(
        "offsets.topic.num.partitions",
        INT,
        50,
        at_least(1),
        "Partitions of `__consumer_offsets`.",
    )
    offsets_topic_replication_factor = Setting(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        at_least(1),
        "Replicas of `__consumer_offsets`. Not set: 3, or as many as there are brokers when the topic is created.",
    )
    offsets_topic_segment_bytes = Setting(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        at_least(1),
        "Segment size of `__consumer_offsets`.",
    )
    offsets_topic_compression_codec = Setting(
        "offsets.topic.compression.codec",
        INT,
        0,
        between(0, 4),
        "Compression of `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    offsets_retention_minutes = Setting(
        "offsets.retention.minutes",
        INT,
        10_080,
        at_least(1),
        "Time that offsets of an empty group are kept.",
    )
    offsets_retention_check_interval_ms = Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        at_least(1),
        "How often offsets are checked for expiry.",
    )
    offsets_commit_timeout_ms = Setting(
        "offsets.commit.timeout.ms",
        INT,
        5000,
        at_least(1),
        "Time a commit may wait for the replicas.",
    )
    offset_metadata_max_bytes = Setting(
        "offset.metadata.max.bytes",
        INT,
        4096,
        at_least(0),
        "Maximum size of the metadata text of an offset commit.",
    )
    offsets_load_buffer_size = Setting(
        "offsets.load.buffer.size",
        INT,
        5_242_880,
        at_least(1),
        "Bytes read at once when offsets are loaded.",
        used=False,
    )
    group_verify_interval_ms = Setting(
        "group.verify.interval.ms",
        INT,
        0,
        at_least(0),
        "How often a running broker compares its groups with a replay of their log; 0: never. For tests.",
    )

    # Transactions

    transaction_state_log_num_partitions = Setting(
        "transaction.state.log.num.partitions",
        INT,
        50,
        at_least(1),
        "Partitions of `__transaction_state`.",
    )
    transaction_state_log_replication_factor = Setting(
        "transaction.state.log.replication.factor",
        SHORT,
        3,
        at_least(1),
        "Replicas of `__transaction_state`. Not set: 3, or as many as there are brokers when the topic is created.",
    )
    transaction_state_log_min_isr = Setting(
        "transaction.state.log.min.isr",
        INT,
        2,
        at_least(1),
        "In-sync replicas that `__transaction_state` needs. Not set: 2, or 1 with fewer than three replicas.",
    )
    transaction_state_log_segment_bytes = Setting(
        "transaction.state.log.segment.bytes",
        INT,
        104_857_600,
        at_least(1),
        "Segment size of `__transaction_state`.",
    )
    transaction_state_log_load_buffer_size = Setting(
        "transaction.state.log.load.buffer.size",
        INT,
        5_242_880,
        at_least(1),
        "Bytes read at once when transactions are loaded.",
        used=False,
    )
    transaction_max_timeout_ms = Setting(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        at_least(1),
        "Longest transaction timeout a producer may ask for.",
    )
    transactional_id_expiration_ms = Setting(
        "transactional.id.expiration.ms",
        INT,
        604_800_000,
        at_least(1),
        "Time without use after which a transactional id expires.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        at_least(1),
        "How often timed-out transactions are aborted.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3_600_000,
        at_least(1),
        "How often expired transactional ids are removed. Ottla removes them together with timed-out transactions.",
        used=False,
    )
    transaction_partition_verification_enable = Setting(
        "transaction.partition.verification.enable",
        BOOL,
        True,
        ANY,
        "Check that a partition was added to a transaction before its records are accepted. Ottla always does.",
        dynamic=True,
        used=False,
    )
