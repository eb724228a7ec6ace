"""W3C's `traceparent` in records, and which requests are traced."""

from __future__ import annotations

import pytest

from ottla.env.tracing import Context, Sampling, find_traceparent, parse_traceparent
from ottla.model.batch import HEADER_BYTES
from ottla.model.records import Record, build_batch

TEXT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = Context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, CONTEXT),
        (TEXT[:-2] + b"00", CONTEXT._replace(is_sampled=False)),
        (b"cc" + TEXT[2:] + b"-more", CONTEXT),
        (TEXT + b"-more", None),
        (b"ff" + TEXT[2:], None),
        (TEXT.upper(), None),
        (TEXT[:-1], None),
        (b"00-" + b"0" * 32 + TEXT[35:], None),
        (TEXT[:36] + b"0" * 16 + b"-01", None),
        (b"", None),
    ],
)
def test_traceparent_is_parsed_as_the_recommendation_says(text: bytes, expected: Context | None) -> None:
    assert parse_traceparent(text) == expected


def batch(*headers: tuple[str, bytes | None], value: bytes = b"v") -> bytearray:
    first = Record(timestamp=1, key=None, value=b"without headers")
    return bytearray(build_batch([first, Record(timestamp=1, key=b"k", value=value, headers=headers)]))


def find(records: bytearray) -> Context | None:
    return find_traceparent(records, HEADER_BYTES, len(records))


def test_header_of_any_record_of_a_batch_is_found() -> None:
    assert find(batch(("other", b"x"), ("traceparent", TEXT), ("last", None))) == CONTEXT


def test_first_valid_header_counts() -> None:
    assert find(batch(("traceparent", b"x"), ("traceparent", b"?" * 55), ("traceparent", TEXT))) == CONTEXT


@pytest.mark.parametrize(
    "records",
    [
        batch(),
        batch(("traceparent", None)),
        batch(("traceparent", b"x" * 54)),
        batch(("my-traceparent", TEXT)),
        batch(value=b"traceparent" + TEXT),
        batch(value=b"traceparent"),
        bytearray(b"traceparent"),
        bytearray(b"\x16traceparent\x6e" + TEXT[:50]),
    ],
)
def test_other_bytes_are_no_header(records: bytearray) -> None:
    assert find_traceparent(records, 0, len(records)) is None


def test_search_ends_with_the_batch() -> None:
    records = batch(("traceparent", TEXT))
    assert find_traceparent(records, HEADER_BYTES, len(records) - 2) is None


def sampling(ratio: float, *, per_second_max: int = 1000) -> tuple[Sampling, list[float], list[float]]:
    """Return a sampling, its random numbers and its clock."""
    numbers, now = [0.5], [0.0]
    return (
        Sampling(ratio, per_second_max, random=lambda: numbers[0], monotonic=lambda: now[0]),
        numbers,
        now,
    )


def test_share_of_requests_without_a_parent_is_traced() -> None:
    chosen, numbers, _ = sampling(0.5)
    assert [chosen.wants(None) for numbers[0] in (0.0, 0.49, 0.5, 0.99)] == [True, True, False, False]
    nothing, _, _ = sampling(0.0)
    numbers[0] = 0.0
    assert not nothing.wants(None)


def test_parent_decides_alone() -> None:
    chosen, _, _ = sampling(0.0)
    assert chosen.wants(CONTEXT)
    every, _, _ = sampling(1.0)
    assert not every.wants(CONTEXT._replace(is_sampled=False))


def test_clients_cannot_exceed_the_limit_per_second() -> None:
    chosen, _, now = sampling(0.0, per_second_max=3)
    assert [chosen.wants(CONTEXT) for _ in range(5)] == [True, True, True, False, False]
    now[0] = 1.0
    assert chosen.wants(CONTEXT)
