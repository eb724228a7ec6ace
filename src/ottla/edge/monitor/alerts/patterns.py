"""Patterns of names, in rules and silences: `orders-*`, or `!test-*` for names that do not match. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern in which `*` stands for any characters.

    The time is proportional to the length of the text for each `*`: a regular expression could need much longer.

    >>> [matches("a*c", text) for text in ("abc", "ac", "abcd")]
    [True, True, False]
    """
    first, *parts = pattern.split("*")
    if not parts:
        return text == pattern
    *middle, last = parts
    if not text.startswith(first) or len(text) < len(first) + len(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return text.endswith(last)


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """A name matches if it matches one of the patterns and none of those that begin with `!`."""

    patterns: tuple[str, ...]

    def match(self, name: str) -> bool:
        wanted = [each for each in self.patterns if not each.startswith("!")]
        refused = (each[1:] for each in self.patterns if each.startswith("!"))
        return (not wanted or any(matches(each, name) for each in wanted)) and not any(
            matches(each, name) for each in refused
        )


@dataclass(frozen=True, slots=True)
class LabelPatterns:
    """Labels match if each named label matches its patterns. A label that is missing has the value ''."""

    by_label: Mapping[str, NamePatterns] = field(default_factory=dict)

    def match(self, labels: Mapping[str, str]) -> bool:
        return all(patterns.match(labels.get(label, "")) for label, patterns in self.by_label.items())
