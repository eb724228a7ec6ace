"""The broker: builds its components, starts them in order, and stops them.

Start: 1 listen on all ports, also the metrics port, so that a port in use is found before a file changes  2 check that
the data directories belong to this broker, and lock them  3 open the metadata store  4 open the logs, and begin a run
of this broker  5 follow the changes of the metadata  6 accept connections  7 register in the cluster.
Stop: 1 hand over leaderships  2 complete the requests in flight  3 sync all logs  4 record the clean stop  5 end the
registration.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.broker.access.listening import Listening
from ottla.broker.assembly import Parts, build, new_dispatchers
from ottla.broker.cluster.identity import ClusterIdentity, OpenStore, open_store, store_errors_explained
from ottla.broker.components import Components
from ottla.broker.dispatch import Dispatcher
from ottla.broker.environment import Environment
from ottla.broker.local_parts import build_local_parts
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import MetadataStore, StoreError
from ottla.broker.metadata.view import ClusterView
from ottla.broker.metrics import BrokerMetrics
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint

log = logging.getLogger(__name__)

_DRAIN_S = 5.0
#: how long a stop waits for syncs that requests wait for
_WRITES_S = 2.0


class Broker:
    """One broker, alone or in a cluster."""

    def __init__(
        self, settings: BrokerSettings, environment: Environment, *, open_store: OpenStore = open_store
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._open_store = open_store
        self.components = Components()
        self.local = build_local_parts(
            settings,
            environment,
            has_partition=lambda topic, number, by_id: self.view.has_partition(topic, number, by_id=by_id),
            end_turn=self._end_turn,
            fail=self._fail,
        )
        self.replicas = self.local.replicas
        self.server = self.local.server
        self._dispatchers: list[Dispatcher] = []
        self.metrics = BrokerMetrics(
            server=self.server,
            dispatchers=self._dispatchers,
            components=self.components,
            settings=self._current_settings,
        )
        #: None until the metadata store is open
        self.store: MetadataStore | None = None
        self.parts: Parts | None = None
        #: of the cluster; known when the metadata store is open
        self._secret = b""
        #: where this broker accepts connections; empty until it does
        self.endpoints: list[Endpoint] = []
        self.metrics_port: int | None = None
        #: completed when the broker must stop: with None for a clean stop, with a reason after a failure
        self.ended: asyncio.Future[str | None] = environment.loop.create_future()

    @property
    def view(self) -> ClusterView:
        """Return the metadata of the cluster as this broker knows them."""
        return self.parts.metadata.view if self.parts is not None else ClusterView()

    def _current_settings(self) -> BrokerSettings:
        """Return the settings with their dynamic values."""
        return self.parts.metadata.settings if self.parts is not None else self._settings

    def _fail(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raise StartError with one line for the operator, with no file changed."""
        listening = Listening(
            self._settings,
            environment=self._environment,
            server=self.server,
            throttling=self.local.throttling,
            view=lambda: self.view,
            secret=lambda: self._secret,
            current_settings=self._current_settings,
        )
        listening.bind()
        try:
            if (endpoint := self._settings.metrics_endpoint) is not None:
                self.metrics_port = await self.metrics.serve(endpoint)
            with store_errors_explained(self._settings):
                parts = await self._open(listening)
        except BaseException:
            listening.close()
            raise
        dispatchers = new_dispatchers(self.local, parts, [endpoint.name for endpoint, _ in listening.bound])
        self._dispatchers.extend(dispatchers.values())
        self.endpoints = await listening.accept(dispatchers)
        await self.components.start()
        self._environment.tasks.keep(self.components.tick, "housekeeping")
        # Objects loaded so far live until the stop: the garbage collector need not look at them again.
        self._environment.freeze()

    async def _open(self, listening: Listening) -> Parts:
        """Steps 2 to 5."""
        settings, environment, log_store = self._settings, self._environment, self.local.log_store
        identity = ClusterIdentity(
            settings, disk=environment.disk, log_store=log_store, random_bytes=environment.random_bytes
        )
        identity.lock()
        self.store = await self._open_store(settings)
        cluster_id = await identity.complete(self.store)
        metadata = ClusterMetadata(self.store, settings, cluster_id=cluster_id, new_id=environment.new_id)
        self.parts = parts = build(self.local, listening, metadata, announce=self.components.announce, fail=self._fail)
        self._secret = await parts.run_start.run()
        metadata.view = ClusterView()  # the watch reports all nodes again, as changes
        self.components.begin(parts.components)
        await metadata.follow(self.components.announce)
        return parts

    # -- turns ----------------------------------------------------------------------------------------------------

    def _end_turn(self) -> bool:
        """Write the batches of this turn. Return False if that failed unexpectedly and the broker must stop.

        The lease is checked first, because it decides when these batches may be acknowledged.
        """
        try:
            if self.parts is not None:
                self.parts.membership.lease_check.check_now()
            self.replicas.commits.write_turn()
        except Exception:  # after a bug here, a reply could acknowledge a batch that was not written
            log.critical("writing failed in an unforeseen way", exc_info=True)
            self._fail("writing failed in an unforeseen way; see the log")
            return False
        return True

    # -- stop -----------------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def stop(self) -> None:
        """Stop all parts in order. The clean stop is not recorded if every log directory has failed."""
        membership = self.parts.membership if self.parts is not None else None
        if membership is not None:
            await membership.leave()
        await self._environment.tasks.stop()
        self.server.refuse_new()
        await self.replicas.commits.complete_writes(_WRITES_S)
        await self.components.complete_requests()
        await self.server.stop(_DRAIN_S)
        for dispatcher in self._dispatchers:
            await dispatcher.stop()
        await self.components.stop()
        await self._environment.threads.drain()
        self.components.note_closed_logs()
        try:
            self.local.log_store.close(self.replicas.high_watermarks())
        finally:
            self._environment.threads.close()
            if membership is not None:
                await membership.end_run()
            await self._close()

    async def abandon(self) -> None:
        """Release locks, threads and sockets after a start that failed. No file changes."""
        self.components.note_closed_logs()
        self.local.log_store.unlock()
        self._environment.threads.close()
        await self._close()

    async def _close(self) -> None:
        if self.store is not None:
            try:
                await self.store.close()
            except StoreError as error:  # the disk failed; the next start deletes the nodes of this run
                log.error("the metadata store could not be closed properly error=%s", error)
        await self.metrics.close()
        if self._environment.spans is not None:
            self._environment.spans.close()
