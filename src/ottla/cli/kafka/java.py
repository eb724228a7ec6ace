"""How Java formats and orders things, where the output of Kafka's tools shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ottla.cli.kafka.errors import IllegalArgument, ToolError
from ottla.model.hashing import java_hash
from ottla.model.types import TopicPartition

_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_LOAD = 0.75
_UUID_TEXT_MAX = 24
_UUID_BYTES = 16
_UNSIGNED = 0xFFFFFFFF
_PRIME = 31

_Any = TypeVar("_Any")
_Key = TypeVar("_Key", str, TopicPartition)


def hash_order(keys: Iterable[_Key], capacity: int = 16) -> list[_Key]:
    """Return topics or partitions in the order in which a HashMap of Java with this initial capacity has them.

    Tools of Kafka print some lists in this order, and scripts compare outputs.
    """
    return map_order({key: _hash(key) for key in keys}, capacity)


def _hash(key: str | TopicPartition) -> int:
    if isinstance(key, str):
        return java_hash(key)
    return (_PRIME * (_PRIME + key.partition) + java_hash(key.topic)) & _UNSIGNED


def map_order(hashes: dict[_Any, int], capacity: int = 16) -> list[_Any]:
    """Return keys in the order in which a HashMap of Java has them. The values are their hash codes."""
    size = 1
    while size < capacity:
        size *= 2
    while len(hashes) > size * _LOAD:
        size *= 2
    return sorted(hashes, key=lambda key: _spread(hashes[key] & _UNSIGNED) & (size - 1))


def double(value: float) -> str:
    """Return Double.toString of Java."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    digits, _, exponent = f"{value:e}".partition("e")
    short = repr(value)
    if "e" in short:
        digits, _, exponent = short.partition("e")
    else:
        exponent = str(int(exponent))
        digits = f"{value / 10 ** int(exponent):.17g}"
    return f"{digits if '.' in digits else f'{digits}.0'}E{int(exponent)}"


def _spread(value: int) -> int:
    return value ^ value >> 16


def is_internal(topic: str) -> bool:
    """Return whether Kafka calls a topic internal."""
    return topic in _INTERNAL_TOPICS


def matching(pattern: str, names: Iterable[str], *, without_internal: bool = False) -> list[str]:
    """Return the topics that an include list selects: regular expressions, separated by commas."""
    text = pattern.strip().replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")
    try:
        compiled = re.compile(text)
    except re.error:
        raise ToolError(f"{text} is an invalid regex.") from None
    return [name for name in names if compiled.fullmatch(name) and not (without_internal and is_internal(name))]


def check_uuid(text: str) -> str:
    """Return an id that is written in base64. Raise IllegalArgument, as Uuid.fromString of Java does."""
    if len(text) > _UUID_TEXT_MAX:
        start = text[:_UUID_TEXT_MAX]
        raise IllegalArgument(f"Input string with prefix `{start}` is too long to be decoded as a base64 UUID")
    if len(text) == 1:
        raise IllegalArgument("Input byte[] should at least have 2 bytes for base64 bytes")
    bytes_count = len(text.rstrip("=")) * 6 // 8
    if bytes_count != _UUID_BYTES:
        raise IllegalArgument(
            f"Input string `{text}` decoded as {bytes_count} bytes, which is not equal to the expected 16 bytes of a "
            "base64-encoded UUID"
        )
    return text


def parse_int(text: str, bits: int = 32) -> int:
    """Return Integer.parseInt. Raise IllegalArgument with its text."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise IllegalArgument(f'For input string: "{text}"')
    return int(text)


def parse_long(text: str) -> int:
    """Return Long.parseLong. Raise IllegalArgument with its text."""
    return parse_int(text, 64)


def table(rows: Sequence[Sequence[object]], widths: Sequence[int]) -> list[str]:
    """Return rows with columns of at least these widths, as String.format of Java pads them; 0 is not padded."""
    return [" ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def joined(values: Iterable[object]) -> str:
    """Return values separated by commas."""
    return ",".join(map(str, values))


def as_list(values: Iterable[object]) -> str:
    """Return values as a List of Java prints them."""
    return f"[{', '.join(map(str, values))}]"
