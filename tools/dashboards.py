"""The dashboards of deploy/grafana: what their panels show. `generate_dashboards.py` writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Query(NamedTuple):
    """An expression of PromQL, and what the legend shows of each series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel. The first threshold makes it yellow, the second one red."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    #: timeseries, or stat for one number
    kind: str = "timeseries"
    thresholds: tuple[float | None, float | None] = (None, None)
    description: str = ""
    width: int = 8


class Variable(NamedTuple):
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str
    label: str


class Dashboard(NamedTuple):
    """One file."""

    uid: str
    title: str
    variables: Sequence[Variable]
    rows: Sequence[tuple[str, Sequence[Panel]]]


def _stat(title: str, expression: str, unit: str = "short", *, red: float | None = None, **more: Any) -> Panel:
    return Panel(title, [Query(expression)], unit, "stat", more.pop("thresholds", (None, red)), width=4, **more)


def _series(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    return Panel(title, [Query(*each) for each in queries], unit, **more)


_BROKERS = 'job="ottla-broker"'
_ON = 'instance=~"$instance"'
_MONITOR = 'cluster=~"$cluster"'
_LAG = 'cluster_name=~"$cluster", group=~"$group"'
_GROUP = 'cluster=~"$cluster", group=~"$group"'
_BURROW = 'cluster=~"$cluster", consumer_group=~"$group"'
_FLOW = 'pipeline=~"$pipeline"'
_TOPIC = 'topic=~"$topic"'

CLUSTER = Dashboard(
    "ottla-cluster",
    "Ottla: cluster",
    [Variable("cluster", "ottla_monitor_cluster_up", "cluster")],
    [
        (
            "State, as the monitor sees it",
            [
                _stat("Brokers", f"sum(ottla_monitor_broker_up{{{_MONITOR}}})"),
                _stat("Brokers that have left", f"sum(1 - ottla_monitor_broker_up{{{_MONITOR}}})", red=1),
                _stat("Offline partitions", f"sum(ottla_monitor_offline_partitions{{{_MONITOR}}})", red=1),
                _stat("Under min ISR", f"sum(ottla_monitor_under_min_isr_partitions{{{_MONITOR}}})", red=1),
                _stat(
                    "Under-replicated",
                    f"sum(ottla_monitor_under_replicated_partitions{{{_MONITOR}}})",
                    thresholds=(1, None),
                ),
                _stat("Open alerts", f'sum(ottla_alerts{{{_MONITOR}, state="open"}})', thresholds=(1, None)),
                _series(
                    "Findings of ottla doctor",
                    "short",
                    (f"ottla_monitor_findings{{{_MONITOR}}}", "{{check}} ({{severity}})"),
                    description="Objects that a check has found.",
                    width=12,
                ),
                _series(
                    "Open alerts",
                    "short",
                    (f'sum by (rule) (ottla_alerts{{{_MONITOR}, state="open"}}) > 0', "{{rule}}"),
                    width=12,
                ),
            ],
        ),
        (
            "Brokers",
            [
                _series("Bytes in", "Bps", (f"rate(ottla_bytes_in_total{{{_BROKERS}}}[5m])", "{{instance}}")),
                _series("Bytes out", "Bps", (f"rate(ottla_bytes_out_total{{{_BROKERS}}}[5m])", "{{instance}}")),
                _series(
                    "Requests",
                    "reqps",
                    (f"sum by (instance) (rate(ottla_requests_total{{{_BROKERS}}}[5m]))", "{{instance}}"),
                ),
                _series("Leaders", "short", (f"ottla_leaders{{{_BROKERS}}}", "{{instance}}")),
                _series(
                    "Data on disk",
                    "bytes",
                    (f"sum by (instance) (ottla_log_size_bytes{{{_BROKERS}}})", "{{instance}}"),
                ),
                _series(
                    "Controllers",
                    "short",
                    (f"sum(ottla_active_controller{{{_BROKERS}}})", "controllers"),
                    description="Always 1, except for seconds during an election.",
                ),
            ],
        ),
        (
            "Replication",
            [
                _series(
                    "ISR changes",
                    "short",
                    (f"sum(increase(ottla_isr_shrinks_total{{{_BROKERS}}}[5m]))", "shrinks in 5 minutes"),
                    (f"sum(increase(ottla_isr_expands_total{{{_BROKERS}}}[5m]))", "expands in 5 minutes"),
                ),
                _series(
                    "Elections",
                    "short",
                    (f"sum(increase(ottla_leader_elections_total{{{_BROKERS}}}[5m]))", "in 5 minutes"),
                    (f"sum(increase(ottla_unclean_leader_elections_total{{{_BROKERS}}}[5m]))", "unclean in 5 minutes"),
                ),
                _series(
                    "Largest lag of a replica",
                    "short",
                    (f"ottla_replication_max_lag_records{{{_BROKERS}}}", "{{instance}}"),
                ),
                _series(
                    "Partitions that are moved",
                    "short",
                    (f"sum(ottla_reassigning_partitions{{{_BROKERS}}})", "partitions"),
                ),
                _series(
                    "Replication traffic",
                    "Bps",
                    (f"rate(ottla_replication_bytes_in_total{{{_BROKERS}}}[5m])", "{{instance}}"),
                ),
                _series(
                    "Lost connections to ZooKeeper",
                    "short",
                    (f"increase(ottla_metadata_disconnects_total{{{_BROKERS}}}[5m])", "{{instance}}"),
                ),
            ],
        ),
    ],
)

BROKER = Dashboard(
    "ottla-broker",
    "Ottla: broker",
    [Variable("instance", "ottla_leaders", "instance")],
    [
        (
            "Load",
            [
                _series(
                    "Bytes",
                    "Bps",
                    (f"rate(ottla_bytes_in_total{{{_ON}}}[5m])", "in {{instance}}"),
                    (f"rate(ottla_bytes_out_total{{{_ON}}}[5m])", "out {{instance}}"),
                ),
                _series("Requests", "reqps", (f"sum by (api) (rate(ottla_requests_total{{{_ON}}}[5m]))", "{{api}}")),
                _series("Connections", "short", (f"ottla_connections{{{_ON}}}", "{{instance}}")),
                _series(
                    "Time of 99 % of Produce requests",
                    "s",
                    (
                        "histogram_quantile(0.99, sum by (le, instance) "
                        f'(rate(ottla_request_seconds_bucket{{{_ON}, api="Produce"}}[5m])))',
                        "{{instance}}",
                    ),
                ),
                _series(
                    "Time of 99 % of other requests",
                    "s",
                    (
                        "histogram_quantile(0.99, sum by (le, api) "
                        f'(rate(ottla_request_seconds_bucket{{{_ON}, api!~"Produce|Fetch"}}[5m])))',
                        "{{api}}",
                    ),
                    description="Without Fetch, whose requests wait for records, and Produce.",
                ),
                _series(
                    "Event loop",
                    "s",
                    (f"ottla_loop_lag_seconds{{{_ON}}}", "delay {{instance}}"),
                    (f"ottla_loop_stall_seconds_max{{{_ON}}}", "longest stall {{instance}}"),
                ),
            ],
        ),
        (
            "Storage and replicas",
            [
                _series("Syncs to disk", "ops", (f"rate(ottla_log_syncs_total{{{_ON}}}[5m])", "{{instance}}")),
                _series(
                    "Partitions",
                    "short",
                    (f"ottla_partitions{{{_ON}}}", "replicas {{instance}}"),
                    (f"ottla_leaders{{{_ON}}}", "leaders {{instance}}"),
                    (f"ottla_offline_replicas{{{_ON}}}", "offline {{instance}}"),
                ),
                _series(
                    "Data on disk", "bytes", (f"sum by (instance) (ottla_log_size_bytes{{{_ON}}})", "{{instance}}")
                ),
                _series(
                    "Under-replicated partitions",
                    "short",
                    (f"ottla_under_replicated_partitions{{{_ON}}}", "{{instance}}"),
                    (f"ottla_under_min_isr_partitions{{{_ON}}}", "under min ISR {{instance}}"),
                ),
                _series(
                    "Largest lag of a replica", "short", (f"ottla_replication_max_lag_records{{{_ON}}}", "{{instance}}")
                ),
                _series("Read errors", "short", (f"increase(ottla_read_errors_total{{{_ON}}}[5m])", "{{instance}}")),
            ],
        ),
        (
            "Clients",
            [
                _series(
                    "Throttled by quotas",
                    "ops",
                    (f"sum by (quota) (rate(ottla_throttled_total{{{_ON}}}[5m]))", "{{quota}}"),
                ),
                _series(
                    "Refused",
                    "ops",
                    (f"sum(rate(ottla_connections_refused_total{{{_ON}}}[5m]))", "connections"),
                    (f"sum(rate(ottla_frames_refused_total{{{_ON}}}[5m]))", "frames"),
                    (f"sum(rate(ottla_group_requests_refused_total{{{_ON}}}[5m]))", "requests of groups"),
                ),
                _series("Parked fetches", "short", (f"ottla_fetches_parked{{{_ON}}}", "{{instance}}")),
                _series(
                    "Rebalances",
                    "short",
                    (f"increase(ottla_group_rebalances_total{{{_ON}}}[5m])", "in 5 minutes {{instance}}"),
                ),
                _series(
                    "Transactions",
                    "ops",
                    (f"sum by (outcome) (rate(ottla_transactions_total{{{_ON}}}[5m]))", "{{outcome}}"),
                ),
                _series("Oldest open transaction", "s", (f"ottla_oldest_transaction_seconds{{{_ON}}}", "{{instance}}")),
            ],
        ),
    ],
)

TOPIC = Dashboard(
    "ottla-topic",
    "Ottla: topics",
    [Variable("topic", "kminion_kafka_topic_info", "topic_name")],
    [
        (
            "Topics",
            [
                _series(
                    "Records in",
                    "short",
                    (f"sum by (topic) (rate(kafka_topic_partition_current_offset{{{_TOPIC}}}[5m]))", "{{topic}}"),
                    description="Records per second, from the log ends.",
                    width=12,
                ),
                _series(
                    "Data on disk",
                    "bytes",
                    ('kminion_kafka_topic_log_dir_size_total_bytes{topic_name=~"$topic"}', "{{topic_name}}"),
                    description="Of all replicas.",
                    width=12,
                ),
                _series(
                    "Records kept",
                    "short",
                    (
                        f"sum by (topic) (kafka_topic_partition_current_offset{{{_TOPIC}}} - "
                        f"kafka_topic_partition_oldest_offset{{{_TOPIC}}})",
                        "{{topic}}",
                    ),
                    description="Offsets between log start and log end.",
                    width=12,
                ),
                _series(
                    "Under-replicated partitions",
                    "short",
                    (f"sum by (topic) (kafka_topic_partition_under_replicated_partition{{{_TOPIC}}})", "{{topic}}"),
                    width=12,
                ),
                _series("Partitions", "short", (f"kafka_topic_partitions{{{_TOPIC}}}", "{{topic}}"), width=12),
                _series(
                    "Partitions not led by the preferred replica",
                    "short",
                    (f"sum by (topic) (1 - kafka_topic_partition_leader_is_preferred{{{_TOPIC}}})", "{{topic}}"),
                    width=12,
                ),
                _series(
                    "Lag of groups in seconds",
                    "s",
                    (
                        f"max by (topic, group) (kafka_consumergroup_group_lag_seconds{{{_TOPIC}}})",
                        "{{group}} {{topic}}",
                    ),
                    width=24,
                ),
            ],
        ),
    ],
)

LAG = Dashboard(
    "ottla-lag",
    "Ottla: consumer lag",
    [
        Variable("cluster", "kafka_consumergroup_group_sum_lag", "cluster_name"),
        Variable("group", "kafka_consumergroup_group_sum_lag", "group"),
    ],
    [
        (
            "Groups",
            [
                _stat(
                    "Longest lag",
                    f"max(kafka_consumergroup_group_max_lag_seconds{{{_LAG}}})",
                    "s",
                    thresholds=(60, 900),
                ),
                _stat("Lag of all groups", f"sum(kafka_consumergroup_group_sum_lag{{{_LAG}}})"),
                _stat(
                    "Groups that stand still",
                    f"count(burrow_kafka_consumer_status{{{_BURROW}}} >= 3) or vector(0)",
                    red=1,
                    description="Burrow's status is ERR.",
                ),
                _series(
                    "Lag in seconds",
                    "s",
                    (f"kafka_consumergroup_group_max_lag_seconds{{{_LAG}}}", "{{group}}"),
                    description="Age of the oldest record that a group has not consumed.",
                    width=12,
                ),
                _series(
                    "Lag in records", "short", (f"kafka_consumergroup_group_sum_lag{{{_LAG}}}", "{{group}}"), width=12
                ),
                _series(
                    "Consumed",
                    "short",
                    (f"ottla_monitor_group_consumed_per_second{{{_GROUP}}}", "{{group}}"),
                    description="Records per second.",
                ),
                _series(
                    "Produced",
                    "short",
                    (f"ottla_monitor_group_produced_per_second{{{_GROUP}}}", "{{group}}"),
                    description="Records per second in the partitions that the group reads.",
                ),
                _series(
                    "Time until caught up",
                    "s",
                    (f"ottla_monitor_group_caught_up_seconds{{{_GROUP}}} < Inf", "{{group}}"),
                    description="At the present rates. Groups that never catch up are not shown.",
                ),
                _series(
                    "Burrow's status",
                    "short",
                    (f"burrow_kafka_consumer_status{{{_BURROW}}}", "{{consumer_group}}"),
                    description="1 OK, 2 WARN, 3 ERR.",
                ),
                _series(
                    "Members",
                    "short",
                    ('kminion_kafka_consumer_group_members{group_id=~"$group"}', "{{group_id}}"),
                ),
                _series(
                    "Commits",
                    "ops",
                    ('rate(kminion_kafka_consumer_group_offset_commits_total{group_id=~"$group"}[5m])', "{{group_id}}"),
                ),
            ],
        ),
        (
            "Partitions",
            [
                _series(
                    "Lag in seconds",
                    "s",
                    (f"topk(20, kafka_consumergroup_group_lag_seconds{{{_LAG}}})", "{{group}} {{topic}}-{{partition}}"),
                    description="The 20 longest.",
                    width=12,
                ),
                _series(
                    "Lag in records",
                    "short",
                    (f"topk(20, kafka_consumergroup_group_lag{{{_LAG}}})", "{{group}} {{topic}}-{{partition}}"),
                    description="The 20 largest.",
                    width=12,
                ),
            ],
        ),
    ],
)

PIPELINES = Dashboard(
    "ottla-pipelines",
    "Ottla: pipelines",
    [Variable("pipeline", "ottla_pipeline_up", "pipeline")],
    [
        (
            "Flows",
            [
                _stat("Flows that do not run", f"sum(1 - ottla_pipeline_up{{{_FLOW}}})", red=1),
                _stat("Lag of all flows", f"sum(ottla_pipeline_lag{{{_FLOW}}})"),
                _stat(
                    "Restarts in an hour",
                    f"sum(increase(ottla_pipeline_restarts_total{{{_FLOW}}}[1h]))",
                    thresholds=(1, 10),
                ),
                _series(
                    "Rows read",
                    "short",
                    (f"rate(ottla_pipeline_rows_read_total{{{_FLOW}}}[5m])", "{{pipeline}} {{flow}}"),
                    description="Rows per second.",
                    width=12,
                ),
                _series(
                    "Rows of the result",
                    "short",
                    (f"rate(ottla_pipeline_rows_total{{{_FLOW}}}[5m])", "{{pipeline}} {{flow}}"),
                    description="Rows per second.",
                    width=12,
                ),
                _series("Lag", "short", (f"ottla_pipeline_lag{{{_FLOW}}}", "{{pipeline}} {{flow}}"), width=12),
                _series(
                    "Rows not in the result",
                    "short",
                    (f"rate(ottla_pipeline_rows_quarantined_total{{{_FLOW}}}[5m])", "quarantined {{flow}}"),
                    (f"rate(ottla_pipeline_rows_dropped_total{{{_FLOW}}}[5m])", "dropped {{flow}}"),
                    (f"rate(ottla_pipeline_rows_late_total{{{_FLOW}}}[5m])", "late {{flow}}"),
                    description="Rows per second.",
                    width=12,
                ),
                _series(
                    "Violations of expectations",
                    "short",
                    (
                        f"sum by (flow, expectation) (rate(ottla_pipeline_violations_total{{{_FLOW}}}[5m]))",
                        "{{expectation}}",
                    ),
                    description="Rows per second.",
                    width=12,
                ),
                _series(
                    "Restarts",
                    "short",
                    (f"increase(ottla_pipeline_restarts_total{{{_FLOW}}}[5m])", "{{pipeline}} {{flow}}"),
                    width=12,
                ),
            ],
        ),
    ],
)

DASHBOARDS = (CLUSTER, BROKER, TOPIC, LAG, PIPELINES)
