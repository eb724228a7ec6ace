"""One client process of the load on a cluster: a producer, a consumer group, or a reader.

    python load_client.py produce-librdkafka --bootstrap HOST:PORT,.. --topic events --partitions 3 --name rd --rate 50

The process works until its standard input is closed. It prints one line per event:

    ready                                       the client has started
    acknowledged PARTITION NUMBER OFFSET TIME   record NUMBER of this producer and partition is at this offset; -1: the
                                                client does not know the offset
    failed PARTITION NUMBER TIME ERROR          the application got an error for the record
    sent PARTITION COUNT                        printed at the end: the producer sent the records 0 to COUNT - 1
    read PARTITION OFFSET VALUE                 a reader got a record
    consumed PARTITION OFFSET                   a group member got a record
    committed PARTITION OFFSET TIME             a group member's commit was answered at that time
    observed PARTITION OFFSET TIME              the committed offset that a request sent at that time returned
    hung MEMBER                                 a group member does not end: its client library has a deadlock
    high-watermark PARTITION OFFSET             `read` will read up to this offset
    end                                         `read` has read all partitions to their ends

TIME is the monotonic clock of the machine in seconds, which all processes share. The value of a record is
NAME.PARTITION.NUMBER.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

#: a client retries a record for this long: longer than any fault lasts
_GIVE_UP_MS = 240_000
_DEADLINE_S = 240.0
_OBSERVE_S = 0.5
_COMMIT_S = 0.2
_ASK_AGAIN_S = 0.2
#: librdkafka gives up on every request after socket.timeout.ms, a minute: a member that needs longer never ends
_HUNG_S = 100.0

_stopping = threading.Event()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _start_waiting_for_end() -> None:
    def wait() -> None:
        sys.stdin.read()
        _stopping.set()

    threading.Thread(target=wait, daemon=True).start()


def produce_librdkafka(options: argparse.Namespace) -> None:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        number, now = (message.value() or b"").rsplit(b".", 1)[1].decode(), time.monotonic()
        if error is None:
            # librdkafka has no offset for a batch whose request timed out if a later batch is acknowledged.
            offset = -1 if message.offset() is None else message.offset()
            _print(f"acknowledged {message.partition()} {number} {offset} {now:.6f}")
        else:
            _print(f"failed {message.partition()} {number} {now:.6f} {error}")

    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap, "client.id": options.name, "acks": "all", "enable.idempotence": True,
        "linger.ms": 1, "delivery.timeout.ms": _GIVE_UP_MS, "log_level": 0, **options.settings,
    }  # fmt: skip
    if options.acks == "1":
        # Without retries no record is written twice or out of order, although the producer is not idempotent.
        settings |= {"acks": "1", "enable.idempotence": False, "retries": 0}
    if options.request_timeout_ms:
        # socket.timeout.ms bounds the answer to a Produce request as well. The other two bound how long the client
        # tries to connect to a broker that does not answer before it asks another one for the leader.
        settings |= {
            "request.timeout.ms": options.request_timeout_ms, "socket.timeout.ms": options.request_timeout_ms,
            "socket.connection.setup.timeout.ms": 1000, "reconnect.backoff.max.ms": 500,
        }  # fmt: skip
    producer = Producer(settings)
    _print("ready")
    count = 0
    while not _stopping.is_set():
        for partition in range(options.partitions):
            value = f"{options.name}.{partition}.{count}"
            producer.produce(options.topic, value.encode(), partition=partition, on_delivery=on_delivery)
        count += 1
        producer.poll(1 / options.rate)
        sys.stdout.flush()
        _stopping.wait(1 / options.rate)
    producer.flush(_DEADLINE_S)
    for partition in range(options.partitions):
        _print(f"sent {partition} {count}")


def produce_aiokafka(options: argparse.Namespace) -> None:
    asyncio.run(_produce_aiokafka(options))


async def _produce_aiokafka(options: argparse.Namespace) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap, client_id=options.name, acks="all", enable_idempotence=True,
        # aiokafka gives up a record after this time as well.
        request_timeout_ms=_GIVE_UP_MS, **_aiokafka_security(options.settings),
    )  # fmt: skip
    await producer.start()
    _print("ready")
    waiting: set[asyncio.Future[Any]] = set()

    def on_done(partition: int, number: int, done: asyncio.Future[Any]) -> None:
        waiting.discard(done)
        now = time.monotonic()
        if (error := done.exception()) is None:
            _print(f"acknowledged {partition} {number} {done.result().offset} {now:.6f}")
        else:
            _print(f"failed {partition} {number} {now:.6f} {error!r}")
        sys.stdout.flush()

    async def write(partition: int) -> int:
        count = 0
        while not _stopping.is_set():
            value = f"{options.name}.{partition}.{count}"
            future = await producer.send(options.topic, value.encode(), partition=partition)
            waiting.add(future)
            future.add_done_callback(lambda done, number=count: on_done(partition, number, done))
            count += 1
            await asyncio.sleep(1 / options.rate)
        return count

    # One task for each partition, because send() waits while the batch of a partition is full.
    counts = await asyncio.gather(*(write(partition) for partition in range(options.partitions)))
    if waiting:
        await asyncio.wait(list(waiting), timeout=_DEADLINE_S)
    for partition, count in enumerate(counts):
        _print(f"sent {partition} {count}")
    await producer.stop()


def _aiokafka_security(settings: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of aiokafka for librdkafka's settings of TLS and SASL."""
    if not settings:
        return {}
    return {
        "security_protocol": settings["security.protocol"], "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"], "sasl_plain_password": settings["sasl.password"],
        "ssl_context": ssl.create_default_context(cafile=settings["ssl.ca.location"]),
    }  # fmt: skip


def run_group(options: argparse.Namespace) -> None:
    """Two members of a group read and commit, and a third client asks for the committed offsets.

    The main thread of librdkafka 2.16 can wait for ever while the leaders of partitions change: in the handler of
    OffsetForLeaderEpoch it has the lock of a partition and wants that of the client (rd_kafka_metadata_refresh_topics).
    The thread of a broker that fails has the lock of the client and wants that of the partition
    (rd_kafka_toppar_undelegate). Such a member never ends, and the process ends without it.
    """
    settings = {"bootstrap.servers": options.bootstrap, "group.id": options.name, "log_level": 0, **options.settings}
    members = [threading.Thread(target=_run_member, args=(options, settings, number)) for number in range(2)]
    observer = threading.Thread(target=_observe, args=(options, settings))
    for thread in (*members, observer):
        thread.start()
    _print("ready")
    while observer.is_alive():
        observer.join(0.1)
        sys.stdout.flush()
    give_up = time.monotonic() + _HUNG_S
    for member in members:
        member.join(max(give_up - time.monotonic(), 0))
    hung = [number for number, member in enumerate(members) if member.is_alive()]
    for number in hung:
        _print(f"hung {number}")
    sys.stdout.flush()
    if hung:
        os._exit(0)


def _run_member(options: argparse.Namespace, settings: dict[str, Any], number: int) -> None:
    """Read and commit, one commit at a time.

    librdkafka sends automatic and asynchronous commits while earlier ones are repeated after a lost connection. An
    earlier one can then arrive last, and the committed offset goes back.
    """
    member = Consumer({
        **settings, "client.id": f"{options.name}-{number}", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": 6000,
    })  # fmt: skip
    member.subscribe([options.topic])
    due = time.monotonic()
    has_read = False
    while not _stopping.is_set():
        for message in _poll_many(member):
            # An error of the poll itself is an event that the client handles by retrying.
            if message.error() is None:
                _print(f"consumed {message.partition()} {message.offset()}")
                has_read = True
        if has_read and time.monotonic() >= due:
            # A commit that failed is repeated.
            has_read = not _commit(member)
            due = time.monotonic() + _COMMIT_S
    member.close()


def _poll_many(member: Consumer) -> Iterator[Message]:
    """Yield what a member has received. consume() of librdkafka 2.16 can deadlock after a change of leaders.

    It locks a partition while it holds the lock of its queue. The handler of OffsetForLeaderEpoch, which runs then,
    locks them in the other order.
    """
    for number in range(500):
        message = member.poll(0 if number else 0.05)
        if message is None:
            return
        yield message


def _commit(member: Consumer) -> bool:
    """Commit the positions of a member. Return whether that succeeded."""
    try:
        committed = member.commit(asynchronous=False) or []
    except KafkaException:
        return False
    now = time.monotonic()
    for each in committed:
        if each.error is None and each.offset >= 0:
            _print(f"committed {each.partition} {each.offset} {now:.6f}")
    return all(each.error is None for each in committed)


def _observe(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    observer = Consumer({**settings, "client.id": f"{options.name}-observer"})
    places = [TopicPartition(options.topic, partition) for partition in range(options.partitions)]
    is_last = False
    while not is_last:
        is_last = _stopping.wait(_OBSERVE_S)
        asked = time.monotonic()
        try:
            found = observer.committed(places, timeout=_DEADLINE_S if is_last else 5.0)
        except KafkaException:
            continue
        for each in found:
            if each.error is None and each.offset >= 0:
                _print(f"observed {each.partition} {each.offset} {asked:.6f}")
    observer.close()


def read_tail(options: argparse.Namespace) -> None:
    """Read all partitions from their starts while they are written."""
    consumer = _reader(options)
    _print("ready")
    while not _stopping.is_set():
        _read_some(consumer, 0.1)
        sys.stdout.flush()
    consumer.close()


def read_all(options: argparse.Namespace) -> None:
    """Read all partitions from their starts to the high watermarks of now."""
    consumer = _reader(options)
    unread: dict[int, int] = {}
    for partition in range(options.partitions):
        unread[partition] = _high_watermark(consumer, TopicPartition(options.topic, partition))
        _print(f"high-watermark {partition} {unread[partition]}")
    unread = {partition: end for partition, end in unread.items() if end}
    deadline = time.monotonic() + _DEADLINE_S
    while unread and time.monotonic() < deadline:
        for partition, offset in _read_some(consumer, 1.0):
            if offset + 1 >= unread.get(partition, sys.maxsize):
                del unread[partition]
    consumer.close()
    if not unread:
        _print("end")


def _high_watermark(consumer: Consumer, place: TopicPartition) -> int:
    """Return the high watermark of a partition.

    librdkafka asks the leader that it knows once, and returns that broker's error if the leader has moved since.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=_DEADLINE_S)[1])
        except KafkaException as error:
            if not _is_about_leader(error.args[0].code()) or time.monotonic() > deadline:
                raise
        consumer.list_topics(place.topic, timeout=_DEADLINE_S)
        time.sleep(_ASK_AGAIN_S)


def _is_about_leader(code: int) -> bool:
    return code in (
        KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    )  # fmt: skip


def _reader(options: argparse.Namespace) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": options.bootstrap, "group.id": "never-joined", "enable.auto.commit": False,
         "check.crcs": True, "auto.offset.reset": "error", "log_level": 0, **options.settings}
    )  # fmt: skip
    consumer.assign([TopicPartition(options.topic, partition, 0) for partition in range(options.partitions)])
    return consumer


def _read_some(consumer: Consumer, seconds: float) -> list[tuple[int, int]]:
    """Print records. Return their partitions and offsets. Raise KafkaException if the start offset does not exist."""
    found = []
    for message in consumer.consume(2000, seconds):
        if (error := message.error()) is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            continue
        place = message.partition() or 0, message.offset() or 0
        _print(f"read {place[0]} {place[1]} {(message.value() or b'').decode(errors='replace')}")
        found.append(place)
    return found


_ROLES = {
    "produce-librdkafka": produce_librdkafka,
    "produce-aiokafka": produce_aiokafka,
    "group": run_group,
    "tail": read_tail,
    "read": read_all,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=list(_ROLES))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--request-timeout-ms", type=int, default=0)
    parser.add_argument("--acks", choices=("all", "1"), default="all", help="of librdkafka")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: more settings of librdkafka")
    options = parser.parse_args()
    if options.role != "read":
        _start_waiting_for_end()
    _ROLES[options.role](options)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
