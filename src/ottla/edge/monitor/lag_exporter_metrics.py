"""The series of Kafka Lag Exporter. `cluster_name` is the name of the cluster in the settings of the monitor.

A lag that is not known has no series; Kafka Lag Exporter writes NaN, which spoils sums and maxima.
"""

from __future__ import annotations

from typing import Final

from ottla.edge.monitor.metric_view import MetricView
from ottla.edge.monitor.reading import GroupReading
from ottla.env.metrics import Page, label_text
from ottla.lag.types import PartitionLag

_GROUP: Final = "kafka_consumergroup_group"


def fill(page: Page, view: MetricView) -> None:
    reading = view.reading
    cluster = label_text(cluster_name=reading.cluster)
    page.gauge("kafka_consumergroup_poll_time_ms", "How long the last round took.", reading.seconds * 1000, cluster)
    for group in reading.groups.values():
        _fill_group(page, group, f"{cluster},{label_text(group=group.group_id)}")
    for group in reading.groups.values():
        labels = f"{cluster},{label_text(group=group.group_id)}"
        for topic, rows in view.topic_rows(group).items():
            text, total = "Lag of a topic's partitions.", sum(row.lag or 0 for row in rows)
            page.gauge(f"{_GROUP}_topic_sum_lag", text, total, f"{labels},{label_text(topic=topic)}")
        for row in view.rows(group):
            _fill_row(page, row, labels)
    for each in view.partitions():
        name = each.name
        labels = f"{cluster},{label_text(topic=name.topic, partition=name.partition)}"
        if name in reading.log_ends:
            page.gauge("kafka_partition_latest_offset", "Log end.", reading.log_ends[name], labels)
        if name in reading.log_starts:
            page.gauge("kafka_partition_earliest_offset", "Log start.", reading.log_starts[name], labels)


def _fill_group(page: Page, group: GroupReading, labels: str) -> None:
    lags = [row.lag for row in group.lag.partitions.values() if row.lag is not None]
    if not lags:
        return
    state = group.lag.group
    simple = "true" if state is not None and state.is_simple else "false"
    full = f"{labels},{label_text(state=group.state, is_simple_consumer=simple)}"
    page.gauge(f"{_GROUP}_max_lag", "Largest lag of a partition in records.", max(lags), full)
    if group.seconds is not None:
        page.gauge(f"{_GROUP}_max_lag_seconds", "Longest time lag of a partition.", group.seconds, full)
    page.gauge(f"{_GROUP}_sum_lag", "Lag of all partitions in records.", sum(lags), labels)


def _fill_row(page: Page, row: PartitionLag, group: str) -> None:
    labels = f"{group},{_labels(row)}"
    if row.committed is not None:
        page.gauge(f"{_GROUP}_offset", "Committed offset.", row.committed, labels)
    if row.lag is not None:
        page.gauge(f"{_GROUP}_lag", "Records that are not consumed yet.", row.lag, labels)
    if row.time_lag_ms is not None:
        text = "Now minus the time of the first record that is not consumed yet."
        page.gauge(f"{_GROUP}_lag_seconds", text, row.time_lag_ms / 1000, labels)


def _labels(row: PartitionLag) -> str:
    each = row.member
    return label_text(
        topic=row.name.topic,
        partition=row.name.partition,
        member_host="" if each is None else each.host,
        consumer_id="" if each is None else each.member_id,
        client_id="" if each is None else each.client_id,
    )
