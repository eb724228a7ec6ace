"""Every client reads what every client wrote: values, keys, headers, timestamps, in every compression.

There is a topic for each codec. Every writer produces the same records to it, once; every reader reads the topic, once.
A reader meets batches of all writers side by side, and each pair of writer and reader is compared in each codec.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from drivers import CODECS, Reader, Record, Writer
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

#: with the console tools of Apache Kafka, which need Java
JAVA = pytest.param("java_tools", marks=pytest.mark.foreign)


class Written(NamedTuple):
    """What stands in the topics."""

    topics: dict[str, str]
    #: by codec, the client and its records, in the order of the log
    parts: dict[str, list[tuple[str, Record]]]
    #: by name of its fixture, why a client wrote nothing
    missing: dict[str, str]


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, new_topic: NewTopic) -> Written:
    made = Written({codec: new_topic() for codec in CODECS}, {codec: [] for codec in CODECS}, {})
    for parameter in [*WRITERS, JAVA]:
        (name,) = parameter.values
        try:
            writer: Writer = request.getfixturevalue(name)
        except pytest.skip.Exception as missing:
            made.missing[name] = str(missing)
            continue
        expected = [writer.expresses(record) for record in RECORDS]
        for codec in writer.codecs:
            writer.produce(made.topics[codec], expected, codec=codec)
            made.parts[codec] += [(writer.name, record) for record in expected]
    return made


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer_name", [*WRITERS, JAVA])
def test_every_client_writes_in_every_compression(
    request: pytest.FixtureRequest, written: Written, writer_name: str, codec: str
) -> None:
    if writer_name in written.missing:
        pytest.skip(written.missing[writer_name])
    writer: Writer = request.getfixturevalue(writer_name)
    if codec not in writer.codecs:
        pytest.skip(f"{writer.name} needs a package of its own for {codec}")
    assert [name for name, _ in written.parts[codec]].count(writer.name) == len(RECORDS)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader_name", [*READERS, JAVA])
def test_records_of_every_client_are_read_by_every_client(
    request: pytest.FixtureRequest, written: Written, reader_name: str, codec: str
) -> None:
    reader: Reader = request.getfixturevalue(reader_name)
    if codec not in reader.codecs:
        pytest.skip(f"{reader.name} needs a package of its own for {codec}")
    parts = written.parts[codec]
    received = reader.consume(written.topics[codec], len(parts))
    assert [each.offset for each in received] == list(range(len(parts)))
    for each, (writer, record) in zip(received, parts, strict=True):
        shown = reader.shows(record)
        got = each.record if shown.timestamp_ms is not None else each.record.without_timestamp()
        assert (writer, got) == (writer, shown)
