"""What all tests share: the checkout's own packages (benchmarks) can be imported, whoever starts pytest."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# A busy machine is slow, which is not what these tests are about.
settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")
