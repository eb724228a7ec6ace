"""The few Kafka requests the harness itself makes, over one blocking socket.

A real client would retry and back off by its own clock, which is exactly what the start-up rows must not
measure. Only non-flexible versions that Apache Kafka 4 still serves are used: they need no schema library.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c
from lz4.frame import compress  # type: ignore[import-untyped]

from benchmarks.processes import wait_until

# API key and version.
PRODUCE, FETCH, LIST_OFFSETS, METADATA = (0, 8), (1, 4), (2, 3), (3, 8)
CREATE_TOPICS, DELETE_TOPICS = (19, 4), (20, 3)
FIND_COORDINATOR, ALTER_CONFIGS = (10, 1), (44, 0)
ADMIN_TIMEOUT_MS = 60_000
_CODEC_LZ4 = 3
_LATEST = -1
_TRANSACTION, _TOPIC = 1, 2
_SET, _DELETE = 0, 1
_READ_COMMITTED = 1
_CONTROL_BIT = 0x20


class RawClient:
    """One connection, one request at a time; every failure is an OSError or a RequestRefused."""

    def __init__(self, port: int, *, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_topic(
        self,
        topic: str,
        partitions: int,
        configs: Mapping[str, str],
        assignment: Sequence[Sequence[int]] = (),
    ) -> None:
        """Create a topic with one replica per partition, or with the replicas of ``assignment`` for each partition."""
        counts = (-1, -1) if assignment else (partitions, 1)
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihi", *counts, len(assignment))
        for number, replicas in enumerate(assignment):
            body += struct.pack(f">ii{len(replicas)}i", number, len(replicas), *replicas)
        body += struct.pack(">i", len(configs))
        body += b"".join(_string(name) + _string(value) for name, value in configs.items())
        reply = self._call(CREATE_TOPICS, body + struct.pack(">i?", ADMIN_TIMEOUT_MS, False))
        _refuse(f"CreateTopics {topic}", _error_after_first_string(reply, 8))

    def delete_topic(self, topic: str) -> None:
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", ADMIN_TIMEOUT_MS)
        reply = self._call(DELETE_TOPICS, body)
        _refuse(f"DeleteTopics {topic}", _error_after_first_string(reply, 8))

    def set_topic_config(self, topic: str, name: str, value: str | None) -> None:
        """None takes the topic's own value away, so that the broker's counts."""
        operation = _DELETE if value is None else _SET
        body = struct.pack(">ib", 1, _TOPIC) + _string(topic) + struct.pack(">i", 1) + _string(name)
        body += struct.pack(">b", operation) + (struct.pack(">h", -1) if value is None else _string(value))
        reply = self._call(ALTER_CONFIGS, body + struct.pack(">?", False))
        _refuse(f"IncrementalAlterConfigs {topic}", struct.unpack_from(">h", reply, 8)[0])

    def has_transaction_coordinator(self, transactional_id: str) -> bool:
        """Whether there is one; asking for it creates the topic of transactions."""
        reply = self._call(FIND_COORDINATOR, _string(transactional_id) + struct.pack(">b", _TRANSACTION))
        code: int = struct.unpack_from(">h", reply, 4)[0]
        return code == 0

    def request_metadata(self, topic: str | None) -> None:
        """Asks about a topic, which creates it where auto.create.topics.enable is on, as by default.

        Without a topic it asks about none at all: a cheap sign of life.
        """
        topics = struct.pack(">i", 0) if topic is None else struct.pack(">i", 1) + _string(topic)
        self._call(METADATA, topics + struct.pack(">???", True, False, False))

    def broker_count(self) -> int:
        """Return the number of brokers that the broker knows."""
        reply = Cursor(self._call(METADATA, struct.pack(">i???", 0, False, False, False)))
        reply.skip(4)
        return reply.int32()

    def partitions(self) -> dict[tuple[str, int], PartitionState]:
        """Return the state of every partition of the cluster."""
        reply = Cursor(self._call(METADATA, struct.pack(">i???", -1, False, False, False)))
        reply.skip(4)
        for _ in range(reply.int32()):
            reply.skip(4)
            reply.string()
            reply.skip(4)
            reply.string()
        reply.string()
        reply.skip(4)
        found = {}
        for _ in range(reply.int32()):
            reply.skip(2)
            topic = reply.string()
            reply.skip(1)
            for _ in range(reply.int32()):
                reply.skip(2)
                number, leader = reply.int32(), reply.int32()
                reply.skip(4)
                replicas, isr, _ = (reply.int32s() for _ in range(3))
                found[topic, number] = PartitionState(leader, replicas, isr)
            reply.skip(4)
        return found

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int = 1) -> int:
        """Return the error code of the partition: 0 if the batch was acknowledged."""
        body = struct.pack(">hhii", -1, acks, 30_000, 1) + _string(topic)
        reply = self._call(PRODUCE, body + struct.pack(">iii", 1, partition, len(batch)) + batch)
        name_length = struct.unpack_from(">h", reply, 4)[0]
        code: int = struct.unpack_from(">h", reply, 6 + name_length + 8)[0]
        return code

    def end_offset(self, topic: str, partition: int) -> int:
        body = struct.pack(">ibi", -1, 0, 1) + _string(topic) + struct.pack(">iiq", 1, partition, _LATEST)
        reply = self._call(LIST_OFFSETS, body)
        name_length = struct.unpack_from(">h", reply, 8)[0]
        code, _, offset = struct.unpack_from(">hqq", reply, 10 + name_length + 8)
        _refuse(f"ListOffsets {topic}-{partition}", code)
        return int(offset)

    def fetch(self, topic: str, partition: int, offset: int, bytes_max: int) -> bytes:
        """Record batches from an offset on, as far as they are committed; the last may be cut."""
        body = struct.pack(">iiiibi", -1, 100, 1, bytes_max, _READ_COMMITTED, 1) + _string(topic)
        reply = self._call(FETCH, body + struct.pack(">iiqi", 1, partition, offset, bytes_max))
        at = 10 + struct.unpack_from(">h", reply, 8)[0] + 4
        _, code, _, _, aborted = struct.unpack_from(">ihqqi", reply, at)
        _refuse(f"Fetch {topic}-{partition}", code)
        at += 26 + max(aborted, 0) * 16
        size = struct.unpack_from(">i", reply, at)[0]
        return reply[at + 4 : at + 4 + max(size, 0)]

    def _call(self, api: tuple[int, int], body: bytes) -> bytes:
        key, version = api
        frame = struct.pack(">hhi", key, version, 1) + _string("bench") + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        size = struct.unpack(">i", self._receive(4))[0]
        return self._receive(size)[4:]

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts += part
        return bytes(parts)


class PartitionState(NamedTuple):
    """A partition as Metadata describes it."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Cursor:
    """Reads the fields of a response in their order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def skip(self, count: int) -> None:
        self._at += count

    def int32(self) -> int:
        value: int = struct.unpack_from(">i", self._data, self._at)[0]
        self._at += 4
        return value

    def int32s(self) -> tuple[int, ...]:
        count = self.int32()
        values: tuple[int, ...] = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += 4 * count
        return values

    def string(self) -> str:
        """Return a string; empty for null."""
        length = max(struct.unpack_from(">h", self._data, self._at)[0], 0)
        text = self._data[self._at + 2 : self._at + 2 + length].decode()
        self._at += 2 + length
        return text


class RequestRefused(RuntimeError):
    """The broker answered an administrative request with an error code."""


def wait_writable(port: int, topic: str, partitions: int, *, seconds_max: float = 60.0) -> None:
    """Writes one record to every partition, asking again until the broker leads them all."""
    batch = single_record_batch(100)
    deadline = time.monotonic() + seconds_max
    with RawClient(port) as client:
        for partition in range(partitions):
            while client.produce(topic, partition, batch) != 0:
                wait_until(deadline, f"waiting for a leader of {topic}-{partition}")


def count_records(port: int, topic: str, partitions: int, expected: int, *, seconds_max: float = 30.0) -> int:
    """How many records a topic holds, markers left out: asked for until there are as many as expected, or too long."""
    count = 0
    positions = [0] * partitions
    deadline = time.monotonic() + seconds_max
    with RawClient(port) as client:
        while True:
            came = False
            for partition in range(partitions):
                data = client.fetch(topic, partition, positions[partition], 8 << 20)
                records, position = count_batches(data)
                if position is not None:
                    came = True
                    count += records
                    positions[partition] = position
            if not came and (count >= expected or time.monotonic() > deadline):
                return count


def count_batches(data: bytes) -> tuple[int, int | None]:
    """The records of whole batches, and the offset behind them."""
    count, next_offset, at = 0, None, 0
    while at + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if at + 12 + length > len(data):
            break
        attributes, last_delta = struct.unpack_from(">hi", data, at + 21)
        if not attributes & _CONTROL_BIT:
            count += struct.unpack_from(">i", data, at + 57)[0]
        next_offset = base + last_delta + 1
        at += 12 + length
    return count, next_offset


def first_acknowledged(port: int, topic: str, *, deadline: float) -> None:
    """Returns as soon as the broker acknowledges one record, however early in its start it is asked."""
    batch = single_record_batch(100)
    while True:
        wait_until(deadline, "waiting for the first acknowledged record")
        try:
            with RawClient(port) as client:
                while True:
                    client.request_metadata(topic)
                    if client.produce(topic, 0, batch) == 0:
                        return
                    wait_until(deadline, "waiting for the first acknowledged record")
        except (OSError, struct.error):
            # Refused, or closed half way: the broker is still starting.
            continue


def single_record_batch(record_bytes: int) -> bytes:
    return encode_batch(sample_values(record_bytes, 1))


def filled_batch(record_bytes: int, batch_bytes: int, *, lz4: bool = False) -> tuple[bytes, int]:
    """The largest batch of equal records that fits into batch_bytes uncompressed, and its record count."""
    values = sample_values(record_bytes, batch_bytes // record_bytes)
    room = batch_bytes - len(encode_batch([]))
    for count, value in enumerate(values):
        room -= len(_record(count, value))
        if room < 0:
            return encode_batch(values[:count], lz4=lz4), count
    return encode_batch(values, lz4=lz4), len(values)


def sample_values(record_bytes: int, count: int) -> list[bytes]:
    """Records like those of a shop: short JSON fields that repeat their names but not their values."""
    rng = random.Random(record_bytes)
    values = []
    for number in range(count):
        text = ""
        while len(text) < record_bytes:
            user, price = rng.randrange(10**9), rng.randrange(10**5) / 100
            text += json.dumps({"id": number, "user": user, "price": price, "state": "paid"})
        values.append(text[:record_bytes].encode())
    return values


def encode_batch(values: Sequence[bytes], *, lz4: bool = False) -> bytes:
    """A record batch (magic 2) without producer id, as a client without idempotence sends it."""
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    if lz4:
        # Kafka's reader knows neither linked blocks nor content sizes.
        records = compress(records, block_linked=False, store_size=False)
    now_ms = int(time.time() * 1000)
    attributes = _CODEC_LZ4 if lz4 else 0
    checked = struct.pack(">hiqqqhii", attributes, len(values) - 1, now_ms, now_ms, -1, -1, -1, len(values))
    checked += records
    head = struct.pack(">ibI", -1, 2, crc32c(checked))
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def _record(offset_delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _error_after_first_string(reply: bytes, at: int) -> int:
    length = struct.unpack_from(">h", reply, at)[0]
    code: int = struct.unpack_from(">h", reply, at + 2 + length)[0]
    return code


def _refuse(what: str, code: int) -> None:
    if code:
        raise RequestRefused(f"{what}: the broker answered with error code {code}")
