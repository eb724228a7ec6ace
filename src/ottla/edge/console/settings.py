"""Settings of the console. `client.NAME` is a property of its Kafka client.

`cluster.NAME.PROPERTY` is a property of the client of one more cluster, such as cluster.test.bootstrap.servers, and
`schema.registry.NAME` one of the client of the registry, such as schema.registry.basic.auth.user.info.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

from ottla.edge.web.cluster_settings import CLUSTER_NAME, cluster_problems, split_clusters
from ottla.edge.web.settings import WebSettings
from ottla.model.setting_types import (
    ANY,
    BOOL,
    INT,
    LIST,
    STRING,
    InvalidSettings,
    Setting,
    at_least,
    between,
    one_of,
)

_REGISTRY: Final = "schema.registry."
_ROLES: Final = ("none", "viewer", "editor", "admin")


class ConsoleSettings(WebSettings):
    """All settings of one console."""

    #: name -> properties of the client of each further cluster
    clusters: Mapping[str, Mapping[str, str]]
    #: properties of the client of the schema registry, without the prefix
    registry: Mapping[str, str]

    cluster_name = Setting(
        CLUSTER_NAME,
        STRING,
        "main",
        ANY,
        "Name of the cluster of bootstrap.servers, in titles and in the paths of pages.",
    )
    schema_registry_url = Setting(
        "schema.registry.url", LIST, (), ANY, "URLs of the schema registry. --registry sets it."
    )
    connect_url = Setting("connect.url", LIST, (), ANY, "URLs of Kafka Connect workers. --connect sets it.")
    broker_metrics_urls = Setting(
        "broker.metrics.urls", LIST, (), ANY,
        "Metrics of brokers, as ID=URL, such as 1=http://127.0.0.1:9464/metrics, for bytes per second and latencies.",
    )  # fmt: skip
    pipeline_status_urls = Setting(
        "pipeline.status.urls", LIST, (), ANY,
        "URLs of the status of running pipelines, or directories that are the storage of pipelines.",
    )  # fmt: skip
    monitor_url = Setting(
        "monitor.url", STRING, "", ANY,
        "URL of a monitor with rules of alerts, such as http://127.0.0.1:8000: the first page shows its open alerts.",
    )  # fmt: skip
    data_dir = Setting(
        "data.dir", STRING, "", ANY,
        "Directory of the file with the console's own users. Empty: console in the user's directory for state.",
    )  # fmt: skip
    role_anonymous = Setting(
        "role.anonymous", STRING, "", one_of("", *_ROLES),
        "What people may do without a login: none, viewer, editor or admin. Empty: viewer if the console listens on "
        "loopback only, none otherwise.",
    )  # fmt: skip
    role_default = Setting(
        "role.default", STRING, "viewer", one_of(*_ROLES), "What people may do who log in and are not in roles."
    )
    roles = Setting(
        "roles", LIST, (), ANY, "What people may do who log in, as NAME:ROLE, such as ana:admin,bob:editor."
    )
    read_only = Setting(
        "read.only", BOOL, False, ANY, "Whether the console refuses all changes, whatever the roles say."
    )
    session_hours = Setting("session.hours", INT, 12, between(1, 720), "Hours after which people must log in again.")
    changes_topic = Setting(
        "changes.topic", STRING, "_ottla_changes", ANY,
        "Topic with a record for each change that is made in the console.",
    )  # fmt: skip
    client_timeout_ms = Setting(
        "client.timeout.ms", INT, 15_000, between(100, 600_000),
        "How long a request to the cluster may take, with its retries.",
    )  # fmt: skip
    threads_max = Setting(
        "threads.max", INT, 24, at_least(1), "Requests to the clusters at the same time; others wait for them."
    )
    streams_max = Setting(
        "streams.max", INT, 100, at_least(1), "Live pages and searches at the same time; more: error 503."
    )
    search_seconds_max = Setting(
        "search.seconds.max", INT, 30, between(1, 600), "How long one search of messages may run before it pauses."
    )
    search_bytes_max = Setting(
        "search.bytes.max", INT, 1 << 30, at_least(1 << 20), "Bytes that one search may read before it pauses."
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Return the settings. Raise InvalidSettings with one line for each name or value that is not allowed."""
        own: dict[str, str] = {}
        registry: dict[str, str] = {}
        rest, clusters = split_clusters(texts)
        for name, text in rest.items():
            if name.startswith(_REGISTRY) and name != cls.schema_registry_url.name:
                registry[name.removeprefix(_REGISTRY)] = text
            else:
                own[name] = text
        problems = cluster_problems(clusters)
        for text in _list(own.get("roles", "")):
            if text.rpartition(":")[2] not in _ROLES or not text.rpartition(":")[0]:
                problems.append(f"roles: {text!r} is not NAME:ROLE; roles are {', '.join(_ROLES)}")
        if problems:
            raise InvalidSettings(problems)
        made = super().parse(own)
        if made.cluster_name in clusters:
            raise InvalidSettings([f"cluster.name: {made.cluster_name} is also the name of another cluster"])
        vars(made)["clusters"] = MappingProxyType({name: MappingProxyType(each) for name, each in clusters.items()})
        vars(made)["registry"] = MappingProxyType(registry)
        return made


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
