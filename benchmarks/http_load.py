"""A load generator for HTTP services: raw sockets, requests that are built before, in a process of its own.

It reads no more of an answer than its status and its length, so that one process can send more requests per second than
a service in Python can answer.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, TypeVar

_RECEIVE_BYTES = 1 << 18
_LENGTH = b"content-length: "
_ANSWER_S_MAX = 60.0

_T = TypeVar("_T")
#: makes the requests of one measurement; it is called in the process of the generator
Requests = Callable[[], Iterator[bytes]]


class Load(NamedTuple):
    """What one measurement has found."""

    #: answered requests, or acknowledged or returned records
    answered: int
    seconds: float
    #: CPU time of the generator
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class WrongAnswer(RuntimeError):
    """A service has answered with another status than expected, or closed the connection."""


def in_own_process(work: Callable[[], _T]) -> _T:
    """Run a function in another process. It must be picklable: a function of a module, or a partial of one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def request_bytes(method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
    if body or method != "GET":
        head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def answer_size(data: bytes) -> int:
    """Return the bytes of the answer at the begin of `data`; 0 if its head is not complete.

    >>> answer_size(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}")
    40
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    if not data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 207")):
        raise WrongAnswer(data[:1000].decode(errors="replace"))
    at = data.find(_LENGTH, 0, end)
    if at < 0:
        raise WrongAnswer(f"the answer has no length: {data[:end].decode(errors='replace')}")
    return end + 4 + int(data[at + len(_LENGTH) : data.index(b"\r", at)])


def send_requests(port: int, requests: Requests, connections: int, seconds: float) -> Load:
    """Keep one request in flight on each connection for some seconds."""
    source = requests()
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    began: dict[int, float] = {}
    partial: dict[int, bytes] = {}
    latencies = array("d")
    for _ in range(connections):
        opened = _connect(port)
        sockets[opened.fileno()] = opened
        poll.register(opened.fileno(), select.EPOLLIN)
    cpu, start = time.process_time(), time.perf_counter()
    end = start + seconds
    for number, opened in sockets.items():
        began[number] = time.perf_counter()
        opened.sendall(next(source))
    in_flight = connections
    now = start
    while in_flight:
        ready = poll.poll(_ANSWER_S_MAX)
        if not ready:
            raise WrongAnswer(f"no answer within {_ANSWER_S_MAX:g} s")
        for number, _ in ready:
            opened = sockets[number]
            data = partial.pop(number, b"") + opened.recv(_RECEIVE_BYTES)
            if not data:
                raise WrongAnswer("the service has closed a connection")
            size = answer_size(data)
            if not size or len(data) < size:
                partial[number] = data
                continue
            now = time.perf_counter()
            latencies.append(now - began[number])
            if now < end:
                began[number] = now
                opened.sendall(next(source))
            else:
                in_flight -= 1
    for opened in sockets.values():
        opened.close()
    ordered = sorted(latencies)
    return Load(
        len(ordered), now - start, time.process_time() - cpu, 1000 * ordered[len(ordered) // 2],
        1000 * ordered[int(len(ordered) * 0.99)],
    )  # fmt: skip


def _connect(port: int) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), _ANSWER_S_MAX)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class _Lines:
    """Counts the JSON objects of a stream, each of which ends a line."""

    def __init__(self) -> None:
        self.count = 0
        self._last = b""

    def add(self, data: bytes) -> None:
        """Take the next bytes of an answer. Raise WrongAnswer if its first bytes are not those of status 200."""
        if not data or (not self._last and not data.startswith(b"HTTP/1.1 200")):
            raise WrongAnswer(data[:1000].decode(errors="replace") or "the service has closed the connection")
        self.count += (self._last + data).count(b"}\n")
        self._last = data[-1:]


def stream_records(port: int, path: str, record: bytes, seconds: float, per_chunk: int = 200) -> Load:
    """Send records as one request of unknown length, for some seconds, and read the result of each."""
    lines = _Lines()
    body = record * per_chunk
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    )
    with _connect(port) as opened:
        opened.setblocking(False)
        cpu, start = time.process_time(), time.perf_counter()
        waiting = memoryview(f"{head}\r\n".encode() + chunk)
        sent, is_ended, last = per_chunk, False, start
        while not is_ended or lines.count < sent:
            readable, writable, _ = select.select([opened], [opened] if waiting else [], [], _ANSWER_S_MAX)
            if readable:
                lines.add(opened.recv(_RECEIVE_BYTES))
                last = time.perf_counter()
            elif not writable:
                raise WrongAnswer(f"no result within {_ANSWER_S_MAX:g} s")
            if writable:
                waiting = waiting[opened.send(waiting) :]
            if not waiting and not is_ended:
                is_ended = time.perf_counter() - start > seconds
                waiting = memoryview(b"0\r\n\r\n" if is_ended else chunk)
                sent += 0 if is_ended else per_chunk
        return Load(lines.count, last - start, time.process_time() - cpu)


def read_records(port: int, path: str) -> Load:
    """Read a stream of records up to its end."""
    lines = _Lines()
    with _connect(port) as opened:
        cpu, start = time.process_time(), time.perf_counter()
        opened.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        last = start
        while data := opened.recv(_RECEIVE_BYTES):
            lines.add(data)
            last = time.perf_counter()
        return Load(lines.count, last - start, time.process_time() - cpu)
