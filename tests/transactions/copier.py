"""Copies a topic to another, partition by partition, in transactions: a process of its own, to be killed at any time.

    python copier.py --bootstrap ... --source in --target out --group g --instance c1 --tally c1.txt --seed 7

What it read, what it wrote and how far it has come become true together or not at all. Some transactions it aborts,
by the seed, and goes back to where its group stands. Whatever it cannot live with ends it: another is started.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from typing import Any

from clients import LOG_LEVEL, confluent_settings, settle
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tally import Step, Tally

from campaign.processes import end_with_parent

_CALL_S_MAX = 30.0
_ATTEMPTS = 5
_TRANSACTION_MS = 60_000
_ABORTED = 0.05


class Copier:
    def __init__(self, options: argparse.Namespace) -> None:
        self._rng = random.Random(options.seed)
        self._target = options.target
        self._records_max = options.records_max
        self._tally = Tally(options.tally)
        self._producer = Producer(
            confluent_settings(options.bootstrap, f"{options.group}-{options.instance}", "copier", _TRANSACTION_MS)
            | options.settings
        )
        settings = {
            "bootstrap.servers": options.bootstrap, "group.id": options.group, "client.id": "copier",
            # A killed copier comes back as the same member, and nobody has to wait for its session to end.
            "group.instance.id": options.instance, "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": 500, "isolation.level": "read_committed", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50, "metadata.recovery.strategy": "none",
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300, "queued.min.messages": 5000,
            "log_level": LOG_LEVEL, **options.settings,
        }  # fmt: skip
        self._consumer = Consumer(settings)
        self._consumer.subscribe([options.source])

    def run(self) -> None:
        again(self._producer.init_transactions, _CALL_S_MAX)
        while True:
            records = self._poll()
            if records:
                self._copy(records)

    def _poll(self) -> list[Message]:
        messages = self._consumer.consume(self._rng.randint(1, self._records_max), 0.2)
        for message in messages:
            error = message.error()
            if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
                raise KafkaException(error)
        return [message for message in messages if message.error() is None]

    def _copy(self, records: list[Message]) -> None:
        self._producer.begin_transaction()
        self._tally.note(Step.BEGUN)
        try:
            for record in records:
                self._producer.produce(self._target, record.value(), record.key(), record.partition())
                self._producer.poll(0)
            following = {record.partition(): record.offset() + 1 for record in records}
            offsets = [TopicPartition(records[0].topic(), number, offset) for number, offset in following.items()]
            metadata = self._consumer.consumer_group_metadata()
            again(self._producer.send_offsets_to_transaction, offsets, metadata, _CALL_S_MAX)
            if self._rng.random() < _ABORTED:
                self._abort(records)
            else:
                self._tally.note(Step.ENDING)
                again(self._producer.commit_transaction, _CALL_S_MAX)
                self._tally.note(Step.COMMITTED)
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            self._abort(records)

    def _abort(self, records: list[Message]) -> None:
        """None of it was: read it again."""
        self._tally.note(Step.ENDING)
        unsettled = settle(self._producer)
        again(self._producer.abort_transaction, _CALL_S_MAX)
        self._tally.note(Step.ABORTED)
        if unsettled:
            raise RuntimeError(f"{unsettled} records were purged")
        first: dict[int, int] = {}
        for record in records:
            first.setdefault(record.partition(), record.offset())
        mine = {row.partition for row in self._consumer.assignment()}
        for number, offset in first.items():
            # What was taken away meanwhile is read by its new owner, from where the group stands.
            if number in mine:
                self._consumer.seek(TopicPartition(records[0].topic(), number, offset))


def again(function: Any, *arguments: Any) -> None:
    """Call until it worked, as long as the library wants the same call again."""
    for attempt in itertools.count(1):
        try:
            function(*arguments)
        except KafkaException as failed:
            if not failed.args[0].retriable() or attempt == _ATTEMPTS:
                raise
        else:
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--source", "--target", "--group", "--instance", "--tally"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--session-ms", type=int, default=6000)
    parser.add_argument("--records-max", type=int, default=2000)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: more settings of librdkafka")
    end_with_parent()
    Copier(parser.parse_args()).run()


if __name__ == "__main__":
    main()
