"""What all tests share: the checkout's own packages (benchmarks) can be imported, whoever starts pytest."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
