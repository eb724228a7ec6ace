"""Content negotiation: which media type an Accept header prefers."""

from __future__ import annotations

import pytest

from ottla.edge.web.accept import choose_media_type

JSON, LINES = "application/json", "application/x-ndjson"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, JSON), ("", JSON), ("*/*", JSON), ("application/*", JSON), ("APPLICATION/JSON", JSON),
        (LINES, LINES), (f"{JSON}, {LINES}", JSON), (f"{LINES};q=0.5, {JSON};q=0.4", LINES),
        (f"*/*, {LINES}", LINES), ("text/html,application/xml;q=0.9,*/*;q=0.8", JSON), ("*/json", JSON),
        (f"{JSON};charset=utf-8", JSON), (f"{JSON};q=x", JSON),
        ("text/plain", None), ("text/*", None), ("*/baz", None), ("application/vnd.kafka+foo", None),
        (f"{JSON};q=0", None), (",", None), ("json", None),
    ],
)  # fmt: skip
def test_the_preferred_media_type_is_chosen(accept: str | None, expected: str | None) -> None:
    assert choose_media_type(accept, [JSON, LINES]) == expected
