"""The broker's metrics page: its own figures, those of the cluster, of partitions, of groups and of transactions.

Names and meanings are in docs/reference/metrics.md. A page that is full leaves out the series that come last. So the
figures of the broker as a whole come first, then those of partitions, then those of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ottla.broker.access.listener_security import ListenerSecurity
from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling
from ottla.broker.assembly import Parts
from ottla.broker.cluster.metrics import ClusterMetrics
from ottla.broker.coordination.metrics import GroupMetrics
from ottla.broker.dispatch import Dispatcher
from ottla.broker.fetch.api import FetchApi
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.validation.schema_lookup import SchemaLookups
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.env.clock import Clock
from ottla.env.metrics import Histogram, Page, in_slices, label_text
from ottla.env.metrics_server import MetricsServer
from ottla.env.watchdog import LoopWatchdog
from ottla.model.settings import BrokerSettings
from ottla.net.server import Server
from ottla.security.quotas import Quota
from ottla.wire import APIS

Rows = tuple[tuple[str, str, float], ...]


class BrokerMetrics:
    """Reads the figures of one broker. Runs on the event loop."""

    def __init__(
        self, *, replicas: ReplicaManager, server: Server, latency: dict[int, Histogram],
        dispatchers: Sequence[Dispatcher], settings: Callable[[], BrokerSettings], access: Access,
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._server = server
        self._latency = latency
        self._dispatchers = dispatchers
        self._settings = settings
        self._access = access
        #: how late the event loop's last tick was
        self.loop_lag_s = 0.0
        #: None in simulations
        self._watchdog: LoopWatchdog | None = None

        # Parts that a broker does not have until it is started
        self.http: MetricsServer | None = None
        self.fetch: FetchApi | None = None
        self.cluster: ClusterMetrics | None = None
        self.groups: GroupMetrics | None = None
        self.throttling: Throttling | None = None
        self.schemas: SchemaValidation | None = None
        self.lookups: SchemaLookups | None = None
        self.listeners: Mapping[str, ListenerSecurity] = {}

    def show(self, parts: Parts, clock: Clock, throttling: Throttling) -> None:
        """Show the figures of the components too."""
        self.throttling, self.fetch, self.schemas, self.lookups = throttling, parts.fetch, parts.schemas, parts.lookups
        self.groups = GroupMetrics(parts.metadata, self._replicas, clock, parts.coordination)
        self.cluster = ClusterMetrics(
            metadata=parts.metadata,
            replicas=self._replicas,
            clock=clock,
            membership=parts.membership,
            requests=parts.cluster,
        )

    def watch(self, watchdog: LoopWatchdog) -> None:
        """Show what the watchdog of the event loop has seen."""
        self._watchdog = watchdog

    async def fill(self) -> list[bytes]:
        """Return the page, in pieces."""
        page = Page(self._settings().metrics_series_max)
        groups = await self.groups.collect() if self.groups is not None else None
        await in_slices(self._broker_steps(page))
        if self.groups is not None and groups is not None:
            self.groups.totals(page, groups)
        await in_slices(self._partition_steps(page))
        if self.groups is not None and groups is not None:
            await in_slices(self.groups.steps(page))
        return page.pieces()

    def _broker_steps(self, page: Page) -> Iterator[None]:
        for key, histogram in self._latency.items():
            if histogram.count:
                labels = label_text(api=APIS[key].name)
                page.counter("ottla_requests", "Requests answered.", histogram.count, labels)
                page.histogram("ottla_request_seconds", "Time from request to reply.", histogram, labels)
                yield
        for name, text, value in self._counters():
            page.counter(name, text, value)
        if self.throttling is not None:
            for quota in Quota:
                labels, throttling = label_text(quota=quota.value), self.throttling
                page.counter("ottla_throttled", "Times a quota was exceeded.", throttling.throttled[quota], labels)
                page.counter(
                    "ottla_throttle_seconds", "Throttle time of clients.", throttling.throttle_s[quota], labels
                )
        self._security_counters(page)
        self._schema_counters(page)
        for name, text, value in self._gauges():
            page.gauge(name, text, value)
        if self.cluster is not None:
            yield from self.cluster.broker_steps(page)

    def _security_counters(self, page: Page) -> None:
        """Write what was refused. Labels have values of the broker's own tables and settings, never of clients."""
        for (api_key, resource), count in self._access.refused.items():
            labels = label_text(api=APIS[api_key].name, resource=resource.name)
            page.counter("ottla_authorization_refused", "Uses of a resource that ACLs refused.", count, labels)
        for name, listener in self.listeners.items():
            for mechanism, count in listener.accepted().items():
                labels = label_text(listener=name, mechanism=mechanism)
                page.counter("ottla_authentications", "Clients that authenticated.", count, labels)
            for mechanism, count in listener.refused().items():
                labels = label_text(listener=name, mechanism=mechanism)
                page.counter("ottla_authentications_failed", "Clients that failed to authenticate.", count, labels)

    def _schema_counters(self, page: Page) -> None:
        if self.schemas is None or self.lookups is None or not self._settings().schema_registry_url:
            return
        records = self.schemas.records
        records = {**records, "valid": records["valid"] + self._replicas.inline_budget.valid_records}
        for outcome, count in records.items():
            labels = label_text(outcome=outcome)
            page.counter("ottla_schema_validation_records", "Records of topics with validation.", count, labels)
        for result, count in self.lookups.results.items():
            labels = label_text(result=result)
            page.counter("ottla_schema_lookups", "Requests to the schema registry.", count, labels)

    def _partition_steps(self, page: Page) -> Iterator[None]:
        for partition in self._replicas.all():
            where = label_text(topic=partition.name.topic, partition=partition.name.partition)
            page.gauge("ottla_log_size_bytes", "Size of a log.", partition.log.size_bytes, where)
            page.gauge("ottla_log_start_offset", "First offset.", partition.log.log_start_offset, where)
            page.gauge("ottla_high_watermark", "Offset readers see up to.", partition.high_watermark, where)
            yield
        if self.cluster is not None:
            yield from self.cluster.partition_steps(page)

    def _counters(self) -> Rows:
        replicas, server, fetch, http = self._replicas, self._server, self.fetch, self.http
        refused_frames = server.refused_frames + sum(each.refused for each in self._dispatchers)
        refused_scrapes = http.refused if http is not None else 0
        return (
            ("ottla_bytes_in", "Bytes of batches appended.", replicas.bytes_in),
            ("ottla_bytes_out", "Bytes of batches sent to readers.", fetch.bytes_out if fetch else 0),
            (
                "ottla_throttled_replication_bytes_out",
                "Bytes sent from throttled replicas to their followers.",
                fetch.quota.total_bytes if fetch else 0,
            ),
            ("ottla_log_syncs", "fdatasync calls for acknowledgements.", replicas.syncs),
            ("ottla_acks_zero", "Produces that asked for no acknowledgement.", replicas.acks_zero),
            ("ottla_read_errors", "Reads of a log's files that failed.", replicas.read_errors),
            ("ottla_producers_evicted", "Producers that expired early.", replicas.producers_evicted),
            ("ottla_connections_refused", "Connections over a limit.", server.refused_connections),
            (
                "ottla_connections_evicted",
                "Connections without a login or a request that were closed for new ones.",
                server.evicted_connections,
            ),
            ("ottla_frames_refused", "Frames that could not be understood.", refused_frames),
            (
                "ottla_metrics_connections_refused",
                "Connections to this page over a limit.",
                refused_scrapes,
            ),
        )

    def _gauges(self) -> Rows:
        fetch = self.fetch
        return (
            ("ottla_connections", "Open connections.", len(self._server.connections)),
            (
                "ottla_connections_muted",
                "Connections that are muted because of quotas.",
                self.throttling.muted if self.throttling else 0,
            ),
            ("ottla_fetches_parked", "Long polls that wait.", fetch.parked if fetch else 0),
            ("ottla_fetch_sessions", "Fetch sessions.", len(fetch.sessions) if fetch else 0),
            ("ottla_partitions", "Partitions on this broker.", len(self._replicas.all())),
            ("ottla_producers", "Producers whose sequence numbers are kept.", self._replicas.producers),
            ("ottla_loop_lag_seconds", "How late the event loop's last tick was.", self.loop_lag_s),
            (
                "ottla_loop_stall_seconds_max",
                "The longest time that the event loop stood still.",
                self._watchdog.longest_s if self._watchdog else 0.0,
            ),
        )
