"""Positions in a text some of whose parts were replaced, traced back to the text as it was written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplacedPart(NamedTuple):
    """A part of a written text, and the length of what stands in its place."""

    start: int
    end: int
    length: int


def written_position(position: int, replaced: Iterable[ReplacedPart]) -> int:
    """Return the position in the written text; inside of a replacement that of the part which it replaces.

    >>> parts = [ReplacedPart(start=2, end=4, length=5)]
    >>> [written_position(position, parts) for position in (1, 2, 6, 7)]
    [1, 2, 2, 4]
    """
    grown = 0
    for start, end, length in replaced:
        if position < start + grown:
            break
        if position < start + grown + length:
            return start
        grown += length - (end - start)
    return position - grown
