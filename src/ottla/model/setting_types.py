"""One setting as a row of a table: its name, type, default, check and help.

A table is a class whose body holds `Setting` rows. The class is the scope (broker or topic), its instances
are frozen snapshots of values, and the same rows make help text, documentation, DescribeConfigs answers and
the parsing of server.properties:

    class BrokerSettings(SettingsSnapshot):
        num_partitions = Setting("num.partitions", INT, 1, at_least(1), "Partitions of a topic created ...")

    BrokerSettings.num_partitions.help      the row
    settings.num_partitions                 the value, an int for mypy as well
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

from ottla.model.errors import InvalidConfig

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

#: maximum number of problems in one error: finding the similar name takes half a millisecond for each
PROBLEMS_MAX = 50


class InvalidSettings(InvalidConfig, ValueError):
    """One or more settings are invalid. Each problem is one line that says what to change."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(islice(problems, PROBLEMS_MAX))
        super().__init__("\n".join(self.problems))


# Types


#: the characters that Java's String.trim removes at both ends
_TRIMMED = "".join(map(chr, range(33)))


@dataclass(frozen=True, slots=True)
class SettingType(Generic[T_co]):
    """A type of values. `parse` raises ValueError with the expected form of the text."""

    name: str
    #: the type's number in DescribeConfigs answers (ConfigType)
    id: int
    parse: Callable[[str], T_co]


def _trim(text: str) -> str:
    """Return a text without the white space around it that Java trims: other white space may belong to a name."""
    return text.strip(_TRIMMED)


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("true or false")
    return lowered == "true"


def _parse_whole_number(bits: int) -> Callable[[str], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def parse(text: str) -> int:
        stripped = text.strip()
        # int() would also accept "1_000" and digits of other scripts, which Kafka does not.
        if not re.fullmatch(r"[+-]?[0-9]+", stripped) or not low <= int(stripped) <= high:
            raise ValueError(f"a whole number between {low} and {high}")
        return int(stripped)

    return parse


def _parse_double(text: str) -> float:
    stripped = text.strip()
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", stripped):
        raise ValueError("a number")
    return float(stripped)


def _parse_list(text: str) -> tuple[str, ...]:
    if not _trim(text):
        return ()
    items = tuple(_trim(item) for item in text.split(","))
    if not all(items):
        raise ValueError("a comma-separated list without empty items")
    return items


BOOL = SettingType("boolean", 1, _parse_bool)
STRING = SettingType("string", 2, _trim)
INT = SettingType("int", 3, _parse_whole_number(32))
SHORT = SettingType("short", 4, _parse_whole_number(16))
LONG = SettingType("long", 5, _parse_whole_number(64))
DOUBLE = SettingType("double", 6, _parse_double)
LIST = SettingType("list", 7, _parse_list)
CLASS = SettingType("class", 8, _trim)
PASSWORD = SettingType("password", 9, _trim)


def format_value(value: object) -> str | None:
    """Return a value as Kafka shows it: lists joined by commas, booleans and doubles as Java writes them."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).upper().replace("E+", "E")
    return str(value)


# Checks


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on values of a type. `allowed` completes the sentence "expected ..."."""

    allowed: str
    accepts: Callable[[Any], bool]


ANY = Check("", lambda _value: True)


def at_least(minimum: float) -> Check:
    return Check(f"at least {minimum}", lambda value: bool(value >= minimum))


def between(minimum: float, maximum: float) -> Check:
    return Check(f"between {minimum} and {maximum}", lambda value: bool(minimum <= value <= maximum))


def one_of(*allowed: str) -> Check:
    return Check(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def list_of(*allowed: str) -> Check:
    """Return a check for lists of items from `allowed`, each at most once; an empty list passes."""
    return Check(
        f"a list of {', '.join(allowed)}, each at most once",
        lambda value: set(value) <= set(allowed) and len(set(value)) == len(value),
    )


def or_else(check: Check, exception: int, meaning: str) -> Check:
    """Return a check that also accepts one special value, such as -1 for no limit."""
    return Check(
        f"{check.allowed}, or {exception} ({meaning})",
        lambda value: value == exception or check.accepts(value),
    )


# Rows


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A row of a table. As an attribute of the class it is the row, as an attribute of an instance the value."""

    name: str
    type: SettingType[T]
    default: T
    check: Check
    help: str
    #: whether it can be changed while the broker runs
    dynamic: bool = False
    #: False if it is accepted for the sake of existing files and tools, but has no effect
    used: bool = True
    #: other names under which the broker accepts this setting
    aliases: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        return self.type.id == PASSWORD.id

    @property
    def documentation(self) -> str:
        return self.help if self.used else f"{self.help} Accepted, no effect yet."

    def parse(self, text: str) -> T:
        """Return the typed value of `text`. Raise ValueError with the allowed values; a secret is not shown."""
        value = self.parse_type(text)
        if not self.check.accepts(value):
            raise ValueError(self._refusal(text, self.check.allowed))
        return value

    def parse_type(self, text: str) -> T:
        """Return the typed value without the check: for a part of a value, such as items to append to a list."""
        try:
            return self.type.parse(text)
        except ValueError as error:
            raise ValueError(self._refusal(text, str(error))) from None

    def _refusal(self, text: str, allowed: str) -> str:
        shown = "(hidden)" if self.sensitive else repr(text)
        return f"invalid value {shown} for {self.name}: expected {allowed}"

    def __set_name__(self, owner: object, attribute: str) -> None:
        assert attribute == self.attribute, f"row {self.name} must be the attribute {self.attribute}"

    # The row has no __set__, so Python finds the value in the instance's dict first, without a call of __get__.
    @overload
    def __get__(self, instance: None, owner: object) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: object) -> T: ...
    def __get__(self, instance: object, owner: object) -> Self | T:
        if instance is None:
            return self
        raise AttributeError(f"{self.name} was not given a value")


def unused(name: str, type_: SettingType[T], default: T, check: Check, help_: str) -> Setting[T]:
    """Return the row of a dynamic setting of Kafka that is accepted and has no effect."""
    return Setting(name, type_, default, check, help_, dynamic=True, used=False)


class SettingsSnapshot:
    """An immutable set of values, one for each row of the class. A change creates a new snapshot."""

    @classmethod
    def rows(cls) -> Mapping[str, Setting[Any]]:
        """Return the rows by name, first those of the class, then those of its base classes."""
        rows = (row for part in cls.__mro__ for row in vars(part).values() if isinstance(row, Setting))
        return MappingProxyType({row.name: row for row in rows})

    def value_of(self, name: str) -> Any:
        """Return the value of the setting with this name. The attributes have the same values with their types."""
        return vars(self)[name.replace(".", "_")]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; make a new one to change {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; {name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        changed = (
            f"{row.attribute}={'(hidden)' if row.sensitive else repr(self.value_of(row.name))}"
            for row in self.rows().values()
            if self.value_of(row.name) != row.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown name, with the most similar known name if there is one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    if not near:
        return f"unknown setting {name!r}; the reference page of settings lists the known ones"
    return f"unknown setting {name!r}; did you mean {near[0]!r}?"
