"""Campaign `kafka-courses`: scripts as courses and Kafka's quick start have them, with the commands of Ottla.

`course_scripts/*.sh` run in a directory that looks like that of Kafka: `bin` has the scripts of `ottla kafka install`,
`config` the files that Kafka brings. Only ports, ids of brokers and directories are replaced, so that a script disturbs
no other broker of the machine. A script must end with exit code 0, and its output must have certain lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from campaign.report import Report
from ottla.cli.kafka import processes
from ottla.cli.kafka.install import install
from ottla.testing.process import reserve_port

_SCRIPTS = Path(__file__).with_name("course_scripts")
_SCRIPT_S_MAX = 300.0
_STOP_S_MAX = 30.0
_POLL_S = 0.1
#: ids of brokers; those of the scripts are replaced
_IDS = {"0": "70210", "1": "70211", "2": "70212"}
_PORTS = ("2181", "9092", "9093", "9094")

#: the files that Kafka brings, without comments
_SERVER_PROPERTIES = """\
broker.id=0
#listeners=PLAINTEXT://:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
#: that of Kafka 4
_KRAFT_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
_ZOOKEEPER_PROPERTIES = """\
dataDir=/tmp/zookeeper
clientPort=2181
maxClientCnxns=0
admin.enableServer=false
"""
#: lines that the output of a script must have, as regular expressions
_EXPECTED = {
    "quickstart": [
        r"Created topic quickstart-events\.",
        r"Topic: quickstart-events\tTopicId: \S+\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: .*",
        r"\tTopic: quickstart-events\tPartition: 0\tLeader: 70210\tReplicas: 70210\tIsr: 70210.*",
        r"This is my first event",
        r"This is my second event",
        r"\[70210\]",
    ],
    "quickstart_kraft": [
        r"Formatting dynamic metadata voter directory \S+ with metadata\.version 4\.3-IV0\.",
        r"\tTopic: quickstart-events\tPartition: 0\tLeader: 70211\tReplicas: 70211\tIsr: 70211.*",
        r"This is my second event",
        r"Cluster ID: \S{22}",
    ],
    "three_brokers": [
        r"Topic: my-replicated-topic\tTopicId: \S+\tPartitionCount: 1\tReplicationFactor: 3\tConfigs: .*",
        r"my test message 1",
        r"null\tmy test message 2",
        r"readers +my-replicated-topic 0 +2 +2 +0 .*",
        r".*retention\.ms=600000 sensitive=false.*",
        r"my-replicated-topic:0:2",
        r"Successfully started partition reassignment for my-replicated-topic-0",
        r"Reassignment of partition my-replicated-topic-0 is completed\.",
        r"\tTopic: my-replicated-topic\tPartition: 0\tLeader: 70211\t.*",
        r"1000 records sent, .*",
    ],
}


def run(report: Report, *, only: str) -> None:
    """Run the scripts whose name begins with `only`."""
    for path in sorted(_SCRIPTS.glob(f"{only}*.sh")):
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            found = _run(path, Path(directory), stack)
        if found.returncode != 0:
            tail = "\n".join(found.stderr.splitlines()[-5:])
            report.problem(f"{path.name} ended with {found.returncode}:\n{tail}\n{found.stdout[-500:]}")
        for pattern in _EXPECTED[path.stem]:
            if not re.search(f"^{pattern}$", found.stdout, re.M):
                report.problem(f"{path.name}: no line of the output is {pattern!r}")
        calls = sum(line.startswith("+ bin/") for line in found.stderr.splitlines())
        report.figure(f"{path.name}: {calls} commands in {time.monotonic() - since:.1f} s")


def _run(path: Path, directory: Path, stack: ExitStack) -> subprocess.CompletedProcess[str]:
    install(directory / "bin")
    (directory / "config").mkdir()
    replaced = _replacements(directory)
    # The listener that Kafka's file leaves out is on a port that others may use.
    server = f"{_SERVER_PROPERTIES}\nlisteners=PLAINTEXT://:9092\n"
    server = _KRAFT_PROPERTIES if path.stem.endswith("_kraft") else server
    for name, text in (("server", server), ("zookeeper", _ZOOKEEPER_PROPERTIES)):
        (directory / "config" / f"{name}.properties").write_text(_replace(text, replaced))
    script = directory / path.name
    script.write_text(_replace(path.read_text(), replaced))
    stack.callback(_end_servers, directory)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LOG_DIR": str(directory / "logs")}
    return subprocess.run(
        ["bash", str(script)], cwd=directory, env=environment, capture_output=True, text=True, timeout=_SCRIPT_S_MAX,
        check=False,
    )  # fmt: skip


def _replacements(directory: Path) -> list[tuple[str, str]]:
    """Return what stands for the ports, ids and directories of the scripts, as regular expressions and texts."""
    sockets = [reserve_port() for _ in _PORTS]
    ports = dict(zip(_PORTS, (str(each.getsockname()[1]) for each in sockets), strict=True))
    for each in sockets:
        each.close()
    rules = [(rf"\b{port}\b", found) for port, found in ports.items()]
    rules.append((r"/tmp/", f"{directory}/"))
    for number, found in _IDS.items():
        rules.append((rf"(broker\.id=|node\.id=|--node-id=|Leader: ){number}\b", rf"\g<1>{found}"))
    return [
        *rules,
        (r"\[2, 1\]", f"[{_IDS['2']}, {_IDS['1']}]"),
        (r"--broker-list 0,1,2", f"--broker-list {','.join(_IDS.values())}"),
        # The copies of server.properties, whose ids and ports are computed.
        (r"broker\.id=\$n", "broker.id=$((70210 + n))"),
        (r"--node-id=\$n", "--node-id=$((70210 + n))"),
        (rf"\$\(\({ports['9092']} \+ n\)\)", f"$([ $n = 1 ] && echo {ports['9093']} || echo {ports['9094']})"),
        (r"#listeners=PLAINTEXT", "listeners=PLAINTEXT"),
    ]


def _replace(text: str, rules: list[tuple[str, str]]) -> str:
    for pattern, found in rules:
        text = re.sub(pattern, found, text)
    return text


def _end_servers(directory: Path) -> None:
    """End the servers that run in this directory, and no others."""
    deadline = time.monotonic() + _STOP_S_MAX
    while True:
        own = [
            each
            for command in ("kafka-server-start", "zookeeper-server-start")
            for each in processes.running(command)
            if each.directory == str(directory)
        ]
        if not own:
            return
        with suppress(ProcessLookupError):
            for each in own:
                os.kill(each.pid, 9 if time.monotonic() > deadline else 15)
        time.sleep(_POLL_S)
