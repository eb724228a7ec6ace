"""Content negotiation: which media type of an answer a client prefers. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def choose_media_type(accept: str | None, offered: Sequence[str]) -> str | None:
    """Return the offered media type that an Accept header prefers; None if it accepts none of them.

    Without a preference, the first offered one is returned.

    >>> choose_media_type("text/html, */*;q=0.1", ["application/json"])
    'application/json'
    >>> choose_media_type("text/plain", ["application/json"]) is None
    True
    """
    if not accept or not accept.strip():
        return offered[0]
    ranges = [found for each in accept.split(",") if (found := _read_range(each)) is not None]
    # The order of the header decides between equal ones, but a name is preferred to a wildcard.
    for _, name in sorted(ranges, key=lambda found: (-found[0], found[1].count("*"))):
        for media_type in offered:
            if _matches(name, media_type):
                return media_type
    return None


def _read_range(text: str) -> tuple[float, str] | None:
    """Return the quality and the media range of an element of the header; None if the client excludes it."""
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 1.0
    return (quality, name) if name and quality > 0 else None


def _matches(wanted: str, media_type: str) -> bool:
    kind, _, subtype = wanted.partition("/")
    own_kind, _, own_subtype = media_type.partition("/")
    return kind in (own_kind, "*") and subtype in (own_subtype, "*")
