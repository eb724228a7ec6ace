"""Registry clients in other languages: each a program in `clients/`, built or brought once and run with one task.

A task, on standard input, is a JSON object:

    urls              instances of the registry
    prefix            start of the names of the subjects that the program may use
    user, password    basic authentication; absent without
    ca                file with the certificate of the authority; absent without TLS
    read              name -> data in base64 that another client has encoded

The answer, on standard output:

    calls    name of a call -> its result; an error of the registry is its code
    read     name -> the value of the field `id` in that data
    data     name -> data in base64 with the field `id`, which is 42
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.locking import locked
from benchmarks.maven import SCRATCH, fetch_jar

_SOURCES: Final = Path(__file__).resolve().parent / "clients"
_PACKAGE: Final = ("@confluentinc/schemaregistry", "1.10.1")
#: Confluent does not publish its client in Maven Central. This jar, which contains release 7.9.5 unchanged, is there.
_ARTIFACT: Final = "org.apache.pinot:pinot-confluent-avro:1.5.0:jar:shaded"
_BUILD_S_MAX: Final = 500.0
_RUN_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Program:
    """A client that is ready to run."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the program. Raise AssertionError with its output if it fails."""
        done = subprocess.run(
            self.command, input=json.dumps(task), capture_output=True, text=True, timeout=_RUN_S_MAX,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def node() -> Program | str:
    """Return Confluent's client for JavaScript, or one line that says why it is not available."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        return "Node is not installed: apt-get install nodejs npm"
    directory = SCRATCH / "registry-node"
    name, version = _PACKAGE
    with locked(directory):
        if not (directory / "node_modules" / name / "package.json").exists():
            # No script of a package runs: the client needs none of them.
            command = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", "--ignore-scripts"]
            problem = _run([*command, f"{name}@{version}"], directory)
            if problem is not None:
                return f"{name} cannot be installed: {problem}"
    return Program("node", (found, str(_SOURCES / "node" / "registry.js")), {"NODE_PATH": f"{directory}/node_modules"})


def golang() -> Program | str:
    """Return the registry client of franz-go, or one line that says why it is not available."""
    go = shutil.which("go")
    if go is None:
        return "Go is not installed: see https://go.dev/doc/install"
    built, source = SCRATCH / "go" / "registry", _SOURCES / "go"
    with locked(built):
        newest = max(path.stat().st_mtime for path in source.iterdir())
        if not built.exists() or built.stat().st_mtime < newest:
            problem = _run([go, "build", "-o", str(built), "."], source, {"CGO_ENABLED": "0"})
            if problem is not None:
                return f"franz-go's registry client cannot be built: {problem}"
    return Program("go", (str(built),))


def java() -> Program | str:
    """Return Confluent's client for Java, or one line that says why it is not available."""
    found = shutil.which("java")
    if found is None or shutil.which("javac") is None:
        return "a JDK is not installed: apt-get install openjdk-17-jdk-headless"
    directory, source = SCRATCH / "registry-java", _SOURCES / "java" / "RegistryClient.java"
    problem = fetch_jar("Confluent's registry client", _ARTIFACT, directory)
    if problem is not None:
        return problem
    return Program("java", (found, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{directory}/*", str(source)))


def _run(command: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> str | None:
    """Return None if the command succeeds, otherwise its last line."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_BUILD_S_MAX,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "it takes too long; is the network reachable?"
    return None if done.returncode == 0 else (done.stderr.strip() or "no message").splitlines()[-1]
