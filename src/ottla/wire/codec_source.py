"""The source text of the functions that decode and encode one version of one message.

The text is generated from the FIELDS tables. The functions are flat: neighbouring fixed-size fields become one struct
call, nested structs are written out in place, and nothing is looked up per field.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from ottla.wire.primitives import FIXED_CODES, STRING_BYTES_MAX, WireError, write_uvarint
from ottla.wire.schema import Array, Field, FieldType, Message, Struct

Decoder: TypeAlias = Callable[[bytes | memoryview, int, int, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any], bytes]

_VARINT_BYTES_MAX: Final = 5
#: Arrays of up to this many integers are packed and unpacked without building a format string.
_SHORT_ARRAY: Final = 8
#: The varints of one byte, by value.
_SHORT: Final = tuple(bytes([value]) for value in range(128))


class _Source:
    """The text of one generated function, and what its global names stand for."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = version >= cls.FLEXIBLE_FROM
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.indent = 1
        #: Neighbouring fixed-size values that will become one struct call: format code and expression.
        self.run: list[tuple[str, str]] = []
        self.serial = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextlib.contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self.indent += 1
        length = len(self.lines)
        yield
        if len(self.lines) == length:
            self.line("pass")
        self.indent -= 1

    def fresh(self, prefix: str) -> str:
        """Return a new local name."""
        self.serial += 1
        return f"{prefix}{self.serial}"

    def bind(self, name: str, value: object) -> str:
        self.names[name] = value
        return name

    def build(self, signature: str) -> Any:
        source = "\n".join([f"def {signature}:", *self.lines])
        filename = f"<{self.cls.__name__} v{self.version}>"
        # The text is made from generated tables only; no part of it comes from a peer.
        exec(compile(source, filename, "exec"), self.names)  # noqa: S102
        return self.names[signature.partition("(")[0]]


class DecoderSource(_Source):
    """Local names of the text: buf, p the position, end, n a length, q the position after a value, left the elements
    that the message may still have."""

    def compile(self) -> Decoder:
        self.bind("new", object.__new__)
        self.bind("bad_length", _bad_length)
        self.bind("too_many_elements", _too_many_elements)
        self.bind("read_varint", _read_varint)
        self.bind("read_string_varint", _read_string_varint)
        self.struct(self.cls, "message", self.cls.__name__)
        self.flush()
        self.line("return message, p")
        decoder: Decoder = self.build("decode(buf, p, end, left)")
        return decoder

    def flush(self) -> None:
        """Write the pending run of fixed-size values."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if codes == "B":
            self.line(f"{targets} = buf[p]")
        else:
            unpack = self.bind(f"unpack_{codes.replace('?', 't')}", struct.Struct(f">{codes}").unpack_from)
            self.line(f"({targets},) = {unpack}(buf, p)")
        self.line(f"p += {struct.calcsize(f'>{codes}')}")
        self.run.clear()

    def struct(self, cls: type[Struct], target: str, path: str) -> None:
        self.flush()
        self.line(f"{target} = new({self.bind(cls.__name__, cls)})")
        tagged: list[Field] = []
        for field in cls.FIELDS:
            attribute = f"{target}.{field.name}"
            if not field.is_in(self.version) or field.is_tagged_in(self.version):
                self.line(f"{attribute} = {self.default(field)}")
            if field.is_tagged_in(self.version):
                tagged.append(field)
            elif field.is_in(self.version):
                nullable = field.is_nullable_in(self.version)
                self.value(field.type, nullable, attribute, f"{path}.{field.name}")
        if self.flexible:
            self.tags(tagged, target, path)

    def default(self, field: Field) -> str:
        if field.is_required_struct():
            return f"{self.bind(field.type.__name__, field.type)}()"  # type: ignore[union-attr]
        return repr(field.default)

    def value(self, field_type: FieldType, nullable: bool, target: str, path: str) -> None:
        if isinstance(field_type, Array):
            self.array(field_type, nullable, target, path)
        elif field_type in FIXED_CODES:
            self.run.append((FIXED_CODES[str(field_type)], target))
        elif isinstance(field_type, str):
            self.run_of_bytes(field_type == "string", nullable, target, path)
        elif nullable:
            self.run.append(("b", "n"))
            self.flush()
            with self.block("if n < 0:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self.nested(field_type, target, path)
        else:
            self.nested(field_type, target, path)

    def nested(self, cls: type[Struct], target: str, path: str) -> None:
        name = self.fresh("struct")
        self.struct(cls, name, path)
        self.flush()
        self.line(f"{target} = {name}")

    def length(self, code: str, read_varint: str) -> None:
        """Read a length into n; -1 is null."""
        if not self.flexible:
            self.run.append((code, "n"))
            self.flush()
            return
        self.run.append(("B", "n"))
        self.flush()
        with self.block("if n > 127:"):
            self.line(f"n, p = {read_varint}(buf, p, n)")
        self.line("n -= 1")

    def run_of_bytes(self, is_string: bool, nullable: bool, target: str, path: str) -> None:
        if is_string:
            self.length("h", "read_string_varint")
        else:
            self.length("i", "read_varint")
        with self.unless_null(nullable, target):
            self.line("q = p + n")
            with self.block("if not p <= q <= end:"):
                self.line(f"raise bad_length({path!r}, n)")
            self.line(f'{target} = str(buf[p:q], "utf-8")' if is_string else f"{target} = bytes(buf[p:q])")
            self.line("p = q")

    def array(self, array: Array, nullable: bool, target: str, path: str) -> None:
        self.length("i", "read_varint")
        with self.unless_null(nullable, target):
            size = max(1, self.size_min(array.element, False))
            with self.block(f"if not 0 <= n * {size} <= end - p:"):
                self.line(f"raise bad_length({path!r}, n)")
            self.count_elements(path)
            if array.element in FIXED_CODES:
                self.array_of_fixed(FIXED_CODES[str(array.element)], target)
            else:
                self.array_of_varied(array.element, target, path)

    def count_elements(self, path: str) -> None:
        self.line("left -= n")
        with self.block("if left < 0:"):
            self.line(f"raise too_many_elements({path!r})")

    def array_of_fixed(self, code: str, target: str) -> None:
        short = self.bind(f"unpack_array_{code}", _array_unpackers(code))
        self.bind("unpack_from", struct.unpack_from)
        with self.block(f"if n <= {_SHORT_ARRAY}:"):
            self.line(f"{target} = {short}[n](buf, p)")
        with self.block("else:"):
            self.line(f"{target} = unpack_from(f'>{{n}}{code}', buf, p)")
        self.line(f"p += n * {struct.calcsize(f'>{code}')}")

    def array_of_varied(self, element: str | type[Struct], target: str, path: str) -> None:
        items, item = self.fresh("items"), self.fresh("item")
        self.line(f"{items} = []")
        with self.block("for _ in range(n):"):
            if isinstance(element, str):
                self.value(element, False, item, path)
            else:
                self.struct(element, item, path)
            self.flush()
            self.line(f"{items}.append({item})")
        self.line(f"{target} = tuple({items})")

    @contextlib.contextmanager
    def unless_null(self, nullable: bool, target: str) -> Iterator[None]:
        if not nullable:
            yield
            return
        with self.block("if n == -1:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            yield

    def tags(self, tagged: list[Field], target: str, path: str) -> None:
        self.run.append(("B", "n"))
        self.flush()
        with self.block("if n:"):
            self.varint_continued("n")
            self.count_elements(path)
            if not tagged:
                self.line(f"p = {self.bind('skip_tags', _skip_tags)}(buf, p, end, n)")
                return
            after = self.fresh("after")
            with self.block("for _ in range(n):"):
                for name in ("tag", "n"):
                    self.line(f"{name} = buf[p]")
                    self.line("p += 1")
                    self.varint_continued(name)
                self.line(f"{after} = p + n")
                with self.block(f"if {after} > end:"):
                    self.line(f"raise bad_length({path!r}, n)")
                for position, field in enumerate(tagged):
                    with self.block(f"{'elif' if position else 'if'} tag == {field.tag}:"):
                        self.tagged_value(field, f"{target}.{field.name}", f"{path}.{field.name}", after)
                with self.block("else:"):
                    self.line(f"p = {after}")

    def tagged_value(self, field: Field, target: str, path: str, after: str) -> None:
        self.value(field.type, field.is_nullable_in(self.version), target, path)
        self.flush()
        with self.block(f"if p != {after}:"):
            self.bind("WireError", WireError)
            self.line(f"raise WireError({path + ' is not as long as its tag says'!r})")

    def varint_continued(self, name: str) -> None:
        with self.block(f"if {name} > 127:"):
            self.line(f"{name}, p = read_varint(buf, p, {name})")

    def size_min(self, field_type: FieldType, nullable: bool) -> int:
        """The fewest bytes a value can take: bounds how many of them the bytes left can hold."""
        if isinstance(field_type, Array):
            return 1 if self.flexible else 4
        if isinstance(field_type, str):
            fixed = FIXED_CODES.get(field_type)
            if fixed:
                return struct.calcsize(f">{fixed}")
            return 1 if self.flexible else 2 if field_type == "string" else 4
        if nullable:
            return 1
        positional = [
            field for field in field_type.FIELDS if field.is_in(self.version) and not field.is_tagged_in(self.version)
        ]
        sizes = [self.size_min(field.type, field.is_nullable_in(self.version)) for field in positional]
        return sum(sizes) + self.flexible


class EncoderSource(_Source):
    """The text collects pieces in lists and joins them once, so that large values are copied only once."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(cls, version)
        #: The list the pieces go to; a tagged field has its own, because its size stands before it.
        self.out = "out"
        #: Expressions of bytes that were not yet written to `out`.
        self.pieces: list[str] = []

    def compile(self) -> Encoder:
        self.bind("SHORT", _SHORT)
        self.bind("varint", write_uvarint)
        self.bind("string_varint", _string_varint)
        self.bind("pack", struct.pack)
        self.line("out = []")
        self.struct(self.cls, "message")
        self.flush()
        self.line('return b"".join(out)')
        encoder: Encoder = self.build("encode(message)")
        return encoder

    def piece(self, expression: str) -> None:
        self.end_run()
        self.pieces.append(expression)

    def end_run(self) -> None:
        if self.run:
            codes = "".join(code for code, _ in self.run)
            values = ", ".join(value for code, value in self.run if code != "x")
            self.bind(name := f"pack_{codes.replace('?', 't')}", struct.Struct(f">{codes}").pack)
            self.pieces.append(f"{name}({values})" if values else repr(bytes(len(codes))))
            self.run.clear()

    def flush(self) -> None:
        self.end_run()
        if len(self.pieces) == 1:
            self.line(f"{self.out}.append({self.pieces[0]})")
        elif self.pieces:
            self.line(f"{self.out} += ({', '.join(self.pieces)})")
        self.pieces.clear()

    def struct(self, cls: type[Struct], source: str) -> None:
        tagged: list[Field] = []
        for field in cls.FIELDS:
            if field.is_tagged_in(self.version):
                tagged.append(field)
            elif field.is_in(self.version):
                self.value(field.type, field.is_nullable_in(self.version), f"{source}.{field.name}")
        if tagged:
            self.tags(sorted(tagged, key=lambda field: field.tag or 0), source)
        elif self.flexible:
            self.run.append(("x", ""))

    def value(self, field_type: FieldType, nullable: bool, source: str) -> None:
        if isinstance(field_type, Array):
            self.array(field_type, nullable, source)
        elif field_type == "uuid":
            # struct would silently pad or cut bytes of another length.
            with self.block(f"if len({source}) != 16:"):
                self.line('raise ValueError("a uuid has 16 bytes")')
            self.run.append(("16s", source))
        elif field_type in FIXED_CODES:
            self.run.append((FIXED_CODES[str(field_type)], source))
        elif isinstance(field_type, str):
            self.run_of_bytes(field_type == "string", nullable, source)
        elif nullable:
            self.nullable_struct(field_type, source)
        else:
            self.struct(field_type, source)

    def nullable_struct(self, cls: type[Struct], source: str) -> None:
        self.flush()
        name = self.fresh("struct")
        self.line(f"{name} = {source}")
        with self.block(f"if {name} is None:"):
            self.line(f"{self.out}.append({struct.pack('>b', -1)!r})")
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.struct(cls, name)
            self.flush()

    def run_of_bytes(self, is_string: bool, nullable: bool, source: str) -> None:
        value, length = self.fresh("value"), self.fresh("length")
        self.line(f"{value} = {source}")
        with self.unless_null(nullable, value, f"{length} = {0 if self.flexible else -1}", f'{value} = b""'):
            if is_string:
                self.line(f"{value} = {value}.encode()")
            self.line(f"{length} = len({value}){' + 1' if self.flexible else ''}")
        if self.flexible:
            self.piece(self.varint_of(length, "string_varint" if is_string else "varint"))
        else:
            self.run.append(("h" if is_string else "i", length))
        self.piece(value)

    def array(self, array: Array, nullable: bool, source: str) -> None:
        items, length = self.fresh("items"), self.fresh("length")
        self.line(f"{items} = {source}")
        if array.element in FIXED_CODES:
            packed = self.fresh("packed")
            with self.unless_null(nullable, items, f"{packed} = {self.null_array()!r}"):
                self.line(f"{length} = len({items})")
                self.array_of_fixed(FIXED_CODES[str(array.element)], items, length, packed)
            self.piece(packed)
            return
        if nullable:
            self.flush()
        with self.unless_null(nullable, items, f"{self.out}.append({self.null_array()!r})"):
            self.line(f"{length} = len({items}){' + 1' if self.flexible else ''}")
            if self.flexible:
                self.piece(self.varint_of(length, "varint"))
            else:
                self.run.append(("i", length))
            self.flush()
            item = self.fresh("item")
            with self.block(f"for {item} in {items}:"):
                self.value(array.element, False, item)
                self.flush()

    def array_of_fixed(self, code: str, items: str, length: str, packed: str) -> None:
        length_code, added = ("B", " + 1") if self.flexible else ("i", "")
        short = self.bind(f"pack_array_{code}", _array_packers(length_code, code))
        with self.block(f"if {length} <= {_SHORT_ARRAY}:"):
            self.line(f"{packed} = {short}[{length}]({length}{added}, *{items})")
        with self.block("else:"):
            long = f"pack(f'>{{{length}}}{code}', *{items})"
            prefix = f"varint({length} + 1)" if self.flexible else f"pack('>i', {length})"
            self.line(f"{packed} = {prefix} + {long}")

    def tags(self, tagged: list[Field], source: str) -> None:
        self.flush()
        tags = self.fresh("tags")
        self.line(f"{tags} = []")
        for field in tagged:
            value, outer = self.fresh("value"), self.out
            self.line(f"{value} = {source}.{field.name}")
            with self.block(f"if {self.differs_from_default(field, value)}:"):
                self.out = self.fresh("out")
                self.line(f"{self.out} = []")
                self.value(field.type, field.is_nullable_in(self.version), value)
                self.flush()
                self.line(f'{self.out} = b"".join({self.out})')
                self.line(f"{tags} += ({write_uvarint(field.tag or 0)!r}, varint(len({self.out})), {self.out})")
            self.out = outer
        self.line(f"{self.out}.append(SHORT[len({tags}) // 3])")
        self.line(f"{self.out} += {tags}")

    def differs_from_default(self, field: Field, value: str) -> str:
        if isinstance(field.type, type):
            default = self.bind(f"DEFAULT_{field.type.__name__}", field.type())
            return f"{value} is not None and {value} != {default}"
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.type, Array):
            return f"{value} is None or len({value})"
        return f"{value} != {field.default!r}"

    @contextlib.contextmanager
    def unless_null(self, nullable: bool, value: str, *if_null: str) -> Iterator[None]:
        if not nullable:
            yield
            return
        with self.block(f"if {value} is None:"):
            for line in if_null:
                self.line(line)
        with self.block("else:"):
            yield

    def varint_of(self, name: str, long: str) -> str:
        return f"SHORT[{name}] if {name} < 128 else {long}({name})"

    def null_array(self) -> bytes:
        return bytes(1) if self.flexible else struct.pack(">i", -1)


# The generated functions call these in uncommon cases; the code for the common cases is part of their text.


def _read_varint(buffer: bytes | memoryview, position: int, low: int) -> tuple[int, int]:
    """Return an unsigned varint whose first byte, `low`, was read, and the position behind it."""
    value = low & 0x7F
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise WireError("a varint is longer than 32 bits")


def _read_string_varint(buffer: bytes | memoryview, position: int, low: int) -> tuple[int, int]:
    value, position = _read_varint(buffer, position, low)
    if value > STRING_BYTES_MAX + 1:
        raise WireError(f"a string of {value - 1} bytes is longer than Kafka allows ({STRING_BYTES_MAX})")
    return value, position


def _skip_tags(buffer: bytes | memoryview, position: int, end: int, count: int) -> int:
    """Return the position behind tagged fields that are unknown: newer clients send them without a new version."""
    for _ in range(count):
        tag = buffer[position]
        position += 1
        if tag > 127:
            tag, position = _read_varint(buffer, position, tag)
        size = buffer[position]
        position += 1
        if size > 127:
            size, position = _read_varint(buffer, position, size)
        position += size
        if position > end:
            raise WireError(f"tagged field {tag} is longer than the bytes left")
    return position


def _string_varint(value: int) -> bytes:
    if value > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {value - 1} bytes is longer than Kafka allows ({STRING_BYTES_MAX})")
    return write_uvarint(value)


def _too_many_elements(path: str) -> WireError:
    return WireError(f"{path} has more elements than a message may have")


def _bad_length(path: str, length: int) -> WireError:
    if length == -1:
        return WireError(f"{path} is null where this version allows no null")
    return WireError(f"{path} has the length {length}, which is negative or more than the bytes left")


@functools.cache
def _array_unpackers(code: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    return tuple(struct.Struct(f">{count}{code}").unpack_from for count in range(_SHORT_ARRAY + 1))


@functools.cache
def _array_packers(length_code: str, code: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(struct.Struct(f">{length_code}{count}{code}").pack for count in range(_SHORT_ARRAY + 1))
