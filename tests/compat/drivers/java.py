"""Apache Kafka's own command-line tools, with the Java clients inside."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from drivers import CODECS, Received, Record

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
CLUSTER_ID = "org.apache.kafka.tools.ClusterTool cluster-id"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
LATENCY = "org.apache.kafka.tools.EndToEndLatency"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
OFFSETS_FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS_FORMATTER = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"

RunTool = Callable[..., subprocess.CompletedProcess[str]]

#: what stands for null, and what stands between things; no record of the tests has them
_NULL, _FIELD, _LINE, _PAIR, _COLON = "<null>", "<|>", "<;>\n", "<,>", "<:>"


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
        """Several calls that do not depend on each other; a tool spends its time starting up."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: self.run(*call), calls))

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
