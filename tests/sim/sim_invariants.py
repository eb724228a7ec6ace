"""Invariants of a broker's state, checked while it runs."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_client import batches
from sim_host import BrokerHost

from ottla.broker.coordination.coordination import Coordination
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.env.disk import Disk
from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL
from ottla.testing.disk import MemoryDisk
from ottla.testing.history import Place

if TYPE_CHECKING:
    from sim_world import World

_SAMPLE_S = 0.02


class Reached(NamedTuple):
    """A value that must not move back, and when it was reached."""

    value: int
    #: the leader epoch that the replica knew
    epoch: int
    #: power failures before the sample that showed the value for the first time, without those of its last interval
    power_failures: int


class Invariants:
    """Samples the partitions of all running brokers."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: by broker and partition: the offsets at the last sample
        self._samples: dict[int, dict[Any, tuple[Any, ...]]] = {}
        #: by broker and partition: epoch, log start, last stable offset, high watermark at the last sample
        self._last: dict[tuple[int, Any], tuple[Reached, ...]] = {}
        #: by broker: the partitions of its process, whose removals are checked
        self._checked: dict[int, ReplicaManager] = {}
        #: power failures up to the last sample
        self._power_failures = 0

    def forget(self, host: BrokerHost) -> None:
        """The process ended: a new one may start with lower values."""
        self._samples.pop(host.broker_id, None)
        self._last = {key: value for key, value in self._last.items() if key[0] != host.broker_id}

    async def watch(self) -> None:
        while True:
            for host in self._world.hosts.values():
                if host.is_ready and host.broker is not None:
                    self._sample(host, host.broker.replicas.all())
                    self._check_components(host)
                    self._check_removals(host, host.broker.replicas)
            if self._world.replication is not None:
                self._world.replication.sample()
                self._power_failures = self._world.replication.power_failures
            await asyncio.sleep(_SAMPLE_S)

    def _check_components(self, host: BrokerHost) -> None:
        """Every component checks its own state: what it refers to, and what it lacks."""
        assert host.broker is not None
        try:
            host.broker.components.check_invariants()
        except AssertionError as error:
            lines = traceback.extract_tb(error.__traceback__)
            self._say("component-state", f"{host.name}: {lines[-1].name}: {error}")

    def _check_removals(self, host: BrokerHost, replicas: ReplicaManager) -> None:
        """Check the components after each removal of a partition, too: some refer to a partition for milliseconds."""
        if self._checked.get(host.broker_id) is replicas:
            return
        self._checked[host.broker_id] = replicas
        remove = replicas.remove

        def checked(partition: Partition, unique: str) -> None:
            remove(partition, unique)
            self._check_components(host)

        replicas.remove = checked  # type: ignore[method-assign]

    def _sample(self, host: BrokerHost, partitions: list[Any]) -> None:
        """Check the partitions that have changed since the last sample: a run spends much of its time here."""
        samples = self._samples.setdefault(host.broker_id, {})
        for partition in partitions:
            log = partition.log
            try:
                unstable = log.first_unstable_offset
            except OSError:  # it loads the producers of the log when it is read first, and the disk fails in this run
                continue
            sample = (
                log, partition.role, partition.leader_epoch, partition.high_watermark, unstable,
                log.log_start_offset, log.written_end_offset, log.log_end_offset, log.synced_end_offset,
            )  # fmt: skip
            if samples.get(partition) != sample:
                samples[partition] = sample
                self._check(host, partition)

    def _check(self, host: BrokerHost, partition: Any) -> None:
        log, name = partition.log, str(partition.name)
        if partition.offline:
            return
        stable, high_watermark = partition.last_stable_offset, partition.high_watermark
        values = partition.leader_epoch, log.log_start_offset, stable, high_watermark
        before = self._last.get((host.broker_id, partition))
        if before is None:
            # The offsets in the checkpoints of an earlier process may be those of an old epoch.
            self._last[host.broker_id, partition] = tuple(Reached(value, -1, -1) for value in values)
        else:
            self._last[host.broker_id, partition] = tuple(
                self._compare(host, partition, what, old, new)
                for what, old, new in zip(
                    ("epoch", "log-start", "stable-offset", "high-watermark"), before, values, strict=True
                )
            )
        if not log.log_start_offset <= stable <= high_watermark <= log.written_end_offset <= log.log_end_offset:
            line = f"{name}: start {log.log_start_offset}, stable {stable}, high watermark {high_watermark}"
            self._say("offsets-out-of-order", f"{line}, written {log.written_end_offset}, end {log.log_end_offset}")
        if log.synced_end_offset > log.written_end_offset:
            self._say("synced-not-written", f"{name}: {log.synced_end_offset} of {log.written_end_offset}")

    def _compare(self, host: BrokerHost, partition: Any, what: str, old: Reached, new: int) -> Reached:
        """Compare a value with that of the last sample. Return the value with the time at which it was reached."""
        if new == old.value:
            return old
        if new < old.value and not self._may_go_back(partition, what, old, new):
            self._say(f"{what}-moved-back", f"{host.name} {partition.name}: from {old.value} to {new}")
        return Reached(new, partition.leader_epoch, self._power_failures)

    def _may_go_back(self, partition: Any, what: str, old: Reached, new: int) -> bool:
        """Return whether a power failure may be the reason why an offset of a replica is lower than before.

        Records below the high watermark need not be synced. If their replicas lose power, a leader is elected whose log
        ends before the offset that was reached, and the other replicas truncate their logs to that end. A transaction
        is open again if its marker is truncated, so the last stable offset may move to a lower offset than that end.
        A follower that has no records behind its log start, and learns that the leader's log ends before it, begins its
        log anew, as in Kafka, because a leader that was elected uncleanly may have other records at these offsets.
        """
        replication = self._world.replication
        if replication is None or what == "epoch":
            return False
        place = Place(partition.name.topic, partition.name.partition)
        ends = [
            each.end_offset
            for each in replication.elections.get(place, ())
            if old.epoch < each.epoch <= partition.leader_epoch
            and each.end_offset < old.value
            and each.power_failures > old.power_failures
        ]
        return bool(ends) and (what != "high-watermark" or new >= min(ends))

    def acknowledged(self, place: Place, offset: int) -> None:
        """The record of an acknowledgement of acks=all must be synced, if the broker that sent it still runs."""
        if self._world.replication is not None:
            self._world.replication.acknowledged(place, offset)
            return
        for host in self._world.hosts.values():
            if host.is_ready and host.broker is not None:
                partition = host.broker.replicas.find(place.topic, place.partition)
                if partition is not None and partition.log.synced_end_offset <= offset < partition.log.log_end_offset:
                    self._say("acknowledged-unsynced", f"{place}: {offset}, synced {partition.log.synced_end_offset}")

    def at_end(self) -> None:
        for host in self._world.hosts.values():
            for coordination in host.broker.components if host.broker is not None else ():
                if not isinstance(coordination, Coordination):
                    continue
                mismatches = coordination.runtime.mismatches + coordination.transactions.mismatches
                if mismatches:
                    self._say("replay-differs", f"{host.name}: {mismatches} shards differ from a replay of their log")

        self._check_logs()
        if self._world.replication is not None:
            self._world.replication.at_end()

    def _check_logs(self) -> None:
        """Read the batches of the data partitions from the disk of each broker."""
        for host in self._world.hosts.values():
            if host.broker is None or not host.is_ready:
                continue
            for place in self._world.places:
                partition = host.broker.replicas.find(place.topic, place.partition)
                if partition is not None and not partition.offline:
                    found = list(batches_of(partition.log))
                    self._check_batches(f"{host.name} {place}", found)
                    may_repeat = "clean stop" in host.ends or host.was_full or self._world.is_cluster
                    self._check_markers(f"{host.name} {place}", found, may_repeat=may_repeat)

    def _check_markers(self, where: str, found: list[tuple[Any, bytes]], *, may_repeat: bool) -> None:
        """Each transaction has one marker.

        A coordinator that is loaded again writes the markers that it does not know to be durable once more, with the
        same result. It is loaded after a restart, and after a write that failed because the disk was full. An unclean
        restart increases the leader epoch. The other cases cannot be told apart: ``may_repeat``. In a cluster it also
        repeats the request to another broker if it got no reply.
        """
        #: by producer: the epoch, the leader epoch and the result of the last marker, if no records follow it
        last: dict[int, tuple[int, int, bool]] = {}
        for header, content in found:
            producer = header.producer_id
            if not header.attributes & CONTROL:
                last.pop(producer, None)
                continue
            marker = read_marker(content)
            assert marker is not None
            before = last.get(producer)
            last[producer] = header.producer_epoch, header.leader_epoch, marker.commit
            if before is None or before[0] != header.producer_epoch:
                continue
            line = f"{where}: offset {header.base_offset}, producer {producer}"
            if before[2] != marker.commit:
                self._say("two-results", line)
            elif before[1] == header.leader_epoch and not may_repeat:
                self._say("two-markers", line)

    def _check_batches(self, where: str, found: list[tuple[Any, bytes]]) -> None:
        """Offsets have no gaps, leader epochs do not go back, and sequence numbers have no gaps."""
        offset, epoch = None, -1
        sequences: dict[tuple[int, int], int] = {}
        for header, _ in found:
            if offset is not None and header.base_offset != offset:
                self._say("gap-in-offsets", f"{where}: {header.base_offset} follows {offset - 1}")
            if header.leader_epoch < epoch:
                self._say("epochs-out-of-order", f"{where}: epoch {header.leader_epoch} follows {epoch}")
            offset, epoch = header.next_offset, header.leader_epoch
            producer = header.producer_id
            if producer >= 0 and not header.attributes & CONTROL:
                key = producer, header.producer_epoch
                # The first batches of a producer may have been deleted.
                is_first_known = not key[1] and found[0][0].base_offset == 0
                expected = sequences.get(key, 0 if is_first_known else header.base_sequence)
                if header.base_sequence != expected:
                    line = f"{where}: producer {producer} sent {header.base_sequence} after {expected - 1}"
                    self._say("gap-in-sequences", line)
                sequences[key] = header.base_sequence + header.record_count

    def _say(self, name: str, line: str) -> None:
        self._world.violation(name, line)


def batches_of(log: Any, from_offset: int = 0) -> Iterator[tuple[Any, bytes]]:
    """Yield the header and the bytes of each batch that is in the files of a log, from an offset on."""
    offset = max(log.log_start_offset, from_offset)
    while offset < log.written_end_offset:
        with _without_faults(log.disk):
            region = log.read(offset, 1 << 30, log.written_end_offset, at_least_one=True)
            if region is None:
                return
            data = region.read()
        for header, content in batches(data):
            # A log starts within a batch if records were deleted up to there.
            if header.next_offset > offset:
                yield header, content
                offset = header.next_offset


@contextmanager
def _without_faults(disk: Disk) -> Iterator[None]:
    """Let a check read a disk that fails. The faults are for the broker."""
    if not isinstance(disk, MemoryDisk):
        yield
        return
    faults, disk._faults = disk._faults, []
    try:
        yield
    finally:
        disk._faults = faults
