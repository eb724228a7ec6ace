"""The flags of a tool, read by the rules of the other library that Kafka's tools use (argparse4j).

Tools such as kafka-transactions have commands with flags of their own, accept `--flag value`, `--flag=value`, and a
beginning of a long flag that fits no other one. A word that begins with a dash, and is no negative number, is never a
value. An error names the flag, follows the usage on standard error, and ends the tool with exit code 1.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import guarded, print_line

_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_HELP_WIDTH: Final = 100
_NAMES_WIDTH: Final = 34
#: argparse4j's names of Java's types, which stand in errors
_TYPE_NAMES: Final = {"int": "Integer", "float": "Double", "long": "Long"}


class HelpWanted(ToolError):
    """The user asked for help, which is the text."""


class ArgumentError(ToolError):
    """The flags cannot be read. The text is the usage and the error."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One flag. Without a metavar it has no value."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    #: `int`, `float` or str
    parse: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] = ()
    is_required: bool = False
    #: how often the flag is given is how many values it has
    is_repeatable: bool = False
    #: one or more values follow the flag
    has_several: bool = False

    @property
    def key(self) -> str:
        """The name by which a tool reads the value."""
        return self.names[0].lstrip("-")


def argument(*names: str, help: str, **more: Any) -> Argument:
    """Return a flag: ``argument("--topic", help="…", metavar="TOPIC")``."""
    return Argument(names, help, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """The flags of a tool, or of one of its commands."""

    #: as it stands in the usage, such as ``kafka-cluster``
    name: str
    summary: str
    arguments: tuple[Argument, ...] = ()
    #: keys of flags of which at most one may be given, or exactly one
    exclusive: tuple[tuple[str, ...], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    commands: tuple[Syntax, ...] = ()

    @property
    def word(self) -> str:
        """The last word of the name, which is that of a command."""
        return self.name.rpartition(" ")[2]


_HELP = argument("-h", "--help", help="Print this help.")


@dataclass(slots=True)
class Given:
    """The values of a command line: those of flags by their keys, and the command."""

    command: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def has(self, key: str) -> bool:
        """Return whether the flag has a value, given or by default."""
        return self.values.get(key) not in (None, False, [])


def parse(syntax: Syntax, words: Sequence[str]) -> Given:
    """Return the values of a command line. Raise ArgumentError or HelpWanted."""
    given = Given()
    _parse(syntax, list(reversed(words)), given)
    return given


def _parse(syntax: Syntax, rest: list[str], given: Given) -> None:
    by_name = {name: each for each in (*syntax.arguments, _HELP) for name in each.names}
    seen: set[str] = set()
    command: Syntax | None = None
    for each in syntax.arguments:
        given.values.setdefault(each.key, [] if each.is_repeatable else each.default)
    while rest and command is None:
        word = rest.pop()
        if not _is_flag(word):
            command = _find_command(syntax, word)
            continue
        name, equals, text = word.partition("=")
        found = _find(syntax, by_name, name)
        if found is _HELP:
            raise HelpWanted(help_text(syntax))
        if not found.metavar:
            given.values[found.key] = True
        else:
            _store(syntax, found, _values(syntax, found, text if equals else None, rest), given)
        seen.add(found.key)
    if syntax.commands and command is None:
        raise _error(syntax, "too few arguments")
    if command is not None:
        given.command = command.word
        _parse(command, rest, given)
    _check(syntax, seen)


def _check(syntax: Syntax, seen: set[str]) -> None:
    for each in syntax.arguments:
        if each.is_required and each.key not in seen:
            raise _error(syntax, f"argument {'/'.join(each.names)} is required")
    by_key = {each.key: "/".join(each.names) for each in syntax.arguments}
    for keys in (*syntax.exclusive, *syntax.one_of):
        both = [by_key[key] for key in keys if key in seen]
        if len(both) > 1:
            raise _error(syntax, f"argument {both[1]}: not allowed with argument {both[0]}")
    for keys in syntax.one_of:
        if not seen.intersection(keys):
            raise _error(syntax, f"one of the arguments {' '.join(by_key[key] for key in keys)} is required")


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.fullmatch(word)


def _find_command(syntax: Syntax, word: str) -> Syntax:
    for each in syntax.commands:
        if each.word == word:
            return each
    if not syntax.commands:
        raise _error(syntax, f"unrecognized arguments: '{word}'")
    names = ", ".join(f"'{each.word}'" for each in syntax.commands)
    raise _error(syntax, f"invalid choice: '{word}' (choose from {names})")


def _find(syntax: Syntax, by_name: Mapping[str, Argument], name: str) -> Argument:
    if name in by_name:
        return by_name[name]
    fitting = sorted(each for each in by_name if name.startswith("--") and each.startswith(name))
    if not fitting:
        raise _error(syntax, f"unrecognized arguments: '{name}'")
    if len({by_name[each].key for each in fitting}) > 1:
        raise _error(syntax, f"ambiguous option: {name} could match {', '.join(fitting)}")
    return by_name[fitting[0]]


def _values(syntax: Syntax, found: Argument, text: str | None, rest: list[str]) -> list[str]:
    if text is not None:
        return [text]
    texts: list[str] = []
    while rest and not _is_flag(rest[-1]) and (found.has_several or not texts):
        texts.append(rest.pop())
    if not texts:
        count = "at least one argument" if found.has_several else "one argument"
        raise _error(syntax, f"argument {'/'.join(found.names)}: expected {count}")
    return texts


def _store(syntax: Syntax, found: Argument, texts: list[str], given: Given) -> None:
    values = [_value(syntax, found, each) for each in texts]
    if found.is_repeatable:
        given.values[found.key] = [*given.values[found.key], *values]
    else:
        given.values[found.key] = values if found.has_several else values[0]


def _value(syntax: Syntax, found: Argument, text: str) -> Any:
    names = "/".join(found.names)
    try:
        value = found.parse(text)
    except ValueError:
        kind = _TYPE_NAMES.get(getattr(found.parse, "__name__", ""), "value")
        raise _error(syntax, f"argument {names}: could not convert '{text}' to {kind} (For input string: \"{text}\")")
    if found.choices and value not in found.choices:
        choices = ",".join(found.choices)
        raise _error(syntax, f"argument {names}: invalid choice: '{text}' (choose from {{{choices}}})")
    return value


def long(text: str) -> int:
    """Return a number of 64 bits. Raise ValueError."""
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(text)
    return value


def _error(syntax: Syntax, text: str) -> ArgumentError:
    # The program is named by its first word also in errors of a command.
    return ArgumentError(f"{usage(syntax)}\n{syntax.name.partition(' ')[0]}: error: {text}")


def usage(syntax: Syntax) -> str:
    """Return the usage, over several lines."""
    grouped = {key for keys in (*syntax.exclusive, *syntax.one_of) for key in keys}
    parts = ["[-h]"]
    for each in syntax.arguments:
        if each.key not in grouped:
            parts.append(_spelled(each) if each.is_required else f"[{_spelled(each)}]")
    by_key = {each.key: each for each in syntax.arguments}
    for groups, brackets in ((syntax.exclusive, "[]"), (syntax.one_of, "()")):
        for keys in groups:
            parts.append(f"{brackets[0]}{' | '.join(_spelled(by_key[key]) for key in keys)}{brackets[1]}")
    if syntax.commands:
        parts.append(f"{{{','.join(each.word for each in syntax.commands)}}} ...")
    lines, line = [], f"usage: {syntax.name}"
    for part in parts:
        if len(line) + 1 + len(part) > _HELP_WIDTH:
            lines.append(line)
            line = " " * 7
        line += f" {part}"
    return "\n".join([*lines, line])


def help_text(syntax: Syntax) -> str:
    """Return usage, summary, commands and flags."""
    rows = [(each.word, each.summary) for each in syntax.commands]
    blocks = [usage(syntax), "\n".join(textwrap.wrap(syntax.summary, _HELP_WIDTH))]
    if rows:
        blocks.append("commands:\n" + "\n".join(_row(*row) for row in rows))
    flags = [_row(", ".join(_spelled(each, name) for name in each.names), _described(each))
             for each in (_HELP, *syntax.arguments)]  # fmt: skip
    blocks.append("flags:\n" + "\n".join(flags))
    return "\n\n".join(blocks)


def _spelled(each: Argument, name: str | None = None) -> str:
    value = f" {each.metavar}{' ...' if each.has_several else ''}" if each.metavar else ""
    return f"{name or each.names[0]}{value}"


def _described(each: Argument) -> str:
    return each.help if each.default is None else f"{each.help} (default: {each.default})"


def _row(names: str, text: str) -> str:
    lines = textwrap.wrap(text, _HELP_WIDTH - _NAMES_WIDTH - 2) or [""]
    indent = " " * (_NAMES_WIDTH + 2)
    if len(names) > _NAMES_WIDTH - 1:
        return "\n".join([f"  {names}", *(indent + line for line in lines)])
    return "\n".join([f"  {names:<{_NAMES_WIDTH}}{lines[0]}", *(indent + line for line in lines[1:])])


def main(
    syntax: Syntax,
    words: Sequence[str],
    run: Callable[[Given], int | None],
    *,
    help_code: int = 1,
    is_helped_without_arguments: bool = False,
) -> int:
    """Read the flags, run the tool, and return its exit code.

    `help_code` is that of --help: some of Kafka's tools end with 0 and some with 1.
    """

    def started() -> int | None:
        if not words and is_helped_without_arguments:
            print_line(help_text(syntax))
            return 0
        try:
            return run(parse(syntax, words))
        except HelpWanted as wanted:
            print_line(str(wanted))
            return help_code

    return guarded(started)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as Kafka's tools print it: a tab behind each column, which is as wide as its widest value."""
    texts = [list(titles), *([str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("".join(f"{text:<{width}}\t" for text, width in zip(row, widths, strict=True)) for row in texts)
    return "\n".join(lines)
