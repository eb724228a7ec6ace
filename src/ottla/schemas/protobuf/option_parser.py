"""Reads options of a .proto file: their names and their values, which may be messages in the text format."""

from __future__ import annotations

from typing import Final

from ottla.schemas.protobuf.model import Kind, Literal, NamePart, Option, Value
from ottla.schemas.protobuf.tokens import TokenKind, Tokens, string_bytes

#: messages and lists inside of each other in the value of one option
_OPTION_DEPTH_MAX: Final = 32


class OptionParser:
    """Reads from the current token on and stops behind what it has read. Raise InvalidSchema if that is no option."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def consume(self, symbol: str) -> None:
        if not self.try_consume(symbol):
            self._tokens.fail(f'expected "{symbol}", found {self._tokens.shown()}')

    def try_consume(self, value: str) -> bool:
        """Go on and return True if the current token is this symbol or word."""
        tokens = self._tokens
        if tokens.value == value and tokens.kind in (TokenKind.SYMBOL, TokenKind.NAME):
            tokens.advance()
            return True
        return False

    def looking_at(self, value: str) -> bool:
        return self._tokens.value == value and self._tokens.kind in (TokenKind.SYMBOL, TokenKind.NAME)

    def name(self, what: str) -> str:
        """Return the identifier that is the current token, and go on."""
        tokens = self._tokens
        if tokens.kind is not TokenKind.NAME:
            tokens.fail(f"expected {what}, found {tokens.shown()}")
        value = tokens.value
        tokens.advance()
        return value

    def full_name(self, what: str) -> str:
        """Return a name with dots, such as `a.b.C`."""
        parts = [self.name(what)]
        while self.try_consume("."):
            parts.append(self.name(what))
        return ".".join(parts)

    def type_name(self) -> str:
        """Return the name of a type, with its leading dot if it has one."""
        leading = "." if self.try_consume(".") else ""
        return leading + self.full_name("the name of a type")

    def string(self, what: str) -> str:
        """Return the value of one or several adjacent strings, and go on."""
        tokens = self._tokens
        pieces: list[bytes] = []
        while tokens.kind is TokenKind.STRING:
            piece = string_bytes(tokens.value)
            if piece is None:
                tokens.fail("the string has an invalid escape sequence")
            pieces.append(piece)
            tokens.advance()
        if not pieces:
            tokens.fail(f"expected {what} in quotes, found {tokens.shown()}")
        return b"".join(pieces).decode("utf-8", "surrogateescape")

    def statement(self) -> Option:
        """Read `option NAME = VALUE;` behind its first word."""
        option = self.assignment()
        self.consume(";")
        return option

    def in_brackets(self) -> list[Option]:
        """Read `[NAME = VALUE, ...]`; return no options if there is no bracket."""
        options: list[Option] = []
        if not self.try_consume("["):
            return options
        while True:
            options.append(self.assignment())
            if self.try_consume("]"):
                return options
            if not self.try_consume(","):
                self._tokens.fail(f'expected "," or "]" after an option, found {self._tokens.shown()}')

    def assignment(self) -> Option:
        at = self._tokens.at
        parts = [self._option_part()]
        while self.try_consume("."):
            parts.append(self._option_part())
        self.consume("=")
        return Option(tuple(parts), self._literal(0), at)

    def _option_part(self) -> NamePart:
        if not self.try_consume("("):
            return NamePart(self.name("the name of an option"), False)
        name = self.type_name()
        self.consume(")")
        return NamePart(name, True)

    def _literal(self, depth: int) -> Value:
        tokens = self._tokens
        if depth > _OPTION_DEPTH_MAX:
            tokens.fail(f"the value of an option has more than {_OPTION_DEPTH_MAX} levels")
        if tokens.kind is TokenKind.STRING:
            return Literal(Kind.STRING, self.string("a value"))
        if self.looking_at("{"):
            return self._message_literal("}", depth)
        if self.looking_at("<"):
            return self._message_literal(">", depth)
        if self.try_consume("["):
            return self._list_literal(depth)
        return self._word_literal()

    def _word_literal(self) -> Literal:
        """Read a number, true, false or another identifier. A number may have a sign."""
        tokens = self._tokens
        sign = "-" if self.try_consume("-") else ""
        value = tokens.value
        if tokens.kind is TokenKind.NUMBER:
            tokens.advance()
            return Literal(Kind.NUMBER, sign + value)
        if tokens.kind is not TokenKind.NAME:
            tokens.fail(f"expected the value of an option, found {tokens.shown()}")
        if sign and value.lower() not in ("inf", "infinity", "nan"):
            tokens.fail(f'expected a number after "-", found {tokens.shown()}')
        tokens.advance()
        if sign:
            return Literal(Kind.NUMBER, sign + value)
        return Literal(Kind.BOOLEAN if value in ("true", "false") else Kind.ENUM, value)

    def _list_literal(self, depth: int) -> list[Value]:
        values: list[Value] = []
        if self.try_consume("]"):
            return values
        while True:
            values.append(self._literal(depth + 1))
            if self.try_consume("]"):
                return values
            if not self.try_consume(","):
                self._tokens.fail(f'expected "," or "]" in a list, found {self._tokens.shown()}')

    def _message_literal(self, end: str, depth: int) -> dict[str, Value]:
        """Read a message in the text format. A field that is written several times becomes a list."""
        fields: dict[str, Value] = {}
        self._tokens.advance()
        while not self.try_consume(end):
            name = self._literal_field_name()
            if not self.try_consume(":") and not self.looking_at("{") and not self.looking_at("<"):
                self._tokens.fail(f'expected ":" after the name of a field, found {self._tokens.shown()}')
            value = self._literal(depth + 1)
            if name not in fields:
                fields[name] = value
            else:
                self._repeat(fields, name, value)
            if not self.try_consume(","):
                self.try_consume(";")
        return fields

    @staticmethod
    def _repeat(fields: dict[str, Value], name: str, value: Value) -> None:
        previous = fields[name]
        if not isinstance(previous, list):
            previous = fields[name] = [previous]
        if isinstance(value, list):
            previous.extend(value)
        else:
            previous.append(value)

    def _literal_field_name(self) -> str:
        if not self.try_consume("["):
            return self.name("the name of a field")
        pieces = [self.type_name()]
        while self.try_consume("/"):
            pieces.append(self.type_name())
        self.consume("]")
        return f"[{'/'.join(pieces)}]"
