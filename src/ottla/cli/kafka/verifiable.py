"""What kafka-verifiable-producer and -consumer share: events as lines of JSON, and the end by a signal."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

from ottla.cli.kafka.arguments import Argument, Given, argument
from ottla.cli.kafka.tool import print_line


def connection_arguments(kind: str) -> tuple[Argument, ...]:
    """Return the flags of the address and the properties; `kind` is producer or consumer."""
    return (
        argument(f"--{kind}.config", metavar="FILE", help="The former name of --command-config."),
        argument("--command-config", metavar="FILE", help=f"File with properties of the {kind}."),
        argument("--bootstrap-server", metavar="HOST:PORT,...", is_required=True, help="Brokers of the cluster."),
    )


def config_file(given: Given, kind: str) -> str | None:
    """Return the file of properties, and report the flag that is deprecated."""
    old: str | None = given[f"{kind}.config"]
    if old is not None:
        print_line(
            f"Option --{kind}.config has been deprecated and will be removed in a future version. Use --command-config "
            "instead."
        )
    file: str | None = given["command-config"] or old
    return file


def event(name: str, **fields: Any) -> None:
    """Print an event."""
    line = {"timestamp": int(time.time() * 1000), "name": name, **fields}
    print_line(json.dumps(line, separators=(",", ":"), ensure_ascii=False))
    # A test reads the events while the tool runs.
    sys.stdout.flush()


class Stop:
    """Whether SIGTERM or SIGINT have asked the tool to stop."""

    def __init__(self) -> None:
        self.is_asked = False
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._ask)

    def _ask(self, *_: object) -> None:
        self.is_asked = True
