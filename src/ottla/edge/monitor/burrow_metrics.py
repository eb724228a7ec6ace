"""Burrow's series. Offsets and states of partitions only with a full window of commits, as in Burrow."""

from __future__ import annotations

from ottla.edge.monitor.metric_view import MetricView
from ottla.env.metrics import Page, label_text
from ottla.lag.burrow import Status


def fill(page: Page, view: MetricView) -> None:
    reading = view.reading
    cluster = label_text(cluster=reading.cluster)
    known = [each for each in reading.groups.values() if each.status is not Status.NOTFOUND]
    for group in known:
        labels = f"{cluster},{label_text(consumer_group=group.group_id)}"
        _lag_total(page, group.verdict.total_lag, labels)
        text = "Verdict: 1 OK, 2 WARN, 3 ERR."
        page.gauge("burrow_kafka_consumer_status", text, int(group.status), labels)
    for group in known if view.shows_partitions else ():
        for each in group.verdict.partitions:
            if each.name.topic not in view.topics:
                continue
            where = label_text(consumer_group=group.group_id, topic=each.name.topic, partition=each.name.partition)
            labels = f"{cluster},{where}"
            text = "Lag of a partition in records."
            page.gauge("burrow_kafka_consumer_partition_lag", text, each.current_lag, labels)
            if each.complete == 1.0 and each.end is not None:
                page.gauge("burrow_kafka_consumer_current_offset", "Last committed offset.", each.end.offset, labels)
                text = "Verdict: 1 OK, 2 WARN, 4 STOP, 5 STALL, 6 REWIND."
                page.gauge("burrow_kafka_topic_partition_status", text, int(each.status), labels)
    for state in view.partitions():
        if state.name in reading.log_ends:
            labels = f"{cluster},{label_text(topic=state.name.topic, partition=state.name.partition)}"
            page.gauge("burrow_kafka_topic_partition_offset", "Log end.", reading.log_ends[state.name], labels)


def _lag_total(page: Page, value: int, labels: str) -> None:
    page.gauge("burrow_kafka_consumer_lag_total", "Lag of all partitions in records.", value, labels)
