"""What kafka-console-producer and kafka-console-consumer have in common: deprecated flags, and properties in flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.cli import java_properties
from ottla.cli.kafka.errors import UsageError
from ottla.cli.kafka.options import Options


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as properties. A word without a value sets an empty one."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def filed(options: Options, name: str) -> dict[str, str]:
    """Return the properties of the file that a flag names."""
    return java_properties.load(options.value(name)) if options.has(name) else {}


def refuse_both(options: Options, names: Mapping[str, str]) -> None:
    """Raise UsageError if a flag and its deprecated form were given; keys and values are named in this order."""
    for one, other in names.items():
        if options.has(one) and options.has(other):
            raise UsageError(f"Options --{one} and --{other} cannot be specified together.")


def either(options: Options, name: str, deprecated: str) -> str:
    """Return which of both forms of a flag was given."""
    return deprecated if options.has(deprecated) else name


def check_address(server: str | None) -> None:
    """Raise UsageError if an address is not of the form HOST:PORT."""
    for each in (server or "").split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise UsageError("Please provide valid host:port like host1:9091,host2:9092\n ")
