"""Settings of `ottla monitor`. `client.NAME` is a property of its Kafka client.

`cluster.NAME.PROPERTY` is a property of the client of one more cluster, such as cluster.test.bootstrap.servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

from ottla.edge.monitor.reader import ReaderOptions
from ottla.edge.monitor.source import GroupFilter
from ottla.edge.web.cluster_settings import CLUSTER_NAME, cluster_problems, split_clusters
from ottla.edge.web.settings import WebSettings
from ottla.lag.burrow import Rules
from ottla.lag.first_records import ReadLimits
from ottla.model.setting_types import (
    ANY,
    DOUBLE,
    INT,
    LONG,
    STRING,
    InvalidSettings,
    Setting,
    at_least,
    between,
    one_of,
)

#: bytes of batches that one round reads for times
_TIME_BYTES_MAX: Final = 64 << 20


class MonitorSettings(WebSettings):
    """All settings of one monitor."""

    #: name -> properties of the client of each further cluster
    clusters: Mapping[str, Mapping[str, str]]

    cluster_name = Setting(
        CLUSTER_NAME, STRING, "main", ANY, "Name of the cluster of bootstrap.servers, in paths and in labels."
    )
    interval_seconds = Setting(
        "interval.seconds", INT, 10, between(1, 3600),
        "Time between two rounds of readings without requests of clients. A log end of each round is one of Burrow's.",
    )  # fmt: skip
    reading_age_ms_max = Setting(
        "reading.age.ms.max", INT, 1000, between(0, 3_600_000),
        "A request for lags that finds an older reading waits for a new one. Clusters whose rounds take long are read "
        "less often: a round takes at most a fifth of the time. 0: each request waits for a new one.",
    )  # fmt: skip
    reading_wait_ms_max = Setting(
        "reading.wait.ms.max", INT, 5000, between(0, 600_000),
        "How long a request waits for a new reading, until it is answered from the last one.",
    )  # fmt: skip
    health_interval_seconds = Setting(
        "health.interval.seconds", INT, 30, between(1, 86_400),
        "Time between two readings of what the checks of ottla doctor need.",
    )  # fmt: skip
    client_timeout_ms = Setting(
        "client.timeout.ms", INT, 15_000, between(100, 600_000),
        "How long a request to the cluster may take, with its retries.",
    )  # fmt: skip
    round_timeout_ms = Setting(
        "round.timeout.ms", INT, 3000, between(100, 600_000),
        "How long each part of a round waits for brokers that give no answer. The figures of the round before take "
        "their place.",
    )  # fmt: skip
    group_allowlist = Setting(
        "group.allowlist", STRING, "", ANY, "Regular expression of the groups that are read; empty: all."
    )
    group_denylist = Setting("group.denylist", STRING, "", ANY, "Regular expression of the groups that are not read.")
    intervals = Setting(
        "intervals",
        INT,
        10,
        between(2, 1000),
        "Commits, and log ends, that Burrow's rules look at, for each partition.",
    )
    min_distance = Setting(
        "min.distance", INT, 0, at_least(0), "Seconds. A commit that follows sooner takes the place of the last one."
    )
    allowed_lag = Setting("allowed.lag", LONG, 0, at_least(0), "Records of lag that are no problem for Burrow's rules.")
    minimum_complete = Setting(
        "minimum.complete", DOUBLE, 0.0, between(0.0, 1.0),
        "A partition with a smaller share of its commits is OK for Burrow's rules.",
    )  # fmt: skip
    expire_group = Setting(
        "expire.group", INT, 604_800, at_least(1), "Seconds without a commit until a group is forgotten."
    )
    expire_cache = Setting(
        "expire.cache", INT, 10, at_least(0), "Seconds for which a verdict of Burrow's rules is used again."
    )
    windows_max = Setting(
        "windows.max", INT, 50_000, at_least(1),
        "Partitions with commits, counted for each group, whose commits are kept for Burrow's rules. Each takes about "
        "1.5 KB. Others are counted in ottla_monitor_windows_left_out.",
    )  # fmt: skip
    metrics_granularity = Setting(
        "metrics.granularity", STRING, "partition", one_of("partition", "topic", "group"),
        "The most detailed series of /metrics: of partitions, of topics, or of groups.",
    )  # fmt: skip
    metrics_topics_max = Setting(
        "metrics.topics.max", INT, 1000, at_least(0),
        "Topics that have series of their own in /metrics. Those that groups read come first, then the others, then "
        "internal ones, each in the order of their names.",
    )  # fmt: skip
    metrics_series_max = Setting(
        "metrics.series.max", INT, 200_000, at_least(1000), "Series of one /metrics page; further ones are counted."
    )

    alerts_file = Setting(
        "alerts.file", STRING, "", ANY,
        "File with rules of alerts, or default for those of Ottla. Empty: no alerts. --alerts sets it.",
    )  # fmt: skip
    data_dir = Setting(
        "data.dir", STRING, "", ANY,
        "Directory of the files with open alerts. Empty: monitor in the user's directory for state.",
    )  # fmt: skip

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Return the settings. Raise InvalidSettings with one line for each name or value that is not allowed."""
        own, clusters = split_clusters(texts)
        problems = cluster_problems(clusters)
        for name in (cls.group_allowlist.name, cls.group_denylist.name):
            try:
                GroupFilter(own.get(name, ""))
            except ValueError as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise InvalidSettings(problems)
        made = super().parse(own)
        if made.cluster_name in clusters:
            raise InvalidSettings([f"cluster.name: {made.cluster_name} is also the name of another cluster"])
        vars(made)["clusters"] = MappingProxyType({name: MappingProxyType(each) for name, each in clusters.items()})
        return made

    def every_cluster(self) -> dict[str, dict[str, str]]:
        """Return the properties of the clients of all clusters, that of bootstrap.servers first."""
        first = {**self.client, "bootstrap.servers": self.bootstrap_servers}
        return {self.cluster_name: first, **{name: dict(each) for name, each in self.clusters.items()}}

    def reader_options(self) -> ReaderOptions:
        return ReaderOptions(
            health_every_s=self.health_interval_seconds,
            limits=ReadLimits(time_s=self.round_timeout_ms / 1000, bytes_max=_TIME_BYTES_MAX),
            rules=Rules(
                intervals=self.intervals,
                min_distance_ms=self.min_distance * 1000,
                allowed_lag=self.allowed_lag,
                minimum_complete=self.minimum_complete,
                expire_group_s=self.expire_group,
            ),
            windows_max=self.windows_max,
            groups=GroupFilter(self.group_allowlist, self.group_denylist),
        )
