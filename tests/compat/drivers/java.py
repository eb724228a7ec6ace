"""Apache Kafka's own command-line tools, with the Java clients inside."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from drivers import CODECS, Received, Record, java_process
from drivers.confluent import Confluent
from ottla.model.hashing import java_hash

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
ACLS = "org.apache.kafka.tools.AclCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER_ID = f"{java_process.CLUSTER} cluster-id"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
LATENCY = "org.apache.kafka.tools.EndToEndLatency"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
OFFSETS_FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS_FORMATTER = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"

RunTool = Callable[..., subprocess.CompletedProcess[str]]

#: tools that read no input, end by themselves and leave no threads: one JVM runs them one after the other
_SHARED = frozenset({
    TOPICS, CONFIGS, DELETE_RECORDS, OFFSETS, ACLS, LOG_DIRS, API_VERSIONS, FEATURES, DUMP_LOG, CONSUMER_GROUPS, GROUPS,
    CONSUMER, LATENCY, PERFORMANCE, java_process.CLUSTER, java_process.TRANSACTIONS,
})  # fmt: skip

#: what stands for null, and what stands between things; no record of the tests has them
_NULL, _FIELD, _LINE, _PAIR, _COLON = "<null>", "<|>", "<;>\n", "<,>", "<:>"


class ToolRunner:
    """Runs tools: most in one JVM, which the first of them starts, others each in its own.

    The start of a JVM costs a second of a core, and there are some sixty calls.
    """

    def __init__(self, run_alone: RunTool) -> None:
        self._run_alone = run_alone
        self._lock = threading.Lock()
        self._shared: java_process.JavaProcess | None = None

    def run(self, tool: str, arguments: Sequence[str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; the caller judges the return code."""
        # A Java without a compiler cannot start what reads the calls.
        if tool not in _SHARED or java_process.missing() is not None:
            return self._run_alone(tool, arguments, stdin=stdin)
        assert not stdin, f"{tool} reads no input"
        with self._lock:
            self._shared = self._shared or java_process.JavaProcess("")
        return self._shared.call(tool, arguments)

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()


class JavaTools:
    """The tools, and the console pair as a client for topics with one partition."""

    name = "java"
    codecs = CODECS

    def __init__(self, bootstrap: str, run_tool: RunTool) -> None:
        self._bootstrap = bootstrap
        self.run_tool = run_tool

    def at(self, bootstrap: str) -> JavaTools:
        """The same, with another broker."""
        return JavaTools(bootstrap, self.run_tool)

    def run(self, tool: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """What the tool says of this broker; it must succeed, or fail when that is expected."""
        command, _, verb = tool.partition(" ")
        options = [*([verb] if verb else []), "--bootstrap-server", self._bootstrap, *arguments]
        done = self.run_tool(command, options, stdin=stdin)
        text = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{tool} ended with {done.returncode}:\n{text}"
        # A consumer that times out ends as one that has read everything: the reason is here.
        print(f"{tool} {' '.join(arguments)}\n{done.stderr}")
        return text if fails else done.stdout

    def run_all(self, *calls: Sequence[str]) -> list[str]:
        """Several calls that do not depend on each other; a tool with its own JVM spends its time starting up."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self.run(*call), calls))

    def read_state(self, topic: str, name: str, formatter: str) -> str:
        """What a formatter makes of the partition of an internal topic that has the state of this group or producer.

        It ends at the last record, so that nobody waits in order to see that there is no other.
        """
        client = Confluent(self._bootstrap)
        partition = (java_hash(name) & 0x7FFFFFFF) % len(client.partition_leaders(topic))
        _, end = client.watermarks(topic, partition)
        return self.run(
            CONSUMER, "--topic", topic, "--partition", str(partition), "--offset", "earliest", "--formatter", formatter,
            "--max-messages", str(end), "--timeout-ms", "8000",
        )  # fmt: skip

    # -- records --------------------------------------------------------------------------------------------------

    def expresses(self, record: Record) -> Record:
        return record.without_timestamp()

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = True,
    ) -> None:  # fmt: skip
        assert partition == 0, "the console producer does not choose a partition"
        properties = {
            "parse.key": "true", "parse.headers": "true", "headers.delimiter": _FIELD, "headers.separator": _PAIR,
            "headers.key.separator": _COLON, "key.separator": _FIELD, "null.marker": _NULL,
        }  # fmt: skip
        options = ["--topic", topic, "--compression-codec", codec, "--request-required-acks", str(acks)]
        options += ["--command-property", f"enable.idempotence={str(idempotent).lower()}"]
        for name, value in properties.items():
            options += ["--reader-property", f"{name}={value}"]
        self.run(PRODUCER, *options, stdin="".join(map(_line, records)))

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        properties = {
            "print.timestamp": "true", "print.offset": "true", "print.headers": "true", "print.key": "true",
            "key.separator": _FIELD, "headers.separator": _PAIR, "line.separator": _LINE, "null.literal": _NULL,
        }  # fmt: skip
        options = ["--topic", topic, "--partition", str(partition), "--offset", str(offset)]
        options += ["--max-messages", str(count), "--timeout-ms", "60000"]
        for name, value in properties.items():
            options += ["--formatter-property", f"{name}={value}"]
        return [_received(line) for line in self.run(CONSUMER, *options).split(_LINE) if line]


def _line(record: Record) -> str:
    headers = _PAIR.join(f"{name}{_COLON}{_text(value)}" for name, value in record.headers)
    return _FIELD.join([headers or _NULL, _text(record.key), _text(record.value)]) + "\n"


def _received(line: str) -> Received:
    stamp, offset, pairs, key, value = line.split(_FIELD)
    kind, _, timestamp_ms = stamp.partition(":")
    headers = [] if pairs == "NO_HEADERS" else [pair.partition(":") for pair in pairs.split(_PAIR)]
    record = Record(
        value=_data(value),
        key=_data(key),
        headers=tuple((name, _data(text)) for name, _, text in headers),
        timestamp_ms=int(timestamp_ms),
    )
    return Received(offset=int(offset.removeprefix("Offset:")), record=record, append_time=kind == "LogAppendTime")


def _text(data: bytes | None) -> str:
    return _NULL if data is None else data.decode()


def _data(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()
