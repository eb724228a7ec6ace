"""Scripts that were written for Kafka run unchanged with the scripts of `ottla kafka install`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.processes import free_port

from ottla.cli.kafka.install import install
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

#: the settings of Kafka's config/server.properties that matter to a client
_SERVER = """\
process.roles=broker,controller
node.id={node}
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
log.dirs=logs
num.partitions=1
offsets.topic.replication.factor=1
log.retention.hours=168
"""

_QUICK_START = """\
set -e
KAFKA_CLUSTER_ID="$(bin/kafka-storage.sh random-uuid)"
bin/kafka-storage.sh format --standalone -t $KAFKA_CLUSTER_ID -c config/server.properties
bin/kafka-server-start.sh -daemon config/server.properties
bin/kafka-topics.sh --create --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-topics.sh --describe --topic quickstart-events --bootstrap-server localhost:9092
printf 'This is my first event\\nThis is my second event\\n' |
  bin/kafka-console-producer.sh --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-console-consumer.sh --topic quickstart-events --from-beginning --bootstrap-server localhost:9092 \\
  --max-messages 2
bin/kafka-topics.sh --bootstrap-server localhost:9092 --create \\
    --topic streams-wordcount-output --config cleanup.policy=compact
bin/kafka-topics.sh --bootstrap-server localhost:9092 --describe
printf 'all:12345678\\n' |
  bin/kafka-console-producer.sh --bootstrap-server localhost:9092 --topic streams-wordcount-output \\
    --property parse.key=true --property key.separator=:
bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 \\
    --topic streams-wordcount-output \\
    --from-beginning --max-messages 1 \\
    --formatter-property print.key=true \\
    --formatter-property print.value=true \\
    --formatter-property key.deserializer=org.apache.kafka.common.serialization.StringDeserializer \\
    --formatter-property value.deserializer=org.apache.kafka.common.serialization.LongDeserializer
"""

_COURSE = """\
set -e
kafka-topics.sh --bootstrap-server localhost:9092 --list
kafka-topics.sh --bootstrap-server localhost:9092 --topic first_topic --create --partitions 3 \\
  --replication-factor 1
if kafka-topics.sh --bootstrap-server localhost:9092 --topic first_topic --create; then exit 1; fi
kafka-topics --bootstrap-server localhost:9092 --topic first_topic --describe | head -1 | cut -f1,3-
printf 'Hello World\\nMy name is Conduktor\\n' |
  kafka-console-producer.sh --bootstrap-server localhost:9092 --topic first_topic --producer-property acks=all
printf 'example key:example value\\nname:Stephane\\n' |
  kafka-console-producer --bootstrap-server localhost:9092 --topic first_topic --property parse.key=true \\
  --property key.separator=:
kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic first_topic --from-beginning --max-messages 4 | sort
kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic first_topic --group my-first-application \\
  --from-beginning --max-messages 4 --property print.key=true --property print.value=true | sort
kafka-consumer-groups.sh --bootstrap-server localhost:9092 --list | grep -v console-consumer-
kafka-consumer-groups.sh --bootstrap-server localhost:9092 --describe --group my-first-application |
  awk 'NF {print $2, $6}' | sort -u
kafka-consumer-groups.sh --bootstrap-server localhost:9092 --group my-first-application --reset-offsets --to-earliest \\
  --execute --topic first_topic | awk 'NF {print $2, $3, $4}'
kafka-configs.sh --bootstrap-server localhost:9092 --entity-type topics --entity-name first_topic --alter \\
  --add-config min.insync.replicas=1,retention.ms=100000
kafka-configs.sh --bootstrap-server localhost:9092 --entity-type topics --entity-name first_topic --describe | grep -c =
kafka-configs.sh --bootstrap-server localhost:9092 --entity-type topics --entity-name first_topic --alter \\
  --delete-config min.insync.replicas
kafka-get-offsets.sh --bootstrap-server localhost:9092 --topic first_topic | awk -F: '{sum += $3} END {print sum}'
kafka-run-class.sh kafka.tools.GetOffsetShell --bootstrap-server localhost:9092 --topic first_topic | wc -l
kafka-topics.sh --bootstrap-server localhost:9092 --topic first_topic --delete
kafka-topics.sh --bootstrap-server localhost:9092 --list --topic '__c.*'
"""
_COURSE_OUTPUT = """\

WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To avoid \
issues it is best to use either, but not both.
Created topic first_topic.
WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To avoid \
issues it is best to use either, but not both.
Error while executing topic command : topic 'first_topic' already exists
Topic: first_topic PartitionCount: 3 ReplicationFactor: 1 Configs:
Warning: --producer-property is deprecated and will be removed in a future version. Use --command-property instead.
Warning: --property is deprecated and will be removed in a future version. Use --reader-property instead.
Hello World
My name is Conduktor
Stephane
example value
Option --property is deprecated and will be removed in a future version. Use --formatter-property instead.
example key example value
name Stephane
null Hello World
null My name is Conduktor
my-first-application
TOPIC LAG
first_topic 0
TOPIC PARTITION NEW-OFFSET
first_topic 0 0
first_topic 1 0
first_topic 2 0
Completed updating config for topic first_topic.
2
Completed updating config for topic first_topic.
4
3
__consumer_offsets
"""


def _run(script: str, directory: Path, ports: dict[str, int]) -> str:
    """Run a script of the shell with Kafka's commands in bin and in PATH, and return its output."""
    install(directory / "bin")
    for port, used in ports.items():
        script = script.replace(f"localhost:{port}", f"localhost:{used}")
    path = os.pathsep.join([str(directory / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["sh", "-c", script], cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quick_start_of_kafka_runs(tmp_path: Path) -> None:
    ports = {"9092": free_port(), "9093": free_port()}
    (tmp_path / "config").mkdir()
    server = _SERVER.replace("{node}", str(ports["9092"]))
    for port, used in ports.items():
        server = server.replace(f"localhost:{port}", f"localhost:{used}")
    (tmp_path / "config" / "server.properties").write_text(server)
    try:
        said = _run(_QUICK_START, tmp_path, ports)
    finally:
        # The brokers of other people on this machine have other ids.
        _run(f"bin/kafka-server-stop.sh --node-id={ports['9092']}", tmp_path, ports)
    assert "Created topic quickstart-events.\n" in said
    assert "PartitionCount: 1\tReplicationFactor: 1" in said
    assert "This is my first event\nThis is my second event\n" in said
    assert "cleanup.policy=compact" in said
    assert "all\t3544952156018063160\n" in said


def test_commands_of_a_course_run(tmp_path: Path) -> None:
    with BrokerProcess.start() as broker:
        said = _run(_COURSE, tmp_path, {"9092": int(broker.bootstrap.rpartition(":")[2])})
    lines = said.replace("\t", " ").splitlines()
    assert [line.rstrip() for line in lines] == _COURSE_OUTPUT.splitlines()
