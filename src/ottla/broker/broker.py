"""The broker: starts its components in order, passes changes of the metadata on to them, and stops them.

Start: 1 listen on all ports, also the metrics port, so that a port in use is found before a file changes  2 check that
the data directories belong to this broker, and lock them  3 open the metadata store  4 open the logs, and begin a run
of this broker  5 follow the changes of the metadata  6 accept connections  7 register in the cluster.
Stop: 1 hand over leaderships  2 complete the requests in flight  3 sync all logs  4 record the clean stop  5 end the
registration.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

from ottla.broker.access.listening import Listening, connection_limits
from ottla.broker.access.permissions import Access, authorizer_of
from ottla.broker.access.throttling import Throttling
from ottla.broker.assembly import Parts, build
from ottla.broker.cluster.identity import ClusterIdentity, OpenStore, open_store, store_advice, store_path
from ottla.broker.cluster.run_start import RunStart
from ottla.broker.component import Component
from ottla.broker.dispatch import Dispatcher, table_of
from ottla.broker.environment import Environment
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import Changed, MalformedNode, MetadataStore, StoreError
from ottla.broker.metadata.view import ClusterView, ViewChanges
from ottla.broker.metrics import BrokerMetrics
from ottla.broker.partitions.manager import ReplicaManager
from ottla.env.clock import Clock, SystemClock
from ottla.env.collector import freeze_objects
from ottla.env.disk import Disk, RealDisk
from ottla.env.metrics import Histogram
from ottla.env.metrics_server import MetricsServer
from ottla.env.tasks import ThreadPool, Threads, attempt
from ottla.log.store import LogStore
from ottla.model.errors import KafkaError, StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.net.network import Network, SocketNetwork
from ottla.net.server import Server
from ottla.wire import APIS

log = logging.getLogger(__name__)

_DRAIN_S = 5.0
#: how long a stop waits for syncs that requests wait for
_WRITES_S = 2.0
_TICK_S = 1.0


class Broker:
    """One broker, alone or in a cluster."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock | None = None,
        disk: Disk | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        network: Network | None = None,
        threads: Threads | None = None,
        open_store: OpenStore | None = None,
        freeze: Callable[[], None] = freeze_objects,
    ) -> None:
        self._settings = settings
        self._env = env = Environment(
            loop=loop,
            clock=clock or SystemClock(),
            disk=disk or RealDisk(),
            network=network or SocketNetwork(),
            threads=threads or ThreadPool(loop, settings.sync_threads, "disk"),
            random_bytes=random_bytes,
            freeze=freeze,
        )
        self._open_store = open_store
        is_alone = not settings.zookeeper_connect
        self._log_store = LogStore(env.disk, settings.data_dirs, env.threads, needs_first=is_alone)
        self.replicas = ReplicaManager(
            broker_id=settings.broker_id,
            exists=lambda topic, number, by_id: self.view.has_partition(topic, number, by_id=by_id),
            clock=env.clock,
            disk=env.disk,
            store=self._log_store,
            threads=env.threads,
            free_bytes_min=settings.log_dir_free_bytes_min,
            on_all_dirs_failed=self._fail,
        )
        latency = {key: Histogram() for key in APIS}
        self.server = Server(
            loop,
            clock=env.clock,
            request_bytes_max=settings.socket_request_max_bytes,
            limits=connection_limits(settings),
            idle_ms_max=settings.connections_max_idle_ms,
            in_flight_max=settings.queued_max_requests,
            before_replies=self._end_turn,
            latency=latency,
            network=env.network,
        )
        self._access = Access(authorizer_of(settings), monotonic=env.clock.monotonic)
        self._throttling = Throttling(env.wheel, env.clock.monotonic, loop)
        self._dispatchers: list[Dispatcher] = []
        self._components: list[Component] = []
        self._metrics = BrokerMetrics(
            server=self.server,
            latency=latency,
            dispatchers=self._dispatchers,
            components=self._components,
            settings=self._current_settings,
        )
        self.watch = self._metrics.watch
        self._store: MetadataStore | None = None
        #: None until the metadata store is open
        self.parts: Parts | None = None
        #: what components do at the end of a turn
        self._turn_ends: list[Callable[[], None]] = [self.replicas.commits.write_turn]
        #: of the cluster; known when the metadata store is open
        self._secret = b""
        self.endpoints: list[Endpoint] = []
        self.metrics_port: int | None = None
        #: changes of the store come until the session ends, but change no log any more
        self._are_logs_closed = False
        #: completed when the broker must stop: with None for a clean stop, with a reason after a failure
        self.ended: asyncio.Future[str | None] = loop.create_future()

    @property
    def view(self) -> ClusterView:
        """Return the metadata of the cluster as this broker knows them."""
        return self.parts.metadata.view if self.parts is not None else ClusterView()

    def _current_settings(self) -> BrokerSettings:
        """Return the settings with their dynamic values."""
        return self.parts.metadata.settings if self.parts is not None else self._settings

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raise StartError with one line for the operator, with no file changed."""
        settings, env = self._settings, self._env
        listening = Listening(
            settings,
            loop=env.loop,
            clock=env.clock,
            network=env.network,
            server=self.server,
            throttling=self._throttling,
            view=lambda: self.view,
            secret=lambda: self._secret,
            current_settings=self._current_settings,
        )
        listening.bind()
        try:
            if (endpoint := settings.metrics_endpoint) is not None:
                self._metrics.http = http = MetricsServer(endpoint, self._metrics.fill)
                await http.start()
                self.metrics_port = http.port
            parts = await self._open(listening)
        except BaseException as error:
            listening.close()
            if isinstance(error, MalformedNode):
                path = store_path(settings)
                raise StartError(f"{path} is damaged, {error}; restore the file from a backup") from None
            if isinstance(error, StoreError | KafkaError) and not isinstance(error, StartError):
                raise StartError(f"{error}; {store_advice(settings)}") from None
            raise
        await self._accept(listening, parts)
        for endpoint in listening.insecure:
            log.warning("listener is open to all machines of the network listener=%s", endpoint)
        for component in self._components:
            await component.start()
        env.tasks.keep(self._tick, "housekeeping")
        # Objects loaded so far live until the stop: the garbage collector need not look at them again.
        env.freeze()

    async def _open(self, listening: Listening) -> Parts:
        """Steps 2 to 5."""
        settings, env = self._settings, self._env
        identity = ClusterIdentity(
            settings, disk=env.disk, log_store=self._log_store, random_bytes=env.random_bytes
        )  # fmt: skip
        identity.lock()
        if self._open_store is not None:
            self._store = await self._open_store(store_path(settings))
        else:
            self._store = await open_store(settings)
        cluster_id = await identity.complete(self._store)
        metadata = ClusterMetadata(self._store, settings, cluster_id=cluster_id, new_id=env.new_id)
        incarnation = env.new_id()
        self.parts = parts = build(
            env,
            metadata,
            log_store=self._log_store,
            replicas=self.replicas,
            server=self.server,
            listening=listening,
            access=self._access,
            throttling=self._throttling,
            incarnation=incarnation,
            announce=self._announce,
            fail=self._fail,
        )
        self.server.on_admitted = self._throttling.admit
        self._secret = await RunStart(
            metadata=metadata,
            partitions=parts.partitions,
            membership=parts.membership,
            seen=parts.seen,
            disk=env.disk,
            log_store=self._log_store,
            incarnation=incarnation,
            monotonic=env.clock.monotonic,
        ).run()
        self._components.extend(parts.components)
        self._turn_ends = [each.before_replies for each in reversed(parts.components) if _ends_turns(each)]
        metadata.view = ClusterView()
        listening.apply_limits()
        parts.lookups.configure(metadata.settings)
        parts.coordination.settings_changed()
        await self._store.watch("/", self._changed)
        return parts

    async def _accept(self, listening: Listening, parts: Parts) -> None:
        """Step 6: accept connections."""
        apis = table_of(self._components)
        for endpoint, listener in listening.bound:
            dispatcher = Dispatcher(
                endpoint.name,
                apis,
                produce=parts.produce,
                fetch=parts.fetch,
                metadata=parts.metadata,
                replicas=self.replicas,
                access=self._access,
                throttling=self._throttling,
                deferred=self._env.deferred,
            )
            self._dispatchers.append(dispatcher)
            secured = listening.security[endpoint.name]
            handler = secured.handler(dispatcher.handle)
            if secured.is_sasl:
                dispatcher.handle_login = handler
            await self.server.start(listener, handler, endpoint.name, tls=secured.tls, begin=secured.begin)
            self.endpoints.append(endpoint)

    # -- run ------------------------------------------------------------------------------------------------------

    def _changed(self, changes: list[Changed]) -> None:
        """Apply changes of the store. It calls this in commit order, before it completes the request for the change."""
        assert self.parts is not None
        metadata = self.parts.metadata
        changed = metadata.view.apply(changes)
        if self._are_logs_closed:
            return
        if changed.broker_settings:
            metadata.apply_dynamic_settings()
        self._announce(changed)

    def check_invariants(self) -> None:
        """Raise AssertionError if a component contradicts itself or the partitions that are served."""
        for component in self._components:
            component.check_invariants()

    def _announce(self, changes: ViewChanges) -> None:
        for component in self._components:
            component.on_view(changes)

    async def _tick(self) -> None:
        """Let the components do their periodic work, once a second."""
        loop = self._env.loop
        while True:
            wanted = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            self._metrics.loop_lag_s = max(now - wanted, 0.0)
            for component in self._components:
                attempt(partial(component.tick, now), type(component).__name__)

    def _end_turn(self) -> bool:
        """Write the batches of this turn. Return False if that failed unexpectedly and the broker must stop."""
        try:
            for end in self._turn_ends:
                end()
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
        """Stop all parts in order. The clean stop is not recorded if every log directory has failed."""
        membership = self.parts.membership if self.parts is not None else None
        if membership is not None:
            await membership.leave()
        await self._env.tasks.stop()
        self.server.refuse_new()
        await self._complete_writes()
        for component in reversed(self._components):
            await component.complete_requests()
        await self.server.stop(_DRAIN_S)
        for dispatcher in self._dispatchers:
            await dispatcher.stop()
        for component in reversed(self._components):
            await component.stop()
        await self._env.threads.drain()
        self._are_logs_closed = True
        try:
            self._log_store.close(self.replicas.high_watermarks())
        finally:
            self._env.threads.close()
            if membership is not None:
                await membership.end_run()
            await self._close()

    async def _complete_writes(self) -> None:
        """Wait for the syncs of appended batches, so that no request is refused whose records are stored."""
        self.replicas.commits.write_turn()
        loop = self._env.loop
        deadline = loop.time() + _WRITES_S
        while self.replicas.commits.has_waiting_writers and loop.time() < deadline:
            await asyncio.sleep(0.002)

    async def abandon(self) -> None:
        """Release locks, threads and sockets after a start that failed. No file changes."""
        self._are_logs_closed = True
        self._log_store.unlock()
        self._env.threads.close()
        await self._close()

    async def _close(self) -> None:
        if self._store is not None:
            try:
                await self._store.close()
            except StoreError as error:  # the disk failed; the next start deletes the nodes of this run
                log.error("the metadata store could not be closed properly error=%s", error)
        if self._metrics.http is not None:
            await self._metrics.http.close()


def _ends_turns(component: Component) -> bool:
    return type(component).before_replies is not Component.before_replies
