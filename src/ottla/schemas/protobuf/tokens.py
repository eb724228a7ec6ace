"""Splits the text of a .proto file into tokens, one at a time, in time proportional to its length."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NoReturn

from ottla.schemas.schema import Budget, InvalidSchema

#: characters of one number; the longest valid ones have about 25
_NUMBER_CHARS_MAX: Final = 100

_SPACE: Final = re.compile(r"[ \t\r\n\f\v]*+")
_TOKEN: Final = re.compile(
    r"""[ \t\r\n\f\v]*+(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    |(?P<number>0[xX][0-9a-fA-F]++|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*+"|'(?:[^'\\\n]|\\[^\n])*+')
    |(?P<symbol>[^ \t\r\n\f\v]))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip


class TokenKind(StrEnum):
    """The kinds of tokens, by the names of their groups in `_TOKEN`."""

    NAME = "name"
    NUMBER = "number"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


_KINDS: Final = {kind.value: kind for kind in TokenKind}


class Tokens:
    """The current token of a text: `kind`, `value` and `at`. `advance` goes to the next one."""

    __slots__ = ("_budget", "_next", "at", "kind", "text", "value")

    def __init__(self, text: str, budget: Budget) -> None:
        self.text = text
        self._budget = budget
        self._next = 1 if text.startswith("\ufeff") else 0
        self.kind = TokenKind.END
        self.value = ""
        self.at = 0
        self.advance()

    def advance(self) -> None:
        """Read the next token. Raise InvalidSchema if the text has none there."""
        self._budget.spend()
        match = _TOKEN.match(self.text, self._next)
        if match is not None and match.group("symbol") == "/":
            match = _TOKEN.match(self.text, self._skip_space_and_comments())
        if match is None:
            self.at = self._next = len(self.text)
            self.kind, self.value = TokenKind.END, ""
            return
        name = match.lastgroup
        assert name is not None
        self.kind, self.value, self.at, self._next = _KINDS[name], match[name], match.start(name), match.end()
        if self.kind is TokenKind.NUMBER:
            self._check_number()
        elif self.kind is TokenKind.SYMBOL and self.value in "\"'":
            raise error_at(self.text, self.at, "the string does not end on its line")
        elif self.kind is TokenKind.SYMBOL and self.value < " ":
            raise error_at(self.text, self.at, "a control character is not allowed here")

    def starts_next(self, symbol: str) -> bool:
        """Return whether the token after the current one starts with this symbol."""
        return self.text.startswith(symbol, self._skip_space_and_comments())

    def fail(self, message: str) -> NoReturn:
        raise error_at(self.text, self.at, message)

    def shown(self) -> str:
        """Return the current token for an error message."""
        if self.kind is TokenKind.END:
            return "the end of the text"
        return f'"{self.value}"' if len(self.value) <= 60 else f'"{self.value[:60]}..."'

    def _skip_space_and_comments(self) -> int:
        text, at = self.text, self._next
        while True:
            space = _SPACE.match(text, at)
            assert space is not None
            at = space.end()
            if text.startswith("//", at):
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2)
                if end < 0:
                    raise error_at(text, at, "the comment has no end")
                if text.find("/*", at + 2, end) >= 0:
                    raise error_at(text, at, "block comments cannot be nested")
                at = end + 2
            else:
                return at
            self._budget.spend()

    def _check_number(self) -> None:
        if len(self.value) > _NUMBER_CHARS_MAX:
            self.fail(f"a number has at most {_NUMBER_CHARS_MAX} characters")
        following = self.text[self._next : self._next + 1]
        if following == "." or following.isalnum() or following == "_":
            self.fail(f"a number is followed by {following!r} without a space")


def error_at(text: str, at: int, message: str) -> InvalidSchema:
    """Return the error with line and column of a position in the text; -1 is an unknown position."""
    if at < 0:
        return InvalidSchema(message)
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return InvalidSchema(f"line {line}, column {column}: {message}")


def integer_value(token: str) -> int | None:
    """Return the value of a decimal, octal or hexadecimal number, None if it is none of them."""
    try:
        if token[:2] in ("0x", "0X"):
            return int(token[2:], 16)
        if len(token) > 1 and token[0] == "0" and token.isdigit():
            return int(token, 8)
        return int(token) if token.isdigit() else None
    except ValueError:
        return None


def string_bytes(token: str) -> bytes | None:
    """Return the bytes that a quoted string stands for; None if an escape sequence is invalid."""
    body = token[1:-1]
    if "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    pieces: list[bytes] = []
    done = 0
    while (start := body.find("\\", done)) >= 0:
        pieces.append(body[done:start].encode("utf-8", "surrogatepass"))
        match = _ESCAPE.match(body, start)
        piece = None if match is None else _escaped(match)
        if match is None or piece is None:
            return None
        pieces.append(piece)
        done = match.end()
    pieces.append(body[done:].encode("utf-8", "surrogatepass"))
    return b"".join(pieces)


def _escaped(match: re.Match[str]) -> bytes | None:
    hexadecimal, octal, short, long, other = match.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if short is not None or long is not None:
        code = int(short or long, 16)
        return chr(code).encode("utf-8", "surrogatepass") if code < 0x110000 else None
    return _ESCAPED.get(other)
