"""Faults of brokers, disks and ZooKeeper under load, each case with its prediction.

    make campaign NAME=cluster-faults CASE=pause-leader

Every case starts a cluster of its own with the load of campaign/workload.py. In every case no acknowledged record may
be lost, no client may get an error, the committed offsets of the group may not go back, the replicas must have the same
bytes, and no broker may log a traceback. A case adds its own limits. The time limits need a quiet machine.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from cluster_store import StateWatcher, applied_writes, check_refilled_before_it_leads, expire_session, session_of
from confluent_kafka import KafkaException

from campaign.cluster import DEADLINE_S, PARTITIONS, TOPIC, LoadedCluster, PausedBrokerProbe
from campaign.faults import Ext4, freeze
from campaign.processes import wait_until
from campaign.report import CannotRun, Report
from ottla.testing import BrokerProcess, ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

_SETTINGS = {"zookeeper.session.timeout.ms": "4000"}
#: an unanswered request to a paused broker blocks librdkafka and Java for this time
_REQUEST_TIMEOUT_MS = 1500
_DISK_MEGABYTES = 256


@dataclass
class Run:
    """One run of a case: the cluster under load, and what was found."""

    loaded: LoadedCluster
    watcher: StateWatcher
    seconds: float
    rng: Random
    disks: dict[int, Ext4] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def brokers(self) -> dict[int, BrokerProcess]:
        return self.loaded.brokers

    def say(self, line: str) -> None:
        self.results.append(line)

    def expect(self, is_true: bool, problem: str) -> None:
        if not is_true:
            self.problems.append(problem)

    def note_gap(self, since: float, limit_s: float | None = None) -> float:
        """Note the longest time without an acknowledgement of one partition, which may not be longer than the limit."""
        until = time.monotonic()
        load = self.loaded.load
        gap = load.longest_gap(since, until)
        by_client = ", ".join(f"{name} {load.longest_gap(since, until, client=name):.2f}" for name in load.clients)
        self.say(f"longest time without an acknowledgement of a partition {gap:.2f} s (of one producer: {by_client})")
        self.say(f"{self.watcher.elections(since)} new leader epochs")
        if limit_s is not None:
            self.expect(gap <= limit_s, f"writes were refused for {gap:.2f} s; the limit is {limit_s} s")
        return gap

    def heal(self) -> None:
        """Wait until every producer gets acknowledgements again and all replicas are in sync."""
        since = time.monotonic()
        self.loaded.load.wait_acknowledged(since, clients=self.loaded.load.clients)
        self.loaded.wait_in_sync()
        self.say(f"all producers and replicas back {time.monotonic() - since:.2f} s after the fault ended")


@dataclass(frozen=True)
class Case:
    name: str
    prediction: str
    run: Callable[[Run], None]
    needs_disks: bool = False


# -- pauses ---------------------------------------------------------------------------------------------------------


def pause_leader(run: Run) -> None:
    victim = run.loaded.leader()
    probe = PausedBrokerProbe(run.brokers[victim], TOPIC, PARTITIONS)
    since = time.monotonic()
    run.loaded.pause(victim)
    run.loaded.load.wait_acknowledged(since + 0.5)
    run.note_gap(since, 6.0)
    step_s = max(since + run.seconds - time.monotonic(), 0) / 3
    for _ in range(3):
        probe.send()
        time.sleep(step_s)
    run.loaded.resume(victim)
    acknowledged = probe.acknowledged()
    run.say(
        f"broker {victim} was paused for {time.monotonic() - since:.0f} s, then acknowledged {acknowledged} of 18 "
        "records that had waited in its socket"
    )
    run.expect(acknowledged == 0, f"the former leader acknowledged {acknowledged} records")
    run.heal()


def pause_leader_briefly(run: Run) -> None:
    victim = run.loaded.leader()
    since = time.monotonic()
    run.loaded.pause(victim)
    time.sleep(2.0)
    run.loaded.resume(victim)
    run.loaded.load.wait_acknowledged(time.monotonic(), clients=run.loaded.load.clients)
    run.note_gap(since, 2.5)
    changed = run.watcher.elections(since)
    run.expect(changed == 0, f"the partitions got {changed} new leader epochs")
    run.heal()


def pause_controller(run: Run) -> None:
    victim = run.loaded.controller()
    connect, data = run.loaded.cluster.connect, run.loaded.cluster.zookeeper.server.data
    before = session_of(connect, victim)
    since = time.monotonic()
    run.loaded.pause(victim)
    wait_until(lambda: run.loaded.controller() not in (victim, -1), "another controller", DEADLINE_S)
    run.say(f"another controller after {time.monotonic() - since:.2f} s")
    run.loaded.load.wait_acknowledged(time.monotonic() + 0.5)
    run.note_gap(since, 6.0)
    time.sleep(max(since + run.seconds - time.monotonic(), 0))
    change = max(each.change for each in applied_writes(data))
    run.loaded.resume(victim)
    run.heal()
    sessions = {before, session_of(connect, victim)}
    own = f"/brokers/ids/{victim}"
    writes = [each for each in applied_writes(data) if each.session in sessions and each.change > change]
    wrong = [each.paths for each in writes if not all(path.endswith(own) for path in each.paths)]
    run.say(f"the former controller made {len(writes)} writes when it continued, {len(wrong)} besides its registration")
    run.expect(not wrong, f"the former controller changed {wrong[:3]}")


def pause_coordinator(run: Run) -> None:
    """Requests of the group wait in the sockets of the paused coordinator while another one takes commits."""
    victim = run.loaded.group_coordinator(run.loaded.load.group)
    since = time.monotonic()
    run.loaded.pause(victim)
    wait_until(
        lambda: run.loaded.group_coordinator(run.loaded.load.group) not in (victim, -1),
        "another coordinator",
        DEADLINE_S,
    )
    run.say(f"another coordinator after {time.monotonic() - since:.2f} s")
    time.sleep(max(since + run.seconds - time.monotonic(), 0))
    commits = [each.time for each in run.loaded.load.seen.commits]
    run.say(f"{sum(each > since for each in commits)} commits while the broker was paused")
    run.loaded.resume(victim)
    run.note_gap(since, 6.0)
    run.heal()


# -- kills ----------------------------------------------------------------------------------------------------------


def kill_all(run: Run) -> None:
    since = time.monotonic()
    for broker in run.brokers.values():
        broker.kill()
    _launch_all(run, list(run.brokers), since)


def kill_two(run: Run) -> None:
    victims = run.rng.sample(list(run.brokers), 2)
    since = time.monotonic()
    for number in victims:
        run.brokers[number].kill()
    killed = time.monotonic()
    time.sleep(5.0)
    # Answers that were on their way when the second broker was killed are read within half a second.
    late = sum(killed + 0.5 < each.time for acks in run.loaded.load.seen.acks.values() for each in list(acks))
    run.say(f"killed brokers {victims}; {late} acknowledgements by the third one, which is below min.insync.replicas")
    run.expect(late == 0, f"{late} records were acknowledged by one replica alone")
    _launch_all(run, victims, since)


def _launch_all(run: Run, numbers: list[int], since: float) -> None:
    """Start brokers that have ended, all at the same time, and wait for acknowledgements."""
    started = time.monotonic()
    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(lambda number: run.brokers[number].launch(), numbers))
    ready = time.monotonic()
    run.loaded.load.wait_acknowledged(ready)
    took = time.monotonic() - started
    run.say(f"{len(numbers)} brokers ready {ready - started:.2f} s, acknowledgements {took:.2f} s after their start")
    run.expect(took <= 10.0, f"the first acknowledgements came {took:.2f} s after the start; the limit is 10 s")
    run.note_gap(since)
    run.heal()


def power_cut(count: int) -> Callable[[Run], None]:
    def cut(run: Run) -> None:
        victims = run.rng.sample(list(run.brokers), count)
        since = time.monotonic()
        # A sync that is in flight while ext4 shuts down may return success although its data is dropped: freeze first.
        for number in victims:
            freeze(run.brokers[number].pid)
        for number in victims:
            run.disks[number].cut_power()
        for number in victims:
            run.brokers[number].kill()
            run.disks[number].unmount()
            run.disks[number].mount()
        run.say(f"power cut of brokers {victims}")
        _launch_all(run, victims, since)

    return cut


def rolling_restart(run: Run) -> None:
    since = time.monotonic()
    for _ in range(3):
        for broker in run.brokers.values():
            run.expect(broker.stop() == 0, "a broker did not stop cleanly")
            broker.launch()
            run.loaded.wait_in_sync()
    run.say(f"9 restarts in {time.monotonic() - since:.0f} s")
    run.note_gap(since, 0.3)


# -- ZooKeeper ------------------------------------------------------------------------------------------------------


def zookeeper_down(run: Run) -> None:
    load = run.loaded.load
    since = time.monotonic()
    run.loaded.cluster.zookeeper.stop()
    time.sleep(min(run.seconds, 10.0))
    took = []
    for number in run.brokers:
        took.append(_time_of_admin_error(run, number))
    run.say(f"CreateTopics was answered with an error after {', '.join(f'{each:.2f}' for each in took)} s")
    run.expect(max(took) <= 5.0, f"CreateTopics took {max(took):.2f} s; the limit is 5 s")
    time.sleep(max(since + run.seconds - time.monotonic(), 0))
    count = load.acknowledged
    load.wait_acknowledged(time.monotonic(), clients=load.clients)
    run.note_gap(since, 2.0)
    run.say(f"{count} records acknowledged when ZooKeeper had been down for {time.monotonic() - since:.0f} s")
    run.loaded.cluster.start_zookeeper()
    wait_until(lambda: _can_create(run, "made-after-zookeeper-returned"), "a topic can be created", DEADLINE_S)
    run.heal()


def _time_of_admin_error(run: Run, number: int) -> float:
    """Return how long a broker takes to refuse a new topic."""
    topic = CreatableTopic(name=f"refused-{number}", num_partitions=1, replication_factor=3)
    with RawClient(run.brokers[number].bootstrap) as client:
        asked = time.monotonic()
        (answer,) = client.ask(CreateTopicsRequest(topics=[topic], timeout=30_000), 7).topics
        run.expect(answer.error_code != 0, "a topic was created without ZooKeeper")
    return time.monotonic() - asked


def _can_create(run: Run, name: str) -> bool:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=3)
    with RawClient(run.brokers[1].bootstrap) as client:
        (answer,) = client.ask(CreateTopicsRequest(topics=[topic], timeout=5_000), 7).topics
    return bool(answer.error_code in (0, 36))


def session_expiry(run: Run) -> None:
    since = time.monotonic()
    rounds = max(int(run.seconds / 5), 2)
    for number in range(rounds):
        # Every fourth time all sessions expire at once.
        victims = list(run.brokers) if number % 4 == 3 else [run.rng.choice(list(run.brokers))]
        connect = run.loaded.cluster.connect
        for victim in victims:
            wait_until(lambda: session_of(connect, victim) is not None, "the broker is registered", DEADLINE_S)  # noqa: B023
            expire_session(connect, victim)
        run.loaded.load.wait_acknowledged(time.monotonic() + 0.5)
        time.sleep(max(since + 5.0 * (number + 1) - time.monotonic(), 0))
    run.say(f"sessions expired {rounds} times")
    run.note_gap(since, 6.0)
    run.expect(all(broker.running for broker in run.brokers.values()), "a broker has ended")
    run.heal()


# -- data directories -----------------------------------------------------------------------------------------------


def wiped_disk(run: Run) -> None:
    victim = run.loaded.leader()
    since = time.monotonic()
    run.brokers[victim].kill()
    shutil.rmtree(run.brokers[victim].data)
    run.brokers[victim].launch()
    _check_refill(run, victim, since, time.monotonic())


def old_copy(run: Run) -> None:
    victim = run.loaded.leader()
    broker = run.brokers[victim]
    run.expect(broker.stop() == 0, "the broker did not stop cleanly")
    data = Path(broker.data)
    copy = data.with_name(f"{data.name}-old")
    shutil.copytree(data, copy)
    broker.launch()
    run.loaded.wait_in_sync()
    run.loaded.load.wait_acknowledged(time.monotonic() + 2.0)
    since = time.monotonic()
    run.expect(broker.stop() == 0, "the broker did not stop cleanly")
    shutil.rmtree(data)
    copy.rename(data)
    broker.launch()
    _check_refill(run, victim, since, time.monotonic())


def _check_refill(run: Run, victim: int, since: float, started: float) -> None:
    run.loaded.load.wait_acknowledged(time.monotonic(), clients=run.loaded.load.clients)
    run.loaded.wait_in_sync()
    run.say(f"broker {victim} was filled and in sync {time.monotonic() - started:.2f} s after its start")
    run.note_gap(since, 2.0)
    time.sleep(0.2)  # the watcher reads the state of the topic in steps
    run.problems += check_refilled_before_it_leads(run.watcher.since(started), victim)


# -- the program ----------------------------------------------------------------------------------------------------

CASES = [
    Case("pause-leader", "U <= 6 s; the woken broker acknowledges nothing", pause_leader),
    Case("pause-leader-briefly", "2 s, less than the session: U <= 2.5 s, no election", pause_leader_briefly),
    Case("pause-controller", "U <= 6 s; the woken broker writes its registration only", pause_controller),
    Case("pause-coordinator", "U <= 6 s; no committed offset goes back", pause_coordinator),
    Case("kill-all", "acknowledgements within 10 s of the restart, without help", kill_all),
    Case("kill-two", "no acknowledgement below min.insync.replicas; recovers as kill-all", kill_two),
    Case("power-cut-one", "nothing acknowledged is lost", power_cut(1), needs_disks=True),
    Case("power-cut-two", "nothing acknowledged is lost", power_cut(2), needs_disks=True),
    Case("power-cut-three", "nothing acknowledged is lost", power_cut(3), needs_disks=True),
    Case("rolling-restart", "no error at a client, U <= 0.3 s in 9 restarts", rolling_restart),
    Case("zookeeper-down", "produce goes on (U <= 2 s); CreateTopics fails within 5 s", zookeeper_down),
    Case("session-expiry", "every 5 s: brokers register again; U <= 6 s", session_expiry),
    Case("wiped-disk", "the broker leads nothing before it was refilled", wiped_disk),
    Case("old-copy", "a restored old directory leads nothing before it was refilled", old_copy),
]
_SECONDS = {
    "pause-leader": 30.0,
    "pause-controller": 30.0,
    "pause-coordinator": 30.0,
    "zookeeper-down": 120.0,
    "session-expiry": 60.0,
}


@contextmanager
def _disks(needed: bool) -> Iterator[dict[int, Ext4]]:
    """Mount a file system for each broker. Raise pytest.skip.Exception if this machine cannot."""
    with ExitStack() as stack:
        disks: dict[int, Ext4] = {}
        if needed:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-disks-")))
            for number in (1, 2, 3):
                (directory / str(number)).mkdir()
                disks[number] = Ext4(directory / str(number), _DISK_MEGABYTES)
                stack.callback(disks[number].unmount)
        yield disks


def run_case(case: Case, clients: list[str], seconds: float, seed: int, report: Report) -> list[str]:
    """Run one case. Return what went wrong."""
    with _disks(case.needs_disks) as disks:
        directories = {number: disk.path / "data" for number, disk in disks.items()}
        with ClusterProcess.start(settings=_SETTINGS, directories=directories) as cluster:
            loaded = LoadedCluster(cluster, clients=clients, request_timeout_ms=_REQUEST_TIMEOUT_MS, say=report.say)
            loaded.start()
            loaded.load.wait_acknowledged(time.monotonic() + 2.0)
            watcher = StateWatcher(cluster.connect, TOPIC)
            run = Run(loaded, watcher, seconds or _SECONDS.get(case.name, 0.0), Random(seed), disks)
            try:
                case.run(run)
                run.problems += loaded.finish()
            except (TimeoutError, OSError, KafkaException, RuntimeError) as error:
                run.problems.append(f"{error!r}; the brokers logged: {_last_lines(run)}")
            finally:
                watcher.stop()
                loaded.load.kill()
    for line in run.results:
        report.say(f"  {line}")
    return run.problems


def _last_lines(run: Run) -> str:
    return "\n".join(f"{number}: {broker.errors()[-1500:]}" for number, broker in run.brokers.items())


def run(report: Report, *, case: str, seed: int, seconds: float, clients: str) -> None:
    # Lost connections to ZooKeeper are a part of the cases.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    names = [each.name for each in CASES] if case == "all" else case.split(",")
    if unknown := set(names) - {each.name for each in CASES}:
        raise CannotRun(
            f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in CASES)}"
        )
    passed, skipped = 0, 0
    for number, each in enumerate([each for each in CASES if each.name in names]):
        report.progress(number, len(names), "cases")
        report.say(f"{each.name}\n  predicted: {each.prediction}")
        try:
            problems = run_case(each, clients.split(","), seconds, seed, report)
        except pytest.skip.Exception as missing:
            report.say(f"  skipped: {missing}")
            skipped += 1
            continue
        report.problems_found(f"{each.name}: {problem}" for problem in problems)
        passed += not problems
    report.figure(f"{passed} of {len(names)} cases passed, {skipped} skipped")
