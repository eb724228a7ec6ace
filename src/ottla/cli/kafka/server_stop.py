"""kafka-server-stop: stop the brokers that kafka-server-start has started on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.kafka import processes
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import FAILED, OK, guarded, print_line

_NODE = "--node-id="
_ROLE = "--process-role="


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return guarded(lambda: _main(words))


def _main(words: Sequence[str]) -> int:
    wanted = next((word.removeprefix(_NODE) for word in words if word.startswith(_NODE)), None)
    role = next((word.removeprefix(_ROLE) for word in words if word.startswith(_ROLE)), None)
    if wanted is not None and role is not None:
        print_line("When both node-id and process-role are provided, the value for node-id will take precedence")
    others = [word for word in words if not word.startswith((_NODE, _ROLE))]
    if others:
        raise ToolError(f"{others[0]} is not a flag of kafka-server-stop; it knows {_NODE}ID and {_ROLE}ROLE")
    found = processes.running("kafka-server-start")
    if not found:
        print_line("No kafka server to stop")
        return FAILED
    if wanted is not None:
        found = [each for each in found if processes.node_id(each) == wanted]
    elif role == "controller":
        # Brokers of Ottla are no separate controllers.
        found = []
    for _ in processes.stop(found):
        pass
    return OK
