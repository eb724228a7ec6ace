"""What tests of the commit protocol share: batches staged without Spark, and a reader that is not ours.

Run as a script it is a driver that dies, or freezes, at a step of the protocol:

    python spark_commit_fixtures.py BOOTSTRAP TOPIC NAME BATCH_ID STEP SIGNAL

It prints one line: ``committed``, ``again``, or the name of what was raised and its text.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.spark.commit import CommitProtocol, CommitSettings
from ottla.spark.staging import Staged, StagingWriter

PARTITIONS = 2
TIMEOUT_S = 60.0

Row = tuple[bytes | None, bytes | None]


def stage(
    topic: str,
    rows: list[Row],
    *,
    file: str | None = None,
    inline_bytes_max: int = 1 << 20,
    rows_per_batch: int = 2,
    partitions: int = PARTITIONS,
) -> Staged:
    """One task's rows, dealt to partitions in turn."""
    writer = StagingWriter(file, inline_bytes_max=inline_bytes_max)
    for partition in range(partitions):
        mine = rows[partition::partitions]
        for start in range(0, len(mine), rows_per_batch):
            some = mine[start : start + rows_per_batch]
            batch = build_batch([Record(timestamp=1_700_000_000_000, key=key, value=value) for key, value in some])
            writer.add(TopicPartition(topic, partition), batch, len(some))
    return writer.finish()


def rows_of(batch_id: int, count: int = 10) -> list[Row]:
    return [(b"k%d" % number, b"batch %d row %d" % (batch_id, number)) for number in range(count)]


def connect_to(bootstrap: str) -> Callable[[], Cluster]:
    return lambda: Cluster(bootstrap, timeout_s=TIMEOUT_S)


def visible_rows(
    bootstrap: str, topic: str, partitions: int = PARTITIONS, *, isolation: str = "read_committed"
) -> Counter[Row]:
    """All that a consumer of librdkafka gets to see, up to the end of every log; it checks every batch."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    with Cluster(bootstrap, timeout_s=TIMEOUT_S) as cluster:
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation=Isolation.READ_UNCOMMITTED)
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "check.crcs": True, "fetch.wait.max.ms": 50,
        "log_level": 2,
    }  # fmt: skip
    found: Counter[Row] = Counter()
    open_places = {place for place in places if ends[place].offset > 0}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([Place(topic, number, 0) for number in range(partitions)])
        deadline = time.monotonic() + TIMEOUT_S
        while open_places:
            assert time.monotonic() < deadline, f"a transaction is left open in {open_places}"
            for message in consumer.consume(500, 0.2):
                error, place = message.error(), TopicPartition(message.topic(), message.partition())
                if error is None:
                    found[(message.key(), message.value())] += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif message.offset() >= ends[place].offset:
                    open_places.discard(place)
    return found


class Driver:
    """A process that commits one batch and meets a signal on its way."""

    def __init__(self, bootstrap: str, topic: str, name: str, batch_id: int, step: str, number: signal.Signals) -> None:
        command = [sys.executable, __file__, bootstrap, topic, name, str(batch_id), step, str(int(number))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait(self) -> tuple[int, str]:
        """Its exit code and what it said last."""
        output, _ = self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode, (output.strip().splitlines() or [""])[-1]

    def wait_until_frozen(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def main(bootstrap: str, topic: str, name: str, batch_id: str, step: str, number: str) -> None:
    waiting = [step]

    def meet(at: str) -> None:
        if at in waiting:
            waiting.remove(at)
            os.kill(os.getpid(), int(number))

    settings = CommitSettings(transaction_timeout_ms=60_000)
    with CommitProtocol(connect_to(bootstrap), name, settings, checkpoint=meet) as protocol:
        try:
            committed = protocol.commit(int(batch_id), [stage(topic, rows_of(int(batch_id)))])
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        else:
            print("again" if committed.again else "committed")


if __name__ == "__main__":
    main(*sys.argv[1:])
