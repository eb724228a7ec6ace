"""Reads the values of a table of a TOML file. Each problem names its place; all of them are reported together. Pure."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ottla.model.printable import shown
from ottla.model.times import parse_duration_ms

TEXT_LENGTH_MAX: Final = 1000
LIST_LENGTH_MAX: Final = 100
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
#: a longer one is a mistake
_DURATION_MS_MAX: Final = 366 * 86_400_000

_T = TypeVar("_T")


class Fields:
    """One table of a file: `take_…` returns a value, or the default with a problem; `end` reports unknown keys."""

    def __init__(self, place: str, table: Mapping[str, Any], problems: list[str]) -> None:
        self.place = place
        self._table = dict(table)
        self._known: list[str] = []
        self._problems = problems

    def problem(self, text: str) -> None:
        self._problems.append(f"{self.place}: {text}")

    def inner(self, place: str, table: Mapping[str, Any]) -> Fields:
        """Return a table inside of this one; its problems are reported with those of this one."""
        return Fields(place, table, self._problems)

    def remaining(self) -> list[str]:
        """Return the keys that were not taken yet."""
        return list(self._table)

    def has(self, key: str) -> bool:
        return key in self._table

    def take(self, key: str, kind: type[_T], what: str) -> _T | None:
        """Return a value of this type, None if there is none."""
        self._known.append(key)
        value = self._table.pop(key, None)
        if value is None:
            return None
        # bool is a subclass of int in Python, and true is no number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.problem(f"{key} must be {what}")
            return None
        return value

    def take_text(self, key: str, default: str = "", *, length_max: int = TEXT_LENGTH_MAX) -> str:
        text = self.take(key, str, "text in quotes")
        if text is not None and len(text) > length_max:
            self.problem(f"{key} has more than {length_max} characters")
            return default
        return default if text is None else text

    def take_name(self, key: str = "name") -> str:
        text = self.take_text(key)
        if not _NAME.fullmatch(text):
            self.problem(f"{key} is missing, or not letters, digits, '.', '_' and '-', at most 64 of them")
        return text

    def take_flag(self, key: str, default: bool) -> bool:
        value = self.take(key, bool, "true or false")
        return default if value is None else value

    def take_number(self, key: str) -> float | None:
        self._known.append(key)
        value = self._table.pop(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            self.problem(f"{key} must be a number")
            return None
        return float(value)

    def take_duration(self, key: str, default: int) -> int:
        text = self.take(key, str, 'a duration in quotes, such as "5m"')
        if text is None:
            return default
        if text == "0":
            return 0
        try:
            span = parse_duration_ms(text)
        except ValueError as error:
            self.problem(f"{key}: {shown(str(error))}")
            return default
        if span > _DURATION_MS_MAX:
            self.problem(f"{key} is longer than a year")
            return default
        return span

    def take_choice(self, key: str, choices: Sequence[str], default: str) -> str:
        text = self.take_text(key, default)
        if text not in choices:
            self.problem(f"{key} is {shown(text)!r}, allowed are {', '.join(choices)}")
            return default
        return text

    def take_texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts; a single text is a list of one."""
        self._known.append(key)
        value = self._table.pop(key, None)
        if value is None:
            return None
        found = [value] if isinstance(value, str) else value
        if (
            not isinstance(found, list)
            or len(found) > LIST_LENGTH_MAX
            or not all(isinstance(each, str) and 0 < len(each) <= TEXT_LENGTH_MAX for each in found)
        ):
            self.problem(f"{key} must be text, or a list of at most {LIST_LENGTH_MAX} texts")
            return None
        return tuple(found)

    def take_moment(self, key: str) -> int | None:
        """Return a moment in milliseconds; None if there is none."""
        value = self.take(key, datetime.datetime, "a moment, such as 2026-11-19T12:00:00Z, without quotes")
        if value is None:
            return None
        if value.tzinfo is None:
            self.problem(f"{key} needs a time zone, for example Z for UTC: 2026-11-19T12:00:00Z")
            return None
        return int(value.timestamp() * 1000)

    def take_table(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = self.take(key, dict, "a table, such as { group = 'orders-*' }")
        return {} if found is None else found

    def take_labels(self, key: str) -> dict[str, str]:
        """Return a table of labels and their values."""
        found = {}
        for label, text in list(self.take_table(key).items())[:LIST_LENGTH_MAX]:
            if not _LABEL.fullmatch(label) or not isinstance(text, str) or len(text) > TEXT_LENGTH_MAX:
                self.problem(f"{key}.{shown(label)} must be letters, digits and '_', and its value text")
            else:
                found[label] = text
        return found

    def end(self) -> None:
        """Report the keys that were not taken."""
        for key in self._table:
            close = difflib.get_close_matches(key, self._known, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; allowed are {', '.join(sorted(self._known))}"
            self.problem(f"{shown(key)[:64]} is unknown{hint}")
