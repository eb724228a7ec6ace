"""Clients of others write and read while brokers of a cluster are killed.

    make campaign NAME=client-failover SECONDS=30 CLIENT=sarama,java

Each client runs alone: a producer with acks=all to a topic with three partitions and three replicas, and a member of a
group that reads it. The leader of a partition is killed with SIGKILL and started again, then the coordinator of the
group. Every acknowledged record must be read by the member, and no record may be refused. Errors of lost connections,
which sarama and kafkajs report, are printed. The report has the longest time without an acknowledgement, and without a
record. The clients that end with -848 are members by the consumer protocol of KIP-848.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from drivers import golang, java_process, kafkajs

from campaign.cluster import ClusterState
from campaign.processes import wait_until
from campaign.report import CannotRun, Report
from ottla.testing import ClusterProcess

_HERE = Path(__file__).resolve().parent
_BENCH = _HERE.parents[1] / ".bench"
_PARTITIONS = 3
_WARM_UP_RECORDS = 200
_SHOWN_ERRORS = 3

PYTHON = ("confluent", "confluent-848", "kafka-python", "aiokafka")
CLIENTS = (*PYTHON, "sarama", "franz-go", "kafkajs", "java", "java-848")
_JAVA_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
_JAVA_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


class Events:
    """What the processes of a client print."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, None] = {}
        self.read: Counter[str] = Counter()
        self.errors: list[str] = []
        self.other: list[str] = []
        self.is_stopped = False
        self.last = dict.fromkeys("AR", time.monotonic())
        self.gaps = dict.fromkeys("AR", 0.0)

    def follow(self, lines: Iterable[str]) -> None:
        for line in lines:
            kind, text = _event_of_java(line) if line.startswith("{") else line.rstrip("\n").split(" ", 1)
            if kind in self.last:
                now = time.monotonic()
                self.gaps[kind], self.last[kind] = max(self.gaps[kind], now - self.last[kind]), now
            if kind == "A":
                self.acknowledged[text] = None
            elif kind == "R":
                self.read[text] += 1
            elif kind == "E":
                self.errors.append(text)
            elif kind == "S":
                self.is_stopped = True
            else:
                self.other.append(line)


def _event_of_java(line: str) -> tuple[str, str]:
    event: dict[str, Any] = json.loads(line)
    name = event["name"]
    if name == "producer_send_success":
        return "A", event["value"]
    if name == "record_data":
        return "R", event["value"]
    if name == "producer_send_error" or (name == "offsets_committed" and not event["success"]):
        return "E", json.dumps(event)
    return ("S", "stopped") if name == "tool_data" else ("-", name)


class Client:
    """The processes of a client: one with a producer and a consumer, or one for each."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> None:
        self.events = Events()
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment,
            )
            for command in commands
        ]  # fmt: skip
        for process in self._processes:
            assert process.stdout is not None and process.stderr is not None
            threading.Thread(target=self.events.follow, args=[process.stdout], daemon=True).start()
            threading.Thread(target=self._follow_log, args=[process.stderr], daemon=True).start()

    def _follow_log(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.events.other.append(line)

    @property
    def is_running(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def stop_writing(self) -> None:
        if len(self._processes) > 1:
            self._processes[0].terminate()
        else:
            self._write("stop\n")

    def _write(self, text: str) -> None:
        stdin = self._processes[0].stdin
        assert stdin is not None
        stdin.write(text)
        stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def start_client(name: str, bootstrap: str, topic: str, scratch: Path) -> Client | str:
    """Start a client. Return one line that says why it cannot be started."""
    place = [bootstrap, topic, f"{topic}-group"]
    if name in PYTHON:
        return Client([[sys.executable, str(_HERE / "failover_client.py"), name, *place]])
    if name in ("sarama", "franz-go"):
        source, command = {"sarama": ("sarama", "sarama"), "franz-go": ("go", "franz")}[name]
        built = _BENCH / "go" / command
        return golang.build(source, built) or Client([[str(built), "failover", *place]])
    if name == "kafkajs":
        problem = kafkajs.install(_BENCH / "node")
        modules = {"NODE_PATH": str(_BENCH / "node" / "node_modules"), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        return problem or Client([["node", str(_HERE / "node" / "failover.js"), *place]], modules)
    problem = java_process.missing()
    if problem is not None:
        return problem
    settings = scratch / "producer.properties"
    # The tool does not retry by default.
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    writes = ["--throughput", "200", "--acks", "-1", "--command-config", str(settings)]
    reads = ["--group-id", place[2], "--reset-policy", "earliest", "--verbose"]
    reads += ["--group-protocol", "consumer"] if name == "java-848" else []
    return Client(
        [
            [*java_process.command(), _JAVA_PRODUCER, *where, *writes],
            [*java_process.command(), _JAVA_CONSUMER, *where, *reads],
        ]
    )


class Run:
    """One client, and the brokers that it loses."""

    def __init__(self, state: ClusterState, client: Client, topic: str) -> None:
        self.state, self.client, self.topic = state, client, topic
        #: longest time between two acknowledgements (A) and between two records (R) while brokers were killed
        self.gaps: dict[str, float] = {}

    def kill(self, victim: int) -> None:
        """Kill a broker. Start it again when further records were acknowledged and read."""
        events = self.client.events
        self.state.brokers[victim].kill()
        # Records that were in flight may still be reported, so more than a few are awaited.
        written, read = len(events.acknowledged), len(events.read)
        self._wait(lambda: len(events.acknowledged) > written + 50 and len(events.read) > read + 50, "more records")
        self.state.brokers[victim].launch()
        self.state.wait_in_sync()

    def run(self, seconds: float) -> None:
        events = self.client.events
        self._wait(lambda: len(events.read) >= _WARM_UP_RECORDS, "the first records")
        events.gaps = dict.fromkeys("AR", 0.0)
        started = time.monotonic()
        self.kill(self.state.leader(topic=self.topic))
        self.kill(self.state.group_coordinator(f"{self.topic}-group"))
        time.sleep(max(0.0, started + seconds - time.monotonic()))
        self.gaps = dict(events.gaps)
        self.client.stop_writing()
        self._wait(lambda: events.is_stopped, "the end of the producer")
        self._wait(lambda: events.acknowledged.keys() <= events.read.keys(), "all acknowledged records")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_over() -> bool:
            assert self.client.is_running or self.client.events.is_stopped, f"the client ended: {self._progress()}"
            return condition()

        wait_until(is_over, lambda: f"{what}; {self._progress()}")

    def _progress(self) -> str:
        events = self.client.events
        missing = [value for value in events.acknowledged if value not in events.read]
        return (
            f"{len(events.acknowledged)} acknowledged, {len(events.read)} read, not read {missing[:5]}, "
            f"errors {events.errors[:_SHOWN_ERRORS]}, other {events.other[-5:]}"
        )


def run_client(cluster: ClusterProcess, name: str, seconds: float, scratch: Path, report: Report) -> bool:
    """Run one client and report about it. Return whether it could be started."""
    state = ClusterState(cluster)
    topic = f"failover-{name}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 3)])[topic].result(60)
    state.wait_in_sync()
    client = start_client(name, cluster.bootstrap, topic, scratch)
    if isinstance(client, str):
        report.say(f"{name}: skipped, {client}")
        return False
    run = Run(state, client, topic)
    try:
        run.run(seconds)
    except (AssertionError, TimeoutError) as failed:
        report.problem(f"{name}: {failed}")
        return True
    finally:
        client.end()
        for broker in cluster.brokers.values():
            if not broker.running:
                broker.launch()
    events = client.events
    report.say(
        f"{name}: {len(events.acknowledged)} acknowledged, {sum(events.read.values()) - len(events.read)} read twice, "
        f"longest gap {run.gaps['A']:.1f} s between acknowledgements, {run.gaps['R']:.1f} s between records, "
        f"{len(events.errors)} errors {sorted(set(events.errors))[:_SHOWN_ERRORS]}"
    )
    fatal = [error for error in events.errors if error.startswith(("produce:", "consumer ends:"))]
    if fatal:
        report.problem(f"{name}: the application saw {fatal[:_SHOWN_ERRORS]}")
    return True


def run(report: Report, *, seconds: float, client: str) -> None:
    names = client.split(",") if client else CLIENTS
    if unknown := set(names) - set(CLIENTS):
        raise CannotRun(f"there is no client {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    started = 0
    with tempfile.TemporaryDirectory() as scratch, ClusterProcess.start() as cluster:
        for number, name in enumerate(names):
            report.progress(number, len(names), "clients")
            started += run_client(cluster, name, seconds, Path(scratch), report)
    report.figure(f"{started} of {len(names)} clients ran, with two kills each")
