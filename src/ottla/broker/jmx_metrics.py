"""The metrics of this broker under the names that the JMX exporter gives those of Apache Kafka, for its dashboards.

Everything is computed when a page is asked for, from figures that the broker has anyway; nothing is counted per record.
What this broker does not have is in docs/reference/gaps.md. The series of topics and partitions are those of at most
``metrics.jmx.topics.max`` topics: internal ones come last, the others in the order of their names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.cluster.cluster_apis import ClusterApis
from ottla.broker.cluster.membership import Membership
from ottla.broker.component import Component
from ottla.broker.coordination.coordination import Coordination
from ottla.broker.fetch.api import FetchApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import INTERNAL_TOPICS, NO_LEADER
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.clock import Clock
from ottla.env.metrics import LATENCY_BOUNDS_S, Page, label_text
from ottla.env.process_figures import fill_process, thread_cpu_s
from ottla.model.types import TopicPartition
from ottla.net.server import Server
from ottla.wire import APIS

_QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
#: latencies are those of this many of the last periods
_PERIOD_S: Final = 60.0
_PERIODS: Final = 5
_PRODUCE, _FETCH = 0, 1
_TOPIC: Final = "kafka_server_brokertopicmetrics"
_REPLICAS: Final = "kafka_server_replicamanager"
_CONTROLLER: Final = "kafka_controller_kafkacontroller"
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager"
_STATES: Final = {
    "Stable": "stable", "PreparingRebalance": "preparingrebalance", "CompletingRebalance": "completingrebalance",
    "Empty": "empty", "Dead": "dead",
}  # fmt: skip


@dataclass(slots=True)
class _Led:
    """A partition that this broker led when the last page was made."""

    leader_epoch: int
    appended_bytes: int
    end_offset: int


@dataclass(slots=True)
class _Produced:
    """What was appended to a topic while this broker led its partitions."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Sums:
    """What one walk over the partitions of this broker counts."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min: int = 0
    at_min: int = 0
    offline: int = 0
    lag_max: int = 0
    shown: list[Partition] = field(default_factory=list)


class JmxMetrics(Component):
    """Reads the figures of one broker. Runs on the event loop."""

    def __init__(
        self,
        *,
        server: Server,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        fetch: FetchApi,
        membership: Membership,
        requests: ClusterApis,
        coordination: Coordination,
        clock: Clock,
        cpu_s: Callable[[], float] = thread_cpu_s,
    ) -> None:
        self._server = server
        self._metadata = metadata
        self._replicas = replicas
        self._fetch = fetch
        self._membership = membership
        self._requests = requests
        self._coordination = coordination
        self._clock = clock
        self._cpu_s = cpu_s
        self._led: dict[TopicPartition, _Led] = {}
        self._has_counted = False
        self._produced: dict[str, _Produced] = {}
        #: records that were appended while this broker led their partitions
        self._records = 0
        #: the counts of latencies at the ends of the last periods, by API, oldest first
        self._periods: deque[dict[int, Sequence[int]]] = deque(maxlen=_PERIODS)
        self._period_began = clock.monotonic()
        #: wall time and processor time at the last ticks
        self._cpu: deque[tuple[float, float]] = deque(maxlen=int(_PERIOD_S))
        self._sums = _Sums()

    def tick(self, now: float) -> None:
        self._cpu.append((self._clock.monotonic(), self._cpu_s()))
        if now - self._period_began >= _PERIOD_S:
            self._period_began = now
            self._fetch.bytes_out_by_topic()  # forgets deleted topics
            self._periods.append({key: tuple(each.counts) for key, each in self._server.latency.items() if each.count})

    # -- the whole broker ---------------------------------------------------------------------------------------------

    def metrics(self, page: Page) -> Iterator[None]:
        self._sums = sums = _Sums()
        yield from self._count(sums)
        self._fill_replicas(page, sums)
        yield from self._fill_controller(page)
        self._fill_traffic(page)
        yield
        self._fill_requests(page)
        yield from self._fill_groups(page)
        fill_process(page)
        yield

    def _count(self, sums: _Sums) -> Iterator[None]:
        """Count the partitions, and what was appended to those that this broker leads since the last page."""
        led: dict[TopicPartition, _Led] = {}
        for partition in self._replicas.all():
            sums.partitions += 1
            sums.offline += partition.offline
            if partition.role is Role.LEADER:
                self._count_led(partition, sums, led)
            elif partition.role is Role.FOLLOWER:
                behind = partition.leader_high_watermark - partition.log.log_end_offset
                sums.lag_max = max(sums.lag_max, behind)
            yield
        self._led, self._has_counted = led, True
        topics = {name.topic for name in led}
        self._produced = {topic: each for topic, each in self._produced.items() if topic in topics}

    def _count_led(self, partition: Partition, sums: _Sums, led: dict[TopicPartition, _Led]) -> None:
        size, size_min = len(partition.isr), partition.min_in_sync
        sums.leaders += 1
        sums.under_replicated += size < len(partition.replicas)
        sums.under_min += size < size_min
        sums.at_min += size == size_min
        log = partition.log
        now = _Led(partition.leader_epoch, log.appended_bytes, log.log_end_offset)
        before = self._led.get(partition.name)
        produced = self._produced.setdefault(partition.name.topic, _Produced())
        if before is None and self._has_counted and not partition.leader_epoch:
            before = _Led(0, 0, 0)  # it was created since the last page
        if before is not None and before.leader_epoch == now.leader_epoch and before.end_offset <= now.end_offset:
            produced.records += now.end_offset - before.end_offset
            produced.bytes += max(now.appended_bytes - before.appended_bytes, 0)
            self._records += now.end_offset - before.end_offset
        led[partition.name] = now

    def _fill_replicas(self, page: Page, sums: _Sums) -> None:
        changes = self._membership.isr_changes
        for name, text, value in (
            (
                "underreplicatedpartitions",
                "Led here, with fewer in-sync replicas than replicas.",
                sums.under_replicated,
            ),
            ("underminisrpartitioncount", "Led here, below min.insync.replicas.", sums.under_min),
            ("atminisrpartitioncount", "Led here, with min.insync.replicas replicas in sync.", sums.at_min),
            ("partitioncount", "Partitions on this broker.", sums.partitions),
            ("leadercount", "Partitions that this broker leads.", sums.leaders),
            ("offlinereplicacount", "Replicas whose log failed.", sums.offline),
        ):
            page.gauge(f"{_REPLICAS}_{name}", text, value)
        page.counter(f"{_REPLICAS}_isrshrinks", "Replicas that left the in-sync replicas.", changes.shrinks)
        page.counter(f"{_REPLICAS}_isrexpands", "Replicas that joined the in-sync replicas.", changes.expands)
        lag = label_text(clientId="Replica")
        text = "Largest lag of a partition that this broker follows."
        page.gauge("kafka_server_replicafetchermanager_maxlag", text, sums.lag_max, lag)

    def _fill_controller(self, page: Page) -> Iterator[None]:
        controller = self._membership.controller
        offline = imbalance = partitions = 0
        topics = list(self._metadata.view.topics.values())
        for topic in topics if controller.is_active else ():
            partitions += len(topic.partitions)
            offline += sum(each.leader == NO_LEADER for each in topic.partitions)
            imbalance += sum(bool(each.replicas) and each.leader != each.replicas[0] for each in topic.partitions)
            yield
        page.gauge(f"{_CONTROLLER}_activecontrollercount", "1 on the controller.", int(controller.is_active))
        for name, text, value in (
            ("offlinepartitionscount", "Partitions without a leader.", offline),
            ("globaltopiccount", "Topics of the cluster.", len(topics) if controller.is_active else 0),
            ("globalpartitioncount", "Partitions of the cluster.", partitions),
            ("preferredreplicaimbalancecount", "Partitions that another than the first replica leads.", imbalance),
        ):
            page.gauge(f"{_CONTROLLER}_{name}", f"{text} On the controller, 0 elsewhere.", value)
        unclean = controller.unclean_elections + self._requests.unclean_elections
        page.counter(
            "kafka_controller_controllerstats_uncleanleaderelections", "Elections that may lose records.", unclean
        )
        text = "Elections by this broker."
        count = controller.elections + self._requests.elections
        _fill_count(page, "kafka_controller_controllerstats_leaderelectionrateandtimems", text, count)

    def _fill_traffic(self, page: Page) -> None:
        replicas, latency = self._replicas, self._server.latency
        for name, text, value in (
            ("messagesin", "Records appended to partitions led here.", self._records),
            ("bytesin", "Bytes of batches appended.", replicas.commits.bytes_in),
            ("bytesout", "Bytes of batches sent to consumers.", self._fetch.bytes_out - self._fetch.replica_bytes_out),
            ("replicationbytesin", "Bytes of batches fetched from leaders.", replicas.followers.bytes_in),
            ("replicationbytesout", "Bytes of batches sent to followers.", self._fetch.replica_bytes_out),
            ("totalproducerequests", "Produce requests.", latency[_PRODUCE].count),
            ("totalfetchrequests", "Fetch requests.", latency[_FETCH].count),
        ):
            page.counter(f"{_TOPIC}_{name}", text, value)
        waiting = {"Fetch": self._fetch.parked, "Produce": replicas.commits.waiting}
        for operation, count in waiting.items():
            labels = label_text(delayedOperation=operation)
            text = "Fetch: requests that wait. Produce: partitions that requests wait for."
            page.gauge("kafka_server_delayedoperationpurgatory_purgatorysize", text, count, labels)
        _fill_count(page, "kafka_log_logflushstats_logflushrateandtimems", "fdatasync calls.", replicas.commits.syncs)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _fill_requests(self, page: Page) -> None:
        idle = self._idle_share()
        text = "Share of the time in which the event loop waits."
        page.gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", text, idle)
        page.gauge("kafka_network_socketserver_networkprocessoravgidlepercent", text, idle)
        page.gauge("kafka_network_socketserver_networkprocessoravgidle_percent", text, idle)
        page.gauge("kafka_network_processor_idlepercent", text, idle, label_text(networkProcessor="0"))
        # A request is handled when it is read, and a reply is written when it is complete.
        text = "Always 0: this broker has no queue of requests."
        page.gauge("kafka_network_requestchannel_requestqueuesize", text, 0)
        page.gauge("kafka_network_requestchannel_responsequeuesize", text, 0, label_text(processor="0"))
        listeners = Counter(each.listener for each in list(self._server.connections))
        for listener, count in sorted(listeners.items()):
            labels = label_text(listener=listener, networkProcessor="0")
            page.gauge("kafka_server_socketservermetrics_connection_count", "Open connections.", count, labels)
        before = self._periods[0] if self._periods else {}
        for key, histogram in self._server.latency.items():
            if not histogram.count:
                continue
            request = label_text(request=APIS[key].name)
            page.counter(
                "kafka_network_requestmetrics_requests", "Requests that were answered.", histogram.count, request
            )
            name, text = "kafka_network_requestmetrics_totaltimems", "Time from request to reply in ms, last minutes."
            old = before.get(key, (0,) * len(histogram.counts))
            counts = [now - then for now, then in zip(histogram.counts, old, strict=True)]
            for quantile in _QUANTILES:
                labels = f"{request},{label_text(quantile=str(quantile))}"
                page.gauge(name, text, quantile_of(counts, quantile) * 1000, labels)
            _fill_count(page, name, "Requests with a time.", histogram.count, request)

    def _idle_share(self) -> float:
        """Return the share of the last minute in which the event loop did not compute; 1 if it is not known yet."""
        if len(self._cpu) < 2:
            return 1.0
        (began, began_cpu), (now, now_cpu) = self._cpu[0], self._cpu[-1]
        return min(max(1.0 - (now_cpu - began_cpu) / max(now - began, 1e-9), 0.0), 1.0)

    # -- groups -------------------------------------------------------------------------------------------------------

    def _fill_groups(self, page: Page) -> Iterator[None]:
        states: Counter[str] = Counter()
        offsets = 0
        for shard in self._coordination.runtime.loaded_shards():
            states.update(each.state for each in list(shard.groups.values()))
            offsets += sum(map(len, shard.offsets.by_group.values()))
            yield
        page.gauge(f"{_GROUPS}_numgroups", "Groups that this broker coordinates.", sum(states.values()))
        for state, word in _STATES.items():
            page.gauge(f"{_GROUPS}_numgroups{word}", f"Those in the state {state}.", states[state])
        page.gauge(f"{_GROUPS}_numoffsets", "Committed offsets.", offsets)

    # -- topics and partitions ----------------------------------------------------------------------------------------

    def detailed_metrics(self, page: Page) -> Iterator[None]:
        shown = self._shown_topics()
        for topic, produced in self._produced.items():
            if topic in shown:
                labels = label_text(topic=topic)
                text = "Records appended to partitions led here."
                page.counter(f"{_TOPIC}_messagesin", text, produced.records, labels)
                page.counter(f"{_TOPIC}_bytesin", "Bytes of batches appended.", produced.bytes, labels)
                yield
        for topic, size in self._fetch.bytes_out_by_topic().items():
            if topic in shown:
                text = "Bytes of batches sent to consumers."
                page.counter(f"{_TOPIC}_bytesout", text, size, label_text(topic=topic))
                yield
        for partition in self._replicas.all():
            if partition.name.topic in shown:
                self._fill_partition(page, partition)
                yield

    def _shown_topics(self) -> frozenset[str]:
        names = {each.name.topic for each in self._replicas.all()}
        ordered = sorted(names, key=lambda name: (name in INTERNAL_TOPICS, name))
        return frozenset(ordered[: self._metadata.settings.metrics_jmx_topics_max])

    def _fill_partition(self, page: Page, partition: Partition) -> None:
        name, log = partition.name, partition.log
        labels = label_text(topic=name.topic, partition=name.partition)
        page.gauge("kafka_log_log_size", "Bytes of a log.", log.size_bytes, labels)
        page.gauge("kafka_log_log_logstartoffset", "First offset.", log.log_start_offset, labels)
        page.gauge("kafka_log_log_logendoffset", "Offset of the next record.", log.log_end_offset, labels)
        page.gauge("kafka_log_log_numlogsegments", "Segments of a log.", len(log.segments), labels)
        if partition.role is not Role.LEADER:
            behind = max(partition.leader_high_watermark - log.log_end_offset, 0)
            full = f"{label_text(clientId=f'ReplicaFetcherThread-0-{partition.leader_id}')},{labels}"
            page.gauge("kafka_server_fetcherlagmetrics_consumerlag", "Records that were not fetched.", behind, full)
            return
        text = "1 if there are fewer in-sync replicas than replicas."
        is_under = int(len(partition.isr) < len(partition.replicas))
        page.gauge("kafka_cluster_partition_underreplicated", text, is_under, labels)
        page.gauge("kafka_cluster_partition_insyncreplicascount", "In-sync replicas.", len(partition.isr), labels)
        page.gauge("kafka_cluster_partition_replicascount", "Replicas.", len(partition.replicas), labels)


def _fill_count(page: Page, name: str, text: str, value: int, labels: str = "") -> None:
    """Write a count under the names of both versions of the JMX exporter: with `_total`, as since 1.0, and without."""
    page.counter(f"{name}_count", text, value, labels)
    page.gauge(f"{name}_count", text, value, labels)


def quantile_of(counts: Sequence[int], quantile: float) -> float:
    """Return a quantile in seconds of latencies that are counted by bucket, linear within a bucket; 0 without any.

    >>> quantile_of([0] * 18, 0.5), quantile_of([10, 10] + [0] * 16, 0.75)
    (0.0, 0.000175)
    """
    total = sum(counts)
    wanted, seen, lower = quantile * total, 0, 0.0
    for count, upper in zip(counts, (*LATENCY_BOUNDS_S, LATENCY_BOUNDS_S[-1]), strict=True):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * max(wanted - seen, 0) / count
        seen, lower = seen + count, upper
    return 0.0
