"""The broker's settings: the table, and the values made from server.properties and dynamic changes.

Names, types and defaults are Kafka's (4.3) wherever the setting means something on one node; where Ottla
differs the help says so. A value comes from the first of: this broker's dynamic value, the cluster's dynamic
default, what the broker was started with, the row's default.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self

from ottla.model.setting_types import (
    ANY,
    BOOL,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Check,
    InvalidSettings,
    Setting,
    at_least,
    one_of,
    or_else,
    unknown_name,
)
from ottla.model.settings_coordinator import CoordinatorSettings
from ottla.model.settings_foreign import dynamic_refusal_of, is_ignored, refusal_of
from ottla.model.settings_log import LogSettings
from ottla.model.settings_registry import RegistrySettings
from ottla.model.settings_security import (
    PROTOCOLS,
    ListenerOverrides,
    ListenerSettings,
    SecuritySettings,
    is_listener_setting,
    listener_row,
)
from ottla.model.settings_traces import TraceSettings
from ottla.model.settings_unused import UnusedSettings
from ottla.model.types import Endpoint, parse_endpoint

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

#: values of replica.selector.class
RACK_AWARE = "rack-aware"
RACK_AWARE_CLASS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_CLASS = "org.apache.kafka.common.replica.LeaderSelector"


def _is_endpoint(text: str) -> bool:
    try:
        return bool(parse_endpoint(text))
    except ValueError:
        return False


ENDPOINTS = Check(
    "NAME://HOST:PORT, several joined by commas; an IPv6 host stands in square brackets",
    lambda values: all(map(_is_endpoint, values)),
)
HTTP_ENDPOINT = Check(
    "nothing, or HTTP://HOST:PORT",
    lambda value: not value or (value.upper().startswith("HTTP://") and _is_endpoint(value)),
)


class BrokerSettings(
    SecuritySettings, LogSettings, CoordinatorSettings, RegistrySettings, TraceSettings, UnusedSettings
):
    """The settings of one broker. `parse` creates them; `with_dynamic` returns new ones after a dynamic change."""

    # Identity and storage

    broker_id = Setting(
        "broker.id", INT, 0, at_least(0), "This broker's id. `node.id` means the same.", aliases=("node.id",)
    )
    broker_rack = Setting(
        "broker.rack",
        STRING,
        None,
        ANY,
        "Rack of this broker: replicas are spread over racks, and `replica.selector.class` uses it.",
    )
    zookeeper_connect = Setting(
        "zookeeper.connect",
        STRING,
        "",
        ANY,
        "Servers of the cluster's ZooKeeper, HOST:PORT joined by commas, and an optional /chroot at the end. Without "
        "it the broker is alone and keeps its metadata in a file.",
    )
    zookeeper_session_timeout_ms = Setting(
        "zookeeper.session.timeout.ms",
        INT,
        6_000,
        at_least(1),
        "Time without contact after which ZooKeeper declares this broker dead. Kafka's default was 18000.",
    )
    log_dirs = Setting("log.dirs", LIST, None, ANY, "Directories that hold the partitions. Wins over `log.dir`.")
    log_dir = Setting(
        "log.dir", STRING, "ottla-data", ANY, "Directory of the partitions, used when `log.dirs` is not set."
    )
    log_dir_free_bytes_min = Setting(
        "log.dir.free.bytes.min",
        LONG,
        104_857_600,
        at_least(0),
        "Ottla only. With less free space in a log directory, produce requests to it are refused with "
        "KAFKA_STORAGE_ERROR until there is space. 0 disables the check.",
        dynamic=True,
    )

    # Network

    listeners = Setting(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        ENDPOINTS,
        "Addresses to listen on. The default is reachable from this machine alone; an empty host means all "
        "interfaces, port 0 any free port.",
    )
    advertised_listeners = Setting(
        "advertised.listeners",
        LIST,
        None,
        ENDPOINTS,
        "Addresses that the broker tells clients to use. Not set: each client gets the address that it dialled.",
    )
    listener_security_protocol_map = Setting(
        "listener.security.protocol.map",
        LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        Check("a list of NAME:PROTOCOL", lambda pairs: all(pair.count(":") == 1 for pair in pairs)),
        "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    )
    controller_listener_names = Setting(
        "controller.listener.names",
        LIST,
        (),
        ANY,
        "Listeners of `listeners` that are not opened: Ottla has no controller port.",
    )
    max_connections_per_ip = Setting(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        at_least(0),
        "Maximum number of open connections from one address.",
        dynamic=True,
    )
    connections_max_idle_ms = Setting(
        "connections.max.idle.ms", LONG, 600_000, ANY, "A connection without requests for this time is closed."
    )
    socket_request_max_bytes = Setting(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        at_least(1),
        "Largest request; a larger one closes the connection.",
    )
    socket_send_buffer_bytes = Setting(
        "socket.send.buffer.bytes",
        INT,
        262_144,
        or_else(at_least(1), -1, "the system's own size"),
        "Send buffer (SO_SNDBUF) of each connection. Kafka has 102400; see docs/reference/performance.md.",
    )
    socket_receive_buffer_bytes = Setting(
        "socket.receive.buffer.bytes",
        INT,
        -1,
        or_else(at_least(1), -1, "the system's own size"),
        "Receive buffer (SO_RCVBUF) of each connection. Kafka has 102400; see docs/reference/performance.md.",
    )
    socket_listen_backlog_size = Setting(
        "socket.listen.backlog.size",
        INT,
        1_024,
        at_least(1),
        "Connections that the kernel queues before the broker accepts them.",
    )
    queued_max_requests = Setting(
        "queued.max.requests",
        INT,
        500,
        at_least(1),
        "Requests of one connection that may wait for their replies; at this many the broker stops reading "
        "the connection. Kafka bounds one queue for all connections; Ottla has no such queue.",
    )
    fetch_max_bytes = Setting(
        "fetch.max.bytes", INT, 57_671_680, at_least(1024), "Maximum bytes of records in one Fetch response."
    )
    max_incremental_fetch_session_cache_slots = Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        at_least(0),
        "Incremental fetch sessions kept; clients without one send full fetch requests.",
    )
    request_timeout_ms = Setting(
        "request.timeout.ms",
        INT,
        30_000,
        at_least(1),
        "Time to wait for another broker's answer.",
        used=False,
    )

    # Topics

    auto_create_topics_enable = Setting(
        "auto.create.topics.enable",
        BOOL,
        True,
        ANY,
        "Create a missing topic when a client requests its metadata.",
    )
    delete_topic_enable = Setting("delete.topic.enable", BOOL, True, ANY, "Allow topics to be deleted.")
    num_partitions = Setting(
        "num.partitions", INT, 1, at_least(1), "Partitions of a topic created without a number of its own."
    )
    default_replication_factor = Setting(
        "default.replication.factor",
        INT,
        1,
        at_least(1),
        "Replicas of a topic that is created without a replication factor.",
    )
    min_insync_replicas = Setting(
        "min.insync.replicas",
        INT,
        1,
        at_least(1),
        "Replicas that must hold a record before acks=all is answered. Not set: 2 with three or more replicas, else 1.",
        dynamic=True,
    )
    unclean_leader_election_enable = Setting(
        "unclean.leader.election.enable",
        BOOL,
        False,
        ANY,
        "Allow a replica that is not in sync to become leader if no other is left; records are lost.",
        dynamic=True,
    )

    # Replication

    auto_leader_rebalance_enable = Setting(
        "auto.leader.rebalance.enable",
        BOOL,
        True,
        ANY,
        "Move leaders back to the first replicas of their partitions when a broker leads too few of those.",
    )
    leader_imbalance_check_interval_seconds = Setting(
        "leader.imbalance.check.interval.seconds", LONG, 300, at_least(1), "Time between two checks of the balance."
    )
    leader_imbalance_per_broker_percentage = Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        at_least(0),
        "Percentage of a broker's first replicas that others may lead before leaders are moved back.",
    )
    replica_lag_time_max_ms = Setting(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        at_least(1),
        "Time without all records of the leader after which a follower that fetches is out of sync. See "
        "`replica.silence.time.max.ms` for one that does not fetch.",
    )
    replica_silence_time_max_ms = Setting(
        "replica.silence.time.max.ms",
        LONG,
        3_000,
        at_least(1),
        "Ottla only. Time without a fetch after which a follower that lacks records is out of sync, at least "
        "`replica.fetch.wait.max.ms` and one second. `acks=all` waits this long for a follower that is cut off.",
    )
    replica_selector_class = Setting(
        "replica.selector.class",
        STRING,
        None,
        one_of(RACK_AWARE, RACK_AWARE_CLASS, LEADER_CLASS),
        "How a leader chooses the replica that a consumer reads from (KIP-392). rack-aware: an in-sync replica in the "
        "consumer's rack (`client.rack`). Not set: always the leader.",
    )
    replica_fetch_max_bytes = Setting(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        at_least(0),
        "Bytes a follower asks for per partition.",
    )
    replica_fetch_response_max_bytes = Setting(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        at_least(0),
        "Bytes a follower asks for at once.",
    )
    replica_fetch_wait_max_ms = Setting(
        "replica.fetch.wait.max.ms", INT, 500, at_least(0), "Time a follower's fetch may wait."
    )
    replica_fetch_min_bytes = Setting(
        "replica.fetch.min.bytes", INT, 1, at_least(0), "Bytes a follower's fetch waits for."
    )
    leader_replication_throttled_rate = Setting(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        at_least(0),
        "Bytes per second that a leader sends to throttled replicas that are not in sync.",
        dynamic=True,
    )
    follower_replication_throttled_rate = Setting(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        at_least(0),
        "Bytes per second that throttled replicas of this broker fetch while they are not in sync.",
        dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second = Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        at_least(0),
        "Bytes per second that are copied when replicas move between the log directories of this broker.",
        dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms = Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        at_least(1),
        "How often high watermarks are written to the checkpoint file.",
    )

    # Operations

    metrics_listener = Setting(
        "metrics.listener",
        STRING,
        "",
        HTTP_ENDPOINT,
        "Ottla only. Address of the metrics page, such as HTTP://127.0.0.1:9464. Empty: off.",
    )
    metrics_series_max = Setting(
        "metrics.series.max",
        INT,
        100_000,
        at_least(1000),
        "Ottla's own. Most series of the metrics page; `ottla_metrics_series_left_out` counts the others.",
        dynamic=True,
    )
    metrics_jmx_topics_max = Setting(
        "metrics.jmx.topics.max",
        INT,
        1000,
        at_least(0),
        "Ottla's own. Topics that have series under the names of Kafka's JMX exporter on the metrics page. Internal "
        "topics come last, the others in the order of their names.",
        dynamic=True,
    )
    metrics_group_granularity = Setting(
        "metrics.group.granularity",
        STRING,
        "partition",
        one_of("partition", "topic", "group", "none"),
        "Ottla's own. What the metrics page shows of the lag of each group: up to a series per partition, per topic, "
        "per group, or nothing but the number of groups by state.",
        dynamic=True,
    )
    log_level = Setting(
        "log.level",
        STRING,
        "INFO",
        one_of("DEBUG", "INFO", "WARNING", "ERROR"),
        "Ottla only. Log level.",
    )
    log_format = Setting(
        "log.format",
        STRING,
        "text",
        one_of("text", "json"),
        "Ottla only. Form of the log on standard error: a line of text, or a JSON object, for each event.",
    )

    # The texts that the values were parsed from, by canonical name

    #: set at start (server.properties, command line)
    explicit: Mapping[str, str]
    #: dynamic values for every broker of the cluster
    dynamic_defaults: Mapping[str, str]
    #: dynamic values for this broker
    dynamic_own: Mapping[str, str]
    #: settings of Kafka that were given and have no effect here, with their texts; the broker logs a warning for each
    ignored: Mapping[str, str]
    #: settings of single listeners
    listener_overrides: ListenerOverrides

    def __init__(
        self,
        *,
        explicit: Mapping[str, str] = NO_SETTINGS,
        dynamic_defaults: Mapping[str, str] = NO_SETTINGS,
        dynamic_own: Mapping[str, str] = NO_SETTINGS,
        ignored: Mapping[str, str] = NO_SETTINGS,
        listener_texts: Mapping[str, str] = NO_SETTINGS,
    ) -> None:
        effective = {**explicit, **dynamic_defaults, **dynamic_own}
        problems: list[str] = []
        for row in BROKER_SETTINGS.values():
            value = row.default
            if row.name in effective:
                try:
                    value = row.parse(effective[row.name])
                except ValueError as error:
                    problems.append(str(error))
            vars(self)[row.attribute] = value
        dynamic_of_listeners = {name: effective[name] for name in effective if is_listener_setting(name)}
        vars(self).update(listener_overrides=ListenerOverrides(listener_texts, dynamic_of_listeners))
        if not problems:
            problems.extend(self._conflicts())
        if problems:
            raise InvalidSettings(problems)
        vars(self).update(
            explicit=MappingProxyType(dict(explicit)),
            dynamic_defaults=MappingProxyType(dict(dynamic_defaults)),
            dynamic_own=MappingProxyType(dict(dynamic_own)),
            ignored=MappingProxyType(dict(ignored)),
        )

    @classmethod
    def parse(cls, properties: Mapping[str, str] = NO_SETTINGS) -> Self:
        """Return the settings of a server.properties. Raise InvalidSettings with one line for each problem."""
        explicit: dict[str, str] = {}
        ignored: dict[str, str] = {}
        listener_texts: dict[str, str] = {}
        problems: list[str] = []
        for given, text in properties.items():
            name = ALIASES.get(given, given)
            if name in BROKER_SETTINGS:
                if explicit.setdefault(name, text).strip() != text.strip():
                    problems.append(f"{name} and its other name {given} differ; keep one of them")
            elif is_listener_setting(given):
                listener_texts[given] = text
            elif refusal := refusal_of(given, text):
                problems.append(refusal)
            elif is_ignored(given):
                ignored[given] = text
            else:
                problems.append(unknown_name(given, [*BROKER_SETTINGS, *ALIASES]))
        try:
            settings = cls(explicit=explicit, ignored=ignored, listener_texts=listener_texts)
        except InvalidSettings as error:
            raise InvalidSettings([*problems, *error.problems]) from None
        if problems:
            raise InvalidSettings(problems)
        return settings

    def with_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> Self:
        """Return the settings with other dynamic values; `own` wins over `defaults`. Unknown names have no effect."""
        problems = [problem for name in {**defaults, **own} if (problem := _not_dynamic(name))]
        if problems:
            raise InvalidSettings(problems)
        return type(self)(
            explicit=self.explicit,
            dynamic_defaults=defaults,
            dynamic_own=own,
            ignored=self.ignored,
            listener_texts=self.listener_overrides.static,
        )

    def is_set(self, name: str) -> bool:
        """Return whether the setting was given at start or changed while the broker runs."""
        return any(name in layer for layer in (self.explicit, self.dynamic_defaults, self.dynamic_own))

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """Return the log directories: `log.dirs` if it is set, else `log.dir`."""
        return self.log_dirs or (self.log_dir,)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the addresses to listen on."""
        return self._without_controller(self.listeners)

    @property
    def metrics_endpoint(self) -> Endpoint | None:
        """Return the address of the metrics page, None if it is off."""
        return parse_endpoint(self.metrics_listener) if self.metrics_listener else None

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """Return the advertised addresses; empty if each client gets the address that it dialled."""
        return self._without_controller(self.advertised_listeners or ())

    def protocol_of(self, listener: str) -> str:
        """Return the security protocol of a listener, for example SASL_SSL."""
        return dict(pair.upper().split(":") for pair in self.listener_security_protocol_map)[listener]

    @property
    def inter_broker_listener(self) -> str:
        """Return the listener of other brokers that this broker connects to, which it has itself."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        names = [endpoint.name for endpoint in self.endpoints]
        if self.is_set("security.inter.broker.protocol"):
            names = [name for name in names if self.protocol_of(name) == self.security_inter_broker_protocol]
        return names[0] if names else ""

    def of_listener(self, listener: str) -> ListenerSettings:
        """Return the settings of TLS and SASL for a listener."""
        return self.listener_overrides.of(listener, self)

    def _without_controller(self, listeners: tuple[str, ...]) -> tuple[Endpoint, ...]:
        hidden = {name.upper() for name in self.controller_listener_names}
        return tuple(endpoint for endpoint in map(parse_endpoint, listeners) if endpoint.name not in hidden)

    def _conflicts(self) -> Iterator[str]:
        yield from self._conflicts_of_listeners()
        for low, value, high in _ORDERED:
            low_value, high_value = self.value_of(low), self.value_of(high)
            if not low_value <= self.value_of(value) <= high_value:
                yield f"{value} must lie between {low} ({low_value}) and {high} ({high_value})"

    def _conflicts_of_listeners(self) -> Iterator[str]:
        protocols = dict(pair.upper().split(":") for pair in self.listener_security_protocol_map)
        names = [endpoint.name for endpoint in self.endpoints]
        if not names:
            yield "listeners is empty; give at least one, such as PLAINTEXT://127.0.0.1:9092"
        for name in sorted(set(names)):
            if names.count(name) > 1:
                yield f"listeners has {name} more than once; each listener needs a name of its own"
            protocol = protocols.get(name)
            if protocol is None:
                yield f"listener {name} is missing in listener.security.protocol.map; add {name}:PLAINTEXT"
            elif protocol not in PROTOCOLS:
                yield f"listener {name} uses {protocol}; use one of {', '.join(PROTOCOLS)}"
        yield from self.listener_overrides.problems(names, self.controller_listener_names)
        if self.inter_broker_listener_name and self.inter_broker_listener_name.upper() not in names:
            yield f"inter.broker.listener.name is {self.inter_broker_listener_name}, which listeners does not have"
        for endpoint in self.advertised_endpoints:
            if endpoint.name not in names:
                yield f"advertised.listeners names {endpoint.name}, which listeners does not have"
            if endpoint.host in ("", "0.0.0.0", "::"):
                yield f"advertised.listeners has {endpoint}, which no client can dial; give a host name"


BROKER_SETTINGS = BrokerSettings.rows()
ALIASES = {alias: row.name for row in BROKER_SETTINGS.values() for alias in row.aliases}

#: (lowest, value, highest): settings that bound one another
_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms", "group.max.session.timeout.ms"),
    (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
)


def _not_dynamic(name: str) -> str | None:
    row = listener_row(name) if is_listener_setting(name) else BROKER_SETTINGS.get(name)
    if row is None:
        return dynamic_refusal_of(name)
    if not row.dynamic:
        return f"{name} cannot change while the broker runs; set it in server.properties and restart"
    return None
