"""What a campaign reads from the cluster's ZooKeeper, and the sessions that it ends there."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError

_SAMPLE_S = 0.02
_EXPIRE_S_MAX = 60.0
#: ZooKeeper computes the password of a session from its id and this number
_SUPER_SECRET = 0xB3415C00
_LOG_HEADER = 16
_ERROR, _CREATE_SESSION, _CLOSE_SESSION, _CHECK, _MULTI = -1, -10, -11, 13, 14


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    isr: list[int]


class Sample(NamedTuple):
    """The state of a topic's partitions at a time."""

    time: float
    partitions: list[PartitionState]


class StateWatcher:
    """Reads the state of a topic fifty times a second in a thread, and keeps each state that differs from the last."""

    def __init__(self, connect: str, topic: str) -> None:
        self._client = KazooClient(hosts=connect, timeout=60.0)
        self._client.start()
        self._path = f"/brokers/topics/{topic}/state"
        self.samples: list[Sample] = [self._read()]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _read(self) -> Sample:
        rows = json.loads(self._client.get(self._path)[0])["partitions"]
        return Sample(time.monotonic(), [PartitionState(row[0], row[1], row[2]) for row in rows])

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            # ZooKeeper may be down in a case; the client connects again by itself.
            with suppress(KazooException, KazooTimeoutError):
                sample = self._read()
                if sample.partitions != self.samples[-1].partitions:
                    self.samples.append(sample)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def since(self, at: float) -> list[Sample]:
        """Return the state at a time, and all later ones."""
        first = max((number for number, each in enumerate(self.samples) if each.time <= at), default=0)
        return self.samples[first:]

    def elections(self, since: float) -> int:
        """Return how many leader epochs the partitions have got since then."""
        samples = self.since(since)
        pairs = zip(samples[0].partitions, samples[-1].partitions, strict=True)
        return sum(after.leader_epoch - before.leader_epoch for before, after in pairs)


def check_refilled_before_it_leads(samples: list[Sample], broker: int) -> list[str]:
    """Return a line for each partition that a broker led before it had left the ISR and come back.

    The samples begin when the broker has started with a lost or an old log.
    """
    problems = []
    for number in range(len(samples[0].partitions)):
        has_left = has_returned = False
        for sample in samples:
            state = sample.partitions[number]
            has_left |= broker not in state.isr
            has_returned |= has_left and broker in state.isr
            if state.leader == broker and not has_returned:
                problems.append(
                    f"broker {broker} leads partition {number} in epoch {state.leader_epoch} with a lost log"
                )
                break
    return problems


# -- sessions -------------------------------------------------------------------------------------------------------


def session_of(connect: str, broker: int) -> int | None:
    """Return the id of the session in which a broker is registered, None if it is not."""
    client = KazooClient(hosts=connect)
    client.start()
    try:
        stat = client.exists(f"/brokers/ids/{broker}")
        return None if stat is None else int(stat.ephemeralOwner)
    finally:
        client.stop()
        client.close()


def expire_session(connect: str, broker: int) -> int:
    """End the session of a broker: a second client takes it over and closes it. Return its id.

    The broker connects again at once. If it is faster than the close of the second client, the session goes on, and the
    second client tries again. The broker's node is deleted with its session.
    """
    session = session_of(connect, broker)
    assert session is not None, f"broker {broker} is not registered"
    deadline = time.monotonic() + _EXPIRE_S_MAX
    while session_of(connect, broker) == session:
        assert time.monotonic() < deadline, f"the session of broker {broker} could not be closed"
        client = KazooClient(hosts=connect, client_id=(session, _password(session)))
        with suppress(ConnectionLoss):  # the broker was faster, and the session moved back to its connection
            client.start()
        client.stop()
        client.close()
    return session


def _password(session: int) -> bytes:
    """Return the password that ZooKeeper gives to a session: 16 bytes of java.util.Random."""
    mask = (1 << 48) - 1
    state = ((session ^ _SUPER_SECRET) ^ 0x5DEECE66D) & mask
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & mask
        password += (state >> 16).to_bytes(4, "little")
    return password


# -- the transaction log --------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """A write that ZooKeeper has applied."""

    session: int
    change: int
    paths: list[str]


def applied_writes(data: Path) -> list[Write]:
    """Return the writes in the transaction logs of a ZooKeeper server, in order, without those that failed."""
    return [
        Write(session, change, paths)
        for file in sorted(data.glob("version-2/log.*"), key=lambda path: int(path.suffix[1:], 16))
        for session, change, paths in _writes(file.read_bytes())
        if paths
    ]


def _writes(log: bytes) -> Iterator[tuple[int, int, list[str]]]:
    position = _LOG_HEADER
    while position + 12 <= len(log):
        _, size = struct.unpack_from(">qi", log, position)
        if size == 0:
            return  # the rest of the file is allocated, but not written
        body = log[position + 12 : position + 12 + size]
        position += 12 + size + 1
        session, _, change, _, kind = struct.unpack_from(">qiqqi", body)
        yield session, change, _paths(kind, body[32:])


def _paths(kind: int, body: bytes) -> list[str]:
    """Return the paths that a transaction changes; none if it failed."""
    if kind in (_ERROR, _CREATE_SESSION, _CLOSE_SESSION, _CHECK):
        return []
    if kind != _MULTI:
        (size,) = struct.unpack_from(">i", body)
        return [body[4 : 4 + size].decode()]
    (count,) = struct.unpack_from(">i", body)
    position, paths = 4, []
    for _ in range(count):
        kind, size = struct.unpack_from(">ii", body, position)
        position += 8
        if kind == _ERROR:
            return []
        paths += _paths(kind, body[position : position + size])
        position += size
    return paths
