"""JSON values to Avro's binary encoding. The JSON is Avro's own: a union that is not null is {"TYPE": value}.

Each type of a schema becomes a function once, and the functions of a record call those of its fields. A field that is
missing gets its default. The result is limited, because each missing field of each record may add its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from ottla.schemas.avro.defaults import fits
from ottla.schemas.avro.json_text import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from ottla.schemas.avro.nodes import Array, Enum, Field, Fixed, Map, Named, Node, NoDefault, Record, Union
from ottla.schemas.data.avro_functions import NodeFunctions
from ottla.schemas.data.framing import zigzag
from ottla.schemas.data.misfit import DATA_DEPTH_MAX, DataMisfit, kind_of, too_deep
from ottla.schemas.schema import Budget, SchemaTooComplex

#: writes a value; the last argument is how many values enclose it
Write = Callable[[Any, bytearray, int], None]

_BYTES_MAX: Final = 64 << 20
#: of one default, whose records may get their fields from other defaults
_DEFAULT_BYTES_MAX: Final = 1 << 20
_DEFAULT_STEPS_MAX: Final = 10_000
_BRANCHES_SHOWN: Final = 5
_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
#: how Java's JSON encoder prints them
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def make_encoder(root: Node) -> Callable[[Any], bytes]:
    """Return the function that encodes a value of a schema; it raises DataMisfit."""
    write = _Writers(_PRIMITIVES).of(root)

    def encode(value: Any) -> bytes:
        out = bytearray()
        write(value, out, 0)
        return bytes(out)

    return encode


def branch_name(node: Node) -> str:
    """Return how a union in JSON names this type: the full name of a record, enum or fixed."""
    return node.name.full if isinstance(node, Named) else node.type


class _Writers(NodeFunctions[Write]):
    def _record(self, node: Record) -> Write:
        fields: list[tuple[str, Write, bytes | None]] = []
        full_name = node.name.full

        def write(value: Any, out: bytearray, depth: int) -> None:
            if not isinstance(value, dict):
                raise DataMisfit(f"the record {full_name} must be an object, not {kind_of(value)}")
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            found = 0
            for name, write_field, default in fields or complete():
                if name in value:
                    found += 1
                    try:
                        write_field(value[name], out, depth + 1)
                    except DataMisfit as error:
                        raise error.inside(name)
                elif default is None:
                    raise DataMisfit(f"the field {name!r} of {full_name} is missing")
                else:
                    out += default
                    if len(out) > _BYTES_MAX:
                        raise _too_large()
            if found < len(value):
                unknown = next(name for name in value if name not in node.fields_by_name)
                raise DataMisfit(f"{full_name} has no field {unknown[:60]!r}")

        def complete() -> list[tuple[str, Write, bytes | None]]:
            # With the first value: a default may be a record whose function is not complete before, and a chain of
            # records would need more of Python's stack than the data do.
            fields[:] = [(field.name, self.of(field.type), self._default(field)) for field in node.fields]
            return fields

        self._records[id(node)] = write
        return write

    def _default(self, field: Field) -> bytes | None:
        """Return the encoded default of a field; None if it has none, or one that its type does not allow."""
        if isinstance(field.default, NoDefault):
            return None
        out = bytearray()
        try:
            self.of(field.type)(_as_data(field.type, field.default, Budget(_DEFAULT_STEPS_MAX)), out, 0)
        except (DataMisfit, SchemaTooComplex):
            return None
        return bytes(out) if len(out) <= _DEFAULT_BYTES_MAX else None

    def _union(self, node: Union) -> Write:
        null = next((index for index, branch in enumerate(node.branches) if branch.type == "null"), None)
        null_prefix = None if null is None else zigzag(null)
        branches = {
            branch_name(branch): (zigzag(index), self.of(branch))
            for index, branch in enumerate(node.branches)
            if branch.type != "null"
        }

        def write(value: Any, out: bytearray, depth: int) -> None:
            if value is None and null_prefix is not None:
                out += null_prefix
                return
            if not isinstance(value, dict) or len(value) != 1:
                raise _union_misfit(node, value)
            ((name, content),) = value.items()
            branch = branches.get(name)
            if branch is None:
                raise _union_misfit(node, value)
            out += branch[0]
            try:
                branch[1](content, out, depth)
            except DataMisfit as error:
                raise error.inside(name)

        return write

    def _array(self, node: Array) -> Write:
        write_item = self.of(node.items)

        def write(value: Any, out: bytearray, depth: int) -> None:
            if not isinstance(value, list):
                raise DataMisfit(f"an array is expected, not {kind_of(value)}")
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            if value:
                out += zigzag(len(value))
                for index, item in enumerate(value):
                    try:
                        write_item(item, out, depth + 1)
                    except DataMisfit as error:
                        raise error.inside(index)
            out.append(0)

        return write

    def _map(self, node: Map) -> Write:
        write_member = self.of(node.items)

        def write(value: Any, out: bytearray, depth: int) -> None:
            if not isinstance(value, dict):
                raise DataMisfit(f"a map must be an object, not {kind_of(value)}")
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            if value:
                out += zigzag(len(value))
                for name, member in value.items():
                    try:
                        _write_string(name, out, depth)
                        write_member(member, out, depth + 1)
                    except DataMisfit as error:
                        raise error.inside(name)
            out.append(0)

        return write

    def _enum(self, node: Enum) -> Write:
        numbers = {symbol: zigzag(index) for index, symbol in enumerate(node.symbols)}

        def write(value: Any, out: bytearray, depth: int) -> None:
            number = numbers.get(value) if isinstance(value, str) else None
            if number is None:
                raise DataMisfit(f"{kind_of(value)} is not a symbol of the enum {node.name.full}")
            out += number

        return write

    def _fixed(self, node: Fixed) -> Write:
        def write(value: Any, out: bytearray, depth: int) -> None:
            content = _latin_1(value)
            if len(content) != node.size:
                raise DataMisfit(f"{node.name.full} has {node.size} bytes, the data have {len(content)}")
            out += content

        return write


def _write_null(value: Any, out: bytearray, depth: int) -> None:
    if value is not None:
        raise DataMisfit(f"null is expected, not {kind_of(value)}")


def _write_boolean(value: Any, out: bytearray, depth: int) -> None:
    if not isinstance(value, bool):
        raise DataMisfit(f"true or false is expected, not {kind_of(value)}")
    out.append(value)


def _write_int(value: Any, out: bytearray, depth: int) -> None:
    if type(value) is not int or not INT_MIN <= value <= INT_MAX:
        raise DataMisfit(f"an integer of 32 bits is expected, not {kind_of(value)}")
    out += zigzag(value)


def _write_long(value: Any, out: bytearray, depth: int) -> None:
    if type(value) is not int or not LONG_MIN <= value <= LONG_MAX:
        raise DataMisfit(f"an integer of 64 bits is expected, not {kind_of(value)}")
    out += zigzag(value)


def _write_float(value: Any, out: bytearray, depth: int) -> None:
    number = _number(value)
    try:
        out += _FLOAT.pack(number)
    except OverflowError:
        raise DataMisfit(f"{kind_of(value)} is too large for a float") from None


def _write_double(value: Any, out: bytearray, depth: int) -> None:
    out += _DOUBLE.pack(_number(value))


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataMisfit(f"a number is expected, not {kind_of(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DataMisfit(f"{kind_of(value)} is too large for a double") from None


def _write_string(value: Any, out: bytearray, depth: int) -> None:
    if not isinstance(value, str):
        raise DataMisfit(f"a string is expected, not {kind_of(value)}")
    try:
        content = value.encode()
    except UnicodeEncodeError:
        raise DataMisfit("the string contains half of a surrogate pair, which is not Unicode") from None
    out += zigzag(len(content))
    out += content


def _write_bytes(value: Any, out: bytearray, depth: int) -> None:
    content = _latin_1(value)
    out += zigzag(len(content))
    out += content


def _latin_1(value: Any) -> bytes:
    """Return the bytes of a string in which each character stands for one byte, as Avro writes bytes in JSON."""
    if not isinstance(value, str):
        raise DataMisfit(f"bytes must be a string, not {kind_of(value)}")
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise DataMisfit(f"bytes are written with characters up to \\u00ff, not {value[error.start]!r}") from None


_PRIMITIVES: Final[dict[str, Write]] = {
    "null": _write_null, "boolean": _write_boolean, "int": _write_int, "long": _write_long, "float": _write_float,
    "double": _write_double, "bytes": _write_bytes, "string": _write_string,
}  # fmt: skip


def _as_data(node: Node, value: Any, budget: Budget) -> Any:
    """Return a default as data have it: the default of a union does not name its type. Raise DataMisfit if it cannot.

    Since Avro 1.12 any branch of a union may have the default, and the first one that fits has it.
    """
    budget.spend()
    if isinstance(node, Union):
        branch = next((branch for branch in node.branches if fits(branch, value, budget)), None)
        if branch is None:
            raise _union_misfit(node, value)
        return None if branch.type == "null" else {branch_name(branch): _as_data(branch, value, budget)}
    if isinstance(node, Array) and isinstance(value, list):
        return [_as_data(node.items, item, budget) for item in value]
    if isinstance(node, Map) and isinstance(value, dict):
        return {name: _as_data(node.items, member, budget) for name, member in value.items()}
    if isinstance(node, Record) and isinstance(value, dict):
        whole = {field.name: value.get(field.name, field.default) for field in node.fields}
        return {
            field.name: _as_data(field.type, whole[field.name], budget)
            for field in node.fields
            if not isinstance(whole[field.name], NoDefault)
        }
    return value


def _union_misfit(node: Union, value: Any) -> DataMisfit:
    names = [branch_name(branch) for branch in node.branches]
    forms = ["null" if name == "null" else f'{{"{name}": …}}' for name in names[:_BRANCHES_SHOWN]]
    more = ", …" if len(names) > _BRANCHES_SHOWN else ""
    return DataMisfit(f"a union is written as {' or '.join(forms)}{more}, not as {kind_of(value)}")


def _too_large() -> DataMisfit:
    return DataMisfit(f"with the defaults of missing fields the data exceed {_BYTES_MAX:,} bytes")
