"""Bugs that are planted into the broker, to show that the simulation finds them.

    make sim-planted SEEDS=100 BUGS="two-leaders kip-101"

Each function replaces a method of the product code in this process by one with a bug. The product code has no switches
for this.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from sim_checks import CHECKS
from sim_log import LogWorld
from sim_planted_checks import CHECK_PLANTED, LOG_PLANTED
from sim_planted_cluster import CLUSTER_PLANTED, Replace
from sim_planted_discards import DISCARDS_PLANTED
from sim_planted_store import STORE_PLANTED, TOPIC_NAMES_PLANTED
from sim_profiles import GENERAL
from sim_world import World

import ottla.broker.transactions.shard as transaction_module
import ottla.log.segment_scan as segment_scan_module
from campaign.report import CannotRun, Report
from ottla.broker.cluster.run_start import RunStart
from ottla.broker.coordinators.runtime import ShardRuntime
from ottla.broker.groups.classic import ClassicGroup
from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.writers import Until
from ottla.broker.transactions.runtime import MarkerWriter
from ottla.log.log import Log
from ottla.log.log_state import LogState
from ottla.log.producers import ProducerEntry, Producers
from ottla.log.segment import Segment, SyncJob
from ottla.model.batch import read_header
from ottla.model.errors import InvalidProducerEpoch, KafkaError
from ottla.net.server import Server


def acknowledge_before_sync(replace: Replace) -> None:
    """acks=all waits for the write to the file, not for the sync."""
    original = Partition.until

    def until(self: Partition, acks: int) -> Until:
        return original(self, acks) if self.name.topic.startswith("__") else Until.WRITTEN

    replace(Partition, "until", until)


def coordinator_replies_before_sync(replace: Replace) -> None:
    """A coordinator replies when its records are written, not when they are synced."""

    def wait(self: Any, hosted: Any, waiter: Any) -> None:
        self._replicas.commits.wait(hosted.partition, Until.WRITTEN, hosted.end_offset, waiter)

    replace(ShardRuntime, "_wait", wait)


def sync_covers_later_writes(replace: Replace) -> None:
    """A sync also counts the batches that were written while it ran."""

    def note_synced(self: Log, job: SyncJob) -> None:
        self.synced_end_offset = self.written_end_offset
        self.note_segments_synced([(segment, segment.written_bytes) for segment, _ in job.segments])

    replace(LogState, "note_synced", note_synced)


def sync_covers_truncated_bytes(replace: Replace) -> None:
    """A sync that started before a truncation marks what was appended after it as synced."""

    def note_synced(self: Log, job: SyncJob) -> None:
        self.synced_end_offset = max(self.synced_end_offset, min(job.end_offset, self.written_end_offset))
        self.note_segments_synced(job.segments)

    replace(LogState, "note_synced", note_synced)


def file_names_are_not_synced(replace: Replace) -> None:
    """The first sync of a segment syncs its bytes, not its name in the directory."""

    def sync(self: Segment) -> None:
        self._disk.fdatasync(self.file.fd)

    replace(Segment, "sync", sync)


def torn_batch_is_kept(replace: Replace) -> None:
    """Recovery does not compare checksums."""
    replace(segment_scan_module, "checksum", lambda batch: read_header(batch).crc)


def recovery_forgets_producers(replace: Replace) -> None:
    """Recovery does not restore the sequence numbers of producers."""
    replace(Producers, "replay", lambda self, header, batch: None)


def epoch_is_not_increased(replace: Replace) -> None:
    """The leader epoch stays the same after an unclean stop."""

    async def bump(self: RunStart) -> None:
        return

    replace(RunStart, "_bump_leader_epochs", bump)


def stale_leader_epoch_is_accepted(replace: Replace) -> None:
    """A Fetch with an older leader epoch is answered."""
    original = Partition.check_leads
    replace(Partition, "check_leads", lambda self, epoch=-1, **options: original(self, **options))


def high_watermark_moves_back(replace: Replace) -> None:
    """The high watermark moves to the synced end after each sync."""
    original = GroupCommit._synced

    def synced(self: GroupCommit, partition: Partition, job: SyncJob, error: OSError | None) -> None:
        original(self, partition, job, error)
        partition.high_watermark = min(partition.high_watermark, max(job.end_offset, partition.log.log_start_offset))

    replace(GroupCommit, "_synced", synced)


def open_transactions_are_readable(replace: Replace) -> None:
    """read_committed reads up to the high watermark."""
    replace(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def aborted_transactions_are_not_listed(replace: Replace) -> None:
    """Fetch does not list aborted transactions, so their records are read."""
    replace(Log, "aborted_within", lambda self, offset, region, end_offset: [])


def marker_is_skipped(replace: Replace) -> None:
    """A transaction over several partitions gets no marker in the last of them."""
    original = MarkerWriter.write

    def write(self: MarkerWriter, progress: Any, name: Any) -> None:
        names = list(progress.delivery.partitions)
        if len(names) > 1 and name == names[-1]:
            progress.remove(name)
        else:
            original(self, progress, name)

    replace(MarkerWriter, "write", write)


def marker_is_not_repeated(replace: Replace) -> None:
    """A coordinator that is loaded after a restart does not write the markers of prepared transactions."""
    replace(MarkerWriter, "deliver", _deliver_only_later(MarkerWriter.deliver))


def _deliver_only_later(original: Any) -> Any:
    def deliver(self: Any, delivery: Any, is_awaited: Any, done: Any) -> None:
        # Deliveries in the first tenth of a second after the start are those of the load.
        started = self.__dict__.setdefault("started", self._clock.monotonic())
        if self._clock.monotonic() - started > 0.1:
            original(self, delivery, is_awaited, done)
        else:
            done(delivery)

    return deliver


def coordinator_answers_before_it_is_loaded(replace: Replace) -> None:
    """A request is run on a shard that has not replayed its log yet."""
    original = ShardRuntime._host_of

    def host_of(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except KafkaError:
            hosted = self._shards.get(self.partition_for(name))
            if hosted is None:
                raise
            return hosted

    replace(ShardRuntime, "_host_of", host_of)


def fenced_producer_is_accepted(replace: Replace) -> None:
    """Coordinator and log accept a producer whose epoch is older than the current one."""
    original = Producers.check

    def check(self: Producers, producer_id: int, epoch: int, *args: Any, **options: Any) -> Any:
        try:
            return original(self, producer_id, epoch, *args, **options)
        except InvalidProducerEpoch:
            return ProducerEntry(epoch), None

    replace(Producers, "check", check)
    replace(transaction_module, "check_producer", lambda *_: None)


def old_generation_is_accepted(replace: Replace) -> None:
    """A member of an earlier generation of the group may commit offsets."""
    original = ClassicGroup.check_commit

    def check(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(self, *args, **options)
        except KafkaError:
            return None

    replace(ClassicGroup, "check_commit", check)


def replies_leave_before_files_are_written(replace: Replace) -> None:
    """At the end of a turn replies are sent first and files are written after them."""

    def end_turn(self: Server) -> None:
        self.in_turn = False
        touched, self.touched = self.touched, []
        self.now = self.monotonic()
        for connection in touched:
            connection.last_active = self.now
            connection.flush()
        self._loop.call_later(0.02, self._before_replies)

    replace(Server, "end_turn", end_turn)


PLANTED: dict[str, Callable[[Replace], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        acknowledge_before_sync,
        sync_covers_later_writes,
        sync_covers_truncated_bytes,
        coordinator_replies_before_sync,
        replies_leave_before_files_are_written,
        file_names_are_not_synced,
        torn_batch_is_kept,
        recovery_forgets_producers,
        epoch_is_not_increased,
        stale_leader_epoch_is_accepted,
        high_watermark_moves_back,
        open_transactions_are_readable,
        aborted_transactions_are_not_listed,
        marker_is_skipped,
        marker_is_not_repeated,
        coordinator_answers_before_it_is_loaded,
        fenced_producer_is_accepted,
        old_generation_is_accepted,
        *CHECK_PLANTED,
        *LOG_PLANTED,
        *STORE_PLANTED,
        *DISCARDS_PLANTED,
    )
} | CLUSTER_PLANTED


#: the bugs that the simulation of one log finds; a single broker never truncates
OF_ONE_LOG = {"sync-covers-truncated-bytes", *(each.__name__.replace("_", "-") for each in LOG_PLANTED)}
#: the bugs that need three brokers
OF_A_CLUSTER = {*CLUSTER_PLANTED, *(each.__name__.replace("_", "-") for each in (*STORE_PLANTED, *DISCARDS_PLANTED))}
#: how many times as many seeds the bugs need whose situations are rare
RARE = {"kip-380": 4}
#: the bugs that need another profile than the general one
PROFILE_OF = {each.__name__.replace("_", "-"): "topic names" for each in TOPIC_NAMES_PLANTED} | {
    "offline-partitions-are-kept": "log directories",
    "verdicts-about-removed-partitions-are-kept": "moves",
    "shards-of-removed-partitions-are-kept": "moves",
    "controller-ignores-changed-topics": "moves",
}


class Planted:
    """Plants a bug for the duration of a ``with`` statement."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        PLANTED[self._name](self._replace)

    def __exit__(self, *_: object) -> None:
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        if isinstance(owner, type):  # a method may be that of a base class
            owner = next(each for each in owner.__mro__ if name in each.__dict__)
        original = owner.__dict__[name]
        if isinstance(original, FunctionType) and callable(new):
            _check_parameters(original, new)
        self._replaced.append((owner, name, original))
        setattr(owner, name, new)


def _check_parameters(original: FunctionType, new: Callable[..., Any]) -> None:
    """Raise TypeError if ``new`` cannot be called as ``original`` is: the seed would find that, not the planted bug."""
    kinds = inspect.Parameter
    named = [each for each in inspect.signature(original).parameters.values() if each.default is kinds.empty]
    given = [each for each in named if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    options = [each.name for each in named if each.kind is kinds.KEYWORD_ONLY]
    inspect.signature(new).bind(*given, **dict.fromkeys(options))


class Found(NamedTuple):
    """The first run that has found a bug."""

    seed: int
    #: the checks that reported a violation, in the order of their first reports
    checks: tuple[str, ...]


def find(name: str, seeds: range, check: str = "") -> Found | None:
    """Run seeds with the bug. Return the first one with a violation, or with one that ``check`` reports first.

    Return None if there is none.
    """
    with Planted(name):
        for seed in seeds:
            if name in OF_ONE_LOG:
                violations = LogWorld(seed).run()
            else:
                brokers, profile = 3 if name in OF_A_CLUSTER else 1, PROFILE_OF.get(name, GENERAL)
                violations = World(seed, brokers=brokers, profile=profile).run().violations
            checks = tuple(violations)
            if checks and check in ("", checks[0]):
                return Found(seed, checks)
    return None


class Job(NamedTuple):
    """A bug, and the check that must report it first; any check if it is empty."""

    bug: str
    check: str
    seeds: int


def jobs_for(names: Sequence[str], seeds: int) -> list[Job]:
    """Return the jobs for these names of checks and bugs; all of them without names."""
    jobs = [Job(bug, check, seeds) for check, bug in CHECKS.items()]
    jobs += [Job(bug, "", seeds * RARE.get(bug, 1)) for bug in PLANTED if bug not in CHECKS.values()]
    return [job for job in jobs if not names or job.check in names or job.bug in names]


def _find(job: Job) -> tuple[Job, Found | None, float]:
    logging.disable(logging.CRITICAL)
    started = time.process_time()
    return job, find(job.bug, range(1, job.seeds + 1), job.check), time.process_time() - started


def _row(job: Job, found: Found | None) -> str:
    """Return a row of the table in docs/internals/simulation.md."""
    text = (PLANTED[job.bug].__doc__ or "").strip().split("\n")[0].rstrip(".")
    if found is None:
        return f"| {job.check or '-'} | {text} | not found in {job.seeds} | |"
    others = ", ".join(each for each in found.checks if each != (job.check or found.checks[0]))
    return f"| {job.check or found.checks[0]} | {text} | {found.seed} | {others} |"


def run(report: Report, *, seeds: int, bugs: str) -> None:
    """Print the tables of docs/internals/simulation.md, a row when its bug is found; one that is not is a problem."""
    if unknown := set(bugs.split()) - {*PLANTED, *CHECKS}:
        raise CannotRun(f"there is no bug or check {', '.join(sorted(unknown))}")
    jobs = jobs_for(bugs.split(), seeds)
    seconds = 0.0
    report.say("| check | planted bug | seeds needed | other checks in this run |\n|---|---|---|---|")
    with multiprocessing.get_context("spawn").Pool() as pool:
        for number, (job, found, used_s) in enumerate(pool.imap(_find, jobs), 1):
            report.say(_row(job, found))
            report.progress(number, len(jobs), "bugs")
            seconds += used_s
            if found is None:
                report.problem(f"not found: {job.check or job.bug}")
    report.figure(f"{len(jobs) - len(report.problems)} of {len(jobs)} found in {seconds:.0f} s of CPU")
