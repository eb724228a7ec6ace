"""The `ottla` command, also ``python -m ottla``. Imports are inside `main`: Ctrl-C during them shows no traceback."""

from __future__ import annotations

import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Raise SystemExit with its exit code."""
    try:
        from ottla.cli.main import main as run

        run(prog_name="ottla")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        # The command has ended: a late Ctrl-C may end the process, but not print a traceback of its shutdown.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
