"""Embedded formats without a schema, headers, partitions and times."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.edge.rest.records import decode_plain, encode_plain, iso_time, read_headers, read_partition, read_time
from ottla.edge.web.app import HttpError


@pytest.mark.parametrize(
    ("form", "data", "payload"),
    [
        ("BINARY", "AAE=", b"\0\1"), ("BINARY", "", b""), ("BINARY", None, None),
        ("JSON", {"b": [1, 2.5, "ä", None, True]}, '{"b":[1,2.5,"ä",null,true]}'.encode()), ("JSON", 0, b"0"),
        ("JSON", None, None), ("STRING", "ä", "ä".encode()), ("STRING", None, None),
    ],
)  # fmt: skip
def test_data_become_bytes_and_data_again(form: str, data: Any, payload: bytes | None) -> None:
    assert encode_plain(form, data) == payload
    assert decode_plain(form, payload) == data


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("BINARY", 1), ("BINARY", "a"), ("BINARY", "AA=A"), ("BINARY", "A A="), ("BINARY", "ä"), ("BINARY", {}),
        ("STRING", 1), ("STRING", ["a"]), ("STRING", "\ud800"), ("JSON", "\udfff"), ("JSON", float("inf")),
    ],
)  # fmt: skip
def test_data_of_another_format_are_rejected(form: str, data: Any) -> None:
    with pytest.raises(HttpError) as caught:
        encode_plain(form, data)
    assert (caught.value.status, caught.value.error_code) == (400, 400)


@pytest.mark.parametrize(
    ("form", "payload"), [("JSON", b"\xff"), ("JSON", b"{"), ("JSON", b"NaN"), ("STRING", b"\xff")]
)
def test_bytes_of_another_format_are_an_error(form: str, payload: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        decode_plain(form, payload)
    assert (caught.value.status, caught.value.error_code) == (422, 42203)


def test_headers_are_read() -> None:
    assert read_headers(None) is None
    assert read_headers([{"name": "a", "value": "AA=="}, {"name": "a"}]) == [("a", b"\0"), ("a", None)]
    for found in ({}, [1], [{"value": "AA=="}], [{"name": "a", "value": 1}], [{"name": "a"}] * 1001):
        with pytest.raises(HttpError):
            read_headers(found)


def test_partitions_and_times_are_read() -> None:
    assert (read_partition(None), read_partition(7)) == (None, 7)
    for found, status in (("7", 400), (1.5, 400), (True, 400), (-1, 404), (1 << 40, 404)):
        with pytest.raises(HttpError) as caught:
            read_partition(found)
        assert caught.value.status == status
    assert read_time("2021-02-05T19:14:42Z") == read_time("2021-02-05T20:14:42+01:00") == 1612552482000
    assert read_time(None) == 0
    for found in ("yesterday", 5, "2021-02-05T19:14:42", "1950-01-01T00:00:00Z", {}):
        with pytest.raises(HttpError):
            read_time(found)
    assert iso_time(10**18) is None
