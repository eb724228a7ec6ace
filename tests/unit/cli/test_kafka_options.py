"""The flags of Kafka's commands, and how a command ends."""

from __future__ import annotations

import pytest

from ottla.cli.kafka import commands
from ottla.cli.kafka.errors import OptionError, RequestError, ToolError, UsageError, class_name
from ottla.cli.kafka.java import as_list, hash_order, matching, parse_int
from ottla.cli.kafka.options import Options, flag, parse
from ottla.cli.kafka.tool import Tool, main, print_line

FLAGS = (
    flag("topic", help="A topic.", metavar="TOPIC"),
    flag("partitions", help="A number.", metavar="N", parse=parse_int),
    flag("list", help="List."),
    flag("bootstrap-server", "broker-list", help="Brokers.", metavar="HOST"),
    flag("names", help="Some.", metavar="A,B", separator=","),
    flag("state", help="States.", metavar="STATE", is_value_optional=True),
)


@pytest.mark.parametrize(
    "arguments", [["--topic", "a", "--list"], ["--topic=a", "--list"], ["-topic", "a", "-list"], ["--list", "-topic=a"]]
)
def test_a_flag_is_written_in_four_ways(arguments: list[str]) -> None:
    options = parse(FLAGS, arguments)
    assert options.value("topic") == "a"
    assert options.has("list")


def test_the_next_word_is_the_value_whatever_it_begins_with() -> None:
    assert parse(FLAGS, ["--topic", "--list"]).value("topic") == "--list"


def test_all_names_of_a_flag_are_one_flag() -> None:
    assert parse(FLAGS, ["--broker-list", "h:1"]).value("bootstrap-server") == "h:1"


def test_words_that_are_no_flags_are_kept() -> None:
    assert parse(FLAGS, ["a", "--list", "--", "--topic"]).words == ["a", "--topic"]


def test_values_in_one_word_are_separated() -> None:
    assert parse(FLAGS, ["--names", "a,,b", "--names=c"]).values("names") == ["a", "b", "c"]


def test_optional_value_is_not_a_flag() -> None:
    options = parse(FLAGS, ["--state", "--list"])
    assert (options.has("state"), options.values("state"), options.has("list")) == (True, [], True)
    assert parse(FLAGS, ["--state", "Stable"]).value("state") == "Stable"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--zookeeper", "h:2181"], "zookeeper is not a recognized option"),
        (["--topi", "a"], "topi is not a recognized option"),
        (["--topic"], "Option topic requires an argument"),
        (["-x"], "x is not a recognized option"),
    ],
)
def test_unreadable_flags_are_refused_with_the_words_of_kafka(arguments: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse(FLAGS, arguments)


def test_values_are_converted_when_they_are_read() -> None:
    options = parse(FLAGS, ["--partitions", "x", "--topic", "a", "--topic", "b"])
    with pytest.raises(OptionError, match="Cannot parse argument 'x' of option partitions"):
        options.value("partitions")
    with pytest.raises(OptionError, match="Found multiple arguments for option topic, but you asked for only one"):
        options.value("topic")
    assert options.values("topic") == ["a", "b"]


def test_flags_that_do_not_fit_are_named() -> None:
    options = parse(FLAGS, ["--list", "--topic", "a"])
    with pytest.raises(UsageError, match=r'Missing required argument "\[bootstrap-server, broker-list\]"'):
        options.require("bootstrap-server")
    with pytest.raises(UsageError, match=r'Option "\[list\]" can\'t be used with option "\[topic\]"'):
        options.refuse_with("list", ["topic"])


def _tool(outcome: BaseException | int) -> Tool:
    def run(options: Options) -> int:
        print_line("output")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Tool(name="kafka-x", summary="Does x.", flags=FLAGS, run=run)


@pytest.mark.parametrize(
    ("arguments", "outcome", "code", "out", "err"),
    [
        (["--list"], 0, 0, "output\n", ""),
        (["--list"], 3, 3, "output\n", ""),
        (["--version"], 0, 0, "4.3.0\n", ""),
        (["--help"], 0, 1, "", "Does x.\nOption"),
        ([], 0, 1, "", "Does x.\nOption"),
        (["--list"], UsageError("Choose."), 1, "output\n", "Choose.\nOption"),
        (["--list"], RequestError(3), 1, "output\n", "This server does not host this topic-partition.\n"),
        (["--list"], KeyboardInterrupt(), 130, "output\n", ""),
    ],
)
def test_exit_codes_and_streams_are_those_of_kafka(
    arguments: list[str],
    outcome: BaseException | int,
    code: int,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(_tool(outcome), arguments) == code
    said = capsys.readouterr()
    assert said.out == out
    assert said.err.startswith(err) and bool(said.err) == bool(err)


def test_errors_have_the_classes_of_java() -> None:
    assert class_name(36) == "TopicExistsException"
    assert class_name(39) == "InvalidReplicaAssignmentException"
    assert RequestError(36, "text").java_class == "org.apache.kafka.common.errors.TopicExistsException"
    assert issubclass(RequestError, ToolError)


def test_names_have_the_order_of_a_hash_map_of_java() -> None:
    # What Java 17 prints for `new HashMap<>(4)` with these keys.
    assert hash_order(["b", "a", "aa", "Z"], 4) == ["aa", "a", "b", "Z"]


def test_include_list_is_a_regular_expression_with_commas() -> None:
    names = ["a", "b", "ab", "__consumer_offsets"]
    assert matching("a, b", names) == ["a", "b"]
    assert matching(".*", names, without_internal=True) == ["a", "b", "ab"]
    with pytest.raises(ToolError, match="is an invalid regex"):
        matching("[", names)


def test_lists_are_printed_as_java_prints_them() -> None:
    assert as_list([1, 2]) == "[1, 2]"


@pytest.mark.parametrize("name", ["kafka-topics", "kafka-topics.sh", "topics", "topics.sh"])
def test_command_is_found_by_each_of_its_names(name: str) -> None:
    assert commands.find(name) == "kafka-topics"
    assert commands.find("kafka-nothing") is None


def test_a_negative_number_is_an_optional_value_of_a_number() -> None:
    flags = (flag("period", help="Time.", metavar="MS", parse=int, is_value_optional=True), FLAGS[2])
    assert parse(flags, ["--period", "-1"]).value("period") == -1
    assert parse(flags, ["--period", "--list"]).values("period") == []
