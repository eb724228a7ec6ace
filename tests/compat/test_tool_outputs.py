"""Kafka's commands print what Java's tools print: exit codes and outputs beside the recorded ones of Java.

`make campaign NAME=kafka-commands WRITE=1` records them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from tool_scenarios import OUTPUTS, SINGLE, Answer, Place, Scenario, all_scenarios, play

from ottla.cli.kafka import commands
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

RECORDED = [each for each in all_scenarios().values() if each.stage == SINGLE and not each.is_slow]


class InProcess:
    """Runs a command in this process, because a start of Python takes longer than most commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, command: str, words: Sequence[str], stdin: str) -> Answer:
        streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for name in ("stdout", "stderr")}
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
        with self._patch.context() as patch:
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            patch.setattr(sys, "stdin", given)
            code = commands.run(command, words)
        texts = [stream.buffer.getvalue().decode() for stream in streams.values()]  # type: ignore[attr-defined]
        return Answer(code, *texts)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker without topics."""
    with BrokerProcess.start() as process:
        yield process


@pytest.mark.parametrize("scenario", RECORDED, ids=lambda each: each.name)
def test_outputs_are_those_of_java(
    scenario: Scenario, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nullcontext(broker) if not scenario.is_alone else BrokerProcess.start() as used:
        entries = play(scenario, Place(used.bootstrap, tmp_path), InProcess(monkeypatch))
    assert "\n".join(entries) == (OUTPUTS / f"{scenario.name}.txt").read_text()


def test_each_recording_belongs_to_a_scenario() -> None:
    assert {path.stem for path in OUTPUTS.glob("*.txt")} <= all_scenarios().keys()
