"""Flags of Kafka's commands that follow the rules of argparse4j, and how such a command ends."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.cli.kafka.arguments import ArgumentError, Given, HelpWanted, Syntax, argument, long, main, parse, table
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import print_line

SYNTAX = Syntax(
    name="kafka-things",
    summary="Do things.",
    arguments=(
        argument("--server", "-s", metavar="HOST", help="A server."),
        argument("--number", metavar="N", parse=int, default=3, help="A number."),
        argument("--props", metavar="K=V", has_several=True, help="Properties."),
        argument("--feature", metavar="F", is_repeatable=True, help="Features."),
    ),
    commands=(
        Syntax(name="kafka-things list", summary="List.", arguments=(argument("--all", help="All."),)),
        Syntax(
            name="kafka-things make",
            summary="Make.",
            arguments=(
                argument("--topic", metavar="T", is_required=True, help="A topic."),
                argument("--size", metavar="N", parse=long, help="Bytes."),
                argument("--file", metavar="F", help="A file."),
            ),
            one_of=(("size", "file"),),
        ),
    ),
)


def values(*words: str) -> Any:
    given = parse(SYNTAX, words)
    return given.command, {key: value for key, value in given.values.items() if value not in (None, [])}


def test_flags_stand_before_and_behind_the_command() -> None:
    assert values("--server", "h:1", "list", "--all") == ("list", {"server": "h:1", "number": 3, "all": True})


def test_a_flag_may_be_short_joined_or_abbreviated() -> None:
    assert values("-s", "h", "list") == values("--server=h", "list") == values("--serv", "h", "list")


def test_a_negative_number_is_a_value() -> None:
    assert values("--number", "-1", "list")[1]["number"] == -1


def test_several_values_end_at_the_next_flag_and_repeated_flags_add_up() -> None:
    found = values("--props", "a=1", "b=2", "--feature", "x", "--feature", "y", "list")
    # Words behind --props would be its values, so the command needs a flag before it, as with Kafka's tools.
    assert found == ("list", {"number": 3, "props": ["a=1", "b=2"], "feature": ["x", "y"]})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "too few arguments"),
        (("--bogus", "list"), "unrecognized arguments: '--bogus'"),
        (("eat",), "invalid choice: 'eat' (choose from 'list', 'make')"),
        (("list", "more"), "unrecognized arguments: 'more'"),
        (("--number", "x", "list"), "argument --number: could not convert 'x' to Integer (For input string: \"x\")"),
        (("--server", "--number", "1", "list"), "argument --server/-s: expected one argument"),
        (("--props",), "argument --props: expected at least one argument"),
        (("make", "--size", "1"), "argument --topic is required"),
        (("make", "--topic", "t"), "one of the arguments --size --file is required"),
        (("make", "--topic", "t", "--size", "1", "--file", "f"), "argument --file: not allowed with argument --size"),
        (("make", "--topic", "t", "--size", str(1 << 63)), "argument --size: could not convert"),
    ],
)
def test_wrong_flags_are_reported_with_the_usage(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse(SYNTAX, words)
    assert str(refused.value).startswith("usage: kafka-things")
    assert f"kafka-things: error: {text}" in str(refused.value)


def test_help_names_every_flag_and_command() -> None:
    with pytest.raises(HelpWanted) as wanted:
        parse(SYNTAX, ["-h"])
    assert all(word in str(wanted.value) for word in ("--server HOST", "--props K=V ...", "list", "make", "default: 3"))
    with pytest.raises(HelpWanted, match="--topic T"):
        parse(SYNTAX, ["make", "--help"])


@pytest.mark.parametrize(("words", "code", "output"), [(["list"], 0, "list\n"), (["--help"], 1, None), (["no"], 1, "")])
def test_exit_codes(words: list[str], code: int, output: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SYNTAX, words, lambda given: print_line(given.command)) == code
    printed = capsys.readouterr()
    assert printed.out == output if output is not None else printed.out.startswith("usage: kafka-things")


def test_errors_of_the_tool_end_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(given: Given) -> None:
        raise ToolError("no such thing")

    def miss(given: Given) -> None:
        open("/nonexistent/file").close()

    assert main(SYNTAX, ["list"], fail) == main(SYNTAX, ["list"], miss) == 1
    assert capsys.readouterr().err == "no such thing\n/nonexistent/file (No such file or directory)\n"


def test_columns_of_a_table_are_as_wide_as_their_widest_value() -> None:
    assert table(("Id", "State"), [(1, "Empty"), (1000, "Ongoing")]) == (
        "Id  \tState  \t\n1   \tEmpty  \t\n1000\tOngoing\t"
    )
