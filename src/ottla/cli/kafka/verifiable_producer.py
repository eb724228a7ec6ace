"""kafka-verifiable-producer: send increasing numbers, and print what happened to each as a line of JSON."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Final

from ottla.cli.kafka.arguments import Given, Syntax, argument, long
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.clients import make_producer
from ottla.cli.kafka.connection import properties_of
from ottla.cli.kafka.tool import print_error
from ottla.cli.kafka.verifiable import Stop, config_file, connection_arguments, event
from ottla.cli.records import KafkaException, Producer

_POLL_S: Final = 0.05
SYNTAX: Final = Syntax(
    name="verifiable-producer",
    summary="Send increasing numbers, and print what happened to each as a line of JSON.",
    arguments=(
        argument("--topic", metavar="TOPIC", is_required=True, help="The topic."),
        argument("--max-messages", metavar="N", parse=int, default=-1, help="How many; -1: until the tool is stopped."),
        argument("--throughput", metavar="N", parse=int, default=-1, help="Records per second; -1: no limit."),
        argument("--acks", metavar="ACKS", choices=("0", "1", "-1"), default="-1", help="Acknowledgements."),
        argument("--message-create-time", metavar="MS", parse=long, default=-1, help="Timestamp of the first record."),
        argument("--value-prefix", metavar="N", parse=int, help="The values are N.0, N.1, ..."),
        argument("--repeating-keys", metavar="N", parse=int, help="The keys are 0 to N-1, again and again."),
        *connection_arguments("producer"),
    ),
)


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, is_helped_without_arguments=True)


def _run(given: Given) -> None:
    properties = properties_of(config_file(given, "producer"), {"acks": given["acks"], "retries": "0"})
    # Java's tool asks for no idempotence either when it sets retries and acks itself.
    properties.setdefault("enable.idempotence", "false")
    producer = make_producer(given["bootstrap-server"], properties)
    Sender(producer, given).run()


class Sender:
    """Sends the numbers and counts the acknowledgements."""

    def __init__(self, producer: Producer, given: Given) -> None:
        self._producer = producer
        self._given = given
        self._acked = 0

    def run(self) -> None:
        stop, given = Stop(), self._given
        started, count, rate = time.time(), given["max-messages"], given["throughput"]
        event("startup_complete")
        sent = 0
        for number in itertools.count() if count < 0 else range(count):
            if stop.is_asked:
                break
            self._send(number, started)
            sent += 1
            while rate > 0 and not stop.is_asked and sent / rate > time.time() - started:
                self._producer.poll(min(_POLL_S, max(sent / rate - (time.time() - started), 0)))
        while self._producer.flush(_POLL_S):
            pass
        event("shutdown_complete")
        average = self._acked / max(time.time() - started, 1e-6)
        event("tool_data", sent=sent, acked=self._acked, target_throughput=rate, avg_throughput=average)

    def _send(self, number: int, started: float) -> None:
        given = self._given
        prefix, keys, created_ms = given["value-prefix"], given["repeating-keys"], given["message-create-time"]
        value = str(number) if prefix is None else f"{prefix}.{number}"
        key = None if keys is None else str(number % keys if keys > 0 else number)
        timestamp = 0 if created_ms < 0 else created_ms + int((time.time() - started) * 1000)

        def acknowledged(error: Any, message: Any) -> None:
            if error is not None:
                self._report(error, key, value)
                return
            self._acked += 1
            event(
                "producer_send_success", key=key, value=value, offset=message.offset(), topic=message.topic(),
                partition=message.partition(),
            )  # fmt: skip

        while True:
            try:
                self._producer.produce(given["topic"], value, key, timestamp=timestamp, on_delivery=acknowledged)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                self._report(error.args[0], key, value)
                return

    def _report(self, error: Any, key: str | None, value: str) -> None:
        print_error(error.str())
        event(
            "producer_send_error", topic=self._given["topic"], key=key, value=value, exception=error.name(),
            message=error.str(),
        )  # fmt: skip
