"""The traces of records: the spans of their append and replication, and which batches a fetch carries.

    produce        from the request to the moment at which it is as safe as ``acks`` asks for
    ├─ append      checked and appended to the log of the leader
    ├─ replicate   until all in-sync replicas have it: the high watermark is behind it
    ├─ fetch       each reply to a follower, and each to a consumer, that carries the batch
    └─ fetch

Only for brokers with ``traces.endpoint``. Batches are never changed: a batch is found again by its offset, in a bounded
list of those that were traced last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.env.tracing import Attributes, Context, Spans
from ottla.log.file_region import FileRegion
from ottla.model.errors import KafkaError

#: traced batches that fetches are compared with
BATCHES_MAX = 10_000
#: spans of fetches of one batch: each group and each follower fetches it
FETCHES_MAX = 32
#: batches of one fetch that are compared
_COMPARED_MAX = 200
#: the wall clock was set if it differs by more
_DRIFT_NS = 5_000_000

#: id of the topic, number of the partition
_Key = tuple[bytes, int]


class TracedBatch:
    """A batch whose way is traced."""

    __slots__ = ("base_offset", "context", "fetches_left")

    def __init__(self, base_offset: int, context: Context) -> None:
        self.base_offset = base_offset
        self.context = context
        self.fetches_left = FETCHES_MAX


def _base_offset(batch: TracedBatch) -> int:
    return batch.base_offset


class RecordTraces:
    """The spans of one broker, and the batches that were traced last."""

    def __init__(
        self,
        spans: Spans,
        replicas: ReplicaManager,
        *,
        broker_id: int,
        wall_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.spans = spans
        self.replicas = replicas
        self.monotonic = monotonic
        self._wall_ms = wall_ms
        self._broker_id = broker_id
        #: nanoseconds since 1970 at which the monotonic clock was 0
        self._epoch_ns = 0
        #: by partition, in the order of their offsets
        self._batches: dict[_Key, list[TracedBatch]] = {}
        #: the keys of all batches that were added, the oldest first
        self._order: deque[_Key] = deque()

    def time_ns(self, monotonic_s: float) -> int:
        """Return a time of the monotonic clock as nanoseconds since 1970."""
        epoch_ns = self._wall_ms() * 1_000_000 - int(self.monotonic() * 1e9)
        if abs(epoch_ns - self._epoch_ns) > _DRIFT_NS:
            self._epoch_ns = epoch_ns
        return self._epoch_ns + int(monotonic_s * 1e9)

    def attributes(self, partition: Partition, offset: int, client_id: str | None) -> dict[str, str | int]:
        """Return the attributes that all spans have, by OpenTelemetry's names."""
        found: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.destination.name": partition.name.topic,
            "messaging.destination.partition.id": str(partition.name.partition),
            "messaging.kafka.offset": offset,
            "ottla.broker.id": self._broker_id,
        }
        if client_id:
            found["messaging.client.id"] = client_id
        return found

    # -- produce ------------------------------------------------------------------------------------------------------

    def appended(
        self,
        partition: Partition,
        base_offset: int,
        *,
        parent: Context | None,
        began: float,
        acks: int,
        timeout_s: float,
        attributes: Attributes,
    ) -> None:
        """A batch was appended: begin its spans, which end when it is replicated."""
        now = self.monotonic()
        began_ns, now_ns, topic = self.time_ns(began), self.time_ns(now), partition.name.topic
        produce = self.spans.begin(f"produce {topic}", began_ns, attributes, parent)
        context = produce.context
        self.spans.begin(f"append {topic}", began_ns, attributes, context).end(now_ns)
        replicate = self.spans.begin(f"replicate {topic}", now_ns, attributes, context)
        commits, end_offset = self.replicas.commits, partition.log.log_end_offset
        deadline = now + max(timeout_s, 1.0)
        commits.wait(partition, Until.COMMITTED, end_offset, _Milestone(self, replicate.end, deadline))
        if acks:
            commits.wait(partition, partition.until(acks), end_offset, _Milestone(self, produce.end, deadline))
        else:
            produce.end(now_ns)
        self._remember((partition.topic_id, partition.name.partition), TracedBatch(base_offset, context))

    def _remember(self, key: _Key, batch: TracedBatch) -> None:
        if len(self._order) >= BATCHES_MAX:
            oldest = self._order.popleft()
            batches = self._batches.get(oldest, [])
            del batches[:1]
            if not batches:
                self._batches.pop(oldest, None)
        batches = self._batches.setdefault(key, [])
        while batches and batches[-1].base_offset >= batch.base_offset:
            batches.pop()  # the log was truncated
        batches.append(batch)
        self._order.append(key)

    # -- fetch --------------------------------------------------------------------------------------------------------

    def carried(self, partition: Partition, fetch_offset: int, region: FileRegion, limit: int) -> Iterator[TracedBatch]:
        """Yield the traced batches that a region has, which begins with the batch of ``fetch_offset``."""
        batches = self._batches.get((partition.topic_id, partition.name.partition), [])
        first = bisect_left(batches, fetch_offset, key=_base_offset)
        end = region.position + region.size_bytes
        for batch in batches[first : first + _COMPARED_MAX]:
            try:
                own = partition.log.read(batch.base_offset, 1, limit, at_least_one=True)
            except (KafkaError, OSError):
                return
            if own is None or own.file is not region.file or not region.position <= own.position < end:
                return  # nor are those behind it
            if batch.fetches_left:
                yield batch

    def fetched(
        self, found: Iterable[tuple[Partition, TracedBatch]], began: float, *, client_id: str | None, follower: int
    ) -> None:
        """A reply carries these batches. ``follower`` is the id of the broker that gets it, negative for a consumer."""
        for partition, batch in found:
            batch.fetches_left -= 1
            attributes = self.attributes(partition, batch.base_offset, client_id)
            if follower >= 0:
                attributes["ottla.follower.id"] = follower
            span = self.spans.begin(f"fetch {partition.name.topic}", self.time_ns(began), attributes, batch.context)
            span.end(self.time_ns(self.monotonic()))


class _Milestone:
    """Ends a span when a batch is as safe as it should be, or when that has failed."""

    __slots__ = ("_end", "_traces", "deadline")

    def __init__(self, traces: RecordTraces, end: Callable[[int, str], None], deadline: float) -> None:
        self._traces = traces
        self._end = end
        self.deadline = deadline

    def on_write_complete(self, error_code: int) -> None:
        traces = self._traces
        self._end(traces.time_ns(traces.monotonic()), f"error code {error_code}" if error_code else "")
