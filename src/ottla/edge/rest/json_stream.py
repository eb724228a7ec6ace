"""Splits a stream of concatenated JSON objects, which arrive in pieces of any size, into objects. Pure.

Each character is looked at a bounded number of times, however small the pieces are: an object that is not complete is
scanned for its end piece by piece, and parsed when the end is there.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from json.decoder import WHITESPACE  # type: ignore[attr-defined]
from typing import Any, Final

from ottla.edge.rest.bodies import DECODER
from ottla.edge.rest.errors import bad_request
from ottla.edge.web.app import HttpError

#: what changes the depth or the kind of text, outside of and inside of strings
_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_INSIDE: Final = re.compile(r'["\\]')


class JsonStream:
    """Takes pieces of bytes and returns the objects that are complete."""

    def __init__(self, object_size_max: int, charset: str = "utf-8") -> None:
        self._size_max = object_size_max
        self._decoder = codecs.getincrementaldecoder(charset)()
        #: the beginning of an object whose end has not arrived; None between objects
        self._begun: io.StringIO | None = None
        # The scan of that object.
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, piece: bytes, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        """Return the objects that this piece completes.

        Raise HttpError 400 if the text is not a sequence of JSON objects, and 413 if one of them is too large.
        """
        try:
            text = self._decoder.decode(piece, is_last)
        except UnicodeDecodeError:
            raise bad_request("the body is not UTF-8") from None
        start = 0
        if self._begun is not None:
            end = self._scan(text, 0)
            self._begun.write(text if end is None else text[:end])
            self._check_size(self._begun.tell())
            if end is not None:
                whole, self._begun, start = self._begun.getvalue(), None, end
                yield _parse(whole, 0)[0]
        if self._begun is None:
            yield from self._parse_complete(text, start)
        if is_last and self._begun is not None:
            raise bad_request("the body ends in the middle of a record")

    def _parse_complete(self, text: str, start: int) -> Iterator[dict[str, Any]]:
        """Return the objects of a text, and keep the beginning of one that is not complete."""
        while True:
            start = WHITESPACE.match(text, start).end()
            if start == len(text):
                return
            if text[start] != "{":
                raise bad_request(f"a record must be a JSON object; this one starts with {text[start]!r}")
            try:
                found, end = DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                self._depth, self._in_string, self._is_escaped = 0, False, False
                if self._scan(text, start) is not None:
                    _parse(text, start)
                self._begun = io.StringIO()
                self._begun.write(text[start:])
                self._check_size(len(text) - start)
                return
            self._check_size(end - start)
            yield found
            start = end

    def _check_size(self, size: int) -> None:
        if size > self._size_max:
            raise HttpError(413, 413, f"a record is larger than {self._size_max:,} bytes")

    def _scan(self, text: str, position: int) -> int | None:
        """Go on with the scan of the object that has begun. Return where it ends, or None."""
        if self._is_escaped and text:
            position += 1
            self._is_escaped = False
        while True:
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if match is None:
                return None
            position = match.end()
            sign = match[0]
            if sign == "\\":
                if position == len(text):
                    self._is_escaped = True
                    return None
                position += 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif sign in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return position


def _parse(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the object at a position and its end. Raise HttpError 400 if it is not valid."""
    try:
        return DECODER.raw_decode(text, start)
    except RecursionError:
        raise bad_request("a record is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"a record is not valid JSON: {error}") from None
