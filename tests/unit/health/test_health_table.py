"""The table of checks as a whole: names, advice and tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from pictures import healthy, topic, topics

from ottla.cli.main import main
from ottla.health import checks
from ottla.health.checks import CHECKS, Check, brokers, disks, groups, partitions, security, transactions
from ottla.health.checks import topics as topic_checks
from ottla.health.checks.definition import NAMES_MAX

MODULES = (brokers, partitions, disks, groups, transactions, topic_checks, security)
KINDS = {"cluster", "broker", "topic", "partition", "group", "transaction", "directory", "client"}
ROOT = Path(__file__).resolve().parents[3]


def test_table_has_every_check_once() -> None:
    defined = {value.name for module in MODULES for value in vars(module).values() if isinstance(value, Check)}
    names = [check.name for check in CHECKS]
    assert sorted(names) == sorted(defined) and len(set(names)) == len(names) >= 30
    assert len(list(Path(checks.__file__).parent.glob("*.py"))) == len(MODULES) + 2


def test_every_check_has_a_test_that_finds_its_fault() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_health_*.py"))
    assert [
        check.name for check in CHECKS if f'only("{check.name}"' not in text and f'"{check.name}")' not in text
    ] == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check_says_what_is_wrong_and_what_to_do(check: Check) -> None:
    assert check.problem.endswith(".")
    assert check.advice and not check.advice.endswith(".")
    assert check.kind in KINDS
    assert check.find(healthy()) is not None


def commands(advice: str) -> list[str]:
    return re.findall(r"'ottla ([^']+)'", advice)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_commands_of_the_advice_exist(check: Check) -> None:
    for line in commands(check.advice):
        command: click.Command = main
        words = shlex.split(line)
        while words and isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, line
            command = found
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert [word for word in words if word.startswith("-") and word not in options] == [], line


def test_names_of_a_finding_are_bounded_and_its_text_has_the_number() -> None:
    many = topics(*(topic(f"t{number}", retention_ms="-1") for number in range(NAMES_MAX + 50)))
    (finding,) = next(check for check in CHECKS if check.name == "unlimited-topics").run(healthy(topics=many))
    assert len(finding.names) == NAMES_MAX
    assert finding.text.startswith(f"{NAMES_MAX + 50} topics without any limit")
