"""Every scenario in this directory: events, and the decisions that the state machines take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.scenarios.machines import MACHINES
from tests.scenarios.script import machine_of, replay

_SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", _SCENARIOS, ids=lambda path: path.stem)
def test_decisions_are_as_written(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    said = replay(text, MACHINES[machine_of(text)](tmp_path))
    if os.environ.get("OTTLA_UPDATE_SCENARIOS"):
        path.write_text(said)
    assert said == path.read_text()


def test_scenario_with_another_decision_is_noticed(tmp_path: Path) -> None:
    text = "machine: partition\n\n> partition\nleader in epoch 7\n"
    assert replay(text, MACHINES["partition"](tmp_path)) != text
