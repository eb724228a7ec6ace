"""A Spark home whose Python processes start in half of the time.

Spark puts ``python/lib/pyspark.zip`` of its home first in the path of every Python process that it starts: planners,
workers, and one process for each stream of a Python source. Python does not cache modules of an archive, so each of
them compiles PySpark again: 1.3 s of a core instead of 0.5 s. If pip has installed PySpark on this machine, the
interpreter has the same files, compiled, among its packages. So Spark gets a home with everything but the archive.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ottla.spark.java import cache_directory

#: what Spark looks for in its home; ``python`` is left out
_PARTS = ("bin", "data", "jars", "sbin")


def home_without_archive(environ: Mapping[str, str]) -> Path | None:
    """Return the home, created once for each PySpark; None if pip has not installed it, or without write access."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    installed = package.parent.name in ("site-packages", "dist-packages")
    if not installed or not (package / "jars").is_dir():
        return None
    home = cache_directory(environ) / f"spark-{hashlib.sha256(os.fsencode(package)).hexdigest()[:16]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for part in _PARTS:
            with suppress(FileExistsError):
                (home / part).symlink_to(package / part)
    except OSError:
        return None
    return home
