"""Campaign `kafka-commands`: the output of Java's tools and of Ottla's, line by line, on clusters of the same kind.

Each scenario runs twice, on a new broker or cluster of Ottla each time: with the tools of Apache Kafka, and with the
scripts that `ottla kafka install` writes. Exit codes and standard output must be the same, apart from ids, times and
ports. At the end it measures how long both need to start. WRITE=1 records the output of Java's tools for `make test`.
"""

from __future__ import annotations

import difflib
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.kafka_server import _LOGGING
from drivers import java_process
from drivers.java import _SHARED
from tool_scenarios import CLUSTER, OUTPUTS, SECURE, SINGLE, Answer, Place, Runner, Scenario, all_scenarios, play

from campaign.report import CannotRun, Report
from ottla.cli.kafka.commands import COMMANDS
from ottla.cli.kafka.install import install
from ottla.testing import BrokerProcess, ClusterProcess

_TOOLS = "org.apache.kafka.tools."
#: the class of each command of Java, as the scripts of Kafka name it
CLASSES = {
    "kafka-acls": _TOOLS + "AclCommand",
    "kafka-broker-api-versions": _TOOLS + "BrokerApiVersionsCommand",
    "kafka-client-metrics": _TOOLS + "ClientMetricsCommand",
    "kafka-cluster": _TOOLS + "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": _TOOLS + "consumer.ConsoleConsumer",
    "kafka-console-producer": _TOOLS + "ConsoleProducer",
    "kafka-consumer-groups": _TOOLS + "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": _TOOLS + "ConsumerPerformance",
    "kafka-delegation-tokens": _TOOLS + "DelegationTokenCommand",
    "kafka-delete-records": _TOOLS + "DeleteRecordsCommand",
    "kafka-dump-log": _TOOLS + "DumpLogSegments",
    "kafka-e2e-latency": _TOOLS + "EndToEndLatency",
    "kafka-features": _TOOLS + "FeatureCommand",
    "kafka-get-offsets": _TOOLS + "GetOffsetShell",
    "kafka-groups": _TOOLS + "GroupsCommand",
    "kafka-leader-election": _TOOLS + "LeaderElectionCommand",
    "kafka-log-dirs": _TOOLS + "LogDirsCommand",
    "kafka-metadata-quorum": _TOOLS + "MetadataQuorumCommand",
    "kafka-producer-perf-test": _TOOLS + "ProducerPerformance",
    "kafka-reassign-partitions": _TOOLS + "reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": _TOOLS + "ReplicaVerificationTool",
    "kafka-share-groups": _TOOLS + "consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": _TOOLS + "StreamsResetter",
    "kafka-streams-groups": _TOOLS + "streams.StreamsGroupCommand",
    "kafka-topics": _TOOLS + "TopicCommand",
    "kafka-transactions": _TOOLS + "TransactionsCommand",
    "kafka-verifiable-consumer": _TOOLS + "VerifiableConsumer",
    "kafka-verifiable-producer": _TOOLS + "VerifiableProducer",
}
_TOOL_S_MAX = 180.0
_STARTS = 7
#: a flag at the start of a line of a help
_FLAG = re.compile(r"(?m)^ *(?:\* )?(?:-\w[^-\n]*, *)?--([a-z][\w.-]*\w)(?=[ ,\n])")
_JVM = (
    "-Xmx256M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
)  # fmt: skip
_AUTHORIZER = "acl"


class JavaTools:
    """Java's tools: one JVM for those that can share it, one for each call of the others."""

    def __init__(self, directory: Path) -> None:
        logging = directory / "log4j2.properties"
        # As the scripts of Kafka do: messages of the logger go to standard error.
        logging.write_text(_LOGGING)
        self._logging = {"log4j2.configurationFile": str(logging)}
        self._shared: java_process.JavaProcess | None = None

    def __call__(self, command: str, words: Sequence[str], stdin: str) -> Answer:
        name = CLASSES[command]
        # For wrong flags the parser of this one ends the JVM.
        if (
            command != "kafka-cluster"
            and name in (*_SHARED, java_process.REASSIGN, java_process.ELECTION)
            and not stdin
        ):
            self._shared = self._shared or java_process.JavaProcess("", self._logging)
            done = self._shared.call(name, words)
            return Answer(done.returncode, done.stdout, done.stderr)
        return self.alone(command, words, stdin)

    def alone(self, command: str, words: Sequence[str], stdin: str = "") -> Answer:
        """Run a tool in a JVM of its own."""
        java, *options = java_process.command()
        properties = [f"-D{key}={value}" for key, value in self._logging.items()]
        return _run([java, *properties, *options, CLASSES[command], *words], stdin)

    def started(self, command: str, words: Sequence[str]) -> Answer:
        """Run a tool with the options that Kafka's scripts give to its JVM, without these scripts."""
        java = java_process.command()
        properties = [f"-D{key}={value}" for key, value in self._logging.items()]
        return _run([java[0], *_JVM, *properties, *java[-2:], CLASSES[command], *words], "")

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()


class OttlaTools:
    """The scripts of `ottla kafka install`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        install(directory)

    def __call__(self, command: str, words: Sequence[str], stdin: str) -> Answer:
        return _run([str(self.directory / command), *words], stdin)

    def started(self, command: str, words: Sequence[str]) -> Answer:
        """Run a tool with the compiled modules that `pip install` writes."""
        cache = self.directory.with_name("compiled")
        return _run(
            [str(self.directory / command), *words], "", PYTHONPYCACHEPREFIX=str(cache), PYTHONDONTWRITEBYTECODE=""
        )


def _run(command: Sequence[str], stdin: str, **variables: str) -> Answer:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=_TOOL_S_MAX, env=environment, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def run(report: Report, *, only: str, write: bool) -> None:
    """Compare all scenarios whose name begins with `only`."""
    problem = java_process.missing()
    if problem is not None:
        raise CannotRun(problem)
    chosen = [each for each in all_scenarios().values() if each.name.startswith(only)]
    with tempfile.TemporaryDirectory() as directory:
        java, ottla = JavaTools(Path(directory)), OttlaTools(Path(directory) / "bin")
        try:
            _compare(report, chosen, java, ottla, write=write)
            if only in ("", "flags"):
                _compare_flags(report, java, ottla)
            if only in ("", "start"):
                _measure_starts(report, java, ottla)
        finally:
            java.close()


def _compare(report: Report, chosen: Sequence[Scenario], java: JavaTools, ottla: OttlaTools, *, write: bool) -> None:
    steps = different = 0
    for stage in (SINGLE, CLUSTER, SECURE):
        scenarios = [each for each in chosen if each.stage == stage]
        if not scenarios:
            continue
        expected, found = (_transcripts(report, stage, scenarios, runner) for runner in (java, ottla))
        for each in scenarios:
            steps += len(expected[each.name])
            # `make test` runs no slow ones.
            if write and not each.is_slow:
                (OUTPUTS / f"{each.name}.txt").write_text("\n".join(expected[each.name]))
            for theirs, ours in zip(expected[each.name], found[each.name], strict=True):
                if theirs != ours:
                    different += 1
                    lines = difflib.unified_diff(
                        theirs.splitlines(), ours.splitlines(), "java", "ottla", n=1, lineterm=""
                    )
                    report.problem("\n".join([f"{each.name}: {theirs.splitlines()[0]}", *lines]))
    report.figure(f"{steps - different} of {steps} calls of {len(chosen)} scenarios have the same output")


def _transcripts(report: Report, stage: str, scenarios: Sequence[Scenario], runner: Runner) -> dict[str, list[str]]:
    found = {}
    rooms = [[each] for each in scenarios if each.is_alone]
    rooms.append([each for each in scenarios if not each.is_alone])
    for room in filter(None, rooms):
        with _STAGES[stage]() as (server, directory):
            for each in room:
                report.progress(len(found), len(scenarios), f"scenarios of {type(runner).__name__} on {stage}")
                found[each.name] = play(each, Place(server, directory), runner)
    return found


@contextmanager
def _single() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as directory, BrokerProcess.start() as broker:
        yield broker.bootstrap, Path(directory)


@contextmanager
def _cluster() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as directory, ClusterProcess.start(3) as cluster:
        yield cluster.bootstrap, Path(directory)


@contextmanager
def _secure() -> Iterator[tuple[str, Path]]:
    settings = {"authorizer.class.name": _AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with tempfile.TemporaryDirectory() as directory, BrokerProcess.start(settings=settings) as broker:
        yield broker.bootstrap, Path(directory)


_STAGES: dict[str, Callable[[], AbstractContextManager[tuple[str, Path]]]] = {
    SINGLE: _single,
    CLUSTER: _cluster,
    SECURE: _secure,
}


def _compare_flags(report: Report, java: JavaTools, ottla: OttlaTools) -> None:
    """Compare the flags that the help of each command lists, and the exit code of --help and of --version."""
    # Java's takes a single argument for an address, also --help.
    commands = sorted(CLASSES.keys() & COMMANDS.keys() - {"kafka-e2e-latency"})
    count = 0
    for number, command in enumerate(commands):
        report.progress(number, len(commands), "commands")
        (theirs, their_codes), (ours, our_codes) = (_flags(runner, command) for runner in (java, ottla))
        count += len(theirs & ours)
        if theirs != ours:
            report.problem(
                f"{command}: only Java's has {sorted(theirs - ours)}, only Ottla's has {sorted(ours - theirs)}"
            )
        if their_codes != our_codes:
            report.problem(f"{command}: --help and --version end with {our_codes}, Java's with {their_codes}")
    report.figure(f"{count} flags of {len(commands)} commands are listed by both")


def _flags(runner: Runner, command: str) -> tuple[set[str], list[int]]:
    answers = [runner(command, [word], "") for word in ("--help", "--version")]
    text = answers[0].stdout + answers[0].stderr
    return set(_FLAG.findall(text)), [answer.code for answer in answers]


def _measure_starts(report: Report, java: JavaTools, ottla: OttlaTools) -> None:
    """Measure `kafka-topics --list`, from the start of the process to its end, and the time of the processor."""
    with BrokerProcess.start() as broker:
        words = ["--bootstrap-server", broker.bootstrap, "--list"]
        theirs = _median(lambda: java.started("kafka-topics", words))
        ours = _median(lambda: ottla.started("kafka-topics", words))
    for name, one, other in zip(("time", "processor time"), ours, theirs, strict=True):
        report.figure(
            f"{name} of kafka-topics --list: {one:.3f} s, Java's {other:.3f} s, {other / one:.1f} times as long"
        )


def _median(call: Callable[[], Answer]) -> tuple[float, float]:
    """Return the median of the times, and of the processor times, of some calls; the first one fills caches."""
    assert call().code == 0
    times, processor = [], []
    for _ in range(_STARTS):
        since, used = time.monotonic(), _processor_s()
        assert call().code == 0
        times.append(time.monotonic() - since)
        processor.append(_processor_s() - used)
    return statistics.median(times), statistics.median(processor)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
