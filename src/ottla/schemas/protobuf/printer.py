"""Prints a file in the layout that Confluent's registry stores, so that both give a schema the same text.

Order: syntax, package, imports, options, messages, enums, extensions, services. Sections are separated by empty lines.
A message prints its reserved numbers, options, fields, oneofs, groups, extension ranges, extensions and nested types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.schemas.protobuf.model import (
    FIELD_NUMBER_MAX,
    Enum,
    EnumValue,
    Extend,
    Extensions,
    Field,
    File,
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
    Value,
    simple_option,
)
from ottla.schemas.protobuf.values import escaped

_CONFLUENT: Final = "confluent."

Lines = list[str]


class Printer:
    """Prints elements as lines. A subclass changes their order for the normal form."""

    def __init__(self, *, without_extensions: bool = False) -> None:
        self._without_extensions = without_extensions
        #: around reserved names; editions write them without
        self._quote = '"'

    def file(self, file: File) -> str:
        """Return the text of a file, with a line feed at its end."""
        self._quote = '"' if file.edition is None else ""
        lines: Lines = []
        if (header := self.syntax(file)) is not None:
            lines.append(header)
        if file.package:
            lines.append(f"package {file.package};")
        sections = [
            self.imports(file),
            self._option_statements(file.options),
            self._types(file.types),
            self._extends(file.extends),
            _joined(self.service(service) for service in file.services),
        ]
        for section in sections:
            if section:
                lines.append("")
                lines.extend(section)
        return "".join(f"{line}\n" for line in lines)

    def syntax(self, file: File) -> str | None:
        if file.edition is not None:
            return f'edition = "{file.edition}";'
        return None if file.syntax is None else f'syntax = "{file.syntax}";'

    def imports(self, file: File) -> Lines:
        lines: Lines = []
        for kind in ImportKind:
            word = f"{kind} " if kind else ""
            paths = self.import_paths([item.path for item in file.imports if item.kind is kind])
            lines.extend(f'import {word}"{escaped(path)}";' for path in paths)
        return lines

    def message(self, message: Message) -> Lines:
        return _block(f"message {message.name} {{", self._message_sections(message))

    def enum(self, enum: Enum) -> Lines:
        body = _joined(self.reserved(item) for item in self.all_reserved(enum.reserved))
        body += self._option_statements(enum.options)
        for value in self.enum_values(enum):
            body += self.enum_value(value)
        return _block(f"enum {enum.name} {{", [body])

    def enum_value(self, value: EnumValue) -> Lines:
        return _ended([f"{value.name} = {value.number}", *self._bracketed(value.options)])

    def oneof(self, oneof: OneOf) -> Lines:
        return _block(
            f"oneof {oneof.name} {{",
            [
                self._option_statements(oneof.options),
                _joined(self.field(field) for field in self.fields(oneof.fields) if field.group is None),
                _joined(self.field(field) for field in self.fields(oneof.fields) if field.group is not None),
            ],
        )

    def field(self, field: Field) -> Lines:
        label, type_text = self.label_and_type(field)
        head = f"{label} " if label else ""
        options = list(field.options)
        if field.default is not None:
            options.append(simple_option("default", self.default(field, field.default)))
        if (json_name := self.json_name(field)) is not None:
            options.append(simple_option("json_name", Literal(Kind.STRING, json_name)))
        if field.group is not None:
            opening = [f"{head}group {field.group.name} = {field.number}", *self._bracketed(options), " {"]
            return _block("", self._message_sections(field.group), _merged(opening))
        return _ended([f"{head}{type_text} {field.name} = {field.number}", *self._bracketed(options)])

    def extensions(self, extensions: Extensions) -> Lines:
        ranges = ", ".join(self.range(item) for item in extensions.ranges)
        return _ended([f"extensions {ranges}", *self._bracketed(extensions.options)])

    def extend(self, extend: Extend) -> Lines:
        fields = _joined(self.field(field) for field in self.fields(extend.fields))
        return _block(f"extend {self.extendee(extend)} {{", [fields])

    def service(self, service: Service) -> Lines:
        rpcs = _joined(self.rpc(rpc) for rpc in service.rpcs)
        return _block(f"service {service.name} {{", [self._option_statements(service.options), rpcs])

    def rpc(self, rpc: Rpc) -> Lines:
        request, response = self.rpc_types(rpc)
        head = (
            f"rpc {rpc.name} ({'stream ' if rpc.request_stream else ''}{request}) "
            f"returns ({'stream ' if rpc.response_stream else ''}{response})"
        )
        options = self._option_statements(rpc.options)
        return [head + " {", *_indented(options), "};"] if options else [head + ";"]

    def reserved(self, reserved: Reserved) -> Lines:
        quote = self._quote
        values = (
            f"{quote}{escaped(item)}{quote}" if isinstance(item, str) else self.range(item) for item in reserved.values
        )
        return [f"reserved {', '.join(values)};"]

    def option(self, option: Option) -> Lines:
        """Return `name = value`, without the word `option` and the semicolon."""
        name = f"({option.name})" if option.parenthesized else option.name
        for part in option.path:
            name += f".({part.name})" if part.is_extension else f".{part.name}"
        value = option.value
        lines = self._option_list(value) if isinstance(value, list) else self._value(value)
        return [f"{name} = {lines[0]}", *lines[1:]]

    # What the normal form changes.

    def import_paths(self, paths: list[str]) -> list[str]:
        return paths

    def types(self, types: list[Message | Enum]) -> list[Message | Enum]:
        return types

    def fields(self, fields: list[Field]) -> list[Field]:
        return fields

    def oneofs(self, oneofs: list[OneOf]) -> list[OneOf]:
        return oneofs

    def enum_values(self, enum: Enum) -> list[EnumValue]:
        return enum.values

    def all_reserved(self, reserved: list[Reserved]) -> list[Reserved]:
        return reserved

    def all_extensions(self, extensions: list[Extensions]) -> list[Extensions]:
        return extensions

    def all_extends(self, extends: list[Extend]) -> list[Extend]:
        return extends

    def options(self, options: list[Option]) -> list[Option]:
        if not self._without_extensions:
            return options
        return [option for option in options if not option.parenthesized or option.name.startswith(_CONFLUENT)]

    def label_and_type(self, field: Field) -> tuple[str | None, str]:
        return field.label, field.type_text

    def default(self, field: Field, default: Literal) -> Literal:
        return default

    def json_name(self, field: Field) -> str | None:
        return field.json_name

    def extendee(self, extend: Extend) -> str:
        return extend.name

    def rpc_types(self, rpc: Rpc) -> tuple[str, str]:
        return rpc.request, rpc.response

    def range(self, item: int | Range) -> str:
        if isinstance(item, int):
            return str(item)
        return f"{item[0]} to {item[1] if item[1] < FIELD_NUMBER_MAX else 'max'}"

    def number(self, text: str) -> str:
        return text

    def message_value(self, value: dict[str, Value]) -> dict[str, Value]:
        return value

    def list_value(self, value: list[Value]) -> Value:
        return value

    # Parts of the output.

    def _message_sections(self, message: Message) -> list[Lines]:
        return [
            _joined(self.reserved(item) for item in self.all_reserved(message.reserved)),
            self._option_statements(message.options),
            _joined(self.field(field) for field in self.fields(message.fields)),
            _joined(self.oneof(oneof) for oneof in self.oneofs(message.oneofs)),
            _joined(self.field(field) for field in self.fields(message.groups)),
            [] if self._without_extensions else _joined(map(self.extensions, self.all_extensions(message.extensions))),
            self._extends(message.extends),
            self._types(message.nested),
        ]

    def _types(self, types: list[Message | Enum]) -> Lines:
        types = self.types(types)
        lines = _joined(self.message(item) for item in types if isinstance(item, Message))
        return lines + _joined(self.enum(item) for item in types if isinstance(item, Enum))

    def _extends(self, extends: list[Extend]) -> Lines:
        return [] if self._without_extensions else _joined(self.extend(item) for item in self.all_extends(extends))

    def _option_statements(self, options: list[Option]) -> Lines:
        lines: Lines = []
        for option in self.options(options) if options else ():
            lines.extend(_merged(["option ", *_continued(self.option(option)), ";"]))
        return lines

    def _bracketed(self, options: list[Option]) -> Lines:
        """Return the options of a field in brackets, as pieces that continue a line."""
        options = self.options(options) if options else options
        if not options:
            return []
        return [" ", *_continued(_bracketed([self.option(option) for option in options]))]

    def _option_list(self, values: list[Value]) -> Lines:
        return _bracketed([self._value(value) for value in values])

    def _value(self, value: Value) -> Lines:
        if isinstance(value, Literal):
            if value.kind is Kind.STRING:
                return [f'"{escaped(value.text)}"']
            return [self.number(value.text) if value.kind is Kind.NUMBER else value.text]
        if isinstance(value, list):
            value = self.list_value(value)
            if not isinstance(value, list):
                return self._value(value)
            return ["[", *_indented(_comma_separated([self._value(item) for item in value])), "]"]
        entries: list[Lines] = []
        for key, item in self.message_value(value).items():
            lines = self._value(item)
            entries.append([f"{key}: {lines[0]}", *lines[1:]])
        return ["{", *_indented(_comma_separated(entries)), "}"]


def _joined(blocks: Iterable[Lines]) -> Lines:
    return [line for block in blocks for line in block]


def _indented(lines: Lines) -> Lines:
    return [f"  {line}" for line in lines]


def _comma_separated(entries: list[Lines]) -> Lines:
    lines: Lines = []
    for index, entry in enumerate(entries):
        lines.extend(entry)
        if index < len(entries) - 1:
            lines[-1] += ","
    return lines


def _bracketed(entries: list[Lines]) -> Lines:
    if len(entries) == 1:
        lines = list(entries[0])
        lines[0] = "[" + lines[0]
        lines[-1] += "]"
        return lines
    return ["[", *_indented(_comma_separated(entries)), "]"]


def _continued(lines: Lines) -> Lines:
    """Return pieces for `_merged`: a line feed before each line but the first."""
    return [lines[0], *(f"\n{line}" for line in lines[1:])]


def _merged(pieces: Lines) -> Lines:
    return "".join(pieces).split("\n")


def _ended(pieces: Lines) -> Lines:
    return _merged([*pieces, ";"])


def _block(head: str, sections: list[Lines], opening: Lines | None = None) -> Lines:
    """Return a block in braces whose sections are separated by empty lines; `{}` if it has none."""
    lines = list(opening) if opening is not None else [head]
    filled = [section for section in sections if section]
    if not filled:
        lines[-1] += "}"
        return lines
    for index, section in enumerate(filled):
        if index:
            lines.append("")
        lines.extend(_indented(section))
    lines.append("}")
    return lines
