"""The partitions that this broker serves: their logs, roles and settings follow the metadata of the cluster."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator

from ottla.broker.component import Component
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import topic_config_path
from ottla.broker.metadata.store import MalformedNode
from ottla.broker.metadata.view import AccessChanges, TopicView, ViewChanges, changed_partitions
from ottla.broker.partitions.manager import ReplicaManager
from ottla.env.metrics import Page, label_text
from ottla.log.folders import PartitionSpec
from ottla.log.store import CreationDeferred
from ottla.model.settings import InvalidSettings
from ottla.model.types import TopicPartition
from ottla.security.acls import Pattern

log = logging.getLogger(__name__)

#: new partitions after which all objects are frozen: the garbage collector does not look at them again
_FREEZE_PARTITIONS = 1_000


class ServedPartitions(Component):
    """Adds, changes and removes the partitions of this broker."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        new_name: Callable[[], str],
        is_lease_over: Callable[[], bool],
        announce: Callable[[ViewChanges], None],
    ) -> None:
        """``announce`` tells all components of topics whose logs could not be created when they were added."""
        self._metadata = metadata
        self._replicas = replicas
        self._new_name = new_name
        self._is_lease_over = is_lease_over
        self._announce = announce
        #: partitions added since objects were last frozen
        self._unfrozen = 0
        #: topics with partitions whose logs could not be created yet
        self._deferred: dict[str, None] = {}

    def all_specs(self) -> dict[TopicPartition, PartitionSpec]:
        """Return the partitions of all topics of which this broker has a replica. Raise MalformedNode."""
        specs = {}
        for topic in self._metadata.view.topics.values():
            try:
                specs.update({spec.name: spec for spec in self._specs(topic)})
            except InvalidSettings as error:
                raise MalformedNode(topic_config_path(topic.name), error) from None
        return specs

    async def start(self) -> None:
        """Close the logs of partitions that this broker was to serve when the start opened them, but is not now.

        Their folders stay: no change was seen that removed them, and missing metadata is no proof.
        """
        store = self._replicas.store
        for name in [name for name in store.logs if not self._is_own(name)]:
            log.warning("the partition was removed during the start, ignoring its folder partition=%s", name)
            store.release(name)

    def on_access(self, changed: AccessChanges) -> None:
        if any(isinstance(about, Pattern) for about in changed):
            self._replicas.generation += 1  # what connections have cached of earlier decisions is no longer valid

    def on_view(self, changes: ViewChanges) -> None:
        for old, new in changes.topics:
            if old is not None and (new is None or old.topic_id != new.topic_id):
                self._replicas.remove_topic(old.name.encode(), self._new_name)
            if new is not None:
                self._serve(new, old)
        if changes.broker_settings:
            for topic in self._metadata.view.topics.values():
                self._configure(topic)

    def metrics(self, page: Page) -> Iterator[None]:
        replicas = self._replicas
        page.counter("ottla_bytes_in", "Bytes of batches appended.", replicas.commits.bytes_in)
        page.counter("ottla_log_syncs", "fdatasync calls for acknowledgements.", replicas.commits.syncs)
        page.counter("ottla_acks_zero", "Produces that asked for no acknowledgement.", replicas.acks_zero)
        page.counter("ottla_read_errors", "Reads of a log's files that failed.", replicas.storage.read_errors)
        page.gauge("ottla_partitions", "Partitions on this broker.", len(replicas.all()))
        yield

    def detailed_metrics(self, page: Page) -> Iterator[None]:
        for partition in self._replicas.all():
            where = label_text(topic=partition.name.topic, partition=partition.name.partition)
            page.gauge("ottla_log_size_bytes", "Size of a log.", partition.log.size_bytes, where)
            page.gauge("ottla_log_start_offset", "First offset.", partition.log.log_start_offset, where)
            page.gauge("ottla_high_watermark", "Offset readers see up to.", partition.high_watermark, where)
            yield

    def check_invariants(self) -> None:
        self._replicas.check_invariants()

    async def stop(self) -> None:
        self._replicas.opener.close()
        self._replicas.commits.write_turn()
        self._replicas.compactor.stop()

    def tick(self, now: float) -> None:
        """Create the logs that could not be created when their partitions were added.

        Not after the lease: leaders that have stopped to lead without the store would lead again.
        """
        if not self._deferred or self._is_lease_over():
            return
        names, self._deferred = self._deferred, {}
        found = (self._metadata.view.topics.get(name) for name in names)
        topics: list[tuple[TopicView | None, TopicView | None]] = [(None, each) for each in found if each is not None]
        self._announce(ViewChanges(topics=topics, broker_settings=False, brokers=False, controller=False))

    def _serve(self, topic: TopicView, before: TopicView | None) -> None:
        own, served = self._metadata.broker_id, self._replicas.topics.get(topic.name.encode(), {})
        changed = changed_partitions(before, topic)
        for number in changed:
            if number in served and own not in topic.partitions[number].replicas:
                self._replicas.remove(served[number], self._new_name())
        served = self._replicas.topics.get(topic.name.encode(), {})
        self._unfrozen += len(topic.partitions) - len(served)
        for spec in self._specs(topic, changed):
            number = spec.name.partition
            state = topic.partitions[number].applied_by(own)
            if (partition := served.get(number)) is not None:
                self._replicas.apply_state(partition, state)
                continue
            try:
                self._replicas.add(spec, state)
            except CreationDeferred as error:
                self._deferred.setdefault(topic.name)
                log.warning("partition is made later partition=%s reason=%s", spec.name, error)
            except OSError as error:
                log.error("partition cannot be made partition=%s error=%s", spec.name, error)
        if before is not None and (
            before.config != topic.config or before.replication_factor != topic.replication_factor
        ):
            self._configure(topic)
        if self._unfrozen >= _FREEZE_PARTITIONS:
            # A full collection blocks the event loop for 7 us per partition.
            self._unfrozen = 0
            gc.freeze()

    def _is_own(self, name: TopicPartition) -> bool:
        """Return whether this broker has a replica of a partition."""
        topic = self._metadata.view.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return False
        return self._metadata.broker_id in topic.partitions[name.partition].replicas

    def _configure(self, topic: TopicView) -> None:
        self._replicas.configure(topic.name.encode(), self._metadata.topic_settings(topic))

    def _specs(self, topic: TopicView, numbers: Iterable[int] | None = None) -> Iterator[PartitionSpec]:
        """Yield those of these partitions, by default of all, of which this broker has a replica."""
        own, settings = self._metadata.broker_id, self._metadata.topic_settings(topic)
        for number in range(len(topic.partitions)) if numbers is None else numbers:
            state = topic.partitions[number]
            if own in state.replicas:
                yield PartitionSpec(
                    name=TopicPartition(topic.name, number),
                    topic_id=topic.topic_id,
                    settings=settings,
                    replicated=len(state.replicas) > 1,
                    last_run=state.last_run_of(own),
                )
