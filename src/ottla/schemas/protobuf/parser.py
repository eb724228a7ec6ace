"""Reads the text of a .proto file: proto2, proto3 and editions, with the grammar of protoc.

Only the syntax is checked here. The linker checks names, numbers and types. A text is read in one pass; messages nest
at most NESTING_MAX deep, so that the recursion is bounded.
"""

from __future__ import annotations

from typing import Final

from ottla.schemas.protobuf.model import (
    FIELD_NUMBER_MAX,
    INT32_MAX,
    INT32_MIN,
    NESTING_MAX,
    Enum,
    EnumValue,
    Extend,
    Extensions,
    Field,
    File,
    Import,
    ImportKind,
    Kind,
    Literal,
    Message,
    OneOf,
    Option,
    Range,
    Reserved,
    Rpc,
    Service,
)
from ottla.schemas.protobuf.option_parser import OptionParser
from ottla.schemas.protobuf.tokens import TokenKind, Tokens, error_at, integer_value
from ottla.schemas.schema import Budget

_LABELS: Final = ("optional", "required", "repeated")
_EDITIONS: Final = ("2023", "2024")


def parse_text(text: str, budget: Budget) -> File:
    """Return the tree of a .proto file. Raise InvalidSchema with line and column if the syntax is wrong."""
    return _Parser(text, budget).file()


class _Parser(OptionParser):
    def __init__(self, text: str, budget: Budget) -> None:
        super().__init__(Tokens(text, budget))
        self._text = text
        self._file = File()

    def file(self) -> File:
        self._syntax()
        while self._tokens.kind is not TokenKind.END:
            self._top_level()
        return self._file

    def _syntax(self) -> None:
        file, tokens = self._file, self._tokens
        if self.try_consume("syntax"):
            self.consume("=")
            at = tokens.at
            file.syntax = self.string("the syntax")
            if file.syntax not in ("proto2", "proto3"):
                raise error_at(self._text, at, f'unknown syntax "{file.syntax[:60]}"; use "proto2" or "proto3"')
            self.consume(";")
        elif self.try_consume("edition"):
            self.consume("=")
            at = tokens.at
            file.edition = self.string("the edition")
            if file.edition not in _EDITIONS:
                raise error_at(
                    self._text, at, f'unknown edition "{file.edition[:60]}"; use one of {", ".join(_EDITIONS)}'
                )
            self.consume(";")

    def _top_level(self) -> None:
        file, tokens = self._file, self._tokens
        at = tokens.at
        if self.try_consume(";"):
            return
        if self.try_consume("message"):
            file.types.append(self._message(at, 1))
        elif self.try_consume("enum"):
            file.types.append(self._enum(at))
        elif self.try_consume("service"):
            file.services.append(self._service(at))
        elif self.try_consume("extend"):
            file.extends.append(self._extend(at, 0))
        elif self.try_consume("import"):
            self._import(at)
        elif self.try_consume("package"):
            if file.package:
                raise error_at(self._text, at, "the package is stated twice")
            file.package, file.package_at = self.full_name("the name of the package"), at
            self.consume(";")
        elif self.try_consume("option"):
            file.options.append(self.statement())
        elif self.looking_at("syntax") or self.looking_at("edition"):
            tokens.fail(f"{tokens.shown()} must be the first statement of the file")
        else:
            tokens.fail(f"expected a message, an enum or another statement, found {tokens.shown()}")

    def _import(self, at: int) -> None:
        kind = ImportKind.PLAIN
        if self.try_consume("public"):
            kind = ImportKind.PUBLIC
        elif self.try_consume("weak"):
            kind = ImportKind.WEAK
        self._file.imports.append(Import(self.string("the path of a file"), kind, at))
        self.consume(";")

    def _message(self, at: int, depth: int) -> Message:
        message = Message(self.name("the name of a message"), at=at)
        self._message_body(message, depth)
        return message

    def _message_body(self, message: Message, depth: int) -> None:
        if depth > NESTING_MAX:
            raise error_at(self._text, message.at, f"messages are nested more than {NESTING_MAX} deep")
        self.consume("{")
        while not self.try_consume("}"):
            self._message_statement(message, depth)

    def _message_statement(self, message: Message, depth: int) -> None:
        tokens = self._tokens
        at = tokens.at
        if self.try_consume(";"):
            return
        if tokens.kind is TokenKind.END:
            tokens.fail(f'the message "{message.name[:60]}" has no end')
        if self.try_consume("message"):
            message.nested.append(self._message(at, depth + 1))
        elif self.try_consume("enum"):
            message.nested.append(self._enum(at))
        elif self.try_consume("extensions"):
            message.extensions.append(self._extensions(at))
        elif self.try_consume("reserved"):
            message.reserved.append(self._reserved(at, FIELD_NUMBER_MAX, 0))
        elif self.try_consume("extend"):
            message.extends.append(self._extend(at, depth))
        elif self.try_consume("option"):
            message.options.append(self.statement())
        elif self.try_consume("oneof"):
            message.members.append(self._oneof(at, depth))
        else:
            message.members.append(self._field(depth))

    def _oneof(self, at: int, depth: int) -> OneOf:
        oneof = OneOf(self.name("the name of a oneof"), at=at)
        self.consume("{")
        while not self.try_consume("}"):
            if self.try_consume("option"):
                oneof.options.append(self.statement())
            elif any(self.looking_at(label) for label in _LABELS):
                self._tokens.fail("a field of a oneof has no label (optional, required or repeated)")
            elif self._tokens.value == "map" and self._tokens.starts_next("<"):
                self._tokens.fail("a map is not allowed in a oneof")
            else:
                oneof.fields.append(self._field_after_label(self._tokens.at, None, depth))
        return oneof

    def _field(self, depth: int) -> Field:
        at = self._tokens.at
        label = next((label for label in _LABELS if self.try_consume(label)), None)
        if self._tokens.value == "map" and self._tokens.starts_next("<"):
            if label is not None:
                raise error_at(self._text, at, "a map has no label (optional, required or repeated)")
            return self._map(at)
        if label is None and not self._file.is_proto3 and self._file.edition is None:
            self._tokens.fail(f'expected "optional", "required" or "repeated", found {self._tokens.shown()}')
        if label == "required" and self._file.is_proto3:
            raise error_at(self._text, at, "required fields are not allowed in proto3")
        if label in ("required", "optional") and self._file.edition is not None:
            raise error_at(
                self._text, at, f'the label "{label}" is not allowed in editions; use features.field_presence'
            )
        return self._field_after_label(at, label, depth)

    def _map(self, at: int) -> Field:
        type_at = self._tokens.at
        self.consume("map")
        self.consume("<")
        key = self.type_name()
        self.consume(",")
        value = self.type_name()
        self.consume(">")
        field = self._name_and_number(at, "", None)
        field.map_types, field.type_at = (key, value), type_at
        self._field_options(field)
        self.consume(";")
        return field

    def _field_after_label(self, at: int, label: str | None, depth: int) -> Field:
        type_at = self._tokens.at
        if self.try_consume("group"):
            return self._group(at, label, depth)
        if self._tokens.kind is not TokenKind.NAME and not self.looking_at("."):
            self._tokens.fail(f"expected the type of a field, found {self._tokens.shown()}")
        type_name = self.type_name()
        field = self._name_and_number(at, type_name, label)
        field.type_at = type_at
        self._field_options(field)
        self.consume(";")
        return field

    def _group(self, at: int, label: str | None, depth: int) -> Field:
        if self._file.is_proto3 or self._file.edition is not None:
            raise error_at(self._text, at, "groups are allowed in proto2 only; use a message")
        name_at = self._tokens.at
        field = self._name_and_number(at, "group", label)
        if not field.name[0].isupper():
            raise error_at(self._text, name_at, "the name of a group starts with a capital letter")
        group = Message(field.name, at=at)
        field.group, field.name, field.type_at = group, field.name.lower(), at
        self._field_options(field)
        self._message_body(group, depth + 1)
        return field

    def _name_and_number(self, at: int, type_name: str, label: str | None) -> Field:
        name = self.name("the name of a field")
        self.consume("=")
        number_at = self._tokens.at
        number = self._integer("the number of a field", 0, INT32_MAX)
        return Field(name, type_name, number, label, at=at, number_at=number_at)

    def _field_options(self, field: Field) -> None:
        """Read the options of a field. `default` and `json_name` are not options: descriptors have fields for them."""
        for option in self.in_brackets():
            if option.name == "default" and not option.parenthesized:
                if field.default is not None:
                    raise error_at(self._text, option.at, "the default is stated twice")
                if not isinstance(option.value, Literal):
                    raise error_at(self._text, option.at, "a default is a string, a number or a name")
                field.default = option.value
            elif option.name == "json_name" and not option.parenthesized:
                field.json_name = self._json_name(field, option)
            else:
                field.options.append(option)

    def _json_name(self, field: Field, option: Option) -> str:
        if field.json_name is not None:
            raise error_at(self._text, option.at, "json_name is stated twice")
        if not isinstance(option.value, Literal) or option.value.kind is not Kind.STRING:
            raise error_at(self._text, option.at, "json_name must be a string")
        return option.value.text

    def _extensions(self, at: int) -> Extensions:
        ranges: list[int | Range] = [self._range(0, FIELD_NUMBER_MAX)]
        while self.try_consume(","):
            ranges.append(self._range(0, FIELD_NUMBER_MAX))
        options = self.in_brackets()
        self.consume(";")
        return Extensions(ranges, options, at)

    def _reserved(self, at: int, largest: int, smallest: int) -> Reserved:
        """Read a list of names or a list of numbers; one statement cannot have both."""
        values: list[str | int | Range] = []
        is_edition = self._file.edition is not None
        if is_edition and self._tokens.kind is TokenKind.STRING:
            self._tokens.fail("reserved names are written without quotes in editions")
        has_names = self._tokens.kind is (TokenKind.NAME if is_edition else TokenKind.STRING)
        while True:
            if not has_names:
                values.append(self._range(smallest, largest))
            else:
                values.append(self.name("a name") if is_edition else self.string("a name"))
            if not self.try_consume(","):
                self.consume(";")
                return Reserved(values, at)

    def _range(self, smallest: int, largest: int) -> int | Range:
        at = self._tokens.at
        start = self._integer("a number", smallest, largest)
        if not self.try_consume("to"):
            return start
        end = largest if self.try_consume("max") else self._integer('a number or "max"', smallest, largest)
        if end < start:
            raise error_at(self._text, at, f"the range {start} to {end} ends before it starts")
        return start, end

    def _extend(self, at: int, depth: int) -> Extend:
        extend = Extend(self.type_name(), at=at)
        self.consume("{")
        while not self.try_consume("}"):
            if self._tokens.kind is TokenKind.END:
                self._tokens.fail("the statement extend has no end")
            extend.fields.append(self._field(depth))
        if not extend.fields:
            raise error_at(self._text, at, "the statement extend has no fields")
        return extend

    def _enum(self, at: int) -> Enum:
        enum = Enum(self.name("the name of an enum"), at=at)
        self.consume("{")
        while not self.try_consume("}"):
            value_at = self._tokens.at
            if self.try_consume(";"):
                continue
            if self.try_consume("option"):
                enum.options.append(self.statement())
            elif self.try_consume("reserved"):
                enum.reserved.append(self._reserved(value_at, INT32_MAX, INT32_MIN))
            else:
                name = self.name("the name of a value")
                self.consume("=")
                number = self._integer("the number of a value", INT32_MIN, INT32_MAX)
                enum.values.append(EnumValue(name, number, self.in_brackets(), value_at))
                self.consume(";")
        return enum

    def _service(self, at: int) -> Service:
        service = Service(self.name("the name of a service"), at=at)
        self.consume("{")
        while not self.try_consume("}"):
            rpc_at = self._tokens.at
            if self.try_consume(";"):
                continue
            if self.try_consume("option"):
                service.options.append(self.statement())
            elif self.try_consume("rpc"):
                service.rpcs.append(self._rpc(rpc_at))
            else:
                self._tokens.fail(f'expected "rpc" or "option", found {self._tokens.shown()}')
        return service

    def _rpc(self, at: int) -> Rpc:
        name = self.name("the name of a method")
        request_stream, request = self._rpc_type()
        self.consume("returns")
        response_stream, response = self._rpc_type()
        rpc = Rpc(name, request, response, request_stream, response_stream, at=at)
        if self.try_consume("{"):
            while not self.try_consume("}"):
                if self.try_consume(";"):
                    continue
                self.consume("option")
                rpc.options.append(self.statement())
        else:
            self.consume(";")
        return rpc

    def _rpc_type(self) -> tuple[bool, str]:
        self.consume("(")
        stream = self.try_consume("stream")
        name = self.type_name()
        self.consume(")")
        return stream, name

    def _integer(self, what: str, smallest: int, largest: int) -> int:
        tokens = self._tokens
        at = tokens.at
        negative = smallest < 0 and self.try_consume("-")
        value = integer_value(tokens.value) if tokens.kind is TokenKind.NUMBER else None
        if value is None:
            tokens.fail(f"expected {what}, found {tokens.shown()}")
        number = -value if negative else value
        if not smallest <= number <= largest:
            raise error_at(self._text, at, f"{what} must be between {smallest} and {largest}")
        tokens.advance()
        return number
