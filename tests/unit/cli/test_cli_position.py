"""Where to read, in the words of kcat and rpk."""

from __future__ import annotations

import pytest

from ottla.cli.position import LogBounds, PartitionSpan, Position, Span, parse_span, parse_time_ms, resolve_span

NOW_MS = 1_800_000_000_000
NEW_YEAR_MS = 1_767_225_600_000

BEGINNING = Position("beginning")


@pytest.mark.parametrize(
    ("texts", "span"),
    [
        (("beginning",), Span(BEGINNING)),
        (("start",), Span(BEGINNING)),
        (("end",), Span(Position("end"))),
        (("42",), Span(Position("offset", 42))),
        (("-5",), Span(Position("before-end", 5))),
        (("@1000",), Span(Position("time", 1000))),
        (("s@1000",), Span(Position("time", 1000))),
        (("e@2000",), Span(BEGINNING, Position("time", 2000))),
        (("s@1000", "e@2000"), Span(Position("time", 1000), Position("time", 2000))),
        (("@1000:@2000",), Span(Position("time", 1000), Position("time", 2000))),
        (("@1000:2000",), Span(Position("time", 1000), Position("time", 2000))),
        (("@:2000",), Span(BEGINNING, Position("time", 2000))),
        (("@1000:end",), Span(Position("time", 1000), Position("end"))),
        (("3:7",), Span(Position("offset", 3), Position("offset", 7))),
        (("3:",), Span(Position("offset", 3))),
        ((":7",), Span(BEGINNING, Position("offset", 7))),
        ((":end",), Span(BEGINNING, Position("end"))),
        (("-10:end",), Span(Position("before-end", 10), Position("end"))),
        (("3:@2000",), Span(Position("offset", 3), Position("time", 2000))),
    ],
)
def test_a_position_means_what_kcat_and_rpk_mean(texts: tuple[str, ...], span: Span) -> None:
    assert parse_span(texts, NOW_MS) == span


def test_iso_times_keep_their_colons_when_a_span_is_cut_in_two() -> None:
    span = parse_span(("@2026-01-01T00:00:00Z:@2026-01-01T00:01:00Z",), NOW_MS)
    assert span == Span(Position("time", NEW_YEAR_MS), Position("time", NEW_YEAR_MS + 60_000))


def test_iso_times_need_no_second_at_sign() -> None:
    span = parse_span(("@2026-01-01T00:00:00Z:2026-01-01T00:01:00Z",), NOW_MS)
    assert span == Span(Position("time", NEW_YEAR_MS), Position("time", NEW_YEAR_MS + 60_000))


@pytest.mark.parametrize("text", ["", "stored", "1.5", "@", "@yesterday", "s@", "e@x", "1:2:3", "--1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_span((text,), NOW_MS)


def test_a_second_start_is_refused() -> None:
    with pytest.raises(ValueError, match="a second start"):
        parse_span(("5", "s@1000"), NOW_MS)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1767225600000", NEW_YEAR_MS),
        ("2026-01-01", NEW_YEAR_MS),
        ("2026-01-01T00:00:00", NEW_YEAR_MS),
        ("2026-01-01T01:00:00+01:00", NEW_YEAR_MS),
        ("2026-01-01T00:00:00.250Z", NEW_YEAR_MS + 250),
        ("-90m", NOW_MS - 5_400_000),
        ("-2d", NOW_MS - 172_800_000),
        ("-5ms", NOW_MS - 5),
    ],
)
def test_time_is_milliseconds_iso_or_a_span_before_now(text: str, time_ms: int) -> None:
    assert parse_time_ms(text, NOW_MS) == time_ms


BOUNDS = {"a": LogBounds(10, 20), "b": LogBounds(0, 3)}


def resolve(text: str) -> dict[str, PartitionSpan]:
    return resolve_span(parse_span((text,), NOW_MS), BOUNDS, lambda time_ms: {"a": 15, "b": None})


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("beginning", PartitionSpan(10), PartitionSpan(0)),
        ("end", PartitionSpan(20), PartitionSpan(3)),
        ("5", PartitionSpan(10), PartitionSpan(5)),
        ("-5", PartitionSpan(15), PartitionSpan(0)),
        ("@7", PartitionSpan(15), PartitionSpan(3)),
        ("e@7", PartitionSpan(10, 15), PartitionSpan(0, 3)),
        (":end", PartitionSpan(10, 20), PartitionSpan(0, 3)),
    ],
)
def test_a_span_becomes_offsets_of_each_partition(text: str, a: PartitionSpan, b: PartitionSpan) -> None:
    assert resolve(text) == {"a": a, "b": b}
