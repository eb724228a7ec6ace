"""Scenarios: text files with events and the decisions that are expected after each of them.

    machine: partition

    # Lines like this one explain.
    > state leader=1 epoch=3 isr=1,2
    leader of epoch 3, end 5, high watermark 0

A line that begins with ``>`` is an event: a command, words, and ``name=value``. The lines below it, up to an empty
line, are what the machine says. ``OTTLA_UPDATE_SCENARIOS=1`` writes what the machines say into the files; read the
difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Event(NamedTuple):
    command: str
    words: list[str]
    values: dict[str, str]

    def number(self, name: str, default: int) -> int:
        return int(self.values.get(name, default))

    def numbers(self, name: str, default: str = "") -> tuple[int, ...]:
        return tuple(int(text) for text in self.values.get(name, default).split(",") if text)

    @property
    def word(self) -> str:
        assert len(self.words) == 1, f"{self.command} takes one word"
        return self.words[0]


Machine = Callable[[Event], Iterable[str]]


def machine_of(text: str) -> str:
    first = text.split("\n", 1)[0]
    assert first.startswith("machine: "), "a scenario begins with a line such as 'machine: partition'"
    return first.removeprefix("machine: ").strip()


def replay(text: str, machine: Machine) -> str:
    """Return the scenario with what ``machine`` says in place of what was expected."""
    out: list[str] = []
    in_answer = False
    for line in text.split("\n"):
        if line.startswith("> "):
            out.append(line)
            out += machine(parse_event(line.removeprefix("> ")))
            in_answer = True
        elif not line or line.startswith("#"):
            out.append(line)
            in_answer = False
        elif not in_answer:
            out.append(line)
    return "\n".join(out)


def parse_event(line: str) -> Event:
    command, *rest = line.split()
    words = [each for each in rest if "=" not in each]
    values = dict(each.split("=", 1) for each in rest if "=" in each)
    return Event(command, words, values)
