"""KMinion's series. They have no label for the cluster."""

from __future__ import annotations

from typing import Final

from ottla import __version__
from ottla.edge.monitor.metric_view import MetricView
from ottla.edge.monitor.reading import ClusterReading, GroupReading
from ottla.env.metrics import Page, label_text
from ottla.health.types import ClusterPicture, TopicPicture

_KAFKA: Final = "kminion_kafka"
_GROUP: Final = f"{_KAFKA}_consumer_group"
_FETCH: Final = 1
#: the newest version of Fetch -> the release of Kafka that brought it
_RELEASES: Final = {
    4: "v0.11", 6: "v1.0", 8: "v2.0", 10: "v2.1", 11: "v2.3", 12: "v2.7", 13: "v3.1", 14: "v3.5", 15: "v3.5",
    16: "v3.7", 17: "v3.9", 18: "v4.1",
}  # fmt: skip


def fill(page: Page, view: MetricView) -> None:
    reading = view.reading
    page.gauge(
        "kminion_exporter_up", "1 if the last round was read.", int(reading.is_fresh), label_text(version=__version__)
    )
    _fill_cluster(page, reading)
    for group in reading.groups.values():
        _fill_group(page, group)
    _fill_topics(page, view)
    for group in reading.groups.values():
        _fill_group_topics(page, view, group)
    for state in view.partitions():
        name = state.name
        labels = label_text(topic_name=name.topic, partition_id=name.partition)
        if name in reading.log_ends:
            page.gauge(f"{_KAFKA}_topic_partition_high_water_mark", "Log end.", reading.log_ends[name], labels)
        if name in reading.log_starts:
            page.gauge(f"{_KAFKA}_topic_partition_low_water_mark", "Log start.", reading.log_starts[name], labels)


def _fill_cluster(page: Page, reading: ClusterReading) -> None:
    picture = reading.picture
    alive = [each for each in reading.brokers.values() if each.is_registered]
    labels = label_text(
        cluster_id=reading.cluster_id,
        cluster_version=_version(picture),
        broker_count=len(alive),
        controller_id=-1 if reading.controller_id is None else reading.controller_id,
    )
    page.gauge(f"{_KAFKA}_cluster_info", "The cluster.", 1, labels)
    for each in alive:
        where = label_text(broker_id=each.id, address=each.host, port=each.port, rack_id=each.rack or "")
        labels = f"{where},{label_text(is_controller=str(each.is_controller).lower())}"
        page.gauge(f"{_KAFKA}_broker_info", "A broker.", 1, labels)
        broker = picture.brokers.get(each.id) if picture is not None else None
        if broker is not None and broker.directories:
            size = sum(one.size_bytes for one in broker.directories)
            page.gauge(f"{_KAFKA}_broker_log_dir_size_total_bytes", "Bytes of all replicas of a broker.", size, where)


def _version(picture: ClusterPicture | None) -> str:
    """Return the oldest release whose versions of Fetch the brokers have; unknown if none has said."""
    newest = (
        [each.versions[_FETCH][1] for each in picture.brokers.values() if _FETCH in each.versions] if picture else []
    )
    if not newest:
        return "unknown"
    return next((name for version, name in sorted(_RELEASES.items()) if version >= min(newest)), "v4.1")


def _fill_group(page: Page, group: GroupReading) -> None:
    labels = label_text(group_id=group.group_id)
    state = group.lag.group
    if state is not None:
        info = label_text(
            protocol=state.assignor or "", protocol_type="consumer", state=state.state,
            coordinator_id=state.coordinator.broker_id,
        )  # fmt: skip
        page.gauge(f"{_GROUP}_info", "A group.", 1, f"{labels},{info}")
        page.gauge(f"{_GROUP}_members", "Members of a group.", len(state.members), labels)
        empty = sum(not each.partitions for each in state.members)
        page.gauge(f"{_GROUP}_empty_members", "Members without partitions.", empty, labels)
    page.counter(f"{_GROUP}_offset_commits", "Commits that were seen.", group.commits, labels)


def _fill_group_topics(page: Page, view: MetricView, group: GroupReading) -> None:
    of_group = label_text(group_id=group.group_id)
    members: dict[str, set[str]] = {}
    assigned: dict[str, int] = {}
    for row in group.lag.partitions.values() if view.shows_topics else ():
        if row.member is not None and row.name.topic in view.topics:
            members.setdefault(row.name.topic, set()).add(row.member.member_id)
            assigned[row.name.topic] = assigned.get(row.name.topic, 0) + 1
    for topic, ids in members.items():
        labels = f"{of_group},{label_text(topic_name=topic)}"
        page.gauge(f"{_GROUP}_topic_members", "Members with partitions of a topic.", len(ids), labels)
        page.gauge(f"{_GROUP}_topic_assigned_partitions", "Assigned partitions of a topic.", assigned[topic], labels)
    for topic, rows in view.topic_rows(group).items():
        labels = f"{of_group},{label_text(topic_name=topic)}"
        page.gauge(f"{_GROUP}_topic_lag", "Lag in a topic in records.", sum(row.lag or 0 for row in rows), labels)
        total = sum(row.committed or 0 for row in rows)
        page.gauge(f"{_GROUP}_topic_offset_sum", "Sum of committed offsets.", total, labels)
    for row in view.rows(group):
        if row.lag is not None:
            labels = f"{of_group},{label_text(topic_name=row.name.topic, partition_id=row.name.partition)}"
            page.gauge(f"{_GROUP}_topic_partition_lag", "Lag in records.", row.lag, labels)


def _fill_topics(page: Page, view: MetricView) -> None:
    reading, picture = view.reading, view.reading.picture
    sizes: dict[str, int] = {}
    for broker in picture.brokers.values() if picture is not None else ():
        for topic, size in broker.topic_bytes.items():
            sizes[topic] = sizes.get(topic, 0) + size
    for topic, states in view.by_topic().items():
        labels = label_text(topic_name=topic)
        known: TopicPicture | None = picture.topics.get(topic) if picture is not None else None
        info = label_text(
            partition_count=len(states),
            replication_factor=max(len(each.replicas) for each in states),
            cleanup_policy=known.settings.get("cleanup.policy", "") if known is not None else "",
        )
        page.gauge(f"{_KAFKA}_topic_info", "A topic.", 1, f"{labels},{info}")
        names = [each.name for each in states]
        ends = [reading.log_ends[name] for name in names if name in reading.log_ends]
        starts = [reading.log_starts[name] for name in names if name in reading.log_starts]
        if ends:
            page.gauge(f"{_KAFKA}_topic_high_water_mark_sum", "Sum of log ends.", sum(ends), labels)
        if starts:
            page.gauge(f"{_KAFKA}_topic_low_water_mark_sum", "Sum of log starts.", sum(starts), labels)
        if topic in sizes:
            page.gauge(f"{_KAFKA}_topic_log_dir_size_total_bytes", "Bytes of all replicas.", sizes[topic], labels)
