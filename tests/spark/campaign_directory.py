"""The directory of a campaign with Spark, and the seed that it draws."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from campaign.report import Report


def run_in_directory(report: Report, seed: int | None, play: Callable[[int, Path], None]) -> None:
    """Call ``play`` with a seed, drawn if there is none, and a directory. A campaign that fails keeps its directory."""
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix=f"ottla-{report.name}-"))
    report.say(f"SEED={seed}, in {directory}")
    play(seed, directory)
    shutil.rmtree(directory)
