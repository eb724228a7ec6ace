"""Jars for comparison, brought by Maven into .bench (not in version control) when they are not there yet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.locking import locked

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".bench"
_FETCH_SECONDS_MAX = 500.0


def fetch_jars(what: str, pom: Path, directory: Path, marker: str) -> str | None:
    """Bring what a pom names, unless the jar `marker` is there. Return one line that says why when it cannot."""
    with locked(directory):
        return None if (directory / marker).exists() else _fetch(what, pom, directory)


def fetch_jar(what: str, artifact: str, directory: Path) -> str | None:
    """Bring one jar, `group:name:version:jar:classifier`, unless it is there. Return one line that says why not.

    Its pom is not read, so the repositories and dependencies that the pom names need not be reachable.
    """
    _, name, version, _, classifier = artifact.split(":")
    with locked(directory):
        if (directory / f"{name}-{version}-{classifier}.jar").exists():
            return None
        return _run_maven(what, ["dependency:copy", f"-Dartifact={artifact}"], directory)


def _fetch(what: str, pom: Path, directory: Path) -> str | None:
    return _run_maven(what, ["-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"], directory)


def _run_maven(what: str, arguments: list[str], directory: Path) -> str | None:
    maven = shutil.which("mvn")
    if maven is None:
        return f"the jars of {what} are fetched with Maven, and no `mvn` was found"
    # Copied beside and renamed, so that an interrupted download never looks like a whole one.
    partial = directory.with_name(f"{directory.name}.partial")
    command = [maven, "-q", "-B", *arguments, f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"the jars of {what} could not be fetched in time"
    if done.returncode != 0:
        reason = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        return f"the jars of {what} could not be fetched: {reason[0]}"
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    return None
