"""The benchmark of the edge services: how answers are read, and its tables. Its speed never decides a test."""

from __future__ import annotations

import pytest
from benchmarks.edge import Row, Sample, by_id, new_schemas, render
from benchmarks.http_load import Load, WrongAnswer, answer_size, request_bytes


def test_size_of_an_answer_is_known_when_its_head_is_complete() -> None:
    head = b"HTTP/1.1 200 OK\r\ndate: x\r\ncontent-length: 5\r\n\r\n"
    assert answer_size(head[:-1]) == 0
    assert answer_size(head) == answer_size(head + b"12345HTTP") == len(head) + 5
    with pytest.raises(WrongAnswer, match="no length"):
        answer_size(b"HTTP/1.1 200 OK\r\n\r\n")
    with pytest.raises(WrongAnswer, match="404"):
        answer_size(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


def test_requests_have_the_length_of_their_body() -> None:
    request = request_bytes("POST", "/x", b"{}")
    assert request.startswith(b"POST /x HTTP/1.1\r\n")
    assert request.endswith(b"content-length: 2\r\n\r\n{}")
    assert b"content-length" not in request_bytes("GET", "/x")


def test_each_registration_has_a_schema_of_its_own() -> None:
    source = new_schemas(1)
    assert len({next(source) for _ in range(5)}) == 5
    cycle = by_id([1, 2])
    assert [next(cycle), next(cycle)] == [next(cycle), next(cycle)]


def test_table_has_medians_and_the_cost_of_a_request() -> None:
    row = Row("find a schema by id", "requests", 1, "registry", lambda seconds: Load(1, 1.0, 0.1))
    samples = [Sample(rate, 1.5, 9.0, 80.0, 0.99, 0.5) for rate in (900.0, 1234.0, 2000.0)]
    table = render({row: samples}, {"registry": (0.53, 32.4, 41.0)}, "3 rounds of 4 s")
    assert "| registry: find a schema by id | 1,234 requests | 1.50 / 9.00 | 80 µs | 99% | 50% |" in table
    assert "| registry | 0.53 s | 32 MB | 41 MB |" in table
