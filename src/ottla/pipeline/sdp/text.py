"""Text of an exported project for Spark Declarative Pipelines: Python literals, SQL clauses, definitions. Pure."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.pipeline.declaration import Watermark

#: names that the text of a project uses itself, in lower case
_TAKEN: Final = frozenset(
    {"spark", "dp", "f", "formats", "read_schema", "read_schema_file", "oneschema", "schemasbyid", "registry"}
    | {"registrysettings", "pin_schema", "register_schema", "os", "path", "sys", "cluster", "root"}
)
_LINE_MAX: Final = 118


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Rows that a flow reads: a dataset of the project, as a stream or as all rows that exist."""

    name: str
    streaming: bool
    watermark: Watermark | None = None
    #: only rows for which it is true
    condition: str = ""
    #: columns that readers do not get
    hidden: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        """Return a query of these rows."""
        star = f"* EXCEPT ({', '.join(self.hidden)})" if self.hidden else "*"
        rows = f"STREAM({self.name})" if self.streaming else self.name
        if self.watermark is not None and self.streaming:
            rows += f" WATERMARK {identifier(self.watermark.column)}"
            rows += f" DELAY OF INTERVAL {self.watermark.delay_ms} MILLISECONDS"
        return f"SELECT {star} FROM {rows}" + (f" WHERE {self.condition}" if self.condition else "")

    @property
    def python(self) -> str:
        """Return an expression of a DataFrame with these rows.

        A watermark is a clause of SQL: `DataFrame.withWatermark` analyses its input, which Spark forbids here.
        """
        if self.hidden or self.condition or (self.watermark is not None and self.streaming):
            return f"spark.sql({literal(self.sql)})"
        return f"spark.{'readStream' if self.streaming else 'read'}.table({literal(self.name)})"


@dataclass(slots=True)
class Names:
    """Names that are in use. SQL does not distinguish upper and lower case."""

    used: set[str] = field(default_factory=set)

    def unique(self, wanted: str) -> str:
        """Return this name, or with a number after it if it is in use, and use it.

        >>> names = Names({"orders"})
        >>> names.unique("Orders"), names.unique("orders")
        ('Orders_2', 'orders_3')
        """
        name, number = wanted, 1
        while name.lower() in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name.lower())
        return name


def definition(decorator: str, name: str, body: Iterable[str], arguments: Mapping[str, str] | None = None) -> str:
    """Return a decorated function. `arguments` are those of the decorator, as Python expressions."""
    function = name
    given = dict(arguments or {})
    if keyword.iskeyword(name) or name.lower() in _TAKEN:
        function = f"{name}_rows"
        given = {"name": literal(name), **given}
    call = f"@dp.{decorator}"
    if given:
        call += f"({', '.join(f'{key}={value}' for key, value in given.items())})"
    return "\n".join([call, f"def {function}():", *(indent(line) for line in body)])


def sink_definition(name: str, format: str, options: str) -> str:
    return f"dp.create_sink({literal(name)}, {literal(format)}, {options})"


def indent(text: str) -> str:
    """Indent the lines of a statement, but not those of a text in three quotes."""
    first, *others = text.split("\n")
    return "\n".join(["    " + first, *others])


def call_lines(target: str, function: str, arguments: Iterable[str]) -> str:
    """Return a call, on one line if that fits, else with one argument per line."""
    given = list(arguments)
    short = f"{target}{function}({', '.join(given)})"
    if len(short) <= _LINE_MAX - 4 and "\n" not in short:
        return short
    return "\n".join([f"{target}{function}(", *(f"        {one}," for one in given), "    )"])


def literal(text: str) -> str:
    r"""Return a Python literal of a text; a text of several lines stands in three quotes.

    >>> print(literal('say "yes"'))
    "say \"yes\""
    """
    body = text.replace("\\", "\\\\")
    if "\n" in text:
        body = body.replace('"""', '\\"\\"\\"')
        return f'"""{body}"""' if not body.endswith('"') else f'"""{body[:-1]}\\""""'
    escaped = body.replace('"', '\\"')
    return (
        '"' + "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in escaped) + '"'
    )


def mapping_lines(name: str, values: Mapping[str, str]) -> str:
    """Return a statement that gives a name to a dictionary, with one entry per line."""
    return "\n".join(
        [f"{name} = {{", *(f"        {literal(key)}: {literal(one)}," for key, one in values.items()), "    }"]
    )


def list_literal(values: Iterable[str]) -> str:
    return f"[{', '.join(map(literal, values))}]"


def identifier(name: str) -> str:
    """Return a column's name as SQL has it, in backticks where they are needed.

    >>> identifier("paid_at"), identifier("paid at")
    ('paid_at', '`paid at`')
    """
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


def word(text: str) -> str:
    """Return a text with `_` for every sign that names do not have.

    >>> word("shop.revenue-per-minute")
    'shop_revenue_per_minute'
    """
    return re.sub(r"\W", "_", text)


def text_sql(text: str) -> str:
    """Return a literal of SQL.

    >>> text_sql("it's")
    "'it\\\\'s'"
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def holds(predicate: str) -> str:
    """Return a predicate that is true, or false instead of NULL."""
    # A comment at the end of the predicate must not swallow the parenthesis.
    end = "\n)" if "--" in predicate else ")"
    return f"coalesce(({predicate.strip()}{end}, false)"


def with_query(named: Mapping[str, str], query: str) -> str:
    """Return a query that finds other queries under these names."""
    if not named:
        return query
    parts = ",\n".join(f"  {identifier(name)} AS ({sql})" for name, sql in named.items())
    starts_with_select = re.match(r"\s*select\b", query, re.IGNORECASE) is not None
    body = query if starts_with_select else f"SELECT * FROM (\n{query}\n)"
    return f"WITH\n{parts}\n{body}"
