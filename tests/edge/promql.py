"""The metrics, labels and groupings that an expression of PromQL names. Enough of its grammar for our own files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'[^']*') | (?P<range>\[[^]]*\]) | (?P<name>[a-zA-Z_:][\w:]*)
      | (?P<number>[\d.][\w.]*) | (?P<sign>=~|!~|!=|==|>=|<=|[^\s\w])""",
    re.VERBOSE,
)
_AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
#: aggregations that return series of their argument
_SELECTIONS = {"topk", "bottomk"}
_GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "Inf", "inf", "NaN"}


@dataclass
class Expression:
    #: metric -> labels that it is selected by
    metrics: dict[str, set[str]] = field(default_factory=dict)
    #: labels of `by (…)`
    grouped_by: set[str] = field(default_factory=set)
    #: labels are lost but for those of grouped_by
    is_aggregated: bool = False


def parse(text: str) -> Expression:
    """Return what an expression names."""
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text)] + [("end", "")]
    found = Expression()
    place = 0
    while place < len(tokens) - 1:
        (kind, word), following = tokens[place], tokens[place + 1][1]
        place += 1
        if kind != "name" or word in _WORDS:
            continue
        if word in _AGGREGATIONS:
            found.is_aggregated = True
        elif word in _GROUPINGS:
            assert word == "by", f"{word} is not supported here"
            place += 1
            while tokens[place][1] != ")":
                found.grouped_by |= {tokens[place][1]} - {","}
                place += 1
        elif word not in _SELECTIONS and following != "(":
            labels = found.metrics.setdefault(word, set())
            if following == "{":
                while tokens[place][1] != "}":
                    if tokens[place][0] == "name":
                        labels.add(tokens[place][1])
                    place += 1
    return found
