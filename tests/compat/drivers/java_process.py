"""Apache Kafka's command-line tools in one JVM: the first call takes two seconds, each further one milliseconds."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks import kafka_server

_SOURCE = Path(__file__).resolve().parent.parent / "java" / "Tools.java"
_JVM = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
REPLICA_VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"


def missing() -> str | None:
    """Return one line that says what is missing, None if the tools can be run."""
    problem = kafka_server.fetch() or kafka_server.available()
    if problem is None and _command("javac") is None:
        problem = "the tools in one JVM need a JDK: javac is not installed"
    return problem


def _command(name: str) -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    return shutil.which(name)


def command() -> list[str]:
    """Return the command that runs a class of Apache Kafka; the class and its arguments follow."""
    java = _command("java")
    assert java is not None
    return [java, *_JVM, "-cp", str(kafka_server.JARS / "*")]


class JavaProcess:
    def __init__(self, bootstrap: str, properties: Mapping[str, str] | None = None) -> None:
        """``properties`` are those of the JVM."""
        self._bootstrap = bootstrap
        options = [f"-D{name}={value}" for name, value in (properties or {}).items()]
        java, *rest = command()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [java, *options, *rest, str(_SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def at(self, bootstrap: str) -> Self:
        """Use another broker from now on."""
        self._bootstrap = bootstrap
        return self

    def run(self, tool: str, *arguments: str, fails: bool = False) -> str:
        """Return what the tool printed. It must succeed, or fail if that is expected.

        The first word of the arguments is a command if it does not begin with a dash.
        """
        verb = list(arguments[:1]) if arguments and not arguments[0].startswith("-") else []
        # One tool takes the address after the command, the others before it.
        address = ["--bootstrap-server", self._bootstrap]
        words = [*verb, *address] if tool == CLUSTER else [*address, *verb]
        done = self.call(tool, [*words, *arguments[len(verb) :]])
        text = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{tool} {' '.join(arguments)} ended with {done.returncode}:\n{text}"
        return text

    def call(self, tool: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; the caller judges the return code. Threads take turns."""
        call = [tool, *arguments]
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write("\t".join(base64.b64encode(word.encode()).decode() for word in call) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, f"the JVM ended: {self._errors()}"
        status, *printed = line.rstrip("\n").split("\t")
        output, errors = (base64.b64decode(each).decode() for each in printed)
        return subprocess.CompletedProcess(call, int(status), output, errors)

    def start(self, tool: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a tool that does not end by itself, in a JVM of its own."""
        return subprocess.Popen(
            [*command(), tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
