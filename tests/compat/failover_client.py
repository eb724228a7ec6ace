"""A producer and a member of a group that run while brokers are killed: see client_failover.py.

    python failover_client.py confluent|confluent-848|kafka-python|aiokafka BOOTSTRAP TOPIC GROUP

It prints a line for each event: A value (acknowledged), R value (read), E text (an error for the application), and
S when nothing is in flight after the line "stop" on its input. The next line ends it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

_PERIOD_S = 0.005
_lock = threading.Lock()


def say(kind: str, text: object) -> None:
    with _lock:
        print(kind, text, flush=True)


class Commands(threading.Thread):
    """The lines of the input: the first one stops the producer, the second one ends the program."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stop, self.end = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        sys.stdin.readline()
        self.stop.set()
        sys.stdin.readline()
        self.end.set()

    def numbers(self) -> Iterator[str]:
        """Return the values to write, one for each period, until the producer is to stop."""
        number = 0
        while not self.stop.wait(_PERIOD_S):
            yield f"v{number}"
            number += 1


def run_confluent(bootstrap: str, topic: str, group: str, protocol: str = "classic") -> None:
    commands = Commands()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])

    def read() -> None:
        while not commands.end.is_set():
            for message in consumer.consume(500, 0.2):
                error = message.error()
                say("E" if error else "R", error or (message.value() or b"").decode())

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})

    def delivered(error: Any, message: Any) -> None:
        say("E" if error else "A", error or message.value().decode())

    for value in commands.numbers():
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    producer.flush(60)
    say("S", "stopped")
    reader.join()
    consumer.close()


def run_kafka_python(bootstrap: str, topic: str, group: str) -> None:
    commands = Commands()
    servers = bootstrap.split(",")
    consumer = KafkaConsumer(topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest")

    def read() -> None:
        while not commands.end.is_set():
            try:
                for rows in consumer.poll(200).values():
                    for row in rows:
                        say("R", row.value.decode())
            except Exception as error:
                say("E", f"poll: {error!r}")

    reader = threading.Thread(target=read)
    reader.start()
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=1)
    for value in commands.numbers():
        future = producer.send(topic, value.encode())
        future.add_callback(lambda _, value=value: say("A", value))
        future.add_errback(lambda error: say("E", f"produce: {error!r}"))
    producer.flush(60)
    say("S", "stopped")
    reader.join()
    consumer.close()
    producer.close()


async def run_aiokafka(bootstrap: str, topic: str, group: str) -> None:
    commands = Commands()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=1)
    await consumer.start()
    await producer.start()

    async def read() -> None:
        while not commands.end.is_set():
            try:
                for rows in (await consumer.getmany(timeout_ms=200)).values():
                    for row in rows:
                        say("R", (row.value or b"").decode())
            except Exception as error:
                say("E", f"getmany: {error!r}")

    async def write(value: str) -> None:
        try:
            await producer.send_and_wait(topic, value.encode())
            say("A", value)
        except Exception as error:
            say("E", f"produce: {error!r}")

    reader = asyncio.create_task(read())
    writers: set[asyncio.Task[None]] = set()
    number = 0
    while not commands.stop.is_set():
        task = asyncio.create_task(write(f"v{number}"))
        writers.add(task)
        task.add_done_callback(writers.discard)
        number += 1
        await asyncio.sleep(_PERIOD_S)
    while writers:
        await asyncio.wait(set(writers))
    say("S", "stopped")
    await reader
    await consumer.stop()
    await producer.stop()


def main() -> None:
    client, *arguments = sys.argv[1:]
    if client == "aiokafka":
        asyncio.run(run_aiokafka(*arguments))
    elif client == "kafka-python":
        run_kafka_python(*arguments)
    else:
        run_confluent(*arguments, "consumer" if client == "confluent-848" else "classic")


if __name__ == "__main__":
    main()
