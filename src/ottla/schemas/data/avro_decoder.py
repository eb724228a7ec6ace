"""Avro's binary encoding to JSON values, in Avro's JSON encoding. See `avro_encoder`.

The number of values is limited, because a null, an empty record and an item of an array of them take no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from ottla.schemas.avro.nodes import Array, Enum, Fixed, Map, Node, Record, Union
from ottla.schemas.data.avro_encoder import branch_name
from ottla.schemas.data.avro_functions import NodeFunctions
from ottla.schemas.data.misfit import DATA_DEPTH_MAX, DataMisfit, too_deep

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
_VARINT_BITS_MAX: Final = 63
#: values of one record that take no bytes: about 50 ms
_EMPTY_MAX: Final = 100_000
#: larger numbers are rounded to infinity
_FLOAT_END: Final = 3.4028235677973366e38
#: 9 digits distinguish all floats; fewer are enough for most
_FLOAT_DIGITS: Final = range(1, 9)


class _Reader:
    """The bytes of one value, and how many values may still be read."""

    __slots__ = ("_left", "data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        # Each byte may be a number with records around it, which take no bytes.
        self._left = _EMPTY_MAX + 4 * len(data)

    def count(self) -> None:
        """Count a value. Raise DataMisfit if there are more than these bytes can mean."""
        self._left -= 1
        if self._left < 0:
            raise DataMisfit(f"the data have more than {_EMPTY_MAX:,} values that take no bytes")

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise DataMisfit(f"the bytes end at {len(self.data)}; {size} more are expected at {self.position}")
        found = self.data[self.position : end]
        self.position = end
        return found

    def long(self) -> int:
        data, position = self.data, self.position
        number = shift = 0
        while position < len(data):
            byte = data[position]
            position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                if number >> 64:
                    break
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > _VARINT_BITS_MAX:
                break
        else:
            raise DataMisfit(f"the bytes end at {len(data)} in the middle of a number")
        raise DataMisfit(f"the number at byte {self.position} has more than 64 bits")


Read = Callable[[_Reader, int], Any]


def make_decoder(root: Node) -> Callable[[bytes], Any]:
    """Return the function that decodes the bytes of a schema; it raises DataMisfit."""
    read = _Readers(_PRIMITIVES).of(root)

    def decode(data: bytes) -> Any:
        reader = _Reader(data)
        value = read(reader, 0)
        if reader.position < len(data):
            raise DataMisfit(f"the data end at byte {reader.position}, and {len(data) - reader.position} bytes follow")
        return value

    return decode


class _Readers(NodeFunctions[Read]):
    def _record(self, node: Record) -> Read:
        fields: list[tuple[str, Read]] = []

        def read(reader: _Reader, depth: int) -> Any:
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            reader.count()
            value = {}
            for name, read_field in fields or complete():
                try:
                    value[name] = read_field(reader, depth + 1)
                except DataMisfit as error:
                    raise error.inside(name)
            return value

        def complete() -> list[tuple[str, Read]]:
            # With the first value: a chain of records would need more of Python's stack than the data do.
            fields[:] = [(field.name, self.of(field.type)) for field in node.fields]
            return fields

        self._records[id(node)] = read
        return read

    def _union(self, node: Union) -> Read:
        branches = [
            (None if branch.type == "null" else branch_name(branch), self.of(branch)) for branch in node.branches
        ]

        def read(reader: _Reader, depth: int) -> Any:
            index = reader.long()
            if not 0 <= index < len(branches):
                raise DataMisfit(f"the union has no branch {index}")
            name, read_branch = branches[index]
            if name is None:
                return None
            try:
                return {name: read_branch(reader, depth)}
            except DataMisfit as error:
                raise error.inside(name)

        return read

    def _array(self, node: Array) -> Read:
        read_item = self.of(node.items)

        def read(reader: _Reader, depth: int) -> Any:
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            items: list[Any] = []
            while count := _block(reader):
                for _ in range(count):
                    try:
                        items.append(read_item(reader, depth + 1))
                    except DataMisfit as error:
                        raise error.inside(len(items))
                    reader.count()
            return items

        return read

    def _map(self, node: Map) -> Read:
        read_member = self.of(node.items)

        def read(reader: _Reader, depth: int) -> Any:
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            members: dict[str, Any] = {}
            while count := _block(reader):
                for _ in range(count):
                    name = _read_string(reader, depth)
                    try:
                        members[name] = read_member(reader, depth + 1)
                    except DataMisfit as error:
                        raise error.inside(name)
            return members

        return read

    def _enum(self, node: Enum) -> Read:
        def read(reader: _Reader, depth: int) -> Any:
            index = reader.long()
            if not 0 <= index < len(node.symbols):
                raise DataMisfit(f"the enum {node.name.full} has no symbol {index}")
            return node.symbols[index]

        return read

    def _fixed(self, node: Fixed) -> Read:
        return lambda reader, depth: reader.take(node.size).decode("latin-1")


def _block(reader: _Reader) -> int:
    """Return how many items the next block of an array or map has; 0 at its end."""
    count = reader.long()
    if count < 0:
        reader.long()  # the size of the block in bytes
        return -count
    return count


def _read_null(reader: _Reader, depth: int) -> Any:
    reader.count()
    return None


def _read_boolean(reader: _Reader, depth: int) -> Any:
    byte = reader.take(1)[0]
    if byte > 1:
        raise DataMisfit(f"a boolean is 0 or 1, not {byte}")
    return byte == 1


def _read_int(reader: _Reader, depth: int) -> Any:
    number = reader.long()
    if not -(1 << 31) <= number < 1 << 31:
        raise DataMisfit(f"{number} has more than 32 bits")
    return number


def _read_long(reader: _Reader, depth: int) -> Any:
    return reader.long()


def _read_float(reader: _Reader, depth: int) -> Any:
    (number,) = _FLOAT.unpack(reader.take(4))
    if not math.isfinite(number):
        return _not_finite(number)
    # The shortest digits that mean this float: 0.1, not 0.10000000149011612.
    for digits in _FLOAT_DIGITS:
        short = float(f"{number:.{digits}g}")
        if abs(short) < _FLOAT_END and _FLOAT.unpack(_FLOAT.pack(short))[0] == number:
            return short
    return float(f"{number:.9g}")


def _read_double(reader: _Reader, depth: int) -> Any:
    (number,) = _DOUBLE.unpack(reader.take(8))
    return number if math.isfinite(number) else _not_finite(number)


def _not_finite(number: float) -> str:
    """Return a number that JSON does not have as text, as Java's JSON encoder does."""
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def _read_bytes(reader: _Reader, depth: int) -> Any:
    return reader.take(reader.long()).decode("latin-1")


def _read_string(reader: _Reader, depth: int) -> Any:
    try:
        return reader.take(reader.long()).decode()
    except UnicodeDecodeError:
        raise DataMisfit(f"the string before byte {reader.position} is not UTF-8") from None


_PRIMITIVES: Final[dict[str, Read]] = {
    "null": _read_null, "boolean": _read_boolean, "int": _read_int, "long": _read_long, "float": _read_float,
    "double": _read_double, "bytes": _read_bytes, "string": _read_string,
}  # fmt: skip
