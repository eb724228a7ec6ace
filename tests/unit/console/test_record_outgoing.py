"""Records that people produce with a form, records that are produced again, and records that are looked up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_record_decoding import FakeRegistry
from test_record_scan import FakeLog, batch_of

from ottla.client.registry import RegisteredSchema, RegistryError
from ottla.edge.console.records import outgoing
from ottla.edge.console.records.decoding import Codecs, Decoder
from ottla.edge.console.records.lookup import batch_row, find_record
from ottla.edge.console.records.outgoing import BadRecord, Headers, Outgoing
from ottla.edge.console.records.view import ABORTED
from ottla.model.records import Record, build_batch


class FakeSubjects(FakeRegistry):
    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        if subject != "orders-value":
            raise RegistryError(404, 40401, "there is no such subject")
        return self.schemas[1]


@pytest.mark.parametrize(
    ("kind", "text", "data"),
    [
        ("text", "für", "für".encode()), ("text", "", b""), ("json", '{"a": 1.50}', b'{"a": 1.50}'),
        ("hex", "00 ff\n1A", b"\0\xff\x1a"), ("null", "ignored", None),
    ],
)  # fmt: skip
def test_texts_become_bytes(kind: str, text: str, data: bytes | None) -> None:
    assert outgoing.encode("value", kind, text).data == data


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json", "{", "not JSON"), ("json", "NaN", "not JSON"), ("json", "[" * 100_000, "not JSON"),
        ("hex", "0", "hexadecimal"), ("hex", "zz", "hexadecimal"), ("text", "\ud800", "surrogate"),
    ],
)  # fmt: skip
def test_text_that_is_not_of_its_format_says_which_field(kind: str, text: str, reason: str) -> None:
    with pytest.raises(BadRecord, match=rf"^key: .*{reason}"):
        outgoing.encode("key", kind, text)


def with_schema(text: str, schema_id: int | None = None, subject: str = "orders-value") -> Outgoing:
    registry = FakeSubjects()
    schema = outgoing.find_schema(registry, "value", subject, schema_id)
    return outgoing.encode_with_schema("value", text, schema, registry, Codecs())


def test_value_is_checked_against_its_schema() -> None:
    made = with_schema('{"name": "Ana"}')
    assert made.data == b"\0\0\0\0\x01\x06Ana" and "schema id 1" in made.words()
    assert with_schema('{"id": 7}', 2).data == b'\0\0\0\0\x02{"id":7}'
    for text, schema_id, reason in (
        ('{"name": 5}', None, "does not fit schema 1: /name"), ('{"id": "x"}', 2, "does not fit schema 2"),
        ("{", None, "not JSON"), ("{}", 99, "no schema 99"), ("{}", 4, "cannot be used"),
    ):  # fmt: skip
        with pytest.raises(BadRecord, match=reason):
            with_schema(text, schema_id)
    with pytest.raises(BadRecord, match="no subject other-value"):
        with_schema("{}", subject="other-value")


HEADERS = st.lists(
    st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6) | st.text(max_size=6).map(str.encode)), max_size=5
)


@given(headers=HEADERS)
def test_headers_are_written_as_lines_that_mean_the_same_or_not_at_all(headers: Headers) -> None:
    lines = outgoing.header_lines(headers)
    if lines is not None:
        assert outgoing.parse_headers(lines.replace("\n", "\r\n")) == headers


def test_usual_headers_are_written_as_lines() -> None:
    headers: Headers = [("type", b"refund"), ("type", b"a: b"), ("raw", b"\xff"), ("none", None), ("empty", b"")]
    assert outgoing.header_lines(headers) == "type: refund\ntype: a: b\nraw: hex:ff\nnone\nempty: "
    for text, reason in ((": x", "line 1 has no name"), ("a: hex:0", "line 1"), ("a\n" * 2000, "are allowed")):
        with pytest.raises(BadRecord, match=reason):
            outgoing.parse_headers(text)


@given(data=st.none() | st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_bytes_in_a_form_become_the_same_bytes(data: bytes | None) -> None:
    kind, text = outgoing.as_text(Decoder(None, Codecs()).decode(data), data)
    # A browser sends \r\n for each line end, and the console makes it \n again.
    sent = text.replace("\n", "\r\n").replace("\r\n", "\n")
    assert outgoing.encode("value", kind, sent).data == data


def test_large_values_and_values_with_a_schema_have_their_own_formats() -> None:
    large = b"x" * (outgoing.EDITED_BYTES_MAX + 1)
    decoder = Decoder(FakeRegistry(), Codecs())
    assert outgoing.as_text(decoder.decode(large), large) == ("same", "")
    framed = b"\0\0\0\0\x01\x06Ana"
    kind, text = outgoing.as_text(decoder.decode(framed), framed)
    assert kind == "schema" and with_schema(text).data == framed


# -- lookup -----------------------------------------------------------------------------------------------------------


def lookup(log: FakeLog, offset: int) -> tuple[int | None, str, int | None]:
    found = find_record(log, 0, offset, Decoder(None, Codecs()))
    return None if found.view is None else found.view.offset, found.absence, found.next_offset


def test_record_is_found_by_its_offset_and_gaps_name_the_next_one() -> None:
    log = FakeLog(starts={0: 10})
    log.add(0, batch_of(10, [b"a", b"b", b"c"], step=3))
    log.add(0, batch_of(30, [b"d"]), ABORTED)
    assert lookup(log, 13) == (13, "", None)
    assert lookup(log, 11) == (None, "compaction has removed it", 13)
    assert lookup(log, 20) == (None, "compaction has removed it", 30)
    assert "begins at offset 10" in lookup(log, 3)[1] and lookup(log, 3)[2] == 10
    assert "last offset is 30" in lookup(log, 31)[1]
    assert "empty" in lookup(FakeLog(partitions={0: []}), 0)[1]
    assert find_record(log, 0, 30, Decoder(None, Codecs())).view.state == ABORTED  # type: ignore[union-attr]


def test_marker_and_damaged_batch_are_named() -> None:
    log = FakeLog()
    for base, key in ((0, b"\0\0\0\1"), (1, b"\0\0\0\0"), (2, b"")):
        log.add(0, build_batch([Record(key=key)], base_offset=base, producer_id=7, producer_epoch=1,
                               transactional=True, control=True))  # fmt: skip
    texts = [lookup(log, offset)[1] for offset in range(3)]
    assert "commit, of producer 7 with epoch 1" in texts[0] and "abort" in texts[1] and "unreadable" in texts[2]
    damaged = bytearray(batch_of(3, [b"x" * 20] * 3))
    damaged[61:66] = b"\xff" * 5
    log.add(0, bytes(damaged))
    assert "damaged" in lookup(log, 3)[1] and lookup(log, 3)[2] == 6
    batch = find_record(log, 0, 3, Decoder(None, Codecs())).batch
    assert batch is not None and batch_row(batch)["is_checksum_right"] is False
