"""What one client writes, every other client reads: values, keys, headers, timestamps, in every compression."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from drivers import CODECS, Reader, Record, Writer
from drivers.java import JavaTools
from drivers.parameters import READERS, WRITERS, NewTopic

_SOME_TIME_MS = 1_700_000_000_000

RECORDS = [
    Record(value=b"value", key=b"key", timestamp_ms=_SOME_TIME_MS),
    Record(value=b"no key", timestamp_ms=_SOME_TIME_MS + 1),
    Record(value=None, key=b"tombstone", timestamp_ms=_SOME_TIME_MS + 2),
    Record(value=b"", key=b"empty", timestamp_ms=_SOME_TIME_MS + 3),
    Record(value=b"headers", key=b"h", headers=(("a", b"1"), ("b", b"two")), timestamp_ms=_SOME_TIME_MS + 4),
    Record(value=b"null header", key=b"h", headers=(("n", None),), timestamp_ms=_SOME_TIME_MS + 5),
    Record(value=b"repeated", key=b"h", headers=(("r", b"1"), ("s", b""), ("r", b"2")), timestamp_ms=_SOME_TIME_MS + 5),
    # Out of order on purpose: a batch's first timestamp is not its smallest.
    Record(value="Příliš žluťoučký kůň".encode() * 500, key=b"large", timestamp_ms=_SOME_TIME_MS - 1000),
]

Written = Callable[[Writer, str], tuple[str, list[Record]]]


@pytest.fixture(scope="module")
def written(new_topic: NewTopic) -> Written:
    """Writes the records with a client and a codec once, whoever reads them."""
    topics: dict[tuple[str, str], str] = {}

    def write(writer: Writer, codec: str) -> tuple[str, list[Record]]:
        expected = [writer.expresses(record) for record in RECORDS]
        key = writer.name, codec
        if key not in topics:
            topic = new_topic()
            writer.produce(topic, expected, codec=codec)
            topics[key] = topic
        return topics[key], expected

    return write


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader_name", READERS)
@pytest.mark.parametrize("writer_name", WRITERS)
def test_records_of_every_client_are_read_by_every_client(
    request: pytest.FixtureRequest, written: Written, writer_name: str, reader_name: str, codec: str
) -> None:
    writer: Writer = request.getfixturevalue(writer_name)
    reader: Reader = request.getfixturevalue(reader_name)
    for client in (writer, reader):
        if codec not in client.codecs:
            pytest.skip(f"{client.name} needs a package of its own for {codec}")
    topic, expected = written(writer, codec)
    _check(reader, topic, expected)


@pytest.mark.foreign
@pytest.mark.parametrize("writer_name", WRITERS)
def test_java_reads_what_every_client_wrote_in_every_compression(
    request: pytest.FixtureRequest, java_tools: JavaTools, new_topic: NewTopic, writer_name: str
) -> None:
    """All in one partition: a consumer meets batches of different compression side by side."""
    writer: Writer = request.getfixturevalue(writer_name)
    expected = [writer.expresses(record) for record in RECORDS]
    topic = new_topic()
    for codec in writer.codecs:
        writer.produce(topic, expected, codec=codec)
    _check(java_tools, topic, expected * len(writer.codecs))


@pytest.fixture(scope="module")
def written_by_java(java_tools: JavaTools, new_topic: NewTopic) -> dict[str, str]:
    """A topic for each codec."""
    topics = {codec: new_topic() for codec in CODECS}
    expected = [java_tools.expresses(record) for record in RECORDS]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(java_tools.produce, topics[codec], expected, codec=codec) for codec in CODECS]:
            done.result()
    return topics


@pytest.mark.foreign
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader_name", READERS)
def test_every_client_reads_what_java_wrote(
    request: pytest.FixtureRequest, java_tools: JavaTools, written_by_java: dict[str, str], reader_name: str, codec: str
) -> None:
    reader: Reader = request.getfixturevalue(reader_name)
    if codec not in reader.codecs:
        pytest.skip(f"{reader.name} needs a package of its own for {codec}")
    _check(reader, written_by_java[codec], [java_tools.expresses(record) for record in RECORDS])


def _check(reader: Reader, topic: str, expected: list[Record]) -> None:
    received = reader.consume(topic, len(expected))
    assert [each.offset for each in received] == list(range(len(expected)))
    for each, record in zip(received, expected, strict=True):
        shown = reader.shows(record)
        got = each.record if shown.timestamp_ms is not None else each.record.without_timestamp()
        assert got == shown
