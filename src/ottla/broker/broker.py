"""The broker: creates all parts, starts them in order and stops them in reverse order.

Start: 1 listen on all ports, also the metrics port, so that a port in use is found before a file changes  2 check that
the data directories belong to this broker  3 lock them  4 read the metadata  5 open the logs  6 accept connections.
Stop: 1 close the listeners  2 complete the requests in flight  3 sync all logs  4 record the clean shutdown.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ottla.broker.access import Access
from ottla.broker.apis.acls import AclApis
from ottla.broker.apis.cluster import ClusterApis
from ottla.broker.apis.configs import ConfigApis
from ottla.broker.apis.coordinators import CoordinatorApis
from ottla.broker.apis.fetch import FetchApi
from ottla.broker.apis.groups import GroupApis
from ottla.broker.apis.log_dirs import LogDirApis
from ottla.broker.apis.metadata import MetadataApis
from ottla.broker.apis.offsets import OffsetApis
from ottla.broker.apis.produce import ProduceApi
from ottla.broker.apis.tokens import TokenApis
from ottla.broker.apis.topics import TopicApis
from ottla.broker.apis.transactions import TransactionApis
from ottla.broker.apis.users import UserApis
from ottla.broker.cluster_metadata import ClusterMetadata
from ottla.broker.cluster_metrics import ClusterMetrics
from ottla.broker.component import Component
from ottla.broker.coordination import Coordination
from ottla.broker.data_directories import lock_data
from ottla.broker.dead_letters import DeadLetters
from ottla.broker.dispatch import Dispatcher, table_of
from ottla.broker.group_metrics import GroupMetrics
from ottla.broker.incarnation import read_runs, recognise
from ottla.broker.listeners import ListenerSecurity, insecure_listeners
from ottla.broker.membership import Membership
from ottla.broker.metrics import BrokerMetrics
from ottla.broker.peer_logins import Peers
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.schema_lookup import SchemaLookups
from ottla.broker.schema_validation import SchemaValidation
from ottla.broker.seen_metadata import SeenMetadata
from ottla.broker.throttling import Throttling
from ottla.broker.zookeeper_access import zookeeper_security
from ottla.cluster.access_nodes import ACCESS_SKELETON, quotas_in
from ottla.cluster.controller import ops_bump_leader_epochs, put_state
from ottla.cluster.decide import decide_and_write, read_and_write
from ottla.cluster.embedded import FILE_NAME, EmbeddedStore
from ottla.cluster.ensemble import Ensemble, EnsembleReader
from ottla.cluster.registration import dirs_of_last_run
from ottla.cluster.schema import (
    BROKER_DEFAULT,
    CLUSTER_ID,
    CLUSTER_SECRET,
    MALFORMED,
    broker_config_path,
    ops_create_skeleton,
    registered_path,
    to_json,
    topic_config_path,
    topic_of,
)
from ottla.cluster.store import Changed, Create, MalformedNode, MetadataStore, Node, Op, StoreError, in_multis
from ottla.cluster.view import NO_LEADER, ClusterView, PartitionView, TopicView, ViewChanges, changed_partitions
from ottla.cluster.zookeeper import ZooKeeperStore
from ottla.env.advice import directory_advice
from ottla.env.clock import Clock, SystemClock
from ottla.env.collector import freeze_objects
from ottla.env.deferred import Deferred
from ottla.env.disk import Disk, RealDisk
from ottla.env.metrics import Histogram
from ottla.env.metrics_server import MetricsServer
from ottla.env.tasks import Tasks, ThreadPool, Threads, attempt
from ottla.env.timers import TimerWheel
from ottla.log.folders import PartitionSpec
from ottla.log.store import CreationDeferred, LogStore
from ottla.model.errors import KafkaError, StartError
from ottla.model.settings import BrokerSettings, InvalidSettings
from ottla.model.types import Endpoint, TopicPartition
from ottla.net.client import PLAIN, BrokerClients, PeerSecurity
from ottla.net.network import Listener, Network, SocketNetwork
from ottla.net.server import ConnectionLimits, Server
from ottla.replica.log_moves import LogMoves
from ottla.replica.manager import ReplicaManager
from ottla.security.acls import Authorizer, Pattern
from ottla.security.principals import parse_super_users
from ottla.security.quotas import Entity
from ottla.wire import APIS

log = logging.getLogger(__name__)

_DRAIN_S = 5.0
#: how long a stop waits for syncs that requests wait for
_WRITES_S = 2.0
_TICK_S = 1.0
_PRODUCER_EXPIRY_S = 600.0
#: new partitions after which all objects are frozen: the garbage collector does not look at them again
_FREEZE_PARTITIONS = 1_000
_ANY_HOST = ("", "0.0.0.0", "::")


class Broker:
    """One broker on the embedded store."""

    def __init__(
        self, settings: BrokerSettings, *, loop: asyncio.AbstractEventLoop, clock: Clock | None = None,
        disk: Disk | None = None, random_bytes: Callable[[int], bytes] = os.urandom,
        network: Network | None = None, threads: Threads | None = None,
        open_store: Callable[[str], Awaitable[MetadataStore]] | None = None,
        freeze: Callable[[], None] = freeze_objects,
    ) -> None:  # fmt: skip
        # Environment
        self._settings = settings
        self._loop = loop
        self._clock = clock or SystemClock()
        self._disk = disk or RealDisk()
        self._random_bytes = random_bytes
        self._network: Network = network or SocketNetwork()
        self._open_store = open_store
        self._freeze = freeze

        # Parts
        self._threads: Threads = threads or ThreadPool(loop, settings.sync_threads, "disk")
        self._tasks = Tasks()
        self._wheel = TimerWheel(loop)
        #: partitions added since objects were last frozen
        self._partitions_unfrozen = 0
        #: topics with partitions whose logs could not be created yet
        self._deferred_topics: dict[str, None] = {}
        self._deferred = Deferred(loop, self._clock.monotonic)
        self._view = ClusterView()
        self._log_store = LogStore(self._disk, settings.data_dirs, self._threads, needs_first=self._is_alone)
        self.replicas = ReplicaManager(
            broker_id=settings.broker_id, exists=self._has_partition, clock=self._clock, disk=self._disk,
            store=self._log_store, threads=self._threads,
            free_bytes_min=settings.log_dir_free_bytes_min, on_all_dirs_failed=self._fail,
        )  # fmt: skip
        self._lookups = SchemaLookups(loop, self._clock.monotonic, settings)
        self.replicas.inline_budget.knows_schemas = self._lookups.knows
        self._latency = {key: Histogram() for key in APIS}
        self.server = Server(
            loop, clock=self._clock, request_bytes_max=settings.socket_request_max_bytes,
            limits=_connection_limits(settings), idle_ms_max=settings.connections_max_idle_ms,
            in_flight_max=settings.queued_max_requests, before_replies=self._write_turn,
            latency=self._latency, network=self._network,
        )  # fmt: skip
        self._store: MetadataStore | None = None
        #: known when the metadata store is open
        self._metadata: ClusterMetadata | None = None
        self._throttling = Throttling(self._wheel, self._clock.monotonic, loop)
        self._components: list[Component] = []
        self._log_moves: LogMoves | None = None
        self._coordination: Coordination | None = None
        self._membership: Membership | None = None
        #: the same in a cluster; None for a broker that is alone, whose lease never ends
        self._leased: Membership | None = None
        self._produce: ProduceApi | None = None
        self._fetch: FetchApi | None = None
        self._seen: SeenMetadata | None = None
        self._dispatchers: list[Dispatcher] = []
        self._listeners: dict[str, ListenerSecurity] = {}
        self._access = Access(_authorizer(settings), monotonic=self._clock.monotonic)
        #: how this broker connects to others; None for a broker that is alone
        self._peers: Peers | None = None
        #: of the cluster; known when the metadata store is open
        self._secret = b""
        self._metrics = BrokerMetrics(
            replicas=self.replicas, server=self.server, latency=self._latency, dispatchers=self._dispatchers,
            settings=self._current_settings, access=self._access,
        )  # fmt: skip
        self.watch = self._metrics.watch

        # State
        self.endpoints: list[Endpoint] = []
        self.metrics_port: int | None = None
        #: changes of the store come until the session ends, but change no log any more
        self._are_logs_closed = False
        #: completed when the broker must stop: with None for a clean stop, with a reason after a failure
        self.ended: asyncio.Future[str | None] = loop.create_future()

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raise StartError with one line for the operator, with no file changed."""
        settings = self._settings
        insecure = insecure_listeners(settings)
        self._listeners = {endpoint.name: self._secure(endpoint.name) for endpoint in settings.endpoints}
        self._metrics.listeners = self._listeners
        if not self._is_alone:
            self._peers = Peers(settings)
        self._reload_certificates()  # which begins to read the keys of token issuers, for the first clients
        listeners = [
            (endpoint, self._network.bind(
                endpoint, backlog=settings.socket_listen_backlog_size,
                send_buffer_bytes=settings.socket_send_buffer_bytes,
                receive_buffer_bytes=settings.socket_receive_buffer_bytes,
            ))
            for endpoint in settings.endpoints
        ]  # fmt: skip
        try:
            if (endpoint := settings.metrics_endpoint) is not None:
                self._metrics.http = http = MetricsServer(endpoint, self._metrics.fill)
                await http.start()
                self.metrics_port = http.port
            cluster_id = await self._open_data()
            await self._open_logs(cluster_id, self._advertised([
                endpoint._replace(port=listener.port) for endpoint, listener in listeners
            ]))  # fmt: skip
        except BaseException as error:
            for _, listener in listeners:
                listener.close()
            if isinstance(error, MalformedNode):
                path = os.path.join(settings.data_dirs[0], FILE_NAME)
                raise StartError(f"{path} is damaged, {error}; restore the file from a backup") from None
            if isinstance(error, StoreError | KafkaError) and not isinstance(error, StartError):
                raise StartError(f"{error}; {self._store_advice()}") from None
            raise
        await self._accept(listeners)
        for endpoint in insecure:
            log.warning("listener is open to all machines of the network listener=%s", endpoint)
        assert self._membership is not None
        await self._membership.join()
        self._tasks.keep(self._keep_house, "housekeeping")
        # Objects loaded so far live until the stop: the garbage collector need not look at them again.
        self._freeze()

    def _secure(self, listener: str) -> ListenerSecurity:
        """Return the security of a listener. Raise StartError."""
        return ListenerSecurity(
            listener, self._settings, loop=self._loop, server=self.server, clock=self._clock,
            credentials=lambda mechanism: lambda name: self._view.access.credentials.get(name, {}).get(mechanism),
            shapes=lambda mechanism: self._view.access.shapes[mechanism],
            secret=lambda: self._secret, tokens=lambda: self._view.access.tokens,
            works=lambda: self._view.access.works,
        )  # fmt: skip

    async def _open_data(self) -> str:
        """Steps 2 to 4: open the metadata store and return the cluster id."""
        settings = self._settings
        first = settings.data_dirs[0]
        store_path = os.path.join(first, FILE_NAME)
        known = lock_data(
            self._disk, self._log_store, broker_id=settings.broker_id, metadata=store_path if self._is_alone else None
        )
        self._store = await self._open_metadata(store_path)
        cluster_id = await read_and_write(
            self._store, partial(self._store.load, "/"), partial(self._complete_tree, store_path, known)
        )
        # This is last: after a kill before this line, the next start must not report missing metadata.
        try:
            self._log_store.write_meta(cluster_id, settings.broker_id, self._new_directory_id)
        except OSError as error:
            raise StartError(f"data directory {first} cannot be signed: {error}; check the disk") from None
        return cluster_id

    async def _open_metadata(self, path: str) -> MetadataStore:
        """Open the metadata store: that of the cluster, or the file of a broker that is alone."""
        if self._open_store is not None:
            return await self._open_store(path)
        if self._is_alone:
            return EmbeddedStore.open(path)
        settings = self._settings
        return await ZooKeeperStore.open(
            settings.zookeeper_connect, session_timeout_s=settings.zookeeper_session_timeout_ms / 1000,
            security=zookeeper_security(settings),
        )  # fmt: skip

    def _store_advice(self) -> str:
        """Return what to do when the metadata store fails while the broker starts."""
        if self._is_alone:
            return f"see that the disk of {self._settings.data_dirs[0]} has room and works, then start again"
        return f"check that ZooKeeper at {self._settings.zookeeper_connect} runs, then start again"

    def _complete_tree(
        self, store_path: str, known: str | None, nodes: Mapping[str, Node]
    ) -> tuple[list[Op], str]:  # fmt: skip
        """Return the operations that create the missing nodes, and the cluster id. Raise StartError or MalformedNode.

        ``known`` is the cluster that the first data directory belongs to.
        """
        node = nodes.get(CLUSTER_ID)
        try:
            stored = None if node is None else str(json.loads(node.value)["id"])
        except MALFORMED as error:
            raise MalformedNode(CLUSTER_ID, error) from None
        if known is not None and stored != known and not self._is_alone:
            raise StartError(
                f"ZooKeeper at {self._settings.zookeeper_connect} has "
                f"{f'cluster {stored}' if stored else 'no cluster'}, but {os.path.dirname(store_path)} belongs to "
                f"cluster {known}; check zookeeper.connect and its chroot, or choose another --data directory"
            )
        if stored is None and known is not None:
            raise StartError(
                f"{store_path} names no cluster, but {os.path.dirname(store_path)} belongs to cluster {known}: a part "
                "of the file was lost; restore it from a backup"
            )
        if stored is not None and known is not None and stored != known:
            raise StartError(
                f"{store_path} and meta.properties name different clusters: one of them was copied here or is damaged; "
                "restore both from a backup"
            )
        cluster_id = stored or known or self._new_text_id()
        ops = [*ops_create_skeleton(nodes), *(Create(path) for path in ACCESS_SKELETON if path not in nodes)]
        if stored is None:
            ops.append(Create(CLUSTER_ID, to_json({"version": 1, "id": cluster_id})))
        if CLUSTER_SECRET not in nodes:
            ops.append(Create(CLUSTER_SECRET, to_json({"version": 1, "secret": self._random_bytes(32).hex()})))
        return ops, cluster_id

    def _new_directory_id(self, path: str) -> str:
        """Return the id of a directory whose ``meta.properties`` has none, or is missing."""
        return read_runs(self._disk, path).directory_id or self._new_text_id()

    def _new_text_id(self) -> str:
        """Return a random id of 22 characters that does not start with "-", which command lines take for an option."""
        while True:
            text = base64.urlsafe_b64encode(self._random_bytes(16)).decode().rstrip("=")
            if not text.startswith("-"):
                return text

    def _advertised(self, bound: list[Endpoint]) -> tuple[Endpoint, ...]:
        """Return the addresses under which other brokers and their clients find this broker."""
        advertised = {endpoint.name: endpoint for endpoint in self._settings.advertised_endpoints}
        found = tuple(advertised.get(endpoint.name, endpoint) for endpoint in bound)
        if not self._is_alone and any(endpoint.host in _ANY_HOST for endpoint in found):
            raise StartError(
                "a broker of a cluster that listens on all addresses must say how others reach it; "
                "set advertised.listeners"
            )
        return found

    @property
    def _is_alone(self) -> bool:
        """Return whether the metadata store is a file of this broker."""
        return not self._settings.zookeeper_connect

    async def _open_logs(self, cluster_id: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Step 5: open the logs of the partitions that the store lists, and begin a run of this broker."""
        assert self._store is not None
        settings = self._settings
        self._metadata = metadata = ClusterMetadata(
            self._store, settings, cluster_id=cluster_id, new_id=self._new_topic_id, view=self._view
        )
        self._build(metadata)
        assert self._coordination is not None
        self._seen = SeenMetadata(self._disk, self._log_store.usable_dirs()[0].path, is_used=not self._is_alone)
        nodes = await self._seen.load(self._store, self._clock.monotonic)
        self._secret = bytes.fromhex(json.loads(nodes[CLUSTER_SECRET].value)["secret"])
        self._view.apply([Changed(path, node) for path, node in nodes.items()])
        specs = self._load_settings()
        registered = nodes.get(registered_path(settings.broker_id))
        last_dirs = None if registered is None else dirs_of_last_run(registered)
        incarnation = self._random_bytes(16)
        try:
            compared = recognise(self._disk, self._log_store, last_dirs, incarnation.hex())
            self._log_store.load(specs)
        except OSError as error:
            raise StartError(f"the logs cannot be opened: {error}; check the disk") from None
        self._check_epochs()
        if not self._log_store.was_clean and self._is_alone:
            log.warning("the last stop was not clean: logs were checked and leader epochs go up")
            await self._bump_leader_epochs()
        self._membership = Membership(
            metadata=metadata, replicas=self.replicas, loop=self._loop, clock=self._clock, tasks=self._tasks,
            disk=self._disk, log_store=self._log_store, endpoints=endpoints,
            clients=BrokerClients(
                self._loop, self._network, client_id=f"broker-{settings.broker_id}", security=self._peer_security()
            ),
            incarnation=incarnation,
            session_s=None if self._is_alone else settings.zookeeper_session_timeout_ms / 1000,
            role_of=self._role_of, roles_changed=self._coordination.roles_changed, fail=self._fail,
        )  # fmt: skip
        self._metrics.cluster = ClusterMetrics(
            metadata=metadata, replicas=self.replicas, clock=self._clock, membership=self._membership,
            requests=self._cluster_apis,
        )  # fmt: skip
        try:
            await self._membership.begin_run(last_dirs, compared)
        except OSError as error:
            advice = directory_advice(error, option="--data")
            raise StartError(f"a data directory cannot be written: {advice}") from None
        self._leased = None if self._is_alone else self._membership
        self._view = metadata.view = ClusterView()
        self._coordination.settings_changed()
        await self._store.watch("/", self._changed)

    def _build(self, metadata: ClusterMetadata) -> None:
        """Create the components, each with the others that it needs."""
        loop, clock, replicas = self._loop, self._clock, self.replicas
        self._log_moves = log_moves = LogMoves(
            loop=loop, replicas=replicas, threads=self._threads, wall_ms=clock.wall_ms,
            unique=lambda: self._random_bytes(16).hex(),
            rate=lambda: metadata.settings.replica_alter_log_dirs_io_max_bytes_per_second,
        )  # fmt: skip
        topics = TopicApis(
            metadata=metadata, replicas=replicas, clock=clock, log_moves=log_moves, tasks=self._tasks
        )  # fmt: skip
        self._coordination = coordination = Coordination(
            metadata=metadata, replicas=replicas, topics=topics, loop=loop, clock=clock, wheel=self._wheel,
            begin_turn=self.server.ensure_turn, random_bytes=self._random_bytes,
            accepted=lambda: self.server.accepted, check_lease=self._check_lease,
            new_clients=lambda: BrokerClients(
                loop, self._network, client_id=f"coordinator-{metadata.broker_id}", security=self._peer_security()
            ),
        )  # fmt: skip
        groups, transactions = coordination.runtime, coordination.transactions
        schemas = SchemaValidation(replicas.opener, self._lookups, DeadLetters(
            metadata=metadata, replicas=replicas, topics=topics, peers=coordination.peers, loop=loop, clock=clock
        ))  # fmt: skip
        self._produce = ProduceApi(
            metadata=metadata, replicas=replicas, clock=clock, access=self._access, throttling=self._throttling,
            schemas=schemas, checks=coordination.checks, transactions=transactions,
        )  # fmt: skip
        self._fetch = FetchApi(
            metadata=metadata, replicas=replicas, loop=loop, wheel=self._wheel, deferred=self._deferred,
            access=self._access, throttling=self._throttling,
        )  # fmt: skip
        self._cluster_apis = ClusterApis(metadata=metadata, ensemble=self._ensemble_reader(metadata.store))
        self._components = [
            self._produce,
            self._fetch,
            OffsetApis(metadata=metadata, replicas=replicas, loop=loop),
            LogDirApis(metadata=metadata, replicas=replicas, log_moves=log_moves),
            MetadataApis(metadata=metadata, replicas=replicas, topics=topics, clock=clock),
            topics,
            ConfigApis(metadata=metadata),
            self._cluster_apis,
            AclApis(metadata=metadata, access=self._access),
            UserApis(metadata=metadata),
            TokenApis(metadata=metadata, clock=clock),
            CoordinatorApis(
                metadata=metadata, replicas=replicas, topics=topics, groups=groups, transactions=transactions
            ),
            GroupApis(metadata=metadata, groups=groups),
            TransactionApis(
                metadata=metadata, replicas=replicas, groups=groups, transactions=transactions,
                markers=coordination.markers, checks=coordination.checks, awaited_commits=coordination.awaited_commits,
                producer_ids=ProducerIds(metadata.store, metadata.broker_id),
            ),
        ]  # fmt: skip
        metrics = self._metrics
        metrics.throttling, metrics.fetch = self._throttling, self._fetch
        metrics.groups = GroupMetrics(metadata, replicas, clock, coordination)
        metrics.schemas, metrics.lookups = schemas, self._lookups
        self.server.on_admitted = self._throttling.admit

    def _ensemble_reader(self, store: MetadataStore) -> Callable[[], Awaitable[Ensemble | None]]:
        if isinstance(store, ZooKeeperStore):
            return EnsembleReader(self._loop, self._network, store.servers, store.ensemble_config).read
        return _read_no_ensemble

    def _check_epochs(self) -> None:
        """Raise StartError if a log has a later leader epoch than the store of the cluster.

        The store then lost changes. New leaders would use epochs again, and nobody could see which records differ.
        """
        if self._is_alone:
            return
        for name, its_log in self._log_store.logs.items():
            stored = self._view.topics[name.topic].partitions[name.partition].leader_epoch
            if its_log.epochs.latest > stored:
                raise StartError(
                    f"partition {name} has leader epoch {its_log.epochs.latest} on disk, but {stored} in ZooKeeper at "
                    f"{self._settings.zookeeper_connect}: ZooKeeper lost changes, or this data directory is another "
                    "cluster's; restore ZooKeeper from a newer backup"
                )

    async def _bump_leader_epochs(self) -> None:
        """Increase the leader epochs of the partitions that this broker leads, 100 topics at a time."""
        assert self._store is not None
        own = self._settings.broker_id
        led = [topic for topic in self._view.topics.values() if topic.is_led_by(own)]
        for multi in in_multis(put_state(self._view, topic) for topic in led):
            topics = [topic_of(op.path) for op in multi]

            def decide(view: ClusterView, topics: list[str] = topics) -> tuple[list[Op], None]:
                return ops_bump_leader_epochs(view, topics, own), None

            await decide_and_write(self._store, self._view, decide, turn=asyncio.Lock(), watched=False)

    def _load_settings(self) -> dict[TopicPartition, PartitionSpec]:
        """Apply the settings in the store; return the partitions of all topics. Raise MalformedNode."""
        defaults, own = self._view.dynamic_config(self._settings.broker_id)
        for name, config in ((BROKER_DEFAULT, defaults), (str(self._settings.broker_id), own)):
            try:
                self._settings.with_dynamic(config, {})
            except InvalidSettings as error:
                raise MalformedNode(broker_config_path(name), error) from None
        self._apply_dynamic_settings()
        specs = {}
        for topic in self._view.topics.values():
            try:
                specs.update({spec.name: spec for spec in self._specs(topic)})
            except InvalidSettings as error:
                raise MalformedNode(topic_config_path(topic.name), error) from None
        return specs

    def _new_topic_id(self) -> bytes:
        return self._random_bytes(16)

    async def _accept(self, listeners: list[tuple[Endpoint, Listener]]) -> None:
        """Step 6: accept connections."""
        assert self._metadata is not None and self._produce is not None and self._fetch is not None
        apis = table_of(self._components)
        for endpoint, listener in listeners:
            dispatcher = Dispatcher(
                endpoint.name, apis, produce=self._produce, fetch=self._fetch, metadata=self._metadata,
                replicas=self.replicas, access=self._access, throttling=self._throttling, deferred=self._deferred,
            )  # fmt: skip
            self._dispatchers.append(dispatcher)
            secured = self._listeners[endpoint.name]
            handler = secured.handler(dispatcher)
            await self.server.start(listener, handler, endpoint.name, tls=secured.tls, begin=secured.begin)
            self.endpoints.append(endpoint._replace(port=listener.port))

    # -- changes in the store -------------------------------------------------------------------------------------

    def _changed(self, changes: list[Changed]) -> None:
        """Apply changes of the store. It calls this in commit order, before it completes the request for the change."""
        changed = self._view.apply(changes)
        if self._are_logs_closed:
            return
        topics = changed.topics
        if changed.access:
            self._apply_access(changed.access)
        if changed.broker_settings:
            self._apply_dynamic_settings()
        for old, new in topics:
            if old is not None and (new is None or old.topic_id != new.topic_id):
                self.replicas.remove_topic(old.name.encode(), lambda: self._random_bytes(16).hex())
            if new is not None:
                self._serve(new, old)
        if changed.broker_settings:
            for topic in self._view.topics.values():
                self._configure(topic)
        assert self._coordination is not None and self._membership is not None
        self._membership.changed(changed)
        self._coordination.topics_changed(topics)

    def _serve_deferred(self) -> None:
        """Create the logs that could not be created when their partitions were added.

        Not after the lease: leaders that have stopped to lead without the store would lead again.
        """
        self._check_lease()
        if self._leased is not None and self._leased.is_lease_over:
            return
        names, self._deferred_topics = self._deferred_topics, {}
        topics: list[tuple[TopicView | None, TopicView | None]] = []
        for topic in (self._view.topics[name] for name in names if name in self._view.topics):
            self._serve(topic, None)
            topics.append((None, topic))
        changes = ViewChanges(topics=topics, broker_settings=False, brokers=False, controller=False)
        assert self._coordination is not None and self._membership is not None
        self._membership.changed(changes)
        self._coordination.topics_changed(topics)

    def _apply_access(self, changes: Sequence[Pattern | Entity]) -> None:
        """Take over changed ACLs and quotas. What connections have cached of earlier decisions is no longer valid."""
        authorizer = self._access.authorizer
        for about in changes:
            if isinstance(about, Entity):
                self._throttling.put(about, quotas_in(self._view.access.configs.get(about, {})))
        if authorizer is None:
            return
        patterns = [about for about in changes if isinstance(about, Pattern)]
        for pattern in patterns:
            authorizer.put(pattern, self._view.access.acls.get(pattern, ()))
        if patterns:
            self.replicas.generation += 1
            if self._fetch is not None:
                self._fetch.access_changed()

    def _serve(self, topic: TopicView, before: TopicView | None) -> None:
        own, served = self._settings.broker_id, self.replicas.topics.get(topic.name.encode(), {})
        changed = changed_partitions(before, topic)
        for number in changed:
            if number in served and own not in topic.partitions[number].replicas:
                self.replicas.remove(served[number], self._random_bytes(16).hex())
        served = self.replicas.topics.get(topic.name.encode(), {})
        self._partitions_unfrozen += len(topic.partitions) - len(served)
        for spec in self._specs(topic, changed):
            number = spec.name.partition
            state = self._role_of(topic.partitions[number])
            if (partition := served.get(number)) is not None:
                self.replicas.apply_state(partition, state)
                continue
            try:
                self.replicas.add(spec, state)
            except CreationDeferred as error:
                self._deferred_topics.setdefault(topic.name)
                log.warning("partition is made later partition=%s reason=%s", spec.name, error)
            except OSError as error:
                log.error("partition cannot be made partition=%s error=%s", spec.name, error)
        if before is not None and (
            before.config != topic.config or before.replication_factor != topic.replication_factor
        ):
            self._configure(topic)
        if self._partitions_unfrozen >= _FREEZE_PARTITIONS:
            # A full collection blocks the event loop for 7 us per partition.
            self._partitions_unfrozen = 0
            gc.freeze()

    def _role_of(self, state: PartitionView) -> PartitionView:
        """Return the state without its leader if that is this broker and its log may lack records.

        Others are elected then, or this broker in a new epoch.
        """
        own = self._settings.broker_id
        if state.leader == own and any(end.broker == own for end in state.unclean):
            return replace(state, leader=NO_LEADER)
        return state

    def _configure(self, topic: TopicView) -> None:
        assert self._metadata is not None
        self.replicas.configure(topic.name.encode(), self._metadata.topic_settings(topic))

    def _specs(self, topic: TopicView, numbers: Iterable[int] | None = None) -> Iterator[PartitionSpec]:
        """Yield those of these partitions, by default of all, of which this broker has a replica."""
        assert self._metadata is not None
        settings = self._metadata.topic_settings(topic)
        for number in range(len(topic.partitions)) if numbers is None else numbers:
            state = topic.partitions[number]
            if self._settings.broker_id in state.replicas:
                yield PartitionSpec(
                    name=TopicPartition(topic.name, number), topic_id=topic.topic_id, settings=settings,
                    replicated=len(state.replicas) > 1, last_run=state.last_run_of(self._settings.broker_id),
                )  # fmt: skip

    def _has_partition(self, topic: bytes, number: int, by_id: bool) -> bool:
        """Return whether the cluster has this partition, on whichever broker."""
        view = self._view
        found = view.topics_by_id.get(topic) if by_id else view.topics.get(topic.decode(errors="replace"))
        return found is not None and 0 <= number < len(found.partitions)

    def _apply_dynamic_settings(self) -> None:
        assert self._metadata is not None
        self._metadata.apply_dynamic_settings()
        settings = self._metadata.settings
        self.server.limit_connections(_connection_limits(settings))
        self._throttling.limit_connections(*_connection_rates(settings))
        self._lookups.configure(settings)
        if self._coordination is not None:
            self._coordination.settings_changed()

    def _current_settings(self) -> BrokerSettings:
        """Return the settings with their dynamic values."""
        return self._metadata.settings if self._metadata is not None else self._settings

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def _peer_security(self) -> PeerSecurity:
        return PLAIN if self._peers is None else self._peers.security

    def _reload_certificates(self) -> None:
        for secured in self._listeners.values():
            secured.reload()
        if self._peers is not None:
            self._peers.reload()

    async def _keep_house(self) -> None:
        """Run the periodic work, once a second or less often."""
        settings = self._settings
        retention_s = settings.log_retention_check_interval_ms / 1000
        checkpoint_s = settings.log_flush_offset_checkpoint_interval_ms / 1000
        now = self._loop.time()
        due_retention, due_checkpoint, due_expiry = now + retention_s, now + checkpoint_s, now + _PRODUCER_EXPIRY_S
        due_compaction = now
        while True:
            wanted = self._loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = self._loop.time()
            self._metrics.loop_lag_s = max(now - wanted, 0.0)
            attempt(self.replicas.expire_writers, "expire writers")
            attempt(self.replicas.check_free_space, "check free space")
            attempt(self.replicas.apply_flush_interval, "apply the flush interval")
            attempt(self._evict_producers, "evict producers")
            if self._deferred_topics:
                attempt(self._serve_deferred, "create logs")
            if self._coordination is not None:
                attempt(partial(self._coordination.tick, now), "coordinators")
            if now >= due_compaction and not attempt(self._compact, "compact logs"):
                due_compaction = now + settings.log_cleaner_backoff_ms / 1000
            attempt(self._reload_certificates, "reload certificates")
            if now >= due_retention:
                due_retention = now + retention_s
                await self._apply_retention()
            if now >= due_checkpoint:
                due_checkpoint = now + checkpoint_s
                attempt(self.replicas.write_checkpoints, "write checkpoints")
                attempt(self._write_seen, "write what was seen of the metadata")
            if now >= due_expiry:
                due_expiry = now + _PRODUCER_EXPIRY_S
                attempt(self._expire_producers, "expire producers")

    def _write_seen(self) -> None:
        if self._seen is not None:
            self._seen.write(self._view, self._threads)

    def _evict_producers(self) -> None:
        self.replicas.evict_producers(self._current_settings().producer_id_max_count)

    def _expire_producers(self) -> None:
        oldest_ms = self._clock.wall_ms() - self._current_settings().producer_id_expiration_ms
        for partition in self.replicas.all():
            partition.log.expire_producers(oldest_ms)

    def _compact(self) -> bool:
        """Start or continue a compaction. Return whether one is in progress."""
        return self.replicas.maybe_compact(self._clock.wall_ms(), self._current_settings())

    async def _apply_retention(self) -> None:
        for number, partition in enumerate(self.replicas.all()):
            attempt(partial(self.replicas.apply_retention, partition, self._clock.wall_ms()), "apply retention")
            if number % 50 == 0:
                await asyncio.sleep(0)  # serve clients in between

    def _check_lease(self) -> None:
        """Stop to lead and to coordinate if this process was paused for longer than its lease."""
        if self._leased is not None:
            self._leased.check_lease(self._clock.since_boot())

    def _write_turn(self) -> bool:
        """Write the batches of this turn. Return False if that failed unexpectedly and the broker must stop."""
        try:
            if self._leased is not None:
                self._leased.check_lease(self._clock.since_boot())
            self.replicas.write_turn()
        except Exception:  # after a bug here, a reply could acknowledge a batch that was not written
            log.critical("writing failed in an unforeseen way", exc_info=True)
            self._fail("writing failed in an unforeseen way; see the log")
            return False
        return True

    def _fail(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    # -- stop -----------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def stop(self) -> None:
        """Stop all parts in order. The clean shutdown is not recorded if every log directory has failed."""
        if self._membership is not None:
            await self._membership.leave()
        await self._tasks.stop()
        self.server.refuse_new()
        await self._complete_writes()
        if self._coordination is not None:
            await self._coordination.stop()
        if self._fetch is not None:
            self._fetch.answer_all()
        if self._membership is not None:
            await self._membership.stop()
        await self.server.stop(_DRAIN_S)
        for dispatcher in self._dispatchers:
            await dispatcher.stop()
        if self._produce is not None:
            await self._produce.stop()
        await self._lookups.stop()
        self.replicas.opener.close()
        self.replicas.write_turn()
        if self._log_moves is not None:
            self._log_moves.stop()
        self.replicas.compactor.stop()
        self._write_seen()
        await self._threads.drain()
        self._are_logs_closed = True
        try:
            self._log_store.close(self.replicas.high_watermarks())
        finally:
            self._threads.close()
            if self._membership is not None:
                await self._membership.end_run()
            await self._close_store()
            if self._metrics.http is not None:
                await self._metrics.http.close()

    async def _complete_writes(self) -> None:
        """Wait for the syncs of appended batches, so that no request is refused whose records are stored."""
        self.replicas.write_turn()
        deadline = self._loop.time() + _WRITES_S
        while self.replicas.has_waiting_writers and self._loop.time() < deadline:
            await asyncio.sleep(0.002)

    async def _close_store(self) -> None:
        if self._store is not None:
            try:
                await self._store.close()
            except StoreError as error:  # the disk failed; the next start deletes the nodes of this run
                log.error("the metadata store could not be closed properly error=%s", error)

    async def abandon(self) -> None:
        """Release locks, threads and sockets after a start that failed. No file changes."""
        self._are_logs_closed = True
        self._log_store.unlock()
        self._threads.close()
        await self._close_store()
        if self._metrics.http is not None:
            await self._metrics.http.close()


async def _read_no_ensemble() -> Ensemble | None:
    return None


def _connection_limits(settings: BrokerSettings) -> ConnectionLimits:
    listeners = [endpoint.name for endpoint in settings.endpoints]
    return ConnectionLimits(
        total=settings.max_connections, per_host=settings.max_connections_per_ip,
        per_listener={listener: settings.of_listener(listener).max_connections for listener in listeners},
        protected=settings.inter_broker_listener if len(listeners) > 1 else None,
    )  # fmt: skip


def _connection_rates(settings: BrokerSettings) -> tuple[dict[str, int], str]:
    """Return the limits of new connections per second, and the listener that the common limit does not apply to.

    The common limit has an empty name. As in Kafka it leaves out the listener of other brokers, unless it is the only
    one.
    """
    name = "max.connection.creation.rate"
    rates = {"": settings.max_connection_creation_rate} if settings.is_set(name) else {}
    listeners = [endpoint.name for endpoint in settings.endpoints]
    for listener in listeners:
        if settings.listener_overrides.is_set(listener, name):
            rates[listener] = settings.of_listener(listener).max_connection_creation_rate
    return rates, settings.inter_broker_listener if len(listeners) > 1 else ""


def _authorizer(settings: BrokerSettings) -> Authorizer | None:
    """Return the authorizer; None if ACLs are not used."""
    if not settings.authorizer_class_name:
        return None
    return Authorizer(
        super_users=parse_super_users(settings.super_users), allow_if_no_acl=settings.allow_everyone_if_no_acl_found
    )
