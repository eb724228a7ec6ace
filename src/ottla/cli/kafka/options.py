"""The flags of a tool, read by the rules of the library that Kafka's tools use (JOpt Simple).

`--flag value`, `--flag=value` and `-flag value` are the same. Flags may be repeated, and `--` ends them. A value is the
next word whatever it begins with. Abbreviations are not accepted, as Kafka's tools do not accept them. A value is
converted when the tool reads it, so an error about it may come late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.cli.kafka.errors import IllegalArgument, OptionError, UsageError
from ottla.model.errors import OttlaError

_HELP_WIDTH = 100
_NAMES_WIDTH = 46


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a tool. Without a metavar it has no value."""

    #: its names, the first one is the name by which the tool reads it, such as ``topic``
    names: tuple[str, ...]
    help: str
    metavar: str = ""
    #: turns a value into what the tool reads; ValueError if it cannot
    parse: Callable[[str], Any] = str
    default: Any = None
    #: the value may be left out
    is_value_optional: bool = False
    #: a character between several values in one word
    separator: str = ""
    is_required: bool = False

    def __str__(self) -> str:
        """Return the flag as messages of Kafka's tools name it."""
        return f"[{', '.join(self.names)}]"


def flag(*names: str, help: str, **more: Any) -> Flag:
    """Return a flag: ``flag("topic", help="…", metavar="NAME")``."""
    return Flag(names, help, **more)


HELP = flag("help", help="Print this help.")
VERSION = flag("version", help="Print the version of Kafka whose tools these follow.")


class Options:
    """The flags of a command line."""

    def __init__(
        self, flags: Sequence[Flag], values: dict[str, list[str]], words: list[str], order: Sequence[str] = ()
    ) -> None:
        self._flags = {name: each for each in flags for name in each.names}
        #: the values of each flag that was given, by its first name
        self._values = values
        #: arguments that are no flags
        self.words = words
        #: the flags as they were given, by their first names
        self.order = order

    def has(self, name: str) -> bool:
        """Return whether a flag was given."""
        return name in self._values

    def any_of(self, *names: str) -> list[str]:
        """Return those of these flags that were given."""
        return [name for name in names if self.has(name)]

    def value(self, name: str) -> Any:
        """Return the value of a flag, its default without one. Raise OptionError if there are several."""
        found = self.values(name)
        if len(found) > 1:
            raise OptionError(f"Found multiple arguments for option {self._joined(name)}, but you asked for only one")
        return found[0] if found else None

    def values(self, name: str) -> list[Any]:
        """Return the values of a flag, or its default. Raise OptionError if one of them cannot be read."""
        flag = self._flags[name]
        given = self._values.get(name, [])
        if not given:
            return [] if flag.default is None else [flag.default]
        return [self._parse(flag, each) for each in given]

    def require(self, *names: str) -> None:
        """Raise UsageError if one of these flags is missing."""
        for name in names:
            if not self.has(name):
                raise UsageError(f'Missing required argument "{self._flags[name]}"')

    def refuse_with(self, used: str, others: Iterable[str]) -> None:
        """Raise UsageError if one of the other flags was given together with `used`."""
        if self.has(used):
            for other in others:
                if self.has(other):
                    flags = self._flags
                    raise UsageError(f'Option "{flags[used]}" can\'t be used with option "{flags[other]}"')

    def _joined(self, name: str) -> str:
        return "/".join(self._flags[name].names)

    def _parse(self, flag: Flag, text: str) -> Any:
        try:
            return flag.parse(text)
        except (ValueError, IllegalArgument):
            raise OptionError(f"Cannot parse argument '{text}' of option {self._joined(flag.names[0])}") from None


def parse(flags: Sequence[Flag], arguments: Sequence[str]) -> Options:
    """Return the flags of a command line. Raise OptionError."""
    by_name = {name: each for each in flags for name in each.names}
    values: dict[str, list[str]] = {}
    words: list[str] = []
    order: list[str] = []
    rest = list(reversed(arguments))
    while rest:
        word = rest.pop()
        if word == "--":
            words += reversed(rest)
            break
        if len(word) < 2 or word[0] != "-":
            words.append(word)
            continue
        dashes = 2 if word.startswith("--") else 1
        name, equals, text = word[dashes:].partition("=")
        found = by_name.get(name)
        if found is None:
            # A word with one dash is a cluster of flags of one letter, and is refused for the first unknown one.
            raise OptionError(f"{name if dashes == 2 else name[:1]} is not a recognized option")
        order.append(found.names[0])
        given = values.setdefault(found.names[0], [])
        if found.metavar:
            given += _values(found, text if equals else None, rest)
    options = Options(flags, values, words, order)
    missing = [f"{'/'.join(each.names)}" for each in flags if each.is_required and not options.has(each.names[0])]
    if missing and not options.any_of("help", "version"):
        raise OptionError(f"Missing required option(s) [{', '.join(missing)}]")
    return options


def _values(flag: Flag, text: str | None, rest: list[str]) -> list[str]:
    """Return the values of one occurrence of a flag; take the next word if its own has none."""
    if text is None:
        if flag.is_value_optional and not (rest and _is_value(flag, rest[-1])):
            return []
        if not rest:
            raise OptionError(f"Option {'/'.join(flag.names)} requires an argument")
        text = rest.pop()
    if not flag.separator:
        return [text]
    return [part for part in text.split(flag.separator) if part] or [text]


def _is_value(flag: Flag, word: str) -> bool:
    """Return whether a word is the value of a flag that needs none: also a negative number, if it takes a number."""
    if not word.startswith("-"):
        return True
    try:
        return isinstance(flag.parse(word), int | float)
    except (ValueError, OttlaError):
        return False


def help_text(flags: Iterable[Flag]) -> str:
    """Return the table of flags."""
    import textwrap

    rows = []
    for each in sorted(flags, key=lambda row: row.names[0]):
        names = ", ".join(f"--{name}" for name in each.names)
        if each.metavar:
            names += f" [<{each.metavar}>]" if each.is_value_optional else f" <{each.metavar}>"
        text = each.help if each.default is None else f"{each.help} (default: {each.default})"
        left = textwrap.wrap(names, _NAMES_WIDTH - 2, subsequent_indent="  ")
        right = textwrap.wrap(text, _HELP_WIDTH - _NAMES_WIDTH) or [""]
        count = max(len(left), len(right))
        left, right = left + [""] * (count - len(left)), right + [""] * (count - len(right))
        rows += [f"{one:<{_NAMES_WIDTH}}{other}".rstrip() for one, other in zip(left, right, strict=True)]
    head = [f"{'Option':<{_NAMES_WIDTH}}Description", f"{'------':<{_NAMES_WIDTH}}-----------"]
    return "\n".join([*head, *rows])
