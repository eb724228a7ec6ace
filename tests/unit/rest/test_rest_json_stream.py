"""Concatenated JSON objects that arrive in pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ottla.edge.rest.json_stream import JsonStream
from ottla.edge.web.app import HttpError


def random_value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [random_value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 5:
        return random_object(random, depth + 1)
    return random.choice([None, True, random.randrange(-(10**20), 10**20), random_text(random)])


def random_object(random: Random, depth: int = 0) -> dict[str, Any]:
    return {random_text(random): random_value(random, depth) for _ in range(random.randrange(4))}


def random_text(random: Random) -> str:
    return "".join(random.choices('ab"\\{}[]:, \n\x00ä€😀', k=random.randrange(6)))


def split(text: bytes, cuts: list[int]) -> list[dict[str, Any]]:
    stream = JsonStream(1 << 20)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)] or [b""]
    return [each for piece in pieces for each in stream.feed(piece)] + list(stream.feed(b"", is_last=True))


@pytest.mark.parametrize("seed", range(20))
def test_objects_do_not_depend_on_where_the_text_is_cut(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        objects = [random_object(random) for _ in range(random.randrange(6))]
        separator, ascii_only = random.choice(["", "\n", " \r\n\t"]), random.random() < 0.5
        text = separator.join(json.dumps(each, ensure_ascii=ascii_only) for each in objects).encode()
        cuts = random.choices(range(len(text) + 1), k=random.randrange(20))
        assert split(text, cuts) == objects


def test_object_is_returned_with_its_last_byte() -> None:
    stream = JsonStream(1000)
    text = b'{"a":"}\\"{\xc3\xa4"}'
    for position in range(len(text) - 1):
        assert list(stream.feed(text[position : position + 1])) == []
    assert list(stream.feed(text[-1:])) == [{"a": '}"{ä'}]


@pytest.mark.parametrize(
    "text",
    [
        b"hello", b"[1]", b"1", b'{"a":1}]', b'{"a":}', b"{]", b'{"a":NaN}', b"\xff", b'{"a":"\n"}', b"{'a':1}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"a":' + b"[" * 100_000, b'{"a":1', b'{"a":"\\',
    ],
)  # fmt: skip
def test_other_texts_are_rejected(text: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        list(JsonStream(1 << 20).feed(text, is_last=True))
    assert caught.value.status == 400


@pytest.mark.parametrize("piece", [7, 10_000])
def test_too_large_objects_are_rejected_before_they_are_complete(piece: int) -> None:
    stream = JsonStream(1000)
    fed = 0

    def feed_until_refused() -> None:
        nonlocal fed
        for _ in range(2000):
            fed += piece
            assert list(stream.feed(b"x" * piece if fed > piece else b'{"a":"' + b"x" * piece)) == []

    with pytest.raises(HttpError) as caught:
        feed_until_refused()
    assert caught.value.status == 413
    assert fed <= max(1000 + piece, piece)
