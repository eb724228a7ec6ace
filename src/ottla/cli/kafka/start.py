"""The start of the scripts that `ottla kafka install` writes."""

from __future__ import annotations

import gc
import signal
import sys
from typing import NoReturn

_INTERRUPTED = 130


def start(name: str) -> NoReturn:
    """Run the command with this name and the arguments of the process. Raise SystemExit with its exit code."""
    # Most commands end after a few milliseconds, before there is garbage worth looking for.
    gc.set_threshold(100_000)
    code = _INTERRUPTED
    try:
        from ottla.cli.kafka.commands import run

        code = run(name, sys.argv[1:])
    except KeyboardInterrupt:
        pass
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
