"""The series of kafka_exporter. They have no label for the cluster."""

from __future__ import annotations

from ottla.edge.monitor.metric_view import MetricView
from ottla.edge.monitor.reading import GroupReading
from ottla.env.metrics import Page, label_text


def fill(page: Page, view: MetricView) -> None:
    reading = view.reading
    alive = [each for each in reading.brokers.values() if each.is_registered]
    page.gauge("kafka_brokers", "Brokers of the cluster.", len(alive))
    for each in alive:
        labels = label_text(id=each.id, address=f"{each.host}:{each.port}")
        page.gauge("kafka_broker_info", "A broker.", 1, labels)
    for topic, states in view.by_topic().items():
        page.gauge("kafka_topic_partitions", "Partitions of a topic.", len(states), label_text(topic=topic))
    for group in reading.groups.values():
        _fill_group(page, view, group)
    for state in view.partitions():
        name = state.name
        labels = label_text(topic=name.topic, partition=name.partition)
        if name in reading.log_ends:
            page.gauge("kafka_topic_partition_current_offset", "Log end.", reading.log_ends[name], labels)
        if name in reading.log_starts:
            page.gauge("kafka_topic_partition_oldest_offset", "Log start.", reading.log_starts[name], labels)
        leader = -1 if state.leader is None else state.leader
        page.gauge("kafka_topic_partition_leader", "Id of the leader; -1: none.", leader, labels)
        is_preferred = int(bool(state.replicas) and state.leader == state.preferred)
        text = "1 if the first replica leads."
        page.gauge("kafka_topic_partition_leader_is_preferred", text, is_preferred, labels)
        page.gauge("kafka_topic_partition_replicas", "Replicas.", len(state.replicas), labels)
        page.gauge("kafka_topic_partition_in_sync_replica", "In-sync replicas.", len(state.isr), labels)
        text = "1 if there are fewer in-sync replicas than replicas."
        page.gauge("kafka_topic_partition_under_replicated_partition", text, int(state.is_under_replicated), labels)


def _fill_group(page: Page, view: MetricView, group: GroupReading) -> None:
    of_group = label_text(consumergroup=group.group_id)
    if group.members is not None:
        page.gauge("kafka_consumergroup_members", "Members of a group.", group.members, of_group)
    for topic, rows in view.topic_rows(group).items():
        labels = f"{of_group},{label_text(topic=topic)}"
        page.gauge(
            "kafka_consumergroup_lag_sum", "Lag in a topic in records.", sum(row.lag or 0 for row in rows), labels
        )
        total = sum(row.committed or 0 for row in rows)
        page.gauge("kafka_consumergroup_current_offset_sum", "Sum of committed offsets.", total, labels)
    for row in view.rows(group):
        labels = f"{of_group},{label_text(topic=row.name.topic, partition=row.name.partition)}"
        if row.committed is not None:
            page.gauge("kafka_consumergroup_current_offset", "Committed offset.", row.committed, labels)
        if row.lag is not None:
            page.gauge("kafka_consumergroup_lag", "Lag in records.", row.lag, labels)
