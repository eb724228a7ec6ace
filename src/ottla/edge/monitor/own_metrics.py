"""The monitor's own series: its work, the health of the cluster, and forecasts. They have a label `cluster`."""

from __future__ import annotations

import math

from ottla.edge.monitor.histories import Histories
from ottla.edge.monitor.metric_view import MetricView
from ottla.env.metrics import Page, label_text


def fill_state(page: Page, view: MetricView, histories: Histories, failed: int) -> None:
    """Write what the monitor says about its work; also for a cluster that does not answer."""
    reading = view.reading
    cluster = label_text(cluster=reading.cluster)
    page.gauge("ottla_monitor_cluster_up", "1 if the last round was read, else 0.", int(reading.is_fresh), cluster)
    page.counter("ottla_monitor_rounds", "Rounds of readings.", reading.number, cluster)
    page.counter("ottla_monitor_rounds_failed", "Rounds in which no broker answered.", failed, cluster)
    page.gauge("ottla_monitor_round_seconds", "How long the last round took.", reading.seconds, cluster)
    page.gauge("ottla_monitor_read_time_seconds", "When the figures were read.", reading.read_at_ms / 1000, cluster)
    page.gauge("ottla_monitor_notes", "Reasons why figures of the last round are missing.", len(reading.notes), cluster)
    text = "Partitions with commits of groups whose commits are kept."
    page.gauge("ottla_monitor_windows", text, histories.windows, cluster)
    text = "Commits that were not kept, because there are too many partitions."
    page.counter("ottla_monitor_windows_left_out", text, histories.left_out, cluster)
    text = "Topics without series of their own, because there are too many."
    page.gauge("ottla_monitor_topics_left_out", text, view.topics_left_out, cluster)


def fill_health(page: Page, view: MetricView) -> None:
    """Write the health of the cluster."""
    reading = view.reading
    cluster = label_text(cluster=reading.cluster)
    text = "Partitions without a leader."
    page.gauge("ottla_monitor_offline_partitions", text, sum(1 for _ in reading.offline()), cluster)
    text = "Partitions with fewer in-sync replicas than replicas."
    page.gauge("ottla_monitor_under_replicated_partitions", text, sum(1 for _ in reading.under_replicated()), cluster)
    text = "Partitions with fewer in-sync replicas than min.insync.replicas."
    page.gauge("ottla_monitor_under_min_isr_partitions", text, sum(1 for _ in reading.below_min_insync()), cluster)
    for each in reading.brokers.values():
        labels = f"{cluster},{label_text(broker=each.id)}"
        page.gauge("ottla_monitor_broker_up", "1 if the metadata name the broker.", int(each.is_registered), labels)
    for finding in reading.findings:
        labels = f"{cluster},{label_text(check=finding.check, severity=finding.severity.name.lower())}"
        text = "Objects that a check of ottla doctor found."
        page.gauge("ottla_monitor_findings", text, max(len(finding.names), 1), labels)


def fill_forecasts(page: Page, view: MetricView) -> None:
    """Write how fast groups consume, and when they will have caught up."""
    for name, group in view.reading.groups.items():
        labels = label_text(cluster=view.reading.cluster, group=name)
        found = group.forecast
        if found.consumed_per_s is not None:
            text = "Records per second that a group consumes."
            page.gauge("ottla_monitor_group_consumed_per_second", text, found.consumed_per_s, labels)
        if found.produced_per_s is not None:
            text = "Records per second that arrive for a group."
            page.gauge("ottla_monitor_group_produced_per_second", text, found.produced_per_s, labels)
        wait_s = math.inf if found.is_never else found.caught_up_in_s
        if wait_s is not None:
            text = "Seconds until a group has caught up; +Inf: never at this rate."
            page.gauge("ottla_monitor_group_caught_up_seconds", text, wait_s, labels)
