"""Kafka Streams with exactly_once_v2 on three brokers, of which some are killed meanwhile.

    make campaign NAME=streams-kills KILLS=20 SEED=1 ROLE=transaction

The application (streams/CountWords.java) copies each record and counts words, with a repartition topic and a store
whose changelog is compacted. Roles: transaction (coordinator of one of its transactional ids), changelog (leader of a
partition of the changelog), group (coordinator of its group), application (its process, which is started again), mixed
(drawn by the seed for each kill). A killed broker is started again when the application has committed counts after the
kill.

At the end each record must have one copy, the committed counts of each word must be 1, 2, 3 and so on, the changelog
must have the last of them, and all replicas must have the same bytes. The jars are fetched once, about 90 MB.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from benchmarks import kafka_server
from benchmarks.maven import SCRATCH, fetch_jars
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from streams_checks import check_copies, check_counts, check_state

from campaign.checker import longest_gap
from campaign.cluster import DEADLINE_S, PARTITIONS, LoadedCluster
from campaign.processes import wait_until
from campaign.report import CannotRun, Report, percentiles
from ottla.testing import ClusterProcess
from ottla.wire.messages.list_transactions import ListTransactionsRequest

ROLES = ("transaction", "changelog", "group", "application")
INPUT, COPIES, COUNTS = "words", "copies", "counts"
APPLICATION = "counter"
CHANGELOG = f"{APPLICATION}-counts-changelog"
REPARTITION = f"{APPLICATION}-words-repartition"
_STREAMS = Path(__file__).with_name("streams")
_JARS = SCRATCH / "kafka-streams"
_MARKER = "kafka-streams-4.3.0.jar"
_WORDS = 300
_PROGRESS_S_MAX = 180.0


class Feeder:
    """Writes words to the input topic in bursts, each record once, until it is stopped."""

    def __init__(self, bootstrap: str, seed: int, burst: int) -> None:
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 300_000, "linger.ms": 20,
            "log_level": 0,
        })  # fmt: skip
        self._rng = Random(seed)
        self._burst = burst
        self.sent: list[str] = []
        self._errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            for _ in range(self._burst):
                value = f"word{self._rng.randrange(_WORDS)} {len(self.sent)}"
                self.sent.append(value)
                self._producer.produce(INPUT, value, partition=len(self.sent) % PARTITIONS, on_delivery=self._note)
            self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(f"a record of the input was not written: {error}")

    def stop(self) -> list[str]:
        """Return when all records are written. Return what went wrong."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(DEADLINE_S)
        return [*self._errors[:5], *([f"{left} records of the input were not written"] if left else [])]


class Application:
    """The process of Kafka Streams."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        java = kafka_server._java()
        assert java is not None
        classes = directory / "classes"
        subprocess.run(
            ["javac", "-cp", str(_JARS / "*"), "-d", str(classes), str(_STREAMS / "CountWords.java")], check=True
        )
        self._output = directory / "application.txt"
        self._command = [
            java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{classes}:{_JARS / '*'}", "CountWords",
            bootstrap, APPLICATION, INPUT, COPIES, COUNTS, str(directory / "state"),
        ]  # fmt: skip
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=output)

    def kill_and_start(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def check_running(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"Kafka Streams has ended: {self.last_output()}")

    def last_output(self) -> str:
        return "\n".join(self._output.read_text().splitlines()[-30:])

    @property
    def replaced_threads(self) -> list[str]:
        """Return the causes for which a thread was replaced."""
        return [line for line in self._output.read_text().splitlines() if line.startswith("replaced a thread")]

    def stop(self) -> list[str]:
        """Return what went wrong."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(DEADLINE_S * 2)
        except subprocess.TimeoutExpired:
            self.kill()
            return ["Kafka Streams did not stop"]
        return [f"Kafka Streams ended with code {code}: {self.last_output()}"] if code else []

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Watcher:
    """Reads committed counts and notes the times at which some arrived."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "watcher", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([TopicPartition(COUNTS, number, 0) for number in range(PARTITIONS)])
        self.count = 0
        self.times = [time.monotonic()]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if read := sum(message.error() is None for message in self._consumer.consume(5000, 0.1)):
                self.count += read
                self.times.append(time.monotonic())

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time without a committed count."""
        return longest_gap(list(self.times), since, until)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


class Campaign:
    """A cluster, the application on it, and the kills."""

    def __init__(
        self, cluster: ClusterProcess, directory: Path, report: Report, *, role: str, seed: int, burst: int
    ) -> None:
        self._report = report
        self._bootstrap = cluster.bootstrap
        self._role = role
        self._rng = Random(seed)
        self._loaded = LoadedCluster(cluster, clients=())
        for topic in (INPUT, COPIES, COUNTS):
            self._loaded.create_topic(topic)
        self._feeder = Feeder(cluster.bootstrap, seed, burst)
        self._application = Application(cluster.bootstrap, directory)
        self._watcher = Watcher(cluster.bootstrap)
        self.gaps: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._application.kill()
        self._watcher.close()

    def run(self, kills: int) -> list[str]:
        """Run to the end. Return what went wrong."""
        self._wait_for_counts(time.monotonic())
        self._loaded.wait_in_sync()
        for number in range(1, kills + 1):
            time.sleep(self._rng.uniform(0.0, 1.0))
            self._kill(self._role if self._role != "mixed" else self._rng.choice(ROLES), f"{number}/{kills}")
            self._report.progress(number, kills, "kills")
        problems = self._feeder.stop()
        sent = self._feeder.sent
        try:
            wait_until(lambda: self._watcher.count >= len(sent), "all words are counted", _PROGRESS_S_MAX)
        except TimeoutError as error:
            problems.append(f"{error}: {self._watcher.count} of {len(sent)}; {self._application.last_output()}")
        problems += self._application.stop()
        self._loaded.wait_in_sync()
        return [*problems, *self._check(sent)]

    def _wait_for_counts(self, since: float) -> None:
        def is_later() -> bool:
            self._application.check_running()
            return self._watcher.times[-1] > since

        try:
            wait_until(is_later, "committed counts", _PROGRESS_S_MAX)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._application.last_output()}") from None

    def _kill(self, role: str, number: str) -> None:
        since = time.monotonic()
        if role == "application":
            self._application.kill_and_start()
            victim = "the application"
            self._wait_for_counts(time.monotonic() + 0.1)
        else:
            broker_id = self._victim(role)
            victim = f"broker {broker_id}"
            self._loaded.brokers[broker_id].kill()
            self._wait_for_counts(time.monotonic() + 0.1)
            self._loaded.brokers[broker_id].launch()
            self._loaded.wait_in_sync()
        gap = self._watcher.longest_gap(since, time.monotonic())
        self.gaps.append(gap)
        self._report.say(f"kill {number}: {victim} ({role}), longest gap {gap:.2f} s, {self._watcher.count} counts")

    def _victim(self, role: str) -> int:
        if role == "group":
            return self._loaded.group_coordinator(APPLICATION)
        if role == "transaction":
            return self._loaded.transaction_coordinator(self._rng.choice(self._transactional_ids()))
        (topic,) = (each for each in self._loaded.metadata().topics if each.name == CHANGELOG)
        return int(self._rng.choice(topic.partitions).leader_id)

    def _transactional_ids(self) -> list[str]:
        """Return the transactional ids of the application, of which each thread has one."""
        found: set[str] = set()
        for number in self._loaded.brokers:
            states = self._loaded.ask_broker(number, ListTransactionsRequest(), 0).transaction_states
            found.update(each.transactional_id for each in states)
        return sorted(each for each in found if each.startswith(APPLICATION))

    def _check(self, sent: list[str]) -> list[str]:
        copies = self._read(COPIES)
        counts: dict[str, list[int]] = defaultdict(list)
        for key, value in self._read(COUNTS):
            counts[(key or b"").decode()].append(int(value or b"0"))
        state = {(key or b"").decode(): int.from_bytes(value or b"") for key, value in self._read(CHANGELOG)}
        problems = [
            *check_copies(sent, [(value or b"").decode() for _, value in copies]),
            *check_counts(sent, counts), *check_state(sent, state),
        ]  # fmt: skip
        self._report.figure(
            f"{len(sent)} records, {len(copies)} copies, {sum(map(len, counts.values()))} counts of {len(counts)} "
            f"words; {len(self._application.replaced_threads)} threads were replaced"
        )
        ends = {topic: self._ends(topic) for topic in (COPIES, COUNTS, REPARTITION)}
        problems += self._loaded.stop_brokers()
        for topic, high_watermarks in ends.items():
            problems += self._loaded.check_replicas(topic, high_watermarks)
        return problems

    def _ends(self, topic: str) -> dict[int, int]:
        with closing(Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends"})) as consumer:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=DEADLINE_S)[1]
                for number in range(PARTITIONS)
            }

    def _read(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return keys and values of the committed records. Raise TimeoutError if a transaction stays open."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "final", "isolation.level": "read_committed"}
        found: list[tuple[bytes | None, bytes | None]] = []
        ends = self._ends(topic)
        with closing(Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})) as consumer:
            consumer.assign([TopicPartition(topic, number, 0) for number in ends])
            deadline = time.monotonic() + DEADLINE_S
            while ends:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"committed records of {topic} end before the high watermarks {ends}")
                for message in consumer.consume(5000, 0.5):
                    number = message.partition() or 0
                    if message.error() is None:
                        found.append((message.key(), message.value()))
                    elif (message.offset() or 0) >= ends.get(number, 0):
                        ends.pop(number, None)
        return found


def run(report: Report, *, kills: int, seed: int, role: str, burst: int) -> None:
    if problem := fetch_jars("Kafka Streams", _STREAMS / "pom.xml", _JARS, _MARKER):
        raise CannotRun(problem)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-streams-") as directory,
        ClusterProcess.start() as cluster,
        Campaign(cluster, Path(directory), report, role=role, seed=seed, burst=burst) as campaign,
    ):
        report.problems_found(campaign.run(kills))
    report.figure(f"{len(campaign.gaps)} kills")
    if campaign.gaps:
        report.figure(f"longest gap between two commits: {percentiles(campaign.gaps)}")
