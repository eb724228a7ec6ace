"""Cut the network between brokers, ZooKeeper and clients under load, heal it, check the records.

    make campaign NAME=partitions CASE=P2,P4

Three brokers, ZooKeeper and two groups of clients run in network namespaces (namespace_cluster.py), so this needs root
and nftables. Every case has a new topic with three partitions, three replicas and min.insync.replicas=2. Its roles are
those of one partition: the leader, a follower, and the other follower, which is the controller unless the case says
that the leader is the controller.

    load, cut, keep the cut, heal, wait until all replicas are in sync, stop the load, check

Every case must meet the base criterion: no acknowledged record is lost, twice or at another offset; no reader sees an
anomaly (campaign/history.py); committed offsets do not go back; all replicas are in sync within 30 s after the heal
and have the same bytes below the high watermark; no broker ends or logs an error. Cases have further limits: how long
writes are refused, how many elections happen. Refused time is the longest time between two acknowledgements of the
partition to a producer with acks=all whose requests time out after 3 s.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from namespace_cluster import OTHER_CLIENTS, ZOOKEEPER, Change, NamespaceCluster, host_of
from network_namespaces import Hosts, install_nftables

from campaign.checker import check_replicas
from campaign.processes import wait_until
from campaign.report import CannotRun, Report
from campaign.workload import Load

_DEADLINE_S = 60.0
_REQUEST_TIMEOUT_MS = 3000
_RATE = 40.0
#: all replicas are in sync again at most this long after a heal
_IN_SYNC_S_MAX = 30.0
#: the longest time after a cut in which an isolated leader may acknowledge records
_ISOLATED_S_MAX = 4.0
_CUT_S = 12.0
_FLAP_S = 1.0
#: partition n is led by broker n + 1
_ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
_ERROR_LINE = re.compile(r"^(?:\S+ \S+ (?:ERROR|CRITICAL) .*|Traceback .*)$", re.M)


class Roles(NamedTuple):
    """The brokers of a case, by their roles for one partition."""

    partition: int
    leader: int
    follower: int
    #: the other follower
    other: int
    controller: int

    @property
    def hosts(self) -> dict[str, str]:
        return {
            "leader": host_of(self.leader), "follower": host_of(self.follower), "other": host_of(self.other),
            "controller": host_of(self.controller), "ZooKeeper": ZOOKEEPER,
        }  # fmt: skip


Cut = Callable[[Hosts, Roles], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of network partition, what it must lead to, and its limits."""

    name: str
    title: str
    prediction: str
    cut: Cut
    cut_s: float = _CUT_S
    is_leader_controller: bool = False
    #: limits; None if there is none
    refused_s_max: float | None = None
    elections_max: int | None = None
    all_elections_max: int | None = None
    #: how often replicas may leave the ISR of the partition
    shrinks_max: int | None = None
    in_sync_s_max: float = _IN_SYNC_S_MAX
    #: further loads: with acks=1 on the leader, and by clients that are cut off together with the leader
    has_acks_1: bool = False
    has_isolated_clients: bool = False
    #: the cut is repeated after equally long times without it
    flaps: bool = False


def _between(one: str, *others: str) -> Cut:
    """Return a function that cuts one role off from others, in both directions."""

    def cut(hosts: Hosts, roles: Roles) -> None:
        hosts.cut_groups([roles.hosts[one]], [roles.hosts[each] for each in others])

    return cut


def _isolated(role: str, *, with_clients: bool = False) -> Cut:
    """Return a function that isolates a broker, alone or together with the other clients."""

    def cut(hosts: Hosts, roles: Roles) -> None:
        inside = [roles.hosts[role], *([OTHER_CLIENTS] if with_clients else [])]
        hosts.cut_groups(inside, [each for each in hosts.addresses if each not in inside])

    return cut


def _one_way(sender: str, receiver: str) -> Cut:
    return lambda hosts, roles: hosts.drop(roles.hosts[sender], roles.hosts[receiver])


_P1 = "the follower leaves the ISR; no election; it joins again after the heal"
_P3 = "the follower leaves the ISR once its session expires, and does not join while it is not registered"
_P4 = "the leader stops acknowledging at two thirds of its session; then another leader is elected"
_NO_EFFECT = "the leader and ZooKeeper are reached by all: no effect on this partition"
#: what a one-way cut between two roles must lead to, in either direction: the same as the cut in both directions
_ONE_WAY = {
    frozenset({"leader", "follower"}): _P1,
    frozenset({"leader", "controller"}): _P1,
    frozenset({"follower", "controller"}): _NO_EFFECT,
    frozenset({"leader", "ZooKeeper"}): _P4,
    frozenset({"follower", "ZooKeeper"}): _P3,
    frozenset({"controller", "ZooKeeper"}): f"{_P3}; another controller is elected",
}

_CASES = [
    Case(
        name="P1", title="a follower cannot reach the leader", prediction=_P1, cut=_between("leader", "follower"),
        refused_s_max=4.0, elections_max=0, in_sync_s_max=10.0,
    ),
    Case(
        name="P2", title="the leader cannot reach its followers; all reach ZooKeeper",
        prediction="the followers leave the ISR and stay eligible (Kafka: writes are refused as long as it lasts); "
        "after 3 s below min.insync.replicas one of them leads",
        cut=_between("leader", "follower", "other"), refused_s_max=10.0,
    ),
    Case(
        name="P2-controller", title="as P2, and the leader is the controller", prediction="as P2",
        cut=_between("leader", "follower", "other"), refused_s_max=10.0, is_leader_controller=True,
    ),
    Case(
        name="P3", title="a follower cannot reach ZooKeeper", prediction=_P3, cut=_between("follower", "ZooKeeper"),
        refused_s_max=1.0, elections_max=0, shrinks_max=1,
    ),
    Case(
        name="P4", title="the leader cannot reach ZooKeeper", prediction=f"{_P4}; acks=1 loses nothing either",
        cut=_between("leader", "ZooKeeper"), refused_s_max=6.0, has_acks_1=True,
    ),
    Case(
        name="P4-controller", title="as P4, and the leader is the controller",
        prediction=f"{_P4}; another controller is elected; acks=1 loses nothing either",
        cut=_between("leader", "ZooKeeper"), refused_s_max=6.0, has_acks_1=True, is_leader_controller=True,
    ),
    Case(
        name="P5", title="a follower is isolated", prediction=f"{_P1}; its registration ends",
        cut=_isolated("follower"), refused_s_max=4.0, elections_max=0,
    ),
    Case(
        name="P6", title="the leader is isolated, with clients on both sides",
        prediction=f"the isolated leader acknowledges nothing after {_ISOLATED_S_MAX:.0f} s and serves only committed "
        "records; the majority elects another leader",
        cut=_isolated("leader", with_clients=True), refused_s_max=6.0, has_isolated_clients=True,
    ),
    Case(
        name="P6-controller", title="as P6, and the leader is the controller",
        prediction="as P6; another controller is elected", cut=_isolated("leader", with_clients=True),
        refused_s_max=6.0, has_isolated_clients=True, is_leader_controller=True,
    ),
    *(
        Case(
            name=f"P7-{sender}-{receiver}", title=f"one way: what {sender} sends to {receiver} is lost",
            prediction=_ONE_WAY[frozenset({sender, receiver})], cut=_one_way(sender, receiver),
        )
        for sender, receiver in permutations(("leader", "follower", "ZooKeeper", "controller"), 2)
    ),
    Case(
        name="P8", title="ring: the leader and the controller cannot reach each other, the third broker reaches both",
        prediction="one leader per epoch; leaders do not alternate", cut=_between("leader", "controller"), cut_s=60.0,
        all_elections_max=3,
    ),
    Case(
        name="P10", title="the link of the leader is down and up for 1 s each, for 60 s",
        prediction="the brokers retry with a pause, and leak neither connections nor threads",
        cut=_isolated("leader"), cut_s=60.0, flaps=True,
    ),
]  # fmt: skip


@dataclass
class Result:
    """What happened in a case."""

    refused_s: float = 0.0
    refused_elsewhere_s: list[float] = field(default_factory=list)
    in_sync_s: float | None = None
    elections: int = 0
    #: also of the other partitions
    all_elections: int = 0
    shrinks: int = 0
    #: one line each
    events: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Resources(NamedTuple):
    """What a broker process has open."""

    sockets: int
    threads: int


class Run:
    """One case on a running cluster."""

    def __init__(self, cluster: NamespaceCluster, case: Case, say: Callable[[str], None]) -> None:
        self.cluster, self.case, self._say = cluster, case, say
        self.result = Result()
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._log_sizes = {number: len(broker.errors()) for number, broker in cluster.brokers.items()}
        #: the loads; the first one measures how long writes are refused
        self._loads: list[Load] = []
        self._topics: list[str] = []
        self._cut_at = self._healed_at = 0.0

    def run(self) -> Result:
        """Run the case to its end and check everything."""
        case, cluster = self.case, self.cluster
        wait_until(
            lambda: len(cluster.observer.registered) == 3 and cluster.observer.controller > 0, "brokers", _DEADLINE_S
        )
        roles = self._choose_roles()
        self._say(
            f"\n{case.name}: {case.title}\n  predicted  {case.prediction}\n"
            f"  roles      partition {roles.partition}: leader {roles.leader}, followers {roles.follower} and "
            f"{roles.other}; controller {roles.controller}"
        )
        self._start_loads(roles)
        before = {number: _resources(broker.pid) for number, broker in cluster.brokers.items()}
        first, controllers = len(cluster.observer.changes), len(cluster.observer.controllers)
        self._cut_and_heal(roles)
        self._wait_in_sync()
        if case.flaps:
            self._check_resources(before)
        self._measure(roles, cluster.observer.changes[first:], cluster.observer.controllers[controllers:])
        self._check()
        return self.result

    def _choose_roles(self) -> Roles:
        controller = self.cluster.observer.controller
        leader = controller if self.case.is_leader_controller else controller % 3 + 1
        one, two = sorted({1, 2, 3} - {leader})
        follower, other = (one, two) if two == controller or leader == controller else (two, one)
        return Roles(leader - 1, leader, follower, other, controller)

    # -- load -----------------------------------------------------------------------------------------------------

    def _start_loads(self, roles: Roles) -> None:
        name = self.case.name.lower()
        self._add_load(name, _ASSIGNMENT, group=True)
        of_leader = [_ASSIGNMENT[roles.partition]]
        if self.case.has_acks_1:
            self._add_load(f"{name}-acks-1", of_leader, acks="1")
        if self.case.has_isolated_clients:
            self._add_load(f"{name}-isolated", of_leader, prefix=self.cluster.hosts.prefix(OTHER_CLIENTS))
        for load in self._loads:
            load.start()

    def _add_load(
        self, topic: str, assignment: list[list[int]], *, group: bool = False, acks: str = "all",
        prefix: list[str] | None = None,
    ) -> None:  # fmt: skip
        new = NewTopic(topic, len(assignment), replica_assignment=assignment, config={"min.insync.replicas": "2"})
        self._admin.create_topics([new])[topic].result(_DEADLINE_S)
        self._topics.append(topic)
        observer = self.cluster.observer
        observer.topics.append(topic)
        wait_until(lambda: self._is_in_sync(topic), f"replicas of {topic} in sync", _DEADLINE_S)
        load = Load(
            self.cluster.bootstrap, topic, partitions=len(assignment), clients=("librdkafka",), group=group,
            rate=_RATE, request_timeout_ms=_REQUEST_TIMEOUT_MS, prefix=prefix or (), acks=acks,
            say=lambda line: self._say(f"  load       {line}"),
        )  # fmt: skip
        self._loads.append(load)

    def _is_in_sync(self, topic: str) -> bool:
        states = [state for (name, _), state in self.cluster.observer.states.items() if name == topic]
        return bool(states) and all(len(state.isr) == 3 and state.leader > 0 for state in states)

    # -- fault ----------------------------------------------------------------------------------------------------

    def _cut_and_heal(self, roles: Roles) -> None:
        case, hosts = self.case, self.cluster.hosts
        self._cut_at = time.monotonic()
        if case.flaps:
            while time.monotonic() < self._cut_at + case.cut_s:
                case.cut(hosts, roles)
                time.sleep(_FLAP_S)
                hosts.heal()
                time.sleep(_FLAP_S)
        else:
            case.cut(hosts, roles)
            time.sleep(case.cut_s)
            hosts.heal()
        self._healed_at = time.monotonic()

    def _wait_in_sync(self) -> None:
        def is_in_sync() -> bool:
            return len(self.cluster.observer.registered) == 3 and all(map(self._is_in_sync, self._topics))

        try:
            wait_until(is_in_sync, "all replicas in sync", _DEADLINE_S)
            self.result.in_sync_s = time.monotonic() - self._healed_at
            # Every producer has found the leaders of after the heal.
            for load in self._loads:
                load.wait_acknowledged(time.monotonic())
        except (TimeoutError, RuntimeError) as error:
            self.result.problems.append(str(error))

    # -- measure --------------------------------------------------------------------------------------------------

    def _measure(self, roles: Roles, changes: list[Change], controllers: list[tuple[float, int]]) -> None:
        """Derive the result from the acknowledgements, and from the states in ZooKeeper since the cut."""
        result, main = self.result, self._loads[0]
        until = time.monotonic()
        result.refused_s = main.longest_gap_of(roles.partition, self._cut_at, until)
        result.refused_elsewhere_s = [
            main.longest_gap_of(each, self._cut_at, until) for each in range(3) if each != roles.partition
        ]
        for partition in range(3):
            own = [each for each in changes if (each.topic, each.partition) == (self._topics[0], partition)]
            leaders = [partition + 1, *(each.state.leader for each in own)]
            elections = sum(before != after > 0 for before, after in pairwise(leaders))
            result.all_elections += elections
            if partition == roles.partition:
                sizes = [3, *(len(each.state.isr) for each in own)]
                result.elections = elections
                result.shrinks = sum(before > after for before, after in pairwise(sizes))
                result.events = [self._describe(each) for each in own]
        result.events += [f"{at - self._cut_at:.1f} s: controller {number}" for at, number in controllers]
        self._say(f"  happened   {'; '.join(result.events) or 'no change'}")
        self._check_limits()

    def _describe(self, change: Change) -> str:
        state = change.state
        eligible = f", eligible {list(state.elr)}" if state.elr else ""
        return f"{change.time - self._cut_at:.1f} s: leader {state.leader}, ISR {list(state.isr)}{eligible}"

    def _check_limits(self) -> None:
        case, result = self.case, self.result
        for what, value, limit, unit in (
            ("writes were refused for", result.refused_s, case.refused_s_max, " s"),
            ("all replicas were in sync after", result.in_sync_s, case.in_sync_s_max, " s"),
            ("elections:", result.elections, case.elections_max, ""),
            ("elections of all partitions:", result.all_elections, case.all_elections_max, ""),
            ("replicas left the ISR:", result.shrinks, case.shrinks_max, ""),
        ):
            if limit is not None and value is not None and value > limit:
                result.problems.append(f"{what} {value:.4g}{unit}, at most {limit:.4g}{unit} are allowed")
        elsewhere = " and ".join(f"{each:.1f} s" for each in result.refused_elsewhere_s)
        allowed = "" if case.refused_s_max is None else f" (at most {case.refused_s_max:.0f} s)"
        in_sync = "never" if result.in_sync_s is None else f"{result.in_sync_s:.1f} s after the heal"
        self._say(
            f"  refused    {result.refused_s:.1f} s{allowed}; other partitions {elsewhere}; "
            f"elections {result.elections}; cut for {self._healed_at - self._cut_at:.1f} s; "
            f"all replicas in sync {in_sync}"
        )
        if case.has_isolated_clients:
            self._check_isolated(self._loads[-1])

    def _check_isolated(self, load: Load) -> None:
        """The isolated leader must not acknowledge anything after a while."""
        times = [each.time - self._cut_at for each in load.seen.acks[0] if each.time < self._healed_at]
        last = max((each for each in times if each > 0), default=0.0)
        self._say(f"  isolated   last acknowledgement {last:.1f} s after the cut (at most {_ISOLATED_S_MAX:.0f} s)")
        if last > _ISOLATED_S_MAX:
            self.result.problems.append(f"the isolated leader acknowledged a record {last:.1f} s after the cut")

    def _check_resources(self, before: dict[int, Resources]) -> None:
        """The number of sockets and threads of each broker must go back to that of before, by at most 5 %."""

        def grown() -> list[str]:
            found = []
            for number, broker in self.cluster.brokers.items():
                for what, old, new in zip(Resources._fields, before[number], _resources(broker.pid), strict=True):
                    if new > max(old * 1.05, old + 2):
                        found.append(f"broker {number} has {new} {what}, {old} before")
            return found

        try:
            wait_until(lambda: not grown(), "sockets and threads as before", _IN_SYNC_S_MAX)
        except TimeoutError:
            self.result.problems += grown()

    # -- check ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        problems, brokers = self.result.problems, self.cluster.brokers
        for load in self._loads:
            load.stop()
        directories = {number: Path(broker.data) for number, broker in brokers.items()}
        for load in self._loads:
            problems += load.check()
            # All replicas are in sync and nothing is written, so the files do not change.
            problems += check_replicas(directories, load.topic, load.high_watermarks)
        for number, broker in brokers.items():
            if not broker.running:
                problems.append(f"broker {number} has ended: {broker.errors()[-1000:]}")
            logged = broker.errors()[self._log_sizes[number] :]
            problems += [f"broker {number} logged: {line}" for line in _ERROR_LINE.findall(logged)[:3]]
        self.cluster.observer.topics = []
        try:
            for deleted in self._admin.delete_topics(self._topics).values():
                deleted.result(_DEADLINE_S)
        except KafkaException as error:
            problems.append(f"the topics of the case cannot be deleted: {error}")


def _resources(pid: int) -> Resources:
    sockets = 0
    for each in Path("/proc", str(pid), "fd").iterdir():
        try:
            sockets += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # closed meanwhile
    return Resources(sockets, len(list(Path("/proc", str(pid), "task").iterdir())))


def _run_cases(cases: list[Case], logs: Path | None, report: Report) -> dict[str, Result]:
    """Run the cases on one cluster; a new one after a case that failed."""
    results: dict[str, Result] = {}
    cluster: NamespaceCluster | None = None
    try:
        for number, case in enumerate(cases):
            report.progress(number, len(cases), "cases")
            if cluster is None:
                cluster = NamespaceCluster()
            results[case.name] = result = _run_case(cluster, case, report)
            if result.problems:
                if logs is not None:
                    for number, broker in cluster.brokers.items():
                        (logs / f"{case.name}-broker-{number}.log").write_text(broker.errors())
                cluster.close()
                cluster = None
    finally:
        if cluster is not None:
            cluster.close()
    return results


def _run_case(cluster: NamespaceCluster, case: Case, report: Report) -> Result:
    run = Run(cluster, case, report.say)
    try:
        run.run()
    except (TimeoutError, RuntimeError, KafkaException) as error:
        run.result.problems.append(f"{type(error).__name__}: {error}")
    report.problems_found(f"{case.name}: {problem}" for problem in run.result.problems)
    return run.result


def select(wanted: list[str]) -> list[Case]:
    """Return the cases with these names or with names that begin so (P7); all if none is given."""
    if not wanted:
        return _CASES
    found = [case for case in _CASES if any(f"{case.name}-".startswith(f"{each}-") for each in wanted)]
    if not found:
        raise CannotRun(f"no such case; there are {', '.join(case.name for case in _CASES)}")
    return found


def run(report: Report, *, case: str, logs: str) -> None:
    cases = select([name for name in case.split(",") if name])
    install_nftables()
    results = _run_cases(cases, Path(logs) if logs else None, report)
    report.say("\ncase                     refused  in sync after  elections  result")
    for name, result in results.items():
        in_sync = "never" if result.in_sync_s is None else f"{result.in_sync_s:.1f} s"
        report.say(
            f"{name:<24} {result.refused_s:>6.1f}s  {in_sync:>13}  {result.elections:>9}  "
            f"{'failed' if result.problems else 'passed'}"
        )
    passed = sum(not result.problems for result in results.values())
    report.figure(f"{passed} of {len(cases)} cases passed")
