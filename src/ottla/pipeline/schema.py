"""The fields of a topic's values: names and types of Spark SQL, from a DDL text or from a mapping of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.pipeline.problems import nearest

SIMPLE_TYPES: Mapping[str, str] = {
    "boolean": "BOOLEAN", "bool": "BOOLEAN",
    "tinyint": "TINYINT", "byte": "TINYINT",
    "smallint": "SMALLINT", "short": "SMALLINT",
    "int": "INT", "integer": "INT",
    "bigint": "BIGINT", "long": "BIGINT",
    "float": "FLOAT", "real": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamp_ltz": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "variant": "VARIANT",
}  # fmt: skip
#: names of types in other systems, and what to write instead
_FOREIGN = {
    "str": "string", "text": "string", "varchar2": "string", "number": "decimal(10,2)", "datetime": "timestamp",
    "bytes": "binary", "object": "struct<...>", "json": "variant", "int64": "bigint", "int32": "int",
    "float64": "double", "list": "array<...>", "dict": "map<string, ...>", "uuid": "string",
}  # fmt: skip
_SIZED = {"decimal": (2, 38), "dec": (2, 38), "numeric": (2, 38), "char": (1, 2**31 - 1), "varchar": (1, 2**31 - 1)}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`|\w+|'(?:[^'\\]|\\.)*'|[<>(),:])|$)")
_DEPTH_MAX = 20


class BadType(ValueError):
    """A text that is not a schema. `position` is the place in the text, `instead` is what to write."""

    def __init__(self, position: int, what: str, instead: str) -> None:
        super().__init__(what)
        self.position = position
        self.what = what
        self.instead = instead


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its type in the form of Spark SQL."""

    name: str
    type: str
    nullable: bool = True

    @property
    def is_event_time(self) -> bool:
        return self.type in ("TIMESTAMP", "TIMESTAMP_NTZ")

    def __str__(self) -> str:
        return f"`{self.name}` {self.type}" + ("" if self.nullable else " NOT NULL")


def parse_ddl(text: str) -> tuple[Column, ...]:
    """Read `order_id STRING, amount DECIMAL(10,2) NOT NULL`.

    >>> [str(column) for column in parse_ddl("id long not null, tags array<string>")]
    ['`id` BIGINT NOT NULL', '`tags` ARRAY<STRING>']
    """
    reader = _TypeReader(text)
    columns = reader.columns(end="")
    if not columns:
        raise BadType(0, "the schema has no fields", "write them as name TYPE, name TYPE")
    return columns


def parse_type(text: str) -> str:
    """Return a type in the form of Spark SQL. Raise BadType."""
    reader = _TypeReader(text)
    type_name = reader.type()
    if reader.token:
        raise BadType(reader.position, f"{reader.token!r} does not belong to the type", "remove it")
    return type_name


class _TypeReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._depth = 0
        self.token = ""
        self.position = 0
        self._next()

    def columns(self, end: str) -> tuple[Column, ...]:
        found: list[Column] = []
        while self.token and self.token != end:
            position, name = self.position, self._name()
            if self.token == ":":
                self._next()
            column = Column(name, self.type(), self._nullable())
            if any(column.name.lower() == one.name.lower() for one in found):
                raise BadType(position, f"the field {name!r} occurs twice", "rename one")
            found.append(column)
            if self.token == ",":
                self._next()
                if self.token in ("", end):
                    raise BadType(self.position, "a field is missing after ','", "remove the comma or add a field")
            elif self.token != end:
                raise BadType(self.position, f"{self.token!r} does not belong to {name!r}", "separate fields by commas")
        return tuple(found)

    def type(self) -> str:
        position, word = self.position, self.token.lower()
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise BadType(position, "types are nested too deeply", "write it flatter")
        if not re.fullmatch(r"\w+", word):
            shown = repr(self.token) if word else "the end"
            raise BadType(position, f"a type is missing before {shown}", "write one, such as STRING")
        self._next()
        type_name = self._nested(word) or self._sized(word, position) or SIMPLE_TYPES.get(word)
        if type_name is None:
            known = [*SIMPLE_TYPES, "decimal", "array", "map", "struct"]
            meant = (
                _FOREIGN.get(word) or nearest(word, known) or "one of string, bigint, double, decimal(10,2), timestamp"
            )
            raise BadType(position, f"{word!r} is not a type", f"write {meant}")
        self._depth -= 1
        return type_name

    def _nested(self, word: str) -> str | None:
        if word == "array":
            self._take("<", "write ARRAY<STRING>")
            inner = self.type()
            self._take(">", "close it with >")
            return f"ARRAY<{inner}>"
        if word == "map":
            self._take("<", "write MAP<STRING, STRING>")
            key = self.type()
            self._take(",", "a map has two types: MAP<STRING, STRING>")
            value = self.type()
            self._take(">", "close it with >")
            return f"MAP<{key}, {value}>"
        if word == "struct":
            self._take("<", "write STRUCT<name: STRING>")
            columns = self.columns(end=">")
            self._take(">", "close it with >")
            inner = ", ".join(f"`{one.name}`: {one.type}{'' if one.nullable else ' NOT NULL'}" for one in columns)
            return f"STRUCT<{inner}>"
        return None

    def _sized(self, word: str, position: int) -> str | None:
        if word not in _SIZED:
            return None
        count_max, number_max = _SIZED[word]
        numbers: list[int] = []
        if self.token == "(":
            self._next()
            while self.token.isdecimal():
                numbers.append(int(self.token))
                self._next()
                if self.token == ",":
                    self._next()
            self._take(")", "close it with )")
        name = "DECIMAL" if count_max == 2 else word.upper()
        if name != "DECIMAL" and len(numbers) != 1:
            raise BadType(position, f"{word} needs a length", f"write {word}(20), or string")
        scale = numbers[1] if len(numbers) > 1 else 0
        if len(numbers) > count_max or any(number > number_max for number in numbers) or scale > (numbers or [10])[0]:
            raise BadType(
                position,
                f"these are not sizes of {word}",
                "write decimal(10,2): at most 38 digits, 2 of them after the point",
            )
        return f"{name}({','.join(map(str, numbers))})" if numbers else "DECIMAL(10,0)"

    def _nullable(self) -> bool:
        nullable = True
        if self.token.lower() == "not":
            self._next()
            if self.token.lower() != "null":
                raise BadType(self.position, "NULL is missing after NOT", "write NOT NULL")
            self._next()
            nullable = False
        if self.token.lower() == "comment":
            self._next()
            self._next()
        return nullable

    def _name(self) -> str:
        name = self.token
        if not re.fullmatch(r"\w+|`.+`", name):
            raise BadType(self.position, f"a field's name is missing before {name!r}", "write name TYPE")
        self._next()
        return name[1:-1].replace("``", "`") if name.startswith("`") else name

    def _take(self, sign: str, advice: str) -> None:
        if self.token != sign:
            raise BadType(self.position, f"{sign!r} is missing", advice)
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            position = self._end + len(self._text[self._end :]) - len(self._text[self._end :].lstrip())
            raise BadType(position, f"{self._text[position]!r} does not belong in a schema", "remove it")
        self.token = match[1] or ""
        self.position = match.start(1) if match[1] else len(self._text)
        self._end = match.end()
