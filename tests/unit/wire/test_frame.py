"""Request headers and reply frames: what is read, what is refused, what is never looked at."""

from __future__ import annotations

from struct import error as StructError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.wire import WireError
from ottla.wire.frame import (
    HEADER_TAGS_MAX,
    TAGS_MAX,
    frame_reply,
    read_client_id,
    read_compact_length,
    read_uvarint,
    skip_client_id,
    skip_tags,
)
from ottla.wire.primitives import STRING_BYTES_MAX, write_uvarint

#: what a parser may raise; dispatch closes the connection for each
REFUSALS = (WireError, IndexError, StructError)


@pytest.mark.parametrize(("raw", "text"), [(b"\0\3abc", "abc"), (b"\0\0", ""), (b"\xff\xff", ""), (b"\0\1\xff", "�")])
def test_client_id_is_text_whatever_it_holds(raw: bytes, text: str) -> None:
    assert read_client_id(raw + b"more", 0, len(raw)) == text
    assert skip_client_id(raw + b"more", 0, len(raw)) == len(raw)


@pytest.mark.parametrize("raw", [b"\0\4abc", b"\x7f\xff", b"\xff\xfe", b"\x80\0"])
def test_client_id_that_leaves_the_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        skip_client_id(raw + b"x" * 40_000, 0, len(raw))


@given(st.integers(0, 2**35 - 1))
def test_uvarint_is_read_as_it_was_written(value: int) -> None:
    raw = write_uvarint(value)
    assert read_uvarint(b"x" + raw + b"\xff", 1) == (value, 1 + len(raw))


@pytest.mark.parametrize("raw", [b"\x80\x80\x80\x80\x80\x01", b"\xff" * 9])
def test_uvarint_of_more_than_five_bytes_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        read_uvarint(raw, 0)


def test_compact_length_zero_is_null() -> None:
    assert read_compact_length(b"\0", 0) == (-1, 1)
    assert read_compact_length(b"\1", 0) == (0, 1)


def test_compact_length_has_the_bound_of_every_string() -> None:
    assert read_compact_length(write_uvarint(STRING_BYTES_MAX + 1), 0)[0] == STRING_BYTES_MAX
    with pytest.raises(WireError):
        read_compact_length(write_uvarint(STRING_BYTES_MAX + 2), 0)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=200), max_size=20), st.binary(max_size=10))
def test_tags_are_passed_over_whatever_they_hold(tags: dict[int, bytes], behind: bytes) -> None:
    raw = write_uvarint(len(tags)) + b"".join(
        write_uvarint(tag) + write_uvarint(len(value)) + value for tag, value in tags.items()
    )
    assert skip_tags(b"before" + raw + behind, 6, 6 + len(raw) + len(behind), len(tags)) == 6 + len(raw)


@given(st.binary(max_size=60), st.integers(0, 60), st.binary(max_size=30))
def test_tags_end_within_the_frame_or_are_refused(noise: bytes, end: int, behind: bytes) -> None:
    end = min(end, len(noise))
    try:
        position = skip_tags(noise[:end] + behind, 0, end)
    except REFUSALS:
        return
    assert 0 < position <= end


def test_tags_that_begin_behind_the_frame_are_refused() -> None:
    with pytest.raises(WireError):
        skip_tags(b"\0\0\0\0", 2, 2)


@pytest.mark.parametrize(("limit", "given"), [(TAGS_MAX, ()), (HEADER_TAGS_MAX, (HEADER_TAGS_MAX,))])
def test_tags_are_limited_in_number(limit: int, given: tuple[int, ...]) -> None:
    many = write_uvarint(limit) + b"\1\0" * limit
    assert skip_tags(many, 0, len(many), *given) == len(many)
    for claimed in (limit + 1, 10**9):
        many = write_uvarint(claimed) + b"\1\0" * (limit + 1)
        with pytest.raises(WireError):
            skip_tags(many, 0, len(many), *given)


def test_reply_frame_counts_what_follows_its_size() -> None:
    assert frame_reply(7, b"body", 0) == b"\0\0\0\x08\0\0\0\x07body"
    assert frame_reply(7, b"body", 1) == b"\0\0\0\x09\0\0\0\x07\0body"
