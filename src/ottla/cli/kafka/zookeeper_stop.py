"""zookeeper-server-stop: stop the servers that zookeeper-server-start has started on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.kafka import processes
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import FAILED, OK, guarded, print_line


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return guarded(lambda: _main(words))


def _main(words: Sequence[str]) -> int:
    if words:
        raise ToolError("zookeeper-server-stop has no flags")
    found = processes.running("zookeeper-server-start")
    if not found:
        print_line("No zookeeper server to stop")
        return FAILED
    for _ in processes.stop(found):
        pass
    return OK
