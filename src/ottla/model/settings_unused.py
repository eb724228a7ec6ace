"""Kafka's dynamic broker settings that have no effect here: accepted, stored, and shown by DescribeConfigs.

Operators and tools change them on any cluster; refusing them would break scripts for no benefit. Settings whose
absence would leave something unprotected are refused instead: see `settings_foreign`. Rows of TLS and Kerberos, which
a listener can have for itself, are in `settings_security`.
"""

from ottla.model.setting_types import ANY, BOOL, INT, LONG, LONG_MAX, SettingsSnapshot, at_least, unused


class UnusedSettings(SettingsSnapshot):
    """Rows of threads, tiered storage and protocols that Ottla does not have."""

    # Threads and buffers

    num_network_threads = unused(
        "num.network.threads", INT, 3, at_least(1), "Kafka's network threads. Ottla has one event loop."
    )
    num_io_threads = unused("num.io.threads", INT, 8, at_least(1), "Kafka's request threads. Ottla has one event loop.")
    num_replica_fetchers = unused(
        "num.replica.fetchers", INT, 1, at_least(1), "Connections a follower opens to each leader."
    )
    background_threads = unused(
        "background.threads", INT, 10, at_least(1), "Kafka's background threads. Ottla has one event loop."
    )
    num_recovery_threads_per_data_dir = unused(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        at_least(1),
        "Kafka's threads for recovery after an unclean stop. Ottla recovers one partition after another.",
    )
    group_coordinator_cached_buffer_max_bytes = unused(
        "group.coordinator.cached.buffer.max.bytes",
        INT,
        1_048_588,
        at_least(524_288),
        "Largest buffer that Kafka's group coordinator keeps for reuse.",
    )
    share_coordinator_cached_buffer_max_bytes = unused(
        "share.coordinator.cached.buffer.max.bytes",
        INT,
        1_048_588,
        at_least(524_288),
        "Largest buffer that Kafka's share coordinator keeps for reuse.",
    )

    # Assignments: targets are computed at once

    group_consumer_assignment_interval_ms = unused(
        "group.consumer.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        "Time between two assignments of a consumer group. Ottla assigns at once.",
    )
    group_share_assignment_interval_ms = unused(
        "group.share.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        "Time between two assignments of a share group. Ottla has no share groups.",
    )
    group_streams_assignment_interval_ms = unused(
        "group.streams.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        "Time between two assignments of a streams group. Ottla has no streams groups.",
    )

    # Tiered storage, which Ottla does not have

    log_local_retention_bytes = unused(
        "log.local.retention.bytes",
        LONG,
        -2,
        at_least(-2),
        "Local size of a partition in remote storage; -2: `log.retention.bytes`.",
    )
    log_local_retention_ms = unused(
        "log.local.retention.ms",
        LONG,
        -2,
        at_least(-2),
        "Age at which segments in remote storage leave the local disk; -2: `log.retention.ms`.",
    )
    follower_fetch_last_tiered_offset_enable = unused(
        "follower.fetch.last.tiered.offset.enable",
        BOOL,
        False,
        ANY,
        "Let an empty follower start behind the last offset in remote storage.",
    )
    remote_fetch_max_wait_ms = unused(
        "remote.fetch.max.wait.ms", INT, 500, at_least(1), "Time a fetch from remote storage may wait."
    )
    remote_list_offsets_request_timeout_ms = unused(
        "remote.list.offsets.request.timeout.ms",
        LONG,
        30_000,
        at_least(1),
        "Time that finding an offset in remote storage may take.",
    )
    remote_log_index_file_cache_total_size_bytes = unused(
        "remote.log.index.file.cache.total.size.bytes",
        LONG,
        1_073_741_824,
        at_least(1),
        "Disk space for indexes from remote storage.",
    )
    remote_log_manager_copier_thread_pool_size = unused(
        "remote.log.manager.copier.thread.pool.size", INT, 10, at_least(1), "Threads that copy to remote storage."
    )
    remote_log_manager_expiration_thread_pool_size = unused(
        "remote.log.manager.expiration.thread.pool.size",
        INT,
        10,
        at_least(1),
        "Threads that delete from remote storage.",
    )
    remote_log_manager_follower_thread_pool_size = unused(
        "remote.log.manager.follower.thread.pool.size",
        INT,
        2,
        at_least(1),
        "Threads in which followers read offsets of remote storage.",
    )
    remote_log_manager_copy_max_bytes_per_second = unused(
        "remote.log.manager.copy.max.bytes.per.second",
        LONG,
        LONG_MAX,
        at_least(1),
        "Bytes per second copied to remote storage.",
    )
    remote_log_manager_fetch_max_bytes_per_second = unused(
        "remote.log.manager.fetch.max.bytes.per.second",
        LONG,
        LONG_MAX,
        at_least(1),
        "Bytes per second fetched from remote storage.",
    )
    remote_log_reader_threads = unused(
        "remote.log.reader.threads", INT, 10, at_least(1), "Threads that read from remote storage."
    )
