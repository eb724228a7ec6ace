"""The command line as a whole: what it loads, how it ends, what its page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import generate_cli_docs
import ottla as package
from ottla.cli import broker as broker_command
from ottla.cli import cluster as cluster_module
from ottla.cli.main import main
from ottla.security.errors import SecurityConfigError

HEAVY = ("confluent_kafka", "rich", "yaml", "ottla.broker", "ottla.log", "uvloop", "asyncio", "cramjam")

HELP_OF_EVERYTHING = """
import sys
from click.testing import CliRunner
from ottla.cli.main import main
for words in {words!r}:
    assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0, words
print(*[name for name in {heavy!r} if name in sys.modules])
"""


def walk(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk((*words, name), inner)


EVERYTHING = dict(walk((), main))


def test_help_loads_neither_the_client_nor_the_broker() -> None:
    # The commands of Kafka have flags of their own, and print their help as Kafka does.
    own = [words for words in EVERYTHING if words[:1] != ("kafka",) or words[1:] in ((), ("install",))]
    script = HELP_OF_EVERYTHING.format(words=own, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("words", EVERYTHING, ids=" ".join)
def test_every_command_explains_itself_and_its_options(words: tuple[str, ...]) -> None:
    command = EVERYTHING[words]
    assert command.help
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_the_reference_page_is_current() -> None:
    assert generate_cli_docs.main(["--check"]) == 0


def test_the_version_is_the_packages(ottla: Any) -> None:
    assert ottla("--version").output == f"ottla {package.__version__}\n"
    assert ottla("version").output.startswith(f"ottla {package.__version__}\npython ")


@pytest.mark.parametrize("words", [("nope",), ("topic", "nope"), ("topic", "list", "--nope"), ("offsets",)])
def test_wrong_usage_is_one_line_that_points_to_help(ottla: Any, words: tuple[str, ...]) -> None:
    result = ottla(*words)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ") and result.stderr.endswith(" --help'\n")


def test_a_noun_alone_shows_its_verbs(ottla: Any) -> None:
    assert "describe" in ottla("topic").output


def test_interruption_is_quiet_and_has_its_code(ottla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(connection: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_module, "connect", interrupted)
    result = ottla("topic", "list")
    assert (result.exit_code, result.output.strip()) == (130, "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/data"), "error: /data: No space left on device\n"),
        (SecurityConfigError("the file has no key; name another"), "error: the file has no key; name another\n"),
    ],
)
def test_an_error_of_the_operating_system_or_of_ottla_is_one_line(
    ottla: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def fail(connection: object) -> None:
        raise error

    monkeypatch.setattr(cluster_module, "connect", fail)
    result = ottla("topic", "list")
    assert (result.exit_code, result.stderr) == (1, line)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the broker would have been started with."""
    calls: list[dict[str, Any]] = []

    def run_broker(**settings: Any) -> int:
        calls.append(settings)
        return 7

    monkeypatch.setattr("ottla.broker.main.run_broker", run_broker)
    return calls


def test_the_broker_gets_its_flags_and_gives_the_exit_code(ottla: Any, started: list[dict[str, Any]]) -> None:
    result = ottla(
        "broker", "--data", "d", "--listener", "PLAINTEXT://127.0.0.1:0", "--listener", "IN://127.0.0.1:1",
        "--id", "3", "--metrics", "127.0.0.1:9", "-X", "num.partitions=2",
    )  # fmt: skip
    assert result.exit_code == 7
    assert started == [
        {
            "properties": {"num.partitions": "2"}, "config_file": None, "data": "d", "broker_id": 3,
            "listeners": ("PLAINTEXT://127.0.0.1:0", "IN://127.0.0.1:1"), "metrics": "127.0.0.1:9",
        }
    ]  # fmt: skip


def test_insecure_broker_gets_the_setting_unless_x_says_otherwise(ottla: Any, started: list[dict[str, Any]]) -> None:
    ottla("broker", "--insecure")
    ottla("broker", "--insecure", "-X", "allow.insecure.listeners=false")
    assert [call["properties"]["allow.insecure.listeners"] for call in started] == ["true", "false"]


def test_a_broker_without_flags_has_defaults(ottla: Any, started: list[dict[str, Any]]) -> None:
    ottla("broker")
    assert (started[0]["data"], started[0]["listeners"]) == (
        broker_command.DATA_DEFAULT, (broker_command.LISTENER_DEFAULT,),
    )  # fmt: skip


def test_defaults_do_not_overrule_a_file_or_a_property(ottla: Any, started: list[dict[str, Any]]) -> None:
    ottla("broker", "--config", "server.properties")
    ottla("broker", "-X", "log.dirs=/d", "-X", "listeners=PLAINTEXT://:1")
    assert [(call["data"], call["listeners"]) for call in started] == [(None, ()), (None, ())]


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "command-line.md"


def commands_of_guide() -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    # The words up to a pipe or a redirection.
    return [shlex.split(re.split(r" [|>] ", line)[0]) for line in lines]


@pytest.mark.parametrize("words", commands_of_guide(), ids=" ".join)
def test_command_of_the_guide_has_valid_arguments(words: list[str]) -> None:
    assert words[0] == "ottla"
    command: click.Command = main
    words = words[1:]
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, words
        command, words = inner, words[1:]
    command.make_context("ottla", words)
