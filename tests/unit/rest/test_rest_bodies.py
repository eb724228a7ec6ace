"""Reading JSON bodies: types, bounds, hostile texts."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from ottla.edge.rest.bodies import Fields, parse_json, path_integer, query_boolean, query_integer
from ottla.edge.web.app import HttpError


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"{}{}", b"nul", b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"\xff", b"'a'", b"[1,]",
        b"[" * 1_000_000, b'{"a":' * 1_000_000, b"9" * 5000,
    ],
)  # fmt: skip
def test_texts_that_are_not_json_are_rejected(text: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        parse_json(text)
    assert (caught.value.status, caught.value.error_code) == (400, 400)


def test_json_is_parsed() -> None:
    text = '{"a": [1, 2.5, null, "ä"]}'
    assert parse_json(text.encode()) == parse_json(text.encode("latin-1"), "iso-8859-1") == {"a": [1, 2.5, None, "ä"]}


def status_of(fields: Fields, method: str, *args: object) -> int:
    with pytest.raises(HttpError) as caught:
        getattr(fields, method)("a", *args)
    return caught.value.status


@pytest.mark.parametrize(
    ("value", "method", "status"),
    [
        (1, "text", 400), (None, "text", 422), ("\ud800", "text", 400),
        ("1", "integer", 400), (1.0, "integer", 400), (True, "integer", 400), (-1, "integer", 400),
        (1 << 31, "integer", 400), (None, "integer", 422),
        ("true", "boolean", 400), (0, "boolean", 400),
        ({}, "array", 400), (None, "array", 422), ([1], "objects", 400), ([], "mapping", 400),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_rejected(value: object, method: str, status: int) -> None:
    assert status_of(Fields({"a": value}), method) == status


def test_fields_are_read_by_type() -> None:
    fields = Fields({"t": "x", "i": 5, "b": True, "c": "set", "o": [{"n": "y"}], "m": {"k": 1}})
    assert (fields.text("t"), fields.integer("i"), fields.boolean("b")) == ("x", 5, True)
    assert fields.choice("c", ("SET", "DELETE")) == "SET"
    assert fields.choice("missing", ("SET",), "SET") == "SET"
    assert [each.text("n") for each in fields.objects("o")] == ["y"]
    assert (fields.mapping("m"), fields.mapping("none"), fields.value("i")) == ({"k": 1}, {}, 5)
    assert fields.optional_integer("none") is None
    with pytest.raises(HttpError, match=r"o\[0\]\.n must be an integer, not a string"):
        fields.objects("o")[0].integer("n")
    with pytest.raises(HttpError, match="must be one of SET"):
        Fields({"c": "x" * 500}).choice("c", ("SET",))


def request(query: str = "", **path: str) -> Request:
    return Request({"type": "http", "headers": [], "query_string": query.encode(), "path_params": path})


def test_integers_of_paths_and_queries_have_bounds() -> None:
    assert path_integer(request(p="17"), "p") == 17
    for text in ("-1", "x", "1.0", "²", "9" * 30, "4294967296"):
        with pytest.raises(HttpError) as caught:
            path_integer(request(p=text), "p")
        assert caught.value.status == 404
    assert query_integer(request("n=-5"), "n", None, -10, 10) == -5
    assert query_integer(request(), "n", 3, 0, 10) == 3
    for text in ("11", "x", "²", "9" * 30, "--1"):
        with pytest.raises(HttpError) as caught:
            query_integer(request(f"n={text}"), "n", None, -10, 10)
        assert caught.value.status == 400
    assert query_boolean(request("f=TRUE"), "f")
    assert not query_boolean(request(), "f")
