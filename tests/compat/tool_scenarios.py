"""Scenarios for Kafka's commands: steps that Java's tools and Ottla's run, and the transcripts of both.

A scenario is a name and steps. A transcript has the command line, the exit code and the standard output of each step,
with ids, times and ports replaced. `kafka_commands_campaign` compares the transcripts of both; `test_tool_outputs`
compares those of Ottla's tools with the recorded ones in `tool_outputs`.

A module `tool_cases_*.py` has `SCENARIOS`. In arguments, {b} stands for --bootstrap-server and its address, {server}
for the address, {dir} for a scratch directory.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

OUTPUTS = Path(__file__).with_name("tool_outputs")
SINGLE, CLUSTER, SECURE = "single", "cluster", "secure"


@dataclass(slots=True)
class Place:
    """Where a scenario runs."""

    server: str
    directory: Path
    #: what the scenario has opened; closed at its end
    stack: ExitStack = field(default_factory=ExitStack)
    #: standard output of the last step
    last: str = ""

    def fill(self, text: str) -> str:
        return (
            text.replace("{b}", f"--bootstrap-server {self.server}")
            .replace("{server}", self.server)
            .replace("{dir}", str(self.directory))
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a command."""

    command: str
    arguments: str = ""
    stdin: str = ""
    #: Java prints the lines in an order that differs from run to run
    unordered: bool = False
    #: why the outputs differ; the step is not compared then
    differs: str = ""
    #: further replacements: regular expression, text
    replace: tuple[tuple[str, str], ...] = ()

    def words(self, place: Place) -> list[str]:
        return shlex.split(place.fill(self.arguments))


@dataclass(frozen=True, slots=True)
class Do:
    """What is not a command: a function of the place, for example one that joins a group, or writes a file."""

    function: Callable[[Place], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Steps that build on each other. The names of its topics and groups are its own."""

    name: str
    steps: Sequence[Step | Do]
    #: SINGLE, CLUSTER (three brokers) or SECURE (with ACLs)
    stage: str = SINGLE
    #: on a broker of its own, because it lists everything that exists
    is_alone: bool = False
    #: not a part of `make test`, for example because it waits
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    stdout: str
    stderr: str = ""


class Runner(Protocol):
    """Runs a command."""

    def __call__(self, command: str, words: Sequence[str], stdin: str) -> Answer: ...


def file(name: str, text: str) -> Do:
    """Return a step that writes a file into the scratch directory."""
    return Do(lambda place: (place.directory / name).write_text(place.fill(text)) and None)


def all_scenarios() -> dict[str, Scenario]:
    """Return the scenarios of all modules `tool_cases_*.py`, by name."""
    found: dict[str, Scenario] = {}
    for path in sorted(Path(__file__).parent.glob("tool_cases_*.py")):
        for each in importlib.import_module(path.stem).SCENARIOS:
            assert each.name not in found, f"two scenarios are called {each.name}"
            found[each.name] = each
    return found


def play(scenario: Scenario, place: Place, runner: Runner) -> list[str]:
    """Run a scenario. Return the transcript of each step."""
    entries = []
    with place.stack:
        for step in scenario.steps:
            if isinstance(step, Do):
                step.function(place)
                continue
            answer = runner(step.command, step.words(place), step.stdin)
            place.last = answer.stdout
            entries.append(entry(step, answer, place))
    return entries


def entry(step: Step, answer: Answer, place: Place) -> str:
    """Return the transcript of a step: command line, exit code, output."""
    lines = normalised(answer.stdout, place, step.replace).splitlines()
    if step.unordered:
        lines.sort()
    head = f"$ {step.command} {step.arguments}".rstrip()
    if step.differs:
        return f"{head}\n(not compared: {step.differs})\n"
    return "".join(f"{line}\n" for line in (head, f"exit {answer.code}", *lines))


_REPLACED = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "{uuid}"),
    (re.compile(r"(?<![\w+/-])[A-Za-z0-9_+/-]{22}(?![\w+/-])"), "{id}"),
    (re.compile(r"\b1[6-9]\d{11}\b"), "{ms}"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([,.:]\d+)?Z?"), "{time}"),
)


def normalised(text: str, place: Place, more: Sequence[tuple[str, str]] = ()) -> str:
    """Return an output without what differs from run to run: ids, times, ports, directories."""
    text = text.replace(str(place.directory), "{dir}")
    for server in place.server.split(","):
        port = server.rpartition(":")[2]
        text = re.sub(rf"\b{port}\b", "{port}", text)
    for pattern, replacement in more:
        text = re.sub(pattern, replacement, text)
    for compiled, replacement in _REPLACED:
        text = compiled.sub(replacement, text)
    return text
