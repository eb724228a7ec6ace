"""Apache Kafka from Maven Central: one KRaft broker in a temporary directory, and its command-line tools.

The jars live in .bench/kafka (not in version control). `python -m benchmarks.kafka_server` fetches them;
`make bench` does so too. Without Java, Maven or a way to the jars, available() says what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.locking import locked
from benchmarks.maven import SCRATCH, fetch_jars
from benchmarks.processes import BrokerFailed, BrokerProcess, free_port, wait_until
from benchmarks.raw_client import RawClient

KAFKA_VERSION = "4.3.0"
JAVA_VERSION_MIN = 17
JARS = SCRATCH / "kafka"
START_SECONDS_MAX = 300.0
_MARKER = f"kafka_2.13-{KAFKA_VERSION}.jar"
_CLUSTER_ID = "T3R0bGFCZW5jaG1hcmtzMQ"

# What Kafka's own start script passes. Its garbage-collection log and JMX port are left out: they only cost.
_BROKER_JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
#: what Java itself has to say is no answer of a tool
_TOOL_JVM = ["-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-Xlog:all=warning:stderr"]

_LOGGING = """\
status = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
"""


def available() -> str | None:
    """None when Apache Kafka can be started here, else one line that says what is missing."""
    java = _java()
    if java is None:
        return "Apache Kafka needs Java, and no `java` was found (JAVA_HOME or PATH)"
    version = java_version()
    if version < JAVA_VERSION_MIN:
        return f"Apache Kafka {KAFKA_VERSION} needs Java {JAVA_VERSION_MIN} or newer, not Java {version}"
    if not (JARS / _MARKER).exists():
        return "Apache Kafka's jars are missing; fetch them with `python -m benchmarks.kafka_server`"
    return None


def fetch() -> str | None:
    """Brings the jars from Maven Central unless they are there; when it cannot, one line that says why."""
    return fetch_jars("Apache Kafka", Path(__file__).with_name("pom.xml"), JARS, _MARKER)


def _class_archive() -> Path:
    return JARS.with_name(f"kafka-tools-java{java_version()}.jsa")


@cache
def java_version() -> int:
    """The feature version of the Java in use, 0 when there is none."""
    java = _java()
    if java is None:
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


class ApacheKafka(BrokerProcess):
    """A single broker that is its own controller, with Kafka's defaults except for what one node must change.

    ```python
    kafka = ApacheKafka()
    try:
        kafka.start()
        kafka.run_tool("org.apache.kafka.tools.ConsoleProducer", ["--bootstrap-server", kafka.bootstrap, ...])
    finally:
        kafka.stop()
    ```
    """

    name = "kafka"

    def __init__(
        self,
        *,
        parent: Path | None = None,
        settings: dict[str, str] | None = None,
        node_id: int = 1,
        voters: dict[int, int] | None = None,
    ) -> None:
        """Settings are added to server.properties, or replace what is there.

        ``voters`` are the controller ports of all nodes of a cluster by node id, this one included.
        """
        reason = available()
        if reason is not None:
            raise BrokerFailed(reason)
        super().__init__(parent=parent)
        self._settings = settings or {}
        self._node_id = node_id
        self._voters = voters or {}
        # The tools want it too, and they also work while no broker runs.
        (self.directory / "log4j2.properties").write_text(_LOGGING)

    def start(self) -> None:
        """Returns once the broker answers requests."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            self.check_alive()
            try:
                with RawClient(self.port) as client:
                    client.request_metadata(None)
                return
            except OSError:
                wait_until(deadline, "starting Apache Kafka")

    def launch(self) -> None:
        self.prepare()
        command = [*self._java_command(_BROKER_JVM), "kafka.Kafka", str(self._properties)]
        self._spawn(command)

    def prepare(self) -> None:
        """Writes the properties and formats the storage, once; not part of what a start is measured by."""
        if self._properties.exists():
            return
        controller = f"127.0.0.1:{self._voters.get(self._node_id) or free_port()}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(self._node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_directory),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._settings,
        }
        if self._voters:
            voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in self._voters.items())
            lines["controller.quorum.voters"] = voters
        else:
            lines["controller.quorum.bootstrap.servers"] = lines["listeners"].rpartition("//")[2]
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        arguments = ["format", "--cluster-id", _CLUSTER_ID, "--config", str(self._properties)]
        if not self._voters:
            arguments.append("--standalone")
        done = self.run_tool("kafka.tools.StorageTool", arguments)
        if done.returncode != 0:
            self._properties.unlink()
            raise BrokerFailed(f"Apache Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")

    def run_tool(
        self, cls: str, args: Sequence[str], *, stdin: str | None = None, timeout: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command-line class of Apache Kafka to its end; the caller judges the return code."""
        archive = _class_archive()
        shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        command = [*self._java_command([*_TOOL_JVM, *shared]), cls, *args]
        return subprocess.run(command, input=stdin or "", capture_output=True, text=True, timeout=timeout)

    def archive_classes(self, cls: str, args: Sequence[str], *, timeout: float = 180.0) -> None:
        """Run a tool once and keep the classes it loads, unless some are kept: tools then start in half the time."""
        archive = _class_archive()
        with locked(archive):
            if archive.exists():
                return
            partial = archive.with_suffix(".partial")
            command = [*self._java_command([*_TOOL_JVM, f"-XX:ArchiveClassesAtExit={partial}"]), cls, *args]
            done = subprocess.run(command, input="", capture_output=True, text=True, timeout=timeout)
            # Without the archive everything works, so a Java that cannot write one is no problem.
            if done.returncode == 0 and partial.exists():
                partial.rename(archive)

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java_command(self, jvm: Sequence[str]) -> list[str]:
        java = _java()
        assert java is not None
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return [java, *jvm, logging, "-cp", str(JARS / "*")]


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


if __name__ == "__main__":
    problem = fetch() or available()
    if problem:
        sys.exit(problem)
    print(f"Apache Kafka {KAFKA_VERSION} is ready in .bench/kafka")
