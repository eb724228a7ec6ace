"""How a record is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Message

from ottla.cli.record_format import compile_format, decode_escapes, render_envelope


def message(**changes: Any) -> Message:
    fields: dict[str, Any] = {
        "topic": "orders", "partition": 2, "offset": 41, "key": b"k1", "value": b"v1", "timestamp": (1, 1700),
        "headers": [("a", b"1"), ("n", None)],
    }  # fmt: skip
    return Message(**(fields | changes))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%t", b"orders"),
        ("%p", b"2"),
        ("%o", b"41"),
        ("%T", b"1700"),
        ("%k", b"k1"),
        ("%s", b"v1"),
        ("%v", b"v1"),
        ("%K %S", b"2 2"),
        ("%h", b"a=1,n="),
        ("%%", b"%"),
        ("%k{hex}", b"6b31"),
        ("%s{base64}", b"djE="),
        (r"%t\t%o\n", b"orders\t41\n"),
        (r"\x00\\", b"\x00\\"),
        ("key=%k é", "key=k1 é".encode()),
        ("", b""),
    ],
)
def test_each_token_shows_its_part(template: str, text: bytes) -> None:
    assert compile_format(template)(message()) == text


@pytest.mark.parametrize("template", ["%q", "%t{hex}", "%k{rot13}", "%k{}"])
def test_a_token_that_does_not_exist_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="not a token"):
        compile_format(template)


def test_null_is_empty_unless_a_word_is_given_for_it() -> None:
    null = message(key=None, value=None)
    assert compile_format("[%k][%s]")(null) == b"[][]"
    assert compile_format("[%k][%s]", null=b"NULL")(null) == b"[NULL][NULL]"


def test_null_has_length_minus_one() -> None:
    assert compile_format("%K %S")(message(key=None, value=b"")) == b"-1 0"


def test_a_pipe_gets_the_bytes_as_they_are() -> None:
    assert compile_format("%s")(message(value=b"\x1b[2J\xff\x00")) == b"\x1b[2J\xff\x00"


def test_a_terminal_gets_control_characters_as_escapes() -> None:
    shown = compile_format("%s\n", terminal=True)(message(value=b"a\tb\nc\x1b[2J\x9b\xc2\x9b\xff"))
    assert shown == b"a\tb\nc\\x1b[2J\\x9b\\x9b\\xff\n"


def test_text_stays_text_on_a_terminal() -> None:
    assert compile_format("%s", terminal=True)(message(value="naïve ☕".encode())) == "naïve ☕".encode()


def test_a_delimiter_may_have_escapes_and_percent_signs() -> None:
    assert decode_escapes(r"%\x1e\n") == b"%\x1e\n"


def test_the_envelope_has_kcat_fields() -> None:
    assert json.loads(render_envelope(message())) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "tstype": "create",
        "ts": 1700,
        "headers": ["a", "1", "n", None],
        "key": "k1",
        "payload": "v1",
    }


def test_the_envelope_is_one_line_even_when_the_value_is_not() -> None:
    assert render_envelope(message(value=b"a\nb")).count(b"\n") == 1


def test_the_envelope_says_when_bytes_are_base64() -> None:
    envelope = json.loads(render_envelope(message(value=b"\xff\x00", key=None)))
    assert (envelope["payload"], envelope["payload_encoding"], envelope["key"]) == ("/wA=", "base64", None)
