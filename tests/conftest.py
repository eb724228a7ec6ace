"""Set-up for all tests: the checkout's own packages (benchmarks) can be imported, and SIGINT has its default action."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# A busy machine is slow, which is not what these tests are about.
settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
