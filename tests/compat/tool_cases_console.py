"""Scenarios of kafka-console-producer and kafka-console-consumer."""

from __future__ import annotations

from tool_actions import records
from tool_scenarios import Do, Scenario, Step, file


def _produce(topic: str, arguments: str, stdin: str) -> Step:
    return Step("kafka-console-producer", f"{{b}} --topic {topic} {arguments}".rstrip(), stdin=stdin)


def _consume(arguments: str) -> Step:
    return Step("kafka-console-consumer", f"{{b}} {arguments}")


def _read(topic: str, count: int, arguments: str = "") -> Step:
    return _consume(
        f"--topic {topic} --partition 0 --from-beginning --timeout-ms 20000 --max-messages {count} {arguments}".rstrip()
    )


_ALL = "--formatter-property print.%s=true"
_EVERYTHING = " ".join(_ALL % name for name in ("key", "headers", "partition", "offset", "epoch", "delivery"))

_CONSOLE = Scenario(
    name="console",
    steps=[
        Step("kafka-topics", "{b} --create --topic con"),
        Step("kafka-topics", "{b} --create --topic con-keys"),
        Step("kafka-topics", "{b} --create --topic con-heads"),
        Step("kafka-topics", "{b} --create --topic con-errors"),
        _produce("con", "", "hello\nwörld\n\nlast without an end"),
        _produce("con", "--sync --compression-codec", "synced\n"),
        _produce("con", "--compression-codec zstd --request-required-acks 1 --timeout 5 --batch-size 100", "zstd\r\n"),
        _produce("con", "--property a=b --producer-property acks=1 --max-partition-memory-bytes 99", "old flags\n"),
        _read("con", 7),
        _consume("--topic con --partition 0 --offset 5 --max-messages 2"),
        _consume("--topic con --partition 0 --offset earliest --max-messages 1"),
        _consume("--topic con --partition 0 --offset latest --timeout-ms 1000"),
        _consume("--topic con --partition 0 --offset -3"),
        _consume("--topic con --partition 0 --offset x"),
        _consume("--topic con --offset 1"),
        _consume("--topic con --partition 0 --from-beginning --offset 1"),
        _consume("--topic con --include con"),
        _consume("--partition 0"),
        _consume("--topic con --group a --partition 0"),
        _consume("--topic con --group a --consumer-property group.id=b"),
        _consume("--topic con --from-beginning --command-property auto.offset.reset=latest"),
        _consume("--topic con --formatter nonsense"),
        _consume("--topic con --property a=b --formatter-property a=b"),
        Step("kafka-console-consumer", "--topic con"),
        Step("kafka-console-consumer", "--zookeeper {server} --topic con"),
        Step("kafka-console-consumer", "--version"),
        Step("kafka-console-producer", ""),
        Step("kafka-console-producer", "--version"),
        Step("kafka-console-producer", "--topic con"),
        Step("kafka-console-producer", "--broker-list {server} --topic con"),
        Step("kafka-console-producer", "{b}"),
        _produce("con", "--property a=b --reader-property a=b", "x\n"),
        _produce("con-keys", "--reader-property parse.key=true", "k1\tv1\n\tempty\nk3\t\n"),
        _produce("con-keys", "--reader-property parse.key=true --reader-property key.separator=:", "k4:v:4\n"),
        file("reader.properties", "parse.key=true\nkey.separator=;\nnull.marker=NIL\n"),
        _produce("con-keys", "--reader-config {dir}/reader.properties", "k5;NIL\nNIL;v6\n"),
        _read("con-keys", 6, "--formatter-property print.key=true"),
        _read("con-keys", 6, "--property print.key=true --property key.separator=|"),
        _read("con-keys", 6, "--formatter-property print.key=true --formatter-property print.value=false"),
        _read("con-keys", 6, "--formatter-property null.literal=N --formatter-property line.separator=;"),
        _read("con-keys", 6, "--formatter org.apache.kafka.tools.consumer.NoOpMessageFormatter"),
        _produce("con-heads", "--reader-property parse.headers=true", "a:1,b:2\tvalue\n"),
        _produce(
            "con-heads",
            "--reader-property parse.headers=true --reader-property parse.key=true",
            "a:1,b:x:y\tkey\tvalue\n",
        ),
        records("con-heads", 2),
        _read("con-heads", 4, _EVERYTHING),
        _read("con-heads", 4, f"{_ALL % 'headers'} --formatter-property headers.separator=;"),
        _read("con-heads", 4, f"{_ALL % 'timestamp'} --formatter-property print.value=false"),
        _produce("con-errors", "--reader-property parse.key=true", "k\tfirst\nno separator\n"),
        _produce("con-errors", "--reader-property parse.headers=true", "no headers\n"),
        _produce("con-errors", "--reader-property parse.key=true --reader-property ignore.error=true", "no key\n"),
        _produce("con-errors", "--reader-property headers.separator=: --reader-property parse.headers=true", "x\n"),
        _produce("con-errors", "--line-reader nonsense", "x\n"),
        _read("con-errors", 2),
    ],
)

_SECOND = "--topic con-numbers --partition 0 --offset 1 --max-messages 1"
_DESERIALIZER = "org.apache.kafka.common.serialization.%sDeserializer"


def _numbers() -> Do:
    def produce(place: object) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": place.server})  # type: ignore[attr-defined]
        for value in (b"\0\0\0\x07", b"\0\0\0\0\0\0\1\0", b"\0\0\0\x2a"):
            producer.produce("con-numbers", value, b"key", partition=0)
        assert producer.flush(60) == 0

    return Do(produce)


_DECODED = Scenario(
    name="console-decoded",
    steps=[
        Step("kafka-topics", "{b} --create --topic con-numbers"),
        _numbers(),
        _read("con-numbers", 1, f"--value-deserializer {_DESERIALIZER % 'Integer'}"),
        _read("con-numbers", 2, f"--value-deserializer {_DESERIALIZER % 'Integer'}"),
        _read("con-numbers", 3, f"--value-deserializer {_DESERIALIZER % 'Integer'} --skip-message-on-error"),
        _consume(f"{_SECOND} --value-deserializer {_DESERIALIZER % 'Long'}"),
        _consume(f"{_SECOND} --value-deserializer {_DESERIALIZER % 'Double'}"),
        _read("con-numbers", 1, f"--key-deserializer {_DESERIALIZER % 'String'} --property print.key=true"),
        _read("con-numbers", 1, "--value-deserializer nonsense"),
    ],
)

_GROUPED = Scenario(
    name="console-groups",
    is_slow=True,
    steps=[
        Step("kafka-topics", "{b} --create --topic con-g"),
        _produce("con-g", "", "a\nb\nc\nd\n"),
        _consume("--topic con-g --group con-group --from-beginning --max-messages 2"),
        Step("kafka-consumer-groups", "{b} --describe --group con-group"),
        _consume("--topic con-g --group con-group --max-messages 1"),
        _consume("--topic con-g --consumer-property group.id=con-group --timeout-ms 5000"),
        Step("kafka-consumer-groups", "{b} --describe --group con-group"),
        _consume("--topic con-g --from-beginning --timeout-ms 6000"),
        _consume("--topic con-g --from-beginning --max-messages 4 --command-property group.protocol=consumer"),
        _consume("--include 'con-.' --from-beginning --max-messages 4"),
        Step(
            "kafka-console-consumer",
            "{b} --topic con-g --from-beginning --max-messages 4 --enable-systest-events",
            differs="Java's tool prints shutdown_complete when its JVM ends, and the JVM of the campaign does not end",
        ),
    ],
)

SCENARIOS = (_CONSOLE, _DECODED, _GROUPED)
