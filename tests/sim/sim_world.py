"""One run: brokers, clients and faults, all drawn from one seed, then a healed world that must make progress."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sim_admin import Administrator
from sim_checks import CHECKS
from sim_client import Client, DamagedBatch
from sim_compacted import CompactedWriter
from sim_consumer_groups import CONSUMER_SETTINGS, ConsumerMember
from sim_deletes import Deletions, RecordDeleter
from sim_faults import Faults
from sim_groups import GroupMember, GroupOracle, OffsetMonitor
from sim_host import WALL_START_MS, BrokerHost, Keep
from sim_invariants import Invariants, batches_of
from sim_loop import START_S, ContextLoop, Stuck, VirtualLoop
from sim_network import SimulatedNetwork
from sim_opener import TOPICS
from sim_operators import MinInSyncOperator, Mover
from sim_producers import IdempotentProducer, PlainProducer, TransactionalProducer
from sim_profiles import GENERAL, Shape, draw_shape
from sim_readers import FinalReader, RackReader, Reader
from sim_recreated import Recreator
from sim_replication import IN_SYNC_WITHIN_S, ReplicationInvariants

from ottla.broker.coordination import rebalance_journal
from ottla.broker.coordinators import hosted_shard
from ottla.model.types import TopicPartition
from ottla.testing.disk import DiskCut
from ottla.testing.history import Event, History, Outcome, Place, Recorder, check
from ottla.testing.metadata_store import SimulatedEnsemble, Timing

TOPIC = "events"
#: how long faults happen
FAULT_S = 12.0
#: the same with several brokers: longer than two sessions of the metadata store
CLUSTER_FAULT_S = 20.0
#: after the faults, all clients must complete their work within this time
PROGRESS_S = 60.0

#: settings of brokers in a cluster
CLUSTER_SETTINGS = {
    "zookeeper.connect": "ensemble:2181",
    "zookeeper.session.timeout.ms": str(int(Timing().session_timeout_s * 1000)),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "3000",
}


class VirtualRecorder(Recorder):
    """A history whose clock counts its events: the order of events in one thread is their real order."""

    def __init__(self) -> None:
        super().__init__()
        self._t = itertools.count()
        #: by partition: the events of the acknowledgements of acks=1. Two of them may have the same offset.
        self._weak: dict[Place, list[tuple[Event, Event]]] = {}
        #: power failures of a cluster so far
        self.power_failures = 0

    def note(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, "t": next(self._t), "power_failures": self.power_failures, **fields})

    def forget_unsynced(self, is_lost: Callable[[Place, int], bool]) -> None:
        """A power failure lost records: forget that they were read, or acknowledged with acks=1.

        What a leader of a cluster has returned since the last power failure is not lost.
        """
        for event in self.events:
            if event["event"] == "read" and (event["power_failures"] < self.power_failures or not self.power_failures):
                event["records"] = [each for each in event["records"] if not is_lost(event["place"], each[0])]
        for place in self._weak:
            self.forget_weak(place, lambda offset, _, place=place: is_lost(place, offset))  # type: ignore[misc]

    def sent_weakly(self, txn: str, place: Place, value: str, offset: int) -> None:
        """A record was acknowledged with acks=1: it may be lost with its leader."""
        self.sent(txn, value, offset=offset)
        self.ended(txn, Outcome.OK)
        self._weak.setdefault(place, []).append((self.events[-2], self.events[-1]))

    def forget_weak(self, place: Place, is_lost: Callable[[int, str], bool]) -> None:
        """Forget the acknowledgements of acks=1 for the offsets and values that are lost."""
        remaining = []
        for sent, ended in self._weak.get(place, ()):
            if is_lost(sent["offset"], sent["value"]):
                sent["offset"] = None
                sent["outcome"] = ended["outcome"] = Outcome.UNKNOWN
            else:
                remaining.append((sent, ended))
        self._weak[place] = remaining


@dataclass
class Report:
    """The result of one run."""

    seed: int
    violations: dict[str, list[str]]
    trace_hash: str
    #: seconds of virtual time in which a broker ran
    broker_seconds: float
    events: int
    ends: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


class World:
    """Everything of one run."""

    def __init__(
        self, seed: int, *, brokers: int = 1, racks: bool = False, profile: str = GENERAL,
        on_line: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """With ``racks`` each broker is in a rack of its own, and there are readers in these racks (KIP-392)."""
        self.seed = seed
        #: replicas, log directories and faults of this run
        self.shape = shape = draw_shape(seed, brokers, profile)
        racks = racks or shape.racks
        self._on_line = on_line
        self._hash = hashlib.sha256()
        self._lines: list[str] = []
        self.loop = VirtualLoop()
        self.loop.on_exception = self._code_failed
        self.rng = Random(f"{seed}/world")
        self.network = SimulatedNetwork(self.loop, Random(f"{seed}/network"), self.trace)
        self.ensemble = SimulatedEnsemble(
            ContextLoop(self.loop, None), Random(f"{seed}/metadata"), trace=self.trace
        )  # fmt: skip
        self.hosts = {
            number: BrokerHost(
                number, loop=self.loop, network=self.network, ensemble=self.ensemble, trace=self.trace,
                rng=Random(f"{seed}/broker-{number}"), settings=_settings(number, brokers, shape, racks=racks),
            )
            for number in range(1, brokers + 1)
        }  # fmt: skip
        #: whether there is more than one broker
        self.is_cluster = brokers > 1
        #: members of a group with the consumer protocol
        self.consumer_members: list[ConsumerMember] = []
        #: readers of the closest replica
        self.rack_readers = [RackReader(self, f"rack-reader-{n}") for n in range(2 if racks else 0)]
        self.replication_factor = shape.replication_factor
        self.min_in_sync = shape.min_in_sync
        self.history = VirtualRecorder()
        self.invariants = Invariants(self)
        self.replication = ReplicationInvariants(self) if self.is_cluster else None
        self.groups = GroupOracle(self)
        self.deletions = Deletions(self)
        self.faults = Faults(self)
        self.violations: dict[str, list[str]] = {}
        #: settings of the topic; with some of them a broker opens all batches off the event loop
        self.topic_config: dict[str, str] = {}
        self.is_over = False
        self._healed_at: float | None = None
        self.places = [Place(TOPIC, number) for number in range(self.rng.randint(1, 3))]
        for host in self.hosts.values():
            host.before_crash = self._before_crash
            host.on_loaded = self._loaded
            host.on_error = self._process_failed
            if self.replication is not None:
                host.on_state = self.replication.state_applied
        #: brokers whose power failed, until their logs are opened again
        self._power_failed: set[int] = set()
        #: the first offset that was not synced when the process of a broker was killed
        self._unsynced_from: dict[tuple[int, Place], int] = {}

    # -- what clients and hosts report --------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        text = f"{self.loop.time() - START_S:10.6f} {line}"
        self._hash.update(text.encode())
        self._lines.append(text)
        if self._on_line is not None:
            self._on_line(text)

    def violation(self, name: str, line: str) -> None:
        assert name in CHECKS, f"{name} is not a check of sim_checks.py"
        self.trace(f"VIOLATION {name}: {line}")
        self.violations.setdefault(name, []).append(line)

    @property
    def healed_for_s(self) -> float:
        """Return the time since the last fault ended; 0 while faults happen."""
        return 0.0 if self._healed_at is None else self.loop.time() - self._healed_at

    def now_ms(self) -> int:
        return WALL_START_MS + int(self.loop.time() * 1000)

    def acknowledged(self, place: Place, offset: int) -> None:
        """A client got the acknowledgement of acks=all for this offset."""
        self.trace(f"acknowledged {place} {offset}")
        self.deletions.acknowledged[place] = max(offset, self.deletions.acknowledged.get(place, -1))
        self.invariants.acknowledged(place, offset)

    def _before_crash(self, host: BrokerHost, keep: Keep) -> None:
        self.invariants.forget(host)
        if self.replication is not None:
            self.replication.process_ends(host, power_failed=keep == "power")
            return
        if keep == "power":
            self._power_failed.add(host.broker_id)
        if host.broker is not None:
            for place in self.places:
                partition = host.broker.replicas.find(place.topic, place.partition)
                if partition is not None:
                    key = host.broker_id, place
                    synced = partition.log.synced_end_offset
                    self._unsynced_from[key] = min(synced, self._unsynced_from.get(key, synced))

    def _process_failed(self, host: BrokerHost, error: Exception) -> None:
        self.violation("process-failed", f"{host.name}: {type(error).__name__}: {error}")

    def _code_failed(self, where: str, error: BaseException) -> None:
        """A callback or a task ended with an exception. A process that is killed while it writes ends with DiskCut."""
        if not isinstance(error, DiskCut):
            last = traceback.extract_tb(error.__traceback__)[-1:]
            place = f" in {last[0].name}, line {last[0].lineno}" if last else ""
            self.violation("exception", f"{where}: {type(error).__name__}: {error}{place}")

    def _loaded(self, host: BrokerHost, logs: Mapping[TopicPartition, Any]) -> None:
        """The logs of a host were opened and are synced: what a power failure took from them is known now."""
        own = {place: offset for (number, place), offset in self._unsynced_from.items() if number == host.broker_id}
        self._unsynced_from = {key: value for key, value in self._unsynced_from.items() if key[0] != host.broker_id}
        if host.broker_id not in self._power_failed:
            return
        self._power_failed.discard(host.broker_id)
        present = {place: _offsets_in(logs.get(TopicPartition(*place))) for place in own}

        def is_lost(place: Place, offset: int) -> bool:
            return place in own and offset >= own[place] and offset not in present[place]

        self.history.forget_unsynced(is_lost)

    # -- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Run to the end and return the report."""
        load_step_bytes, journal_partitions = hosted_shard._LOAD_STEP_BYTES, rebalance_journal._PARTITIONS
        # The load of a coordinator yields between steps. Small steps and rounds that take time make loads long.
        hosted_shard._LOAD_STEP_BYTES = self.rng.choice((load_step_bytes, 200))
        self.loop.round_s = self.rng.choice((0.0, 0.00002, 0.002))
        self.topic_config = Random(f"{self.seed}/opening").choice(TOPICS)
        for host in self.hosts.values():
            host.opens_elsewhere = bool(self.topic_config)
        # Partitions without writes cost time and show nothing.
        rebalance_journal._PARTITIONS = 3
        try:
            self.loop.run_until_complete(self._main())
        except Stuck as stuck:
            self.violation("stuck", str(stuck))
        except Exception as error:
            self._failed("final", error)
            if self._on_line is not None:
                self._on_line(traceback.format_exc())
        else:
            self.loop.report_failed_tasks()
        finally:
            hosted_shard._LOAD_STEP_BYTES, rebalance_journal._PARTITIONS = load_step_bytes, journal_partitions
            self.loop.close()
        ends: dict[str, int] = {}
        for host in self.hosts.values():
            for cause, count in host.ends.items():
                ends[cause] = ends.get(cause, 0) + count
        return Report(
            seed=self.seed, violations=self.violations, trace_hash=self._hash.hexdigest(),
            broker_seconds=(self.loop.time() - START_S) * len(self.hosts), events=len(self.history.events), ends=ends,
            trace=self._lines,
        )  # fmt: skip

    async def _main(self) -> None:
        for host in self.hosts.values():
            host.start()
        async with asyncio.timeout(PROGRESS_S):
            await self._create_topic()
        clients = self._clients()
        self.client_names = [client.name for client in clients]
        tasks = [asyncio.create_task(client.run(), name=client.name) for client in clients]
        watching = asyncio.create_task(self.invariants.watch())
        await self.faults.run(self.shape.fault_s or (CLUSTER_FAULT_S if self.is_cluster else FAULT_S))
        self.trace("the faults are over")
        self.is_over = True
        self.faults.heal()
        self._healed_at = self.loop.time()
        progress_s = PROGRESS_S + (IN_SYNC_WITHIN_S if self.is_cluster else 0)
        try:
            async with asyncio.timeout(progress_s):
                await self._finish(tasks)
        except TimeoutError:
            late = [task.get_name() for task in tasks if not task.done()]
            self.violation("no-progress", f"not complete after {progress_s:.0f} s: {late or 'the final reader'}")
        if watching.done():  # it has no end of its own: later violations would not be found
            self._failed("the check of invariants", watching.exception())
        watching.cancel()
        for task in tasks:
            if task.done() and task.exception() is not None:
                self._failed(task.get_name(), task.exception())
            task.cancel()
        self.invariants.at_end()

    def _failed(self, client: str, error: BaseException | None) -> None:
        name = "damaged-batch" if isinstance(error, DamagedBatch) else "client-error"
        self.violation(name, f"{client}: {type(error).__name__}: {error}")

    async def _finish(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            await asyncio.wait([task])
        if self.replication is not None:
            await self.replication.wait_until_in_sync()
        final = FinalReader(self, "final")
        await final.read_all(self._groups)
        for name, lines in check(History.of(self.history.events)).items():
            for line in lines:
                self.violation(name, line)

    async def _create_topic(self) -> None:
        admin = Client(self, "admin")
        config = {"segment.bytes": str(self.rng.choice((1 << 20, 2000, 10_000))), **self.topic_config}
        if self.is_cluster:
            config["min.insync.replicas"] = str(self.shape.configured_min_in_sync)
        await admin.create_topic(TOPIC, config, partitions=len(self.places), timeout_ms=5000)
        # A broker that does not know the topic refuses the first batch of a producer and may accept the second one.
        while not all(host.broker and TOPIC in host.broker.view.topics for host in self.hosts.values()):
            await admin.pause(0.01)

    def _clients(self) -> list[Any]:
        rng = self.rng
        clients: list[Any] = [IdempotentProducer(self, f"idempotent-{n}") for n in range(rng.randint(1, 2))]
        clients += [PlainProducer(self, f"plain-{n}") for n in range(rng.randint(0, 1))]
        ids = [f"id-{n}" for n in range(rng.randint(0, 2))]
        for transactional_id in ids:
            adds_itself = rng.random() < 0.5
            for n in range(rng.choice((1, 1, 2))):
                name = f"txn-{transactional_id}-{n}"
                clients.append(TransactionalProducer(self, name, transactional_id, adds_itself=adds_itself))
        self._groups = [f"group-of-{each}" for each in ids]
        self.has_transactions = bool(ids)
        clients += [Reader(self, f"reader-{n}") for n in range(rng.randint(1, 2))]
        if rng.random() < 0.5:
            clients += [GroupMember(self, f"member-{n}", "members") for n in range(rng.randint(1, 3))]
            clients += [OffsetMonitor(self, "monitor", "members")]
        clients += self.rack_readers
        clients += [Administrator(self, f"administrator-{n}") for n in range(rng.choice((0, 0, 1)))]
        self.consumer_members = [ConsumerMember(self, f"consumer-{n}") for n in range(self.shape.consumer_members)]
        clients += self.consumer_members
        operators = {
            "compacted": CompactedWriter,
            "mover": Mover,
            "min.insync.replicas": MinInSyncOperator,
            "recreator": Recreator,
        }
        clients += [operators[kind](self, f"{kind}-{n}") for n, kind in enumerate(self.shape.clients)]
        clients += [RecordDeleter(self, f"deleter-{n}") for n in range(rng.choice((0, 0, 1)))]
        return clients


def _settings(number: int, brokers: int, shape: Shape, *, racks: bool) -> dict[str, str]:
    """Return the settings of a broker."""
    directories = {"log.dirs": ",".join(shape.directories)}
    if shape.consumer_members:
        directories |= CONSUMER_SETTINGS
    if brokers == 1:
        return directories
    factor, min_in_sync = str(shape.replication_factor), str(shape.configured_min_in_sync)
    replication = {
        "default.replication.factor": factor,
        "min.insync.replicas": min_in_sync,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": min_in_sync,
    }
    rack = {"broker.rack": f"rack-{number}", "replica.selector.class": "rack-aware"} if racks else {}
    return {**CLUSTER_SETTINGS, **replication, **directories, **rack}


def _offsets_in(log: Any) -> set[int]:
    """Return the offsets of the records in a log. A batch without records stands for offsets that were lost."""
    found: set[int] = set()
    for header, _ in batches_of(log) if log is not None else ():
        if header.record_count:
            found.update(range(header.base_offset, header.next_offset))
    return found
