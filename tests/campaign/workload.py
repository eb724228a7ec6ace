"""Load on a topic of a cluster by clients of three libraries, and the checks of what the clients saw.

    load = Load(bootstrap, "events")
    load.start()                              # returns when every producer has an acknowledgement of every partition
    ...                                       # faults
    load.longest_gap(since)                   # the longest time without an acknowledgement of one partition
    load.stop()
    problems = load.check() + check_replicas({1: Path(..), 2: ..}, "events", load.high_watermarks)

Producers with librdkafka, aiokafka and Kafka's Java client write to all partitions with acks=all and idempotence. Two
members of a consumer group read and commit, an observer asks for the committed offsets, and a reader follows the
end of each partition. Each client is a process of its own (load_client.py, LoadProducer.java). ``prefix`` is a command
that starts them somewhere else, such as ``("ip", "netns", "exec", NAME)``.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks import kafka_server

from campaign.checker import Commit, check, check_commits, longest_gap
from campaign.history import History, Outcome, Place, Reader
from campaign.processes import ClientProcess, wait_until
from campaign.report import shorten

_HERE = Path(__file__).parent

CLIENTS = ("librdkafka", "aiokafka", "java")
_START_S_MAX = 120.0
_GROUP_S_MAX = 60.0


class Ack(NamedTuple):
    time: float
    client: str


@dataclass
class Seen:
    """Everything that the client processes have printed. Several threads append to it."""

    #: offset by (client, partition, number)
    offsets: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: by (client, partition)
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    #: by partition
    acks: dict[int, list[Ack]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    #: by the name of the reader: partition, offset, value
    records: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    commits: list[Commit] = field(default_factory=list)
    observed: list[Commit] = field(default_factory=list)
    consumed: int = 0
    #: group members that could not end, see `load_client.run_group`
    hung: int = 0
    high_watermarks: dict[int, int] = field(default_factory=dict)
    #: processes that printed `ready`, and readers that printed `end`
    ready: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def add(self, client: str, line: str) -> None:
        event, *words = line.split(" ", 4)
        if event == "acknowledged":
            partition, number, offset = map(int, words[:3])
            self.offsets[client, partition, number] = offset
            self.acks[partition].append(Ack(float(words[3]), client))
        elif event == "failed":
            self.errors.append(f"{client}: partition {words[0]} record {words[1]}: {words[3]}")
        elif event == "sent":
            self.sent[client, int(words[0])] = int(words[1])
        elif event == "read":
            self.records[client].append((int(words[0]), int(words[1]), words[2]))
        elif event == "consumed":
            self.consumed += 1
        elif event == "hung":
            self.hung += 1
        elif event in ("committed", "observed"):
            commits = self.commits if event == "committed" else self.observed
            commits.append(Commit(int(words[0]), int(words[1]), float(words[2])))
        elif event == "high-watermark":
            self.high_watermarks[int(words[0])] = int(words[1])
        elif event == "ready":
            self.ready.add(client)
        elif event == "end":
            self.ended.add(client)
        else:
            self.errors.append(f"{client} printed an unknown line: {line}")


def _java_security(settings: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE of Kafka's client for librdkafka's settings of TLS and SASL."""
    if not settings:
        return []
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    jaas = f'{login} username="{settings["sasl.username"]}" password="{settings["sasl.password"]}";'
    return [
        f"security.protocol={settings['security.protocol']}", f"sasl.mechanism={settings['sasl.mechanism']}",
        f"sasl.jaas.config={jaas}", "ssl.truststore.type=PEM", f"ssl.truststore.location={settings['ssl.ca.location']}",
    ]  # fmt: skip


class Load:
    """The clients of one topic, from ``start`` to ``stop``; then ``check``."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int = 3, clients: Iterable[str] = CLIENTS, group: bool = True,
        tail: bool = True, rate: float = 50.0, request_timeout_ms: int = 0, prefix: Sequence[str] = (),
        acks: str = "all", settings: Mapping[str, str] | None = None, say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """``rate`` is in records per second, producer and partition.

        ``request_timeout_ms`` is for librdkafka and Java: how long an unanswered request to a paused or unreachable
        broker may block the producer. 0 keeps the defaults of the clients, 30 s. aiokafka cannot have it, because it
        also gives up its records after the same time. ``acks`` is for librdkafka: with "1" its producer is not
        idempotent and does not retry, so that errors are expected. ``settings`` are those of TLS and SASL, by
        librdkafka's names.
        """
        self._settings, self._say = dict(settings or {}), say
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.seen = Seen()
        self._rate, self._request_timeout_ms, self._prefix = rate, request_timeout_ms, tuple(prefix)
        self._acks = acks
        self._with_group, self._with_tail = group, tail
        self.clients, missing = available_clients(clients)
        for line in missing:
            say(line)
        self._producers: list[ClientProcess] = []
        self._readers: list[ClientProcess] = []
        self._problems: list[str] = []

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the clients. Return when every producer has an acknowledgement of every partition."""
        for client in self.clients:
            command = self._java_command(client) if client == "java" else self._command(f"produce-{client}", client)
            self._producers.append(ClientProcess(client, command, self.seen.add))
        if self._with_group:
            self._readers.append(ClientProcess("group", self._command("group", self.group), self.seen.add))
        if self._with_tail:
            self._readers.append(ClientProcess("tail", self._command("tail", "tail"), self.seen.add))
        self.wait_acknowledged(0.0, clients=self.clients)
        wait_until(
            lambda: {each.name for each in self._readers} <= self.seen.ready, "readers have started", _START_S_MAX
        )
        if self._with_group:
            wait_until(lambda: bool(self.seen.observed), "the group has committed", _START_S_MAX)

    @property
    def group(self) -> str:
        return f"{self.topic}-readers"

    def _command(self, role: str, name: str) -> list[str]:
        return [
            *self._prefix, sys.executable, str(_HERE / "load_client.py"), role,
            "--bootstrap", self.bootstrap, "--topic", self.topic, "--partitions", str(self.partitions),
            "--name", name, "--rate", str(self._rate), "--request-timeout-ms", str(self._request_timeout_ms),
            "--acks", self._acks, "--settings", json.dumps(self._settings),
        ]  # fmt: skip

    def _java_command(self, name: str) -> list[str]:
        java = kafka_server._java()
        assert java is not None
        return [
            *self._prefix, java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dlog4j2.level=off", "-cp", str(kafka_server.JARS / "*"), str(_HERE / "LoadProducer.java"),
            self.bootstrap, self.topic, str(self.partitions), name, str(self._rate), str(self._request_timeout_ms),
            *_java_security(self._settings),
        ]  # fmt: skip

    def stop(self) -> None:
        """Stop the producers, which first wait for the answers to all records, then the readers.

        The group gets a minute to read and commit everything that was acknowledged.
        """
        self._stop(self._producers)
        if self._with_group:
            try:
                wait_until(self._has_group_committed_all, "the group has committed all records", _GROUP_S_MAX)
            except TimeoutError as error:
                self._problems.append(f"{error}: {self._group_offsets()}")
        self._stop(self._readers)

    def kill(self) -> None:
        """End all clients that still run, after a failure."""
        for client in [*self._producers, *self._readers]:
            client.kill()
        self._producers, self._readers = [], []

    def _stop(self, clients: list[ClientProcess]) -> None:
        self._problems += filter(None, [client.stop() for client in clients])
        clients.clear()

    def _group_offsets(self) -> dict[int, int]:
        """Return the last committed offset that was observed of each partition."""
        return {each.partition: each.offset for each in list(self.seen.observed)}

    def _has_group_committed_all(self) -> bool:
        ends: dict[int, int] = {}
        for (_, partition, _), offset in self.seen.offsets.items():
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        committed = self._group_offsets()
        return all(committed.get(partition, -1) >= end for partition, end in ends.items())

    # -- while it runs --------------------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int:
        return len(self.seen.offsets)

    def last_acknowledged(self, partition: int, client: str | None = None) -> float:
        """Return the time of the last acknowledgement, -1 if there is none."""
        acks = self.seen.acks[partition]
        return next((each.time for each in reversed(acks) if client in (None, each.client)), -1.0)

    def is_acknowledged(self, since: float, clients: Sequence[str] | None = None) -> bool:
        """Return whether all partitions have an acknowledgement after ``since``, from any or from all given clients."""
        for process in self._producers:
            process.check_running()
        wanted: Sequence[str | None] = [None] if clients is None else clients
        return all(
            self.last_acknowledged(partition, client) > since
            for partition in range(self.partitions)
            for client in wanted
        )

    def wait_acknowledged(self, since: float, *, clients: Sequence[str] | None = None) -> None:
        """Return when all partitions have an acknowledgement after ``since``. Raise TimeoutError after two minutes."""
        wait_until(lambda: self.is_acknowledged(since, clients), "acknowledgements of all partitions", _START_S_MAX)

    def longest_gap(self, since: float, until: float | None = None, *, client: str | None = None) -> float:
        """Return the longest time without an acknowledgement of one partition, by any producer or by one.

        A gap counts if it ends after ``since``: it starts at the last acknowledgement before. ``until`` (now if it is
        None) ends a gap that has no acknowledgement behind it.
        """
        until = time.monotonic() if until is None else until
        return max(self.longest_gap_of(partition, since, until, client) for partition in range(self.partitions))

    def longest_gap_of(self, partition: int, since: float, until: float, client: str | None = None) -> float:
        """Return the longest time without an acknowledgement of this partition, as ``longest_gap`` does."""
        times = sorted(each.time for each in list(self.seen.acks[partition]) if client in (None, each.client))
        return longest_gap(times, since, until)

    # -- at the end -----------------------------------------------------------------------------------------------

    @property
    def high_watermarks(self) -> dict[int, int]:
        """The high watermarks at the start of ``check``."""
        return self.seen.high_watermarks

    def check(self) -> list[str]:
        """Read everything from the start. Return what must not have happened, one line each."""
        reader = ClientProcess("final", self._command("read", "final"), self.seen.add)
        problems = [*self._problems, *filter(None, [reader.join()])]
        if "final" not in self.seen.ended:
            problems.append("the final reader could not read all partitions to their ends")
        if self._acks == "all":
            problems += [f"error at a client: {each}" for each in shorten(self.seen.errors)]
        found = check(history_of(self.seen, self.topic, self.partitions))
        problems += [f"{name}: {line}" for name, lines in found.items() for line in shorten(lines)]
        if self._with_group:
            problems += check_commits(self.seen.commits, self.seen.observed)
        self._say(self.describe())
        return problems

    def describe(self) -> str:
        counts = Counter(client for client, _, _ in self.seen.offsets)
        by_client = ", ".join(f"{client} {counts[client]}" for client in self.clients)
        return (
            f"{sum(self.seen.sent.values())} records sent, {self.acknowledged} acknowledged ({by_client}), "
            f"{len(self.seen.records['final'])} read at the end, {len(self.seen.errors)} errors at clients; "
            f"group: {self.seen.consumed} records read, {len(self.seen.commits)} commits"
            + (f", {self.seen.hung} members hung in librdkafka" if self.seen.hung else "")
        )


def available_clients(clients: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the clients that this machine has, and a line for each one that is missing."""
    found, missing = [], []
    for client in clients:
        reason: str | None = None
        if client == "java":
            reason = kafka_server.fetch() or kafka_server.available()
        elif client == "aiokafka":
            try:
                import aiokafka  # noqa: F401
            except ImportError as error:
                reason = str(error)
        if reason is None:
            found.append(client)
        else:
            missing.append(f"the load goes on without {client}: {reason}")
    return found, missing


def history_of(seen: Seen, topic: str, partitions: int) -> History:
    """Return the history for the checker: a record without an acknowledgement has an unknown outcome."""
    history = History()
    for (client, partition), count in seen.sent.items():
        for number in range(count):
            send = history.send(client, Place(topic, partition), f"{client}.{partition}.{number}")
            if (offset := seen.offsets.get((client, partition, number))) is not None:
                send.acknowledged(offset)
    starts = {Place(topic, partition): 0 for partition in range(partitions)}
    readers = {name: Reader(name, starts) for name in ("tail", "final")}
    for name, reader in readers.items():
        for partition, offset, value in seen.records[name]:
            reader.read(Place(topic, partition), offset, value)
    history.tails, history.final = [readers["tail"]], readers["final"]
    assert history.count(Outcome.ACKNOWLEDGED) == len(seen.offsets), "a producer did not report what it has sent"
    return history
