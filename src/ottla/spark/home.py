"""A Spark home whose Python processes start in half of the time.

Spark puts ``python/lib/pyspark.zip`` of its home in front of the path of every Python process that it starts: planners,
workers, and one process for each stream of a Python source. Nothing that is imported from an archive is cached, so each
of them compiles PySpark again: 1.3 s of a core instead of 0.5 s. On one machine, where pip has installed PySpark, the
same files lie in the interpreter's own packages, compiled. So Spark is shown a home that has all but the archive.
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
    """Made once for each PySpark; None where PySpark is not one that pip has installed, or nothing can be written."""
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
