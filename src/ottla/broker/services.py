"""Dependencies shared by all API handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ottla.broker.access import ALL_ALLOWED, DEAD_LETTERS, Access
from ottla.broker.awaited_commits import AwaitedCommits
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.schema_validation import SchemaValidation, new_dead_letter_topic
from ottla.broker.throttling import UNCOUNTED, Throttling, Usage
from ottla.broker.transaction_checks import TransactionChecks
from ottla.cluster.ensemble import Ensemble
from ottla.cluster.store import MetadataStore
from ottla.cluster.view import ClusterView, TopicView
from ottla.coordinator.group_runtime import GroupRuntime
from ottla.coordinator.outcome import Client
from ottla.coordinator.transaction_runtime import MarkerWriter, TransactionRuntime
from ottla.env.clock import Clock
from ottla.env.deferred import Deferred
from ottla.env.tasks import Tasks
from ottla.env.timers import TimerWheel
from ottla.model.errors import ErrorCode, Refused
from ottla.model.settings import BrokerSettings, TopicSettings, min_insync_replicas
from ottla.model.types import Endpoint
from ottla.net.connection import Connection
from ottla.replica.log_moves import LogMoves
from ottla.replica.manager import ReplicaManager
from ottla.security.acls import ResourceType

_MIN_INSYNC = "min.insync.replicas"
#: bound of the settings of topics that are kept
_RESOLVED_MAX = 1000


class ResolvedSettings:
    """Settings of topics. Topics with the same overrides share one object, because it takes 50 us to make one."""

    def __init__(self) -> None:
        #: by number of replicas and overrides; valid for these settings of the broker
        self._found: dict[tuple[object, ...], TopicSettings] = {}
        self._broker: BrokerSettings | None = None

    def of(self, topic: TopicView, broker: BrokerSettings) -> TopicSettings:
        """Return the settings of a topic. Raise InvalidSettings."""
        if self._broker is not broker or len(self._found) >= _RESOLVED_MAX:
            self._broker, self._found = broker, {}
        key = topic.replication_factor, *topic.config.items()
        if (found := self._found.get(key)) is None:
            found = self._found[key] = TopicSettings.resolve(topic.config, broker, topic.replication_factor)
        return found


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of the broker that API handlers use."""

    broker_id: int
    cluster_id: str
    clock: Clock
    loop: asyncio.AbstractEventLoop
    wheel: TimerWheel
    deferred: Deferred
    store: MetadataStore
    view: ClusterView
    replicas: ReplicaManager
    #: the settings at the start; ``settings`` includes dynamic changes
    started_settings: BrokerSettings
    settings: BrokerSettings
    #: returns 16 random bytes, for topic ids, fetch sessions and others
    new_id: Callable[[], bytes]
    #: background work of the APIs; the broker stops it
    tasks: Tasks
    #: what the ensemble of the metadata store says about itself; None if this is not known or there is no ensemble
    ensemble: Callable[[], Awaitable[Ensemble | None]]
    #: held by a request that decides about metadata again, after a conflict
    metadata_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: leaders that this broker has elected for requests, not as the controller, and those of them that were unclean
    elections: int = 0
    unclean_elections: int = 0
    #: names of topics whose creation in the background has not ended
    topics_being_created: set[str] = field(default_factory=set)
    #: set before the broker accepts connections
    groups: GroupRuntime = field(init=False)
    transactions: TransactionRuntime = field(init=False)
    markers: MarkerWriter = field(init=False)
    checks: TransactionChecks = field(init=False)
    awaited_commits: AwaitedCommits = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    log_moves: LogMoves = field(init=False)
    schemas: SchemaValidation = field(init=False)
    #: this broker reaches neither the metadata store nor in-sync replicas, and has stopped leading partitions
    is_cut_off: bool = False
    #: returns the ids of leaders whose connection to this broker was closed a moment ago: they have probably ended
    just_lost: Callable[[], frozenset[int]] = frozenset
    #: advertised address by listener name; a listener without one advertises the address that the client dialled
    advertised: dict[str, Endpoint] = field(default_factory=dict)
    resolved: ResolvedSettings = field(default_factory=ResolvedSettings)
    #: what clients may do
    access: Access = field(default_factory=Access)
    throttling: Throttling = field(init=False)

    def __post_init__(self) -> None:
        self.throttling = Throttling(self.wheel, self.clock.monotonic, self.loop)

    def endpoint_for(self, context: RequestContext) -> tuple[str, int]:
        """Return the address of this broker for this client: the advertised one, or the one that it dialled."""
        advertised = self.advertised.get(context.listener)
        if advertised is not None:
            return advertised.host, advertised.port
        host, port = context.connection.local_address
        return host.removeprefix("::ffff:"), port

    def topic_settings(self, topic: TopicView) -> TopicSettings:
        return self.resolved.of(topic, self.settings)

    def wanted_min_isr(self, view: ClusterView, config: Mapping[str, str], replicas: int) -> int:
        """Return min.insync.replicas for partitions with this many replicas of a topic with these settings.

        It is the topic's, else that of the cluster, else the one in the file of this broker. The file counts on the
        controller, which corrects the states of all topics, so that brokers with different files do not disagree.
        """
        defaults, _ = view.dynamic_config(self.broker_id)
        given = config if _MIN_INSYNC in config or _MIN_INSYNC not in defaults else defaults
        return min_insync_replicas(given, self.started_settings, replicas)


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The connection, the client and the version of one request."""

    api_key: int
    version: int
    client_id: str
    listener: str
    connection: Connection
    correlation_id: int = 0
    access: Access = ALL_ALLOWED
    usage: Usage = UNCOUNTED

    def may(self, resource: ResourceType, name: str, purpose: str = "", *, quiet: bool = False) -> bool:
        """Return whether the client may use this API with a resource; ``quiet`` if that refuses nothing."""
        return self.access.may(self.connection, self.api_key, resource, name, purpose, quiet=quiet)

    def check_topic(self, name: str) -> None:
        """Raise the KafkaError for a topic that the client may not use this API with."""
        self.access.check_topic(self.connection, self.api_key, name)

    def check_dead_letters(self, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raise Refused if a change of a topic's settings chooses a dead-letter topic that the client may not write."""
        chosen = new_dead_letter_topic(topic, before, after)
        if chosen is not None and not self.may(ResourceType.TOPIC, chosen, DEAD_LETTERS):
            text = f"choose a dead-letter topic that you may write to: the broker writes to {chosen} for you"
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)

    def may_cluster(self, purpose: str = "", *, quiet: bool = False) -> bool:
        """Return whether the client may use this API, if that depends on the cluster; ``quiet`` as in ``may``."""
        return self.access.may_cluster(self.connection, self.api_key, purpose, quiet=quiet)

    def operations(self, resource: ResourceType, name: str) -> int:
        """Return what the client may do with a resource, as bits."""
        return self.access.operations(self.connection, resource, name)

    @property
    def client(self) -> Client:
        # Java prints an address without a host name with a leading slash. Tools show it, or remove it.
        host = f"/{self.connection.peer_host}"
        return Client(self.client_id, host, self.version, self.connection.number, self.correlation_id)
