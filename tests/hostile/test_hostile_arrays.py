"""Requests that consist of very many elements, for every array of every API."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.hostile.harness import MIB, Attacked, scaled
from tests.served_apis import served_apis

from ottla.testing.raw import Closed, RawClient, fetch_from, fetch_request, request_bytes
from ottla.wire import REQUEST_ELEMENTS_MAX, request_class
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.schema import Array

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

#: with room for the elements of the arrays around the large one
ELEMENTS = scaled(1_000, REQUEST_ELEMENTS_MAX - 10)
PRODUCE, FETCH = 0, 1
Path = tuple[str, ...]


def arrays_of(cls: type[Any], version: int) -> Iterator[Path]:
    """Every array of a message, as the names of the fields that lead to it."""
    for field in cls.FIELDS:
        if field.is_in(version) and not field.is_tagged_in(version):
            element = field.type
            if isinstance(element, Array):
                yield (field.name,)
                element = element.element
            if not isinstance(element, str):
                yield from ((field.name, *path) for path in arrays_of(element, version))


def message_with(cls: type[Any], version: int, path: Path | None, count: int, serial: int = 0) -> Any:
    """A message whose array at ``path`` has ``count`` elements with different names, and whose others have one."""
    values = {}
    for field in cls.FIELDS:
        if field.is_in(version) and not field.is_tagged_in(version):
            rest = path[1:] if path and path[0] == field.name else None
            values[field.name] = _value(field.type, version, rest, count, serial)
    return cls(**values)


def _value(field_type: Any, version: int, path: Path | None, count: int, serial: int) -> Any:
    if isinstance(field_type, Array):
        if path == ():
            return [_value(field_type.element, version, None, count, number) for number in range(count)]
        return [_value(field_type.element, version, path, count, serial)]
    if not isinstance(field_type, str):
        return message_with(field_type, version, path, count, serial)
    if field_type == "uuid":
        return struct.pack(">qq", 1, serial)
    values = {"string": f"n{serial}", "bytes": b"", "records": b"", "bool": False, "float64": 0.0, "int32": serial}
    return values.get(field_type, 0)


def elements_in(path: Path, cls: type[Any], version: int, count: int) -> int:
    """How many elements of the array at ``path`` make ``count`` elements in all, with the arrays in and around it."""
    two, three = (_elements(message_with(cls, version, path, number)) for number in (2, 3))
    return (count - two) // (three - two)


def _elements(value: Any) -> int:
    if isinstance(value, list | tuple):
        return len(value) + sum(_elements(each) for each in value)
    return sum(_elements(getattr(value, field.name)) for field in value.FIELDS) if hasattr(value, "FIELDS") else 0


def answered(target: Attacked, frame: bytes) -> bool:
    """Send a frame; False if the broker closed the connection instead of answering."""
    with RawClient(target.bootstrap, timeout_s=60) as client:
        try:
            client.send_frame(frame)
        except Closed:
            return False
        return client.answers_or_closes() is not None


def test_largest_arrays_of_every_api() -> None:
    with Attacked({"auto.create.topics.enable": "false"}) as target:
        for api_key, api in sorted(served_apis().items()):
            if api_key not in (PRODUCE, FETCH):
                cls, version = request_class(api_key), api.version_max
                for path in arrays_of(cls, version):
                    count = elements_in(path, cls, version, ELEMENTS)
                    request = message_with(cls, version, path, count)
                    assert answered(target, request_bytes(request, version, 1)), (cls.__name__, path)
        target.report().check()


def test_arrays_beyond_the_limit_close_the_connection() -> None:
    with Attacked() as target:
        for api_key in (2, 3, 8, 9, 32):
            cls, version = request_class(api_key), served_apis()[api_key].version_max
            path = next(iter(arrays_of(cls, version)))
            request = message_with(cls, version, path, REQUEST_ELEMENTS_MAX + 1)
            assert not answered(target, request_bytes(request, version, 1)), cls.__name__
        target.report().check()


def tiny_elements(start: bytes, element: bytes) -> bytes:
    """A frame of nearly 8 MB that claims and holds as many elements as fit."""
    count = (8 * MIB - len(start) - 100) // len(element)
    return start + struct.pack(">i", count) + element * count


@pytest.mark.parametrize(
    ("start", "element"),
    [
        (struct.pack(">hhihiiiib", 1, 4, 1, -1, -1, 0, 1, 1, 0), struct.pack(">hi", 0, 0)),
        (struct.pack(">hhihiiiibiHci", 1, 4, 1, -1, -1, 0, 1, 1, 0, 1, 1, b"t", 0)[:-4], struct.pack(">iqi", 0, 0, 0)),
        (struct.pack(">hhih", 3, 8, 1, -1), struct.pack(">h", 0)),
        (struct.pack(">hhihhihh", 8, 7, 1, -1, 1, 0, 0, 0)[:-2] + struct.pack(">h", -1), struct.pack(">hi", 0, 0)),
    ],
    ids=["fetch-topics", "fetch-partitions", "metadata-topics", "commit-topics"],
)
def test_eight_megabytes_of_elements_close_the_connection(start: bytes, element: bytes) -> None:
    frame = tiny_elements(start, element)
    with Attacked() as target:
        for _ in range(scaled(1, 20)):
            assert not answered(target, frame)
        target.report().check()


def test_many_clients_with_the_largest_requests_at_once() -> None:
    """Each takes up to 100 ms, and together they would take seconds: the bystander is served between them."""
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(scaled(5_000, REQUEST_ELEMENTS_MAX))]
    metadata = request_bytes(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9, 1)
    rows = [fetch_from(number, 0) for number in range(scaled(5_000, 20_000))]
    fetch = request_bytes(fetch_request({"unknown": rows}), 12, 1)
    with Attacked() as target:
        send_together(target, [metadata, fetch] * scaled(4, 15))
        target.report().check()


def test_many_clients_with_small_requests_that_have_large_replies() -> None:
    """60 bytes each; the replies name every partition of the broker, and each takes 10 to 20 ms."""
    partitions = scaled(1_000, 10_000)
    with Attacked() as target:
        with RawClient(target.bootstrap, timeout_s=60) as client:
            client.create_topic("wide", partitions)
        target.measure()
        for round_number in range(scaled(2, 10)):
            frames = [request_bytes(DescribeLogDirsRequest(topics=None), 4, 1)] * 10
            for number in range(10):
                names = [MetadataRequestTopic(name=name) for name in ("wide", f"unknown-{round_number}-{number}")]
                frames.append(request_bytes(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9, 1))
            send_together(target, frames)
        target.report().check()


def send_together(target: Attacked, frames: Sequence[bytes]) -> None:
    """Send each frame on a connection of its own, all but its last byte first, and take the answers."""
    clients = [RawClient(target.bootstrap, timeout_s=60) for _ in frames]
    try:
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(struct.pack(">i", len(frame)) + frame[:-1])
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(frame[-1:])
        for client in clients:
            client.receive_frame()
    finally:
        for client in clients:
            client.close()
