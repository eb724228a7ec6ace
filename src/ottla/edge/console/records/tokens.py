"""Splits the text of a search into tokens, each with its position. See `expression.py` for the language."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from ottla.model.errors import OttlaError

#: longer texts are refused; a URL has room for it
TEXT_CHARACTERS_MAX: Final = 2000
_TOKENS_MAX: Final = 300
_OPERATORS: Final = ("==", "!=", "<>", "<=", ">=", "!~", "=", "<", ">", "~")
#: signs that end a word
_SPECIAL: Final = frozenset("\"'()[],=<>~!")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


class BadExpression(OttlaError):
    """The text of a search cannot be read. `position` counts characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"at character {position + 1}: {reason}")
        self.reason = reason
        self.position = position


class Kind(Enum):
    """The kind of a token."""

    WORD = auto()
    STRING = auto()
    #: one of the comparison operators
    OPERATOR = auto()
    OPEN = auto()
    CLOSE = auto()
    COMMA = auto()
    #: a bracket with an index, `*` or a quoted name
    INDEX = auto()
    END = auto()


class Token(NamedTuple):
    """A token."""

    kind: Kind
    text: str
    #: of its first character
    position: int
    #: whether it follows the token before it without a space
    is_joined: bool = False


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text; the last one is END. Raise BadExpression."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadExpression(f"the search has more than {TEXT_CHARACTERS_MAX} characters; shorten it", len(text))
    found: list[Token] = []
    position, end = 0, 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            found.append(Token(Kind.END, "", position))
            return found
        if len(found) >= _TOKENS_MAX:
            raise BadExpression(f"the search has more than {_TOKENS_MAX} words and signs; shorten it", position)
        kind, content, behind = _next(text, position)
        found.append(Token(kind, content, position, bool(found) and position == end))
        position = end = behind


def _next(text: str, position: int) -> tuple[Kind, str, int]:
    """Return kind and text of the token at a position, and the position behind it."""
    sign = text[position]
    if sign in "\"'":
        content, behind = _quoted(text, position)
        return Kind.STRING, content, behind
    if sign == "[":
        return _index(text, position)
    for name, kind in (("(", Kind.OPEN), (")", Kind.CLOSE), (",", Kind.COMMA)):
        if sign == name:
            return kind, sign, position + 1
    for operator in _OPERATORS:
        if text.startswith(operator, position):
            return Kind.OPERATOR, operator, position + len(operator)
    if sign in _SPECIAL:
        raise BadExpression(f"{sign!r} has no meaning here; put texts with such signs in quotes", position)
    behind = position
    while behind < len(text) and not text[behind].isspace() and text[behind] not in _SPECIAL:
        behind += 1
    return Kind.WORD, text[position:behind], behind


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the content of a quoted text and the position behind it."""
    parts: list[str] = []
    quote, position = text[start], start + 1
    while position < len(text):
        sign = text[position]
        if sign == quote:
            return "".join(parts), position + 1
        if sign == "\\":
            sign, position = _escaped(text, position)
        else:
            position += 1
        parts.append(sign)
    raise BadExpression(f"the text that begins here has no closing {quote}", start)


def _escaped(text: str, position: int) -> tuple[str, int]:
    """Return the sign that an escape stands for, and the position behind it."""
    sign = text[position + 1 : position + 2]
    if sign == "u":
        digits = text[position + 2 : position + 6]
        try:
            return chr(int(digits, 16) if len(digits) == 4 and digits.isalnum() else -1), position + 6
        except ValueError:
            raise BadExpression("\\u takes four hexadecimal digits", position) from None
    if not sign:
        raise BadExpression("nothing follows the backslash", position)
    return _ESCAPES.get(sign, sign), position + 2


def _index(text: str, start: int) -> tuple[Kind, str, int]:
    """Return a bracket: its content is a number, `*`, or `"` and a name."""
    position = start + 1
    if text[position : position + 1] in ('"', "'"):
        name, position = _quoted(text, position)
        content = f'"{name}'
    else:
        behind = text.find("]", position)
        content, position = text[position:behind].strip(), behind
        if behind < 0 or not (content == "*" or _is_index(content)):
            raise BadExpression('write an index such as [0], [*] for any item, or ["name"]', start)
    if text[position : position + 1] != "]":
        raise BadExpression("the bracket that begins here has no closing ]", start)
    return Kind.INDEX, content, position + 1


def _is_index(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 9
