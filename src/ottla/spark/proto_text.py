"""A .proto file as a FileDescriptorProto, without protoc. Pure Python.

Read: syntax and edition-free files of proto2 and proto3, package, imports of google/protobuf, message, enum, nested
types, optional, required, repeated, map, oneof, reserved, and options, which are passed over except json_name,
packed and deprecated. Not read: groups, extensions, editions, imports of other files. Who has those compiles with
``protoc --include_imports --descriptor_set_out=FILE`` and gives the bytes of that file instead.
"""

from __future__ import annotations

import re
from typing import Final

from google.protobuf import descriptor_pb2

from ottla.spark.wire_format import SchemaRefused

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<word>\.?[A-Za-z_][\w.]*)|(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|\d[\d.]*(?:[eE][-+]?\d+)?))|(?P<sign>.)""",
    re.DOTALL,
)
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in (
        "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
        "sfixed32", "sfixed64", "bool", "string", "bytes",
    )
}  # fmt: skip
_LABELS: Final = {
    "optional": _Field.LABEL_OPTIONAL,
    "required": _Field.LABEL_REQUIRED,
    "repeated": _Field.LABEL_REPEATED,
}
_ADVICE = "compile it with protoc --include_imports --descriptor_set_out and give the bytes of that file"


def compile_proto(text: str, name: str = "schema.proto") -> descriptor_pb2.FileDescriptorProto:
    """SchemaRefused names the line that cannot be read."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup != "space" and match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match[0], line))
            line += match[0].count("\n")
        self._position = 0
        self._file = descriptor_pb2.FileDescriptorProto(name=name)

    # -- the file ---------------------------------------------------------------------------------------------------

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        while self._position < len(self._tokens):
            word = self._take()
            if word == "syntax":
                self._expect("=")
                self._file.syntax = self._string()
                self._expect(";")
            elif word == "package":
                self._file.package = self._take()
                self._expect(";")
            elif word == "import":
                self._import()
            elif word == "message":
                self._message(self._file.message_type.add(), [])
            elif word == "enum":
                self._enum(self._file.enum_type.add())
            elif word == "option":
                self._skip_statement()
            elif word == "service":
                self._skip_block()
            elif word != ";":
                raise self._refused(f"{word} is not known here")
        _TypeNames(self._file).resolve()
        return self._file

    def _import(self) -> None:
        if self._peek() in ("public", "weak"):
            self._take()
        name = self._string()
        if not name.startswith("google/protobuf/"):
            raise self._refused(f"the import of {name} cannot be followed")
        self._file.dependency.append(name)
        self._expect(";")

    # -- messages ---------------------------------------------------------------------------------------------------

    def _message(self, message: descriptor_pb2.DescriptorProto, path: list[str]) -> None:
        message.name = self._take()
        inner = [*path, message.name]
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "message":
                self._message(message.nested_type.add(), inner)
            elif word == "enum":
                self._enum(message.enum_type.add())
            elif word == "oneof":
                self._oneof(message)
            elif word == "map" and self._peek() == "<":
                self._map(message)
            elif word in ("option", "reserved", "extensions"):
                self._skip_statement()
            elif word in ("extend", "group"):
                raise self._refused(f"{word} is not supported")
            elif word != ";":
                self._field(message, word)
        self._number_synthetic_oneofs(message)

    def _field(self, message: descriptor_pb2.DescriptorProto, word: str, oneof: int | None = None) -> None:
        label = _LABELS.get(word) if oneof is None else None
        if label is not None:
            word_of_type = self._take()
        else:
            word_of_type = word
            if self._file.syntax != "proto3" and oneof is None:
                raise self._refused(f"{word} is no label: proto2 needs optional, required or repeated")
        if word_of_type == "group":
            raise self._refused("group is not supported")
        field = message.field.add()
        field.label = label if label is not None else _Field.LABEL_OPTIONAL
        self._type(field, word_of_type)
        self._name_and_number(field)
        if oneof is not None:
            field.oneof_index = oneof
        elif word == "optional" and self._file.syntax == "proto3":
            field.proto3_optional = True

    def _type(self, field: descriptor_pb2.FieldDescriptorProto, word: str) -> None:
        if word in _SCALARS:
            field.type = _SCALARS[word]
        else:
            field.type_name = word

    def _name_and_number(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        field.name = self._take()
        self._expect("=")
        field.number = self._integer()
        if self._peek() == "[":
            self._field_options(field)
        self._expect(";")

    def _field_options(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        depth, option = 0, ""
        while True:
            word = self._take()
            if word in "[{(":
                depth += 1
            elif word in "]})":
                depth -= 1
                if depth == 0:
                    return
            elif depth == 1 and self._peek() == "=":
                option = word
                self._take()
                if option == "packed":
                    field.options.packed = self._take() == "true"
                elif option == "json_name":
                    field.json_name = self._string()
                elif option == "default":
                    field.default_value = self._take().strip("\"'")

    def _map(self, message: descriptor_pb2.DescriptorProto) -> None:
        """A map is a repeated field of a small message that the compiler makes up."""
        self._expect("<")
        key = self._take()
        self._expect(",")
        value = self._take()
        self._expect(">")
        field = message.field.add(label=_Field.LABEL_REPEATED)
        self._name_and_number(field)
        entry = message.nested_type.add(name=f"{_camel(field.name)}Entry")
        entry.options.map_entry = True
        for name, number, kind in (("key", 1, key), ("value", 2, value)):
            self._type(entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL), kind)
        field.type_name = entry.name

    def _oneof(self, message: descriptor_pb2.DescriptorProto) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "option":
                self._skip_statement()
            elif word != ";":
                self._field(message, word, index)

    @staticmethod
    def _number_synthetic_oneofs(message: descriptor_pb2.DescriptorProto) -> None:
        """An optional field of proto3 is a oneof of its own; those come behind the others."""
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        enum.name = self._take()
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "option":
                if self._take() == "allow_alias":
                    self._expect("=")
                    enum.options.allow_alias = self._take() == "true"
                    self._expect(";")
                else:
                    self._skip_statement()
            elif word == "reserved":
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                enum.value.add(name=word, number=self._integer())
                self._skip_statement()

    # -- tokens -----------------------------------------------------------------------------------------------------

    def _take(self) -> str:
        if self._position >= len(self._tokens):
            raise self._refused("the file ends too early")
        self._position += 1
        return self._tokens[self._position - 1][1]

    def _peek(self) -> str:
        return self._tokens[self._position][1] if self._position < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        word = self._take()
        if word != wanted:
            raise self._refused(f"{wanted} is expected instead of {word}")

    def _string(self) -> str:
        return self._take()[1:-1]

    def _integer(self) -> int:
        word = self._take()
        try:
            return int(self._take(), 0) * -1 if word == "-" else int(word, 0)
        except ValueError:
            raise self._refused(f"{word} is not a number") from None

    def _skip_statement(self) -> None:
        depth = 0
        while (word := self._take()) != ";" or depth:
            depth += (word in "{[") - (word in "}]")

    def _skip_block(self) -> None:
        depth = 0
        while True:
            word = self._take()
            depth += (word == "{") - (word == "}")
            if word == "}" and not depth:
                return

    def _refused(self, why: str) -> SchemaRefused:
        line = self._tokens[max(self._position - 1, 0)][2] if self._tokens else 1
        return SchemaRefused(f"line {line} of the .proto text: {why}. If protoc takes it, {_ADVICE}")


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


class _TypeNames:
    """Names of types as files write them, made full: the innermost scope that knows a name wins."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._file = file
        self._package = f".{file.package}" if file.package else ""
        self._enums: dict[str, bool] = {}
        for enum in file.enum_type:
            self._enums[f"{self._package}.{enum.name}"] = True
        for message in file.message_type:
            self._collect(message, self._package)

    def _collect(self, message: descriptor_pb2.DescriptorProto, scope: str) -> None:
        name = f"{scope}.{message.name}"
        self._enums[name] = False
        for enum in message.enum_type:
            self._enums[f"{name}.{enum.name}"] = True
        for nested in message.nested_type:
            self._collect(nested, name)

    def resolve(self) -> None:
        for message in self._file.message_type:
            self._resolve(message, self._package)

    def _resolve(self, message: descriptor_pb2.DescriptorProto, scope: str) -> None:
        name = f"{scope}.{message.name}"
        for field in message.field:
            if field.type_name:
                field.type_name = self._full(field.type_name, name)
                is_enum = self._enums.get(field.type_name, False)
                field.type = _Field.TYPE_ENUM if is_enum else _Field.TYPE_MESSAGE
        for nested in message.nested_type:
            self._resolve(nested, name)

    def _full(self, written: str, scope: str) -> str:
        if written.startswith("."):
            return written
        while True:
            if f"{scope}.{written}" in self._enums:
                return f"{scope}.{written}"
            if not scope:
                break
            scope = scope.rpartition(".")[0]
        if written.startswith("google.protobuf."):
            return f".{written}"
        raise SchemaRefused(f"the type {written} is not in the .proto text: add it. If it is imported, {_ADVICE}")
