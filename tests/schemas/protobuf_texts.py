"""Random .proto files, changes of them, and texts that are slightly wrong. The same seed gives the same texts."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
MAP_KEYS = tuple(name for name in SCALARS if name not in ("double", "float", "bytes"))
_DEFAULTS = {
    "double": ("1.5", "-2", "1e10", "inf", "nan", "-inf", "0.1"), "float": ("0.25", "1e-3", "-inf", "3.1415927"),
    "int32": ("-1", "0x7f", "017"), "int64": ("-9223372036854775808", "1"), "uint32": ("4294967295",),
    "uint64": ("18446744073709551615",), "sint32": ("-5",), "sint64": ("5",), "fixed32": ("1",), "fixed64": ("2",),
    "sfixed32": ("-3",), "sfixed64": ("4",), "bool": ("true", "false"),
    "string": ('"a"', "'it\\'s'", '"\\t\\"x\\""', '"a" "b"', '"\\u00e9"'),
    "bytes": ('"\\x00\\xff"', '"abc"', '"\\n\\001"'),
}  # fmt: skip
_REPLACEMENTS = (
    "0", "-1", "19500", "536870912", "1", "2", "required", "optional", "group", "map", "x", ";", "{", "}", "bytes",
    "reserved", "max", '"a"', "1.5", "true", "oneof", "message", "enum", "repeated", ".", "option",
)  # fmt: skip


@dataclass
class GeneratedField:
    name: str
    number: int
    type: str
    label: str = ""
    map_key: str = ""
    options: list[str] = field(default_factory=list)


@dataclass
class GeneratedEnum:
    name: str
    values: list[tuple[str, int]]
    alias: bool = False


@dataclass
class GeneratedMessage:
    name: str
    fields: list[GeneratedField] = field(default_factory=list)
    oneofs: dict[str, list[GeneratedField]] = field(default_factory=dict)
    nested: list[GeneratedMessage] = field(default_factory=list)
    enums: list[GeneratedEnum] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)


@dataclass
class GeneratedFile:
    proto3: bool
    package: str
    imports: list[str]
    messages: list[GeneratedMessage]
    enums: list[GeneratedEnum]
    statements: list[str]


class TextGenerator:
    """Generates one file. `unique` is a part of all names of packages, so that files can be compiled together."""

    def __init__(self, seed: int, unique: str = "p") -> None:
        self._random = Random(seed)
        self._unique = unique
        self._number = 0

    def file(self) -> GeneratedFile:
        random = self._random
        proto3 = random.random() < 0.6
        package = random.choice((self._unique, f"{self._unique}.a", f"{self._unique}.a.b"))
        file = GeneratedFile(proto3, package, [], [], [], [])
        for name in ("timestamp", "struct", "descriptor"):
            if random.random() < 0.3:
                file.imports.append(f"google/protobuf/{name}.proto")
        file.messages = [self._message(proto3, 0) for _ in range(random.randint(1, 3))]
        file.enums = [self._enum(proto3) for _ in range(random.randint(0, 2))]
        self._fill(file)
        self._statements(file)
        return file

    def render(self, file: GeneratedFile) -> str:
        """Return the text, with comments and white space in random places."""
        lines = ['syntax = "proto3";' if file.proto3 else self._random.choice(('syntax = "proto2";', ""))]
        lines.append(f"package {file.package};")
        lines += [f'import "{path}";' for path in file.imports]
        parts = [self._message_text(message) for message in file.messages]
        parts += [self._enum_text(enum) for enum in file.enums] + file.statements
        self._random.shuffle(parts)
        return self._with_trivia("\n".join([*lines, *parts]))

    def evolve(self, file: GeneratedFile) -> GeneratedFile:
        """Return the file after one to three changes that an author may make."""
        changed = deepcopy(file)
        for _ in range(self._random.randint(1, 3)):
            message = self._random.choice(_all_messages(changed))
            self._random.choice((self._add, self._remove, self._retype, self._rename, self._move, self._relabel))(
                changed, message
            )
        return changed

    def damage(self, text: str) -> str:
        """Return the text with one token removed, repeated, replaced or moved; it is often, not always, invalid."""
        tokens = re.findall(
            r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*\n|/\*.*?\*/|[\w.]+|\s+|.', text, re.DOTALL
        )
        places = [index for index, token in enumerate(tokens) if not token.isspace()]
        place = self._random.choice(places)
        match self._random.randrange(5):
            case 0:
                tokens[place] = " "
            case 1:
                tokens[place] += f" {tokens[place]}"
            case 2:
                tokens[place] = tokens[self._random.choice(places)]
            case 3:
                other = self._random.choice(places)
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case _:
                tokens[place] = self._random.choice(_REPLACEMENTS)
        return "".join(tokens)

    def _name(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._random.choice(('', '_x', 'Y'))}{self._number}"

    def _message(self, proto3: bool, depth: int) -> GeneratedMessage:
        random = self._random
        message = GeneratedMessage(self._name("M"))
        if depth < 3:
            message.nested = [self._message(proto3, depth + 1) for _ in range(random.choice((0, 0, 1, 2)))]
        message.enums = [self._enum(proto3) for _ in range(random.choice((0, 0, 1)))]
        return message

    def _enum(self, proto3: bool) -> GeneratedEnum:
        random = self._random
        numbers = random.sample(range(-5, 50), random.randint(1, 5))
        if proto3:
            numbers = [0, *(number for number in numbers if number)]
        alias = random.random() < 0.15
        if alias:
            numbers.append(numbers[0])
        name = self._name("E")
        return GeneratedEnum(
            name, [(f"{name.upper()}_V{index}", number) for index, number in enumerate(numbers)], alias
        )

    def _fill(self, file: GeneratedFile) -> None:
        for message in _all_messages(file):
            numbers = self._random.sample([*range(1, 60), 18999, 20000, 536870911], 12)
            for number in numbers[: self._random.randint(0, 8)]:
                message.fields.append(self._field(file, number))
            if self._random.random() < 0.4:
                members = [
                    self._field(file, number, in_oneof=True) for number in numbers[8 : 8 + self._random.randint(1, 4)]
                ]
                message.oneofs[self._name("choice")] = members

    def _field(self, file: GeneratedFile, number: int, *, in_oneof: bool = False) -> GeneratedField:
        random = self._random
        generated = GeneratedField(self._name("f"), number, self._type(file))
        if not in_oneof and random.random() < 0.15:
            generated.map_key = random.choice(MAP_KEYS)
            return generated
        if not in_oneof:
            labels = ("", "", "optional", "repeated") if file.proto3 else ("optional", "required", "repeated")
            generated.label = random.choice(labels)
        self._field_options(file, generated)
        return generated

    def _field_options(self, file: GeneratedFile, generated: GeneratedField) -> None:
        random, options = self._random, generated.options
        if random.random() < 0.1:
            options.append(random.choice(("deprecated = true", "deprecated = false", "debug_redact = true")))
        if random.random() < 0.1:
            options.append(f'json_name = "json{generated.number}"')
        is_repeated = generated.label == "repeated"
        is_number = generated.type in SCALARS and generated.type not in ("string", "bytes")
        if is_repeated and is_number and random.random() < 0.3:
            options.append(f"packed = {random.choice(('true', 'false'))}")
        if not file.proto3 and not is_repeated and generated.type in _DEFAULTS and random.random() < 0.4:
            options.append(f"default = {random.choice(_DEFAULTS[generated.type])}")
        random.shuffle(options)

    def _type(self, file: GeneratedFile) -> str:
        random = self._random
        choice = random.random()
        if choice < 0.6:
            return random.choice(SCALARS)
        if choice < 0.65 and "google/protobuf/timestamp.proto" in file.imports:
            return random.choice(("google.protobuf.Timestamp", ".google.protobuf.Timestamp"))
        if choice < 0.7 and "google/protobuf/struct.proto" in file.imports:
            return "google.protobuf.Value"
        name = random.choice(_type_names(file))
        return random.choice((f".{file.package}.{name}", f"{file.package}.{name}", name))

    def _statements(self, file: GeneratedFile) -> None:
        random = self._random
        if random.random() < 0.3:
            file.statements.append(random.choice(('option java_package = "com.a";', "option java_package = 'a\\tb';")))
        if random.random() < 0.2:
            file.statements.append("option optimize_for = SPEED;")
        if random.random() < 0.3:
            request, response = random.choice(file.messages).name, random.choice(file.messages).name
            body = random.choice((";", "{ option deprecated = true; }", "{ option idempotency_level = IDEMPOTENT; }"))
            stream = random.choice(("", "stream "))
            file.statements.append(
                f"service {self._name('S')} {{ rpc Call({stream}{request}) returns ({response}) {body} }}"
            )
        for message in _all_messages(file):
            self._message_statements(file, message)
        if "google/protobuf/descriptor.proto" in file.imports:
            self._custom_options(file)

    def _message_statements(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        random = self._random
        if random.random() < 0.2:
            message.statements.append(
                random.choice(("reserved 100, 110 to 120;", "reserved 200 to 300; reserved 400;"))
            )
        if random.random() < 0.2:
            message.statements.append('reserved "old", "older";')
        if not file.proto3 and random.random() < 0.2:
            message.statements.append("extensions 1000 to 1999, 3000 to 4000;")
            extended = random.choice(
                (f".{file.package}.{_path(file, message)}", f"{file.package}.{_path(file, message)}")
            )
            file.statements.append(f"extend {extended} {{ optional int32 {self._name('ext')} = 1500; }}")
        if not file.proto3 and random.random() < 0.15:
            message.statements.append(
                f"{random.choice(('optional', 'repeated'))} group {self._name('G')} = 500 {{ optional int32 a = 1; }}"
            )

    def _custom_options(self, file: GeneratedFile) -> None:
        """Define options in the file itself, and use them."""
        random, name = self._random, self._name("Opt")
        label = "" if file.proto3 else "optional "
        file.statements.append(
            f"message {name} {{ {label}string text = 1; repeated int32 numbers = 2; {label}{name} inner = 3; "
            f"map<string, int32> counts = 4; {label}double ratio = 5; }}"
        )
        option = f"opt{self._number}"
        file.statements.append(
            f"extend google.protobuf.MessageOptions "
            f"{{ {label}{name} {option} = 50001; repeated int32 {option}_list = 50002; }}"
        )
        message = random.choice(file.messages)
        inner = '{ ratio: -1.5 counts { key: "k" value: 1 } }'
        uses = (
            f'option ({option}) = {{ text: "a\\n" numbers: [1, 2], inner {inner} }};',
            f'option ({option}).text = "x"; option ({option}).inner.numbers = 3; option ({option}).inner.numbers = 4;',
            f"option (.{file.package}.{option}).inner = {{}}; option ({option}_list) = 1; option ({option}_list) = 2;",
        )
        message.statements.append(random.choice(uses))

    def _message_text(self, message: GeneratedMessage) -> str:
        parts = [_field_text(item) for item in message.fields] + list(message.statements)
        for name, members in message.oneofs.items():
            parts.append(f"oneof {name} {{ {' '.join(_field_text(item) for item in members)} }}")
        parts += [self._message_text(nested) for nested in message.nested]
        parts += [self._enum_text(enum) for enum in message.enums]
        self._random.shuffle(parts)
        body = "\n".join(parts)
        return f"message {message.name} {{\n{body}\n}}"

    def _enum_text(self, enum: GeneratedEnum) -> str:
        alias = "option allow_alias = true; " if enum.alias else ""
        return f"enum {enum.name} {{ {alias}{' '.join(f'{name} = {number};' for name, number in enum.values)} }}"

    def _with_trivia(self, text: str) -> str:
        pieces = []
        for line in text.split("\n"):
            pieces.append(line)
            pieces.append(self._random.choice(("\n", "\n", "\n", " // note\n", " /* a\n b */\n", "\r\n", "\n\t ")))
        return "".join(pieces)

    # Changes.

    def _add(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        taken = {item.number for item in _all_fields(message)}
        number = next(number for number in range(61, 99) if number not in taken)
        members = self._random.choice([message.fields, *message.oneofs.values()])
        members.append(self._field(file, number, in_oneof=members is not message.fields))

    def _remove(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        groups = [members for members in (message.fields, *message.oneofs.values()) if members]
        if groups:
            members = self._random.choice(groups)
            members.remove(self._random.choice(members))
        message.oneofs = {name: members for name, members in message.oneofs.items() if members}

    def _retype(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        fields = _all_fields(message)
        if fields:
            item = self._random.choice(fields)
            item.type, item.options = self._type(file), []

    def _rename(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        fields = _all_fields(message)
        if fields:
            self._random.choice(fields).name = self._name("renamed")

    def _move(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        """Move a field into a oneof or out of one."""
        plain = [item for item in message.fields if item.label in ("", "optional") and not item.map_key]
        if message.oneofs and (not plain or self._random.random() < 0.5):
            name = self._random.choice(list(message.oneofs))
            item = message.oneofs[name].pop()
            item.label = "" if file.proto3 else "optional"
            message.fields.append(item)
            message.oneofs = {key: members for key, members in message.oneofs.items() if members}
        elif plain:
            item = self._random.choice(plain)
            message.fields.remove(item)
            item.label = ""
            name = self._random.choice([*message.oneofs, self._name("choice")])
            message.oneofs.setdefault(name, []).append(item)

    def _relabel(self, file: GeneratedFile, message: GeneratedMessage) -> None:
        fields = [item for item in message.fields if not item.map_key]
        if fields:
            item = self._random.choice(fields)
            item.label = self._random.choice(
                ("optional", "repeated") if file.proto3 else ("optional", "required", "repeated")
            )
            item.options = []


def _field_text(item: GeneratedField) -> str:
    options = f" [{', '.join(item.options)}]" if item.options else ""
    if item.map_key:
        return f"map<{item.map_key}, {item.type}> {item.name} = {item.number}{options};"
    return f"{item.label} {item.type} {item.name} = {item.number}{options};".lstrip()


def _all_fields(message: GeneratedMessage) -> list[GeneratedField]:
    return [*message.fields, *(item for members in message.oneofs.values() for item in members)]


def _all_messages(file: GeneratedFile) -> list[GeneratedMessage]:
    found = list(file.messages)
    for message in found:
        found.extend(message.nested)
    return found


def _type_names(file: GeneratedFile) -> list[str]:
    names = [enum.name for enum in file.enums]
    for message in _all_messages(file):
        path = _path(file, message)
        names += [path, *(f"{path}.{enum.name}" for enum in message.enums)]
    return names


def _path(file: GeneratedFile, wanted: GeneratedMessage) -> str:
    stack = [(message, message.name) for message in file.messages]
    while stack:
        message, path = stack.pop()
        if message is wanted:
            return path
        stack.extend((nested, f"{path}.{nested.name}") for nested in message.nested)
    raise AssertionError("the message is not in the file")
